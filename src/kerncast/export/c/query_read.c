/* JSON queries, the second pass: what is asked, in a text that query_check has accepted. */

/* Where the value that begins at `at` ends. */
static size_t query_value_end(query_text in, size_t at) {
    size_t depth = 0;
    do {
        const unsigned char byte = in.text[at++];
        if (byte == '{' || byte == '[') depth++;
        else if (byte == '}' || byte == ']') depth--;
        else if (byte == '"') {
            while (in.text[at] != '"') at += in.text[at] == '\\' ? 2 : 1;
            at++;
        } else {
            while (at < in.length && !query_is_space(in.text[at]) && memchr("\"{}[],:", in.text[at], 7) == NULL) at++;
        }
    } while (depth > 0);
    return at;
}

/* The member of an object that stands at or after `at`, which moves past it; false when there is none left. */
static bool query_member(query_text in, size_t *at, query_span *key, query_span *value) {
    *at = query_after_space(in, *at);
    if (in.text[*at] == ',') *at = query_after_space(in, *at + 1);
    if (in.text[*at] == '}') return false;
    key->from = *at;
    key->to = query_value_end(in, *at);
    value->from = query_after_space(in, query_after_space(in, key->to) + 1);
    value->to = *at = query_value_end(in, value->from);
    return true;
}

/* Whether a string of the request, escapes decoded, is this UTF-8 text. */
static bool query_equals(query_text in, query_span string, const char *text, size_t length) {
    size_t at = string.from + 1, from = 0;
    while (at + 1 < string.to) {
        uint32_t point = 0, wanted = 0;
        size_t size;
        at += query_character(in.text + at, string.to - at, &point);
        if (from == length) return false;
        size = query_utf8((const unsigned char *)text + from, length - from, &wanted);
        if (size == 0 || point != wanted) return false;
        from += size;
    }
    return from == length;
}

/* A number that is exactly whole: all of int64 but its smallest when written with digits alone, below 2^53 otherwise. */
static bool query_whole(query_text in, query_span number, int64_t *value) {
    const bool negative = in.text[number.from] == '-';
    const int64_t far = INT64_C(1) << 61;
    size_t at = number.from + (negative ? 1 : 0);
    uint64_t digits = 0, limit = INT64_MAX;
    int64_t zeros = 0, exponent = 0;
    bool fraction = false, falls;
    for (; at < number.to && (in.text[at] | 0x20) != 'e'; at++) {
        if (in.text[at] == '.') {
            fraction = true;
            limit = (UINT64_C(1) << 53) - 1;
            continue;
        }
        if (fraction) exponent--;
        if (digits != 0) zeros++; /* a zero counts only once a digit follows it */
        if (in.text[at] == '0') continue;
        for (; zeros > 0; zeros--) {
            if (digits > UINT64_MAX / 10) return false;
            digits *= 10;
        }
        if (digits > UINT64_MAX - 9) return false;
        digits += (uint64_t)(in.text[at] - '0');
    }
    if (at < number.to) {
        int64_t written = 0;
        limit = (UINT64_C(1) << 53) - 1;
        falls = in.text[++at] == '-';
        if (!query_is_digit(in.text[at])) at++;
        for (; at < number.to; at++) written = written < far / 10 ? written * 10 + (in.text[at] - '0') : far;
        exponent += falls ? -written : written;
    }
    exponent += zeros;
    if (digits != 0 && exponent < 0) return false;
    for (; digits != 0 && exponent > 0; exponent--) {
        if (digits > UINT64_MAX / 10) return false;
        digits *= 10;
    }
    if (digits > limit) return false;
    *value = negative ? -(int64_t)digits : (int64_t)digits;
    return true;
}

/* The value of a parameter as the engine takes it; false when it is not of the parameter's kind. */
static bool query_value(query_text in, query_span value, const query_parameter *parameter, int64_t *number) {
    const unsigned char first = in.text[value.from];
    size_t i;
    if (first == 'n') {
        *number = KERNCAST_MISSING;
        return parameter->nullable;
    }
    switch (parameter->kind) {
    case QUERY_FLAG:
        *number = first == 't';
        return first == 't' || first == 'f';
    case QUERY_LABEL:
        for (i = 0; first == '"' && i < parameter->label_count; i++) {
            if (query_equals(in, value, parameter->labels[i].name, parameter->labels[i].length)) {
                *number = parameter->labels[i].code;
                return true;
            }
        }
        return false;
    default:
        return (first == '-' || query_is_digit(first)) && query_whole(in, value, number);
    }
}

/* What one object asks, and where its values stand in the text. */
typedef struct {
    kerncast_problem problem;
    kerncast_tier tier;
    size_t start, given[QUERY_PLACES];
} query_request;

static bool query_refused(query_fault *fault, query_fault_kind kind, query_span shown) {
    fault->kind = kind;
    fault->position = shown.from;
    fault->shown = shown;
    return false;
}

static bool query_not_an_object(query_fault *fault, const char *subject, query_span shown) {
    fault->subject = subject;
    fault->rule = "an object of problem parameters";
    return query_refused(fault, QUERY_WRONG_VALUE, shown);
}

static bool query_wrong_value(query_fault *fault, const query_parameter *parameter, query_span shown) {
    fault->subject = fault->parameter = parameter->name;
    fault->rule = parameter->rule;
    return query_refused(fault, QUERY_WRONG_VALUE, shown);
}

/* The parameter that a key names; NULL when none does. */
static const query_parameter *query_find(query_text in, query_span key) {
    size_t i;
    for (i = 0; i < query_problem.count; i++) {
        const query_parameter *parameter = &query_problem.parameters[i];
        if (query_equals(in, key, parameter->name, parameter->length)) return parameter;
    }
    return NULL;
}

static bool query_take(query_text in, query_span key, query_span value, query_request *request, query_fault *fault) {
    const query_parameter *parameter = query_find(in, key);
    int64_t number;
    size_t place;
    if (parameter == NULL) return query_refused(fault, QUERY_UNKNOWN_KEY, key);
    place = (size_t)(parameter - query_problem.parameters);
    if (request->given[place] != SIZE_MAX) return query_refused(fault, QUERY_TWICE, key);
    if (!query_value(in, value, parameter, &number)) return query_wrong_value(fault, parameter, value);
    request->given[place] = value.from;
    /* The struct is one int64_t for each parameter in declared order; query_problem_layout checks its size. */
    memcpy((char *)&request->problem + place * sizeof number, &number, sizeof number);
    return true;
}

/* The parameters, beside an optional "tier", or in an object "problem" of their own. */
static bool query_read(query_text in, query_span object, query_request *request, query_fault *fault) {
    query_span key, value, problem = {0, 0};
    bool tier = false, beside = false;
    size_t at = object.from + 1;
    if (in.text[object.from] != '{') return query_not_an_object(fault, "a request", object);
    while (query_member(in, &at, &key, &value)) {
        if (query_equals(in, key, "tier", 4)) {
            int64_t code;
            if (tier) return query_refused(fault, QUERY_TWICE, key);
            tier = true;
            if (!query_value(in, value, &query_tier, &code)) return query_wrong_value(fault, &query_tier, value);
            request->tier = (kerncast_tier)code;
        } else if (query_equals(in, key, "problem", 7)) {
            if (problem.to != 0) return query_refused(fault, QUERY_TWICE, key);
            if (in.text[value.from] != '{') return query_not_an_object(fault, "problem", value);
            problem = value;
        } else {
            beside = true;
            if (!query_take(in, key, value, request, fault)) return false;
        }
    }
    if (problem.to == 0) return true;
    if (beside) return query_refused(fault, QUERY_BESIDE, problem);
    request->start = problem.from;
    for (at = problem.from + 1; query_member(in, &at, &key, &value);) {
        if (!query_take(in, key, value, request, fault)) return false;
    }
    return true;
}
