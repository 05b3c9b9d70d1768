"""Inference by client: covariances that hold with few and unequal clients, and their degrees of freedom.

The estimate solves sum_m u_m = 0 with u_m = a_m S_m, where S_m is the client's score (sum over its rows of the
loss's gradient) and a_m its weight per row. With K_m = a_m J_m the client's share of the curvature H = sum_m K_m,
the estimate moves the client's score to

    e_m = u_m - K_m H^-1 sum_k u_k.

The working model says that the clients' scores are independent with variances

    Omega_m = a_m^2 (phi J_m + J_m T J_m),

T being the variance of the clients' own parameters (zero if not given), so that

    V_m = Var(e_m) = Omega_m - Omega_m H^-1 K_m - K_m H^-1 Omega_m + K_m S K_m,   S = H^-1 (sum_k Omega_k) H^-1.

Every covariance is a sum over clients of b_m b_m', where b_m is the client's contribution to the estimate's error:

- CR1: b_m = H^-1 u_m, times statsmodels' correction M / (M - 1) (N - 1) / (N - P).
- CR2 (Bell & McCaffrey 2002; Pustejovsky & Tipton 2018): b_m = H^-1 A_m e_m, where
  A_m = Omega_m F_m (F_m' V_m F_m)^{-1/2} F_m' with F_m F_m' = Omega_m^+ makes A_m V_m A_m' = Omega_m: the covariance
  is unbiased under the working model. A_m does not depend on which root F_m is taken. With T = 0 it is, row by row,
  the adjustment of Pustejovsky & Tipton for independent rows.
- CR3: b_m = (H - K_m)^-1 e_m, the Newton step to the estimate without the client (exact in the Gaussian model),
  times (M - 1) / M: the jackknife over clients (CV3 of MacKinnon, Nielsen & Webb 2023).

For a contrast c the variance estimate sum_m (c'b_m)^2 is about chi-square with Satterthwaite's degrees of freedom
(tr G)^2 / ||G||_F^2, where G (M, M) is the covariance of the c'b_m under the working model (Bell & McCaffrey 2002).
Where clients are few `t_reference` has others, which allow for the dependence of estimate and standard error.
With p_m = A_m' H^-1 c, l_m = K_m p_m and r_m = H^-1 Omega_m p_m - S l_m / 2,

    G_mk = 1{m = k} p_m' Omega_m p_m - l_m' r_k - r_m' l_k,

a diagonal and a matrix of rank 2 P at most, so that G itself is never formed.

All this is computed in coordinates in which H is the identity and the variances are about one. In those of the
coefficients a covariate with a large mean would make each client's own information numerically rank-deficient,
and extreme units would overflow.

Bell, R. M. & McCaffrey, D. F. (2002). Bias reduction in standard errors for linear regression with multi-stage samples.
Survey Methodology 28, 169-181.
Pustejovsky, J. E. & Tipton, E. (2018). Small-sample methods for cluster-robust variance estimation and hypothesis
testing in fixed effects models. Journal of Business & Economic Statistics 36, 672-683.
MacKinnon, J. G., Nielsen, M. O. & Webb, M. D. (2023). Fast and reliable jackknife and bootstrap methods for
cluster-robust inference. Journal of Applied Econometrics 38, 671-694.
"""

from __future__ import annotations

from dataclasses import dataclass
from functools import partial

import numpy as np

from adfl_stats._algebra import inverse, root_of_inverse, roots_of_inverses, stacked_cholesky
from adfl_stats._types import Array, Mask
from adfl_stats.data.batches import client_chunks
from adfl_stats.data.client_data import ClientData
from adfl_stats.engine.transport import EVERYBODY, Members
from adfl_stats.inference.axes import Axes
from adfl_stats.losses.point_sums import PointSums

__all__ = [
    "Clustered",
    "adjustments",
    "carry_weight",
    "gather_clustered",
    "left_out",
]


# A client carries weight if a row of it counts more than this share of the row that counts most. Ours: others
# would change a variance by this share squared.
CARRIES = 1e-6
# Eigenvalues of I - H_mm below this are zero: the client alone determines that direction. Ours: above rounding.
LEAST_VARIANCE = 1e-6
# A contrast whose CR2 variance has less than this share of its expectation under the working model is not identified
# by differences between clients. Ours: CR2 is unbiased, so that the share is one where it is.
LEAST_SHARE = 0.9
# Numbers kept for the degrees of freedom of any contrast, and the most coefficients whose own are exact. Ours: memory.
KEPT_ENTRIES = 1 << 20
MOST_COEFFICIENTS = 128


@dataclass(frozen=True, eq=False)
class Clustered:
    """What inference by client needs, without the data.

    Attributes
    ----------
    clients, rows : int
        Clients that carry weight, and their rows.
    cr2, cr3 : ndarray (M, P)
        Each client's contribution b_m; empty where the estimate solves no equation.
    df : ndarray (P,)
        Satterthwaite's degrees of freedom of each coefficient's CR2 variance; NaN where one client alone
        identifies the coefficient: differences between clients then do not estimate its variance.
    working, expected : ndarray (P, P)
        The estimate's variance under the working model, and the mean of its CR2 estimate there. They are the same
        but for directions that one client alone identifies.
    least_df : float
        Degrees of freedom that serve any contrast where `own` has no clients: one over a bound on the share of a
        client in its variance, less 1.
    own, left, right : ndarray (m, P, P)
        p_m' Omega_m p_m, and l_m and r_m in columns, for the contrasts that are single coefficients; with no clients
        where they would take too much room.
    members : Members
        The clients; those of the rows are ours. A file does not keep it: all clients of a loaded record are ours.
    """

    clients: int
    rows: int
    cr2: Array
    cr3: Array
    df: Array
    working: Array
    expected: Array
    least_df: float
    own: Array
    left: Array
    right: Array
    members: Members = EVERYBODY

    @property
    def keeps(self) -> bool:
        """Whether `own`, `left` and `right` have clients, here or elsewhere."""
        return self.members.count(np.ones(len(self.own), dtype=bool)) > 0


def gather_clustered(
    data: ClientData,
    weights: Array,
    point: PointSums,
    *,
    smooth: bool,
    spread: Array | None = None,
    dispersion: float = 1.0,
    ridge: Array | None = None,
    members: Members = EVERYBODY,
) -> Clustered:
    """Find the contributions of CR2 and CR3, and the degrees of freedom.

    Parameters
    ----------
    data : ClientData
        The clients' sizes; no row is read.
    weights : ndarray (M,)
        The clients' total weights v_m.
    point : PointSums
        What `sums_at` found at the estimate.
    smooth : bool
        Whether the estimate solves the weighted estimating equation. If not (medians do not), the record is empty.
    spread : ndarray (P, P), optional
        T, the variance of the clients' own parameters.
    dispersion : float
        phi, the rows' variance within clients; matters beside T only.
    ridge : ndarray (P,), optional
        The curvature of a penalty. It is part of u_m, K_m and H, with the client's share (`point` has it already),
        and no part of the variances Omega_m.
    members : Members
        The clients; those of the rows are ours.

    The bread and CR3 have the observed curvature, as the sandwich has; the working model has the expected one.
    """
    (M, P), seen = point.halves.shape, point.weighted_sums
    everybody = members.count(np.ones(M, dtype=bool))
    per_row = weights / (everybody * data.totals)
    counted = carry_weight(weights, data.totals, members)
    clients, rows = members.count(counted), members.sum_counts(data.sizes[counted])
    if not smooth:
        none, square, matrices = np.zeros((0, P)), np.full((P, P), np.nan), np.zeros((0, P, P))
        df, kept = np.full(P, np.nan), (matrices, matrices, matrices)
        return Clustered(clients, rows, none, none, df, square, square, np.nan, *kept, members)
    # Without T the dispersion cancels, and must not be zero for data without noise.
    phi = dispersion if spread is not None else 1.0
    total, share = phi * seen.model_meat, (per_row * data.totals)[:, None, None]
    bread, axes = inverse(seen.hessian), Axes.of(seen.information, total)
    beside = np.zeros((P, P))
    if spread is not None:
        seen_apart, all_of_it = members.total(partial(_between, share, point.clients.information, spread, axes))
        axes, beside = Axes.of(seen.information, total + seen_apart), all_of_it - seen_apart
    rest = bread @ members.sum_products(weights, seen.gradients) / everybody
    back = (bread @ axes.flipped.T).T
    between = None if spread is None else axes.flipped @ spread @ axes.flipped.T / axes.unit
    penalty = None if ridge is None else axes.turned(np.diag(ridge))
    cr2, cr3 = np.zeros((M, P)), np.zeros((M, P))
    batches = members.transport.batches()
    tallies = [_Tally(axes, everybody) for _ in batches]
    chunks = [(one, at) for one, batch in zip(tallies, batches, strict=True) for at in client_chunks(M, P, batch)]
    for tally, chunk in chunks:
        at = chunk.start + np.flatnonzero(per_row[chunk] > 0.0)
        if not len(at):
            continue
        K = axes.turned(share[at] * point.clients.information[at])
        omega = phi / axes.unit * per_row[at, None, None] * K
        if between is not None:
            omega += K @ _spreads(between, K) @ K
        if penalty is not None:
            K = K + share[at] * penalty
        observed = share[at] * point.clients.hessian[at]
        score = share[at, 0] * point.clients.gradient[at] - observed @ rest
        adjusted = adjustments(omega, K, axes.working)
        cr2[at] = (adjusted @ (score @ axes.root)[:, :, None])[:, :, 0] @ back
        cr3[at] = left_out(score, observed, seen.hessian)
        tally.add(adjusted, omega, K)
    tally = _Tally.joined(tallies, members)
    # The estimate's variance has the whole of T: what one client alone identifies is not estimable from differences
    # between clients.
    reach = axes.root @ axes.contrasts
    modelled = axes.modelled + reach.T @ beside @ reach / axes.unit
    working, expected, kept = axes.variance(modelled), axes.variance(tally.expected), axes.back(*tally.kept())
    return Clustered(clients, rows, cr2, cr3, tally.df(modelled), working, expected, tally.least_df(), *kept, members)


def _between(share: Array, information: Array, spread: Array, axes: Axes, part: slice) -> Array:
    """Return the sums of K_m T_m K_m and of K_m T K_m (2, P, P) over a part of the clients."""
    M, P, _ = information.shape
    turned = axes.flipped @ spread @ axes.flipped.T
    total = np.zeros((2, P, P))
    for at in client_chunks(M, P, part):
        K = axes.turned(share[at] * information[at])
        total = total + [(K @ one @ K).sum(axis=0) for one in (_spreads(turned, K), turned)]
    return axes.flipped.T @ total @ axes.flipped


def _spreads(spread: Array, K: Array) -> Array:
    """Return T_m (C, P, P), or T (P, P) for all, in coordinates in which H is the identity.

    A client's effect along a direction for which no other client has information, such as its own constant, is part of
    what it alone identifies: T_m is T without it, so that other coefficients are estimated without a loss.
    """
    eye = np.eye(len(spread))
    _, shared = stacked_cholesky(eye - K, np.sqrt(LEAST_VARIANCE))
    if shared.all():
        return spread
    values, vectors = np.linalg.eigh(K[~shared])
    others = (vectors * (values < 1.0 - LEAST_VARIANCE)[:, None, :]) @ vectors.transpose(0, 2, 1)
    spreads = np.broadcast_to(spread, K.shape).copy()
    spreads[~shared] = others @ spread @ others
    return spreads


def carry_weight(weights: Array, totals: Array, members: Members = EVERYBODY) -> Mask:
    """Return which clients (M,) with total weights v_m and total row weights carry weight."""
    per_row = weights / totals
    return np.asarray(per_row > CARRIES * members.transport.largest(per_row))


def adjustments(omega: Array, K: Array, working: Array) -> Array:
    """Return CR2's A_m (C, P, P), from Omega_m, K_m (C, P, P) and S, in coordinates in which H is the identity."""
    roots, _ = roots_of_inverses(omega)
    flipped, cross = roots.transpose(0, 2, 1), omega @ K
    lost = cross + cross.transpose(0, 2, 1) - K @ working @ K
    return omega @ roots @ _inverse_roots(flipped @ omega @ roots, flipped @ lost @ roots) @ flipped


def _inverse_roots(unit: Array, lost: Array) -> Array:
    """Return (unit - lost)^{-1/2} of stacks (C, P, P), where unit is the identity, or zero beyond a client's rank.

    Directions in which nothing is left have zero. Where little is lost, a series does it for less than eigenvalues.
    """
    size = np.sqrt(np.square(lost).sum(axis=(1, 2)))
    small = size < 1e-3
    inverses, E = np.empty_like(lost), lost[small]
    # (1 - x)^{-1/2} = 1 + x/2 + 3x^2/8 + 5x^3/16 + 35x^4/128 + ..., to 1e-15.
    eye = np.eye(lost.shape[1])
    series = 5 / 16 * eye + 35 / 128 * E
    for coefficient in (3 / 8, 1 / 2, 1.0):
        series = coefficient * eye + E @ series
    inverses[small] = series
    values, vectors = np.linalg.eigh((unit - lost)[~small])
    keep = values > LEAST_VARIANCE
    power = np.where(keep, 1.0 / np.sqrt(np.where(keep, values, 1.0)), 0.0)
    inverses[~small] = (vectors * power[:, None, :]) @ vectors.transpose(0, 2, 1)
    return inverses


def left_out(score: Array, K: Array, hessian: Array) -> Array:
    """Return (H - K_m)^-1 e_m (C, P): how the estimate would move without each client.

    A direction that the others do not identify has no step. Coordinates are those in which H is the identity, so that
    this does not depend on the columns' units.
    """
    root = root_of_inverse(hessian)
    others, along = np.eye(len(hessian)) - root.T @ K @ root, score @ root
    steps = np.empty_like(along)
    _, possible = stacked_cholesky(others, np.sqrt(LEAST_VARIANCE))
    steps[possible] = np.linalg.solve(others[possible], along[possible, :, None])[:, :, 0]
    values, vectors = np.linalg.eigh(others[~possible])
    keep = values > LEAST_VARIANCE
    power = np.where(keep, 1.0 / np.where(keep, values, 1.0), 0.0)
    flipped = vectors.transpose(0, 2, 1) @ along[~possible, :, None]
    steps[~possible] = (vectors @ (power[:, :, None] * flipped))[:, :, 0]
    return steps @ root.T


class _Tally:
    """Sums over the clients for the degrees of freedom, batch by batch.

    Where the matrices of all clients have room they are kept, and give the degrees of freedom of any contrast.
    """

    def __init__(self, axes: Axes, M: int) -> None:
        P = len(axes.root)
        self._axes, self._P = axes, P
        self._keeps = 3 * M * P * P <= KEPT_ENTRIES
        self._parts: list[tuple[Array, Array, Array]] = []
        self.expected = np.zeros((P, P))
        self._exact = P <= MOST_COEFFICIENTS
        # l'l, r'r and l'r of each coefficient.
        self._grams = np.zeros((3, P, P, P) if self._exact else (3, 0, 0, 0))
        self._squares, self._largest = np.zeros(P), 0.0
        self._root = root_of_inverse(axes.modelled)

    @classmethod
    def joined(cls, tallies: list[_Tally], members: Members) -> _Tally:
        """Return the tally of all clients, from those of the batches; the matrices that it keeps are those of ours."""
        place, joint = members.transport.batches().index, cls(tallies[0]._axes, 0)
        joint.expected = members.total(lambda at: tallies[place(at)].expected)
        joint._grams = members.total(lambda at: tallies[place(at)]._grams)
        joint._squares = members.total(lambda at: tallies[place(at)]._squares)
        joint._largest = float(members.transport.largest(np.array([one._largest for one in tallies])))
        joint._keeps = tallies[0]._keeps
        joint._parts = [part for one in tallies for part in one._parts]
        return joint

    def add(self, adjusted: Array, omega: Array, K: Array) -> None:
        """Take in some clients."""
        p = adjusted.transpose(0, 2, 1) @ self._axes.contrasts
        reach = omega @ p
        own, left = p.transpose(0, 2, 1) @ reach, K @ p
        right = reach - 0.5 * self._axes.working @ left
        cross = left.transpose(0, 2, 1) @ right
        diagonal = own - cross - cross.transpose(0, 2, 1)
        self.expected += diagonal.sum(axis=0)
        if not self._keeps:
            # The eighth root of the sum of the eigenvalues' eighth powers is close above the largest.
            power = self._root.T @ diagonal @ self._root
            power = power @ power
            power = power @ power
            self._largest = max(self._largest, float(np.square(power).sum(axis=(1, 2)).max() ** 0.125))
        # Of ||G||_F^2, all but the low-rank part's.
        alone, shared = (np.diagonal(part, axis1=1, axis2=2) for part in (own, cross))
        if self._exact:
            self._squares += (np.square(alone) - 4.0 * alone * shared).sum(axis=0)
            by_coefficient = [np.ascontiguousarray(part.transpose(2, 0, 1)) for part in (left, right)]
            for k, (one, other) in enumerate(((0, 0), (1, 1), (0, 1))):
                self._grams[k] += by_coefficient[one].transpose(0, 2, 1) @ by_coefficient[other]
        else:
            self._squares += np.square(alone - 2.0 * shared).sum(axis=0)
        if self._keeps:
            self._parts.append((own, left, right))

    def df(self, modelled: Array) -> Array:
        """Return the degrees of freedom of each coefficient, given the working model's covariance of the contrasts.

        For more than MOST_COEFFICIENTS the covariances between clients are those of clients that are all alike.
        """
        mean = np.diag(self.expected)
        if self._exact:
            ll, rr, lr = self._grams
            low = 2.0 * ((ll * rr).sum(axis=(1, 2)) + (lr * lr.transpose(0, 2, 1)).sum(axis=(1, 2)))
            squares = self._squares + low
        else:
            squares = self._squares
        known = mean > LEAST_SHARE * np.diag(modelled)
        df = np.divide(mean**2, squares, out=np.full(self._P, np.nan), where=known & (squares > 0.0))
        return np.maximum(df if self._exact else df - 1.0, 1.0)

    def least_df(self) -> float:
        """Return the bound for any contrast, where it is needed."""
        return 1.0 if self._keeps else max(1.0 / self._largest - 1.0, 1.0)

    def kept(self) -> tuple[Array, Array, Array]:
        """Return own, left and right of all clients, or of none."""
        if not self._parts:
            none = np.zeros((0, self._P, self._P))
            return none, none, none
        own, left, right = (np.concatenate(part) for part in zip(*self._parts, strict=True))
        return own, left, right
