# The network as the kernel sees it: who hears whom, with which weights, combined by which rule.

cdef class Combiner:
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
        if not 0 <= rule < ADFL_N_RULES:
            raise ValueError(f"rule={rule}: the codes of rules are 0 to {ADFL_N_RULES - 1}")
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
            raise IndexError(f"indices of the combiner go up to {self.n_senders - 1}; theta has {rows} rows")
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
        cdef double *combined = pool + self.widest * p * q
        cdef int64_t *place = <int64_t *> (combined + p * q)
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
            ops.screen(&self.rule, pool, 1, p * q, place, &self.weights[first], bad, count, combined, work)
            for j in range(q):
                for k in range(p):
                    out[k * shape.cols + r * q + j] = combined[j * p + k]
