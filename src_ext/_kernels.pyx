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
from libc.math cimport sqrt
from libc.stdint cimport int32_t, int64_t
from libc.stdlib cimport calloc, free, malloc
from libc.string cimport memcpy, memset

cdef extern from "blocks.h" nogil:
    enum: ADFL_GAUSSIAN, ADFL_TWEEDIE
    enum: ADFL_MEAN, ADFL_MEDIAN, ADFL_TRIMMED, ADFL_KRUM, ADFL_BULYAN, ADFL_CLIP_KNOWN, ADFL_NNA
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


cdef struct Watch:
    # When signals were last looked at, whether one has ended the call, and after how many clients and rounds, less one
    # (powers of two less one), the clock is looked at.
    double looked
    int stopped
    Py_ssize_t clients, rounds


cdef Py_ssize_t between_looks(double work) noexcept nogil:
    cdef Py_ssize_t count = 1
    while count < 65536 and 2 * count * work <= CLOCK_WORK:
        count *= 2
    return count - 1


cdef Watch watch(double work, Py_ssize_t clients) noexcept nogil:
    """Return the watch over rounds of so many multiply-adds."""
    cdef Watch found
    found.looked, found.stopped = adfl_now(), 0
    found.clients, found.rounds = between_looks(work / clients), between_looks(work)
    return found


cdef void look(Watch *watch) noexcept nogil:
    """Let Python handle a signal such as Ctrl-C, in the thread that called the kernel; its exception stays set."""
    cdef double now = adfl_now()
    if 0.0 <= now - watch.looked < PATIENCE:
        return
    watch.looked = now
    if pending_exception():
        adfl_raise_flag(&watch.stopped)


cdef bint pending_exception() noexcept with gil:
    return adfl_check_signals() != 0


cdef int ended(Watch *watch) except -1:
    """Raise the exception that a signal's handler has raised."""
    return -1 if watch.stopped else 0


cdef inline Py_ssize_t eights(Py_ssize_t count) noexcept nogil:
    return (count + 7) // 8 * 8


cdef double *allocate(Py_ssize_t count) except NULL:
    """Return memory that begins where a cache line begins, so that no vector lies across two of them."""
    cdef char *whole = <char *> malloc(count * sizeof(double) + 64 + sizeof(void *))
    cdef char *found
    if whole == NULL:
        raise MemoryError(f"the kernel could not allocate {count * 8} bytes")
    found = whole + sizeof(void *)
    found += (64 - <size_t> found % 64) % 64
    (<char **> found - 1)[0] = whole
    return <double *> found


cdef void release(double *found) noexcept nogil:
    if found != NULL:
        free((<char **> found - 1)[0])


cdef int same(str array, int axis, Py_ssize_t found, Py_ssize_t wanted, str why) except -1:
    """Raise ValueError unless an array has the wanted length along an axis."""
    if found != wanted:
        raise ValueError(f"{array}.shape[{axis}] is {found}, wanted is {wanted}: {why}")
    return 0


cdef int check_bounds(str name, const int64_t[::1] bounds, Py_ssize_t end, str what) except -1:
    """Raise unless bounds[m]:bounds[m + 1] are nonempty consecutive ranges of 0:end."""
    cdef Py_ssize_t m, last
    if bounds.shape[0] < 2:
        raise ValueError(f"{name} has {bounds.shape[0]} entries; wanted is one more than clients, two at least")
    last = bounds[bounds.shape[0] - 1]
    if bounds[0] != 0 or last != end:
        raise ValueError(f"{name} runs from {bounds[0]} to {last}; wanted is from 0 to {end}, all {what}")
    for m in range(bounds.shape[0] - 1):
        if bounds[m + 1] <= bounds[m]:
            raise ValueError(f"{name} does not increase after entry {m}: client {m} has no {what}")
    return 0


cdef struct Layout:
    # A client's state inside the kernel: `length` x `cols`, the runs' outputs side by side as columns.
    # One column is padded by zeros to a multiple of 8 entries; more columns to a multiple of the lanes.
    Py_ssize_t p, runs, outputs, cols, size


cdef class Mixing:
    """How a client combines what it hears: the weighted mean, or another rule of ``rules.py``.

    Row m combines the rows ``indices[indptr[m]:indptr[m + 1]]`` of theta; for every rule but the mean
    the first of them is the client's own. The rows of theta may be more than the rows here: a block of
    clients with a halo of neighbours; at least `n_senders`, one more than the largest index. `rule` is
    the rule's code, `count` and `value` are its parameters, `bad` marks the entries of `indices` that are
    known to be bad.
    """

    cdef const int64_t[::1] indptr, indices
    cdef const double[::1] weights
    cdef const unsigned char[::1] bad
    cdef adfl_rule rule
    cdef readonly Py_ssize_t n_clients, n_senders, widest

    def __cinit__(self, const int64_t[::1] indptr not None, const int64_t[::1] indices not None,
                  const double[::1] weights not None, int rule=0, Py_ssize_t count=0, double value=0.0,
                  const unsigned char[::1] bad=None):
        cdef Py_ssize_t m, k
        check_bounds("indptr", indptr, indices.shape[0], "entries of indices")
        same("weights", 0, weights.shape[0], indices.shape[0], "one for each entry of indices")
        if bad is not None:
            same("bad", 0, bad.shape[0], indices.shape[0], "one for each entry of indices")
        if not ADFL_MEAN <= rule <= ADFL_NNA:
            raise ValueError(f"rule={rule}: the codes of rules are {ADFL_MEAN} to {ADFL_NNA}")
        if rule == ADFL_CLIP_KNOWN and bad is None:
            raise ValueError(f"rule={rule} clips by the entries that are known to be bad; give them as `bad`")
        if not 0 <= count < 2**31:
            raise ValueError(f"count={count}; wanted is a number from 0 to 2**31 - 1")
        self.indptr, self.indices, self.weights, self.bad = indptr, indices, weights, bad
        self.rule.kind, self.rule.count, self.rule.value = rule, count, value
        self.n_clients = indptr.shape[0] - 1
        for m in range(self.n_clients):
            self.widest = max(self.widest, indptr[m + 1] - indptr[m])
        for k in range(indices.shape[0]):
            if not 0 <= indices[k] < 2**62:
                raise IndexError(f"indices[{k}] is {indices[k]}; rows are counted from 0, up to 2**62 - 1")
            self.n_senders = max(self.n_senders, indices[k] + 1)
        self.build_networks()

    cdef int check_senders(self, Py_ssize_t rows) except -1:
        if self.n_senders > rows:
            raise IndexError(f"indices of the mixing go up to {self.n_senders - 1}; theta has {rows} rows")
        return 0

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

    cdef double cost(self, Py_ssize_t size) noexcept nogil:
        """About how many multiply-adds a client's combination of states takes."""
        cdef double each = 2.0 * self.widest * size
        if self.rule.kind == ADFL_MEAN:
            return each
        # Distances between all pairs, or as many steps as `count` says; sorting networks compare less.
        return each * (self.widest + self.rule.count)

    cdef bint looks_at_rows(self) noexcept nogil:
        """Whether the rule needs a run's parameters together, and not just one coordinate at a time."""
        return self.rule.kind not in (ADFL_MEAN, ADFL_MEDIAN, ADFL_TRIMMED)

    cdef Py_ssize_t state_work(self, Layout shape) noexcept nogil:
        cdef Py_ssize_t P = shape.p * shape.outputs
        return self.work() + ((self.widest + 1) * P + self.widest if self.looks_at_rows() and shape.cols > 1 else 0)

    cdef void state_row(self, Py_ssize_t m, const double *theta, Layout shape, double *out,
                        double *work) noexcept nogil:
        """What `row` does, for the state inside the kernel."""
        cdef Py_ssize_t first = self.indptr[m], count = self.indptr[m + 1] - self.indptr[m]
        cdef Py_ssize_t p = shape.p, q = shape.outputs, r, i, j, k
        cdef double *pool = work + self.work()
        cdef double *found = pool + self.widest * p * q
        cdef int64_t *place = <int64_t *> (found + p * q)
        cdef const double *heard
        cdef const unsigned char *bad = NULL
        if not self.looks_at_rows() or shape.cols == 1:
            self.row(m, theta, 1, shape.size, out, work)
            return
        if self.bad is not None:
            bad = &self.bad[first]
        memset(out, 0, shape.size * sizeof(double))
        for r in range(shape.runs):
            for i in range(count):
                place[i] = i
                heard = theta + self.indices[first + i] * shape.size + r * q
                for j in range(q):
                    for k in range(p):
                        pool[(i * q + j) * p + k] = heard[k * shape.cols + j]
            ops.screen(&self.rule, pool, 1, p * q, place, &self.weights[first], bad, count, found, work)
            for j in range(q):
                for k in range(p):
                    out[k * shape.cols + r * q + j] = found[j * p + k]


cdef class Loss:
    """The clients' mean losses; `gradient_at` gives one client's gradient at the state T (see `Layout`)."""

    cdef readonly Py_ssize_t n_clients, n_columns, outputs
    cdef readonly double flops

    cdef int prepare(self, Layout shape) except -1:
        """Make ready for calls of `gradient_at` with states of this shape."""
        return 0

    cdef Py_ssize_t work(self, Layout shape) noexcept nogil:
        return 0

    cdef void gradient_at(self, Py_ssize_t m, const double *T, Layout shape, double *G,
                          double *work) noexcept nogil:
        pass


cdef Layout layout_of(Loss loss, Py_ssize_t runs) noexcept nogil:
    cdef Layout shape
    cdef Py_ssize_t columns = runs * loss.outputs
    shape.p, shape.runs, shape.outputs = loss.n_columns, runs, loss.outputs
    if columns == 1:
        shape.cols, shape.size = 1, eights(shape.p)
    else:
        shape.cols = (columns + ops.lanes - 1) // ops.lanes * ops.lanes
        shape.size = shape.p * shape.cols
    return shape


cdef class RowLoss(Loss):
    """Losses that need the rows: one pass over blocks of X, linear predictor, residual, X'residual.

    Client m holds rows ``offsets[m]:offsets[m + 1]``; its gradient is divided by ``totals[m]``.
    `shift` (added to the linear predictor), `row_weights`, `ridge` (P numbers whose products with theta
    are added to every gradient) and `metric` (a p x p matrix applied to every gradient) may be None.
    """

    cdef const double[:, ::1] X
    cdef const double[::1] y, totals, shift, row_weights, ridge
    cdef const double[:, ::1] metric
    cdef const int64_t[::1] offsets
    cdef int family
    cdef double par
    cdef Py_ssize_t block

    def __cinit__(self, const double[:, ::1] X not None, const double[::1] y not None,
                  const int64_t[::1] offsets not None, const double[::1] totals not None, int family,
                  double par=0.0, Py_ssize_t outputs=1, const double[::1] shift=None,
                  const double[::1] row_weights=None, const double[:, ::1] metric=None,
                  const double[::1] ridge=None):
        cdef Py_ssize_t n = X.shape[0], p = X.shape[1]
        if p < 1 or not 1 <= outputs < 2**31:
            raise ValueError(
                f"X has {p} columns and outputs={outputs}; wanted is one of each, or more, and less than 2**31 outputs"
            )
        if not ADFL_GAUSSIAN <= family <= ADFL_TWEEDIE:
            raise ValueError(f"family={family}: the codes of families are {ADFL_GAUSSIAN} to {ADFL_TWEEDIE}")
        check_bounds("offsets", offsets, n, "rows of X")
        same("y", 0, y.shape[0], n, "one for each row of X")
        same("totals", 0, totals.shape[0], offsets.shape[0] - 1, "one for each client")
        if shift is not None:
            same("shift", 0, shift.shape[0], n, "one for each row of X")
        if row_weights is not None:
            same("row_weights", 0, row_weights.shape[0], n, "one for each row of X")
        if metric is not None:
            same("metric", 0, metric.shape[0], p, "one for each column of X")
            same("metric", 1, metric.shape[1], p, "one for each column of X")
        if ridge is not None:
            same("ridge", 0, ridge.shape[0], p * outputs, "one for each parameter")
        self.X, self.y, self.offsets, self.totals = X, y, offsets, totals
        self.family, self.par, self.outputs = family, par, outputs
        self.shift, self.row_weights, self.metric, self.ridge = shift, row_weights, metric, ridge
        self.n_clients, self.n_columns = offsets.shape[0] - 1, X.shape[1]
        self.block = max(8, min(256, BLOCK_BYTES // (8 * X.shape[1]) // 8 * 8))
        self.flops = 2.0 * X.shape[0] * X.shape[1] * outputs

    cdef Py_ssize_t work(self, Layout shape) noexcept nogil:
        return shape.cols * self.block + (shape.size if self.metric is not None else 0)

    cdef void gradient_at(self, Py_ssize_t m, const double *T, Layout shape, double *G,
                          double *work) noexcept nogil:
        cdef Py_ssize_t p = self.n_columns, cols = shape.cols, rows, c, i, k
        cdef Py_ssize_t low = self.offsets[m], last = self.offsets[m + 1]
        # Blocks of nearly equal size: a last one of a few rows would cost as much as a full one.
        cdef Py_ssize_t blocks = (last - low + self.block - 1) // self.block
        cdef Py_ssize_t even = eights((last - low + blocks - 1) // blocks)
        cdef double *E = work
        cdef double *raw = work + cols * self.block
        memset(G, 0, shape.size * sizeof(double))
        while low < last:
            rows = min(even, last - low)
            ops.products(&self.X[low, 0], p, rows, p, T, cols, E)
            if self.shift is not None:
                for i in range(rows):
                    for c in range(cols):
                        E[i * cols + c] += self.shift[low + i]
            ops.residuals(self.family, self.par, &self.y[low], rows, E, cols, self.outputs)
            if self.row_weights is not None:
                for i in range(rows):
                    for c in range(cols):
                        E[i * cols + c] *= self.row_weights[low + i]
            ops.accumulate(&self.X[low, 0], p, rows, p, E, cols, G)
            low = low + rows
        ops.scale(G, shape.size, 1.0 / self.totals[m])
        if self.ridge is not None:
            for k in range(p):
                for c in range(shape.runs * self.outputs):
                    G[k * cols + c] += self.ridge[c % self.outputs * p + k] * T[k * cols + c]
        if self.metric is not None:
            memcpy(raw, G, shape.size * sizeof(double))
            ops.products(&self.metric[0, 0], p, p, p, raw, cols, G)


cdef class GramLoss(Loss):
    """Gaussian losses by their Gram matrices: gradient S_m theta - b_m, whatever the number of rows.

    S is (clients, p, width) with rows padded by zeros to a multiple of 4, which keeps them aligned and
    the memory to be read small; b is (clients, p). Where all S are symmetric, a single run reads only
    their upper triangles, from a packed copy made when it is first needed: of each client its b,
    padded by zeros like a row of S, and then the blocks as `symmetric` in blocks_impl.h wants them.
    """

    cdef const double[:, :, ::1] S
    cdef const double[:, ::1] b
    cdef bint symmetric
    cdef double *packed
    cdef Py_ssize_t blocks, stride

    def __cinit__(self, const double[:, :, ::1] S not None, const double[:, ::1] b not None, bint symmetric=False):
        cdef Py_ssize_t p = S.shape[1], width = S.shape[2]
        if S.shape[0] < 1 or p < 1:
            raise ValueError(f"S has {S.shape[0]} clients and {p} columns; wanted is one of each, or more")
        if width < p or width > eights(p) or width % 4:
            raise ValueError(f"S.shape[2] is {width}; wanted is {p}, padded by zeros to a multiple of 4 or of 8")
        same("b", 0, b.shape[0], S.shape[0], "one for each client")
        same("b", 1, b.shape[1], p, "one for each column of S")
        self.S, self.b, self.symmetric = S, b, symmetric
        self.n_clients, self.n_columns, self.outputs = S.shape[0], S.shape[1], 1
        self.flops = 1.0 * S.shape[0] * S.shape[1] * S.shape[2]
        self.blocks = (S.shape[1] + 3) // 4
        self.stride = eights(4 * self.blocks + 8 * self.blocks * (self.blocks + 1))

    def __dealloc__(self):
        release(self.packed)

    cdef int prepare(self, Layout shape) except -1:
        cdef Py_ssize_t p = self.n_columns, m, g, k, r, c
        cdef double *out
        if not self.symmetric or shape.cols > 1 or self.packed != NULL:
            return 0
        self.packed = allocate(self.n_clients * self.stride)
        memset(self.packed, 0, self.n_clients * self.stride * sizeof(double))
        for m in range(self.n_clients):
            out = self.packed + m * self.stride
            memcpy(out, &self.b[m, 0], p * sizeof(double))
            out += 4 * self.blocks
            for g in range(0, p, 4):
                for k in range(g, p, 4):
                    for r in range(min(4, p - g)):
                        for c in range(min(4, p - k)):
                            out[4 * r + c] = self.S[m, g + r, k + c]
                    out += 16
        return 0

    cdef void gradient_at(self, Py_ssize_t m, const double *T, Layout shape, double *G,
                          double *work) noexcept nogil:
        cdef Py_ssize_t p = self.n_columns, cols = shape.cols, width = self.S.shape[2] if cols == 1 else p, k
        cdef const double *own
        if cols == 1 and self.packed != NULL:
            own = self.packed + m * self.stride
            # Many small clients: the processor's own prefetching stops at the end of a page, every few of them.
            if self.stride <= 16 * 8:
                for k in range(0, self.stride, 8):
                    adfl_prefetch(own + 2 * self.stride + k)
            ops.symmetric(own + 4 * self.blocks, self.blocks, T, own, G)
            memset(G + 4 * self.blocks, 0, (shape.size - 4 * self.blocks) * sizeof(double))
            return
        # The products fill p entries of a column; the padding behind them takes part in the step.
        memset(G + p * cols, 0, (shape.size - p * cols) * sizeof(double))
        ops.affine(&self.S[m, 0, 0], self.S.shape[2], p, width, T, cols, &self.b[m, 0], G)


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


cdef int check_round(Mixing mixing, Loss loss, const double[:, :, ::1] theta, const double[:, ::1] steps) except -1:
    """Raise unless the clients of the mixing and of the loss can do rounds with these steps."""
    check_loss(loss, theta)
    if mixing.n_clients != loss.n_clients:
        raise ValueError(f"the mixing is of {mixing.n_clients} clients, the loss of {loss.n_clients}")
    mixing.check_senders(theta.shape[0])
    same("steps", 0, steps.shape[0], loss.n_clients, "one for each client")
    same("steps", 1, steps.shape[1], theta.shape[1], "one for each run")
    return 0


def combine(Mixing mixing not None, const double[:, :, ::1] theta not None, double[:, :, ::1] out not None):
    """Write what every client of `mixing` hears: row m of `out` combines rows of `theta`."""
    cdef Py_ssize_t m
    mixing.check_senders(theta.shape[0])
    check_state("out", out, mixing.n_clients, theta.shape[1], theta.shape[2])
    if theta.shape[1] * theta.shape[2] == 0:
        return
    cdef double *work = allocate(mixing.work())
    cdef double cost = mixing.cost(theta.shape[1] * theta.shape[2])
    cdef Watch signals = watch(cost * mixing.n_clients, mixing.n_clients)
    try:
        for m in range(mixing.n_clients):
            mixing.row(m, &theta[0, 0, 0], theta.shape[1], theta.shape[2], &out[m, 0, 0], work)
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


def rounds(Mixing mixing not None, Loss loss not None, double[:, :, ::1] theta not None,
           const double[:, ::1] steps not None, Py_ssize_t n_rounds, double[:, ::1] moved not None,
           const double[::1] limits not None, int threads=1):
    """Do `n_rounds` rounds in place and return how many were done.

    One round is equation (3.1) with the steps of (4.1):
    at_m = combine(theta)_m, theta_m = at_m - steps[m, r] * gradient_m(at_m).
    ``moved[t, r]`` receives the longest move (Euclidean) of any client in round t of run r.
    The loop stops after a round in which a move is not finite or exceeds ``limits[r]``.
    """
    check_round(mixing, loss, theta, steps)
    check_state("theta", theta, loss.n_clients, theta.shape[1], loss.n_columns * loss.outputs)
    same("limits", 0, limits.shape[0], theta.shape[1], "one for each run")
    same("moved", 1, moved.shape[1], theta.shape[1], "one for each run")
    if not 0 <= n_rounds <= moved.shape[0]:
        raise ValueError(f"n_rounds={n_rounds}; moved has room for 0 to {moved.shape[0]} rounds")
    return run_rounds(mixing, loss, theta, theta, steps, n_rounds, moved, limits, threads)


def halo_round(Mixing mixing not None, Loss loss not None, const double[:, :, ::1] theta not None,
               const double[:, ::1] steps not None, double[:, :, ::1] out not None, double[::1] moved not None,
               int threads=1):
    """Do one round for some clients of a network, given also the estimates of those whom they hear.

    The first rows of `theta` are those of the clients of `mixing` and `loss`, in their order; behind them
    follow the halo's, the clients elsewhere that the indices of `mixing` name. The clients' next rows are
    written into `out`, and their longest move in each run into `moved`. Clients in parts, each with its
    halo, do the same rounds to the bit as all of them at once.
    """
    check_round(mixing, loss, theta, steps)
    if theta.shape[0] < loss.n_clients:
        raise ValueError(f"theta has {theta.shape[0]} rows; wanted are {loss.n_clients} of clients, then the halo's")
    check_state("out", out, loss.n_clients, theta.shape[1], loss.n_columns * loss.outputs)
    same("theta", 2, theta.shape[2], out.shape[2], "as many as the loss has")
    same("moved", 0, moved.shape[0], theta.shape[1], "one for each run")
    cdef double[:, ::1] first = <double[:1, :moved.shape[0]:1]> &moved[0]
    run_rounds(mixing, loss, theta, out, steps, 1, first, None, threads)


cdef Py_ssize_t run_rounds(Mixing mixing, Loss loss, const double[:, :, ::1] theta, double[:, :, ::1] out,
                           const double[:, ::1] steps, Py_ssize_t n_rounds, double[:, ::1] moved,
                           const double[::1] limits, int threads) except -1:
    """Do rounds from `theta` and write the clients' rows into `out`; more than one needs all senders among them."""
    cdef Py_ssize_t m, r, t, M = loss.n_clients, R = theta.shape[1], done = 0
    cdef Layout shape = layout_of(loss, R)
    cdef Py_ssize_t size = shape.size
    cdef Py_ssize_t each = eights(2 * size + 2 * eights(shape.cols) + max(mixing.state_work(shape), loss.work(shape)))
    cdef int team = useful_threads(threads, M, loss.flops * R)
    cdef Watch signals = watch(loss.flops * R + M * mixing.cost(size), M)
    cdef bint due
    cdef double *now = NULL
    cdef double *then = NULL
    cdef double *moves = NULL
    cdef double *work = NULL
    cdef double *swap
    cdef double bound
    cdef bint fine = True
    try:
        loss.prepare(shape)
        now, then = allocate(theta.shape[0] * size), allocate(M * size)
        moves, work = allocate(M * R), allocate(team * each)
        with nogil:
            pack(theta, shape, now)
            for t in range(n_rounds):
                due = t & signals.rounds == 0
                for m in prange(M, num_threads=team, schedule="dynamic", chunksize=4):
                    if not adfl_flag(&signals.stopped):
                        one_client(mixing, loss, shape, now, then, steps, moves, m, work + threadid() * each)
                        if due and m & signals.clients == 0 and threadid() == 0:
                            look(&signals)
                if signals.stopped:
                    break
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
                    bound = DBL_MAX if limits is None else limits[r]
                    fine = fine and moved[t, r] <= bound and moved[t, r] <= DBL_MAX
                if not fine:
                    break
            if not signals.stopped:
                unpack(now, shape, out)
        ended(&signals)
    finally:
        release(now)
        release(then)
        release(moves)
        release(work)
    return done


cdef void one_client(Mixing mixing, Loss loss, Layout shape, const double *now, double *then,
                     const double[:, ::1] steps, double *moves, Py_ssize_t m, double *work) noexcept nogil:
    """Client m's part of a round, from the state `now` into `then`."""
    cdef Py_ssize_t size = shape.size, r, j, c
    cdef double *at = work
    cdef double *G = at + size
    cdef double *step = G + size
    cdef double *squares = step + eights(shape.cols)
    cdef double *rest = squares + eights(shape.cols)
    cdef double square
    mixing.state_row(m, now, shape, at, rest)
    loss.gradient_at(m, at, shape, G, rest)
    # Columns that only fill the last vector stay where they are.
    memset(step, 0, shape.cols * sizeof(double))
    for c in range(shape.runs * shape.outputs):
        step[c] = steps[m, c // shape.outputs]
    ops.descend(at, G, step, now + m * size, size, shape.cols, then + m * size, squares)
    for r in range(shape.runs):
        square = 0.0
        for j in range(shape.outputs):
            square += squares[r * shape.outputs + j]
        moves[m * shape.runs + r] = sqrt(square)
