/* Moves runs of tiles between the buffers of cores, with worker threads that wait for the next launch. */
#include <stdint.h>
#include <string.h>

/* `bytes` from `from_offset` in the buffer of core `from` to `to_offset` in that of core `to`. */
typedef struct {
    int32_t from, to;
    int64_t from_offset, to_offset, bytes;
} run;

/* Thread t moves the runs from first[t] up to first[t + 1]. Buffers may move between launches: runs name cores. */
typedef struct {
    const run *runs;
    const int64_t *first;
    char *const *from;
    char *const *to;
    int64_t threads;
} plan;

#include "pool.h"

static void work(const plan *p, int thread, int threads) {
    (void)threads;
    const run *end = p->runs + p->first[thread + 1];
    for (const run *r = p->runs + p->first[thread]; r < end; r++)
        memcpy(p->to[r->to] + r->to_offset, p->from[r->from] + r->from_offset, (size_t)r->bytes);
}

/* Threads for later launches; -1 when the machine refuses them. Called by one thread at a time, as kr_run is. */
int kr_reserve(int64_t threads) { return grow_pool((int)threads); }

/* Nanoseconds for `launches` launches. */
int64_t kr_run(const plan *p, int64_t launches) {
    const int threads = (int)p->threads;
    if (threads > 1) launch(0, threads);
    const int64_t start = now();
    for (int64_t i = 0; i < launches; i++) {
        if (threads > 1) launch(p, threads);
        else work(p, 0, 1);
        /* Equal copies in a row are still copies. */
        __asm__ volatile("" ::: "memory");
    }
    return now() - start;
}
