"""Tables, pictures and captions of a study of section 5.2, from the files of its fits."""

from __future__ import annotations

from collections.abc import Iterable
from pathlib import Path
from typing import TYPE_CHECKING

import pandas as pd

from adfl_stats.datasets.images import Images
from adfl_stats.simulate.figure1 import needs_matplotlib
from adfl_stats.simulate.image_networks import ImageNetwork
from adfl_stats.simulate.section52 import Setting, Size

if TYPE_CHECKING:
    from matplotlib.figure import Figure

__all__ = ["caption_of", "draw_accuracy", "gaps", "last_lines", "table_of"]


def table_of(cells: Path, wanted: Iterable[Setting]) -> pd.DataFrame:
    """Return all lines of the fits of some settings; others in their folder are left out."""
    files = [file for setting in wanted for file in sorted((cells / setting.name).glob("*.csv"))]
    return pd.concat([pd.read_csv(file) for file in files], ignore_index=True)


def last_lines(table: pd.DataFrame) -> pd.DataFrame:
    """Return the accuracy after the last round, the mean over replicates, one row a setting and one column a method."""
    where = ["skew", "corruption", "share", "network"]
    return _ends(table).pivot_table(index=where, columns="method", values="accuracy", aggfunc="mean")


def gaps(table: pd.DataFrame) -> pd.DataFrame:
    """Return the accuracy after the last round less the oracle's: the mean over replicates, and the least."""
    where = ["skew", "corruption", "share", "network"]
    ends = _ends(table).pivot(index=[*where, "replicate"], columns="method", values="accuracy")
    apart = ends.sub(ends["oracle"], axis=0).drop(columns="oracle").groupby(where)
    return pd.concat({"mean": apart.mean(), "least": apart.min()}, axis=1)


def _ends(table: pd.DataFrame) -> pd.DataFrame:
    """Return the last line of each run."""
    return table.sort_values("round").groupby(["skew", "corruption", "share", "network", "replicate", "method"]).tail(1)


def draw_accuracy(table: pd.DataFrame) -> Figure:
    """Draw accuracy over rounds, the mean over normal clients with the band of all, a panel for each setting."""
    panels = list(table.groupby(["skew", "corruption", "share", "network"]))
    columns = min(len(panels), 4)
    rows = -(-len(panels) // columns)
    figure = needs_matplotlib()(figsize=(4.2 * columns, 3.2 * rows + 0.8), layout="constrained")
    axes = figure.subplots(rows, columns, squeeze=False, sharex=True, sharey=True).ravel()
    for ax, (where, lines) in zip(axes, panels, strict=False):
        for name, line in lines.groupby("method"):
            curve = line.groupby("round")[["accuracy", "lowest", "highest"]].mean()
            (drawn,) = ax.plot(curve.index, curve["accuracy"], label=name, ls="--" if name == "oracle" else "-")
            ax.fill_between(curve.index, curve["lowest"], curve["highest"], color=drawn.get_color(), alpha=0.12, lw=0)
        skew = {"none": "all classes", "labels": "label shards"}[where[0]]
        ax.set(title=f"{skew}, {where[1]}, share {where[2]:g}, {where[3]}", xlabel="round", ylabel="accuracy")
        ax.spines[["top", "right"]].set_visible(False)
    for ax in axes[len(panels) :]:
        ax.set_axis_off()
    figure.legend(*axes[0].get_legend_handles_labels(), loc="outside lower center", ncols=4, frameon=False)
    return figure


def caption_of(images: Images, size: Size, replicates: int, given: ImageNetwork | None = None) -> str:
    """Return what is drawn, and every setting that the paper leaves open."""
    grey = images.X.shape[1] == 784
    network = "LeNet5, tanh, mean pooling" if grey else "A VGG of six convolutions, 138,330 parameters"
    network += ", Xavier initialisation"
    if given is not None:
        network = f"A network of {given.n_params:,} parameters, begun from those of a file"
    return (
        f"Accuracy on {size.test} test images of {images.name} over rounds: the mean over normal clients, and the band "
        f"of all of them; {replicates} replicate(s). {network}. M = {size.M} clients of "
        f"{size.n or len(images.X) // size.M} images; with label shards each has two of the {2 * size.M} parts of the "
        "images sorted by class. LF: y becomes 9 - y; OOD: x becomes .7 x + U(0, 1).\n"
        f"Open in the paper (Appendix D.3 is not public), chosen by us: {size.rounds} rounds at step {size.step:g}, "
        f"cut to a tenth on plateaus, batches of {size.batch}; random graphs have Metropolis weights; b of BRIDGE-T is "
        "the largest that the network allows; aDFL (paper) has gradient norms of all rows, lambda 3, two stages from "
        "BRIDGE-M, each of them as many rounds; aDFL (agreement) has weights from class_agreement at the initial "
        "parameters; SLBRN-M runs on undirected networks only.\n"
    )
