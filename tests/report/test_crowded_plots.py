"""Plots of many clients: names of the interesting ones, none over another, no lines too close to be told apart."""

from functools import cache

import matplotlib as mpl
import numpy as np
import pytest

mpl.use("Agg")
from matplotlib import pyplot as plt

import adfl_stats as ad
from adfl_stats.report.plots._axes import key, name_points, name_rows


@pytest.fixture(autouse=True)
def closed():
    yield
    plt.close("all")


def texts_of(ax):
    ax.figure.draw_without_rendering()
    return [text for text in (*ax.texts, *ax.get_yticklabels()) if text.get_text().startswith("client ")]


@pytest.mark.parametrize("kind", ["rows", "points"])
def test_names_are_short_and_do_not_overlap(kind):
    names, rows = [f"client number {k:03d} of a long list" for k in range(200)], np.arange(200)
    ax = plt.subplots(figsize=(7.0, 7.0))[1]
    ax.plot(rows, rows, "o")
    if kind == "rows":
        name_rows(ax, names, "clients", rows[::-1])
        assert ax.get_ylabel() == "clients"
    else:
        name_points(ax, rows, rows, names, rows[::-1])
    texts = texts_of(ax)
    assert 5 < len(texts) < 100
    assert all(len(text.get_text()) <= 18 for text in texts)
    boxes = [text.get_window_extent() for text in texts]
    assert not any(box.overlaps(other) for k, box in enumerate(boxes) for other in boxes[:k])


def test_few_clients_are_all_named():
    ax = ad.plots.network(ad.networks.directed_circle(8, 3, labels=[f"client {k}" for k in range(8)]))
    assert len(texts_of(ax)) == 8


@cache
def fit_of_twenty(kind, name):
    labels = [name.format(k) for k in range(20)]
    net = ad.networks.directed_circle(20, 5, labels=labels)
    net = net if kind == "circle" else ad.networks.small_world(20, 4, 0.3, seed=2, labels=labels)
    sim = ad.simulate.paper_linear(abnormal=0.2, corruption="BF", seed=1, M=20, n=50, p=2)
    return ad.DecentralizedGLM(ad.ClientData.from_arrays(sim.X, sim.y, np.array(labels)[sim.client]), net).fit(ad.DFL())


@pytest.mark.parametrize("kind", ["circle", "springs"])
@pytest.mark.parametrize("name", ["client {}", "client WARD {} of Saint Mary's Hospital"])
@pytest.mark.parametrize("by", ["weight", "flag"])
@pytest.mark.parametrize("panels", [1, 2])
def test_names_of_a_network_lie_over_nothing_else(kind, name, by, panels):
    res = fit_of_twenty(kind, name)
    ax = ad.plots.network(res, None if panels == 1 else plt.subplots(1, 2, squeeze=False)[1][0, 0], by=by)
    ax.figure.draw_without_rendering()
    texts = ax.texts
    assert len(texts) == 20 if panels == 1 else len(texts) >= 12
    boxes = [text.get_window_extent() for text in texts]
    others = [other.get_tightbbox() for other in ax.figure.axes if other is not ax]
    others += [] if ax.get_legend() is None else [ax.get_legend().get_window_extent()]
    assert not any(box.overlaps(other) for k, box in enumerate(boxes) for other in (*boxes[:k], *others))
    assert all(box.x0 >= 0.0 and box.x1 <= ax.figure.bbox.x1 for box in boxes)
    marks = [points for points in ax.collections if len(points.get_offsets()) > 1 and len(points.get_sizes())]
    for points in marks:
        radius = np.sqrt(points.get_sizes()[0]) / 2.0 * ax.figure.dpi / 72.0
        for x, y in ax.transData.transform(points.get_offsets()):
            across = [max(box.x0 - x, x - box.x1, 0.0) for box in boxes]
            up = [max(box.y0 - y, y - box.y1, 0.0) for box in boxes]
            assert np.hypot(across, up).min() >= 0.9 * radius


def test_a_thousand_clients_are_drawn():
    assert ad.plots.network(ad.networks.directed_circle(1000, 4)).get_title().startswith("1000 clients, 4000 edges")


def test_colours_of_a_fit_want_a_fit():
    net = ad.networks.directed_circle(8, 3)
    with pytest.raises(TypeError, match="by='weight' is about a fit; pass its results in the place of the network"):
        ad.plots.network(net, by="weight")
    with pytest.raises(ValueError, match="by is 'colour'; choose one of 'influence', 'weight', 'flag'"):
        ad.plots.network(net, by="colour")


def test_the_trace_has_axes_a_key_and_all_points(model):
    res = model.fit(ad.ADFL(lam=2.0, stages=2), step=0.1, rounds=5)
    ax = ad.plots.trace(res)
    assert (ax.get_xlabel(), ax.get_ylabel()) == ("round", "distance between estimates")
    moved = [line for line in ax.lines if line.get_color() == "#2b6ca3"]
    assert sum(len(line.get_xdata()) for line in moved) == len(res.trace)
    assert all(line.get_markersize() > 0 for line in moved)
    words = [text.get_text() for text in ax.get_legend().get_texts()]
    assert words[:2] == ["longest move of a client in a round", "spread of the clients"]


def test_clients_that_agree_exactly_are_points_too(logistic):
    data = ad.ClientData.from_arrays(logistic.X, logistic.y, logistic.client)
    res = ad.DecentralizedGLM(data, ad.networks.complete(8), "binomial").fit(ad.DFL(), step=0.1, rounds=5)
    res.record.trace["consensus"] = 0.0
    ax = ad.plots.trace(res)
    assert ax.get_ylabel().endswith("(lowest: 0)")
    spread = [line for line in ax.lines if line.get_color() == "#c0392b"]
    assert all((line.get_ydata() > 0).all() for line in spread)


def test_lambdas_have_errors_and_the_edge_is_told(model):
    res = model.fit(ad.ADFL(lam=[0.0, 1.0, 2.0]))
    table = res.lambda_path
    assert (table["se"] > 0).all()
    ax = ad.plots.lambda_path(res)
    assert len(ax.containers) == 1
    at_edge = bool(table["chosen"].iloc[[0, -1]].any())
    assert ("grid's edge" in ax.get_title()) == at_edge
    inner = res.record.details["lambda_path"]
    for place, word in ((0, "smallest"), (2, "largest"), (1, "")):
        inner["chosen"] = [k == place for k in range(3)]
        title = ad.plots.lambda_path(ad.Results(res.record)).get_title()
        assert title.startswith(f"The {word} lambda") if word else title == ""


def test_marks_of_a_key_can_be_told_however_many_clients():
    ax = plt.subplots()[1]
    ax.plot([0], [0], ".", markersize=1.0, label="small")
    ax.scatter([0], [1], s=2.0, label="smaller")
    ax.plot([0], [2], "o", markersize=9.0, label="large")
    key(ax)
    small, smaller, large = ax.get_legend().legend_handles
    assert (small.get_markersize(), large.get_markersize()) == (5.0, 9.0)
    assert smaller.get_sizes().tolist() == [25.0]
