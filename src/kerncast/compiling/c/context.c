struct kerncast_context {
    kc_memo memo[KC_MEMO];
    uint64_t turn;
    double score[@MOST@], time_ns[@MOST@];
    unsigned char allowed[@MOST@];
@STATES@};
