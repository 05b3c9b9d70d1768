"""The default fit on clients as the field has them, beside the oracle; with bounds.

    python benchmarks/real_clients.py [--replicates 100] [--jobs 2] [--cells PATTERN ...] [--rivals] [--real]
                                      [--small] [--output FILE.csv]

Each line is one setting of `adfl_stats.simulate.field_designs` ("gaussian-*", "*-flip", ... choose some of them),
fitted by ``fit()`` on a directed circle in which everybody hears five others. Monte-Carlo standard errors
stand behind "+-".

RE        squared error of the oracle, which pools the rows of the normal clients, over that of the fit
zero      share of the normal clients that are set aside: with weight, the probability of being normal, below one half
power     share of the abnormal clients that are set aside
ceil      what power could be: the share of abnormal clients whose Rao statistic at the true parameter exceeds those of
          all but 2 % of the normal clients
any       share of the data sets in which ``screen`` at q = .1 flags somebody, where nobody is abnormal
FDR, flag share of normal clients among the flagged ones, and of abnormal clients that are flagged
cover     coverage of the 95 % intervals of ``conf_int()``; sandw, clust with cov_type "sandwich" and "cluster"
sec       seconds per fit, in one thread

A bound that is missed by less than two Monte-Carlo standard errors has a star. Any number of jobs gives the same
numbers. ``--rivals`` adds the efficiencies of other estimates, and names those that beat the fit by more than two
Monte-Carlo errors of the paired difference, and by more than 1 %. ``--real`` fits real data instead (see
`real_data.py`). ``--small`` takes a few settings and five data sets, without bounds. All settings with 100 replicates
take about 50 minutes on one core.
Exit status: 0 if all bounds are met, or there are none; 1 if not.
"""

from __future__ import annotations

import os

for name in ("OMP_NUM_THREADS", "OPENBLAS_NUM_THREADS", "MKL_NUM_THREADS"):
    os.environ[name] = "1"

import argparse
import sys
import time
import warnings
from collections.abc import Iterable
from dataclasses import dataclass
from fnmatch import fnmatchcase
from pathlib import Path
from typing import Any

import numpy as np
import pandas as pd
from client_rivals import RIVALS, local_fits
from joblib import Parallel, delayed

import adfl_stats as ad
from adfl_stats._threads import one_blas_thread
from adfl_stats.data.batches import of_clients, whole_clients
from adfl_stats.data.client_data import ClientData
from adfl_stats.engine.pooled import pooled_estimate
from adfl_stats.losses.client_sums import ClientSums, client_sums_of
from adfl_stats.losses.family import Family
from adfl_stats.simulate.field_designs import CELLS, FieldCell, draw

Q, WEIGHT, MOST_ZERO = 0.1, 0.5, 0.02
SMALL = ("gaussian-tau1", "gaussian-tau1-flip", "binomial-tau0-flip", "poisson-nb", "gaussian-M10-tau0")
SMALL_REPLICATES, REPLICATES = 5, 100
INTERVALS: dict[str, dict[str, Any]] = {
    "coverage": {},
    "coverage_sandwich": {"cov_type": "sandwich"},
    "coverage_cluster": {"cov_type": "cluster"},
}
# What the efficiency should be where it is not .95.
EFFICIENCY = {
    "gaussian-tau0-shift2": 0.4,
    "gaussian-tau0-shift3": 0.85,
    "gaussian-tau1-shift5": 0.85,
    "binomial-p10-minority.4": 0.85,
    "binomial-p10-minority.45": 0.7,
    "binomial-p10-OOD.4": 0.85,
    "binomial-n15-flip": 0.9,
}


@dataclass(frozen=True)
class Bound:
    """A wanted range of one measure; `slack` is in Monte-Carlo standard errors."""

    measure: str
    low: float = -np.inf
    high: float = np.inf
    slack: float = 0.0


def network(M: int) -> ad.Network:
    return ad.networks.complete(M) if M <= 6 else ad.networks.directed_circle(M, 5)


def bounds(cell: FieldCell) -> list[Bound]:
    """Return what is wanted of a cell."""
    if cell.M <= 20:
        return [Bound("coverage", 0.92, 0.97)]
    found = [Bound("RE", low=EFFICIENCY.get(cell.name, 0.95))]
    if cell.corruption == "none":
        return [*found, Bound("zero", high=MOST_ZERO), Bound("coverage", 0.925, 0.965), Bound("any_flag", high=0.15)]
    if cell.corruption in ("flip", "permute"):
        # Fifteen binary responses hardly show that they are flipped.
        found += [Bound("power", low=0.95)] * (cell.n != 15) + [Bound("fdr", high=Q, slack=2.0)]
    return found


def replicate(cell: FieldCell, k: int, rivals: bool) -> dict[str, Any]:
    """Draw one data set, fit it and hold the fit against the truth."""
    with one_blas_thread(), warnings.catch_warnings():
        # Small clients are separated, and what did not converge shows in its error.
        warnings.simplefilter("ignore")
        sim = draw(cell, k)
        data = ad.ClientData.from_arrays(sim.X, sim.y, sim.client)
        model = ad.DecentralizedGLM(data, network(cell.M), cell.family)
        oracle = pooled_estimate(data, model.family, ~sim.abnormal, np.zeros(cell.P))
        if oracle is None:
            raise ValueError(f"the normal clients of {cell.name}, data set {k}, have no pooled estimate")
        row = {"cell": cell.name, "replicate": k, "oracle_se": _squared(oracle.params, sim.theta0), "failed": 0}
        began = time.perf_counter()
        try:
            res = model.fit(threads=1)
        except (ArithmeticError, ValueError, np.linalg.LinAlgError, ad.DivergenceError) as error:
            print(f"{cell.name}, data set {k}: {error}", file=sys.stderr)
            return row | {"failed": 1}
        row |= {"seconds": time.perf_counter() - began, "fit_se": _squared(res.params.to_numpy(), sim.theta0)}
        row |= _measured(res, sim.theta0, sim.abnormal) | {"ceiling": _ceiling(model, sim.theta0, sim.abnormal)}
        if rivals:
            own = local_fits(model)
            for name, estimate in RIVALS.items():
                found = estimate(model, own)
                row[f"{name}_se"] = np.nan if found is None else _squared(found, sim.theta0)
        return row


def _squared(params: np.ndarray, theta0: np.ndarray) -> float:
    return float(np.sum((params - theta0) ** 2))


def _measured(res: ad.Results, theta0: np.ndarray, bad: np.ndarray) -> dict[str, float]:
    low_weight = res.client_weights.to_numpy() < WEIGHT
    flagged = ad.screen(res, Q).to_frame()["flagged"].to_numpy()
    found = {
        "zero": low_weight[~bad].mean(),
        "power": low_weight[bad].mean() if bad.any() else np.nan,
        "any_flag": np.nan if bad.any() else float(flagged.any()),
        "fdr": flagged[~bad].sum() / max(flagged.sum(), 1) if bad.any() else np.nan,
        "flag_power": flagged[bad].mean() if bad.any() else np.nan,
    }
    for name, options in INTERVALS.items():
        try:
            limits = res.conf_int(**options).to_numpy()
        except ValueError:
            # Too few clients for this kind of standard error. The default should have an answer.
            found[name] = np.nan if options else 0.0
            continue
        found[name] = np.mean((limits[:, 0] <= theta0) & (theta0 <= limits[:, 1]))
    return found


def sums_of_client(data: ClientData, family: Family, theta: np.ndarray, m: int) -> ClientSums:
    """Return client m's gradient, Hessian, information and dispersion at theta (P,)."""
    alone = of_clients(data, slice(m, m + 1))
    (pieces,) = whole_clients(alone, len(theta))
    sums = client_sums_of(alone, family, theta[None], pieces)
    return ClientSums(*(part[0] for part in vars(sums).values()))


def _ceiling(model: ad.DecentralizedGLM, theta0: np.ndarray, bad: np.ndarray) -> float:
    if not bad.any():
        return np.nan
    data, family = model.data, model.family
    statistic = np.empty(len(bad))
    for m in range(len(bad)):
        sums = sums_of_client(data, family, theta0, m)
        # A client with fewer rows than columns has a flat loss in some directions.
        statistic[m] = data.totals[m] * sums.gradient @ np.linalg.pinv(sums.information) @ sums.gradient
    return float(np.mean(statistic[bad] > np.quantile(statistic[~bad], 1.0 - MOST_ZERO)))


def summarized(draws: pd.DataFrame, rivals: bool) -> pd.DataFrame:
    """Return one row per cell: means and ratios with their Monte-Carlo standard errors, named with "_mc" behind."""
    rows = []
    for name, part in draws.groupby("cell", sort=False):
        whole = part[part["failed"] == 0]
        row: dict[str, Any] = {"cell": name, "replicates": len(part), "failed": int(part["failed"].sum())}
        row["RE"], row["RE_mc"] = ratio(whole["oracle_se"], whole["fit_se"])
        for measure in ("zero", "power", "ceiling", "any_flag", "fdr", "flag_power", *INTERVALS, "seconds"):
            row[measure] = whole[measure].mean()
            row[f"{measure}_mc"] = whole[measure].std() / np.sqrt(len(whole))
        row["fit_mse"], row["oracle_mse"] = whole["fit_se"].mean(), whole["oracle_se"].mean()
        for rival in RIVALS if rivals else ():
            theirs = whole[f"{rival}_se"]
            row[f"RE_{rival}"], row[f"RE_{rival}_mc"] = ratio(whole["oracle_se"], theirs)
            worse = whole["fit_se"] - theirs
            # The fit's numerical error alone is no defeat.
            apart = max(2.0 * worse.std() / np.sqrt(len(worse)), 0.01 * theirs.mean())
            row[f"beaten_by_{rival}"] = bool(worse.mean() > apart)
        rows.append(row)
    return pd.DataFrame(rows)


def ratio(above: pd.Series, below: pd.Series) -> tuple[float, float]:
    """Return the ratio of two means over the same data sets, and its standard error by the delta method."""
    found = above.mean() / below.mean()
    apart = above / above.mean() - below / below.mean()
    return found, found * apart.std() / np.sqrt(len(apart))


def judged(table: pd.DataFrame) -> pd.DataFrame:
    """Return one row per bound: the value, whether it is met, and whether it is missed by little."""
    rows = []
    for row in table.to_dict("records"):
        for bound in bounds(CELLS[row["cell"]]):
            value, error = row[bound.measure], _error(row, bound)
            low, high = bound.low - bound.slack * error, bound.high + bound.slack * error
            met = bool(low <= value <= high) and not row["failed"]
            near = not met and not row["failed"] and bool(low - 2.0 * error <= value <= high + 2.0 * error)
            wanted = " to ".join(f"{end:g}" for end in (bound.low, bound.high) if np.isfinite(end))
            if not np.isfinite(bound.low + bound.high):
                wanted = (">= " if np.isfinite(bound.low) else "<= ") + wanted
            rows.append(
                {"cell": row["cell"], "measure": bound.measure, "value": value, "mc": error, "wanted": wanted}
                | {"met": met, "near": near}
            )
    return pd.DataFrame(rows)


def _error(row: dict[str, Any], bound: Bound) -> float:
    """Return the Monte-Carlo error; of a share at least that at the bound, as few data sets may all agree."""
    found = float(np.nan_to_num(row[f"{bound.measure}_mc"]))
    if bound.measure not in ("coverage", "any_flag"):
        return found
    share = bound.high if row[bound.measure] > bound.high else max(bound.low, 0.0)
    trials = row["replicates"] * (CELLS[row["cell"]].P if bound.measure == "coverage" else 1)
    return max(found, float(np.sqrt(share * (1.0 - share) / trials)))


COLUMNS = {
    "RE": "RE",
    "zero": "zero",
    "power": "power",
    "ceiling": "ceil",
    "any_flag": "any",
    "fdr": "FDR",
    "flag_power": "flag",
    "coverage": "cover",
    "coverage_sandwich": "sandw",
    "coverage_cluster": "clust",
}


def printed(table: pd.DataFrame, verdicts: pd.DataFrame | None) -> str:
    """Return the table with Monte-Carlo errors, and what is not met behind each line."""
    shown = pd.DataFrame({"cell": _left(table["cell"])})
    for measure, short in COLUMNS.items():
        shown[short] = [_with_error(*pair) for pair in zip(table[measure], table[f"{measure}_mc"], strict=True)]
    shown["sec"] = [f"{value:.2f}" for value in table["seconds"]]
    if table["failed"].any():
        shown["failed"] = table["failed"]
    if verdicts is not None:
        shown["bounds"] = _left(_verdict(verdicts[verdicts["cell"] == name]) for name in table["cell"])
    return str(shown.to_string(index=False))


def _left(words: Iterable[str]) -> list[str]:
    """Return words of equal length, as pandas has strings on the right."""
    found = list(words)
    width = max(map(len, found))
    return [word.ljust(width) for word in found]


def _with_error(value: float, error: float) -> str:
    if np.isnan(value):
        return "-"
    return f"{value:.3f}" + ("" if np.isnan(error) else f"+-{error:.3f}")


def _verdict(part: pd.DataFrame) -> str:
    missed = part[~part["met"]]
    if missed.empty:
        return "met"
    parts = [f"{row.measure} {row.wanted}{'*' if row.near else ''}" for row in missed.itertuples()]
    return "not met: " + ", ".join(parts)


def rival_table(table: pd.DataFrame) -> str:
    """Return the efficiencies of the other estimates, and who beats the fit."""
    shown = pd.DataFrame({"cell": _left(table["cell"])})
    for name in ("", *(f"_{rival}" for rival in RIVALS)):
        pairs = zip(table[f"RE{name}"], table[f"RE{name}_mc"], strict=True)
        shown[name.lstrip("_") or "fit"] = [_with_error(*pair) for pair in pairs]
    beaten = [
        ", ".join(name for name in RIVALS if row[f"beaten_by_{name}"]) or "nobody" for row in table.to_dict("records")
    ]
    return str(shown.assign(**{"beats the fit": beaten}).to_string(index=False))


def run(cells: list[FieldCell], replicates: int, jobs: int = 1, rivals: bool = False) -> pd.DataFrame:
    """Return one row per cell and data set."""
    tasks = [(cell, k) for cell in cells for k in range(replicates)]
    found = Parallel(n_jobs=jobs, return_as="generator")(delayed(replicate)(*task, rivals) for task in tasks)
    if sys.stderr.isatty():
        from tqdm.auto import tqdm

        found = tqdm(found, total=len(tasks), desc="data sets", unit="set", leave=False)
    return pd.DataFrame(list(found))


def chosen(patterns: list[str] | None, small: bool) -> list[FieldCell]:
    """Return the cells whose names match one of the patterns."""
    names = SMALL if small and not patterns else tuple(CELLS)
    cells = [CELLS[name] for name in names if any(fnmatchcase(name, pattern) for pattern in patterns or ["*"])]
    if not cells:
        sys.exit(f"no cell matches {' '.join(patterns or [])}; the names are: {', '.join(CELLS)}")
    return cells


def main(arguments: list[str] | None = None) -> int:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--replicates", type=int, help=f"data sets a cell (default {REPLICATES})")
    parser.add_argument("--jobs", type=int, default=1, help="parallel processes (default 1)")
    parser.add_argument("--cells", nargs="+", metavar="PATTERN", help="names, or patterns such as 'gaussian-*'")
    parser.add_argument("--rivals", action="store_true", help="other estimates from the same clients too")
    parser.add_argument("--real", action="store_true", help="real data instead of simulated")
    parser.add_argument("--small", action="store_true", help="a few cells and data sets, for a first look; no bounds")
    parser.add_argument("--output", type=Path, help="write the table, all digits (CSV)")
    options = parser.parse_args(arguments)
    if options.real:
        from real_data import study

        return study(options.output, seeds=1 if options.small else 5, patterns=options.cells)
    replicates = options.replicates or (SMALL_REPLICATES if options.small else REPLICATES)
    began = time.perf_counter()
    draws = run(chosen(options.cells, options.small), replicates, options.jobs, options.rivals)
    table = summarized(draws, options.rivals)
    verdicts = None if options.small else judged(table)
    print(f"{replicates} data sets a cell\n\n" + printed(table, verdicts))
    if verdicts is not None:
        met, near = int(verdicts["met"].sum()), int(verdicts["near"].sum())
        print(f"\n{met} of {len(verdicts)} bounds met; {near} missed by less than two Monte-Carlo errors (*).")
    if options.rivals:
        print("\nEfficiency of other estimates\n\n" + rival_table(table))
    print(f"\n{len(draws)} fits in {time.perf_counter() - began:.0f} s.")
    if options.output:
        if verdicts is not None:
            words = verdicts.groupby("cell", sort=False)[["measure", "wanted", "met", "near"]].apply(_verdict)
            table = table.merge(words.rename("bounds"), left_on="cell", right_index=True, how="left")
        table.to_csv(options.output, index=False)
    return 0 if verdicts is None or bool(verdicts["met"].all()) else 1


if __name__ == "__main__":
    sys.exit(main())
