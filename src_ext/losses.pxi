# Gradients of the clients' losses, from rows or from Gram matrices.

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


cdef void bounded(double *residuals, Layout shape, double bound) noexcept nogil:
    """Shorten the residuals of a row, in each run those of its outputs, to the length `bound` where they are longer."""
    cdef Py_ssize_t r, j
    cdef double square
    for r in range(shape.runs):
        if shape.outputs == 1:
            # An infinite residual has a sign.
            if fabs(residuals[r]) > bound:
                residuals[r] = bound if residuals[r] > 0.0 else -bound
            continue
        square = 0.0
        for j in range(shape.outputs):
            square += residuals[r * shape.outputs + j] * residuals[r * shape.outputs + j]
        if square > bound * bound:
            for j in range(shape.outputs):
                residuals[r * shape.outputs + j] *= bound / sqrt(square)


cdef class RowLoss(Loss):
    """Losses that need the rows: one pass over blocks of X, linear predictor, residual, X'residual.

    Client m holds rows ``offsets[m]:offsets[m + 1]``; its gradient is divided by ``totals[m]``.
    `linear_offset` (added to the linear predictor), `row_weights`, `ridge` (P numbers whose products with theta
    are added to every gradient), `metric` (a p x p matrix applied to every gradient) and `row_bounds` (the greatest
    length of a row's residuals, before its weight) may be None.
    """

    cdef const double[:, ::1] X
    cdef const double[::1] y, totals, linear_offset, row_weights, ridge, row_bounds
    cdef const double[:, ::1] metric
    cdef const int64_t[::1] offsets
    cdef int family
    cdef double par
    cdef Py_ssize_t block

    def __cinit__(self, const double[:, ::1] X not None, const double[::1] y not None,
                  const int64_t[::1] offsets not None, const double[::1] totals not None, int family,
                  double par=0.0, Py_ssize_t outputs=1, const double[::1] linear_offset=None,
                  const double[::1] row_weights=None, const double[:, ::1] metric=None,
                  const double[::1] ridge=None, const double[::1] row_bounds=None):
        cdef Py_ssize_t n = X.shape[0], p = X.shape[1]
        if p < 1 or not 1 <= outputs < 2**31:
            raise ValueError(
                f"X has {p} columns and outputs={outputs}; wanted is one of each, or more, and less than 2**31 outputs"
            )
        if not 0 <= family < ADFL_N_FAMILIES:
            raise ValueError(f"family={family}: the codes of families are 0 to {ADFL_N_FAMILIES - 1}")
        check_bounds("offsets", offsets, n, "rows of X")
        same("y", 0, y.shape[0], n, "one for each row of X")
        same("totals", 0, totals.shape[0], offsets.shape[0] - 1, "one for each client")
        if linear_offset is not None:
            same("linear_offset", 0, linear_offset.shape[0], n, "one for each row of X")
        if row_weights is not None:
            same("row_weights", 0, row_weights.shape[0], n, "one for each row of X")
        if metric is not None:
            same("metric", 0, metric.shape[0], p, "one for each column of X")
            same("metric", 1, metric.shape[1], p, "one for each column of X")
        if ridge is not None:
            same("ridge", 0, ridge.shape[0], p * outputs, "one for each parameter")
        self.X, self.y, self.offsets, self.totals = X, y, offsets, totals
        self.family, self.par, self.outputs = family, par, outputs
        if row_bounds is not None:
            same("row_bounds", 0, row_bounds.shape[0], n, "one for each row of X")
        self.linear_offset, self.row_weights, self.metric, self.ridge = linear_offset, row_weights, metric, ridge
        self.row_bounds = row_bounds
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
            if self.linear_offset is not None:
                for i in range(rows):
                    for c in range(cols):
                        E[i * cols + c] += self.linear_offset[low + i]
            ops.residuals(self.family, self.par, &self.y[low], rows, E, cols, self.outputs)
            if self.row_bounds is not None:
                for i in range(rows):
                    bounded(E + i * cols, shape, self.row_bounds[low + i])
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
