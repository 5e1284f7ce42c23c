/* Clocks that jump and disks that fail, for one node: preloaded, told by a shared file of ten numbers (chaos/shim.py). */
#define _GNU_SOURCE
#include <dlfcn.h>
#include <errno.h>
#include <fcntl.h>
#include <signal.h>
#include <stdint.h>
#include <stdlib.h>
#include <sys/mman.h>
#include <sys/time.h>
#include <sys/uio.h>
#include <time.h>
#include <unistd.h>

struct orders {
    int64_t real_ms, boot_ms;        /* added to the wall's clock, and to the clock that counts suspension */
    int64_t sync_error, sync_after;  /* errno of fsync and fdatasync, once so many more have passed */
    int64_t sync_delay_us;           /* each takes so much longer */
    int64_t sync_lies;               /* says that it was done, and does nothing */
    int64_t write_error, write_after;
    int64_t die_at, die_after;       /* once, after so many writes and syncs: before the next, in its middle, or when it is done */
};
enum { BEFORE = 1, MIDDLE = 2, DONE = 3 };
static volatile struct orders *orders;

__attribute__((constructor)) static void open_orders(void) {
    const char *path = getenv("CHAOS_ORDERS");
    if (!path) return;
    int fd = open(path, O_RDWR | O_CLOEXEC);
    if (fd < 0) return;
    void *map = mmap(NULL, sizeof *orders, PROT_READ | PROT_WRITE, MAP_SHARED, fd, 0);
    if (map != MAP_FAILED) orders = map;
    close(fd);
}

int clock_gettime(clockid_t clock, struct timespec *at) {
    static int (*real)(clockid_t, struct timespec *);
    if (!real) real = dlsym(RTLD_NEXT, "clock_gettime");
    int result = real(clock, at);
    if (!orders || result) return result;
    int64_t ms = clock == CLOCK_REALTIME ? orders->real_ms : clock == CLOCK_BOOTTIME ? orders->boot_ms : 0;
    int64_t ns = at->tv_nsec + ms % 1000 * 1000000;
    at->tv_sec += ms / 1000 + (ns >= 1000000000) - (ns < 0);
    at->tv_nsec = ns >= 1000000000 ? ns - 1000000000 : ns < 0 ? ns + 1000000000 : ns;
    return 0;
}

int gettimeofday(struct timeval *at, void *zone) {
    struct timespec now;
    (void)zone;
    clock_gettime(CLOCK_REALTIME, &now);
    at->tv_sec = now.tv_sec;
    at->tv_usec = now.tv_nsec / 1000;
    return 0;
}

time_t time(time_t *at) {
    struct timespec now;
    clock_gettime(CLOCK_REALTIME, &now);
    if (at) *at = now.tv_sec;
    return now.tv_sec;
}

/* Where in this write or sync the process is to die; 0: it lives on. */
static int dies(void) {
    if (!orders || !orders->die_at || orders->die_after-- > 0) return 0;
    int at = orders->die_at;
    orders->die_at = 0;
    if (at == BEFORE) kill(getpid(), SIGKILL);
    return at;
}

static int sync_it(const char *name, int fd) {
    int (*real)(int) = dlsym(RTLD_NEXT, name);
    if (!orders) return real(fd);
    if (orders->sync_delay_us) usleep(orders->sync_delay_us);
    if (orders->sync_error && orders->sync_after-- <= 0) {
        errno = orders->sync_error;
        return -1;
    }
    int dying = dies(), result = orders->sync_lies ? 0 : real(fd);
    if (dying) kill(getpid(), SIGKILL);
    return result;
}

int fsync(int fd) { return sync_it("fsync", fd); }
int fdatasync(int fd) { return sync_it("fdatasync", fd); }

static int write_fails(void) {
    if (!orders || !orders->write_error || orders->write_after-- > 0) return 0;
    errno = orders->write_error;
    return 1;
}

ssize_t pwrite64(int fd, const void *data, size_t length, off64_t offset) {
    static ssize_t (*real)(int, const void *, size_t, off64_t);
    if (!real) real = dlsym(RTLD_NEXT, "pwrite64");
    if (write_fails()) return -1;
    int dying = dies();
    ssize_t result = real(fd, data, dying == MIDDLE ? length / 2 : length, offset);
    if (dying) kill(getpid(), SIGKILL);
    return result;
}

ssize_t pwrite(int fd, const void *data, size_t length, off_t offset) { return pwrite64(fd, data, length, offset); }

/* What CPython calls, whichever of them it is. */
ssize_t pwritev64v2(int fd, const struct iovec *pieces, int count, off64_t offset, int flags) {
    static ssize_t (*real)(int, const struct iovec *, int, off64_t, int);
    if (!real) real = dlsym(RTLD_NEXT, "pwritev64v2");
    if (write_fails()) return -1;
    int dying = dies();
    ssize_t result = real(fd, pieces, dying == MIDDLE ? (count + 1) / 2 : count, offset, flags);
    if (dying) kill(getpid(), SIGKILL);
    return result;
}

ssize_t pwritev2(int fd, const struct iovec *pieces, int count, off_t offset, int flags) { return pwritev64v2(fd, pieces, count, offset, flags); }
ssize_t pwritev64(int fd, const struct iovec *pieces, int count, off64_t offset) { return pwritev64v2(fd, pieces, count, offset, 0); }
ssize_t pwritev(int fd, const struct iovec *pieces, int count, off_t offset) { return pwritev64v2(fd, pieces, count, offset, 0); }
