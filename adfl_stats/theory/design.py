"""Design: how many clients, rows and rounds a wanted standard error takes.

With v the variance of a row's contribution to a coefficient, tau the standard deviation of the clients' own
coefficients and M(1 - a) clients in effect that are normal, n rows each, the standard error is about

    sqrt((v / n + tau^2) / (M (1 - a))).

With covariates of variance one, uncorrelated, v is the variance of the noise. Step and rounds are those of `advise`, on
data drawn with that design. (Ours; the paper has no result on design.)
"""

from __future__ import annotations

import html
import math
from collections.abc import Callable
from dataclasses import dataclass
from functools import partial
from typing import Any

import numpy as np
import pandas as pd

from adfl_stats._arguments import in_interval, listing, whole_number
from adfl_stats._text import framed, printable_lines
from adfl_stats._threads import one_blas_thread
from adfl_stats.data.client_data import ClientData
from adfl_stats.engine.problem import Problem
from adfl_stats.inference.results import Results
from adfl_stats.losses.families import Family
from adfl_stats.losses.glm import GLM
from adfl_stats.methods import DFL
from adfl_stats.network.generators import directed_circle
from adfl_stats.network.network import Network
from adfl_stats.theory.advice import advise_on

__all__ = ["Design", "design"]

# Clients that are compared where neither clients nor rows are given. Ours: around the 50 and 100 of the
# paper's section 5.
CLIENTS = (10, 20, 50, 100, 200)
# Most rows of the data that are drawn for step and rounds. Ours: bounds the time; curvatures are stable by then.
MOST_ROWS = 100_000


@dataclass(frozen=True, eq=False)
class Design:
    """Designs with a wanted standard error; made by `design`.

    Attributes
    ----------
    se : float
        What was wanted.
    table : DataFrame
        One row a design: clients, rows (a client), total rows, se (what it gives), step, rounds.
    assumed : str
        What the numbers rest on.

    Examples
    --------
    >>> import adfl_stats as ad
    >>> plan = ad.design(0.05, sigma=1.0, p=3, clients=20)
    >>> int(plan.table["rows"].iloc[0])
    20
    """

    se: float
    table: pd.DataFrame
    assumed: str

    def to_frame(self) -> pd.DataFrame:
        """Return one row a design.

        Returns
        -------
        DataFrame
            clients, rows, total, se, step and rounds.

        Examples
        --------
        >>> import adfl_stats as ad
        >>> ad.design(0.05, sigma=1.0, p=3, clients=20).to_frame().columns.tolist()
        ['clients', 'rows', 'total', 'se', 'step', 'rounds']
        """
        return self.table.copy()

    def __str__(self) -> str:
        text = self.table.to_string(index=False, float_format=lambda value: f"{value:.4g}")
        return framed(f"Designs with a standard error of {self.se:g}", text, [self.assumed])

    __repr__ = __str__

    def _repr_html_(self) -> str:
        table = self.table.to_html(index=False, float_format="%.4g")
        return printable_lines(f"{table}<p>{html.escape(self.assumed)}</p>")


def design(
    se: float,
    *,
    pilot: Results | None = None,
    coefficient: str | None = None,
    sigma: float = 1.0,
    tau: float = 0.0,
    p: int = 5,
    abnormal: float = 0.0,
    clients: int | None = None,
    rows: int | None = None,
    network: Network | Callable[[int], Network] | None = None,
    tolerance: float = 0.05,
) -> Design:
    """Return how many clients and rows give a wanted standard error, and the step and rounds that they take.

    Parameters
    ----------
    se : float
        The wanted standard error of a coefficient.
    pilot : Results, optional
        A fit whose noise, covariates and differences between clients are taken for `coefficient`; `sigma`, `tau` and
        `p` are then not used.
    coefficient : str, optional
        Of the pilot; needed with it.
    sigma : float
        Standard deviation of the noise, in a linear model with p uncorrelated covariates of variance one.
    tau : float
        Standard deviation of the clients' own coefficients.
    p : int
        Coefficients.
    abnormal : float
        Share of clients that will lose their weight.
    clients, rows : int, optional
        Number of clients, or of rows a client; the other is found. With neither, several numbers of clients are
        compared.
    network : Network or callable, optional
        A network, which fixes the number of clients, or a function that makes one from it; a directed circle of
        in-degree 5 (or fewer) if not given.
    tolerance : float
        Wanted numerical error of rounds, in standard errors, as in `DecentralizedGLM.advise`.

    Returns
    -------
    Design
        A table of designs.

    Examples
    --------
    >>> import adfl_stats as ad
    >>> plan = ad.design(0.02, sigma=2.0, tau=0.05, p=4, rows=100)
    >>> int(plan.table["clients"].iloc[0]), bool(plan.table["se"].iloc[0] <= 0.02)
    (107, True)
    """
    in_interval(se, "se", 0.0, np.inf, open_low=True)
    in_interval(sigma, "sigma", 0.0, np.inf, open_low=True)
    in_interval(tau, "tau", 0.0, np.inf)
    in_interval(abnormal, "abnormal", 0.0, 0.5, open_high=True)
    # More would take over 10^18 rows, and numbers beyond the range of floats.
    in_interval(sigma / se, "sigma / se", 0.0, 1e9)
    in_interval(tau / se, "tau / se", 0.0, 1e9)
    whole_number(p, "p", 1, 10**9)
    if clients is not None and rows is not None:
        raise ValueError("clients and rows are both given, which leaves nothing to find; give one of them, or neither")
    if isinstance(network, Network):
        if clients is not None and clients != network.n_clients:
            raise ValueError(f"clients is {clients} and network has {network.n_clients}; leave clients out")
        if rows is not None:
            raise ValueError("a network fixes the number of clients, and rows are then found; leave rows out")
        clients = network.n_clients
    variance, tau2, P, assumed = _assumptions(pilot, coefficient, sigma, tau, p)
    if rows is not None:
        whole_number(rows, "rows", 1)
        needed = math.ceil((variance / rows + tau2) / (se**2 * (1.0 - abnormal)) - 1e-9)
        choices = [(max(needed, 2), rows)]
    else:
        counts = CLIENTS if clients is None else (whole_number(clients, "clients", 2),)
        choices = [(M, n) for M in counts if (n := _rows(se, variance, tau2, M * (1.0 - abnormal))) is not None]
        if not choices:
            least = math.ceil(tau2 / (se**2 * (1.0 - abnormal))) + 1
            raise ValueError(
                f"no number of rows gives a standard error of {se:g} with {listing(counts)} clients, as they differ by "
                f"tau = {math.sqrt(tau2):.3g}; it takes at least {least} clients"
            )
    lines = []
    for M, n in choices:
        step, rounds = _rounds(M, n, P, math.sqrt(variance), _network(network, M), tolerance)
        error = math.sqrt((variance / n + tau2) / (M * (1.0 - abnormal)))
        lines.append({"clients": M, "rows": n, "total": M * n, "se": error, "step": step, "rounds": rounds})
    share = f" {abnormal:.0%} of the clients lose their weight." if abnormal else ""
    advised = " Step and rounds are those of DFL by `advise`, on data drawn with this design."
    return Design(se, pd.DataFrame(lines), assumed + share + advised)


def _assumptions(
    pilot: Results | None, coefficient: str | None, sigma: float, tau: float, p: int
) -> tuple[float, float, int, str]:
    """Return a row's variance, tau squared, the number of coefficients, and both in words."""
    if pilot is None:
        words = f"A linear model with {p} uncorrelated covariates of variance one, noise {sigma:g}, tau {tau:g}."
        return sigma * sigma, tau * tau, p, words
    if not isinstance(pilot, Results):
        raise TypeError(f"pilot is a {type(pilot).__name__}; pass the results of a fit")
    names = list(pilot.params.index)
    if coefficient not in names:
        raise ValueError(f"coefficient is {coefficient!r}; one of the pilot's is wanted: {listing(names)}")
    k = names.index(coefficient)
    # The sandwich is of the rows alone; a row's variance is N times it.
    effective = float(pilot.record.sizes[pilot.record.trusted].sum())
    variance = effective * float(pilot.cov_params("sandwich").iloc[k, k])
    tau2 = float(pilot.record.clients.spread[k, k])
    words = f"As in the pilot for {coefficient}: a row's variance {variance:.4g}, tau {math.sqrt(tau2):.3g}."
    return variance, tau2, len(names), words


def _rows(se: float, variance: float, tau2: float, clients: float) -> int | None:
    """Return the rows a client that give the standard error; None where none do."""
    left = se**2 * clients - tau2
    return None if left <= 0.0 else max(math.ceil(variance / left - 1e-9), 1)


def _network(network: Network | Callable[[int], Network] | None, M: int) -> Network:
    if isinstance(network, Network):
        return network
    if network is None:
        return directed_circle(M, min(5, M - 1))
    made: Any = network(M)
    if not isinstance(made, Network) or made.n_clients != M:
        raise ValueError(f"network({M}) gave {made!r}; a Network of {M} clients is wanted")
    return made


def _rounds(M: int, n: int, P: int, sigma: float, network: Network, tolerance: float) -> tuple[float, float]:
    """Return step and rounds on data drawn with this design."""
    size, rng = max(min(n, MOST_ROWS // M), P + 1), np.random.default_rng(0)
    X = np.column_stack([np.ones(M * size), rng.standard_normal((M * size, P - 1))])
    y = sigma * rng.standard_normal(M * size)
    data = ClientData.from_arrays(X, y, np.repeat(np.arange(M), size))
    make = partial(_problem, GLM(data, Family("gaussian")))
    with one_blas_thread():
        advice = advise_on(make, network, DFL(), tolerance)
    return advice.step, advice.rounds


def _problem(glm: GLM, network: Network) -> Problem:
    return Problem(glm, network)
