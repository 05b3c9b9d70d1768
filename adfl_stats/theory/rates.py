"""How fast a fit converges and where it ends: exactly, as observed, and as the paper bounds it."""

from __future__ import annotations

import math
from dataclasses import dataclass
from os import PathLike
from pathlib import Path

import numpy as np
import pandas as pd

from adfl_stats._arguments import in_interval, one_of
from adfl_stats._text import factor_text, framed, number, printable_lines
from adfl_stats._types import Array
from adfl_stats.engine.equations import weighted_solution
from adfl_stats.engine.numerical_error import consensus_error, floored, standard_errors_at
from adfl_stats.engine.problem import ClientSteps, Problem
from adfl_stats.inference.record import FitRecord
from adfl_stats.losses.point_sums import client_gradients
from adfl_stats.network.network import Network
from adfl_stats.network.schedule import one_network
from adfl_stats.theory.bounds import dfl_floor, dfl_rate
from adfl_stats.theory.checks import FAILS, UNKNOWN
from adfl_stats.theory.constants import Constants
from adfl_stats.theory.contraction import Factor, spectral_radius
from adfl_stats.theory.linearised import Linearised
from adfl_stats.theory.trace_rate import observed_factor

__all__ = ["Rates", "rates_of"]


# Distances are computed until this share of the first is left, over at most so many rounds, at so many points. Ours:
# for the plot.
SHOWN, MOST_ROUNDS, POINTS = 1e-6, 3000, 150


@dataclass(frozen=True, eq=False, repr=False)
class Rates:
    """Contraction factors per round, and the error that rounds cannot remove.

    Parameters
    ----------
    step : float
        The learning rate of the fit's last rounds.
    preconditioned : bool
        Whether the step refers to coordinates in which the pooled bound on the curvature is the identity.
    exact : float
        Spectral radius of the linearised iteration (I - step F H)(W kron I) at the limit: by this factor
        an error shrinks in a round, in the long run. NaN where the network has several closed groups.
    trouble : str
        Why `exact` is only an estimate or missing; "" where it is exact.
    fitted : float
        The factor that the fit's trace shows in the longest phase of constant step in its last run; NaN where
        there is none. Below the exact factor at that step as long as faster modes, such as the clients' agreement
        on a slow network, have not decayed.
    fitted_step : float
        The step of that phase: larger than `step` where the fit cut its step afterwards.
    fitted_note : str
        The rounds of that phase and the exact factor at its step, or why there is none.
    fitted_last : int
        The last of these rounds.
    bound : float
        The paper's: 1 - step (1 - varrho) lambda_min / 8 (Proposition 1), or with omega-bar^G in the place
        of 1 - varrho for weighted steps (Theorem 2). Down-weighted clients count as the set A. The paper has it for
        step + SE(W) and delta_0 below some epsilon, and beside a floor; below that, or beyond epsilon, a run may be
        slower. NaN where Condition 5 fails or no positive lambda_min is known.
    place : str
        Where the bound stands in the paper.
    bound_note : str
        What the bound assumes, or why there is none.
    omega_good, lambda_min : float
        omega-bar^G, of the factors by which the clients multiply the step, and lambda_min of Condition 3, as
        `Results.check` has them.
    floor : DataFrame
        What is left after many rounds. Columns: `predicted` by the linearised fixed point and `observed`
        on the fit, as M^-1/2 ||.|| over the stacked clients, and the same in standard errors, for the worst
        coefficient. Rows: `imbalance`, the distance between what the network solves as the step tends to
        zero and the solution that counts clients by trust and size only; `bias`, of the clients' mean from
        the former; `consensus`, of the clients from their mean; `total`, of the clients from the latter.
    paper_floor : float
        (alpha + SE(W)) / {(1 - rho)(1 - varrho) lambda_min} of Proposition 1, whose constant is open, as
        `Results.check` has it; infinite where the paper gives none.
    distances : DataFrame
        By round, from the start: `distance`, M^-1/2 times that of the stacked clients from their limit; `optimisation`
        and `consensus`, the distance of the clients' mean from the solution of the weighted equation and that of the
        clients from their mean, for the worst coefficient in standard errors.

    Examples
    --------
    >>> import adfl_stats as ad
    >>> sim = ad.simulate.paper_linear(abnormal=0, corruption=None, seed=1, M=10, n=30, p=2)
    >>> data = ad.ClientData.from_arrays(sim.X, sim.y, sim.client)
    >>> model = ad.DecentralizedGLM(data, ad.networks.directed_circle(10, 3))
    >>> rates = model.rates(model.fit(ad.DFL(), step=0.1, rounds=100))
    >>> rates.exact < rates.bound < 1.0
    True
    """

    step: float
    preconditioned: bool
    exact: float
    trouble: str
    fitted: float
    fitted_step: float
    fitted_note: str
    fitted_last: int
    bound: float
    place: str
    bound_note: str
    omega_good: float
    lambda_min: float
    floor: pd.DataFrame
    paper_floor: float
    distances: pd.DataFrame

    def rounds(self, accuracy: float, by: str = "exact") -> float:
        """Return the rounds after which the distance to the limit is `accuracy` times what it was.

        Parameters
        ----------
        accuracy : float
            Wanted share, between 0 and 1.
        by : {"exact", "fitted", "bound"}
            Which factor to go by; "fitted" counts rounds at `fitted_step`. Infinite where the factor is 1 or
            more, NaN where it is unknown.

        Returns
        -------
        float
            The rounds.

        Examples
        --------
        >>> import adfl_stats as ad
        >>> sim = ad.simulate.paper_linear(abnormal=0, corruption=None, seed=1, M=20, n=50, p=3)
        >>> data = ad.ClientData.from_arrays(sim.X, sim.y, sim.client)
        >>> model = ad.DecentralizedGLM(data, ad.networks.directed_circle(20, 5))
        >>> rates = model.rates(model.fit(ad.DFL(), step=0.1, rounds=50))
        >>> rates.rounds(1e-6) > rates.rounds(1e-3)
        True
        """
        accuracy = in_interval(accuracy, "accuracy", 0.0, 1.0, open_low=True, open_high=True)
        factor = float(getattr(self, one_of(by, "by", ("exact", "fitted", "bound"))))
        if math.isnan(factor) or factor >= 1.0:
            return math.nan if math.isnan(factor) else math.inf
        return float(math.ceil(math.log(accuracy) / math.log(factor))) if factor > 0.0 else 1.0

    def to_frame(self) -> pd.DataFrame:
        """Return the three factors.

        Returns
        -------
        DataFrame
            One row per factor: value, rounds to a thousandth, its place in the paper, a note.

        Examples
        --------
        >>> import adfl_stats as ad
        >>> sim = ad.simulate.paper_linear(abnormal=0, corruption=None, seed=1, M=20, n=50, p=3)
        >>> data = ad.ClientData.from_arrays(sim.X, sim.y, sim.client)
        >>> model = ad.DecentralizedGLM(data, ad.networks.directed_circle(20, 5))
        >>> rates = model.rates(model.fit(ad.DFL(), step=0.1, rounds=50))
        >>> rates.to_frame().columns.tolist()
        ['factor', 'rounds', 'place', 'note']
        """
        rows = {
            "exact": (self.exact, "equation (4.1), linearised", self.trouble),
            "fitted": (self.fitted, "", self.fitted_note),
            "bound": (self.bound, self.place, self.bound_note),
        }
        table = pd.DataFrame.from_dict(rows, orient="index", columns=["factor", "place", "note"])
        table.insert(1, "rounds", [self.rounds(1e-3, by) for by in rows])
        return table.rename_axis("rate")

    def __str__(self) -> str:
        where = "other coordinates than the paper's" if self.preconditioned else "the paper's coordinates"
        table, notes = self.to_frame().rename_axis(None), []
        for name, row in table.iterrows():
            note = "; ".join(part for part in (row["place"], row["note"]) if part)
            notes += [f"{name}: {note}"] if note else []
        bounded = math.isfinite(self.paper_floor)
        floor = f"{number(self.paper_floor)}; down-weighted clients count as abnormal" if bounded else "none"
        notes.append(f"Floor of Proposition 1, up to its constant: {floor}")
        factors = table[["factor", "rounds"]].rename(columns={"rounds": "rounds to 1/1000"})
        text = factors.to_string(formatters={"factor": factor_text, "rounds to 1/1000": number})
        text += f"\n\nError floor\n{self.floor.to_string(float_format=number)}"
        return framed(f"Rates at step {self.step:.4g}, in {where}", text, notes)

    __repr__ = __str__

    def report(self, path: str | PathLike[str], *, title: str | None = None) -> Path:
        """Write the rates as one HTML page that loads nothing.

        Parameters
        ----------
        path : str or path
            The file; its name ends in .html.
        title : str, optional
            The heading.

        Returns
        -------
        Path
            Where the page is.
        """
        from adfl_stats.report.pages.extras import rates_page
        from adfl_stats.report.pages.page import write

        return write(path, lambda: rates_page(self, title))

    def _repr_html_(self) -> str:
        where = "preconditioned coordinates" if self.preconditioned else "the paper's coordinates"
        factors = self.to_frame().rename(columns={"rounds": "rounds to 1/1000"})
        return printable_lines(
            f"<h3>Rates at step {self.step:.4g}, in {where}</h3>"
            f"{factors.to_html(formatters={'factor': factor_text, 'rounds to 1/1000': number})}"
            f"<h4>Error floor</h4>{self.floor.to_html(float_format=number)}"
            f"<p>Proposition 1, up to its constant: {number(self.paper_floor)}</p>"
        )


def rates_of(problem: Problem, fit: FitRecord) -> Rates:
    """Measure the rates of a fit by DFL, weighted DFL or aDFL.

    Parameters
    ----------
    problem : Problem
        What was fitted.
    fit : FitRecord
        What `Results` hold.
    """
    steps = steps_of(problem, fit)
    params = fit.params
    point = weighted_solution(problem, steps.total_weights, params)
    iteration = Linearised(problem, steps, point, fit.step, fit.metric)
    exact = _exact(iteration)
    c = Constants.of(fit)
    bound = _bound(c)
    limit, _ = iteration.limit()
    seen = observed_factor(fit)
    return Rates(
        step=fit.step,
        preconditioned=fit.preconditioned,
        exact=exact.value,
        trouble=exact.trouble,
        fitted=seen.value,
        fitted_step=seen.step,
        fitted_note=seen.note + _beside(iteration, seen.step),
        fitted_last=seen.last,
        bound=bound,
        place="Proposition 1" if (fit.weights == 1.0).all() and not c.balanced else "Theorem 2",
        bound_note=_bound_note(c, bound, exact.value),
        omega_good=c.largest * c.omega_good,
        lambda_min=c.lambda_min,
        floor=_floors(iteration, fit.theta),
        paper_floor=dfl_floor(c.step_most, c.se, c.rho, c.varrho, c.lambda_min),
        distances=_distances(iteration, limit, exact),
    )


def _bound(c: Constants) -> float:
    """Return the factor of the optimisation error in Proposition 1 or Theorem 2, NaN where the paper has none."""
    if c.condition_5.status == FAILS or c.lambda_min == 0.0:
        return math.nan
    return dfl_rate(c.step_least, 1.0 - c.largest * c.omega_good, c.lambda_min)


def _bound_note(c: Constants, bound: float, exact: float) -> str:
    if c.condition_5.status == FAILS:
        return "no bound: Condition 5 fails"
    if c.lambda_min == 0.0:
        return "no bound: a client's Hessian is rank-deficient (Condition 3 is not decided)"
    note = (
        f"omega-bar^G = {c.largest * c.omega_good:.3g}, lambda_min = {c.lambda_min:.3g}; for step + SE(W) = "
        f"{c.step_most + c.se:.3g} below an epsilon that the paper does not give"
    )
    if c.condition_5.status == UNKNOWN:
        note += ", and if Condition 5 holds, which is not decided"
    if exact > bound:
        note += "; this run is slower: step and start are not below epsilon, or it is below the floor already"
    return note


def steps_of(problem: Problem, fit: FitRecord) -> ClientSteps:
    """Return trust and steps of the fit's last stage, after a check that it is a fit of this problem."""
    if not fit.weighted:
        under = " under attack" if "attack" in fit.details else ""
        raise ValueError(
            f"res was fitted by {fit.method}{under}, which is not a weighted mean and a gradient step; "
            "rates are for fits by ad.DFL or ad.ADFL"
        )
    steps = problem.steps(fit.weights, balance=bool(fit.details.get("balance")))
    if fit.weighting == "random-effects" and steps.total_weights.shape == fit.total_weights.shape:
        shares = np.divide(
            fit.total_weights, steps.total_weights, out=np.ones(problem.M), where=steps.total_weights > 0.0
        )
        steps = problem.steps(fit.weights, balance=bool(fit.details.get("balance")), shares=shares)
    same = fit.labels.equals(problem.labels) and fit.theta.shape == (problem.M, problem.P)
    if not same or not np.allclose(steps.total_weights, fit.total_weights, rtol=1e-8):
        raise ValueError(
            f"res is a fit of another model ({len(fit.labels)} clients, {fit.theta.shape[1]} coefficients; this one "
            f"has {problem.M} and {problem.P}, or another network or weighting); use the model that was fitted"
        )
    if not _same_weights(one_network(fit.network, "rates"), problem.network):
        raise ValueError(
            "res is a fit over another network: its W differs from this model's; use the model that was fitted"
        )
    if not _same_gradients(problem, fit):
        raise ValueError(
            "res is a fit of other data or of another family: the clients' gradients at res.params differ from those "
            "that the fit ended with; use the model that was fitted"
        )
    return steps


def _same_weights(one: Network, other: Network) -> bool:
    return (
        np.array_equal(one.indptr, other.indptr)
        and np.array_equal(one.indices, other.indices)
        and np.allclose(one.weights, other.weights, rtol=1e-12, atol=0.0)
    )


def _same_gradients(problem: Problem, fit: FitRecord) -> bool:
    """Return whether the data have the gradients at the estimate that the fit found there, up to rounding."""
    params = fit.params
    stored = fit.weighted_sums.gradients
    gradients = client_gradients(problem.glm.data, problem.glm.family, params)
    if problem.glm.penalty is not None:
        gradients = gradients + problem.glm.penalty.gradient(params)
    # Without noise all gradients are rounding errors of terms as large as curvature times parameter.
    terms = float(fit.regularity.most_curvature.max() * np.linalg.norm(params))
    return bool((np.abs(gradients - stored) <= 1e-8 * np.abs(stored).max(axis=0) + 1e-12 * terms).all())


def _exact(iteration: Linearised) -> Factor:
    groups = len(iteration.problem.network.closed_groups)
    if groups > 1:
        why = f"the network has {groups} closed groups, which never agree: there is no limit that all clients share"
        return Factor(math.nan, why)
    return spectral_radius(iteration)


def _beside(iteration: Linearised, step: float) -> str:
    """Return the exact factor at the step of an earlier phase, to compare what was seen there with."""
    if math.isnan(step) or step == iteration.step:
        return ""
    return f" at step {number(step)}, where the exact factor is {factor_text(_exact(iteration.at(step)).value)}"


def predicted_error(iteration: Linearised) -> Array:
    """Return the linearised fixed point minus the point where it is linearised (M, P); NaN if there is none."""
    displacement, residual = iteration.displacement()
    return displacement if residual < 1e-6 else np.full_like(displacement, np.nan)


def _floors(iteration: Linearised, theta: Array) -> pd.DataFrame:
    """Split the distance of the clients from the weighted solution into its parts."""
    problem, steps, point = iteration.problem, iteration.steps, iteration.point
    target = plain_solution(problem, steps, point)
    se = standard_errors_at(problem, point[None], steps.total_weights).se
    columns: dict[str, list[float]] = {}
    for name, estimates in (("predicted", point + predicted_error(iteration)), ("observed", theta)):
        centre = estimates.mean(axis=0)
        parts = (point - target)[None], (centre - point)[None], estimates - centre, estimates - target
        columns[name] = [float(np.sqrt(np.mean(np.sum(part**2, axis=1)))) for part in parts]
        columns[f"{name}, se"] = [float(np.max(np.sqrt(np.mean(part**2, axis=0)) / se)) for part in parts]
    return pd.DataFrame(columns, index=["imbalance", "bias", "consensus", "total"])


def plain_solution(problem: Problem, steps: ClientSteps, near: Array) -> Array:
    """Return the solution that counts clients by trust and size, whatever their influence on the network."""
    plain = steps.weights * problem.relative_sizes
    if np.allclose(plain, steps.total_weights, rtol=1e-12, atol=0.0):
        return near
    return weighted_solution(problem, plain, near)


def _distances(iteration: Linearised, limit: Array, exact: Factor) -> pd.DataFrame:
    """Run the recursion from the problem's start and note the distance from the limit."""
    wanted = math.log(SHOWN) / math.log(exact.value) if 0.0 < exact.value < 1.0 else 0.0
    total = int(np.clip(wanted, 50, MOST_ROUNDS))
    chunk = -(-total // POINTS)
    se = standard_errors_at(iteration.problem, iteration.point[None], iteration.steps.total_weights).se
    rounds = np.arange(0, total + 1, chunk)
    # Without a global bound on the curvature the last stage's step may be too long for the first start.
    for theta in (iteration.problem.objective.start(), limit + se):
        distances, errors = [], []
        for _ in rounds:
            distances.append(float(np.linalg.norm(theta - limit) / np.sqrt(len(limit))))
            if not np.isfinite(distances[-1]) or distances[-1] > 1e6 * (distances[0] + 1e-300):
                break
            errors.append(_numerical_errors(iteration, theta, se))
            theta = iteration.advance(theta, chunk)
        else:
            break
    parts = np.reshape(errors, (-1, 2)).T
    at, distance = rounds[: len(errors)], distances[: len(errors)]
    return pd.DataFrame({"round": at, "distance": distance, "optimisation": parts[0], "consensus": parts[1]})


def _numerical_errors(iteration: Linearised, theta: Array, se: Array) -> tuple[float, float]:
    """Return how far the clients' mean is from the weighted solution, and they are from it, in standard errors."""
    centre = theta.mean(axis=0)
    away = np.abs(centre - iteration.point) / floored(se, centre)
    return float(away.max()), consensus_error(theta, se)
