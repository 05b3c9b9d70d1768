"""The exceptions and warnings of the package.

Wrong arguments are plain ``ValueError`` or ``TypeError``; a class of its own exists only where a
caller would want to catch that event and no other.
"""

from __future__ import annotations

__all__ = [
    "AdflWarning",
    "ConditionWarning",
    "ConvergenceWarning",
    "DivergenceError",
    "NetworkWarning",
    "SelectionWarning",
]


class DivergenceError(RuntimeError):
    """The iteration diverged: the step is too large for the data or the network."""


class AdflWarning(UserWarning):
    """Base of every warning this package issues."""


class ConvergenceWarning(AdflWarning):
    """The numerical error is not small beside the standard error."""


class NetworkWarning(AdflWarning):
    """A property of the network that affects the fit."""


class ConditionWarning(AdflWarning):
    """A condition of the theory fails on some clients, which are named."""


class SelectionWarning(AdflWarning):
    """The clients' weights changed the basis of the estimate: many rows without weight, or no clear majority."""
