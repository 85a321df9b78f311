struct kerncast_context {
    kc_memo memo[KC_MEMO];
    uint64_t turn;
    double score[@MOST@], time_ns[@MOST@];
    unsigned char allowed[@MOST@];
    unsigned char available[KC_CANDIDATES]; /* by candidate: whether it may be chosen */
    kc_pin pin[KC_MOST_PINS];
    int32_t pins;
@STATES@};
