"""The method that CONTRIBUTING shows, as it stands there."""

import re
from pathlib import Path

import numpy as np
import pytest
from numpy.testing import assert_allclose

import adfl_stats as ad
from adfl_stats.engine.plan import Run
from adfl_stats.methods import Outcome

TEXT = Path(__file__).parents[2].joinpath("CONTRIBUTING.md").read_text(encoding="utf-8")
M = 10
NET = ad.networks.directed_circle(M, 4)


@pytest.fixture(scope="module")
def heavy_ball():
    (code,) = re.findall(r"```python\n(.*?)```", TEXT, re.S)
    space = {"__name__": "contributed"}
    exec(code, space)
    return space["HeavyBall"]


@pytest.fixture(scope="module")
def sim():
    return ad.simulate.paper_linear(abnormal=0, corruption=None, seed=4, M=M, n=40, p=3)


@pytest.fixture(scope="module")
def model(sim):
    return ad.DecentralizedGLM(ad.ClientData.from_arrays(sim.X, sim.y, sim.client), NET)


def test_its_rounds_are_the_formula(heavy_ball, sim, model):
    res = model.fit(heavy_ball(beta=0.3), step=0.1, rounds=25)
    X, y = (np.stack([part[sim.client == m] for m in range(M)]) for part in (sim.X, sim.y))
    W = NET.W.toarray()
    theta = v = np.zeros((M, sim.X.shape[1]))
    for _ in range(25):
        at = W @ theta
        g = np.einsum("mij,mi->mj", X, np.einsum("mij,mj->mi", X, at) - y) / X.shape[1]
        v = 0.3 * v + g
        theta = at - 0.1 * v
    assert_allclose(res.client_params, theta, rtol=1e-9)


def test_it_is_run_to_the_end_and_has_standard_errors(heavy_ball, model):
    res, dfl = model.fit(heavy_ball()), model.fit(ad.DFL())
    assert res.method.name == "heavy ball"
    assert "heavy ball" in str(res.summary())
    assert_allclose(res.bse, dfl.bse, rtol=0.02)
    assert (np.abs(res.params - dfl.params) < 0.2 * dfl.bse).all()


def test_it_is_a_start_and_has_no_limit(heavy_ball, model):
    res = model.fit(ad.DFL(init=heavy_ball()), step=0.1, rounds=5)
    assert res.method.details["start"] == "heavy ball"
    with pytest.raises(ValueError, match="heavy ball has no smooth limit"):
        model.fit(heavy_ball(), solver="limit")
    with pytest.raises(TypeError, match="advice is for means and gradient steps"):
        model.advise(method=heavy_ball())
    with pytest.raises(TypeError, match="a method with `init` is wanted"):
        ad.compare_starts(model, method=heavy_ball())


def test_a_method_without_its_parts_cannot_be_made():
    class Nothing(ad.Method):
        """Neither name nor estimate."""

    with pytest.raises(TypeError, match="abstract"):
        Nothing()


@pytest.mark.parametrize("other", ["DFL", ad.DFL, object()])
def test_what_is_no_method_is_refused(model, other):
    with pytest.raises(TypeError, match="pass a method object such as"):
        model.fit(other)
    with pytest.raises(TypeError, match="advice is for means"):
        model.advise(method=other)


def test_what_the_methods_declare():
    """Each line written down, not read off the classes."""
    solved = (ad.DFL(), ad.Oracle([1]), ad.ADFL(), ad.TrimmedScores())
    plain = (ad.Bridge(), ad.ClippedGossip(), ad.GeometricMedian(), ad.IOS(1), ad.NNA(1), ad.Local(), ad.Extra(),
             ad.GradientTracking(), ad.SLBRN(), ad.UBAR())  # fmt: skip
    assert all(method.has_limit for method in solved)
    assert not any(method.has_limit or method.sets_aside or method.models_clients for method in plain)
    assert [method.sets_aside for method in solved] == [False, False, True, True]
    assert [method.models_clients for method in solved] == [False, False, True, False]
    assert [method.needs for method in solved] == ["gradients", "gradients", "curvature", "curvature"]
    assert ad.UBAR().needs == "losses"
    paper = ad.ADFL(lam=1.0)
    assert (paper.needs, paper.models_clients) == ("gradients", False)
    assert ad.ADFL(lam=1.0, equalise=True).needs == ad.ADFL(lam=[1.0, 2.0], measure="norm").needs == "curvature"
    labels = NET.labels
    assert ad.Oracle([1]).known_weights(labels).tolist() == [1, 0, 1, 1, 1, 1, 1, 1, 1, 1]
    assert ad.DFL(weights=[0.5] * M).known_weights(labels).tolist() == [0.5] * M
    assert ad.ADFL().known_weights(labels) is None


def test_theory_goes_by_what_a_method_declares_and_not_by_its_name(model):
    class Renamed(ad.DFL):
        """The recursion (3.1) under another name."""

        @property
        def name(self):
            return "renamed"

    res = model.fit(Renamed(), step=0.1, rounds=100)
    assert model.rates(res).exact == model.rates(model.fit(ad.DFL(), step=0.1, rounds=100)).exact
    with pytest.raises(ValueError, match="BRIDGE-M, which is not a weighted mean and a gradient step"):
        model.rates(model.fit(ad.Bridge(), step=0.1, rounds=100))


class Answers(ad.Method):
    name = "answers"

    def __init__(self, answer):
        self.answer = answer

    def estimate(self, problem, plan):
        return self.answer(problem)


def outcome(problem, runs, P=3):
    return Outcome(np.zeros((problem.M, P)), problem.steps(np.ones(problem.M)), runs, smooth=False)


@pytest.mark.parametrize(
    ("answer", "error", "words"),
    [
        (lambda problem: 3, TypeError, "Answers.estimate returned 3; an Outcome"),
        (lambda problem: outcome(problem, [], 2), ValueError, r"theta of shape \(10, 2\)"),
        (lambda problem: outcome(problem, []), ValueError, "Answers.estimate returned no runs"),
    ],
)
def test_what_it_returns_is_looked_at(model, answer, error, words):
    with pytest.raises(error, match=words):
        model.fit(Answers(answer))


def test_it_may_do_without_rounds(model):
    res = model.fit(Answers(lambda problem: outcome(problem, [Run(np.zeros((problem.M, 3)), step=1.0)])))
    assert res.bse.isna().all()
    assert "answers" in str(res.summary())
