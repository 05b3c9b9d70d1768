"""The mixture over clients, against SciPy's densities and known parameters."""

from dataclasses import replace

import numpy as np
import pytest
from numpy.testing import assert_allclose
from scipy import special, stats

from adfl_stats.trust.mixture import (
    COHERENT,
    NORMAL,
    PRIOR,
    SCALES,
    ClientScores,
    coherent_runs,
    gross_runs,
    normal_run,
    pass_over,
)


def scores_of(A, z, df):
    """Return the scores of clients with factors A (list of r x P) and whitened scores z (list of r)."""
    return ClientScores(
        slopes=np.array([a.T @ b for a, b in zip(A, z, strict=True)]),
        information=np.array([a.T @ a for a in A]),
        squares=np.array([b @ b for b in z]),
        ranks=np.array([len(b) for b in z], float),
        df=np.asarray(df, float),
        log_det=np.zeros(len(z)),
    )


def clients(M=60, P=3, seed=1, shift=6.0, heavy=True):
    """Return factors, scores and df of clients: a fifth with a common shift, a tenth far off; some short of rank."""
    rng = np.random.default_rng(seed)
    A = [rng.normal(size=(P - (m % 4 == 0), P)) + 2.0 * np.eye(P)[: P - (m % 4 == 0)] for m in range(M)]
    df = rng.uniform(5.0, 30.0, M) if heavy else np.full(M, 1e7)
    z = [np.sqrt((v - 2.0) / rng.chisquare(v)) * rng.normal(size=len(a)) for a, v in zip(A, df, strict=True)]
    for m in range(M // 5):
        z[m] = z[m] + A[m] @ np.full(P, shift / np.sqrt(P))
    for m in range(M // 5, M // 5 + M // 10):
        z[m] = 10.0 * z[m]
    return A, z, df


def log_density(a, b, df, point, scale):
    """Log density of t with mean a @ point and variance `scale` times the identity, by SciPy."""
    return stats.multivariate_t(a @ point, scale * (df - 2.0) / df * np.eye(len(b)), df=df).logpdf(b)


def direct(A, z, df, runs):
    """Return the log-likelihood of the first run at its parameters, and the posteriors, by SciPy's densities."""
    centre, shares = runs.centres[0], runs.shares[0]
    total, posteriors = 0.0, []
    for a, b, v in zip(A, z, df, strict=True):
        logs = [log_density(a, b, v, centre, 1.0)]
        logs.append(-np.inf if runs.shifts is None else log_density(a, b, v, centre + runs.shifts[0], runs.widths[0]))
        logs += [log_density(a, b, v, centre, scale) for scale in SCALES]
        with np.errstate(divide="ignore"):
            logs = np.array(logs) + np.log(shares)
        total += special.logsumexp(logs)
        posteriors.append(special.softmax(logs))
    return total, np.array(posteriors)


def test_density_is_the_multivariate_t():
    A, z, df = clients()
    scores, points = scores_of(A, z, df), np.array([[0.0, 0.0, 0.0], [1.0, -2.0, 0.5]])
    found = scores.log_densities(scores.statistics(points))
    # Up to a constant of the rank, which all components share.
    wanted = [[log_density(*one, point, 1.0) for point in points] for one in zip(A, z, df, strict=True)]
    assert_allclose(found - 0.5 * scores.ranks[:, None] * np.log(np.pi), wanted, rtol=1e-9)


@pytest.mark.parametrize("kind", ["normal", "gross", "coherent", "both"])
def test_likelihood_and_posteriors_of_a_run(kind):
    A, z, df = clients()
    scores, begin = scores_of(A, z, df), np.zeros((1, 3))
    run = {
        "normal": lambda: normal_run(scores),
        "gross": lambda: gross_runs(scores, begin),
        "coherent": lambda: coherent_runs(scores, begin, gross=False),
        "both": lambda: coherent_runs(scores, begin, gross=True),
    }[kind]()
    likelihood, posteriors = direct(A, z, df, run)
    after = pass_over(scores, run)
    assert_allclose(after.log_likelihoods[0] - 0.5 * scores.ranks.sum() * np.log(np.pi), likelihood, rtol=1e-10)
    assert_allclose(after.posteriors[:, 0], posteriors, atol=1e-8)


@pytest.mark.parametrize("seed", range(3))
def test_em_increases_the_penalised_likelihood(seed):
    """From any parameters: the share of normal clients has the prior's weight, and is at least one half."""
    A, z, df = clients(seed=seed)
    scores, rng = scores_of(A, z, df), np.random.default_rng(seed)
    run = coherent_runs(scores, np.zeros((1, 3)), gross=True)
    shares = rng.dirichlet(np.ones(2 + len(SCALES)))[None] / 2.0
    shares[0, NORMAL] += 0.5
    run = replace(run, centres=rng.normal(size=(1, 3)), shifts=3 * rng.normal(size=(1, 3)), shares=shares)
    run = replace(run, widths=np.array([4.0]))
    values = []
    for _ in range(60):
        share = run.shares[0, NORMAL]
        run = pass_over(scores, run)
        values.append(run.log_likelihoods[0] + PRIOR * scores.M * np.log(share))
    assert (np.diff(values) > -1e-7).all()
    assert np.diff(values)[0] > 1.0


def test_order_of_clients_does_not_matter():
    A, z, df = clients(seed=4)
    order = np.random.default_rng(1).permutation(len(z))
    plain = coherent_runs(scores_of(A, z, df), np.zeros((1, 3)), gross=True)
    moved = coherent_runs(
        scores_of([A[k] for k in order], [z[k] for k in order], df[order]), np.zeros((1, 3)), gross=True
    )
    assert_allclose(moved.posteriors[:, 0], plain.posteriors[order, 0], atol=1e-6)
    assert_allclose(moved.shifts, plain.shifts, rtol=1e-6)


def test_two_normal_groups_are_recovered():
    """N(0, I) with share .75 and N((4, 0), I), of 800 clients: parameters and posteriors as by the true ones."""
    rng = np.random.default_rng(6)
    M, shift = 800, np.array([4.0, 0.0])
    bad = np.arange(M) < 200
    z = rng.normal(size=(M, 2)) + np.where(bad[:, None], shift, 0.0)
    run = coherent_runs(scores_of([np.eye(2)] * M, z, np.full(M, 1e7)), np.zeros((1, 2)), gross=False)
    # Standard errors 1 / sqrt(600) and 1 / sqrt(150) of the means, some more as the groups overlap by 2 %.
    assert_allclose(run.centres[0], 0.0, atol=4 * 0.05)
    assert_allclose(run.centres[0] + run.shifts[0], shift, atol=4 * 0.09)
    # Not below one; the mean over 400 numbers has a standard error of .07.
    assert 1.0 <= run.widths[0] < 1.3
    f0, f1 = (stats.multivariate_normal(mean).logpdf(z) for mean in (np.zeros(2), shift))
    exact = 1.0 / (1.0 + np.exp(f0 - f1) * 3.0)
    found = run.posteriors[:, 0, COHERENT]
    assert np.abs(found - exact).mean() < 0.01
    assert ((found > 0.5) == (exact > 0.5)).mean() > 0.99
    # 600 normal clients and the 120 of the prior, of 920; with a standard error of .014.
    assert run.shares[0, NORMAL] == pytest.approx(720 / 920, abs=4 * 0.014)


def test_a_majority_is_called_normal():
    """Begun from the minority's own parameter, the names of the groups are exchanged."""
    rng = np.random.default_rng(7)
    z = rng.normal(size=(100, 2)) + np.where(np.arange(100)[:, None] < 60, [8.0, 0.0], 0.0)
    run = coherent_runs(scores_of([np.eye(2)] * 100, z, np.full(100, 1e7)), np.zeros((1, 2)), gross=False)
    assert run.majority == pytest.approx(0.6, abs=0.01)
    assert_allclose(run.centres[0], [8.0, 0.0], atol=0.6)
