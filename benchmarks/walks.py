"""Modules and subpackages that a call runs through, and how often control passes from one to another.

    python benchmarks/walks.py [--markdown]

The calls are on a logistic model of 20 clients, a fifth of them with flipped labels. Python functions of the package
count, the kernel does not. A switch is a call from one module (or subpackage) into another; modules at the package's
root are one subpackage.
"""

from __future__ import annotations

import argparse
import contextlib
import io
import sys
import tempfile
from collections.abc import Callable
from pathlib import Path
from types import FrameType
from typing import Any

import adfl_stats as ad
from adfl_stats.cli.main import main as command_line

ROOT = Path(ad.__file__).parent


class Walk:
    """The modules that run during a call, and the calls between them."""

    def __init__(self) -> None:
        self.modules: set[str] = set()
        self.switches = self.room_switches = 0

    def __call__(self, frame: FrameType, event: str, argument: Any) -> None:
        """Count a call; to be given to `sys.setprofile`."""
        if event != "call" or (here := _module(frame)) is None:
            return
        self.modules.add(here)
        caller = frame.f_back
        while caller is not None and _module(caller) is None:
            caller = caller.f_back
        if caller is not None and (there := _module(caller)) is not None:
            self.switches += here != there
            self.room_switches += _room(here) != _room(there)

    @property
    def rooms(self) -> int:
        """The number of subpackages."""
        return len({_room(module) for module in self.modules})


def _module(frame: FrameType) -> str | None:
    path = Path(frame.f_code.co_filename)
    return str(path.relative_to(ROOT)) if path.is_relative_to(ROOT) else None


def _room(module: str) -> str:
    return module.rpartition("/")[0].partition("/")[0]


def walked(call: Callable[[], Any]) -> tuple[Walk, Any]:
    """Return the walk of a call, and what the call returned."""
    walk = Walk()
    sys.setprofile(walk)
    try:
        result = call()
    finally:
        sys.setprofile(None)
    return walk, result


def main() -> None:
    """Walk and print."""
    parser = argparse.ArgumentParser(description=(__doc__ or "").splitlines()[0])
    parser.add_argument("--markdown", action="store_true", help="print the table for docs/performance.md")
    options = parser.parse_args()
    sim = ad.simulate.glm_design("binomial", M=20, n=60, p=3, abnormal=0.2, corruption="LF", intercept=True, seed=1)
    rows, net = sim.frame().drop(columns="const"), ad.networks.directed_circle(20, 5)
    walks: dict[str, Walk] = {}
    walks["from_formula"], model = walked(
        lambda: ad.DecentralizedGLM.from_formula("y ~ x1 + x2 + x3", rows, "client", net, "binomial")
    )
    walks["fit"], res = walked(lambda: model.fit())
    walks["summary"], _ = walked(lambda: str(res.summary()))
    walks["screen"], _ = walked(lambda: ad.screen(res))
    with tempfile.TemporaryDirectory() as folder, contextlib.redirect_stdout(io.StringIO()):
        edges = Path(folder) / "edges.csv"
        edges.write_text("source,target\n" + "\n".join(f"{k},{(k + j) % 20}" for k in range(20) for j in range(1, 6)))
        walks["check-network"], _ = walked(lambda: command_line(["check-network", str(edges)]))
    line = "| {} | {} | {} | {} | {} |" if options.markdown else "{:<16}{:>9}{:>10}{:>13}{:>10}"
    print(line.format("call", "modules", "switches", "subpackages", "switches"))
    if options.markdown:
        print("|---|---|---|---|---|")
    for name, walk in walks.items():
        print(line.format(name, len(walk.modules), walk.switches, walk.rooms, walk.room_switches))


if __name__ == "__main__":
    main()
