"""``python -m adfl_stats``, the same as ``adfl-stats``."""

import sys

from adfl_stats.cli.main import main

if __name__ == "__main__":
    sys.exit(main())
