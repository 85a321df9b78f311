struct @STRUCT@ {
@FIELDS@

    @C_TYPE@ to_c() const {
        @C_TYPE@ c;
        @C_TYPE@_init(&c);
@TO_C@
        return c;
    }
    static @STRUCT@ from_c(const @C_TYPE@ &c) {
        @STRUCT@ found;
        (void)c;
@FROM_C@
        return found;
    }
};
