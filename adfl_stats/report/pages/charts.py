"""Plots as SVG: axes, lines, points that say what they are; drawn with classes, which the page's style colours."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, field

import numpy as np
from numpy.typing import ArrayLike

from adfl_stats._types import Array
from adfl_stats.report.pages.markup import Html, joined, tag

__all__ = ["Axis", "Plot", "figure", "marker"]

WIDTH = 760
# Room for a letter of the axis' font, in units of the drawing; on narrow screens letters are larger.
LETTER, NARROW = 6.6, 9.4
# More points than that overlap: rims would hide them.
MOST_APART = 150


@dataclass(frozen=True)
class Axis:
    """A range of numbers, on a linear or a log scale, or of named places.

    Parameters
    ----------
    low, high : float
        The ends.
    label : str
        What it measures.
    log : bool
        Whether on a log scale.
    names : sequence of str
        Names of the places 0, 1, ... instead of numbers.
    """

    low: float
    high: float
    label: str
    log: bool = False
    names: Sequence[str] = ()

    @classmethod
    def of(cls, values: ArrayLike, label: str, *, log: bool = False, zero: bool = False) -> Axis:
        """Return an axis that holds the finite values, with some room; `zero` asks for a range that holds zero."""
        known = np.asarray(values, dtype=float).ravel()
        known = known[np.isfinite(known) & ((known > 0) | (not log))]
        if not known.size:
            return cls(1.0 if log else 0.0, 10.0 if log else 1.0, label, log)
        low, high = float(known.min()), float(known.max())
        if log:
            room = max((high / low) ** 0.05, 1.1)
            return cls(low / room, high * room, label, log)
        if zero:
            low, high = min(low, 0.0), max(high, 0.0)
        room = 0.05 * (high - low) or 0.5 * abs(high) or 1.0
        return cls(low - (0 if zero and low == 0 else room), high + room, label)

    def unit(self, values: ArrayLike) -> Array:
        """Return values as shares of the range, within a little more than it."""
        ends = np.array([self.low, self.high])
        known = np.asarray(values, dtype=float)
        if self.log:
            ends, known = np.log(ends), np.log(np.maximum(known, self.low * 1e-3))
        with np.errstate(invalid="ignore"):
            share = (known - ends[0]) / (ends[1] - ends[0])
        return np.clip(share, -0.02, 1.02)

    def ticks(self) -> list[tuple[float, str]]:
        """Return the places of marks and their texts."""
        if self.names:
            return [(float(k), name) for k, name in enumerate(self.names)]
        if self.log:
            return self._powers()
        rough = (self.high - self.low) / 6.0
        size = 10.0 ** np.floor(np.log10(rough))
        step = size * next(times for times in (1.0, 2.0, 5.0, 10.0) if times * size >= rough)
        at = step * np.arange(np.ceil(self.low / step), np.floor(self.high / step) + 1)
        return [(float(value), f"{0.0 if abs(value) < step / 2 else value:.6g}") for value in at]

    def _powers(self) -> list[tuple[float, str]]:
        low, high = np.log10(self.low), np.log10(self.high)
        every = max(1, int(np.ceil((high - low) / 8.0)))
        times = (1.0, 2.0, 5.0) if high - low < 3.0 else (1.0,)
        powers = np.arange(np.floor(low), np.ceil(high) + 1)
        at = [factor * 10.0**k for k in powers if k % every == 0 for factor in times]
        return [(value, f"{value:g}") for value in at if self.low <= value <= self.high]


def marker(x: float, y: float, kind: str, *, tip: str | None, size: float, client: int | None = None) -> Html:
    """Return a mark: a diamond where its class ends in "0" (weight or influence near 0), else a circle."""
    said = {"class_": kind, "data_t": tip, "data_c": client}
    if kind.split()[0].endswith("0"):
        r = 1.3 * size
        return tag("path", d=f"M{x:.1f} {y - r:.1f}l{r:.1f} {r:.1f}l-{r:.1f} {r:.1f}l-{r:.1f}-{r:.1f}z", **said)
    return tag("circle", cx=f"{x:.1f}", cy=f"{y:.1f}", r=f"{size:g}", **said)


@dataclass
class Plot:
    """A plot with two axes; what is drawn later lies above.

    Parameters
    ----------
    x, y : Axis
        The axes; places with names on y go from the top down.
    height, width : int
        Of the drawing, in units of about a pixel.
    """

    x: Axis
    y: Axis
    height: int = 320
    width: int = WIDTH
    _pieces: list[Html] = field(default_factory=list)
    _key: list[tuple[str, str]] = field(default_factory=list)
    _crowded: bool = False

    def __post_init__(self) -> None:
        longest = max((len(text) for _, text in self.y.ticks()), default=1)
        # Names longer than that are cut; tables and tips have them in full.
        self._letters = min(longest, 26)
        self.left = 40.0 + LETTER * self._letters
        last = max((len(text) for _, text in self.x.ticks()[-1:]), default=1)
        self.right, self.top, self.bottom = self.width - max(12.0, NARROW * last / 2), 12.0, self.height - 46.0

    def _at(self, x: ArrayLike, y: ArrayLike) -> tuple[Array, Array]:
        up = self.y.unit(y) if self.y.names else 1.0 - self.y.unit(y)
        return self.left + self.x.unit(x) * (self.right - self.left), self.top + up * (self.bottom - self.top)

    def line(self, x: ArrayLike, y: ArrayLike, kind: str, label: str = "") -> None:
        """Draw a line through the finite points."""
        px, py = self._at(x, y)
        known = np.isfinite(px) & np.isfinite(py)
        path = "M" + "L".join(f"{a:.1f} {b:.1f}" for a, b in zip(px[known], py[known], strict=True))
        if known.any():
            self._pieces.append(tag("path", d=path, class_=f"line {kind}"))
        self._name(f"line {kind}", label)

    def band(self, x: ArrayLike, low: ArrayLike, high: ArrayLike, kind: str, label: str = "") -> None:
        """Fill the area between two lines."""
        (px, bottom), (_, top) = self._at(x, low), self._at(x, high)
        there = [f"{a:.1f} {b:.1f}" for a, b in zip(px, top, strict=True)]
        back = [f"{a:.1f} {b:.1f}" for a, b in zip(px[::-1], bottom[::-1], strict=True)]
        self._pieces.append(tag("path", d="M" + "L".join(there + back) + "z", class_=f"band {kind}"))
        self._name(f"band {kind}", label)

    def bars(self, low: ArrayLike, high: ArrayLike, y: ArrayLike, kind: str, label: str = "") -> None:
        """Draw horizontal intervals."""
        (a, at), (b, _) = self._at(low, y), self._at(high, y)
        known = np.isfinite(a) & np.isfinite(b) & np.isfinite(at)
        path = "".join(f"M{u:.1f} {v:.1f}H{w:.1f}" for u, v, w in zip(a[known], at[known], b[known], strict=True))
        if path:
            self._pieces.append(tag("path", d=path, class_=f"line {kind}"))
        self._name(f"line {kind}", label)

    def points(
        self,
        x: ArrayLike,
        y: ArrayLike,
        kinds: str | Sequence[str],
        tips: Sequence[str],
        *,
        clients: Sequence[int] | None = None,
        size: float = 3.6,
        label: str = "",
    ) -> None:
        """Draw points that say a text when they are pointed at."""
        px, py = self._at(x, y)
        each = [kinds] * len(px) if isinstance(kinds, str) else kinds
        self._crowded |= len(px) > MOST_APART
        for k in np.flatnonzero(np.isfinite(px) & np.isfinite(py)).tolist():
            client = None if clients is None else clients[k]
            self._pieces.append(marker(px[k], py[k], each[k], tip=tips[k], size=size, client=client))
        if isinstance(kinds, str):
            self._name(f"mark {kinds}", label)

    def rule(self, *, x: float | None = None, y: float | None = None, kind: str = "quiet", label: str = "") -> None:
        """Draw a line across the plot, at one x or one y."""
        if x is not None:
            at = float(self._at(x, 0 if self.y.names else self.y.low)[0])
            path = f"M{at:.1f} {self.top:.1f}V{self.bottom:.1f}"
        else:
            at = float(self._at(self.x.low, y if y is not None else self.y.low)[1])
            path = f"M{self.left:.1f} {at:.1f}H{self.right:.1f}"
        self._pieces.append(tag("path", d=path, class_=f"line {kind}"))
        self._name(f"line {kind}", label)

    def name(self, kind: str, label: str) -> None:
        """Add a mark to the key below the plot."""
        self._name(f"mark {kind}", label)

    def _name(self, kind: str, label: str) -> None:
        if label:
            self._key.append((kind, label))

    def figure(self, key: str, title: str, words: str) -> Html:
        """Return the plot as a figure with caption and key."""
        body = joined(self._axes(), tag("g", *self._pieces, class_="marks many" if self._crowded else "marks"))
        return figure(key, body, (self.width, self.height), title, words, self._key)

    def _axes(self) -> Html:
        pieces: list[Html] = []
        for value, text in self.x.ticks():
            at = float(self._at(value, 0 if self.y.names else self.y.low)[0])
            pieces.append(tag("path", d=f"M{at:.1f} {self.top:.1f}V{self.bottom:.1f}", class_="grid"))
            pieces.append(tag("text", text, x=f"{at:.1f}", y=f"{self.bottom + 17:.1f}", text_anchor="middle"))
        for value, text in self.y.ticks():
            at = float(self._at(self.x.low, value)[1])
            pieces.append(tag("path", d=f"M{self.left:.1f} {at:.1f}H{self.right:.1f}", class_="grid"))
            short = text if len(text) <= self._letters else f"{text[: self._letters - 1]}…"
            place = {"x": f"{self.left - 7:.1f}", "y": f"{at + 4:.1f}", "class_": "place" if self.y.names else None}
            pieces.append(tag("text", short, text_anchor="end", **place))
        middle = (self.left + self.right) / 2
        pieces.append(
            tag("text", self.x.label, x=f"{middle:.1f}", y=self.height - 8, text_anchor="middle", class_="axis")
        )
        if self.y.label:
            turn = f"rotate(-90 14 {(self.top + self.bottom) / 2:.1f})"
            centre = f"{(self.top + self.bottom) / 2:.1f}"
            pieces.append(
                tag("text", self.y.label, x=14, y=centre, text_anchor="middle", transform=turn, class_="axis")
            )
        return tag("g", *pieces, aria_hidden="true")


def figure(
    key: str,
    body: Html,
    size: tuple[int, int],
    title: str,
    words: str,
    names: Sequence[tuple[str, str]],
    kind: str = "",
) -> Html:
    """Return a drawing with its caption; arrow keys go from mark to mark.

    Parameters
    ----------
    key : str
        Prefix of identifiers.
    body : Html
        What is drawn.
    size : pair of int
        Width and height in units of the drawing.
    title, words : str
        The caption, and what the picture shows in words.
    names : sequence of (class, text)
        The key.
    kind : str
        Further class of the figure.
    """
    drawing = tag(
        "svg", body, viewBox=f"0 0 {size[0]} {size[1]}", role="img", tabindex="0",
        aria_label=title, aria_describedby=f"{key}-caption",
    )  # fmt: skip
    entries = [
        tag("li", tag("svg", _swatch(kind), viewBox="0 0 26 14", aria_hidden="true", class_="swatch"), text)
        for kind, text in names
    ]
    return tag(
        "figure",
        tag("div", drawing, class_="frame"),
        tag("ul", *entries, class_="key") if entries else Html(""),
        tag("figcaption", tag("strong", title), " ", words, id=f"{key}-caption"),
        id=key,
        class_=f"plot {kind}".strip(),
    )


def _swatch(kind: str) -> Html:
    shape, _, colour = kind.partition(" ")
    if shape == "band":
        return tag("path", d="M2 2h22v10h-22z", class_=kind)
    if shape == "line":
        return tag("path", d="M2 7h22", class_=kind)
    return tag("g", marker(13, 7, colour, tip=None, size=4.0), class_="marks")
