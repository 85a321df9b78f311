static void kc_prepare(kerncast_context *context) {
    (void)context, @NAMED@;
@PREPARE@}

/* After a change of what is available. */
static void kc_mask(kerncast_context *context) {
    (void)context;
@MASK@}
