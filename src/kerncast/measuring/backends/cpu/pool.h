/* Threads that wait for the next launch: spinning for a moment, then asleep.
 *
 * The file that includes this defines `static void work(const plan *p, int thread, int threads)`: one thread's part of a
 * launch. Launches come one at a time.
 */
#include <pthread.h>
#include <sched.h>
#include <stdatomic.h>
#include <stdint.h>
#include <time.h>
#include <unistd.h>

#define MAX_THREADS 256
/* About 0.1 ms: longer than the gap between two launches, short enough to leave the machine alone. */
#define SPINS 4000

static void work(const plan *p, int thread, int threads);

static struct {
    pthread_mutex_t lock;
    pthread_cond_t wake;
    _Atomic uint64_t ticket; /* generation << 16 | threads at work: one word, so that a late waker reads one launch */
    _Atomic int pending, sleepers;
    const plan *plan;
    uint64_t joined[MAX_THREADS]; /* the launch before each thread's first */
    int size;
    pid_t owner;
} pool = {.lock = PTHREAD_MUTEX_INITIALIZER, .wake = PTHREAD_COND_INITIALIZER};

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
        const int threads = (int)(word & 0xffff);
        if (me < threads) {
            if (pool.plan) work(pool.plan, me, threads);
            atomic_fetch_sub(&pool.pending, 1);
        }
    }
    return 0;
}

/* Without a plan it only wakes the threads. */
static void launch(const plan *p, int threads) {
    pool.plan = p;
    atomic_store(&pool.pending, threads - 1);
    const uint64_t generation = (atomic_load(&pool.ticket) >> 16) + 1;
    atomic_store(&pool.ticket, generation << 16 | (uint64_t)threads);
    if (atomic_load(&pool.sleepers) > 0) {
        pthread_mutex_lock(&pool.lock);
        pthread_cond_broadcast(&pool.wake);
        pthread_mutex_unlock(&pool.lock);
    }
    if (p) work(p, 0, threads);
    for (int spins = 0; atomic_load(&pool.pending) > 0; spins++) pause_briefly(spins);
}

/* Threads for later launches; -1 when the machine refuses them. */
static int grow_pool(int threads) {
    if (threads > MAX_THREADS) return -1;
    if (pool.owner != getpid()) { /* threads do not survive a fork */
        pool.owner = getpid();
        pool.size = 1;
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

static int64_t now(void) {
    struct timespec t;
    clock_gettime(CLOCK_MONOTONIC, &t);
    return (int64_t)t.tv_sec * 1000000000 + t.tv_nsec;
}
