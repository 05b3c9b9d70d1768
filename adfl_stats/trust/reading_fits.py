"""Fits of readings by EM: probabilities of the components, then parameters that these give; see `readings`.

Constants marked ours are judged by `benchmarks/constants.py`.
"""

from __future__ import annotations

from dataclasses import dataclass, replace

import numpy as np
from scipy import special

from adfl_stats._types import Array
from adfl_stats.trust.laplace import SMALL_STEP, ClientLikelihoods, Expansion, expanded
from adfl_stats.trust.mixture import MOST_WIDTH, SCALES, component_shares
from adfl_stats.trust.readings import FIRST_VARIANCE, Clients, Law, Reading, altered

__all__ = ["fit_reading", "probabilities"]


# Most steps of EM, and the gain in log-likelihood at which it ends. Ours: readings differ by several units.
MOST_STEPS, SMALL_GAIN = 60, 0.03
# Steps before EM may end. Ours: the first ones may lower the likelihood, as theta is moved by the normal clients alone
# where the minority's parameter depends on it.
FIRST_STEPS = 4
# Further EM steps, with gains like the last, that are assumed when a reading is given up. Ours: gains of EM decrease
# by a tenth or more a step.
FURTHER_STEPS = 15
# Every third step goes this many times as far in logarithms of variances, by a factor of at most `MOST_GROWTH` a step.
# Ours: EM is slow where variances are small.
LONGER, MOST_GROWTH = 3.0, 3.0
# Initial shares of a minority and of gross clients. Ours: EM moves them.
MINORITY_SHARE, GROSS_SHARE = 0.2, 0.05
# Log-likelihood of a client whose numbers overflow. Ours: below that of any client with finite ones, and finite.
LOWEST = -1e9
# The scale about whose modes likelihoods of gross clients are expanded. Ours: the middle of the lower half of `SCALES`.
GROSS_SCALE = 8.0
# Prior standard deviation of the parameter of altered responses, in the client's own standard errors. Ours:
# hardly any prior, and the information stays positive.
WEAK = 100.0


def fit_reading(
    clients: Clients,
    minority: str,
    law: Law,
    theta: Array,
    shift: Array | None = None,
    *,
    gross: bool = False,
    wanted: float = np.inf,
) -> Reading:
    """Fit a reading by EM.

    Parameters
    ----------
    clients : Clients
        The clients.
    minority : str
        As in `Reading`.
    law : Law
        Which parts the law of effects has, with variances to begin with.
    theta, shift : ndarray (P,)
        Where to begin.
    gross : bool
        Whether some clients may be gross.
    wanted : float
        EM ends early where steps like the last few would not bring the criterion to this.
    """
    shares = np.array([1.0, MINORITY_SHARE if minority else 0.0, GROSS_SHARE if gross else 0.0])
    shares[0] -= shares[1:].sum()
    now = Reading(
        minority,
        gross,
        law,
        theta,
        np.zeros_like(theta) if shift is None else shift,
        1.0 + FIRST_VARIANCE,
        shares,
        np.full(len(SCALES), 1.0 / len(SCALES)),
        -np.inf,
        np.zeros((len(clients.counted), 3)),
        clients.n_clients,
    )
    steps, before, longer = _Steps(clients), None, False
    gains: list[float] = []
    for k in range(MOST_STEPS):
        seen = steps.expectation(now)
        if before is not None:
            gain = seen.reading.log_likelihood - before.reading.log_likelihood
            if gain < 0.0 and longer:
                # The extrapolated step lowered the likelihood.
                now, longer = steps.maximisation(before, longer=False), False
                continue
            gains.append(gain)
            if k > FIRST_STEPS and (gain < SMALL_GAIN or seen.reading.criterion - _ahead(gains) > wanted):
                return max(seen, before, key=lambda one: one.reading.log_likelihood).reading
        before, longer = seen, k % 3 == 2
        now = steps.maximisation(seen, longer=longer)
    return seen.reading


def _ahead(gains: list[float]) -> float:
    """Return a bound on the further decrease of the criterion; gains decrease."""
    return 2.0 * FURTHER_STEPS * max(gains[-3:])


@dataclass(frozen=True, eq=False)
class _Seen:
    """A reading with its likelihood and probabilities, and what these come from.

    That is the factors F_m of normal clients, also times the roots of the law's scales, and of the minority, the
    expansions, and likelihoods by scale (M, S).
    """

    reading: Reading
    factors: Array
    minority_factors: Array
    scaled: list[Array]
    normal: Expansion
    minority: Expansion | None
    tails: Array
    far: Array | None


def probabilities(clients: Clients, reading: Reading) -> Reading:
    """Return the reading with the probabilities of other clients, at its parameters."""
    with np.errstate(all="ignore"):
        return _Steps(clients).expectation(reading).reading


class _Steps:
    """Steps of EM. The modes of the clients' effects are kept, as the next ones are near."""

    def __init__(self, clients: Clients) -> None:
        self.clients = clients
        self._effects: dict[str, Array] = {}

    def _expanded(
        self, name: str, likelihoods: ClientLikelihoods, centres: Array, factors: Array, small: float | None = None
    ) -> Expansion:
        M, P, K = factors.shape
        begin = self._effects.get(name, np.zeros((M, K)))
        expansion = expanded(likelihoods, np.broadcast_to(centres, (M, P)), factors, begin, small)
        self._effects[name] = expansion.effects
        return expansion

    def expectation(self, reading: Reading) -> _Seen:
        """Return the reading with the likelihood and the probabilities at its parameters."""
        clients, law = self.clients, reading.law
        likelihoods, factors = clients.likelihoods, law.factors(clients.roots)
        logs, minority, far = np.full((len(clients.counted), 3), -np.inf), None, None
        normal = self._expanded("normal", likelihoods, reading.theta, factors)
        scaled = law.scaled(factors)
        tails = np.stack([normal.integrated(one) for one in scaled], axis=1)
        logs[:, 0] = special.logsumexp(tails, axis=1) - np.log(len(law.scales))
        others = factors
        if reading.minority:
            others = reading.minority_law.factors(clients.roots)
            minority = self._expanded("minority", likelihoods, self._minority_centres(reading), others)
            parts = np.stack([minority.integrated(one) for one in law.scaled(others)], axis=1)
            logs[:, 1] = special.logsumexp(parts, axis=1) - np.log(len(law.scales))
        if reading.gross:
            far = self._gross_densities(reading, factors)
            logs[:, 2] = special.logsumexp(far, axis=1)
        with np.errstate(divide="ignore"):
            logs = np.where(clients.counted[:, None], logs + np.log(reading.shares), 0.0)
        total = special.logsumexp(logs, axis=1)
        # A client whose numbers overflow at these parameters is far from them.
        far_off = ~np.isfinite(total)
        logs[far_off], total[far_off] = (-np.inf, -np.inf, LOWEST), LOWEST
        posteriors = np.where(clients.counted[:, None], np.exp(logs - total[:, None]), 0.0)
        now = replace(reading, log_likelihood=float(clients.sum(total)), posteriors=posteriors)
        return _Seen(now, factors, others, scaled, normal, minority, tails, far)

    def _minority_centres(self, reading: Reading) -> Array:
        """Return the minority's parameters (M, P) or (P,)."""
        if reading.minority == "coherent":
            return reading.theta + reading.shift
        likelihoods = self.clients.likelihoods
        data = altered(likelihoods.data, likelihoods.family, reading.theta, reading.minority)
        # Its parameter is the estimate from its expected responses.
        weak = WEAK * self.clients.roots
        expansion = self._expanded("altered", replace(likelihoods, data=data), reading.theta, weak, SMALL_STEP / WEAK)
        return np.asarray(reading.theta + np.einsum("mpk,mk->mp", weak, expansion.effects))

    def _gross_densities(self, reading: Reading, factors: Array) -> Array:
        """Return logarithms (M, S) of the likelihoods of gross clients times the shares of their scales."""
        roots = self.clients.roots

        def wide(k: float) -> Array:
            return np.concatenate([np.sqrt(k) * factors, np.sqrt(k - 1.0) * roots], axis=2)

        expansion = self._expanded("gross", self.clients.likelihoods, reading.theta, wide(GROSS_SCALE))
        with np.errstate(divide="ignore"):
            return np.stack([expansion.integrated(wide(k)) for k in SCALES], axis=1) + np.log(reading.gross_shares)

    def maximisation(self, seen: _Seen, *, longer: bool) -> Reading:
        """Return the reading with the parameters that its probabilities give."""
        clients, reading, posteriors = self.clients, seen.reading, seen.reading.posteriors
        shares = component_shares(clients.sum(posteriors)[None] / clients.n_clients)[0]
        step = clients.step(posteriors[:, 0], *self._marginal(seen))
        shift, gross_shares, inflation = reading.shift, reading.gross_shares, reading.minority_inflation
        if seen.minority is not None and reading.minority == "coherent":
            shift = shift - step + clients.step(posteriors[:, 1], *seen.minority.marginal(seen.minority_factors))
            squares = seen.minority.effect_squares(seen.minority_factors)
            inflation = min(self._grown_inflation(inflation, posteriors[:, 1], squares, longer=longer), MOST_WIDTH)
        if seen.far is not None:
            parts = special.softmax(seen.far, axis=1) * posteriors[:, 2:]
            gross_shares = clients.sum(parts) / max(float(clients.sum(posteriors[:, 2])), np.finfo(float).tiny)
        law = self._grown(seen, longer=longer)
        theta = reading.theta + step
        return replace(
            reading,
            theta=theta,
            shift=shift,
            minority_inflation=inflation,
            shares=shares,
            gross_shares=gross_shares,
            law=law,
        )

    def _marginal(self, seen: _Seen) -> tuple[Array, Array]:
        """Return slopes and information about theta, averaged over the scales of the law."""
        if len(seen.scaled) == 1:
            return seen.normal.marginal(seen.factors)
        tails = special.softmax(seen.tails, axis=1)
        parts = [seen.normal.marginal(one) for one in seen.scaled]
        slopes = sum(tails[:, [j]] * part[0] for j, part in enumerate(parts))
        return np.asarray(slopes), np.asarray(sum(tails[:, j, None, None] * part[1] for j, part in enumerate(parts)))

    def _grown(self, seen: _Seen, *, longer: bool) -> Law:
        """Return the law with the variances that the expected squares of the normal clients' effects give."""
        law, weights = seen.reading.law, seen.reading.posteriors[:, 0]
        if not law.n_variances:
            return law
        tails = special.softmax(seen.tails, axis=1)
        squares = np.zeros((len(weights), seen.factors.shape[2]))
        for j, factors in enumerate(seen.scaled):
            squares += tails[:, [j]] * seen.normal.effect_squares(factors)
        A = len(law.variances)
        growth = self.clients.sum(weights[:, None] * squares[:, :A]) / self.clients.sum(weights)
        if law.common:
            growth = np.full(A, growth.mean())
        power = LONGER if longer else 1.0
        variances = law.variances * np.clip(growth, 1.0 / MOST_GROWTH, MOST_GROWTH) ** power
        inflation = law.inflation
        if law.inflated:
            inflation = self._grown_inflation(inflation, weights, squares, longer=longer)
        return replace(law, variances=variances, inflation=inflation)

    def _grown_inflation(self, inflation: float, weights: Array, squares: Array, *, longer: bool) -> float:
        """Return c as the expected squares (M, K) of effects along the roots of the J_m^-1, the last ones, give it."""
        roots, power = self.clients.roots, LONGER if longer else 1.0
        there = weights[:, None] * roots.any(axis=1)
        along = (there * squares[:, -roots.shape[2] :]).sum(axis=1)
        total = max(float(self.clients.sum(there.sum(axis=1))), np.finfo(float).tiny)
        growth = min(max(float(self.clients.sum(along)) / total, 1.0 / MOST_GROWTH), MOST_GROWTH)
        return 1.0 + (inflation - 1.0) * growth**power
