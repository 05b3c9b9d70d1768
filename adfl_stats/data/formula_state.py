"""The specification of a formula as JSON, for files: it turns new rows into columns, without pickle.

A specification is the text of the formula, what its transforms have learnt from the data (means of ``center``,
knots of ``bs``) and the levels and contrasts of its factors. These are numbers, text and a few classes of formulaic,
which are named here; a formula with anything else cannot be kept. Formulas are code, and a file must not bring code
along: only arithmetic, formulaic's own transforms and NumPy's elementwise functions are kept, and read back.
"""

from __future__ import annotations

import ast
from dataclasses import replace
from typing import Any

import numpy as np
import pandas as pd
from formulaic import ModelSpec
from formulaic.parser.types import Factor
from formulaic.transforms import TRANSFORMS, contrasts

from adfl_stats.data.formula import QUOTED, ParsedFormula, parsed_formula

__all__ = ["formula_of", "words_of"]

CONTRASTS = {
    kind.__name__: kind
    for kind in (
        contrasts.TreatmentContrasts,
        contrasts.SASContrasts,
        contrasts.SumContrasts,
        contrasts.HelmertContrasts,
        contrasts.DiffContrasts,
        contrasts.PolyContrasts,
    )
}


def words_of(parsed: ParsedFormula, spec: ModelSpec) -> dict[str, Any]:
    """Return a formula and its specification as words; raise TypeError, which says why, where they cannot be kept."""
    _check_expressions(parsed)
    return {
        "text": parsed.text,
        "names": [[name, _constant(name, value)] for name, value in parsed.names.items()],
        "full_rank": bool(spec.ensure_full_rank),
        "transforms": _plain(dict(spec.transform_state)),
        "encoders": [[str(name), kind.value, _plain(state)] for name, (kind, state) in spec.encoder_state.items()],
    }


def formula_of(words: dict[str, Any]) -> tuple[ParsedFormula, ModelSpec]:
    """Return the formula and specification that these words describe; raise TypeError where they hold other code."""
    parsed = replace(parsed_formula(words["text"]), names=dict(words["names"]))
    _check_expressions(parsed)
    spec = ModelSpec(
        formula=parsed.rhs,
        ensure_full_rank=words["full_rank"],
        materializer="pandas",
        output="pandas",
        transform_state=_restored(words["transforms"]),
        encoder_state={name: (Factor.Kind(kind), _restored(state)) for name, kind, state in words["encoders"]},
    )
    return parsed, spec


def _constant(name: str, value: Any) -> Any:
    plain = value.item() if isinstance(value, np.generic) else value
    if not isinstance(plain, (bool, int, float, str)):
        raise TypeError(f"the formula uses {name!r}, a {type(value).__name__} of the code that made the model")
    return plain


def _check_expressions(parsed: ParsedFormula) -> None:
    factors = [factor for term in parsed.rhs for factor in term.factors]
    for text in [*(part.expr for part in factors if part.eval_method.value == "python"), *parsed.offsets]:
        _check_expression(text)


# What expressions are made of besides calls, names and attributes.
_NODES = (
    ast.Expression, ast.BinOp, ast.UnaryOp, ast.BoolOp, ast.Compare, ast.Constant, ast.List, ast.Tuple, ast.Dict,
    ast.keyword, ast.operator, ast.unaryop, ast.boolop, ast.cmpop, ast.expr_context,
)  # fmt: skip
_ARRAY_FUNCTIONS = ("where", "clip", "round", "isin", "nan_to_num")


def _check_expression(text: str) -> None:
    """Raise TypeError where an expression does more than compute with columns, transforms and elementwise functions."""
    try:
        # Backticks quote columns.
        tree = ast.parse(QUOTED.sub("None", text).strip(), mode="eval")
    except (SyntaxError, ValueError, RecursionError, MemoryError):
        raise TypeError(f"the formula has the term {text!r}, which is no plain expression") from None
    for node in ast.walk(tree):
        if isinstance(node, ast.Call):
            fine = isinstance(node.func, ast.Attribute) or getattr(node.func, "id", None) in TRANSFORMS
        elif isinstance(node, ast.Attribute):
            fine = isinstance(node.value, ast.Name) and _is_known(node.value.id, node.attr)
        else:
            fine = isinstance(node, _NODES) or (isinstance(node, ast.Name) and not node.id.startswith("_"))
        if not fine:
            raise TypeError(
                f"the formula has the term {text!r}; a file keeps arithmetic, the transforms of formulaic and "
                "elementwise functions of NumPy"
            )


def _is_known(module: str, name: str) -> bool:
    if module in ("np", "numpy"):
        return isinstance(getattr(np, name, None), np.ufunc) or name in (*_ARRAY_FUNCTIONS, "pi", "e")
    return module == "contr" and not name.startswith("_")


def _plain(value: Any) -> Any:
    """Return a value as JSON holds it; what is no number, text or truth value is a pair of its kind and content."""
    if isinstance(value, np.generic):
        value = value.item()
    if value is None or isinstance(value, (bool, int, float, str)):
        return value
    if isinstance(value, (list, tuple)):
        return ["list", [_plain(item) for item in value]]
    if isinstance(value, (np.ndarray, pd.Index)):
        return ["array", [_plain(item) for item in np.asarray(value).ravel()], list(value.shape)]
    if isinstance(value, dict):
        return ["dict", [[_plain(key), _plain(item)] for key, item in value.items()]]
    if isinstance(value, pd.Timestamp) and value.tz is None:
        return ["time", value.isoformat()]
    if isinstance(value, contrasts.ContrastsState):
        return ["contrasts", _plain(value.contrasts), _plain(list(value.levels))]
    if type(value).__name__ in CONTRASTS:
        given = {key: item for key, item in vars(value).items() if repr(item) != "UNSET"}
        return ["coding", type(value).__name__, _plain(given)]
    raise TypeError(f"the formula's specification holds a {type(value).__name__}")


def _restored(words: Any) -> Any:
    if not isinstance(words, list):
        return words
    kind, *content = words
    if kind == "list":
        return [_restored(item) for item in content[0]]
    if kind == "array":
        return np.array([_restored(item) for item in content[0]]).reshape(content[1])
    if kind == "dict":
        return {_restored(key): _restored(item) for key, item in content[0]}
    if kind == "time":
        return pd.Timestamp(content[0])
    if kind == "contrasts":
        return contrasts.ContrastsState(_restored(content[0]), _restored(content[1]))
    if kind == "coding":
        return CONTRASTS[content[0]](**_restored(content[1]))
    raise ValueError(f"the kind {kind!r} is not known")
