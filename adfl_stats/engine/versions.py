"""What decides the last bits of a fit beside its arguments: versions of packages, and the kernel's instruction set."""

from __future__ import annotations

import platform
import sys

from adfl_stats import _kernels

__all__ = ["versions_here"]

PACKAGES = ("adfl_stats", "numpy", "scipy")


def versions_here() -> dict[str, str]:
    """Return versions and instruction set of this process, by name."""
    return {
        "the version of Python": platform.python_version(),
        # From the package itself, which imports this module.
        **{f"the version of {name}": str(sys.modules[name].__version__) for name in PACKAGES},
        "the kernel's instruction set": _kernels.instruction_set(),
    }
