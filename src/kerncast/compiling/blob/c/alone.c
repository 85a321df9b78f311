/* What a function that is given no context works in. */
typedef struct {
    kerncast_context context;
    double registers[KC_ALONE_REGISTERS], layer[KC_ALONE_LAYER];
    unsigned char holds[KC_ALONE_HOLDS];
} kc_own_memory;

