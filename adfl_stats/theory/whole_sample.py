"""The whole-sample estimator, which Theorem 1 is about: all clients count by their rows, whatever their weights."""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np

from adfl_stats._types import Array
from adfl_stats.data.batches import one_pass
from adfl_stats.data.client_data import ClientData
from adfl_stats.engine.numerical_error import sandwich
from adfl_stats.engine.pooled import pooled_estimate
from adfl_stats.inference.record import FitRecord
from adfl_stats.losses.glm import GLM
from adfl_stats.losses.point_sums import sums_at
from adfl_stats.losses.regularity import RegularitySums

__all__ = ["WholeSample", "whole_sample"]


@dataclass(frozen=True, eq=False)
class WholeSample:
    """The estimator that minimises N^-1 sum_i l(X_i, Y_i; theta) over all rows, section 3.1.

    Attributes
    ----------
    params : ndarray (P,)
        The estimate; NaN where all rows together have no single minimum. Without data it is one Newton step from the
        fit's estimate, which is exact for least squares.
    variance : float
        Trace of Omega^-1 Sigma Omega^-1 / N, the leading term of V: Omega is the mean Hessian of all rows, Sigma the
        mean of their squared scores less the mean of their client. At `params`, without data at the fit's estimate.
    hessian : ndarray (P, P)
        Omega at theta_0, or at the fit's estimate where it stands in.
    """

    params: Array
    variance: float
    hessian: Array


def whole_sample(fit: FitRecord, data: ClientData | None, truth: Array | None) -> WholeSample:
    """Return the whole-sample estimator of a fit's data.

    Parameters
    ----------
    fit : FitRecord
        What `Results` hold.
    data : ClientData, optional
        The rows, with the fit's clients set aside; without them all is linear about the fit's estimate.
    truth : ndarray (P,), optional
        theta_0.
    """
    here, params = fit.regularity, fit.params
    if data is None:
        step = np.linalg.solve(here.hessian, here.shares @ _counted(fit, fit.weighted_sums.gradients))
        return WholeSample(params - step, float(np.trace(sandwich(here.hessian, here.meat)[1])), here.hessian)
    weights = data.n_clients * here.shares
    at = params if truth is None else truth
    hessian = GLM(data, fit.family, fit.penalty).curvature_and_meat(at, weights)[0]
    pooled = pooled_estimate(data, fit.family, data.counted, params, fit.penalty)
    if pooled is None:
        return WholeSample(np.full(len(params), np.nan), np.nan, hessian)
    clients = sums_at(data, fit.family, pooled.params, weights).clients
    (there,) = one_pass(data, RegularitySums(data, fit.family, pooled.params, clients, fit.penalty))
    return WholeSample(pooled.params, float(np.trace(sandwich(there.hessian, there.meat)[1])), hessian)


def _counted(fit: FitRecord, gradients: Array) -> Array:
    """Return the gradients, zero for clients whose numbers overflow."""
    return np.where(fit.set_aside[:, None], 0.0, gradients)
