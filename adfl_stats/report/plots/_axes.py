"""What all plots share: colours, axes, names of clients beside rows."""

from __future__ import annotations

from collections.abc import Iterable
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from matplotlib.axes import Axes

__all__ = ["DOUBTED", "QUIET", "TRUSTED", "axes_for", "name_rows", "without_frame"]

TRUSTED, DOUBTED, QUIET = "#2b6ca3", "#c0392b", "#8a8a8a"


def axes_for(ax: Axes | None, size: tuple[float, float] = (7.0, 4.0)) -> Axes:
    """Return the axes given, or those of a new figure."""
    if ax is not None:
        return ax
    try:
        from matplotlib import pyplot
    except ImportError:
        raise ImportError("plots need matplotlib; install it with: pip install 'adfl-stats[plot]'") from None
    return pyplot.subplots(figsize=size, layout="constrained")[1]


def name_rows(ax: Axes, names: Iterable[object], otherwise: str) -> None:
    """Write one name beside each row; where they would overlap, call the whole axis `otherwise`."""
    texts = [str(name) for name in names]
    ax.set_ylim(-1, len(texts))
    points = 72.0 * ax.bbox.height / ax.figure.dpi / (len(texts) + 1)
    if points >= 6.0:
        ax.set_yticks(range(len(texts)), texts, fontsize=min(0.85 * points, 9.0))
        ax.tick_params(axis="y", length=0)
    else:
        ax.set(yticks=[], ylabel=otherwise)


def without_frame(ax: Axes) -> Axes:
    """Return the axes without their upper and right line."""
    for side in ("top", "right"):
        ax.spines[side].set_visible(False)
    return ax
