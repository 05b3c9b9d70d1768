"""Plots of a network: who listens to whom, eigenvalues."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

import numpy as np

from adfl_stats._arguments import one_of
from adfl_stats._types import Array, Ints, Mask
from adfl_stats.network.matching import as_network
from adfl_stats.network.network import Network
from adfl_stats.network.schedule import one_network
from adfl_stats.report.plots._axes import DOUBTED, QUIET, TRUSTED, axes_for, key, without_frame
from adfl_stats.report.plots._node_names import name_nodes
from adfl_stats.trust.weights import trusted_by

if TYPE_CHECKING:
    from matplotlib.axes import Axes

    from adfl_stats.inference.results import Results

__all__ = ["network", "spectrum"]

# Clients up to which a network is drawn, all are named, and all eigenvalues are computed (some seconds). Ours.
MOST_DRAWN, MOST_NAMED, MOST_EIGENVALUES = 2000, 40, 1000
# Clients that are named where not all are; number of clients above which the layout takes fewer steps. Ours.
NAMED_OTHERWISE, QUICK_LAYOUT = 12, 300
# The shorter side of axes, in points, below which marks are smaller. Ours.
ROOMY = 330.0
COLOURS = ("influence", "weight", "flag")


def network(net: Network | Results, ax: Axes | None = None, by: str | None = None) -> Axes:
    """Draw who listens to whom, with the clients coloured by influence, or after a fit by weight or flag.

    Edges that go both ways are lines; those that go one way taper from the sender to the receiver. Circles
    are drawn as such, and everything else if networkx is not there; other networks have a spring layout.
    Influence is shown over its mean; hollow red marks clients with influence zero.

    Parameters
    ----------
    net : Network or Results
        Of at most 2000 clients; of results, the network of the fit.
    ax : matplotlib axes, optional
        Where to draw.
    by : {"influence", "weight", "flag"}, optional
        What the colours say: the weight of each client, or whether the score test flags it, both of results. If not
        given, weights of results and the influence in a network. Up to 40 clients are named; of more, the
        down-weighted or flagged ones. Long names are shortened, and names without room are left out.

    Returns
    -------
    matplotlib axes
        The axes.

    Examples
    --------
    >>> import adfl_stats as ad
    >>> ad.plots.network(ad.networks.directed_circle(10, 3)).get_title()
    '10 clients, 30 edges; the broad end sends'
    """
    res: Any = net if hasattr(net, "client_weights") else None
    by = one_of(("influence" if res is None else "weight") if by is None else by, "by", COLOURS)
    if by != "influence" and res is None:
        raise TypeError(f"by={by!r} is about a fit; pass its results in the place of the network")
    drawn = _demand_network(
        net if res is None else res.network,
        MOST_DRAWN,
        "a drawing shows",
        "Use check_network(net), or draw a part of it",
    )
    return _draw(drawn, res, axes_for(ax, (7.0, 5.5)), by)


def _draw(net: Network, res: Any, ax: Axes, by: str) -> Axes:
    """Draw edges, then clients, then names."""
    from matplotlib.collections import LineCollection

    M = net.n_clients
    place, on_circle = _layout(net)
    receiver = np.repeat(np.arange(M), np.diff(net.indptr))
    pairs = np.column_stack([net.indices, receiver])[net.indices != receiver]
    mutual = np.isin(pairs[:, 0] * M + pairs[:, 1], pairs[:, 1] * M + pairs[:, 0])
    # Many edges are drawn more transparent: at 100 clients and 1000 edges each should still be visible.
    ink = float(np.clip(6.0 / np.sqrt(max(len(pairs), 1)), 0.08, 0.6))
    for chosen, first, last in ((mutual, 0.9, 0.9), (~mutual, 2.4, 0.3)):
        pieces = _curves(place[pairs[chosen]], on_circle, tapered=first > last)
        widths = np.tile(np.linspace(first, last, pieces.shape[1]), len(pieces))
        lines = LineCollection(list(pieces.reshape(-1, 2, 2)), colors=QUIET, alpha=ink, linewidths=widths, zorder=1)
        ax.add_collection(lines)
    ax.set_aspect("equal")
    ax.set_axis_off()
    size = _size(M, ax)
    if by == "influence":
        named = _draw_influence(ax, net, place, size)
    elif by == "weight":
        named = _draw_weights(ax, res.client_weights.to_numpy(), place, size)
    else:
        named = _draw_flags(ax, res.clients()["flagged"].to_numpy(), place, size)
    one_way = "" if mutual.all() else "; the broad end sends"
    ax.set_title(f"{M} clients, {net.n_edges} edges{one_way}", fontsize="medium")
    name_nodes(ax, place, net.labels, np.arange(M) if M <= MOST_NAMED else named[:NAMED_OTHERWISE], size)
    return ax


def spectrum(net: Network, ax: Axes | None = None) -> Axes:
    """Draw the eigenvalues of W in the unit circle, and the circle that all but one 1 lie in.

    Parameters
    ----------
    net : Network
        Of at most 1000 clients.
    ax : matplotlib axes, optional
        Where to draw.

    Returns
    -------
    matplotlib axes
        The axes.

    Examples
    --------
    >>> import adfl_stats as ad
    >>> ad.plots.spectrum(ad.networks.directed_circle(10, 3)).get_xlabel()
    'real part'
    """
    instead = "Use net.second_eigenvalue, or check_network(net)"
    net = _demand_network(net, MOST_EIGENVALUES, "all eigenvalues are drawn for", instead)
    ax = axes_for(ax, (5.5, 5.5))
    from matplotlib.patches import Circle

    values = np.linalg.eigvals(net.W.toarray())
    first = int(np.argmin(np.abs(values - 1.0)))
    second = net.second_eigenvalue
    ax.axhline(0, color=QUIET, lw=0.5, zorder=0)
    ax.axvline(0, color=QUIET, lw=0.5, zorder=0)
    ax.add_patch(Circle((0, 0), 1.0, fill=False, color=QUIET, lw=1.0))
    ax.add_patch(Circle((0, 0), second, facecolor=TRUSTED, alpha=0.08, lw=0))
    ax.add_patch(Circle((0, 0), second, fill=False, color=TRUSTED, lw=1.0, ls="--"))
    others = np.delete(values, first)
    # Where there are many, how dense they lie shows by the colour.
    crowd = min(1.0, 100.0 / max(len(others), 1))
    ax.scatter(others.real, others.imag, s=14 * max(crowd, 0.4), color=TRUSTED, alpha=max(0.75 * crowd, 0.12), lw=0,
               zorder=3)  # fmt: skip
    ax.scatter([1.0], [0.0], s=34, color=DOUBTED, zorder=4)
    ax.set(xlim=(-1.12, 1.12), ylim=(-1.12, 1.12), aspect="equal", xlabel="real part", ylabel="imaginary part")
    words = f"second modulus {second:.4g} (dashed), gap {1.0 - second:.3g}; red: 1, consensus"
    ax.set_title(f"Eigenvalues of W\n{words}", fontsize="medium")
    return without_frame(ax)


def _demand_network(net: Any, most: int, shown: str, instead: str) -> Network:
    """Return the network, or that of a graph, if it can be drawn."""
    network = one_network(as_network(net, "net"), "a plot of the network")
    if network.n_clients > most:
        raise ValueError(f"net has {network.n_clients} clients; {shown} at most {most}. {instead}")
    return network


def _layout(net: Network) -> tuple[Array, bool]:
    """Return places in the plane, and whether they are a circle: for circles and without networkx; else springs."""
    angle = np.pi / 2 - 2.0 * np.pi * np.arange(net.n_clients) / net.n_clients
    circle = np.column_stack([np.cos(angle), np.sin(angle)])
    if net.circulant_moduli is not None:
        return circle, True
    try:
        import networkx
    except ImportError:
        return circle, True
    graph = networkx.Graph(net.to_networkx().to_undirected().edges)
    graph.add_nodes_from(net.labels)
    places = networkx.spring_layout(
        graph, seed=1, iterations=200 if net.n_clients <= QUICK_LAYOUT else 40, k=1.8 / np.sqrt(net.n_clients)
    )
    return np.array([places[name] for name in net.labels]), False


def _curves(ends: Array, bent: bool, tapered: bool) -> Array:
    """Return for each edge its pieces, (edges, pieces, 2 ends, 2): more than one where it bends or tapers."""
    many = int(np.clip(60_000 // max(len(ends), 1), 3, 16)) if bent or tapered else 1
    t = np.linspace(0.0, 1.0, many + 1)[None, :, None]
    begin, end = ends[:, 0][:, None], ends[:, 1][:, None]
    middle = (begin + end) / 2
    if bent:
        # Neighbours on a circle are joined along its rim, where nothing can be seen: pull edges inwards.
        apart = np.linalg.norm(ends[:, 1] - ends[:, 0], axis=1)[:, None, None]
        middle = middle * np.maximum(0.0, 1.0 - 0.9 * np.sqrt(apart))
    points = (1 - t) ** 2 * begin + 2 * t * (1 - t) * middle + t**2 * end
    return np.stack([points[:, :-1], points[:, 1:]], axis=2)


def _size(clients: int, ax: Axes) -> float:
    """Return the area of a client's mark in square points: smaller in small axes."""
    side = min(ax.bbox.width, ax.bbox.height) * 72.0 / ax.figure.dpi
    return float(np.clip(6000.0 / clients, 8.0, 260.0) * np.clip((side / ROOMY) ** 3, 0.1, 1.0))


def _draw_weights(ax: Axes, weights: Array, place: Array, size: float) -> Ints:
    """Draw the clients coloured by weight, the smallest on top; return them in that order, the down-weighted ones."""
    order = np.argsort(-weights, kind="stable")
    drawn = ax.scatter(
        place[order, 0], place[order, 1], s=size, c=weights[order], cmap="RdBu", vmin=0.0,
        vmax=max(1.0, weights.max()), edgecolors=QUIET, linewidths=0.5, zorder=3,
    )  # fmt: skip
    bar = ax.figure.colorbar(drawn, ax=ax, shrink=0.7, pad=0.02, label="weight")
    bar.outline.set_visible(False)
    return order[::-1][: int((~trusted_by(weights)).sum())]


def _draw_flags(ax: Axes, flagged: Mask, place: Array, size: float) -> Ints:
    """Draw the flagged clients in another colour, on top; return them."""
    for mask, colour, text in ((~flagged, TRUSTED, "not flagged"), (flagged, DOUBTED, "flagged")):
        ax.scatter(
            place[mask, 0], place[mask, 1], s=size, color=colour, edgecolors="white", linewidths=0.5,
            zorder=3, label=f"{text} ({int(mask.sum())})",
        )  # fmt: skip
    key(ax, loc="upper center", bbox_to_anchor=(0.5, 0.0), ncols=2, fontsize="small")
    return np.flatnonzero(flagged)


def _draw_influence(ax: Axes, net: Network, place: Array, size: float) -> Ints:
    """Draw the clients coloured by influence; return those without."""
    from matplotlib.colors import TwoSlopeNorm

    M = net.n_clients
    share = net.influence.to_numpy() * M
    influential = share > 0
    even = np.ptp(share) < 1e-8
    colours: dict[str, Any] = {"color": TRUSTED}
    if not even:
        # Half and twice the mean at least, so that small differences look small.
        scale = TwoSlopeNorm(1.0, vmin=min(0.5, float(share[influential].min())), vmax=max(2.0, float(share.max())))
        colours = {"c": share[influential], "cmap": "viridis", "norm": scale}
    x, y = place[:, 0], place[:, 1]
    drawn = ax.scatter(x[influential], y[influential], s=size, edgecolors="white", linewidths=0.7, zorder=3, **colours)
    if not influential.all():
        ax.scatter(
            x[~influential], y[~influential], s=size, facecolors="white", edgecolors=DOUBTED, linewidths=1.3, zorder=3,
            label=f"influence 0 ({int((~influential).sum())})",
        )  # fmt: skip
        # Below the drawing: inside, a client may stand anywhere.
        key(ax, loc="upper center", bbox_to_anchor=(0.5, 0.0), fontsize="small")
    if even:
        ax.text(0.5, -0.01, "all clients count the same", transform=ax.transAxes, ha="center", va="top", color=QUIET)
    else:
        bar = ax.figure.colorbar(drawn, ax=ax, shrink=0.7, pad=0.02, label="influence / mean")
        bar.outline.set_visible(False)
    return np.flatnonzero(~influential)
