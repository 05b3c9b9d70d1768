"""Linear hypotheses by statsmodels' own tests, on our estimates, covariance and degrees of freedom."""

from __future__ import annotations

from collections.abc import Callable
from types import SimpleNamespace
from typing import Any, TypeAlias

import numpy as np
import pandas as pd
from numpy.typing import ArrayLike
from statsmodels.base.model import LikelihoodModelResults
from statsmodels.stats.contrast import ContrastResults

from adfl_stats._arguments import refuse_other_kinds
from adfl_stats._types import Array
from adfl_stats.inference.covariance import Inference

__all__ = ["Hypotheses", "t_test", "wald_test"]

# As statsmodels has them: text, a matrix of contrasts, or a matrix with the values it is tested for.
Hypotheses: TypeAlias = str | ArrayLike | tuple[ArrayLike, ArrayLike]


class _View(LikelihoodModelResults):
    """A statsmodels results object with names, estimates, and the covariance of contrasts only.

    statsmodels reads the hypotheses and then asks for their covariance; the contrasts are kept from there, as degrees
    of freedom depend on them.
    """

    df_resid = np.inf
    use_t = False
    # Whether the hypotheses have been understood.
    read = False

    def __init__(self, params: pd.Series, inference: Inference) -> None:
        names = [str(name) for name in params.index]
        model = SimpleNamespace(
            exog_names=names,
            endog_names="y",
            data=SimpleNamespace(cov_names=names, xnames=names, param_names=names),
        )
        self.inference, self.contrasts = inference, np.eye(len(names))
        super().__init__(model, params.to_numpy(), normalized_cov_params=np.eye(len(names)), scale=1.0)

    def cov_params(self, r_matrix: Any = None, **_: Any) -> Array:
        """Return the covariance of the contrasts."""
        contrasts = np.atleast_2d(np.asarray(r_matrix, dtype=np.float64))
        if not np.isfinite(contrasts).all():
            raise ValueError("it has numbers that are not finite")
        self.contrasts, self.read = contrasts, True
        return self.inference.covariance(self.contrasts)

    @property
    def df_resid_inference(self) -> Any:
        """The degrees of freedom of the contrasts asked for last."""
        df = self.inference.df(self.contrasts)
        return float(df[0]) if len(df) == 1 else df


class _JointView(_View):
    """The same, for contrasts that are tested together."""

    def cov_params(self, r_matrix: Any = None, **_: Any) -> Array:
        """Return the covariance of the contrasts, if they can be tested together."""
        covariance = super().cov_params(r_matrix)
        self.inference.check_joint(self.contrasts)
        return covariance


def t_test(params: pd.Series, inference: Inference, r_matrix: Hypotheses) -> ContrastResults:
    """Test hypotheses one by one: z tests, or t tests each with its own degrees of freedom."""
    view = _View(params, inference)
    return _tested(view, r_matrix, lambda: view.t_test(r_matrix, use_t=inference.use_t))


def wald_test(params: pd.Series, inference: Inference, r_matrix: Hypotheses) -> ContrastResults:
    """Test hypotheses together: by chi-square, or by F where clients are compared."""
    view = _JointView(params, inference)
    tested = _tested(view, r_matrix, lambda: view.wald_test(r_matrix, use_f=False, scalar=True))
    if not inference.use_t:
        return tested
    return ContrastResults(**inference.joint(tested.statistic, view.contrasts))


def _tested(view: _View, r_matrix: Hypotheses, test: Callable[[], ContrastResults]) -> ContrastResults:
    """Return what a test of statsmodels returns; say what is wrong with hypotheses that it cannot read."""
    for part in r_matrix if isinstance(r_matrix, tuple) else (r_matrix,):
        if not isinstance(part, str):
            refuse_other_kinds(part, "r_matrix")
    try:
        return test()
    except Exception as error:
        if view.read:
            raise
        # An error before the covariance is read is one of statsmodels' parser, of any type.
        names = view.model.exog_names
        reason = str(error).splitlines()[0] if str(error) else type(error).__name__
        raise ValueError(
            f"r_matrix is {r_matrix!r}, which cannot be read ({reason}); give text such as '{names[0]} = 0', a matrix "
            f"of contrasts with {len(names)} columns, or a pair of such a matrix and the values to test for"
        ) from None
