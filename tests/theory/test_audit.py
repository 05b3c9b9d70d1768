"""The report on a fit: its lines, words and stand-ins, what files keep, and what the user may pass."""

import math
import re

import numpy as np
import pandas as pd
import pytest
from by_hand import Raw
from small_fits import LAM, ROUNDS, STEP, linear_fit

import adfl_stats as ad
from adfl_stats._client_sets import abnormal_mask
from adfl_stats.theory import Constants

NAMES = [
    "parameter space", "independent rows", "varrho", "lambda_min", "C_max", "L_max", "rho", "flat_min",
    "varrho < epsilon", "V", "||flat_A|| B", "MSE", "varrho^2",
    "step + SE(W) < epsilon", "delta_0 < epsilon", "rate", "floor", "step + SE(W)", "distance from theta_0",
    "||theta*(0) - I* theta_A|| <= epsilon", "Err1", "Err2", "Err3", "Err1 + Err2 + Err3", "limit",
    "oracle (1)", "oracle (2)", "oracle (3)", "M / n^4",
    "lambda", "omega_A", "Delta_2^2", "1 / omega_G", "bound", "start: centre", "start: spread", "bound from the start",
]  # fmt: skip
ON_ABNORMAL = [
    "varrho", "flat_min", "varrho < epsilon", "||flat_A|| B", "MSE", "varrho^2", "rate", "floor",
    "distance from theta_0", "Err1", "Err2", "Err3", "Err1 + Err2 + Err3", "limit", "oracle (1)", "oracle (2)",
    "oracle (3)", "omega_A", "Delta_2^2", "1 / omega_G", "bound",
]  # fmt: skip
ON_THETA0 = [
    "flat_min", "||flat_A|| B", "MSE", "distance from theta_0", "Err2", "Err3", "Err1 + Err2 + Err3", "Delta_2^2",
    "1 / omega_G", "bound", "start: centre", "bound from the start",
]  # fmt: skip
STAND_IN_SET, STAND_IN_TRUTH = "The down-weighted clients stand in", "The estimate stands in for theta0."


@pytest.fixture(scope="module")
def report(res, sim):
    return res.check(sim.abnormal, sim.theta0)


def test_constants_by_hand(res, sim, unbalanced):
    found, hand = Constants.of(res.record, res.data, sim.abnormal, sim.theta0), Raw.of(sim, unbalanced)
    theta, omega = res.client_params.to_numpy(), res.client_weights.to_numpy()
    centre = theta.mean(axis=0)
    start = linear_fit(sim, unbalanced, ad.DFL(), step=STEP, rounds=ROUNDS).client_params.to_numpy()
    scores = hand.scores(centre)
    wanted = {
        "mixing": hand.mixing,
        "se": hand.se,
        "rho": hand.rho,
        "lambda_min": hand.lambda_min(centre),
        "varrho": 0.25,
        "score_moment": max(np.mean(np.linalg.norm(s - s.mean(axis=0), axis=1) ** 8) ** 0.125 for s in scores),
        "L_max": hand.L_max,
        "variance": hand.variance(omega, centre),
        "oracle_distance": np.linalg.norm(centre - sim.theta0),
        "start_distance": np.linalg.norm(start.mean(axis=0) - sim.theta0),
        "start_spread": start.var(axis=0).sum(),
        "consensus": np.linalg.norm(theta - centre) / 4,
        "step_least": STEP,
        "step_most": STEP,
        "n": 60,
        "N": 960,
        "lam": LAM,
    }
    for name, value in wanted.items():
        np.testing.assert_allclose(getattr(found, name), value, rtol=1e-8, err_msg=name)
    np.testing.assert_allclose(
        [found.flat.mean, found.flat.rms, found.flat.least],
        [hand.flat_mean, hand.flat_rms, np.linalg.norm(hand.flat, axis=1).min()],
        rtol=1e-8,
    )
    assert found.C_max == max(found.score_moment, found.curvature_moment)
    assert (found.abnormal_given, found.theta0_given, found.exact, found.smooth) == (True,) * 4
    assert not found.preconditioned


def test_without_data_gradients_are_linearised(sim, unbalanced, res):
    lean = linear_fit(sim, unbalanced, ad.ADFL(lam=LAM, stages=1, init=ad.DFL()), step=STEP, rounds=ROUNDS)
    found, hand = Constants.of(lean.record, None, sim.abnormal, sim.theta0), Raw.of(sim, unbalanced)
    theta = lean.params.to_numpy()
    flat = (hand.gradients(theta) + (sim.theta0 - theta) @ hand.pooled_hessian(theta))[hand.bad]
    np.testing.assert_allclose(found.flat.mean, np.linalg.norm(flat.mean(axis=0)), rtol=1e-8)
    exact = Constants.of(res.record, res.data, sim.abnormal, sim.theta0)
    assert found.flat.mean != exact.flat.mean
    np.testing.assert_allclose(found.flat.mean, exact.flat.mean, rtol=0.2)
    words = "linearised with the pooled Hessian"
    assert words in lean.check(sim.abnormal, sim.theta0)["Err2"].note
    assert words not in res.check(sim.abnormal, sim.theta0)["Err2"].note
    assert words not in lean.check([], sim.theta0)["Err2"].note


def test_estimate_stands_in_with_its_own_error(res, sim, unbalanced):
    found = Constants.of(res.record)
    start = linear_fit(sim, unbalanced, ad.DFL(), step=STEP, rounds=ROUNDS).params
    se = math.sqrt(np.trace(res.cov_params()))
    np.testing.assert_allclose(found.start_distance, math.hypot(np.linalg.norm(start - res.params), se))
    np.testing.assert_allclose(found.oracle_distance, se)
    assert (found.abnormal == (res.client_weights < 0.1 * res.client_weights.max())).all()


def test_lines_names_and_words(report):
    assert [line.name for line in report.checks] == NAMES
    words = {line.name: line.status for line in report.checks}
    decided = {"varrho": "holds", "lambda_min": "holds", "rho": "holds", "flat_min": "holds"}
    unasked = ["parameter space", "independent rows", *(name for name in NAMES if name.endswith("epsilon"))]
    unknown = dict.fromkeys(unasked, "unknown")
    assert words == dict.fromkeys(NAMES, "indicative") | decided | unknown
    assert all(line.place and line.note for line in report.checks)


def test_clean_data_have_no_bias():
    clean = ad.simulate.paper_linear(0.0, None, seed=3, M=12, n=80, p=3)
    res = linear_fit(clean, ad.networks.complete(12), ad.DFL(), step=0.1, rounds=200)
    report = res.check([], clean.theta0)
    for name in ("varrho", "||flat_A|| B", "varrho^2", "Err3", "oracle (2)", "oracle (3)"):
        assert report[name].value == 0.0, name
    assert "only if N varrho^2 tends to 0; it is 0." in report["varrho^2"].note
    assert report["MSE"].value == report["V"].value
    assert report["oracle (2)"].bound == "any"
    assert "no client is abnormal, so that nothing is required" in report["oracle (2)"].note
    assert "inf" not in str(report)
    assert "it is 6.667." in res.check([1])["varrho^2"].note


def test_stand_ins_are_announced(res, sim):
    def lines(report, words):
        return [line.name for line in report.checks if words in line.note]

    neither, both = res.check(), res.check(sim.abnormal, sim.theta0)
    assert lines(neither, STAND_IN_SET) == ON_ABNORMAL
    assert lines(neither, STAND_IN_TRUTH) == ON_THETA0
    assert lines(both, STAND_IN_SET) == lines(both, STAND_IN_TRUTH) == []
    assert lines(res.check(sim.abnormal), STAND_IN_SET) == []
    assert lines(res.check(theta0=sim.theta0), STAND_IN_TRUTH) == []
    asked = "pass abnormal= and theta0=: estimates are used instead"
    assert asked in neither.advice[-1]
    assert not any("estimates are used instead" in entry for entry in both.advice)
    assert "pass theta0=: estimates" in res.check(sim.abnormal).advice[-1]
    assert "pass abnormal=: estimates" in res.check(theta0=sim.theta0).advice[-1]
    # What was chosen by its scores cannot confirm itself.
    assert neither["flat_min"].status == neither["varrho"].status == "indicative"


def test_statements_of_order_never_hold(res, sim):
    for report in (res.check(), res.check(sim.abnormal, sim.theta0), res.check([], sim.theta0)):
        for line in report.checks:
            if line.place.startswith(("Theorem", "Proposition", "Corollary", "Condition 7", "Condition 4")):
                assert line.status in ("indicative", "unknown")


def test_methods_outside_the_theorems(sim):
    net = ad.networks.directed_circle(16, 5)
    median = linear_fit(sim, net, ad.Bridge(), step=STEP, rounds=30).check(sim.abnormal, sim.theta0)
    plain = linear_fit(sim, net, ad.DFL(), step=STEP, rounds=30).check(sim.abnormal, sim.theta0)
    undirected = ad.networks.erdos_renyi(16, 0.5, seed=1).metropolis()
    extra = linear_fit(sim, undirected, ad.Extra(), step=STEP, rounds=30).check(sim.abnormal, sim.theta0)
    lie = ad.attacks.SignFlip([3])
    attacked = linear_fit(sim, net, ad.DFL(), step=STEP, rounds=30, attack=lie).check(sim.abnormal, sim.theta0)
    for report, place, why in (
        (median, "Theorem 2", "the rounds of this fit are others"),
        (extra, "Theorem 2", "the rounds of this fit are others"),
        (attacked, "Theorem 2", "the rounds of this fit are others"),
        (median, "Theorem 3", "no lambda"),
        (plain, "Theorem 3", "no lambda"),
        (plain, "Corollary 1", "no lambda"),
        (plain, "Condition 7", "no lambda"),
    ):
        lines = [line for line in report.checks if line.place.startswith(place)]
        assert lines
        assert all((line.status, line.value) == ("unknown", None) and why in line.note for line in lines)
    assert plain["Err2"].status == "indicative"


def test_unequal_clients_and_balanced_steps_are_mentioned(unbalanced):
    sim = ad.simulate.paper_linear(0.0, None, seed=1, M=16, n=(20, 60), p=2)
    res = linear_fit(sim, unbalanced, ad.DFL(balance=True), step=0.05, rounds=30)
    report = res.check()
    assert f"n below is their mean, {sim.sizes.mean():.4g}" in report["independent rows"].note
    assert "Steps balanced by influence" in report["step + SE(W)"].note


@pytest.mark.parametrize("family", ["binomial", "poisson", "gamma", "negativebinomial", "multinomial"])
def test_every_family_has_a_report(family):
    sim = ad.simulate.glm_design("poisson", M=6, n=60, p=2, intercept=True, seed=4)
    y = {"binomial": np.minimum(sim.y, 1), "gamma": sim.y + 0.5, "multinomial": np.minimum(sim.y, 2)}.get(family, sim.y)
    data = ad.ClientData.from_arrays(sim.X, y, sim.client, names=sim.names)
    res = ad.DecentralizedGLM(data, ad.networks.complete(6), family).fit()
    report = res.check()
    # Fits whose weights come from the model of clients have a line of our own after the paper's.
    assert [line.name for line in report.checks] == [*NAMES, "unseen bias, SE"]
    assert report["unseen bias, SE"].place == ""
    assert {line.status for line in report.checks} <= {"holds", "indicative", "unknown"}
    assert max(map(len, str(report).splitlines())) <= 80


def test_data_without_noise_have_a_report():
    rng = np.random.default_rng(1)
    X = rng.normal(size=(120, 2))
    data = ad.ClientData.from_arrays(X, X @ [1.0, 2.0], np.repeat(np.arange(6), 20))
    res = ad.DecentralizedGLM(data, ad.networks.complete(6)).fit()
    # Rounding errors are no reason to doubt a client; gross ones have probability exp(-15 / 2) to begin with.
    assert (res.clients()["weight"] > 0.999).all()
    assert res.check(theta0=[1.0, 2.0])["V"].value < 1e-12


def test_file_keeps_the_report(res, sim, tmp_path):
    lean = ad.Results(res.record)
    lean.save(tmp_path / "fit.npz")
    loaded = ad.load(tmp_path / "fit.npz")
    for given in ((), (sim.abnormal,), (sim.abnormal_labels, sim.theta0)):
        assert loaded.check(*given).to_json() == lean.check(*given).to_json()


LABELS = pd.Index(["north", "south", "east", "west"])


NUMBERS = pd.Index([10, 20, 30, 2])


@pytest.mark.parametrize(
    "given",
    [
        ["south", "west"],
        ("west", "south"),
        {"south", "west"},
        np.array(["south", "west"]),
        pd.Index(["south", "west"]),
        pd.Series(["west", "south"], index=[5, 6]),
        [1, 3],
        np.array([3, 1]),
        {1, 3},
        range(1, 4, 2),
        [False, True, False, True],
        np.array([False, True, False, True]),
        pd.array([False, True, False, True], dtype="boolean"),
        pd.Series([True, True, False, False], index=["west", "south", "north", "east"]),
        {"west": True, "north": False, "east": False, "south": True},
    ],
    ids=lambda given: f"{type(given).__name__} {np.asarray(list(given)).dtype}",
)
def test_abnormal_clients_in_any_form(given):
    assert abnormal_mask(given, LABELS).tolist() == [False, True, False, True]


def test_numbers_are_labels_where_labels_are_numbers():
    assert abnormal_mask([2], NUMBERS).tolist() == [False, False, False, True]
    assert abnormal_mask("east", LABELS).tolist() == [False, False, True, False]
    assert abnormal_mask(30, NUMBERS).tolist() == [False, False, True, False]
    assert not abnormal_mask([], LABELS).any()


@pytest.mark.parametrize(
    ("given", "labels", "words"),
    [
        (["south", "up"], LABELS, r"abnormal names 'up', not among the clients 'north', .*different labels"),
        ([0], NUMBERS, r"abnormal names 0, not among the clients 10, 20, 30, 2"),
        ([1, 4], LABELS, r"abnormal has indices from 1 to 4; the 4 clients have the indices 0 to 3. Use these"),
        ([True, False], LABELS, r"abnormal is a mask of 2 entries for 4 clients; give one for each"),
        (
            pd.Series([True], index=["west"]),
            LABELS,
            r"a mask with 1 entries by label, and lacks 'north', .*index it by",
        ),
        ([[1], [2]], LABELS, r"abnormal is a list that is not flat; give a flat list"),
        (np.eye(4, dtype=bool), LABELS, r"abnormal is a ndarray that is not flat"),
        (list(LABELS), LABELS, r"abnormal names all 4 clients; at least one must be normal.*other way round"),
    ],
)
def test_abnormal_clients_that_cannot_be(given, labels, words):
    with pytest.raises(ValueError, match=words):
        abnormal_mask(given, labels)


def test_abnormal_forms_give_one_report(res, sim):
    wanted = res.check(sim.abnormal).to_json()
    mask = pd.Series(sim.abnormal, index=sim.labels)
    for given in (
        sim.abnormal_labels,
        set(sim.abnormal_labels),
        list(sim.abnormal),
        mask.sample(frac=1, random_state=1),
    ):
        assert res.check(given).to_json() == wanted


def test_theta0_in_any_form(res, sim):
    wanted = res.check(theta0=sim.theta0).to_json()
    series = pd.Series(sim.theta0, index=res.params.index)
    assert res.check(theta0=list(sim.theta0)).to_json() == wanted
    assert res.check(theta0=series[::-1]).to_json() == wanted
    assert res.check(theta0=dict(series[::-1])).to_json() == wanted
    for given, error, words in (
        (sim.theta0[:2], ValueError, "theta0 has 2 entries; the model has 4 coefficients ('x1', .*). Give one value"),
        (series.iloc[:3], ValueError, "theta0 has 3 entries named 'x1', .*; the 4 coefficients .*like res.params"),
        (series.set_axis(range(4)), ValueError, "theta0 has 4 entries named 0, 1, 2, 3"),
        ({"x1": 1.0}, ValueError, "theta0 has 1 entries named 'x1'; the 4 coefficients"),
        ([1.0, np.nan, 0, 0], ValueError, "theta0 has NaN or infinite values"),
        (sim.theta0[None], ValueError, "theta0 must have 1 dimension"),
        ("truth", TypeError, "theta0 must hold numbers"),
    ):
        with pytest.raises(error, match=re.compile(words.replace("(", r"\(").replace(")", r"\)"))):
            res.check(theta0=given)


def test_chance_of_failure_has_all_its_terms(report):
    assert "1/(log n)^4" in report["M / n^4"].note
    assert "1/log N" in report["M / n^4"].note
