"""The start of the script ``adfl-stats``, outside of the package: importing that takes time, and may be interrupted."""

import sys

__all__ = ["main"]


def main() -> int:
    """Run the command line; Ctrl-C while it is imported ends it as later: one line, and the status 130."""
    try:
        from adfl_stats.cli.main import main as run
    except KeyboardInterrupt:
        print("adfl-stats: interrupted", file=sys.stderr)
        return 130
    return run()
