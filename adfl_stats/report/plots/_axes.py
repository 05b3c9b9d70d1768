"""What all plots share: colours, axes, names of clients beside rows."""

from __future__ import annotations

from collections.abc import Iterable
from typing import TYPE_CHECKING, Any

import numpy as np

from adfl_stats._text import printable
from adfl_stats.report.text import shortened

if TYPE_CHECKING:
    from matplotlib.axes import Axes

__all__ = [
    "CROWD",
    "DOUBTED",
    "LONGEST",
    "QUIET",
    "TRUSTED",
    "axes_for",
    "key",
    "name_points",
    "name_rows",
    "name_texts",
    "row_points",
    "without_frame",
]

TRUSTED, DOUBTED, QUIET = "#2b6ca3", "#c0392b", "#8a8a8a"
# Characters of a client's name, and points between rows below which lines are drawn as an area and only some rows are
# named: thin lines at such distances make a pattern of their own on a screen.
LONGEST, CROWD = 18, 6.0
# Least size of a mark in a key, in points.
KEY_POINTS = 5.0


def axes_for(ax: Axes | None, size: tuple[float, float] = (7.0, 4.0)) -> Axes:
    """Return the axes given, or those of a new figure."""
    if ax is not None:
        return ax
    try:
        from matplotlib import pyplot
    except ImportError:
        raise ImportError("plots need matplotlib; install it with: pip install 'adfl-stats[plot]'") from None
    return pyplot.subplots(figsize=size, layout="constrained")[1]


def name_texts(names: Iterable[object], longest: int) -> list[str]:
    """Return names as a plot shows them: of at most so many characters, with control characters written out."""
    return shortened([printable(str(name)) for name in names], longest)


def row_points(ax: Axes, rows: int) -> float:
    """Return the distance of rows in points."""
    return float(72.0 * ax.bbox.height / ax.figure.dpi / (rows + 1))


def name_rows(
    ax: Axes, names: Iterable[object], otherwise: str, some: Iterable[int] = (), longest: int = LONGEST
) -> None:
    """Write one name beside each row; where they would overlap, beside some, and call the whole axis `otherwise`.

    Parameters
    ----------
    ax : matplotlib axes
        Where the rows are, at 0, 1, ...
    names : iterable
        One for each row.
    otherwise : str
        What the rows are.
    some : sequence of int
        The rows to name, the most interesting first; those that would overlap an earlier one are left out.
    longest : int
        The most characters of a name; longer ones lose their middle.
    """
    texts = name_texts(names, longest)
    ax.set_ylim(-1, len(texts))
    points = row_points(ax, len(texts))
    ax.tick_params(axis="y", length=0)
    if points >= CROWD:
        ax.set_yticks(range(len(texts)), texts, fontsize=min(0.85 * points, 9.0))
        return
    named: list[int] = []
    for row in some:
        if all(abs(row - other) * points >= 1.4 * CROWD for other in named):
            named.append(int(row))
    ax.set_yticks(named, [texts[row] for row in named], fontsize=CROWD)
    ax.set_ylabel(otherwise)


def name_points(ax: Axes, x: Any, y: Any, names: Iterable[object], order: Iterable[int], left: bool = False) -> None:
    """Write names beside some points, the first of `order` first; names that would overlap an earlier one are left out.

    Call it when the limits of the axes are set: places on the page decide.
    """
    from matplotlib.patheffects import withStroke

    texts = name_texts(names, LONGEST)
    # Asking for the limits brings them up to date with what was drawn.
    ax.set(xlim=ax.get_xlim(), ylim=ax.get_ylim())
    page = ax.transData.transform(np.column_stack([x, y])) * 72.0 / ax.figure.dpi
    # On the left of a rising curve there are its own points: names are above them.
    up_by = 4 if left else 0
    taken: list[tuple[float, float, float]] = []
    for k in order:
        # A character is about half as wide as it is high.
        width, (across, up) = 0.62 * 8.0 * len(texts[k]), page[k]
        begin = across - 6.0 - width if left else across + 6.0
        if any(abs(up - level) < 9.0 and begin < end and low < begin + width for low, end, level in taken):
            continue
        taken.append((begin, begin + width, up))
        ax.annotate(
            texts[k], (x[k], y[k]), xytext=(-5 if left else 6, up_by), textcoords="offset points",
            ha="right" if left else "left", va="center", fontsize=8, zorder=5,
            path_effects=[withStroke(linewidth=2.0, foreground="white")],
        )  # fmt: skip


def key(ax: Axes, **options: Any) -> None:
    """Draw a key whose marks have colours that can be told, however small they are among many clients."""
    marks: list[Any] = ax.legend(frameon=False, **options).legend_handles
    for mark in marks:
        if hasattr(mark, "get_markersize"):
            mark.set_markersize(max(mark.get_markersize(), KEY_POINTS))
        elif hasattr(mark, "get_sizes"):
            mark.set_sizes(np.maximum(mark.get_sizes(), KEY_POINTS**2))


def without_frame(ax: Axes) -> Axes:
    """Return the axes without their upper and right line."""
    for side in ("top", "right"):
        ax.spines[side].set_visible(False)
    return ax
