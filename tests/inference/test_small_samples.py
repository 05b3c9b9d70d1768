"""Coverage of the default intervals in small samples, in a short form of benchmarks/coverage.py."""

import importlib.util
import sys
from pathlib import Path

import numpy as np
import pytest

SCRIPT = Path(__file__).parents[2] / "benchmarks" / "coverage.py"


@pytest.fixture(scope="module")
def study():
    spec = importlib.util.spec_from_file_location("coverage_study", SCRIPT)
    module = importlib.util.module_from_spec(spec)
    sys.modules[spec.name] = module
    spec.loader.exec_module(module)
    return module


def test_the_hub_leaves_so_many_clients_in_effect(study):
    assert study.hub(20).effective_clients == pytest.approx(12.6, abs=0.05)


@pytest.mark.parametrize(
    ("name", "kind", "too_few"),
    [("hub, 12.6 effective clients of 20", "CR2", 0.8), ("72 rows, 8 coefficients", "HC2", 0.97)],
)
def test_the_default_covers_and_the_plain_sandwich_does_not(study, name, kind, too_few):
    """Twelve data sets with 3 or 8 coefficients: 36 or 96 intervals, of which .95 +- .036 or .022 cover.

    The bound for the default is four of these below. The sandwich covers about .56 and .92, see the benchmark.
    """
    found = study.coverage(study.SETTINGS[name], 12, seed=5, kinds=("sandwich", kind))
    assert np.mean(found["default"]) > 0.8
    assert np.mean(found[kind]) > 0.8
    assert np.mean(found["sandwich"]) < too_few
    assert kind in found["chosen"]
