"""How a client that follows the model varies: moderated noise levels, and tails of its score with known truth."""

import numpy as np
import pytest

import adfl_stats as ad
from adfl_stats.simulate.field_designs import FieldCell, draw
from adfl_stats.trust.null import _prior


def test_smyths_prior_is_recovered():
    """Noise levels 2 F(df, d0): the model that the prior is defined by."""
    rng = np.random.default_rng(1)
    for d0 in (3.0, 8.0, 30.0):
        df = rng.integers(10, 40, 20_000).astype(float)
        typical, prior = _prior(2.0 * rng.f(df, d0), df)
        # Quartiles of 20 000 logarithms vary by 2 %; their distance is not quite that of a normal variable with
        # the variance of log F, which makes d0 up to a quarter too large.
        assert typical == pytest.approx(2.0, rel=0.06)
        assert prior == pytest.approx(d0, rel=0.3)


def test_equal_noise_levels_are_pooled():
    rng = np.random.default_rng(2)
    df = np.full(200, 25.0)
    levels = 3.0 * rng.chisquare(df) / df
    typical, prior = _prior(levels, df)
    # Quartiles of 200 vary; half of the time the spread is below zero and the prior infinite.
    assert prior > 100.0
    assert typical == pytest.approx(3.0, rel=0.05)
    assert _prior(np.full(200, 3.0), df) == (pytest.approx(3.0), np.inf)
    # Seven levels say nothing of their spread, however far apart.
    few = np.array([1.0, 2.0, 4.0, 8.0, 3.0, 5.0, 6.0])
    typical, prior = _prior(few, df[:7])
    assert prior == np.inf
    # A few clients with huge residuals do not raise the typical level, nor lower the prior to what excuses them.
    levels[:20] *= 1e6
    typical, prior = _prior(levels, df)
    assert typical == pytest.approx(3.0, rel=0.1)
    assert prior > 20.0


CELLS = {
    "normal": FieldCell("normal", M=40, n=40),
    "lognormal": FieldCell("lognormal", M=40, n=30, noise="lognormal"),
    "exponential": FieldCell("exponential", M=40, n=40, noise="exponential"),
    "rare": FieldCell("rare", "binomial", M=40, n=300, rare=True),
    "client": FieldCell("client", M=40, n=40, noise="client"),
    "hetero": FieldCell("hetero", M=40, n=60, noise="hetero"),
    "counts": FieldCell("counts", "poisson", M=40, n=60, counts="nb"),
}
SETS = 25


def p_values(cell):
    found = []
    for k in range(SETS):
        sim = draw(cell, k)
        model = ad.DecentralizedGLM(
            ad.ClientData.from_arrays(sim.X, sim.y, sim.client), ad.networks.complete(cell.M), cell.family
        )
        res = model.fit(ad.DFL(), solver="limit", heterogeneity="none")
        found.append(res.clients()["p_value"].to_numpy())
    return np.concatenate(found)


@pytest.mark.filterwarnings("ignore::adfl_stats.errors.AdflWarning")
@pytest.mark.parametrize("cell", CELLS.values(), ids=CELLS)
def test_p_values_of_normal_clients(cell):
    """Shares below a level, of 1000 p-values: at most four binomial standard errors from it."""
    p = p_values(cell)
    for level in (0.5, 0.1, 0.05, 0.01):
        assert np.mean(p < level) == pytest.approx(level, abs=4 * np.sqrt(level * (1 - level) / len(p)))
