"""Nothing of a study is lost or changed by workers, kills and resumption; its folder refuses what it should."""

import json
import os
import signal
import subprocess
import sys
import time
from pathlib import Path

import numpy as np
import pandas as pd
import pytest
import small_studies
from pandas.testing import assert_frame_equal
from small_studies import numbers, small

import adfl_stats as ad
from adfl_stats.simulate import folder as folders

# ------------------------------------------------------------------ workers, kills, resumption


def test_the_same_bits_for_any_workers_and_backend():
    from joblib import parallel_config

    alone = numbers(small(["fit", "BRIDGE-M"], inference=True).run())
    assert_frame_equal(numbers(small(["fit", "BRIDGE-M"], inference=True).run(jobs=2)), alone, check_exact=True)
    with parallel_config(backend="threading", n_jobs=3):
        assert_frame_equal(numbers(small(["fit", "BRIDGE-M"], inference=True).run()), alone, check_exact=True)
    # Neither the other settings nor the other methods matter.
    part = numbers(small(["BRIDGE-M"], shares=[0.2], inference=True).run())
    same = alone.query("method == 'BRIDGE-M' and share == 0.2").reset_index(drop=True)
    assert_frame_equal(part, same, check_exact=True)


def started_cluster(distributed, tries=3):
    """Return a cluster of two workers. Their start is not under test, and may time out on a busy machine."""
    options = {"n_workers": 2, "threads_per_worker": 1, "dashboard_address": None, "silence_logs": 50}
    while True:
        tries -= 1
        try:
            return distributed.LocalCluster(**options)
        except (OSError, RuntimeError):
            if not tries:
                raise


def test_dask_and_a_killed_worker(tmp_path):
    """A worker that dies takes its data sets with it; the cluster runs them elsewhere."""
    distributed = pytest.importorskip("distributed")
    from joblib import parallel_config

    alone = numbers(small(replicates=6).run())

    def dies_once(abnormal):
        # The first to come here makes the file, and dies with it.
        try:
            (tmp_path / "died").touch(exist_ok=False)
        except FileExistsError:
            return ad.DFL()
        os.kill(os.getpid(), signal.SIGKILL)

    import dask

    with dask.config.set({"distributed.comm.timeouts.connect": "120s"}), pytest.MonkeyPatch.context() as patch:
        patch.setenv("OMP_NUM_THREADS", "1")
        with started_cluster(distributed) as cluster, distributed.Client(cluster), parallel_config("dask"):
            study = small({"DFL": dies_once}, replicates=6).run()
    assert (tmp_path / "died").exists()
    assert_frame_equal(numbers(study), alone, check_exact=True)


def test_a_dead_worker_loses_nothing_that_was_finished(tmp_path):
    def dies(abnormal):
        calls = tmp_path / "calls"
        with calls.open("a") as file:
            file.write(".")
        if not (tmp_path / "calm").exists() and calls.stat().st_size >= 5:
            # The process that runs the study may be slow to write what is finished.
            end = time.monotonic() + 60.0
            while len(list((tmp_path / "out").glob("cells/*/*.json"))) < 2 and time.monotonic() < end:
                time.sleep(0.01)
            os.kill(os.getpid(), signal.SIGKILL)
        return ad.DFL()

    study = small({"DFL": dies}, replicates=6)
    with pytest.raises(RuntimeError, match=r"a worker process died, .* What was finished is kept: run the study again"):
        study.run(jobs=2, out=tmp_path / "out")
    kept = {path: path.stat().st_mtime_ns for path in (tmp_path / "out").glob("cells/*/*.json")}
    assert len(kept) >= 2
    (tmp_path / "calm").touch()
    study.run(jobs=2, out=tmp_path / "out")
    assert {path: path.stat().st_mtime_ns for path in kept} == kept
    assert_frame_equal(numbers(study), numbers(small(replicates=6).run()), check_exact=True)


SCRIPT = f"""
import sys
sys.path.insert(0, {str(Path(small_studies.__file__).parent)!r})
from small_studies import small
small(replicates=30).run(jobs=int(sys.argv[2]), out=sys.argv[1])
"""


def kill_after(seconds, out, jobs):
    """Start the study, kill it and its workers, and return whether it was still running."""
    command = [sys.executable, "-c", SCRIPT, str(out), str(jobs)]
    process = subprocess.Popen(command, start_new_session=True, env=os.environ | {"OMP_NUM_THREADS": "1"})
    try:
        process.wait(timeout=seconds)
        return False
    except subprocess.TimeoutExpired:
        os.killpg(process.pid, signal.SIGKILL)
        process.wait()
        return True


@pytest.mark.parametrize("kills", [3, pytest.param(20, marks=pytest.mark.slow)])
def test_killed_at_any_point_and_resumed(tmp_path, kills):
    rng = np.random.default_rng(kills)
    out = tmp_path / "out"
    began = time.perf_counter()
    assert not kill_after(300, tmp_path / "whole", 1)
    usual = time.perf_counter() - began
    for _ in range(kills):
        kill_after(rng.uniform(0.2, 1.0) * usual, out, jobs=int(rng.integers(1, 3)))
        for path in out.glob("cells/*/[0-9]*.json"):
            # Whatever was killed, no file is half written.
            assert len(json.loads(path.read_text())) == 1
        if (out / "table.csv").exists():
            # It came to its end; begin anew, so that the next kill meets work.
            for path in [*out.glob("cells/*/*.json"), out / "table.csv"]:
                path.unlink()
    small(replicates=30).run(out=out)
    resumed, whole = (pd.read_csv(folder / "draws.csv").drop(columns="seconds") for folder in (out, tmp_path / "whole"))
    assert len(whole) == 60
    assert_frame_equal(resumed, whole, check_exact=True)


def test_interrupted_in_one_process(tmp_path, monkeypatch):
    calls = []

    def impatient(abnormal):
        calls.append(1)
        if len(calls) == 4:
            raise KeyboardInterrupt
        return ad.DFL()

    study = small({"DFL": impatient})
    with pytest.raises(KeyboardInterrupt):
        study.run()
    assert repr(study) == "Study: 2 settings x 3 replicates x 1 methods (3 of 6 data sets done)"
    assert not study.complete
    assert len(study.draws()) == 3
    assert study.run().complete
    assert len(calls) == 4 + 3
    assert_frame_equal(numbers(study), numbers(small().run()), check_exact=True)


# ------------------------------------------------------------------ the folder


def test_a_spoilt_file_is_computed_again(tmp_path):
    first = small().run(out=tmp_path)
    path = next(tmp_path.glob("cells/*/1.json"))
    path.write_text(path.read_text()[:50])
    again = small().run(out=tmp_path)
    assert_frame_equal(numbers(again), numbers(first), check_exact=True)
    table = pd.read_csv(tmp_path / "table.csv", keep_default_na=False, na_values=[""])
    assert_frame_equal(table, again.to_frame(), check_exact=True)


def test_replicates_are_added_to_a_folder(tmp_path):
    small(replicates=2).run(out=tmp_path)
    before = {path: path.stat().st_mtime_ns for path in tmp_path.glob("cells/*/*.json")}
    more = small(replicates=3).run(out=tmp_path)
    assert {path: path.stat().st_mtime_ns for path in before} == before
    assert_frame_equal(numbers(more), numbers(small(replicates=3).run()), check_exact=True)


@pytest.mark.parametrize(
    ("other", "words"),
    [
        ({"seed": 2}, "seed"),
        ({"shares": [0.3]}, "shares"),
        ({"methods": {"DFL": ad.DFL(balance=True)}}, "methods"),
        ({"networks": {"circle-5": ad.networks.directed_circle(20, 5)}}, "networks"),
        ({"corruptions": {"BF": lambda X, y, rng: (X, -y)}}, "corruptions"),
    ],
)
def test_another_study_is_refused_before_the_work(tmp_path, other, words):
    small().run(out=tmp_path)
    with pytest.raises(ValueError, match=f"which holds another study; they differ in {words}. Give a new folder"):
        small(**other).run(out=tmp_path)


def test_changed_functions_and_arrays_make_another_study(tmp_path):
    def mine(factor):
        return lambda X, y, rng: (X, factor * y)

    def study(factor=2.0, weight=0.5):
        return small({"w": ad.DFL(weights=np.full(20, weight))}, corruptions={"c": mine(factor)}, replicates=1)

    study().run(out=tmp_path)
    study().run(out=tmp_path)
    for other, words in ((study(factor=3.0), "corruptions"), (study(weight=0.25), "methods")):
        with pytest.raises(ValueError, match=f"differ in {words}"):
            other.run(out=tmp_path)


def test_descriptions_tell_objects_apart():
    from fractions import Fraction
    from pathlib import Path

    from adfl_stats.simulate.specification import described, digest

    pairs = [
        (Path("a"), Path("b")),
        (Fraction(1, 2), Fraction(1, 3)),
        (np.exp, np.log),
        (np.random.default_rng(1), np.random.default_rng(2)),
        (sum, max),
        (1j, 2j),
    ]
    for first, second in pairs:
        assert digest(described(first)) != digest(described(second))
    # What prints an address is the same in another process.
    assert "0x" not in str(described([object(), np.random.default_rng(1), np.exp]))

    def counts(n):
        return counts(n - 1) if n else 0

    # A function that calls itself has an end.
    assert "itself" in str(described(counts))


def test_another_version_is_refused(tmp_path, monkeypatch):
    small().run(out=tmp_path)
    monkeypatch.setattr("adfl_stats.simulate.specification.version", lambda name: "99.0")
    with pytest.raises(ValueError, match="they differ in version"):
        small().run(out=tmp_path)


def test_folders_that_cannot_be_used(tmp_path, monkeypatch):
    (tmp_path / "file").touch()
    with pytest.raises(ValueError, match=r"out is '.*file', which is a file; give a folder"):
        small().run(out=tmp_path / "file")
    with pytest.raises(ValueError, match="a folder with other files and no study in it; give a new or empty folder"):
        small().run(out=tmp_path)
    with pytest.raises(OSError, match=r"file.under', which cannot be written to \(Not a directory\); give another"):
        small().run(out=tmp_path / "file" / "under")
    usage = folders.shutil.disk_usage(tmp_path)._replace(free=1000)
    monkeypatch.setattr(folders.shutil, "disk_usage", lambda path: usage)
    study = small()
    with pytest.raises(OSError, match=r"whose disk has 0.001 MB left; the study may need 0.0285 MB. Free some space"):
        study.run(out=tmp_path / "out")
    assert not study._done


def test_a_disk_that_fills_up_leaves_whole_files(tmp_path, monkeypatch):
    real = os.fsync
    count = []

    def full(descriptor):
        count.append(1)
        # Twice a file, for it and for its folder: study.json and two data sets are written.
        if len(count) == 7:
            raise OSError(28, "No space left on device")
        real(descriptor)

    monkeypatch.setattr(os, "fsync", full)
    with pytest.raises(
        OSError, match=r"\(No space left on device.*\). What was finished before is kept: run the study again"
    ):
        small().run(out=tmp_path)
    assert len(list(tmp_path.glob("cells/*/*.json"))) == 2
    assert not list(tmp_path.rglob("*.part"))
