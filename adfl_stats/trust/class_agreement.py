"""Which clients label alike: their class means of features at a common point, compared pair by pair.

Where clients hold few classes each, gradient norms and losses of normal clients are as large as those of clients with
wrong labels, and no start serves all clients. Class means do not have that problem: two clients that label alike have
the same mean for a class that both hold, whatever else they hold.

Constants marked ours are judged by `benchmarks/constants.py`.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np
import pandas as pd
from scipy import optimize, sparse, stats

from adfl_stats._arguments import in_interval
from adfl_stats._types import Array, Ints, Mask

__all__ = ["ClassAgreement", "class_agreement"]

# Rows of a class that a client needs for a mean with a variance. Ours: the variance of fewer is too variable.
LEAST_ROWS = 10
# Means of different classes with a larger p-value are taken as one class under two labels. Ours: the usual level.
ALIKE = 0.05
# The roots of traces of powers, over the trace, are at least q^(-2/3) for q features. Ours: far below.
LEAST_ROOT = 1e-12
# Cost of keeping one of two clients that agree and not the other, in clients. Ours: clients that agree are mostly of
# one kind, but a weak comparison must not tie a normal client to an abnormal one.
PARTED = 0.2
# Most nodes of the search for the clients to keep. Ours: bounds the time; where conflicts have a clear shape the search
# ends at the first.
MOST_NODES = 10_000
# Client, class, mean, traces of V, V^2, V^3.
Cell = tuple[int, Any, Array, float, float, float]


@dataclass(frozen=True, eq=False)
class ClassAgreement:
    """Which clients label alike.

    Attributes
    ----------
    weights : ndarray (M,)
        1 for clients that are kept, 0 for a minimum vertex cover of the conflicts: the fewest clients without whom no
        two conflict, where setting aside one of two clients that agree has a small cost as well.
    conflicts, agreements : ndarray (M, M)
        In how many classes two clients contradict one another, and in how many they agree.
    compared : DataFrame
        Every comparison: clients, classes, the squared distance of their means over its expectation, its p-value.

    Examples
    --------
    >>> import numpy as np
    >>> import adfl_stats as ad
    >>> rows = np.random.default_rng(1).normal(size=(3, 50, 2))
    >>> agreement = ad.class_agreement(rows, np.zeros((3, 50), dtype=int))
    >>> agreement.agreements.sum(), len(agreement.compared)
    (np.int64(6), 3)
    """

    weights: Array
    conflicts: Ints
    agreements: Ints
    compared: pd.DataFrame


def class_agreement(features: Sequence[Array], classes: Sequence[Ints], *, level: float = 0.001) -> ClassAgreement:
    """Find the clients that label as the majority does, for ``DFL(weights=...)``.

    For a class that clients m and k both hold, the squared distance of their mean features is compared with its
    expectation under equal distributions, tr(S_m / n_m + S_k / n_k), by a chi-square variable with the same mean,
    variance and skewness (Imhof 1961; Buckley & Eagleson 1988): with mean and variance alone, p-values of a few
    hundred-thousandths are several times too small. They conflict where the distance is too large, at `level` over the
    number of comparisons, and where means of *different* classes are alike. The fewest clients are set aside without
    whom nobody conflicts; to keep one of two clients that agree and not the other counts as a fifth of a client.

    Clients whose images differ for good reasons, such as other handwriting, conflict as well.

    Parameters
    ----------
    features : sequence of ndarray (n_m, q)
        Of each client's rows at a point that all share: hidden units of a network at its initial parameters, or the
        rows themselves.
    classes : sequence of ndarray (n_m,)
        Their labels.
    level : float
        The probability of any conflict among clients that label alike, about.

    Returns
    -------
    ClassAgreement
        Weights and what they rest on.

    Examples
    --------
    >>> import numpy as np
    >>> import adfl_stats as ad
    >>> rng = np.random.default_rng(1)
    >>> classes = [rng.integers(3, size=120) for _ in range(6)]
    >>> features = [np.eye(3)[y] + rng.normal(size=(120, 3)) for y in classes]
    >>> classes[4] = 2 - classes[4]                      # one client counts backwards
    >>> ad.class_agreement(features, classes).weights.tolist()
    [1.0, 1.0, 1.0, 1.0, 0.0, 1.0]
    """
    in_interval(level, "level", 0.0, 1.0, open_low=True, open_high=True)
    if len(features) != len(classes) or any(len(f) != len(y) for f, y in zip(features, classes, strict=False)):
        raise ValueError("features and classes must have an entry for each client, with as many rows in both")
    cells = [cell for m, (f, y) in enumerate(zip(features, classes, strict=True)) for cell in _cells(m, f, y)]
    M, compared = len(features), _compared(cells)
    same = compared["class"] == compared["other class"]
    contradict = compared["p"].where(same, 1.0) < level / max(int(same.sum()), 1)
    contradict |= ~same & (compared["p"] > ALIKE)
    conflicts, agreements = (_counts(compared[mask], M) for mask in (contradict, same & ~contradict))
    return ClassAgreement(_kept(conflicts, agreements).astype(np.float64), conflicts, agreements, compared)


def _cells(m: int, features: Array, classes: Ints) -> list[Cell]:
    """Return client, class, mean and traces of V, V^2 and V^3, V being the covariance of the mean, of each class."""
    cells = []
    for label in np.unique(classes):
        rows = np.asarray(features[classes == label], dtype=np.float64)
        n = len(rows)
        if n < LEAST_ROWS:
            continue
        centred = rows - rows.mean(axis=0)
        # Of the two products with the same nonzero eigenvalues, the smaller.
        product = centred @ centred.T if n < rows.shape[1] else centred.T @ centred
        product /= n * (n - 1.0)
        traces = np.trace(product), np.sum(product**2), np.sum((product @ product) * product)
        cells.append((m, label, rows.mean(axis=0), *map(float, traces)))
    return cells


def _compared(cells: list[Cell]) -> pd.DataFrame:
    """Compare the classes of each pair of clients."""
    if not cells:
        raise ValueError(f"no client has {LEAST_ROWS} rows of a class; with fewer, labels cannot be compared")
    clients, labels, means, *traces = (np.array(part) for part in zip(*cells, strict=True))
    first, second = np.nonzero(clients[:, None] < clients[None])
    lengths = np.sum(means**2, axis=1)
    distance = np.maximum((lengths[:, None] + lengths[None] - 2.0 * means @ means.T)[first, second], 0.0)
    # The r-th root of tr (A + B)^r is at most the sum of those of A and B, with equality where both are multiples of
    # one matrix, as under equal distributions. Relative to the first, so that powers do not underflow.
    expected, *roots = (
        np.maximum(one[first] ** (1.0 / r) + one[second] ** (1.0 / r), np.finfo(float).tiny)
        for r, one in enumerate(traces, 1)
    )
    second_moment, third_moment = (np.maximum(root / expected, LEAST_ROOT) ** r for r, root in enumerate(roots, 2))
    columns = {
        "client": clients[first],
        "other": clients[second],
        "class": labels[first],
        "other class": labels[second],
    }
    ratio, df = distance / expected, second_moment**3 / third_moment**2
    p = stats.chi2.sf(np.maximum((ratio - 1.0) * second_moment / third_moment + df, 0.0), df)
    return pd.DataFrame({**columns, "ratio": ratio, "p": p})


def _counts(pairs: pd.DataFrame, M: int) -> Ints:
    counts = np.zeros((M, M), dtype=np.int64)
    np.add.at(counts, (pairs["client"].to_numpy(), pairs["other"].to_numpy()), 1)
    return counts + counts.T


def _kept(conflicts: Ints, agreements: Ints) -> Mask:
    """Keep the most clients of whom no two conflict; to part two that agree costs `PARTED` of a client.

    An integer program: x_m is 1 for clients that are kept, y_e >= |x_m - x_k| for pairs e that agree.
    """
    M = len(conflicts)
    first, second = np.nonzero(np.triu(conflicts > 0))
    one, other = np.nonzero(np.triu((agreements > 0) & (conflicts == 0)))
    n, e = len(first), len(one)
    if not n:
        return np.ones(M, dtype=bool)
    client = sparse.eye_array(M, format="csr")
    apart, parted = client[one] - client[other], sparse.eye_array(e)
    rows = sparse.block_array([[client[first] + client[second], None], [apart, -parted], [-apart, -parted]])
    program = optimize.milp(
        np.concatenate([-np.ones(M), np.full(e, PARTED)]),
        integrality=np.concatenate([np.ones(M), np.zeros(e)]),
        bounds=optimize.Bounds(0.0, 1.0),
        constraints=optimize.LinearConstraint(rows, -np.inf, np.concatenate([np.ones(n), np.zeros(2 * e)])),
        options={"node_limit": MOST_NODES},
    )
    if program.x is None:
        raise ValueError(f"the conflicts of {M} clients could not be resolved: {program.message}")
    return np.asarray(program.x[:M] > 0.5)
