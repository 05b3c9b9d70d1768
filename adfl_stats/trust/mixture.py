"""A mixture over clients: those that follow the common model, a coherent minority, and gross ones.

In coordinates in which client m's information is the identity its score is z_m = A_m (d_m - d) + noise, where d_m is
the client's deviation from theta and d that of the common parameter. The components are

    normal    z_m ~ t(A_m d, V_m),
    coherent  z_m ~ t(A_m (d + shift), c V_m), c >= 1: a minority around another parameter, or one whose responses are
              shuffled, mirrored or flipped: its location is known then (see `mechanisms`),
    gross     z_m ~ t(A_m d, k V_m) for k on a grid: clients far away, each in its own direction,

with t the multivariate t distribution of `null`. V_m is the identity, or I + A_m T A_m' where clients differ (see
`spread`). Normal clients are at least half. All of it needs A_m'z_m, A_m'A_m and z_m'z_m only. EM, for several runs
at once: their quadratic forms are matrix products.

Constants marked ours are judged by `benchmarks/constants.py`.
"""

from __future__ import annotations

from dataclasses import dataclass, fields, replace
from functools import reduce
from typing import Any

import numpy as np
from scipy import special

from adfl_stats._algebra import quadratic_forms
from adfl_stats._types import Array, Mask
from adfl_stats.engine.transport import EVERYBODY, Members, once
from adfl_stats.trust.mechanisms import FORMS

__all__ = [
    "COHERENT",
    "GROSS",
    "NORMAL",
    "ClientScores",
    "MixtureRuns",
    "coherent_runs",
    "component_shares",
    "gross_runs",
    "mechanism_runs",
    "normal_run",
    "pass_over",
    "run_on",
    "standardising",
]


NORMAL, COHERENT, GROSS = 0, 1, slice(2, None)
# Variances of gross clients, in units of a normal client's. Ours: a grid with ratios of 2 to 4; values below 2^1.5
# would fit heavy tails of normal clients.
SCALES = 2.0 ** np.array([1.5, 2.5, 3.5, 5.0, 7.0, 9.0, 11.0, 13.0])
COMPONENTS = 2 + len(SCALES)
# EM ends where the log-likelihood grows by less. Ours: criteria of models differ by several units.
SMALL_GAIN = 0.01
# Steps of EM of a first run from each start, and of the best ones. Ours: bound the time; most runs end before.
SHORT, LONG = 8, 80
# Largest variance of a coherent minority, in units of a normal client's. Ours: wider groups are described by `SCALES`.
MOST_WIDTH = 16.0
# The same of a minority with a corruption of known form. Ours: shuffled responses of a model that explains three
# quarters of their variance; a wide component at no distance would be gross clients at a lower price.
MOST_MECHANISM_WIDTH = 4.0
# Prior count of normal clients, as a share of M. Ours: where components overlap, the maximum likelihood share of a
# minority is too variable; judged by "gaussian-*-shift*" of `benchmarks/real_clients.py`.
PRIOR = 0.15
# Starts of a coherent minority: these shares of the clients, at either end of the leading directions of the scores.
# Ours: small, medium, and nearly one half.
START_SHARES = (0.1, 0.25, 0.42)
# Share of the clients that a corruption of known form starts with. Ours: EM moves it.
MECHANISM_SHARE = 0.2
# Initial shares of gross clients, alone and beside a minority. Ours: EM moves them; beside a minority fewer, as
# clients that are far off may belong to it.
GROSS_ALONE, GROSS_BESIDE = 0.2, 0.03
# Leading directions from which minorities start. Ours: bounds the number of runs.
DIRECTIONS = 3
# Clients with a statistic above this many times its mean have bounded influence on those directions. Ours: otherwise a
# few gross clients would set them.
OUTLYING = 4.0


@dataclass(frozen=True, eq=False)
class ClientScores:
    """Scores of M clients, per unit of each client's noise level.

    Attributes
    ----------
    slopes : ndarray (M, P)
        A_m'V_m^-1 z_m.
    information : ndarray (M, P, P)
        A_m'V_m^-1 A_m.
    squares : ndarray (M,)
        z_m'V_m^-1 z_m.
    ranks, df : ndarray (M,)
        Dimension of z_m and degrees of freedom of its t distribution.
    log_det : ndarray (M,)
        Half the logarithm of the determinant of V_m.
    members : Members
        The clients; those of the rows are ours.
    offsets : ndarray (M, K + 1, P) or None
        The clients' own estimates less theta under corruptions of known form, see `mechanisms`; the last is that of
        a change of all responses by one over the root of the client's weight.
    mean_slopes : ndarray (M, P) or None
        Derivative of the client's mean response, times the root of its weight.
    mechanisms : tuple of str
        Names of the K corruptions.
    """

    slopes: Array
    information: Array
    squares: Array
    ranks: Array
    df: Array
    log_det: Array
    members: Members = EVERYBODY
    offsets: Array | None = None
    mean_slopes: Array | None = None
    mechanisms: tuple[str, ...] = ()

    @property
    def M(self) -> int:  # noqa: N802
        """Number of clients that are ours."""
        return len(self.squares)

    @once
    def n_clients(self) -> int:
        """Number of all clients."""
        return self.members.count(np.ones(self.M, dtype=bool))

    @property
    def P(self) -> int:  # noqa: N802
        """Number of coefficients."""
        return self.slopes.shape[1]

    def of(self, clients: Mask) -> ClientScores:
        """Return the scores of some clients."""
        parts = {part.name: getattr(self, part.name) for part in fields(self)}
        arrays: dict[str, Any] = {name: part for name, part in parts.items() if isinstance(part, np.ndarray)}
        # All of them without a copy; what other places send is requested anew, as there it may be some.
        if not (clients.dtype == bool and clients.all()):
            arrays = {name: part[clients] for name, part in arrays.items()}
        return replace(self, **arrays, members=self.members.of(clients))

    def statistics(self, points: Array) -> Array:
        """Return (z - A d)'V^-1 (z - A d) for every client and row of `points` (R, P), as (M, R)."""
        outer = (points[:, :, None] * points[:, None, :]).reshape(len(points), -1)
        linear, flat = self.members.products(self.slopes, points.T), self.information.reshape(self.M, self.P**2)
        return np.maximum(self.squares[:, None] - 2.0 * linear + self.members.products(flat, outer.T), 0.0)

    def statistics_at(self, points: Array) -> Array:
        """Return the statistics (M,) of the clients, each at its own row of `points` (M, P)."""
        squares = quadratic_forms(points, self.information)
        return np.maximum(self.squares - 2.0 * np.einsum("mi,mi->m", self.slopes, points) + squares, 0.0)

    def turned(self, basis: Array | None) -> ClientScores:
        """Return the slopes and the information for the coefficients of the columns of `basis` (P, P)."""
        if basis is None:
            return self
        slopes = self.members.products(self.slopes, basis)
        return replace(self, slopes=slopes, information=basis.T @ self.information @ basis)

    def inflated(self, factor: float) -> ClientScores:
        """Return the scores per unit of a noise that is larger by a factor."""
        if factor == 1.0:
            return self
        return replace(
            self,
            slopes=self.slopes / factor,
            information=self.information / factor,
            squares=self.squares / factor,
            log_det=self.log_det + 0.5 * self.ranks * np.log(factor),
        )

    def altered_statistics(self, points: Array, mechanism: int) -> Array:
        """Return the statistics (M, R) of clients with a corruption of known form, where others are at `points`."""
        if self.offsets is None or self.mean_slopes is None:
            raise ValueError("these scores have no mechanisms of corruption")
        a, b = FORMS[self.mechanisms[mechanism]]
        there = self.offsets[:, mechanism, None] + b * points
        there += a * self.members.products(self.mean_slopes, points.T)[:, :, None] * self.offsets[:, -1, None]
        linear = np.einsum("mp,mrp->mr", self.slopes, there)
        return np.maximum(self.squares[:, None] - 2.0 * linear + ((there @ self.information) * there).sum(axis=2), 0.0)

    def weighted_means(self, weights: Array) -> Array:
        """Return the generalised least squares estimates of d (R, P) for weights (M, R)."""
        total = self.members.sum_products(weights, self.information)
        along = self.members.sum_products(weights, self.slopes)
        diagonal = np.arange(self.P)
        # Some sets of clients are rank-deficient; the ridge is far below one client's information.
        total[:, diagonal, diagonal] += 1e-8 * (total[:, diagonal, diagonal].mean(axis=1, keepdims=True) + 1e-4)
        return np.asarray(np.linalg.solve(total, along[:, :, None])[:, :, 0])

    def log_densities(self, statistics: Array) -> Array:
        """Return log densities of t at statistics (M, ...), up to a constant common to all components."""
        extra = (1,) * (statistics.ndim - 1)
        df, ranks = (value.reshape(-1, *extra) for value in (self.df, self.ranks))
        tail = -0.5 * (df + ranks) * np.log1p(statistics / (df - 2.0))
        return np.asarray((self._log_constants - self.log_det).reshape(-1, *extra) + tail)

    @once
    def _log_constants(self) -> Array:
        """Logarithms of the densities at zero but for that of the determinant (M,)."""
        df, ranks = self.df, self.ranks
        heights = special.gammaln((df + ranks) / 2.0) - special.gammaln(df / 2.0)
        return np.asarray(heights - 0.5 * ranks * np.log(df - 2.0))

    def t_weights(self, statistics: Array) -> Array:
        """Return how much a client with this statistic counts: one in the mean, less in the tails of t."""
        extra = (1,) * (statistics.ndim - 1)
        df, ranks = (value.reshape(-1, *extra) for value in (self.df, self.ranks))
        return np.asarray((df + ranks) / (df - 2.0 + statistics))


@dataclass(frozen=True, eq=False)
class MixtureRuns:
    """R runs of EM.

    Attributes
    ----------
    centres : ndarray (R, P)
        d, the normal clients' parameter.
    shifts : ndarray (R, P) or None
        The coherent clients' shift; None where there are none.
    widths : ndarray (R,)
        c, the coherent clients' variance in units of a normal client's.
    shares : ndarray (R, 2 + scales)
        Of the components.
    log_likelihoods : ndarray (R,)
        At the parameters before the last step.
    posteriors : ndarray (M, R, 2 + scales)
        Probabilities of the components.
    members : Members
        The clients.
    mechanism : int or None
        Which corruption of known form the coherent clients have; None where their shift is estimated.
    """

    centres: Array
    shifts: Array | None
    widths: Array
    shares: Array
    log_likelihoods: Array
    posteriors: Array
    members: Members = EVERYBODY
    mechanism: int | None = None

    @property
    def coherent(self) -> bool:
        """Whether there is a coherent minority."""
        return self.shifts is not None or self.mechanism is not None

    def best(self, count: int = 1) -> MixtureRuns:
        """Return the runs with the largest likelihoods."""
        which = np.argsort(-self.log_likelihoods, kind="stable")[:count]
        shifts = None if self.shifts is None else self.shifts[which]
        return MixtureRuns(
            self.centres[which],
            shifts,
            self.widths[which],
            self.shares[which],
            self.log_likelihoods[which],
            self.posteriors[:, which],
            self.members,
            self.mechanism,
        )

    def with_majorities(self) -> MixtureRuns:
        """Return the runs with the names of their two groups exchanged where the coherent one is the larger."""
        if self.shifts is None:
            return self
        normal, coherent = (self.members.sum(self.posteriors[:, :, kind]) for kind in (NORMAL, COHERENT))
        wrong = coherent > normal
        order = np.arange(self.shares.shape[1])
        order[[NORMAL, COHERENT]] = COHERENT, NORMAL
        shares = np.where(wrong[:, None], self.shares[:, order], self.shares)
        posteriors = np.where(wrong[None, :, None], self.posteriors[:, :, order], self.posteriors)
        centres = np.where(wrong[:, None], self.centres + self.shifts, self.centres)
        shifts = np.where(wrong[:, None], -self.shifts, self.shifts)
        widths = np.where(wrong, 1.0, self.widths)
        return MixtureRuns(centres, shifts, widths, shares, self.log_likelihoods, posteriors, self.members)

    @property
    def majority(self) -> float:
        """The share of clients that the first run takes for normal."""
        return float(self.members.mean(self.posteriors[:, 0, NORMAL]))


def pass_over(scores: ClientScores, runs: MixtureRuns) -> MixtureRuns:
    """Return the runs after one step of EM."""
    members, (posteriors, log_likelihoods, near, far) = scores.members, _expect(scores, runs)
    weights = posteriors[:, :, NORMAL] * scores.t_weights(near)
    if runs.shares[:, GROSS].any():
        gross = posteriors[:, :, GROSS] * scores.t_weights(near[:, :, None] / SCALES) / SCALES
        weights = weights + gross.sum(axis=2)
    centres = scores.weighted_means(weights)
    shifts, widths = None, runs.widths
    if runs.coherent:
        there = posteriors[:, :, COHERENT]
        weights = there * scores.t_weights(far / widths)
        shifts = None if runs.shifts is None else scores.weighted_means(weights) - centres
        ranks = members.sum_products(scores.ranks, there)
        mean = members.sum(weights * far) / np.maximum(ranks, np.finfo(float).tiny)
        widths = np.clip(mean, 1.0, MOST_WIDTH if runs.mechanism is None else MOST_MECHANISM_WIDTH)
    shares = component_shares(members.mean(posteriors))
    return MixtureRuns(centres, shifts, widths, shares, log_likelihoods, posteriors, members, runs.mechanism)


def _expect(scores: ClientScores, runs: MixtureRuns) -> tuple[Array, Array, Array, Array]:
    """Return posteriors, log-likelihoods, and the statistics at the centres and at the shifted centres."""
    centres, shifts, shares = runs.centres, runs.shifts, runs.shares
    near = far = scores.statistics(centres)
    if shifts is not None:
        far = scores.statistics(centres + shifts)
    elif runs.mechanism is not None:
        far = scores.altered_statistics(centres, runs.mechanism)
    # Components come first here, as sums over a short last axis are slow; components with share zero are left out.
    some = COMPONENTS if shares[:, GROSS].any() else GROSS.start
    logs = np.full((some, scores.M, len(centres)), -np.inf)
    logs[NORMAL] = scores.log_densities(near)
    if runs.coherent:
        logs[COHERENT] = scores.log_densities(far / runs.widths)
        logs[COHERENT] -= 0.5 * scores.ranks[:, None] * np.log(runs.widths)
    if some > GROSS.start:
        spread = near / SCALES[:, None, None]
        logs[GROSS] = scores.log_densities(spread.transpose(1, 0, 2)).transpose(1, 0, 2)
        logs[GROSS] -= 0.5 * scores.ranks[:, None] * np.log(SCALES)[:, None, None]
    with np.errstate(divide="ignore"):
        logs += np.log(shares[:, :some].T)[:, None]
    top = logs.max(axis=0)
    likelihoods = np.exp(logs - top)
    # In the order of the components: NumPy adds in another one where there is one client and one run.
    total = reduce(np.add, likelihoods)
    posteriors = np.zeros((scores.M, len(centres), COMPONENTS))
    posteriors[:, :, :some] = (likelihoods / total).transpose(1, 2, 0)
    return posteriors, scores.members.sum(np.log(total) + top), near, far


def component_shares(means: Array) -> Array:
    """Return the mean probabilities with those of `PRIOR` normal clients, the normal ones' at least one half."""
    shares = means / (1.0 + PRIOR)
    shares[:, NORMAL] += PRIOR / (1.0 + PRIOR)
    few = shares[:, NORMAL] < 0.5
    shares[few, 1:] *= 0.5 / shares[few, 1:].sum(axis=1, keepdims=True)
    shares[few, NORMAL] = 0.5
    return np.asarray(shares)


def _run(
    scores: ClientScores,
    centres: Array,
    shifts: Array | None,
    shares: Array,
    most: int,
    widths: Array | None = None,
    mechanism: int | None = None,
) -> MixtureRuns:
    count = len(centres)
    nobody = np.zeros((scores.M, count, COMPONENTS))
    widths = np.ones(count) if widths is None else widths
    runs = MixtureRuns(centres, shifts, widths, shares, np.full(count, -np.inf), nobody, scores.members, mechanism)
    for _ in range(most):
        before, runs = runs.log_likelihoods, pass_over(scores, runs)
        if np.all(runs.log_likelihoods - before < SMALL_GAIN):
            break
    return runs


def run_on(scores: ClientScores, runs: MixtureRuns) -> MixtureRuns:
    """Go on with runs of EM on other clients, from the parameters that they ended with."""
    return _run(scores, runs.centres, runs.shifts, runs.shares, LONG, runs.widths, runs.mechanism)


def normal_run(scores: ClientScores) -> MixtureRuns:
    """Fit the model in which every client is normal."""
    shares = np.zeros((1, COMPONENTS))
    shares[0, NORMAL] = 1.0
    return _run(scores, scores.weighted_means(np.ones((scores.M, 1))), None, shares, LONG)


def gross_runs(scores: ClientScores, centres: Array) -> MixtureRuns:
    """Fit normal and gross clients from each of `centres` (R, P); return the best run."""
    shares = np.full((len(centres), COMPONENTS), GROSS_ALONE / len(SCALES))
    shares[:, NORMAL], shares[:, COHERENT] = 1.0 - GROSS_ALONE, 0.0
    return _run(scores, centres, None, shares, LONG).best()


def coherent_runs(scores: ClientScores, centres: Array, *, gross: bool) -> MixtureRuns:
    """Fit a coherent minority, and gross clients if wanted, from extreme clients around each of `centres` (R, P)."""
    groups = np.unique(np.hstack([_extreme_groups(scores, centre) for centre in centres]), axis=1)
    initial_shares = groups.mean(axis=0)
    shares = np.zeros((groups.shape[1], COMPONENTS))
    shares[:, NORMAL] = np.maximum(0.5, 1.0 - GROSS_BESIDE - initial_shares)
    shares[:, COHERENT] = initial_shares
    shares[:, GROSS] = GROSS_BESIDE / len(SCALES) if gross else 0.0
    shares /= shares.sum(axis=1, keepdims=True)
    groups = scores.members.ours(groups)
    begin = scores.weighted_means(1.0 - groups)
    runs = _run(scores, begin, scores.weighted_means(groups) - begin, shares, SHORT).with_majorities().best(2)
    return _run(scores, runs.centres, runs.shifts, runs.shares, LONG).best()


def mechanism_runs(scores: ClientScores, centres: Array, *, gross: bool) -> MixtureRuns | None:
    """Fit a minority with a corruption of known form, from each of `centres` (R, P); return the best run of all forms.

    None where the family has no such corruptions.
    """
    shares = np.zeros((len(centres), COMPONENTS))
    shares[:, NORMAL], shares[:, COHERENT] = 1.0 - GROSS_BESIDE - MECHANISM_SHARE, MECHANISM_SHARE
    shares[:, GROSS] = GROSS_BESIDE / len(SCALES) if gross else 0.0
    shares /= shares.sum(axis=1, keepdims=True)
    runs = [_run(scores, centres, None, shares, SHORT, mechanism=k).best() for k in range(len(scores.mechanisms))]
    best = max(runs, key=lambda one: float(one.log_likelihoods[0]), default=None)
    return None if best is None else run_on(scores, best)


def _extreme_groups(scores: ClientScores, centre: Array) -> Array:
    """Return groups of all clients (n_clients, G) at either end of the leading directions of the scores."""
    standard = standardising(scores)
    along = scores.members.products(scores.slopes - scores.information @ centre, standard)
    outlying = scores.statistics(centre[None])[:, 0] / (OUTLYING * scores.ranks)
    along /= np.sqrt(np.maximum(outlying, 1.0))[:, None]
    square = scores.members.sum_products(along, along)
    directions = np.linalg.eigh(square)[1][:, : -DIRECTIONS - 1 : -1]
    along = scores.members.gather(scores.members.products(along, directions))
    order = np.argsort(along, axis=0, kind="stable")
    counts = sorted({max(2, int(share * scores.n_clients)) for share in START_SHARES})
    groups = []
    for column in order.T:
        for count in counts:
            for ends in (column[:count], column[-count:]):
                group = np.zeros(len(along))
                group[ends] = 1.0
                groups.append(group)
    return np.column_stack(groups)


def standardising(scores: ClientScores, weights: Array | None = None) -> Array:
    """Return R (P, P) such that R'JR is the identity for the (weighted) mean information J of the clients."""
    information, members = scores.information, scores.members
    if weights is None:
        mean = members.mean(information)
    else:
        shares = weights[:, None, None]
        mean = members.total(lambda at: (information[at] * shares[at]).sum(axis=0)) / members.sum(shares)
    values, vectors = np.linalg.eigh(mean)
    return np.asarray(vectors / np.sqrt(np.maximum(values, 1e-10 * values[-1])))
