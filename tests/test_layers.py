"""The package's shape: imports point one way, public names are documented, optional packages stay optional."""

import ast
import functools
import inspect
import subprocess
import sys
from pathlib import Path

import pytest

import adfl_stats as ad

ROOT = Path(ad.__file__).parent

# A module imports only from lines above its own.
LAYERS = [
    {"_kernels"},
    {"errors", "_validation", "_algebra"},
    {"_clients", "_formula", "_graph", "_network_input", "_products", "attacks", "corruptions", "rules"},
    {"_balance", "_eigenvalues", "_network_files"},
    {"_spectrum"},
    {"network", "data", "families", "field_designs", "simulate"},
    {"networks", "_batches", "_conversion", "_reference"},
    {"_copies", "_parquet", "_robust_scale", "leverage", "moments"},
    {"diagnostics"},
    {"evaluation"},
    {"problem", "evidence", "clustered"},
    {"accuracy", "solutions"},
    {"overflow", "suspicion", "trust.mixture", "trust.summaries"},
    {"tuning", "trust.null", "trust.spread"},
    {"trust.resampling", "trust.selection"},
    {"trust.client_model", "trust.detection"},
    {"trust.record"},
    {"trust"},
    {"exchange"},
    {"engine"},
    {"limit"},
    {"methods._base", "fit", "newton"},
    {"methods.dfl", "methods.bridge", "methods.clipped_gossip", "methods.geometric_median", "methods.pruning"},
    {"methods.tracking", "methods.trimmed_scores", "methods.ubar", "methods.yardsticks"},
    {"methods.adaptive", "methods.slbrn"},
    {"methods", "theory.checks", "theory.bounds", "theory.truth", "theory.trace_rate"},
    {"theory.constants", "theory.network_repairs"},
    {"theory.conditions", "theory.network_report"},
    {"theory.theorems"},
    {"theory.audit", "theory.linearised"},
    {"theory.contraction"},
    {"theory.rates"},
    {"theory.outlook"},
    {"theory.advice"},
    {"theory"},
    {"heterogeneity", "inference", "oracle", "screening"},
    {"contrasts", "prediction"},
    {"results"},
    {"model", "plots", "storage", "summary"},
    {"starts", "study"},
    {""},
    {"cli_efficiency", "cli_network"},
    {"cli"},
]
LEVEL = {module: level for level, modules in enumerate(LAYERS) for module in modules}

# Methods that hand over to a module above their own, and import it when they are called.
UPWARD = {
    ("data", "_conversion"),
    ("data", "_parquet"),
    ("heterogeneity", "plots"),
    ("results", "storage"),
    ("results", "summary"),
    ("screening", "plots"),
}


def module_name(path):
    """The dotted name below the package; the package itself is the empty name."""
    parts = path.relative_to(ROOT).with_suffix("").parts
    return ".".join(part for part in parts if part != "__init__")


MODULES = {module_name(path): path for path in sorted(ROOT.rglob("*.py"))}
KNOWN = set(MODULES) | {"_kernels"}


def owner(dotted):
    """The module of ours that a dotted name belongs to, as a name below the package; None for other packages."""
    package, _, name = dotted.partition(".")
    if package != "adfl_stats":
        return None
    while name and name not in KNOWN:
        name = name.rpartition(".")[0]
    return name


def imports(tree):
    """Yield (module of ours, whether inside a function) for every import in a module, wherever it stands."""
    functions = [node for node in ast.walk(tree) if isinstance(node, (ast.FunctionDef, ast.AsyncFunctionDef))]
    inside = {id(node) for function in functions for node in ast.walk(function)}
    for node in ast.walk(tree):
        if isinstance(node, ast.Import):
            names = [alias.name for alias in node.names]
        elif isinstance(node, ast.ImportFrom):
            assert node.level == 0, "imports are absolute"
            names = [f"{node.module}.{alias.name}" for alias in node.names]
        else:
            continue
        for name in names:
            if (found := owner(name)) is not None:
                yield found, id(node) in inside


def test_every_module_has_a_layer():
    assert set(LEVEL) == KNOWN, "a new module wants its place in LAYERS"


@pytest.mark.parametrize("module", MODULES)
def test_imports_point_down(module):
    tree = ast.parse(MODULES[module].read_text())
    upward = {(target, late) for target, late in imports(tree) if LEVEL[target] >= LEVEL[module]}
    assert upward == {(target, True) for source, target in UPWARD if source == module}


def test_walk_sees_every_form_of_import():
    text = """
import adfl_stats
import adfl_stats.data
import numpy
from adfl_stats import ClientData, networks
from adfl_stats.methods import ADFL
from adfl_stats.methods.dfl import DFL
if True:
    from adfl_stats.engine import Plan
def late():
    from adfl_stats.summary import summarize
"""
    early = ["", "data", "", "networks", "methods", "methods.dfl", "engine"]
    assert sorted(imports(ast.parse(text))) == sorted([(name, False) for name in early] + [("summary", True)])


# ------------------------------------------------------------------ documentation


def public_objects():
    """Yield (name, object) for the public names, those of public modules, and the members of their classes."""
    for name in ad.__all__:
        value = getattr(ad, name)
        yield name, value
        inner = {f"{name}.{key}": getattr(value, key) for key in value.__all__} if inspect.ismodule(value) else {}
        yield from inner.items()
        for path, kind in ({name: value} | inner).items():
            if inspect.isclass(kind):
                yield from members(path, kind)


def members(path, kind):
    """Yield the public methods and properties that a class of ours defines."""
    for name, member in vars(kind).items():
        if isinstance(member, (classmethod, staticmethod)):
            member = member.__func__
        if not name.startswith("_") and (
            inspect.isfunction(member) or isinstance(member, (property, functools.cached_property))
        ):
            yield f"{path}.{name}", member


DOCUMENTED = {name: value for name, value in public_objects() if not isinstance(value, dict)}


def test_walk_finds_methods_and_properties():
    assert {"Results.params", "Results.save", "Network.from_edges", "ADFL.estimate", "networks.complete"} <= set(
        DOCUMENTED
    )


@pytest.mark.parametrize("name", DOCUMENTED)
def test_public_names_have_docstrings(name):
    doc = inspect.getdoc(DOCUMENTED[name])
    assert doc
    # Dataclasses write a signature where there is no docstring.
    assert not doc.startswith(f"{name.rpartition('.')[2]}(")


# ------------------------------------------------------------------ optional packages

OPTIONAL = ("matplotlib", "networkx", "joblib", "tqdm")


def test_import_leaves_optional_packages_alone():
    code = f"import sys, adfl_stats; print([name for name in {OPTIONAL} if name in sys.modules])"
    found = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True)
    assert found.stdout.strip() == "[]"
