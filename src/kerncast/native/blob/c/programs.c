/* -- programs ----------------------------------------------------------------------------------------- */

#define KC_FACT(name) (m->loaded.facts[KC_FACT_##name])
#define KC_NUMBER(name) (m->loaded.numbers[KC_NUMBER_##name])

/* Operation, and its result of `a`, `b` and `c`. What is written here is written twice: for one value, and for many. */
#define KC_EACH_OPERATION(of) \
    of(ADD, kc_saturate(a + b)) of(SUB, kc_saturate(a - b)) of(MUL, kc_saturate(a * b)) of(DIV, kc_div(a, b)) \
    of(MIN, kc_min(a, b)) of(MAX, kc_max(a, b)) of(ABS, fabs(a)) of(FLOOR, floor(a)) of(CEIL, ceil(a)) \
    of(SQRT, kc_sqrt(a)) of(LOG2, kc_log2(a)) of(LOG1P, kc_log1p(a)) of(LT, (double)(a < b)) of(LE, (double)(a <= b)) \
    of(EQ, (double)(a == b)) of(AND, (double)(a != 0.0 && b != 0.0)) of(OR, (double)(a != 0.0 || b != 0.0)) \
    of(NOT, (double)(a == 0.0))

/* The operand of `index` is the number of a size, that of `fetch` the number of a table. */
static double kc_index_of(const kc_model *m, double at, uint16_t size) {
    return (double)kc_index(at, (size_t)m->loaded.lookup_sizes[size]);
}

static double kc_fetch(const kc_model *m, double at, uint16_t table) {
    const int32_t first = m->loaded.lookup_first[table];
    return m->loaded.lookup_values[(size_t)first + kc_index(at, (size_t)(m->loaded.lookup_first[table + 1] - first))];
}

/* The registers after a program. `split`: so many of the inputs are in `p`, the others in `c`. */
static const double *kc_execute(const kc_model *m, const kc_program *program, const double *p, int32_t split, const double *c) {
    double *const r = m->loaded.registers, *result = r;
    for (int32_t i = 0; i < program->constant_count; i++) *result++ = program->constants[i];
    for (int32_t i = 0; i < program->input_count; i++) {
        const int32_t place = program->inputs[i];
        *result++ = place < split ? p[place] : c[place - split];
    }
    const kc_step *step = program->steps, *const end = step + program->step_count;
    for (; step < end; step++) {
        const double a = r[step->a], b = step->operation < KC_OP_WHERE ? r[step->b] : 0.0;
        switch (step->operation) {
#define KC_ONE(name, value) case KC_OP_##name: *result++ = value; break;
        KC_EACH_OPERATION(KC_ONE)
#undef KC_ONE
        case KC_OP_WHERE: *result++ = a != 0.0 ? r[step->b] : r[step->c]; break;
        case KC_OP_INDEX: *result++ = kc_index_of(m, a, step->b); break;
        default: *result++ = kc_fetch(m, a, step->b); break;
        }
    }
    return r;
}

static void kc_run(const kc_model *m, int64_t number, const double *p, int32_t split, const double *c, double *out) {
    const kc_program *program = &m->loaded.programs[number];
    const double *r = kc_execute(m, program, p, split, c);
    for (int32_t i = 0; i < program->output_count; i++) out[i] = r[program->outputs[i]];
}

static void kc_run_lanes(const kc_model *m, const kc_program *program, int32_t lanes) {
    double *const registers = m->loaded.registers;
    double *own = registers + (ptrdiff_t)(program->constant_count + program->input_count) * KC_LANES;
    for (const kc_step *step = program->steps, *end = step + program->step_count; step < end; step++, own += KC_LANES) {
        double *restrict result = own; /* no operand is the instruction's own register */
        const double *const one = registers + (ptrdiff_t)step->a * KC_LANES;
        const double *const other = step->operation <= KC_OP_WHERE ? registers + (ptrdiff_t)step->b * KC_LANES : one;
        switch (step->operation) {
#define KC_ALL(name, value) \
        case KC_OP_##name: \
            for (int32_t i = 0; i < lanes; i++) { \
                const double a = one[i], b = other[i]; \
                (void)b; \
                result[i] = value; \
            } \
            break;
        KC_EACH_OPERATION(KC_ALL)
#undef KC_ALL
        case KC_OP_WHERE: {
            const double *const third = registers + (ptrdiff_t)step->c * KC_LANES;
            for (int32_t i = 0; i < lanes; i++) result[i] = one[i] != 0.0 ? other[i] : third[i];
            break;
        }
        case KC_OP_INDEX:
            for (int32_t i = 0; i < lanes; i++) result[i] = kc_index_of(m, one[i], step->b);
            break;
        default:
            for (int32_t i = 0; i < lanes; i++) result[i] = kc_fetch(m, one[i], step->b);
        }
    }
}

/* The outputs of a group of features for all its combinations: `out[output × count + combination]`. An input is a part that the
   problem decides, the same for all, or a part of the config, by combination. */
static void kc_compute(const kc_model *m, const kc_pool *pool, int32_t number, const double *v, double *out) {
    const kc_pool_group *group = &pool->groups[number];
    const kc_program *program = &m->loaded.programs[pool->trees->groups[number].program];
    const int32_t parts = pool->trees->part_count;
    double *const r = m->loaded.registers;
    for (int32_t start = 0; start < group->count; start += KC_LANES) {
        const int32_t lanes = group->count - start < KC_LANES ? group->count - start : KC_LANES;
        double *result = r;
        for (int32_t k = 0; k < program->constant_count; k++, result += KC_LANES)
            for (int32_t i = 0; i < lanes; i++) result[i] = program->constants[k];
        for (int32_t k = 0; k < program->input_count; k++, result += KC_LANES) {
            const int32_t place = program->inputs[k];
            if (place < parts) {
                const double same = v[pool->trees->parts[place]];
                for (int32_t i = 0; i < lanes; i++) result[i] = same;
            } else
                memcpy(result, group->values + (ptrdiff_t)(place - parts) * group->count + start, (size_t)lanes * sizeof *result);
        }
        kc_run_lanes(m, program, lanes);
        for (int32_t k = 0; k < program->output_count; k++)
            memcpy(out + (ptrdiff_t)k * group->count + start, r + (ptrdiff_t)program->outputs[k] * KC_LANES,
                   (size_t)lanes * sizeof *out);
    }
}

static void kc_problem_values(const kc_model *m, const double *p, double *v) {
    kc_run(m, KC_FACT(PROBLEM_VALUES), p, m->problem.count, NULL, v);
}

static void kc_features(const kc_model *m, const double *p, const double *c, double *x) {
    kc_run(m, KC_FACT(FEATURE_VALUES), p, m->problem.count, c, x);
}

static void kc_tree_values(const kc_model *m, const double *p, double *x) {
    kc_run(m, KC_FACT(TREE_VALUES), p, m->problem.count, NULL, x);
}

static void kc_size(const kc_model *m, const double *p, double *size) {
    kc_run(m, KC_FACT(SIZE_VALUES), p, m->problem.count, NULL, size);
}

static void kc_compared_problem(const kc_model *m, const double *p, double *x) {
    kc_run(m, KC_FACT(COMPARED_PROBLEM), p, m->problem.count, NULL, x);
}

static void kc_compared_mixed(const kc_model *m, double *x) {
    const int32_t first = m->compared_of_problem + m->compared_of_config;
    kc_run(m, KC_FACT(COMPARED_MIXED), x, first, NULL, x + first);
}

/* The first output of a program of rules that is 0, or -1. */
static int32_t kc_first_broken(const kc_model *m, int64_t number, const double *p, const double *c) {
    const kc_program *program = &m->loaded.programs[number];
    const double *r = kc_execute(m, program, p, m->problem.count, c);
    for (int32_t i = 0; i < program->output_count; i++)
        if (r[program->outputs[i]] == 0.0) return i;
    return -1;
}

static int32_t kc_broken_rule(const kc_model *m, const double *p) {
    return kc_first_broken(m, KC_FACT(RULE_VALUES), p, NULL);
}

static int32_t kc_unsupported(const kc_model *m, const double *p) {
    return kc_first_broken(m, KC_FACT(FAMILY_RULE_VALUES), p, NULL);
}

static int32_t kc_broken_config_rule(const kc_model *m, const double *p, const double *c) {
    return kc_first_broken(m, KC_FACT(CONFIG_RULE_VALUES), p, c);
}

/* What the program of a parameter computes from the numbers of its space; `otherwise` if it has none. */
static double kc_of_parameter(const kc_model *m, int32_t program, const double *numbers, double otherwise) {
    double found = otherwise;
    if (program >= 0) kc_run(m, program, numbers, KC_MOST_PARAMETERS, NULL, &found);
    return found;
}

static int kc_applies(const kc_model *m, const kc_space *space, int32_t i, const double *numbers) {
    return kc_of_parameter(m, m->loaded.applies[space == &m->config][i], numbers, 1.0) != 0.0;
}

static int kc_usual(const kc_model *m, const kc_space *space, int32_t i, const double *numbers, int64_t value) {
    const int32_t program = m->loaded.usual[space == &m->config][i];
    return program >= 0 && kc_of_parameter(m, program, numbers, 0.0) == (double)value;
}

