/* Faults at will, for tests: loaded before libc (LD_PRELOAD), it counts the steps that change files below one folder,
 * or the allocations that one library makes, and lets the n-th fail with an error number, or ends the process there. */
#define _GNU_SOURCE
#include <dlfcn.h>
#include <errno.h>
#include <fcntl.h>
#include <limits.h>
#include <signal.h>
#include <stdarg.h>
#include <stdio.h>
#include <string.h>
#include <sys/stat.h>
#include <sys/types.h>
#include <unistd.h>

static char folder[PATH_MAX], library[PATH_MAX];
static long steps, allocations, step_at, allocation_at;
static int error_number; /* 0: SIGKILL */

void fault_files(const char *where, long at, int error)
{
    snprintf(folder, sizeof folder, "%s", where);
    steps = 0, step_at = at, error_number = error;
}

void fault_allocations(const char *name, long at)
{
    snprintf(library, sizeof library, "%s", name);
    allocations = 0, allocation_at = at;
}

long fault_steps(void) { return steps; }
long fault_allocated(void) { return allocations; }

static int fails_below(const char *path)
{
    if (!folder[0] || strncmp(path, folder, strlen(folder)) != 0) return 0;
    if (++steps != step_at) return 0;
    if (error_number == 0) kill(getpid(), SIGKILL);
    errno = error_number;
    return 1;
}

static int fails_at(int descriptor)
{
    char link[64], path[PATH_MAX];
    if (!folder[0]) return 0;
    snprintf(link, sizeof link, "/proc/self/fd/%d", descriptor);
    const ssize_t length = readlink(link, path, sizeof path - 1);
    if (length < 0) return 0;
    path[length] = 0;
    return fails_below(path);
}

static int fails_in(int directory, const char *name)
{
    char link[64], path[2 * PATH_MAX];
    if (!folder[0]) return 0;
    if (name[0] == '/' || directory == AT_FDCWD) return fails_below(name);
    snprintf(link, sizeof link, "/proc/self/fd/%d", directory);
    ssize_t length = readlink(link, path, PATH_MAX - 1);
    if (length < 0) return 0;
    snprintf(path + length, PATH_MAX, "/%s", name);
    return fails_below(path);
}

#define REAL(type, name, arguments) \
    static type (*real) arguments; \
    if (real == NULL) real = (type (*) arguments) dlsym(RTLD_NEXT, #name)

#define ON_FILE(type, name, declared, passed) \
    type name declared { REAL(type, name, declared); return fails_at(fd) ? (type) -1 : real passed; }
ON_FILE(ssize_t, write, (int fd, const void *data, size_t n), (fd, data, n))
ON_FILE(ssize_t, pwrite, (int fd, const void *data, size_t n, off_t at), (fd, data, n, at))
ON_FILE(ssize_t, pwrite64, (int fd, const void *data, size_t n, off_t at), (fd, data, n, at))
ON_FILE(int, ftruncate, (int fd, off_t n), (fd, n))
ON_FILE(int, ftruncate64, (int fd, off_t n), (fd, n))
ON_FILE(int, fsync, (int fd), (fd))
ON_FILE(int, fdatasync, (int fd), (fd))

/* These two return the error instead of setting errno. */
#define RESERVE(name) \
    int name(int fd, off_t at, off_t n) \
    { REAL(int, name, (int, off_t, off_t)); return fails_at(fd) ? error_number : real(fd, at, n); }
RESERVE(posix_fallocate)
RESERVE(posix_fallocate64)

#define ON_PATH(name, declared, passed) \
    int name declared { REAL(int, name, declared); return fails_below(path) ? -1 : real passed; }
ON_PATH(mkdir, (const char *path, mode_t mode), (path, mode))
ON_PATH(rename, (const char *path, const char *to), (path, to))
ON_PATH(unlink, (const char *path), (path))
ON_PATH(rmdir, (const char *path), (path))

#define ON_NAME(name, declared, passed) \
    int name declared { REAL(int, name, declared); return fails_in(dir, path) ? -1 : real passed; }
ON_NAME(mkdirat, (int dir, const char *path, mode_t mode), (dir, path, mode))
ON_NAME(unlinkat, (int dir, const char *path, int flags), (dir, path, flags))
ON_NAME(renameat, (int dir, const char *path, int to, const char *name), (dir, path, to, name))

#define OPEN(name) \
    int name(const char *path, int flags, ...) \
    { \
        va_list list; va_start(list, flags); const int mode = va_arg(list, int); va_end(list); \
        REAL(int, name, (const char *, int, ...)); \
        return (flags & O_CREAT) && fails_below(path) ? -1 : real(path, flags, mode); \
    }
OPEN(open)
OPEN(open64)

#define OPENAT(name) \
    int name(int dir, const char *path, int flags, ...) \
    { \
        va_list list; va_start(list, flags); const int mode = va_arg(list, int); va_end(list); \
        REAL(int, name, (int, const char *, int, ...)); \
        return (flags & O_CREAT) && fails_in(dir, path) ? -1 : real(dir, path, flags, mode); \
    }
OPENAT(openat)
OPENAT(openat64)

static int denied(const void *caller)
{
    Dl_info about;
    if (!library[0] || !dladdr(caller, &about) || strstr(about.dli_fname, library) == NULL) return 0;
    return ++allocations == allocation_at;
}

extern void *__libc_malloc(size_t), *__libc_calloc(size_t, size_t);
void *malloc(size_t size) { return denied(__builtin_return_address(0)) ? NULL : __libc_malloc(size); }
void *calloc(size_t count, size_t size)
{
    return denied(__builtin_return_address(0)) ? NULL : __libc_calloc(count, size);
}
