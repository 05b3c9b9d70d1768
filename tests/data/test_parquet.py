"""ClientData.from_parquet: the data of from_frame on the whole file, without ever holding it."""

import subprocess
import sys

import numpy as np
import pandas as pd
import pytest

import adfl_stats as ad
from adfl_stats.data import conversion

pytest.importorskip("pyarrow")
FromParquet = ad.ClientData.from_parquet
FromFrame = ad.ClientData.from_frame


@pytest.fixture
def stays():
    """Rows of five interleaved clients; the factor's last level occurs in the last rows only."""
    rng = np.random.default_rng(5)
    n = 400
    frame = pd.DataFrame(
        {
            "hospital": rng.choice(["t", "u", "v", "w", "x"], n),
            "y": rng.normal(size=n),
            "age": rng.normal(50.0, 9.0, n),
            "ward": rng.choice(["c", "a", "b"], n),
            "grade": rng.integers(1, 4, n),
            "kind": pd.Categorical(rng.choice(["lo", "hi"], n), categories=["lo", "mid", "hi"]),
            "log size": rng.normal(size=n),
            "days": rng.uniform(1.0, 3.0, n),
            "w": rng.uniform(0.5, 2.0, n),
            "late": rng.random(n) < 0.5,
            "outcome": rng.choice(["well", "ill", "dead"], n),
            "times": rng.integers(1, 60, n),
        }
    )
    frame.loc[n - 3 :, "ward"] = "z"
    frame.loc[n - 2 :, "grade"] = 9
    frame.loc[n - 1, "hospital"] = "last"
    return frame


@pytest.fixture
def path(stays, tmp_path, monkeypatch):
    """The same in a file of seven row groups, read in batches that do not match them."""
    monkeypatch.setattr(conversion, "BATCH_ROWS", 37)
    stays.to_parquet(tmp_path / "stays.parquet", row_group_size=61, index=False)
    return tmp_path / "stays.parquet"


def assert_same(found, wanted):
    np.testing.assert_array_equal(found.X, wanted.X)
    np.testing.assert_array_equal(found.y, wanted.y)
    np.testing.assert_array_equal(found.offsets, wanted.offsets)
    assert found.X.flags.c_contiguous
    assert found.X.dtype == found.y.dtype == np.float64
    assert not found.X.flags.writeable
    assert found.labels.equals(wanted.labels)
    assert found.labels.dtype == wanted.labels.dtype
    for name in ("names", "y_name", "client_name", "classes", "n_dropped"):
        assert getattr(found, name) == getattr(wanted, name), name
    for name in ("linear_offset", "row_weights"):
        mine, theirs = getattr(found, name), getattr(wanted, name)
        assert (mine is None) == (theirs is None)
        if mine is not None:
            np.testing.assert_array_equal(mine, theirs)


@pytest.mark.parametrize(
    ("formula", "columns"),
    [
        ("y ~ age", {}),
        ("y ~ age - 1", {}),
        ("y ~ age * ward", {}),
        ("y ~ C(grade) + `log size`", {}),
        ("y ~ C(grade, contr.sum):age", {}),
        ("y ~ kind", {}),
        ("y ~ late + np.exp(age / 50)", {}),
        ("y ~ C(np.floor(age / 20))", {}),
        ("np.log(days) ~ age", {}),
        ("outcome ~ age", {}),
        ("late ~ age", {"weights": "w"}),
        ("grade ~ age", {"exposure": "days", "offset": "log size"}),
        ("y ~ ward + offset(age)", {"freq_weights": "times", "weights": "w", "exposure": "days"}),
        ("y ~ 1", {}),
    ],
)
def test_data_are_those_of_the_whole_frame(stays, path, formula, columns):
    found = FromParquet(path, formula, "hospital", **columns)
    assert_same(found, FromFrame(pd.read_parquet(path), formula, "hospital", **columns))


@pytest.mark.parametrize("client", ["grade", "kind", "hospital"])
def test_clients_of_any_type(stays, path, client):
    found = FromParquet(path, "y ~ age", client)
    wanted = FromFrame(stays.astype({"kind": str}), "y ~ age", client)
    assert_same(found, wanted)


def test_rows_with_missing_values_are_dropped_as_in_a_frame(stays, path):
    stays["grade"] = stays["grade"].astype("Int64")
    stays.loc[[3, 200], "grade"] = pd.NA
    stays.loc[[3, 90], "age"] = np.nan
    stays.loc[0, "ward"] = None
    stays.to_parquet(path, row_group_size=61, index=False)
    found = FromParquet(path, "y ~ age + C(grade) + ward", "hospital", missing="drop")
    plain = stays.astype({"grade": "float64"})
    assert_same(found, FromFrame(plain, "y ~ age + C(grade) + ward", "hospital", missing="drop"))
    assert found.n_dropped == 4


@pytest.mark.filterwarnings("ignore::adfl_stats.ConditionWarning")
def test_predictions_know_every_level(stays, path):
    net = ad.networks.complete(6, labels=["t", "u", "v", "w", "x", "last"])
    new = stays.iloc[[0, 399]]
    fits = [
        ad.DecentralizedGLM(data, net).fit(ad.DFL(), step=1e-4, rounds=5).predict(new)
        for data in (FromParquet(path, "y ~ age + ward", "hospital"), FromFrame(stays, "y ~ age + ward", "hospital"))
    ]
    pd.testing.assert_series_equal(*fits)


# ------------------------------------------------------------------ once


def test_second_call_opens_what_the_first_wrote(stays, path, monkeypatch, tmp_path):
    first = FromParquet(path, "y ~ age + ward", "hospital")
    assert [folder.name for folder in tmp_path.iterdir() if folder.is_dir()] == ["stays.parquet.adfl"]
    with monkeypatch.context() as patch:
        patch.setattr(conversion.Conversion, "__init__", lambda *arguments: pytest.fail("converted again"))
        assert_same(FromParquet(path, "y ~ age + ward", "hospital"), first)
        with pytest.raises(pytest.fail.Exception, match="converted again"):
            FromParquet(path, "y ~ age", "hospital")
    assert FromParquet(path, "y ~ age", "hospital").names == ["Intercept", "age"]


def test_changed_file_is_converted_again_in_place(stays, path, tmp_path):
    FromParquet(path, "y ~ age", "hospital", directory=tmp_path / "maps")
    stays.iloc[::2].to_parquet(path, index=False)
    again = FromParquet(path, "y ~ age", "hospital", directory=tmp_path / "maps")
    assert_same(again, FromFrame(stays.iloc[::2], "y ~ age", "hospital"))
    assert len(list((tmp_path / "maps").iterdir())) == 1
    assert not (tmp_path / "stays.parquet.adfl").exists()


def test_interrupted_conversion_leaves_nothing_behind(path, tmp_path, monkeypatch):
    with monkeypatch.context() as patch:
        patch.setattr(conversion.Conversion, "_arrays", lambda *arguments: (_ for _ in ()).throw(KeyboardInterrupt))
        with pytest.raises(KeyboardInterrupt):
            FromParquet(path, "y ~ age", "hospital", directory=tmp_path / "maps")
    assert list((tmp_path / "maps").iterdir()) == []


def test_progress_counts_both_passes(path, capsys):
    FromParquet(path, "y ~ age", "hospital", progress=True)
    assert "converting" in capsys.readouterr().err


# ------------------------------------------------------------------ refusals


@pytest.mark.parametrize(
    ("formula", "columns", "message"),
    [
        ("y ~ ages", {}, "the file 'stays.parquet' has no column 'ages', named by the formula or as client, offset"),
        ("z ~ age", {}, "has no column 'z'"),
        ("~ age", {}, "it needs a response, as in 'y ~ x1"),
        ("y ~ age", {"weights": "kg"}, "has no column 'kg'"),
        ("y ~ center(age)", {}, r"the terms 'center\(age\)' of the formula have values that depend on other rows"),
        ("y ~ np.cumsum(age)", {}, r"the terms 'np.cumsum\(age\)' of the formula have values that depend on other"),
        ("y ~ np.log(age - 50)", {}, r"the column 'np.log\(age - 50\)' has NaN or infinite values; the first is nan"),
        ("y ~ age", {"exposure": "log size"}, "the column 'log size' must be positive; row 1 of the file 'stays.par"),
        ("y ~ age", {"freq_weights": "kg"}, "has no column 'kg'"),
        (
            "y ~ age",
            {"freq_weights": "w"},
            r"the column 'w' must be whole numbers of at least 1.*; row \d+ of the file",
        ),
        ("y ~ age", {"missing": "skip"}, "missing is 'skip'; choose one of 'raise', 'drop'"),
        ("y ~ C(age)", {}, "the column 'age' is used as a factor and has more than 100 levels; use it as a number"),
    ],
)
def test_refusals_name_the_column(stays, path, monkeypatch, formula, columns, message):
    monkeypatch.setattr(conversion, "MOST_WITNESSES", 100)
    stays.loc[0, "log size"], stays.loc[1, "log size"] = 1.0, -1.0
    stays.to_parquet(path, row_group_size=61, index=False)
    with np.errstate(invalid="ignore"), pytest.raises(ValueError, match=message):
        FromParquet(path, formula, "hospital", **columns)


def test_infinite_value_is_named_with_its_row_in_the_file(stays, path):
    stays.loc[123, "age"] = np.inf
    stays.to_parquet(path, row_group_size=61, index=False)
    with pytest.raises(ValueError, match="the column 'age' has NaN or infinite values; the first is inf in row 123"):
        FromParquet(path, "y ~ age", "hospital")
    stays.loc[[124, 7], ["age", "y"]] = 0.0, -np.inf
    stays.loc[123, "age"] = 0.0
    stays.to_parquet(path, row_group_size=61, index=False)
    with pytest.raises(ValueError, match="the column 'y' has NaN or infinite values; the first is -inf in row 7"):
        FromParquet(path, "y ~ age", "hospital")


def test_missing_values_are_counted_by_column(stays, path):
    stays.loc[[3, 200], "age"], stays.loc[[3, 90], "hospital"] = np.nan, None
    stays.to_parquet(path, row_group_size=61, index=False)
    with pytest.raises(ValueError, match=r"missing values \(NaN\) in 'age' \(2\), 'hospital' \(2\): 3 rows. Impute"):
        FromParquet(path, "y ~ age", "hospital")
    stays["age"] = np.nan
    stays.to_parquet(path, row_group_size=61, index=False)
    with pytest.raises(ValueError, match="has missing values in every row; no row is left to fit"):
        FromParquet(path, "y ~ age", "hospital", missing="drop")


def test_files_that_hold_nothing(stays, tmp_path):
    with pytest.raises(FileNotFoundError, match=r"none\.parquet'; there is no such file"):
        FromParquet(tmp_path / "none.parquet", "y ~ age", "hospital")
    (tmp_path / "text.parquet").write_text("y,age\n1,2\n")
    with pytest.raises(ValueError, match=r"the file 'text\.parquet' cannot be read as Parquet: "):
        FromParquet(tmp_path / "text.parquet", "y ~ age", "hospital")
    stays.iloc[:0].to_parquet(tmp_path / "empty.parquet")
    with pytest.raises(ValueError, match=r"the file 'empty\.parquet' has no rows; at least one is wanted"):
        FromParquet(tmp_path / "empty.parquet", "y ~ age", "hospital")


@pytest.mark.parametrize(
    ("module", "message"),
    [("pyarrow", r"needs pyarrow; install it with: pip install 'adfl-stats\[parquet\]'"), ("tqdm.auto", "needs tqdm")],
)
def test_missing_extra_is_named(path, monkeypatch, module, message):
    monkeypatch.setitem(sys.modules, module, None)
    with pytest.raises(ImportError, match=message):
        FromParquet(path, "y ~ age", "hospital", progress=True)


# ------------------------------------------------------------------ memory

CONVERT = """
import sys
from pathlib import Path
import adfl_stats as ad

def anonymous():
    lines = Path("/proc/self/status").read_text().splitlines()
    return next(int(line.split()[1]) for line in lines if line.startswith("RssAnon")) / 1024

small, large = sys.argv[1:]
ad.ClientData.from_parquet(small, "y ~ a + b + c + d", "client")
import threading
peak, done = [0.0], threading.Event()
def watch():
    while not done.wait(0.005):
        peak[0] = max(peak[0], anonymous())
before = anonymous()
watcher = threading.Thread(target=watch)
watcher.start()
data = ad.ClientData.from_parquet(large, "y ~ a + b + c + d", "client")
done.set()
watcher.join()
print(peak[0] - before, data.X.nbytes / 2**20)
"""


@pytest.mark.skipif(not sys.platform.startswith("linux"), reason="anonymous memory is read from /proc")
def test_memory_is_bounded_by_a_row_group(tmp_path):
    """A file of 32 row groups of 3 MiB needs little more than one such group, which the first file had read."""
    import pyarrow as pa
    import pyarrow.parquet as pq

    rng = np.random.default_rng(1)
    paths = [tmp_path / "small.parquet", tmp_path / "large.parquet"]
    for file, groups in zip(paths, (1, 32), strict=True):
        writer = None
        for _ in range(groups):
            table = pa.table(
                {"client": rng.integers(0, 50, 1 << 16)} | {name: rng.normal(size=1 << 16) for name in "yabcd"}
            )
            writer = writer or pq.ParquetWriter(file, table.schema)
            writer.write_table(table)
        writer.close()
    found = subprocess.run(
        [sys.executable, "-c", CONVERT, *map(str, paths)], capture_output=True, text=True, check=True
    )
    extra, total = map(float, found.stdout.split())
    assert total == 80.0
    assert extra < 30.0
