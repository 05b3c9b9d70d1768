"""The table of benchmarks/constants.py has the constants of the package, and other values reach all who use them."""

import ast
import importlib
import importlib.util
import os
import sys
from pathlib import Path
from unittest import mock

import numpy as np
import pytest

ROOT = Path(__file__).parents[2]
FOLDER = ROOT / "benchmarks"
# Not choices: a quantile, numbers that keep products finite, and what says how precisely a power is computed.
OTHERS = {
    "trust.spread.CHI_SQUARE_MEDIAN",
    "trust.weights.LARGEST",
    "trust.minibatch_scores.MINIBATCHES",
    "trust.minibatch_scores.TINY",
    "trust.detection.REACH",
    "trust.detection.POINTS",
    "trust.detection.LARGEST",
    "trust.refits.TOGETHER",
    "trust.mixture.COMPONENTS",
    "trust.mixture.NORMAL",
    "trust.mixture.COHERENT",
}


@pytest.fixture(scope="module")
def script():
    spec = importlib.util.spec_from_file_location("constants_benchmark", FOLDER / "constants.py")
    module = importlib.util.module_from_spec(spec)
    sys.modules[spec.name] = module
    # It pins the threads of its own process, which is not to be this one, and imports from its own folder.
    with mock.patch.dict(os.environ), mock.patch.object(sys, "path", [str(FOLDER), *sys.path]):
        spec.loader.exec_module(module)
    yield module
    del sys.modules[spec.name]


def one_of(script, words):
    return next(one for one in script.CONSTANTS if one.words == words)


def test_every_constant_exists_and_has_other_values(script):
    names = [one.words for one in script.CONSTANTS]
    assert len(names) == len(set(names))
    for one in script.CONSTANTS:
        own, (low, high) = np.asarray(one.value), map(np.asarray, one.others)
        assert own.shape == low.shape == high.shape, one.words
        assert not np.array_equal(low, own), one.words
        assert not np.array_equal(high, own), one.words


def test_every_number_of_the_model_of_clients_is_in_the_table(script):
    numbers = set()
    for path in sorted((ROOT / "adfl_stats" / "trust").glob("[a-z]*.py")):
        module = importlib.import_module(f"adfl_stats.trust.{path.stem}")
        for node in ast.parse(path.read_text()).body:
            targets = node.targets if isinstance(node, ast.Assign) else []
            names = [name.id for one in targets for name in ast.walk(one) if isinstance(name, ast.Name)]
            values = {f"trust.{path.stem}.{name}": getattr(module, name) for name in names if name.isupper()}
            numbers |= {name for name, value in values.items() if np.asarray(value).dtype.kind in "if"}
    assert numbers - OTHERS == {one.words for one in script.CONSTANTS if one.module.startswith("trust.")}


def test_another_value_reaches_all_modules_that_import_a_constant_and_no_other(script):
    from adfl_stats.trust import chance, comparison, fitting, resampling, selection

    behind = one_of(script, "trust.chance.BEHIND")
    with script.replaced(behind, 1.5):
        assert (chance.BEHIND, selection.BEHIND, fitting.BEHIND) == (1.5, 1.5, 1.5)
    assert chance.BEHIND == selection.BEHIND == fitting.BEHIND == 12.0

    own, before = resampling.MOST_ROWS, comparison.MOST_ROWS
    with script.replaced(one_of(script, "trust.selection.MANY_CLIENTS"), 101):
        assert selection.MANY_CLIENTS == comparison.MANY_CLIENTS == fitting.MANY_CLIENTS == 101
    assert selection.MANY_CLIENTS == comparison.MANY_CLIENTS == fitting.MANY_CLIENTS == 1000
    # Another constant with the same name.
    with script.replaced(one_of(script, "trust.resampling.MOST_ROWS"), own + 1):
        assert own != resampling.MOST_ROWS
        assert before == comparison.MOST_ROWS


def test_no_constant_is_the_default_of_an_argument(script):
    """A default is taken when a function is defined, so that another value would not reach it."""
    for one in script.CONSTANTS:
        for holder, name in script.holders(one):
            tree = ast.parse(Path(importlib.import_module(holder).__file__).read_text())
            for node in ast.walk(tree):
                if isinstance(node, ast.FunctionDef | ast.Lambda):
                    defaults = [value for value in (*node.args.defaults, *node.args.kw_defaults) if value is not None]
                    used = {part.id for value in defaults for part in ast.walk(value) if isinstance(part, ast.Name)}
                    assert name not in used, f"{holder}.{name}"


def test_a_price_beyond_all_gains_changes_who_is_set_aside(script):
    """With too few clients for abnormal ones nobody is set aside; then as before. What a fit reads is known."""
    case = script._gross(1)
    least = one_of(script, "trust.selection.LEAST_FOR_GROSS")
    own = script.outcome_of(case)
    with script.replaced(least, 10**6):
        other = script.outcome_of(case)
    assert own.aside[case.abnormal].all()
    assert not other.aside.any()
    np.testing.assert_array_equal(script.outcome_of(case).params, own.params)
    reads = script.read_by(case)
    assert not reads.isdisjoint(script.holders(least))
    # A linear model has no readings to compare, and no alpha.
    for words in ("trust.reading_fits.LONGER", "engine.overdispersion.ALPHA"):
        assert reads.isdisjoint(script.holders(one_of(script, words)))
