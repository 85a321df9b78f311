/* JSON queries, the second pass: what is asked, in a text that query_check has accepted. */

/* Whether a byte ends a number or a word. */
static bool query_ends(unsigned char byte) {
    return byte == ',' || byte == '}' || byte == ']' || byte == ':' || byte == '"' || byte == '{' || byte == '[' ||
           query_is_space(byte);
}

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
            while (at < in.length && !query_ends(in.text[at])) at++;
        }
    } while (depth > 0);
    return at;
}

/* The key at or after `at` in an object; `at` moves to its value. False at the end of the object. */
static bool query_key(query_text in, size_t *at, query_span *key) {
    *at = query_after_space(in, *at);
    if (in.text[*at] == ',') *at = query_after_space(in, *at + 1);
    if (in.text[*at] == '}') return false;
    key->from = *at;
    key->to = query_value_end(in, *at);
    *at = query_after_space(in, query_after_space(in, key->to) + 1);
    return true;
}

/* Nearly all strings are written without escapes, and then comparing bytes is enough. */
static bool query_is_plain(query_text in, query_span string) {
    return memchr(in.text + string.from, '\\', string.to - string.from) == NULL;
}

static uint32_t query_folded(uint32_t point) { return point >= 'A' && point <= 'Z' ? point - 'A' + 'a' : point; }

/* Whether a string of the request, escapes decoded, is this UTF-8 text, perhaps but for the case of ASCII letters. */
static bool query_same_text(query_text in, query_span string, bool any_case, const char *text, size_t length) {
    size_t at = string.from + 1, from = 0;
    while (at + 1 < string.to) {
        uint32_t point = 0, wanted = 0;
        at += query_character(in.text + at, string.to - at, &point);
        if (from == length) return false;
        const size_t size = query_utf8((const unsigned char *)text + from, length - from, &wanted);
        if (size == 0) return false;
        if (point != wanted && !(any_case && query_folded(point) == query_folded(wanted))) return false;
        from += size;
    }
    return from == length;
}

static bool query_equals(query_text in, query_span string, bool plain, const char *text, size_t length) {
    if (!plain) return query_same_text(in, string, false, text, length);
    return string.to - string.from == length + 2 && memcmp(in.text + string.from + 1, text, length) == 0;
}

/* A number that is exactly whole: all of int64 but its smallest when written with digits alone, below 2^53 otherwise. */
static bool query_whole(query_text in, query_span number, int64_t *value) {
    const bool negative = in.text[number.from] == '-';
    const int64_t far = INT64_C(1) << 61;
    size_t at = number.from + (negative ? 1 : 0);
    uint64_t digits = 0, limit = INT64_MAX;
    int64_t zeros = 0, exponent = 0;
    bool fraction = false;
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
        const bool falls = in.text[++at] == '-';
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

/* The code of a label; false when no label is spelled so. */
static bool query_spelled(query_text in, query_span value, const query_label *labels, size_t count, int64_t *code) {
    const bool plain = query_is_plain(in, value);
    for (size_t i = 0; i < count; i++) {
        if (!query_equals(in, value, plain, labels[i].name, labels[i].length)) continue;
        *code = labels[i].code;
        return true;
    }
    return false;
}

/* The code of a name. */
static bool query_named(query_text in, query_span value, const query_label *labels, size_t count, int64_t *code) {
    for (size_t i = 0; i < count; i++) {
        if (!query_same_text(in, value, true, labels[i].name, labels[i].length)) continue;
        *code = labels[i].code;
        return true;
    }
    return false;
}

static bool query_is_number(unsigned char first) { return first == '-' || query_is_digit(first); }

/* The value of a parameter as the engine takes it; false when it is not of the parameter's kind. */
static bool query_value(query_text in, query_span value, const query_parameter *parameter, int64_t *number) {
    const unsigned char first = in.text[value.from];
    if (first == 'n') {
        *number = KERNCAST_MISSING;
        return parameter->nullable;
    }
    switch (parameter->kind) {
    case QUERY_FLAG:
        *number = first == 't';
        return first == 't' || first == 'f';
    case QUERY_LABEL: return first == '"' && query_spelled(in, value, parameter->labels, parameter->label_count, number);
    case QUERY_NAME: return first == '"' && query_named(in, value, parameter->labels, parameter->label_count, number);
    default: return query_is_number(first) && query_whole(in, value, number);
    }
}

/* What one object asks, and where its values are in the text. */
typedef struct {
    kerncast_problem problem;
    kerncast_tier tier;
    size_t start, given[QUERY_PLACES];
    bool seen[QUERY_NODES];
    query_span software, op;
    int64_t name; /* the name of the op that the request used */
    query_fault fault;
#if QUERY_PRODUCTS
    int64_t totals[QUERY_PRODUCTS]; /* 0: not given */
    query_span total_keys[QUERY_PRODUCTS], total_values[QUERY_PRODUCTS];
#endif
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

/* An unknown label is unsupported where foreign spellings are read; anything else that is wrong is bad input. */
static bool query_wrong_value(query_text in, const query_parameter *parameter, bool foreign, query_span shown, query_fault *fault) {
    const unsigned char first = in.text[shown.from];
    const bool label = foreign && (parameter->kind == QUERY_LABEL || parameter->kind == QUERY_NAME) && (first == '"' || query_is_number(first));
    fault->subject = fault->parameter = parameter->name;
    fault->rule = parameter->rule;
    return query_refused(fault, label ? QUERY_UNSUPPORTED : QUERY_WRONG_VALUE, shown);
}

/* The struct is one int64_t for each parameter in declared order; query_problem_layout checks its size. */
static int64_t query_get(const query_request *request, size_t place) {
    int64_t number;
    memcpy(&number, (const char *)&request->problem + place * sizeof number, sizeof number);
    return number;
}

static void query_set(query_request *request, size_t place, int64_t number) {
    memcpy((char *)&request->problem + place * sizeof number, &number, sizeof number);
}

/* Keys that are parameters are given once; other spellings of a parameter may be repeated, and must agree. */
static bool query_give(query_request *request, size_t place, int64_t number, bool once, query_span key, size_t position) {
    if (request->given[place] != SIZE_MAX) {
        if (once) return query_refused(&request->fault, QUERY_TWICE, key);
        if (query_get(request, place) != number) return query_refused(&request->fault, QUERY_CONTRADICTS, key);
        return true;
    }
    request->given[place] = position;
    query_set(request, place, number);
    return true;
}

#if QUERY_PRODUCTS
/* Reads a number that is given instead of two sizes. */
static bool query_take_product(query_text in, const query_node *node, query_span key, query_span value, query_request *request) {
    const query_product *product = &query_products[node->product];
    int64_t number = 0;
    if (!query_is_number(in.text[value.from]) || !query_whole(in, value, &number) || number < 1 || number > product->most) {
        request->fault.subject = request->fault.parameter = node->name;
        request->fault.rule = product->rule;
        return query_refused(&request->fault, QUERY_WRONG_VALUE, value);
    }
    request->totals[node->product] = number;
    request->total_keys[node->product] = key;
    request->total_values[node->product] = value;
    return true;
}

static void query_set_pair(query_request *request, const query_product *product, int64_t first, int64_t second) {
    query_set(request, product->first, first);
    query_set(request, product->second, second);
}

/* How well a problem fits: 2 where the model was trained, 1 where it obeys the rules, else 0. */
static int query_fit(const query_request *request) {
    kc_problem read;
    if (kc_read_problem(&kc_this, &request->problem, &read, NULL) != KERNCAST_OK) return 0;
    for (int32_t i = 0; i < kc_this.problem.count; i++) {
        if (read.key[i] != KERNCAST_MISSING && !kc_in_domain(&kc_hull[i], read.key[i])) return 1;
    }
    for (int32_t i = 0; i < kc_this.fact_count; i++) {
        const kc_fact *fact = &kc_facts[i];
        const int64_t value = read.key[fact->parameter];
        if (value != KERNCAST_MISSING && (value % fact->step + fact->step) % fact->step != fact->rest) return 1;
    }
    return 2;
}

/* The next divisor of a number in ascending order, after one of them; 0 after the last. */
static int64_t query_next_divisor(int64_t total, int64_t after) {
    int64_t small = after < 1 ? 1 : after + 1;
    /* Above the root the partners of the divisors below it follow, which are found from the other end. */
    for (; small <= total / small; small++) {
        if (total % small == 0) return small;
    }
    if (after >= total) return 0;
    small = after > 0 ? total / after : 1;
    for (small = small <= total / small ? small - 1 : total / small; small > 0; small--) {
        if (total % small == 0 && total / small > after) return total / small;
    }
    return 0;
}

/* The shape that stands for all with this product: the middle one of those that fit best, ordered by the first size. */
static bool query_find_shape(query_request *request, const query_product *product, int64_t total) {
    int64_t chosen = 0;
    size_t count = 0, place = 0;
    int best = -1;
    for (int pass = 0; pass < 2; pass++) {
        for (int64_t first = query_next_divisor(total, 0); first != 0; first = query_next_divisor(total, first)) {
            const int64_t second = total / first;
            if (first < product->first_low || first > product->first_high || (first - product->first_low) % product->first_step) continue;
            if (second < product->second_low || second > product->second_high || (second - product->second_low) % product->second_step)
                continue;
            query_set_pair(request, product, first, second);
            const int fit = query_fit(request);
            if (pass == 0 && fit > best) {
                best = fit;
                count = 0;
            }
            if (pass == 0 && fit == best) count++;
            if (pass == 1 && fit == best && place++ == (count - 1) / 2) chosen = first;
        }
        if (best < 0) return false;
    }
    query_set_pair(request, product, chosen, total / chosen);
    return true;
}

/* Puts two sizes in the place of their product. */
static bool query_split(query_request *request, size_t which) {
    const query_product *product = &query_products[which];
    const int64_t total = request->totals[which];
    const int64_t first = query_get(request, product->first), second = query_get(request, product->second);
    if (first != KERNCAST_MISSING || second != KERNCAST_MISSING) {
        const int64_t one = first != KERNCAST_MISSING ? first : second;
        const int64_t other = one < 1 || total % one != 0 ? 0 : total / one;
        if (other == 0 || (first != KERNCAST_MISSING && second != KERNCAST_MISSING && second != other))
            return query_refused(&request->fault, QUERY_CONTRADICTS, request->total_keys[which]);
        query_set_pair(request, product, first != KERNCAST_MISSING ? one : other, first != KERNCAST_MISSING ? other : one);
    } else if (product->needs != NULL) {
        request->fault.rule = product->needs;
        request->fault.parameter = product->name;
        return query_refused(&request->fault, QUERY_NEEDS, request->total_values[which]);
    } else if (!query_find_shape(request, product, total)) {
        request->fault.subject = request->fault.parameter = product->name;
        request->fault.rule = product->parted;
        return query_refused(&request->fault, QUERY_WRONG_VALUE, request->total_values[which]);
    }
    if (request->given[product->first] == SIZE_MAX) request->given[product->first] = request->total_values[which].from;
    if (request->given[product->second] == SIZE_MAX) request->given[product->second] = request->total_values[which].from;
    return true;
}
#endif

/* A list of whole numbers, right-aligned and padded with 1. */
static bool query_take_list(query_text in, const query_node *node, query_span key, query_span list, query_request *request) {
    size_t at, count = 0;
    for (at = query_after_space(in, list.from + 1); in.text[at] != ']'; count++) {
        at = query_after_space(in, query_value_end(in, at));
        if (in.text[at] == ',') at = query_after_space(in, at + 1);
    }
    if (count > node->places) {
        request->fault.subject = node->path;
        request->fault.most = node->places;
        return query_refused(&request->fault, QUERY_RANK, list);
    }
    const size_t skipped = node->places - count;
    at = list.from + 1;
    for (size_t i = 0; i < node->places; i++) {
        const size_t place = query_places[node->first_place + i];
        query_span value = list;
        int64_t number = 1;
        if (i >= skipped) {
            value.from = query_after_space(in, at);
            value.to = query_value_end(in, value.from);
            at = query_after_space(in, value.to) + 1;
            if (!query_value(in, value, &query_problem.parameters[place], &number)) {
                return query_wrong_value(in, &query_problem.parameters[place], true, value, &request->fault);
            }
        }
        if (!query_give(request, place, number, false, key, value.from)) return false;
    }
    return true;
}

/* Reads the value under a key of the tree. */
static bool query_take(query_text in, const query_node *node, query_span key, query_span value, query_request *request) {
    const unsigned char first = in.text[value.from];
    int64_t number;
#if QUERY_PRODUCTS
    if (node->product >= 0) return query_take_product(in, node, key, value, request);
#endif
    if (node->present >= 0 && first == 'n') return query_give(request, (size_t)node->present, 0, false, key, value.from);
    if (!node->once && first == 'n') return true; /* an optional argument that is left out */
    if (!node->leaf) {
        request->fault.rule = "an object";
        request->fault.subject = node->path;
        return query_refused(&request->fault, QUERY_WRONG_VALUE, value);
    }
    if (node->places == 0) return true;
    const size_t place = query_places[node->first_place];
    const query_parameter *parameter = &query_problem.parameters[place];
    if (first == '[' && !node->once && parameter->kind == QUERY_NUMBER) return query_take_list(in, node, key, value, request);
    if (node->places > 1) {
        request->fault.subject = node->path;
        request->fault.rule = "a list of whole numbers";
        return query_refused(&request->fault, QUERY_WRONG_VALUE, value);
    }
    if (node->once && request->given[place] != SIZE_MAX) return query_refused(&request->fault, QUERY_TWICE, key);
    bool read = query_value(in, value, parameter, &number);
    if (!read && first == '"') read = query_spelled(in, value, node->names, node->name_count, &number);
    if (!read && node->number_count > 0 && query_is_number(first) && query_whole(in, value, &number)) {
        const int64_t given = number;
        for (size_t i = 0; i < node->number_count && !read; i++) {
            read = node->numbers[i].given == given;
            number = node->numbers[i].code;
        }
    }
    if (!read) return query_wrong_value(in, parameter, !node->once, value, &request->fault);
    return query_give(request, place, number, node->once, key, value.from);
}

static const query_node *query_child(query_text in, const query_node *node, query_span key) {
    const bool plain = query_is_plain(in, key);
    for (size_t i = 0; i < node->children; i++) {
        const query_node *child = &query_nodes[node->first_child + i];
        if (plain && child->length + 2 != key.to - key.from) continue;
        if (query_equals(in, key, plain, child->name, child->length)) return child;
    }
    return NULL;
}

/* Every path is one node, so a node that is met again is a key that its object has twice. */
static bool query_is_again(const query_node *node, query_span key, query_request *request) {
    bool *seen = &request->seen[node - query_nodes];
    if (*seen) query_refused(&request->fault, QUERY_TWICE, key);
    else *seen = true;
    return request->fault.kind != QUERY_NO_FAULT;
}

/* The members of an object that begin at `at`, which moves past it: keys of the tree, objects inside objects. */
static bool query_walk(query_text in, const query_node *from, query_span key, size_t *at, query_request *request) {
    const query_node *open[QUERY_DEPTH + 1];
    size_t depth = 0;
    query_span value;
    open[0] = from;
    for (;;) {
        const query_node *node = open[depth];
        if (in.text[*at] == '{' && node->children > 0) {
            if (node->present >= 0 && !query_give(request, (size_t)node->present, 1, false, key, *at)) return false;
            ++*at;
            depth++;
        } else {
            value.from = *at;
            value.to = *at = query_value_end(in, *at);
            if (!query_take(in, node, key, value, request)) return false;
        }
        for (; depth > 0 && !query_key(in, at, &key); depth--) ++*at;
        if (depth == 0) return true;
        open[depth] = query_child(in, open[depth - 1], key);
        if (open[depth] == NULL) return query_refused(&request->fault, QUERY_UNKNOWN_KEY, key);
        if (query_is_again(open[depth], key, request)) return false;
    }
}

/* Keys that are not parameters: whose answer is asked for, and by which tier. */
static bool query_special(query_text in, size_t which, query_span key, query_span value, query_request *request, bool *seen) {
    const query_parameter *special = &query_specials[which];
    int64_t code = 0;
    if (seen[which]) return query_refused(&request->fault, QUERY_TWICE, key);
    seen[which] = true;
    if (special->label_count == 0) {
        if (in.text[value.from] != '"') return query_wrong_value(in, special, true, value, &request->fault);
        request->software = value;
        return true;
    }
    if (!query_value(in, value, special, &code)) return query_wrong_value(in, special, which != QUERY_TIER, value, &request->fault);
    if (which == QUERY_TIER) request->tier = (kerncast_tier)code;
    if (which == QUERY_OP) {
        request->name = code;
        request->op = value;
    }
    return true;
}

/* An alias of the op sets some parameters. */
static bool query_preset(query_request *request) {
    for (size_t i = 0; request->op.to != 0 && i < query_preset_count; i++) {
        const query_assignment preset = query_presets[i];
        if (preset.name != request->name) continue;
        if (!query_give(request, preset.place, preset.value, false, request->op, request->op.from)) return false;
    }
    return true;
}

static size_t query_special_of(query_text in, query_span key) {
    const bool plain = query_is_plain(in, key);
    for (size_t which = 0; which < QUERY_SPECIALS; which++)
        if (query_equals(in, key, plain, query_specials[which].name, query_specials[which].length)) return which;
    return QUERY_SPECIALS;
}

/* A value that equals another parameter's is normalised to one form. */
static void query_unify(query_request *request) {
    for (size_t i = 0; i < query_same_count; i++) {
        const query_same_as same = query_same[i];
        const int64_t number = query_get(request, same.place), given = query_get(request, same.as);
        const int64_t other = given == KERNCAST_MISSING ? same.otherwise : given;
        if (number != KERNCAST_MISSING && number == other) query_set(request, same.place, same.value);
    }
}

/* The parameters, next to optional keys that are not parameters, or in an object "problem". `at` moves past the object,
 * unless it is refused. */
static bool query_read(query_text in, size_t *at, query_request *request) {
    query_span key, value, problem = {0, 0};
    bool beside = false, seen[QUERY_SPECIALS] = {false};
    if (in.text[*at] != '{') {
        value = (query_span){*at, query_value_end(in, *at)};
        return query_not_an_object(&request->fault, "a request", value);
    }
    for (++*at; query_key(in, at, &key);) {
        const query_node *node = query_child(in, &query_nodes[0], key);
        if (node != NULL) {
            beside = true;
            if (query_is_again(node, key, request) || !query_walk(in, node, key, at, request)) return false;
            continue;
        }
        value.from = *at;
        value.to = *at = query_value_end(in, *at);
        const size_t which = query_special_of(in, key);
        if (which < QUERY_SPECIALS) {
            if (!query_special(in, which, key, value, request, seen)) return false;
        } else if (query_equals(in, key, query_is_plain(in, key), "problem", 7)) {
            if (problem.to != 0) return query_refused(&request->fault, QUERY_TWICE, key);
            if (in.text[value.from] != '{') return query_not_an_object(&request->fault, "problem", value);
            problem = value;
        } else {
            return query_refused(&request->fault, QUERY_UNKNOWN_KEY, key);
        }
    }
    ++*at;
    if (problem.to != 0 && beside) return query_refused(&request->fault, QUERY_BESIDE, problem);
    if (problem.to != 0) {
        request->start = value.from = problem.from;
        if (!query_walk(in, &query_nodes[0], problem, &value.from, request)) return false;
    }
    if (!query_preset(request)) return false;
    query_unify(request);
#if QUERY_PRODUCTS
    for (size_t which = 0; which < QUERY_PRODUCTS; which++)
        if (request->totals[which] != 0 && !query_split(request, which)) return false;
#endif
    return true;
}
