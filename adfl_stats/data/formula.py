"""Parsed formulas: their parts, the columns and functions that they need, and rows with missing values."""

from __future__ import annotations

import ast
import builtins
import inspect
import re
from collections import ChainMap
from collections.abc import Hashable, Iterable, Mapping
from dataclasses import dataclass, field, replace
from functools import cached_property
from typing import Any

import numpy as np
import pandas as pd
from formulaic import Formula, SimpleFormula
from formulaic.errors import FormulaicError
from formulaic.parser.types import Factor
from formulaic.transforms import TRANSFORMS

from adfl_stats._arguments import listing

__all__ = [
    "Expression",
    "ParsedFormula",
    "callers_names",
    "columns_used",
    "parsed_formula",
    "refuse_holes",
    "refuse_index",
]

# Terms of mixed models, such as (1 | site) or (x || site).
RANDOM_EFFECT = re.compile(r"\([^()|]*\|\|?[^()|]*\)")
OFFSET = re.compile(r"offset\((.*)\)", re.DOTALL)
# Names that are no Python names: `my column` and Q("my column").
QUOTED, COLUMN = re.compile(r"`([^`]*)`"), re.compile(r"""\bQ\(["']([^"']*)["']\)""")
# Functions that take text as it is: levels of a factor.
OF_LEVELS = ("C(", "hashed(")


@dataclass(frozen=True, eq=False)
class ParsedFormula:
    """The two sides of a formula, without its ``offset()`` terms, which are kept beside.

    Attributes
    ----------
    text : str
        The formula as it was written.
    lhs, rhs : formulaic SimpleFormula
        Its sides.
    offsets : tuple of str
        What its ``offset()`` terms say.
    names : dict
        Functions and constants of the calling code that it uses. Copies by pickle and files do not have them.
    """

    text: str
    lhs: Any
    rhs: Any
    offsets: tuple[str, ...] = ()
    names: Mapping[str, Any] = field(default_factory=dict)

    def __reduce__(self) -> tuple[Any, ...]:
        return parsed_formula, (self.text,)

    @property
    def offset_formulas(self) -> list[Any]:
        """What the ``offset()`` terms hold, each as the one term of a formula."""
        return [Formula(f"0 + I({expression})") for expression in self.offsets]

    @cached_property
    def _expressions(self) -> list[Expression]:
        factors = [factor for side in (self.lhs, self.rhs) for term in side for factor in term.factors]
        return [Expression.of(factor) for factor in factors] + [Expression.read(text) for text in self.offsets]

    @property
    def variables(self) -> set[str]:
        """Names of columns, or of constants of the calling code."""
        return {name for expression in self._expressions for name in expression.values}

    @property
    def functions(self) -> set[str]:
        """Functions that are called and that formulas do not know by themselves, or the modules they are in."""
        return {name for expression in self._expressions for name in expression.calls}

    @property
    def hiding(self) -> set[str]:
        """Names that are functions of Python or of formulas, and columns of a table that has them, such as `type`."""
        return {name for expression in self._expressions for name in expression.hiding}

    def using(self, caller: Mapping[str, Any], columns: Iterable[Any], rows: int) -> ParsedFormula:
        """Return the same formula with the functions and constants of the calling code that it uses.

        Parameters
        ----------
        caller : mapping
            Names of the calling code; see `callers_names`.
        columns : iterable of str
            The table's columns, which go first.
        rows : int
            The table's rows. A name with as many values is no constant, and is left out: rows that are dropped or
            predicted would not match it.

        Returns
        -------
        ParsedFormula
            With `names`.
        """
        bare = {name for expression in self._expressions if expression.bare for name in expression.values}
        wanted = (self.variables | self.functions) - {str(column) for column in columns} - bare
        names = {name: caller[name] for name in wanted if name in caller}
        return replace(self, names={k: v for k, v in names.items() if not (np.ndim(v) and len(v) == rows)})

    @property
    def covariates(self) -> set[str]:
        """All names but those of the response alone."""
        return {
            name for expression in self._right_hand for name in expression.values | expression.calls | expression.hiding
        }

    @property
    def bare_columns(self) -> set[str]:
        """Covariates that are used as they are."""
        return {name for expression in self._right_hand if expression.bare for name in expression.values}

    @property
    def computed_columns(self) -> set[str]:
        """Names that expressions compute with, and that none makes a factor."""
        levels, computed = (
            {name for e in self._expressions if e.of_levels == factor and not e.bare for name in e.values}
            for factor in (True, False)
        )
        return computed - levels

    @property
    def level_columns(self) -> set[str]:
        """Covariates whose own values are the levels of a factor, as in C(group), and not computed ones."""
        return {name for expression in self._right_hand if expression.of_own_levels for name in expression.values}

    @property
    def numeric_columns(self) -> set[str]:
        """Covariates that are used as they are or computed with, and not made a factor."""
        return {name for expression in self._right_hand if not expression.of_levels for name in expression.values}

    @property
    def _right_hand(self) -> list[Expression]:
        return self._expressions[sum(len(term.factors) for term in self.lhs) :]


@dataclass(frozen=True)
class Expression:
    """The names in a factor of a formula."""

    values: frozenset[str]
    calls: frozenset[str] = frozenset()
    # Used as values and known as functions: columns of the table, where it has them.
    hiding: frozenset[str] = frozenset()
    bare: bool = False
    of_levels: bool = False
    of_own_levels: bool = False

    @classmethod
    def of(cls, factor: Any) -> Expression:
        """Return the names in a factor of formulaic."""
        if factor.eval_method is Factor.EvalMethod.LOOKUP:
            return cls(frozenset([factor.expr]), bare=True)
        return cls.read(factor.expr) if factor.eval_method is Factor.EvalMethod.PYTHON else cls(frozenset())

    @classmethod
    def read(cls, text: str) -> Expression:
        """Return the names in Python code, in which backticks quote columns."""
        # formulaic's own list of variables lacks those inside of center(), scale(), poly(), ...
        tree = ast.parse(QUOTED.sub("None", text).strip(), mode="eval")
        heads = [_head(node.func) for node in ast.walk(tree) if isinstance(node, ast.Call)]
        calls = {head.id for head in heads if head is not None}
        names = {node.id for node in ast.walk(tree) if isinstance(node, ast.Name) and node not in heads}
        known = set(TRANSFORMS) | set(dir(builtins))
        values = (names - known) | set(QUOTED.findall(text)) | set(COLUMN.findall(text))
        levels = text.startswith(OF_LEVELS)
        first = tree.body.args[:1] if isinstance(tree.body, ast.Call) else []
        own = levels and all(isinstance(one, ast.Name | ast.Constant) for one in first)
        return cls(frozenset(values), frozenset(calls - known), frozenset(names & known), False, levels, own)


def _head(node: ast.expr) -> ast.Name | None:
    """Return the name that a dotted name begins with."""
    while isinstance(node, ast.Attribute):
        node = node.value
    return node if isinstance(node, ast.Name) else None


def callers_names(levels: int) -> Mapping[str, Any]:
    """Return the local and global names of the code so many calls above the caller of this function."""
    frame = inspect.currentframe()
    for _ in range(levels + 1):
        frame = None if frame is None else frame.f_back
    return {} if frame is None else ChainMap(dict(frame.f_locals), frame.f_globals)


def parsed_formula(formula: str) -> ParsedFormula:
    """Return the formula with its two sides; raise ValueError where it lacks one or cannot be read."""
    if not isinstance(formula, str):
        raise TypeError(f"formula is a {type(formula).__name__}; write it as text, as in 'y ~ x1 + C(group)'")
    if random := RANDOM_EFFECT.search(formula):
        raise ValueError(
            f"formula is {formula!r}; random effects such as {random[0]} are not supported. Leave the term out: "
            "clients may differ by themselves, see heterogeneity= of fit and res.heterogeneity()"
        )
    try:
        parsed = Formula(formula)
    except FormulaicError as error:
        if "`.` operator" in str(error):
            raise ValueError(
                f"formula is {formula!r}; '.' for all other columns is not supported. Name the columns, as in "
                "'y ~ x1 + C(group)'"
            ) from None
        # The first line says what is wrong; the rest marks the place with terminal colours.
        reason = str(error).splitlines()[0] if str(error) else type(error).__name__
        raise ValueError(
            f"formula is {formula!r}; it cannot be read: {reason}. Write it as in 'y ~ x1 + C(group)'"
        ) from None
    if not hasattr(parsed, "lhs"):
        raise ValueError(f"formula is {formula!r}; it needs a response, as in 'y ~ x1 + x2'")
    if isinstance(parsed.rhs, tuple):
        raise ValueError(f"formula is {formula!r}; it must have one right-hand side, without '|'")
    offsets = {term: _offset_of(term, formula) for term in parsed.rhs}
    rhs = SimpleFormula([term for term, offset in offsets.items() if offset is None])
    return ParsedFormula(formula, parsed.lhs, rhs, tuple(offset for offset in offsets.values() if offset is not None))


def _offset_of(term: Any, formula: str) -> str | None:
    """Return what a term ``offset(...)`` holds; None for other terms."""
    offsets = [match[1] for factor in term.factors if (match := OFFSET.fullmatch(factor.expr))]
    if offsets and len(term.factors) > 1:
        raise ValueError(
            f"formula is {formula!r}; an offset has no interactions. Write offset(...) as a term of its own"
        )
    return offsets[0] if offsets else None


def columns_used(
    parsed: ParsedFormula, others: Iterable[Any], available: Iterable[Any], table: str, index: Iterable[Any] = ()
) -> list[Any]:
    """Return the columns that the formula and the other arguments name; raise where `table` lacks one.

    `index` has the names of the levels of its index, which are no columns.
    """
    present = list(available)
    calls = sorted(parsed.functions - set(parsed.names) - {str(column) for column in present})
    if calls:
        raise ValueError(
            f"formula is {parsed.text!r}; it calls {listing(calls)}, which formulas do not know and the code that "
            "called has not defined. Define the function first, or compute the column"
        )
    given = [column for column in others if column is not None]
    if odd := [column for column in given if not isinstance(column, Hashable)]:
        raise TypeError(
            f"client, offset, exposure and weights are names of columns of {table}, or one value a row; found "
            f"a {type(odd[0]).__name__}"
        )
    named = set(given)
    methods = (parsed.functions | parsed.hiding) & {str(column) for column in present}
    used = sorted((parsed.variables - set(parsed.names)) | methods | named, key=str)
    absent = [column for column in used if column not in present]
    refuse_index(absent, index, table, "frame")
    if absent:
        raise ValueError(
            f"{table} has no column {listing(absent)}, named by the formula or as client, offset, exposure "
            f"or weights; its columns are {listing(present, 12)}"
        )
    return used


def refuse_index(absent: Iterable[Any], index: Iterable[Any], table: str, argument: str) -> None:
    """Raise ValueError naming columns that a table lacks and its index has."""
    if inside := [name for name in absent if name in list(index)]:
        raise ValueError(
            f"{listing(inside)} is in the index of {table}, and no column; pass {argument}.reset_index(), which has it "
            "as one"
        )


def refuse_holes(counts: pd.Series, rows: int, table: str) -> None:
    """Raise ValueError naming the columns with missing values, `counts` of them, in so many rows."""
    if rows:
        columns = ", ".join(f"{name!r} ({int(k)})" for name, k in counts[counts > 0].items())
        raise ValueError(
            f"{table} has missing values (NaN) in {columns}: {rows} rows. Impute them, or pass "
            "missing='drop' to leave these rows out"
        )
