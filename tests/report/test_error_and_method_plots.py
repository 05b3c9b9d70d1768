"""Plots of errors by round and of coefficients across methods: what they draw are the numbers."""

import re
from pathlib import Path
from xml.etree import ElementTree

import matplotlib

matplotlib.use("Agg")

import numpy as np
import pytest
import statsmodels.api as sm
from matplotlib import pyplot

import adfl_stats as ad

STEP = 0.1


@pytest.fixture(scope="module")
def linear():
    sim = ad.simulate.paper_linear(abnormal=0.2, corruption="BF", seed=1, M=20, n=50, p=3)
    data = ad.ClientData.from_arrays(sim.X, sim.y, sim.client)
    return sim, ad.DecentralizedGLM(data, ad.networks.directed_circle(20, 5))


@pytest.fixture(autouse=True)
def close():
    yield
    pyplot.close("all")


def test_errors_by_round_are_those_of_the_recursion(linear):
    """Equation (3.1) in NumPy; the pooled solution and its standard errors by statsmodels."""
    sim, model = linear
    rates = model.rates(model.fit(ad.DFL(), step=STEP, rounds=50))
    pooled = sm.OLS(sim.y, sim.X).fit(cov_type="HC0")
    X, y = sim.X.reshape(20, 50, -1), sim.y.reshape(20, 50)
    assert (sim.client.reshape(20, 50) == np.arange(20)[:, None]).all()
    G, c, W = np.einsum("mni,mnj->mij", X, X) / 50, np.einsum("mni,mn->mi", X, y) / 50, model.network.W.toarray()
    theta, optimisation, consensus = np.zeros(c.shape), [], []
    for _ in range(rates.distances["round"].iloc[-1] + 1):
        centre = theta.mean(axis=0)
        optimisation.append(np.max(np.abs(centre - pooled.params) / pooled.bse))
        consensus.append(np.max(np.sqrt(np.mean((theta - centre) ** 2, axis=0)) / pooled.bse))
        mean = W @ theta
        theta = mean - STEP * (np.einsum("mij,mj->mi", G, mean) - c)
    at = rates.distances["round"]
    np.testing.assert_allclose(rates.distances["optimisation"], np.array(optimisation)[at], rtol=1e-6, atol=1e-8)
    np.testing.assert_allclose(rates.distances["consensus"], np.array(consensus)[at], rtol=1e-6, atol=1e-8)


def test_convergence_draws_the_three_errors(linear):
    _, model = linear
    rates = model.rates(model.fit(ad.DFL(), step=0.01, rounds=50))
    ax = ad.plots.convergence(rates, tolerance=3.0)
    lines = {line.get_label(): line for line in ax.get_lines()}
    table = rates.distances
    np.testing.assert_array_equal(lines["optimisation error"].get_ydata(), table["optimisation"])
    # Clients start at the same place: an error of zero is not drawn.
    np.testing.assert_array_equal(lines["consensus error"].get_ydata()[1:], table["consensus"][1:])
    assert np.isnan(lines["consensus error"].get_ydata()[0])
    assert set(lines["statistical error"].get_ydata()) == {1.0}
    (reached,) = [int(label.split()[-1]) for label in lines if label.startswith("below it")]
    total = (table["optimisation"] + table["consensus"]).to_numpy()
    assert (total[table["round"] >= reached] <= 3.0).all()
    assert total[table["round"] < reached][-1] > 3.0
    # Styles differ, so that grey copies can be read.
    assert len({line.get_linestyle() for line in ax.get_lines()}) >= 4
    never = ad.plots.convergence(rates, tolerance=1e-9)
    assert not [line for line in never.get_lines() if line.get_label().startswith("below it")]


def test_coefficients_of_several_fits(linear):
    sim, model = linear
    fits = {"default": model.fit(), "medians": model.fit(ad.Bridge("median"), step=STEP, rounds=100)}
    _, ax = pyplot.subplots()
    assert ad.plots.coefficients(fits, ["x3", "x1"], ax, alpha=0.1, theta0=sim.theta0) is ax
    assert [text.get_text() for text in ax.get_yticklabels()] == ["x3", "x1"]
    points = {line.get_label(): line for line in ax.get_lines()}
    for name, res in fits.items():
        np.testing.assert_array_equal(points[name].get_xdata(), res.params[["x3", "x1"]])
    marks = {(line.get_marker(), line.get_color()) for line in (points["default"], points["medians"])}
    assert len({mark for mark, _ in marks}) == len({colour for _, colour in marks}) == 2
    intervals, none, truth = (found.get_segments() for found in ax.collections)
    wanted = fits["default"].conf_int(0.1).loc[["x3", "x1"]].to_numpy()
    np.testing.assert_allclose([segment[:, 0] for segment in intervals], wanted)
    assert not sum(len(segment) for segment in none)
    np.testing.assert_allclose([segment[0, 0] for segment in truth], [sim.theta0[2], sim.theta0[0]])


def test_fits_of_one_method_are_numbered_and_bad_fits_refused(linear):
    _, model = linear
    res = model.fit(ad.DFL())
    ax = ad.plots.coefficients([res, res])
    assert [text.get_text() for text in ax.get_legend().get_texts()] == ["DFL (1)", "DFL (2)"]
    assert len(ad.plots.coefficients(res).get_yticklabels()) == 3
    with pytest.raises(ValueError, match="names has 'x9'; the fits have the coefficients 'x1', 'x2', 'x3'"):
        ad.plots.coefficients([res], ["x9"])
    with pytest.raises(ValueError, match="fits is empty"):
        ad.plots.coefficients([])
    with pytest.raises(TypeError, match=r"fits\['a'\] is a int; wanted are results of a fit"):
        ad.plots.coefficients({"a": 3})


def test_images_of_the_documentation_are_of_plots_and_can_be_read():
    docs = Path(__file__).parents[2] / "docs"
    names = re.findall(r"!\[[^\]]+\]\(images/(\w+)\.svg\)", (docs / "plots.md").read_text(encoding="utf-8"))
    assert len(names) == len(set(names)) >= 10
    assert set(names) <= set(ad.plots.__all__)
    # Every other image is on another page.
    pages = "".join(page.read_text(encoding="utf-8") for page in docs.glob("*.md"))
    assert {path.stem for path in (docs / "images").iterdir()} == set(re.findall(r"\(images/(\w+)\.svg\)", pages))
    for name in names:
        assert ElementTree.parse(docs / "images" / f"{name}.svg").getroot().tag.endswith("}svg")
