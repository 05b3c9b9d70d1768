"""Records of inference by client, over several places that hold the data of their own clients."""

from types import SimpleNamespace

import numpy as np
import pandas as pd
import pytest
from numpy.testing import assert_allclose, assert_array_equal
from places import Batches, batches_of, in_places, some_clients

import adfl_stats as ad
from adfl_stats.engine.plan import Plan, Run
from adfl_stats.engine.problem import Problem
from adfl_stats.engine.transport import LOCAL
from adfl_stats.inference.at_estimate import AtEstimate
from adfl_stats.inference.client_contrasts import contrast_df, joint_df
from adfl_stats.inference.covariance import Inference
from adfl_stats.inference.heterogeneity import heterogeneity_of
from adfl_stats.inference.record import fit_record
from adfl_stats.inference.screening import screen_fit
from adfl_stats.losses.families import Family
from adfl_stats.losses.glm import GLM
from adfl_stats.methods import Outcome

M, P = 30, 3
BOUNDS = (0, 4, 17, M)
BATCHES = batches_of(BOUNDS)
# No client of the first place has weight.
WEIGHTS = np.where(np.arange(M) < 4, 0.0, np.linspace(0.5, 1.0, M))


def drawn(family, differ):
    """Clients of which the first three share another parameter, and which may differ from one another."""
    sim = ad.simulate.glm_design(family, M=M, n=(40, 90), p=P, seed=8)
    rng, client = np.random.default_rng(5), np.unique(sim.client, return_inverse=True)[1]
    theta = np.array([0.4, 0.3, -0.3]) + (0.4 if differ else 0.0) * rng.normal(size=(M, P))
    theta[:3] += 1.0
    eta = np.einsum("ij,ij->i", sim.X, theta[client])
    y = {
        "gaussian": eta + rng.normal(size=len(eta)),
        "binomial": (rng.random(len(eta)) < 1.0 / (1.0 + np.exp(-eta))).astype(float),
        "poisson": rng.poisson(np.exp(np.clip(eta, -4.0, 3.0))).astype(float),
    }[family]
    return ad.ClientData.from_arrays(sim.X, y, sim.client)


def at_estimate(data, family, transport=LOCAL):
    problem = Problem(GLM(data, Family(family)), ad.networks.directed_circle(M, 3), transport=transport)
    theta = problem.members.ours(np.random.default_rng(1).normal(size=(M, P)) / 20 + [0.4, 0.3, -0.3])
    outcome = Outcome(theta, problem.steps(problem.members.ours(WEIGHTS)), [])
    return AtEstimate(None, problem, outcome, "auto")


def clients(seen):
    found = seen.clients
    common = {"kind": found.spread_kind, "spread": found.spread, "cochran": found.cochran, "noise": found.dispersion}
    names = ("statistics", "ranks", "df", "p_values", "noise", "noisy", "probabilities")
    rows = {name: getattr(found, name) for name in names}
    return common, rows | {"deviations": seen.effects.deviations, "effects": seen.effects.effects}


def covariances(seen):
    found = seen.clustered
    fit = SimpleNamespace(
        names=["a", "b", "c"],
        smooth=True,
        weighted_sums=seen.weighted_sums,
        clustered=found,
        total_weights=seen._source.outcome.steps.total_weights,
    )
    contrasts = np.array([[1.0, 1.0, 0.0], [0.0, 1.0, -1.0]])
    common = {
        "counts": [found.clients, found.rows],
        "df": found.df,
        "working": found.working,
        "expected": found.expected,
        "least df": found.least_df,
        "contrasts": contrast_df(found, contrasts),
        "joint": joint_df(found, contrasts),
    }
    for name in ("CR1", "CR2", "CR3"):
        by_client = Inference(fit, name)
        common[name] = by_client.covariance()
        common[f"{name} F"] = by_client.joint(3.0, contrasts)["F"]
    return common, {"cr2": found.cr2, "cr3": found.cr3}


def screened(seen):
    outcome = seen._source.outcome
    fit = SimpleNamespace(
        diagnostics=seen.diagnostics,
        clients=seen.clients,
        sandwich=np.eye(P) / 100.0,
        theta=outcome.theta,
        labels=pd.Index(seen._source.problem.members.ours(np.arange(M))),
        client_name="client",
        sizes=seen._source.problem.glm.data.sizes,
        weights=outcome.steps.weights,
        names=["a", "b", "c"],
    )
    methods = ("score",) if seen.clients.differ else ("score", "mirror")
    tables = {method: screen_fit(fit, 0.3, method).to_frame() for method in methods}
    columns = ("adjusted", "flagged", "mirror", "shift")
    return {}, {f"{method} {name}": tables[method][name].to_numpy() for method in methods for name in columns}


def differences(seen):
    """The meta-analysis; what it takes from the results is given."""
    columns = {"lower": -np.ones(P), "upper": np.ones(P)}
    res = SimpleNamespace(
        record=SimpleNamespace(clients=seen.clients, effects=seen.effects, names=["a", "b", "c"]),
        conf_int=lambda alpha: pd.DataFrame(columns, index=["a", "b", "c"]),
        params=np.zeros(P),
        bse=np.ones(P),
        use_t=False,
        client_effects=pd.DataFrame,
    )
    found = heterogeneity_of(res)
    common = {"tau": found.to_frame().to_numpy(), "intervals": found.intervals().to_numpy()}
    return common | {"clients": found.n_clients, "Q": found.statistic}, {}


def compared(work, data, family):
    """Check that the places agree to the bit, and with one place up to rounding."""
    places = in_places(BOUNDS, lambda k, place: work(at_estimate(some_clients(data, BATCHES[k]), family, place)))
    for common, _ in places[1:]:
        for name, value in common.items():
            assert_array_equal(value, places[0][0][name], err_msg=name)
    for transport in (Batches(BOUNDS), LOCAL):
        common, rows = work(at_estimate(data, family, transport))
        for name, value in common.items():
            if isinstance(value, str):
                assert value == places[0][0][name]
            else:
                assert_allclose(places[0][0][name], value, rtol=1e-6, atol=1e-10, err_msg=name)
        for name, value in rows.items():
            joined = np.concatenate([place[1][name] for place in places])
            assert_allclose(joined, value, rtol=1e-6, atol=1e-8, err_msg=name)


@pytest.mark.parametrize("family", ["gaussian", "binomial", "poisson"])
@pytest.mark.parametrize("differ", [False, True], ids=["alike", "differ"])
def test_places_find_what_one_place_finds(family, differ):
    """Also where no client of a place has weight."""

    def everything(seen):
        assert seen.clients.differ == differ
        parts = {work.__name__: work(seen) for work in (clients, covariances, screened, differences)}
        return tuple(
            {f"{name}: {key}": value for name, part in parts.items() for key, value in part[k].items()} for k in (0, 1)
        )

    compared(everything, drawn(family, differ), family)


def test_places_find_degrees_of_freedom_without_the_matrices(monkeypatch):
    """Where the clients' matrices have no room, or the coefficients are too many for exact sums."""
    monkeypatch.setattr("adfl_stats.inference.clustered.KEPT_ENTRIES", 0)
    compared(covariances, drawn("gaussian", differ=True), "gaussian")
    monkeypatch.setattr("adfl_stats.inference.clustered.MOST_COEFFICIENTS", 0)
    compared(covariances, drawn("gaussian", differ=True), "gaussian")


# ------------------------------------------------------------------ what a record of a fit says of all clients


def outcome_of(problem):
    """Estimates and initial ones of the clients that are ours."""
    rng = np.random.default_rng(1)
    theta, initial = (problem.members.ours(rng.normal(size=(M, P)) / 20 + [0.4, 0.3, -0.3]) for _ in range(2))
    return Outcome(
        theta, problem.steps(problem.members.ours(WEIGHTS)), [Run(theta, 0.1, began=initial)], initial=initial
    )


def results_of(data, penalty, transport=LOCAL):
    glm = GLM(data, Family("gaussian"), penalty, total=transport.total, gather=transport.gather)
    problem = Problem(glm, ad.networks.directed_circle(M, 3), transport=transport)
    return ad.Results(fit_record(None, problem, ad.DFL(), outcome_of(problem), Plan(), []), data)


def said(res):
    """What results say that is not of one client, and the rows of ours."""
    fit, oracle = res.record, res.oracle([0, 1, 2])
    start = fit.start
    common = {
        "params": res.params,
        "start": [*start.centre, start.spread, start.reach, start.stacked],
        "counts": [res.nobs, res.effective_clients, fit.effective_parameters],
        "criteria": [res.aic, res.bic],
        "oracle": oracle.to_frame().to_numpy(),
        "oracle coefficients": oracle.coefficients.to_numpy(),
        "local estimates": oracle.local.to_numpy(),
        "limits": res.detection_limit(0.2).to_numpy(),
        "prediction": res.predict(np.eye(P)),
    }
    table = res.record
    return common, {"trusted": table.trusted, "influence": table.influence}


@pytest.mark.parametrize("penalty", [None, ad.Ridge(np.full(P, 0.05))], ids=["plain", "ridge"])
def test_results_of_places_are_those_of_one_place(penalty):
    data = drawn("gaussian", differ=False)
    places = in_places(BOUNDS, lambda k, place: said(results_of(some_clients(data, BATCHES[k]), penalty, place)))
    whole, rows = said(results_of(data, penalty))
    for common, _ in places:
        for name, value in whole.items():
            assert_array_equal(common[name], places[0][0][name], err_msg=name)
            assert_allclose(common[name], value, rtol=1e-7, atol=1e-10, err_msg=name)
    for name, value in rows.items():
        assert_allclose(np.concatenate([own[name] for _, own in places]), value, rtol=1e-9, err_msg=name)
