"""Fits that are ended go on from their checkpoint, to the bits of fits that were not ended."""

import errno
from pathlib import Path

import numpy as np
import pytest

import adfl_stats as ad
from adfl_stats.engine import journal, limit, loop
from adfl_stats.engine.versions import versions_here

M, P = 12, 3
CIRCLE = ad.networks.directed_circle(M, 4)
PLAN = {"step": 0.05, "rounds": 40}


@pytest.fixture(scope="module")
def data():
    sim = ad.simulate.glm_design("binomial", M=M, n=(20, 40), p=P, seed=2)
    return ad.ClientData.from_arrays(sim.X, sim.y, sim.client)


def ended(monkeypatch, after):
    """Rounds that end with Ctrl-C after some chunks."""
    chunks, advance = iter(range(1000)), loop.Loop.advance

    def ending(loop, count):
        if next(chunks) == after:
            raise KeyboardInterrupt
        return advance(loop, count)

    monkeypatch.setattr(loop.Loop, "advance", ending)


def same(one, other):
    assert one.client_params.equals(other.client_params)
    assert one.trace.equals(other.trace)
    assert str(one.summary()) == str(other.summary())
    # Messages of runs that were kept are counted once.
    assert one.communication().to_frame().equals(other.communication().to_frame())


# Method, network, options, chunks until the end, and the rounds that are not made again.
CASES = {
    "rounds": (ad.DFL(), CIRCLE, PLAN, 25, 25),
    "median": (ad.Bridge("median"), CIRCLE, PLAN, 25, 25),
    "schedule": (ad.DFL(), ad.networks.schedule([CIRCLE, ad.networks.complete(M)], every=3), PLAN, 25, 25),
    "stages": (ad.ADFL(lam=1.0, stages=3), CIRCLE, PLAN, 60, 60),
    "a method with a memory": (ad.Extra(), ad.networks.complete(M).metropolis(), PLAN, 25, 0),
    "until accurate": (ad.DFL(), CIRCLE, {"solver": "rounds"}, 2, 0),
}


@pytest.mark.parametrize("name", CASES)
@pytest.mark.filterwarnings("ignore::adfl_stats.AdflWarning")
def test_an_ended_fit_goes_on(name, data, tmp_path, monkeypatch):
    method, network, plan, after, kept = CASES[name]
    model = ad.DecentralizedGLM(data, network, "binomial")
    whole = model.fit(method, **plan)
    with monkeypatch.context() as patch:
        ended(patch, after)
        with pytest.raises(KeyboardInterrupt):
            model.fit(method, checkpoint=tmp_path, every=0, **plan)
    done, advance = [], loop.Loop.advance
    with monkeypatch.context() as patch:
        patch.setattr(loop.Loop, "advance", lambda self, n: done.append(n) or advance(self, n))
        same(model.fit(method, checkpoint=tmp_path, every=0, **plan), whole)
    assert list(tmp_path.iterdir()) == []
    assert sum(done) == whole.record.total_rounds - kept


@pytest.mark.parametrize("method", [None, ad.ADFL(lam="cv")], ids=["default", "stages"])
def test_a_limit_that_was_found_is_not_solved_for_again(method, data, tmp_path, monkeypatch):
    model = ad.DecentralizedGLM(data, CIRCLE, "binomial")
    whole = model.fit(method)

    def failing(*given):
        raise MemoryError

    with monkeypatch.context() as patch:
        patch.setattr("adfl_stats._model_fitting.fit_record", failing)
        with pytest.raises(MemoryError):
            model.fit(method, checkpoint=tmp_path)
    monkeypatch.setattr(limit, "_settle", failing)
    same(model.fit(method, checkpoint=tmp_path), whole)


def begun(model, folder, monkeypatch):
    with monkeypatch.context() as patch:
        ended(patch, 5)
        with pytest.raises(KeyboardInterrupt):
            model.fit(ad.DFL(), checkpoint=folder, every=0, **PLAN)
    return folder / "checkpoint.npz"


def test_a_damaged_checkpoint_is_said_and_not_used(data, tmp_path, monkeypatch):
    model = ad.DecentralizedGLM(data, CIRCLE, "binomial")
    path = begun(model, tmp_path, monkeypatch)
    content = bytearray(path.read_bytes())
    content[len(content) // 2] ^= 1
    path.write_bytes(content)
    with pytest.raises(ad.StorageError, match=r"checkpoint.npz cannot be used: its content differs .* Remove it"):
        model.fit(ad.DFL(), checkpoint=tmp_path, **PLAN)
    path.write_bytes(content[:100])
    with pytest.raises(ad.StorageError, match=r"cut off\. Remove it to begin the fit anew"):
        model.fit(ad.DFL(), checkpoint=tmp_path, **PLAN)
    begun(model, tmp_path / "next", monkeypatch)
    written = journal.FORMAT
    monkeypatch.setattr(journal, "FORMAT", written + 1)
    with pytest.raises(ad.StorageError, match=f"has format {written}, this version writes {written + 1}"):
        model.fit(ad.DFL(), checkpoint=tmp_path / "next", **PLAN)


def test_a_checkpoint_of_other_versions_goes_on_with_a_warning(data, tmp_path, monkeypatch):
    model = ad.DecentralizedGLM(data, CIRCLE, "binomial")
    other = versions_here() | {"the version of numpy": "1.26.4"}
    with monkeypatch.context() as patch:
        patch.setattr(journal, "versions_here", lambda: other)
        begun(model, tmp_path, monkeypatch)
    with pytest.warns(ad.StorageWarning, match=r"other versions: the version of numpy: .*1\.26\.4.* then, .* now"):
        same(model.fit(ad.DFL(), checkpoint=tmp_path, **PLAN), model.fit(ad.DFL(), **PLAN))


def test_a_checkpoint_that_is_no_folder_or_cannot_be_read_is_refused_before_the_work(data, tmp_path, monkeypatch):
    model = ad.DecentralizedGLM(data, CIRCLE, "binomial")
    monkeypatch.setattr(loop.Loop, "advance", lambda *_: pytest.fail("rounds were run"))
    (tmp_path / "file").write_text("of the user")
    with pytest.raises(NotADirectoryError, match=r"checkpoint is '.*file', a file; give a folder"):
        model.fit(ad.DFL(), checkpoint=tmp_path / "file", **PLAN)
    (tmp_path / "kept" / "checkpoint.npz").mkdir(parents=True)
    with pytest.raises(ad.StorageError, match=r"checkpoint.npz cannot be used: .*Is a directory"):
        model.fit(ad.DFL(), checkpoint=tmp_path / "kept", **PLAN)


def test_a_checkpoint_that_cannot_be_removed_loses_no_fit(data, tmp_path, monkeypatch):
    model = ad.DecentralizedGLM(data, CIRCLE, "binomial")
    path = begun(model, tmp_path, monkeypatch)
    # What a process that was killed while it wrote has left.
    (tmp_path / ".checkpoint.npz.12ab34cd.part").write_bytes(b"half")
    unlink = Path.unlink

    def refused(self, missing_ok=False):
        if self == path:
            raise OSError(errno.EROFS, "Read-only file system")
        unlink(self, missing_ok)

    monkeypatch.setattr(Path, "unlink", refused)
    with pytest.warns(ad.StorageWarning, match=r"could not be removed \(Read-only file system\); the fit is complete"):
        same(model.fit(ad.DFL(), checkpoint=tmp_path, **PLAN), model.fit(ad.DFL(), **PLAN))
    assert list(tmp_path.iterdir()) == [path]


def test_a_checkpoint_of_another_fit_is_refused(data, tmp_path, monkeypatch):
    model = ad.DecentralizedGLM(data, CIRCLE, "binomial")
    begun(model, tmp_path, monkeypatch)
    with pytest.raises(ValueError, match=r"is of another fit: the option step differ"):
        model.fit(ad.DFL(), checkpoint=tmp_path, step=0.1, rounds=40)
    with pytest.raises(ValueError, match="is of another fit: the method differ"):
        model.fit(ad.DFL(init=np.full(P, 0.1)), checkpoint=tmp_path, **PLAN)
    changed = ad.ClientData.from_arrays(data.X, 1.0 - data.y, np.repeat(np.arange(M), data.sizes))
    with pytest.raises(ValueError, match="is of another fit: the rows differ"):
        ad.DecentralizedGLM(changed, CIRCLE, "binomial").fit(ad.DFL(), checkpoint=tmp_path, **PLAN)
    with pytest.raises(ValueError, match="is of another fit: the transport differ"):
        model.fit(ad.DFL(), checkpoint=tmp_path, transport=ad.Gossip(), **PLAN)
    with pytest.raises(ValueError, match="every"):
        model.fit(ad.DFL(), checkpoint=tmp_path, every=-1.0, **PLAN)


def test_a_full_disk_is_said_and_the_fit_goes_on(data, tmp_path, monkeypatch):
    model = ad.DecentralizedGLM(data, CIRCLE, "binomial")

    def full(path, arrays):
        raise OSError(errno.ENOSPC, "No space left on device")

    monkeypatch.setattr(journal, "write_arrays", full)
    with pytest.warns(ad.StorageWarning, match=r"checkpoint.npz could not be written \(No space left on device\)"):
        res = model.fit(ad.DFL(), checkpoint=tmp_path, **PLAN)
    assert res.client_params.equals(model.fit(ad.DFL(), **PLAN).client_params)
