"""Fits over the ranks of MPI: the bits of fits without it, and failures that end all ranks."""

import json
import os
import shutil
import subprocess
import sys
import time
from pathlib import Path
from types import SimpleNamespace

import on_ranks as program
import pandas as pd
import pytest

import adfl_stats as ad
from adfl_stats.cli.main import main
from adfl_stats.cli.rows import read_whole
from adfl_stats.engine import loop as loop_module
from adfl_stats.engine import transport

PROGRAM = Path(__file__).with_name("on_ranks.py")
# Beside the interpreter, where the wheel of MPICH puts it, or of the system.
MPIEXEC = shutil.which("mpiexec", path=str(Path(sys.executable).parent)) or shutil.which("mpiexec")


def on_ranks(ranks, folder, *cases, timeout=300, program=PROGRAM):
    """Run the program; return it, with what it said."""
    return launched(ranks, sys.executable, str(program), str(folder), *cases, timeout=timeout)


def launched(ranks, *command, timeout=300, **where):
    """Run a command on some ranks; return it, with what it said."""
    pytest.importorskip("mpi4py", reason="MPI needs mpi4py: pip install 'adfl-stats[mpi]'")
    if MPIEXEC is None:
        pytest.skip("MPI needs mpiexec: pip install 'adfl-stats[mpi]'")
    # Ranks that wait leave the processor to others: there may be fewer processors than ranks.
    threads = {"OMP_NUM_THREADS": "1", "OPENBLAS_NUM_THREADS": "1", "MPIR_CVAR_ENABLE_HEAVY_YIELD": "1"}
    threads["MPIR_CVAR_POLLS_BEFORE_YIELD"] = "1"
    return subprocess.run(
        [MPIEXEC, "-n", str(ranks), *command],
        capture_output=True,
        text=True,
        timeout=timeout,
        env=os.environ | threads,
        **where,
    )


def same_bits(done, folder, ranks, *cases, made=program):
    """Check that every rank wrote the digests of the same fits made here, without MPI."""
    assert done.returncode == 0, done.stderr
    for case in cases:
        here = getattr(made, case)(None)
        for rank in range(ranks):
            assert (folder / f"{case}.{rank}").read_text().splitlines() == here


@pytest.fixture
def batches_of_ten(monkeypatch):
    """As in the program."""
    monkeypatch.setattr(transport, "BATCH_CLIENTS", 10)


def test_three_ranks_give_the_bits_of_a_fit_without_them(batches_of_ten, tmp_path):
    cases = "rounds", "robust", "attacked", "large"
    same_bits(on_ranks(3, tmp_path, *cases), tmp_path, 3, *cases)


@pytest.fixture(scope="module")
def two_ranks(tmp_path_factory):
    """Fits, refusals and a fit that ends before its time, in one start of the ranks, and their folder."""
    folder = tmp_path_factory.mktemp("ranks")
    return on_ranks(
        2, folder, "whole", "weighted", "refused", "idle", "alone", "interrupted", "stages_interrupted"
    ), folder


def test_two_ranks_give_the_bits_of_a_fit_without_them(two_ranks, batches_of_ten):
    done, folder = two_ranks
    same_bits(done, folder, 2, "whole", "weighted", "alone")


DISAGREEMENTS = [
    "the network: rank 0 has ",
    "the rows: rank 0 has ",
    "the method: rank 0 has ",
    "the option rounds: rank 0 has ",
    "checkpoint: rank 0 has none, rank 1 has every 60 s",
    "checkpoint: rank 0 has every 0 s, rank 1 has every 1 s",
    "cov_type: rank 0 has None, rank 1 has 'CR1'",
    "the version of adfl_stats: rank 0 has ",
    "the call: rank 0 has bootstrap(5, seed=0), rank 1 has bootstrap(6, seed=0)",
]


def test_ranks_that_disagree_are_named_on_all(two_ranks):
    done, _ = two_ranks
    said = {what: done.stdout.count(f"ValueError: the ranks disagree about {what}") for what in DISAGREEMENTS}
    assert said == dict.fromkeys(DISAGREEMENTS, 2), done.stderr


def test_errors_of_all_clients_are_raised_on_all_ranks_also_on_those_without_clients(two_ranks):
    done, _ = two_ranks
    # Once on each rank where both have clients, and where one waits.
    assert done.stdout.count("ValueError: BRIDGE-T needs at least 7 neighbours for every client") == 4, done.stderr
    assert done.stdout.count("SecretError: of one rank") == 2
    assert "RuntimeError: SecretError: of one rank" in done.stdout


def test_many_transports_use_few_communicators():
    """A library of MPI has some thousands of them."""
    pytest.importorskip("mpi4py", reason="MPI needs mpi4py: pip install 'adfl-stats[mpi]'")
    one, other = ad.MPI(), ad.MPI()
    assert one._comm == other._comm
    assert one._comm != one._votes


def test_a_fit_that_ranks_began_goes_on_without_them_and_on_others(two_ranks, batches_of_ten, monkeypatch, tmp_path):
    """Its digest of data and options is the same, and so are the bits."""
    done, folder = two_ranks
    assert done.returncode == 0, done.stderr
    assert (folder / "checkpoint.npz").exists()
    model, plan = program.model_of("binomial"), program.PLAN
    rounds, original = [], loop_module.Loop.advance
    monkeypatch.setattr(loop_module.Loop, "advance", lambda loop, n: rounds.append(n) or original(loop, n))
    copied = shutil.copytree(folder, tmp_path / "copied")
    resumed = model.fit(ad.DFL(), checkpoint=folder, **plan)
    assert sum(rounds) == 3
    whole = model.fit(ad.DFL(), **plan)
    assert resumed.client_params.equals(whole.client_params)
    assert str(resumed.communication()) == str(whole.communication())
    # And on more ranks than it was begun on.
    assert (copied / "stages" / "checkpoint.npz").exists()
    done = on_ranks(3, copied, "resumed", "stages_resumed")
    same_bits(done, copied, 3, "resumed", "stages_resumed")
    assert not (copied / "checkpoint.npz").exists()
    assert not (copied / "stages" / "checkpoint.npz").exists()


def test_a_rank_that_fails_alone_ends_all_with_its_message(tmp_path):
    began = time.monotonic()
    done = on_ranks(2, tmp_path, "fail")
    assert done.returncode != 0
    assert "rank 1 of 2 failed, and ends all ranks" in done.stderr
    assert "FloatingPointError: rank one is broken" in done.stderr
    assert "is done" not in done.stdout
    assert time.monotonic() - began < 120


def test_a_rank_that_is_killed_ends_the_job(tmp_path):
    began = time.monotonic()
    done = on_ranks(2, tmp_path, "killed", timeout=120)
    assert done.returncode != 0
    assert "is done" not in done.stdout
    assert time.monotonic() - began < 60


def commands(folder, **arguments):
    """Run commands on two ranks; return by name the statuses, and what both said."""
    (folder / "commands.json").write_text(json.dumps(list(arguments.values())))
    done = launched(2, sys.executable, str(PROGRAM.with_name("on_ranks_cli.py")), cwd=folder)
    assert done.returncode == 0, done.stderr
    said = {
        kind: [[(folder / f"{k}.{rank}.{kind}").read_text() for rank in range(2)] for k in range(len(arguments))]
        for kind in ("status", "out", "err")
    }
    return {
        name: SimpleNamespace(status=list(map(int, status)), out="".join(out), err="".join(err))
        for name, status, out, err in zip(arguments, *said.values(), strict=True)
    }


def test_the_command_line_speaks_through_rank_zero(tmp_path, monkeypatch, capsys):
    """Of two ranks; bad input is said once."""
    sim = ad.simulate.glm_design("gaussian", M=6, n=20, p=2, seed=1)
    sim.frame().to_csv(tmp_path / "rows.csv", index=False)
    edges = [(k, (k + 1) % 6) for k in range(6)]
    pd.DataFrame(edges, columns=["source", "target"]).to_csv(tmp_path / "edges.csv", index=False)
    (tmp_path / "parts").mkdir()
    rows = sim.frame().assign(client=sim.frame()["client"].map(str))
    for k in range(3):
        rows.iloc[k * 40 : (k + 1) * 40].to_parquet(tmp_path / "parts" / f"{k}.parquet")
    rows.to_parquet(tmp_path / "rows.parquet", row_group_size=20)
    monkeypatch.chdir(tmp_path)

    def fit(data, *options, formula="y ~ x1 + x2"):
        return ["fit", data, "--client", "client", "--network", "edges.csv", "--formula", formula, *options]

    assert main(fit("rows.csv")) == 0
    alone = capsys.readouterr().out
    assert main(fit("parts/*.parquet")) == 0
    assert capsys.readouterr().out == alone
    # As the shell starts it.
    program = [sys.executable, "-m", "adfl_stats"]
    both = launched(2, *program, *fit("rows.csv", "--json", "fit.json"), cwd=tmp_path)
    assert (both.returncode, both.stdout) == (0, alone), both.stderr
    assert (tmp_path / "fit.json").exists()
    done = commands(
        tmp_path,
        partitions=fit("parts/*.parquet", "--mpi"),
        # One file, of which a rank reads the row groups of its clients.
        file=fit("rows.parquet", "--checkpoint", "kept"),
        # All ranks make the fits again, with the rows of their own clients.
        again=fit("rows.parquet", "--sensitivity"),
        wrong=fit("rows.csv", "--mpi", formula="y ~ x9"),
        share=fit("rows.csv", "--screen", "2"),
        typo=["fit", "--cleint", "c"],
        help=["fit", "--help"],
        completion=["completion", "bash"],
        # What rank 0 alone meets once the fit is done is no failure of ranks.
        full=fit("rows.csv", "--json", "/dev/full" if Path("/dev/full").exists() else "fit.json"),
    )
    for name in ("partitions", "file"):
        assert (done[name].status, done[name].out) == ([0, 0], alone), done[name].err
    assert done["again"].status == [0, 0], done["again"].err
    assert done["again"].out.startswith(alone)
    assert "The largest move is" in done["again"].out
    for name, message in (("wrong", "adfl-stats: "), ("share", "--screen is 2; it must lie in (0, 1)")):
        assert done[name].status == [2, 2]
        assert done[name].out == ""
        assert done[name].err.count(message) == 1, done[name].err
    for name, status, about in (
        ("typo", 2, "the following arguments are required"),
        ("help", 0, "usage:"),
        # A command that is not spread runs once.
        ("completion", 0, "complete -"),
    ):
        assert done[name].status == [status] * 2
        assert (done[name].out + done[name].err).count(about) == 1, done[name]
    assert "runs in one of 2 processes" in done["completion"].err
    if Path("/dev/full").exists():
        assert done["full"].err == "adfl-stats: [Errno 28] No space left on device\n"
        assert done["full"].status == [2, 0]
    # One rank sees no folder "parts" to write to: all end, and what is wrong is said with the rank.
    other = tmp_path / "elsewhere"
    other.mkdir()
    command = [*program, *fit("rows.csv", "--json", "parts/fit.json")]
    ended = launched(1, "-wdir", tmp_path, *command, ":", "-n", "1", "-wdir", other, *command, timeout=60)
    assert (ended.returncode, ended.stdout) == (2, "")
    assert ended.stderr.startswith("on rank 1 of 2: adfl-stats fit: argument --json: 'parts/fit.json' cannot be")


# mpi4py's own word on it, where this is the first import.
@pytest.mark.filterwarnings("ignore:suspicious MPI execution environment:RuntimeWarning")
def test_processes_that_do_not_see_one_another_are_named(monkeypatch, capsys):
    """An mpiexec of another library than mpi4py's starts processes that are all rank 0 of 1."""
    pytest.importorskip("mpi4py", reason="MPI needs mpi4py: pip install 'adfl-stats[mpi]'")
    monkeypatch.setenv("OMPI_COMM_WORLD_SIZE", "3")
    given = ["fit", "rows.csv", "--client", "client", "--network", "edges.csv", "--formula", "y ~ x"]
    assert main(given) == 2
    assert "mpiexec started 3 processes, and each of them is alone" in capsys.readouterr().err


@pytest.mark.parametrize("by_rank", [False, True])
def test_a_parquet_file_with_clients_as_text_is_read_by_rank(tmp_path, by_rank):
    frame = pd.DataFrame({"client": ["1", "2"] if by_rank else [1, 2]})
    frame.to_parquet(tmp_path / "rows.parquet")
    path = str(tmp_path / "rows.parquet")
    assert read_whole(path, "client") is not by_rank
    assert not read_whole(str(tmp_path / "*.parquet"), "client")
    # Of a file that is not there, as without ranks.
    assert read_whole(str(tmp_path / "none.csv"), "client")


def test_one_process_without_mpiexec_is_one_rank(batches_of_ten, tmp_path):
    pytest.importorskip("mpi4py", reason="MPI needs mpi4py: pip install 'adfl-stats[mpi]'")
    command = [sys.executable, str(PROGRAM), str(tmp_path), "alone"]
    done = subprocess.run(command, capture_output=True, text=True, timeout=300)
    assert done.stdout == "alone: rank 0 of 1 is done\n", done.stderr
    same_bits(done, tmp_path, 1, "alone")
