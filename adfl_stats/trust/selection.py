"""Which parts the model of clients has: a spread, a coherent minority, gross clients; chosen by penalised likelihood.

The search begins with all combinations of components without a spread. A spread is added to the best of them where its
score test at zero indicates that it may lower the criterion, and then components and directions to the best of these.
With many coefficients no spread is tried unless it is asked for; scores may only be overdispersed.

Constants marked ours are judged by `benchmarks/constants.py`.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace

import numpy as np

from adfl_stats._types import Array, Ints, Mask
from adfl_stats.trust.candidates import FEW, GROSS_PRICE, PREFERENCE, Candidate, price_of
from adfl_stats.trust.chance import BEHIND, Chance
from adfl_stats.trust.mixture import (
    GROSS,
    NORMAL,
    ClientScores,
    MixtureRuns,
    coherent_runs,
    gross_runs,
    mechanism_runs,
    normal_run,
    run_on,
)
from adfl_stats.trust.spread import Spread, common_excess, excess, fit_spread, inflated, next_direction, pivots

__all__ = ["LEAST_FOR_SPREAD", "LEAST_MAJORITY", "MANY_CLIENTS", "MANY_COEFFICIENTS", "choose", "some_clients"]


# With more clients the model is chosen on this many of them. Ours: bounds the time of the search.
MANY_CLIENTS = 1000
# With more coefficients clients that differ are described by overdispersed scores, of variance c J_m, and by heavy
# tails. That is T_m = (c - 1) J_m^-1: effects in proportion to the sampling variance of a client's estimate, one T
# where clients have like covariates and as many rows. Ours: each step for a T of all coefficients factors a matrix of
# that size for each client, and variances one by one cost P log M, 947 with the 189 of `benchmarks/images.py --bymi`,
# which they would have to gain beyond c.
MANY_COEFFICIENTS = 100
# Least clients for a minority, a spread, gross clients. Ours: below them the components are not identified.
LEAST_FOR_MINORITY, LEAST_FOR_SPREAD, LEAST_FOR_GROSS = 8, 4, 3
# Clients of full rank (or as many ranks in others) from which on corruptions of known form are tried. Ours: with fewer,
# noise dominates the estimate from which the expected scores are computed.
LEAST_FOR_MECHANISM = 10
# A spread is tried where the mean over clients of min(p, 1 - p), p the probability of normal, exceeds this. Ours:
# trying a spread costs time only.
DOUBT = 0.01
# A spread is tried where the sum of its squared score tests is this many standard deviations above its mean. Ours:
# about the one-sided .99 point, as trying a spread costs time only and its price is paid afterwards.
SPREAD_DEVIATIONS = 2.5
# Coefficients with a smaller score test get no variance of their own. Ours: half a standard deviation of that test.
ACTIVE = 0.5
# What is added to a score test of a spread, in standard deviations, before its square is taken as what the spread may
# gain at most. Ours: without a spread the test exceeds it in 2 % of the data sets.
TEST_MARGIN = 2.0
# A spread is tried where the largest excess variance is this many times what chance brings in the limit of many
# clients. Ours: room for the error of that limit.
EDGE_MARGIN = 1.1
# Most directions of spread. Ours: bounds the search.
MOST_DIRECTIONS = 3
# A model needs at least this share of normal clients. Section 3.1 of the paper has more than one half; ours: slightly
# less, so that a model with nearly half is kept and the fit warns of it.
LEAST_MAJORITY = 0.45


class _Search:
    """The candidates so far."""

    def __init__(self, scores: ClientScores, seeds: Array, constants: Ints | None) -> None:
        self.scores, self.seeds, self.constants = scores, seeds, constants
        self.basis = pivots(scores, constants)
        self.none = Spread.of(scores, np.zeros(0, dtype=np.int64))
        self.candidates: list[Candidate] = []
        self.tries_mechanisms = bool(scores.members.sum(scores.ranks) >= LEAST_FOR_MECHANISM * scores.P)

    def add(self, spread: Spread, runs: MixtureRuns) -> Candidate:
        price = price_of(spread, runs, self.scores.n_clients)
        candidate = Candidate(spread, runs, price, self.scores.mechanisms)
        # Models in which a minority is normal are left out, and those that overflowed.
        if runs.majority > LEAST_MAJORITY and np.isfinite(candidate.criterion):
            self.candidates.append(candidate)
        return candidate

    def best(self, candidates: list[Candidate] | None = None) -> Candidate:
        return min(self.candidates if candidates is None else candidates, key=lambda one: one.criterion)

    def components(self, spread: Spread) -> list[MixtureRuns]:
        """Return the runs of every combination of components at a given spread."""
        marginal = spread.integrated(self.scores)
        plain = normal_run(marginal)
        if self.scores.n_clients < LEAST_FOR_GROSS:
            return [plain]
        gross = gross_runs(marginal, np.vstack([plain.centres, self.seeds]))
        runs = [plain, gross]
        if self.scores.n_clients >= LEAST_FOR_MINORITY:
            begin = np.vstack([plain.centres, gross.centres])
            far = 2.0 * (gross.log_likelihoods - plain.log_likelihoods)[0] > GROSS_PRICE
            for beside in (False, True) if far else (False,):
                known = mechanism_runs(marginal, begin, gross=beside) if self.tries_mechanisms else None
                runs += [coherent_runs(marginal, begin, gross=beside), *([] if known is None else [known])]
        return runs

    def may_lead(self, base: Candidate, spread: Spread) -> bool:
        """Return whether a spread beside the components of a model may make it the best one.

        About T = 0 the likelihood gains the square of a score test that is positive, and nothing if it is negative.
        """
        if spread.common:
            gain = (max(common_excess(self.scores, base.runs, self.basis), 0.0) + TEST_MARGIN) ** 2
        else:
            tests = np.sort(np.maximum(excess(self.scores, base.runs, self.basis)[0][spread.active], 0.0))
            gain = float(np.square(tests[:-1]).sum() + (tests[-1] + TEST_MARGIN) ** 2)
        more = price_of(spread, base.runs, self.scores.n_clients) - price_of(
            self.none, base.runs, self.scores.n_clients
        )
        return base.criterion + more - gain < self.best().criterion

    def grow(self, bases: list[Candidate], spread: Spread) -> None:
        """Add a spread to some models, and other components to the best of these."""
        grown = [self.spread(spread, base.runs) for base in bases]
        grown = [one for one in grown if np.isfinite(one.criterion)]
        if grown:
            self.complete(self.best(grown))

    def complete(self, best: Candidate) -> None:
        """Add models with the spread of one and other components."""
        for runs in self.components(best.spread):
            kind = (runs.shifts is None, runs.mechanism, bool(runs.shares[0, GROSS].any()))
            if kind != (best.runs.shifts is None, best.runs.mechanism, best.gross):
                self.spread(best.spread, runs)

    def spread(self, spread: Spread, runs: MixtureRuns) -> Candidate:
        """Fit a spread and the components of a run together, to the end where it may matter."""
        price = price_of(spread, runs, self.scores.n_clients)
        least = 0.5 * (price - self.best().criterion - BEHIND) if self.candidates else -np.inf
        return self.add(*fit_spread(self.scores, spread, runs, least))

    def simple(self) -> list[Candidate]:
        """Return the best models without a coherent minority: one without and one with gross clients."""
        plain = [one for one in self.candidates if not one.coherent]
        kinds = ([one for one in plain if one.gross == gross] for gross in (False, True))
        return [self.best(kind) for kind in kinds if kind]

    def resume(self, candidates: Sequence[Candidate]) -> None:
        """Go on with candidates from where they were at an estimate close by, one of each kind."""
        for one in {one.words: one for one in reversed(candidates)}.values():
            if one.spread:
                self.spread(one.spread, one.runs)
            else:
                self.add(self.none, run_on(self.scores, one.runs))


def choose(
    scores: ClientScores,
    seeds: Array,
    heterogeneity: str,
    chance: Chance,
    *,
    hasty: bool = False,
    only: Ints | None = None,
    near: Sequence[Candidate] = (),
    constants: Ints | None = None,
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
    chance : Chance
        What minorities gain among normal clients.
    hasty : bool
        Whether this is the first pass, at provisional noise levels, with fewer models.
    only : ndarray of int, optional
        The coefficients that clients may differ in.
    near : sequence of Candidate
        Those of an estimate close by, in units of `scores`, to go on with; if there are any no others are tried.
    constants : ndarray of int, optional
        The coefficients of constants.
    """
    if scores.n_clients > MANY_CLIENTS:
        return _chosen_on_some(scores, seeds, heterogeneity, chance, hasty=hasty, only=only, constants=constants)
    search, asked = _Search(scores, seeds, constants), heterogeneity in ("estimate", "intercept")
    search.resume(near)
    # Models with a coherent minority are compared with one without: search where no candidate is of that kind.
    if not search.simple():
        _searched(search, asked=asked, allowed=heterogeneity != "none", hasty=hasty, only=only)
    kept = [one for one in search.candidates if not asked or one.spread.factor.shape[1]]
    kept = chance.raised(kept or search.candidates, behind=0.0 if hasty else BEHIND)
    return sorted(kept, key=lambda one: one.criterion)


def _searched(search: _Search, *, asked: bool, allowed: bool, hasty: bool, only: Ints | None) -> None:
    """Fit models without a spread, and with one if it is asked for, or allowed and indicated by the data."""
    scores = search.scores
    for runs in search.components(search.none):
        search.add(search.none, runs)
    best = search.best()
    spreads = asked or (allowed and _shows_spread(scores, best.runs, search.basis, hasty=hasty))
    if not spreads or scores.n_clients < LEAST_FOR_SPREAD:
        return
    bases = list({id(one): one for one in (*search.simple(), best)}.values())
    if only is not None:
        search.grow(bases, Spread.of(scores, only))
        return
    if scores.P > MANY_COEFFICIENTS and not asked:
        _add_inflation(search, np.zeros(0, dtype=np.int64))
        _add_tails(search)
        return
    tests = np.max([excess(scores, base.runs, search.basis)[0] for base in search.simple()], axis=0)
    active = np.flatnonzero(tests > ACTIVE) if (tests > ACTIVE).any() else np.array([int(np.argmax(tests))])
    every = Spread.of(scores, np.arange(scores.P), search.basis, common=True)
    for spread in (every, Spread.of(scores, active, search.basis)):
        search.grow([base for base in bases if asked or search.may_lead(base, spread)], spread)
    _add_inflation(search, active)
    _add_directions(search)
    _add_own_pivots(search)
    _add_tails(search)


def _chosen_on_some(
    scores: ClientScores,
    seeds: Array,
    heterogeneity: str,
    chance: Chance,
    *,
    hasty: bool,
    only: Ints | None,
    constants: Ints | None,
) -> list[Candidate]:
    """Choose the model on some of many clients, and fit the best of its kind to all, with the spread found on some."""
    some = some_clients(scores)

    chance = chance.on(some)
    chosen = choose(scores.of(some), seeds, heterogeneity, chance, hasty=hasty, only=only, constants=constants)
    marginal = chosen[0].spread.integrated(scores)
    alike = {one.words: one for one in reversed(chosen) if one.words[0] == chosen[0].words[0]}
    whole = [replace(one, runs=run_on(marginal, one.runs), spread=chosen[0].spread) for one in alike.values()]
    return sorted(whole, key=lambda one: one.criterion)


def some_clients(scores: ClientScores) -> Mask:
    """Return which of ours are among `MANY_CLIENTS` clients, drawn by digits of their statistics, not by order."""
    digits = np.modf(1e6 * scores.members.gather(scores.squares))[0]
    some = np.zeros(len(digits), dtype=bool)
    some[np.argsort(digits, kind="stable")[:MANY_CLIENTS]] = True
    return scores.members.ours(some)


def _add_inflation(search: _Search, active: Ints) -> None:
    """Try overdispersed scores (a variance of c J_m), alone and beside a variance of some coefficients."""
    for some in [np.zeros(0, dtype=np.int64), *([active] if len(active) else [])]:
        bases = (search.simple()[0], search.best())
        for base in {id(one): one for one in bases}.values():
            spread = inflated(search.scores, some, base.runs, search.basis)
            one = search.spread(spread, base.runs)
            # Where clients have like covariates the two are nearly the same model, and a spread is more specific.
            if one.criterion < base.criterion - (0.0 if base.spread.inflated else PREFERENCE):
                search.complete(one)
            elif one in search.candidates:
                search.candidates.remove(one)


def _add_own_pivots(search: _Search) -> None:
    """Try slopes that pivot about each client's own means, where clients would be set aside."""
    best, simple = search.best(), search.simple()[0]
    if search.constants is None or not (best.gross or best.coherent):
        return
    every = np.arange(search.scores.P)
    spread = replace(Spread.of(search.scores, every, search.basis), own=search.constants)
    search.grow(list({id(one): one for one in (simple, best)}.values()), spread)
    wider = replace(inflated(search.scores, every, simple.runs, search.basis), own=search.constants)
    search.spread(wider, simple.runs)


def _add_tails(search: _Search) -> None:
    """Try heavier tails of the clients' effects, where clients would be set aside."""
    best = search.best()
    if not best.gross and not best.coherent:
        return
    spread = [one for one in search.candidates if one.spread]
    simple = [one for one in spread if not one.coherent and not one.gross]
    bases = [search.best(kind) for kind in (spread, simple) if kind]
    for base in {id(one): one for one in bases}.values():
        search.grow([base], replace(base.spread, heavy=True))


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


def _shows_spread(scores: ClientScores, runs: MixtureRuns, basis: Array | None, *, hasty: bool) -> bool:
    """Return whether the best model without a spread leaves excess variance, or many probabilities near one half.

    On the first pass only the second counts, as noise levels are not final.
    """
    if scores.n_clients < FEW and not hasty:
        return True
    normal = runs.posteriors[:, 0, NORMAL]
    doubt = float(scores.members.mean(np.minimum(normal, 1.0 - normal)))
    if hasty or doubt > DOUBT:
        return doubt > DOUBT
    # Half of the tests are negative without a spread; the squares of the others add up to P / 2, variance 5 P / 4.
    beyond = np.square(np.maximum(excess(scores, runs, basis)[0], 0.0)).sum()
    if beyond > 0.5 * scores.P + SPREAD_DEVIATIONS * np.sqrt(1.25 * scores.P):
        return True
    # Beyond the largest eigenvalue that chance brings (Marchenko and Pastur).
    edge = (1.0 + np.sqrt(scores.P / scores.members.sum(normal))) ** 2 - 1.0
    return bool(next_direction(scores, runs)[1] > EDGE_MARGIN * edge)
