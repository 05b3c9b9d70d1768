"""What the model of clients needs of each client at a common point: score, information, dispersion, tails.

With s_m the score of client m at theta (minus the sum over its rows of the loss's gradient) and J_m its information,
the client's own estimate is one scoring step away, theta + J_m^+ s_m: exactly in the Gaussian model, to first order
in the others.

Constants marked ours are judged by `benchmarks/constants.py`.
"""

from __future__ import annotations

from dataclasses import dataclass, replace
from typing import Any

import numpy as np

from adfl_stats._algebra import joined, roots_of_inverses, summed_products, whitened, whitening
from adfl_stats._types import Array, Ints, Mask
from adfl_stats.data.batches import Batch, places, whole_clients
from adfl_stats.data.client_data import ClientData
from adfl_stats.engine.transport import EVERYBODY, Members
from adfl_stats.losses.client_sums import ClientSums, client_sums_of, own_predictor, scaled
from adfl_stats.losses.families import Family
from adfl_stats.trust.mechanisms import altered_scores, mechanisms, moved_scores

__all__ = ["Summaries", "Summariser", "has_known_dispersion", "summarise"]


# Scoring steps to a client's own estimate beyond the first. Ours: bounds the time.
MORE_STEPS = 3
# Longest scoring step: root mean square change of the linear predictor, in standard deviations of a row. Ours: Newton
# steps on separated labels diverge.
LONGEST_STEP = 0.5
# Largest leverage in the correction 1 - h of HC2 (MacKinnon and White, 1985). Ours: a row with h = 1 has no residual.
MOST_LEVERAGE = 0.9
# A client counts in the shape if the trace of its variance is within this factor of its expectation. Ours: the
# rows of others do not follow the model, and it bounds their influence.
USUAL_TRACE = 4.0


# What summaries have one entry a client of.
_BY_CLIENT = (
    "scores",
    "factors",
    "ranks",
    "lost",
    "sizes",
    "residuals",
    "dispersions",
    "expected_peaks",
    "own_peaks",
    "peaks",
    "altered",
)


@dataclass(frozen=True, eq=False)
class Summaries:
    """The clients at a common theta. Rows beyond a client's rank are zero.

    Attributes
    ----------
    scores : ndarray (M, P)
        L_m^-1 s_m, the score in coordinates in which the information is the identity, J_m = L_m L_m'.
    factors : ndarray (M, P, P)
        L_m'; the score of a client with parameter theta + d has mean `factors` d in these coordinates.
    ranks : ndarray (M,)
        Rank of J_m; 0 for a client whose numbers overflow.
    lost : ndarray (M,) of bool
        The clients whose numbers overflow.
    sizes : ndarray (M,)
        Rows.
    residuals : ndarray (M,)
        Mean squared Pearson residual about theta.
    dispersions : ndarray (M,)
        Mean squared Pearson residual: about the client's own estimate with n_m - rank in the divisor, so that a
        shift of the client does not inflate it; about theta where the family's dispersion is known. NaN for clients
        without residual degrees of freedom.
    shape_rows : float
        Rows behind `shape`.
    shape : ndarray (P, P)
        Mean, over the rows of clients of full rank, of the variance of `scores` as the squared residuals have it,
        over the client's dispersion: the identity where the family's variance function holds.
    expected_peaks, own_peaks, peaks : ndarray (M,)
        With e_i the quadratic form of row i's score in J_m^+: what the sum of e_i^2 would be for normal scores; what it
        would be with residuals about the client's own estimate (smaller by 1 - h_i, with h_i the leverage, or by the
        mean of that where leverages change with the estimate); and what it is (times the dispersion squared). They give
        the variance of the score statistic.
    altered : ndarray (M, K + 2, P)
        The expectations of `scores` under corruptions of known form, and two sums over rows; see `mechanisms`.
    mechanisms : tuple of str
        Names of the K corruptions.
    members : Members
        The clients; those of the rows are ours.
    """

    scores: Array
    factors: Array
    ranks: Ints
    lost: Mask
    sizes: Array
    residuals: Array
    dispersions: Array
    shape_rows: float
    shape: Array
    expected_peaks: Array
    own_peaks: Array
    peaks: Array
    altered: Array
    mechanisms: tuple[str, ...]
    members: Members = EVERYBODY

    def of(self, clients: Ints) -> Summaries:
        """Return the summaries of some clients of ours, in increasing order and each as often as it is named.

        The shape is kept.
        """
        single: dict[str, Any] = {name: getattr(self, name)[clients] for name in _BY_CLIENT}
        return replace(self, **single, members=self.members.of(clients))

    def moved(self, step: Array) -> Summaries:
        """Return the summaries at theta + step, where the information is the same everywhere (Gaussian)."""
        along = self.factors @ step
        altered = moved_scores(self.mechanisms, along, self.altered)
        return replace(self, scores=self.scores - along, altered=altered)

    @np.errstate(over="ignore", invalid="ignore", divide="ignore")
    def renewed(self, gradients: Array, information: Array) -> Summaries:
        """Return the summaries with the scores of a theta close by, where sums over clients' rows are the given ones.

        Noise levels and tails are about the clients' own estimates, which are the same.
        """
        scores, factors, ranks = whitened(information, -gradients)
        lost = ~(np.isfinite(factors).all(axis=(1, 2)) & np.isfinite(gradients).all(axis=1))
        scores[lost], factors[lost], ranks[lost] = 0.0, 0.0, 0
        return replace(self, scores=scores, factors=factors, ranks=ranks, lost=np.asarray(lost))


def has_known_dispersion(data: ClientData, family: Family) -> bool:
    """Return whether a row's variance follows from its mean: labels, unless they are shares with weights."""
    return family.name == "multinomial" or (family.name == "binomial" and data.row_weights is None)


def summarise(
    data: ClientData, family: Family, theta: Array, counted: Mask | None = None, members: Members = EVERYBODY
) -> Summaries:
    """Summarise every client at theta (P,), in one pass over the data."""
    summariser = Summariser(data, family, theta, counted, members)
    for pieces in whole_clients(data, len(theta)):
        with np.errstate(over="ignore", invalid="ignore", divide="ignore"):
            sums = client_sums_of(data, family, theta[None], pieces)
        summariser.add(pieces, sums)
    return summariser.summaries()


class Summariser:
    """Summaries at theta (P,), gathered while a pass over the data goes on.

    The shape of the variance is that of the clients `counted` (M,), or of all, those elsewhere included.
    """

    def __init__(
        self,
        data: ClientData,
        family: Family,
        theta: Array,
        counted: Mask | None = None,
        members: Members = EVERYBODY,
    ) -> None:
        self._data, self._family, self._theta, self._counted = data, family, theta, counted
        self._known = has_known_dispersion(data, family)
        self._parts: dict[str, list[Any]] = {}
        self._members, self._batches = members, members.transport.batches()
        self._place = places(self._batches, data.n_clients)
        # A sum over the rows of each batch: of scores times their transposes, and their number.
        self._shapes = [np.zeros((len(theta), len(theta))) for _ in self._batches]
        self._shape_rows = np.zeros(len(self._batches))

    @np.errstate(over="ignore", invalid="ignore", divide="ignore")
    def add(self, pieces: list[Batch], sums: ClientSums) -> None:
        """Take in some whole clients, with their sums at theta."""
        data, family, known, at = self._data, self._family, self._known, pieces[0].clients
        total, sizes = data.totals[at], data.sizes[at].astype(np.float64)
        scores, roots, factors, ranks, lost = _whitened(sums, total)
        altered = altered_scores(data, family, self._theta, pieces) @ roots
        # Overflow in these sums alone does not set a client aside.
        altered[lost | ~np.isfinite(altered).all(axis=(1, 2))] = 0.0
        own = np.tile(self._theta, (len(sizes), 1))
        if not known:
            own += _shortened(roots, scores[:, None], total, family)
            if not family.linear:
                own = _own_estimates(data, family, own, pieces)
        rows = _rows(data, family, own, pieces, roots, meats=not known)
        residual_df = np.where(lost, 0.0, sizes - (0 if known else ranks))
        dispersion = np.where(residual_df > 0, rows["squares"] / np.maximum(residual_df, 1.0), np.nan)
        # Residuals about a client's own estimate are too small by its parameters' share of the rows.
        short = np.where(residual_df > 0, sizes / np.maximum(residual_df, 1.0), 0.0)
        if not known:
            self._add_shape(rows["meats"], dispersion, residual_df, ranks, at)
        for name, value in {
            "scores": scores,
            "factors": factors,
            "ranks": ranks,
            "lost": lost,
            "sizes": sizes,
            "residuals": sums.dispersion,
            "dispersions": dispersion,
            "expected_peaks": rows["expected"],
            "own_peaks": rows["own"] if family.linear else rows["expected"] / np.square(short),
            "peaks": rows["peaks"],
            "altered": altered,
        }.items():
            self._parts.setdefault(name, []).append(value)

    def _add_shape(self, meats: Array, dispersion: Array, residual_df: Array, ranks: Ints, at: slice) -> None:
        P = len(self._theta)
        member = (ranks == P) & (residual_df > 0) & (dispersion > 0)
        member &= True if self._counted is None else self._counted[at]
        each = meats / np.where(member, dispersion, 1.0)[:, None, None]
        # The variances of one client add up to P, or nearly; if not, its rows do not follow the model at all.
        member &= np.abs(np.log(np.einsum("mii->m", each) / P)) < np.log(USUAL_TRACE)
        k = self._place(at)
        self._shapes[k] += summed_products(residual_df[member], each[member])
        self._shape_rows[k] += float(residual_df[member].sum())

    def summaries(self) -> Summaries:
        """Return what was gathered."""
        arrays: dict[str, Any] = {name: joined(values) for name, values in self._parts.items()}
        total, place = self._members.total, self._batches.index
        rows = float(total(lambda at: np.asarray(self._shape_rows[place(at)])))
        shape = total(lambda at: self._shapes[place(at)])
        arrays |= {"shape": shape / rows if rows else np.eye(len(self._theta)), "members": self._members}
        arrays |= {"mechanisms": mechanisms(self._family)}
        return Summaries(shape_rows=rows, **arrays)


def _whitened(sums: ClientSums, total: Array) -> tuple[Array, Array, Array, Ints, Mask]:
    """Return the scores of some clients, roots F of the inverses of their information, factors, ranks and who is lost.

    The scores (C, P) and factors (C, P, P) are in coordinates in which the information is the identity.
    """
    J = total[:, None, None] * sums.information
    roots, factors, ranks = whitening(J)
    lost = np.asarray(~(np.isfinite(roots).all(axis=(1, 2)) & np.isfinite(sums.gradient).all(axis=1)))
    roots[lost], factors[lost], ranks[lost] = 0.0, 0.0, 0
    gradient = np.where(lost[:, None], 0.0, sums.gradient)
    scores = -(total[:, None] * gradient)[:, None, :] @ roots
    return scores[:, 0], roots, factors, ranks, lost


def _shortened(roots: Array, scores: Array, total: Array, family: Family) -> Array:
    """Return the scoring steps (C, P), shortened to `LONGEST_STEP` where the link is not linear."""
    if not family.linear:
        length = np.sqrt(np.square(scores).sum(axis=(1, 2)) / total)
        scores = scores / np.maximum(length / LONGEST_STEP, 1.0)[:, None, None]
    return np.asarray((roots @ scores.transpose(0, 2, 1))[:, :, 0])


def _own_estimates(data: ClientData, family: Family, own: Array, pieces: list[Batch]) -> Array:
    """Go on from `own` (C, P) by scoring steps to each client's own estimate, or towards it where it is far."""
    at = pieces[0].clients
    total = data.totals[at]
    for _ in range(MORE_STEPS):
        sums = client_sums_of(data, family, own, pieces)
        roots, _ = roots_of_inverses(total[:, None, None] * sums.information)
        scores = -(total[:, None] * sums.gradient)[:, None, :] @ roots
        step = _shortened(roots, scores, total, family)
        own = own + np.where(np.isfinite(step).all(axis=1, keepdims=True), step, 0.0)
    return own


def _rows(
    data: ClientData, family: Family, thetas: Array, pieces: list[Batch], roots: Array, *, meats: bool
) -> dict[str, Array]:
    """Return sums over the rows of each client at its own row of `thetas`: squared residuals, peaks, whitened meats."""
    C, P, _ = roots.shape
    out = {name: np.zeros(C) for name in ("squares", "expected", "own", "peaks")}
    if meats:
        out["meats"] = np.zeros((C, P, P))
    common = thetas[:1] if (thetas == thetas[0]).all() else None
    for piece in pieces:
        rows = piece.rows
        X, y, weight = data.X[rows], data.y[rows], data.weights_of(rows)
        eta = own_predictor(data, family, thetas if common is None else common, piece)
        residual = scaled(family.residual(eta, y), weight).reshape(len(y), -1)
        information = (weight * family.information(eta).T).T.reshape(len(y), family.outputs, family.outputs)
        gram, along = _row_grams(piece, X, roots, family.outputs)
        share = information @ gram
        normal = np.square(np.einsum("ijj->i", share)) + 2.0 * np.einsum("ijk,ikj->i", share, share)
        out["squares"] += piece.sums(weight * family.dispersion_terms(eta, y))
        out["expected"] += piece.sums(normal)
        out["own"] += piece.sums(normal * np.square(1.0 - np.minimum(np.einsum("ijj->i", share), 1.0)))
        out["peaks"] += piece.sums(np.square(np.einsum("ij,ijk,ik->i", residual, gram, residual)))
        if meats:
            # Residuals about the client's own estimate have 1 - h_i of their variance (HC2, MacKinnon and White, 1985).
            leverage = np.minimum(np.einsum("ijj->i", share), MOST_LEVERAGE)
            scores = residual * along / np.sqrt(1.0 - leverage)[:, None]
            out["meats"] += piece.cross(scores, scores)
    return out


def _row_grams(piece: Batch, X: Array, roots: Array, q: int) -> tuple[Array, Array]:
    """Return (I kron x)' J^+ (I kron x) of all rows (n, q, q), and the rows times the roots (n, P), empty for q > 1."""
    if q == 1:
        along = piece.times(X, roots)
        return np.einsum("ij,ij->i", along, along)[:, None, None], along
    p = X.shape[1]
    inverses = (roots @ roots.transpose(0, 2, 1)).reshape(-1, q, p, q, p)
    gram = np.empty((len(X), q, q))
    for j in range(q):
        blocks = inverses[:, j, :, j:].reshape(len(inverses), p, -1)
        there = piece.times(X, blocks).reshape(len(X), q - j, p)
        gram[:, j, j:] = gram[:, j:, j] = (there @ X[:, :, None])[:, :, 0]
    return gram, np.empty((len(X), 0))
