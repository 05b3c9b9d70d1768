"""Fit data from disk that are larger than the memory the process may have.

    python benchmarks/memmap.py [--gib 6] [--limit 2] [--automatic] [--directory FOLDER]

Writes X and y of a logistic model (p = 50, 200 clients) as memory maps, deleted afterwards, and fits them in a
process whose private memory is limited (RLIMIT_DATA, which counts what the process allocates and not the pages
of files it maps: those the kernel drops when they are wanted elsewhere). Prints the seconds and the peak
of the private memory, which must stay below the limit: of five rounds of DFL, of its limit solved for directly,
and with ``--automatic`` of the default fit.
"""

from __future__ import annotations

import argparse
import json
import resource
import subprocess
import sys
import tempfile
import threading
import time
import warnings
from collections.abc import Callable
from pathlib import Path

import numpy as np
from report import memory, options_of, publish, row

import adfl_stats as ad

P, M, PIECE = 50, 200, 1 << 15


def write(folder: Path, gib: float) -> None:
    """Write X and y, in pieces."""
    n = max(M * P, int(gib * 2**30 / (8 * P)))
    X = np.lib.format.open_memmap(folder / "X.npy", "w+", np.float64, (n, P))
    y = np.lib.format.open_memmap(folder / "y.npy", "w+", np.float64, (n,))
    rng = np.random.default_rng(1)
    for low in range(0, n, PIECE):
        part = slice(low, min(low + PIECE, n))
        X[part] = rng.standard_normal((part.stop - low, P))
        y[part] = rng.random(part.stop - low) < 1.0 / (1.0 + np.exp(-X[part, 0]))


def measured(call: Callable[[], object]) -> dict[str, float]:
    """Return the seconds of a call and the peak of the resident private memory meanwhile."""
    peak, done = [0.0], threading.Event()

    def watch() -> None:
        while not done.wait(0.01):
            peak[0] = max(peak[0], memory("RssAnon") / 2**30)

    watcher = threading.Thread(target=watch)
    watcher.start()
    began = time.perf_counter()
    try:
        call()
        return {"seconds": time.perf_counter() - began, "peak": peak[0]}
    finally:
        done.set()
        watcher.join()


def limited(folder: Path, limit: float, automatic: bool) -> None:
    """Fit under the limit and print what was measured as JSON; run in a process of its own."""
    resource.setrlimit(resource.RLIMIT_DATA, (int(limit * 2**30), int(limit * 2**30)))
    X, y = (np.load(folder / f"{name}.npy", mmap_mode="r") for name in "Xy")
    client = np.repeat(np.arange(M, dtype=np.int16), -(-len(y) // M))[: len(y)]
    made: list[ad.DecentralizedGLM] = []

    def construct() -> None:
        data = ad.ClientData.from_arrays(X, y, client)
        made.append(ad.DecentralizedGLM(data, ad.networks.directed_circle(M, 5), "binomial"))

    found = {"before": memory("RssAnon") / 2**30, "construct": measured(construct)}
    found["five rounds"] = measured(lambda: made[0].fit(ad.DFL(), step=1.0, rounds=5))
    found["limit of DFL"] = measured(lambda: made[0].fit(ad.DFL(), solver="limit"))
    if automatic:
        found["default fit"] = measured(lambda: made[0].fit())
    print(json.dumps(found))


def main() -> None:
    parser = options_of(__doc__)
    parser.add_argument("--gib", type=float, default=6.0, help="size of X")
    parser.add_argument("--limit", type=float, default=2.0, help="private memory, in GiB")
    parser.add_argument("--automatic", action="store_true", help="run the default fit as well")
    parser.add_argument("--directory", type=Path, help="where to write the data; needs that much space")
    parser.add_argument("--only", type=Path, help=argparse.SUPPRESS)
    options = parser.parse_args()
    if options.only:
        warnings.simplefilter("ignore")
        return limited(options.only, options.limit, options.automatic)
    with tempfile.TemporaryDirectory(dir=options.directory) as folder:
        write(Path(folder), options.gib)
        call = [sys.executable, __file__, "--only", folder, "--limit", str(options.limit)]
        call += ["--automatic"] * options.automatic
        found = json.loads(subprocess.run(call, check=True, stdout=subprocess.PIPE, text=True).stdout)
    rows = []
    for name in [key for key in found if key != "before"]:
        rows.append(row(f"{name}: seconds", found[name]["seconds"]))
        rows.append(row(f"{name}: peak of private memory, GiB", found[name]["peak"], f"<= {options.limit:g}"))
    publish(f"logistic model, X of {options.gib:g} GiB on disk, RLIMIT_DATA of {options.limit:g} GiB", rows, options)


if __name__ == "__main__":
    main()
