"""Rules of aggregation: names and parameters."""

from __future__ import annotations

from dataclasses import dataclass

from adfl_stats._types import Mask

__all__ = ["MEAN", "RULES", "Rule"]

RULES = (
    "mean",
    "median",
    "trimmed",
    "krum",
    "bulyan",
    "clip",
    "clip-second",
    "clip-declared",
    "clip-known",
    "geometric",
    "ios",
    "nna",
)
"""The rules that the kernel has, in the order of its codes."""


@dataclass(frozen=True, eq=False)
class Rule:
    """A rule of combination.

    Every rule but the mean has the client's own estimate in its pool, also where W gives it no weight.

    Attributes
    ----------
    name : str
        One of `RULES`.
    count : int
        The largest number of abnormal neighbours ("trimmed", "krum", "bulyan", "ios", "nna"), or Weiszfeld's
        iterations ("geometric").
    value : float
        The radius ("clip"), the largest weight of abnormal neighbours ("clip-declared"), or the lower bound on
        distances ("geometric").
    bad : ndarray (M,) or None
        A mask of the abnormal clients ("clip-known").

    Examples
    --------
    >>> from adfl_stats.engine.round import Scheme
    >>> from adfl_stats.engine.rules import Rule
    >>> Scheme(Rule("trimmed", count=1), schedule="phases").rule.name
    'trimmed'
    """

    name: str = "mean"
    count: int = 0
    value: float = 0.0
    bad: Mask | None = None

    @property
    def code(self) -> int:
        """The kernel's number for the rule."""
        return RULES.index(self.name)


MEAN = Rule("mean")
"""The weighted mean of equation (3.1)."""
