"""Inference by row: HC2 and HC3, which allow for leverage, and their degrees of freedom.

The formulas are those of `clustered` with a row in the place of a client and no spread. Row i has a linear predictor
for each of q outputs, information W_i (q, q) times its weight w_i, and weight t_i in the estimating equation, which is
that of its client. With Z_i = (I kron x_i) (w_i W_i)^{1/2} (P, q), B the inverse of sum_i t_i Z_i Z_i' (and of a
penalty's curvature) and S = B (sum_i t_i^2 Z_i Z_i') B, the residuals of a row in units of their standard deviations
have variance

    M_i = I - 2 t_i Z_i'B Z_i + Z_i'S Z_i,

which is 1 - h_i, h_i the leverage, where all rows have one weight and one output. A covariance has the bread of the
sandwich, and in the meat each row's residual multiplied by

- HC2 (MacKinnon & White 1985): M_i^{-1/2}; unbiased if the model holds.
- HC3: (I - t_i Z_i'B Z_i)^{-1}; about the jackknife over rows.

For a contrast c the variance estimate is about chi-square with Satterthwaite's degrees of freedom (Bell & McCaffrey
2002; recommended for HC2 by Imbens & Kolesar 2016): with D_i = Z_i M_i^{-1/2} Z_i' and v_i = D_i B c, the covariance of
the rows' contributions is

    G_ij = 1{i = j} t_i^2 |M_i^{-1/2} Z_i'B c|^2 - t_i t_j v_i' ((t_i + t_j) B - S) v_j.

All this is computed in the coordinates of `Axes`, in which B is the identity.

MacKinnon, J. G. & White, H. (1985). Some heteroskedasticity-consistent covariance matrix estimators with improved
finite sample properties. Journal of Econometrics 29, 305-325.
Imbens, G. W. & Kolesar, M. (2016). Robust standard errors in small samples: some practical advice. Review of Economics
and Statistics 98, 701-712.
"""

from __future__ import annotations

from dataclasses import dataclass
from functools import partial

import numpy as np

from adfl_stats._types import Array
from adfl_stats.data.batches import MATRIX_ENTRIES, Batch, places, row_clients
from adfl_stats.data.client_data import ClientData
from adfl_stats.engine.numerical_error import sandwich
from adfl_stats.engine.transport import EVERYBODY, Members
from adfl_stats.inference.axes import Axes
from adfl_stats.inference.clustered import LEAST_VARIANCE, carry_weight
from adfl_stats.losses.client_sums import linear_predictor, meat, scaled
from adfl_stats.losses.families import Family
from adfl_stats.losses.point_sums import WeightedSums

__all__ = ["ByRow", "ByRowSums", "row_contrast_df"]


# Most coefficients for which any contrast has its own degrees of freedom: they take 3 P^4 numbers. Ours: half a MB.
MOST_TENSOR = 12
# Products N P^3 up to which the covariances between rows count in the degrees of freedom. Ours: some seconds; beyond,
# they change these by a share of about P / N.
MOST_PRODUCTS = 1 << 30


@dataclass(frozen=True, eq=False)
class ByRow:
    """What inference by row needs beside the sandwich, without the data.

    Attributes
    ----------
    rows : int
        Rows of the clients that carry weight.
    hc2, hc3 : ndarray (P, P)
        The covariances; NaN where the estimate solves no equation.
    df : ndarray (P,)
        Satterthwaite's degrees of freedom of each coefficient's HC2 variance.
    working, expected : ndarray (P, P)
        The estimate's variance under the model, per unit of dispersion, and the mean of its HC2 estimate there. They
        are the same but for directions that one row alone identifies.
    own, pairs : ndarray
        What gives the degrees of freedom of any contrast, see `_Layout`; empty for many coefficients.
    """

    rows: int
    hc2: Array
    hc3: Array
    df: Array
    working: Array
    expected: Array
    own: Array
    pairs: Array


class ByRowSums:
    """Finds HC2, HC3 and their degrees of freedom during a pass over the data.

    Parameters
    ----------
    data, family, theta
        The clients and the estimate (P,).
    weights : ndarray (M,)
        The clients' total weights v_m.
    weighted_sums : WeightedSums
        Curvature and meat at the estimate, a penalty's curvature included.
    smooth : bool
        Whether the estimate solves the weighted estimating equation. If not (medians do not), the record is empty.
    slope : ndarray (P,), optional
        The gradient of a penalty at theta, which every row carries.
    members : Members
        The clients; those of the rows are ours.
    """

    def __init__(
        self,
        data: ClientData,
        family: Family,
        theta: Array,
        weights: Array,
        weighted_sums: WeightedSums,
        *,
        smooth: bool,
        slope: Array | None = None,
        members: Members = EVERYBODY,
    ) -> None:
        self._data, self._weights, self._seen, self._members = data, weights, weighted_sums, members
        P, self._sums = len(theta), {}
        keeps = P <= MOST_TENSOR
        exact = keeps or members.sum_counts(data.sizes) * P**3 <= MOST_PRODUCTS
        self._layout = _Layout(P, keeps=keeps, exact=exact)
        if smooth:
            self._axes = Axes.of(weighted_sums.information, weighted_sums.model_meat)
            per_row = weights / (members.count(np.ones(len(weights), dtype=bool)) * data.totals)
            each = partial(_PartSums, data, family, theta, self._axes, self._layout, slope)
            parts = members.transport.batches()
            self._sums = {str(at): each(per_row) for at in parts}
            self._names, self._place = list(self._sums), places(parts, len(weights))

    def add(self, batch: Batch) -> None:
        """Take in the rows of a batch."""
        if self._sums:
            self._sums[self._names[self._place(batch.clients)]].add(batch.rows)

    def result(self) -> ByRow:
        """Return what was found."""
        weights, members, layout, none = self._weights, self._members, self._layout, np.zeros(0)
        rows = members.sum_counts(self._data.sizes[carry_weight(weights, self._data.totals, members)])
        if not self._sums:
            P = layout.P
            square = np.full((P, P), np.nan)
            return ByRow(rows, square, square, np.full(P, np.nan), square, square, none, none)
        layout.unpack(members.total(lambda at: self._sums[str(at)].packed()))
        own, pairs = (layout.own, layout.pairs) if layout.keeps else (none, none)
        hc2, hc3 = (sandwich(self._seen.hessian, meat)[1] for meat in (layout.hc2, layout.hc3))
        axes = self._axes
        working, expected = axes.variance(axes.modelled), axes.variance(layout.expected / axes.unit)
        return ByRow(rows, hc2, hc3, layout.df(axes), working, expected, own, pairs)


def row_contrast_df(record: ByRow, axes: Axes, contrasts: Array) -> Array:
    """Return Satterthwaite's degrees of freedom of contrasts (R, P), one each.

    `axes` are those of the information and the model's meat. Without `pairs`, a contrast of several coefficients has
    the least of theirs.
    """
    out = np.empty(len(contrasts))
    for k, c in enumerate(contrasts):
        inside = np.flatnonzero(c)
        if len(inside) == 1:
            out[k] = record.df[inside[0]]
        elif not len(inside):
            out[k] = np.inf
        elif not len(record.pairs):
            out[k] = record.df[inside].min()
        else:
            unit = c / np.sqrt(c @ record.working @ c)
            mean, a = float(unit @ record.expected @ unit), axes.root.T @ unit
            out[k] = _satterthwaite(mean, *_along(record.own, record.pairs, a), axes)
    return out


class _Layout:
    """Names and shapes of the sums over rows, and what is made of them. A contrast c enters by a = R'c.

    own : (2, ...)
        Sums of t^4 g^2 g^2 with g = a'Z M^{-1} Z'a, and of own times v'((2 t) I - S) v, for the diagonal of G.
    pairs : (3, ...)
        Sums of t^2, t^3 and t^4 times v v'.
    With `keeps` they are tensors in a; otherwise there is one for each coefficient.
    """

    def __init__(self, P: int, *, keeps: bool, exact: bool) -> None:
        self.P, self.keeps, self.exact = P, keeps, exact
        own: tuple[int, ...] = (2, P, P, P, P) if keeps else (2, P)
        pairs: tuple[int, ...] = (3, P, P, P, P) if keeps else ((3, P, P, P) if exact else (3, 0))
        shapes = {"hc2": (P, P), "hc3": (P, P), "expected": (P, P), "own": own, "pairs": pairs}
        self._shapes: dict[str, tuple[int, ...]] = shapes
        self.hc2 = self.hc3 = self.expected = self.own = self.pairs = np.zeros(0)

    def zeros(self) -> dict[str, Array]:
        """Return empty sums."""
        return {name: np.zeros(shape) for name, shape in self._shapes.items()}

    def unpack(self, packed: Array) -> None:
        """Take the sums over all clients from one array."""
        start = 0
        for name, shape in self._shapes.items():
            size = int(np.prod(shape))
            setattr(self, name, packed[start : start + size].reshape(shape))
            start += size

    def df(self, axes: Axes) -> Array:
        """Return the degrees of freedom of each coefficient."""
        out = np.full(self.P, np.nan)
        for k, a in enumerate(axes.contrasts.T):
            if self.keeps:
                alone, parts = _along(self.own, self.pairs, a)
            else:
                alone, parts = self.own[:, k], self.pairs[:, k] if self.exact else np.zeros((3, self.P, self.P))
            out[k] = _satterthwaite(float(self.expected[k, k]), alone, parts, axes)
        return out


def _along(own: Array, pairs: Array, a: Array) -> tuple[Array, Array]:
    """Return own (2,) and pairs (3, P, P) of one contrast from the tensors."""
    along = np.outer(a, a)
    return np.einsum("tijkl,ij,kl->t", own, along, along), np.einsum("tijkl,jl->tik", pairs, along)


def _satterthwaite(mean: float, alone: Array, parts: Array, axes: Axes) -> float:
    """Return (tr G)^2 / ||G||^2, at least 1."""
    (two, three, four), S = parts, axes.unit * axes.working
    ll, lr = two, three - 0.5 * two @ S
    rr = four - 0.5 * (three @ S + S @ three) + 0.25 * S @ two @ S
    squares = float(alone[0] - 2.0 * alone[1] + 2.0 * ((ll * rr).sum() + (lr * lr.T).sum()))
    return max(mean**2 / squares, 1.0) if squares > 0.0 else np.nan


class _PartSums:
    """Sums over the rows of the clients whose rows count `share` (M,) each."""

    def __init__(
        self,
        data: ClientData,
        family: Family,
        theta: Array,
        axes: Axes,
        layout: _Layout,
        slope: Array | None,
        share: Array,
    ) -> None:
        self._data, self._family, self._theta, self._axes = data, family, theta, axes
        self._layout, self._slope, self._share = layout, slope, share
        self._sums = layout.zeros()

    def add(self, rows: slice) -> None:
        """Take in some rows, so many at a time that their matrices fit into memory."""
        P = len(self._theta)
        most = max(1, MATRIX_ENTRIES // (P * (P if self._layout.exact else self._family.outputs)))
        for low in range(rows.start, rows.stop, most):
            self._add(slice(low, min(low + most, rows.stop)))

    def _add(self, rows: slice) -> None:
        data, family, axes, q = self._data, self._family, self._axes, self._family.outputs
        t = self._share[row_clients(data, rows)]
        keep = t > 0.0
        if not keep.any():
            return
        eta = linear_predictor(data, family, self._theta, rows)[keep]
        X, y, weight, t = data.X[rows][keep], data.y[rows][keep], data.weights_of(rows)[keep], t[keep]
        residual = scaled(family.residual(eta, y), weight).reshape(len(y), q)
        root, back = _roots((weight * family.information(eta).T).T.reshape(len(y), q, q))
        # Z', in the coordinates of the axes.
        Z = (np.einsum("ni,njk->nkji", X, root).reshape(len(y) * q, -1) @ axes.root).reshape(len(y), q, -1)
        hat = t[:, None, None] * (Z @ Z.transpose(0, 2, 1))
        variance = np.eye(q) - 2.0 * hat + Z @ (axes.unit * axes.working) @ Z.transpose(0, 2, 1)
        half, whole = _power(variance, -0.5), _power(np.eye(q) - hat, -1.0)
        added = None if self._slope is None else (t * weight)[:, None] * self._slope
        for name, factor in (("hc2", half), ("hc3", whole)):
            # A row without information (beyond Huber's k) has a residual all the same, and no leverage.
            more = root @ (factor - np.eye(q)) @ back @ residual[:, :, None]
            self._sums[name] += meat(X, (residual + more[:, :, 0]) * t[:, None], added)
        _add(self._sums, self._layout, Z, half, variance, t, axes.contrasts)

    def packed(self) -> Array:
        """Return the sums as one array."""
        return np.concatenate([value.ravel() for value in self._sums.values()])


def _add(sums: dict[str, Array], layout: _Layout, Z: Array, half: Array, variance: Array, t: Array, C: Array) -> None:
    """Add what the degrees of freedom of contrasts C need; Z'(2 t I - S) Z is I - `variance`, and `Z` (n, q, P) Z'."""
    (n, q, P), t2 = Z.shape, t**2
    lost = np.eye(q) - variance
    g = half @ Z @ C
    left = variance @ g
    sums["expected"] += (g * t2[:, None, None]).reshape(n * q, P).T @ left.reshape(n * q, P)
    if layout.keeps:
        along = Z.transpose(0, 2, 1) @ half
        own, beneath = along @ along.transpose(0, 2, 1), along @ lost @ along.transpose(0, 2, 1)
        flat, beneath, D = (part.reshape(n, -1) for part in (own, beneath, along @ Z))
        sums["own"][0] += ((flat * np.square(t2)[:, None]).T @ flat).reshape(P, P, P, P)
        sums["own"][1] += ((flat * np.square(t2)[:, None]).T @ beneath).reshape(P, P, P, P)
        for k, power in enumerate((t2, t2 * t, t2**2)):
            sums["pairs"][k] += ((D * power[:, None]).T @ D).reshape(P, P, P, P)
        return
    own = t2[:, None] * np.square(g).sum(axis=1)
    beneath = t2[:, None] * (g * (lost @ g)).sum(axis=1)
    if not layout.exact:
        sums["own"][0] += np.square(own - beneath).sum(axis=0)
        return
    sums["own"][0] += np.square(own).sum(axis=0)
    sums["own"][1] += (own * beneath).sum(axis=0)
    V = (Z.transpose(0, 2, 1) @ g).transpose(2, 0, 1)
    for k, power in enumerate((t2, t2 * t, t2**2)):
        sums["pairs"][k] += (V * power[:, None]).transpose(0, 2, 1) @ V


def _roots(matrices: Array) -> tuple[Array, Array]:
    """Return symmetric roots of nonnegative definite matrices (n, q, q), and their pseudo-inverses."""
    if matrices.shape[1] == 1:
        root = np.sqrt(matrices)
        return root, np.divide(1.0, root, out=np.zeros_like(root), where=root > 0.0)
    values, vectors = np.linalg.eigh(matrices)
    keep = values > 1e-12 * values[:, -1:]
    size = np.sqrt(np.where(keep, values, 1.0))
    turned = vectors.transpose(0, 2, 1)
    root = (vectors * np.where(keep, size, 0.0)[:, None, :]) @ turned
    return root, (vectors * np.where(keep, 1.0 / size, 0.0)[:, None, :]) @ turned


def _power(matrices: Array, exponent: float) -> Array:
    """Return powers of symmetric matrices (n, q, q); zero in directions that a row alone determines."""
    values, vectors = np.linalg.eigh(matrices) if matrices.shape[1] > 1 else (matrices[:, 0], np.ones_like(matrices))
    keep = values > LEAST_VARIANCE
    size = np.where(keep, np.where(keep, values, 1.0) ** exponent, 0.0)
    return np.asarray((vectors * size[:, None, :]) @ vectors.transpose(0, 2, 1))
