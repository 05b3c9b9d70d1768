"""`Study`: methods beside the oracle on simulated data sets, run in parallel, interrupted and resumed."""

from __future__ import annotations

import itertools
from collections.abc import Mapping, Sequence
from os import PathLike
from pathlib import Path
from typing import Any

import numpy as np
import pandas as pd

from adfl_stats._arguments import flag, whole_number
from adfl_stats._files import place_of
from adfl_stats.network.network import Network
from adfl_stats.network.schedule import NetworkSchedule
from adfl_stats.simulate.composed import Dynamic
from adfl_stats.simulate.contenders import (
    CorruptionLike,
    DesignLike,
    MethodLike,
    NetworkLike,
    Several,
    about_network,
    chosen_corruptions,
    chosen_designs,
    chosen_fit,
    chosen_methods,
    chosen_networks,
    chosen_shares,
    chosen_sizes,
)
from adfl_stats.simulate.folder import Folder, write_whole
from adfl_stats.simulate.monte_carlo import table_of
from adfl_stats.simulate.runner import Done, run_settings
from adfl_stats.simulate.settings import Setting
from adfl_stats.simulate.specification import described, package_version

__all__ = ["Study"]


class Study:
    """Compare methods with the oracle on simulated data sets with known truth.

    A study has a setting for every combination of network, design, corruption, share and size, and `replicates` data
    sets in each, which every method fits. Each factor is given by names, or by a mapping from your own labels to
    objects. The random numbers of a data set come from the seed, the labels of design, corruption and share, the sizes
    and the number of the replicate: results depend neither on the number of workers nor on what else is in the study,
    and networks are compared on the same data.

    Parameters
    ----------
    methods : list or mapping
        Names from `study.METHODS` ("fit" is the default of `DecentralizedGLM.fit`), methods such as ``ad.Bridge()``,
        or functions that make one from the mask of abnormal clients.
    networks : list or mapping
        Names ("circle-5", "erdos-renyi-.1", "complete"), tables such as ``{"generator": "small_world", "k": 6}``,
        `Network` objects, or functions of the number of clients.
    designs : list or mapping
        Names ("gaussian", "binomial", "poisson"), tables with arguments of `simulate.glm_design` (and `slope`, the
        nonzero slopes), or functions of `abnormal`, `corruption`, `seed` and the sizes that return a `Simulation`.
    corruptions : list or mapping
        What abnormal clients do: names from `simulate.CORRUPTIONS`; objects such as ``ad.simulate.Shift(5)`` or their
        tables; functions of (X, y, rng); or an attack on messages, whose `clients` each data set replaces by its own
        abnormal ones.
    shares : list of float
        Shares of abnormal clients, in [0, 1). One half and more is warned about: no method can know which half is
        meant. Without abnormal clients one setting, with the corruption "none", serves all.
    sizes : mapping, optional
        Arguments of the designs; one given as a list has several values. ``{"M": 100, "n": 100, "p": 50}``, the
        paper's, if not given. Leave M out where all networks are objects.
    replicates : int
        Data sets in a setting; the paper has 20.
    seed : int
        Another one gives other data.
    fit : mapping, optional
        Arguments of `DecentralizedGLM.fit` for all methods: step, rounds, solver, tolerance, max_rounds,
        heterogeneity. ``solver="limit"`` is for the methods that have a limit; the others run their rounds.
    inference : bool
        Whether to compute intervals, flags and power; errors of the estimates alone take about half the time.

    Examples
    --------
    >>> import adfl_stats as ad
    >>> study = ad.Study(
    ...     ["fit", "DFL"], networks={"ours": ad.networks.directed_circle(20, 5)}, corruptions=["BF"], shares=[0.2],
    ...     sizes={"n": 60, "p": 3}, replicates=3,
    ... )
    >>> table = study.run().to_frame().set_index("method")
    >>> bool(table.loc["fit", "efficiency"] > 0.9), bool(table.loc["DFL", "efficiency"] < 0.1)
    (True, True)
    """

    def __init__(
        self,
        methods: Several[MethodLike] = ("fit", "DFL"),
        networks: Several[NetworkLike] = ("circle-5",),
        designs: Several[DesignLike] = ("gaussian",),
        corruptions: Several[CorruptionLike] = ("BF",),
        shares: Sequence[float] = (0.0, 0.2),
        sizes: Mapping[str, object] | None = None,
        *,
        replicates: int = 20,
        seed: int = 1,
        fit: Mapping[str, float | str | None] | None = None,
        inference: bool = True,
    ) -> None:
        self.methods = chosen_methods(methods)
        self.networks, self.designs = chosen_networks(networks), chosen_designs(designs)
        self.corruptions, self.shares = chosen_corruptions(corruptions), chosen_shares(shares)
        self.sizes = chosen_sizes(sizes)
        self.replicates, self.seed = whole_number(replicates, "replicates", 1), whole_number(seed, "seed", 0, None)
        self.fit, self.inference = chosen_fit(fit), flag(inference, "inference")
        self.settings = self._settings()
        self._check_settings()
        self._done: Done = {}

    @classmethod
    def from_toml(cls, path: str | Path) -> Study:
        """Read a study from a TOML file whose keys are the arguments of `Study`.

        Parameters
        ----------
        path : path
            The file. Factors are lists of names, or tables by label: ``[networks.ours]`` with ``file = "edges.csv"``
            (relative to the file's folder) or ``generator = "small_world"``.

        Returns
        -------
        Study
            Not yet run.

        Examples
        --------
        >>> import pathlib, tempfile
        >>> import adfl_stats as ad
        >>> spec = pathlib.Path(tempfile.mkdtemp(), "spec.toml")
        >>> _ = spec.write_text('''
        ... methods = ["fit", "DFL"]
        ... corruptions = ["BF"]
        ... shares = [0.2]
        ... replicates = 2
        ... sizes = {M = 20, n = 60, p = 3}
        ... [networks.ring]
        ... generator = "directed_circle"
        ... D = 5
        ... ''')
        >>> ad.Study.from_toml(spec)
        Study: 1 setting x 2 replicates x 2 methods (0 of 2 data sets done)
        """
        from adfl_stats.simulate.toml_files import read_study

        return read_study(place_of(path, "path"), cls)

    # ------------------------------------------------------------------ what it consists of

    def _settings(self) -> list[Setting]:
        combinations = itertools.product(
            self.sizes, self.networks.items(), self.designs.items(), self.corruptions.items(), self.shares
        )
        settings: dict[str, Setting] = {}
        for size, (network, topology), (design, make), (kind, corruption), share in combinations:
            full = size
            if "M" not in size and isinstance(topology, (Network, NetworkSchedule)):
                full = {"M": topology.n_clients, **size}
            word = kind if share else "none"
            data_key = {"design": design, "corruption": word, "share": share, **described(full)}
            setting = Setting(
                {"network": network, "design": design, "corruption": word, "share": share, **full},
                topology,
                make,
                corruption if share else None,
                share,
                full,
                data_key,
            )
            # Settings without abnormal clients are the same for all corruptions.
            settings.setdefault(setting.key, setting)
        return list(settings.values())

    def _check_settings(self) -> None:
        """Refuse what no data set could be drawn or fitted for, before any work."""
        for setting in self.settings:
            M = setting.size.get("M")
            if isinstance(setting.network, (Network, NetworkSchedule)):
                if setting.network.n_clients != M:
                    raise ValueError(
                        f"network {setting.factors['network']!r} has {setting.network.n_clients} clients and "
                        f"sizes['M'] is {M}; leave M out of sizes, or give that number"
                    )
            elif M is None:
                raise ValueError(
                    f"sizes has no 'M', which network {setting.factors['network']!r} needs; give the number of clients"
                )
            else:
                with about_network(str(setting.factors["network"])):
                    setting.topology(M)
            if isinstance(setting.corruption, Dynamic) and "rounds" not in self.fit:
                raise ValueError(
                    f"corruption {setting.factors['corruption']!r} changes during the rounds, and fit has no 'rounds'; "
                    "give fit={'rounds': 600}, or another number"
                )
        first = {(s.factors["design"], s.factors["corruption"], str(s.size)): s for s in self.settings}
        for setting in first.values():
            # Which corruptions a design allows only it knows; one data set of each kind is cheap.
            setting.draw(0, self.seed)

    @property
    def factors(self) -> list[str]:
        """The columns that name a setting."""
        return list(dict.fromkeys(name for setting in self.settings for name in setting.factors))

    def specification(self) -> dict[str, Any]:
        """Return what the study consists of as plain values: what its folder remembers and its digest is of.

        Returns
        -------
        dict
            Methods, networks, ... (functions and arrays by their hash), and the version of the package. The number of
            replicates is not in it: more of them can be added to a folder.

        Examples
        --------
        >>> import adfl_stats as ad
        >>> study = ad.Study(["DFL"], shares=[0.2], sizes={"M": 10, "n": 30, "p": 2}, replicates=1)
        >>> study.specification()["shares"]
        [0.2]
        """
        return {
            "version": package_version(),
            "methods": described(self.methods),
            "networks": described(self.networks),
            "designs": described(self.designs),
            "corruptions": described(self.corruptions),
            "shares": described(self.shares),
            "sizes": described(self.sizes),
            "seed": self.seed,
            "fit": described(self.fit),
            "inference": self.inference,
        }

    def __repr__(self) -> str:
        many = len(self.settings)
        return (
            f"Study: {many} setting{'' if many == 1 else 's'} x {self.replicates} replicates x "
            f"{len(self.methods)} methods ({self.done} of {self.total} data sets done)"
        )

    # ------------------------------------------------------------------ running

    def run(self, *, jobs: int | None = None, out: str | Path | None = None, progress: bool = False) -> Study:
        """Draw and fit the data sets that are not done yet.

        Parameters
        ----------
        jobs : int, optional
            Parallel workers, each with one thread. If not given, joblib's backend decides: one, or what
            ``joblib.parallel_config(backend=..., n_jobs=...)`` says; "loky" (processes) is its default backend, and
            "dask" runs on a cluster.
        out : path, optional
            A folder. Each data set is written there when it ends, and is not computed again by a study with the
            same specification, or with more replicates; the folder of another study is refused. At the end it has
            the tables draws.csv and table.csv.
        progress : bool
            Show a progress bar with the time left (tqdm).

        Returns
        -------
        Study
            This study. After an interruption, call `run` again: it goes on.

        Examples
        --------
        >>> import tempfile
        >>> import adfl_stats as ad
        >>> sizes = {"M": 20, "n": 60, "p": 3}
        >>> folder = tempfile.mkdtemp()
        >>> first = ad.Study(["DFL"], shares=[0.2], sizes=sizes, replicates=2).run(out=folder)
        >>> again = ad.Study(["DFL"], shares=[0.2], sizes=sizes, replicates=2).run(out=folder)
        >>> bool(first.to_frame().equals(again.to_frame()))
        True
        """
        if jobs is not None and jobs != -1:
            whole_number(jobs, "jobs", 1)
        folder = None
        if out is not None:
            folder = Folder(out, self.specification())
            self._done |= folder.saved(self._tasks)
            coefficients = max(int(np.max(setting.size.get("p", 50))) for setting in self.settings)
            folder.check_space(len(self._tasks) - len(self._done), len(self.methods), coefficients)
        run_settings(
            self.settings,
            self.methods,
            replicates=self.replicates,
            seed=self.seed,
            options=self.fit,
            inference=self.inference,
            jobs=jobs,
            done=self._done,
            folder=folder,
            progress=progress,
        )
        if folder is not None:
            for name, frame in (("draws.csv", self.draws()), ("table.csv", self.to_frame())):
                write_whole(folder.path / name, frame.to_csv(index=False))
        return self

    @property
    def _tasks(self) -> list[tuple[str, int]]:
        return [(setting.key, k) for setting in self.settings for k in range(self.replicates)]

    @property
    def done(self) -> int:
        """How many data sets are done."""
        return len(self._done)

    @property
    def total(self) -> int:
        """How many data sets the study has."""
        return len(self.settings) * self.replicates

    @property
    def complete(self) -> bool:
        """Whether all data sets are done."""
        return self.done == self.total

    # ------------------------------------------------------------------ results

    def _rows(self) -> pd.DataFrame:
        done = [self._done[task] for task in self._tasks if task in self._done]
        if not done:
            raise ValueError("the study has no results yet; call run() first")
        return pd.DataFrame(itertools.chain.from_iterable(done))

    def draws(self) -> pd.DataFrame:
        """Return one row for each data set and method, of the data sets that are done.

        Returns
        -------
        DataFrame
            The factors, replicate and method. mse : mean over normal clients of the squared distance between their own
            estimate and the truth. oracle_mse : that of the oracle, the pooled fit of the normal clients. gap : root
            mean square over the coefficients of the distance from the oracle in its standard errors. consensus : root
            mean square distance of the normal clients from their mean. good_aside : share of the normal clients with
            a weight below .1. rounds : rounds run, or needed where the limit was solved for. coverage, length : of
            95 % intervals, by the fit's own choice, with `_sandwich` by rows and with `_client` by client (CR2); NaN
            for methods without standard errors. flags, fdr, power : of `screen` at q = .1; fdr is the share of normal
            clients among the flagged ones, and power is NaN where no client is abnormal. converged. failed :
            whether the fit diverged, so that it has no numbers. seconds.

        Examples
        --------
        >>> import adfl_stats as ad
        >>> study = ad.Study(["DFL"], shares=[0], sizes={"M": 20, "n": 60, "p": 3}, replicates=2)
        >>> study.run().draws()[["corruption", "replicate", "method"]].values.tolist()
        [['none', 0, 'DFL'], ['none', 1, 'DFL']]
        """
        return self._rows().drop(columns="error", errors="ignore")

    def to_frame(self) -> pd.DataFrame:
        """Return one row for each setting and method: means over the replicates, with Monte-Carlo standard errors.

        Returns
        -------
        DataFrame
            The factors, method, replicates; then each quantity of `draws` and, with `_se` added, its standard
            error. efficiency : mean of the oracle's squared error over the mean of the method's. bias2, variance :
            squared bias (less its own variance, so that it may be negative) and variance of the network's mean
            estimate, summed over the coefficients. any_flag : share of the data sets with a flag.

        Examples
        --------
        >>> import adfl_stats as ad
        >>> study = ad.Study(["DFL"], shares=[0, 0.2], sizes={"M": 20, "n": 60, "p": 3}, replicates=3)
        >>> table = study.run().to_frame()
        >>> bool((table["efficiency_se"] >= 0).all()), (table["bias2"] > 0.05).tolist()
        (True, [False, True])
        """
        return table_of(self._rows(), self.factors)

    def report(self, path: str | PathLike[str], *, title: str | None = None) -> Path:
        """Write the study as one HTML page that loads nothing, from the data sets that are done.

        It has the efficiency of each method, its mean squared error by share for every setting, the table of
        `to_frame` to sort and search, fitted slopes and the specification.

        Parameters
        ----------
        path : str or path
            The file; its name ends in .html.
        title : str, optional
            The heading.

        Returns
        -------
        Path
            Where the page is.
        """
        from adfl_stats.report.pages.page import write
        from adfl_stats.report.pages.study_page import study_page

        return write(path, lambda: study_page(self, title))

    def slopes(self, by: str = "N", value: str = "mse") -> pd.DataFrame:
        """Fit the rate at which a quantity changes with N or the share, on log scales.

        Parameters
        ----------
        by : {"N", "share"} or a size
            Total rows M n; the share of abnormal clients (shares of 0 are left out); or one of the sizes.
        value : str
            A column of `to_frame`.

        Returns
        -------
        DataFrame
            One row for each method and for each combination of the other factors: slope, se, lower, upper (95 %),
            and theory, the slope that the paper's theory gives: for the mean squared error -1 in N for the
            oracle and for methods that attain it, 0 in N and 2 in the share for DFL with abnormal clients, whose
            bias is proportional to the share (Theorem 1); in the share, for the oracle and aDFL, that of
            1 / (1 - share), since they have the rows of the normal clients; NaN where it gives none. Intervals have
            Student's t, by the number of replicates.

        Examples
        --------
        >>> import adfl_stats as ad
        >>> sizes = {"M": 20, "n": [60, 240], "p": 3}
        >>> study = ad.Study(["DFL"], shares=[0], sizes=sizes, replicates=10, inference=False)
        >>> line = study.run().slopes("N").iloc[0]
        >>> bool(line["lower"] < line["theory"] < line["upper"])
        True
        """
        from adfl_stats.simulate.rates_of_studies import study_slopes

        return study_slopes(self.to_frame(), self.factors, by, value)
