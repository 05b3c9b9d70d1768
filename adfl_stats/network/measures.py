"""Measures of a network: degrees, balance, mixing, influence."""

from __future__ import annotations

import math
from collections.abc import Hashable
from dataclasses import dataclass
from functools import cached_property
from typing import Any

import numpy as np
import pandas as pd
from numpy.typing import NDArray
from scipy import sparse

from adfl_stats._types import Array, Mask
from adfl_stats._warn import warn
from adfl_stats.errors import NetworkWarning
from adfl_stats.network import eigenvalues, spectrum, structure
from adfl_stats.network.eigenvalues import ExtremeEigenvalue
from adfl_stats.network.products import Products

__all__ = ["LEAST_INFLUENCE", "SE_ROUNDING", "NetworkMeasures"]

# Influence, in units of the average client's, below which balanced steps no longer compensate for it. Ours: the
# client's step would be more than 50 times as long as the others'.
LEAST_INFLUENCE = 0.02

# W is called doubly stochastic where its column sums are this close to 1. Ours: weights in files have ten digits.
BALANCE_TOLERANCE = 1e-10
# Column sums may be off by this part of the weakest link; influence then changes by about as much. Ours: a
# millionth of a client's influence is far below what a step or a verdict depends on.
LINK_TOLERANCE = 1e-6
# Imbalances below this are rounding errors of the column sums. Ours: that of thousands of terms, or of `balanced`.
SE_ROUNDING = 1e-12


@dataclass(frozen=True, eq=False, repr=False)
class NetworkMeasures:
    """The weights W by rows, and what follows from them; `Network` adds constructors and repairs."""

    indptr: NDArray[np.signedinteger]
    indices: NDArray[np.signedinteger]
    weights: Array
    labels: pd.Index

    def __post_init__(self) -> None:
        for array in (self.indptr, self.indices, self.weights):
            array.flags.writeable = False

    # ------------------------------------------------------------------ what it looks like

    @property
    def W(self) -> sparse.csr_array:  # noqa: N802 - the name in the paper
        """The weights as a CSR array over the read-only arrays; a new one on each access."""
        shape = (self.n_clients, self.n_clients)
        W = sparse.csr_array((self.weights, self.indices, self.indptr), shape=shape)
        W.has_canonical_format = True
        return W

    @cached_property
    def csr(self) -> sparse.csr_array:
        """The weights as one CSR array that all computations share; to be read only, where `W` may be changed."""
        return self.W

    @cached_property
    def n_clients(self) -> int:
        """The number M of clients."""
        return len(self.indptr) - 1

    @cached_property
    def n_edges(self) -> int:
        """The number of pairs of different clients of which one receives from the other."""
        receiver = np.repeat(np.arange(self.n_clients), np.diff(self.indptr))
        return int(np.count_nonzero(receiver != self.indices))

    @cached_property
    def in_degree(self) -> pd.Series:
        """How many clients each client receives from, d_m; a self loop counts."""
        return self._series(np.diff(self.indptr).astype(np.int64))

    @cached_property
    def out_degree(self) -> pd.Series:
        """How many clients receive from each client; a self loop counts."""
        return self._series(np.bincount(self.indices, minlength=self.n_clients).astype(np.int64))

    # ------------------------------------------------------------------ balance and mixing

    @cached_property
    def column_excess(self) -> Array:
        """The column sums of W less one; all zero on balanced networks."""
        sums = np.bincount(self.indices, weights=self.weights, minlength=self.n_clients)
        return np.asarray(sums, dtype=np.float64) - 1.0

    @cached_property
    def se(self) -> float:
        """The imbalance ``SE(W) = (M^-1 ||W'1 - 1||^2)^(1/2)``; zero if W is doubly stochastic, only then."""
        imbalance = float(np.sqrt(np.mean(self.column_excess**2)))
        return imbalance if imbalance > SE_ROUNDING else 0.0

    @cached_property
    def mixing(self) -> float:
        """The norm ``||W'(I - 11'/M)W||_2``: the share of the squared disagreement that a round can leave.

        Where a large network mixes so slowly that the norm cannot be resolved, a NetworkWarning says so,
        and the value is a lower bound.
        """
        return _told(self.mixing_estimate, "the mixing of this network could not be resolved, and is at least")

    @cached_property
    def mixing_estimate(self) -> ExtremeEigenvalue:
        """`mixing` with the reason where it could not be resolved."""
        return spectrum.mixing_norm(self, products=self.products)

    @cached_property
    def rows_overlap(self) -> bool:
        """Whether the clients cannot be partitioned so that no client listens to two parts."""
        return structure.rows_overlap(self.csr)

    @cached_property
    def reversible_weights(self) -> Array | None:
        """The influence where ``pi_m w_mk = pi_k w_km``, as on undirected graphs; None where that is not so."""
        return structure.reversible_weights(self.csr) if self.is_strongly_connected else None

    @cached_property
    def circulant_moduli(self) -> Array | None:
        """The moduli of all eigenvalues where W is circulant, as on the directed circle; None where it is not."""
        return eigenvalues.circulant_moduli(self.csr)

    @cached_property
    def asymmetry(self) -> float:
        """The largest entry of ``|W - W'|``."""
        return float(abs(self.csr - self.csr.T).max())

    @property
    def products(self) -> Products:
        """Products of W and its transpose with vectors."""
        return Products.of(self.csr, self.reversible_weights)

    @cached_property
    def rho(self) -> float:
        """The constant of Condition 5, ``||W'(I - 11'/M)W||_2 + SE(W)``, which should be below 1."""
        return self.mixing + self.se

    @cached_property
    def is_doubly_stochastic(self) -> bool:
        """Whether the columns of W sum to one as well.

        Up to rounding of the weights, and up to a small part of the weakest link: groups that hardly hear one another
        have unequal influence where their links differ, however small these are.
        """
        excess = float(np.abs(self.column_excess).max())
        if excess > BALANCE_TOLERANCE:
            return False
        links = self.csr.data[self.csr.indices != np.repeat(np.arange(self.n_clients), np.diff(self.csr.indptr))]
        weakest = float(links.min(initial=1.0))
        rounding = 4.0 * float(np.finfo(np.float64).eps) * max(1.0, float(np.bincount(self.csr.indices).max()))
        return excess <= max(LINK_TOLERANCE * weakest, rounding)

    @cached_property
    def communicating_classes(self) -> tuple[NDArray[np.int32], Mask]:
        """The communicating class of each client, and which classes are closed."""
        return structure.communication_classes(self.csr)

    @property
    def is_strongly_connected(self) -> bool:
        """Whether there is a directed path from each client to every other."""
        return len(self.communicating_classes[1]) == 1

    @property
    def closed_groups(self) -> list[list[Hashable]]:
        """The groups whose members reach one another and receive from nobody outside.

        With one such group all clients converge to its consensus; with several there is no consensus.
        """
        component, closed = self.communicating_classes
        inside = np.flatnonzero(closed[component])
        _, first, group = np.unique(component[inside], return_index=True, return_inverse=True)
        # In the order of their first members.
        group = np.argsort(np.argsort(first))[group]
        names = self.labels[inside[np.argsort(group, kind="stable")]].tolist()
        ends = np.cumsum(np.bincount(group)).tolist()
        return [names[begin:end] for begin, end in zip([0, *ends[:-1]], ends, strict=True)]

    @cached_property
    def period(self) -> int:
        """The greatest common divisor of the lengths of cycles in a closed group; 1 is wanted.

        With several closed groups, the least common multiple of their periods. On a periodic network
        repeated combination does not converge; `lazy` makes the period 1.
        """
        return math.lcm(*structure.closed_class_periods(self.csr, *self.communicating_classes).tolist())

    @cached_property
    def second_eigenvalue(self) -> float:
        """The second largest modulus of the eigenvalues of W, the asymptotic rate at which disagreement shrinks.

        It is 1 if and only if there are several closed groups or a period, and at most the root of `mixing`.
        Where it cannot be resolved on a large network, a NetworkWarning says what the value is instead.
        """
        return _told(self.second_eigenvalue_estimate, "the second eigenvalue could not be resolved, and is about")

    @cached_property
    def second_eigenvalue_estimate(self) -> ExtremeEigenvalue:
        """`second_eigenvalue` with the reason where it could not be resolved."""
        if self.n_clients > eigenvalues.DENSE and self.is_doubly_stochastic and self.asymmetry < 1e-12:
            # Symmetric: the singular values, whose square the mixing is, are the moduli.
            return ExtremeEigenvalue(math.sqrt(self.mixing_estimate.value), self.mixing_estimate.trouble)
        estimate = eigenvalues.second_modulus(self)
        # sqrt(mixing) = ||(I - J)W|| bounds the eigenvalues of (I - J)W, which are the others of W.
        if estimate.trouble and not self.mixing_estimate.trouble:
            most = math.sqrt(self.mixing_estimate.value)
            trouble = f"{estimate.trouble}; the modulus is at most {most:.6g}, the root of the mixing"
            return ExtremeEigenvalue(min(estimate.value, most), trouble)
        return estimate

    @cached_property
    def influence(self) -> pd.Series:
        """The long-run weight of each client in the mean over clients.

        ``pi' = M^-1 1' lim T^-1 sum_{t<T} W^t``: the stationary distribution, ``pi'W = pi'``, if there is one
        closed group. With several, each has the share of the clients absorbed by it. Transient clients, outside
        the closed groups, have weight zero. A doubly stochastic W has pi = 1/M.
        """
        if self.is_doubly_stochastic:
            return self._series(np.full(self.n_clients, 1.0 / self.n_clients))
        if self.reversible_weights is not None:
            return self._series(self.reversible_weights.copy())
        return self._series(spectrum.long_run_weights(self.csr, *self.communicating_classes))

    @property
    def unheard(self) -> pd.Index:
        """The transient clients, from whom no member of a closed group receives: influence zero."""
        return self.labels[self.influence.to_numpy() == 0.0]

    @cached_property
    def balanced_efficiency(self) -> float:
        """Share of effective clients once steps are divided by influence, at most fifty times.

        One where every client has at least a fiftieth of the average influence.
        """
        shares = np.minimum(self.n_clients * self.influence.to_numpy() / LEAST_INFLUENCE, 1.0)
        return float(shares.sum() ** 2 / (self.n_clients * (shares**2).sum()))

    @cached_property
    def effective_clients(self) -> float:
        """The effective number of clients, ``1 / sum_m pi_m^2``: M if all have the same influence."""
        return float(1.0 / np.sum(self.influence.to_numpy() ** 2))

    def _series(self, values: NDArray[Any]) -> pd.Series:
        # Read-only like the network: the series is cached and handed out again.
        values.flags.writeable = False
        return pd.Series(values, index=self.labels, copy=False)


def _told(estimate: ExtremeEigenvalue, claim: str) -> float:
    """Return the value of an estimate, with a NetworkWarning if it could not be resolved."""
    if estimate.trouble:
        warn(
            f"{claim} {estimate.value:.9g}: {estimate.trouble}. The network mixes very slowly, or has many nearly "
            "equal eigenvalues; consider more neighbours",
            NetworkWarning,
        )
    return estimate.value
