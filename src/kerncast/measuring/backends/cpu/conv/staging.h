/* Operands in the order that tiles read: copies with a rim of zeros, packed weights, results of cut tiles put in place. */

static inline void TYPED(zero)(T *d, int64_t n) {
    if (n > 0) memset(d, 0, (size_t)n * sizeof(T));
}

static inline void TYPED(copy)(T *d, const T *s, int64_t n) {
    if (n >= 16) memcpy(d, s, (size_t)n * sizeof(T));
    else for (int64_t i = 0; i < n; i++) d[i] = s[i];
}

/* d[q * width + i] = s[i * si + q * sq] for i < valid, else zero. */
static void TYPED(pack)(const T *s, int64_t si, int64_t sq, int64_t valid, int64_t width, int64_t n, T *d) {
    int64_t i = 0;
    for (; sq == 1 && i + 4 <= valid; i += 4) {
        int64_t q = 0;
        for (; q + 4 <= n; q += 4) TYPED(quad_transpose)(s + i * si + q, si, d + q * width + i, width);
        for (; q < n; q++)
            for (int64_t r = i; r < i + 4; r++) d[q * width + r] = s[r * si + q];
    }
    for (int64_t q = 0; q < n; q++) {
        if (si == 1) TYPED(copy)(d + q * width + i, s + q * sq + i, valid - i);
        else for (int64_t r = i; r < valid; r++) d[q * width + r] = s[r * si + q * sq];
        TYPED(zero)(d + q * width + valid, width - valid);
    }
}

/* A cut tile where it belongs: result element (i, j) at i * si + j * sj. */
static void TYPED(put)(T *to, int64_t si, int64_t sj, const T *tile, int64_t stride, int64_t rows, int64_t columns, int add) {
    for (int64_t i = 0; i < rows; i++, to += si, tile += stride) {
        if (add) for (int64_t j = 0; j < columns; j++) to[j * sj] += tile[j];
        else for (int64_t j = 0; j < columns; j++) to[j * sj] = tile[j];
    }
}

/* One staged row, channels first: elements of one phase of the stride lie together, so that vectors read them. */
static void TYPED(stage_split_row)(const plan *p, const T *s, T *d) {
    const int64_t step = p->source_step[W], size = p->source_size[W];
    for (int64_t f = 0; f < step; f++, d += p->split) {
        const int64_t first = p->low[W] + f; /* pixel of element 0 */
        const int64_t before = first < 0 ? least(p->split, divide_up(-first, step)) : 0;
        const int64_t end = first < size ? least(p->split, most(before, divide_up(size - first, step))) : before;
        TYPED(zero)(d, before);
        if (step == 1) TYPED(copy)(d + before, s + first + before, end - before);
        else for (int64_t i = before; i < end; i++) d[i] = s[first + i * step];
        TYPED(zero)(d + end, p->split - end);
    }
}

/* One staged row, channels last; for depthwise kernels channel j of every group, once for each result channel of it. */
static void TYPED(stage_row)(const plan *p, const T *s, T *d, int64_t j) {
    const int64_t width = p->staged_size[W], low = p->low[W], pixel = p->staged.pixel;
    const int64_t before = least(width, most(0, -low)), end = most(before, least(width, p->source_size[W] - low));
    TYPED(zero)(d, before * pixel);
    s += (low + before) * p->from.pixel, d += before * pixel;
    if (p->kernel != DEPTHWISE || (p->cs == 1 && p->cd == 1)) {
        TYPED(copy)(d, s, (end - before) * pixel);
        d += (end - before) * pixel;
    } else {
        for (int64_t w = before; w < end; w++, s += p->from.pixel)
            for (int64_t g = 0; g < p->groups; g++)
                for (int64_t i = 0; i < p->cd; i++) *d++ = s[g * p->cs + j];
    }
    TYPED(zero)(d, (width - end) * pixel);
}

/* Channels (channels first), or the copies for channels of a group (depthwise), or everything, of an image with its rim.
 * Beyond the end lie elements that are read with the last vector and do not count. */
static void TYPED(stage_planes)(const plan *p, const T *s, T *d, int64_t planes) {
    const int64_t between = p->channels_last ? p->plane : p->staged.channel;
    for (int64_t c = 0; c < planes; c++)
        for (int64_t z = 0; z < p->staged_size[D]; z++)
            for (int64_t y = 0; y < p->staged_size[H]; y++) {
                const int64_t sz = z + p->low[D], sy = y + p->low[H];
                T *row = d + c * between + z * p->staged.slice + y * p->staged.row;
                const T *from = s + sz * p->from.slice + sy * p->from.row;
                if (sz < 0 || sz >= p->source_size[D] || sy < 0 || sy >= p->source_size[H]) TYPED(zero)(row, p->staged.row);
                else if (p->channels_last) TYPED(stage_row)(p, from, row, c);
                else TYPED(stage_split_row)(p, from + c * p->from.channel, row);
            }
}

/* Where images from n on are staged: where they lie, or copied. */
static const T *TYPED(stage)(const plan *p, char *memory, int64_t n, int64_t images) {
    const T *s = (const T *)p->source + n * p->from.image;
    if (!p->copies) return s;
    T *d = (T *)(memory + p->staged_at);
    const int64_t planes = !p->channels_last ? p->groups * p->cs : p->kernel == DEPTHWISE ? p->cs : 1;
    for (int64_t i = 0; i < images; i++) TYPED(stage_planes)(p, s + i * p->from.image, d + i * p->staged.image, planes);
    /* A dot product reads on to whole vectors, times zeros, which only numbers leave zero. */
    TYPED(zero)(d + images * p->staged.image, p->lanes);
    return d;
}

/* Channels first: the same for one group of one image. */
static const T *TYPED(stage_group)(const plan *p, char *memory, int64_t n, int64_t g) {
    const T *s = (const T *)p->source + n * p->from.image + g * p->cs * p->from.channel;
    T *d = (T *)(memory + p->staged_at);
    if (p->copies) TYPED(stage_planes)(p, s, d, p->cs);
    return p->copies ? d : s;
}

/* Pixels of a phase, or of the output, in order, images first: where tap 0 would be, in coordinates and elements, whether
 * all taps are within the image, and where the result lies. */
typedef struct {
    int64_t at[3], source, inner, result;
} TYPED(pixel);

static void TYPED(list_pixels)(const plan *p, const phase *f, int64_t first, int64_t count, TYPED(pixel) *list) {
    int64_t x = first % f->count[W], y = first / f->count[W] % f->count[H];
    int64_t z = first / (f->count[W] * f->count[H]) % f->count[D], n = first / (f->count[W] * f->count[H] * f->count[D]);
    for (int64_t i = 0; i < count; i++, list++) {
        const int64_t j[3] = {z, y, x};
        list->inner = 1;
        for (int a = D; a <= W; a++) {
            list->at[a] = j[a] * p->source_step[a];
            list->inner &= list->at[a] + f->first[a] >= 0 && list->at[a] + f->last[a] < p->source_size[a];
        }
        list->source = n * p->from.image + list->at[D] * p->from.slice + list->at[H] * p->from.row + list->at[W] * p->from.pixel;
        list->result = n * p->to.image + (f->start[D] + z * f->step[D]) * p->to.slice + (f->start[H] + y * f->step[H]) * p->to.row
                       + (f->start[W] + x * f->step[W]) * p->to.pixel;
        if (++x == f->count[W]) x = 0, y++;
        if (y == f->count[H]) y = 0, z++;
        if (z == f->count[D]) z = 0, n++;
    }
}

/* The source element of a pixel and a tap, channel 0; -1 where the rim is. */
static inline int64_t TYPED(element)(const plan *p, const phase *f, const TYPED(pixel) *pixel, int64_t tap) {
    for (int a = D; a <= W && !pixel->inner; a++) {
        const int64_t at = pixel->at[a] + f->at[3 * tap + a];
        if (at < 0 || at >= p->source_size[a]) return -1;
    }
    return pixel->source + f->shift[tap];
}

/* Columns [q0, q1) of one pixel, channels last: column tap * cs + channel. */
static void TYPED(pixel_columns)(const plan *p, const phase *f, const T *s, const TYPED(pixel) *at, int64_t q0, int64_t q1, T *d) {
    int64_t tap = q0 / p->cs, channel = q0 % p->cs;
    for (int64_t q = q0; q < q1; tap++, channel = 0) {
        const int64_t n = least(p->cs - channel, q1 - q), e = TYPED(element)(p, f, at, tap);
        if (e < 0) TYPED(zero)(d, n);
        else TYPED(copy)(d, s + e + channel, n);
        q += n, d += n;
    }
}

/* One column of neighbouring pixels, channels first: elements `apart` from each other; `places` as `element` gives them. */
static void TYPED(column)(const T *s, const int64_t *places, int64_t count, T *d, int64_t apart) {
    for (int64_t i = 0; i < count; i++) d[i * apart] = places[i] < 0 ? 0 : s[places[i]];
}
