"""Files with flipped bytes, cut off, or filled with noise: read as they were, or refused with their name."""

import tempfile
import warnings
from functools import cache
from pathlib import Path

import numpy as np
import pandas as pd
from scipy import io, sparse

import adfl_stats as ad


@cache
def originals():
    """Return the content of good files by name, and what they hold."""
    rng = np.random.default_rng(0)
    frame = pd.DataFrame(
        {"site": np.repeat(list("abcd"), 15), "x": rng.normal(size=60), "g": rng.choice(["u", "v"], 60)}
    )
    frame["y"] = frame["x"] + rng.normal(size=60)
    net = ad.networks.complete(4, labels=list("abcd"))
    with tempfile.TemporaryDirectory() as folder, warnings.catch_warnings():
        warnings.simplefilter("ignore")
        home = Path(folder)
        model = ad.DecentralizedGLM.from_formula("y ~ x + g", frame, client="site", network=net)
        res = model.fit(ad.DFL(), step=0.05, rounds=3)
        res.save(home / "fit.npz")
        A = sparse.csr_array(np.ones((5, 5)) - np.eye(5))
        sparse.save_npz(home / "net.npz", A)
        np.savez_compressed(home / "dense.npz", A=A.toarray())
        np.save(home / "net.npy", A.toarray())
        io.mmwrite(home / "net.mtx", A)
        pd.DataFrame({"source": list("abcd"), "target": list("bcda")}).to_csv(home / "net.csv", index=False)
        frame.to_parquet(home / "rows.parquet")
        return {path.name: path.read_bytes() for path in sorted(home.iterdir())}, res.client_params


def damaged(rng, content):
    """Return a file's content, changed in one of the ways in which files are damaged."""
    changed = bytearray(content)
    kind = rng.integers(5)
    at = int(rng.integers(len(changed)))
    if kind == 0:
        changed[at] ^= 1 << int(rng.integers(8))
    elif kind == 1:
        changed = changed[:at]
    elif kind == 2:
        length = int(rng.integers(1, 200))
        changed[at : at + length] = bytes(len(changed[at : at + length]))
    elif kind == 3:
        changed[at:at] = rng.bytes(int(rng.integers(1, 50)))
    else:
        changed = bytearray(rng.bytes(int(rng.integers(0, 400))))
    return bytes(changed)


def case(seed):
    rng = np.random.default_rng([4, seed])
    contents, params = originals()
    name = str(rng.choice(list(contents)))
    content = damaged(rng, contents[name])
    with tempfile.TemporaryDirectory() as folder, warnings.catch_warnings():
        warnings.simplefilter("ignore")
        path = Path(folder) / name
        path.write_bytes(content)
        try:
            if name == "fit.npz":
                loaded = ad.load(path)
                assert content == contents[name], "a damaged file was loaded"
                np.testing.assert_array_equal(loaded.client_params, params)
            elif name == "rows.parquet":
                # Parquet has checksums of its own only where the writer has asked for them.
                assert np.isfinite(ad.ClientData.from_parquet(path, "y ~ x + g", "site").X).all()
            else:
                net = ad.Network.from_file(path)
                np.testing.assert_allclose(np.asarray(net.W.sum(axis=1)).ravel(), 1.0)
        except (ValueError, TypeError, OSError) as error:
            # Empty or not, each has words; those of files have the file's name.
            assert str(error), repr(error)
            if isinstance(error, ad.StorageError):
                assert name in str(error), error
