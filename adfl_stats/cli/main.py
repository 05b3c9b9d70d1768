"""The command line: ``adfl-stats demo``, ``fit``, ``check-network``, ``efficiency`` and ``report``."""

from __future__ import annotations

import argparse
import sys
import time
import warnings
from collections.abc import Sequence
from typing import Any

import pandas as pd

import adfl_stats as ad
from adfl_stats.cli.check_network import add_check_network
from adfl_stats.cli.efficiency import add_efficiency
from adfl_stats.cli.outputs import output_file, page_file, print_any_label
from adfl_stats.cli.report import add_report
from adfl_stats.theory.condition_5 import condition_5

__all__ = ["main"]


def main(arguments: Sequence[str] | None = None) -> int:
    """Run the command line; return the command's status, 2 on bad input with one line that says what is wrong.

    After Ctrl-C the status is 130, as shells have it (128 plus the signal's number).
    """
    print_any_label()
    options = _parser().parse_args(arguments)
    try:
        with warnings.catch_warnings():
            warnings.simplefilter("always", ad.AdflWarning)
            warnings.showwarning = _one_line
            status: int | None = options.run(options)
    except BrokenPipeError:
        return 0
    except KeyboardInterrupt:
        print("adfl-stats: interrupted", file=sys.stderr)
        return 130
    except (ValueError, TypeError, OSError, ImportError, ad.DivergenceError) as error:
        print(f"adfl-stats: {error}", file=sys.stderr)
        return 2
    return status or 0


def _demo(options: argparse.Namespace) -> None:
    if options.clients < 10:
        raise ValueError(f"--clients is {options.clients}; the demo wants at least 10")
    bad = round(0.2 * options.clients)
    sim = ad.simulate.hospitals(seed=options.seed, M=options.clients, abnormal=bad)
    network = ad.networks.directed_circle(options.clients, 5, labels=sim.labels)
    print(f"{options.clients} simulated hospitals, each hearing 5 others; the data of {bad} are corrupted.\n")
    began = time.perf_counter()
    model = ad.DecentralizedGLM.from_formula(
        "readmitted ~ age + severity + comorbid + treated", sim.frame(), "hospital", network, "binomial"
    )
    res = model.fit(progress=sys.stderr.isatty())
    seconds = time.perf_counter() - began
    print(res.summary())
    table = res.clients().sort_values("weight")
    table["corrupted"] = table.index.isin(sim.abnormal_labels)
    print("\nThe 25 clients with the smallest weights:\n")
    print(table.head(25).to_string(float_format=lambda value: f"{value:.3g}"))
    condition = condition_5(network)
    print(f"\nNetwork: {network!r}\nCondition 5 (rho < 1): {condition.status}; rho: {condition.rho_text}")
    compared = pd.DataFrame(
        {"truth": sim.theta0, "aDFL": res.params.drop("Intercept").to_numpy(), "DFL": _slopes(model, ad.DFL())},
        index=sim.names,
    )
    print("\nThe truth, aDFL, and DFL without a defence:\n")
    print(compared.to_string(float_format=lambda value: f"{value:.3f}"))
    print(f"\nFitted in {seconds:.1f} s.")
    if options.html:
        print(f"Page: {res.report(options.html)}")


def _slopes(model: ad.DecentralizedGLM, method: ad.DFL) -> list[float]:
    return model.fit(method).params.drop("Intercept").tolist()


def _fit(options: argparse.Namespace) -> None:
    frame = pd.read_csv(options.data)
    labels = frame[options.client].dropna().unique() if options.client in frame else None
    network = ad.Network.from_edges(options.edges, labels=labels)
    model = ad.DecentralizedGLM.from_formula(
        options.formula, frame, options.client, network, _family(options), missing=options.missing
    )
    method = ad.DFL() if options.method == "dfl" else ad.ADFL(lam=options.lam, stages=options.stages, balance=True)
    res = model.fit(method, progress=sys.stderr.isatty())
    print(res.summary())
    if options.screen is not None:
        print(f"\n{ad.screen(res, options.screen)}")
    if options.clients:
        res.clients().to_csv(options.clients)
    if options.save:
        res.save(options.save)
    if options.html:
        res.report(options.html)


def _family(options: argparse.Namespace) -> Any:
    """Return the family as the model takes it."""
    if options.link is None and options.var_power is None:
        return options.family
    return ad.family(options.family, options.link, var_power=options.var_power)


def _parser() -> argparse.ArgumentParser:
    parser = argparse.ArgumentParser(
        prog="adfl-stats", description="Robust GLMs over a network of clients whose data cannot be pooled."
    )
    parser.add_argument("--version", action="version", version=f"adfl-stats {ad.__version__}")
    commands = parser.add_subparsers(required=True, metavar="COMMAND")

    demo = commands.add_parser("demo", help="fit a simulated network of hospitals and show everything")
    demo.add_argument("--clients", type=int, default=100, help="number of hospitals (default 100)")
    demo.add_argument("--seed", type=int, default=1, help="seed of the simulation (default 1)")
    demo.add_argument("--html", metavar="FILE", type=page_file, help="write the fit as one HTML page")
    demo.set_defaults(run=_demo)

    fit = commands.add_parser("fit", help="fit a CSV file over an edge list and print the summary")
    fit.add_argument("data", help="CSV with one row an observation")
    fit.add_argument("--formula", required=True, help="for example 'y ~ x1 + C(group)'")
    fit.add_argument("--client", required=True, help="the column that names the client")
    fit.add_argument("--edges", required=True, help="CSV with columns source, target[, weight]; target hears source")
    fit.add_argument("--family", default="gaussian", help="gaussian (default), binomial, poisson, ...")
    fit.add_argument("--link", help="another link than the family's usual one, for example probit")
    fit.add_argument("--var-power", type=float, help="the power of --family tweedie, between 1 and 2")
    fit.add_argument("--method", choices=("adfl", "dfl"), default="adfl")
    fit.add_argument("--lam", type=float, help="lambda of aDFL; by default chosen by cross-validation")
    fit.add_argument("--stages", type=int, default=3, help="stages of aDFL (default 3)")
    fit.add_argument("--missing", choices=("raise", "drop"), default="raise", help="rows with missing values")
    fit.add_argument(
        "--screen", metavar="Q", type=float, nargs="?", const=0.1,
        help="print which clients are flagged as abnormal, at the false discovery rate Q (default 0.1)",
    )  # fmt: skip
    fit.add_argument("--save", metavar="FILE", type=output_file, help="write the results (.npz)")
    fit.add_argument("--clients", metavar="FILE", type=output_file, help="write the table of clients (CSV)")
    fit.add_argument("--html", metavar="FILE", type=page_file, help="write the fit as one HTML page")
    fit.set_defaults(run=_fit)

    add_check_network(commands)
    add_efficiency(commands)
    add_report(commands)
    return parser


def _one_line(
    message: Warning | str,
    category: type[Warning],
    filename: str,
    lineno: int,
    file: object = None,
    line: object = None,
) -> None:
    print(f"adfl-stats: warning: {message}", file=sys.stderr)
