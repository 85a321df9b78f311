/* -- deflate (RFC 1951) ---------------------------------------------------------------------------------- */

typedef struct {
    const unsigned char *from, *end;
    unsigned char *to, *first, *last;
    uint32_t bits;
    int held, failed;
} kc_packed;

/* The next bits, the lowest first. After the end everything is 0, and the result is not used. */
static uint32_t kc_next(kc_packed *z, int count) {
    while (z->held < count) {
        if (z->from == z->end) z->failed = 1;
        z->bits |= (uint32_t)(z->from == z->end ? 0 : *z->from++) << z->held;
        z->held += 8;
    }
    const uint32_t found = z->bits & (((uint32_t)1 << count) - 1);
    z->bits >>= count;
    z->held -= count;
    return found;
}

typedef struct {
    uint16_t count[16], symbol[288]; /* codes of each length, and the symbols in the order of their codes */
} kc_codes;

static void kc_codes_of(kc_codes *codes, const unsigned char *length, int symbols) {
    int start[16] = {0};
    memset(codes, 0, sizeof *codes);
    for (int i = 0; i < symbols; i++) codes->count[length[i]]++;
    codes->count[0] = 0;
    for (int i = 1; i < 16; i++) start[i] = start[i - 1] + codes->count[i - 1];
    for (int i = 0; i < symbols; i++)
        if (length[i]) codes->symbol[start[length[i]]++] = (uint16_t)i;
}

static int kc_symbol(kc_packed *z, const kc_codes *codes) {
    int code = 0, first = 0, at = 0;
    for (int length = 1; length < 16 && !z->failed; length++) {
        code |= (int)kc_next(z, 1);
        const int count = codes->count[length];
        if (code >= first && code - count < first) return codes->symbol[at + code - first];
        at += count;
        first = (first + count) << 1;
        code <<= 1;
    }
    z->failed = 1;
    return 0;
}

static void kc_copied(kc_packed *z, size_t length, size_t distance) {
    if (distance > (size_t)(z->to - z->first) || length > (size_t)(z->last - z->to)) {
        z->failed = 1;
        return;
    }
    for (; length > 0; length--, z->to++) *z->to = *(z->to - distance);
}

static void kc_block_of(kc_packed *z, const kc_codes *lengths, const kc_codes *distances) {
    for (;;) {
        const int symbol = kc_symbol(z, lengths);
        if (z->failed || symbol == 256) return;
        if (symbol < 256) {
            if (z->to == z->last) {
                z->failed = 1;
                return;
            }
            *z->to++ = (unsigned char)symbol;
            continue;
        }
        /* Lengths in groups of four, distances in pairs; each group has one bit more. */
        const int l = symbol - 257, extra = l < 8 || l == 28 ? 0 : l / 4 - 1;
        const size_t length = l == 28 ? 258 : l < 8 ? (size_t)l + 3 : ((size_t)(4 + l % 4) << extra) + 3 + kc_next(z, extra);
        const int d = kc_symbol(z, distances), more = d < 4 ? 0 : d / 2 - 1;
        if (l > 28 || d > 29) z->failed = 1;
        const size_t distance = z->failed ? 0 : d < 4 ? (size_t)d + 1 : ((size_t)(2 + d % 2) << more) + 1 + kc_next(z, more);
        if (z->failed) return;
        kc_copied(z, length, distance);
    }
}

static void kc_dynamic(kc_packed *z) {
    static const unsigned char order[19] = {16, 17, 18, 0, 8, 7, 9, 6, 10, 5, 11, 4, 12, 3, 13, 2, 14, 1, 15};
    unsigned char length[320] = {0};
    kc_codes lengths, distances;
    const int literal = (int)kc_next(z, 5) + 257, distance = (int)kc_next(z, 5) + 1, given = (int)kc_next(z, 4) + 4;
    for (int i = 0; i < given; i++) length[order[i]] = (unsigned char)kc_next(z, 3);
    kc_codes_of(&lengths, length, 19);
    memset(length, 0, sizeof length);
    for (int i = 0; i < literal + distance && !z->failed;) {
        const int symbol = kc_symbol(z, &lengths);
        if (symbol < 16) {
            length[i++] = (unsigned char)symbol;
            continue;
        }
        const int before = symbol == 16 && i > 0 ? length[i - 1] : 0;
        int again = symbol == 16 ? 3 + (int)kc_next(z, 2) : symbol == 17 ? 3 + (int)kc_next(z, 3) : 11 + (int)kc_next(z, 7);
        if (i + again > literal + distance) z->failed = 1;
        for (; again > 0 && !z->failed; again--) length[i++] = (unsigned char)before;
    }
    if (z->failed || literal > 286) {
        z->failed = 1;
        return;
    }
    kc_codes_of(&lengths, length, literal);
    kc_codes_of(&distances, length + literal, distance);
    kc_block_of(z, &lengths, &distances);
}

static void kc_fixed(kc_packed *z) {
    unsigned char length[320];
    kc_codes lengths, distances;
    for (int i = 0; i < 288; i++) length[i] = i < 144 ? 8 : i < 256 ? 9 : i < 280 ? 7 : 8;
    for (int i = 288; i < 320; i++) length[i] = 5;
    kc_codes_of(&lengths, length, 288);
    kc_codes_of(&distances, length + 288, 30);
    kc_block_of(z, &lengths, &distances);
}

static void kc_copied_block(kc_packed *z) {
    z->bits = 0, z->held = 0;
    if (z->end - z->from < 4) {
        z->failed = 1;
        return;
    }
    const size_t count = (size_t)z->from[0] | (size_t)z->from[1] << 8;
    z->from += 4;
    if (count > (size_t)(z->end - z->from) || count > (size_t)(z->last - z->to)) {
        z->failed = 1;
        return;
    }
    memcpy(z->to, z->from, count);
    z->from += count, z->to += count;
}

/* Whether all of `bytes` was unpacked. */
static int kc_inflate(const unsigned char *packed, size_t size, unsigned char *bytes, size_t room) {
    kc_packed z = {packed, packed + size, bytes, bytes, bytes + room, 0, 0, 0};
    int last = 0;
    while (!last && !z.failed) {
        last = (int)kc_next(&z, 1);
        const uint32_t kind = kc_next(&z, 2);
        if (kind == 0) kc_copied_block(&z);
        else if (kind == 1) kc_fixed(&z);
        else if (kind == 2) kc_dynamic(&z);
        else z.failed = 1;
    }
    return !z.failed && z.to == z.last;
}

