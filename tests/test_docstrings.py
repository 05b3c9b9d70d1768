"""Docstrings of everything that users call follow numpydoc: parameters as in the signature, returns, an example."""

import inspect
from types import ModuleType

import pytest

import adfl_stats as ad

numpydoc = pytest.importorskip("numpydoc.validate")

# Asked of all: a summary line, parameters as in the signature, returns.
DEMANDED = {"GL08", "SS01", "SS03", "PR01", "PR02", "PR03", "PR04", "PR07", "RT01"}
# Asked of functions and classes as well: an example, which --doctest-modules runs.
EXAMPLE = "EX01"


def public(module):
    """Yield the classes and functions of a module's `__all__`, and those of the modules in it."""
    for name in module.__all__:
        entry = getattr(module, name)
        if isinstance(entry, ModuleType):
            yield from public(entry)
        elif inspect.isclass(entry) or inspect.isfunction(entry):
            yield entry


ENTRIES = list(dict.fromkeys(public(ad)))


def full_name(entry):
    return f"{entry.__module__}.{entry.__qualname__}"


def members(kind):
    """Yield the full names of a class's public methods that do not override one of a public base."""
    for base in kind.__mro__:
        if base is not kind and (base in ENTRIES or not base.__module__.startswith("adfl_stats")):
            continue
        for name, member in vars(base).items():
            called = inspect.isfunction(member) or isinstance(member, (classmethod, staticmethod))
            inherited = any(name in vars(other) for other in kind.__mro__[1:] if other in ENTRIES)
            if called and not name.startswith("_") and not inherited:
                yield f"{full_name(base)}.{name}"


NAMES = {full_name(entry): entry for entry in ENTRIES}
MEMBERS = {name for entry in ENTRIES if inspect.isclass(entry) for name in members(entry)}


def errors(name, demanded):
    return [error for error in numpydoc.validate(name)["errors"] if error[0] in demanded]


def undocumented(entry):
    """Return the public arguments of a class that neither `Parameters` nor `Attributes` name."""
    doc = numpydoc.Validator(numpydoc.get_doc_object(entry))
    named = {
        part for section in ("Parameters", "Attributes") for line in doc.doc[section] for part in line.name.split(", ")
    }
    return [name for name in inspect.signature(entry).parameters if not name.startswith("_") and name not in named]


def test_everything_public_is_found():
    """A walk that loses names would pass without checking anything."""
    for entry in (
        ad.ADFL,
        ad.ClientData,
        ad.Network,
        ad.networks.complete,
        ad.attacks.ALIE,
        ad.study.run,
        ad.plots.trace,
    ):
        assert entry in ENTRIES
    assert {f"adfl_stats.data.client_data.ClientData.from_{kind}" for kind in ("arrays", "frame", "parquet")} <= MEMBERS


@pytest.mark.parametrize("name", sorted(NAMES))
def test_classes_and_functions(name):
    # Warnings and errors are raised by the package, not called.
    demanded = DEMANDED if name.startswith("adfl_stats.errors.") else DEMANDED | {EXAMPLE}
    entry = NAMES[name]
    if inspect.isclass(entry) and not (getattr(entry, "_is_protocol", False) or issubclass(entry, Warning | Exception)):
        # Records have their fields under `Attributes`.
        assert undocumented(entry) == []
    assert errors(name, demanded - {"PR01"} if inspect.isclass(entry) else demanded) == []


@pytest.mark.parametrize("name", sorted(MEMBERS))
def test_methods(name):
    # Constructors return what they are named for.
    assert errors(name, DEMANDED - {"RT01"} if ".from_" in name else DEMANDED) == []
