
/* Whether a candidate is available, obeys the rules, and was tried on such problems; `c` gets its parameters. */
static int kc_fits(const kerncast_context *context, const double *p, int32_t candidate, double *c) {
    kc_config_numbers(candidate, c);
    return context->available[candidate] && kc_config_valid(p, c) && kc_within(kc_tried_band[kc_stored(candidate)], p, 1);
}
