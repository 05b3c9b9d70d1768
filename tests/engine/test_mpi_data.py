"""Data by rank: each rank reads the rows of its own clients, and fits have the bits of all rows in one place."""

from pathlib import Path

import on_ranks_data as program
from test_mpi import batches_of_ten, on_ranks, same_bits

__all__ = ["batches_of_ten"]
PROGRAM = Path(program.__file__)


CASES = ("one", "folder", "ordered", "pattern", "families", "arrays", "overflow")
REFUSALS = [
    "the ranks disagree about the columns of restricted: rank 0 has ['Intercept', 'x1'], rank 1 has ['Intercept']",
    "the ranks disagree about the columns of larger",
    "the ranks disagree about the call: rank 0 has sensitivity(clients=True), rank 1 has bootstrap(4, seed=0)",
    "the ranks disagree about the call: rank 0 has sensitivity(clients=True), rank 1 has sensitivity(clients=False)",
    "the ranks make different calls: rank 0 goodness_of_fit(), rank 1 one with the data's size, the clients,",
    "restricted has its rows by rank (RankData), and this fit has all rows in one place",
    "larger has its rows by rank (RankData), and this fit has all rows in one place",
    "data is a RankData, of which each rank has the rows of its own clients; fit with keep_data=True",
    "res.goodness_of_fit() needs the model, and these results do not hold it any more",
    "res.bootstrap() needs the model",
    "res.sensitivity() needs the model",
    "res.majority() needs the model",
    "pass data=model.data, or fit with keep_data=True, which data by rank (RankData) need",
    "data are not those of the fit",
    "whether the models are nested is checked on the rows, and restricted no longer holds them",
    "whether the models are nested is checked on the rows, and this fit no longer holds them",
    "fittedvalues needs the rows of all clients in one place, and the model's data are by rank (RankData)",
    "resid needs the rows of all clients in one place",
    "predict() without X needs the rows of all clients in one place",
    "transport is a Gossip, and the model's data are by rank",
    "this needs the rows of all clients in one place",
    "40 client(s) have rows on two ranks: 'c00'",
    "the ranks disagree about columns: ['x0'] and, on rank 1, ['x1']",
    "data is None on every rank",
    "data is a DataFrame; pass the ClientData of this rank's clients",
    "no rank finds a Parquet file there",
    "order must be the 40 clients of the file 'one.parquet', each once; found are 1",
    "transport has other ranks than the model's data, which are by rank",
    "order was given, and the ranks see different files",
    "the file 'one.parquet' has no column 'x9'",
    "the ranks disagree about formula: rank 0 has y ~ x1, rank 1 has y ~ 1",
    "the ranks disagree about client: rank 0 has client, rank 1 has None",
    "the ranks disagree about missing: rank 0 has raise, rank 1 has drop",
    "the terms 'bs(x1, df=4)', 'scale(x1)' of the formula have values that depend on other rows",
    "the terms 'center(x1)' of the formula have values that depend on other rows",
]


def test_two_ranks_with_rows_of_their_own_give_the_bits_of_all_rows_and_refuse_the_same(batches_of_ten, tmp_path):
    program.written(tmp_path)
    done = on_ranks(2, tmp_path, *CASES, "refused", program=PROGRAM)
    same_bits(done, tmp_path, 2, *CASES, made=program)
    said = {words: done.stdout.count(words) for words in REFUSALS}
    assert said == dict.fromkeys(REFUSALS, 2), done.stdout


def test_ranks_that_see_different_files_or_none_agree_on_levels(batches_of_ten, tmp_path):
    """The third rank has no files, and so no clients; where all see one file, it has those with a rare level."""
    program.written(tmp_path)
    done = on_ranks(3, tmp_path, "disks", "arrays", "one", program=PROGRAM)
    same_bits(done, tmp_path, 3, "disks", "arrays", "one", made=program)
