"""A few seeded cases of every fuzzer; `tests/fuzz/adfl-fuzz --seconds 3600` runs them for hours."""

import os
import subprocess
import sys
from pathlib import Path

import pytest

HERE = Path(__file__).parent


@pytest.mark.parametrize(
    ("fuzzer", "cases"), [("kernel", 150), ("fits", 6), ("garbage", 120), ("files", 120), ("commands", 60)]
)
def test_no_case_fails(fuzzer, cases):
    command = [sys.executable, HERE, fuzzer, "--cases", str(cases)]
    environment = {**os.environ, "OMP_NUM_THREADS": "2"}
    done = subprocess.run(command, capture_output=True, text=True, env=environment, timeout=600)
    assert done.returncode == 0, done.stdout[-500:] + done.stderr[-4000:]
    assert f"{fuzzer}: {cases} cases, 0 failed" in done.stdout


def test_garbage_takes_the_place_of_arguments_that_are_sound(monkeypatch):
    """A call that is refused as it stands would show nothing."""
    monkeypatch.syspath_prepend(str(HERE))
    import garbage

    for call, arguments in garbage.sound():
        garbage.check(call(**arguments))


def test_a_failure_is_counted_and_has_its_seed(monkeypatch, capsys):
    monkeypatch.syspath_prepend(str(HERE))
    import runpy

    fuzz = runpy.run_path(str(HERE / "__main__.py"))

    def odd(seed):
        assert seed % 2 == 0, "odd"

    fuzz["FUZZERS"]["odd"] = odd
    assert fuzz["run"]("odd", cases=4, first=10) == (4, [11, 13])
    assert "odd: case 11 failed" in capsys.readouterr().err
