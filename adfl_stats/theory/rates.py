"""How fast a fit converges and where it ends: exactly, as observed, and as the paper bounds it."""

from __future__ import annotations

import math
from dataclasses import dataclass

import numpy as np
import pandas as pd
from numpy.typing import NDArray
from scipy import stats

from adfl_stats._validation import in_interval, one_of
from adfl_stats.accuracy import yardstick
from adfl_stats.fit import Fit
from adfl_stats.problem import ClientSteps, Problem
from adfl_stats.theory.bounds import dfl_floor, dfl_rate
from adfl_stats.theory.checks import number
from adfl_stats.theory.contraction import Factor, spectral_radius
from adfl_stats.theory.linearised import Linearised, weighted_solution

__all__ = ["Rates", "rates_of"]

Array = NDArray[np.float64]

# Distances to the limit are followed until this share of the first is left, over at most so many rounds.
SHOWN, MOST_ROUNDS, POINTS = 1e-6, 3000, 150


@dataclass(frozen=True, eq=False, repr=False)
class Rates:
    """Contraction factors per round, and the error that rounds cannot remove.

    Attributes
    ----------
    step : float
        The learning rate of the fit's last rounds.
    preconditioned : bool
        Whether the step refers to coordinates in which the pooled curvature is about one.
    exact : float
        Spectral radius of the linearised iteration (I - step F H)(W kron I) at the limit: by this factor
        an error shrinks in a round, in the long run.
    trouble : str
        Why `exact` is only an estimate; "" where it is exact.
    fitted : float
        The factor that the trace of the fit shows in its last phase; NaN where that is too short.
    bound : float
        The paper's: 1 - step (1 - varrho) lambda_min / 8 (Proposition 1), or with omega-bar^G in the place
        of 1 - varrho for weighted steps (Theorem 2). Down-weighted clients count as the set A.
    place : str
        Where the bound stands in the paper.
    omega_good, lambda_min : float
        omega-bar^G and the smallest curvature of any client at the limit (in the run's coordinates).
    floor : DataFrame
        What is left after many rounds. Columns: `predicted` by the linearised fixed point and `observed`
        on the fit, as M^-1/2 ||.|| over the stacked clients, and the same in standard errors, for the worst
        coefficient. Rows: `imbalance`, the distance between what the network solves as the step tends to
        zero and the solution that counts clients by trust and size only; `bias`, of the clients' mean from
        the former; `consensus`, of the clients from their mean; `total`, of the clients from the latter.
    paper_floor : float
        (alpha + SE(W)) / {(1 - rho)(1 - varrho) lambda_min} of Proposition 1, whose constant is open.
    distances : DataFrame
        M^-1/2 times the distance of the stacked clients from their limit, by round, from the start.
    """

    step: float
    preconditioned: bool
    exact: float
    trouble: str
    fitted: float
    bound: float
    place: str
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
            Which factor to go by. Infinite where it is 1 or more, NaN where it is unknown.
        """
        accuracy = in_interval(accuracy, "accuracy", 0.0, 1.0, open_low=True, open_high=True)
        factor = float(getattr(self, one_of(by, "by", ("exact", "fitted", "bound"))))
        if math.isnan(factor) or factor >= 1.0:
            return math.nan if math.isnan(factor) else math.inf
        return float(math.ceil(math.log(accuracy) / math.log(factor))) if factor > 0.0 else 1.0

    def to_frame(self) -> pd.DataFrame:
        """Return one row per factor: value, rounds to a thousandth, its place in the paper, a note."""
        rows = {
            "exact": (self.exact, "equation (4.1), linearised", self.trouble),
            "fitted": (self.fitted, "", "from the trace" if math.isfinite(self.fitted) else "the trace is too short"),
            "bound": (self.bound, self.place, self._bound_note()),
        }
        table = pd.DataFrame.from_dict(rows, orient="index", columns=["factor", "place", "note"])
        table.insert(1, "rounds", [self.rounds(1e-3, by) for by in rows])
        return table.rename_axis("rate")

    def _bound_note(self) -> str:
        if self.lambda_min == 0.0:
            return "says nothing: a client has no curvature in some direction (Condition 3 fails)"
        return f"omega-bar^G = {self.omega_good:.3g}, lambda_min = {self.lambda_min:.3g}"

    def __str__(self) -> str:
        where = "preconditioned coordinates" if self.preconditioned else "the paper's coordinates"
        lines = [f"Rates at step {self.step:.4g}, in {where}", "", f"{'':<10} {'factor':>10} {'rounds to 1/1000':>17}"]
        for name, row in self.to_frame().iterrows():
            note = "; ".join(part for part in (row["place"], row["note"]) if part)
            lines.append(f"{name:<10} {number(row['factor']):>10} {number(row['rounds']):>17}  {note}")
        lines += ["", "Error floor", self.floor.to_string(float_format=number)]
        lines += ["", f"Proposition 1, up to its constant: {number(self.paper_floor)}"]
        return "\n".join(lines)

    __repr__ = __str__


def rates_of(problem: Problem, fit: Fit) -> Rates:
    """Measure the rates of a fit by DFL, weighted DFL or aDFL.

    Parameters
    ----------
    problem : Problem
        What was fitted.
    fit : Fit
        What `Results` hold.
    """
    steps = _steps_of(problem, fit)
    params = fit.theta.mean(axis=0)
    metric = problem.coordinates(fit.start.centre)[0] if fit.preconditioned else None
    point = weighted_solution(problem, steps.totals, params)
    iteration = Linearised(problem, steps, point, fit.step, metric)
    exact = spectral_radius(iteration)
    omega_good = float(fit.weights[fit.trusted].sum() / problem.M)
    lambda_min = float(iteration.smallest.min())
    network = problem.network
    limit, _ = iteration.limit()
    return Rates(
        step=fit.step,
        preconditioned=fit.preconditioned,
        exact=exact.value,
        trouble=exact.trouble,
        fitted=trace_factor(fit),
        bound=dfl_rate(fit.step, 1.0 - omega_good, lambda_min),
        place="Proposition 1" if (fit.weights == 1.0).all() else "Theorem 2",
        omega_good=omega_good,
        lambda_min=lambda_min,
        floor=_floors(iteration, fit.theta),
        paper_floor=dfl_floor(fit.step, network.se, network.rho, 1.0 - omega_good, lambda_min),
        distances=_distances(iteration, limit, exact),
    )


def _steps_of(problem: Problem, fit: Fit) -> ClientSteps:
    """Return trust and steps of the fit's last stage, after a check that it is a fit of this problem."""
    if not fit.weighted:
        under = " under attack" if "attack" in fit.details else ""
        raise ValueError(
            f"res was fitted by {fit.method}{under}, which is not a weighted mean and a gradient step; "
            "rates are for fits by ad.DFL or ad.ADFL"
        )
    steps = problem.steps(fit.weights, balance=bool(fit.details.get("balance")))
    same = fit.labels.equals(problem.data.labels) and fit.theta.shape == (problem.M, problem.P)
    if not same or not np.allclose(steps.totals, fit.total_weights, rtol=1e-8):
        raise ValueError(
            f"res is a fit of another model ({len(fit.labels)} clients, {fit.theta.shape[1]} coefficients; this one "
            f"has {problem.M} and {problem.P}, or another network or weighting); use the model that was fitted"
        )
    return steps


def trace_factor(fit: Fit) -> float:
    """Fit a geometric sequence to the moves in the last phase of constant step; NaN for fewer than 3.

    Early moves still carry faster modes and the last may be rounding: the former half is left out, and
    what lies near rounding; Theil and Sen's slope, the median over pairs, does not mind what remains.
    """
    trace = fit.trace
    last = trace[(trace["run"] == trace["run"].max()) & (trace["step"] == fit.step)]
    rounding = 1e3 * np.finfo(np.float64).eps * (1.0 + float(np.abs(fit.theta).max()))
    last = last[last["moved"] > rounding]
    last = last.iloc[min(len(last) // 2, max(len(last) - 3, 0)) :]
    if len(last) < 3:
        return math.nan
    slope = stats.theilslopes(np.log(last["moved"].to_numpy()), last["round"].to_numpy())[0]
    return float(np.exp(slope))


def predicted_error(iteration: Linearised) -> Array:
    """Return the linearised fixed point minus the point where it is linearised (M, P); NaN if there is none."""
    found, residual = iteration.displacement()
    return found if residual < 1e-6 else np.full_like(found, np.nan)


def _floors(iteration: Linearised, theta: Array) -> pd.DataFrame:
    """Split the distance of the clients from the weighted solution into its parts."""
    problem, steps, point = iteration.problem, iteration.steps, iteration.point
    target = plain_solution(problem, steps, point)
    se = yardstick(problem, point[None], steps.totals).se
    columns: dict[str, list[float]] = {}
    for name, estimates in (("predicted", point + predicted_error(iteration)), ("observed", theta)):
        centre = estimates.mean(axis=0)
        parts = (point - target)[None], (centre - point)[None], estimates - centre, estimates - target
        columns[name] = [float(np.sqrt(np.mean(np.sum(part**2, axis=1)))) for part in parts]
        columns[f"{name}, se"] = [float(np.max(np.sqrt(np.mean(part**2, axis=0)) / se)) for part in parts]
    return pd.DataFrame(columns, index=["imbalance", "bias", "consensus", "total"])


def plain_solution(problem: Problem, steps: ClientSteps, near: Array) -> Array:
    """Return the solution that counts clients by trust and size, whatever their influence on the network."""
    plain = steps.weights * problem.sizes
    if np.allclose(plain, steps.totals, rtol=1e-12, atol=0.0):
        return near
    return weighted_solution(problem, plain, near)


def _distances(iteration: Linearised, limit: Array, exact: Factor) -> pd.DataFrame:
    """Run the recursion from the problem's start and note the distance from the limit."""
    wanted = math.log(SHOWN) / math.log(exact.value) if 0.0 < exact.value < 1.0 else 0.0
    total = int(np.clip(wanted, 50, MOST_ROUNDS))
    chunk = -(-total // POINTS)
    se = yardstick(iteration.problem, iteration.point[None], iteration.steps.totals).se
    rounds = np.arange(0, total + 1, chunk)
    # Without a global bound on the curvature the last stage's step may be too long for the first start.
    for theta in (iteration.problem.start(), limit + se):
        found = []
        for _ in rounds:
            found.append(float(np.linalg.norm(theta - limit) / np.sqrt(len(limit))))
            if not np.isfinite(found[-1]) or found[-1] > 1e6 * (found[0] + 1e-300):
                break
            theta = iteration.advance(theta, chunk)
        else:
            break
    return pd.DataFrame({"round": rounds[: len(found)], "distance": found})
