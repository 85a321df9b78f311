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
