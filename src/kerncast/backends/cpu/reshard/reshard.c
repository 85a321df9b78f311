/* Moves runs of tiles between the buffers of cores, with worker threads that wait for the next launch. */
#include <pthread.h>
#include <sched.h>
#include <stdatomic.h>
#include <stdint.h>
#include <string.h>
#include <time.h>
#include <unistd.h>

#define MOST_THREADS 256
/* About 50 us: the pause between launches of one measurement, not between measurements. */
#define SPINS 2000

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

static struct {
    pthread_mutex_t lock;
    pthread_cond_t wake;
    /* Launches so far, and in the low 16 bits how many threads take part in this one: those alone read `plan`. */
    _Atomic uint64_t ticket;
    _Atomic int pending, sleepers;
    uint64_t joined[MOST_THREADS];
    const plan *plan;
    int size;
    pid_t owner;
} pool = {.size = 1};

static void move(const plan *p, int thread) {
    const run *end = p->runs + p->first[thread + 1];
    for (const run *r = p->runs + p->first[thread]; r < end; r++)
        memcpy(p->to[r->to] + r->to_offset, p->from[r->from] + r->from_offset, (size_t)r->bytes);
}

static void pause_briefly(int spins) {
#if defined(__x86_64__) || defined(__i386__)
    __builtin_ia32_pause();
#endif
    /* With more threads than free cores the one that is waited for may need this one's. */
    if (spins > SPINS) sched_yield();
}

static void *worker(void *id) {
    const int me = (int)(intptr_t)id;
    uint64_t seen = pool.joined[me], word;
    for (;;) {
        for (int spins = 0; (word = atomic_load(&pool.ticket)) == seen && spins < SPINS; spins++) pause_briefly(0);
        if (word == seen) {
            pthread_mutex_lock(&pool.lock);
            atomic_fetch_add(&pool.sleepers, 1);
            while ((word = atomic_load(&pool.ticket)) == seen) pthread_cond_wait(&pool.wake, &pool.lock);
            atomic_fetch_sub(&pool.sleepers, 1);
            pthread_mutex_unlock(&pool.lock);
        }
        seen = word;
        if (me < (int)(word & 0xffff)) {
            if (pool.plan) move(pool.plan, me);
            atomic_fetch_sub(&pool.pending, 1);
        }
    }
    return 0;
}

/* Without a plan it only wakes the threads. */
static void launch(const plan *p, int threads) {
    pool.plan = p;
    atomic_store(&pool.pending, threads - 1);
    const uint64_t number = (atomic_load(&pool.ticket) >> 16) + 1;
    atomic_store(&pool.ticket, number << 16 | (uint64_t)threads);
    if (atomic_load(&pool.sleepers) > 0) {
        pthread_mutex_lock(&pool.lock);
        pthread_cond_broadcast(&pool.wake);
        pthread_mutex_unlock(&pool.lock);
    }
    if (p) move(p, 0);
    for (int spins = 0; atomic_load(&pool.pending) > 0; spins++) pause_briefly(spins);
}

static int64_t now(void) {
    struct timespec t;
    clock_gettime(CLOCK_MONOTONIC, &t);
    return (int64_t)t.tv_sec * 1000000000 + t.tv_nsec;
}

/* Threads for later launches; -1 when the machine refuses them. Called by one thread at a time, as kr_run is. */
int kr_reserve(int64_t threads) {
    if (threads > MOST_THREADS) return -1;
    if (pool.owner != getpid()) { /* threads do not survive a fork */
        pool.owner = getpid(), pool.size = 1;
        atomic_store(&pool.ticket, 0), atomic_store(&pool.sleepers, 0);
        pthread_mutex_init(&pool.lock, 0), pthread_cond_init(&pool.wake, 0);
    }
    for (; pool.size < threads; pool.size++) {
        pthread_t made;
        pool.joined[pool.size] = atomic_load(&pool.ticket);
        if (pthread_create(&made, 0, worker, (void *)(intptr_t)pool.size)) return -1;
        pthread_detach(made);
    }
    return 0;
}

/* Nanoseconds for `launches` launches. */
int64_t kr_run(const plan *p, int64_t launches) {
    const int threads = (int)p->threads;
    if (threads > 1) launch(0, threads);
    const int64_t start = now();
    for (int64_t i = 0; i < launches; i++) {
        if (threads > 1) launch(p, threads);
        else move(p, 0);
        /* Equal copies in a row are still copies. */
        __asm__ volatile("" ::: "memory");
    }
    return now() - start;
}
