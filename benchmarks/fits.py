"""What users wait for: default fits, inference and a few rounds, as ratios to pooled statsmodels fits and to NumPy.

    python benchmarks/fits.py [--repeats 5] [--markdown] [--output FILE]

One thread; CPU time, which a busy machine disturbs less. A ratio is that of the smallest times over the repeats, the
calls taking turns. Pooled fits are ``GLM(...).fit(cov_type="HC0")``, for the multinomial ``MNLogit``.
"""

from __future__ import annotations

import os

os.environ |= dict.fromkeys(("OMP_NUM_THREADS", "OPENBLAS_NUM_THREADS", "MKL_NUM_THREADS"), "1")

import subprocess
import sys
import time
import warnings
from collections.abc import Callable
from dataclasses import dataclass
from tempfile import TemporaryDirectory
from typing import Any

import numpy as np
import statsmodels.api as sm
from report import Row, options_of, publish, row

import adfl_stats as ad

FAMILIES = {"gaussian": sm.families.Gaussian, "binomial": sm.families.Binomial, "poisson": sm.families.Poisson}
ROUNDS, STEP = 200, 0.05
IMPORTS = """
import time
import numpy, pandas, scipy.linalg, scipy.sparse.linalg, scipy.stats, scipy.special, statsmodels.api, formulaic
began = time.process_time()
import adfl_stats
print(time.process_time() - began)
"""


@dataclass(frozen=True)
class Task:
    """Data of M clients of equal size on a directed circle of in-degree 5."""

    family: str
    X: np.ndarray
    y: np.ndarray
    M: int

    @classmethod
    def draw(cls, family: str) -> Task:
        """Draw the data of a family, nobody corrupted."""
        rng = np.random.default_rng(1)
        if family == "multinomial":
            X = np.column_stack([np.ones(9000), rng.normal(size=(9000, 20))])
            odds = np.exp(X @ rng.normal(size=(21, 10)) * 0.8 / np.sqrt(21))
            shares = np.cumsum(odds / odds.sum(axis=1, keepdims=True), axis=1)
            return cls(family, X, (shares > rng.random((9000, 1))).argmax(axis=1) * 1.0, 60)
        X = np.column_stack([np.ones(10_000), rng.normal(size=(10_000, 49))])
        eta = X @ rng.normal(size=50) * 0.7 / np.sqrt(50)
        y = {
            "gaussian": eta + rng.normal(size=len(X)),
            "binomial": (rng.random(len(X)) < 1 / (1 + np.exp(-eta))) * 1.0,
            "poisson": rng.poisson(np.exp(0.5 * eta)) * 1.0,
        }[family]
        return cls(family, X, y, 100)

    def model(self) -> ad.DecentralizedGLM:
        """Return a new model, without anything that an earlier one has computed."""
        client = np.repeat(np.arange(self.M), len(self.X) // self.M)
        data = ad.ClientData.from_arrays(self.X, self.y, client)
        return ad.DecentralizedGLM(data, ad.networks.directed_circle(self.M, 5), self.family)

    def pooled(self) -> Any:
        """Fit all rows by statsmodels."""
        if self.family == "multinomial":
            return sm.MNLogit(self.y, self.X).fit(disp=0, method="newton", cov_type="HC0")
        return sm.GLM(self.y, self.X, FAMILIES[self.family]()).fit(cov_type="HC0")


def seconds(call: Callable[[], object]) -> float:
    began = time.process_time()
    call()
    return time.process_time() - began


def inference(fits: list[ad.Results]) -> float:
    """Return the CPU time of all that a summary shows, without that of putting it into words.

    The smallest time of a first summary less that of a second.
    """
    times = np.array([(seconds(res.summary), seconds(res.summary)) for res in fits])
    return float(np.subtract(*times.min(axis=0)))


def default_fits(repeats: int) -> list[Row]:
    rows = []
    for family in (*FAMILIES, "multinomial"):
        task = Task.draw(family)
        taken: dict[str, list[float]] = {"fit": [], "pooled": []}
        fits: dict[str, list[ad.Results]] = {"fit()": [], "fit(DFL())": []}
        for _ in range(repeats):
            taken["pooled"].append(seconds(task.pooled))
            taken["fit"].append(seconds(lambda task=task: task.model().fit(threads=1)))  # type: ignore[misc]
            fits["fit()"].append(task.model().fit(threads=1))
            fits["fit(DFL())"].append(task.model().fit(ad.DFL(), threads=1))
        pooled = min(taken["pooled"])
        rows.append(row(f"{family}: build the model and fit() / pooled fit", min(taken["fit"]) / pooled, "<= 8"))
        rows += [
            row(f"{family}: inference after {name} / pooled fit", inference(of) / pooled, "<= 0.4")
            for name, of in fits.items()
        ]
    return rows


def rounds(repeats: int) -> list[Row]:
    """The paper's recursion through `fit`, against the same rounds in NumPy on Gram matrices."""
    task = Task.draw("gaussian")
    model, M, p = task.model(), task.M, task.X.shape[1]
    W, X, y = ad.networks.directed_circle(M, 5).W, task.X.reshape(M, -1, p), task.y.reshape(M, -1, 1)

    def plain() -> np.ndarray:
        Xt = X.transpose(0, 2, 1) / X.shape[1]
        S, b, theta = Xt @ X, Xt @ y, np.zeros((M, p))
        for _ in range(ROUNDS):
            at = W @ theta
            theta = at - STEP * (S @ at[:, :, None] - b)[:, :, 0]
        return theta

    def ours() -> np.ndarray:
        return model.fit(ad.DFL(), step=STEP, rounds=ROUNDS, threads=1).client_params.to_numpy()

    np.testing.assert_allclose(ours(), plain(), rtol=1e-8, atol=1e-10)
    times = [(seconds(plain), seconds(ours)) for _ in range(3 * repeats)]
    best = np.min(times, axis=0)
    return [row(f"fit(DFL(), step={STEP}, rounds={ROUNDS}): NumPy / ours", best[0] / best[1], ">= 1")]


def imports(repeats: int) -> list[Row]:
    """The package beyond its dependencies, compiled to bytecode before, as it is where it was installed."""
    with TemporaryDirectory() as cache:
        environment = {name: value for name, value in os.environ.items() if name != "PYTHONDONTWRITEBYTECODE"}
        environment["PYTHONPYCACHEPREFIX"] = cache
        command = [sys.executable, "-c", IMPORTS]
        taken = [
            float(subprocess.run(command, capture_output=True, check=True, env=environment).stdout)
            for _ in range(repeats + 1)
        ]
    return [row("import beyond dependencies, CPU seconds", min(taken[1:]), "<= 0.3")]


def main() -> None:
    parser = options_of(str(__doc__))
    parser.add_argument("--repeats", type=int, default=5)
    options = parser.parse_args()
    warnings.simplefilter("ignore", ad.AdflWarning)
    rows = [*default_fits(options.repeats), *rounds(options.repeats), *imports(options.repeats)]
    publish("M = n = 100, p = 50 (multinomial: M = 60, n = 150, 9 x 21 parameters), circle D = 5", rows, options)


if __name__ == "__main__":
    main()
