/* The blocked matrix product around the generated micro-kernels, on one thread or a pool of them.
 *
 * C (row-major) = A · B, then the epilogue. Blocks of MC × KC of A and KC × NC of B are staged (packed into strips, or used where
 * they are), then each MR × NR tile of C is one call of a micro-kernel. Edge tiles have kernels of their own
 * size, so nothing is read or written out of bounds; only where the last vector of a row is partial, B's strip is
 * copied with zeros and the tile is computed apart and merged. With the last block of K a tile gets its epilogue, and a
 * result that is narrower than its sums (bf16) is rounded once.
 */
#define _GNU_SOURCE
#include <math.h>
#include <stdlib.h>
#include <sys/mman.h>
#include "kernels.h"
#include "results.h"
#include "epilogue.h"
#include "tiles.h"

#define HUGE_PAGE (2 << 20)
#define K_UNIT 8 /* blocks of K are whole vectors but for the last */
/* A k-major operand is packed in parts that L1 holds: all strips of a part share its rows, which are read once and in
 * order. */
#define PACKED_AT_ONCE 24576

enum { LOOPS_NKM = 0, LOOPS_MKN = 1 };
enum { TILES_NM = 0, TILES_MN = 1 };
enum { SPLIT_NONE = 0, SPLIT_M = 1, SPLIT_N = 2, SPLIT_K = 3 };

typedef void micro_fn(int64_t k, const void *a, int64_t sa, const void *b, int64_t sb, void *c, int64_t sc, int64_t add);
typedef void packer_fn(int64_t k, int64_t valid, const void *source, int64_t stride, void *strip);

typedef struct {
    const char *base;
    int64_t stride;       /* elements between two rows (by rows) or two steps of K (k-major) */
    int64_t batch_stride; /* elements */
    int64_t width;        /* MR or NR */
    int64_t rows;         /* stored by rows: contiguous along K */
    int64_t pack, along;  /* into strips: k-major, or with rows of their own, contiguous along K */
    packer_fn *packer;
} operand;

typedef struct {
    operand a, b;
    char *c;
    micro_fn **micros; /* by rows and vectors of the tile: (rows - 1) * vectors + (vectors of it - 1) */
    int64_t vectors, lanes; /* of a whole tile; columns of one vector (1 for dot products) */
    int64_t row_unit;       /* rows that are computed together: those of a tile register, else 1 */
    int64_t group, k_unit;  /* steps of K in a packed cell; packed strips are filled up to whole units */
    int64_t m, n, k, batch;
    int64_t mc, kc, nc;
    int64_t loop_order, tile_order, threads, split;
    int64_t element_bytes, cell_bytes, sum_bytes, result_bytes, result; /* of operands, packed cells, sums, C */
    int64_t c_stride, c_batch_stride; /* elements between two rows of C, between two products */
    epilogue after;
} plan;

#include "pool.h"

/* A staged block: tile t starts at first + t * step, but for the one that was copied to `edge`. */
typedef struct {
    const char *first, *edge;
    int64_t step, stride, copied;
} block;

typedef struct {
    int64_t m0, m1, n0, n1, k0, k1;
    char *sums, *c; /* sums may be C, or nothing when a tile is rounded to C at once; c only where that rounds */
    int64_t sums_stride;
    int finishes; /* tiles get their epilogue or are rounded with the last block of K */
    char *a_strips, *b_strips, *edge, *tile, *partial;
} job;

static struct {
    char *memory;
    size_t bytes;
} workspace[MAX_THREADS];
static pthread_mutex_t running = PTHREAD_MUTEX_INITIALIZER;

static int64_t least(int64_t a, int64_t b) { return a < b ? a : b; }
static int64_t divide_up(int64_t a, int64_t b) { return (a + b - 1) / b; }
static int64_t round_up(int64_t a, int64_t unit) { return divide_up(a, unit) * unit; }

/* Blocks of nearly equal size: 300 with a limit of 256 becomes 160 + 140, not 256 + 44. */
static int64_t even_block(int64_t extent, int64_t limit, int64_t unit) {
    return extent <= 0 ? unit : round_up(divide_up(extent, divide_up(extent, limit)), unit);
}

/* ---- one thread ------------------------------------------------------------------------------ */

/* Steps that a micro-kernel makes over k elements of packed strips. */
static int64_t steps(const plan *p, int64_t k) { return round_up(k, p->k_unit) / p->group; }

static block stage(const plan *p, const operand *o, int64_t first, int64_t count, int64_t k0, int64_t k, char *strips,
                   char *edge, int64_t lanes) {
    const int64_t w = o->width, whole = count / w, rest = count % w, bytes = p->element_bytes;
    const int64_t neighbour = (o->rows ? o->stride : 1) * bytes;
    const char *source = o->base + (o->rows ? first * o->stride + k0 : k0 * o->stride + first) * bytes;
    if (o->pack) {
        const int64_t step = w * steps(p, k) * p->cell_bytes;
        const int64_t unit = p->k_unit > K_UNIT ? p->k_unit : K_UNIT;
        const int64_t chunk = o->rows || o->along ? k : round_up(PACKED_AT_ONCE / (count * bytes) + 1, unit);
        for (int64_t q = 0; q < k; q += chunk)
            for (int64_t t = 0; t * w < count; t++)
                o->packer(least(chunk, k - q), least(w, count - t * w), source + t * w * neighbour + q * o->stride * bytes,
                          o->stride, strips + t * step + steps(p, q) * w * p->cell_bytes);
        return (block){strips, 0, step, o->along ? k : w, -1};
    }
    block b = {source, edge, w * neighbour, o->stride, -1};
    if (rest % lanes) {
        o->packer(k, rest, source + whole * b.step, o->stride, edge);
        b.copied = whole;
    }
    return b;
}

/* Where a block of C begins and which part of K it gets. */
typedef struct {
    int64_t i0, j0, m, n, k;
    int add, last;
} extent;

static inline void one_tile(const plan *p, const job *j, const block *a, const block *b, int64_t ti, int64_t tj,
                            const extent *e) {
    const int64_t mr = p->a.width, nr = p->b.width;
    const int64_t rows = least(mr, e->m - ti * mr), columns = least(nr, e->n - tj * nr);
    const int64_t vectors = columns == nr ? p->vectors : divide_up(columns, p->lanes);
    const int64_t units = p->row_unit == 1 ? rows : divide_up(rows, p->row_unit);
    micro_fn *micro = p->micros[(units - 1) * p->vectors + vectors - 1];
    const char *pa = a->first + ti * a->step, *pb = tj == b->copied ? b->edge : b->first + tj * b->step;
    const int64_t sb = tj == b->copied ? nr : b->stride, row = e->i0 + ti * mr, column = e->j0 + tj * nr;
    const int whole = (columns == nr || columns == vectors * p->lanes) && rows == units * p->row_unit;
    char *sums = j->tile;
    int64_t stride = nr;
    if (j->sums) sums = j->sums + (row * j->sums_stride + column) * p->sum_bytes, stride = j->sums_stride;
    if (whole && j->sums) {
        micro(e->k, pa, a->stride, pb, sb, sums, stride, e->add);
    } else {
        micro(e->k, pa, a->stride, pb, sb, j->tile, nr, 0);
        if (j->sums) merge(p->result, sums, stride, j->tile, nr, rows, columns, e->add);
    }
    if (!j->finishes || !e->last) return;
    if (has_epilogue(&p->after)) finish(&p->after, p->result, sums, stride, rows, columns, column);
    if (j->c) round_to_bf16(j->c + (row * p->c_stride + column) * p->result_bytes, p->c_stride, sums, stride, rows, columns);
}

static void tiles(const plan *p, const job *j, const block *a, const block *b, const extent *e) {
    const int64_t tm = divide_up(e->m, p->a.width), tn = divide_up(e->n, p->b.width);
    if (p->tile_order == TILES_NM) {
        for (int64_t tj = 0; tj < tn; tj++)
            for (int64_t ti = 0; ti < tm; ti++) one_tile(p, j, a, b, ti, tj, e);
    } else {
        for (int64_t ti = 0; ti < tm; ti++)
            for (int64_t tj = 0; tj < tn; tj++) one_tile(p, j, a, b, ti, tj, e);
    }
}

static int64_t k_block(const plan *p, int64_t k) { return even_block(k, p->kc, p->k_unit > K_UNIT ? p->k_unit : K_UNIT); }

/* The part of C that a job owns; `a` and `b` are this batch item's operands. */
static void product(const plan *p, const job *j, const operand *a, const operand *b) {
    const int64_t mc = even_block(j->m1 - j->m0, p->mc, a->width), nc = even_block(j->n1 - j->n0, p->nc, b->width);
    const int64_t kc = k_block(p, j->k1 - j->k0);
    const int n_first = p->loop_order == LOOPS_NKM;
    const int64_t begin = n_first ? j->n0 : j->m0, end = n_first ? j->n1 : j->m1, step = n_first ? nc : mc;
    const int64_t begin2 = n_first ? j->m0 : j->n0, end2 = n_first ? j->m1 : j->n1, step2 = n_first ? mc : nc;
    for (int64_t x = begin; x < end; x += step)
        for (int64_t k0 = j->k0; k0 < j->k1; k0 += kc) {
            const int64_t k = least(kc, j->k1 - k0), wide = least(step, end - x);
            block outer = n_first ? stage(p, b, x, wide, k0, k, j->b_strips, j->edge, p->lanes)
                                  : stage(p, a, x, wide, k0, k, j->a_strips, 0, 1);
            for (int64_t y = begin2; y < end2; y += step2) {
                const int64_t wide2 = least(step2, end2 - y);
                block inner = n_first ? stage(p, a, y, wide2, k0, k, j->a_strips, 0, 1)
                                      : stage(p, b, y, wide2, k0, k, j->b_strips, j->edge, p->lanes);
                const extent e = {n_first ? y : x, n_first ? x : y, n_first ? wide2 : wide, n_first ? wide : wide2,
                                  steps(p, k), k0 > j->k0, k0 + k >= j->k1};
                tiles(p, j, n_first ? &inner : &outer, n_first ? &outer : &inner, &e);
            }
        }
}

/* ---- memory of one thread -------------------------------------------------------------------- */

static size_t carve(const plan *p, job *j, char *memory) {
    const int64_t unit = p->k_unit > K_UNIT ? p->k_unit : K_UNIT, kc = least(p->kc + unit, round_up(p->k, unit));
    const int64_t cells = kc / p->group * p->cell_bytes;
    const int own_sums = p->split == SPLIT_K || (p->result == RESULT_BF16 && k_block(p, p->k) < p->k);
    const int64_t sizes[] = {
        p->a.pack ? (least(p->mc, p->m) + p->a.width) * cells : 0,
        p->b.pack ? (least(p->nc, p->n) + p->b.width) * cells : 0,
        p->b.width * kc * p->element_bytes,
        p->a.width * p->b.width * p->sum_bytes,
        own_sums ? p->m * p->n * p->sum_bytes : 0,
    };
    char **parts[] = {&j->a_strips, &j->b_strips, &j->edge, &j->tile, &j->partial};
    size_t at = 0;
    for (int i = 0; i < 5; i++) {
        *parts[i] = memory + at;
        at += (size_t)round_up(sizes[i], 64) + 64;
    }
    return at;
}

/* ---- several threads --------------------------------------------------------------------------- */

static _Atomic int64_t arrived, departed;

/* All threads of a launch meet here; `round` counts the meetings. */
static void meet(_Atomic int64_t *count, int64_t round, int threads) {
    atomic_fetch_add(count, 1);
    for (int spins = 0; atomic_load(count) < round * threads; spins++) pause_briefly(spins);
}

static int64_t share(int64_t units, int64_t part, int64_t parts) { return units * part / parts; }

/* This thread's part of all sums, as if rows followed each other without gaps; in one go where they do. */
static void reduce(const plan *p, char *c, int thread, int threads) {
    const int64_t r0 = share(p->m * p->n, thread, threads), r1 = share(p->m * p->n, thread + 1, threads);
    const int rounds = p->result == RESULT_BF16, finishes = has_epilogue(&p->after);
    const int at_once = p->c_stride == p->n && !finishes;
    for (int64_t at = r0, next; at < r1; at = next) {
        const int64_t row = at / p->n, column = at % p->n;
        next = at_once ? r1 : least(r1, (row + 1) * p->n);
        char *to = c + (row * p->c_stride + column) * p->result_bytes;
        job other;
        carve(p, &other, workspace[0].memory);
        char *sums = rounds ? other.partial + at * p->sum_bytes : to;
        for (int t = 1; t < threads; t++) {
            carve(p, &other, workspace[t].memory);
            merge(p->result, sums, 0, other.partial + at * p->sum_bytes, 0, 1, next - at, 1);
        }
        if (finishes) finish(&p->after, p->result, sums, 0, 1, next - at, column);
        if (rounds) round_to_bf16(to, 0, sums, 0, 1, next - at);
    }
}

static int useful_threads(const plan *p) {
    const int64_t most[] = {1, divide_up(p->m, p->a.width), divide_up(p->n, p->b.width), p->k};
    return (int)least(p->threads, most[p->split]);
}

static void work(const plan *p, int thread, int threads) {
    job j = {.m1 = p->m, .n1 = p->n, .k1 = p->k};
    carve(p, &j, workspace[thread].memory);
    const int64_t mr = p->a.width, nr = p->b.width, tm = divide_up(p->m, mr), tn = divide_up(p->n, nr);
    if (p->split == SPLIT_M) {
        j.m0 = share(tm, thread, threads) * mr, j.m1 = least(p->m, share(tm, thread + 1, threads) * mr);
    } else if (p->split == SPLIT_N) {
        j.n0 = share(tn, thread, threads) * nr, j.n1 = least(p->n, share(tn, thread + 1, threads) * nr);
    } else if (p->split == SPLIT_K) {
        j.k0 = share(p->k, thread, threads), j.k1 = share(p->k, thread + 1, threads);
    }
    operand a = p->a, b = p->b;
    char *c = p->c;
    const int splits_k = p->split == SPLIT_K && threads > 1, rounds = p->result == RESULT_BF16;
    const int one_block = k_block(p, j.k1 - j.k0) >= j.k1 - j.k0;
    if (p->row_unit > 1) begin_tiles();
    for (int64_t item = 0; item < p->batch; item++) {
        j.sums = splits_k && (thread || rounds) ? j.partial : !rounds ? c : one_block ? 0 : j.partial;
        j.c = rounds && !splits_k ? c : 0;
        j.sums_stride = j.sums == c ? p->c_stride : p->n;
        j.finishes = !splits_k && (rounds || has_epilogue(&p->after));
        product(p, &j, &a, &b);
        if (splits_k) {
            meet(&arrived, item + 1, threads);
            reduce(p, c, thread, threads);
            meet(&departed, item + 1, threads);
        }
        a.base += a.batch_stride * p->element_bytes, b.base += b.batch_stride * p->element_bytes;
        c += p->c_batch_stride * p->result_bytes;
    }
    if (p->row_unit > 1) end_tiles();
}

/* ---- what Python calls ----------------------------------------------------------------------- */

/* Memory and threads for a plan; 0, -1 when the machine refuses those, -2 when it refuses tile registers. Never
 * called while a plan runs. */
int kc_reserve(const plan *p) {
    int failed = 0;
    if (p->row_unit > 1 && !tiles_allowed()) return -2;
    job ignored;
    const size_t bytes = (size_t)round_up((int64_t)carve(p, &ignored, 0), HUGE_PAGE);
    pthread_mutex_lock(&running);
    for (int t = 0; t < p->threads && !failed; t++) {
        if (workspace[t].bytes >= bytes) continue;
        void *memory = 0;
        failed = posix_memalign(&memory, HUGE_PAGE, bytes) != 0;
        if (failed) break;
        madvise(memory, bytes, MADV_HUGEPAGE);
        free(workspace[t].memory);
        workspace[t].memory = memory, workspace[t].bytes = bytes;
    }
    if (!failed && p->threads > 1) failed = grow_pool((int)p->threads);
    pthread_mutex_unlock(&running);
    return failed ? -1 : 0;
}

/* Nanoseconds for `launches` launches. */
int64_t kc_run(const plan *p, int64_t launches) {
    const int threads = useful_threads(p);
    pthread_mutex_lock(&running);
    if (threads > 1) launch(0, threads); /* wakes the pool before the clock starts */
    const int64_t start = now();
    for (int64_t i = 0; i < launches; i++) {
        if (threads > 1) {
            atomic_store(&arrived, 0), atomic_store(&departed, 0);
            launch(p, threads);
        } else {
            work(p, 0, 1);
        }
    }
    const int64_t spent = now() - start;
    pthread_mutex_unlock(&running);
    return spent;
}
