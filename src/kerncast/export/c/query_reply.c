/* JSON queries, the reply. */

/* Counts what does not fit, so that the caller learns how much room a reply needs. */
typedef struct {
    char *out;
    size_t capacity, length;
} query_reply;

static void query_put_byte(query_reply *reply, char byte) {
    if (reply->length < reply->capacity) reply->out[reply->length] = byte;
    reply->length++;
}

static void query_put(query_reply *reply, const char *json) {
    while (*json != '\0') query_put_byte(reply, *json++);
}

/* Text as the inside of a JSON string, at most `most` bytes of it; what is not UTF-8 becomes U+FFFD. */
static void query_put_text(query_reply *reply, const char *text, size_t length, size_t most) {
    static const char hex[] = "0123456789abcdef";
    const unsigned char *bytes = (const unsigned char *)text;
    size_t at = 0, i;
    while (at < length && at < most) {
        uint32_t point;
        const size_t size = query_utf8(bytes + at, length - at, &point);
        if (size == 0) {
            query_put(reply, "\\ufffd");
            at++;
            continue;
        }
        if (point < 0x20 || point == 0x7F) {
            query_put(reply, "\\u00");
            query_put_byte(reply, hex[point >> 4]);
            query_put_byte(reply, hex[point & 15]);
        } else {
            if (point == '"' || point == '\\') query_put_byte(reply, '\\');
            for (i = 0; i < size; i++) query_put_byte(reply, text[at + i]);
        }
        at += size;
    }
    if (at < length) query_put(reply, "...");
}

static void query_put_words(query_reply *reply, const char *text) { query_put_text(reply, text, strlen(text), SIZE_MAX); }

static void query_put_integer(query_reply *reply, int64_t value) {
    char digits[20];
    size_t count = 0;
    uint64_t left = value < 0 ? 0 - (uint64_t)value : (uint64_t)value;
    if (value < 0) query_put_byte(reply, '-');
    do {
        digits[count++] = (char)('0' + left % 10);
        left /= 10;
    } while (left != 0);
    while (count > 0) query_put_byte(reply, digits[--count]);
}

/* `,"name":value`, when the value is known (not negative) and a number at all. */
static void query_put_double(query_reply *reply, const char *name, double value) {
    char shown[40];
    size_t at;
    if (!(value >= 0.0 && value <= DBL_MAX)) return;
    query_put(reply, name);
    snprintf(shown, sizeof shown, "%.17g", value);
    for (at = 0; shown[at] != '\0'; at++) {
        /* Whatever a locale writes as its decimal point, of one byte or more, becomes the one of JSON. */
        const bool plain = query_is_digit((unsigned char)shown[at]) || strchr("+-e", shown[at]) != NULL;
        if (plain) query_put_byte(reply, shown[at]);
        else if (query_is_digit((unsigned char)shown[at - 1])) query_put_byte(reply, '.');
    }
}

/* The label of a code; NULL when there is none. */
static const query_label *query_label_of(const query_parameter *parameter, int64_t code) {
    size_t i;
    for (i = 0; i < parameter->label_count; i++) {
        if (parameter->labels[i].code == code) return &parameter->labels[i];
    }
    return NULL;
}

static int64_t query_config_value(const kerncast_config *config, size_t place) {
    int64_t value;
    memcpy(&value, (const char *)config + place * sizeof value, sizeof value);
    return value;
}

/* Whether every label of a config has a name: otherwise the artefact contradicts itself. */
static bool query_is_readable(const kerncast_config *config) {
    size_t i;
    for (i = 0; i < query_config.count; i++) {
        const query_parameter *parameter = &query_config.parameters[i];
        const int64_t value = query_config_value(config, i);
        if (parameter->kind != QUERY_LABEL || value == KERNCAST_MISSING) continue;
        if (query_label_of(parameter, value) == NULL) return false;
    }
    return true;
}

static void query_put_config(query_reply *reply, const kerncast_config *config) {
    const char *before = "{\"";
    size_t i;
    for (i = 0; i < query_config.count; i++) {
        const query_parameter *parameter = &query_config.parameters[i];
        const int64_t value = query_config_value(config, i);
        if (value == KERNCAST_MISSING) continue;
        query_put(reply, before);
        query_put_words(reply, parameter->name);
        query_put(reply, "\":");
        before = ",\"";
        if (parameter->kind == QUERY_FLAG) query_put(reply, value != 0 ? "true" : "false");
        else if (parameter->kind == QUERY_NUMBER) query_put_integer(reply, value);
        else {
            query_put_byte(reply, '"');
            query_put_words(reply, query_label_of(parameter, value)->name);
            query_put_byte(reply, '"');
        }
    }
    query_put(reply, before[0] == '{' ? "{}" : "}");
}

static void query_put_found(query_reply *reply, query_text in, size_t at) {
    static const char hex[] = "0123456789abcdef";
    const unsigned char byte = query_byte(in, at);
    if (at >= in.length) query_put(reply, "the end of the text");
    else if (byte > 0x20 && byte < 0x7F) query_put_text(reply, (const char *)in.text + at, 1, 1);
    else {
        query_put(reply, "byte 0x");
        query_put_byte(reply, hex[byte >> 4]);
        query_put_byte(reply, hex[byte & 15]);
    }
}

static void query_put_keys(query_reply *reply) {
    size_t i;
    for (i = 0; i < query_problem.count; i++) {
        query_put_words(reply, query_problem.parameters[i].name);
        query_put(reply, ", ");
    }
    query_put(reply, "tier, or problem and tier");
}

/* Ends a message, and says where in the text the trouble is. */
static void query_put_place(query_reply *reply, const char *parameter, size_t position) {
    if (parameter != NULL) {
        query_put(reply, "\",\"parameter\":\"");
        query_put_words(reply, parameter);
    }
    query_put(reply, "\",\"position\":");
    query_put_integer(reply, (int64_t)position);
}

static void query_put_fault(query_reply *reply, query_text in, const query_fault *fault) {
    const char *shown = (const char *)in.text + fault->shown.from;
    const size_t size = fault->shown.to - fault->shown.from;
    query_put(reply, "{\"status\":\"bad_input\",\"message\":\"");
    switch (fault->kind) {
    case QUERY_UNKNOWN_KEY:
        query_put(reply, "unknown key ");
        query_put_text(reply, shown, size, QUERY_SHOWN);
        query_put(reply, ": known are ");
        query_put_keys(reply);
        break;
    case QUERY_TWICE:
        query_put_text(reply, shown, size, QUERY_SHOWN);
        query_put(reply, " is given twice: give it once");
        break;
    case QUERY_BESIDE:
        query_put(reply, "parameters must not stand beside an object problem: put all of them into it, or leave it out");
        break;
    case QUERY_WRONG_VALUE:
        query_put_words(reply, fault->subject);
        query_put(reply, " must be ");
        query_put_words(reply, fault->rule);
        query_put(reply, ", got ");
        query_put_text(reply, shown, size, QUERY_SHOWN);
        break;
    default:
        query_put_words(reply, fault->rule);
        query_put(reply, ", found ");
        query_put_found(reply, in, fault->position);
    }
    query_put_place(reply, fault->parameter, fault->position);
    query_put_byte(reply, '}');
}

static void query_put_choice(query_reply *reply, const kerncast_answer *answer) {
    query_put(reply, "\"tier\":\"");
    query_put(reply, kerncast_tier_name(answer->tier));
    query_put(reply, "\",\"config\":");
    query_put_config(reply, &answer->config);
    query_put_double(reply, ",\"time_ns\":", answer->time_ns);
    query_put_double(reply, ",\"lower_ns\":", answer->lower_ns);
    query_put_double(reply, ",\"upper_ns\":", answer->upper_ns);
    query_put_double(reply, ",\"efficiency\":", answer->efficiency);
}

static void query_put_refusal(query_reply *reply, const kerncast_answer *answer, const query_request *request) {
    const char *end = memchr(answer->message, '\0', sizeof answer->message);
    const bool named = answer->parameter >= 0 && (size_t)answer->parameter < query_problem.count;
    size_t position = request->start;
    if (named && request->given[answer->parameter] != SIZE_MAX) position = request->given[answer->parameter];
    query_put(reply, "\"message\":\"");
    query_put_text(reply, answer->message, end == NULL ? sizeof answer->message : (size_t)(end - answer->message), SIZE_MAX);
    query_put_place(reply, named ? query_problem.parameters[answer->parameter].name : NULL, position);
    if (answer->candidate >= 0) {
        query_put(reply, ",\"fallback\":");
        query_put_config(reply, &answer->config);
    }
}

static kerncast_status query_answer(kerncast_context *context, query_text in, query_span object, query_reply *reply) {
    static const char unreadable[] = "the chosen config has a label without a name: export the model again";
    query_fault fault = {QUERY_NO_FAULT, 0, NULL, NULL, NULL, {0, 0}};
    kerncast_answer answer;
    kerncast_status status;
    query_request request;
    size_t i;
    kerncast_problem_init(&request.problem);
    request.tier = KERNCAST_TIER_AUTO;
    request.start = object.from;
    for (i = 0; i < QUERY_PLACES; i++) request.given[i] = SIZE_MAX;
    if (!query_read(in, object, &request, &fault)) {
        query_put_fault(reply, in, &fault);
        return KERNCAST_BAD_INPUT;
    }
    memset(&answer, 0, sizeof answer);
    answer.candidate = answer.parameter = -1;
    status = kerncast_select(context, &request.problem, request.tier, &answer);
    if (answer.candidate >= 0 && !query_is_readable(&answer.config)) {
        status = KERNCAST_CORRUPT;
        answer.candidate = -1;
        memcpy(answer.message, unreadable, sizeof unreadable);
    }
    query_put(reply, "{\"status\":\"");
    query_put(reply, kerncast_status_name(status));
    query_put(reply, "\",");
    if (status == KERNCAST_OK) query_put_choice(reply, &answer);
    else query_put_refusal(reply, &answer, &request);
    query_put_byte(reply, '}');
    return status;
}

static kerncast_status query_answer_all(kerncast_context *context, query_text in, query_reply *reply) {
    query_fault fault = {QUERY_NO_FAULT, 0, NULL, NULL, NULL, {0, 0}};
    query_span value;
    size_t at;
    if (!query_check(in, &fault)) {
        query_put_fault(reply, in, &fault);
        return KERNCAST_BAD_INPUT;
    }
    value.from = query_after_space(in, 0);
    if (in.text[value.from] != '[') {
        value.to = query_value_end(in, value.from);
        return query_answer(context, in, value, reply);
    }
    query_put_byte(reply, '[');
    for (at = query_after_space(in, value.from + 1); in.text[at] != ']'; at = query_after_space(in, at)) {
        if (in.text[at] == ',') {
            query_put_byte(reply, ',');
            at++;
            continue;
        }
        value.from = at;
        value.to = at = query_value_end(in, at);
        query_answer(context, in, value, reply);
    }
    query_put_byte(reply, ']');
    return KERNCAST_OK;
}

kerncast_status kerncast_query_json(
    kerncast_context *context, const char *text, size_t length, char *out, size_t capacity, size_t *needed) {
    query_text in;
    query_reply reply;
    kerncast_status status;
    in.text = (const unsigned char *)(text == NULL ? "" : text);
    in.length = text == NULL ? 0 : length;
    reply.out = out;
    reply.capacity = out == NULL ? 0 : capacity;
    reply.length = 0;
    status = query_answer_all(context, in, &reply);
    query_put_byte(&reply, '\0');
    if (needed != NULL) *needed = reply.length;
    if (reply.length <= reply.capacity) return status;
    if (reply.capacity > 0) out[0] = '\0'; /* half a reply must not look like one */
    return KERNCAST_TOO_SMALL;
}
