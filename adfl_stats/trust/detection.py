"""Power of the model of clients: the smallest coherent shift that it detects, and the bias of undetected ones.

A share e of M clients is moved together by k standard deviations of a client. Along that direction the clients are a
mixture of two normals. The model finds it where twice the log-likelihood that the mixture gains, over normal clients
and over normal clients with a wider spread, exceeds its price (see `candidates`). That gain is about normal over data
sets: its mean is M times twice a Kullback-Leibler divergence plus the number of parameters that are fitted beyond those
of the other model, its variance M times that of twice the log ratio of the densities plus twice that number (Wilks). A
shift that is not found moves the estimate by e k client standard deviations. (Ours; simulations in
tests/trust/test_detection.py and benchmarks/interval_coverage.py.)
"""

from __future__ import annotations

import numpy as np
from scipy import optimize, stats

from adfl_stats.trust.candidates import FEW, UNCERTAIN, minority_price, variance_price

__all__ = ["detectable_shift"]

# Range of the integration beyond the two centres, in standard deviations, and its points. Ours:
# normal tails beyond are below 1e-15, and the points are at most .02 standard deviations apart.
REACH, POINTS = 8.0, 4001
# Shifts are searched up to this many standard deviations; beyond, the share is never found. Ours:
# clients that far off are found by themselves, as gross ones.
LARGEST = 50.0


def detectable_shift(clients: int, coefficients: int, share: float, power: float = 0.8) -> float:
    """Return the shift, in standard deviations of a client, from which a coherent minority is found.

    The shift is along one coefficient, where it is hardest to tell from a spread of that coefficient.

    Parameters
    ----------
    clients, coefficients : int
        M and P.
    share : float
        Share of the clients that are shifted, below one half.
    power : float
        Probability of finding it.

    Examples
    --------
    >>> 2.5 < detectable_shift(100, 5, 0.2) < detectable_shift(100, 5, 0.2, power=0.95) < 4.0
    True
    """
    price, beyond = minority_price(coefficients) + (UNCERTAIN if clients < FEW else 0.0), stats.norm.ppf(power)

    def lead(shift: float) -> float:
        # The minority has its own centre and share.
        more = coefficients + 1
        plain = _gain(clients, share, shift, beyond, more, wide=False)
        wide = _gain(clients, share, shift, beyond, more - 1, wide=True)
        # Along one coefficient a wider spread is one variance more.
        return min(plain - price, wide - max(price - variance_price(clients), 0.0))

    if lead(LARGEST) <= 0.0:
        return np.inf
    if lead(0.0) >= 0.0:
        # So small a power is reached by chance.
        return 0.0
    return float(optimize.brentq(lead, 0.0, LARGEST, xtol=1e-4))


def _gain(clients: int, share: float, shift: float, beyond: float, more: int, *, wide: bool) -> float:
    """Return what the mixture gains over the nearest normal law, less `beyond` standard deviations.

    That law has variance one, or any (`wide`), and the mixture so many more parameters.
    """
    grid = np.linspace(-REACH, shift + REACH, POINTS)
    mixture = (1.0 - share) * stats.norm.pdf(grid) + share * stats.norm.pdf(grid - shift)
    sd = np.sqrt(1.0 + share * (1.0 - share) * shift**2) if wide else 1.0
    logs = np.log(np.maximum(mixture, 1e-300)) - stats.norm.logpdf(grid, share * shift, sd)
    mean, square = (float(np.trapezoid(mixture * part, grid)) for part in (logs, logs**2))
    variance = 4.0 * clients * max(square - mean**2, 0.0) + 2.0 * more
    return 2.0 * clients * mean + more - beyond * float(np.sqrt(variance))
