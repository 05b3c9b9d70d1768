"""Results for losses given by their gradients: least squares written in NumPy, beside statsmodels."""

import matplotlib as mpl
import numpy as np
import pandas as pd
import pytest
from numpy.testing import assert_allclose
from scipy import optimize
from statsmodels import api as sm

import adfl_stats as ad

mpl.use("Agg")

M, P = 9, 3
SIZES = np.array([30, 22, 41, 35, 28, 50, 33, 26, 39])
LABELS = pd.Index([f"site {k}" for k in range(M)])
CLIENT = np.repeat(np.arange(M), SIZES)
NETWORK = ad.networks.complete(M, labels=LABELS)


def rows(bad=()):
    rng = np.random.default_rng(8)
    X = np.column_stack([np.ones(SIZES.sum()), rng.normal(size=(SIZES.sum(), P - 1))])
    y = X @ [1.0, 0.5, -0.5] + rng.normal(size=len(X)) + 0.3 * rng.normal(size=M)[CLIENT]
    y[np.isin(CLIENT, bad)] *= -5.0
    return X, y


class LeastSquares:
    """Mean squared residuals over two."""

    M, P, labels, names = M, P, LABELS, ["const", "x1", "x2"]
    totals, counted = SIZES.astype(float), np.ones(M, dtype=bool)

    def __init__(self, bad=()):
        self.X, self.y = rows(bad)

    def start(self):
        return np.zeros((M, P))

    def slope(self, residual):
        return residual

    def gradients(self, theta, threads=1):
        out = np.empty_like(theta)
        for m in range(M):
            X, y = self.X[m == CLIENT], self.y[m == CLIENT]
            out[m] = self.slope(theta[m] @ X.T - y) @ X / len(y)
        return out


class WithCurvature(LeastSquares):
    def curvature(self, theta):
        return np.stack([self.X[m == CLIENT].T @ self.X[m == CLIENT] / SIZES[m] for m in range(M)])


class LogCosh(LeastSquares):
    """A loss that no family here has."""

    def slope(self, residual):
        return np.tanh(residual)

    def curvature(self, theta):
        weight = 1.0 / np.cosh(self.X @ theta - self.y) ** 2
        return np.stack(
            [(self.X[m == CLIENT].T * weight[m == CLIENT]) @ self.X[m == CLIENT] / SIZES[m] for m in range(M)]
        )


def test_gradients_alone_give_estimates_and_say_why_there_is_no_more():
    res = ad.DecentralizedModel(LeastSquares(), NETWORK).fit(ad.DFL(), step=0.1, rounds=2000)
    X, y = rows()
    assert_allclose(res.params, np.linalg.lstsq(X, y)[0], atol=1e-10)
    assert res.client_params.index.equals(LABELS)
    assert_allclose(res.client_params.mean(), res.params)
    assert_allclose(res.consensus, res.client_params.std(ddof=0), rtol=1e-10)
    assert np.abs(res.gradient).max() < 1e-10
    assert (res.client_weights == 1.0).all()
    assert res.bse.isna().all()
    assert res.conf_int().isna().all(axis=None)
    text = " ".join(res.summary().as_text().split())
    assert "Standard errors: not available, the objective gives gradients only." in text
    assert "Decentralised Model Results" in text
    assert res.trace["round"].iloc[-1] == res.rounds == 2000


def test_a_hessian_gives_the_standard_errors_of_statsmodels_by_client():
    X, y = rows()
    res = ad.DecentralizedModel(WithCurvature(), NETWORK).fit(ad.DFL(), step=0.1, rounds=3000)
    wanted = sm.OLS(y, X).fit(cov_type="cluster", cov_kwds={"groups": CLIENT, "use_correction": False}, use_t=True)
    assert_allclose(res.params, wanted.params, atol=1e-10)
    assert_allclose(res.cov_params(), M / (M - 1) * wanted.cov_params(), rtol=1e-8)
    assert res.df == M - 1
    scaled = wanted.tvalues / np.sqrt(M / (M - 1))
    assert_allclose(res.tvalues, scaled, rtol=1e-8)
    assert_allclose(res.pvalues, 2 * sm.stats.stattools.stats.t.sf(np.abs(scaled), M - 1), rtol=1e-7)
    low, high = res.conf_int(0.1).to_numpy().T
    assert_allclose((low + high) / 2, res.params)
    assert "by client (CR1)" in " ".join(res.summary().as_text().split())


def test_a_loss_of_ones_own_beside_a_general_optimiser():
    objective = LogCosh()
    X, y = rows()
    best = optimize.minimize(lambda t: np.log(np.cosh(X @ t - y)).sum(), np.zeros(P), method="BFGS", tol=1e-10)
    res = ad.DecentralizedModel(objective, NETWORK).fit(step=0.2, rounds=3000)
    assert_allclose(res.params, best.x, atol=1e-6)
    # The sandwich by client, from per-row scores summed by loops.
    residual = X @ res.params.to_numpy() - y
    H = (X.T / np.cosh(residual) ** 2) @ X
    sums = np.stack([np.tanh(residual[m == CLIENT]) @ X[m == CLIENT] for m in range(M)])
    wanted = np.linalg.inv(H) @ sums.T @ sums @ np.linalg.inv(H)
    assert_allclose(res.cov_params(), M / (M - 1) * wanted, rtol=1e-6)


def test_adaptive_weights_by_gradient_norm_set_bad_clients_aside():
    clean = ad.DecentralizedModel(LeastSquares(), NETWORK).fit(step=0.1, rounds=1000)
    method = ad.ADFL(lam=2.0, measure="norm", init=ad.Bridge("median"))
    res = ad.DecentralizedModel(LeastSquares(bad=[2, 5]), NETWORK).fit(method, step=0.1, rounds=1000)
    plain = ad.DecentralizedModel(LeastSquares(bad=[2, 5]), NETWORK).fit(step=0.1, rounds=1000)
    assert set(res.client_weights.index[res.client_weights < 0.1]) == {"site 2", "site 5"}
    assert np.linalg.norm(res.params - clean.params) < 0.2 * np.linalg.norm(plain.params - clean.params)
    assert "2 of 9 down-weighted" in res.summary().as_text()


def test_medians_have_no_standard_errors_even_with_a_hessian():
    res = ad.DecentralizedModel(WithCurvature(), NETWORK).fit(ad.Bridge("median"), step=0.1, rounds=50)
    assert res.bse.isna().all()
    assert "solves no common estimating equation" in res.without_errors


@pytest.mark.parametrize("objective", [LeastSquares, WithCurvature])
def test_file_brings_results_back(objective, tmp_path):
    res = ad.DecentralizedModel(objective(), NETWORK).fit(ad.DFL(), step=0.1, rounds=20)
    res.save(tmp_path / "fit")
    back = ad.load(tmp_path / "fit")
    assert type(back) is type(res)
    assert back.summary().as_text() == res.summary().as_text()
    pd.testing.assert_frame_equal(back.cov_params(), res.cov_params(), check_exact=True)
    pd.testing.assert_frame_equal(back.clients(), res.clients(), check_exact=True)
    pd.testing.assert_frame_equal(back.trace, res.trace, check_exact=True)
    assert repr(back) == repr(res) == "ObjectiveResults(DFL, 9 clients, P=3)"


def test_trace_is_drawn_with_rounds_or_with_passes():
    res = ad.DecentralizedModel(LeastSquares(), NETWORK).fit(step=0.1, rounds=20)
    assert ad.plots.trace(res).get_xlabel() == "round"
    X, y = rows()
    glm = ad.DecentralizedGLM(ad.ClientData.from_arrays(X, y, LABELS[CLIENT]), NETWORK)
    ax = ad.plots.trace(glm.fit(ad.DFL(), solver="limit"))
    words = " ".join([ax.get_xlabel(), *ax.get_legend_handles_labels()[1]])
    assert "pass of the solver over the data" in words
    assert "round" not in words


def test_the_network_may_have_another_order():
    shuffled = ad.networks.erdos_renyi(M, 0.6, seed=3, labels=list(LABELS[::-1]))
    res = ad.DecentralizedModel(LeastSquares(), shuffled).fit(step=0.05, rounds=5)
    assert res.network.labels.equals(LABELS)


class Bent(LeastSquares):
    def curvature(self, theta):
        return np.eye(P)


def changed(**parts):
    return type("Own", (LeastSquares,), parts)()


@pytest.mark.parametrize(
    ("parts", "error", "words"),
    [
        ({"M": "9"}, TypeError, "Own.M must be a whole number"),
        ({"P": 3.5}, TypeError, "Own.P must be a whole number"),
        ({"labels": list(LABELS)}, TypeError, "Own.labels is a list; a pandas Index"),
        ({"names": ["x", "x", "y"]}, ValueError, "Own.names has .* a name of its own"),
        ({"totals": list(SIZES)}, TypeError, "Own.totals is .* an array"),
        ({"totals": np.array(["a"] * M)}, TypeError, "Own.totals is .* an array"),
        ({"gradients": lambda self, theta: theta}, TypeError, "Own.gradients is called with theta and the number of"),
        ({"gradients": lambda self, theta, threads: theta.tolist()}, TypeError, "Own.gradients returns a list"),
    ],
)
def test_parts_of_an_objective_are_looked_at_before_a_fit(parts, error, words):
    with pytest.raises(error, match=words):
        ad.DecentralizedModel(changed(**parts), NETWORK)


def test_a_hessian_that_is_not_finite_gives_no_standard_errors():
    objective = changed(curvature=lambda self, theta: np.full((M, P, P), np.nan))
    res = ad.DecentralizedModel(objective, NETWORK).fit(step=0.1, rounds=5)
    assert res.bse.isna().all()
    assert "Hessian at the estimate is not finite" in str(res.summary())


@pytest.mark.parametrize(
    ("call", "error", "words"),
    [
        (lambda: ad.DecentralizedModel(LeastSquares(), np.eye(9)), TypeError, "network is a ndarray"),
        (lambda: ad.DecentralizedModel(LeastSquares(), ad.networks.complete(M)), ValueError, "the same clients"),
        (lambda: ad.DecentralizedModel(LeastSquares(), NETWORK, weighting="rows"), ValueError, "weighting"),
        (lambda: ad.DecentralizedModel(LeastSquares(), NETWORK).fit(ad.DFL, step=0.1), TypeError, "method is"),
        (lambda: ad.DecentralizedModel(LeastSquares(), NETWORK).fit(step=0.1, attack="x"), TypeError, "attack is 'x'"),
        (lambda: ad.DecentralizedModel(LeastSquares(), NETWORK).fit(step=-1.0), ValueError, "step"),
        (lambda: ad.DecentralizedModel(LeastSquares(), NETWORK).fit(ad.ADFL(), step=0.1), ValueError, "gradients only"),
        (lambda: ad.DecentralizedModel(Bent(), NETWORK).fit(step=0.1, rounds=2), ValueError, r"\(9, 3, 3\) is wanted"),
    ],
)
def test_bad_arguments_are_named(call, error, words):
    with pytest.raises(error, match=words):
        call()


def test_clients_that_lost_their_weight_are_flagged_and_drawn():
    model = ad.DecentralizedModel(LeastSquares(bad=[2, 5]), NETWORK)
    res = model.fit(ad.ADFL(lam=4.0, init=ad.Bridge("median")), step=0.1, rounds=200)
    table = res.clients()
    assert table.index[table["flagged"]].tolist() == ["site 2", "site 5"]
    ax = ad.plots.clients(res)
    assert ax.get_ylabel() == "norm of the gradient"
    assert [drawn.get_label() for drawn in ax.collections] == ["trusted (7)", "down-weighted (2)"]
    heights = np.concatenate([drawn.get_offsets()[:, 1] for drawn in ax.collections])
    assert_allclose(np.sort(heights), np.sort(table["gradient"]))
    assert ad.plots.network(res, by="flag").get_title()
    assert "<table" in res._repr_html_()
    with pytest.raises(TypeError, match="need the scores and curvatures"):
        ad.screen(res)


def test_what_left_a_client_is_counted(tmp_path):
    """P numbers to each neighbour in every round, whatever the local steps; four bytes each in single precision."""
    res = ad.DecentralizedModel(LeastSquares(), NETWORK).fit(ad.DFL(local_steps=4), step=0.05, rounds=25, lines=5)
    sent = res.communication().to_frame()
    told = sent[sent["to"] == "each neighbour"].iloc[0]
    assert told[["phase", "messages", "numbers", "bytes"]].tolist() == ["rounds", 25, 25 * P, 8 * 25 * P]
    # What is looked at while rounds run is a phase of its own; before them the mean number of rows is found.
    assert set(sent["phase"]) == {"start", "rounds", "trace"}
    assert sent.loc[sent["phase"] == "start", ["messages", "numbers"]].to_numpy().tolist() == [[2, 2]]
    assert res.communication().in_words() in " ".join(str(res.summary()).split())
    res.save(tmp_path / "fit")
    assert ad.load(tmp_path / "fit").communication().to_frame().equals(sent)
    single = ad.Losses(lambda m, t, rng: t - m, np.ones(M), np.zeros(P), labels=LABELS, precision="float32")
    table = ad.DecentralizedModel(single, NETWORK).fit(step=0.1, rounds=25).communication().to_frame()
    assert table.loc[table["to"] == "each neighbour", "bytes"].item() == 4 * 25 * P
    stages = ad.DecentralizedModel(LeastSquares(), NETWORK).fit(ad.ADFL(lam=1.0, stages=2), step=0.05, rounds=25)
    assert (
        stages.communication().to_frame().query("to == 'each neighbour'")["messages"].sum()
        == stages.record.total_rounds
    )
