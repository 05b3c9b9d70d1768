"""A user's own losses, with gradients only, through every method that does with them."""

import numpy as np
import pandas as pd
import pytest
from numpy.testing import assert_allclose, assert_array_equal

import adfl_stats as ad
from adfl_stats.engine.plan import Plan
from adfl_stats.engine.problem import Problem
from adfl_stats.engine.transport import LOCAL
from adfl_stats.losses.families import resolve_family
from adfl_stats.losses.glm import GLM
from adfl_stats.losses.objective import Objective, checked_objective
from adfl_stats.methods import check_needs

M, P = 8, 3
LABELS = [f"c{k}" for k in range(M)]
SIZES = np.array([25, 40, 18, 33, 51, 22, 29, 36])
DIRECTED = ad.networks.directed_circle(M, 4, labels=LABELS)
UNDIRECTED = ad.networks.erdos_renyi(M, 0.7, seed=2, labels=LABELS).metropolis()
PLAN = Plan(step=0.1, rounds=60)


def estimate(method, problem, plan):
    """As models do."""
    check_needs(method, problem, plan)
    return method.estimate(problem, plan)


def rows(seed=0):
    rng = np.random.default_rng(seed)
    X = [np.column_stack([np.ones(n), rng.normal(size=(n, P - 1))]) for n in SIZES]
    y = [x @ [1.0, -0.5, 0.3] + rng.standard_t(3, size=len(x)) for x in X]
    # The last client's responses have the wrong sign.
    y[-1] = -4.0 * y[-1]
    return X, y


class Regression:
    """Linear regression with any loss of the residual, given by its derivative."""

    M, P = M, P
    labels = pd.Index(LABELS)
    names = ("a", "b", "c")
    totals = SIZES.astype(float)
    counted = np.ones(M, dtype=bool)

    def __init__(self, derivative, seed=0):
        self.derivative = derivative
        self.X, self.y = rows(seed)

    def start(self):
        return np.zeros((M, P))

    def gradients(self, theta, threads=1):
        return np.stack(
            [
                np.stack([X.T @ self.derivative(X @ t - y) / len(y) for t in own])
                for X, y, own in zip(self.X, self.y, theta, strict=True)
            ]
        )


def smooth_absolute(residual):
    """The derivative of sqrt(1 + r^2)."""
    return residual / np.sqrt(1.0 + residual**2)


LOSSES = {"least squares": lambda residual: residual, "smoothed absolute": smooth_absolute}


def slopes(X, y, derivative, theta):
    each = [x.T @ derivative(x @ t - z) / len(z) for x, z, t in zip(X, y, theta, strict=True)]
    return np.array(each)


def written_out(derivative, combine, weights=None, theta=None, step=PLAN.step, rounds=PLAN.rounds):
    """Equation (4.1) in a few lines: combine, then a step of size alpha omega_m n_m / mean n."""
    X, y = rows()
    factors = (np.ones(M) if weights is None else weights) * SIZES / SIZES.mean()
    theta = np.zeros((M, P)) if theta is None else theta
    for _ in range(rounds):
        at = combine(theta)
        theta = at - step * factors[:, None] * slopes(X, y, derivative, at)
    return theta


def neighbourhood(combine):
    hears = DIRECTED.W.toarray() > 0
    pools = [np.concatenate([[m], np.flatnonzero(hears[m] & (np.arange(M) != m))]) for m in range(M)]
    return lambda theta: np.array([combine(theta[pool]) for pool in pools])


def trimmed(pool, b=1):
    kept = np.sort(pool[1:], axis=0)[b : len(pool) - 1 - b]
    return (pool[0] + kept.sum(axis=0)) / (1 + len(kept))


RULES = {
    "DFL": (ad.DFL(), lambda theta: DIRECTED.W @ theta),
    "BRIDGE-M": (ad.Bridge("median"), neighbourhood(lambda pool: np.median(pool, axis=0))),
    "BRIDGE-T": (ad.Bridge("trimmed", b=1), neighbourhood(trimmed)),
}


@pytest.mark.parametrize("loss", LOSSES)
@pytest.mark.parametrize("rule", RULES)
def test_rounds_are_those_written_out(loss, rule):
    method, combine = RULES[rule]
    found = estimate(method, Problem(Regression(LOSSES[loss]), DIRECTED), PLAN)
    assert_allclose(found.theta, written_out(LOSSES[loss], combine), rtol=1e-10, atol=1e-13)
    assert [run.rounds for run in found.runs] == [PLAN.rounds]


@pytest.mark.parametrize("loss", LOSSES)
def test_adaptive_stages_are_those_written_out(loss):
    derivative, lam = LOSSES[loss], 2.0
    method = ad.ADFL(lam=lam, measure="norm", stages=2)
    found = estimate(method, Problem(Regression(derivative), DIRECTED), PLAN)
    # Losses without curvature have BRIDGE-M for a start; then two stages, equation (4.4) with pi(x) = exp(-x).
    theta = written_out(derivative, RULES["BRIDGE-M"][1])
    for _ in range(2):
        norms = np.linalg.norm(slopes(*rows(), derivative, theta), axis=1)
        weights = np.exp(-lam * norms)
        theta = written_out(derivative, RULES["DFL"][1], weights / weights.max(), theta)
    assert_allclose(found.theta, theta, rtol=1e-9, atol=1e-12)
    assert_allclose(found.steps.weights, weights / weights.max(), rtol=1e-9)
    assert found.details["start"] == "BRIDGE-M"
    assert found.steps.weights.argmin() == M - 1


class Centred(Regression):
    """The same about the mean response of all clients, which is a sum by the transport."""

    centre = 0.0

    def placed(self, total, gather, parts):
        sums = np.array([[y.sum(), len(y)] for y in self.y])
        whole, count = total(lambda at: sums[at].sum(axis=0))
        moved = Centred(self.derivative)
        moved.centre = whole / count
        moved.y = [y - moved.centre for y in self.y]
        assert len(gather(sums)) == M
        assert parts == LOCAL.batches()
        return moved


def test_losses_may_ask_for_sums_over_all_clients():
    problem = Problem(Centred(LOSSES["least squares"]), DIRECTED)
    assert_allclose(problem.objective.centre, np.concatenate(rows()[1]).mean(), rtol=1e-14)
    at_zero = problem.gradients(np.zeros((M, P)))
    assert_allclose((at_zero[:, 0] * SIZES).sum(), 0.0, atol=1e-12)


METHODS = [
    ad.DFL(),
    ad.DFL(weights=np.linspace(0.2, 1.0, M), balance=True),
    ad.ADFL(lam=1.0, measure="norm", init=ad.Bridge("median")),
    ad.ADFL(lam=1.0, refresh=20, init=ad.DFL()),
    ad.Oracle([LABELS[-1]]),
    ad.Bridge("median"),
    ad.Bridge("krum", b=0),
    ad.ClippedGossip(),
    ad.GeometricMedian(),
    ad.IOS(b=1),
    ad.NNA(b=1),
    ad.Local(),
    ad.Extra(),
    ad.GradientTracking(),
    ad.SLBRN(),
]


def least_squares_glm():
    X, y = rows()
    data = ad.ClientData.from_arrays(np.vstack(X), np.concatenate(y), np.repeat(LABELS, SIZES))
    return GLM(data, resolve_family("gaussian", 0))


@pytest.mark.parametrize("method", METHODS, ids=lambda method: method.name)
def test_least_squares_by_a_callable_is_the_gaussian_model(method):
    plan = Plan(step=0.02, rounds=50)
    theirs = estimate(method, Problem(Regression(LOSSES["least squares"]), UNDIRECTED), plan)
    # The model has another start of its own for aDFL only, and it is given here.
    ours = estimate(method, Problem(least_squares_glm(), UNDIRECTED), plan)
    assert_allclose(theirs.theta, ours.theta, rtol=1e-9, atol=1e-12)
    assert_allclose(theirs.steps.weights, ours.steps.weights, rtol=1e-9)


def test_lies_reach_losses_of_users_too():
    attack = ad.attacks.SignFlip(clients=[LABELS[0]])
    plan = Plan(step=0.1, rounds=30, attack=attack)
    theirs = estimate(ad.DFL(), Problem(Regression(LOSSES["least squares"]), DIRECTED), plan)
    ours = estimate(ad.DFL(), Problem(least_squares_glm(), DIRECTED), plan)
    assert_allclose(theirs.theta, ours.theta, rtol=1e-9, atol=1e-12)


def test_without_rounds_a_run_goes_on_until_nobody_moves():
    objective = Regression(smooth_absolute)
    found = estimate(ad.DFL(), Problem(objective, DIRECTED), Plan(step=0.3))
    once = written_out(smooth_absolute, RULES["DFL"][1], theta=found.theta, step=0.3, rounds=1)
    assert_allclose(once, found.theta, rtol=1e-9)
    assert found.runs[-1].rounds < 20_000


def test_the_step_must_be_given():
    with pytest.raises(ValueError, match=r"step is 'auto'.*DFL \(a Regression\) has gradients only; pass a number"):
        estimate(ad.DFL(), Problem(Regression(smooth_absolute), DIRECTED), Plan(rounds=5))
    with pytest.raises(ad.DivergenceError, match=r"diverged in round \d+ at step=50; pass a smaller step$"):
        estimate(ad.DFL(), Problem(Regression(LOSSES["least squares"]), DIRECTED), Plan(step=50.0, rounds=500))


@pytest.mark.parametrize(
    ("method", "what"),
    [
        (ad.ADFL(), "aDFL needs the curvatures and scores"),
        (ad.ADFL(lam="cv"), "aDFL needs the curvatures and scores"),
        (ad.ADFL(lam=1.0, measure="score"), "aDFL needs the curvatures and scores"),
        (ad.ADFL(lam=1.0, equalise=True), "aDFL needs the curvatures and scores"),
        (ad.TrimmedScores(), "trimmed scores needs the curvatures and scores"),
        (ad.UBAR(), "UBAR needs the values of the losses"),
        (ad.DFL(init=ad.TrimmedScores()), "trimmed scores needs the curvatures"),
    ],
)
def test_methods_that_need_more_than_gradients_say_so(method, what):
    with pytest.raises(ValueError, match=f"{what}.*a Regression, has gradients only"):
        estimate(method, Problem(Regression(smooth_absolute), DIRECTED), PLAN)


def test_losses_without_curvature_run_rounds_where_the_solver_is_free():
    problem, plan = Problem(Regression(smooth_absolute), DIRECTED), Plan(step=0.1, rounds=20, solver="auto")
    found = estimate(ad.DFL(), problem, plan)
    assert_array_equal(found.theta, estimate(ad.DFL(), problem, Plan(step=0.1, rounds=20)).theta)
    assert found.runs[-1].solver == "rounds"


def test_the_limit_needs_curvature():
    with pytest.raises(ValueError, match=r"solver='limit' needs the curvatures.*a Regression.*run DFL with solver="):
        estimate(ad.DFL(), Problem(Regression(smooth_absolute), DIRECTED), Plan(step=0.1, solver="limit"))


# ------------------------------------------------------------------ what an objective must have


def test_both_kinds_pass_the_door():
    for objective in (Regression(smooth_absolute), least_squares_glm()):
        assert isinstance(objective, Objective)
        assert checked_objective(objective) is objective


class Without:
    M, P = M, P


@pytest.mark.parametrize(
    ("change", "kind", "what"),
    [
        ({"names": ("a", "b")}, ValueError, r"Regression.names has shape \(2,\).*must be \(3,\)"),
        ({"totals": np.ones(3)}, ValueError, r"totals has shape \(3,\).*must be \(8,\)"),
        ({"totals": np.zeros(M)}, ValueError, "totals has numbers that are not positive"),
        ({"start": lambda: np.zeros(P)}, ValueError, r"start\(\) has shape \(3,\).*\(8, 3\) are wanted"),
        (
            {"gradients": lambda theta, threads=1: theta[:, 0]},
            ValueError,
            r"gradients\(theta\).*\(8, 1, 3\) are wanted",
        ),
        ({"gradients": lambda theta, threads=1: theta + np.nan}, ValueError, "24 numbers that are not finite"),
    ],
)
def test_parts_that_do_not_fit_are_named(change, kind, what):
    objective = Regression(smooth_absolute)
    objective.__dict__.update(change)
    with pytest.raises(kind, match=what):
        checked_objective(objective)


def test_absent_parts_are_named():
    with pytest.raises(TypeError, match="this lacks labels, names, totals, counted, start, gradients"):
        checked_objective(Without())
    with pytest.raises(TypeError, match="this is a class"):
        checked_objective(Regression)


def test_the_loss_is_asked_for_gradients_alone():
    """The rounds ask for gradients at (M, 1, P) and for nothing else, once a round."""
    objective, asked = Regression(smooth_absolute), []
    inner = objective.gradients
    objective.gradients = lambda theta, threads=1: asked.append(theta.shape) or inner(theta, threads)
    estimate(ad.DFL(), Problem(objective, DIRECTED), Plan(step=0.1, rounds=7))
    assert_array_equal(asked, [(M, 1, P)] * 7)
