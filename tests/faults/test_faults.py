"""Each step of a write fails in turn: a full disk, a broken one, the end of the process; so does each allocation."""

import json
import os
import shutil
import subprocess
import sys
from pathlib import Path

import pytest

HERE = Path(__file__).parent
STRIDE = int(os.environ.get("ADFL_FAULT_STRIDE", "0"))

pytestmark = pytest.mark.skipif(
    not sys.platform.startswith("linux") or shutil.which("cc") is None or "LD_PRELOAD" in os.environ,
    reason="the shim is made for Linux with glibc and a C compiler, and wants to be loaded first",
)


@pytest.fixture(scope="module")
def shim(tmp_path_factory):
    library = tmp_path_factory.mktemp("shim") / "shim.so"
    subprocess.run(["cc", "-shared", "-fPIC", "-O1", "-o", library, HERE / "shim.c", "-ldl"], check=True)
    return library


def run(shim, folder, task, stride):
    command = [sys.executable, HERE / "driver.py", shim, task, folder, str(STRIDE or stride)]
    done = subprocess.run(
        command, env=os.environ | {"LD_PRELOAD": str(shim), "OMP_NUM_THREADS": "1"}, capture_output=True, text=True
    )
    assert done.returncode == 0, done.stderr[-2000:]
    return json.loads(done.stdout.splitlines()[-1]), done.stderr


# Not every step here: `ADFL_FAULT_STRIDE=1 pytest tests/faults` tries each, in some minutes.
@pytest.mark.parametrize(
    ("task", "stride", "most"), [("conversion", 11, 40), ("damaged", 17, 40), ("saving", 1, 6), ("study", 9, 20)]
)
def test_whatever_step_fails_files_are_whole_or_not_there(shim, tmp_path, task, stride, most):
    """The error is an OSError with words; the next call works, and removes what a killed one left behind."""
    found, errors = run(shim, tmp_path, task, stride)
    assert found["wrong"] == [], errors[-2000:]
    assert found["steps"] >= most
    assert found["cases"] >= 3 * (found["steps"] // (STRIDE or stride))


def test_every_allocation_of_the_kernel_may_fail(shim, tmp_path):
    """MemoryError, nothing is lost, and the next call has the same numbers."""
    found, errors = run(shim, tmp_path, "allocations", 1)
    assert found["wrong"] == [], errors[-2000:]
    assert found["steps"] >= 10
    assert found["cases"] >= 200
