"""The copy of a Parquet file is believed only as it was written: damage is seen, said, and repaired."""

import json
import os
import shutil
import threading
import warnings

import numpy as np
import pandas as pd
import pytest

import adfl_stats as ad
from adfl_stats._files import locked
from adfl_stats.data import conversion, map_files

fcntl = pytest.importorskip("fcntl")


@pytest.fixture
def rows(tmp_path):
    rng = np.random.default_rng(0)
    frame = pd.DataFrame(
        {"site": rng.choice(list("abc"), 500), "y": rng.normal(size=500), "x": rng.normal(size=500), "w": 1.5}
    )
    frame.to_parquet(tmp_path / "rows.parquet")
    return frame


def convert(folder, **options):
    return ad.ClientData.from_parquet(folder / "rows.parquet", "y ~ x", "site", weights="w", **options)


def home(folder):
    return folder / "rows.parquet.adfl"


def copy_of(folder):
    (found,) = (path for path in home(folder).iterdir() if path.is_dir())
    return found


def change(name, offset, what):
    def damage(copy):
        content = bytearray((copy / name).read_bytes())
        at = len(content) + offset if offset < 0 else offset
        content[at : at + len(what)] = what
        (copy / name).write_bytes(content)

    return damage


def foreign_offsets(copy):
    offsets = np.load(copy / "offsets.npy")
    offsets[1] += 1
    np.save(copy / "offsets.npy", offsets)


def other_arguments(copy):
    text = json.loads(json.loads((copy / "about.json").read_text())["about"])
    text["request"]["formula"] = "y ~ x - 1"
    known = {name: value for name, value in text.items() if name != "files"}
    (copy / "about.json").unlink()
    map_files.sealed(copy, known)


DAMAGES = {
    "zeros": (change("X.npy", 1000, bytes(1000)), "X.npy differs from its checksum between the bytes 0 and"),
    "NaN": (change("y.npy", -8, np.float64(np.nan).tobytes()), "y.npy differs from its checksum"),
    "one bit": (change("row_weights.npy", 999, b"\x01"), "row_weights.npy differs from its checksum"),
    "foreign offsets": (foreign_offsets, "offsets.npy differs from its checksum"),
    "truncated": (lambda copy: os.truncate(copy / "X.npy", 4000), "X.npy has 4000 bytes, 8128 were written"),
    "missing": (lambda copy: (copy / "y.npy").unlink(), "y.npy is missing"),
    "missing labels": (lambda copy: (copy / "labels.parquet").unlink(), "labels.parquet is missing"),
    "labels": (change("labels.parquet", 20, b"xyz"), "labels.parquet differs from its checksum"),
    "no about": (lambda copy: (copy / "about.json").unlink(), "about.json is missing"),
    "garbage": (lambda copy: (copy / "about.json").write_bytes(b"\xff{"), "about.json cannot be read"),
    "empty": (lambda copy: (copy / "about.json").write_text("[]"), "about.json cannot be read"),
    "edited": (change("about.json", 40, b"0"), "about.json (differs|cannot)"),
    "other arguments": (other_arguments, "it is that of other arguments"),
}


@pytest.mark.parametrize("kind", DAMAGES)
def test_damage_is_said_and_the_file_is_converted_again(rows, tmp_path, kind):
    damage, words = DAMAGES[kind]
    convert(tmp_path)
    damage(copy_of(tmp_path))
    with pytest.warns(ad.StorageWarning, match=f"rows.parquet' in .* is damaged: {words}.*converted again"):
        data = convert(tmp_path)
    wanted = ad.ClientData.from_frame(rows, "y ~ x", "site", weights="w")
    for name in ("X", "y", "offsets", "row_weights"):
        np.testing.assert_array_equal(getattr(data, name), getattr(wanted, name))
    # Without a word, since the copy is whole again.
    convert(tmp_path)


def test_blocks_beyond_the_first_are_checked(rows, tmp_path, monkeypatch):
    for module in (map_files, ad._files):
        monkeypatch.setattr(module, "BLOCK", 1000)
    convert(tmp_path)
    change("X.npy", 7500, bytes(4))(copy_of(tmp_path))
    with pytest.warns(ad.StorageWarning, match="between the bytes 7000 and 8000"):
        convert(tmp_path)


def test_a_file_of_the_same_size_and_time_with_another_index_is_converted(rows, tmp_path):
    path = tmp_path / "rows.parquet"
    convert(tmp_path)
    before = path.stat()
    rows.assign(y=rows["y"].to_numpy()[::-1]).to_parquet(path)
    os.truncate(path, path.stat().st_size)
    os.utime(path, ns=(before.st_atime_ns, before.st_mtime_ns))
    if path.stat().st_size != before.st_size:
        pytest.skip("the two files differ in size")
    assert convert(tmp_path).y[0] != rows["y"][rows["site"] == rows["site"][0]].iloc[0]


def test_conversions_at_once_write_one_copy(rows, tmp_path, monkeypatch):
    count, write = [], conversion.Conversion.write

    def counted(self, folder):
        count.append(1)
        return write(self, folder)

    monkeypatch.setattr(conversion.Conversion, "write", counted)
    together, found = threading.Barrier(4), []

    def work():
        together.wait()
        found.append(convert(tmp_path))

    threads = [threading.Thread(target=work) for _ in range(4)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join(60)
    assert len(found) == 4
    assert len(count) == 1
    for data in found:
        np.testing.assert_array_equal(data.X, found[0].X)


def test_what_killed_conversions_left_is_removed_unless_one_is_at_work(rows, tmp_path):
    convert(tmp_path)
    stale = home(tmp_path) / "partial-abc"
    stale.mkdir()
    (stale / "X.npy").write_bytes(b"1")
    with locked(home(tmp_path), exclusive=False):
        convert(tmp_path)
        assert stale.exists()
    convert(tmp_path)
    assert not stale.exists()


def test_a_copy_that_may_only_be_read_is_read(rows, tmp_path):
    convert(tmp_path)
    copy = copy_of(tmp_path)
    for path in (copy, home(tmp_path)):
        path.chmod(0o555)
    try:
        assert convert(tmp_path).n_rows == 500
    finally:
        for path in (copy, home(tmp_path)):
            path.chmod(0o755)


def test_a_full_disk_is_said_before_anything_is_written(rows, tmp_path, monkeypatch):
    def full(file, size):
        raise OSError(28, "No space left on device")

    monkeypatch.setattr(map_files, "reserve", full)
    words = r"No space left on device: the copy of the file 'rows.parquet' needs 15.6 KiB in .*; .* are free there"
    with pytest.raises(OSError, match=words) as caught:
        convert(tmp_path)
    assert caught.value.errno == 28
    assert list(home(tmp_path).iterdir()) == []


def test_space_is_reserved_for_all_rows(rows, tmp_path):
    file = map_files.MapFile(tmp_path / "a.npy", (100_000, 2))
    try:
        state = (tmp_path / "a.npy").stat()
        assert state.st_size == 1_600_128
        assert state.st_blocks * 512 >= 1_600_128
    finally:
        file.close()


def test_locks_are_optional(rows, tmp_path, monkeypatch):
    """As on Windows, or on a file system without locks."""
    monkeypatch.setitem(__import__("sys").modules, "fcntl", None)
    assert convert(tmp_path).n_rows == 500
    shutil.rmtree(home(tmp_path))
    with warnings.catch_warnings():
        warnings.simplefilter("error")
        assert convert(tmp_path).n_rows == 500
