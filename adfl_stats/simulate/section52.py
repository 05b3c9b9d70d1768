"""The paper's section 5.2: networks for images, trained by all methods on clients of which some are corrupted.

Its Appendix D.3 (steps, rounds, batches, lambda) is not public; what is chosen here stands in `QUICK`, `FULL` and
`methods`, and the caption names it. Each fit is a file of its own, so that an interrupted study goes on.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Any

import numpy as np
import pandas as pd

from adfl_stats._files import replacing
from adfl_stats._types import Array, Mask
from adfl_stats.datasets.images import Images
from adfl_stats.errors import DivergenceError
from adfl_stats.inference.objective_results import ObjectiveResults
from adfl_stats.losses.automatic import from_jax
from adfl_stats.methods import ADFL, DFL, SLBRN, Bridge, ClippedGossip, Method, Oracle
from adfl_stats.network.generators import directed_circle, erdos_renyi
from adfl_stats.network.network import Network
from adfl_stats.objective_model import DecentralizedModel
from adfl_stats.simulate.folder import Folder
from adfl_stats.simulate.image_networks import ImageNetwork, cross_entropy, lenet5, small_vgg
from adfl_stats.simulate.specification import described, package_version
from adfl_stats.trust.class_agreement import class_agreement
from adfl_stats.trust.weights import TRUST

__all__ = [
    "FULL",
    "QUICK",
    "QUICK_COLOUR",
    "Setting",
    "Shared",
    "Size",
    "agreeing",
    "folder_of",
    "run_setting",
    "settings",
    "shared_images",
]

CORRUPTIONS = ("LF", "OOD")
CLASSES = 10
AGREEMENT = "aDFL (agreement)"
NETWORKS: dict[str, Callable[[int], Network]] = {
    "circle-4": lambda M: directed_circle(M, 4),
    "circle-5": lambda M: directed_circle(M, 5),
    "circle-15": lambda M: directed_circle(M, 15),
    "er-.2": lambda M: erdos_renyi(M, 0.2, seed=1).metropolis(),
    "er-.5": lambda M: erdos_renyi(M, 0.5, seed=1).metropolis(),
}


@dataclass(frozen=True)
class Size:
    """How large a study is; all of it is ours."""

    M: int
    n: int
    rounds: int
    step: float
    batch: int
    test: int
    networks: tuple[str, ...]
    shares: tuple[float, ...]
    corruptions: tuple[str, ...]
    lines: int = 10


# 6,000 images and 1,000 for tests; of CIFAR10 half as many, since a gradient of the small VGG takes ten times as long.
QUICK = Size(10, 600, 150, 0.2, 60, 1000, ("circle-4",), (0.3,), ("LF",))
QUICK_COLOUR = Size(10, 300, 80, 0.1, 30, 500, ("circle-4",), (0.3,), ("LF",), lines=4)
# All 60,000 or 50,000 images.
FULL = Size(50, 0, 1000, 0.1, 100, 10_000, ("circle-5", "circle-15", "er-.2", "er-.5"), (0.0, 0.2, 0.4), CORRUPTIONS)


@dataclass(frozen=True)
class Setting:
    """One setting of the study.

    Attributes
    ----------
    skew : {"none", "labels"}
        Whether every client has all classes, or two shards of the images sorted by class.
    corruption : {"LF", "OOD"}
        Labels y become 9 - y, or images x become .7 x + U(0, 1), on abnormal clients.
    share : float
        Of abnormal clients.
    network : str
        One of `NETWORKS`.
    replicate : int
        Seed of images, clients and initial parameters.
    """

    skew: str
    corruption: str
    share: float
    network: str
    replicate: int

    @property
    def name(self) -> str:
        """Of the folder of its fits."""
        return f"{self.skew}_{self.corruption}_{self.share:g}_{self.network}_{self.replicate}"


@dataclass(frozen=True, eq=False)
class Shared:
    """Images shared out to clients: (images, classes) of each, which are abnormal, the network to train, its losses."""

    data: list[tuple[Any, Any]]
    abnormal: Mask
    network: ImageNetwork
    losses: Any


def settings(size: Size, replicates: int) -> Iterator[Setting]:
    """Return the settings of a study; without abnormal clients there is no corruption to choose."""
    for replicate in range(replicates):
        for skew in ("none", "labels"):
            for network in size.networks:
                for share in size.shares:
                    for corruption in size.corruptions if share > 0 else size.corruptions[:1]:
                        yield Setting(skew, corruption, share, network, replicate)


def shared_images(images: Images, setting: Setting, size: Size, network: ImageNetwork | None = None) -> Shared:
    """Share the images out, corrupt those of abnormal clients, and set up the network to train and its losses.

    Without a network it is LeNet5 for grey images, the small VGG for others, with parameters by the replicate.
    """
    import jax

    rng = np.random.default_rng(setting.replicate)
    side = (28, 28, 1) if images.X.shape[1] == 784 else (32, 32, 3)
    n = size.n or len(images.X) // size.M
    chosen = rng.permutation(len(images.X))[: size.M * n]
    parts = list(chosen.reshape(size.M, n))
    if setting.skew == "labels":
        shards = np.array_split(chosen[np.argsort(images.y[chosen], kind="stable")], 2 * size.M)
        order = rng.permutation(2 * size.M)
        parts = [np.concatenate([shards[order[2 * m]], shards[order[2 * m + 1]]]) for m in range(size.M)]
    abnormal = np.zeros(size.M, dtype=bool)
    abnormal[rng.choice(size.M, int(setting.share * size.M + 1e-9), replace=False)] = True
    data: list[tuple[Any, Any]] = [(images.X[part].reshape(-1, *side), images.y[part]) for part in parts]
    for m in np.flatnonzero(abnormal):
        data[m] = _corrupted(*data[m], setting.corruption, rng)
    if network is None:
        network = lenet5(setting.replicate) if side[2] == 1 else small_vgg(setting.replicate)
    tests = images.test_images[: size.test].reshape(-1, *side), images.test_y[: size.test]

    @jax.jit
    def followed(params: Any) -> dict[str, Any]:
        logits = network.logits_in_parts(params, tests[0])
        right = (logits.argmax(axis=1) == tests[1]).mean()
        return {"accuracy": right, "test loss": cross_entropy(logits, tests[1])}

    losses = from_jax(
        network.loss,
        network.params,
        data,
        batch=size.batch,
        metrics=followed,
        precision="float32",
        seed=setting.replicate,
    )
    return Shared(data, abnormal, network, losses)


def _corrupted(images: Any, classes: Any, kind: str, rng: np.random.Generator) -> tuple[Any, Any]:
    if kind == "LF":
        return images, CLASSES - 1 - classes
    return (0.7 * images + rng.uniform(size=images.shape)).astype(np.float32), classes


@dataclass(frozen=True, eq=False)
class Fit:
    """A fit, and which of its runs has the lines of each method: two that share a run are not run twice."""

    method: Method
    run_of: dict[str, int]


def fits(shared: Shared, network: Network, *, undirected: bool) -> list[Fit]:
    """Return the fits of a setting; trimming and lambda are ours. SLBRN is for undirected networks.

    BRIDGE-M is the start of the paper's aDFL, its first run. Where `class_agreement` sets just the abnormal clients
    aside, DFL with its weights is the oracle, to the bit.
    """
    b = max((int(network.in_degree.min()) - 1) // 2, 0)
    oracle, weights = Fit(Oracle(shared.abnormal), {"oracle": -1}), agreeing(shared)
    if np.array_equal(weights, ~shared.abnormal):
        first = [Fit(oracle.method, oracle.run_of | {AGREEMENT: -1})]
    else:
        first = [oracle, Fit(DFL(weights=weights), {AGREEMENT: -1})]
    paper = ADFL(lam=3.0, measure="norm", stages=2, init=Bridge("median"))
    others: dict[str, Method] = {"DFL": DFL(), "BRIDGE-T": Bridge("trimmed", b=b), "ClippedGossip": ClippedGossip()}
    if undirected:
        others["SLBRN-M"] = SLBRN("median")
    alone = [Fit(method, {name: -1}) for name, method in others.items()]
    return [*first, *alone, Fit(paper, {"BRIDGE-M": 0, "aDFL (paper)": -1})]


def agreeing(shared: Shared) -> Array:
    """Return the weights of clients that label alike, by hidden units of the network at its initial parameters."""
    import jax

    hidden = jax.jit(lambda images: shared.network.hidden(shared.network.params, images))
    features = [np.asarray(hidden(images)) for images, _ in shared.data]
    return class_agreement(features, [np.asarray(classes) for _, classes in shared.data]).weights


def folder_of(path: Path, images: Images, size: Size, given: ImageNetwork | None = None) -> Path:
    """Return where the fits of a study are kept, in a folder that is new or of the same study.

    Fits of other images, sizes or initial parameters would pass for those that are asked for. More replicates are the
    same study.
    """
    parts = {"version": package_version(), "images": (images.name, images.X.shape), "size": size}
    parts["parameters"] = None if given is None else given.params
    return Folder(path, described(parts)).path / "cells"


def run_setting(
    images: Images, setting: Setting, size: Size, cells: Path, given: ImageNetwork | None = None
) -> Iterator[str]:
    """Run the fits of a setting that have no file yet; return the name of each method when it is done."""
    where = cells / setting.name
    where.mkdir(parents=True, exist_ok=True)
    network = NETWORKS[setting.network](size.M)
    shared = shared_images(images, setting, size, given)
    model = DecentralizedModel(shared.losses, network)
    for fit in fits(shared, network, undirected=setting.network.startswith("er")):
        files = {name: where / f"{name}.csv" for name in fit.run_of}
        if not all(file.exists() for file in files.values()):
            res = _fitted(model, fit.method, size)
            for name, file in files.items():
                lines = _lines(res, fit.run_of[name], shared, size).assign(method=name, **asdict(setting))
                with replacing(file) as stream:
                    stream.write(lines.to_csv(index=False).encode())
        yield from files


def _fitted(model: DecentralizedModel, method: Method, size: Size) -> ObjectiveResults | None:
    """Return a fit, None where it diverges."""
    try:
        return model.fit(method, step=size.step, rounds=size.rounds, lines=size.lines, schedule="plateau")
    except DivergenceError:
        return None


def _lines(res: ObjectiveResults | None, run: int, shared: Shared, size: Size) -> pd.DataFrame:
    """Return accuracy and loss on test images over the rounds of a run: mean and spread over normal clients."""
    if res is None:
        return pd.DataFrame({"round": [size.rounds], "accuracy": [np.nan]})
    runs, normal = res.trace["run"].to_numpy(), ~shared.abnormal
    chosen = runs == np.unique(runs)[run]
    accuracy, loss = (res.history(name)[chosen].to_numpy()[:, normal] for name in ("accuracy", "test loss"))
    weights = res.client_weights.to_numpy() if run == -1 else np.ones(len(normal))
    return pd.DataFrame(
        {
            "round": res.trace["round"][chosen].to_numpy(),
            "accuracy": accuracy.mean(axis=1),
            "lowest": accuracy.min(axis=1),
            "highest": accuracy.max(axis=1),
            "loss": loss.mean(axis=1),
            "abnormal with weight": int((weights[~normal] > TRUST).sum()),
            "normal without": int((weights[normal] <= TRUST).sum()),
        }
    )
