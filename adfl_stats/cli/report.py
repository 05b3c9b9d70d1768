"""The subcommand ``adfl-stats report``."""

from __future__ import annotations

import argparse
from pathlib import Path
from typing import Any

import adfl_stats as ad
from adfl_stats.cli.outputs import page_file

__all__ = ["add_report"]


def add_report(commands: Any) -> None:
    """Add the subcommand to the subparsers of the command line."""
    parser = commands.add_parser(
        "report",
        help="write saved results as one HTML page",
        epilog="Example: adfl-stats fit ... --save fit.npz; adfl-stats report fit.npz. Exit status: 0; 2 on bad input.",
    )
    parser.add_argument("file", help="results written by fit --save or res.save (.npz)")
    parser.add_argument(
        "--html", metavar="FILE", type=page_file, help="the page; by default FILE.html beside the results"
    )
    parser.add_argument("--title", help="the heading; by default the response and the method")
    parser.add_argument("--alpha", type=float, default=0.05, help="intervals are at level 1 - ALPHA (default 0.05)")
    parser.set_defaults(run=_report)


def _report(options: argparse.Namespace) -> None:
    res = ad.load(options.file)
    print(res.report(options.html or Path(options.file).with_suffix(".html"), title=options.title, alpha=options.alpha))
