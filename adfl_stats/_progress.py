"""Progress bars, on a terminal and in notebooks."""

from __future__ import annotations

import warnings
from typing import Any


def progress_bar(total: int | None, description: str, unit: str, extra: str = "study", **options: Any) -> Any:
    """Return a bar of tqdm that goes when it is done; raise ImportError that names the extra where tqdm is missing."""
    try:
        with warnings.catch_warnings():
            # In a notebook without ipywidgets tqdm warns, and draws the bar of a terminal, which does.
            warnings.filterwarnings("ignore", message="IProgress not found")
            from tqdm.auto import tqdm
    except ImportError:
        raise ImportError(f"progress=True needs tqdm; install it with: pip install 'adfl-stats[{extra}]'") from None
    return tqdm(total=total, desc=description, unit=unit, leave=False, **options)
