"""Whether there are abnormal clients, and of which kind, where links are not linear: readings compared by likelihood.

The mixture of `mixture` proposes minorities from scores, which are linear in the clients' effects to first order. Here
each proposal is fitted with the rows' own likelihood (see `readings`), beside the reading that clients only differ.

Constants marked ours are judged by `benchmarks/constants.py`.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, replace

import numpy as np

from adfl_stats._types import Array, Ints
from adfl_stats.engine.problem import Problem
from adfl_stats.trust.laplace import ClientLikelihoods
from adfl_stats.trust.reading_fits import fit_reading, probabilities
from adfl_stats.trust.readings import Clients, Law, Reading, law_of
from adfl_stats.trust.scoring import client_scores, null_of, summarised
from adfl_stats.trust.selection import LEAST_FOR_SPREAD, LEAST_MAJORITY, MANY_CLIENTS, some_clients
from adfl_stats.trust.spread import pivots

__all__ = ["Proposal", "best_reading"]


# Least lead of a reading with abnormal clients. From here on evidence is called strong (Kass and Raftery, 1995,
# Journal of the American Statistical Association 90, 773-795); with less, no client is set aside.
STRONG = 6.0
# Variances of effects below this, in squared standard errors of a typical client, are left out. Ours: they add less
# than a quarter to a client's variance, and cost as much as others.
SMALL_VARIANCE = 0.25
# With more coefficients that differ, these have one variance, and no further laws are tried. Ours: bounds the time, and
# so many variances would have to be supported by as many clients.
MOST_VARIANCES = 10
# A reading is fitted to its end if it may come so near to the best one. Ours: the next law may do better by as much.
NEAR_BEST = 10.0
# With more rows readings are fitted to some of each client's. Ours: bounds the time; clients of so many rows differ by
# more than their standard errors.
MOST_ROWS = 200_000
# Most clients that can be gross, as a share. Ours: more would be described by heavier tails of the effects.
MOST_GROSS = 0.25


@dataclass(frozen=True, eq=False)
class Proposal:
    """Where the fit of a reading with a minority begins: the normal clients' parameter, the minority's less that."""

    theta: Array
    shift: Array | None = None


def best_reading(
    problem: Problem,
    pooled: Array,
    proposals: Mapping[str, Proposal],
    only: Ints | None = None,
    constants: Ints | None = None,
    gross: Proposal | None = None,
    *,
    spread: bool = False,
) -> Reading | None:
    """Fit the readings and return the best one; None where there are too few clients for a law of effects.

    Parameters
    ----------
    problem : Problem
        Data and family.
    pooled : ndarray (P,)
        The pooled estimate.
    proposals : mapping
        From the kinds of minority to where they begin.
    only, constants : ndarray of int, optional
        The coefficients that clients may differ in, and those of constants.
    gross : Proposal, optional
        Where a reading with gross clients and no minority begins; None where there are none.
    spread : bool
        Whether clients differ in every reading.
    """
    if problem.n_clients < LEAST_FOR_SPREAD:
        return None
    summaries = summarised(problem, pooled)
    null = null_of(problem, summaries, np.ones(problem.M, dtype=bool))
    scores, units, informative = client_scores(summaries, null)
    basis = pivots(scores, constants)
    columns = units[:, None] * (np.eye(problem.P) if basis is None else basis)
    counted = informative & ~summaries.lost & problem.objective.counted
    information = summaries.factors.transpose(0, 2, 1) @ summaries.factors / null.dispersions[:, None, None]
    likelihoods = ClientLikelihoods(problem.glm.data, problem.glm.family, null.dispersions)
    everybody = Clients(likelihoods, problem.members, counted, information, units)
    chosen = np.ones(problem.M, dtype=bool)
    if problem.n_clients > MANY_CLIENTS:
        chosen = informative.copy()
        chosen[informative] = some_clients(scores)
    rows = float(problem.members.sum(problem.glm.data.sizes * chosen))
    few = problem.n_clients <= MANY_CLIENTS and rows <= MOST_ROWS
    some = everybody if few else everybody.some(chosen, MOST_ROWS / rows)
    active = np.arange(problem.P) if only is None else only
    best = _Comparison(some, pooled, proposals, gross, columns, active).best(spread=spread)
    if best is None or some is everybody:
        return best
    # Inflation is in units of the clients' own precision, which is that of all their rows again.
    share = min(MOST_ROWS / rows, 1.0)
    law = replace(best.law, inflation=1.0 + (best.law.inflation - 1.0) / share)
    minority_inflation = 1.0 + (best.minority_inflation - 1.0) / share
    return probabilities(everybody, replace(best, law=law, minority_inflation=minority_inflation))


class _Comparison:
    """The readings so far."""

    def __init__(
        self,
        clients: Clients,
        pooled: Array,
        proposals: Mapping[str, Proposal],
        gross: Proposal | None,
        columns: Array,
        active: Ints,
    ) -> None:
        self._clients, self._columns, self._active = clients, columns, active
        self._proposals, self._gross = {"": Proposal(pooled), **proposals}, gross
        self._readings: list[Reading] = []

    def _law(self, kind: str) -> Law:
        """Return a law to begin with: "none", "some", or the latter "inflated" or "heavy"."""
        active = self._active[:0] if kind == "none" else self._active
        common = len(active) > MOST_VARIANCES
        return law_of(self._columns, active, common=common, inflated=kind == "inflated", heavy=kind == "heavy")

    def _fit(self, minority: str, law: str, *, gross: bool = False) -> None:
        """Fit a reading, and again without variances that are small."""
        begin = self._gross if gross and self._gross and not minority else self._proposals[minority]
        reading = self._fitted(minority, self._law(law), begin.theta, begin.shift, gross=gross)
        large = reading.law.variances > SMALL_VARIANCE
        if not large.all() and not reading.law.common:
            fewer = replace(reading.law, variances=reading.law.variances[large], columns=reading.law.columns[:, large])
            self._fitted(minority, fewer, reading.theta, reading.shift, gross=gross)

    def _fitted(self, minority: str, law: Law, theta: Array, shift: Array | None, *, gross: bool) -> Reading:
        with np.errstate(all="ignore"):
            wanted = self._wanted(simple=not minority and not gross)
            reading = fit_reading(self._clients, minority, law, theta, shift, gross=gross, wanted=wanted)
        mean = self._clients.sum(reading.posteriors) / max(self._clients.n_clients, 1)
        if np.isfinite(reading.criterion) and mean[0] > LEAST_MAJORITY and mean[2] <= MOST_GROSS:
            self._readings.append(reading)
        return reading

    def _wanted(self, *, simple: bool) -> float:
        """Return the criterion that a further reading must reach to become the best, or to change which one is."""
        least = min((one.criterion for one in self._readings), default=np.inf)
        return least + (STRONG if simple else 0.0) + NEAR_BEST

    def _leader(self, *, simple: bool) -> Reading | None:
        kind = [one for one in self._readings if one.simple == simple]
        return min(kind, key=lambda one: one.criterion, default=None)

    def _abnormal(self) -> Reading | None:
        """Return the best reading with abnormal clients, if it leads by strong evidence."""
        plain, other = self._leader(simple=True), self._leader(simple=False)
        if plain is None or other is None or other.criterion + STRONG >= plain.criterion:
            return None
        return other

    def best(self, *, spread: bool) -> Reading | None:
        """Fit readings for as long as one may change the outcome, and return the best one."""
        for law in ("some",) if spread else ("none", "some"):
            for minority in self._proposals:
                self._fit(minority, law)
                if self._gross:
                    self._fit(minority, law, gross=True)
        for law in ("inflated", "heavy") if len(self._active) <= MOST_VARIANCES else ():
            leader = self._abnormal()
            if leader is None:
                break
            # With another law of effects abnormal clients may not be needed, or the fit with them may be better.
            self._fit("", law)
            if self._abnormal() is None:
                for minority, beside in sorted({(one.minority, one.gross) for one in self._near(leader)}):
                    self._fit(minority, law, gross=beside)
        return self._abnormal() or self._leader(simple=True)

    def _near(self, leader: Reading) -> list[Reading]:
        """Return the readings with abnormal clients that are about as good as the best of them."""
        return [one for one in self._readings if not one.simple and one.criterion < leader.criterion + STRONG]
