"""Random cases against independent answers, and garbage against refusals: ``tests/fuzz/adfl-fuzz kernel --seconds 60``.

Every case has a seed of its own, which a failure prints: ``--first SEED --cases 1`` runs it alone. A case is the same
whatever ran before it. Exit status: 0; 1 where a case failed.
"""

import argparse
import faulthandler
import sys
import time
import traceback

import commands
import files
import fits
import garbage
import kernel
import pooled

FUZZERS = {
    "kernel": kernel.case,
    "pooled": pooled.case,
    "fits": fits.case,
    "garbage": garbage.case,
    "files": files.case,
    "commands": commands.case,
}
# Seconds after which a case counts as hung; the stacks of all threads are printed. Cases take up to a few seconds of a
# processor, which a busy machine may stretch fifty times.
PATIENCE = 600


def run(name, *, seconds=None, cases=None, first=0):
    """Run one fuzzer; return how many cases were done and the seeds of those that failed."""
    began, done, failed = time.monotonic(), 0, []
    while (cases is None or done < cases) and (seconds is None or time.monotonic() - began < seconds):
        seed = first + done
        faulthandler.dump_traceback_later(PATIENCE, exit=True, file=sys.__stderr__)
        try:
            FUZZERS[name](seed)
        except KeyboardInterrupt:
            raise
        except BaseException:
            failed.append(seed)
            print(f"{name}: case {seed} failed", file=sys.stderr)
            traceback.print_exc()
        faulthandler.cancel_dump_traceback_later()
        done += 1
    return done, failed


def main(arguments=None):
    parser = argparse.ArgumentParser(prog="adfl-fuzz", description=__doc__.splitlines()[0])
    parser.add_argument("fuzzers", nargs="*", metavar="FUZZER", help=f"of {', '.join(FUZZERS)}; by default all")
    parser.add_argument("--seconds", type=float, help="time for each fuzzer")
    parser.add_argument("--cases", type=int, help="number of cases of each fuzzer")
    parser.add_argument("--first", type=int, default=0, metavar="SEED", help="seed of the first case (default 0)")
    options = parser.parse_args(arguments)
    if options.seconds is None and options.cases is None:
        options.seconds = 60.0
    faulthandler.enable()
    bad = 0
    for name in options.fuzzers or FUZZERS:
        if name not in FUZZERS:
            parser.error(f"there is no fuzzer {name!r}; choose from {', '.join(FUZZERS)}")
        began = time.monotonic()
        done, failed = run(name, seconds=options.seconds, cases=options.cases, first=options.first)
        bad += len(failed)
        print(f"{name}: {done} cases, {len(failed)} failed {failed[:20]}, {time.monotonic() - began:.0f} s", flush=True)
    return 1 if bad else 0


if __name__ == "__main__":
    sys.exit(main())
