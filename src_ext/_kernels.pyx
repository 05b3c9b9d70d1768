# cython: language_level=3, boundscheck=False, wraparound=False, cdivision=True, initializedcheck=False
"""The compiled loop: combine the neighbours' estimates, take a gradient step, repeat.

Methods differ in the steps that they pass and in the rule by which a client combines its neighbours'
estimates. Sizes and indices are checked at every entry, since the loops read
memory by them: O(clients + edges) where an object is built, O(1) in a call. Values are trusted; the
constructors of `Network`, `ClientData` and `Problem` have checked them. ``engine/reference.py`` has
the same names in NumPy and is the specification; tests hold the two together.

State is theta (clients, runs, parameters), the parameters of an observation with q outputs being
q blocks of p. Runs share data and network, so several of them turn matrix-vector products into
matrix products. Every client's new row is computed by one thread in a fixed order of operations:
the number of threads never changes a bit.
"""

import os

from cython.parallel cimport prange, threadid
from libc.float cimport DBL_MAX
from libc.math cimport INFINITY, fabs, sqrt
from libc.stdint cimport int32_t, int64_t
from libc.stdlib cimport calloc, free, malloc
from libc.string cimport memcpy, memset

cdef extern from "blocks.h" nogil:
    enum: ADFL_N_FAMILIES
    enum: ADFL_MEAN, ADFL_MEDIAN, ADFL_TRIMMED, ADFL_KRUM, ADFL_BULYAN, ADFL_CLIP_KNOWN, ADFL_N_RULES
    ctypedef struct adfl_network:
        int32_t *pairs
    ctypedef struct adfl_rule:
        int kind
        Py_ssize_t count
        double value
        adfl_network *networks
    Py_ssize_t adfl_rule_work(const adfl_rule *, Py_ssize_t)
    int adfl_build_network(const adfl_rule *, Py_ssize_t)
    ctypedef struct adfl_ops:
        const char *name
        Py_ssize_t lanes
        void (*products)(const double *, Py_ssize_t, Py_ssize_t, Py_ssize_t, const double *, Py_ssize_t,
                         double *) noexcept nogil
        void (*accumulate)(const double *, Py_ssize_t, Py_ssize_t, Py_ssize_t, const double *, Py_ssize_t,
                           double *) noexcept nogil
        void (*affine)(const double *, Py_ssize_t, Py_ssize_t, Py_ssize_t, const double *, Py_ssize_t,
                       const double *, double *) noexcept nogil
        void (*symmetric)(const double *, Py_ssize_t, const double *, const double *, double *) noexcept nogil
        void (*residuals)(int, double, const double *, Py_ssize_t, double *, Py_ssize_t,
                          Py_ssize_t) noexcept nogil
        void (*scale)(double *, Py_ssize_t, double) noexcept nogil
        void (*mix)(const double *, Py_ssize_t, const int64_t *, const double *, Py_ssize_t,
                    double *) noexcept nogil
        void (*descend)(const double *, const double *, const double *, const double *, Py_ssize_t, Py_ssize_t,
                        double *, double *) noexcept nogil
        void (*screen)(const adfl_rule *, const double *, Py_ssize_t, Py_ssize_t, const int64_t *,
                       const double *, const unsigned char *, Py_ssize_t, double *, double *) noexcept nogil
    const adfl_ops *adfl_pick(int lanes)
    void adfl_prefetch(const double *)

cdef extern from *:
    """
    #ifdef _OPENMP
    #define ADFL_HAS_OPENMP 1
    #else
    #define ADFL_HAS_OPENMP 0
    #endif
    #include <time.h>
    static double adfl_now(void) {
        struct timespec now;
        timespec_get(&now, TIME_UTC);
        return (double) now.tv_sec + 1e-9 * (double) now.tv_nsec;
    }
    static int adfl_flag(const int *flag) {
        int value;
        #pragma omp atomic read
        value = *flag;
        return value;
    }
    static void adfl_raise_flag(int *flag) {
        #pragma omp atomic write
        *flag = 1;
    }
    """
    int ADFL_HAS_OPENMP
    int adfl_check_signals "PyErr_CheckSignals" ()
    double adfl_now() nogil
    int adfl_flag(const int *) nogil
    void adfl_raise_flag(int *) nogil

HAS_OPENMP = bool(ADFL_HAS_OPENMP)

cdef const adfl_ops *ops = adfl_pick(0)

# A block of rows should stay in the first-level cache between the two products that use it.
cdef Py_ssize_t BLOCK_BYTES = 22528
# Below this many multiply-adds a parallel region costs more than it saves.
cdef double THREAD_WORK = 400000.0
# Multiply-adds (some 30 microseconds) between looks at the clock, and seconds between looks at Python's signals.
cdef double CLOCK_WORK = 100000.0
cdef double PATIENCE = 0.1
# The threads of a team do not survive a fork, and libgomp would wait for them for ever.
cdef bint forked = False


def _after_fork():
    global forked
    forked = True


if hasattr(os, "register_at_fork"):
    os.register_at_fork(after_in_child=_after_fork)


def instruction_set(int lanes=-1):
    """Return the name of the block operations in use; with lanes 0, 2, 4 or 8 choose them first."""
    global ops
    cdef const adfl_ops *chosen
    if lanes >= 0:
        chosen = adfl_pick(lanes)
        if chosen == NULL:
            raise ValueError(f"lanes={lanes}: this processor or build has no such instruction set")
        ops = chosen
    return ops.name.decode()

include "watch.pxi"


cdef struct Layout:
    # A client's state inside the kernel: `length` x `cols`, the runs' outputs side by side as columns.
    # One column is padded by zeros to a multiple of 8 entries; more columns to a multiple of the lanes.
    Py_ssize_t p, runs, outputs, cols, size


include "combiner.pxi"
include "losses.pxi"


cdef void pack(const double[:, :, ::1] theta, Layout shape, double *out) noexcept nogil:
    """Copy theta (clients, runs, outputs x p) into the kernel's layout."""
    cdef Py_ssize_t m, c, k, columns = shape.runs * shape.outputs
    cdef const double *source = &theta[0, 0, 0]
    memset(out, 0, theta.shape[0] * shape.size * sizeof(double))
    for m in range(theta.shape[0]):
        for c in range(columns):
            for k in range(shape.p):
                out[m * shape.size + k * shape.cols + c] = source[(m * columns + c) * shape.p + k]


cdef void unpack(const double *state, Layout shape, double[:, :, ::1] out) noexcept nogil:
    cdef Py_ssize_t m, c, k, columns = shape.runs * shape.outputs
    cdef double *target = &out[0, 0, 0]
    for m in range(out.shape[0]):
        for c in range(columns):
            for k in range(shape.p):
                target[(m * columns + c) * shape.p + k] = state[m * shape.size + k * shape.cols + c]


cdef int useful_threads(int wanted, Py_ssize_t clients, double work) noexcept nogil:
    return 1 if forked or work < THREAD_WORK else <int> max(1, min(wanted, clients))


cdef int check_state(str name, const double[:, :, ::1] state, Py_ssize_t clients, Py_ssize_t runs,
                     Py_ssize_t P) except -1:
    same(name, 0, state.shape[0], clients, "one for each client")
    same(name, 1, state.shape[1], runs, "as many as theta has")
    same(name, 2, state.shape[2], P, "as many as the loss has")
    return 0


cdef int check_loss(Loss loss, const double[:, :, ::1] theta) except -1:
    if loss.n_clients < 1:
        raise ValueError("the loss has no clients; build a RowLoss or a GramLoss")
    if theta.shape[1] < 1:
        raise ValueError("theta has no runs; its shape is (clients, runs, parameters)")
    return 0


cdef int check_round(Combiner combiner, Loss loss, const double[:, :, ::1] theta, const double[:, ::1] steps) except -1:
    """Raise unless the clients of the combiner and of the loss can do rounds with these steps."""
    check_loss(loss, theta)
    if combiner.n_clients != loss.n_clients:
        raise ValueError(f"the combiner is of {combiner.n_clients} clients, the loss of {loss.n_clients}")
    combiner.check_senders(theta.shape[0])
    same("steps", 0, steps.shape[0], loss.n_clients, "one for each client")
    same("steps", 1, steps.shape[1], theta.shape[1], "one for each run")
    return 0


def combine(Combiner combiner not None, const double[:, :, ::1] theta not None, double[:, :, ::1] out not None):
    """Write what every client of `combiner` hears: row m of `out` combines rows of `theta`."""
    cdef Py_ssize_t m
    combiner.check_senders(theta.shape[0])
    check_state("out", out, combiner.n_clients, theta.shape[1], theta.shape[2])
    if theta.shape[1] * theta.shape[2] == 0:
        return
    cdef double *work = allocate(combiner.work())
    cdef double cost = combiner.cost(theta.shape[1] * theta.shape[2])
    cdef Watch signals = watch(cost * combiner.n_clients, combiner.n_clients)
    try:
        for m in range(combiner.n_clients):
            combiner.row(m, &theta[0, 0, 0], theta.shape[1], theta.shape[2], &out[m, 0, 0], work)
            if m & signals.clients == 0:
                look(&signals)
                ended(&signals)
    finally:
        release(work)


def gradient(Loss loss not None, const double[:, :, ::1] theta not None, double[:, :, ::1] out not None,
             int threads=1):
    """Write every client's gradient at its own row of `theta`, for all runs."""
    check_loss(loss, theta)
    check_state("theta", theta, loss.n_clients, theta.shape[1], loss.n_columns * loss.outputs)
    check_state("out", out, loss.n_clients, theta.shape[1], theta.shape[2])
    cdef Py_ssize_t m, M = loss.n_clients
    cdef Layout shape = layout_of(loss, theta.shape[1])
    cdef Py_ssize_t size = shape.size, each = eights(loss.work(shape))
    cdef int team = useful_threads(threads, M, loss.flops * theta.shape[1])
    cdef Watch signals = watch(loss.flops * theta.shape[1], M)
    cdef double *at = NULL
    cdef double *result = NULL
    cdef double *work = NULL
    try:
        loss.prepare(shape)
        at, result, work = allocate(M * size), allocate(M * size), allocate(team * each)
        with nogil:
            pack(theta, shape, at)
            for m in prange(M, num_threads=team, schedule="dynamic", chunksize=4):
                if not adfl_flag(&signals.stopped):
                    loss.gradient_at(m, at + m * size, shape, result + m * size, work + threadid() * each)
                    if m & signals.clients == 0 and threadid() == 0:
                        look(&signals)
            if not signals.stopped:
                unpack(result, shape, out)
        ended(&signals)
    finally:
        release(at)
        release(result)
        release(work)


def rounds(Combiner combiner not None, Loss loss not None, double[:, :, ::1] theta not None,
           const double[:, ::1] steps not None, Py_ssize_t n_rounds, double[:, ::1] moved not None,
           const double[::1] limits not None, int threads=1, double clip=INFINITY, Py_ssize_t local_steps=1):
    """Do `n_rounds` rounds in place and return how many were done.

    One round is equation (3.1) with the steps of (4.1):
    at_m = combine(theta)_m, theta_m = at_m - steps[m, r] * gradient_m(at_m).
    A gradient longer than `clip` is shortened to that length, in each run by itself, and the step is
    repeated `local_steps` times before the next exchange.
    ``moved[t, r]`` receives the longest move (Euclidean) of any client in round t of run r.
    The loop stops after a round in which a move is not finite or exceeds ``limits[r]``.
    """
    check_round(combiner, loss, theta, steps)
    check_state("theta", theta, loss.n_clients, theta.shape[1], loss.n_columns * loss.outputs)
    same("limits", 0, limits.shape[0], theta.shape[1], "one for each run")
    same("moved", 1, moved.shape[1], theta.shape[1], "one for each run")
    if not 0 <= n_rounds <= moved.shape[0]:
        raise ValueError(f"n_rounds={n_rounds}; moved has room for 0 to {moved.shape[0]} rounds")
    cdef State state = State(combiner, loss, theta, steps, threads, clip, local_steps)
    cdef Py_ssize_t done = state.advance(n_rounds, moved, limits)
    state.write(theta)
    return done


include "state.pxi"


cdef void one_client(Combiner combiner, Loss loss, Layout shape, const double *now, double *then,
                     const double[:, ::1] steps, double *moves, Py_ssize_t m, double clip, Py_ssize_t local_steps,
                     double *work) noexcept nogil:
    """Client m's part of a round, from the state `now` into `then`."""
    cdef Py_ssize_t size = shape.size, r, j, c
    cdef double *at = work
    cdef double *G = at + size
    cdef double *step = G + size
    cdef double *squares = step + eights(shape.cols)
    cdef double *rest = squares + eights(shape.cols)
    cdef double square
    combiner.state_row(m, now, shape, at, rest)
    # Columns that only fill the last vector stay where they are.
    memset(step, 0, shape.cols * sizeof(double))
    for c in range(shape.runs * shape.outputs):
        step[c] = steps[m, c // shape.outputs]
    for j in range(local_steps):
        loss.gradient_at(m, at, shape, G, rest)
        if clip < INFINITY:
            shorten(G, shape, clip)
        if j + 1 < local_steps:
            ops.descend(at, G, step, at, size, shape.cols, at, squares)
    ops.descend(at, G, step, now + m * size, size, shape.cols, then + m * size, squares)
    for r in range(shape.runs):
        square = 0.0
        for j in range(shape.outputs):
            square += squares[r * shape.outputs + j]
        moves[m * shape.runs + r] = sqrt(square)


cdef void shorten(double *G, Layout shape, double clip) noexcept nogil:
    """Shorten each run's gradient to the length `clip` where it is longer; one that is not finite stays so."""
    cdef Py_ssize_t r, c, k, first
    cdef double largest, square, value
    for r in range(shape.runs):
        first, largest, square = r * shape.outputs, 0.0, 0.0
        # Relative to the largest entry, so that squares do not overflow.
        for k in range(shape.p):
            for c in range(first, first + shape.outputs):
                largest = max(largest, fabs(G[k * shape.cols + c]))
        if not 0.0 < largest <= DBL_MAX:
            continue
        for k in range(shape.p):
            for c in range(first, first + shape.outputs):
                value = G[k * shape.cols + c] / largest
                square += value * value
        value = clip / largest / sqrt(square)
        if value < 1.0:
            for k in range(shape.p):
                for c in range(first, first + shape.outputs):
                    G[k * shape.cols + c] *= value
