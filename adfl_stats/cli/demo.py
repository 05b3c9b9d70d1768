"""The subcommand ``adfl-stats demo``."""

from __future__ import annotations

import argparse
import sys
import time
from typing import Any

import pandas as pd

import adfl_stats as ad
from adfl_stats.cli.outputs import page_file
from adfl_stats.theory.condition_5 import condition_5

__all__ = ["add_demo"]


def add_demo(commands: Any) -> None:
    """Add the subcommand to the subparsers of the command line."""
    demo = commands.add_parser(
        "demo",
        help="fit a simulated network of hospitals and show everything",
        epilog="Example: adfl-stats demo --clients 40 --html demo.html. Exit status: 0; 2 on bad input.",
    )
    demo.add_argument("--clients", type=int, default=100, help="number of hospitals (default 100)")
    demo.add_argument("--seed", type=int, default=1, help="seed of the simulation (default 1)")
    demo.add_argument("--html", metavar="FILE", type=page_file, help="write the fit as one HTML page")
    demo.set_defaults(run=_demo)


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
    print("\nThe true values, aDFL, and DFL without weights:\n")
    print(compared.to_string(float_format=lambda value: f"{value:.3f}"))
    print(f"\nFitted in {seconds:.1f} s.")
    if options.html:
        print(f"Page: {res.report(options.html)}")


def _slopes(model: ad.DecentralizedGLM, method: ad.DFL) -> list[float]:
    return model.fit(method).params.drop("Intercept").tolist()
