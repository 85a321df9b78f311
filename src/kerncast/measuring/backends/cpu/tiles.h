/* Tile registers (AMX): Linux grants them to a process that asks, and each thread configures its own. */
#if KC_TILE_ROWS == 16 && !defined(KC_EMULATE)
#include <sys/syscall.h>
#include <unistd.h>
#define ARCH_REQ_XCOMP_PERM 0x1023
#define XFEATURE_XTILEDATA 18

KC_INLINE int tiles_allowed(void) { return !syscall(SYS_arch_prctl, ARCH_REQ_XCOMP_PERM, XFEATURE_XTILEDATA); }

/* All eight: 16 rows of 64 bytes. */
KC_INLINE void begin_tiles(void) {
    struct { uint8_t palette, start, reserved[14]; uint16_t bytes[16]; uint8_t rows[16]; } shape = {.palette = 1};
    for (int t = 0; t < 8; t++) shape.bytes[t] = 64, shape.rows[t] = 16;
    _tile_loadconfig(&shape);
}

KC_INLINE void end_tiles(void) { _tile_release(); }
#else
KC_INLINE int tiles_allowed(void) { return KC_TILE_ROWS > 1; }
KC_INLINE void begin_tiles(void) {}
KC_INLINE void end_tiles(void) {}
#endif
