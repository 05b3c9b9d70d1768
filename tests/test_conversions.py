"""What would be lost by a conversion is refused or kept: masks, imaginary parts, dates, text, names as written."""

import subprocess
import sys

import numpy as np
import pandas as pd
import pytest
from scipy import sparse

import adfl_stats as ad

N = 12
rng = np.random.default_rng(0)
X, Y, CLIENT = rng.normal(size=(N, 2)), rng.normal(size=N), np.repeat(list("abc"), 4)
MASKED = np.ma.masked_less(Y, 0.0)
DAYS = pd.date_range("2024-01-01", periods=N)
ADJACENCY = np.ones((3, 3))


def arrays(**changes):
    return ad.ClientData.from_arrays(**{"X": X, "y": Y, "client": CLIENT, **changes})


REFUSED = {
    "masked X": (lambda: arrays(X=np.ma.masked_less(X, 0.0)), "X is a masked array with .* masked entries; leave"),
    "masked y": (lambda: arrays(y=MASKED), "y is a masked array"),
    "masked clients": (lambda: arrays(client=np.ma.array(CLIENT, mask=Y < 0)), "client is a masked array"),
    "masked weights": (lambda: arrays(weights=np.ma.masked_equal(np.ones(N), 1.0)), "weights is a masked array"),
    "complex X": (lambda: arrays(X=X * (1 + 1j)), "X must hold.* holds complex numbers"),
    "complex y": (lambda: arrays(y=Y * (1 + 1j)), "y must hold.* holds complex numbers"),
    "complex objects": (
        lambda: arrays(X=(X * (1 + 1j)).astype(object)),
        "X must hold.* holds complex numbers",
    ),
    "dates": (
        lambda: arrays(X=pd.DataFrame({"x": Y, "day": DAYS})),
        r"X\['day'\] must hold.* holds dates",
    ),
    "array of dates": (lambda: arrays(offset=DAYS.to_numpy()), "offset must hold.* holds dates"),
    "text numbers": (
        lambda: arrays(X=X.astype(str)),
        r"X must hold.* holds text; convert it",
    ),
    "text objects": (lambda: arrays(X=X.astype(str).astype(object)), "X must hold.* holds text"),
    "text offset": (lambda: arrays(offset=[str(v) for v in Y]), "offset must hold.* holds text"),
    "masked network": (lambda: ad.Network.from_adjacency(np.ma.masked_equal(ADJACENCY, 1.0)), "A is a masked array"),
    "complex network": (
        lambda: ad.Network.from_weights(ADJACENCY / 3 + 0j),
        "W must hold.* holds complex numbers",
    ),
    "sparse complex": (
        lambda: ad.Network.from_weights(sparse.csr_array(ADJACENCY / 3 + 0j)),
        "W must hold.* holds complex numbers",
    ),
    "text network": (
        lambda: ad.Network.from_adjacency(ADJACENCY.astype(int).astype(str)),
        "A must hold.* holds text",
    ),
    "text weights": (
        lambda: ad.Network.from_edges(pd.DataFrame({"source": [0, 1], "target": [1, 0], "weight": ["1", "2"]})),
        "the column 'weight' of edges must hold.* holds text",
    ),
}


@pytest.mark.parametrize("kind", REFUSED)
def test_losses_are_refused(kind):
    call, words = REFUSED[kind]
    with pytest.raises((TypeError, ValueError), match=words):
        call()


def test_what_loses_nothing_is_converted():
    wanted = arrays()
    for same in (
        arrays(X=np.ma.array(X), y=np.ma.array(Y)),
        arrays(X=X.astype(object), y=Y.astype(object)),
        arrays(X=pd.DataFrame(X).astype("Float64")),
    ):
        np.testing.assert_array_equal(same.X, wanted.X)
        np.testing.assert_array_equal(same.y, wanted.y)
    assert arrays(X=X > 0.0).X.max() == 1.0


@pytest.mark.parametrize(
    ("names", "labels"),
    [
        (["1", "2", "10"], [1, 2, 10]),
        (["01", "1", "2"], ["01", "1", "2"]),
        (["001", "002", "003"], ["001", "002", "003"]),
        (["1.0", "1", "2"], ["1", "1.0", "2"]),
        (["-1", "+1", "2"], ["+1", "-1", "2"]),
        (["NA", "None", "7"], ["7", "NA", "None"]),
        (["1e3", "1000", "0"], ["0", "1000", "1e3"]),
        (["99999999999999999999", "1", "2"], ["1", "2", "99999999999999999999"]),
    ],
)
def test_names_of_clients_are_those_that_are_written(tmp_path, names, labels):
    ends = [(a, b) for a in names for b in names if a != b]
    (tmp_path / "edges.csv").write_text("source,target\n" + "".join(f"{a},{b}\n" for a, b in ends))
    for net in (ad.Network.from_edges(tmp_path / "edges.csv"), ad.Network.from_file(tmp_path / "edges.csv")):
        assert net.labels.tolist() == labels
        assert net.n_edges == 6


def test_the_command_line_keeps_names_as_written(tmp_path):
    sites = [f"{k:03d}" for k in range(1, 7)]
    frame = pd.DataFrame({"site": np.repeat(sites, 20), "x": rng.normal(size=120)})
    frame.assign(y=frame["x"] + rng.normal(size=120)).to_csv(tmp_path / "rows.csv", index=False)
    edges = [(a, b) for k, a in enumerate(sites) for b in (sites[k - 1], sites[k - 2])]
    pd.DataFrame(edges, columns=["source", "target"]).to_csv(tmp_path / "edges.csv", index=False)
    command = "fit rows.csv --formula y~x --client site --network edges.csv --method DFL --clients table.csv"
    subprocess.run(
        [sys.executable, "-W", "ignore", "-m", "adfl_stats", *command.split()],
        cwd=tmp_path, check=True, capture_output=True,
    )  # fmt: skip
    assert pd.read_csv(tmp_path / "table.csv", dtype=str).iloc[:, 0].tolist() == sites


def many_kinds():
    """Return a frame of six clients, with columns of kinds that formulas would misread."""
    n = 60
    values = np.random.default_rng(5).normal(size=n)
    return pd.DataFrame(
        {
            "y": values, "site": np.repeat(np.arange(6), 10), "x": values[::-1],
            "day": pd.date_range("2020", periods=n), "date": pd.date_range("2020", periods=n).date,
            "month": pd.period_range("2020-01", periods=n, freq="M"), "lag": pd.to_timedelta(np.arange(n), "D"),
            "wave": values + 1j, "short": np.arange(n).astype("int8") + 60, "bytes": np.arange(n).astype("uint8"),
            "group": pd.Categorical(list("ab") * 30, categories=list("abc")),
        }
    )  # fmt: skip


@pytest.mark.parametrize(
    ("formula", "words"),
    [
        ("y ~ day", r"'day' of the frame holds dates\. Compute a number, as in frame\['day'\]\.dt\.year, or write C"),
        ("y ~ date", "'date' of the frame holds dates"),
        ("y ~ month", "'month' of the frame holds dates"),
        ("y ~ lag", r"'lag' of the frame holds durations\. .*total_seconds"),
        ("y ~ wave", "'wave' of the frame holds complex numbers"),
        ("y ~ I(2 * wave)", r"formula is .* 'I\(2 \* wave\)' is complex"),
        ("y ~ x + offset(wave)", r"formula is .* 'I\(wave\)' is complex"),
        ("y ~ x + offset(day)", "formula is .* cannot be computed on the frame"),
        ("y ~ np.log(x)", r"computed on the frame: np\.log\(x\) has no value \(NaN\) in some rows"),
        ("np.log(y) ~ x", r"computed on the frame: np\.log\(y\) has no value"),
        ("y ~ np.log(site)", r"column 'np\.log\(site\)'"),
    ],
)
def test_terms_without_numbers_are_named(formula, words):
    with pytest.raises(ValueError, match=words):
        ad.ClientData.from_frame(many_kinds(), formula, "site")


def test_numbers_of_few_bytes_do_not_wrap_around(tmp_path):
    """100 squared is -24 in a byte, and 3 - 200 is 59."""
    frame = many_kinds().drop(columns=["wave", "month", "date"])
    frame.to_parquet(tmp_path / "rows.parquet")
    formula = "y ~ I(short**2) + I(bytes - 200)"
    table = ad.ClientData.from_frame(frame, formula, "site")
    file = ad.ClientData.from_parquet(tmp_path / "rows.parquet", formula, "site")
    for data in (table, file):
        np.testing.assert_array_equal(data.X[:, 1:], np.column_stack([(np.arange(60) + 60) ** 2, np.arange(60) - 200]))
    res = ad.DecentralizedGLM(table, ad.networks.complete(6)).fit(ad.DFL(), step=1e-9, rounds=1)
    predicted = res.predict(frame.astype({"short": "int64", "bytes": "int64"}))
    np.testing.assert_array_equal(res.predict(frame), predicted)


def test_levels_that_no_row_has_are_no_columns(tmp_path):
    frame = many_kinds()[["y", "site", "group"]]
    frame.to_parquet(tmp_path / "rows.parquet")
    table = ad.ClientData.from_frame(frame, "y ~ group", "site")
    file = ad.ClientData.from_parquet(tmp_path / "rows.parquet", "y ~ group", "site")
    assert table.names == file.names == ["Intercept", "group[T.b]"]


def test_powers_of_whole_numbers_do_not_wrap_around():
    """The cube of 4e6 is beyond 64 bits; levels of a factor keep their names."""
    frame = many_kinds().assign(count=np.arange(60) + 4_000_000, kind=np.arange(60) % 2)
    data = ad.ClientData.from_frame(frame, "y ~ I(count**3) + C(kind) + C(kind):np.sqrt(kind + 1)", "site")
    np.testing.assert_allclose(data.X[:, data.names.index("I(count ** 3)")], (np.arange(60) + 4e6) ** 3)
    assert "C(kind)[T.1]" in data.names


def test_columns_of_one_name_are_refused():
    frame = many_kinds()[["y", "site", "x", "x"]]
    with pytest.raises(ValueError, match="the frame has more than one column 'x'; rename"):
        ad.ClientData.from_frame(frame, "y ~ x", "site")


def test_predictions_name_what_is_wrong_in_new_rows():
    frame = many_kinds()
    model = ad.DecentralizedGLM.from_formula("y ~ x + group", frame, client="site", network=ad.networks.complete(6))
    res = model.fit(ad.DFL(), step=0.1, rounds=5)
    at = res.predict({"x": [1.0, 2.0], "group": ["a", "b"]})
    np.testing.assert_array_equal(at, res.predict(pd.DataFrame({"x": [1.0, 2.0], "group": ["a", "b"]})))
    with pytest.raises(ValueError, match=r"x has no value \(NaN\) in some rows\. Impute the values"):
        res.predict({"x": np.nan, "group": "a"})
    with pytest.raises(ValueError, match="the column 'x' of X holds numbers stored as text, such as '1'"):
        res.predict({"x": ["1"], "group": ["a"]})
