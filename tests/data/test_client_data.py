"""ClientData: from a frame and a formula, from arrays, without copies where none are needed."""

import numpy as np
import pandas as pd
import pytest
from formulaic import model_matrix
from hypothesis import given
from hypothesis import strategies as st

import adfl_stats as ad

FromArrays = ad.ClientData.from_arrays
FromFrame = ad.ClientData.from_frame


@pytest.fixture
def wards():
    """Twelve rows of three interleaved clients; client "u" never sees the level "c" of the factor."""
    rng = np.random.default_rng(5)
    return pd.DataFrame(
        {
            "ward": list("tuvtuvtuvtuv"),
            "y": rng.normal(size=12),
            "x": rng.normal(3.0, 2.0, size=12),
            "group": list("aabcbacabaac"),
            "log size": rng.normal(size=12),
            "days": rng.uniform(1.0, 3.0, size=12),
            "w": rng.uniform(0.5, 2.0, size=12),
        },
        index=np.arange(100, 112),
    )


def by_client(frame, column):
    """The rows' places, grouped by client in order of first appearance."""
    return [i for label in frame[column].unique() for i in np.flatnonzero(frame[column] == label)]


# ------------------------------------------------------------------ frames


@pytest.mark.parametrize(
    "formula",
    [
        "y ~ x",
        "y ~ x - 1",
        "y ~ C(group)",
        "y ~ x * group",
        "y ~ group - 1",
        "y ~ center(x)",
        "y ~ scale(x) + np.exp(x / 10)",
        "y ~ poly(x, 2)",
        "y ~ `log size`",
        "y ~ 1",
    ],
)
def test_design_is_that_of_the_pooled_rows(wards, formula):
    assert "c" not in set(wards.loc[wards["ward"] == "u", "group"])
    data = FromFrame(wards, formula, "ward")
    pooled = model_matrix(formula, wards).rhs
    assert data.names == list(pooled.columns)
    np.testing.assert_array_equal(data.X, pooled.to_numpy(dtype=float)[by_client(wards, "ward")])


def test_centring_uses_the_mean_over_all_clients(wards):
    data = FromFrame(wards, "y ~ center(x)", "ward")
    np.testing.assert_allclose(data.X[:, 1].mean(), 0.0, atol=1e-14)
    own = np.add.reduceat(data.X[:, 1], data.offsets[:-1])
    assert np.abs(own).min() > 0.1


@pytest.mark.parametrize("response", ["y", "np.exp(y)", "I(y ** 2)", "`log size`"])
def test_response_may_be_an_expression(wards, response):
    data = FromFrame(wards, f"{response} ~ x", "ward")
    wanted = model_matrix(response + " - 1", wards).to_numpy()[:, 0]
    np.testing.assert_array_equal(data.y, wanted[by_client(wards, "ward")])
    assert data.y_name == response.strip("`")


def test_offset_exposure_and_weights_follow_their_rows(wards):
    data = FromFrame(wards, "y ~ x", "ward", offset="log size", exposure="days", weights="w")
    order = by_client(wards, "ward")
    np.testing.assert_array_equal(data.linear_offset, (wards["log size"] + np.log(wards["days"])).to_numpy()[order])
    np.testing.assert_array_equal(data.row_weights, wards["w"].to_numpy()[order])
    np.testing.assert_allclose(data.totals, wards.groupby("ward")["w"].sum())


def test_names_of_response_and_client_are_kept(wards):
    data = FromFrame(wards, "y ~ x", "ward")
    assert (data.y_name, data.client_name, list(data.labels), data.n_dropped) == ("y", "ward", ["t", "u", "v"], 0)


@pytest.mark.parametrize("column", ["y", "x", "group", "ward", "w", "days", "log size"])
def test_missing_values_raise_or_are_dropped(wards, column):
    columns = {"offset": "log size", "exposure": "days", "weights": "w"}
    holed = wards.copy()
    holed.loc[[103, 107], column] = None
    with pytest.raises(ValueError, match=rf"missing values \(NaN\) in '{column}' \(2\): 2 rows.*missing='drop'"):
        FromFrame(holed, "y ~ x + group", "ward", **columns)
    dropped = FromFrame(holed, "y ~ x + group", "ward", missing="drop", **columns)
    wanted = FromFrame(wards.drop(index=[103, 107]), "y ~ x + group", "ward", **columns)
    assert dropped.n_dropped == 2
    for part in ("X", "y", "offsets", "linear_offset", "row_weights"):
        np.testing.assert_array_equal(getattr(dropped, part), getattr(wanted, part))


def test_missing_values_in_a_column_that_is_not_used_do_not_matter(wards):
    wards["other"] = np.nan
    assert FromFrame(wards, "y ~ x", "ward").n_rows == 12


LETTERS = list("bacbacbacbac")


@pytest.mark.parametrize(
    ("response", "classes", "codes"),
    [
        pytest.param(LETTERS, ("a", "b", "c"), [1, 0, 2] * 4, id="str"),
        pytest.param(pd.Categorical(LETTERS, list("cba")), ("c", "b", "a"), [1, 2, 0] * 4, id="categorical"),
        pytest.param(pd.Categorical(LETTERS, list("dcba")), ("c", "b", "a"), [1, 2, 0] * 4, id="unused level"),
        pytest.param(pd.Categorical([3, 1, 2] * 4), (1, 2, 3), [2, 0, 1] * 4, id="categorical of numbers"),
        pytest.param([True, False, True] * 4, None, [1, 0, 1] * 4, id="bool"),
        pytest.param(pd.array([True, False, True] * 4, dtype="boolean"), None, [1, 0, 1] * 4, id="nullable bool"),
        pytest.param(pd.array([5, 6, 7] * 4, dtype="Int64"), None, [5, 6, 7] * 4, id="nullable int"),
        pytest.param(np.array([5, 6, 7] * 4, dtype=np.int8), None, [5, 6, 7] * 4, id="int8"),
    ],
)
def test_responses_of_any_kind(wards, response, classes, codes):
    wards["z"] = response
    order = by_client(wards, "ward")
    framed = FromFrame(wards, "z ~ x", "ward")
    given = FromArrays(wards[["x"]], wards["z"], wards["ward"])
    for data in (framed, given):
        assert data.classes == classes
        assert data.y.dtype == np.float64
        np.testing.assert_array_equal(data.y, np.array(codes, dtype=float)[order])


# ------------------------------------------------------------------ arrays


def test_grouped_float64_rows_are_not_copied():
    X, y, client = np.ones((6, 2)), np.arange(6.0), np.repeat([7, 3], 3)
    data = FromArrays(X, y, client)
    assert np.shares_memory(data.X, X)
    assert np.shares_memory(data.y, y)
    assert list(data.labels) == [7, 3]


@pytest.mark.parametrize(
    "change",
    [
        pytest.param(np.asfortranarray, id="Fortran order"),
        pytest.param(lambda X: X.astype(np.float32), id="float32"),
        pytest.param(lambda X: np.repeat(X, 2, axis=0)[::2], id="strided"),
        pytest.param(lambda X: X.tolist(), id="lists"),
    ],
)
def test_other_layouts_are_copied_into_c_order(change):
    X = np.arange(12.0).reshape(6, 2)
    data = FromArrays(change(X), np.arange(6.0), [0, 0, 1, 1, 2, 2])
    assert data.X.flags.c_contiguous
    assert data.X.dtype == np.float64
    np.testing.assert_array_equal(data.X, X)


@given(st.lists(st.sampled_from(["p", "q", "r", "s"]), min_size=1, max_size=30))
def test_rows_are_grouped_stably(client):
    n = len(client)
    X = np.column_stack([np.arange(n), np.ones(n)])
    data = FromArrays(X, np.arange(n), np.array(client), offset=np.arange(n), weights=np.arange(n) + 1.0)
    labels = list(dict.fromkeys(client))
    assert list(data.labels) == labels
    assert data.sizes.tolist() == [client.count(label) for label in labels]
    for m, label in enumerate(labels):
        rows = slice(data.offsets[m], data.offsets[m + 1])
        mine = [i for i in range(n) if client[i] == label]
        for part in (data.X[rows, 0], data.y[rows], data.linear_offset[rows], data.row_weights[rows] - 1.0):
            assert part.tolist() == mine
        assert data.totals[m] == sum(i + 1 for i in mine)


def test_blocks_tile_the_rows_of_a_client():
    n = 20_000
    data = FromArrays(np.ones((n + 5, 1)), np.zeros(n + 5), np.repeat([0, 1], [5, n]))
    blocks = list(data.blocks(1))
    assert len(blocks) > 1
    assert [i for rows in blocks for i in range(rows.start, rows.stop)] == list(range(5, n + 5))


@pytest.mark.parametrize(
    ("X", "names", "wanted"),
    [
        pytest.param(np.ones((2, 3)), None, ["x1", "x2", "x3"], id="default"),
        pytest.param(np.ones((2, 2)), ["a", "b"], ["a", "b"], id="given"),
        pytest.param(pd.DataFrame({"age": [1.0, 2], "dose": [3, 4]}), None, ["age", "dose"], id="frame"),
        pytest.param(pd.DataFrame({"age": [1.0, 2], "dose": [3, 4]}), ["a", "b"], ["a", "b"], id="frame, given"),
        pytest.param(pd.DataFrame([[1.0, 2.0], [3.0, 4.0]]), None, ["0", "1"], id="frame without names"),
    ],
)
def test_names_of_columns(X, names, wanted):
    data = FromArrays(X, pd.Series([0.0, 1.0], name="out"), pd.Series([0, 1], name="site"), names)
    assert (data.names, data.y_name, data.client_name) == (wanted, "out", "site")


def test_arrays_are_read_only_and_the_users_stay_writeable():
    X, y, client = np.ones((4, 1)), np.arange(4.0), np.array([0, 0, 1, 1])
    offset, weights = np.zeros(4), np.ones(4)
    data = FromArrays(X, y, client, offset=offset, weights=weights)
    assert all(array.flags.writeable for array in (X, y, client, offset, weights))
    held = (data.X, data.y, data.offsets, data.linear_offset, data.row_weights)
    assert not any(array.flags.writeable for array in held)


def memmap(folder, array):
    np.save(folder / "X.npy", array)
    return np.load(folder / "X.npy", mmap_mode="r")


@pytest.mark.parametrize("family", ["binomial", "gaussian"])
@pytest.mark.parametrize("kind", ["read-only", "memmap", "shuffled memmap"])
def test_read_only_arrays_and_memory_maps_give_the_same_fit(logistic, tmp_path, kind, family):
    network = ad.networks.directed_circle(8, 3)

    def fit(X, y, client):
        data = FromArrays(X, y, client)
        return data, ad.DecentralizedGLM(data, network, family).fit(ad.DFL(), rounds=20).client_params

    _, wanted = fit(logistic.X.copy(), logistic.y.copy(), logistic.client)
    assert not logistic.X.flags.writeable
    X = logistic.X if kind == "read-only" else memmap(tmp_path, logistic.X)
    order = np.arange(len(X))
    if kind == "shuffled memmap":
        # Clients interleaved, rows in order within each: grouping must restore what was.
        order = np.argsort(np.concatenate([np.arange(n) for n in logistic.sizes]), kind="stable")
        X = memmap(tmp_path, logistic.X[order])
    data, found = fit(X, logistic.y[order], logistic.client[order])
    assert np.shares_memory(data.X, X) == (kind != "shuffled memmap")
    pd.testing.assert_frame_equal(found, wanted, check_exact=True)


@pytest.mark.parametrize(("sizes", "text"), [([3, 3], "3 rows each"), ([1, 4], "1 to 4 rows each")])
def test_repr_names_the_sizes(sizes, text):
    n = sum(sizes)
    data = FromArrays(np.ones((n, 2)), np.arange(n), np.repeat(["a", "b"], sizes))
    assert repr(data) == f"ClientData(2 clients, {text}, 2 columns)"


# ------------------------------------------------------------------ refusals

GOOD = {"X": np.ones((4, 2)), "y": np.arange(4.0), "client": [0, 0, 1, 1]}


@pytest.mark.parametrize(
    ("changes", "error", "message"),
    [
        ({"X": np.ones(4)}, ValueError, r"X must have 2 dimensions \(rows, columns\), got shape \(4,\)"),
        ({"X": np.ones(4), "names": ["a"]}, ValueError, r"X must have 2 dimension\(s\), got shape \(4,\)"),
        ({"X": [["a", "b"]] * 4}, TypeError, "X must hold numbers"),
        ({"X": np.ones((4, 0))}, ValueError, r"X has shape \(4, 0\); at least one row and one column"),
        ({"X": np.ones((0, 2)), "y": [], "client": []}, ValueError, r"X has shape \(0, 2\); at least one row"),
        ({"names": ["a"]}, ValueError, "names has 1 distinct entries for 2 columns of X"),
        ({"names": ["a", "a"]}, ValueError, "names has 1 distinct entries for 2 columns of X"),
        ({"y": np.ones((4, 1))}, ValueError, r"y must have one dimension, got shape \(4, 1\)"),
        ({"y": [1.0, 2.0]}, ValueError, "y has 2 entries, X has 4 rows; they must agree"),
        ({"y": ["a", None, "b", "a"]}, ValueError, "y has missing labels"),
        ({"y": [1.0, 2.0, np.inf, 0.0]}, ValueError, "y has NaN or infinite values; the first is inf in row 2"),
        ({"client": [0, 0, 1]}, ValueError, "client has 3 entries, X has 4 rows; they must agree"),
        ({"client": ["a", None, "a", None]}, ValueError, "client has 2 missing labels; every row needs its client"),
        ({"client": np.zeros((4, 1))}, ValueError, r"client must have one dimension, got shape \(4, 1\)"),
        ({"client": 1}, ValueError, r"client must have one dimension, got shape \(\)"),
        ({"offset": [1.0]}, ValueError, "offset has 1 entries, X has 4 rows; they must agree"),
        ({"offset": 1.0}, ValueError, r"offset must have 1 dimension\(s\), got shape \(\)"),
        ({"offset": ["a"] * 4}, TypeError, "offset must hold numbers"),
        ({"exposure": [1.0, 0.0, 1.0, -2.0]}, ValueError, "exposure must be positive; row 1 has 0"),
        ({"weights": [1.0, 1.0, -1.0, -2.0]}, ValueError, "weights must be positive; row 2 has -1"),
        ({"weights": [1.0, 1.0, 0.0, 1.0]}, ValueError, "row 2 has 0. Leave out rows that do not count"),
        ({"weights": [1.0]}, ValueError, "weights has 1 entries, X has 4 rows; they must agree"),
    ],
)
def test_bad_arrays_are_refused(changes, error, message):
    with pytest.raises(error, match=message):
        FromArrays(**(GOOD | changes))


@pytest.mark.parametrize(
    ("arguments", "error", "message"),
    [
        ({"formula": "y ~ x + nope"}, ValueError, "the frame has no column 'nope'.*its columns are 'ward', 'y', 'x'"),
        ({"client": "hospital"}, ValueError, "the frame has no column 'hospital'"),
        ({"offset": "nope", "weights": "neither"}, ValueError, "the frame has no column 'neither', 'nope'"),
        ({"formula": "x + group"}, ValueError, "formula is 'x [+] group'; it needs a response, as in 'y ~ x1 [+] x2'"),
        ({"formula": "~ x"}, ValueError, "it needs a response"),
        ({"formula": "y + w ~ x"}, ValueError, "the response 'y [+] w' gives 2 columns; one is wanted"),
        ({"formula": "y ~ x | group"}, ValueError, r"it must have one right-hand side, without '\|'"),
        ({"missing": "ignore"}, ValueError, "missing is 'ignore'; choose one of 'raise', 'drop'"),
        ({"frame": "y ~ x"}, TypeError, "frame is a str; pass a pandas, polars or Arrow table"),
    ],
)
def test_bad_frames_and_formulas_are_refused(wards, arguments, error, message):
    with pytest.raises(error, match=message):
        FromFrame(**({"frame": wards, "formula": "y ~ x", "client": "ward"} | arguments))
