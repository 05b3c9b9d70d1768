# A look at signals such as Ctrl-C during long calls, aligned memory, and checks of sizes and indices.

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
    cdef Watch begun
    begun.looked, begun.stopped = adfl_now(), 0
    begun.clients, begun.rounds = between_looks(work / clients), between_looks(work)
    return begun


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
    cdef char *memory
    if whole == NULL:
        raise MemoryError(f"the kernel could not allocate {count * 8} bytes")
    memory = whole + sizeof(void *)
    memory += (64 - <size_t> memory % 64) % 64
    (<char **> memory - 1)[0] = whole
    return <double *> memory


cdef void release(double *memory) noexcept nogil:
    if memory != NULL:
        free((<char **> memory - 1)[0])


cdef int same(str array, int axis, Py_ssize_t length, Py_ssize_t wanted, str why) except -1:
    """Raise ValueError unless an array has the wanted length along an axis."""
    if length != wanted:
        raise ValueError(f"{array}.shape[{axis}] is {length}, wanted is {wanted}: {why}")
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
