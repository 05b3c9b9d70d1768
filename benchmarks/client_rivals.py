"""Other estimates from the same clients, for `real_clients.py`: what a statistician would try first.

Each is a function of the model and the clients' own fits that returns an estimate, or None where there is none.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass

import numpy as np
import statsmodels.api as sm
from scipy import stats

import adfl_stats as ad
from adfl_stats.engine.pooled import local_estimates, pooled_estimate

TRIM = 0.2
LEVEL = 0.05


@dataclass(frozen=True, eq=False)
class Local:
    """The estimates of the clients that have one (K, P), the inverses of their model-based covariances, and who."""

    params: np.ndarray
    precision: np.ndarray
    clients: np.ndarray


def local_fits(model: ad.DecentralizedGLM) -> Local:
    """Fit every client by itself; those without a finite estimate are left out."""
    data, family = model.data, model.family
    params, precision, clients = [], [], []
    everybody = np.ones(data.n_clients, dtype=bool)
    for m, own in local_estimates(data, family, everybody, np.zeros(data.X.shape[1])).items():
        if own is None:
            continue
        X, y = (np.concatenate([part[rows] for rows in data.blocks(m)]) for part in (data.X, data.y))
        eta = X @ own.params
        information = (X.T * family.curvature(eta, y)) @ X
        if family.estimates_scale:
            left = len(y) - len(own.params)
            if left < 1:
                continue
            information /= np.sum((y - eta) ** 2) / left
        params.append(own.params)
        precision.append(information)
        clients.append(m)
    return Local(np.array(params), np.array(precision), np.array(clients, dtype=int))


def pooled(model: ad.DecentralizedGLM, local: Local) -> np.ndarray | None:
    """All rows together."""
    return _pooled(model, np.ones(model.data.n_clients, dtype=bool))


def trimmed_mean(model: ad.DecentralizedGLM, local: Local) -> np.ndarray | None:
    """Coordinate by coordinate, a fifth of the clients left out at either end."""
    return stats.trim_mean(local.params, TRIM, axis=0) if len(local.params) else None


def median(model: ad.DecentralizedGLM, local: Local) -> np.ndarray | None:
    """Coordinate by coordinate."""
    return np.median(local.params, axis=0) if len(local.params) else None


def cochran(model: ad.DecentralizedGLM, local: Local) -> np.ndarray | None:
    """Drop the client that adds most to Cochran's Q until Q is not significant, then pool the others' rows.

    Clients without an estimate of their own have no part in Q and stay in.
    """
    inside = np.ones(len(local.params), dtype=bool)
    while inside.sum() > 1:
        precision, params = local.precision[inside], local.params[inside]
        centre = np.linalg.solve(precision.sum(axis=0), np.einsum("kij,kj->i", precision, params))
        parts = np.einsum("ki,kij,kj->k", params - centre, precision, params - centre)
        if stats.chi2.sf(parts.sum(), (len(params) - 1) * params.shape[1]) > LEVEL:
            break
        inside[np.flatnonzero(inside)[np.argmax(parts)]] = False
    kept = np.ones(model.data.n_clients, dtype=bool)
    kept[local.clients[~inside]] = False
    return _pooled(model, kept)


def huber(model: ad.DecentralizedGLM, local: Local) -> np.ndarray | None:
    """Huber's M-estimate on all rows together, for Gaussian responses."""
    if model.family.name != "gaussian":
        return None
    return np.asarray(sm.RLM(model.data.y, model.data.X, M=sm.robust.norms.HuberT()).fit().params)


def _pooled(model: ad.DecentralizedGLM, clients: np.ndarray) -> np.ndarray | None:
    found = pooled_estimate(model.data, model.family, clients, np.zeros(model.data.X.shape[1]))
    return None if found is None else found.params


RIVALS: dict[str, Callable[[ad.DecentralizedGLM, Local], np.ndarray | None]] = {
    "pooled": pooled,
    "trimmed": trimmed_mean,
    "median": median,
    "Cochran": cochran,
    "Huber": huber,
}
