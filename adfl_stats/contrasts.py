"""Linear hypotheses by statsmodels' own tests, on our estimates and covariance."""

from __future__ import annotations

from types import SimpleNamespace
from typing import Any

import numpy as np
import pandas as pd
from statsmodels.base.model import LikelihoodModelResults

__all__ = ["statsmodels_view"]


def statsmodels_view(params: pd.Series, covariance: pd.DataFrame) -> Any:
    """Return a statsmodels results object that knows only names, estimates and covariance."""
    names = [str(name) for name in params.index]
    model = SimpleNamespace(
        exog_names=names,
        endog_names="y",
        data=SimpleNamespace(cov_names=names, xnames=names, param_names=names),
    )
    view = LikelihoodModelResults(model, params.to_numpy(), normalized_cov_params=covariance.to_numpy(), scale=1.0)
    view.df_resid = np.inf
    view.use_t = False
    return view
