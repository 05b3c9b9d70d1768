"""Coverage of nominal 95 % intervals in small samples, and with abnormal clients that nobody can see.

    python benchmarks/interval_coverage.py [--replicates 1000] [--only hub] [--output FILE] [--given]

Each line is one setting, fitted by the default `fit()` but for what the setting names. Of each kind of covariance, the
least and the largest coverage over the coefficients; "default" is the one that the fit chose, "allowed" are the default
intervals with ``contamination=.2``. Settings with shifted clients have the coverage of the coefficient that is
shifted. Monte-Carlo standard error at 1000 replicates: .007. All settings take about an hour on one core.

With ``--given`` the clients' weights are given, all one, and nobody is flagged: the coverage of CR2 itself, in batches
of data sets, with the degrees of freedom that results have and with Satterthwaite's; seconds for 1000 replicates.
"""

from __future__ import annotations

import os

for name in ("OMP_NUM_THREADS", "OPENBLAS_NUM_THREADS", "MKL_NUM_THREADS"):
    os.environ.setdefault(name, "1")

import argparse
import warnings
import zlib
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path

import numpy as np
import pandas as pd
from scipy import stats

import adfl_stats as ad
from adfl_stats.inference.t_reference import dependent_df

KINDS = ("sandwich", "HC1", "HC2", "HC3", "CR1", "CR2", "CR3")
SHARE = 0.2
# Data sets of one batch.
BATCH = 250


@dataclass(frozen=True)
class Setting:
    """Clients of given sizes, in a linear model with a constant, covariates by row and one by client.

    Attributes
    ----------
    sizes : tuple of int
        Rows of each client.
    slopes : int
        Covariates that vary within clients.
    by_client : bool
        Whether there is a covariate that does not.
    tau : float
        Standard deviation of the clients' own constants and first slopes; the noise has 1.
    uneven : bool
        Whether the noise grows with the first covariate.
    network : callable
        Of the number of clients.
    balance : bool
        Of the method.
    shift : float
        By which a fifth of the clients have another constant, in standard deviations of the noise.
    """

    sizes: tuple[int, ...]
    slopes: int = 1
    by_client: bool = True
    tau: float = 0.0
    uneven: bool = False
    network: Callable[[int], ad.Network] = ad.networks.complete
    balance: bool = True
    shift: float = 0.0

    def rows(self, rng: np.random.Generator, sets: int) -> tuple[np.ndarray, np.ndarray, np.ndarray]:
        """Return X (sets, N, P) and y (sets, N) of some data sets, all coefficients being one, and the clients."""
        M, client = len(self.sizes), np.repeat(np.arange(len(self.sizes)), self.sizes)
        columns = [np.ones((sets, len(client), 1)), rng.normal(size=(sets, len(client), self.slopes))]
        if self.by_client:
            columns.append(rng.normal(size=(sets, M, 1))[:, client])
        X = np.concatenate(columns, axis=2)
        own = self.tau * rng.normal(size=(sets, M, 2))[:, client]
        noise = rng.normal(size=X.shape[:2]) * (np.sqrt(0.2 + X[:, :, 1] ** 2) if self.uneven else 1.0)
        y = X.sum(axis=2) + own[:, :, 0] + own[:, :, 1] * X[:, :, 1] + noise
        return X, y + self.shift * (client < round(SHARE * M)), client

    def draw(self, rng: np.random.Generator) -> tuple[ad.DecentralizedGLM, np.ndarray]:
        """Return a model of new data, and the truth."""
        X, y, client = self.rows(rng, 1)
        data = ad.ClientData.from_arrays(X[0], y[0], client)
        return ad.DecentralizedGLM(data, self.network(len(self.sizes))), np.ones(X.shape[2])

    @property
    def per_row(self) -> np.ndarray:
        """What a row of each client counts in the estimate (M,), where all clients are trusted."""
        M = len(self.sizes)
        return np.ones(M) if self.balance else M * self.network(M).influence.to_numpy()


def hub(M: int) -> ad.Network:
    """Return a directed circle in which everybody hears client 0 as well; of 20 clients 12.6 are left in effect."""
    W = 0.814 * ad.networks.directed_circle(M, 5).W.toarray()
    W[:, 0] += 0.186
    return ad.Network.from_weights(W)


UNEQUAL = tuple(int(size) for size in np.round(np.geomspace(6, 150, 20)))
SETTINGS = {
    "hub, 12.6 effective clients of 20": Setting((30,) * 20, tau=0.5, network=hub, balance=False),
    "hub, clients alike": Setting((30,) * 20, network=hub, balance=False),
    "12 clients": Setting((8, 10, 12, 14, 16, 20, 24, 28, 34, 42, 50, 60), tau=0.5),
    "20 unequal clients": Setting(UNEQUAL, tau=0.5),
    "72 rows, 8 coefficients": Setting((8,) * 9, slopes=7, by_client=False),
    "72 rows, uneven noise": Setting((8,) * 9, slopes=7, by_client=False, uneven=True),
    "6 of 30 clients shifted by .2": Setting((30,) * 30, by_client=False, shift=0.2),
    "6 of 30 clients shifted by .35": Setting((30,) * 30, by_client=False, shift=0.35),
    "6 of 30 clients shifted by .5": Setting((30,) * 30, by_client=False, shift=0.5),
    "6 of 30 clients shifted by .7": Setting((30,) * 30, by_client=False, shift=0.7),
}


def powers(matrices: np.ndarray, exponent: float) -> np.ndarray:
    """Return powers of nonnegative definite matrices, zero where they have no rank."""
    values, vectors = np.linalg.eigh(matrices)
    keep = values > 1e-9 * values.max(axis=-1, keepdims=True)
    scaled = np.where(keep, np.where(keep, values, 1.0) ** exponent, 0.0)
    return (vectors * scaled[..., None, :]) @ np.swapaxes(vectors, -1, -2)


def by_client(X: np.ndarray, y: np.ndarray, sizes: tuple[int, ...], weight: np.ndarray) -> dict[str, np.ndarray]:
    """Return estimates of data sets (R, N, P), CR2 standard errors and two kinds of degrees of freedom, (R, P) each.

    Written out from the definitions, with independent rows as the working model; only the distribution of the estimate
    over its standard error is the package's.
    """
    (R, _, P), starts = X.shape, np.cumsum((0, *sizes[:-1]))
    J = np.add.reduceat(X[:, :, :, None] * X[:, :, None, :], starts, axis=1)
    sums = np.add.reduceat(X * y[:, :, None], starts, axis=1)
    K, omega = weight[:, None, None] * J, weight[:, None, None] ** 2 * J
    H = np.linalg.inv(K.sum(axis=1, keepdims=True))
    params = (H[:, 0] @ (weight[:, None] * sums).sum(axis=1)[:, :, None])[:, :, 0]
    S = H @ omega.sum(axis=1, keepdims=True) @ H
    scores = weight[:, None] * (sums - (J @ params[:, None, :, None])[:, :, :, 0])
    cross = omega @ H @ K
    variance = omega - cross - np.swapaxes(cross, 2, 3) + K @ S @ K
    back = powers(omega, -0.5)
    A = powers(omega, 0.5) @ powers(back @ variance @ back, -0.5) @ back
    parts = (H @ A @ scores[..., None])[..., 0]
    p = np.swapaxes(A, 2, 3) @ H
    left, own = K @ p, np.swapaxes(p, 2, 3) @ omega @ p
    right = H @ omega @ p - 0.5 * S @ left
    shared = np.swapaxes(right, 2, 3) - 0.5 * np.swapaxes(left, 2, 3) @ S
    alone, both = (np.diagonal(part, axis1=2, axis2=3).transpose(0, 2, 1).reshape(R * P, -1) for part in (own, shared))
    low, high = (part.transpose(0, 3, 1, 2).reshape(R * P, -1, P) for part in (left, right))
    df = dependent_df(alone, low, high, both, np.diagonal(S[:, 0], axis1=1, axis2=2).ravel())
    G = np.einsum("rm,mk->rmk", alone, np.eye(alone.shape[1])) - low @ high.transpose(0, 2, 1)
    G -= (low @ high.transpose(0, 2, 1)).transpose(0, 2, 1)
    satterthwaite = np.trace(G, axis1=1, axis2=2) ** 2 / np.square(G).sum(axis=(1, 2))
    return {
        "params": params,
        "se": np.sqrt(np.square(parts).sum(axis=1)),
        "df": df.reshape(R, P),
        "satterthwaite": satterthwaite.reshape(R, P),
    }


def given_weights(setting: Setting, replicates: int, seed: int) -> dict[str, np.ndarray]:
    """Return the coverage of CR2 by coefficient, with both kinds of degrees of freedom, all clients being trusted."""
    hits: dict[str, list[np.ndarray]] = {"df": [], "satterthwaite": []}
    for k in range(0, replicates, BATCH):
        X, y, _ = setting.rows(np.random.default_rng((seed, k)), min(BATCH, replicates - k))
        fits = by_client(X, y, setting.sizes, setting.per_row)
        for kind, hit in hits.items():
            hit.append(np.abs(fits["params"] - 1.0) <= stats.t.isf(0.025, fits[kind]) * fits["se"])
    return {kind: np.concatenate(hit).mean(axis=0) for kind, hit in hits.items()}


def holds(limits: pd.DataFrame, truth: np.ndarray) -> np.ndarray:
    """Return which intervals hold the truth; one without limits does not."""
    return np.asarray((limits[0] <= truth) & (truth <= limits[1]))


def coverage(setting: Setting, replicates: int, seed: int, kinds: tuple[str, ...] = KINDS) -> dict[str, object]:
    """Return the coverage of each kind of interval over the replicates, by coefficient."""
    hits: dict[str, list[np.ndarray]] = {name: [] for name in ("default", "allowed", *kinds)}
    chosen = []
    for rng in np.random.default_rng(seed).spawn(replicates):
        with warnings.catch_warnings():
            warnings.simplefilter("ignore")
            model, truth = setting.draw(rng)
            res = model.fit(ad.ADFL(balance=setting.balance), threads=1)
            hits["default"].append(holds(res.conf_int(), truth))
            hits["allowed"].append(holds(res.conf_int(contamination=SHARE), truth))
            for kind in kinds:
                hits[kind].append(holds(res.conf_int(cov_type=kind), truth))
        chosen.append(res.cov_type)
    share = pd.Series(chosen).value_counts(normalize=True)
    found: dict[str, object] = {name: np.mean(rows, axis=0) for name, rows in hits.items()}
    return found | {"chosen": ", ".join(f"{kind} {part:.0%}" for kind, part in share.items())}


def line(name: str, setting: Setting, replicates: int) -> dict[str, str]:
    """Return a line of the table."""
    found = coverage(setting, replicates, zlib.crc32(name.encode()))
    cells = {"setting": name}
    for key, value in found.items():
        if isinstance(value, np.ndarray):
            shown = value[:1] if setting.shift else value
            cells[key] = f"{shown.min():.3f}" + (f"-{shown.max():.3f}" if len(shown) > 1 else "")
        else:
            cells[key] = str(value)
    return cells


def alone(name: str, setting: Setting, replicates: int) -> dict[str, str]:
    """Return a line of the table with given weights."""
    shares = given_weights(setting, replicates, zlib.crc32(name.encode()))
    return {"setting": name} | {kind: f"{part.min():.3f}-{part.max():.3f}" for kind, part in shares.items()}


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--replicates", type=int, default=1000)
    parser.add_argument("--only", default="", help="settings whose name has this in it")
    parser.add_argument("--output", type=Path, help="also write the table as CSV")
    parser.add_argument("--given", action="store_true", help="the covariance by client alone, nobody being flagged")
    given = parser.parse_args()
    lines = []
    for name, setting in SETTINGS.items():
        if given.only in name and not (given.given and setting.shift):
            lines.append((alone if given.given else line)(name, setting, given.replicates))
            print("; ".join(f"{key} {value}" for key, value in lines[-1].items()), flush=True)
    if given.output is not None:
        pd.DataFrame(lines).to_csv(given.output, index=False)


if __name__ == "__main__":
    main()
