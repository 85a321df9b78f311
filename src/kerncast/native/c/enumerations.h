typedef enum {
@STATUSES@
} kerncast_status;

typedef enum {
@TIERS@
} kerncast_tier;

typedef enum {
    KERNCAST_PIN_NONE = 0,
    KERNCAST_PIN_DECIDED = 1,    /* the config is a pinned one, not the model's choice */
    KERNCAST_PIN_NOT_APPLIED = 2 /* the pinned config cannot run this problem or is not available; `message` says why */
} kerncast_pin_state;

typedef struct {
    kerncast_status status;
    kerncast_tier tier;
    int32_t candidate; /* the config's number, or -1 */
    int32_t parameter; /* the problem parameter at fault, or -1 */
    @CONFIG@
    double time_ns, lower_ns, upper_ns; /* expected, and the 90 % interval */
    double efficiency;                  /* expected: best time over this config's */
    kerncast_pin_state pin;
    const char *label; /* the kernel's name in the training data; empty if it has none */
    char message[@MESSAGE_BYTES@];
} kerncast_answer;
