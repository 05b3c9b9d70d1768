"""EXTRA and gradient tracking: exact methods for undirected networks, not robust."""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np
from scipy import linalg
from scipy.sparse.linalg import eigsh

from adfl_stats._types import Array, InitialEstimates
from adfl_stats.engine.plan import Plan
from adfl_stats.engine.problem import Problem
from adfl_stats.engine.round import Exchange, Scheme, Slope, Update
from adfl_stats.losses.penalties import Penalty
from adfl_stats.methods._base import Method, Outcome, check_undirected, run_scheme

__all__ = ["Extra", "GradientTracking", "tracked"]


@dataclass(frozen=True, eq=False)
class Extra(Method):
    """EXTRA of Shi, Ling, Wu & Yin (2015, SIAM J. Optim.): the pooled estimate at a constant step.

    Theta_1 = W Theta_0 - alpha G(Theta_0), then
    Theta_{t+2} = (I + W) Theta_{t+1} - (I + W) / 2 Theta_t - alpha (G(Theta_{t+1}) - G(Theta_t)).
    Unlike DFL it has no bias of the order of the step. It is not robust: abnormal clients bias it
    like the pooled fit. It needs an undirected network with symmetric weights (``net.metropolis()``);
    "auto" takes the step lambda_min((I + W) / 2) over the largest curvature, half the bound of its theory.

    Parameters
    ----------
    init : array, Series, DataFrame, results, method or None
        Initial estimates; see `ADFL`.

    Examples
    --------
    >>> import adfl_stats as ad
    >>> import numpy as np
    >>> sim = ad.simulate.paper_linear(abnormal=0.2, corruption="BF", seed=1, M=20, n=60, p=3)
    >>> data = ad.ClientData.from_arrays(sim.X, sim.y, sim.client)
    >>> model = ad.DecentralizedGLM(data, ad.networks.complete(20))
    >>> res = model.fit(ad.Extra())
    >>> pooled, *_ = np.linalg.lstsq(sim.X, sim.y, rcond=None)
    >>> bool(abs(res.params - pooled).max() < 0.01)
    True
    """

    init: InitialEstimates | None = None

    @property
    def name(self) -> str:
        """Shown in summaries."""
        return "EXTRA"

    def estimate(self, problem: Problem, plan: Plan) -> Outcome:
        """Run the recursion."""
        check_undirected(problem, self.name, weights=True)
        scheme = Scheme(update=_corrected, schedule="hold", caution=max(0.5 * (1.0 + _smallest(problem)), 1e-3))
        return run_scheme(self, scheme, problem, plan, smooth=True)


@dataclass(frozen=True, eq=False)
class GradientTracking(Method):
    """Gradient tracking (DIGing; Nedic, Olshevsky & Shi 2017, SIAM J. Optim.).

    Theta_{t+1} = W Theta_t - alpha Z_t and Z_{t+1} = W Z_t + G(Theta_{t+1}) - G(Theta_t) with
    Z_0 = G(Theta_0): the rows of Z follow the clients' mean gradient, and the estimates converge to the
    pooled one at a constant step. It is not robust, and sends twice as much as DFL. It needs an
    undirected network with symmetric weights (``net.metropolis()``); the largest stable
    step depends on the mixing of W, so that "auto" repeats a run that diverges with a fourth of the step.

    Parameters
    ----------
    init : array, Series, DataFrame, results, method or None
        Initial estimates; see `ADFL`.

    Examples
    --------
    >>> import adfl_stats as ad
    >>> import numpy as np
    >>> sim = ad.simulate.paper_linear(abnormal=0.2, corruption="BF", seed=1, M=20, n=60, p=3)
    >>> data = ad.ClientData.from_arrays(sim.X, sim.y, sim.client)
    >>> model = ad.DecentralizedGLM(data, ad.networks.complete(20))
    >>> res = model.fit(ad.GradientTracking())
    >>> pooled, *_ = np.linalg.lstsq(sim.X, sim.y, rcond=None)
    >>> bool(abs(res.params - pooled).max() < 0.01)
    True
    """

    init: InitialEstimates | None = None

    @property
    def name(self) -> str:
        """Shown in summaries."""
        return "gradient tracking"

    def estimate(self, problem: Problem, plan: Plan) -> Outcome:
        """Run the recursion."""
        check_undirected(problem, self.name, weights=True)
        scheme = Scheme(update=tracked, schedule="hold", caution=0.25)
        return run_scheme(self, scheme, problem, plan, smooth=True)


def tracked(exchange: Exchange, slope: Slope, penalty: Penalty | None = None) -> Update:
    """Return the round of gradient tracking; its state is the last gradient and the tracked mean gradient.

    A `penalty` enters by its proximal operator, so that it need not be smooth.
    """
    last: Array | None = None
    track: Array = np.empty(0)

    def update(theta: Array, step: float) -> Array:
        nonlocal last, track
        if last is None:
            last = track = slope(theta)
        after = exchange.combine(theta) - step * track
        if penalty is not None:
            after = penalty.prox(after, step)
        gradient = slope(after)
        track = exchange.combine(track) + gradient - last
        last = gradient
        return after

    return update


def _corrected(exchange: Exchange, slope: Slope) -> Update:
    """Return the round of EXTRA; its state is the last estimate, its combination by W, and its gradient."""
    before: tuple[Array, Array, Array] | None = None

    def update(theta: Array, step: float) -> Array:
        nonlocal before
        mixed, gradient = exchange.combine(theta), slope(theta)
        if before is None:
            after = mixed - step * gradient
        else:
            old, old_mixed, old_gradient = before
            after = theta + mixed - 0.5 * (old + old_mixed) - step * (gradient - old_gradient)
        before = theta.copy(), mixed, gradient
        return after

    return update


def _smallest(problem: Problem) -> float:
    """Return the smallest eigenvalue of a symmetric W."""
    W = problem.network.W
    if problem.M <= 500:
        return float(linalg.eigvalsh(W.toarray())[0])
    return float(eigsh(W, k=1, which="SA", return_eigenvectors=False, v0=np.cos(np.arange(problem.M) ** 2))[0])
