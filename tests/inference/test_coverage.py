"""Coverage of the 95 % intervals when some clients are abnormal, in the linear setting of the paper.

The full study takes about three minutes of one processor::

    pytest -m slow tests/inference/test_coverage.py
"""

import numpy as np
import pytest

import adfl_stats as ad


def coverage(replicates, abnormal, corruption, seed, *, stages=2, M=100, n=100, p=50, D=5):
    """Return the share of replicates and coefficients whose interval holds the truth.

    aDFL with lambda = 2 starts from the least-squares fit on the normal clients, so that the study is of the
    intervals and not of how a start is found.
    """
    net = ad.networks.directed_circle(M, D)
    hits = np.zeros(p)
    for rng in np.random.default_rng(seed).spawn(replicates):
        sim = ad.simulate.paper_linear(abnormal, corruption, rng, M=M, n=n, p=p)
        normal = ~np.repeat(sim.abnormal, sim.sizes)
        oracle = np.linalg.lstsq(sim.X[normal], sim.y[normal])[0]
        model = ad.DecentralizedGLM(ad.ClientData.from_arrays(sim.X, sim.y, sim.client), net)
        # The default tolerance: a numerical error of at most 5 % of a standard error, whose square, the loss
        # in mean squared error, is nothing beside the Monte-Carlo error here.
        limits = model.fit(ad.ADFL(lam=2.0, stages=stages, init=oracle), threads=1).conf_int().to_numpy()
        hits += (limits[:, 0] <= sim.theta0) & (sim.theta0 <= limits[:, 1])
    return hits.sum() / (replicates * p)


def test_intervals_cover_with_a_fifth_of_the_clients_abnormal():
    # Covariates are independent, hence the coefficients' estimates nearly so, and 60 x 10 intervals count as
    # independent: at a true level of .95 the mean has standard error sqrt(.95 x .05 / 600) = .0089. The band is
    # three of these wide on each side. Standard errors wrong by a sixth either way (.905, .978) fall outside.
    found = coverage(60, 0.2, "BF", seed=20240501, M=40, p=10)
    assert 0.923 <= found <= 0.977


@pytest.mark.slow
@pytest.mark.parametrize(
    ("abnormal", "corruption"),
    [pytest.param(0.0, None, id="clean"), pytest.param(0.2, "BF", id="BF"), pytest.param(0.2, "MP", id="MP")],
)
def test_intervals_cover_in_the_setting_of_the_paper(abnormal, corruption):
    # 200 x 50 intervals: Monte-Carlo standard error .0022. The band leaves room below for what the asymptotics
    # leave out: HC0 with p / N = .006, and the little weight that lambda = 2 leaves to the abnormal clients.
    found = coverage(200, abnormal, corruption, seed=7)
    assert 0.93 <= found <= 0.965
