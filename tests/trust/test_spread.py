"""The spread between clients, against dense algebra, SciPy's normal density and statsmodels' mixed models."""

from dataclasses import replace

import numpy as np
import pandas as pd
import pytest
import statsmodels.formula.api as smf
from numpy.testing import assert_allclose
from scipy import optimize, stats

from adfl_stats.trust.mixture import ClientScores, normal_run, pass_over
from adfl_stats.trust.spread import Spread, excess, fit_spread, inflated, next_direction, own_pivots, pivots


def scores_of(A, z, df=1e7):
    """Return the scores of clients with factors A (list of r x P) and whitened scores z (list of r)."""
    return ClientScores(
        slopes=np.array([a.T @ b for a, b in zip(A, z, strict=True)]),
        information=np.array([a.T @ a for a in A]),
        squares=np.array([b @ b for b in z]),
        ranks=np.array([len(b) for b in z], float),
        df=np.full(len(z), float(df)),
        log_det=np.zeros(len(z)),
    )


def clients(M, P, T, seed):
    """Clients with parameters from N(0, T) and unequal information; every fourth knows less than all coefficients."""
    rng = np.random.default_rng(seed)
    A = [
        (1.0 + m % 3) * (rng.normal(size=(P - (m % 4 == 0), P)) / 2.0 + np.eye(P)[: P - (m % 4 == 0)]) for m in range(M)
    ]
    u = rng.multivariate_normal(np.zeros(P), T, M, method="eigh")
    return A, [a @ one + rng.normal(size=len(a)) for a, one in zip(A, u, strict=True)]


def stacks(A, z):
    """The clients by rank, those of a rank together."""
    ranks = sorted({len(b) for b in z})
    return [tuple(np.array([one for one in each if len(one) == r]) for each in (A, z)) for r in ranks]


def likelihood(stacks, T, centre, inflation=1.0):
    """The log-likelihood of scores from N(A centre, inflation I + A T A')."""
    total = 0.0
    for A, z in stacks:
        V, away = inflation * np.eye(A.shape[1]) + A @ T @ A.transpose(0, 2, 1), z - A @ centre
        squares = (away * np.linalg.solve(V, away[..., None])[..., 0]).sum()
        total -= 0.5 * (z.size * np.log(2.0 * np.pi) + np.linalg.slogdet(V)[1].sum() + squares)
    return total


SPREADS = {
    "diagonal": Spread(np.array([0.5, 0.0, 2.0]), np.array([0, 2]), np.zeros((3, 0))),
    "rank 1": Spread(np.zeros(3), np.zeros(0, dtype=int), np.array([[1.0], [-1.0], [0.3]])),
    "diagonal + rank 2": Spread(np.array([0.5, 1.0, 2.0]), np.arange(3), np.array([[1.0, 0], [-1.0, 0.2], [0.3, 2]])),
    "none": Spread(np.zeros(3), np.zeros(0, dtype=int), np.zeros((3, 0))),
    "diagonal + inflated": Spread(
        np.array([0.5, 0.0, 2.0]), np.array([0, 2]), np.zeros((3, 0)), inflated=True, inflation=2.5
    ),
}


def diagonal(P, variance=0.5):
    """A diagonal spread to begin with."""
    return Spread(np.full(P, variance), np.arange(P), np.zeros((P, 0)))


@pytest.mark.parametrize("name", list(SPREADS))
def test_integrated_is_dense_algebra(name):
    spread, (A, z) = SPREADS[name], clients(20, 3, np.eye(3), 1)
    assert spread.name == name
    found, T = spread.integrated(scores_of(A, z)), spread.covariance
    variances = np.diag(spread.variances) + spread.directions @ spread.directions.T
    assert_allclose(T, variances, rtol=1e-12, atol=1e-15)
    for m, (a, b) in enumerate(zip(A, z, strict=True)):
        V = spread.inflation * np.eye(len(b)) + a @ T @ a.T
        assert_allclose(found.slopes[m], a.T @ np.linalg.solve(V, b), rtol=1e-9, atol=1e-10)
        assert_allclose(found.information[m], a.T @ np.linalg.solve(V, a), rtol=1e-9, atol=1e-10)
        assert_allclose(found.squares[m], b @ np.linalg.solve(V, b), rtol=1e-9)
        assert_allclose(found.log_det[m], 0.5 * np.linalg.slogdet(V)[1], rtol=1e-10, atol=1e-12)


def panel(M, n, seed, within=0.5, level=1.0):
    """Designs and responses of clients that are far apart in x, with slopes that vary about their own means."""
    rng = np.random.default_rng(seed)
    centres = 5.0 * rng.normal(size=M)
    slopes, levels = within * rng.normal(size=M), level * rng.normal(size=M)
    X = [np.column_stack([np.ones(n), c + rng.normal(size=n)]) for c in centres]
    y = [
        x @ [1.0, 2.0] + u + b * (x[:, 1] - x[:, 1].mean()) + rng.normal(size=n)
        for x, u, b in zip(X, levels, slopes, strict=True)
    ]
    return X, y


def test_own_pivots_leave_the_mean_response_of_a_client():
    X, y = panel(6, 30, 1)
    for x, B in zip(X, own_pivots(scores_of(X, y), np.array([0])), strict=True):
        assert_allclose(B, [[1.0, -x[:, 1].mean()], [0.0, 1.0]], rtol=1e-9, atol=1e-9)
        assert_allclose((x @ B)[:, 1].mean(), 0.0, atol=1e-9)


def test_integrated_about_own_means_is_dense_algebra():
    X, y = panel(6, 30, 2)
    spread = Spread(np.array([1.5, 0.4]), np.arange(2), np.array([[0.3], [0.1]]), own=np.array([0]))
    assert spread.name == "diagonal about own means + rank 1"
    found = spread.integrated(scores_of(X, y))
    for m, (x, b) in enumerate(zip(X, y, strict=True)):
        centred = np.column_stack([np.ones(len(b)), x[:, 1] - x[:, 1].mean()])
        V = np.eye(len(b)) + centred @ np.diag(spread.variances) @ centred.T + np.outer(*[x @ [0.3, 0.1]] * 2)
        assert_allclose(found.slopes[m], x.T @ np.linalg.solve(V, b), rtol=1e-8, atol=1e-8)
        assert_allclose(found.information[m], x.T @ np.linalg.solve(V, x), rtol=1e-8, atol=1e-8)
        assert_allclose(found.squares[m], b @ np.linalg.solve(V, b), rtol=1e-8)
        assert_allclose(found.log_det[m], 0.5 * np.linalg.slogdet(V)[1], rtol=1e-9)


def test_variances_about_own_means_are_mixedlms():
    """Maximum likelihood for a level and a slope of each client's own centred covariate, given the noise."""
    M, n = 60, 12
    X, y = panel(M, n, 3)
    frame = pd.DataFrame({"y": np.concatenate(y), "x": np.concatenate(X)[:, 1], "client": np.repeat(np.arange(M), n)})
    frame["own"] = frame["x"] - frame.groupby("client")["x"].transform("mean")
    known = smf.mixedlm(
        "y ~ x", frame, groups="client", vc_formula={"level": "1", "slope": "0 + own"}, re_formula="0"
    ).fit(reml=False)
    root = np.sqrt(known.scale)
    scores = scores_of([x / root for x in X], [b / root for b in y])
    begin = replace(diagonal(2), own=np.array([0]))
    spread, runs = fit_spread(scores, begin, normal_run(scores))
    # EM ends within a gain of .02, where a variance from 60 clients is within .02 of its relative error 2 / 60.
    assert_allclose(spread.variances, known.vcomp, rtol=0.05)
    assert_allclose(runs.centres[0], known.fe_params, atol=0.05 * np.min(known.bse_fe))


@pytest.mark.parametrize("name", list(SPREADS))
def test_marginal_likelihood_is_normal(name):
    spread, (A, z) = SPREADS[name], clients(20, 3, np.eye(3), 2)
    scores = scores_of(A, z)
    run = normal_run(spread.integrated(scores))
    found = pass_over(spread.integrated(scores), run).log_likelihoods[0]
    # 1e7 degrees of freedom are nearly normal: the error of the log density is of order stat^2 / df.
    normals = (
        stats.multivariate_normal(a @ run.centres[0], spread.inflation * np.eye(len(a)) + a @ spread.covariance @ a.T)
        for a in A
    )
    known = sum(normal.logpdf(b) for normal, b in zip(normals, z, strict=True))
    assert likelihood(stacks(A, z), spread.covariance, run.centres[0], spread.inflation) == pytest.approx(known)
    # The density leaves out the constant of t, which for large df is that of the normal but for the power of two.
    constant = 0.5 * scores.ranks.sum() * np.log(np.pi)
    assert found - constant == pytest.approx(known, abs=5e-3)


def random_intercepts(M, n, tau, seed):
    rng = np.random.default_rng(seed)
    client = np.repeat(np.arange(M), n)
    return pd.DataFrame({"y": 1.0 + tau * rng.normal(size=M)[client] + rng.normal(size=M * n), "client": client})


@pytest.mark.parametrize("begin", [0.5, 20.0])
@pytest.mark.parametrize("tau", [0.2, 0.5, 2.0])
def test_variance_of_random_intercepts_is_mixedlms(tau, begin):
    """Balanced random intercepts, maximum likelihood, given the residual variance of the mixed model."""
    M, n = 40, 25
    frame = random_intercepts(M, n, tau, 3)
    known = smf.mixedlm("y ~ 1", frame, groups="client").fit(reml=False)
    means = frame.groupby("client")["y"].mean().to_numpy()
    a = np.sqrt(n / known.scale)
    scores = scores_of([np.array([[a]])] * M, [np.array([a * mean]) for mean in means])
    # In units of a client's standard error, as the model of clients has them.
    unit = 1.0 / a
    scores = replace(scores, slopes=scores.slopes * unit, information=scores.information * unit**2)
    spread, runs = fit_spread(scores, diagonal(1, begin), normal_run(scores))
    found = spread.covariance[0, 0] * unit**2
    wanted = float(known.cov_re.iloc[0, 0])
    # EM ends where a step gains less than .02 in log-likelihood; a standard error of tau^2 + 1/n is sqrt(2 / M) of it.
    error = (wanted + known.scale / n) * np.sqrt(2.0 / M)
    assert abs(found - wanted) < 0.25 * error
    assert runs.centres[0, 0] * unit == pytest.approx(known.fe_params.iloc[0], abs=5e-3)


@pytest.mark.parametrize("second", [0.0, 0.3, 3.0])
def test_likelihood_of_a_fitted_spread_is_nearly_the_largest(second):
    """Against a direct search by SciPy over the same three parameters."""
    A, z = clients(80, 3, np.diag([1.0, second, 0.5]), 5)
    spread, runs = fit_spread(scores_of(A, z), diagonal(3), normal_run(scores_of(A, z)))
    by_rank = stacks(A, z)

    def profile(logs):
        lhs, rhs, T = np.zeros((3, 3)), np.zeros(3), np.diag(np.exp(logs))
        for A, z in by_rank:
            turned = A.transpose(0, 2, 1)
            known = turned @ np.linalg.inv(np.eye(A.shape[1]) + A @ T @ turned)
            lhs, rhs = lhs + (known @ A).sum(axis=0), rhs + (known @ z[..., None]).sum(axis=0)[:, 0]
        return -likelihood(by_rank, T, np.linalg.solve(lhs, rhs))

    best = optimize.minimize(profile, np.zeros(3), method="Nelder-Mead", options={"maxiter": 400})
    reached = likelihood(by_rank, spread.covariance, runs.centres[0])
    # EM comes to a variance of zero slowly, and ends below half of what the variance costs, log 80.
    assert -best.fun - reached < (0.1 if second else 1.0)


def test_heavy_tails_are_those_of_t():
    """The likelihood against SciPy's multivariate t: of 5 df if effects dominate, and else nearly normal."""
    A, z = clients(12, 3, np.eye(3), 2)
    for scale, dfs in ((1e4, (5.0, 5.1)), (1e-6, (1e6, np.inf))):
        spread = replace(SPREADS["diagonal + rank 2"], heavy=True)
        spread = replace(spread, variances=scale * spread.variances, directions=np.sqrt(scale) * spread.directions)
        assert (spread.name, spread.n_variances) == ("diagonal + rank 2, heavy tails", 3)
        marginal = spread.integrated(scores_of(A, z))
        assert ((dfs[0] <= marginal.df) & (marginal.df <= dfs[1])).all()
        run = normal_run(marginal)
        T = spread.covariance
        wanted = [
            stats.multivariate_t(a @ run.centres[0], (np.eye(len(a)) + a @ T @ a.T) * (df - 2.0) / df, df).logpdf(b)
            for a, b, df in zip(A, z, marginal.df, strict=True)
        ]
        constants = sum(0.5 * len(b) * np.log(np.pi) for b in z)
        # A step has the likelihood of the parameters before it.
        assert_allclose(pass_over(marginal, run).log_likelihoods[0], sum(wanted) + constants, rtol=1e-6)


def test_a_direction_of_spread_is_found():
    direction = np.array([1.0, -1.0, 0.5, 0.0])
    A, z = clients(150, 4, 2.0 * np.outer(direction, direction), 6)
    scores = scores_of(A, z)
    plain = normal_run(scores)
    begin, size = next_direction(scores, plain)
    assert size > 2.0
    assert abs(begin @ direction) / np.linalg.norm(begin) / np.linalg.norm(direction) > 0.9
    spread = Spread(np.zeros(4), np.zeros(0, dtype=int), begin[:, None])
    spread, _ = fit_spread(scores, spread, plain)
    found = spread.directions[:, 0] * np.sign(spread.directions[0, 0])
    # 150 clients: the length has a relative standard error of 1 / sqrt(300) and a little more.
    assert_allclose(found, np.sqrt(2.0) * direction, atol=0.4)
    assert spread.name == "rank 1"


def test_tests_of_a_spread_are_standard_normal_without_one():
    """400 data sets: mean and variance of the tests, and power where one coefficient has a spread."""
    tests = []
    for seed in range(400):
        A, z = clients(40, 2, np.zeros((2, 2)), seed)
        scores = scores_of(A, z)
        tests.append(excess(scores, normal_run(scores))[0])
    tests = np.array(tests)
    # Standard errors .05 and .04 (skewed to the right); an estimated centre takes 1 / sqrt(2 M) off the mean.
    assert_allclose(tests.mean(axis=0), 0.0, atol=0.3)
    assert_allclose(tests.std(axis=0), 1.0, atol=0.15)
    A, z = clients(40, 2, np.diag([2.0, 0.0]), 1)
    found = excess(scores_of(A, z), normal_run(scores_of(A, z)))[0]
    assert found[0] > 4.0


def test_inflation_alone_is_the_mean_statistic():
    """Scores that vary three times as much as rows say: the maximum likelihood estimate has a closed form."""
    A, z = clients(60, 3, np.zeros((3, 3)), 8)
    scores = scores_of(A, [np.sqrt(3.0) * one for one in z])
    run = normal_run(scores)
    spread, runs = fit_spread(scores, inflated(scores, np.zeros(0, dtype=int), run, None), run)
    wanted = scores.statistics(runs.centres)[:, 0].sum() / scores.ranks.sum()
    # EM is exact here but for the tails of t with 1e7 degrees of freedom.
    assert spread.inflation == pytest.approx(wanted, rel=1e-4)
    assert spread.name == "inflated"
    assert not spread.covariance.any()


def test_inflation_beside_variances_is_the_maximum():
    """Against a direct maximisation of the normal likelihood."""
    A, z = clients(80, 2, np.diag([1.5, 0.4]), 9)
    scores = scores_of(A, [one + np.random.default_rng(m).normal(size=len(one)) for m, one in enumerate(z)])
    z = [np.linalg.lstsq(a.T, s, rcond=None)[0] for a, s in zip(A, scores.slopes, strict=True)]
    spread, runs = fit_spread(scores, inflated(scores, np.arange(2), normal_run(scores), None), normal_run(scores))
    by_rank = stacks(A, z)
    best = optimize.minimize(
        lambda x: -likelihood(by_rank, np.diag(np.exp(x[:2])), runs.centres[0], np.exp(x[2])),
        np.zeros(3),
        method="BFGS",
    )
    found = likelihood(by_rank, spread.covariance, runs.centres[0], spread.inflation)
    # EM ends where a step gains less than .02, and a longer one every third step.
    assert -best.fun - 0.1 < found <= -best.fun + 1e-6


def test_pivots_do_not_depend_on_the_origin_of_covariates():
    rng = np.random.default_rng(10)
    factors = []
    for origin in (0.0, 100.0):
        rng = np.random.default_rng(10)
        X = [np.column_stack([np.ones(30), origin + rng.normal(size=(30, 2))]) for _ in range(12)]
        scores = scores_of([np.linalg.qr(x)[1] for x in X], [np.zeros(3)] * 12)
        B = pivots(scores, np.array([0]))
        assert_allclose((B.T @ scores.information.mean(axis=0) @ B)[0, 1:], 0.0, atol=1e-6 * origin**2 + 1e-9)
        # The responses that an effect of one unit changes are the same.
        factors.append(np.vstack(X) @ B)
    assert_allclose(factors[0], factors[1], atol=1e-6)
    assert pivots(scores, None) is None
