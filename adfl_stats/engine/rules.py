"""How a client combines what it hears: the name of a rule and its parameters."""

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

    Every rule but the mean sees a pool of which the client's own estimate is a part, also where W gives
    it no weight.

    Attributes
    ----------
    name : str
        One of `RULES`.
    count : int
        How many neighbours may be bad ("trimmed", "krum", "bulyan", "ios", "nna"), or Weiszfeld's
        iterations ("geometric").
    value : float
        The radius ("clip"), the weight that bad neighbours may have ("clip-declared"), or the smallest
        distance that counts ("geometric").
    bad : ndarray (M,) or None
        A mask of the clients known to be bad ("clip-known").
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
