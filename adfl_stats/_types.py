"""The types of the package: arrays, and what users may pass."""

from __future__ import annotations

from collections.abc import Callable, Hashable, Iterable, Mapping
from typing import TYPE_CHECKING, Any, Protocol, TypeAlias

import numpy as np
import pandas as pd
from numpy.typing import ArrayLike, NDArray

if TYPE_CHECKING:
    from narwhals.typing import IntoFrame
    from statsmodels.genmod import families
    from statsmodels.robust import norms

    from adfl_stats.inference.objective_results import ObjectiveResults
    from adfl_stats.inference.results import Results
    from adfl_stats.losses.families import Family, Huber
    from adfl_stats.methods import Method

__all__ = [
    "Apply",
    "Array",
    "ArrowStream",
    "ClientSet",
    "ClientWeights",
    "FamilyLike",
    "FrameLike",
    "Indices",
    "InitialEstimates",
    "Ints",
    "Mask",
    "NumbersByName",
]

Array: TypeAlias = NDArray[np.float64]
Ints: TypeAlias = NDArray[np.int64]
Mask: TypeAlias = NDArray[np.bool_]
# A product of a matrix with a vector, or another function of arrays.
Apply: TypeAlias = Callable[[Array], Array]
# What scipy's sparse matrices index with: int32 or int64.
Indices: TypeAlias = NDArray[np.signedinteger]

# Clients by label, index or mask; see `_client_sets.abnormal_mask`.
ClientSet: TypeAlias = Hashable | Iterable[Hashable] | Mapping[Any, bool] | ArrayLike | pd.Series
# One number for each client: in the order of the data, or by label (keys of a Mapping are invariant).
ClientWeights: TypeAlias = ArrayLike | pd.Series | Mapping[Any, float]
# One number for all coefficients, one for each in their order, or by name.
NumbersByName: TypeAlias = ArrayLike | pd.Series | Mapping[str, float]
# Where rounds begin: an estimate for all clients or one each, another fit, or a method to run first.
InitialEstimates: TypeAlias = "ArrayLike | pd.Series | pd.DataFrame | Results | ObjectiveResults | Method"
# A name, a composed family, or an instance of statsmodels.
FamilyLike: TypeAlias = "str | Family | Huber | families.Family | norms.HuberT"


class ArrowStream(Protocol):
    """A table that exports an Arrow stream (the Arrow PyCapsule interface)."""

    def __arrow_c_stream__(self, requested_schema: object | None = None) -> object: ...


# A table that narwhals reads or that exports Arrow streams: polars, pyarrow, ...; see `_frames.foreign_frame`.
FrameLike: TypeAlias = "pd.DataFrame | IntoFrame | ArrowStream"
