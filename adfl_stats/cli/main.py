"""The command line: ``adfl-stats COMMAND``, each in a file of its own."""

from __future__ import annotations

import argparse
import contextlib
import io
import sys
import warnings
from collections.abc import Sequence
from typing import NoReturn

import adfl_stats as ad
from adfl_stats.cli.check_network import add_check_network
from adfl_stats.cli.completion import add_completion
from adfl_stats.cli.demo import add_demo
from adfl_stats.cli.efficiency import add_efficiency
from adfl_stats.cli.fit import add_fit
from adfl_stats.cli.launched import processes
from adfl_stats.cli.outputs import print_any_label
from adfl_stats.cli.report import add_report
from adfl_stats.cli.reproduce import add_reproduce
from adfl_stats.cli.study import add_study

__all__ = ["main"]


def main(arguments: Sequence[str] | None = None) -> int:
    """Run the command line; return the command's status, 2 on bad input with one line that says what is wrong.

    After Ctrl-C the status is 130, as shells have it (128 plus the signal's number).
    """
    print_any_label()
    options = _parser().parse_args(arguments) if processes() == 1 else _parsed_together(arguments)
    try:
        with warnings.catch_warnings():
            warnings.simplefilter("always", ad.AdflWarning)
            warnings.showwarning = _one_line
            status: int | None = options.run(options)
    except BrokenPipeError:
        return 0
    except KeyboardInterrupt:
        print("adfl-stats: interrupted", file=sys.stderr)
        return 130
    except (ValueError, TypeError, OSError, ImportError, RuntimeError, MemoryError) as error:
        print(f"adfl-stats: {_said(error)}", file=sys.stderr)
        return 2
    return status or 0


def _parsed_together(arguments: Sequence[str] | None) -> argparse.Namespace:
    """Return the options where mpiexec started several processes: errors in them are printed once.

    It may be wrong for some processes alone, as a folder that their machine does not have; all of them end then.
    Commands that are not spread run in the first process alone.
    """
    try:
        ranks = ad.MPI()
    except ImportError:
        return _parser().parse_args(arguments)
    options, code, out, errors = None, None, io.StringIO(), io.StringIO()
    with contextlib.redirect_stdout(out), contextlib.redirect_stderr(errors):
        try:
            options = _parser().parse_args(arguments)
        except SystemExit as end:
            code = end.code
    codes = ranks.exchanged(code)
    ended = [rank for rank, code in enumerate(codes) if code is not None]
    if ended and ended[0] == ranks.rank:
        alone = "" if len(ended) == ranks.size else f"on rank {ranks.rank} of {ranks.size}: "
        sys.stdout.write(out.getvalue())
        sys.stderr.write(alone + errors.getvalue() if errors.getvalue() else "")
    if ended:
        raise SystemExit(codes[ended[0]])
    assert options is not None
    if not getattr(options, "spread", False):
        if ranks.rank > 0:
            raise SystemExit(0)
        print(f"adfl-stats: this command is not spread; it runs in one of {ranks.size} processes", file=sys.stderr)
    return options


class _Parser(argparse.ArgumentParser):
    """Parser whose messages on errors take one line."""

    def error(self, message: str) -> NoReturn:
        self.exit(2, f"{self.prog}: {message}; see {self.prog} --help\n")


def _parser() -> argparse.ArgumentParser:
    parser = _Parser(
        prog="adfl-stats",
        description="Robust GLMs over a network of clients whose data cannot be pooled.",
        epilog="Exit status: 0; 1 where a command checks something and it does not hold; 2 on bad input, with one line "
        "that says what is wrong; 130 after Ctrl-C. Progress is shown on standard error if that is a terminal. "
        "adfl-stats COMMAND --help has examples.",
    )
    parser.add_argument("--version", action="version", version=f"adfl-stats {ad.__version__}")
    commands = parser.add_subparsers(required=True, metavar="COMMAND")

    add_demo(commands)
    add_fit(commands)
    add_check_network(commands)
    add_study(commands)
    add_efficiency(commands)
    add_reproduce(commands)
    add_report(commands)
    add_completion(commands)
    return parser


def _said(error: Exception) -> str:
    """Return the message; of a file that cannot be opened its name and why, without the number of the error."""
    if isinstance(error, OSError) and error.filename is not None:
        return f"{error.filename}: {error.strerror}"
    return str(error)


def _one_line(
    message: Warning | str,
    category: type[Warning],
    filename: str,
    lineno: int,
    file: object = None,
    line: object = None,
) -> None:
    print(f"adfl-stats: warning: {message}", file=sys.stderr)
