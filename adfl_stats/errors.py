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
    """The iteration left every bounded set: the step is too large for the data or the network."""


class AdflWarning(UserWarning):
    """Base of every warning this package issues."""


class ConvergenceWarning(AdflWarning):
    """The numerical error is not small beside the standard error."""


class NetworkWarning(AdflWarning):
    """The network works, but does something the user should know of."""


class ConditionWarning(AdflWarning):
    """A condition of the theory fails on some clients, which are named."""


class SelectionWarning(AdflWarning):
    """Setting clients aside changed what the estimate rests on: many rows lost, or no clear majority."""
