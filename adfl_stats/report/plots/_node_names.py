"""Names of a network's clients: beside their marks, and over no other mark, name or colour bar."""

from __future__ import annotations

from collections.abc import Iterable
from typing import TYPE_CHECKING

import numpy as np

from adfl_stats._types import Array
from adfl_stats.report.plots._axes import LONGEST, name_texts

if TYPE_CHECKING:
    from matplotlib.axes import Axes

__all__ = ["name_nodes"]

# Sizes of letters in points, and the width of axes below which they are small; a character's width and a line's height
# in sizes of letters. Ours.
LARGE_LETTERS, SMALL_LETTERS, NARROW = 8.0, 6.0, 250.0
WIDE, HIGH = 0.64, 1.3
# Points between a mark and its name: the second, away from the middle, where the first has no room. The share of the
# width that a name may take, and the fewest letters of a long one. Ours.
GAPS, WIDTH_SHARE, FEWEST = (1.5, 9.0), 0.22, 7
# Where a name may stand beside its mark.
ANGLES = np.pi / 4.0 * np.arange(8)


def name_nodes(ax: Axes, place: Array, names: Iterable[object], order: Iterable[int], size: float) -> None:
    """Write names beside some marks, the first of `order` first; those that find no room are left out.

    The limits of the axes are set, so that names at the edges have room; the axes have equal scales.

    Parameters
    ----------
    ax : matplotlib axes
        Where the marks are.
    place : ndarray (M, 2)
        The marks.
    names : iterable
        One for each mark.
    order : iterable of int
        The marks to name.
    size : float
        Area of a mark in square points, as in ``scatter``.
    """
    from matplotlib.patheffects import withStroke

    # Where the axes are on the page is known when the layout is settled.
    ax.figure.figure.draw_without_rendering()
    box, page = ax.get_position(original=True), ax.figure.bbox
    room = np.array([box.width * page.width, box.height * page.height]) * 72.0 / ax.figure.dpi
    font = LARGE_LETTERS if room[0] >= NARROW else SMALL_LETTERS
    texts = name_texts(names, int(np.clip(WIDTH_SHARE * room[0] / (WIDE * font), FEWEST, LONGEST)))
    chosen, radius, high = [int(k) for k in order], np.sqrt(size) / 2.0, HIGH * font
    widest = max((WIDE * font * len(texts[k]) for k in chosen), default=0.0)
    margin = np.array([widest, 2.0 * high]) + radius + GAPS[0] if chosen else np.full(2, 2.0 * radius)
    low, top = place.min(axis=0), place.max(axis=0)
    free = np.maximum(room - 2.0 * margin, 0.2 * room)
    scale = float((free / np.maximum(top - low, 1e-9)).min())
    middle, half = (low + top) / 2.0, room / (2.0 * scale)
    ax.set(xlim=(middle[0] - half[0], middle[0] + half[0]), ylim=(middle[1] - half[1], middle[1] + half[1]))
    marks = (place - middle) * scale
    taken = np.column_stack([marks - radius, marks + radius])
    for k in chosen:
        outward = np.arctan2(marks[k, 1], marks[k, 0])
        nearest = ANGLES[np.argsort(-np.cos(ANGLES - outward), kind="stable")]
        for gap, angle in [*((GAPS[0], angle) for angle in nearest), *((GAPS[1], angle) for angle in nearest[:3])]:
            # The side of the name that is at the mark: 0 its beginning or foot, 1 its end or head.
            side = np.array([-np.sign(np.round(np.cos(angle), 6)), -np.sign(np.round(np.sin(angle), 6))]) / 2.0 + 0.5
            away = (radius + gap) * np.array([np.cos(angle), np.sin(angle)])
            begin = marks[k] + away - side * np.array([WIDE * font * len(texts[k]), high])
            end = begin + np.array([WIDE * font * len(texts[k]), high])
            inside = (begin >= -room / 2.0).all() and (end <= room / 2.0).all()
            if inside and not ((taken[:, :2] < end) & (taken[:, 2:] > begin)).all(axis=1).any():
                break
        else:
            continue
        taken = np.vstack([taken, np.concatenate([begin, end])])
        ax.annotate(
            texts[k], place[k], xytext=tuple(away), textcoords="offset points", fontsize=font, zorder=5,
            ha=("left", "center", "right")[int(2 * side[0])], va=("bottom", "center", "top")[int(2 * side[1])],
            path_effects=[withStroke(linewidth=2.0, foreground="white")], parse_math=False, in_layout=False,
        )  # fmt: skip
