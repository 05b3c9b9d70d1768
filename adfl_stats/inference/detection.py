"""Detection limits: the smallest shift of clients that a fit detects, and the bias of smaller ones."""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np

from adfl_stats._types import Array
from adfl_stats.inference.covariance import Inference
from adfl_stats.inference.record import FitRecord
from adfl_stats.trust import detectable_shift

__all__ = ["DetectionLimits", "limits_of_detection"]


@dataclass(frozen=True, eq=False)
class DetectionLimits:
    """The smallest shift of some clients that is detected, and the bias that a shift just below it leaves.

    Attributes
    ----------
    shift : float
        The smallest shift, in standard deviations of a client.
    bias : ndarray (P,)
        The bias of each coefficient at a shift just below.
    se : ndarray (P,)
        Their standard errors.

    Examples
    --------
    >>> import adfl_stats as ad
    >>> from adfl_stats.inference.detection import limits_of_detection
    >>> sim = ad.simulate.paper_linear(abnormal=0, corruption=None, seed=1, M=40, n=60, p=3)
    >>> data = ad.ClientData.from_arrays(sim.X, sim.y, sim.client)
    >>> res = ad.DecentralizedGLM(data, ad.networks.directed_circle(40, 5)).fit()
    >>> limits = limits_of_detection(res.record, share=0.2, power=0.8)
    >>> limits.shift > 2.0, limits.bias.shape
    (True, (3,))
    """

    shift: float
    bias: Array
    se: Array


def limits_of_detection(fit: FitRecord, share: float, power: float) -> DetectionLimits:
    """Return the limits for a share of the clients that is shifted together, and a probability of finding them."""
    clients = fit.glance
    everybody = clients.members.count(np.ones(len(clients.probabilities), dtype=bool))
    shift = detectable_shift(everybody, len(fit.names), share, power)
    se = Inference.of(fit, None).standard_errors(np.eye(len(fit.names)))
    return DetectionLimits(shift, share * shift * clients.client_sd, se)
