/* A machine whose disk fills up and whose clock jumps, for processes that are started with LD_PRELOAD.
 *
 * KERNCAST_MACHINE names a file of two 64-bit numbers: by how many nanoseconds the wall clock is off, and how many bytes may
 * still be written (negative: no limit). Only files whose path has KERNCAST_MACHINE_DISK in it are on the disk.
 */
#define _GNU_SOURCE
#include <dlfcn.h>
#include <errno.h>
#include <fcntl.h>
#include <limits.h>
#include <stdint.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/mman.h>
#include <sys/time.h>
#include <sys/uio.h>
#include <time.h>
#include <unistd.h>

struct machine {
    volatile int64_t clock_off_ns;
    int64_t free_bytes;
};

static struct machine as_usual = {0, -1};
static struct machine *machine = &as_usual;
static const char *disk;

__attribute__((constructor)) static void begin(void) {
    const char *path = getenv("KERNCAST_MACHINE");
    disk = getenv("KERNCAST_MACHINE_DISK");
    int fd = path ? open(path, O_RDWR | O_CLOEXEC) : -1;
    if (fd < 0) return;
    void *found = mmap(NULL, sizeof *machine, PROT_READ | PROT_WRITE, MAP_SHARED, fd, 0);
    close(fd);
    if (found != MAP_FAILED) machine = found;
}

/* How many of `wanted` bytes there is room for. */
static size_t room(int fd, size_t wanted) {
    if (__atomic_load_n(&machine->free_bytes, __ATOMIC_SEQ_CST) < 0 || !disk) return wanted;
    char link[64], path[PATH_MAX];
    snprintf(link, sizeof link, "/proc/self/fd/%d", fd);
    ssize_t length = readlink(link, path, sizeof path - 1);
    if (length < 0) return wanted;
    path[length] = 0;
    if (!strstr(path, disk)) return wanted;
    int64_t left = __atomic_load_n(&machine->free_bytes, __ATOMIC_SEQ_CST), taken;
    do {
        if (left < 0) return wanted;
        taken = left < (int64_t)wanted ? left : (int64_t)wanted;
    } while (!__atomic_compare_exchange_n(&machine->free_bytes, &left, left - taken, 0, __ATOMIC_SEQ_CST, __ATOMIC_SEQ_CST));
    return (size_t)taken;
}

#define REAL(name) (__typeof__(&name)) dlsym(RTLD_NEXT, #name)

ssize_t write(int fd, const void *data, size_t size) {
    size_t fits = size ? room(fd, size) : 0;
    if (size && !fits) { errno = ENOSPC; return -1; }
    return (REAL(write))(fd, data, fits);
}

ssize_t pwrite(int fd, const void *data, size_t size, off_t at) {
    size_t fits = size ? room(fd, size) : 0;
    if (size && !fits) { errno = ENOSPC; return -1; }
    return (REAL(pwrite))(fd, data, fits, at);
}

ssize_t pwrite64(int fd, const void *data, size_t size, off_t at) { return pwrite(fd, data, size, at); }

/* On a disk with a limit only the first part is written: callers must be ready to go on with the rest anyway. */
ssize_t writev(int fd, const struct iovec *parts, int count) {
    if (__atomic_load_n(&machine->free_bytes, __ATOMIC_SEQ_CST) < 0) return (REAL(writev))(fd, parts, count);
    for (int number = 0; number < count; number++)
        if (parts[number].iov_len) return write(fd, parts[number].iov_base, parts[number].iov_len);
    return 0;
}

int clock_gettime(clockid_t clock, struct timespec *now) {
    int failed = (REAL(clock_gettime))(clock, now);
    if (failed || clock != CLOCK_REALTIME) return failed;
    int64_t ns = (int64_t)now->tv_sec * 1000000000 + now->tv_nsec + machine->clock_off_ns;
    now->tv_sec = ns / 1000000000;
    now->tv_nsec = ns % 1000000000;
    return 0;
}

int gettimeofday(struct timeval *restrict now, void *restrict zone) {
    (void)zone;
    struct timespec exact;
    clock_gettime(CLOCK_REALTIME, &exact);
    now->tv_sec = exact.tv_sec;
    now->tv_usec = exact.tv_nsec / 1000;
    return 0;
}

time_t time(time_t *out) {
    struct timespec now;
    clock_gettime(CLOCK_REALTIME, &now);
    if (out) *out = now.tv_sec;
    return now.tv_sec;
}
