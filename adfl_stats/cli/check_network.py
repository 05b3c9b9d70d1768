"""The subcommand ``adfl-stats check-network``."""

from __future__ import annotations

import argparse
import sys
from typing import Any

import adfl_stats as ad
from adfl_stats.cli.outputs import figure_file, output_file, page_file

__all__ = ["add_check_network"]


def add_check_network(commands: Any) -> None:
    """Add the subcommand to the subparsers of the command line."""
    check = commands.add_parser(
        "check-network",
        help="check a network against Condition 5 and list what would improve it",
        epilog="Example: adfl-stats check-network edges.csv --json report.json --plot network.png. "
        "Exit status: 0 if Condition 5 holds on a strongly connected network, 1 if not or if that cannot be "
        "decided, 2 on bad input. A client without in-neighbours keeps its own estimate, with a warning.",
    )
    check.add_argument(
        "file",
        help="edges (.csv: source, target[, weight]; target receives from source), a matrix whose row m has the "
        "weights of what client m receives (.npy, .npz, .mtx), or a graph (.graphml)",
    )
    check.add_argument(
        "--weights",
        action=argparse.BooleanOptionalAction,
        help="the matrix has weights with row sums 1, the graph the attribute 'weight'; by default the file decides",
    )
    check.add_argument("--json", metavar="FILE", type=output_file, help="write the report as JSON")
    check.add_argument("--html", metavar="FILE", type=page_file, help="write the report as one HTML page")
    check.add_argument(
        "--plot", metavar="FILE", type=figure_file, help="draw the network and its eigenvalues (.png, .svg, .pdf)"
    )
    check.set_defaults(run=_check)


def _check(options: argparse.Namespace) -> int:
    net = ad.Network.from_file(options.file, weights=options.weights)
    report = ad.check_network(net)
    print(report)
    if options.json:
        _write(options.json, report.to_json())
    if options.html:
        report.report(options.html, title=f"{options.file}: {report.title}")
    if options.plot:
        try:
            _plot(net, options.plot)
        except ValueError as error:
            # The report is complete without the plot.
            print(f"adfl-stats: no plot: {error}", file=sys.stderr)
    return 0 if report["rho"].status == report["strongly connected"].status == "holds" else 1


def _write(path: str, text: str) -> None:
    with open(path, "w", encoding="utf-8") as file:
        file.write(text)


def _plot(net: ad.Network, path: str) -> None:
    try:
        from matplotlib.figure import Figure
    except ImportError:
        raise ImportError("plots need matplotlib; install it with: pip install 'adfl-stats[plot]'") from None
    # Not by pyplot, which needs a display.
    figure = Figure(figsize=(12, 5.5), layout="constrained")
    left, right = figure.subplots(1, 2, width_ratios=(1.2, 1.0))
    ad.plots.network(net, ax=left)
    ad.plots.spectrum(net, ax=right)
    figure.savefig(path, dpi=150)
