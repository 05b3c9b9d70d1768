"""The subcommand ``adfl-stats reproduce``."""

from __future__ import annotations

import argparse
import time
from pathlib import Path
from typing import Any

import pandas as pd

from adfl_stats._threads import default_threads
from adfl_stats.cli.study import run_or_resume
from adfl_stats.simulate.figure1 import (
    NETWORKS,
    caption,
    draw_figure1,
    figure1_studies,
    needs_matplotlib,
    statements,
)

__all__ = ["add_reproduce"]

EXAMPLES = """examples:
  adfl-stats reproduce figure1                           # the paper's sizes, 20 data sets a setting; under 20 minutes
  adfl-stats reproduce figure1 --quick --out quick       # small, under a minute
  adfl-stats reproduce figure1 --network er              # Erdos-Renyi graphs instead of directed circles

The folder has figure1.csv, figure1.png, figure1.svg, caption.txt, statements.txt; an interrupted run goes on.
Exit status: 0, also where a statement of the paper is not reproduced; 2 on bad input; 130 after Ctrl-C."""


def add_reproduce(commands: Any) -> None:
    """Add the subcommand to the subparsers of the command line."""
    parser = commands.add_parser(
        "reproduce",
        help="draw the paper's Figure 1 again and check the statements of its section 5.1",
        epilog=EXAMPLES,
        formatter_class=argparse.RawDescriptionHelpFormatter,
    )
    parser.add_argument("what", choices=("figure1",), help="which figure of the paper")
    parser.add_argument("--network", choices=tuple(NETWORKS), default="circle", help="directed circles (default) or er")
    parser.add_argument("--quick", action="store_true", help="small data sets, few of them")
    parser.add_argument("--replicates", type=int, help="data sets a setting (default 20, with --quick 3)")
    parser.add_argument("--seed", type=int, default=1, help="seed of the simulation (default 1)")
    parser.add_argument("--jobs", type=int, default=default_threads(), help="parallel processes (default %(default)s)")
    parser.add_argument("--out", metavar="DIR", help="the folder; by default figure1-NETWORK, with -quick added")
    parser.set_defaults(run=_reproduce)


def _reproduce(options: argparse.Namespace) -> int:
    needs_matplotlib()
    folder = Path(options.out or f"figure1-{options.network}{'-quick' if options.quick else ''}")
    studies = figure1_studies(options.network, quick=options.quick, replicates=options.replicates, seed=options.seed)
    began = time.perf_counter()
    for name, study in studies.items():
        status = run_or_resume(study, options.jobs, str(folder / name))
        if status:
            return status
    seconds = time.perf_counter() - began
    table = pd.concat([study.to_frame() for study in studies.values()], ignore_index=True)
    table.to_csv(folder / "figure1.csv", index=False)
    words = caption(studies, options.quick)
    (folder / "caption.txt").write_text(words, encoding="utf-8")
    figure = draw_figure1(table)
    for suffix in ("png", "svg"):
        figure.savefig(folder / f"figure1.{suffix}", dpi=160)
    checked = "\n".join(str(statement) for statement in statements(table))
    (folder / "statements.txt").write_text(checked + "\n", encoding="utf-8")
    print(words, "Section 5.1 of the paper:", "", checked, "", f"{folder} written in {seconds:.0f} s.", sep="\n")
    return 0
