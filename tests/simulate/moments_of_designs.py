"""What tests of designs and corruptions share."""

import numpy as np

from adfl_stats.simulate.designs import Simulation

# Five standard errors: with some hundred comparisons, a correct design fails about once in 10^4 seeds.
Z = 5.0


def rows(sim: Simulation, abnormal: bool) -> np.ndarray:
    return np.repeat(sim.abnormal, sim.sizes) == abnormal


def mean_is(sample: np.ndarray, expected: float | np.ndarray) -> None:
    """Check the mean of independent entries along axis 0 against its own standard error."""
    error = sample.std(axis=0, ddof=1) / np.sqrt(len(sample))
    assert np.all(np.abs(sample.mean(axis=0) - expected) < Z * error)
