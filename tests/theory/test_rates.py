"""Rates: the exact factor against spectral radii and runs, the paper's bound, words and errors."""

import time
from dataclasses import replace
from types import SimpleNamespace

import numpy as np
import pandas as pd
import pytest
from dense_iteration import FAMILIES, NETWORKS, OMEGA, STEP, Dense, M, model_of, simulated
from numpy.testing import assert_allclose
from scipy import linalg

import adfl_stats as ad
from adfl_stats.engine.equations import weighted_solution
from adfl_stats.theory import contraction
from adfl_stats.theory.contraction import spectral_radius
from adfl_stats.theory.linearised import Linearised
from adfl_stats.theory.outlook import BIAS_SHARE
from adfl_stats.theory.trace_rate import observed_factor


def iteration_of(model, step, omega=None, balance=False, metric=None):
    problem = model.rows.problem(model.network, model.data)
    steps = problem.steps(np.ones(problem.M) if omega is None else omega, balance=balance)
    point = weighted_solution(problem, steps.total_weights, problem.objective.start().mean(axis=0))
    return Linearised(problem, steps, point, step, metric)


# ------------------------------------------------------------------ the exact factor


@pytest.mark.parametrize("lazy", [False, True])
def test_half_of_the_clients_hardly_move_on_a_ring(lazy):
    """Common modes are not resolved there, and must not be preferred to an eigenvalue that converged."""
    M = 80
    ring = np.roll(np.eye(M), 1, axis=1) + np.roll(np.eye(M), -1, axis=1) + lazy * np.eye(M)
    sim, net = simulated("binomial", sizes=[30] * M, p=3), ad.Network.from_adjacency(ring)
    omega = np.where(np.arange(M) < M // 2, 1e-4, 1.0)
    model = model_of(sim, net)
    expected = Dense(sim, net, 0.5, omega).radius
    found = spectral_radius(iteration_of(model, 0.5, omega), dense_up_to=0)
    assert expected < 1.0
    assert_allclose(1.0 - found.value, 1.0 - expected, rtol=1e-5)
    assert found.trouble == ""


@pytest.mark.parametrize("network", NETWORKS)
@pytest.mark.parametrize("family", FAMILIES)
@pytest.mark.parametrize(("omega", "balance"), [(None, False), (OMEGA, False), (OMEGA, True)])
def test_exact_factor_is_the_spectral_radius(network, family, omega, balance):
    sim, net = simulated(family), NETWORKS[network]
    model = model_of(sim, net)
    expected = Dense(sim, net, STEP, omega, balance).radius
    res = model.fit(ad.DFL(weights=omega, balance=balance), step=STEP, rounds=60)
    rates = model.rates(res)
    assert_allclose(rates.exact, expected, rtol=1e-8)
    assert rates.trouble == ""
    assert rates.place == ("Proposition 1" if omega is None else "Theorem 2")
    # The way of large problems, on the small one.
    found = spectral_radius(iteration_of(model, STEP, omega, balance), dense_up_to=0)
    assert_allclose(found.value, expected, rtol=1e-8)


@pytest.mark.parametrize("family", ["gaussian", "poisson"])
def test_preconditioned_fits_have_their_step_in_their_own_coordinates(family):
    sim, net = simulated(family, intercept=True), NETWORKS["circle"]
    model = model_of(sim, net)
    res = model.fit(ad.DFL())
    rates = model.rates(res)
    assert rates.preconditioned
    metric = model.rows.problem(net, model.data).coordinates(res.record.start.centre)[0]
    dense = Dense(sim, net, res.step, metric=metric)
    assert_allclose(rates.exact, dense.radius, rtol=1e-8)
    # Condition 3 is about the user's coordinates.
    assert_allclose(rates.lambda_min, min(np.linalg.eigvalsh(H)[0] for H in Dense(sim, net, 1.0).H), rtol=1e-3)
    # In these coordinates all P modes of the Gaussian nearly coincide.
    found = spectral_radius(iteration_of(model, res.step, metric=metric), dense_up_to=0)
    assert_allclose(found.value, dense.radius, rtol=1e-8)


@pytest.mark.parametrize(
    ("network", "step"),
    [
        (ad.networks.directed_circle(70, 5), 0.05),
        (ad.networks.directed_circle(70, 5), 5e-4),
        (ad.networks.directed_circle(70, 2), 0.1),
        (ad.networks.erdos_renyi(70, 0.1, seed=1), 0.01),
        (ad.networks.central_client(70), 0.01),
    ],
    ids=["circle", "circle, small step", "narrow circle", "erdos-renyi", "hub"],
)
def test_sparse_and_dense_ways_agree(network, step):
    sim = simulated(sizes=[30] * network.n_clients, p=5, covariates="heterogeneous")
    iteration = iteration_of(model_of(sim, network), step)
    dense = np.abs(np.linalg.eigvals(iteration.dense())).max()
    assert_allclose(spectral_radius(iteration, dense_up_to=0).value, dense, rtol=1e-8)


def test_rows_and_matrices_give_the_same_products():
    # Fewer rows than columns on some clients: products go over the rows.
    sim = simulated("binomial", sizes=[4, 9, 5, 12, 6, 7], p=8)
    net = ad.networks.directed_circle(6, 2)
    with pytest.warns(ad.ConditionWarning):
        model = model_of(sim, net)
    rates = model.rates(model.fit(ad.DFL(), step=0.5, rounds=50))
    assert_allclose(rates.exact, Dense(sim, net, 0.5).radius, rtol=1e-8)
    assert rates.lambda_min == 0.0
    assert np.isnan(rates.bound)
    assert "no bound: a client's Hessian is rank-deficient" in rates.bound_note
    assert rates.paper_floor == np.inf


def test_multinomial_factor_matches_differences_of_the_recursion():
    rng = np.random.default_rng(4)
    X = rng.standard_normal((6 * 50, 2))
    y = rng.integers(0, 3, len(X)).astype(float)
    data = ad.ClientData.from_arrays(X, y, np.repeat(np.arange(6), 50))
    model = ad.DecentralizedGLM(data, ad.networks.directed_circle(6, 2), "multinomial")
    iteration = iteration_of(model, 0.3)
    theta, reach = np.tile(iteration.point, (6, 1)).ravel(), 1e-5
    columns = [
        (iteration.advance((theta + e).reshape(6, 4), 1) - iteration.advance((theta - e).reshape(6, 4), 1)).ravel()
        for e in reach * np.eye(24)
    ]
    assert_allclose(iteration.dense(), np.array(columns).T / (2 * reach), atol=1e-9)
    expected = np.abs(np.linalg.eigvals(iteration.dense())).max()
    assert_allclose(spectral_radius(iteration, dense_up_to=0).value, expected, rtol=1e-8)


def test_slower_modes_elsewhere_are_found():
    # Two groups that hardly hear each other; one takes no steps of its own and follows at the pace of the link.
    group = np.full((15, 15), 1.0 / 15)
    W = linalg.block_diag(group, group)
    W[0, :15] *= 1 - 1e-3
    W[15, 15:] *= 1 - 1e-3
    W[0, 15] = W[15, 0] = 1e-3
    omega = np.repeat([1.0, 0.0], 15)
    sim, net = simulated(sizes=[20] * 30), ad.Network.from_weights(W)
    expected = Dense(sim, net, 0.1, omega).radius
    assert expected > 0.9999
    assert_allclose(
        spectral_radius(iteration_of(model_of(sim, net), 0.1, omega), dense_up_to=0).value, expected, rtol=1e-8
    )


def test_an_unresolved_factor_says_so(monkeypatch):
    sim, net = simulated(), NETWORKS["circle"]
    iteration = iteration_of(model_of(sim, net), STEP)
    monkeypatch.setattr(contraction, "_arnoldi", lambda iteration: None)
    found = spectral_radius(iteration, dense_up_to=0)
    assert "Arnoldi's iteration did not converge" in found.trouble
    assert_allclose(found.value, Dense(sim, net, STEP).radius, rtol=1e-6)


# ------------------------------------------------------------------ what runs do


@pytest.mark.parametrize("family", FAMILIES)
@pytest.mark.parametrize("network", ["circle", "erdos-renyi", "fixed degree"])
def test_long_runs_shrink_by_the_exact_factor(family, network):
    model = model_of(simulated(family), NETWORKS[network])
    rates = model.rates(model.fit(ad.DFL(), step=STEP, rounds=150))
    iteration = iteration_of(model, STEP)
    limit, reached = iteration.limit()
    assert reached
    rounds = int(rates.rounds(1e-6))
    near = iteration.advance(limit + 1e-2, rounds)
    far = iteration.advance(near, rounds // 5)
    ratio = (np.linalg.norm(far - limit) / np.linalg.norm(near - limit)) ** (1.0 / (rounds // 5))
    assert_allclose(np.log(ratio), np.log(rates.exact), rtol=0.03)
    # The trace and the distances say the same, with faster modes still in them.
    assert_allclose(np.log(rates.fitted), np.log(rates.exact), rtol=0.15)
    distance = rates.distances["distance"].to_numpy()
    assert distance[-1] < 1e-5 * distance[0]


def test_trace_factor_ignores_the_floor_and_wants_three_points():
    model = model_of(simulated(), NETWORKS["circle"])
    long, longer = (model.rates(model.fit(ad.DFL(), step=STEP, rounds=rounds)) for rounds in (200, 2000))
    assert_allclose(longer.fitted, long.exact, rtol=0.02)
    short = model.rates(model.fit(ad.DFL(), step=STEP, rounds=2))
    assert np.isnan(short.fitted)
    assert np.isnan(short.rounds(0.1, "fitted"))
    assert short.to_frame().loc["fitted", "note"] == "no step has two lines of trace 10 or more rounds apart"


@pytest.mark.parametrize("family", FAMILIES)
def test_trace_factor_of_fits_that_cut_the_step(family):
    """The last phase has one line; an earlier one shows the factor at its own, larger step."""
    sim, net = simulated(family, sizes=[80] * 40, p=4), ad.networks.erdos_renyi(40, 0.3, seed=2)
    model = model_of(sim, net)
    res = model.fit(ad.DFL(), tolerance=0.02, solver="rounds")
    rates = model.rates(res)
    last = res.trace[res.trace["step"] == res.step]
    assert len(last) < 3
    assert rates.fitted_step > res.step
    metric = model.rows.problem(net, model.data).coordinates(res.record.start.centre)[0]
    there = Dense(sim, net, rates.fitted_step, metric=metric).radius
    assert_allclose(np.log(rates.fitted), np.log(there), rtol=0.15)
    assert f"at step {rates.fitted_step:.4g}, where the exact factor is" in rates.fitted_note
    assert rates.rounds(1e-3, "fitted") > 0


def trace_of(lines, theta=1.0):
    trace = pd.DataFrame(lines, columns=["round", "step", "moved"]).assign(run=0)
    return observed_factor(SimpleNamespace(solver="rounds", trace=trace, theta=np.full((2, 1), theta)))


def test_trace_without_a_factor_says_why():
    assert trace_of([(10, 0.1, 1e-15), (20, 0.1, 1e-16)]).note.startswith("all moves in the trace are rounding errors")
    assert trace_of([(100, 0.1, 1.0), (200, 0.05, 0.1)]).note.startswith("no step has two lines of trace")
    grows = trace_of([(100, 0.1, 1.0), (200, 0.1, 2.0)])
    assert grows.note == "the clients' moves do not shrink at any constant step"
    assert np.isnan(grows.value)
    # Of two phases the longer one that falls counts, by its rounds; the same step after a cut is another phase.
    found = trace_of(
        [(10, 0.4, 1.0), (20, 0.4, 0.5), (40, 0.1, 0.4), (140, 0.1, 0.1), (540, 0.2, 1.0), (940, 0.2, 2.0)]
    )
    assert (found.value, found.step) == (pytest.approx(0.25**0.01), 0.1)
    assert found.note == "from the trace of rounds 40 to 140"


@pytest.mark.parametrize("seed", range(2))
@pytest.mark.parametrize("network", NETWORKS)
def test_the_papers_bound_is_above_the_exact_factor(seed, network):
    for family in FAMILIES:
        sim = simulated(family, seed=seed, sizes=[40 + 5 * seed] * M, covariates="heterogeneous")
        model = model_of(sim, NETWORKS[network])
        for step in (0.02, 0.1):
            for omega in (None, OMEGA):
                rates = model.rates(model.fit(ad.DFL(weights=omega), step=step, rounds=3))
                if model.network.rho >= 1.0:
                    assert np.isnan(rates.bound)
                    continue
                assert rates.exact < rates.bound < 1.0
                assert_allclose(rates.bound, 1 - step * rates.omega_good * rates.lambda_min / 8)


def test_rounds_follow_from_the_factor():
    model = model_of(simulated(), NETWORKS["circle"])
    rates = model.rates(model.fit(ad.DFL(), step=STEP, rounds=100))
    needed = rates.rounds(1e-3)
    assert rates.exact**needed <= 1e-3 < rates.exact ** (needed - 1)
    assert rates.rounds(1e-3, "bound") > needed
    assert rates.to_frame().loc["exact", "rounds"] == needed


# ------------------------------------------------------------------ size, shape, words


@pytest.mark.parametrize("network", ["fixed degree", "circle"])
def test_large_sparse_problems_take_seconds(monkeypatch, network):
    def refuse(self):
        raise AssertionError("a dense matrix of the stacked problem")

    monkeypatch.setattr(Linearised, "dense", refuse)
    sim = ad.simulate.glm_design(M=5000, n=10, p=3, seed=1)
    mixes = network == "fixed degree"
    model = model_of(sim, ad.networks.fixed_degree(5000, 12, seed=1) if mixes else ad.networks.directed_circle(5000, 5))
    res = model.fit(ad.DFL(), step=0.05, rounds=100)
    begin = time.process_time()
    rates = model.rates(res)
    bias = model.advise().bias if mixes else 0.0
    assert time.process_time() - begin < 40.0
    # On the circle thousands of modes lie within 1e-6 of one another, which no iteration tells apart.
    assert (rates.trouble == "") == mixes
    assert_allclose(np.log(rates.fitted), np.log(rates.exact), rtol=0.1)
    assert bias <= BIAS_SHARE * 0.05


def test_rates_tell_their_story():
    model = model_of(simulated(), NETWORKS["circle"])
    rates = model.rates(model.fit(ad.DFL(), step=STEP, rounds=100))
    text = str(rates)
    for words in ("in the paper's coordinates", "Proposition 1; omega-bar^G = 1", "Error floor", "imbalance"):
        assert words in text
    assert repr(rates) == text
    assert list(rates.to_frame().columns) == ["factor", "rounds", "place", "note"]
    assert isinstance(rates.distances, pd.DataFrame)
    assert "in other coordinates than the paper's" in str(model.rates(model.fit(ad.DFL())))
    advice = model.advise()
    assert "Use step=" in str(advice)
    assert advice.to_frame().loc["bias of the step", "status"] == "holds"


def test_rates_of_adaptive_and_loaded_fits(tmp_path):
    model = model_of(simulated("poisson", intercept=True), NETWORKS["circle"])
    res = model.fit(ad.ADFL())
    rates = model.rates(res)
    assert rates.place == "Theorem 2" or (res.client_weights == 1).all()
    assert rates.exact < rates.bound
    res.save(tmp_path / "fit.npz")
    assert model.rates(ad.load(tmp_path / "fit.npz")).exact == rates.exact


def test_plot_has_three_lines_beside_the_distances():
    pytest.importorskip("matplotlib").use("Agg")
    from matplotlib import pyplot

    model = model_of(simulated(), NETWORKS["circle"])
    rates = model.rates(model.fit(ad.DFL(), step=STEP, rounds=100))
    ax = ad.plots.rates(rates)
    observed, exact, fitted, bound = (line.get_ydata() for line in ax.lines)
    assert_allclose(fitted[-1] / fitted[-2], rates.fitted)
    assert_allclose(observed, rates.distances["distance"])
    assert_allclose(exact[-1], observed[-1])
    # No farther than the trace that it was fitted to, where it meets the distances.
    reach = ax.lines[2].get_xdata()
    assert reach[-1] == min(rates.fitted_last, rates.distances["round"].max())
    assert_allclose(fitted[-1], observed[len(reach) - 1])
    assert (bound >= observed * (1 - 1e-12)).all()
    assert ax.get_yscale() == "log"
    again = ad.plots.rates(rates, ax=ax)
    assert again is ax
    pyplot.close("all")


def test_data_without_noise_are_recognised():
    # All gradients are rounding errors there, and must not be held against each other digit by digit.
    sim = simulated()
    sim = replace(sim, y=1e3 * sim.X.sum(axis=1))
    model = model_of(sim, NETWORKS["circle"])
    res = model.fit(ad.DFL(), step=STEP, rounds=400)
    shuffled = ad.ClientData.from_arrays(sim.X.copy(order="F"), sim.y, sim.client)
    assert ad.DecentralizedGLM(shuffled, NETWORKS["circle"]).rates(res).exact == model.rates(res).exact


def test_errors_name_what_is_wrong():
    sim = simulated()
    model = model_of(sim, NETWORKS["circle"])
    res = model.fit(ad.DFL(), step=STEP, rounds=20)
    with pytest.raises(TypeError, match="res is a str; pass the results of a fit of this model"):
        model.rates("res")
    with pytest.raises(ValueError, match=r"res was fitted by BRIDGE-M.*rates are for fits by ad\.DFL or ad\.ADFL"):
        model.rates(model.fit(ad.Bridge("median"), step=STEP, rounds=20))
    with pytest.raises(ValueError, match=r"res was fitted by DFL under attack, which is not a weighted mean"):
        model.rates(model.fit(ad.DFL(), step=STEP, rounds=20, attack=ad.attacks.SignFlip([1])))
    assert model.rates(model.fit(ad.Oracle([1]), step=STEP, rounds=20)).exact < 1
    with pytest.raises(ValueError, match=r"res is a fit of another model .*use the model that was fitted"):
        model_of(sim, NETWORKS["erdos-renyi"]).rates(res)
    with pytest.raises(
        ValueError, match=r"res is a fit of another model \(12 clients, 3 coefficients; this one has 12"
    ):
        model_of(simulated(p=4), NETWORKS["circle"]).rates(res)
    # The same shape, labels and influence; other weights, or other data.
    with pytest.raises(ValueError, match=r"res is a fit over another network: its W differs.*use the model that was"):
        model_of(sim, NETWORKS["circle"].lazy(0.5)).rates(res)
    with pytest.raises(ValueError, match=r"res is a fit of other data or of another family: the clients' gradients"):
        model_of(simulated(seed=1), NETWORKS["circle"]).rates(res)
    nudged = replace(sim, y=sim.y + 1e-3 * (np.arange(len(sim.y)) == 0))
    with pytest.raises(ValueError, match=r"res is a fit of other data"):
        model_of(nudged, NETWORKS["circle"]).rates(res)
    rates = model.rates(res)
    with pytest.raises(ValueError, match=r"accuracy is 1; it must lie in \(0, 1\)"):
        rates.rounds(1.0)
    with pytest.raises(ValueError, match="by is 'paper'; choose one of 'exact', 'fitted', 'bound'"):
        rates.rounds(0.1, by="paper")
    with pytest.raises(TypeError, match=r"method is Bridge.*pass ad\.DFL\(\) or ad\.ADFL\(\)"):
        model.advise(method=ad.Bridge("median"))
    with pytest.raises(ValueError, match=r"tolerance is 0; it must lie in \(0, inf\)"):
        model.advise(0.0)


def test_rates_do_not_fit_the_model_of_clients(monkeypatch):
    """What the rates need of the clients are their weights; the model of clients takes longer than all the rest."""
    model = model_of(simulated(), NETWORKS["circle"])
    res = model.fit(ad.DFL(), step=STEP, rounds=30)
    monkeypatch.setattr(
        "adfl_stats.inference.at_estimate.model_at", lambda *parts: pytest.fail("clients were modelled")
    )
    assert 0.0 < model.rates(res).exact < 1.0
