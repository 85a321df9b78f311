static uint64_t kc_bits(double x) {
    uint64_t bits;
    memcpy(&bits, &x, sizeof bits);
    return bits;
}

/* The checksum of all tables: the sum of each number times its (odd) place. */
static uint64_t kc_checksum(void) {
    uint64_t total = 0, part = 0;
@PARTS@
    (void)part, (void)kc_bits;
    return total;
}
#define KC_CHECKSUM UINT64_C(@TOTAL@)
