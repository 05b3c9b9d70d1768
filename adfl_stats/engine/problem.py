"""What a method works on: an objective on a network, and the steps that the clients take."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from functools import cached_property
from typing import Any, cast

import numpy as np
import pandas as pd
from scipy import linalg

from adfl_stats._algebra import inverse, summed_products
from adfl_stats._arguments import listing
from adfl_stats._properties import once
from adfl_stats._types import Array, Mask
from adfl_stats.engine.transport import LOCAL, Members, Transport, mean_over
from adfl_stats.losses.glm import GLM
from adfl_stats.losses.objective import Objective
from adfl_stats.losses.point_sums import rounding_variance
from adfl_stats.network.measures import LEAST_INFLUENCE
from adfl_stats.network.network import Network
from adfl_stats.network.schedule import NetworkSchedule, one_network

__all__ = ["ClientSteps", "Problem", "overflow_error"]


# The largest share of clients without weight in the pooled curvature of a direction: with more, the others' curvature
# is below a tenth of it, and runs are ten times as long. (Ours, as the next.)
FOREIGN = 0.9
# A matrix of unit diagonal with a smaller eigenvalue is numerically singular.
SINGULAR = 1e-14
OVERFLOW_ADVICE = (
    "Their covariates, responses or offsets are far larger than the others'; bring them to the same units, or leave "
    "these clients out"
)


def overflow_error(labels: Sequence[Any]) -> ValueError:
    """Return the error of a method that gives every client weight."""
    return ValueError(
        f"the numbers of {len(labels)} client(s) overflow where the others agree: {listing(labels)}. {OVERFLOW_ADVICE}"
        "; ad.ADFL() sets them aside"
    )


@dataclass(frozen=True)
class ClientSteps:
    """Weights and steps of the clients, and the total weights in the network's limit.

    Attributes
    ----------
    weights : ndarray (M,)
        omega_m, the weight of each client.
    factors : ndarray (M,)
        What each client multiplies the step alpha by: omega_m (n_m / mean n), over M pi_m if balanced.
    total_weights : ndarray (M,)
        v_m, the factors times the influence M pi_m: as the step tends to zero the network solves
        sum_m v_m grad L_m(theta) = 0.

    Examples
    --------
    >>> import numpy as np
    >>> import adfl_stats as ad
    >>> from adfl_stats.engine.problem import Problem
    >>> losses = ad.Losses(lambda m, theta, rng: theta - m, np.ones(4), np.zeros(1))
    >>> problem = Problem(losses, ad.networks.complete(4))
    >>> problem.steps(np.array([1.0, 1.0, 1.0, 0.0])).total_weights.tolist()
    [1.0, 1.0, 1.0, 0.0]
    """

    weights: Array
    factors: Array
    total_weights: Array


class Problem:
    """What a method works on: M clients that are ours, P parameters, their losses and the network.

    Of the clients here and elsewhere there are `n_clients`, as many as the network has; arrays have a row for each of
    ours.

    Parameters
    ----------
    objective : Objective
        The clients' losses.
    network : Network or NetworkSchedule
        Its order of clients is that of the objective.
    weighting : {"sample", "client", "random-effects"}
        Whether a client's step is proportional to its number of rows, so that the limit of DFL is the
        pooled estimate, or every client counts once, as printed in the paper (equal sizes: the same).
    threads : int
        Threads of the kernel; they never change a bit of the result.
    transport : Transport
        By which sums over clients become those over all of them.

    Examples
    --------
    >>> import numpy as np
    >>> import adfl_stats as ad
    >>> from adfl_stats.engine.problem import Problem
    >>> losses = ad.Losses(lambda m, theta, rng: theta - m, np.ones(4), np.zeros(1))
    >>> problem = Problem(losses, ad.networks.complete(4))
    >>> theta = problem.objective.start()
    >>> problem.gradients(theta).ravel().tolist(), float(problem.mean(problem.gradients(theta))[0])
    ([0.0, -1.0, -2.0, -3.0], -1.5)
    """

    def __init__(
        self,
        objective: Objective,
        network: Network | NetworkSchedule,
        weighting: str = "sample",
        threads: int = 1,
        transport: Transport = LOCAL,
    ) -> None:
        if (placed := getattr(objective, "placed", None)) is not None:
            objective = placed(transport.total, transport.gather, transport.batches())
        self.objective, self.topology, self.weighting, self.threads = objective, network, weighting, threads
        self.transport = transport
        self.M, self.P = objective.M, objective.P
        self.n_clients = network.n_clients
        self.relative_sizes = (
            np.ones(self.M) if weighting == "client" else objective.totals / self.mean(objective.totals)
        )
        self._coordinates: tuple[Array, Array] | None = None

    @property
    def has_curvature(self) -> bool:
        """Whether the losses have more than gradients: values, curvatures and scores."""
        return bool(getattr(self.objective, "has_curvature", False))

    @property
    def glm(self) -> GLM:
        """The objective where it is a generalised linear model; others are refused."""
        if not self.has_curvature:
            raise TypeError(
                f"this needs the curvature of a generalised linear model; the objective is a "
                f"{type(self.objective).__name__}, which has gradients only"
            )
        return cast(GLM, self.objective)

    @cached_property
    def members(self) -> Members:
        """All clients, ours and those elsewhere."""
        return Members(self.transport, None if self.transport.here else self.transport.clients(self.n_clients))

    @once
    def rounding_variance(self) -> float:
        """Residual variance below which responses are fitted but for rounding errors; zero where the link is curved."""
        if not self.glm.family.additive:
            return 0.0
        return rounding_variance(self.transport.gather(self.glm.mean_squares[self.objective.counted]))

    @once
    def coefficient_sizes(self) -> Array:
        """The natural unit of each coefficient (P,): the largest root mean square of its column in any place."""
        return self.transport.largest(self.glm.coefficient_sizes[None])

    @once
    def unpenalised(self) -> Problem:
        """The same problem without a penalty: where clients are judged, by the scores of their rows alone."""
        if not self.has_curvature or self.glm.penalty is None:
            return self
        return Problem(self.glm.unpenalised, self.topology, self.weighting, self.threads, self.transport)

    @property
    def network(self) -> Network:
        """The network where it is the same in every round; a schedule is refused."""
        return one_network(self.topology, "this")

    @property
    def schedule(self) -> NetworkSchedule | None:
        """The schedule where the network changes with the round, else None."""
        return self.topology if isinstance(self.topology, NetworkSchedule) else None

    @property
    def labels(self) -> pd.Index:
        """The clients that are ours."""
        return self.objective.labels

    @property
    def all_labels(self) -> pd.Index:
        """All clients, in the order of the network's rows."""
        return self.labels if self.transport.here else self.topology.labels

    def named(self, some: Mask) -> pd.Index:
        """Return the names of those of all clients of whom `some` (M,), of ours, is true."""
        return self.all_labels[self.transport.gather(some)]

    @property
    def names(self) -> Sequence[str]:
        """The coefficients."""
        return self.objective.names

    def gradients(self, theta: Array) -> Array:
        """Return each client's gradient at its own row of theta (M, P)."""
        return self.objective.gradients(theta[:, None], self.threads)[:, 0]

    def whole_gradients(self, theta: Array) -> Array:
        """Return each client's gradient at its own row of theta (M, P): of all rows where rounds take minibatches."""
        whole = getattr(self.objective, "whole_gradients", None)
        return self.gradients(theta) if whole is None else whole(theta, self.threads)

    @property
    def has_losses(self) -> bool:
        """Whether clients can compute their losses at given parameters."""
        return self.has_curvature or getattr(self.objective, "loss", None) is not None

    def own_losses(self, theta: Array) -> Array:
        """Return each client's loss at its own row of theta (M, P), of an objective that has losses."""
        objective: Any = self.objective
        return np.array([objective.loss(m, own) for m, own in enumerate(theta)])

    def common_gradients(self, thetas: Array) -> Array:
        """Return each client's gradient at every row of thetas (R, P), as (M, R, P)."""
        return self.objective.gradients(np.broadcast_to(thetas, (self.M, *thetas.shape)), self.threads)

    @once
    def influence(self) -> Array:
        """M pi_m: how much of a client's step ends up in the network's consensus, 1 on balanced W."""
        return self.n_clients * self.members.ours(self.topology.influence.to_numpy())

    def mean(self, theta: Array) -> Array:
        """Return the mean over all clients of theta (M, ...)."""
        return mean_over(self.transport, theta)

    def largest(self, values: Array) -> float:
        """Return the largest of the values (M, ...) of all clients."""
        return float(self.transport.largest(values).max())

    def consensus(self, theta: Array) -> Array:
        """Return sum_m pi_m theta_m of theta (M, ...): what the network agrees on in the long run."""
        pi = self.influence / self.n_clients
        return self.members.sum_products(pi, theta)

    def steps(self, weights: Array, *, balance: bool = False, shares: Array | None = None) -> ClientSteps:
        """Return the clients' steps and total weights for weights omega_m.

        Parameters
        ----------
        weights : ndarray (M,)
            omega_m; clients that are set aside have none.
        balance : bool
            Divide each client's step by its influence M pi_m, so that the network solves the plain
            sum of equations also where SE(W) is not zero. No step grows more than fifty times: a
            client with hardly any influence would otherwise force small steps on all.
        shares : ndarray (M,), optional
            Factors of the clients' sizes, for example of random effects.
        """
        weights = np.where(self.objective.counted, weights, 0.0)
        factors = weights * self.relative_sizes * (1.0 if shares is None else shares)
        if balance:
            one_network(self.topology, "balance=True, which divides a client's step by its influence,")
            factors = factors / np.maximum(self.influence, LEAST_INFLUENCE)
        return ClientSteps(weights, factors, factors * self.influence)

    def find_shared(self, *, coordinates: bool) -> None:
        """Find what runs to the limit have in common with each other and with inference.

        A run that a journal has is not made again: what it would find first is asked for before it, and so is counted
        (`Counted`) as often in a fit that goes on as in one without a stop.
        """
        _ = self.coefficient_sizes, self.glm.mean_rows
        if coordinates and self.glm.family.has_global_bound:
            self.coordinates(np.zeros(self.P))

    def coordinates(self, theta: Array, weights: Array | None = None) -> tuple[Array, Array]:
        """Return a common preconditioner at theta (P,) and the clients' largest curvatures seen in it.

        The preconditioner (p, p) is the inverse of the pooled bound on the curvature. Families whose
        bound does not depend on theta have both computed once.

        Parameters
        ----------
        theta : ndarray (P,)
            Where a run begins.
        weights : ndarray (M,), optional
            omega_m. Clients without weight are left out of the pool where they dominate it in some direction, which
            would slow the others down.
        """
        if self._coordinates is None or not self.glm.family.has_global_bound:
            self._coordinates = self._pooled_coordinates(theta, np.ones(self.M))
        if weights is None:
            return self._coordinates
        # In these coordinates the pool is the identity, and this bounds the part of the clients without weight in it.
        trust = weights / self.largest(weights)
        foreign = self.relative_sizes, (1.0 - trust) * self._coordinates[1]
        if float(self.members.sum_products(*foreign)) <= FOREIGN * self.n_clients:
            return self._coordinates
        try:
            return self._pooled_coordinates(theta, trust)
        except linalg.LinAlgError:
            # Rank-deficient: the coefficients are named where standard errors are computed.
            return self._coordinates

    def _pooled_coordinates(self, theta: Array, weights: Array) -> tuple[Array, Array]:
        """Return the coordinates in which the bound on the curvature, pooled with weights, is the identity."""
        finite = np.ones(self.M, dtype=bool)

        def part(at: slice) -> Array:
            shares, pooled = weights[at] * self.relative_sizes[at] / self.n_clients, np.zeros((self.glm.p, self.glm.p))
            # A view, so that what is written there is written to all of ours.
            fine = finite[at]
            for clients, matrices in self.glm.of(at).bounded_curvature(theta):
                pooled += summed_products(shares[clients], matrices)
                fine[clients] = np.isfinite(matrices).all(axis=(1, 2))
            return pooled

        with np.errstate(over="ignore", invalid="ignore"):
            pooled = self.transport.total(part)
        if self.members.count(~finite):
            raise overflow_error(self.named(~finite))
        size = np.sqrt(np.diag(pooled))
        # All clients together identify all coefficients, or there would be no model.
        regular = size.all() and linalg.eigvalsh(pooled / np.outer(size, size))[0] > SINGULAR
        if not regular and self.members.count(weights < 1.0):
            raise linalg.LinAlgError("the pooled curvature is singular")
        metric = inverse(pooled)
        return metric, self.glm.largest_curvatures(theta, linalg.cholesky(metric, lower=True))
