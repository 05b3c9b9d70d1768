"""What every benchmark does with its rows: judge them, print them, write them as JSON."""

from __future__ import annotations

import argparse
import datetime
import json
import os
import platform
import resource
import sys
from pathlib import Path
from typing import Any

import numpy as np

from adfl_stats import _kernels

Row = dict[str, Any]


def row(work: str, value: float, wanted: str = "") -> Row:
    """Return a row: what was measured, the value, and the bound on it (``">= 1.4"``, ``"<= 2"``) or none."""
    met = None
    if wanted:
        sense, bound = wanted.split()
        met = bool(value >= float(bound)) if sense == ">=" else bool(value <= float(bound))
    return {"work": work, "value": float(value), "wanted": wanted, "met": met}


def machine() -> dict[str, Any]:
    """Return what a reader must know to compare."""
    return {
        "date": datetime.date.today().isoformat(),
        "processor": _processor(),
        "cores": os.cpu_count(),
        "instructions": _kernels.instruction_set(),
        "python": platform.python_version(),
        "numpy": np.__version__,
    }


def memory(kind: str) -> int:
    """Return a size of this process in bytes: VmHWM (resident, the largest so far), VmRSS (now), RssAnon (private).

    `getrusage` would count the largest size of the process that started this one; it stands in where there is no /proc.
    """
    try:
        lines = Path("/proc/self/status").read_text().splitlines()
    except OSError:
        return resource.getrusage(resource.RUSAGE_SELF).ru_maxrss * (1 if sys.platform == "darwin" else 1024)
    return next(int(line.split()[1]) for line in lines if line.startswith(kind + ":")) * 1024


def options_of(description: str) -> argparse.ArgumentParser:
    """Return a parser with the options that all benchmarks share."""
    parser = argparse.ArgumentParser(description=description.splitlines()[0])
    parser.add_argument("--output", type=Path, help="write the table as JSON")
    parser.add_argument("--markdown", action="store_true", help="print the table for docs/performance.md")
    return parser


def publish(title: str, rows: list[Row], options: argparse.Namespace) -> None:
    """Print the rows, and write them where the options ask for it."""
    about = machine()
    print(f"{title}\n" + ", ".join(f"{key} {value}" for key, value in about.items()))
    if options.markdown:
        print("\n| work | value | wanted | |\n|---|---|---|---|")
    for line in rows:
        cells = line["work"], f"{line['value']:.2f}", line["wanted"] or "-", _verdict(line["met"])
        print("| " + " | ".join(cells) + " |" if options.markdown else "{:<64} {:>9}   {:<8} {}".format(*cells))
    if options.output:
        options.output.parent.mkdir(parents=True, exist_ok=True)
        options.output.write_text(json.dumps({"title": title, "machine": about, "rows": rows}, indent=1))


def _verdict(met: bool | None) -> str:
    return "" if met is None else "met" if met else "not met"


def _processor() -> str:
    """Return the processor's name, which `platform` does not know on Linux."""
    try:
        lines = Path("/proc/cpuinfo").read_text().splitlines()
    except OSError:
        return platform.processor() or platform.machine()
    names = [line.partition(":")[2].strip() for line in lines if line.startswith("model name")]
    return names[0] if names else platform.machine()
