"""Docstrings of what users call or hold follow numpydoc: parameters as in the signature, returns, an example.

Users hold what public functions return, what methods of that return, and so on: it is found by walking annotations, so
that no new class is forgotten. What CONTRIBUTING.md sends authors of methods to is listed.
"""

import ast
import importlib
import inspect
import pkgutil
import re
import sys
from collections import defaultdict
from dataclasses import fields, is_dataclass
from functools import cache, cached_property
from types import ModuleType

import pytest
from numpydoc import validate as numpydoc

import adfl_stats as ad
from adfl_stats._properties import once
from adfl_stats.engine import numerical_error, plan, problem, rules
from adfl_stats.engine import round as rounds
from adfl_stats.inference import communication, detection, objective_results
from adfl_stats.losses import objective
from adfl_stats.methods import Outcome, run_scheme, tuning
from adfl_stats.network import dropout, turns
from adfl_stats.report import start_sensitivity

# Asked of all: a summary line, parameters as in the signature, returns.
DEMANDED = {"GL08", "SS01", "SS03", "PR01", "PR02", "PR03", "PR04", "PR07", "RT01"}
# Asked of functions and classes, and of the methods of CENTRAL, as well: an example, which --doctest-modules runs.
EXAMPLE = "EX01"
CENTRAL = (
    ad.Results,
    ad.DecentralizedGLM,
    ad.DecentralizedModel,
    ad.Network,
    ad.ClientData,
    communication.Communication,
    objective_results.ObjectiveResults,
)

# Records that a fit makes and keeps. Their fields are documented, and no example builds one: it would be a fit.
RECORDS = {
    "adfl_stats._model_rows.ModelRows": "the rows of a model as its fits need them",
    "adfl_stats.data.formula.ParsedFormula": "the parts of a formula, kept with data and results",
    "adfl_stats.data.whole.Whole": "the clients of all ranks, made by RankData",
    "adfl_stats.engine.gossip.Neighbours": "the transport that Gossip makes of a network",
    "adfl_stats.engine.plan.Run": "rounds that were run, part of an Outcome",
    "adfl_stats.inference.client_record.ClientRecord": "the fitted model of clients, shown by Results.clients",
    "adfl_stats.inference.fitted.ModelNames": "the names of a model that was dropped",
    "adfl_stats.inference.record.FitRecord": "the state of Results",
    "adfl_stats.inference.record.RunRecord": "the state of any results",
    "adfl_stats.methods.trimmed_scores.Concentrated": "candidates of TrimmedScores before one is chosen",
    "adfl_stats.network.eigenvalues.ExtremeEigenvalue": "a number with the reason why it could not be resolved",
    "adfl_stats.network.products.Products": "products with W, for eigenvalues",
    "adfl_stats.theory.flat.Flat": "what Condition 6 says of a fit",
    "adfl_stats.trust.client_model.ClientModel": "the model of clients during a fit",
}
# Formulas by row, for the package's own passes: `Family` says what y and eta are. Users hold families, and read these.
FORMULAS = "adfl_stats.losses.family.Family."
# What users hold and no annotation leads to, and what CONTRIBUTING.md sends authors of methods to.
ALSO_HELD = (
    detection.DetectionLimits,
    dropout.Dropout,
    numerical_error.NumericalError,
    tuning.LambdaPath,
    turns.Turns,
)
FOR_AUTHORS = (
    objective.Objective,
    Outcome,
    plan.Plan,
    problem.ClientSteps,
    problem.Problem,
    rounds.Descent,
    rounds.Exchange,
    rounds.Scheme,
    rules.Rule,
    run_scheme,
)


def public(module):
    """Yield the classes and functions of a module's `__all__`, and those of the modules in it."""
    for name in module.__all__:
        entry = getattr(module, name)
        if isinstance(entry, ModuleType):
            yield from public(entry)
        elif inspect.isclass(entry) or inspect.isfunction(entry):
            yield entry


def own_classes():
    """Return the package's public classes by name; a name may be that of several."""
    for module in pkgutil.walk_packages(ad.__path__, "adfl_stats."):
        if not module.name.endswith("__main__"):
            importlib.import_module(module.name)
    found = defaultdict(set)
    for name, module in list(sys.modules.items()):
        if name.startswith("adfl_stats"):
            for entry in vars(module).values():
                if inspect.isclass(entry) and is_ours(entry):
                    found[entry.__name__].add(entry)
    return found


def is_ours(kind):
    # The kernel's classes are compiled, and have stubs.
    return kind.__module__.startswith("adfl_stats") and kind.__module__ != "adfl_stats._kernels"


def is_public(name):
    return not name.startswith("_")


@cache
def others(module):
    """Return the names that a module imports from other packages, for type checkers too."""
    tree = ast.parse(inspect.getsource(sys.modules[module]))
    imports = [node for node in ast.walk(tree) if isinstance(node, ast.ImportFrom)]
    return {alias.name for node in imports if not node.module.startswith("adfl_stats") for alias in node.names}


def annotations(entry):
    """Yield where an annotation is, and its text: what a function, the public members of a class or its fields give."""
    if inspect.isfunction(entry):
        yield entry, entry.__annotations__.get("return", "")
        return
    for base in filter(is_ours, entry.__mro__):
        yield from ((base, text) for name, text in vars(base).get("__annotations__", {}).items() if is_public(name))
        for name, member in vars(base).items():
            if isinstance(member, property):
                member = member.fget
            elif isinstance(member, (classmethod, staticmethod)):
                member = member.__func__
            elif isinstance(member, (cached_property, once)):
                member = member.func
            if is_public(name) and inspect.isfunction(member):
                yield member, member.__annotations__.get("return", "")


def held(entries):
    """Return the classes of the package that the entries give, and that these give; records are where it ends."""
    named, found, asked = own_classes(), dict.fromkeys(entries), list(entries)
    while asked:
        for where, text in annotations(asked.pop()):
            for name in set(filter(is_public, re.findall(r"\w+", str(text)))) - others(where.__module__):
                known = getattr(sys.modules[where.__module__], name, None)
                for kind in {known} if known in named[name] else named[name]:
                    if kind not in found:
                        found[kind] = None
                        asked += [] if full_name(kind) in RECORDS else [kind]
    return list(found)


def full_name(entry):
    return f"{entry.__module__}.{entry.__qualname__}"


def members(kind, documented):
    """Yield the full names of a class's public methods that do not override one of a documented base."""
    for base in kind.__mro__:
        if base is not kind and (base in documented or not is_ours(base)):
            continue
        for name, member in vars(base).items():
            called = inspect.isfunction(member) or isinstance(member, (classmethod, staticmethod))
            inherited = any(name in vars(other) for other in kind.__mro__[1:] if other in documented)
            if called and is_public(name) and not inherited:
                yield f"{full_name(base)}.{name}"


ENTRIES = list(dict.fromkeys(public(ad)))
HELD = held([*ENTRIES, *ALSO_HELD])
NAMES = {full_name(entry): entry for entry in dict.fromkeys([*HELD, *FOR_AUTHORS])}
MEMBERS = {
    name
    for kind in HELD
    if inspect.isclass(kind) and full_name(kind) not in RECORDS
    for name in members(kind, HELD)
    if not name.startswith(FORMULAS)
}
WITH_EXAMPLES = {name for kind in CENTRAL for name in members(kind, ENTRIES)}


def errors(name, demanded):
    """Return what numpydoc finds of what is demanded; prose is no example."""
    found = numpydoc.validate(name)
    shown = any(">>>" in part for part in re.split(r"\n *Examples\n *-+\n", found["docstring"])[1:])
    prose = [(EXAMPLE, "no >>> in Examples")] if EXAMPLE in demanded and not shown else []
    return [error for error in found["errors"] if error[0] in demanded - {EXAMPLE}] + prose


def undocumented(entry):
    """Return the public arguments of a class that neither `Parameters` nor `Attributes` name, its bases' included."""
    docs = [numpydoc.Validator(numpydoc.get_doc_object(base)).doc for base in filter(is_ours, entry.__mro__)]
    lines = [line for doc in docs for section in ("Parameters", "Attributes") for line in doc[section]]
    named = {part for line in lines for part in line.name.split(", ")}
    # Families have a constructor that chooses the class.
    given = [part.name for part in fields(entry)] if is_dataclass(entry) else inspect.signature(entry).parameters
    return [name for name in given if is_public(name) and name not in named]


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
    for name in ("Communication", "Prediction", "ObjectiveResults", "Rates", "Report", "FitRecord", "ClientRecord"):
        assert name in {kind.__name__ for kind in HELD}
    assert {"adfl_stats.inference.results.Results.summary", "adfl_stats.network.network.Network.gossip"} <= (
        WITH_EXAMPLES & MEMBERS
    )


def test_records_are_still_held():
    assert set(RECORDS) <= set(NAMES)


@pytest.mark.parametrize("name", sorted(NAMES))
def test_classes_and_functions(name):
    # Warnings and errors are raised by the package, not called.
    demanded = DEMANDED if name in RECORDS or name.startswith("adfl_stats.errors.") else DEMANDED | {EXAMPLE}
    entry = NAMES[name]
    if inspect.isclass(entry) and not (getattr(entry, "_is_protocol", False) or issubclass(entry, Warning | Exception)):
        # Records have their fields under `Attributes`.
        assert undocumented(entry) == []
    assert errors(name, demanded - {"PR01"} if inspect.isclass(entry) else demanded) == []


@pytest.mark.parametrize("name", sorted(MEMBERS | WITH_EXAMPLES))
def test_methods(name):
    # Constructors return what they are named for.
    demanded = DEMANDED - {"RT01"} if ".from_" in name else DEMANDED
    assert errors(name, demanded | {EXAMPLE} if name in WITH_EXAMPLES else demanded) == []


def test_options_that_a_fit_takes():
    """Types of options that are handed on to `fit` name all of them."""
    options = inspect.signature(ad.DecentralizedGLM.fit).parameters
    assert set(start_sensitivity.FitOptions.__annotations__) == set(options) - {"self", "method"}
