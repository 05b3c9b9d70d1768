"""Speed of the kernel, as ratios against other tools and against itself, in one interleaved run.

    python benchmarks/run.py [--only gaussian,threads] [--repeats 7] [--markdown] [--output FILE]

Threads are pinned to one unless a row says otherwise. Results must agree to 1e-8 before a time counts. A ratio
is the median over the repeats of two times of the same repeat, the calls taking turns, which a noisy machine disturbs
least. JAX and numba are left out where they are not installed. A function marked `@section` measures some rows:
to add rows, write one.
"""

from __future__ import annotations

import os

os.environ |= dict.fromkeys(("OMP_NUM_THREADS", "OPENBLAS_NUM_THREADS", "MKL_NUM_THREADS", "NPROC"), "1")
os.environ["XLA_FLAGS"] = "--xla_cpu_multi_thread_eigen=false intra_op_parallelism_threads=1"

import subprocess
import sys
import time
import warnings
from collections.abc import Callable, Mapping
from dataclasses import replace
from functools import partial
from pathlib import Path
from typing import Any

import numpy as np
import statsmodels.api as sm
from report import Row, options_of, publish, row
from rivals import Call, pooled_glm, rivals_for

import adfl_stats as ad
from adfl_stats import _kernels
from adfl_stats.engine.limit import limits
from adfl_stats.engine.problem import Problem
from adfl_stats.engine.round import Exchange
from adfl_stats.losses.families import Family
from adfl_stats.losses.glm import GLM
from adfl_stats.methods.tuning import lambda_path

M, N_ROWS, P, D, STEP, ROUNDS = 100, 100, 50, 5, 0.05, 200
Section = Callable[[int], list[Row]]
SECTIONS: dict[str, Section] = {}


def section(measure: Section) -> Section:
    """Register a function (repeats) that returns rows."""
    SECTIONS[measure.__name__] = measure
    return measure


def problem(family: str, sizes: np.ndarray, p: int = P, network: ad.Network | None = None) -> Problem:
    """Return a problem with given client sizes, on the directed circle unless a network is given."""
    rng = np.random.default_rng(1)
    X = rng.standard_normal((int(sizes.sum()), p))
    eta = X @ rng.normal(size=p) / (1.5 * np.sqrt(p))
    if family == "gaussian":
        y = eta + rng.normal(size=len(X))
    elif family == "binomial":
        y = (rng.random(len(X)) < 1 / (1 + np.exp(-eta))) * 1.0
    else:
        y = rng.poisson(np.exp(eta)) * 1.0
    clients = len(sizes)
    data = ad.ClientData.from_arrays(X, y, np.repeat(np.arange(clients), sizes))
    return Problem(GLM(data, Family(family)), network or ad.networks.directed_circle(clients, D), "client")


def ours(task: Problem, rounds: int = ROUNDS, steps: tuple[float, ...] = (STEP,), threads: int = 1) -> Call:
    """Return a call that does rounds in the kernel, one run for each of the steps, and returns (M, runs, p)."""
    combiner, loss, runs = Exchange(task).combiner, task.glm.loss(), len(steps)
    alpha = np.tile(steps, (task.M, 1))

    def call() -> np.ndarray:
        theta = np.zeros((task.M, runs, task.P))
        moved, limits = np.empty((rounds, runs)), np.full(runs, np.inf)
        _kernels.rounds(combiner, loss, theta, alpha, rounds, moved, limits, threads)
        return theta

    return call


def seconds(calls: Mapping[Any, Callable[[], object]], repeats: int) -> dict[Any, np.ndarray]:
    """Return seconds per call and repeat, the calls taking turns after a first round that does not count."""
    taken = {name: np.empty(repeats) for name in calls}
    for k in range(-1, repeats):  # what the first turn writes, the last overwrites
        for name, call in calls.items():
            began = time.perf_counter()
            call()
            taken[name][k] = time.perf_counter() - began
    return taken


def against_rivals(family: str, repeats: int, bounds: dict[str, str]) -> list[Row]:
    """Return a row for each rival, and one for the fastest of them."""
    task = problem(family, np.full(M, N_ROWS))
    rivals, mine = rivals_for(task, STEP, ROUNDS), ours(task)
    for call in rivals.values():
        np.testing.assert_allclose(call(), mine()[:, 0], rtol=1e-8, atol=1e-10)
    t = seconds({"ours": mine} | rivals, repeats)
    ratios = {name: float(np.median(t[name] / t["ours"])) for name in rivals}
    best = min(ratios, key=lambda name: ratios[name])
    rows = [row(f"{family} rounds: {name} / ours", ratio, bounds.get(name, "")) for name, ratio in ratios.items()]
    return [*rows, row(f"{family} rounds: best peer ({best}) / ours", ratios[best], bounds["best"])]


@section
def gaussian(repeats: int) -> list[Row]:
    return against_rivals("gaussian", repeats, {"best": ">= 1.4"})


@section
def logistic(repeats: int) -> list[Row]:
    return against_rivals("binomial", repeats, {"NumPy batched": ">= 2.2", "best": ">= 1.5"})


@section
def poisson(repeats: int) -> list[Row]:
    return against_rivals("poisson", repeats, {"NumPy batched": ">= 2.2", "best": ">= 1.5"})


@section
def pooled(repeats: int) -> list[Row]:
    """The pooled estimate: statsmodels' IRLS beside preconditioned rounds on the complete network."""
    rows = []
    for family in ("binomial", "poisson"):
        task = problem(family, np.full(M, N_ROWS), network=ad.networks.complete(M))
        theta = np.zeros((M, 1, P))
        metric, largest_curvature = task.coordinates(np.zeros(P))
        loss, alpha, rounds = task.glm.loss(metric), np.full((M, 1), 1.0 / largest_curvature.mean()), 150
        combiner = Exchange(task).combiner

        def mine(combiner=combiner, loss=loss, theta=theta, alpha=alpha, rounds=rounds) -> np.ndarray:
            theta[:] = 0.0
            _kernels.rounds(combiner, loss, theta, alpha, rounds, np.empty((rounds, 1)), np.full(1, np.inf), 1)
            return theta.mean(axis=(0, 1))

        glm = pooled_glm(task)
        np.testing.assert_allclose(mine(), glm(), rtol=1e-8, atol=1e-8)
        t = seconds({"ours": mine, "glm": glm}, repeats)
        rows.append(row(f"{family}, pooled estimate: statsmodels / ours", np.median(t["glm"] / t["ours"])))
    return rows


@section
def several_runs(repeats: int) -> list[Row]:
    rows, steps, rounds = [], tuple(np.linspace(0.01, 0.05, 32)), 20
    for family in ("gaussian", "binomial"):
        task = problem(family, np.full(M, N_ROWS))
        together, single = ours(task, rounds, steps), [ours(task, rounds, (step,)) for step in steps]
        np.testing.assert_allclose(together(), np.concatenate([call() for call in single], axis=1), rtol=1e-8)
        t = seconds({"together": together, "apart": lambda single=single: [call() for call in single]}, repeats)
        ratio = np.median(t["apart"] / t["together"])
        rows.append(row(f"{family}, 32 runs: one by one / at once", ratio, ">= 5"))
        t = seconds({"eight": ours(task, rounds, steps[:8]), "one": ours(task, rounds, steps[:1])}, repeats)
        rows.append(row(f"{family}, 8 runs at once / one run", np.median(t["eight"] / t["one"]), "<= 4"))
    return rows


def path_scores(task: Problem, weights: np.ndarray, lams: np.ndarray, which: slice) -> np.ndarray:
    return lambda_path(task, weights[:, which], lams[which], np.zeros(task.P), balance=False).scores


@section
def lambda_values(repeats: int) -> list[Row]:
    """A path of 32 lambda values by cross-validation, against one path for each value."""
    rows = []
    for family in ("gaussian", "binomial"):
        task = problem(family, np.full(M, N_ROWS))
        lams = np.linspace(0.0, 8.0, 32)
        weights = np.exp(-np.outer(np.linspace(0.0, 1.0, M), lams))
        path = partial(path_scores, task, weights, lams)
        apart = partial(lambda path: np.concatenate([path(slice(k, k + 1)) for k in range(32)]), path)
        np.testing.assert_allclose(path(slice(None)), apart(), rtol=1e-6)
        t = seconds({"together": partial(path, slice(None)), "apart": apart}, min(repeats, 3))
        ratio = np.median(t["apart"] / t["together"])
        rows.append(row(f"{family}, 32 lambda values, cross-validated: one by one / at once", ratio, ">= 5"))
    return rows


@section
def whole_fits(repeats: int) -> list[Row]:
    """The default fit in the paper's linear setting against pooled ones by statsmodels; what a lambda path costs."""
    sim = ad.simulate.paper_linear(abnormal=0.2, corruption="BF", seed=1)
    data = ad.ClientData.from_arrays(sim.X, sim.y, sim.client)
    model = ad.DecentralizedGLM(data, ad.networks.directed_circle(M, D))
    path = ad.ADFL(lam=tuple(np.linspace(0.5, 8.0, 16)), balance=True)
    calls = {
        "default": partial(model.fit, threads=1),
        "pooled": lambda: sm.GLM(sim.y, sim.X).fit(),
        "path": partial(model.fit, path, threads=1),
        "one": partial(model.fit, replace(path, lam=2.0, measure="score", equalise=True), threads=1),
    }
    t = seconds(calls, min(repeats, 5))
    return [
        row("model.fit() / pooled statsmodels GLM of the same rows", np.median(t["default"] / t["pooled"]), "<= 40"),
        row("fit with 16 lambda values compared / with one given", np.median(t["path"] / t["one"]), "<= 5"),
    ]


@section
def limit(_: int, step: float = 0.002, accuracy: float = 1e-8) -> list[Row]:
    """The limit solved for directly, against rounds until every client is as near to it; once, it takes long."""
    rows = []
    for family, wanted in (("gaussian", ">= 30"), ("binomial", ">= 15")):
        for D in (5, 30):
            task = problem(family, np.full(M, N_ROWS), network=ad.networks.directed_circle(M, D))
            combiner, loss = Exchange(task).combiner, task.glm.loss()
            trust = task.steps(np.ones(M))
            began = time.perf_counter()
            found = limits(task, np.zeros((M, 1, P)), [trust], step)
            direct = time.perf_counter() - began
            theta, alpha, taken = np.zeros((M, 1, P)), np.full((M, 1), step), 0.0
            while np.abs(theta - found.theta).max() > accuracy:
                began = time.perf_counter()
                _kernels.rounds(combiner, loss, theta, alpha, 200, np.empty((200, 1)), np.array([np.inf]), 1)
                taken += time.perf_counter() - began
            rows.append(
                row(f"{family}, D = {D}, step {step:g}, to {accuracy:g}: rounds / limit", taken / direct, wanted)
            )
    return rows


@section
def unequal_clients(repeats: int) -> list[Row]:
    sizes = np.geomspace(10, 1000, M).astype(int)
    np.random.default_rng(2).shuffle(sizes)
    rows = []
    for family in ("binomial", "poisson"):
        even, uneven = problem(family, np.full(M, sizes.sum() // M)), problem(family, sizes)
        t = seconds({"even": ours(even), "uneven": ours(uneven)}, repeats)
        per_row = np.median(t["uneven"] / t["even"]) * even.glm.data.n_rows / uneven.glm.data.n_rows
        rows.append(row(f"{family}, 10 to 1000 rows a client / equal, per row", per_row, "<= 1.15"))
    return rows


@section
def large(repeats: int) -> list[Row]:
    task = problem("binomial", np.full(M, 20_000))
    X = task.glm.data.X
    one, two = ours(task, 3), ours(task, 3, threads=2)
    np.testing.assert_array_equal(one(), two())
    t = seconds({"one": one, "two": two, "sum": lambda: [X.sum() for _ in range(3)]}, repeats)
    share = 100 * np.median(t["sum"] / t["one"])
    return [
        row("binomial, N p = 10^8: % of the bandwidth of X.sum()", share, ">= 60"),
        row("binomial, N p = 10^8: one thread / two", np.median(t["one"] / t["two"]), ">= 1.6"),
    ]


@section
def threads(repeats: int) -> list[Row]:
    task = problem("binomial", np.full(20, 50), p=3)
    t = seconds({k: ours(task, 5000, threads=k) for k in (1, 2)}, repeats)
    return [row("binomial, M = 20, n = 50, p = 3: two threads / one", np.median(t[2] / t[1]), "<= 1.05")]


@section
def growth(repeats: int) -> list[Row]:
    rows, clients = [], np.array([100, 1000, 10_000, 100_000])
    for family in ("gaussian", "binomial"):
        calls = {k: ours(problem(family, np.full(k, 20), p=10), 1_000_000 // k) for k in clients}
        t = seconds(calls, repeats)
        each = [np.median(t[k]) / (1_000_000 // k) for k in clients]
        slope = np.polyfit(np.log(clients), np.log(each), 1)[0]
        rows.append(row(f"{family}, n = 20, p = 10: exponent in M of a round, 10^2 to 10^5", slope, "<= 1.05"))
    return rows


@section
def many_clients(_: int) -> list[Row]:
    """A fit of 10^5 clients of 5 to 50 rows, once, in seconds of the processor: a loop over clients would show."""
    task = problem("binomial", np.random.default_rng(3).integers(5, 51, 100_000), p=10)
    made: list = []
    steps = {
        "construct the model": lambda: made.append(ad.DecentralizedGLM(task.glm.data, task.network, "binomial")),
        "5 rounds of DFL, and evaluate": lambda: made.append(made[0].fit(ad.DFL(), step=0.1, rounds=5, threads=1)),
        "summary": lambda: str(made[1].summary()),
    }
    rows = []
    for name, step in steps.items():
        began = time.process_time()
        step()
        rows.append(row(f"binomial, M = 10^5, p = 10: {name}, CPU seconds", time.process_time() - began))
    return rows


def memory() -> list[Row]:
    """The peak of a large fit, in a process of its own."""
    script = Path(__file__).with_name("memory.py")
    found = subprocess.run([sys.executable, str(script)], check=True, capture_output=True, text=True)
    return [row("peak of a logistic fit / its data, 10^6 x 50", float(found.stdout), "<= 1.15")]


def main() -> None:
    parser = options_of(__doc__)
    parser.add_argument("--repeats", type=int, default=7)
    parser.add_argument("--only", type=lambda text: text.split(","), default=list(SECTIONS), help=", ".join(SECTIONS))
    parser.add_argument("--memory", action="store_true", help="measure the peak memory of a large fit (about 1 GiB)")
    options = parser.parse_args()
    warnings.simplefilter("ignore", ad.ConditionWarning)  # of small clients, which are meant to be there
    rows = [line for name in options.only for line in SECTIONS[name](options.repeats)]
    if options.memory:
        rows += memory()
    publish(f"M = n = {N_ROWS}, p = {P}, circle D = {D}, one thread, median of {options.repeats}", rows, options)


if __name__ == "__main__":
    main()
