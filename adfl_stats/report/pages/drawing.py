"""The network as SVG: clients coloured by weight or influence, with the edges of a client when it is pointed at."""

from __future__ import annotations

import json
from collections.abc import Sequence
from typing import Any

import numpy as np
from numpy.typing import NDArray

from adfl_stats._types import Array, Ints, Mask
from adfl_stats.network.network import Network
from adfl_stats.report.pages.charts import figure, marker
from adfl_stats.report.pages.layout import layout
from adfl_stats.report.pages.markup import Html, joined, paragraphs, tag

__all__ = ["CLASSES", "classes_of", "influence_classes", "network_figure"]

# More clients are not drawn, and of more edges a random part. Ours: by time, and by the size of the page.
MOST_DRAWN, MOST_EDGES, MOST_NAMED, MOST_ARROWS = 1500, 8000, 40, 400
SIDE = 700
LEAST_MARGIN = 36.0
# Room for a letter of a name, in units of the drawing.
LETTER = 8.5

# Classes of a weight, by upper end; the first is what counts as down-weighted.
CLASSES = ((0.1, "w0", "below .1"), (0.5, "w1", ".1 to .5"), (0.9, "w2", ".5 to .9"), (np.inf, "w4", ".9 to 1"))
INFLUENCE = (
    (1e-12, "i0", "none"), (0.5, "i1", "below half its mean"), (0.8, "i2", ".5 to .8"),
    (1.25, "i3", ".8 to 1.25"), (np.inf, "i4", "above 1.25"),
)  # fmt: skip


def classes_of(weights: Array, classes: Sequence[tuple[float, str, str]] = CLASSES) -> list[str]:
    """Return the class of each weight."""
    ends = np.array([end for end, _, _ in classes])
    return [classes[k][1] for k in np.searchsorted(ends, weights, side="right").clip(max=len(classes) - 1)]


def influence_classes(net: Network) -> list[str]:
    """Return the class of each client's influence over its mean."""
    return classes_of(net.influence.to_numpy() * net.n_clients, INFLUENCE)


def network_figure(net: Network, kinds: Sequence[str], tips: Sequence[str], *, by: str, key: str = "network") -> Html:
    """Return the network as a figure.

    Parameters
    ----------
    net : Network
        Who hears whom.
    kinds, tips : sequence of str
        The class of each client, and the text that is shown when it is pointed at.
    by : {"weight", "influence"}
        What the classes are of.
    key : str
        Prefix of identifiers.
    """
    M = net.n_clients
    if M > MOST_DRAWN:
        return paragraphs([f"The network has {M:,} clients and is not drawn; at most {MOST_DRAWN:,} are."])
    places, circle = layout(net)
    size = float(np.clip(110.0 / np.sqrt(M), 2.6, 9.0))
    longest = max(len(str(label)) for label in net.labels) if M <= MOST_NAMED else 0
    # Room for names beside the outermost clients; longer ones stand above or below.
    margin = float(np.clip(size + 4 + LETTER * longest, LEAST_MARGIN, 2.5 * LEAST_MARGIN))
    places = margin + places * (SIDE - 2 * margin)
    pairs, mutual, total = _edges(net)
    strokes = _strokes(places, pairs, circle, size)
    arrows = len(pairs) <= MOST_ARROWS
    ink = "thin" if len(pairs) > 1500 else "fine" if len(pairs) > 300 else "full"
    body = joined(
        _arrow_head(key) if arrows else Html(""),
        tag("path", d="".join(strokes[mutual]), class_=f"edge {ink}"),
        _one_way(strokes[~mutual], f"edge {ink}", key if arrows else None),
        tag("path", d="", class_="edge hears"),
        tag("path", d="", class_="edge heard"),
        tag(
            "g",
            *(
                marker(x, y, kind, tip=tip, size=size, client=m)
                for m, ((x, y), kind, tip) in enumerate(zip(places, kinds, tips, strict=True))
            ),
            class_="marks",
        ),
        _names(net, places, size) if M <= MOST_NAMED else Html(""),
    )
    legend = CLASSES if by == "weight" else INFLUENCE
    used = [(f"mark {kind}", f"{by} {text} ({kinds.count(kind)})") for _, kind, text in legend if kind in kinds]
    drawn = figure(
        key, body, (SIDE, SIDE), f"Network, clients by {by}.", _words(net, pairs, total, arrows), used, "net"
    )
    order = np.concatenate([np.flatnonzero(mutual), np.flatnonzero(~mutual)])
    ends = json.dumps(pairs[order].ravel().tolist(), separators=(",", ":"))
    return joined(drawn, tag("script", Html(ends), type="application/json", id=f"{key}-edges"))


def _edges(net: Network) -> tuple[Ints, Mask, int]:
    """Return the edges to draw as (sender, receiver), whether each goes both ways, and how many there are."""
    receiver = np.repeat(np.arange(net.n_clients), np.diff(net.indptr))
    pairs = np.column_stack([net.indices, receiver])[net.indices != receiver].astype(np.int64)
    forth, back = (pairs @ weights for weights in ([net.n_clients, 1], [1, net.n_clients]))
    mutual = np.isin(forth, back)
    # A line serves both ways.
    kept = ~mutual | (pairs[:, 0] < pairs[:, 1])
    pairs, mutual, total = pairs[kept], mutual[kept], int(kept.sum())
    if total > MOST_EDGES:
        some = np.sort(np.random.default_rng(1).choice(total, MOST_EDGES, replace=False))
        pairs, mutual = pairs[some], mutual[some]
    return pairs, mutual, total


def _strokes(places: Array, pairs: Ints, circle: bool, size: float) -> NDArray[Any]:
    """Return the path of each edge; on a circle edges bend inwards, as neighbours on its rim would hide them."""
    begin, end = places[pairs[:, 0]], places[pairs[:, 1]]
    centre = SIDE / 2.0
    apart = np.linalg.norm(end - begin, axis=1)[:, None]
    bend = np.maximum(0.0, 1.0 - 0.9 * np.sqrt(2.0 * apart / SIDE)) if circle else np.ones_like(apart)
    middle = centre + ((begin + end) / 2.0 - centre) * bend
    # Arrows end at the rim of the mark.
    last = end - middle
    end = end - last * np.minimum(1.0, (size + 1.0) / np.maximum(np.linalg.norm(last, axis=1)[:, None], 1e-9))
    whole = np.rint(np.hstack([begin, middle, end])).astype(int).tolist()
    form = "M{0} {1}Q{2} {3} {4} {5}" if circle else "M{0} {1}L{4} {5}"
    return np.array([form.format(*points) for points in whole], dtype=object)


def _one_way(strokes: NDArray[Any], kind: str, key: str | None) -> Html:
    """Return edges that go one way; those with arrows are paths of their own, as a path has one end."""
    if key is None:
        return tag("path", d="".join(strokes), class_=kind)
    return joined(*(tag("path", d=stroke, class_=kind, marker_end=f"url(#{key}-arrow)") for stroke in strokes))


def _arrow_head(key: str) -> Html:
    head = tag("path", d="M0 0L7 3L0 6z", class_="head")
    return tag("defs", tag("marker", head, id=f"{key}-arrow", markerWidth=7, markerHeight=6, refX=7, refY=3,
                           orient="auto", markerUnits="userSpaceOnUse"))  # fmt: skip


def _names(net: Network, places: Array, size: float) -> Html:
    """Return the clients' names, beside their marks on the side away from the middle."""
    words = []
    for label, (x, y) in zip(net.labels, places, strict=True):
        right = x >= SIDE / 2
        at = x + (size + 4) * (1 if right else -1)
        text = str(label) if len(str(label)) <= 14 else f"{str(label)[:13]}…"
        # Near the edge of the drawing names stand towards the middle.
        if (right and at + LETTER * len(text) > SIDE) or (not right and at - LETTER * len(text) < 0):
            at, right = x, None
        anchor = "middle" if right is None else "start" if right else "end"
        low = y + (size + 13 if y < SIDE / 2 else -size - 5) if right is None else y + 4
        words.append(tag("text", text, x=f"{at:.0f}", y=f"{low:.0f}", text_anchor=anchor))
    return tag("g", *words, class_="names", aria_hidden="true")


def _words(net: Network, pairs: Ints, total: int, arrows: bool) -> str:
    said = f"{net.n_clients:,} clients and {net.n_edges:,} edges"
    if len(pairs) < total:
        said += f", of which a random {len(pairs):,} are drawn"
    said += "; arrows point to the client that hears" if arrows and len(pairs) else ""
    return f"{said}. Pointing at a client shows whom it hears (solid) and who hears it (dashed)."
