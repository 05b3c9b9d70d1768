"""Sensitivity: what a fit would say from other starts, with other weights, and without each client."""

from __future__ import annotations

import html
import warnings
from collections.abc import Iterator, Mapping
from dataclasses import dataclass, replace
from functools import partial
from typing import TYPE_CHECKING, Any

import numpy as np
import pandas as pd

from adfl_stats._arguments import listing
from adfl_stats._text import framed, printable_lines
from adfl_stats._types import Array
from adfl_stats.inference.record import Recipe
from adfl_stats.inference.refits import Refitter
from adfl_stats.inference.screening import screen_fit
from adfl_stats.inference.sites import agree_on, model_of, on_problem
from adfl_stats.methods import ADFL, DFL, Bridge, Method, TrimmedScores
from adfl_stats.network.network import Network

if TYPE_CHECKING:
    from matplotlib.axes import Axes

    from adfl_stats.engine.mpi import MPI
    from adfl_stats.engine.problem import Problem
    from adfl_stats.inference.results import Results

__all__ = ["Sensitivity", "sensitivity_of"]

# Levels of the screening whose flags are left out, and factors of lambda. Ours: the usual levels, and half and twice.
LEVELS = (0.01, 0.05, 0.1, 0.2)
FACTORS = (0.5, 1.0, 2.0)
BASE = ("this fit", "")


@dataclass(frozen=True, eq=False)
class Sensitivity:
    """Estimates, standard errors and trusted clients of a fit under other choices; made by ``res.sensitivity()``.

    Attributes
    ----------
    params, bse, df : DataFrame
        Estimates, standard errors and degrees of freedom (infinite where tests are z tests): one row a choice, one
        column a coefficient.
    trusted : Series
        Clients that are not down-weighted.

    Examples
    --------
    >>> import adfl_stats as ad
    >>> sim = ad.simulate.paper_linear(abnormal=0.2, corruption="BF", seed=1, M=8, n=40, p=2)
    >>> data = ad.ClientData.from_arrays(sim.X, sim.y, sim.client)
    >>> res = ad.DecentralizedGLM(data, ad.networks.directed_circle(8, 3)).fit(heterogeneity="none")
    >>> sensitivity = res.sensitivity(clients=False)
    >>> int(sensitivity.trusted["balance", "off"]), bool(sensitivity.shift.loc["start"].abs().max().max() < 0.1)
    (7, True)
    """

    params: pd.DataFrame
    bse: pd.DataFrame
    df: pd.DataFrame
    trusted: pd.Series

    @property
    def shift(self) -> pd.DataFrame:
        """How far each estimate is from that of the fit, in its standard errors."""
        return (self.params - self.params.loc[BASE]) / self.bse.loc[BASE]

    def to_frame(self, coefficient: str | None = None) -> pd.DataFrame:
        """Return one row a choice.

        Parameters
        ----------
        coefficient : str, optional
            Which; without it the one that moves most in each row, with its name.

        Returns
        -------
        DataFrame
            trusted : clients that are not down-weighted; coefficient, coef, se, df : the estimate, its standard
            error and the degrees of freedom of its t test; shift : its distance from the fit's, in standard errors of
            the fit.
        """
        names = self.params.columns
        if coefficient is not None and coefficient not in names:
            raise ValueError(f"coefficient is {coefficient!r}; it is one of {listing(names)}")
        shift = self.shift.to_numpy()
        if coefficient is None:
            which = np.argmax(np.nan_to_num(np.abs(shift), nan=-1.0), axis=1)
        else:
            which = np.full(len(shift), names.get_loc(coefficient))
        rows = np.arange(len(shift))
        return pd.DataFrame(
            {
                "trusted": self.trusted,
                "coefficient": names[which],
                "coef": self.params.to_numpy()[rows, which],
                "se": self.bse.to_numpy()[rows, which],
                "df": self.df.to_numpy()[rows, which],
                "shift": shift[rows, which],
            },
            index=self.params.index,
        )

    def plot(self, coefficient: str | None = None, ax: Axes | None = None) -> Axes:
        """Draw one coefficient with its 95 % interval under every choice.

        Parameters
        ----------
        coefficient : str, optional
            Which; without it the one that moves most.
        ax : matplotlib axes, optional
            Where to draw; a new figure if not given.

        Returns
        -------
        matplotlib axes
            The axes.
        """
        from adfl_stats.report.plots import sensitivity

        return sensitivity(self, coefficient, ax)

    def __str__(self) -> str:
        return framed(self._title, self._table.to_string(formatters=_FORMATS), self._notes)

    __repr__ = __str__

    def _repr_html_(self) -> str:
        notes = "".join(f"<p>{html.escape(note)}</p>" for note in self._notes)
        return printable_lines(f"<h3>{self._title}</h3>{self._table.to_html(formatters=_FORMATS)}{notes}")

    @property
    def _title(self) -> str:
        return "Sensitivity: the coefficient that moves most, in standard errors of this fit"

    @property
    def _table(self) -> pd.DataFrame:
        """All choices, and of the clients left out the five that move the estimate most."""
        table = self.to_frame().drop(columns="df")
        left = table.index.get_level_values(0) == "without"
        most = table[left].sort_values("shift", key=np.abs, ascending=False).index[:5]
        return pd.concat([table[~left], table.loc[most]])

    @property
    def _notes(self) -> list[str]:
        moved = self.shift.abs().max(axis=1)
        left = moved.index.get_level_values(0) == "without"
        notes = [
            f"The largest move is {moved.max():.2f} standard errors ({' '.join(map(str, moved.idxmax())).strip()}).",
            "Weights by lambda are those of the paper, exp(-lambda s) over their largest.",
        ]
        if left.any():
            notes.append(
                f"Of {left.sum()} clients left out one at a time, weights estimated anew, the five that move the "
                "estimate most are shown; to_frame() has all."
            )
        return notes


def sensitivity_of(res: Results, *, clients: bool, progress: bool) -> Sensitivity:
    """Fit again under other choices."""
    model, recipe = model_of(res, "sensitivity")
    agree_on(res, f"sensitivity(clients={clients})")
    rows: dict[tuple[str, str], _Row] = {BASE: _row(res)}
    with warnings.catch_warnings():
        # Warnings of the fits that are compared are about them; the table shows what they lead to.
        warnings.simplefilter("ignore")
        fits = _Fits(model, res._ranks)
        for key, method, heterogeneity in _choices(res, fits, recipe):
            rows[key] = fits.row(method, heterogeneity)
        if clients:
            without = partial(_without_each, res, progress=progress)
            rows |= on_problem(res, "sensitivity()", without)
    index = pd.MultiIndex.from_tuples(list(rows), names=["choice", "value"])
    params, errors, df = (
        pd.DataFrame([row[k] for row in rows.values()], index=index, columns=res.params.index) for k in range(3)
    )
    return Sensitivity(params, errors, df, pd.Series([row[3] for row in rows.values()], index=index, name="trusted"))


# Estimates, standard errors, degrees of freedom, and how many clients are trusted.
_Row = tuple[Array, Array, Array, int]


def _row(res: Results) -> _Row:
    return (
        res.params.to_numpy(),
        res.bse.to_numpy(),
        res.degrees_of_freedom().to_numpy(),
        int(res.record.trusted.sum()),
    )


class _Fits:
    """Fits of a model, each made once, over the ranks of the fit: several choices lead to the same one."""

    def __init__(self, model: Any, ranks: MPI | None) -> None:
        self.model, self.ranks = model, ranks
        self._made: list[tuple[Method, str, _Row, Mapping[str, Any]]] = []

    def row(self, method: Method, heterogeneity: str) -> _Row:
        """Return what the table shows of the fit by a method."""
        return self._fit(method, heterogeneity)[2]

    def chosen_lam(self, method: ADFL, heterogeneity: str) -> float:
        """Return the lambda that cross-validation chose in the fit by a method."""
        return float(self._fit(method, heterogeneity)[3]["lam"])

    def _fit(self, method: Method, heterogeneity: str) -> tuple[Method, str, _Row, Mapping[str, Any]]:
        for made in self._made:
            if made[0] is method and made[1] == heterogeneity:
                return made
        res = self.model.fit(method, heterogeneity=heterogeneity, transport=self.ranks)
        self._made.append((method, heterogeneity, _row(res), res.record.details))
        return self._made[-1]


def _choices(res: Results, fits: _Fits, recipe: Recipe) -> Iterator[tuple[tuple[str, str], Method, str]]:
    """Yield names, methods and heterogeneity of the fits to compare with."""
    method, spread = recipe.method, recipe.heterogeneity
    fixed = isinstance(fits.model.network, Network)
    adaptive = method if isinstance(method, ADFL) else ADFL(balance=fixed)
    for name, init in (("DFL", DFL()), ("BRIDGE-M", Bridge("median")), ("trimmed scores", TrimmedScores())):
        yield ("start", name), adaptive.starting_from(init), spread
    # Random-effects weights come from the model of clients: other weights cannot be compared with them.
    if fits.model.weighting != "random-effects":
        by_norm = replace(adaptive, lam="cv", measure="norm", equalise=False)
        chosen = fits.chosen_lam(by_norm, spread)
        for factor in FACTORS:
            lam = chosen * factor
            yield ("lambda", f"{lam:.3g}"), replace(by_norm, lam=lam), spread
        yield ("weights", "gradient norm"), by_norm, spread
        yield ("weights", "score"), replace(by_norm, measure="score"), spread
    by_model = {"lam": None, "measure": None, "equalise": None, "refresh": None}
    yield ("weights", "model of clients"), _with(adaptive, **by_model), spread
    if fits.model.weighting != "random-effects":
        yield from _not_flagged(res, adaptive, spread)
    if fixed:
        for on in (True, False):
            yield ("balance", "on" if on else "off"), _with(adaptive, balance=on), spread
    for kind in ("none", "auto", "estimate"):
        yield ("heterogeneity", kind), adaptive, kind


def _not_flagged(res: Results, adaptive: ADFL, spread: str) -> Iterator[tuple[tuple[str, str], Method, str]]:
    """Yield the fits to the clients that are not flagged at several levels."""
    for q in LEVELS:
        kept = 1.0 - screen_fit(res.record, q).to_frame()["flagged"].astype(float)
        if kept.any():
            yield ("not flagged at q", f"{q:g}"), DFL(kept, balance=adaptive.balance), spread


def _with(method: ADFL, **options: Any) -> ADFL:
    """Return the method with other options, and the method itself where it has these."""
    same = all(getattr(method, name) is value for name, value in options.items())
    return method if same else replace(method, **options)


def _without_each(res: Results, problem: Problem, *, progress: bool) -> dict[tuple[str, str], _Row]:
    """Fit again without each client that has weight, weights estimated anew."""
    refits, labels, M, kind = (
        Refitter.of(res, "sensitivity", problem),
        res.record.labels,
        problem.n_clients,
        res.cov_type,
    )
    draws = [np.ones(M, dtype=np.int64) - (np.arange(M) == m) for m in range(M)]
    rows = {}
    for m, one in enumerate(refits.each(draws, progress=progress, label="clients left out")):
        inside = one.counts > 0
        trusted = int((inside & one.trusted).sum())
        rows["without", str(labels[m])] = one.theta, *refits.precision(res.record, one, kind), trusted
    return rows


_FORMATS = {"coef": "{:.4g}".format, "se": "{:.3g}".format, "shift": "{:+.2f}".format}
