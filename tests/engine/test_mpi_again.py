"""Fits made again, nested tests, goodness of fit and the oracle: ranks that make them together have the bits of one."""

import sys
from pathlib import Path

import pytest
from test_mpi import launched

PROGRAM = Path(__file__).with_name("on_ranks_again.py")


def same_bits(count, *words, timeout):
    done = launched(4, sys.executable, str(PROGRAM), *words, timeout=timeout)
    assert done.returncode == 0, done.stderr
    lines = done.stdout.splitlines()
    assert len(lines) == count
    assert [line for line in lines if not line.endswith(": same")] == []


def test_one_to_four_ranks_make_fits_again_with_the_same_bits():
    """Each number of ranks with rows that all have, or by rank; labels with a penalty on two and three."""
    same_bits(6, timeout=400)


@pytest.mark.slow
def test_one_to_four_ranks_make_fits_again_of_all_rows_and_by_rank():
    same_bits(16, "all", timeout=3000)
