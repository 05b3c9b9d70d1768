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
    """The smallest shift that is found, in standard deviations of a client, the bias just below it, standard errors."""

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
