"""An estimate and its covariance as results of statsmodels, for tools that take those."""

from __future__ import annotations

from typing import TYPE_CHECKING

import numpy as np
import pandas as pd
import statsmodels.formula.api as smf
from statsmodels.genmod.generalized_linear_model import GLMResults, GLMResultsWrapper

from adfl_stats._arguments import listing

if TYPE_CHECKING:
    from adfl_stats.inference.results import Results

__all__ = ["twin"]


def twin(res: Results, frame: pd.DataFrame) -> GLMResultsWrapper:
    """Return statsmodels' results for some rows, with the estimate, the covariance and the rows' number of a fit."""
    formula = res.record.formula
    if formula is None:
        raise ValueError(
            "to_statsmodels needs a model that was made from a formula (DecentralizedGLM.from_formula); this one was "
            "not, or its file did not keep it. tidy() needs none"
        )
    if formula.offsets:
        raise ValueError(f"to_statsmodels: statsmodels has no offset() in formulas; this one is {formula.text!r}")
    glm = smf.glm(formula.text, frame, family=res.family.statsmodels())
    if set(glm.exog_names) != set(res.params.index):
        raise ValueError(
            f"frame gives the columns {listing(glm.exog_names)}; the fit has {listing(res.params.index)}. A level that "
            "a frame lacks has no column: give it with pandas.Categorical"
        )
    df = float(res.degrees_of_freedom().min())
    twin = GLMResults(
        glm,
        res.params[glm.exog_names].to_numpy(),
        np.empty((0, 0)),
        res.scale,
        cov_type="nonrobust",
        use_t=np.isfinite(df),
    )
    # What is by the rows of the fit, not by those of the frame.
    twin.cov_params_default = res.cov_params().loc[glm.exog_names, glm.exog_names].to_numpy()
    twin.cov_type, twin.df_resid_inference, twin.nobs = res.cov_type, df, res.nobs_used
    return GLMResultsWrapper(twin)
