"""A fit from disk needs memory for blocks of the data, not for the data."""

import json
import subprocess
import sys
from pathlib import Path

import pytest

# The limit is what the process holds after a small fit, when the libraries have their buffers, and so many MiB more.
FIT = """
import sys
from pathlib import Path
sys.path.insert(0, sys.argv[1])
import memmap
import memory
memory.warm_up()
folder, gib, more = Path(sys.argv[2]), float(sys.argv[3]), float(sys.argv[4])
status = Path("/proc/self/status").read_text().splitlines()
held = next(int(line.split()[1]) for line in status if line.startswith("VmData")) * 1024
memmap.write(folder, gib)
{spoil}
memmap.limited(folder, (held + more * 2**20) / 2**30, automatic=False)
"""


def fit_from_disk(folder, spoil=""):
    arguments = [Path(__file__).parents[1] / "benchmarks", folder, 0.0625, 40]
    call = [sys.executable, "-W", "ignore", "-c", FIT.format(spoil=spoil), *map(str, arguments)]
    return subprocess.run(call, capture_output=True, text=True, timeout=120, check=False)


@pytest.mark.skipif(not sys.platform.startswith("linux"), reason="private memory is read and limited as on Linux")
def test_data_above_the_limit_are_fitted_from_disk(tmp_path):
    """X has 64 MiB; beside what its libraries take the process may have 40, and a copy of X would not fit."""
    done = fit_from_disk(tmp_path)
    assert done.returncode == 0, done.stderr
    found = json.loads(done.stdout)
    assert set(found) == {"before", "construct", "five rounds", "limit of DFL"}
    assert max(part["peak"] for name, part in found.items() if name != "before") < found["before"] + 40 / 1024
    done = fit_from_disk(tmp_path, spoil="memmap.np.load = lambda path, mmap_mode: memmap.np.fromfile(path)")
    assert done.returncode != 0
    assert "MemoryError" in done.stderr
