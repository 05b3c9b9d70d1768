"""The model of clients, fitted: probabilities of following the majority, spread between clients.

theta_m = theta + u_m with u_m ~ (0, T) for normal clients; a coherent minority shares another parameter; gross
clients are far away, each in its own direction. The probability of being normal, given the scores of all, is the
client's weight omega_m in equation (4.1). It measures fit to the majority, not whether data are corrupt. The paper's
normal clients have T = 0; the rest is ours.

Constants marked ours are judged by `benchmarks/constants.py`.
"""

from __future__ import annotations

from dataclasses import dataclass, replace

import numpy as np
from scipy import stats

from adfl_stats._types import Array, Ints, Mask
from adfl_stats.engine.problem import Problem
from adfl_stats.losses.client_sums import ClientSums
from adfl_stats.trust.candidates import Candidate
from adfl_stats.trust.laplace import ClientLikelihoods, expanded
from adfl_stats.trust.mixture import COHERENT, GROSS, NORMAL, ClientScores, standardising
from adfl_stats.trust.null import Null
from adfl_stats.trust.scoring import client_scores
from adfl_stats.trust.spread import own_pivots
from adfl_stats.trust.summaries import Summaries

__all__ = ["SMALL_MOVE", "ClientModel", "assembled", "posterior_of"]


# Components of models without a coherent minority.
SIMPLE = ("normal", "normal + gross")
# A move of the estimate, in its own standard errors, that needs no further pass. Ours: twice the tolerance of a fit.
SMALL_MOVE = 0.1


@dataclass(frozen=True, eq=False)
class ClientModel:
    """The fitted model of clients.

    Attributes
    ----------
    theta : ndarray (P,)
        The solution of the estimating equation with the clients' probabilities as weights.
    weights : ndarray (M,)
        Probability of being normal.
    probabilities : ndarray (M, 3)
        Of being normal, of belonging to a coherent minority, of being gross.
    spread : ndarray (P, P)
        T, the covariance of the normal clients' parameters; that of a typical client where `turns` is given.
    spread_kind, components : str
        Which parts the model has.
    minority_shift : ndarray (P,) or None
        Of the coherent minority.
    null : Null
        The distribution of normal clients' scores.
    summaries : Summaries
        The clients at `theta`, up to its last small move.
    scores : ClientScores
        The same per unit of noise, in units of `units`.
    units : ndarray (P,)
        A typical client's standard error of each coefficient.
    candidates : list of tuple
        Spread, components and criterion of the models that were compared, the chosen one first.
    move : float
        How far the estimate moved in the last pass, in its standard errors; zero where the estimate was given.
    inflation : float
        Variance of normal clients' scores over that under `null` and `spread` (overdispersion).
    compared : bool
        Whether who is abnormal was decided by the likelihood of the rows themselves, see `comparison`.
    turns : ndarray (M, P, P) or None
        C_m with T_m = C_m T C_m', where slopes pivot about each client's own means, see `spread`.
    """

    theta: Array
    weights: Array
    probabilities: Array
    spread: Array
    spread_kind: str
    components: str
    minority_shift: Array | None
    null: Null
    summaries: Summaries
    scores: ClientScores
    units: Array
    candidates: list[tuple[str, str, float]]
    move: float = 0.0
    inflation: float = 1.0
    compared: bool = False
    turns: Array | None = None

    @property
    def settled(self) -> bool:
        """Whether the passes over the data ended because the estimate no longer moved."""
        return self.move < SMALL_MOVE

    @property
    def differ(self) -> bool:
        """Whether clients differ."""
        return self.spread_kind != "none"

    @property
    def information_shares(self) -> Array:
        """The share of each client's information that is left about the mean of clients that differ (M,).

        With J_m the client's information and (J_m^-1 + T)^-1 that about the mean, the ratio of their traces in
        coordinates in which the mean of the J_m is the identity; random-effects weights by one number a client.
        """
        informative = self.summaries.ranks > 0
        standard = standardising(self.scores)
        J = self.scores.inflated(self.inflation).information
        left = np.asarray(np.linalg.solve(np.eye(len(self.units)) + J @ self.scored_spread(), J), dtype=np.float64)
        shares = np.ones(len(informative))
        shares[informative] = _traces(left, standard) / np.maximum(_traces(J, standard), np.finfo(float).tiny)
        # The estimating equation weighs rows alike; the information is per unit of noise.
        shares[informative] *= self.null.dispersion / self.null.dispersions[informative]
        return shares

    @property
    def lead(self) -> float:
        """How far the best models with and without a coherent minority are apart; infinite where one was not tried."""
        best = [
            min((c for _, words, c in self.candidates if (words not in SIMPLE) == has), default=np.inf)
            for has in (False, True)
        ]
        return float(abs(best[1] - best[0])) if np.isfinite(best).all() else np.inf

    @property
    def cochran(self) -> list[float]:
        """Cochran's Q of the normal clients, its degrees of freedom and p-value."""
        informative = self.summaries.ranks > 0
        return _cochran(self.scores.of(self.probabilities[informative, 0] > 0.5))

    def spread_of(self, clients: slice | Ints) -> Array:
        """Return T (P, P), or the T_m of some clients where these have their own."""
        if self.turns is None:
            return self.spread
        turns = self.turns[clients]
        return np.asarray(turns @ self.spread @ turns.transpose(0, 2, 1))

    def scored_spread(self, some: slice = slice(None)) -> Array:
        """Return the same in units of `units`, for some of the clients that have a score."""
        return self.spread_of(np.flatnonzero(self.summaries.ranks > 0)[some]) / np.outer(self.units, self.units)

    def information_lost(self, aside: Mask) -> Array:
        """Return the share of the information about each coefficient (P,), others given, that some clients hold."""
        informative = self.summaries.ranks > 0
        known = np.diagonal(self.scores.information, axis1=1, axis2=2)
        members, lost = self.scores.members, known[aside[informative]]
        total = members.sum(known)
        return np.asarray(np.divide(members.sum(lost), total, out=np.zeros_like(total), where=total > 0))

    def at(self, problem: Problem, theta: Array, sums: ClientSums) -> ClientModel:
        """Return the model with the clients' scores at another estimate (P,) close by, where their sums are `sums`."""
        step = theta - self.theta
        if not step.any():
            return self
        totals = problem.objective.totals
        information = totals[:, None, None] * sums.information
        if problem.glm.quadratic:
            summaries = self.summaries.moved(step)
        else:
            summaries = self.summaries.renewed(totals[:, None] * sums.gradient, information)
        scores, _, _ = client_scores(summaries, self.null, self.units, information)
        return replace(self, theta=theta, summaries=summaries, scores=scores)

    def expanded(self, problem: Problem) -> ClientModel:
        """Return the model with log-likelihoods expanded about the clients' own effects, where these differ.

        Where the link is not linear, scores at the common estimate are skewed; those of the expansion, and the effects
        that they give, are nearly linear in the clients' parameters. Some passes over the data. See `laplace`.
        """
        glm = problem.glm
        if not self.differ or glm.family.linear:
            return self
        values, vectors = np.linalg.eigh(self.spread)
        M, P = self.summaries.scores.shape
        factors = np.broadcast_to(vectors * np.sqrt(np.maximum(values, 0.0)), (M, P, P))
        factors = factors if self.turns is None else self.turns @ factors
        noise = self.inflation * self.null.dispersions
        likelihoods = ClientLikelihoods(glm.data, glm.family, noise)
        expansion = expanded(likelihoods, np.tile(self.theta, (M, 1)), factors, np.zeros((M, P)))
        slopes, information = -noise[:, None] * expansion.slopes, noise[:, None, None] * expansion.information
        summaries = self.summaries.renewed(slopes, information)
        lost = summaries.lost | self.summaries.lost
        summaries = replace(summaries, lost=lost, ranks=np.where(lost, 0, summaries.ranks))
        scores, _, _ = client_scores(summaries, self.null, self.units)
        return replace(self, summaries=summaries, scores=scores)


def _cochran(scores: ClientScores) -> list[float]:
    """Return Cochran's Q: the clients' score statistics at their common estimate, summed.

    A score of t with nu degrees of freedom has a statistic of variance 2 r (nu + r - 2) / (nu - 4); chi-square is
    scaled to the sum of these.
    """
    if scores.n_clients == 0:
        return [0.0, 0.0, 1.0]
    total = scores.members.sum
    centre = scores.weighted_means(np.ones((scores.M, 1)))
    Q, ranks = float(total(scores.statistics(centre)[:, 0])), float(total(scores.ranks))
    df = max(ranks - scores.P, 0.0)
    variance = float(total(2.0 * scores.ranks * (scores.df + scores.ranks - 2.0) / (scores.df - 4.0 + 1e-9)))
    scale = max(variance / (2.0 * ranks), 1.0)
    return [Q, df, float(stats.chi2.sf(Q / scale, df / scale)) if df > 0 else 1.0]


def _traces(matrices: Array, standard: Array) -> Array:
    """Return tr(R'JR) for each of J (M, P, P)."""
    return np.asarray(np.einsum("mij,ij->m", matrices, standard @ standard.T))


def posterior_of(lost: Mask, informative: Mask, candidates: list[Candidate]) -> Array:
    """Return the probabilities of all clients (M, 3), those that are `lost` and those without a score included."""
    # A client of rank zero has no score: it is taken as normal.
    posterior = np.column_stack([~lost, np.zeros(len(lost)), lost]).astype(np.float64)
    posterior[informative] = _probabilities(candidates)
    return posterior


def _probabilities(candidates: list[Candidate]) -> Array:
    """Return the probabilities of normal, coherent and gross (M, 3), averaged over the components given the spread.

    Whether there is a minority at all is uncertain too: models with the spread of the best one count by
    exp(-criterion / 2), which is to the posterior probability of a model what Schwarz's criterion is.
    """
    alike = {one.words: one for one in reversed(candidates) if one.words[0] == candidates[0].words[0]}
    criteria = np.array([one.criterion for one in alike.values()])
    weights = np.exp(-0.5 * (criteria - criteria.min()))
    posterior = sum(
        weight * one.runs.posteriors[:, 0] for weight, one in zip(weights / weights.sum(), alike.values(), strict=True)
    )
    return np.column_stack([posterior[:, NORMAL], posterior[:, COHERENT], posterior[:, GROSS].sum(axis=1)])


def assembled(
    theta: Array,
    posterior: Array,
    candidates: list[Candidate],
    null: Null,
    summaries: Summaries,
    scores: ClientScores,
    units: Array,
    move: float = 0.0,
) -> ClientModel:
    """Return the model whose parts are those of the first candidate."""
    best = candidates[0]
    spread, components = best.words
    return ClientModel(
        theta=theta,
        weights=posterior[:, 0],
        probabilities=posterior,
        spread=best.spread.covariance * np.outer(units, units),
        spread_kind=spread,
        components=components,
        minority_shift=None if best.runs.shifts is None else best.runs.shifts[0] * units,
        null=null,
        summaries=summaries,
        scores=scores,
        units=units,
        candidates=[(*one.words, one.criterion) for one in candidates],
        move=move,
        inflation=best.spread.inflation,
        turns=_turns(best, scores, summaries, units),
    )


def _turns(best: Candidate, scores: ClientScores, summaries: Summaries, units: Array) -> Array | None:
    """Return C_m = B_m B^-1 of all clients, see `ClientModel.turns`; the identity for those without a score."""
    own, basis = best.spread.own, best.spread.basis
    if own is None or basis is None:
        return None
    turns = np.tile(np.eye(scores.P), (len(summaries.ranks), 1, 1))
    # B is the identity plus a matrix whose square is zero, so that its inverse is the identity less that matrix.
    turns[summaries.ranks > 0] = own_pivots(scores, own) + np.eye(scores.P) - basis
    return np.asarray(turns * np.divide.outer(units, units))
