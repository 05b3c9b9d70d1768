"""Which parts the model of clients has: a spread, a coherent minority, gross clients; chosen by penalised likelihood.

A model costs twice what its log-likelihood would gain by chance. A variance costs log M (Schwarz, 1978). A coherent
minority, or a direction of spread, is a search over directions, to which that criterion does not apply. The price of a
minority is 3 plus the .95 quantile of chi-square with 2 P degrees of freedom: in `benchmarks/trust.py`, for clients
that share one parameter (P from 1 to 50, M from 20 to 400), twice the gain exceeds it in less than 1 % of the data sets
over all sizes, and in 2 % at P = 1, M = 400. A direction of spread costs less, so that of two models that fit alike the
one without abnormal clients is chosen.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator
from dataclasses import dataclass, replace
from typing import TypeAlias

import numpy as np
from scipy import stats

from adfl_stats._types import Array, Ints, Mask
from adfl_stats.trust.mixture import (
    GROSS,
    NORMAL,
    ClientScores,
    Runs,
    coherent_runs,
    gross_runs,
    mechanism_runs,
    normal_run,
    run_on,
)
from adfl_stats.trust.spread import Spread, excess, fit_spread, next_direction

__all__ = ["Candidate", "choose"]

Resample: TypeAlias = Callable[[Array, int], Iterator[ClientScores] | None]

# Price of gross clients, in units of twice a log-likelihood. Ours: three times the .99 quantile of what
# normal scores gain by chance (at most 4.7, `benchmarks/trust.py`), as scores may have heavier tails than their t.
GROSS_PRICE = 15.0
# Price of a coherent minority beyond the .95 quantile of chi-square with 2 P df; from `benchmarks/trust.py`, see above.
SEARCH_PRICE = 3.0
# Price of a minority with a corruption of known form: its share and width, and a choice of a few forms. Ours: about the
# .99 quantile of what normal scores gain by chance (about 7 with 20 clients, 5 with 100; `benchmarks/trust.py`).
MECHANISM_PRICE = 8.0
# What a direction of spread costs less than a minority. Ours: of two models that fit alike, the one without abnormal
# clients is preferred; an error of that kind costs precision, the other one costs normal clients their weight.
PREFERENCE = 5.0
# Up to this many clients a spread is always tried, and a variance costs less than log M. Ours: with so few clients
# tests of a spread have little power, so that it is allowed for instead.
FEW = 20
# With more clients the model is chosen on this many of them. Ours: bounds the time of the search.
MANY = 1000
# Further price of a minority, or of gross clients, beside a spread. Ours: the effects of clients need not be normal,
# and their tail is neither.
UNCERTAIN = 5.0
# The same of a corruption of known form. Ours: less, as few tails lie in its direction; judged by
# "poisson-tau1-permute" and Hsb82 in `benchmarks/real_clients.py`.
MECHANISM_UNCERTAIN = 2.0
# Least clients for a minority, a spread, gross clients. Ours: below them the components are not identified.
LEAST_FOR_MINORITY, LEAST_FOR_SPREAD, LEAST_FOR_GROSS = 8, 4, 3
# Clients of full rank, or as much in others, from which corruptions of known form are tried. Ours: with fewer the
# clients' own noise makes the estimate that the expected scores come from.
LEAST_FOR_MECHANISM = 10
# A spread is tried where the mean over clients of min(p, 1 - p), p the probability of normal, exceeds this. Ours.
DOUBT = 0.01
# A spread is tried where the sum of its squared score tests is this many standard deviations above its mean. Ours:
# about the one-sided .99 point, as trying a spread costs time only and its price is paid afterwards.
CHANCE = 2.5
# Coefficients with a smaller score test get no variance of their own. Ours: half a standard deviation of that test.
ACTIVE = 0.5
# Most directions of spread. Ours: bounds the search.
MOST_DIRECTIONS = 3
# A model needs at least this share of normal clients. Section 3.1 of the paper has more than one half; ours: slightly
# less, so that a model with nearly half is kept and the fit warns of it.
LEAST_MAJORITY = 0.45
# A minority whose criterion leads by less than this is checked by a parametric bootstrap. Ours: saves the
# bootstrap where the lead is large.
CHECKED_LEAD = 40.0
# Bootstrap data sets, and standard deviations above their mean gain that a minority must reach. Ours: a
# normal approximation to the .999 quantile, which by itself would take thousands of data sets.
RESAMPLES, DEVIATIONS = 20, 3.0
# A minority that is behind by more than this is not checked: its share in the averaged probabilities is below exp(-6).
BEHIND = 12.0


@dataclass(frozen=True, eq=False)
class Candidate:
    """One model: its spread, its components, and twice its negative log-likelihood plus its price."""

    spread: Spread
    runs: Runs
    price: float
    mechanisms: tuple[str, ...] = ()

    @property
    def criterion(self) -> float:
        """Smaller is better."""
        return float(self.price - 2.0 * self.runs.log_likelihoods[0])

    @property
    def coherent(self) -> bool:
        """Whether it has a coherent minority."""
        return self.runs.coherent

    @property
    def minority(self) -> str:
        """What the coherent minority has in common: nothing, a shift, or the name of a corruption of known form."""
        if self.runs.mechanism is not None:
            return self.mechanisms[self.runs.mechanism]
        return "coherent" if self.coherent else ""

    @property
    def gross(self) -> bool:
        """Whether it has gross clients."""
        return bool(self.runs.shares[0, GROSS].any())

    @property
    def words(self) -> tuple[str, str]:
        """Its spread and its components in words."""
        parts = ["normal", *([self.minority] if self.coherent else []), *(["gross"] if self.gross else [])]
        return self.spread.name, " + ".join(parts)


def price_of(spread: Spread, runs: Runs, M: int) -> float:
    """Return what a model costs, in units of twice a log-likelihood."""
    search = minority_price(len(spread.variances))
    price = spread.n_variances * min(np.log(M), 2.0 * M / FEW) + spread.n_directions * (search - PREFERENCE)
    if runs.coherent:
        own, beside = (search, UNCERTAIN) if runs.mechanism is None else (MECHANISM_PRICE, MECHANISM_UNCERTAIN)
        price += own + (beside if spread.factor.shape[1] else 0.0)
    if runs.shares[0, GROSS].any():
        price += GROSS_PRICE + (UNCERTAIN if spread.factor.shape[1] else 0.0)
    return float(price)


def minority_price(P: int) -> float:
    """Return what a coherent minority costs."""
    return float(SEARCH_PRICE + stats.chi2.ppf(0.95, 2 * P))


class _Search:
    """The candidates so far."""

    def __init__(self, scores: ClientScores, seeds: Array) -> None:
        self.scores, self.seeds = scores, seeds
        self.none = Spread.of(scores, np.zeros(0, dtype=np.int64))
        self.candidates: list[Candidate] = []
        self.knows = bool(scores.members.sum(scores.ranks) >= LEAST_FOR_MECHANISM * scores.P)

    def add(self, spread: Spread, runs: Runs) -> Candidate:
        price = price_of(spread, runs, self.scores.n_clients)
        found = Candidate(spread, runs, price, self.scores.mechanisms)
        # Models in which a minority is normal are left out, and those that overflowed.
        if runs.majority > LEAST_MAJORITY and np.isfinite(found.criterion):
            self.candidates.append(found)
        return found

    def best(self, candidates: list[Candidate] | None = None) -> Candidate:
        return min(self.candidates if candidates is None else candidates, key=lambda one: one.criterion)

    def components(self, spread: Spread) -> list[Runs]:
        """Return the runs of every combination of components at a given spread."""
        marginal = spread.integrated(self.scores)
        plain = normal_run(marginal)
        if self.scores.n_clients < LEAST_FOR_GROSS:
            return [plain]
        gross = gross_runs(marginal, np.vstack([plain.centres, self.seeds]))
        found = [plain, gross]
        if self.scores.n_clients >= LEAST_FOR_MINORITY:
            begin = np.vstack([plain.centres, gross.centres])
            far = 2.0 * (gross.log_likelihoods - plain.log_likelihoods)[0] > GROSS_PRICE
            for beside in (False, True) if far else (False,):
                known = mechanism_runs(marginal, begin, gross=beside) if self.knows else None
                found += [coherent_runs(marginal, begin, gross=beside), *([] if known is None else [known])]
        return found

    def grow(self, bases: list[Candidate], spread: Spread) -> Candidate:
        """Add a spread to some models, and other components to the best of these."""
        grown = [self.spread(spread, base.runs) for base in bases]
        best = self.best([one for one in grown if np.isfinite(one.criterion)] or bases)
        for runs in self.components(best.spread):
            kind = (runs.shifts is None, runs.mechanism, bool(runs.shares[0, GROSS].any()))
            if kind != (best.runs.shifts is None, best.runs.mechanism, best.gross):
                self.spread(best.spread, runs)
        return best

    def spread(self, spread: Spread, runs: Runs) -> Candidate:
        """Fit a spread and the components of a run together, to the end where it may matter."""
        price = price_of(spread, runs, self.scores.n_clients)
        least = 0.5 * (price - self.best().criterion - BEHIND) if self.candidates else -np.inf
        return self.add(*fit_spread(self.scores, spread, runs, least))

    def simple(self) -> list[Candidate]:
        """Return the best models without a coherent minority: one without and one with gross clients."""
        plain = [one for one in self.candidates if not one.coherent]
        kinds = ([one for one in plain if one.gross == gross] for gross in (False, True))
        return [self.best(kind) for kind in kinds if kind]


def choose(
    scores: ClientScores,
    seeds: Array,
    heterogeneity: str,
    resample: Resample,
    *,
    hasty: bool = False,
    only: Ints | None = None,
) -> list[Candidate]:
    """Fit models of clients and return them, the best first.

    Parameters
    ----------
    scores : ClientScores
        At a common point, in units in which a typical client's information has unit diagonal.
    seeds : ndarray (S, P)
        Robust guesses of the normal clients' parameter, as deviations from that point.
    heterogeneity : {"auto", "none", "estimate", "intercept"}
        Whether clients may differ: if the criterion chooses it, never, or always.
    resample : callable
        Given T (P, P) in the units of `scores` and a number, returns so many sets of scores of normal clients.
    hasty : bool
        Whether this is the first pass, at provisional noise levels, with fewer models.
    only : ndarray of int, optional
        The coefficients that clients may differ in.
    """
    if scores.n_clients > MANY:
        return _chosen_on_some(scores, seeds, heterogeneity, resample, hasty=hasty, only=only)
    search = _Search(scores, seeds)
    for runs in search.components(search.none):
        search.add(search.none, runs)
    best = search.best()
    asked = heterogeneity in ("estimate", "intercept")
    spreads = asked or (heterogeneity == "auto" and _shows_spread(scores, best.runs, hasty=hasty))
    if spreads and scores.n_clients >= LEAST_FOR_SPREAD:
        bases = list({id(one): one for one in (*search.simple(), best)}.values())
        if only is not None:
            search.grow(bases, Spread.of(scores, only))
        else:
            search.grow(bases, Spread.of(scores, np.arange(scores.P), common=True))
            tests = np.max([excess(scores, base.runs)[0] for base in search.simple()], axis=0)
            active = np.flatnonzero(tests > ACTIVE) if (tests > ACTIVE).any() else np.array([int(np.argmax(tests))])
            search.grow(bases, Spread.of(scores, active))
            _add_directions(search)
    kept = [one for one in search.candidates if not asked or one.spread.factor.shape[1]]
    kept = _checked(kept or search.candidates, resample, behind=0.0 if hasty else BEHIND)
    return sorted(kept, key=lambda one: one.criterion)


def _chosen_on_some(
    scores: ClientScores,
    seeds: Array,
    heterogeneity: str,
    resample: Resample,
    *,
    hasty: bool,
    only: Ints | None,
) -> list[Candidate]:
    """Choose the model on some of many clients, and fit the best of its kind to all, with the spread found on some."""
    some = _some(scores)

    def resample_some(spread: Array, count: int) -> Iterator[ClientScores] | None:
        drawn = resample(spread, count)
        return None if drawn is None else (one.of(some) for one in drawn)

    found = choose(scores.of(some), seeds, heterogeneity, resample_some, hasty=hasty, only=only)
    marginal = found[0].spread.integrated(scores)
    alike = {one.words: one for one in reversed(found) if one.words[0] == found[0].words[0]}
    whole = [replace(one, runs=run_on(marginal, one.runs), spread=found[0].spread) for one in alike.values()]
    return sorted(whole, key=lambda one: one.criterion)


def _some(scores: ClientScores) -> Mask:
    """Return which of ours are of MANY clients drawn by the last digits of their numbers: their order has no part."""
    digits = np.modf(1e6 * scores.members.gather(scores.squares))[0]
    some = np.zeros(len(digits), dtype=bool)
    some[np.argsort(digits, kind="stable")[:MANY]] = True
    return scores.members.ours(some)


def _checked(candidates: list[Candidate], resample: Resample, behind: float) -> list[Candidate]:
    """Raise the price of a minority to what it gains among normal clients, where it leads by little."""
    rival = min((one for one in candidates if not one.coherent), key=lambda one: one.criterion)
    # With a shift of its own, or a corruption of known form.
    checked = []
    for known in (False, True):
        kind = [one for one in candidates if one.coherent and (one.runs.mechanism is not None) == known]
        # Far behind is a corruption of known form that gains hardly anything.
        least = -min(behind, MECHANISM_PRICE - 2.0) if known else -behind
        if least < max((rival.criterion - one.criterion for one in kind), default=-np.inf) <= CHECKED_LEAD:
            checked.append(known)
    sets = resample(rival.spread.covariance, RESAMPLES) if checked else None
    if sets is None:
        return candidates
    gains: dict[bool, list[float]] = {known: [] for known in checked}
    for scores in sets:
        marginal = rival.spread.integrated(scores)
        plain = normal_run(marginal)
        for known in checked:
            minority = (mechanism_runs if known else coherent_runs)(marginal, plain.centres, gross=False)
            if minority is not None:
                gains[known].append(2.0 * float((minority.log_likelihoods - plain.log_likelihoods)[0]))
    prices = {False: minority_price(len(rival.spread.variances)), True: MECHANISM_PRICE}
    more = {
        known: max(float(np.mean(gains[known]) + DEVIATIONS * np.std(gains[known])) - prices[known], 0.0)
        for known in checked
    }
    return [
        replace(one, price=one.price + more.get(one.runs.mechanism is not None, 0.0)) if one.coherent else one
        for one in candidates
    ]


def _add_directions(search: _Search) -> None:
    """Add directions of spread to the best models for as long as that pays."""
    for _ in range(min(MOST_DIRECTIONS, search.scores.P - 1)):
        best = search.best()
        # A model with another spread may be better once it has a direction too.
        minorities = [one for one in search.candidates if one.coherent and not one.spread.n_directions]
        kinds = sorted({(one.spread.common, one.minority) for one in minorities})
        others = [
            search.best([one for one in minorities if (one.spread.common, one.minority) == kind]) for kind in kinds
        ]
        for base in {id(one): one for one in (best, *search.simple(), *others)}.values():
            direction, _ = next_direction(base.spread.integrated(search.scores), base.runs)
            wider = replace(base.spread, directions=np.column_stack([base.spread.directions, direction]))
            search.spread(wider, base.runs)
        if search.best() is best:
            break


def _shows_spread(scores: ClientScores, runs: Runs, *, hasty: bool) -> bool:
    """Return whether the best model without a spread leaves any, or leaves too many clients undecided.

    On the first pass only the second counts, as noise levels are not final.
    """
    if scores.n_clients < FEW and not hasty:
        return True
    normal = runs.posteriors[:, 0, NORMAL]
    doubt = float(scores.members.mean(np.minimum(normal, 1.0 - normal)))
    if hasty or doubt > DOUBT:
        return doubt > DOUBT
    # Half of the tests are negative without a spread; the squares of the others add up to P / 2, variance 5 P / 4.
    beyond = np.square(np.maximum(excess(scores, runs)[0], 0.0)).sum()
    if beyond > 0.5 * scores.P + CHANCE * np.sqrt(1.25 * scores.P):
        return True
    # Beyond the largest eigenvalue that chance brings (Marchenko and Pastur), with room for its own error.
    edge = (1.0 + np.sqrt(scores.P / scores.members.sum(normal))) ** 2 - 1.0
    return bool(next_direction(scores, runs)[1] > 1.1 * edge)
