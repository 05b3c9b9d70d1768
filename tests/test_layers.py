"""The package's shape: imports point one way, public names are documented, optional packages stay optional."""

import ast
import functools
import graphlib
import inspect
import subprocess
import sys
from pathlib import Path

import pytest

import adfl_stats as ad

ROOT = Path(ad.__file__).parent

# Levels of rooms and of modules beside the rooms: each imports from levels above its own, and from those to its left.
LEVELS = {
    "shared": (
        "_kernels",
        "_types",
        "errors",
        "_algebra",
        "_arguments",
        "_files",
        "_archives",
        "_frames",
        "_progress",
        "_properties",
        "_text",
        "_threads",
        "_warn",
        "_client_sets",
    ),
    "what is given": ("network", "data", "losses"),
    "how it is solved": ("engine",),
    "what is solved": ("trust", "methods"),
    "what follows": ("inference", "theory"),
    "what users meet": (
        "_model_rows",
        "_model_facts",
        "_model_warnings",
        "_model_fitting",
        "_model_theory",
        "model",
        "objective_model",
        "datasets",
        "report",
        "simulate",
        "",
        "cli",
        "__main__",
    ),
}
PLACE = {room: place for place, room in enumerate(room for rooms in LEVELS.values() for room in rooms)}

# Methods of results that hand over to a room above their own, and import it when they are called.
UPWARD = {("inference", "report"), ("inference", "theory"), ("theory", "report")}


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
    """Yield (module of ours, whether it waits for a call) for every import in a module; types alone do not count."""
    for node in [node for node in ast.walk(tree) if isinstance(node, ast.If)]:
        if isinstance(node.test, ast.Name) and node.test.id == "TYPE_CHECKING":
            node.body = [ast.Pass()]
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


def room(module):
    """The first part of a module's name: the subpackage it lies in, or itself."""
    return module.partition(".")[0]


def test_every_room_has_a_level():
    assert set(PLACE) == {room(module) for module in KNOWN}, "a new room wants its place in LEVELS"
    assert len(PLACE) == sum(map(len, LEVELS.values())), "a room has one place"


@pytest.mark.parametrize("module", MODULES)
def test_imports_between_rooms_point_down(module):
    own = room(module)
    wanted = {(room(target), late) for target, late in imports(ast.parse(MODULES[module].read_text()))}
    upward = {(target, late) for target, late in wanted if target != own and PLACE[target] >= PLACE[own]}
    assert upward <= {(target, True) for source, target in UPWARD if source == own}


def early_imports():
    """The modules that each module imports when it is itself imported."""
    return {
        module: {target for target, late in imports(ast.parse(path.read_text())) if not late and target != module}
        for module, path in MODULES.items()
    }


def test_no_module_imports_itself_by_a_detour():
    graph = {module: targets & set(MODULES) for module, targets in early_imports().items() if module}
    list(graphlib.TopologicalSorter(graph).static_order())


def private_names(tree):
    """Yield the names with a leading underscore that a module reads from something that is not its own."""
    for node in ast.walk(tree):
        if isinstance(node, ast.Attribute) and not (
            isinstance(node.value, ast.Name) and node.value.id in ("self", "cls")
        ):
            yield node.attr
        elif isinstance(node, ast.ImportFrom):
            yield from (part for alias in node.names for part in (*node.module.split("."), alias.name))


def defined_names(tree):
    """Yield the names that a module gives to functions, classes, variables and attributes."""
    for node in ast.walk(tree):
        if isinstance(node, (ast.FunctionDef, ast.ClassDef)):
            yield node.name
        elif isinstance(node, ast.Name) and isinstance(node.ctx, ast.Store):
            yield node.id
        elif isinstance(node, ast.Attribute) and isinstance(node.ctx, ast.Store):
            yield node.attr


SHARED = {module for module in KNOWN if module.startswith("_")} | {
    "_replace",
    "_asdict",
    "_fields",
    "_get_numeric_data",
}


@functools.cache
def names_of_room(own):
    """The names that the modules of a room define, and their own."""
    paths = [path for name, path in MODULES.items() if room(name) == own]
    return {name for path in paths for name in defined_names(ast.parse(path.read_text()))} | {p.stem for p in paths}


@pytest.mark.parametrize("module", MODULES)
def test_an_underscore_means_private_to_the_room(module):
    """A leading underscore at the package's root is private to the package, inside a room to the room."""
    own = room(module)
    known = names_of_room(own) | SHARED
    used = {name for name in private_names(ast.parse(MODULES[module].read_text())) if name.startswith("_")}
    foreign = {name for name in used - known if not (name.startswith("__") and name.endswith("__"))}
    assert not foreign


def test_walk_sees_every_form_of_import():
    text = """
import adfl_stats
import adfl_stats.data
import numpy
from adfl_stats import ClientData, simulate
from adfl_stats.methods import ADFL
from adfl_stats.methods.dfl import DFL
if True:
    from adfl_stats.engine.iteration import Plan
def late():
    from adfl_stats.report.summary import summarize
"""
    early = ["", "data", "", "simulate", "methods", "methods.dfl", "engine.iteration"]
    assert sorted(imports(ast.parse(text))) == sorted([(name, False) for name in early] + [("report.summary", True)])


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
    """Yield the public methods and properties that a class of ours has, its own and those of our base classes."""
    ours = [base for base in reversed(kind.__mro__) if base.__module__.startswith("adfl_stats")]
    for name, member in {name: member for base in ours for name, member in vars(base).items()}.items():
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
