"""aDFL's own parts: the start by trimmed scores, lambda by cross-validation, weights of the model of clients."""

import re
import warnings
from dataclasses import replace

import numpy as np
import pandas as pd
import pytest
import statsmodels.api as sm

import adfl_stats as ad
from adfl_stats.engine.equations import stacked_solutions, weighted_solution
from adfl_stats.engine.problem import Problem
from adfl_stats.errors import ConditionWarning, ConvergenceWarning, SelectionWarning
from adfl_stats.losses.client_sums import predictors_at
from adfl_stats.losses.families import Family
from adfl_stats.losses.glm import GLM
from adfl_stats.losses.point_sums import majority_misfits
from adfl_stats.methods import adaptive
from adfl_stats.methods.tuning import GRID, lambda_path
from adfl_stats.trust.weights import disputed


def problem_of(sim, family="gaussian", D=5):
    data = ad.ClientData.from_arrays(sim.X, sim.y, sim.client)
    return Problem(GLM(data, Family(family)), ad.networks.directed_circle(data.n_clients, D))


@pytest.fixture(scope="module")
def sim():
    return ad.simulate.paper_linear(abnormal=0.3, corruption="BF", seed=3, M=30, n=60, p=5)


@pytest.fixture(scope="module")
def model(sim):
    data = ad.ClientData.from_arrays(sim.X, sim.y, sim.client)
    return ad.DecentralizedGLM(data, ad.networks.directed_circle(30, 5))


@pytest.fixture(scope="module")
def res(model):
    return model.fit()


@pytest.fixture(scope="module")
def tuned(model):
    return model.fit(ad.ADFL(lam="cv", balance=True), solver="limit")


# ---- solutions of weighted equations ---------------------------------------------------------------


@pytest.mark.parametrize("family", ["gaussian", "binomial", "poisson"])
def test_solutions_are_weighted_pooled_fits(family):
    sim = ad.simulate.glm_design(family, M=8, n=(20, 60), p=4, seed=5)
    problem = problem_of(sim, family)
    rng = np.random.default_rng(1)
    total_weights = rng.uniform(0.0, 1.0, (8, 3))
    found = stacked_solutions(problem, total_weights, np.zeros((3, 4))).theta
    glm = {"gaussian": sm.families.Gaussian, "binomial": sm.families.Binomial, "poisson": sm.families.Poisson}[family]
    for r in range(3):
        rows = np.repeat(total_weights[:, r] / problem.glm.data.sizes, problem.glm.data.sizes)
        known = sm.GLM(problem.glm.data.y, problem.glm.data.X, glm(), freq_weights=rows).fit(tol=1e-14, maxiter=100)
        np.testing.assert_allclose(found[r], known.params, rtol=1e-7, atol=1e-9)


def test_units_of_the_columns_do_not_stop_newton():
    sim = ad.simulate.glm_design("poisson", M=8, n=40, p=3, seed=5)
    problem = problem_of(sim, "poisson")
    scale = np.array([1.0, 1e6, 1e-5])
    data = ad.ClientData.from_arrays(sim.X * scale, sim.y, sim.client)
    other = Problem(GLM(data, problem.glm.family), problem.network)
    plain = weighted_solution(problem, np.ones(8), np.zeros(3))
    np.testing.assert_allclose(weighted_solution(other, np.ones(8), np.zeros(3)) * scale, plain, rtol=1e-6)


@pytest.mark.parametrize("family", ["gaussian", "binomial", "poisson"])
def test_curvatures_of_another_problem_do_not_change_the_solution(family):
    sim = ad.simulate.glm_design(family, M=8, n=(20, 60), p=4, seed=5)
    data = ad.ClientData.from_arrays(sim.X * np.where(sim.client[:, None] < 4, 1.0, 20.0), sim.y, sim.client)
    problem = Problem(GLM(data, Family(family)), ad.networks.complete(8))
    first, second = np.repeat([[1.0, 0.0], [0.0, 1.0]], 4, axis=0).T
    known = weighted_solution(problem, second, np.zeros(4))
    other = stacked_solutions(problem, first[:, None], np.zeros((1, 4)))
    found = stacked_solutions(problem, second[:, None], other.theta, like=other)
    np.testing.assert_allclose(found.theta[0], known, rtol=1e-7, atol=1e-10)


@pytest.mark.parametrize("family", ["gaussian", "binomial"])
def test_coefficients_that_were_not_identified_before_are_found(family):
    sim = ad.simulate.glm_design(family, M=8, n=40, p=2, seed=5)
    # The second column is a dummy that the first half of the clients does not have.
    X = np.column_stack([sim.X[:, 0], (sim.client >= 4) * (np.arange(len(sim.y)) % 2)])
    problem = Problem(GLM(ad.ClientData.from_arrays(X, sim.y, sim.client), Family(family)), ad.networks.complete(8))
    before = stacked_solutions(problem, (np.arange(8) < 4)[:, None] * 1.0, np.zeros((1, 2)))
    assert (before.ranks.tolist(), before.theta[0, 1]) == ([1], 0.0)
    found = stacked_solutions(problem, np.ones((8, 1)), before.theta, like=before)
    np.testing.assert_allclose(found.theta[0], weighted_solution(problem, np.ones(8), np.zeros(2)), rtol=1e-9)


@pytest.mark.parametrize("family", ["binomial", "poisson"])
@pytest.mark.parametrize("far", [3.0, 10.0])
def test_a_run_from_far_away_spoils_no_other(family, far):
    sim = ad.simulate.glm_design(family, M=8, n=60, p=4, seed=5)
    problem = problem_of(sim, family)
    start = np.zeros((5, 4))
    start[2] = far
    found = stacked_solutions(problem, np.ones((8, 5)), start)
    known = weighted_solution(problem, np.ones(8), np.zeros(4))
    np.testing.assert_allclose(found.theta, np.tile(known, (5, 1)), rtol=1e-7, atol=1e-9)


def test_misfits_of_clients_that_do_not_count_are_not_looked_at():
    sim = ad.simulate.glm_design("poisson", M=8, n=60, p=3, seed=5)
    data = ad.ClientData.from_arrays(sim.X * np.where(sim.client[:, None] == 0, 1e6, 1.0), sim.y, sim.client)
    others, thetas = np.arange(8) > 0, np.stack([sim.theta0, 2.0 * sim.theta0])
    misfits = majority_misfits(data, Family("poisson"), thetas, np.stack([others, others], axis=1))
    assert misfits[0] < misfits[1] < 1e4


# ---- who is abnormal -------------------------------------------------------------------------------


def test_few_clients_are_no_dispute():
    flagged, other = np.zeros(40, dtype=bool), np.zeros(40, dtype=bool)
    other[:2] = True
    assert disputed(flagged, other) == 0
    other[2] = True
    assert disputed(flagged, other) == 3


# ---- the start -------------------------------------------------------------------------------------


@pytest.mark.parametrize("corruption", ["BF", "OOD", "MP"])
def test_trimmed_scores_leave_abnormal_clients_out(corruption):
    sim = ad.simulate.paper_linear(abnormal=0.4, corruption=corruption, seed=7, M=40, n=80, p=20)
    data = ad.ClientData.from_arrays(sim.X, sim.y, sim.client)
    found = ad.DecentralizedGLM(data, ad.networks.directed_circle(40, 5)).fit(ad.TrimmedScores(), solver="limit")
    weights = found.client_weights.to_numpy()
    assert set(weights) == {0.0, 1.0}
    assert weights.sum() == 21
    assert not weights[sim.abnormal].any()


@pytest.fixture(scope="module")
def minority():
    """Forty of a hundred clients with shifted covariates: they and a few others fit one another well."""
    sim = ad.study.draw(ad.study.grid("binomial", networks=["circle-30"], corruptions=["OOD"], shares=[0.4])[0], 5)
    data = ad.ClientData.from_arrays(sim.X, sim.y, sim.client)
    return sim, ad.DecentralizedGLM(data, ad.networks.directed_circle(100, 30), "binomial")


def test_a_coherent_minority_that_fits_as_well_is_left_out(minority):
    # By score statistics alone the 40 and 11 others look better than any majority of the 60.
    sim, model = minority
    found = model.fit(ad.TrimmedScores(), solver="limit")
    assert found.client_weights.to_numpy()[sim.abnormal].sum() == 0.0


@pytest.mark.parametrize("family", ["gaussian", "binomial"])
def test_a_minority_that_is_easy_to_predict_is_left_out(family):
    # Two fifths with hardly any noise, or nearly all labels zero: by their deviance they would be the best of all.
    rng = np.random.default_rng(3)
    client = np.repeat(np.arange(40), 60)
    X = rng.normal(size=(2400, 4))
    eta, quiet = X @ np.ones(4), client < 16
    if family == "gaussian":
        y = np.where(quiet, 0.05, 1.0) * rng.normal(size=2400) + np.where(quiet, 0.0, eta)
    else:
        y = (rng.random(2400) < np.where(quiet, 0.02, 1.0 / (1.0 + np.exp(-eta)))) * 1.0
    model = ad.DecentralizedGLM(ad.ClientData.from_arrays(X, y, client), ad.networks.complete(40), family)
    weights = model.fit(ad.TrimmedScores(), solver="limit").client_weights.to_numpy()
    assert weights[:16].sum() == 0.0


@pytest.mark.filterwarnings("ignore::adfl_stats.errors.AdflWarning")
@pytest.mark.parametrize("seed", range(4))
def test_small_sets_of_separated_clients_do_no_harm(seed):
    # Twenty rows a client for six strong effects: two clients are often separated, and their estimate is infinite.
    rng = np.random.default_rng(seed)
    client, X = np.repeat(np.arange(40), 20), rng.normal(size=(800, 6))
    y = (rng.random(800) < 1.0 / (1.0 + np.exp(-X @ (2.0 * rng.normal(size=6))))) * 1.0
    y[client < 12] = 1.0 - y[client < 12]
    model = ad.DecentralizedGLM(ad.ClientData.from_arrays(X, y, client), ad.networks.complete(40), "binomial")
    weights = model.fit(ad.TrimmedScores(), solver="limit").client_weights.to_numpy()
    assert weights[:12].sum() == 0.0


@pytest.mark.parametrize("solver", ["rounds", "limit"])
def test_a_client_in_other_units_is_named_where_its_numbers_overflow(solver):
    sim = ad.simulate.glm_design("poisson", M=12, n=60, p=3, seed=5)
    X = sim.X * np.where(sim.client[:, None] == 7, 3000.0, 1.0)
    model = ad.DecentralizedGLM(ad.ClientData.from_arrays(X, sim.y, sim.client), ad.networks.complete(12), "poisson")
    with pytest.raises(ValueError, match=r"the numbers of 1 client\(s\) overflow where the others agree: 7\. "):
        model.fit(ad.DFL(init=sim.theta0), solver=solver)


def test_a_client_with_huge_values_does_not_hide_the_others(sim):
    y = np.where(sim.client == np.flatnonzero(~sim.abnormal)[0], 1e16 * sim.y, sim.y)
    model = ad.DecentralizedGLM(ad.ClientData.from_arrays(sim.X, y, sim.client), ad.networks.complete(30))
    assert model.fit(solver="limit").client_weights.to_numpy()[sim.abnormal].sum() < 1e-20


@pytest.mark.parametrize("family", ["gaussian", "binomial", "poisson"])
def test_misfits_are_deviances_of_statsmodels(family):
    sim = ad.simulate.glm_design(family, M=8, n=(20, 60), p=4, seed=5)
    data = ad.ClientData.from_arrays(sim.X, sim.y, sim.client)
    chosen = np.random.default_rng(2).random((8, 2)) < 0.5
    thetas = np.stack([sim.theta0, 0.5 * sim.theta0])
    known = Family(family).statsmodels()
    rows = [slice(*data.offsets[m : m + 2]) for m in range(8)]
    each = np.array(
        [[known.deviance(data.y[s], known.link.inverse(data.X[s] @ theta)) for theta in thetas] for s in rows]
    )
    least = each.min(axis=1, keepdims=True)
    beyond = (chosen * (each - least)).sum(axis=0) / np.median(least[:, 0] / data.sizes)
    np.testing.assert_allclose(majority_misfits(data, Family(family), thetas, chosen), beyond, rtol=1e-9)


def test_start_does_not_depend_on_the_order_of_clients(sim):
    names = np.array([f"c{k}" for k in range(30)])[sim.client]
    order = np.argsort(-sim.client, kind="stable")
    net = ad.networks.complete(30, labels=sorted({*names}))
    fits = [
        ad.DecentralizedGLM(ad.ClientData.from_arrays(X, y, c), net).fit(ad.TrimmedScores(), solver="limit")
        for X, y, c in ((sim.X, sim.y, names), (sim.X[order], sim.y[order], names[order]))
    ]
    np.testing.assert_allclose(fits[0].params, fits[1].params, rtol=1e-7, atol=1e-9)


def test_compare_starts(model, sim):
    table = ad.compare_starts(model, {"zero": None, "truth": sim.theta0}, ad.ADFL(lam=3.0), solver="limit")
    assert list(table.index) == ["zero", "truth"]
    assert table.loc["truth", "start distance"] < table.loc["zero", "start distance"]
    assert (table["shift"].min(), table["misfit"].idxmin()) == (0.0, table["shift"].idxmin())
    with pytest.raises(TypeError, match="model is a dict; pass a DecentralizedGLM"):
        ad.compare_starts({})
    with pytest.raises(TypeError, match=r"starts is .*; pass a dict of names and starts"):
        ad.compare_starts(model, [1])
    with pytest.raises(TypeError, match="a method with `init` is wanted"):
        ad.compare_starts(model, method=3)


# ---- lambda ----------------------------------------------------------------------------------------


def test_path_scores_are_held_out_losses(sim):
    problem = problem_of(sim)
    weights = np.stack([np.ones(30), np.where(sim.abnormal, 0.0, 1.0)], axis=1)
    path = lambda_path(problem, weights, np.array([0.0, 1.0]), np.zeros(5), balance=False)
    # By hand: least squares on four fifths of the rows of the trusted clients, loss on the rest.
    expected = np.zeros((30, 2))
    place = np.tile(np.arange(60), 30)
    for r in range(2):
        for fold in range(5):
            train = (place % 5 != fold) & (np.repeat(weights[:, r], 60) > 0)
            theta = np.linalg.lstsq(problem.glm.data.X[train], problem.glm.data.y[train])[0]
            for m in range(30):
                rows = np.arange(60 * m, 60 * m + 60)[fold::5]
                expected[m, r] += 0.5 * np.sum((problem.glm.data.y[rows] - problem.glm.data.X[rows] @ theta) ** 2) / 60
    scores = np.sort(expected, axis=0)[:16].mean(axis=0)
    np.testing.assert_allclose(path.scores, scores, rtol=1e-6)
    assert path.best == 1
    assert path.trusted.tolist() == [30, 21]


def test_fit_tells_how_lambda_was_chosen(tuned, res, tmp_path):
    table = tuned.lambda_path
    assert len(table) == len(GRID)
    assert table["chosen"].sum() == 1
    assert table["score"].idxmin() == table["chosen"].idxmax()
    tuned.save(tmp_path / "fit.npz")
    assert ad.load(tmp_path / "fit.npz").lambda_path.equals(table)
    assert "(by cross-" in " ".join(str(tuned.summary()).split())
    # The model of clients needs no lambda.
    assert res.lambda_path is None


@pytest.mark.parametrize("measure", ["norm", "score"])
def test_tables_name_the_discrepancy_beside_the_score(model, sim, measure, tmp_path):
    """With one stage from a given start, the norms are those of the clients' gradients there, by hand."""
    begin = np.full(sim.X.shape[1], 0.3)
    res = model.fit(ad.ADFL(lam=1.5, stages=1, measure=measure, init=begin), step=0.05, rounds=5)
    table = res.clients()
    order = table.columns.tolist()
    assert order.index("score") < order.index("discrepancy") < order.index("weight")
    least = table["discrepancy"].min()
    np.testing.assert_allclose(table["weight"], np.exp(-1.5 * (table["discrepancy"] - least)), rtol=1e-12)
    if measure == "norm":
        rows = [sim.client == m for m in table.index]
        gradients = [sim.X[at].T @ (sim.X[at] @ begin - sim.y[at]) / at.sum() for at in rows]
        np.testing.assert_allclose(table["discrepancy"], np.linalg.norm(gradients, axis=1), rtol=1e-10)
    assert "discrepancy     score (df)" in str(res.summary())
    res.save(tmp_path / "fit")
    pd.testing.assert_frame_equal(ad.load(tmp_path / "fit").clients(), table)
    # Where the weights come from the model of clients, its score is what counts.
    assert "discrepancy" not in model.fit().clients()


def test_several_lambdas_are_compared(model):
    table = model.fit(ad.ADFL(lam=[3.0, 0.5]), solver="limit").lambda_path
    assert table["lam"].tolist() == [0.5, 3.0]
    assert model.fit(ad.ADFL(lam=3.0), solver="limit").lambda_path is None


def test_clients_too_small_to_hold_rows_out():
    sim = ad.simulate.paper_linear(abnormal=0.2, corruption="BF", seed=3, M=40, n=8, p=3)
    data = ad.ClientData.from_arrays(sim.X, sim.y, sim.client)
    found = ad.DecentralizedGLM(data, ad.networks.directed_circle(40, 5)).fit(ad.ADFL(lam="cv"), solver="limit")
    assert found.lambda_path is None


def test_lambda_path_with_clients_that_hold_no_row_out(monkeypatch):
    # Blocks this small leave the client of five rows alone in its batch.
    monkeypatch.setattr("adfl_stats.data.client_data.BLOCK_ROWS", 40)
    rng = np.random.default_rng(4)
    client = np.repeat(np.arange(4), [40, 5, 40, 40])
    X, y = rng.normal(size=(125, 2)), rng.integers(3, size=125)
    data = ad.ClientData.from_arrays(X, y, client)
    problem = Problem(GLM(data, Family("multinomial", outputs=2)), ad.networks.complete(4))
    path = lambda_path(problem, np.ones((4, 2)), np.array([0.0, 1.0]), np.zeros(4), balance=False)
    assert np.isfinite(path.scores).all()
    np.testing.assert_allclose(path.scores[0], path.scores[1], rtol=1e-9)


@pytest.mark.parametrize("family", [Family("poisson"), Family("multinomial", outputs=2)], ids=lambda f: f.name)
def test_linear_predictors_of_several_estimates(family):
    rng = np.random.default_rng(5)
    y = rng.integers(3, size=30).astype(float)
    data = ad.ClientData.from_arrays(rng.normal(size=(30, 3)), y, np.repeat([0, 1], 15), offset=rng.normal(size=30))
    thetas, rows = rng.normal(size=(4, 3 * family.outputs)), np.array([2, 7, 11])
    for found, theta in zip(predictors_at(data, family, thetas, rows), thetas, strict=True):
        known = data.X[rows] @ theta.reshape(family.outputs, 3).T + data.linear_offset[rows, None]
        np.testing.assert_allclose(found, known if family.outputs > 1 else known[:, 0], rtol=1e-12)


def test_lambda_path_plot(tuned, model):
    plt = pytest.importorskip("matplotlib.pyplot")
    ax = ad.plots.lambda_path(tuned, plt.figure().subplots())
    assert [text.get_text() for text in ax.get_xticklabels()] == [f"{lam:.3g}" for lam in tuned.lambda_path["lam"]]
    plt.close("all")
    with pytest.raises(ValueError, match="res has no lambda_path"):
        ad.plots.lambda_path(model.fit(ad.DFL(), solver="limit"))


# ---- the last stage, and weights that follow the data -------------------------------------------------


def test_default_fit_is_the_oracles(res, sim):
    rows = ~np.repeat(sim.abnormal, 60)
    oracle = sm.OLS(sim.y[rows], sim.X[rows]).fit()
    # A flipped client is hundreds of standard errors away; a normal one is normal with a probability near one.
    weights = res.client_weights.to_numpy()
    assert weights[sim.abnormal].max() < 1e-6
    assert weights[~sim.abnormal].min() > 0.98
    # The numerical error is below .05 standard errors; the weights' distance from one leaves a few hundredths.
    assert float((np.abs(res.params.to_numpy() - oracle.params) / oracle.bse).max()) < 0.06


def test_last_stage_takes_the_weights_of_the_model_of_clients(model, res, tuned):
    soft = model.fit(ad.ADFL(lam="cv", equalise=False), solver="limit").client_weights.to_numpy()
    assert ((soft > 0.0) & (soft < 1.0)).any()
    staged = model.fit(ad.ADFL(lam=2.0, equalise=True), solver="limit")
    # The stages only begin elsewhere; the Gaussian model of clients does not mind.
    for other in (staged, tuned):
        np.testing.assert_allclose(other.client_weights, res.client_weights, atol=1e-3)


@pytest.mark.parametrize(
    ("share", "wanted"),
    [
        (0.3, [r"3\d% of the rows were set aside, with 30 of 100 clients that .* \(weight below 0\.5\)"]),
        (
            0.46,
            [
                "46 of 100 clients do not fit the others, nearly half: which group is the majority depends on few",
                "46% of the rows were set aside, with 46 of 100 clients",
            ],
        ),
    ],
)
def test_what_selection_leaves_is_told(share, wanted):
    rng = np.random.default_rng(8)
    X = rng.normal(size=(100 * 40, 3))
    sign = np.where(np.arange(100) < round(100 * share), -1.0, 1.0)
    y = np.repeat(sign, 40) * (X @ np.ones(3)) + rng.normal(size=len(X))
    model = ad.DecentralizedGLM(
        ad.ClientData.from_arrays(X, y, np.repeat(np.arange(100), 40)), ad.networks.directed_circle(100, 5)
    )
    with pytest.warns(ad.SelectionWarning) as told:
        res = model.fit(solver="limit")
    messages = [str(warning.message) for warning in told]
    assert len(messages) == len(wanted)
    for text, message in zip(wanted, messages, strict=True):
        assert re.match(text, message)
        assert message[:50] in " ".join(res.summary().as_text().split())
    assert {warning.filename for warning in told} == {__file__}
    assert (res.client_weights.to_numpy() > 0.5).tolist() == (sign > 0).tolist()


def test_two_readings_that_fit_alike_are_told(monkeypatch):
    """Two groups with opposite coefficients; the second start is made to call the other one the majority."""
    rng = np.random.default_rng(8)
    X, client = rng.normal(size=(20 * 60, 2)), np.repeat(np.arange(20), 60)
    sign = np.where(np.arange(20) < 10, 1.0, -1.0)
    y = (rng.random(len(X)) < 1.0 / (1.0 + np.exp(-sign[client] * X.sum(axis=1)))) * 1.0
    model = ad.DecentralizedGLM(ad.ClientData.from_arrays(X, y, client), ad.networks.complete(20), "binomial")
    found, real = [], adaptive.fit_client_model

    def readings(problem, theta, heterogeneity="auto"):
        kept = (sign > 0) if not found else (sign < 0)
        one = replace(real(problem, theta, heterogeneity), weights=kept * 1.0, compared=False)
        found.append(replace(one, theta=weighted_solution(problem, kept * 1.0, np.zeros(2))))
        return found[-1]

    monkeypatch.setattr(adaptive, "fit_client_model", readings)
    with pytest.warns(ad.AdflWarning) as told:
        res = model.fit(solver="limit")
    messages = [warning for warning in told if "two models of the clients" in str(warning.message)]
    assert len(messages) == 1
    wanted = (
        "two models of the clients, begun from trimmed scores and pooled estimate, fit about equally well and disagree "
        "about 20 of 20 of them: the majority is not"
    )
    assert str(messages[0].message).startswith(wanted)
    assert issubclass(messages[0].category, ConvergenceWarning)
    assert messages[0].filename == __file__
    assert "differ about 20 of them: the data do not identify clearly" in " ".join(res.summary().as_text().split())


def test_random_effects_weights_need_the_model_of_clients(model):
    found = ad.DecentralizedGLM(model.data, model.network, weighting="random-effects")
    with pytest.raises(
        ValueError, match="weighting='random-effects' takes its weights from the model of clients, which"
    ):
        found.fit(ad.DFL())


def test_refresh_is_many_short_stages(model, sim):
    start = np.zeros(5)
    fresh = model.fit(ad.ADFL(lam=2.0, refresh=20, init=start), step=0.1, rounds=100)
    staged = model.fit(ad.ADFL(lam=2.0, stages=5, init=start), step=0.1, rounds=20)
    np.testing.assert_array_equal(fresh.client_params, staged.client_params)
    assert fresh.rounds == 100
    assert fresh.trace["round"].is_monotonic_increasing


# Half of these clients that agree best have responses which their covariates separate: no finite estimate.
@pytest.mark.parametrize(("M", "n", "p", "seed"), [(19, 1, 1, 0), (30, 4, 3, 3), (24, 8, 4, 19)])
def test_start_is_no_estimate_at_infinity(M, n, p, seed):
    rng = np.random.default_rng(seed)
    X = np.column_stack([np.ones(M * n), rng.normal(size=(M * n, p - 1))])
    y = (rng.random(M * n) < 1.0 / (1.0 + np.exp(-X @ np.linspace(-0.5, 2.5, p)))).astype(float)
    problem = Problem(
        GLM(ad.ClientData.from_arrays(X, y, np.repeat(np.arange(M), n)), Family("binomial")),
        ad.networks.directed_circle(M, 3),
    )
    found = ad.TrimmedScores().concentrate(problem, np.zeros((0, p)))
    theta, pooled = found.theta[np.argmin(found.misfit)], sm.GLM(y, X, family=sm.families.Binomial()).fit()
    assert (np.abs(theta - pooled.params) < 5.0 * pooled.bse).all()
    with warnings.catch_warnings():
        warnings.simplefilter("ignore", ConditionWarning)
        warnings.simplefilter("ignore", SelectionWarning)
        warnings.simplefilter("ignore", ConvergenceWarning)
        res = ad.DecentralizedGLM(problem.glm.data, problem.network, "binomial").fit()
    assert np.abs(res.params).max() < 20.0
