/* JSON queries: requests are read, answered together, and written in their order. */

static void query_put_choice(query_reply *reply, const kerncast_answer *answer) {
    if (query_config.count > 0) {
        query_put_between(reply, ",\"tier\":\"", kerncast_tier_name(answer->tier), "\",\"config\":");
        query_put_config(reply, &answer->config);
    }
    query_put_double(reply, ",\"time_ns\":", answer->time_ns);
    query_put_double(reply, ",\"lower_ns\":", answer->lower_ns);
    query_put_double(reply, ",\"upper_ns\":", answer->upper_ns);
    if (query_config.count > 0) query_put_double(reply, ",\"efficiency\":", answer->efficiency);
    if (answer->label != NULL && answer->label[0] != '\0') query_put_between(reply, ",\"label\":\"", answer->label, "\"");
    if (answer->pin == KERNCAST_PIN_DECIDED) query_put(reply, ",\"pin\":\"decided\"");
    if (answer->pin == KERNCAST_PIN_NOT_APPLIED) query_put(reply, ",\"pin\":\"not_applied\"");
}

static void query_put_refusal(query_reply *reply, const kerncast_answer *answer, const query_request *request) {
    const bool named = answer->parameter >= 0 && (size_t)answer->parameter < query_problem.count;
    size_t position = request->start;
    if (named && request->given[answer->parameter] != SIZE_MAX) position = request->given[answer->parameter];
    const char *end = memchr(answer->message, '\0', sizeof answer->message);
    query_put(reply, ",\"message\":\"");
    query_put_text(reply, answer->message, end == NULL ? sizeof answer->message : (size_t)(end - answer->message), SIZE_MAX);
    query_put_place(reply, named ? query_problem.parameters[answer->parameter].name : NULL, position);
    if (answer->candidate >= 0 && query_config.count > 0 && answer->tier == KERNCAST_TIER_NONE) {
        query_put(reply, ",\"fallback\":");
        query_put_config(reply, &answer->config);
    }
}

/* With nothing to choose, a label that was not in training is unsupported, not out of range: labels have no order. */
static kerncast_status query_status(const kerncast_answer *answer, kerncast_status status) {
    const bool named = answer->parameter >= 0 && (size_t)answer->parameter < query_problem.count;
    if (query_config.count > 0 || status != KERNCAST_OUT_OF_RANGE || !named) return status;
    return query_problem.parameters[answer->parameter].kind == QUERY_NUMBER ? status : KERNCAST_UNSUPPORTED;
}

static void query_begin(query_request *request, size_t start) {
    memset(request, 0, sizeof *request);
    kerncast_problem_init(&request->problem);
    request->tier = KERNCAST_TIER_AUTO;
    request->start = start;
    for (size_t i = 0; i < QUERY_PLACES; i++) request->given[i] = SIZE_MAX;
}

static kerncast_status query_put_answer(query_reply *reply, query_text in, const query_request *request, kerncast_answer *answer) {
    static const char unreadable[] = "the chosen config has a label without a name: export the model again";
    if (request->fault.kind != QUERY_NO_FAULT) {
        query_put_fault(reply, in, &request->fault);
        return query_is_unsupported(request->fault.kind) ? KERNCAST_UNSUPPORTED : KERNCAST_BAD_INPUT;
    }
    kerncast_status status = query_status(answer, answer->status);
    if (answer->candidate >= 0 && !query_is_readable(&answer->config)) {
        status = KERNCAST_CORRUPT;
        answer->candidate = -1;
        memcpy(answer->message, unreadable, sizeof unreadable);
    }
    query_put_between(reply, "{\"status\":\"", kerncast_status_name(status), "\"");
    /* A problem in range but unlike all measured ones has a choice, too. */
    if (status == KERNCAST_OK || (status == KERNCAST_OUT_OF_RANGE && answer->tier != KERNCAST_TIER_NONE))
        query_put_choice(reply, answer);
    if (status != KERNCAST_OK) query_put_refusal(reply, answer, request);
    query_put_origin(reply, in, request);
    query_put_byte(reply, '}');
    return status;
}

/* Requests that are answered together. */
enum { QUERY_TOGETHER = 64 };
typedef struct {
    query_request requests[QUERY_TOGETHER];
    kerncast_problem problems[QUERY_TOGETHER];
    kerncast_answer answers[QUERY_TOGETHER];
    size_t count;
} query_batch;

/* Answers the gathered requests in order; those of one tier in one call. */
static kerncast_status query_flush(kerncast_context *context, query_text in, query_batch *batch, query_reply *reply) {
    kerncast_status status = KERNCAST_OK;
    for (size_t from = 0, to = 0; from < batch->count; from = to) {
        const kerncast_tier tier = batch->requests[from].tier;
        kerncast_answer *answer = batch->answers;
        size_t asked = 0;
        for (; to < batch->count && batch->requests[to].tier == tier; to++)
            if (batch->requests[to].fault.kind == QUERY_NO_FAULT) batch->problems[asked++] = batch->requests[to].problem;
        if (asked > 0) kerncast_select_many(context, batch->problems, asked, tier, batch->answers);
        for (size_t i = from; i < to; i++) {
            if (i > 0) query_put_byte(reply, ',');
            status = query_put_answer(reply, in, &batch->requests[i], answer);
            if (batch->requests[i].fault.kind == QUERY_NO_FAULT) answer++;
        }
    }
    batch->count = 0;
    return status;
}

/* Reads the request at `at`, and says where it ends. */
static size_t query_gather(query_text in, size_t at, query_batch *batch) {
    query_request *request = &batch->requests[batch->count++];
    size_t end = at;
    query_begin(request, at);
    return query_read(in, &end, request) ? end : query_value_end(in, at);
}

static kerncast_status query_answer_all(kerncast_context *context, query_text in, query_reply *reply) {
    query_fault fault = {0};
    query_batch batch;
    batch.count = 0;
    if (!query_check(in, &fault)) {
        query_put_fault(reply, in, &fault);
        return KERNCAST_BAD_INPUT;
    }
    size_t at = query_after_space(in, 0);
    if (in.text[at] != '[') {
        query_gather(in, at, &batch);
        return query_flush(context, in, &batch, reply);
    }
    query_put_byte(reply, '[');
    for (at = query_after_space(in, at + 1); in.text[at] != ']'; at = query_after_space(in, at)) {
        if (in.text[at] == ',') {
            if (batch.count == QUERY_TOGETHER) {
                query_flush(context, in, &batch, reply);
                query_put_byte(reply, ',');
            }
            at++;
            continue;
        }
        at = query_gather(in, at, &batch);
    }
    query_flush(context, in, &batch, reply);
    query_put_byte(reply, ']');
    return KERNCAST_OK;
}

kerncast_status kerncast_query_json(
    kerncast_context *context, const char *text, size_t length, char *out, size_t capacity, size_t *needed) {
    const query_text in = {(const unsigned char *)(text == NULL ? "" : text), text == NULL ? 0 : length};
    query_reply reply = {out, out == NULL ? 0 : capacity, 0};
    const kerncast_status status = query_answer_all(context, in, &reply);
    query_put_byte(&reply, '\0');
    if (needed != NULL) *needed = reply.length;
    if (reply.length <= reply.capacity) return status;
    if (reply.capacity > 0) out[0] = '\0'; /* half a reply must not look like one */
    return KERNCAST_TOO_SMALL;
}
