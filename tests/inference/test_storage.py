"""Files of results and networks: an exact copy, or one kind of error with the file's name."""

import json
import tracemalloc
import zipfile

import numpy as np
import pandas as pd
import pytest
from scipy import sparse

import adfl_stats as ad
from adfl_stats import _archives
from adfl_stats.data.formula_state import formula_of, words_of

FORMULA = "y ~ center(x) + bs(z, df=4) + C(g, contr.sum) + np.exp(x / 3):k - 1"


@pytest.fixture(scope="module")
def frame():
    rng = np.random.default_rng(0)
    n = 240
    table = pd.DataFrame(
        {"x": rng.normal(2.0, 1.0, n), "z": rng.uniform(size=n), "site": np.repeat(list("abcdef"), 40)}
    )
    table["g"], table["k"] = rng.choice(["u", "v", "w"], n), pd.Categorical(rng.choice([1, 2], n))
    return table.assign(y=table["x"] + rng.normal(size=n))


@pytest.fixture(scope="module")
def res(frame):
    data = ad.ClientData.from_frame(frame, FORMULA, "site")
    return ad.DecentralizedGLM(data, ad.networks.complete(6, labels=list("abcdef"))).fit(ad.DFL(), step=0.05, rounds=20)


@pytest.fixture
def path(res, tmp_path):
    res.save(tmp_path / "fit.npz")
    return tmp_path / "fit.npz"


def refused(path, words="does not hold"):
    """Loading must raise the one class of errors, whose message begins with the file's name."""
    with pytest.raises(ad.StorageError, match=words) as caught:
        ad.load(path)
    assert str(caught.value).startswith(f"{path} does not hold results written by Results.save: ")


def rewritten(path, words=None, **changes):
    """Change arrays or words of a file and write it with a valid digest, as only somebody could who knows it."""
    arrays = _archives.read_arrays(path)
    known = json.loads(arrays.pop("json").tobytes()) | (words or {})
    known = {name: value for name, value in known.items() if value is not ...}
    arrays = {name: value for name, value in (arrays | changes).items() if value is not None}
    arrays["json"] = np.frombuffer(json.dumps(known).encode(), dtype=np.uint8)
    _archives.write_arrays(path, arrays)


def test_the_same_results_are_the_same_file(res, path, tmp_path):
    ad.load(path).save(tmp_path / "again.npz")
    assert (tmp_path / "again.npz").read_bytes() == path.read_bytes()


def test_no_flipped_bit_is_read(path):
    content = path.read_bytes()
    for at in np.random.default_rng(1).integers(8 * len(content), size=400):
        changed = bytearray(content)
        changed[at // 8] ^= 1 << (at % 8)
        path.write_bytes(changed)
        refused(path)


def test_no_part_of_a_file_is_read(path):
    content = path.read_bytes()
    for length in [*range(0, 200, 20), *np.linspace(200, len(content) - 1, 20, dtype=int)]:
        path.write_bytes(content[:length])
        refused(path, "cut off|differs")
    path.write_bytes(content + b"x")
    refused(path)


BAD_ARRAYS = {
    "NaN": (lambda a: {"theta": a["theta"] * np.nan}, "'theta' has NaN or infinite values"),
    "complex": (lambda a: {"theta": a["theta"] * 1j}, "'theta' holds complex128"),
    "text": (lambda a: {"weights": np.array(["a"] * 6)}, "'weights' holds <U1"),
    "shape": (lambda a: {"theta": a["theta"][:5]}, r"'theta' has shape \(5, 10\); wanted is \(6, 10\)"),
    "axes": (lambda a: {"sizes": np.ones((6, 1))}, "'sizes' has shape"),
    "negative weight": (lambda a: {"W.data": -a["W.data"]}, "W.data has weights that are negative"),
    "weights that do not sum to one": (lambda a: {"W.data": 2 * a["W.data"]}, "or do not sum to 1"),
    "far index": (lambda a: {"W.indices": a["W.indices"] + 2**30}, "W.indices names clients beyond the 6"),
    "negative index": (lambda a: {"W.indices": a["W.indices"] - 9}, "W.indices names clients beyond"),
    "indptr": (lambda a: {"W.indptr": a["W.indptr"][::-1].copy()}, "W.indptr does not divide"),
    "short indptr": (lambda a: {"W.indptr": a["W.indptr"][:3]}, "do not fit 6 clients"),
    "float indices": (lambda a: {"W.indices": a["W.indices"] * 1.0}, "wrong type"),
    "no network": (lambda a: {"W.data": None}, "it lacks a part of the network"),
    "no theta": (lambda a: {"theta": None}, "it lacks 'theta'"),
    "no sizes": (lambda a: {"sizes": None}, "it lacks 'sizes'"),
    "no hessian": (lambda a: {"weighted_sums.hessian": None}, "it lacks 'hessian'"),
    "further arrays": (lambda a: {"more": np.ones(1) * 1j}, "'more' holds complex128"),
}


@pytest.mark.parametrize("kind", BAD_ARRAYS)
def test_arrays_are_checked(path, kind):
    change, words = BAD_ARRAYS[kind]
    rewritten(path, **change(_archives.read_arrays(path)))
    refused(path, words)


BAD_WORDS = {
    "labels twice": ({"labels": list("abcdea")}, "its labels do not name each client once"),
    "no labels": ({"labels": []}, "its labels do not name"),
    "few labels": ({"labels": list("abc")}, "has shape"),
    "format": ({"format": 7}, "it has format 7, this version reads format 9"),
    "no format": ({"format": ...}, "it has no words"),
    "no method": ({"method": ...}, "it lacks 'method'"),
    "family": ({"family": {"name": "cauchy"}}, "on reading it"),
    "family of words": ({"family": "gaussian"}, "TypeError on reading it"),
    "names": ({"names": 7}, "TypeError on reading it"),
    "code": ({"formula": {"text": "y ~ __import__('os').getcwd()", "names": [], "full_rank": True,
                          "transforms": ["dict", []], "encoders": []}}, "on reading it"),
}  # fmt: skip


@pytest.mark.parametrize("kind", BAD_WORDS)
def test_words_are_checked(path, kind):
    words, message = BAD_WORDS[kind]
    rewritten(path, words)
    refused(path, message)


def sealed(path, write):
    """Write an archive by a function, with a valid digest."""
    with zipfile.ZipFile(path, "w") as archive:
        write(archive)
        archive.comment = _archives.MARK + b"0" * 64
    content = path.read_bytes()[:-64]
    path.write_bytes(content + _archives.hashlib.sha256(content).hexdigest().encode())


def announcing(shape):
    return (
        b"\x93NUMPY\x01\x00v\x00"
        + f"{{'descr': '<f8', 'fortran_order': False, 'shape': {shape}, }}".ljust(118).encode()
    )


BOMBS = {
    "compressed zeros": lambda archive: archive.writestr("theta.npy", bytes(2**28), zipfile.ZIP_DEFLATED),
    "header": lambda archive: archive.writestr("theta.npy", announcing((2**20, 2**20))),
    "negative shape": lambda archive: archive.writestr("theta.npy", announcing((-1, -1))),
    "overflowing shape": lambda archive: archive.writestr("theta.npy", announcing((2**32, 2**32))),
    "nested header": lambda archive: archive.writestr("theta.npy", b"\x93NUMPY\x01\x00\xf0\xff" + b"(" * 65520),
    "no array": lambda archive: archive.writestr("theta.npy", b"hello"),
    "objects": lambda archive: archive.writestr("x.npy", b"\x93NUMPY\x01\x00\x46\x00{'descr': '|O', 'fortran_order': "
                                                         b"False, 'shape': (1,), }           \ncxyz"),
    "empty": lambda archive: None,
}  # fmt: skip


@pytest.mark.parametrize("kind", BOMBS)
def test_memory_is_not_taken_for_what_a_file_announces(tmp_path, kind):
    sealed(tmp_path / "bomb.npz", BOMBS[kind])
    tracemalloc.start()
    try:
        refused(tmp_path / "bomb.npz")
        assert tracemalloc.get_traced_memory()[1] < 2**24
    finally:
        tracemalloc.stop()


def test_a_file_keeps_its_mode_and_a_link_its_target(res, path, tmp_path):
    path.chmod(0o640)
    (tmp_path / "link.npz").symlink_to(path)
    res.save(tmp_path / "link.npz")
    assert (tmp_path / "link.npz").is_symlink()
    assert path.stat().st_mode & 0o777 == 0o640
    assert sorted(p.name for p in tmp_path.iterdir()) == ["fit.npz", "link.npz"]


def test_a_file_that_cannot_be_written_is_named(res, tmp_path):
    with pytest.raises(FileNotFoundError, match=r"the file was not written: .*none/fit.npz"):
        res.save(tmp_path / "none" / "fit.npz")


# ------------------------------------------------------------------ formulas


def test_predictions_of_a_formula_are_those_before(res, path, frame):
    loaded = ad.load(path)
    for rows in (frame, frame.iloc[[7]], frame[frame["g"] == "v"]):
        pd.testing.assert_series_equal(loaded.predict(rows), res.predict(rows), check_exact=True)
    for results in (res, loaded):
        with pytest.raises(ValueError, match="the column 'g' of X has the level 'q', which the data"):
            results.predict(frame.assign(g="q"))
        with pytest.raises(ValueError, match="lacks the formula's variables 'z'"):
            results.predict(frame.drop(columns="z"))


@pytest.mark.parametrize(
    "text",
    [
        "y ~ x + g", "y ~ g - 1", "y ~ poly(x, 2):g", "y ~ scale(x) * k", "y ~ C(g, contr.helmert)", "y ~ {x + 1}",
        "y ~ C(g, contr.treatment('v')) + C(k, contr.poly)", "y ~ C(np.floor(x))", "y ~ cs(z, df=3)", "y ~ k:g + `a b`",
    ],
)  # fmt: skip
def test_specifications_become_words_and_back(frame, text):
    table = frame.assign(**{"a b": frame["x"] ** 2})
    data = ad.ClientData.from_frame(table, text, "site")
    parsed, again = formula_of(json.loads(json.dumps(words_of(data.formula, data.spec))))
    assert parsed.variables == data.formula.variables
    spec = data.spec
    rows = table.iloc[[3, 100, 4]]
    pd.testing.assert_frame_equal(again.get_model_matrix(rows), spec.get_model_matrix(rows), check_exact=True)


@pytest.mark.parametrize(
    "text",
    [
        "x.sum()",
        "open('a')",
        "np.load(x)",
        "np.lib.format",
        "(lambda: x)()",
        "x[0]",
        "__name__",
        "[v for v in x]",
        "f(x)",
    ],
)
def test_a_file_brings_no_code_along(text):
    words = {"text": f"y ~ x + {{{text}}}", "names": [], "full_rank": True, "transforms": ["dict", []], "encoders": []}
    with pytest.raises(TypeError, match="the formula has the term"):
        formula_of(words)


def test_a_formula_that_a_file_cannot_keep_is_explained(frame, tmp_path):
    data = ad.ClientData.from_frame(frame, "y ~ x.clip(0, 3)", "site")
    model = ad.DecentralizedGLM(data, ad.networks.complete(6, labels=list("abcdef")))
    model.fit(ad.DFL(), step=0.05, rounds=3).save(tmp_path / "fit")
    loaded = ad.load(tmp_path / "fit")
    with pytest.raises(ValueError, match=r"the file did not keep its formula \(the formula has the term 'x.clip"):
        loaded.predict(frame)
    assert len(loaded.predict(pd.DataFrame({"Intercept": [1.0], "x.clip(0, 3)": [1.0]}))) == 1


# ------------------------------------------------------------------ networks


def test_network_files_are_checked_before_memory_is_taken(tmp_path):
    (tmp_path / "a.npy").write_bytes(announcing((2**20, 2**20)) + bytes(80))
    with zipfile.ZipFile(tmp_path / "b.npz", "w", zipfile.ZIP_DEFLATED) as archive:
        for name in "AB":
            archive.writestr(f"{name}.npy", announcing((2**13, 2**13)) + bytes(2**29))
    (tmp_path / "c.mtx").write_text(
        "%%MatrixMarket matrix coordinate real general\n9999999 9999999 99999999999\n1 1 1\n"
    )
    (tmp_path / "d.mtx").write_text("%%MatrixMarket matrix coordinate real general\n999999999 999999999 1\n1 1 1\n")
    (tmp_path / "e.mtx").write_text("%%MatrixMarket matrix array real general\n99999 99999\n1\n")
    far = sparse.csr_array(np.eye(3))
    far.indices[1] = 2**30
    sparse.save_npz(tmp_path / "f.npz", far)
    for path in sorted(tmp_path.iterdir()):
        tracemalloc.start()
        with pytest.raises(ad.StorageError, match=f"{path.name}', which cannot be read as"):
            ad.Network.from_file(path)
        assert tracemalloc.get_traced_memory()[1] < 2**24, path.name
        tracemalloc.stop()


def test_damaged_network_files_raise_one_class_of_errors(tmp_path):
    """With any byte changed the network is read, or refused as a file or as a network; nothing else is raised."""
    A = sparse.csr_array((np.ones((8, 8)) - np.eye(8)).astype(float))
    sparse.save_npz(tmp_path / "a.npz", A)
    np.save(tmp_path / "b.npy", A.toarray())
    pd.DataFrame({"source": list("abcd"), "target": list("bcda")}).to_csv(tmp_path / "c.csv", index=False)
    rng, refusals = np.random.default_rng(5), 0
    for path in list(tmp_path.iterdir()):
        content = path.read_bytes()
        for at in rng.integers(len(content), size=120):
            changed = bytearray(content)
            changed[at] ^= int(rng.integers(1, 256))
            path.write_bytes(changed)
            try:
                ad.Network.from_file(path)
            except (ValueError, TypeError, ad.NetworkWarning):
                refusals += 1
    assert refusals > 100
