"""The subcommand ``adfl-stats efficiency``."""

from __future__ import annotations

import argparse
import time
from typing import Any

import numpy as np
import pandas as pd

from adfl_stats._arguments import whole_number
from adfl_stats._threads import default_threads
from adfl_stats.cli.outputs import output_file
from adfl_stats.cli.study import run_or_resume
from adfl_stats.simulate import study
from adfl_stats.simulate.acceptance import COVERAGE, MOST_FLAGS, POWER, all_met, family_means, judged
from adfl_stats.simulate.settings import Q

__all__ = ["add_efficiency"]

# Sizes of --small, which takes under a minute, and data sets a cell. Ours.
SMALL_DESIGN: dict[str, Any] = {"M": 30, "n": 60, "p": 5}
SMALL_NETWORKS, SMALL_REPLICATES, REPLICATES = ("circle-5",), 5, 20
UNDEFENDED, REFERENCE = "DFL", "oracle DFL"


def add_efficiency(commands: Any) -> None:
    """Add the subcommand to the subparsers of the command line."""
    parser = commands.add_parser(
        "efficiency",
        help="simulate data sets with known truth and compare the default fit with the oracle",
        epilog="Examples: adfl-stats efficiency --small; adfl-stats efficiency --family binomial --jobs 2 --out study. "
        "Exit status: 0 if all bounds are met, or there are none (--small); 1 if not; 2 on bad input; 130 after "
        "Ctrl-C.",
    )
    parser.add_argument("--family", default="gaussian", help="gaussian (default), binomial or poisson")
    parser.add_argument("--replicates", type=int, help=f"data sets a cell (default {REPLICATES})")
    parser.add_argument("--jobs", type=int, default=default_threads(), help="parallel processes (default %(default)s)")
    parser.add_argument("--networks", nargs="+", metavar="NET", help="circle-D, erdos-renyi-q, complete")
    parser.add_argument("--corruptions", nargs="+", metavar="KIND", help="BF, OOD, MP, LF, permute, noise")
    parser.add_argument("--shares", nargs="+", type=float, metavar="S", help="shares of abnormal clients")
    parser.add_argument("--covariates", nargs="+", metavar="LAW", help="homogeneous, heterogeneous")
    parser.add_argument("--slope", type=float, default=1.0, help="the nonzero slopes; by default 1, as in the paper")
    parser.add_argument("--rivals", action="store_true", help="fit the rivals too, and print log10 mean squared errors")
    parser.add_argument("--solver", default="auto", help="auto (default: the limit where a method has one) or rounds")
    parser.add_argument("--seed", type=int, default=1, help="seed of the simulation (default 1)")
    parser.add_argument("--small", action="store_true", help="few small data sets, for a first look; no bounds")
    parser.add_argument(
        "--output", metavar="FILE", type=output_file, help="write the table, all digits and all methods (CSV)"
    )
    parser.add_argument("--out", metavar="DIR", help="a folder for the data sets, from which the study is resumed")
    parser.set_defaults(run=_efficiency)


def _efficiency(options: argparse.Namespace) -> int:
    usual = SMALL_REPLICATES if options.small else REPLICATES
    whole_number(options.jobs, "jobs", 1)
    planned = study.preset(
        options.family,
        study.RIVALS if options.rivals else ("fit",),
        networks=options.networks or (SMALL_NETWORKS if options.small else study.NETWORKS),
        corruptions=options.corruptions,
        shares=options.shares,
        covariates=options.covariates,
        slope=options.slope,
        replicates=usual if options.replicates is None else options.replicates,
        seed=options.seed,
        solver=options.solver,
        **(SMALL_DESIGN if options.small else {}),
    )
    began = time.perf_counter()
    status = run_or_resume(planned, options.jobs, options.out)
    if status:
        return status
    seconds = time.perf_counter() - began
    table = judged(_with_family(planned.to_frame(), options), bounds=not options.small)
    print(_title(table), "", _fit_table(table), *_verdicts(table), sep="\n")
    if not options.small:
        print(*_inference(table), sep="\n")
    if options.rivals:
        print("", "log10 of the mean squared error of the normal clients' estimates", "", _rival_table(table), sep="\n")
        print(*_ranking(table), sep="\n")
    print(f"\n{planned.total * len(planned.methods)} fits in {seconds:.0f} s.")
    if options.output:
        table.to_csv(options.output, index=False)
    return 0 if all_met(table) else 1


def _with_family(table: pd.DataFrame, options: argparse.Namespace) -> pd.DataFrame:
    """Return the table of the study with family, slope and covariates, by which bounds are distinguished."""
    return table.rename(columns={"design": "covariates"}).assign(family=options.family, slope=options.slope)


def _verdicts(table: pd.DataFrame) -> list[str]:
    cells = table["met"].dropna()
    lines = [f"\nBounds met in {int(cells.sum())} of {len(cells)} cells."] if len(cells) else []
    for mean, bound, count in family_means(table):
        word = "met" if mean >= bound else "not met"
        lines.append(
            f"\nMean over {count} cells (OOD above .2 not counted): {mean:.3f}, wanted >= {bound:.2f}: {word}."
        )
    return lines


def _inference(table: pd.DataFrame) -> list[str]:
    """Return coverage, false discoveries and power, and flags in data sets without abnormal clients."""
    ours = table[table["method"] == "fit"]
    clean, bent = ours[ours["share"] == 0], ours[ours["share"] > 0]
    inside = int(ours["coverage"].between(*COVERAGE).sum())
    lines = [
        f"Coverage of 95 % intervals between {COVERAGE[0]:g} and {COVERAGE[1]:g} in {inside} of {len(ours)} cells, "
        f"{ours['coverage'].mean():.3f} on average."
    ]
    if len(bent):
        few = bent["fdr"] <= Q + 2.0 * bent["fdr_se"].fillna(0.0)
        lines.append(
            f"False discoveries at most {Q:g} plus two standard errors in {int(few.sum())}, power at least "
            f"{POWER:g} in {int((bent['power'] >= POWER).sum())} of {len(bent)} cells."
        )
    if len(clean):
        lines.append(
            f"A flag in {clean['any_flag'].mean():.1%} of {int(clean['replicates'].sum())} data sets without abnormal "
            f"clients; at most {MOST_FLAGS:.0%} wanted."
        )
    return lines


def _title(table: pd.DataFrame) -> str:
    first = table.iloc[0]
    slope = (
        "" if first["slope"] == 1.0 else ", weak slopes" if pd.isna(first["slope"]) else f", slopes {first['slope']:g}"
    )
    return (
        f"Efficiency of fit() against the oracle: {first['family']}, M = {first['M']}, n = {first['n']}, "
        f"p = {first['p']}{slope}, {first['replicates']} data sets a cell"
    )


def _where(table: pd.DataFrame) -> pd.DataFrame:
    """Return the columns that name a cell."""
    return pd.DataFrame(
        {
            "network": table["network"],
            "covariates": table["covariates"],
            "corruption": table["corruption"],
            "share": table["share"].map("{:g}".format),
        }
    )


def _fit_table(table: pd.DataFrame) -> str:
    ours = table[table["method"] == "fit"]
    shown = _where(ours).assign(**{"eff.": _digits(ours["efficiency"]), "+-": _digits(ours["efficiency_se"])})
    if ours["wanted"].notna().any():
        shown["wanted"] = ours["wanted"].map(lambda bound: "" if np.isnan(bound) else f">= {bound:.2f}")
        shown["met"] = ours["met"].map({True: "met", False: "not met", None: ""})
    for name, column in (("cover", "coverage"), ("FDR", "fdr"), ("power", "power"), ("any flag", "any_flag")):
        shown[name] = _digits(ours[column])
    return shown.to_string(index=False)


def _digits(values: pd.Series) -> pd.Series:
    return values.map(lambda value: "-" if np.isnan(value) else f"{value:.3f}")


def _wide(table: pd.DataFrame) -> pd.DataFrame:
    """Return the mean squared errors, one row a cell and one column a method, the oracle last."""
    cell = ["network", "covariates", "corruption", "share"]
    wide = table.set_index([*cell, "method"])["mse"].unstack("method", sort=False)
    return wide.assign(oracle=table.groupby(cell, sort=False)["oracle_mse"].first()).reset_index()


def _rival_table(table: pd.DataFrame) -> str:
    wide = _wide(table)
    shown = _where(wide)
    # Words that leave room for eight methods in a hundred columns.
    shown["covariates"] = shown["covariates"].map({"homogeneous": "homog.", "heterogeneous": "heterog."})
    short = {"ClippedGossip": "Clipped", "GeometricMedian": "Geo.med.", "oracle DFL": "or. DFL"}
    for name in wide.columns[4:]:
        shown[short.get(name, name)] = np.log10(wide[name]).map("{:.2f}".format)
    return shown.rename(columns={"corruption": "corr."}).to_string(index=False)


def _ranking(table: pd.DataFrame) -> list[str]:
    """Return in how many cells with abnormal clients the rivals beat DFL, and how many beat the default fit."""
    wide = _wide(table[table["share"] > 0])
    lines = []
    for name in (name for name in wide.columns[4:] if name not in ("fit", UNDEFENDED, REFERENCE, "oracle")):
        better, best = (wide[name] < wide[UNDEFENDED]).sum(), (wide[name] < wide["fit"]).sum()
        lines.append(f"{name}: better than DFL in {better}, than fit() in {best} of {len(wide)} cells.")
    return ["", "With abnormal clients:", *lines]
