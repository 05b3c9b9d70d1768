# The clients' estimates inside the kernel, kept between rounds.

cdef class State:
    """The estimates of some clients, and of others whom they hear, in the kernel's layout; rounds change it.

    The first rows of `theta` are those of the clients of `combiner` and `loss`, in their order; behind them follow
    the halo's, the clients elsewhere that the indices of `combiner` name. `steps`, `threads`, `clip` and
    `local_steps` are as in `rounds`.

    ``np.asarray(state)`` (rows of theta, numbers of a row) is the memory of the present estimates, not a copy; after
    a round they are in another place. Where there is a halo, the caller writes its rows there before each round.
    Clients in parts, each with its halo, do the same rounds to the bit as all of them at once.
    """

    cdef Combiner combiner
    cdef Loss loss
    cdef Layout shape
    cdef const double[:, ::1] steps
    cdef double clip
    cdef Py_ssize_t local_steps, each
    cdef int threads
    cdef const adfl_ops *built_for
    cdef double *now
    cdef double *then
    cdef double *moves
    cdef double *work
    cdef Py_ssize_t dimensions[2]
    cdef Py_ssize_t strides[2]

    def __cinit__(self, Combiner combiner not None, Loss loss not None, const double[:, :, ::1] theta not None,
                  const double[:, ::1] steps not None, int threads=1, double clip=INFINITY,
                  Py_ssize_t local_steps=1):
        check_round(combiner, loss, theta, steps)
        if theta.shape[0] < loss.n_clients:
            raise ValueError(
                f"theta has {theta.shape[0]} rows; wanted are {loss.n_clients} of clients, then the halo's"
            )
        same("theta", 2, theta.shape[2], loss.n_columns * loss.outputs, "as many as the loss has")
        if not clip > 0.0 or local_steps < 1:
            raise ValueError(f"clip={clip} and local_steps={local_steps}; wanted are a positive length and 1 or more")
        self.combiner, self.loss, self.steps, self.built_for = combiner, loss, steps, ops
        self.clip, self.local_steps = clip, local_steps
        self.shape = layout_of(loss, theta.shape[1])
        self.threads = useful_threads(threads, loss.n_clients, local_steps * loss.flops * theta.shape[1])
        self.each = eights(2 * self.shape.size + 2 * eights(self.shape.cols)
                           + max(combiner.state_work(self.shape), loss.work(self.shape)))
        self.dimensions[0], self.dimensions[1] = theta.shape[0], self.shape.size
        self.strides[0], self.strides[1] = self.shape.size * sizeof(double), sizeof(double)
        loss.prepare(self.shape)
        self.now, self.then = allocate(theta.shape[0] * self.shape.size), allocate(theta.shape[0] * self.shape.size)
        self.moves, self.work = allocate(loss.n_clients * self.shape.runs), allocate(self.threads * self.each)
        with nogil:
            pack(theta, self.shape, self.now)

    def __dealloc__(self):
        release(self.now)
        release(self.then)
        release(self.moves)
        release(self.work)

    def __getbuffer__(self, Py_buffer *buffer, int flags):
        buffer.buf, buffer.obj, buffer.len = self.now, self, self.dimensions[0] * self.strides[0]
        buffer.itemsize, buffer.format, buffer.readonly, buffer.ndim = sizeof(double), b"d", 0, 2
        buffer.shape, buffer.strides = self.dimensions, self.strides
        buffer.suboffsets, buffer.internal = NULL, NULL

    def round(self, double[::1] moved not None):
        """Do one round, and write the clients' longest move in each run into `moved`."""
        same("moved", 0, moved.shape[0], self.shape.runs, "one for each run")
        cdef double[:, ::1] first = <double[:1, :moved.shape[0]:1]> &moved[0]
        self.advance(1, first, None)

    def write(self, double[:, :, ::1] theta not None):
        """Write the estimates of the clients, without the halo's, into `theta` (clients, runs, parameters)."""
        check_state("theta", theta, self.loss.n_clients, self.shape.runs, self.shape.p * self.shape.outputs)
        with nogil:
            unpack(self.now, self.shape, theta)

    cdef Py_ssize_t advance(self, Py_ssize_t n_rounds, double[:, ::1] moved, const double[::1] limits) except -1:
        """Do rounds, more than one only without a halo; return how many were done."""
        cdef Py_ssize_t m, r, t, M = self.loss.n_clients, R = self.shape.runs, done = 0, each = self.each
        cdef double work = self.local_steps * self.loss.flops * R + M * self.combiner.cost(self.shape.size)
        cdef Watch signals = watch(work, M)
        cdef bint due, fine = True
        cdef double *moves = self.moves
        cdef double *space = self.work
        cdef double *swap
        cdef double bound
        if self.built_for != ops:
            raise RuntimeError("the instruction set was changed after this state was built; build it anew")
        with nogil:
            for t in range(n_rounds):
                due = t & signals.rounds == 0
                for m in prange(M, num_threads=self.threads, schedule="dynamic", chunksize=4):
                    if not adfl_flag(&signals.stopped):
                        one_client(self.combiner, self.loss, self.shape, self.now, self.then, self.steps, moves, m,
                                   self.clip, self.local_steps, space + threadid() * each)
                        if due and m & signals.clients == 0 and threadid() == 0:
                            look(&signals)
                if signals.stopped:
                    break
                swap = self.now
                self.now = self.then
                self.then = swap
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
        ended(&signals)
        return done
