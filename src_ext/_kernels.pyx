# cython: language_level=3, boundscheck=False, wraparound=False, cdivision=True, initializedcheck=False
"""The compiled loop: combine the neighbours' estimates, take a gradient step, repeat.

Nothing here knows of "adaptive": methods differ in the steps they hand over and in the rule by which
a client combines what it hears. Arguments are trusted; the constructors of `Network`, `ClientData`
and `Problem` have checked them. ``_reference.py`` has the same names in NumPy and is the
specification; tests hold the two together.

State is theta (clients, runs, parameters), the parameters of an observation with q outputs being
q blocks of p. Runs share data and network, so several of them turn matrix-vector products into
matrix products. Every client's new row is computed by one thread in a fixed order of operations:
the number of threads never changes a bit.
"""

from cython.parallel cimport prange, threadid
from libc.float cimport DBL_MAX
from libc.stdint cimport int32_t, int64_t
from libc.stdlib cimport calloc, free, malloc
from libc.string cimport memcpy, memset

cdef extern from "blocks.h" nogil:
    enum: ADFL_MEAN, ADFL_MEDIAN, ADFL_TRIMMED, ADFL_KRUM, ADFL_BULYAN
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
        void (*products)(const double *, Py_ssize_t, Py_ssize_t, Py_ssize_t, const double *, Py_ssize_t,
                         Py_ssize_t, double *, Py_ssize_t) noexcept nogil
        void (*accumulate)(const double *, Py_ssize_t, Py_ssize_t, Py_ssize_t, const double *, Py_ssize_t,
                           Py_ssize_t, double *, Py_ssize_t) noexcept nogil
        void (*residuals)(int, double, const double *, Py_ssize_t, double *, Py_ssize_t, Py_ssize_t,
                          Py_ssize_t, double *) noexcept nogil
        void (*mix)(const double *, Py_ssize_t, const int64_t *, const double *, Py_ssize_t,
                    double *) noexcept nogil
        double (*descend)(const double *, const double *, double, const double *, Py_ssize_t,
                          double *) noexcept nogil
        void (*screen)(const adfl_rule *, const double *, Py_ssize_t, Py_ssize_t, const int64_t *,
                       const double *, const unsigned char *, Py_ssize_t, double *, double *) noexcept nogil
    const adfl_ops *adfl_pick(int lanes)

cdef extern from *:
    """
    #ifdef _OPENMP
    #define ADFL_HAS_OPENMP 1
    #else
    #define ADFL_HAS_OPENMP 0
    #endif
    """
    int ADFL_HAS_OPENMP

HAS_OPENMP = bool(ADFL_HAS_OPENMP)

cdef const adfl_ops *ops = adfl_pick(0)

# A block of rows should stay in the first-level cache between the two products that use it.
cdef Py_ssize_t BLOCK_BYTES = 20480
# Below this many multiply-adds a parallel region costs more than it brings.
cdef double THREAD_WORK = 400000.0


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


cdef inline Py_ssize_t padded(Py_ssize_t p) noexcept nogil:
    return (p + 7) // 8 * 8


cdef class Mixing:
    """How a client combines what it hears: the weighted mean, or another rule of ``rules.py``.

    Row m combines the rows ``indices[indptr[m]:indptr[m + 1]]`` of theta; for every rule but the mean
    the first of them is the client's own. The rows of theta may be more than the rows here: a block of
    clients with a halo of neighbours. `rule` is the rule's code, `count` and `value` are its
    parameters, `bad` marks the entries of `indices` that are known to be bad.
    """

    cdef const int64_t[::1] indptr, indices
    cdef const double[::1] weights
    cdef const unsigned char[::1] bad
    cdef adfl_rule rule
    cdef readonly Py_ssize_t n_clients, widest

    def __init__(self, const int64_t[::1] indptr, const int64_t[::1] indices, const double[::1] weights,
                 int rule=0, Py_ssize_t count=0, double value=0.0, const unsigned char[::1] bad=None):
        cdef Py_ssize_t m
        self.indptr, self.indices, self.weights, self.bad = indptr, indices, weights, bad
        self.rule.kind, self.rule.count, self.rule.value = rule, count, value
        self.n_clients = indptr.shape[0] - 1
        self.widest = 0
        for m in range(self.n_clients):
            self.widest = max(self.widest, indptr[m + 1] - indptr[m])
        self.build_networks()

    def __dealloc__(self):
        cdef Py_ssize_t rows
        if self.rule.networks != NULL:
            for rows in range(self.widest + 1):
                free(self.rule.networks[rows].pairs)
            free(self.rule.networks)

    cdef int build_networks(self) except -1:
        """Prepare the sorting networks of the pool sizes that occur."""
        cdef Py_ssize_t m, rows
        if self.rule.kind not in (ADFL_MEDIAN, ADFL_TRIMMED, ADFL_KRUM, ADFL_BULYAN):
            return 0
        self.rule.networks = <adfl_network *> calloc(self.widest + 1, sizeof(adfl_network))
        if self.rule.networks == NULL:
            raise MemoryError("the kernel could not allocate its sorting networks")
        for m in range(self.n_clients):
            rows = self.indptr[m + 1] - self.indptr[m]
            if self.rule.kind == ADFL_TRIMMED:
                rows = rows - 1
            elif self.rule.kind == ADFL_KRUM:
                rows = 1
            elif self.rule.kind == ADFL_BULYAN:
                rows = max(1, rows - 2 * self.rule.count)
            if not adfl_build_network(&self.rule, rows):
                raise MemoryError("the kernel could not allocate its sorting networks")
        return 0

    cdef Py_ssize_t work(self) noexcept nogil:
        return adfl_rule_work(&self.rule, self.widest)

    cdef void row(self, Py_ssize_t m, const double *theta, Py_ssize_t runs, Py_ssize_t run, double *out,
                  double *work) noexcept nogil:
        cdef Py_ssize_t first = self.indptr[m], count = self.indptr[m + 1] - self.indptr[m]
        cdef const unsigned char *bad = NULL
        if self.rule.kind == ADFL_MEAN:
            ops.mix(theta, runs * run, &self.indices[first], &self.weights[first], count, out)
        else:
            if self.bad is not None:
                bad = &self.bad[first]
            ops.screen(&self.rule, theta, runs, run, &self.indices[first], &self.weights[first], bad, count, out,
                       work)


cdef class Loss:
    """The clients' mean losses; `gradient_at` gives one client's gradient at padded columns T."""

    cdef readonly Py_ssize_t n_clients, n_columns, outputs
    cdef readonly double flops

    cdef Py_ssize_t work(self, Py_ssize_t cols) noexcept nogil:
        return 0

    cdef void gradient_at(self, Py_ssize_t m, const double *T, Py_ssize_t cols, double *G,
                          double *work) noexcept nogil:
        pass


cdef class RowLoss(Loss):
    """Losses that need the rows: one pass over blocks of X, linear predictor, residual, X'residual.

    Client m holds rows ``offsets[m]:offsets[m + 1]``; its gradient is divided by ``totals[m]``.
    `shift` (added to the linear predictor), `row_weights` and `metric` (a p x p matrix applied to
    every gradient) may be None.
    """

    cdef const double[:, ::1] X
    cdef const double[::1] y, totals, shift, row_weights
    cdef const double[:, ::1] metric
    cdef const int64_t[::1] offsets
    cdef int family
    cdef double par
    cdef Py_ssize_t block

    def __init__(self, const double[:, ::1] X, const double[::1] y, const int64_t[::1] offsets,
                 const double[::1] totals, int family, double par=0.0, Py_ssize_t outputs=1,
                 const double[::1] shift=None, const double[::1] row_weights=None,
                 const double[:, ::1] metric=None):
        self.X, self.y, self.offsets, self.totals = X, y, offsets, totals
        self.family, self.par, self.outputs = family, par, outputs
        self.shift, self.row_weights, self.metric = shift, row_weights, metric
        self.n_clients, self.n_columns = offsets.shape[0] - 1, X.shape[1]
        self.block = max(8, min(256, BLOCK_BYTES // (8 * X.shape[1]) // 8 * 8))
        self.flops = 2.0 * X.shape[0] * X.shape[1] * outputs

    cdef Py_ssize_t work(self, Py_ssize_t cols) noexcept nogil:
        return (cols + 2) * self.block + (cols * padded(self.n_columns) if self.metric is not None else 0)

    cdef void gradient_at(self, Py_ssize_t m, const double *T, Py_ssize_t cols, double *G,
                          double *work) noexcept nogil:
        cdef Py_ssize_t p = self.n_columns, pp = padded(p), low, rows, c, i
        cdef Py_ssize_t last = self.offsets[m + 1], size = cols * pp
        cdef double *E = work
        cdef double *spare = work + cols * self.block
        cdef double *raw = spare + 2 * self.block
        cdef double scale = 1.0 / self.totals[m]
        memset(G, 0, size * sizeof(double))
        low = self.offsets[m]
        while low < last:
            rows = min(self.block, last - low)
            ops.products(&self.X[low, 0], p, rows, p, T, pp, cols, E, self.block)
            if self.shift is not None:
                for c in range(cols):
                    for i in range(rows):
                        E[c * self.block + i] += self.shift[low + i]
            ops.residuals(self.family, self.par, &self.y[low], rows, E, self.block, cols, self.outputs,
                          spare)
            if self.row_weights is not None:
                for c in range(cols):
                    for i in range(rows):
                        E[c * self.block + i] *= self.row_weights[low + i]
            ops.accumulate(&self.X[low, 0], p, rows, p, E, self.block, cols, G, pp)
            low = low + rows
        for i in range(size):
            G[i] *= scale
        if self.metric is not None:
            memcpy(raw, G, size * sizeof(double))
            ops.products(&self.metric[0, 0], p, p, p, raw, pp, cols, G, pp)


cdef class GramLoss(Loss):
    """Gaussian losses by their Gram matrices: gradient S_m theta - b_m, whatever the number of rows.

    S is (clients, p, width) with rows padded by zeros to a multiple of 4, which keeps them aligned and
    the memory to be read small; b is (clients, p).
    """

    cdef const double[:, :, ::1] S
    cdef const double[:, ::1] b

    def __init__(self, const double[:, :, ::1] S, const double[:, ::1] b):
        self.S, self.b = S, b
        self.n_clients, self.n_columns, self.outputs = S.shape[0], S.shape[1], 1
        self.flops = 1.0 * S.shape[0] * S.shape[1] * S.shape[2]

    cdef void gradient_at(self, Py_ssize_t m, const double *T, Py_ssize_t cols, double *G,
                          double *work) noexcept nogil:
        cdef Py_ssize_t p = self.n_columns, pp = padded(p), c, k
        # The products fill p entries of a column; the padding behind them takes part in the step.
        memset(G, 0, cols * pp * sizeof(double))
        ops.products(&self.S[m, 0, 0], self.S.shape[2], p, self.S.shape[2], T, pp, cols, G, pp)
        for c in range(cols):
            for k in range(p):
                G[c * pp + k] -= self.b[m, k]


cdef double *allocate(Py_ssize_t count) except NULL:
    cdef double *found = <double *> malloc(max(count, 1) * sizeof(double))
    if found == NULL:
        raise MemoryError(f"the kernel could not allocate {count * 8} bytes")
    return found


cdef void pack(const double[:, :, ::1] theta, Py_ssize_t p, double *out) noexcept nogil:
    """Copy theta into rows of padded columns."""
    cdef Py_ssize_t pp = padded(p), blocks = theta.shape[0] * theta.shape[1] * (theta.shape[2] // p), c
    cdef const double *source = &theta[0, 0, 0]
    memset(out, 0, blocks * pp * sizeof(double))
    for c in range(blocks):
        memcpy(out + c * pp, source + c * p, p * sizeof(double))


cdef void unpack(const double *padded_theta, Py_ssize_t p, double[:, :, ::1] out) noexcept nogil:
    cdef Py_ssize_t pp = padded(p), blocks = out.shape[0] * out.shape[1] * (out.shape[2] // p), c
    cdef double *target = &out[0, 0, 0]
    for c in range(blocks):
        memcpy(target + c * p, padded_theta + c * pp, p * sizeof(double))


cdef int useful_threads(int wanted, double work) noexcept nogil:
    return 1 if work < THREAD_WORK else max(1, wanted)


def combine(Mixing mixing, const double[:, :, ::1] theta, double[:, :, ::1] out):
    """Write what every client of `mixing` hears: row m of `out` combines rows of `theta`."""
    cdef Py_ssize_t m
    cdef double *work = allocate(mixing.work())
    try:
        for m in range(mixing.n_clients):
            mixing.row(m, &theta[0, 0, 0], theta.shape[1], theta.shape[2], &out[m, 0, 0], work)
    finally:
        free(work)


def gradient(Loss loss, const double[:, :, ::1] theta, double[:, :, ::1] out, int threads=1):
    """Write every client's gradient at its own row of `theta`, for all runs."""
    cdef Py_ssize_t m, M = loss.n_clients, p = loss.n_columns, pp = padded(p)
    cdef Py_ssize_t cols = theta.shape[1] * loss.outputs, size = cols * pp, each = size + loss.work(cols)
    cdef int team = useful_threads(threads, loss.flops * theta.shape[1])
    cdef double *at = allocate(M * size)
    cdef double *result = allocate(M * size)
    cdef double *work = allocate(team * each)
    try:
        with nogil:
            pack(theta, p, at)
            for m in prange(M, num_threads=team, schedule="dynamic", chunksize=4):
                loss.gradient_at(m, at + m * size, cols, result + m * size, work + threadid() * each)
            unpack(result, p, out)
    finally:
        free(at)
        free(result)
        free(work)


def rounds(Mixing mixing, Loss loss, double[:, :, ::1] theta, const double[:, ::1] steps,
           Py_ssize_t n_rounds, double[:, ::1] moved, const double[::1] limits, int threads=1):
    """Do `n_rounds` rounds in place and return how many were done.

    One round is equation (3.1) with the steps of (4.1):
    at_m = combine(theta)_m, theta_m = at_m - steps[m, r] * gradient_m(at_m).
    ``moved[t, r]`` receives the longest move (Euclidean) of any client in round t of run r.
    The loop stops after a round in which a move is not finite or exceeds ``limits[r]``.
    """
    cdef Py_ssize_t m, r, t, M = loss.n_clients, R = theta.shape[1], p = loss.n_columns, pp = padded(p)
    cdef Py_ssize_t cols = R * loss.outputs, run = loss.outputs * pp, size = cols * pp
    cdef Py_ssize_t each = 2 * size + max(mixing.work(), loss.work(cols)), done = 0
    cdef int team = useful_threads(threads, loss.flops * R)
    cdef double *now = allocate(M * size)
    cdef double *then = allocate(M * size)
    cdef double *moves = allocate(M * R)
    cdef double *work = allocate(team * each)
    cdef double *swap
    cdef bint fine = True
    try:
        with nogil:
            pack(theta, p, now)
            for t in range(n_rounds):
                for m in prange(M, num_threads=team, schedule="dynamic", chunksize=4):
                    one_client(mixing, loss, now, then, steps, moves, m, R, run, work + threadid() * each)
                swap = now
                now = then
                then = swap
                done = t + 1
                for r in range(R):
                    moved[t, r] = 0.0
                    for m in range(M):
                        # written so that a NaN is kept once it has been met
                        if not (moves[m * R + r] <= moved[t, r]) and moved[t, r] == moved[t, r]:
                            moved[t, r] = moves[m * R + r]
                    fine = fine and moved[t, r] <= limits[r] and moved[t, r] <= DBL_MAX
                if not fine:
                    break
            unpack(now, p, theta)
    finally:
        free(now)
        free(then)
        free(moves)
        free(work)
    return done


cdef void one_client(Mixing mixing, Loss loss, const double *now, double *then, const double[:, ::1] steps,
                     double *moves, Py_ssize_t m, Py_ssize_t R, Py_ssize_t run, double *work) noexcept nogil:
    """Client m's part of a round, from the padded state `now` into `then`."""
    cdef Py_ssize_t size = R * run, r
    cdef double *at = work
    cdef double *G = work + size
    cdef double *rest = work + 2 * size
    mixing.row(m, now, R, run, at, rest)
    loss.gradient_at(m, at, R * loss.outputs, G, rest)
    for r in range(R):
        moves[m * R + r] = ops.descend(at + r * run, G + r * run, steps[m, r], now + m * size + r * run, run,
                                       then + m * size + r * run)
