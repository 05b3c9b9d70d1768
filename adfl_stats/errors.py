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
    "StorageError",
    "StorageWarning",
]


class DivergenceError(RuntimeError):
    """The iteration diverged: the step is too large for the data or the network."""


class StorageError(ValueError):
    """A file is damaged, incomplete, or not what it should be; the message has its name."""


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


class StorageWarning(AdflWarning):
    """A file of ours was damaged, and has been made again."""
