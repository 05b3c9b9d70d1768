"""How firmly the majority is identified: the best rival half, and how many clients decide.

A rival is another parameter that half of the clients fit together. Halves are found by concentration (`TrimmedScores`)
from random sets of clients, from the clients that were set aside and from the coherent minority. The misfit of a half
is the sum over its clients of the deviance beyond that at the parameter that suits each best, per unit of dispersion:
zero for the half that fits, and in units of twice a log-likelihood for a rival. (Ours; no result of the paper, which
assumes a majority of normal clients in section 3.1.)
"""

from __future__ import annotations

import html
from dataclasses import dataclass
from typing import TYPE_CHECKING

import numpy as np
import pandas as pd

from adfl_stats._text import framed, printable_lines
from adfl_stats._types import Array, Mask
from adfl_stats.engine.equations import weighted_solution
from adfl_stats.engine.problem import Problem
from adfl_stats.engine.transport import Members
from adfl_stats.inference.refits import Refitter
from adfl_stats.inference.sites import on_problem
from adfl_stats.losses.client_sums import client_deviances
from adfl_stats.methods import TrimmedScores
from adfl_stats.trust import ClientModel
from adfl_stats.trust.refits import refit_draws
from adfl_stats.trust.weights import majority

if TYPE_CHECKING:
    from adfl_stats.inference.record import FitRecord
    from adfl_stats.inference.results import Results

__all__ = ["Majority", "majority_of"]

# A rival is another parameter if it is this many standard errors away in some coefficient. Ours: estimates of two
# halves of clients that are alike are within 4 standard errors of the whole, see tests/inference/test_majority.py.
APART = 4.0
# Random sets that concentration begins with. Ours: twice those of a fit's start.
STARTS = 24


@dataclass(frozen=True, eq=False)
class Majority:
    """How firmly the majority of a fit is identified; made by ``res.majority()``.

    Attributes
    ----------
    rival : Series or None
        The parameter that the best rival half shares; None where every start leads to the fit's own.
    excess : float
        By how much that half fits worse than the fit's, in deviance per unit of dispersion; infinite without a rival.
    overlap : float
        Share of the rival half that belongs to the fit's half too.
    breakdown : int
        How many clients would have to follow the rival instead of the fit before its half fits better; without a
        rival, before half of the clients are off.
    clients : DataFrame
        One row a client. weight; margin : deviance at the rival less that at the estimate, per unit of dispersion,
        negative for clients that the rival suits better; removals : how many other clients would have to be left out
        before this one's verdict (weight above or below one half) changes, to first order, the most influential
        first; infinite where half of the clients do not suffice.
    coefficients : DataFrame
        One row a coefficient. se : how many clients would have to be left out to move it by one standard error; sign :
        to change its sign; both to first order, most influential first; moved : by how many standard errors the
        estimate, weights estimated anew, really moves without the clients counted under `se`.

    Examples
    --------
    >>> import adfl_stats as ad
    >>> sim = ad.simulate.paper_linear(abnormal=0.4, corruption="MP", seed=1, M=20, n=60, p=3)
    >>> data = ad.ClientData.from_arrays(sim.X, sim.y, sim.client)
    >>> model = ad.DecentralizedGLM(data, ad.networks.directed_circle(20, 5))
    >>> firm = model.fit().majority()
    >>> 0 < firm.breakdown < 10, firm.excess > 0.0
    (True, True)
    """

    rival: pd.Series | None
    excess: float
    overlap: float
    breakdown: int
    clients: pd.DataFrame
    coefficients: pd.DataFrame

    def to_frame(self) -> pd.DataFrame:
        """Return one row a client.

        Returns
        -------
        DataFrame
            weight, margin and removals; see `clients`.

        Examples
        --------
        >>> import adfl_stats as ad
        >>> sim = ad.simulate.paper_linear(abnormal=0.2, corruption="BF", seed=1, M=20, n=50, p=3)
        >>> data = ad.ClientData.from_arrays(sim.X, sim.y, sim.client)
        >>> res = ad.DecentralizedGLM(data, ad.networks.directed_circle(20, 5)).fit(keep_data=True)
        >>> majority = res.majority()
        >>> list(majority.to_frame().columns)
        ['weight', 'margin', 'removals']
        """
        return self.clients.copy()

    def __str__(self) -> str:
        few = self.clients.sort_values("removals").head(5)
        tables = [
            "Clients to leave out before a coefficient changes",
            self.coefficients.to_string(float_format=_number),
            "",
            "Clients whose verdict depends on the fewest others",
            few.to_string(float_format=_number),
        ]
        return framed("Identification of the majority", "\n".join(tables), self._notes)

    __repr__ = __str__

    def _repr_html_(self) -> str:
        notes = "".join(f"<p>{html.escape(note)}</p>" for note in self._notes)
        tables = self.coefficients.to_html(float_format=_number) + self.clients.to_html(float_format=_number)
        return printable_lines(f"<h3>Identification of the majority</h3>{notes}{tables}")

    @property
    def _notes(self) -> list[str]:
        count = len(self.clients)
        if self.rival is None:
            return [
                "No rival: no start leads to an estimate that is clearly another.",
                f"{self.breakdown} further of {count} clients would have to be abnormal to reach one half.",
            ]
        liked = int((self.clients["margin"] < 0.0).sum())
        return [
            f"The best rival half fits worse by {self.excess:.1f} in deviance (twice the log-likelihood). It shares "
            f"{self.overlap:.0%} of its clients with this fit's half; it suits {liked} of {count} clients better.",
            f"{self.breakdown} more client(s) would have to follow the rival before its half fits better.",
        ]


def _number(value: float) -> str:
    return f"{value:.4g}"


def majority_of(res: Results) -> Majority:
    """Look for a rival half, and count the clients that decide."""
    return on_problem(res, "majority()", lambda problem: _identified(res, problem))


def _identified(res: Results, fitted: Problem) -> Majority:
    """Do the same, on all places of the problem that was fitted together."""
    refits, fit = Refitter.of(res, "majority", fitted), res.record
    problem, theta = fitted.unpenalised, res.params.to_numpy()
    M, se, members = problem.n_clients, res.bse.to_numpy(), problem.members
    everybody = [np.ones(problem.M, dtype=np.int64)]
    own = next(iter(refit_draws(problem, theta, everybody, refits.heterogeneity, refits.components))).model
    dispersion = own.null.dispersion
    rivals = _rivals(problem, fit, theta, se)
    margins, excess, overlap, rival = np.full(M, np.nan), np.inf, np.nan, None
    breakdown = max(int(np.ceil(M / 2)) - int((fit.weights < 0.5).sum()), 0)
    if len(rivals):
        points = np.vstack([theta, rivals])
        deviances = members.gather(client_deviances(problem.glm.data, problem.glm.family, points)) / dispersion
        compared = [_compared(deviances[:, k] - deviances[:, 0]) for k in range(1, len(rivals) + 1)]
        best = int(np.argmin([one[0] for one in compared]))
        excess, overlap, breakdown = compared[best]
        margins, rival = deviances[:, best + 1] - deviances[:, 0], pd.Series(rivals[best], index=res.params.index)
    removals = members.gather(_removals(own, fit.diagnostics.deletion_shift, members))
    clients = pd.DataFrame(
        {"weight": fit.weights, "margin": margins, "removals": removals},
        index=fit.labels.rename(fit.client_name),
    )
    return Majority(rival, excess, overlap, breakdown, clients, _coefficients(res, refits))


def _rivals(problem: Problem, fit: FitRecord, theta: Array, se: Array) -> Array:
    """Return other parameters (R, P) that half of the clients share."""
    aside, starts = fit.weights < 0.5, []
    if aside.any() and not aside.all():
        weights = problem.relative_sizes * problem.members.ours(aside) * problem.objective.counted
        starts.append(weighted_solution(problem, weights, theta))
    if np.isfinite(fit.clients.minority_shift).all():
        starts.append(theta + fit.clients.minority_shift)
    starts = [one for one in starts if np.isfinite(one).all()]
    sets = TrimmedScores(starts=STARTS, seed=1).concentrate(problem, np.array(starts).reshape(-1, problem.P))
    estimates = sets.theta[np.isfinite(sets.misfit)]
    far = (np.abs(estimates - theta) / se).max(axis=1) > APART
    # The centre of the clients set aside is compared even if no half of the clients supports it.
    return np.vstack([estimates[far], *starts]) if starts else estimates[far]


def _compared(margin: Array) -> tuple[float, float, int]:
    """Return the excess misfit of the rival's half, the overlap of the halves, and how many clients must change.

    `margin` (M,) is the deviance at the rival less that at the fit.
    """
    h = majority(len(margin))
    order = np.argsort(margin, kind="stable")
    overlap = len(np.intersect1d(order[:h], order[-h:])) / h
    excess = _misfits(np.sort(margin), h)
    changed = np.sort(margin)
    breakdown = 0
    # Those that change are clients with the largest margins.
    while breakdown < len(margin) and _misfits(np.sort(changed), h) > 0.0:
        last = int(np.argmax(changed))
        changed[last], breakdown = -changed[last], breakdown + 1
    return excess, overlap, breakdown


def _misfits(margin: Array, h: int) -> float:
    """Return the misfit of the rival's half less that of the fit's, for sorted margins."""
    return float(np.maximum(margin[:h], 0.0).sum() - np.maximum(-margin[-h:], 0.0).sum())


def _removals(model: ClientModel, deletion_shift: Array, members: Members) -> Array:
    """Return how many others must be left out before a client's probability of being normal crosses one half.

    Leaving client j out moves the centre by its `deletion_shift`, a row for each of all clients, and a move D of the
    centre adds to a client's log odds s'D - D'LD / 2, with s its score and L its information about the centre. The
    result (M,) is of the clients that are ours.
    """
    M, P = deletion_shift.shape
    informative, normal = model.summaries.ranks > 0, np.clip(model.weights, 1e-300, 1.0 - 1e-16)
    odds, moves = np.log(normal) - np.log1p(-normal), np.nan_to_num(deletion_shift) / model.units
    T = model.scored_spread()
    scores, half = model.scores.inflated(model.inflation), M // 2
    left = np.linalg.solve(np.eye(P) + scores.information @ T, scores.information)
    slopes = np.linalg.solve(np.eye(P) + scores.information @ T, scores.slopes[:, :, None])[:, :, 0]
    out, numbers = np.full(len(informative), np.inf), members.ours(np.arange(M))
    for k, m in enumerate(np.flatnonzero(informative)):
        towards = 1.0 if odds[m] < 0.0 else -1.0
        gains = towards * (moves @ slopes[k])
        gains[numbers[m]] = -np.inf
        order = np.argsort(-gains, kind="stable")[:half]
        path = np.cumsum(moves[order[gains[order] > 0.0]], axis=0)
        change = path @ slopes[k] - 0.5 * np.einsum("ri,ij,rj->r", path, left[k], path)
        enough = towards * change >= np.abs(odds[m])
        if enough.any():
            out[m] = int(np.argmax(enough)) + 1
    return out


def _coefficients(res: Results, refits: Refitter) -> pd.DataFrame:
    """Return how many clients decide about each coefficient."""
    deletion_shift, params, se = res.record.diagnostics.deletion_shift, res.params.to_numpy(), res.bse.to_numpy()
    M, rows, sets = len(deletion_shift), [], []
    for k, name in enumerate(res.params.index):
        counts, chosen = _fewest(deletion_shift[:, k], se[k])
        rows.append(
            {"coefficient": name, "se": counts, "sign": _fewest(deletion_shift[:, k], params[k], signed=True)[0]}
        )
        sets.append(chosen)
    draws = [np.where(chosen, 0, 1) for chosen in sets]
    for row, k, one in zip(rows, range(len(rows)), refits.each(draws), strict=True):
        row["moved"] = (one.theta[k] - params[k]) / se[k] if np.isfinite(row["se"]) else np.nan
    return pd.DataFrame(rows).set_index("coefficient").rename_axis(None) if M else pd.DataFrame(rows)


def _fewest(deletion_shift: Array, distance: float, *, signed: bool = False) -> tuple[float, Mask]:
    """Return the least number of clients whose shifts add up to a distance, and which; infinite beyond half of them.

    With `signed` the move is against the sign of `distance`, else in the direction that takes fewer.
    """
    best, which = np.inf, np.zeros(len(deletion_shift), dtype=bool)
    for sign in (-np.sign(distance),) if signed else (1.0, -1.0):
        gains = sign * np.nan_to_num(deletion_shift)
        order = np.argsort(-gains, kind="stable")[: len(deletion_shift) // 2]
        reached = np.cumsum(np.maximum(gains[order], 0.0)) >= np.abs(distance)
        if reached.any() and int(np.argmax(reached)) + 1 < best:
            best = float(np.argmax(reached)) + 1.0
            which = np.isin(np.arange(len(deletion_shift)), order[: int(best)])
    return best, which
