"""Methods by the name of their class and the options of its arguments: for files and for the shell."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import MISSING, dataclass, field, fields
from typing import Any

from adfl_stats._arguments import one_of
from adfl_stats._types import Mask
from adfl_stats.methods._base import Method
from adfl_stats.methods.adaptive import ADFL
from adfl_stats.methods.bridge import Bridge
from adfl_stats.methods.clipped_gossip import ClippedGossip
from adfl_stats.methods.dfl import DFL
from adfl_stats.methods.geometric_median import GeometricMedian
from adfl_stats.methods.local import Local
from adfl_stats.methods.oracle import Oracle
from adfl_stats.methods.pruning import IOS, NNA
from adfl_stats.methods.slbrn import SLBRN
from adfl_stats.methods.tracking import Extra, GradientTracking
from adfl_stats.methods.trimmed_scores import TrimmedScores
from adfl_stats.methods.ubar import UBAR

__all__ = ["CLASSES", "NamedMethod", "named_method"]

CLASSES: dict[str, type[Method]] = {
    kind.__name__: kind
    for kind in (
        ADFL,
        DFL,
        Bridge,
        ClippedGossip,
        GeometricMedian,
        IOS,
        NNA,
        UBAR,
        SLBRN,
        Extra,
        GradientTracking,
        TrimmedScores,
        Local,
        Oracle,
    )
}
"""The methods by the names of their classes."""


def named_method(name: str, options: Mapping[str, Any] | None = None, what: str = "method") -> Method:
    """Return a method from the name of its class, in capitals or not, and its arguments.

    Examples
    --------
    >>> named_method("bridge", {"rule": "trimmed", "b": 2}).name
    'BRIDGE-T'
    """
    known = {key.lower(): key for key in CLASSES}
    lower = name.lower() if isinstance(name, str) else name
    kind = CLASSES[known[lower]] if lower in known else CLASSES[one_of(name, what, tuple(CLASSES))]
    given = dict(options or {})
    allowed = [part.name for part in fields(kind)]  # type: ignore[arg-type]
    for option in given:
        one_of(option, f"option of {what} {kind.__name__}", allowed)
    for part in fields(kind):  # type: ignore[arg-type]
        if part.default is part.default_factory is MISSING and part.name not in given:
            raise ValueError(f"{what} {kind.__name__} needs the option {part.name!r}; give it, as in {part.name}=...")
    if isinstance(given.get("init"), (str, Mapping)):
        given["init"] = _start(given["init"], what)
    return kind(**given)


def _start(init: Any, what: str) -> Method:
    """Return the method that another one begins with, from its name or a table like its own."""
    table = {"method": init} if isinstance(init, str) else dict(init)
    name = table.pop("method", None)
    if name is None:
        raise ValueError(f"init of {what} is {init!r}; name a method, as in {{method = 'Bridge', rule = 'median'}}")
    return named_method(name, table, f"init of {what}")


@dataclass(frozen=True)
class NamedMethod:
    """A function that makes a method from the mask of the abnormal clients; `Oracle` asks for them, others do not."""

    name: str
    options: Mapping[str, Any] = field(default_factory=dict)

    def __call__(self, abnormal: Mask) -> Method:
        """Return the method for a data set."""
        known = self.name.lower() == "oracle" or self.options.get("radius") == "known"
        return named_method(self.name, {"abnormal": abnormal} | dict(self.options) if known else self.options)
