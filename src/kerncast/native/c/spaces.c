static int kc_applies(const kc_model *m, const kc_space *space, int32_t i, const double *numbers) {
    (void)m;
    return space == &kc_this.problem ? kc_problem_applies(i, numbers) : kc_config_applies(i, numbers);
}

static int kc_usual(const kc_model *m, const kc_space *space, int32_t i, const double *numbers, int64_t value) {
    (void)m;
    return space == &kc_this.problem ? kc_problem_usual(i, numbers, value) : kc_config_usual(i, numbers, value);
}

