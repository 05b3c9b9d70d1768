"""Fitted values, residuals and counts of the rows of a fit, in statsmodels' vocabulary."""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING

import numpy as np
import pandas as pd

from adfl_stats._types import Array
from adfl_stats.data.client_data import ClientData
from adfl_stats.engine.mpi import MPI
from adfl_stats.inference.coefficients import CoefficientInference
from adfl_stats.inference.prediction import NewDesign

if TYPE_CHECKING:
    from adfl_stats.model import DecentralizedGLM

__all__ = ["FittedRows", "ModelNames"]


@dataclass(frozen=True)
class ModelNames:
    """What is left of a model whose data were dropped: its names, as statsmodels has them.

    Parameters
    ----------
    endog_names : str
        The response.
    exog_names : list of str
        The columns of the design matrix.
    formula : str or None
        The formula, where there was one.
    """

    endog_names: str
    exog_names: list[str]
    formula: str | None


class FittedRows(CoefficientInference):
    """Fitted values, residuals and counts of rows."""

    data: ClientData | None
    _model: DecentralizedGLM | None
    _ranks: MPI | None

    @property
    def model(self) -> DecentralizedGLM | ModelNames:
        """The model that was fitted; its names alone once it was dropped.

        With ``keep_data=True`` that is at `remove_data`, otherwise when the last part of inference was computed.
        """
        held = self._held_model
        if held is not None:
            return held
        fit = self.record
        return ModelNames(fit.y_name, list(fit.columns), None if fit.formula is None else fit.formula.text)

    @property
    def _held_model(self) -> DecentralizedGLM | None:
        return self.record.at_estimate.model if self._model is None else self._model

    @property
    def nobs(self) -> int:
        """Rows of all clients, N; `nobs_used` of them count."""
        return self.record.members.sum_counts(self.record.sizes)

    @property
    def nobs_used(self) -> int:
        """Rows of the clients that are not down-weighted."""
        return self.record.members.sum_counts(np.where(self.record.trusted, self.record.sizes, 0))

    @property
    def df_model(self) -> float:
        """Coefficients without the constant, as in statsmodels; a penalised fit counts its effective parameters."""
        constant = any(name in ("Intercept", "const") for name in self.record.columns)
        return self.record.effective_parameters - float(constant) * self.record.family.outputs

    @property
    def df_resid(self) -> float:
        """Rows that count less coefficients; a penalised fit counts its effective parameters."""
        return self.nobs_used - self.record.effective_parameters

    @property
    def fittedvalues(self) -> pd.Series | pd.DataFrame:
        """Fitted means of the rows, in the order and with the index they came in.

        NaN for clients whose numbers overflow. Rows of a Parquet file are in the order of the clients. Needs the data:
        ``fit(keep_data=True)`` keeps them for good. With data by rank no place has all rows: call
        ``res.predict(frame)`` there.
        """
        design = self._rows("fittedvalues")
        mean = self._means(design.X @ self._coefficients.T, design)
        if isinstance(mean, pd.DataFrame):
            return mean
        return mean.rename("mean")

    @property
    def resid(self) -> pd.Series | pd.DataFrame:
        """Response residuals, y less `fittedvalues`; for classes one column each, indicators less probabilities."""
        y = self._in_users_order(self._held_data("resid").y)
        fitted = self.fittedvalues
        if isinstance(fitted, pd.DataFrame):
            return np.eye(len(fitted.columns))[y.astype(int)] - fitted
        return pd.Series(y - fitted.to_numpy(), index=fitted.index, name="resid")

    @property
    def resid_response(self) -> pd.Series | pd.DataFrame:
        """The same as `resid`, statsmodels' name for a GLM."""
        return self.resid

    # ---- rows ------------------------------------------------------------------------------------

    @property
    def _coefficients(self) -> Array:
        return self.params.to_numpy().reshape(self.record.family.outputs, -1)

    def _means(self, eta: Array, design: NewDesign) -> pd.Series | pd.DataFrame:
        family = self.record.family
        eta = eta if design.linear_offset is None else eta + design.linear_offset[:, None]
        aside = self._in_users_order(np.repeat(self.record.set_aside, self.record.sizes).astype(np.float64)) > 0.0
        if family.name == "multinomial":
            levels = pd.Index(self.record.classes or range(family.outputs + 1), name=self.record.y_name)
            return pd.DataFrame(family.mean(eta), index=design.index, columns=levels)
        return pd.Series(np.where(aside, np.nan, family.mean(eta[:, 0])), index=design.index)

    def _held_data(self, what: str) -> ClientData:
        """Return the data of the fit, as long as they are held and all in one place."""
        if self.data is not None:
            return self.data
        model = self._held_model
        if model is None:
            raise ValueError(
                f"{what} needs the rows that were fitted, and these results do not hold them; fit a ClientData with "
                "keep_data=True, or call res.predict(frame)"
            )
        if model.rows.spread is not None:
            raise ValueError(
                f"{what} needs the rows of all clients in one place, and the model's data are by rank (RankData); call "
                "res.predict(frame) with the rows of some clients, or fit a ClientData"
            )
        return model.data

    def _in_users_order(self, values: Array) -> Array:
        order = self._held_data("the order of rows").row_order
        if order is None:
            return values
        back = np.empty_like(values)
        back[order] = values
        return back

    def _rows(self, what: str = "predict() without X") -> NewDesign:
        """Return the rows that were fitted, in the order they came in."""
        data = self._held_data(what)
        index = pd.RangeIndex(data.n_rows) if data.row_labels is None else data.row_labels
        offset = None if data.linear_offset is None else self._in_users_order(data.linear_offset)
        return NewDesign(self._in_users_order(data.X), offset, index)
