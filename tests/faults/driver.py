"""Let the n-th step of a task fail, for every n, each in a child of its own; run under the shim by test_faults.py.

    LD_PRELOAD=shim.so python driver.py shim.so TASK FOLDER [STRIDE]

Prints one line of JSON: the steps of the task, the cases tried, and what went wrong in which of them.
"""

import ctypes
import errno
import json
import os
import shutil
import signal
import sys
import warnings
from pathlib import Path

import numpy as np
import pandas as pd
import pyarrow.parquet  # noqa: F401 - before the forks, whose children use it

import adfl_stats as ad
from adfl_stats import _kernels
from adfl_stats.engine.rules import RULES

KINDS = {"ENOSPC": errno.ENOSPC, "EIO": errno.EIO, "SIGKILL": 0}


class Conversion:
    """`from_parquet`, of a file that was not converted before, or whose copy is damaged."""

    def prepare(self, home):
        rng = np.random.default_rng(1)
        frame = pd.DataFrame({"site": rng.integers(4, size=300), "y": rng.normal(size=300), "x": rng.normal(size=300)})
        frame.to_parquet(home / "rows.parquet")

    def act(self, home):
        with warnings.catch_warnings():
            warnings.simplefilter("ignore", ad.StorageWarning)
            return ad.ClientData.from_parquet(home / "rows.parquet", "y ~ x", "site")

    def check(self, home, failed):
        """Return what is wrong after a fault, which the call has reported (`failed`) or not, and one more call."""
        if failed and list(home.glob("rows.parquet.adfl/partial-*")):
            return "a partial copy was left behind"
        data, frame = self.act(home), pd.read_parquet(home / "rows.parquet")
        wanted = ad.ClientData.from_frame(frame, "y ~ x", "site")
        if not (np.array_equal(data.X, wanted.X) and np.array_equal(data.y, wanted.y)):
            return "wrong numbers"
        if list(home.glob("rows.parquet.adfl/partial-*")):
            return "a partial copy was not removed"
        return ""


class Damaged(Conversion):
    """The same where the copy of an earlier conversion is damaged."""

    def prepare(self, home):
        super().prepare(home)
        # In a child, since Arrow's threads do not survive forks.
        if in_child(lambda: self.act(home)) != 0:
            raise RuntimeError("the first conversion failed")
        path = next(home.glob("rows.parquet.adfl/*/X.npy"))
        path.write_bytes(path.read_bytes()[:-8] + bytes(8))


class Saving:
    """`Results.save` over an older file: it has the old results or the new ones."""

    def __init__(self):
        sim = ad.simulate.paper_linear(abnormal=0, corruption=None, seed=1, M=10, n=30, p=2)
        data = ad.ClientData.from_arrays(sim.X, sim.y, sim.client)
        model = ad.DecentralizedGLM(data, ad.networks.directed_circle(10, 3))
        self.old, self.new = (model.fit(ad.DFL(), step=0.01, rounds=k) for k in (5, 6))

    def prepare(self, home):
        self.old.save(home / "fit.npz")

    def act(self, home):
        self.new.save(home / "fit.npz")

    def check(self, home, failed):
        params = ad.load(home / "fit.npz").client_params
        if not any(params.equals(res.client_params) for res in (self.old, self.new)):
            return "neither the old nor the new results"
        left = [path.name for path in home.iterdir() if path.name != "fit.npz"]
        return f"left behind: {left}" if left and failed else ""


class Studying:
    """A study with a folder: what is in it is whole, and the next call goes on to the same tables."""

    def __init__(self):
        self.wanted = self.study().run(jobs=1).draws()

    def study(self):
        sizes = {"n": 20, "p": 2}
        return ad.Study(["DFL"], networks={"ours": ad.networks.complete(4)}, shares=[0], sizes=sizes, replicates=2)

    def prepare(self, home):
        (home / "study").mkdir()

    def act(self, home):
        self.study().run(jobs=1, out=home / "study")

    def check(self, home, failed):
        parts = list(home.rglob(".*.part"))
        if failed and parts:
            return f"left behind: {[part.name for part in parts]}"
        for path in home.rglob("*.json"):
            json.loads(path.read_text())
        for part in parts:
            # Two hours ago: nobody can be writing it still.
            os.utime(part, (os.stat(part).st_mtime - 7200.0,) * 2)
        again = self.study().run(jobs=1, out=home / "study").draws().drop(columns="seconds")
        if not again.equals(self.wanted.drop(columns="seconds")):
            return "other numbers"
        written = pd.read_csv(home / "study" / "draws.csv").drop(columns="seconds")
        if len(written) != len(again) or not np.allclose(written["mse"], again["mse"], rtol=1e-12):
            return "other tables"
        return "a part was not removed" if list(home.rglob(".*.part")) else ""


def in_child(call):
    """Return the exit code of a child that calls, negative for a signal; 3 for an exception that is no OSError."""
    child = os.fork()
    if child == 0:
        signal.alarm(60)
        code = 0
        try:
            code = call() or 0
            code = code if isinstance(code, int) else 0
        except (OSError, MemoryError) as error:
            code = 2 if str(error) else 4
        except BaseException:
            import traceback

            traceback.print_exc()
            code = 3
        finally:
            os._exit(code)
    return os.waitstatus_to_exitcode(os.waitpid(child, 0)[1])


def file_faults(shim, task, home, stride):
    cases, wrong, steps = 0, [], 0
    for kind, error in KINDS.items():
        at = 1
        while True:
            shutil.rmtree(home, ignore_errors=True)
            home.mkdir()
            task.prepare(home)

            def act(at=at, error=error):
                shim.fault_files(str(home).encode() + b"/", at, error)
                try:
                    task.act(home)
                finally:
                    count = shim.fault_steps()
                    shim.fault_files(b"", 0, 0)
                    (home.parent / "steps").write_text(str(count))

            code = in_child(act)
            cases += 1
            # A fault in a removal may be passed over; everything else is an OSError with words, or the signal.
            if code not in ((-signal.SIGKILL, 0) if kind == "SIGKILL" else (0, 2)):
                wrong.append([kind, at, f"exit code {code}"])

            def check(failed=code == 2):
                if reason := task.check(home, failed):
                    (home.parent / "reason").write_text(reason)
                    return 1
                return 0

            if code := in_child(check):
                reason = home.parent / "reason"
                wrong.append([kind, at, reason.read_text() if code == 1 else f"exit code {code} of the check"])
            at += stride
            if kind == "SIGKILL":
                if at > steps:
                    break
                continue
            count = int((home.parent / "steps").read_text())
            if at - stride > count:
                # Nothing failed: these are the steps of a call.
                steps = count
                break
    return {"steps": steps, "cases": cases, "wrong": wrong}


def allocation_faults(shim):
    """Fail every allocation of the kernel's entries in turn: MemoryError, then the right numbers."""
    rng = np.random.default_rng(0)
    M, n, p = 6, 8, 3
    X, y = rng.normal(size=(M * n, p)), rng.integers(2, size=M * n).astype(float)
    indptr = np.arange(0, 4 * M + 1, 4)
    indices = np.array([[(m + k) % M for k in range(4)] for m in range(M)]).ravel()
    S = np.zeros((M, p, 4))
    S[:, :, :p] = np.eye(p)

    def act(code, runs):
        bad = np.zeros(4 * M, np.uint8)
        combiner = _kernels.Combiner(indptr, indices, np.full(4 * M, 0.25), code, 1, 0.5, bad)
        theta = np.ones((M, runs, p))
        out = []
        for loss in (
            _kernels.RowLoss(X, y, np.arange(0, M * n + 1, n), np.full(M, float(n)), 1),
            _kernels.GramLoss(S, np.ones((M, p)), symmetric=True),
        ):
            state, moved, here = theta.copy(), np.empty((3, runs)), np.empty((M, runs, p))
            _kernels.combine(combiner, theta, here)
            _kernels.gradient(loss, theta, grad := np.empty((M, runs, p)), 2)
            _kernels.rounds(combiner, loss, state, np.full((M, runs), 0.1), 3, moved, np.full(runs, np.inf), 2)
            out += [here, grad, state, moved]
        return np.concatenate([part.ravel() for part in out])

    cases, wrong, most = 0, [], 0
    for code in range(len(RULES)):
        for runs in (1, 3):
            wanted, at = act(code, runs), 1
            while True:
                shim.fault_allocations(b"_kernels", at)
                try:
                    failed = np.array_equal(act(code, runs), wanted) - 1
                except MemoryError as error:
                    failed = 1 if "kernel could not allocate" in str(error) else -1
                count = shim.fault_allocated()
                shim.fault_allocations(b"", 0)
                cases += 1
                if failed < 0 or not np.array_equal(act(code, runs), wanted):
                    wrong.append([RULES[code], runs, at])
                if not failed:
                    break
                most, at = max(most, count), at + 1
    return {"steps": most, "cases": cases, "wrong": wrong}


TASKS = {"conversion": Conversion, "damaged": Damaged, "saving": Saving, "study": Studying}

if __name__ == "__main__":
    library, name, place = sys.argv[1:4]
    shim = ctypes.CDLL(library)
    if name == "allocations":
        print(json.dumps(allocation_faults(shim)))
    else:
        home = Path(place).resolve() / "home"
        print(json.dumps(file_faults(shim, TASKS[name](), home, int(sys.argv[4]) if len(sys.argv) > 4 else 1)))
