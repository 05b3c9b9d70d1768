"""Power of the model of clients: the smallest coherent shift that it detects, and the bias of undetected ones.

A share e of M clients is moved together by k standard deviations of a client. Along that direction the clients are a
mixture of two normals. The model finds it where twice the log-likelihood that the mixture gains, over normal clients
and over normal clients with a wider spread, exceeds its price (see `selection`); both are M times a Kullback-Leibler
divergence in expectation. A smaller shift is not detected, and moves the estimate by e k client standard deviations.
"""

from __future__ import annotations

import numpy as np
from scipy import optimize, stats

from adfl_stats.trust.selection import minority_price

__all__ = ["detectable_shift"]

# Range of the integration beyond the two centres, in standard deviations, and its points. Ours.
REACH, POINTS = 8.0, 4001
# Shifts are searched up to this many standard deviations; beyond, the share is never found. Ours.
LARGEST = 50.0


def detectable_shift(clients: int, coefficients: int, share: float) -> float:
    """Return the shift, in standard deviations of a client, from which a coherent minority is found on average.

    The shift is along one coefficient, where it is hardest to tell from a spread of that coefficient.

    Parameters
    ----------
    clients, coefficients : int
        M and P.
    share : float
        Share of the clients that are shifted, below one half.

    Examples
    --------
    >>> 2.5 < detectable_shift(100, 5, 0.2) < 3.5
    True
    """
    price = minority_price(coefficients)

    def lead(shift: float) -> float:
        plain, wide = (2.0 * clients * _divergence(share, shift, wide=wide) for wide in (False, True))
        # Along one coefficient a wider spread is one variance more.
        return min(plain - price, wide - max(price - np.log(clients), 0.0))

    if lead(LARGEST) <= 0.0:
        return np.inf
    return float(optimize.brentq(lead, 0.0, LARGEST, xtol=1e-4))


def _divergence(share: float, shift: float, *, wide: bool) -> float:
    """Return the Kullback-Leibler divergence of the mixture from the nearest normal law of variance one, or of any."""
    grid = np.linspace(-REACH, shift + REACH, POINTS)
    mixture = (1.0 - share) * stats.norm.pdf(grid) + share * stats.norm.pdf(grid - shift)
    sd = np.sqrt(1.0 + share * (1.0 - share) * shift**2) if wide else 1.0
    logs = np.log(np.maximum(mixture, 1e-300)) - stats.norm.logpdf(grid, share * shift, sd)
    return float(np.trapezoid(mixture * logs, grid))
