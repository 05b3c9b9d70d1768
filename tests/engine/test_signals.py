"""Ctrl-C ends a run at once and leaves the model as it was; a child of a fork fits in one thread, and does not hang."""

import os
import signal
import subprocess
import sys
import threading
import time

import numpy as np
import pytest
from numpy.testing import assert_array_equal

import adfl_stats as ad
from adfl_stats import _kernels

posix = pytest.mark.skipif(not hasattr(os, "fork"), reason="needs a system with fork and signals")


@pytest.fixture(scope="module")
def model():
    """A binomial model whose rounds take about ten milliseconds."""
    rng = np.random.default_rng(0)
    M, n, p = 100, 4000, 30
    X, y = rng.normal(size=(M * n, p)), rng.integers(2, size=M * n).astype(float)
    data = ad.ClientData.from_arrays(X, y, np.repeat(np.arange(M), n))
    return ad.DecentralizedGLM(data, ad.networks.directed_circle(M, 8), family="binomial")


def interrupted(call):
    """Return the seconds that `call` goes on after Ctrl-C."""
    sent = []

    def press():
        sent.append(time.perf_counter())
        os.kill(os.getpid(), signal.SIGINT)

    timer = threading.Timer(0.3, press)
    timer.start()
    try:
        with pytest.raises(KeyboardInterrupt):
            call()
        return time.perf_counter() - sent[0]
    finally:
        timer.cancel()
        timer.join()


@posix
@pytest.mark.parametrize("threads", [1, 2])
@pytest.mark.parametrize("method", [ad.DFL(), ad.Bridge("median"), ad.Bridge("krum", b=1)], ids=lambda m: m.name)
def test_an_interrupted_run_ends_at_once_and_the_model_stays_usable(model, method, threads):
    """A chunk of 10,000 rounds, a hundredth of what is asked for, would take more than a minute."""
    before = model.fit(method, step=0.1, rounds=3, threads=threads).client_params
    waited = interrupted(lambda: model.fit(method, step=0.1, rounds=1_000_000, threads=threads))
    # Half a second is promised on a machine with nothing else to do; tests share theirs.
    assert waited < 2.0
    after = model.fit(method, step=0.1, rounds=3, threads=threads).client_params
    assert_array_equal(after, before)


@posix
def test_an_interrupted_kernel_leaves_the_state_alone():
    """Gradients, combinations and rounds are written as a whole, or not at all."""
    rng = np.random.default_rng(1)
    M, n, p = 64, 20_000, 8
    X, y = rng.normal(size=(M * n, p)), rng.normal(size=M * n)
    loss = _kernels.RowLoss(X, y, np.arange(0, M * n + 1, n), np.full(M, float(n)), 1)
    combiner = _kernels.Combiner(np.arange(M + 1), np.arange(M), np.ones(M))
    start = rng.normal(size=(M, 1, p))
    theta, moved = start.copy(), np.empty((10_000, 1))
    arguments = (np.full((M, 1), 0.1), 10_000, moved, np.array([np.inf]))
    assert interrupted(lambda: _kernels.rounds(combiner, loss, theta, *arguments)) < 2.0
    assert_array_equal(theta, start)
    out = np.full_like(start, 7.0)

    def gradients():
        while True:
            out[:] = 7.0
            _kernels.gradient(loss, theta, out)

    interrupted(gradients)
    _kernels.gradient(loss, theta, wanted := np.empty_like(start))
    assert (out == 7.0).all() or (out == wanted).all()


@posix
def test_a_handler_of_ones_own_may_end_a_run_with_any_exception(model):
    def late(number, frame):
        raise TimeoutError("too late")

    old = signal.signal(signal.SIGALRM, late)
    signal.setitimer(signal.ITIMER_REAL, 0.2)
    try:
        with pytest.raises(TimeoutError, match="too late"):
            model.fit(ad.DFL(), step=0.1, rounds=1_000_000)
    finally:
        signal.setitimer(signal.ITIMER_REAL, 0.0)
        signal.signal(signal.SIGALRM, old)


FORK = """
import os, sys
import numpy as np
import adfl_stats as ad

rng = np.random.default_rng(0)
X, y = rng.normal(size=(80_000, 10)), rng.integers(2, size=80_000).astype(float)
data = ad.ClientData.from_arrays(X, y, np.repeat(np.arange(40), 2000))
model = ad.DecentralizedGLM(data, ad.networks.directed_circle(40, 3), family="binomial")
fit = lambda: model.fit(ad.DFL(), step=0.1, rounds=5, threads=2).client_params.to_numpy().tobytes()
before = fit()
child = os.fork()
if child == 0:
    os._exit(0 if fit() == before else 3)
print(os.waitstatus_to_exitcode(os.waitpid(child, 0)[1]), fit() == before)
"""


@posix
@pytest.mark.skipif(not _kernels.HAS_OPENMP, reason="a kernel without threads")
def test_a_child_of_a_fork_does_not_wait_for_threads_that_it_does_not_have():
    done = subprocess.run(
        [sys.executable, "-W", "ignore", "-c", FORK], capture_output=True, text=True, timeout=60, check=True
    )
    assert done.stdout.split() == ["0", "True"]
