"""What a study consists of as plain values, and their digest: two studies are the same if these are."""

from __future__ import annotations

import hashlib
import json
import re
from collections.abc import Mapping, Sequence, Set
from contextvars import ContextVar
from dataclasses import fields, is_dataclass
from functools import partial
from importlib.metadata import PackageNotFoundError, version
from types import BuiltinFunctionType, CellType, CodeType, FunctionType, MethodType, ModuleType
from typing import Any

import numpy as np
import pandas as pd

# As in <object at 0x7f52...>.
_ADDRESS = re.compile(r" at 0x[0-9a-f]+")

# Objects whose description has begun.
_OPEN: ContextVar[frozenset[int]] = ContextVar("_OPEN", default=frozenset())

__all__ = ["described", "differences", "digest", "package_version"]


def described(value: Any) -> Any:
    """Return an object as numbers, text, lists and dicts that JSON can hold; arrays and code by their hash.

    A function is described by its code, defaults and what it closes over, so that a changed function is another one.

    Examples
    --------
    >>> described({"share": 0.2, "sizes": (1, 2)})
    {'share': 0.2, 'sizes': [1, 2]}
    >>> described(lambda x: x + 1) == described(lambda x: x + 2)
    False
    """
    if value is None or isinstance(value, (bool, int, float, str)):
        return value
    if isinstance(value, np.generic):
        return value.item()
    if isinstance(value, bytes):
        return _hash(value)
    if isinstance(value, (np.ndarray, pd.Index, pd.Series, pd.DataFrame)):
        return _array(value)
    if isinstance(value, Mapping):
        return {str(key): described(part) for key, part in value.items()}
    if isinstance(value, Set):
        return sorted((described(part) for part in value), key=repr)
    if isinstance(value, Sequence):
        return [described(part) for part in value]
    if id(value) in _OPEN.get():
        # A function that calls itself, an object that holds itself.
        return "itself"
    token = _OPEN.set(_OPEN.get() | {id(value)})
    try:
        return _object(value)
    finally:
        _OPEN.reset(token)


def _object(value: Any) -> Any:
    """Return a function, class or instance by its name and its parts."""
    if isinstance(value, partial):
        return {"function": described(value.func), "given": [described(value.args), described(value.keywords)]}
    if isinstance(value, FunctionType):
        closed = [described(cell.cell_contents) for cell in value.__closure__ or () if cell != CellType()]
        defaults = [described(value.__defaults__), described(value.__kwdefaults__)]
        return {"function": value.__qualname__, "code": _code(value.__code__), "given": [defaults, closed]}
    if isinstance(value, MethodType):
        return {"function": value.__qualname__, "of": described(value.__self__)}
    if isinstance(value, (type, ModuleType, BuiltinFunctionType)):
        return f"{getattr(value, '__module__', '')}.{getattr(value, '__qualname__', value.__name__)}"
    if not (is_dataclass(value) or hasattr(value, "__dict__")):
        # Paths, fractions, ufuncs, generators: what they print, or their state, tells them apart; an address does not.
        state = value.bit_generator.state if isinstance(value, np.random.Generator) else None
        text = repr(value)
        return {"class": type(value).__qualname__, "is": described(state) if state else _ADDRESS.sub("", text)}
    parts = {part.name: getattr(value, part.name) for part in fields(value)} if is_dataclass(value) else vars(value)
    return {"class": type(value).__qualname__, **{name: described(part) for name, part in parts.items()}}


def _array(value: Any) -> dict[str, Any]:
    labels = [] if isinstance(value, np.ndarray) else [list(map(str, axis)) for axis in getattr(value, "axes", [])]
    array = np.asarray(value)
    # Objects have addresses where numbers have bytes.
    content = repr(array.tolist()).encode() if array.dtype.hasobject else np.ascontiguousarray(array).tobytes()
    return {"array": list(array.shape), "type": str(array.dtype), "hash": _hash(content), "labels": labels}


def _code(code: CodeType) -> str:
    """Return the hash of compiled code; nested functions are among its constants."""
    constants = [_code(part) if isinstance(part, CodeType) else repr(part) for part in code.co_consts]
    return _hash(code.co_code + repr((constants, code.co_names, code.co_varnames)).encode())


def _hash(content: bytes) -> str:
    return hashlib.sha256(content).hexdigest()[:32]


def digest(description: Any) -> str:
    """Return the hash of what `described` returned; it does not depend on the order of keys.

    Examples
    --------
    >>> digest({"a": 1, "b": 2}) == digest({"b": 2, "a": 1})
    True
    """
    return _hash(json.dumps(description, sort_keys=True).encode())


def differences(first: Mapping[str, Any], second: Mapping[str, Any]) -> list[str]:
    """Return the keys whose values differ.

    Examples
    --------
    >>> differences({"seed": 1, "shares": [0.2]}, {"seed": 2, "shares": [0.2]})
    ['seed']
    """
    return [key for key in {**first, **second} if first.get(key) != second.get(key)]


def package_version() -> str:
    """Return the version of this package, which is a part of what a study is."""
    try:
        return version("adfl-stats")
    except PackageNotFoundError:  # pragma: no cover - a source tree that was never installed
        return "0+unknown"
