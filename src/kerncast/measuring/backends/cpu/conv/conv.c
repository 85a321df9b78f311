/* Grouped convolutions around generated tiles (codegen.py): what moves data, and the loops over tiles.
 *
 * `gather.h` computes the forward direction and the gradient of the input. Both make each result pixel from source
 * pixels that lie at fixed offsets from it; they differ in what is source and result, and in that the gradient falls
 * into phases: result pixels start + step * j of one phase meet the same taps. `weight.h` computes the gradient of the
 * weights. `staging.h` brings operands into the order that tiles read. Each of them is compiled for fp32 and fp64.
 */
#define _GNU_SOURCE
#include <pthread.h>
#include <stdlib.h>
#include <sys/mman.h>
#include <time.h>
#define KC_NO_PRODUCTS
#include "kernels.h"

#define HUGE_PAGE (2 << 20)
#define COLUMN_PAD 16 /* elements between rows of columns, so that they do not compete for one cache set */

enum { GATHER = 0, WEIGHT = 1 };
enum { DIRECT = 0, IM2COL = 1, DEPTHWISE = 2 };
enum { D = 0, H = 1, W = 2 };

typedef void tile_fn(int64_t entries, const int64_t *ao, const int64_t *bo, int64_t k, const void *a, int64_t sa, int64_t ka,
                     const void *b, int64_t sb, void *c, int64_t sc, int64_t add);

typedef struct {
    int64_t start[3], step[3], count[3]; /* result pixels start + step * j, j < count */
    int64_t taps, packed;                /* elements before this phase's packed weights */
    const int64_t *at;     /* of each tap: source pixel = source_step * j + at, three axes */
    const int64_t *tap;    /* of each tap: which one of the filter it is */
    const int64_t *offset; /* of each tap: elements from where j = 0 is staged */
    const int64_t *shift;  /* of each tap: the same in the source as it lies */
    int64_t first[3], last[3]; /* least and greatest of `at` */
} phase;

/* Elements between neighbours. */
typedef struct {
    int64_t pixel, row, slice, channel, image;
} strides;

typedef struct {
    const void *source, *other; /* other: the weights, or for their gradient that of the output */
    void *result;
    tile_fn **tiles; /* by rows and vectors of a tile: (rows - 1) * nv + vectors - 1 */
    const phase *phases;
    int64_t phase_count, direction, kernel, channels_last, double_precision;
    int64_t images, groups, cs, cd; /* channels of one group in source and result (or output) */
    int64_t source_size[3], result_size[3], source_step[3], filter[3];
    int64_t tap_result, tap_source, tap_tap; /* strides of the weights: by result channel, source channel, tap */
    int64_t low[3], staged_size[3];          /* first source pixel that is staged, and how many */
    int64_t copies, split;                   /* whether it is; channels first: elements of a row by phase of its stride */
    int64_t clips;                           /* depthwise, channels last: no zeros are staged, taps beyond the image left out */
    int64_t copies_output;                   /* whether the gradient of the output is copied, to be read in whole vectors */
    strides from, staged, to, output;        /* the source as it lies and is staged; the result, or the output and staged */
    int64_t plane;          /* depthwise, channels last: elements between copies for the channels of a group */
    int64_t mr, nv, lanes, kc, nc;
    int64_t packed_at, staged_at, columns_at, tile_at, lists_at, bytes; /* in the workspace */
} plan;

static struct {
    char *memory;
    int64_t bytes;
} workspace;
static pthread_mutex_t running = PTHREAD_MUTEX_INITIALIZER;

static int64_t least(int64_t a, int64_t b) { return a < b ? a : b; }
static int64_t most(int64_t a, int64_t b) { return a > b ? a : b; }
static int64_t divide_up(int64_t a, int64_t b) { return (a + b - 1) / b; }

/* Parts of nearly equal size: 7 in parts of at most 6 is 3 + 4, not 6 + 1. */
typedef struct {
    int64_t extent, count;
} parts;
static parts in_parts(int64_t extent, int64_t limit) { return (parts){extent, most(1, divide_up(extent, limit))}; }
static int64_t begin(parts p, int64_t i) { return p.extent * i / p.count; }

static tile_fn *tile_of(const plan *p, int64_t rows, int64_t vectors) { return p->tiles[(rows - 1) * p->nv + vectors - 1]; }

static const int64_t NOWHERE[1] = {0}; /* the list of one place: where the operands begin */

#define T float
#define TYPED(name) name##_fp32
#define quad_transpose_fp32 fp32_transpose
#include "conv/staging.h"
#include "conv/gather.h"
#include "conv/weight.h"
#undef T
#undef TYPED
#define T double
#define TYPED(name) name##_fp64
#define quad_transpose_fp64 fp64_transpose
#include "conv/staging.h"
#include "conv/gather.h"
#include "conv/weight.h"

/* ---- what Python calls ----------------------------------------------------------------------- */

/* Memory for a plan; -1 when there is none. Never called while a plan runs. */
int kc_conv_reserve(const plan *p) {
    const int64_t bytes = divide_up(p->bytes, HUGE_PAGE) * HUGE_PAGE;
    int failed = 0;
    pthread_mutex_lock(&running);
    if (workspace.bytes < bytes) {
        void *memory = 0;
        failed = posix_memalign(&memory, HUGE_PAGE, (size_t)bytes) != 0;
        if (!failed) {
            madvise(memory, (size_t)bytes, MADV_HUGEPAGE);
            free(workspace.memory);
            workspace.memory = memory, workspace.bytes = bytes;
        }
    }
    pthread_mutex_unlock(&running);
    return failed ? -1 : 0;
}

static int64_t now(void) {
    struct timespec t;
    clock_gettime(CLOCK_MONOTONIC, &t);
    return (int64_t)t.tv_sec * 1000000000 + t.tv_nsec;
}

/* Nanoseconds for `launches` launches. */
int64_t kc_conv_run(const plan *p, int64_t launches) {
    pthread_mutex_lock(&running);
    const int64_t start = now();
    for (int64_t i = 0; i < launches; i++) {
        if (p->direction == WEIGHT) (p->double_precision ? weight_fp64 : weight_fp32)(p, workspace.memory);
        else (p->double_precision ? gather_fp64 : gather_fp32)(p, workspace.memory);
    }
    const int64_t spent = now() - start;
    pthread_mutex_unlock(&running);
    return spent;
}
