"""Garbage for every argument of what users call: a refusal that names the argument, or a sound object."""

import contextlib
import re
import tempfile
import warnings
from functools import cache
from pathlib import Path

import numpy as np
import pandas as pd
from scipy import sparse
from statsmodels.tools.sm_exceptions import ModelWarning

import adfl_stats as ad

FOLDER = tempfile.TemporaryDirectory()
REFUSALS = (ValueError, TypeError, ImportError, OSError, MemoryError, ad.DivergenceError)


def values(rng):
    """Return a value of a kind that somebody may pass by mistake."""
    n = int(rng.integers(0, 30))
    kinds = [
        lambda: None, lambda: float(rng.choice([0.0, -1.0, 1e-300, 1e300, np.nan, np.inf, -np.inf, 0.5])),
        lambda: int(rng.choice([0, -1, 1, 2**31, 2**62, 7])), lambda: bool(rng.integers(2)),
        lambda: str(rng.choice(["", "a", "1", "y ~ x", "\x00", "é" * 50, "auto", "none", "../x", "<b>", "nan"])),
        lambda: b"bytes", lambda: [], lambda: (), lambda: {}, lambda: {"a": 1}, lambda: set(), lambda: object(),
        lambda: np.array(rng.normal()), lambda: rng.normal(size=n), lambda: rng.normal(size=(n, 2)),
        lambda: rng.normal(size=(2, n, 2)), lambda: rng.integers(0, 5, n), lambda: rng.normal(size=n).astype(str),
        lambda: rng.normal(size=n) * 1j, lambda: np.full(n, np.nan), lambda: np.array([None] * n, dtype=object),
        lambda: np.ma.masked_less(rng.normal(size=n), 0.0), lambda: pd.Series(rng.normal(size=n)),
        lambda: pd.Series(list("ab") * n, dtype="category"), lambda: pd.DataFrame(rng.normal(size=(n, 3))),
        lambda: pd.DataFrame({"y": rng.normal(size=n), "x": ["a"] * n}), lambda: pd.date_range("2020", periods=n),
        lambda: sparse.csr_array((n, n)), lambda: sparse.eye_array(max(1, n), format="csr"), lambda: np.eye(max(1, n)),
        lambda: np.ones((n, n)), lambda: -np.eye(max(1, n)), lambda: iter([1, 2]), lambda: range(n), lambda: len,
        lambda: ad.networks.complete(max(1, n)), lambda: ad.DFL(), lambda: ad.DFL, lambda: np.float32(0.1),
        lambda: pd.NA, lambda: pd.NaT, lambda: 1 + 2j, lambda: np.zeros((0, 3)), lambda: [[1, 2], [3]],
        lambda: "gaussian", lambda: 10**400, lambda: np.array(["2020-01-01"], dtype="M8[D]"),
        lambda: rng.normal(size=(n, n))[::-1], lambda: np.asfortranarray(rng.normal(size=(12, 2))),
        lambda: 10.0 ** rng.integers(-320, 308, size=12).astype(float),
    ]  # fmt: skip
    return kinds[rng.integers(len(kinds))]()


@cache
def sound():
    """Return good arguments of what users call. A name may stand for a call that needs a fit first."""
    rng = np.random.default_rng(0)
    M, n = 4, 12
    X, y, client = rng.normal(size=(M * n, 2)), rng.normal(size=M * n), np.repeat(np.arange(M), n)
    frame = pd.DataFrame({"y": y, "x": X[:, 0], "g": rng.choice(list("uv"), M * n), "site": client})
    offsets = np.arange(0, M * n + 1, n)
    A = np.ones((M, M))
    data, net = ad.ClientData.from_arrays(X, y, client), ad.networks.complete(M)
    model = ad.DecentralizedGLM(data, net)
    res = model.fit(ad.DFL(), step=0.05, rounds=30, keep_data=True)
    folder = Path(FOLDER.name)
    pd.DataFrame({"source": [0, 1, 2, 3], "target": [1, 2, 3, 0]}).to_csv(folder / "net.csv")
    res.save(folder / "fit.npz")
    whole = model.fit(keep_data=True)
    one_column = ad.ClientData.from_arrays(X[:, :1], y, client)
    smaller = ad.DecentralizedGLM(one_column, net).fit(ad.DFL(), step=0.05, rounds=30, keep_data=True)
    simulated = {"M": 4, "n": 10, "p": 2, "abnormal": 0.25, "corruption": "BF", "seed": 1}
    calls = [
        (ad.ClientData.from_arrays, {"X": X, "y": y, "client": client, "names": None, "offset": None, "exposure": None,
                                     "weights": None, "freq_weights": None}),
        (ad.ClientData.from_frame, {"frame": frame, "formula": "y ~ x + g", "client": "site", "offset": None,
                                    "exposure": None, "weights": None, "missing": "raise"}),
        (ad.ClientData, {"X": X, "y": y, "offsets": offsets, "labels": pd.RangeIndex(M), "names": ["a", "b"],
                         "linear_offset": None, "row_weights": None, "set_aside": None}),
        (ad.Network.from_adjacency, {"A": A, "labels": None}),
        (ad.Network.from_weights, {"W": A / M, "labels": None}),
        (ad.Network.from_edges, {"edges": [(0, 1), (1, 0), (1, 2), (2, 0)], "labels": None}),
        (ad.Network.from_file, {"path": str(folder / "net.csv")}),
        (ad.load, {"path": str(folder / "fit.npz")}),
        (ad.DecentralizedGLM, {"data": data, "network": net, "family": "gaussian", "weighting": "sample",
                               "penalty": None}),
        (ad.DecentralizedGLM.from_formula, {"formula": "y ~ x + g", "frame": frame, "client": "site", "network": net,
                                            "family": "gaussian"}),
        (ad.networks.directed_circle, {"M": 6, "D": 2, "labels": None}),
        (ad.networks.complete, {"M": 6, "labels": None}),
        (ad.networks.central_client, {"M": 6, "labels": None}),
        (ad.networks.erdos_renyi, {"M": 6, "q": 0.6, "seed": 1}),
        (ad.networks.fixed_degree, {"M": 6, "D": 2, "seed": 1}),
        (ad.networks.small_world, {"M": 6, "k": 2, "beta": 0.1, "seed": 1}),
        (ad.networks.scale_free, {"M": 6, "m": 2, "seed": 1}),
        (ad.networks.random_geometric, {"M": 6, "radius": 0.7, "seed": 1}),
        (ad.networks.stochastic_block, {"sizes": [3, 3], "p_in": 0.9, "p_out": 0.5, "seed": 1}),
        (ad.networks.schedule, {"networks": [net], "every": 2}),
        (ad.networks.dropout, {"network": net, "probability": 0.2, "seed": 1, "every": 1}),
        (ad.ADFL, {"lam": 2.0, "stages": 2, "init": None, "measure": None, "refresh": None, "balance": True}),
        (ad.DFL, {"weights": None, "balance": False, "init": None}),
        (ad.Bridge, {"rule": "trimmed", "b": 1, "init": None}),
        (ad.ClippedGossip, {"radius": "second", "delta": None, "abnormal": None}),
        (ad.GeometricMedian, {"iterations": 16, "smoothing": 1e-6}),
        (ad.IOS, {"b": 1}), (ad.NNA, {"b": 1}), (ad.UBAR, {"near": 0.4, "own": 0.5}),
        (ad.SLBRN, {"rule": "median", "b": None, "penalty": 0.0}),
        (ad.TrimmedScores, {"starts": 2, "handful": 2, "seed": 0}),
        (ad.Oracle, {"abnormal": [0]}),
        (ad.Ridge, {"c": 0.1}), (ad.Huber, {"c": 1.3, "scale": None}),
        (ad.family, {"name": "binomial", "link": None, "alpha": None, "var_power": None}),
        (ad.mallows, {"data": data, "c": 3.0}),
        (ad.check_network, {"net": net}),
        (ad.design, {"se": 0.1, "sigma": 1.0, "tau": 0.0, "p": 3, "clients": 10, "rows": None}),
        (ad.screen, {"res": res, "q": 0.1, "method": "score"}),
        (ad.attacks.SignFlip, {"clients": [0], "scale": 1.0}), (ad.attacks.ALIE, {"clients": [0], "z": None}),
        (ad.attacks.Gaussian, {"clients": [0], "sd": 30.0, "seed": 0}),
        (ad.simulate.paper_linear, simulated),
        (ad.simulate.glm_design, {"family": "binomial", "noise": 1.0, "link": None, **simulated}),
        (ad.simulate.hospitals, {"seed": 1, "M": 5, "abnormal": 1, "n": 20}),
        (ad.Study, {"methods": ["DFL"], "networks": {"ours": net}, "designs": ["gaussian"], "corruptions": ["BF"],
                    "shares": [0.0], "sizes": {"n": 20, "p": 2}, "replicates": 2, "seed": 1}),
        (res.conf_int, {"alpha": 0.05, "cov_type": None}),
        (res.cov_params, {"cov_type": None}),
        (res.summary, {"alpha": 0.05, "cov_type": None}),
        (res.get_prediction, {"X": X[:3], "offset": None, "exposure": None, "cov_type": None}),
        (res.predict, {"X": X[:3], "offset": None, "exposure": None}),
        (res.t_test, {"r_matrix": "x1 = 0", "cov_type": None}),
        (res.wald_test, {"r_matrix": "x1 = x2", "cov_type": None}),
        (res.heterogeneity, {"alpha": 0.05}),
        (res.detection_limit, {"share": 0.2, "power": 0.8}),
        (res.oracle, {"abnormal": [0], "data": data}),
        (res.check, {"abnormal": None, "theta0": None}),
        (res.compare_lr_test, {"restricted": smaller}),
        (smaller.score_test, {"larger": model, "cov_type": None}),
        (res.get_robustcov_results, {"cov_type": "HC1"}),
        (whole.bootstrap, {"B": 4, "seed": 1, "progress": False}),
        (res.save, {"path": str(folder / "out.npz")}),
        (res.report, {"path": str(folder / "out.html"), "title": None, "alpha": 0.05, "also": ()}),
        (model.rates, {"res": res}),
        (model.advise, {"tolerance": 0.05, "method": None}),
        (net.lazy, {"w": 0.5}),
        (net.gossip, {"k": 2}),
        (net.reindex, {"labels": list(range(M))}),
    ]  # fmt: skip
    # A fit has more ways to go wrong than any other call.
    fit = (model.fit, {"method": ad.DFL(), "step": 0.05, "rounds": 3, "solver": "auto", "heterogeneity": "auto",
                       "threads": 1, "tolerance": 0.05, "attack": None})  # fmt: skip
    return [*calls, fit, fit, fit]


def case(seed):
    rng = np.random.default_rng([3, seed])
    calls = sound()
    call, usual = calls[rng.integers(len(calls))]
    arguments = dict(usual)
    changed = rng.choice(list(arguments), size=min(len(arguments), int(rng.choice([1, 1, 1, 2, 3]))), replace=False)
    for name in changed:
        arguments[str(name)] = values(rng)
    # Some write files, by whatever name they get.
    with warnings.catch_warnings(), contextlib.chdir(FOLDER.name):
        warnings.simplefilter("error")
        warnings.simplefilter("ignore", ad.AdflWarning)
        # What it says of contrasts that depend on one another.
        warnings.simplefilter("ignore", ModelWarning)
        try:
            found = call(**arguments)
        except REFUSALS as error:
            named(error, call, arguments, [str(name) for name in changed])
            return
    check(found)


def named(error, call, arguments, changed):
    """A refusal has words; it names an argument, or what it is part of."""
    text = str(error)
    assert len(text) > 10, repr(error)
    if isinstance(error, TypeError) and "unexpected keyword argument" in text:
        raise AssertionError(f"the fuzzer passes an argument that {call} does not have: {error}")
    # As a word of its own: "c" is in nearly every text. One argument may make another one wrong.
    parts = ("client", "column", "row", "label", "edges", "formula", "network", "family", "data", "frame", "file")
    words = "|".join(re.escape(word) + "s?" for word in (*arguments, *parts))
    assert re.search(rf"(?<!\w)({words})(?!\w)", text, re.IGNORECASE), (call, changed, text)


def check(found):
    """What was built is sound."""
    if isinstance(found, ad.ClientData):
        assert np.isfinite(found.X).all()
        assert np.isfinite(found.y).all()
        assert (np.diff(found.offsets) > 0).all()
        repr(found)
    elif isinstance(found, ad.Network):
        np.testing.assert_allclose(np.asarray(found.W.sum(axis=1)).ravel(), 1.0)
        repr(found)
    elif isinstance(found, ad.Results):
        assert np.isfinite(found.client_params.to_numpy()).all()
