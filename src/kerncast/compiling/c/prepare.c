static void kc_prepare(kerncast_context *context) {
    (void)context, @NAMED@;
@PREPARE@}
