"""A program for mpiexec: every rank makes fits over the ranks and writes digests of all that they say.

    mpiexec -n 2 python on_ranks.py FOLDER CASE ...

The tests make the same fits without MPI, ranks=None, and compare the digests. A fit that is interrupted leaves its
checkpoint in the folder.
"""

import errno
import hashlib
import os
import signal
import sys
import warnings
from contextlib import contextmanager
from pathlib import Path

import numpy as np
import pandas as pd

import adfl_stats as ad
from adfl_stats.engine import loop as loop_module
from adfl_stats.engine import machine, transport
from adfl_stats.engine import ranks as ranks_module

M, P = 40, 3
CIRCLE = ad.networks.directed_circle(M, 5)
PLAN = {"step": 0.1, "rounds": 8}
STAGES = {"method": ad.ADFL(lam=1.0, stages=3), "rounds": 6}
SOCIAL = ad.networks.erdos_renyi(M, 0.4, seed=3)


def model_of(family, network=CIRCLE):
    """A tenth of the clients have altered responses."""
    sim = ad.simulate.glm_design(family, M=M, n=(20, 40), p=P, seed=4)
    y, bad = sim.y.copy(), sim.client < M // 10
    y[bad] = -y[bad] if family == "gaussian" else 1.0 - y[bad]
    return ad.DecentralizedGLM(ad.ClientData.from_arrays(sim.X, y, sim.client), network, family)


def said(res):
    """All that results say, as arrays and words."""
    return {
        "params": res.params.to_numpy(),
        "clients": res.client_params.to_numpy(),
        "weights": res.client_weights.to_numpy(),
        "errors": res.bse.to_numpy(),
        "trace": res.trace.to_numpy(),
        "flags": np.array(ad.screen(res).to_frame().to_csv()),
        "words": np.array(str(res.summary())),
        "details": np.array(repr(res.record.details)),
        "sent": np.array(str(res.communication())),
    }


def told(case, parts):
    """Return a line for each part: which it is, and a digest of its bits."""
    return [f"{case}, {name}: {hashlib.sha256(value.tobytes()).hexdigest()}" for name, value in parts.items()]


def fitted(case, model, ranks, *given, **options):
    """Return the lines of a fit."""
    return told(case, said(model.fit(*given, transport=ranks, **options)))


def whole(ranks):
    """The default fit, what it is checked for, and its oracle."""
    model = model_of("gaussian")
    res = model.fit(transport=ranks)
    oracle = res.oracle([0, 1, 2, 3], data=model.data).to_frame().to_csv()
    return told("whole", {**said(res), "check": np.array(str(res.check())), "oracle": np.array(oracle)})


def large(ranks):
    """No rank gathers the sums of all batches, or has the rows of all for itself: here those of every size.

    Two machines have the odd and the even ranks; on the second of three ranks there is no room for files.
    """
    with set_to((ranks_module, "GATHERED_ENTRIES", 0), (ranks_module, "REPLICATED_BYTES", 0)):
        if ranks is None:
            return large_fits(None, shared=False)
        with set_to((machine, "_same_machine", lambda comm: comm.Split(comm.Get_rank() % 2, comm.Get_rank()))):
            lines = large_fits(ranks, shared=True)
        allocate = os.posix_fallocate
        with set_to((os, "posix_fallocate", no_room if ranks.rank == 1 else allocate)):
            assert large_fits(ranks, shared=False) == lines
    return lines


def large_fits(ranks, *, shared):
    """The default fit with a checkpoint; shared rows are not to be written to."""
    folder = None if ranks is None else FOLDER / "large"
    res = model_of("binomial").fit(transport=ranks, checkpoint=folder, every=0)
    assert res.record.theta.flags.writeable is not shared
    return told("large", said(res))


def no_room(*_):
    raise OSError(errno.ENOSPC, "No space left on device")


@contextmanager
def set_to(*names):
    """Give attributes (object, name, value) other values."""
    before = [(where, name, getattr(where, name)) for where, name, _ in names]
    for where, name, value in names:
        setattr(where, name, value)
    try:
        yield
    finally:
        for where, name, value in before:
            setattr(where, name, value)


def rounds(ranks):
    """Rounds of several methods, with halos of neighbours that change, and clients by name."""
    plan = PLAN
    start = pd.DataFrame(np.linspace(0.0, 1.0, M * P).reshape(M, P), index=range(M)).iloc[::-1]
    weights = pd.Series(np.linspace(0.1, 1.0, M)).iloc[::-1]
    clipped = ad.ClippedGossip(radius="known", abnormal=[0, 39])
    dropout = ad.networks.dropout(CIRCLE, 0.3, seed=1)
    return [
        *fitted("DFL", model_of("binomial"), ranks, ad.DFL(weights=weights, init=start), **plan),
        *fitted("median", model_of("gaussian", SOCIAL), ranks, ad.Bridge("median"), **plan),
        *fitted("clipped", model_of("gaussian", SOCIAL), ranks, clipped, **plan),
        *fitted("dropout", model_of("gaussian", dropout), ranks, ad.Oracle([0, 1, 2, 3]), **plan),
    ]


def attacked(ranks):
    """Attackers on all ranks, with a median against them."""
    attack = ad.attacks.Gaussian([0, 17, 39], sd=1.0, seed=2)
    plan = {**PLAN, "attack": attack}
    return [
        *fitted("attacked", model_of("binomial"), ranks, ad.DFL(), **plan),
        *fitted("attacked median", model_of("gaussian", SOCIAL), ranks, ad.Bridge("median"), **plan),
    ]


def weighted(ranks):
    return fitted("weighted", model_of("gaussian"), ranks, ad.ADFL(protect=[0, 20]), heterogeneity="none")


def robust(ranks):
    """The scale of Huber's loss, and the regression behind it, are of all clients."""
    sim = ad.simulate.glm_design("gaussian", M=M, n=(20, 40), p=P, seed=4)
    model = ad.DecentralizedGLM(ad.ClientData.from_arrays(sim.X, sim.y, sim.client), CIRCLE, "huber")
    return fitted("robust", model, ranks, ad.DFL(), rounds=5)


def interrupted(ranks):
    """All ranks end in the middle of the rounds; the checkpoint stays."""
    return broken_off(ranks, 5, ad.DFL(), checkpoint=FOLDER, **PLAN)


def stages_interrupted(ranks):
    """In the last stage of the paper's method."""
    return broken_off(ranks, 14, checkpoint=FOLDER / "stages", **STAGES)


def stages_resumed(ranks):
    """On as many ranks as there are now."""
    folder = None if ranks is None else FOLDER / "stages"
    return fitted("stages", model_of("binomial"), ranks, checkpoint=folder, **STAGES)


def broken_off(ranks, last, *given, **options):
    """End all ranks after so many steps of the loop."""
    steps = iter(range(1000))
    advance = loop_module.Loop.advance

    def ending(loop, count):
        if next(steps) == last:
            raise KeyboardInterrupt
        return advance(loop, count)

    loop_module.Loop.advance = ending
    try:
        model_of("binomial").fit(*given, every=0, transport=ranks, **options)
    except KeyboardInterrupt:
        return []
    finally:
        loop_module.Loop.advance = advance
    raise AssertionError("not interrupted")


def resumed(ranks):
    """The fit that was interrupted, on as many ranks as there are now."""
    folder = None if ranks is None else FOLDER
    return fitted("resumed", model_of("binomial"), ranks, ad.DFL(), checkpoint=folder, **PLAN)


def alone(ranks):
    """One batch of clients: the other ranks wait for its results, and for those of fits made again."""
    with set_to((transport, "BATCH_CLIENTS", M)):
        res = model_of("gaussian").fit(ad.DFL(), transport=ranks, keep_data=True)
        return told("alone", said(res) | {"draws": res.bootstrap(3).estimates.to_numpy()})


class Own(ad.Method):
    """No dataclass: its repr would have an address."""

    name = "own"

    def __init__(self, init):
        self.init = init

    def estimate(self, problem, plan):
        return ad.DFL(init=self.init).estimate(problem, plan)


def refused(ranks):
    """All ranks meet the same error, and go on."""
    model, other = model_of("gaussian"), model_of("gaussian", CIRCLE if ranks.rank == 0 else SOCIAL)
    X, y = model.data.X, model.data.y.copy()
    y[7] += ranks.rank
    rows = ad.ClientData.from_arrays(X, y, np.repeat(model.data.labels, model.data.sizes))
    # Far inside of an array, where a repr has three points.
    start = np.zeros((M, 60))
    start[M // 2, 30] = ranks.rank
    for given, method, options in (
        (model, ad.Bridge("trimmed", b=3), {}),
        (other, ad.DFL(), {}),
        (ad.DecentralizedGLM(rows, CIRCLE), ad.DFL(), {}),
        (model, Own(start), {}),
        (model, ad.DFL(), {"rounds": 5 + ranks.rank}),
        (model, ad.DFL(), {"checkpoint": FOLDER / "never" if ranks.rank else None}),
        # Ranks would bring their estimates together at different times.
        (model, ad.DFL(), {"checkpoint": FOLDER / "never", "every": float(ranks.rank)}),
        (model, ad.DFL(), {"cov_type": "CR1" if ranks.rank else None}),
    ):
        meets(ValueError, lambda given=given, method=method, options=options: given.fit(
            method, transport=ranks, **options
        ))  # fmt: skip
    ad.__version__ += str(ranks.rank)
    meets(ValueError, lambda: model.fit(ad.DFL(), transport=ranks))
    ad.__version__ = ad.__version__[:-1]
    kept = model.fit(ad.DFL(), transport=ranks, keep_data=True)
    meets(ValueError, lambda: kept.bootstrap(5 + ranks.rank))
    # What is said of a fit does not depend on who shows a bar.
    model.fit(Own(np.zeros(P)), transport=ranks, progress=ranks.rank == 1, **PLAN)
    # Threads change no bit: ranks need not agree on them.
    model.fit(ad.DFL(), transport=ranks, threads=1 if ranks.rank else None, **PLAN)
    return []


def idle(ranks):
    """One batch of clients: the other ranks wait, and meet the error of the one that works."""
    with set_to((transport, "BATCH_CLIENTS", M)):
        meets(ValueError, lambda: model_of("gaussian").fit(ad.Bridge("trimmed", b=3), transport=ranks))
        meets(RuntimeError, lambda: model_of("gaussian").fit(Unreadable(), transport=ranks))
    return []


class Unreadable(ad.DFL):
    """Fails with an error that cannot be sent."""

    def estimate(self, problem, plan):
        class SecretError(RuntimeError):
            pass

        raise SecretError("of one rank")


def meets(kind, call):
    """Print the error that a call ends with."""
    try:
        call()
    except kind as error:
        print(f"{type(error).__name__}: {error}", flush=True)
    else:
        raise AssertionError("not refused")


def fail(ranks):
    """One rank fails in the middle of the work; the others wait for it."""

    class Broken(ad.DFL):
        def estimate(self, problem, plan):
            if ranks.rank == 1:
                raise FloatingPointError("rank one is broken")
            return super().estimate(problem, plan)

    model_of("gaussian").fit(Broken(), transport=ranks)


def killed(ranks):
    """One rank is killed in the middle of the work; the others wait for it."""

    class Killed(ad.DFL):
        def estimate(self, problem, plan):
            if ranks.rank == 1:
                os.kill(os.getpid(), signal.SIGKILL)
            return super().estimate(problem, plan)

    model_of("gaussian").fit(Killed(), transport=ranks)


if __name__ == "__main__":
    warnings.simplefilter("ignore")
    transport.BATCH_CLIENTS = 10
    ranks = ad.MPI()
    FOLDER = Path(sys.argv[1])
    for name in sys.argv[2:]:
        lines = globals()[name](ranks)
        (FOLDER / f"{name}.{ranks.rank}").write_text("\n".join(lines))
        print(f"{name}: rank {ranks.rank} of {ranks.size} is done", flush=True)
