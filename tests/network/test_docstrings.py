"""Docstrings of the network room follow numpydoc: parameters, returns and an example for what users call."""

import inspect

import pytest

import adfl_stats as ad

validate = pytest.importorskip("numpydoc.validate").validate

# Asked for: a summary line, parameters as in the signature, returns, an example.
DEMANDED = {"GL08", "SS01", "SS03", "PR01", "PR02", "PR03", "PR04", "PR07", "RT01", "EX01"}


def targets():
    """The full names of generators, `Network`, schedules and their methods, and of the checks."""
    for name in ad.networks.__all__:
        yield f"adfl_stats.network.generators.{name}"
    for kind in (ad.Network, ad.networks.NetworkSchedule):
        for name, member in vars(kind).items():
            called = inspect.isfunction(member) or isinstance(member, classmethod)
            if called and not name.startswith("_"):
                yield f"{kind.__module__}.{kind.__name__}.{name}"
    yield "adfl_stats.network.network.Network"
    yield "adfl_stats.theory.network_report.check_network"
    yield "adfl_stats.theory.condition_5.condition_5"


@pytest.mark.parametrize("name", list(targets()))
def test_numpydoc(name):
    found = [(code, text) for code, text in validate(name)["errors"] if code in DEMANDED]
    # Constructors return what they are named for.
    alternative = ".from_" in name
    assert [error for error in found if not (alternative and error[0] == "RT01")] == []
