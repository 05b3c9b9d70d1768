"""Predictions with their uncertainty."""

from __future__ import annotations

import warnings
from collections.abc import Mapping
from dataclasses import dataclass
from typing import NamedTuple, TypeAlias

import numpy as np
import pandas as pd
from formulaic.errors import DataMismatchWarning
from numpy.typing import ArrayLike
from scipy import stats

from adfl_stats._arguments import finite_float64, float64_array, in_interval, listing
from adfl_stats._frames import foreign_frame, is_foreign_frame, pandas_columns, plain_column
from adfl_stats._text import printable_lines
from adfl_stats._types import Array, FrameLike
from adfl_stats.data.columns import offset_and_exposure
from adfl_stats.data.formula import Expression, refuse_index
from adfl_stats.data.model_matrix import check_columns, evaluated, formula_offset
from adfl_stats.inference.covariance import Inference
from adfl_stats.inference.record import FitRecord

__all__ = ["NewRows", "Prediction", "design_for", "mean_at"]

# A frame with the formula's variables or the model's columns, one row of it, or a design matrix.
NewRows: TypeAlias = "FrameLike | pd.Series | ArrayLike"


class NewDesign(NamedTuple):
    """Rows to predict at: the design matrix, what the formula's ``offset()`` terms add, and the rows' labels."""

    X: Array
    linear_offset: Array | None
    index: pd.Index


def mean_at(
    design: NewDesign, fit: FitRecord, *, offset: ArrayLike | None, exposure: ArrayLike | None
) -> tuple[Array, pd.Series | pd.DataFrame]:
    """Return the linear predictor and the mean response, for the multinomial a column per class; no standard errors."""
    X, index = design.X, design.index
    eta = X @ fit.params.reshape(fit.family.outputs, -1).T
    linear_offset = offset_and_exposure(offset, exposure, len(X))
    for part in (linear_offset, design.linear_offset):
        if part is not None:
            eta += part[:, None]
    if fit.family.name == "multinomial":
        levels = pd.Index(fit.classes or range(fit.family.outputs + 1), name=fit.y_name)
        return eta, pd.DataFrame(fit.family.mean(eta), index=index, columns=levels)
    eta = eta[:, 0]
    return eta, pd.Series(fit.family.mean(eta), index=index, name="mean")


def design_for(X: NewRows, fit: FitRecord) -> NewDesign:
    """Return the design at new rows."""
    if is_foreign_frame(X):
        opened = foreign_frame(X, "X")
        X = pandas_columns(opened, list(opened.columns))
    if isinstance(X, pd.Series):
        X = X.to_frame().T
    if isinstance(X, Mapping):
        X = pd.DataFrame({name: np.atleast_1d(values) for name, values in X.items()})
    if isinstance(X, pd.DataFrame):
        return _design_of_frame(X, fit)
    rows = float64_array(X, "X")
    if rows.ndim not in (1, 2):
        raise ValueError(f"X must be a row or rows of numbers, got {X!r}")
    design = np.atleast_2d(finite_float64(rows, "X", rows.ndim))
    if design.shape[1] != len(fit.columns):
        raise ValueError(f"X has shape {design.shape}; {len(fit.columns)} columns are wanted")
    return NewDesign(design, None, pd.RangeIndex(len(design)))


def _design_of_frame(X: pd.DataFrame, fit: FitRecord) -> NewDesign:
    absent = [name for name in fit.columns if name not in X.columns]
    if not absent and (fit.formula is None or not fit.formula.offsets):
        return NewDesign(finite_float64(X[fit.columns], "X", 2, fit.columns), None, X.index)
    if fit.spec is None or fit.formula is None:
        lost = fit.lost_formula
        why = f"the file did not keep its formula ({lost})" if lost else "the model was not built from a formula"
        raise ValueError(f"X lacks the columns {listing(absent)}; {why}, so give its own columns")
    covariates, kept = fit.formula.covariates, fit.formula.names
    columns = fit.formula.variables | (fit.formula.hiding & set(fit.spec.required_variables))
    needed = sorted((covariates & columns) - set(X.columns) - set(kept))
    refuse_index(needed, X.index.names, "X", "X")
    if needed:
        raise ValueError(f"X lacks the formula's variables {listing(needed)}; its columns are {listing(X.columns)}")
    unknown = sorted(covariates & fit.formula.functions - set(X.columns) - set(kept))
    if unknown:
        raise ValueError(
            f"the formula calls {listing(unknown)}, a function of the code that made the model, which copies of "
            f"results do not keep; give X with the model's own columns: {listing(fit.columns)}"
        )
    rows = pd.DataFrame({name: plain_column(X[name]) for name in X.columns if name in covariates}, index=X.index)
    check_columns(fit.formula, rows, "X")
    try:
        with warnings.catch_warnings():
            # The formula would give an unknown level the columns of the reference level.
            warnings.simplefilter("error", DataMismatchWarning)
            matrix = evaluated(fit.spec, fit.formula, rows, "X")
    except DataMismatchWarning as warning:
        levels = str(warning).partition("{")[2].partition("}")[0]
        otherwise = f"X has levels of a factor that the data of the fit did not have: {levels}"
        raise ValueError(_unseen_levels(rows, fit) or otherwise) from None
    return NewDesign(finite_float64(matrix, "X", 2, fit.columns), formula_offset(fit.formula, rows, "X"), X.index)


def _unseen_levels(rows: pd.DataFrame, fit: FitRecord) -> str | None:
    """Return in words which column has which new levels, of factors that are columns as they are."""
    assert fit.spec is not None
    for text, (_, state) in fit.spec.encoder_state.items():
        expression = Expression.read(str(text))
        alone = expression.of_own_levels or str(text).strip("`") in expression.values
        for name in expression.values & set(rows.columns) if alone and "categories" in state else ():
            known = list(state["categories"])
            unseen = [level for level in pd.unique(rows[name]) if level not in known]
            if unseen:
                return (
                    f"the column {name!r} of X has the level {listing(unseen)}, which the data of the fit did not "
                    f"have; theirs are {listing(known)}"
                )
    return None


@dataclass(frozen=True, eq=False)
class Prediction:
    """Predicted means, their standard errors, and intervals; made by `Results.get_prediction`.

    Intervals are those of the linear predictor, carried through the inverse link; for class
    probabilities they come from the delta method and are cut to [0, 1].

    Parameters
    ----------
    predicted_mean, se_mean : Series or DataFrame
        Means and their standard errors by row; for the multinomial a column per class.
    linear, se_linear : ndarray
        The linear predictor and its standard errors.
    df : ndarray
        Degrees of freedom of the quantiles, infinite for the normal distribution.
    fit : FitRecord
        The fit.

    Examples
    --------
    >>> import adfl_stats as ad
    >>> sim = ad.simulate.paper_linear(abnormal=0, corruption=None, seed=1, M=10, n=30, p=2)
    >>> data = ad.ClientData.from_arrays(sim.X, sim.y, sim.client)
    >>> res = ad.DecentralizedGLM(data, ad.networks.directed_circle(10, 3)).fit()
    >>> list(res.get_prediction([[1.0, 0.0]]).summary_frame().columns)[:4]
    ['mean', 'mean_se', 'mean_ci_lower', 'mean_ci_upper']
    """

    predicted_mean: pd.Series | pd.DataFrame
    se_mean: pd.Series | pd.DataFrame
    linear: Array
    se_linear: Array
    df: Array
    fit: FitRecord

    def __repr__(self) -> str:
        return repr(self.summary_frame())

    def _repr_html_(self) -> str:
        return printable_lines(self.summary_frame().to_html())

    @classmethod
    def at(
        cls,
        design: NewDesign,
        inference: Inference,
        *,
        offset: ArrayLike | None,
        exposure: ArrayLike | None,
    ) -> Prediction:
        """Predict at the rows of a design matrix.

        Parameters
        ----------
        design : NewDesign
            The rows.
        inference : Inference
            The fit and the kind of covariance.
        offset, exposure : array, optional
            As in the data, beside what the formula's ``offset()`` terms add.

        Returns
        -------
        Prediction
            The predictions.
        """
        fit, X = inference.fit, design.X
        eta, mean = mean_at(design, fit, offset=offset, exposure=exposure)
        if isinstance(mean, pd.DataFrame):
            return cls._of_classes(X, eta, mean, inference)
        se, df = inference.standard_errors(X), inference.df(X)
        se_mean = pd.Series(se * np.abs(fit.family.mean_slope(eta)), index=design.index)
        return cls(mean, se_mean, eta, se, df, fit)

    @classmethod
    def _of_classes(cls, X: Array, eta: Array, mean: pd.DataFrame, inference: Inference) -> Prediction:
        fit, probability = inference.fit, mean.to_numpy()
        q = fit.family.outputs
        # d p_k / d eta_j = p_k (1{k = j} - p_j), and eta_j is linear in the j-th block of parameters.
        slopes = probability[:, :, None] * (np.eye(q + 1)[None, :, 1:] - probability[:, None, 1:])
        full = (slopes[:, :, :, None] * X[:, None, None, :]).reshape(len(X) * (q + 1), -1)
        se, df = (part(full).reshape(len(X), q + 1) for part in (inference.standard_errors, inference.df))
        return cls(mean, pd.DataFrame(se, index=mean.index, columns=mean.columns), eta, se, df, fit)

    def summary_frame(self, alpha: float = 0.05) -> pd.DataFrame:
        """Return means, standard errors and intervals, as in statsmodels.

        Parameters
        ----------
        alpha : float
            Intervals are at level 1 - alpha.

        Returns
        -------
        DataFrame
            mean, mean_se, mean_ci_lower and mean_ci_upper. The Gaussian has obs_ci_lower and obs_ci_upper for a new
            observation besides. For classes the columns are pairs (class, quantity).

        Examples
        --------
        >>> import adfl_stats as ad
        >>> sim = ad.simulate.paper_linear(abnormal=0.2, corruption="BF", seed=1, M=20, n=50, p=3)
        >>> data = ad.ClientData.from_arrays(sim.X, sim.y, sim.client)
        >>> res = ad.DecentralizedGLM(data, ad.networks.directed_circle(20, 5)).fit()
        >>> res.get_prediction([[1.0, 0.0, 0.0]]).summary_frame().columns.tolist()
        ['mean', 'mean_se', 'mean_ci_lower', 'mean_ci_upper', 'obs_ci_lower', 'obs_ci_upper']
        """
        reach = _quantiles(in_interval(alpha, "alpha", 0.0, 1.0, open_low=True, open_high=True) / 2.0, self.df)
        if isinstance(self.predicted_mean, pd.DataFrame):
            return self._class_frame(reach)
        frame = pd.DataFrame({"mean": self.predicted_mean, "mean_se": self.se_mean})
        ends = [self.fit.family.mean(self.linear + sign * reach * self.se_linear) for sign in (-1.0, 1.0)]
        # Some links decrease.
        frame["mean_ci_lower"], frame["mean_ci_upper"] = np.minimum(*ends), np.maximum(*ends)
        if self.fit.family.quadratic:
            spread = np.sqrt(self.se_linear**2 + self.fit.weighted_sums.scale)
            for name, sign in (("obs_ci_lower", -1.0), ("obs_ci_upper", 1.0)):
                frame[name] = self.linear + sign * reach * spread
        return frame

    def conf_int(self, alpha: float = 0.05) -> pd.DataFrame:
        """Return confidence limits of the means.

        Parameters
        ----------
        alpha : float
            Limits are at level 1 - alpha.

        Returns
        -------
        DataFrame
            Columns 0 and 1, lower and upper, as of `Results.conf_int`; for classes pairs (class, 0 or 1).

        Examples
        --------
        >>> import adfl_stats as ad
        >>> sim = ad.simulate.paper_linear(abnormal=0.2, corruption="BF", seed=1, M=20, n=50, p=3)
        >>> data = ad.ClientData.from_arrays(sim.X, sim.y, sim.client)
        >>> res = ad.DecentralizedGLM(data, ad.networks.directed_circle(20, 5)).fit()
        >>> res.get_prediction([[1.0, 0.0, 0.0]]).conf_int().round(1).to_numpy().tolist()
        [[0.9, 1.1]]
        """
        frame = self.summary_frame(alpha)
        ends = {"mean_ci_lower": 0, "mean_ci_upper": 1}
        if isinstance(self.predicted_mean, pd.DataFrame):
            limits = frame.loc[:, frame.columns.get_level_values(1).isin(ends)]
            return limits.rename(columns=ends, level=1)
        return frame[list(ends)].rename(columns=ends)

    def _class_frame(self, reach: Array) -> pd.DataFrame:
        mean, se = self.predicted_mean, self.se_mean
        parts = {
            "mean": mean,
            "mean_se": se,
            "mean_ci_lower": (mean - reach * se).clip(lower=0.0),
            "mean_ci_upper": (mean + reach * se).clip(upper=1.0),
        }
        joined = pd.concat(parts, axis=1).swaplevel(axis=1)
        return joined[[(level, part) for level in mean.columns for part in parts]]


def _quantiles(tail: float, df: Array) -> Array:
    """Return the upper quantiles of t with these degrees of freedom, of the normal where they are infinite."""
    quantiles = np.full(df.shape, stats.norm.isf(tail))
    finite = ~np.isinf(df)
    quantiles[finite] = stats.t.isf(tail, df[finite])
    return quantiles
