"""Responses coded for their families: labels become codes."""

from __future__ import annotations

import numpy as np

from adfl_stats._arguments import listing
from adfl_stats._types import FamilyLike
from adfl_stats.data.client_data import ClientData, assembled
from adfl_stats.data.model_matrix import text_numbers
from adfl_stats.data.whole import ROW, Whole
from adfl_stats.losses.families import Family, resolve_family

__all__ = ["with_family"]

# Ours: more distinct numbers in y than this are measurements, not classes.
MOST_CLASSES = 100


def with_family(data: ClientData, family: FamilyLike, whole: Whole | None = None) -> tuple[ClientData, Family]:
    """Return the data with y coded as the family wants it, and the family, checked against each other.

    Where the data are those of some clients of a whole, the classes are those of all.
    """
    name = family.lower() if isinstance(family, str) else getattr(family, "name", "")
    if name == "multinomial" and data.classes is None:
        whole = whole or Whole.here(data)
        levels = np.unique(whole.joined(np.unique(data.y)))
        whole.told(ROW, len(levels))
        if len(levels) > MOST_CLASSES or (levels != np.rint(levels)).any():
            raise ValueError(
                f"y has {len(levels)} distinct numbers; family 'multinomial' takes each as a class and wants at most "
                f"{MOST_CLASSES} whole numbers, or labels. Recode y or choose another family"
            )
        codes = np.searchsorted(levels, data.y)
        data = assembled(data, y=codes.astype(np.float64), classes=tuple(int(v) for v in levels))
    resolved = resolve_family(name if name == "multinomial" else family, len(data.classes or ()))
    if data.classes is not None and resolved.name not in ("multinomial", "binomial") and text_numbers(data.classes):
        raise ValueError(
            f"y holds numbers stored as text, such as {data.classes[0]!r}; family {resolved.name!r} wants numbers. "
            "Convert them, for example with pd.to_numeric"
        )
    if data.classes is not None and resolved.name != "multinomial" and len(data.classes) > 2:
        raise ValueError(
            f"y holds the labels {listing(data.classes)}, family {resolved.name!r} wants numbers; "
            "use family='multinomial' or recode y"
        )
    if data.classes is not None and resolved.name not in ("multinomial", "binomial"):
        raise ValueError(f"y holds the labels {listing(data.classes)}; use family='binomial'")
    resolved.check_response(data.y)
    return data, resolved
