"""Plots; each takes `ax`, draws there or on a new figure, and returns the axes."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

import numpy as np

from adfl_stats._arguments import listing
from adfl_stats._types import Array
from adfl_stats.network.network import Network
from adfl_stats.network.schedule import NetworkSchedule, one_network

if TYPE_CHECKING:
    from matplotlib.axes import Axes

    from adfl_stats.inference.heterogeneity import Heterogeneity
    from adfl_stats.inference.results import Results
    from adfl_stats.inference.screening import Screening
    from adfl_stats.theory.rates import Rates

__all__ = ["clients", "heterogeneity", "lambda_path", "network", "rates", "screening", "spectrum", "trace"]

TRUSTED, DOUBTED, QUIET = "#2b6ca3", "#c0392b", "#8a8a8a"
MOST_DRAWN, MOST_NAMED, MOST_EIGENVALUES = 500, 40, 1000


def clients(res: Results, ax: Axes | None = None, label: int = 5) -> Axes:
    """Plot every client's score statistic, with the down-weighted clients in another colour.

    Clients are in order of the statistic, on a root scale, with the band that a client following
    the model leaves with probability .05, as the p-values of `Results.clients` have it.

    Parameters
    ----------
    res : Results
        A fit.
    ax : matplotlib axes, optional
        Where to draw; a new figure if not given.
    label : int
        How many of the highest points carry the client's name.

    Returns
    -------
    matplotlib axes
        The axes.

    Examples
    --------
    >>> import adfl_stats as ad
    >>> sim = ad.simulate.paper_linear(abnormal=0.2, corruption="BF", seed=1, M=20, n=50, p=3)
    >>> data = ad.ClientData.from_arrays(sim.X, sim.y, sim.client)
    >>> model = ad.DecentralizedGLM(data, ad.networks.directed_circle(20, 5))
    >>> ad.plots.clients(model.fit()).get_ylabel()
    'root of the score statistic'
    """
    ax = _axes(ax)
    fit, found = res.record, res.record.clients
    order = np.argsort(found.statistics, kind="stable")
    names, trusted = fit.labels[order], fit.trusted[order]
    place, height = np.arange(len(order)), np.sqrt(found.statistics[order])
    limit = np.sqrt(found.quantile(0.95)[order])
    ax.fill_between(place, 0, limit, color=QUIET, alpha=0.15, lw=0, label="95 % of clients that follow the model")
    for mask, colour, text in ((trusted, TRUSTED, "trusted"), (~trusted, DOUBTED, "down-weighted")):
        ax.scatter(place[mask], height[mask], s=18, color=colour, label=f"{text} ({int(mask.sum())})", zorder=3)
    for k in range(len(order) - 1, max(len(order) - 1 - label, -1), -1):
        ax.annotate(
            str(names[k]), (place[k], height[k]), xytext=(-6, 0), textcoords="offset points", ha="right",
            va="center", fontsize="small",
        )  # fmt: skip
    ax.set(xlabel="clients, by score", ylabel="root of the score statistic", ylim=(0, None))
    ax.legend(frameon=False, loc="upper left")
    return _plain(ax)


def lambda_path(res: Results, ax: Axes | None = None) -> Axes:
    """Plot the cross-validation score of each lambda, and how many clients it trusts.

    Parameters
    ----------
    res : Results
        A fit by ``ADFL(lam="cv")``, or by several lambdas.
    ax : matplotlib axes, optional
        Where to draw; a new figure if not given.

    Returns
    -------
    matplotlib axes
        The axes.

    Examples
    --------
    >>> import adfl_stats as ad
    >>> sim = ad.simulate.paper_linear(abnormal=0.2, corruption="BF", seed=1, M=20, n=50, p=3)
    >>> data = ad.ClientData.from_arrays(sim.X, sim.y, sim.client)
    >>> model = ad.DecentralizedGLM(data, ad.networks.directed_circle(20, 5))
    >>> ax = ad.plots.lambda_path(model.fit(ad.ADFL(lam=[1.0, 4.0]), step=0.1, rounds=50))
    >>> ax.get_xlabel()
    'lambda'
    """
    table = res.lambda_path
    if table is None:
        raise ValueError("res has no lambda_path: its lambda was given; fit with ADFL(lam='cv') or several lam")
    ax = _axes(ax)
    at = np.arange(len(table))
    ax.plot(at, table["score"], "o-", color=TRUSTED, lw=1.2, label="held-out loss, better half of the clients")
    best = int(np.argmax(table["chosen"]))
    ax.plot(best, table["score"][best], "o", ms=10, mfc="none", color=DOUBTED, label="chosen")
    ax.set_xticks(at, [f"{lam:.3g}" for lam in table["lam"]])
    ax.set_xlabel("lambda")
    ax.set_ylabel("score")
    other = ax.twinx()
    other.plot(at, table["trusted"], ":", color=QUIET, lw=1.2)
    other.set_ylabel("trusted clients (dotted)", color=QUIET)
    ax.legend(frameon=False, loc="best")
    return ax


def trace(res: Results, ax: Axes | None = None) -> Axes:
    """Plot how far clients move in a round, and how far apart they are, over all rounds of the fit.

    Where the limit was solved for there are no rounds: the axis counts the solver's passes over the data, and a move is
    that of an iteration.

    Parameters
    ----------
    res : Results
        A fit.
    ax : matplotlib axes, optional
        Where to draw; a new figure if not given.

    Returns
    -------
    matplotlib axes
        The axes.

    Examples
    --------
    >>> import adfl_stats as ad
    >>> sim = ad.simulate.paper_linear(abnormal=0.2, corruption="BF", seed=1, M=20, n=50, p=3)
    >>> data = ad.ClientData.from_arrays(sim.X, sim.y, sim.client)
    >>> model = ad.DecentralizedGLM(data, ad.networks.directed_circle(20, 5))
    >>> ad.plots.trace(model.fit(ad.DFL(), step=0.1, rounds=50)).get_xlabel()
    'round'
    """
    ax = _axes(ax)
    table = res.trace
    lengths = table.groupby("run")["round"].max()
    begin = lengths.cumsum().shift(fill_value=0)
    at = table["round"] + table["run"].map(begin)
    step, axis = (
        ("a round", "round") if res.solver == "rounds" else ("an iteration", "pass of the solver over the data")
    )
    ax.plot(at, table["moved"], color=TRUSTED, lw=1.2, label=f"longest move of a client in {step}")
    ax.plot(at, table["consensus"], color=DOUBTED, lw=1.2, label="spread of the clients")
    for edge in begin.iloc[1:]:
        ax.axvline(edge, color=QUIET, lw=0.8, ls=":")
    ax.set(xlabel=axis, yscale="log")
    ax.legend(frameon=False)
    return _plain(ax)


def network(net: Network, ax: Axes | None = None) -> Axes:
    """Draw who listens to whom, with the clients coloured by their influence.

    Edges that go both ways are lines; those that go one way taper from the sender to the receiver. Circles
    are drawn as such, and everything else if networkx is not there; other networks have a spring layout.
    Colour is influence over its mean; hollow red marks clients with influence zero.

    Parameters
    ----------
    net : Network
        Of at most 500 clients.
    ax : matplotlib axes, optional
        Where to draw.

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
    _demand_network(net, MOST_DRAWN, "a drawing shows", "Use check_network(net), or draw a part of it")
    ax = _axes(ax, (7.0, 5.5))
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
    _draw_clients(ax, net, place)
    ax.set_aspect("equal")
    ax.margins(0.08)
    ax.set_axis_off()
    one_way = "" if mutual.all() else "; the broad end sends"
    ax.set_title(f"{M} clients, {net.n_edges} edges{one_way}", fontsize="medium")
    return ax


def _demand_network(net: Network, most: int, shown: str, instead: str) -> None:
    if isinstance(net, NetworkSchedule):
        one_network(net, "a plot of the network")
    if not isinstance(net, Network):
        raise TypeError(
            f"net is a {type(net).__name__}; wanted is a Network. Make one by Network.from_adjacency or from_networkx"
        )
    if net.n_clients > most:
        raise ValueError(f"net has {net.n_clients} clients; {shown} at most {most}. {instead}")


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
    found = networkx.spring_layout(graph, seed=1, iterations=200, k=1.8 / np.sqrt(net.n_clients))
    return np.array([found[name] for name in net.labels]), False


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


def _draw_clients(ax: Axes, net: Network, place: Array) -> None:
    from matplotlib.colors import TwoSlopeNorm

    M = net.n_clients
    share = net.influence.to_numpy() * M
    heard = share > 0
    size = float(np.clip(6000.0 / M, 12.0, 260.0))
    even = np.ptp(share) < 1e-8
    colours: dict[str, Any] = {"color": TRUSTED}
    if not even:
        # Half and twice the mean at least, so that small differences look small.
        scale = TwoSlopeNorm(1.0, vmin=min(0.5, float(share[heard].min())), vmax=max(2.0, float(share.max())))
        colours = {"c": share[heard], "cmap": "viridis", "norm": scale}
    x, y = place[:, 0], place[:, 1]
    drawn = ax.scatter(x[heard], y[heard], s=size, edgecolors="white", linewidths=0.7, zorder=3, **colours)
    if not heard.all():
        ax.scatter(
            x[~heard], y[~heard], s=size, facecolors="white", edgecolors=DOUBTED, linewidths=1.3, zorder=3,
            label=f"influence 0 ({int((~heard).sum())})",
        )  # fmt: skip
        # Below the drawing: inside, a client may stand anywhere.
        ax.legend(frameon=False, loc="upper center", bbox_to_anchor=(0.5, 0.0), fontsize="small")
    if even:
        ax.text(0.5, -0.01, "all clients count the same", transform=ax.transAxes, ha="center", va="top", color=QUIET)
    else:
        bar = ax.figure.colorbar(drawn, ax=ax, shrink=0.7, pad=0.02, label="influence / mean")
        bar.outline.set_visible(False)
    if M <= MOST_NAMED:
        for k, name in enumerate(net.labels):
            ax.annotate(str(name), (x[k], y[k]), xytext=(0, 0.55 * np.sqrt(size) + 1), textcoords="offset points",
                        ha="center", va="bottom", fontsize="x-small", zorder=4)  # fmt: skip


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
    _demand_network(net, MOST_EIGENVALUES, "all eigenvalues are drawn for", instead)
    ax = _axes(ax, (5.5, 5.5))
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
    ax.scatter(others.real, others.imag, s=14, color=TRUSTED, alpha=0.75, lw=0, zorder=3)
    ax.scatter([1.0], [0.0], s=34, color=DOUBTED, zorder=4)
    ax.set(xlim=(-1.12, 1.12), ylim=(-1.12, 1.12), aspect="equal", xlabel="real part", ylabel="imaginary part")
    words = f"second modulus {second:.4g} (dashed), gap {1.0 - second:.3g}; red: 1, consensus"
    ax.set_title(f"Eigenvalues of W\n{words}", fontsize="medium")
    return _plain(ax)


def rates(rates: Rates, ax: Axes | None = None) -> Axes:
    """Draw the clients' distance from their limit by round, beside the exact and fitted factors and the paper's bound.

    The lines of the factors end where the distances end; they agree with them once faster modes have decayed. The
    factor fitted to the fit's own trace is drawn where it was seen at the same step. The bound starts where the
    distances start, and its constant is open.

    Parameters
    ----------
    rates : Rates
        What ``model.rates(res)`` returned.
    ax : matplotlib axes, optional
        Where to draw.

    Returns
    -------
    matplotlib axes
        The axes.

    Examples
    --------
    >>> import adfl_stats as ad
    >>> sim = ad.simulate.paper_linear(abnormal=0.2, corruption="BF", seed=1, M=20, n=50, p=3)
    >>> data = ad.ClientData.from_arrays(sim.X, sim.y, sim.client)
    >>> model = ad.DecentralizedGLM(data, ad.networks.directed_circle(20, 5))
    >>> ad.plots.rates(model.rates(model.fit(ad.DFL(), step=0.1, rounds=50))).get_xlabel()
    'round'
    """
    ax = _axes(ax)
    at, distance = rates.distances["round"].to_numpy(), rates.distances["distance"].to_numpy()
    ax.plot(at, distance, color=TRUSTED, lw=1.8, label="distance from the limit")
    # Where rounding has not yet taken over.
    seen = np.flatnonzero(distance > 1e-12 * distance[0])
    last = int(seen[-1]) if seen.size else 0
    factors = [("exact", rates.exact, "black", "--")]
    if rates.fitted_step == rates.step:
        factors.append(("fitted", rates.fitted, "#2e8b57", "-."))
    for name, factor, colour, style in factors:
        if np.isfinite(factor):
            back = distance[last] * factor ** (at - at[last])
            ax.plot(at, back, color=colour, lw=1.0, ls=style, label=f"{name} factor {factor:.5g}")
    bound = distance[0] * rates.bound**at
    ax.plot(at, bound, color=DOUBTED, lw=1.0, label=f"{rates.place}: {rates.bound:.5g}")
    ax.set(xlabel="round", ylabel="root mean square distance", yscale="log")
    ax.legend(frameon=False)
    return _plain(ax)


def screening(screened: Screening, ax: Axes | None = None) -> Axes:
    """Plot the clients' statistics, the largest on top.

    A point is the client's score statistic over its mean under the model, on a log scale; the grey line
    behind it is where 95 % of clients that follow the model have theirs. With the mirror statistic, the points
    are that statistic, which such clients have on both sides of zero alike.

    Parameters
    ----------
    screened : Screening
        What ``adfl_stats.screen(res)`` returned.
    ax : matplotlib axes, optional
        Where to draw; without it the figure grows with the clients. Names are left out where they would
        overlap.

    Returns
    -------
    matplotlib axes
        The axes.

    Examples
    --------
    >>> import adfl_stats as ad
    >>> sim = ad.simulate.paper_linear(abnormal=0.2, corruption="BF", seed=1, M=20, n=50, p=3)
    >>> data = ad.ClientData.from_arrays(sim.X, sim.y, sim.client)
    >>> model = ad.DecentralizedGLM(data, ad.networks.directed_circle(20, 5))
    >>> ad.plots.screening(ad.screen(model.fit())).get_xlabel()
    'score statistic / its mean under the model'
    """
    table = screened.to_frame()
    ax = _axes(ax, (7.0, float(np.clip(1.4 + 0.13 * len(table), 3.0, 14.0))))
    mirror = screened.method == "mirror"
    value = np.asarray(table["mirror"] if mirror else table["statistic"] / np.maximum(table["df"], 1))
    order = np.argsort(value, kind="stable")
    value, flagged, place = value[order], table["flagged"].to_numpy()[order], np.arange(len(table))
    if mirror:
        ax.axvline(0, color=QUIET, lw=0.8)
        ax.set_xscale("symlog", linthresh=float(np.median(np.abs(value))) or 1.0)
        ax.set_xlabel("mirror statistic")
    else:
        mean = np.maximum(screened.clients.ranks, 1)
        low, high = ((screened.clients.quantile(level) / mean)[order] for level in (0.025, 0.975))
        ax.hlines(place, low, high, color=QUIET, alpha=0.45, lw=2.0, label="95 % under the model")
        value = np.maximum(value, 0.5 * low.min())
        ax.set(xscale="log", xlabel="score statistic / its mean under the model")
    for mask, colour, text in (
        (flagged, DOUBTED, f"flagged at q = {screened.q:g}"),
        (~flagged, TRUSTED, "not flagged"),
    ):
        ax.scatter(value[mask], place[mask], s=16, color=colour, label=f"{text} ({int(mask.sum())})", zorder=3)
    ax.set_ylim(-1, len(table))
    width, height = _inches(ax)
    room = 72.0 * height / (len(table) + 1)
    if room >= 6.0:
        ax.set_yticks(place, [str(name) for name in table.index[order]], fontsize=min(0.85 * room, 9.0))
        ax.tick_params(axis="y", length=0)
    else:
        ax.set(yticks=[], ylabel="clients, by statistic")
    # Above the axes: clients fill the rest from corner to corner.
    columns = 3 if width > 5.0 else 1
    ax.legend(frameon=False, loc="lower left", bbox_to_anchor=(0.0, 1.0), ncols=columns, fontsize="small")
    return _plain(ax)


def heterogeneity(found: Heterogeneity, coefficient: str | None = None, ax: Axes | None = None) -> Axes:
    """Draw the clients' deviations from the estimate in one coefficient, raw and shrunken.

    Parameters
    ----------
    found : Heterogeneity
        What ``res.heterogeneity()`` returned.
    coefficient : str, optional
        Which; without it the one with the largest spread in units of a client's standard error.
    ax : matplotlib axes, optional
        Where to draw. Names are left out where they would overlap.

    Returns
    -------
    matplotlib axes
        The axes.

    Examples
    --------
    >>> import adfl_stats as ad
    >>> sim = ad.simulate.paper_linear(abnormal=0, corruption=None, seed=1, M=20, n=60, p=3)
    >>> data = ad.ClientData.from_arrays(sim.X, sim.y, sim.client)
    >>> res = ad.DecentralizedGLM(data, ad.networks.directed_circle(20, 5)).fit()
    >>> ax = ad.plots.heterogeneity(res.heterogeneity(), "x1")
    """
    table = found.to_frame()
    if coefficient is None:
        coefficient = str((table["tau"] / table["client se"]).fillna(0.0).idxmax())
    if coefficient not in table.index:
        raise ValueError(f"coefficient is {coefficient!r}; choose one of {listing(table.index)}")
    clients = found.clients.xs(coefficient, level="coefficient").dropna(subset="deviation")
    clients = clients.sort_values("deviation", kind="stable")
    place = np.arange(len(clients))
    ax = _axes(ax, (7.0, float(np.clip(1.6 + 0.13 * len(clients), 3.0, 14.0))))
    reach = 1.96 * clients["se"].to_numpy()
    raw, shrunken = clients["deviation"].to_numpy(), clients["effect"].to_numpy()
    ax.axvline(0.0, color=QUIET, lw=0.8)
    ax.hlines(place, raw - reach, raw + reach, color=QUIET, alpha=0.45, lw=1.5)
    ax.scatter(raw, place, s=14, facecolors="none", edgecolors=DOUBTED, label="own estimate, 95 % interval", zorder=3)
    ax.scatter(shrunken, place, s=14, color=TRUSTED, label="shrunken (empirical Bayes)", zorder=4)
    tau = table.loc[coefficient, "tau"]
    ax.set(xlabel=f"{coefficient}: deviation from the estimate (tau = {tau:.3g})", ylim=(-1, len(clients)))
    room = 72.0 * _inches(ax)[1] / (len(clients) + 1)
    if room >= 6.0:
        ax.set_yticks(place, [str(name) for name in clients.index], fontsize=min(0.85 * room, 9.0))
        ax.tick_params(axis="y", length=0)
    else:
        ax.set(yticks=[], ylabel="clients, by deviation")
    ax.legend(frameon=False, loc="lower left", bbox_to_anchor=(0.0, 1.0), ncols=2, fontsize="small")
    return _plain(ax)


def _axes(ax: Axes | None, size: tuple[float, float] = (7.0, 4.0)) -> Axes:
    if ax is not None:
        return ax
    try:
        from matplotlib import pyplot
    except ImportError:
        raise ImportError("plots need matplotlib; install it with: pip install 'adfl-stats[plot]'") from None
    return pyplot.subplots(figsize=size, layout="constrained")[1]


def _inches(ax: Axes) -> tuple[float, float]:
    """Return width and height of the axes."""
    return ax.bbox.width / ax.figure.dpi, ax.bbox.height / ax.figure.dpi


def _plain(ax: Axes) -> Axes:
    for side in ("top", "right"):
        ax.spines[side].set_visible(False)
    return ax
