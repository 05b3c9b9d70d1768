"""Garbage for every argument of the constructors and of `fit`: a refusal that names the argument, or a sound object."""

import warnings

import numpy as np
import pandas as pd
from scipy import sparse

import adfl_stats as ad

REFUSALS = (ValueError, TypeError, ImportError, OSError, ad.DivergenceError)


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


def sound(rng):
    """Return good arguments of the four ways in."""
    M, n = 4, 12
    X, y, client = rng.normal(size=(M * n, 2)), rng.normal(size=M * n), np.repeat(np.arange(M), n)
    frame = pd.DataFrame({"y": y, "x": X[:, 0], "g": rng.choice(list("uv"), M * n), "site": client})
    offsets = np.arange(0, M * n + 1, n)
    A = np.ones((M, M))
    data = ad.ClientData.from_arrays(X, y, client)
    return {
        ad.ClientData.from_arrays: {"X": X, "y": y, "client": client, "names": None, "offset": None, "exposure": None,
                                    "weights": None},
        ad.ClientData.from_frame: {"frame": frame, "formula": "y ~ x + g", "client": "site", "offset": None,
                                   "exposure": None, "weights": None, "missing": "raise"},
        ad.ClientData: {"X": X, "y": y, "offsets": offsets, "labels": pd.RangeIndex(M), "names": ["a", "b"],
                        "shift": None, "row_weights": None, "set_aside": None},
        ad.Network.from_adjacency: {"A": A, "labels": None},
        ad.Network.from_weights: {"W": A / M, "labels": None},
        ad.Network.from_edges: {"edges": [(0, 1), (1, 0), (1, 2), (2, 0)], "labels": None},
        ad.DecentralizedGLM: {"data": data, "network": ad.networks.complete(M), "family": "gaussian",
                              "weighting": "sample", "penalty": None},
        ad.networks.directed_circle: {"M": 6, "D": 2, "labels": None},
        ad.networks.erdos_renyi: {"M": 6, "q": 0.6, "seed": 1},
        ad.networks.fixed_degree: {"M": 6, "D": 2, "seed": 1},
        ad.ADFL: {"lam": 2.0, "stages": 2, "balance": True},
        ad.DFL: {"weights": None, "balance": False},
        ad.Bridge: {"rule": "trimmed", "b": 1},
        ad.Ridge: {"c": 0.1},
        ad.family: {"name": "binomial", "link": None},
        ad.check_network: {"net": ad.networks.complete(M)},
        ad.DecentralizedGLM(data, ad.networks.complete(M)).fit: {
            "method": ad.DFL(), "step": 0.05, "rounds": 3, "solver": "auto", "heterogeneity": "auto", "threads": 1,
            "tolerance": 0.05, "attack": None,
        },
    }  # fmt: skip


def case(seed):
    rng = np.random.default_rng([3, seed])
    calls = sound(rng)
    call = list(calls)[rng.integers(len(calls))]
    arguments = dict(calls[call])
    changed = rng.choice(list(arguments), size=min(len(arguments), int(rng.choice([1, 1, 1, 2, 3]))), replace=False)
    for name in changed:
        arguments[str(name)] = values(rng)
    with warnings.catch_warnings():
        warnings.simplefilter("error")
        warnings.simplefilter("ignore", ad.AdflWarning)
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
    words = [*arguments, "client", "column", "row", "label", "edges", "formula", "network", "family", "data", "frame"]
    assert any(word.lower() in text.lower() for word in words), (call, changed, text)


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
