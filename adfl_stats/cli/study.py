"""The subcommand ``adfl-stats study``."""

from __future__ import annotations

import argparse
import sys
from pathlib import Path
from typing import Any

import adfl_stats as ad
from adfl_stats._threads import default_threads
from adfl_stats.cli.outputs import figure_file, output_file, page_file, table_file

__all__ = ["add_study", "run_or_resume", "write_table"]

EXAMPLE = """a file of a study, spec.toml:
  methods = ["fit", "DFL", "BRIDGE-M"]     # or tables: [methods.mine], method = "Bridge", rule = "trimmed", b = 2
  corruptions = ["BF", "MP", "SignFlip"]   # or tables: [corruptions.shifted], kind = "Shift", size = 5
  shares = [0.0, 0.2, 0.4]
  replicates = 20
  sizes = {n = [50, 100], p = 10}          # and M, unless all networks are files
  [networks.ours]
  file = "edges.csv"                       # or generator = "small_world", k = 6; or networks = ["circle-5"]
  [designs.skewed]
  family = "gaussian"
  covariates = "heterogeneous"

examples:
  adfl-stats study spec.toml --jobs 2 --out results     # run; the same command again goes on after an interruption
  adfl-stats study spec.toml --out results --html study.html --latex table.tex --plot map.png

Exit status: 0; 2 on bad input; 130 after Ctrl-C."""


def add_study(commands: Any) -> None:
    """Add the subcommand to the subparsers of the command line."""
    parser = commands.add_parser(
        "study",
        help="compare methods with the oracle on simulated data sets, as a TOML file says",
        epilog=EXAMPLE,
        formatter_class=argparse.RawDescriptionHelpFormatter,
    )
    parser.add_argument("file", help="the specification (.toml)")
    parser.add_argument("--out", metavar="DIR", help="a folder for the results, from which the study is resumed")
    parser.add_argument("--jobs", type=int, default=default_threads(), help="parallel processes (default %(default)s)")
    parser.add_argument("--table", metavar="FILE", type=table_file, help="write the table (.csv, .parquet)")
    parser.add_argument("--latex", metavar="FILE", type=output_file, help="write the efficiency report as LaTeX")
    parser.add_argument("--html", metavar="FILE", type=page_file, help="write the study as one HTML page")
    parser.add_argument("--plot", metavar="FILE", type=figure_file, help="draw a map of efficiencies, first method")
    parser.set_defaults(run=_study)


def _study(options: argparse.Namespace) -> int:
    study = ad.Study.from_toml(options.file)
    status = run_or_resume(study, options.jobs, options.out)
    if status:
        return status
    report = ad.efficiency_report(study)
    print(report)
    write_table(study, options.table)
    if options.latex:
        Path(options.latex).write_text(report.as_latex(), encoding="utf-8")
    if options.html:
        study.report(options.html)
    if options.plot:
        _plot(study, options.plot)
    return 0


def run_or_resume(study: ad.Study, jobs: int, out: str | None) -> int:
    """Run the study; after Ctrl-C print in one line what is done and how to go on, and return 130."""
    try:
        study.run(jobs=jobs, out=out, progress=sys.stderr.isatty())
    except KeyboardInterrupt:
        again = "the same command goes on" if out else "nothing is kept without --out DIR"
        print(f"adfl-stats: interrupted with {study.done} of {study.total} data sets done; {again}", file=sys.stderr)
        return 130
    return 0


def write_table(study: ad.Study, path: str | None) -> None:
    """Write the table of a study, by the ending of the file."""
    if path is None:
        return
    table = study.to_frame()
    if Path(path).suffix.lower() == ".parquet":
        table.to_parquet(path, index=False)
    else:
        table.to_csv(path, index=False)


def _plot(study: ad.Study, path: str) -> None:
    from matplotlib.figure import Figure

    table = study.to_frame()
    figure = Figure(figsize=(8, 2 + 0.3 * len(study.settings)), layout="constrained")
    ad.plots.efficiency_map(table, table["method"].iloc[0], ax=figure.subplots())
    figure.savefig(path, dpi=150)
