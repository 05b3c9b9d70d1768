"""Commands of adfl-stats on the ranks of MPI, one after the other in one start of them.

    mpiexec -n 2 python on_ranks_cli.py

commands.json has the arguments of each; its status and what it says go to NUMBER.RANK.status, .out and .err.
"""

import contextlib
import json
from pathlib import Path

import adfl_stats as ad
from adfl_stats.cli.main import main


def run(place, arguments):
    """Run one command as the shell would, and write what it says."""
    with (
        Path(f"{place}.out").open("w") as out,
        Path(f"{place}.err").open("w") as err,
        contextlib.redirect_stdout(out),
        contextlib.redirect_stderr(err),
    ):
        try:
            status = main(arguments)
        except SystemExit as end:
            status = end.code
    Path(f"{place}.status").write_text(str(status))


if __name__ == "__main__":
    for number, arguments in enumerate(json.loads(Path("commands.json").read_text())):
        run(f"{number}.{ad.MPI().rank}", arguments)
