"""A property that is computed once."""

from __future__ import annotations

from functools import cached_property
from typing import TYPE_CHECKING, Any

__all__ = ["once"]

if TYPE_CHECKING:
    once = cached_property
else:

    class once(cached_property):  # noqa: N801
        """A property that is computed once, without the lock of `functools.cached_property` before Python 3.12.

        Computing the value may wait for another place. Where places are threads, the other would wait for the lock.
        """

        def __get__(self, instance: Any, owner: type | None = None) -> Any:
            """Cache the value on the instance."""
            if instance is None:
                return self
            value = instance.__dict__[self.attrname] = self.func(instance)
            return value
