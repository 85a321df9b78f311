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
    const size_t size = strlen(json);
    if (reply->length < reply->capacity && size <= reply->capacity - reply->length) {
        memcpy(reply->out + reply->length, json, size);
    }
    reply->length += size;
}

/* Text as the inside of a JSON string, at most `most` bytes of it; what is not UTF-8 becomes U+FFFD. */
static void query_put_text(query_reply *reply, const char *text, size_t length, size_t most) {
    static const char hex[] = "0123456789abcdef";
    const unsigned char *bytes = (const unsigned char *)text;
    size_t at = 0;
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
            for (size_t i = 0; i < size; i++) query_put_byte(reply, text[at + i]);
        }
        at += size;
    }
    if (at < length) query_put(reply, "...");
}

static void query_put_words(query_reply *reply, const char *text) { query_put_text(reply, text, strlen(text), SIZE_MAX); }

/* Words, and the JSON around them. */
static void query_put_between(query_reply *reply, const char *before, const char *words, const char *after) {
    query_put(reply, before);
    query_put_words(reply, words);
    query_put(reply, after);
}

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

/* The 17 digits of a number from 1 to 2^53, as printf rounds them (to even), but cheaper: whole numbers are exact
 * there, and so is the fraction of a double in 52 bits. */
static void query_put_digits(query_reply *reply, double value) {
    const uint64_t whole = (uint64_t)value, one = UINT64_C(1) << 52;
    uint64_t rest = (uint64_t)((value - (double)whole) * (double)one), left = whole, fraction = 0, scale = 1;
    char digits[17];
    size_t before = 0;
    do before++;
    while ((left /= 10) != 0);
    size_t after = 17 - before;
    for (size_t i = 0; i < after; i++) {
        rest *= 10;
        fraction = fraction * 10 + (rest >> 52);
        scale *= 10;
        rest &= one - 1;
    }
    if (rest > one / 2 || (rest == one / 2 && (fraction & 1) != 0)) fraction++;
    /* One more digit before the point if needed: 17 in all are enough to read back the same number. */
    query_put_integer(reply, (int64_t)(whole + fraction / scale));
    fraction %= scale;
    if (fraction == 0) return;
    for (size_t i = after; i > 0; fraction /= 10) digits[--i] = (char)('0' + fraction % 10);
    while (digits[after - 1] == '0') after--;
    query_put_byte(reply, '.');
    for (size_t i = 0; i < after; i++) query_put_byte(reply, digits[i]);
}

/* `,"name":value`, if the value is known (not negative) and finite. */
static void query_put_double(query_reply *reply, const char *name, double value) {
    char shown[40];
    if (!(value >= 0.0 && value <= DBL_MAX)) return;
    query_put(reply, name);
    if (value >= 1.0 && value < 9007199254740992.0) {
        query_put_digits(reply, value);
        return;
    }
    snprintf(shown, sizeof shown, "%.17g", value);
    for (size_t at = 0; shown[at] != '\0'; at++) {
        /* Whatever a locale writes as its decimal point, of one byte or more, becomes the one of JSON. */
        const bool plain = query_is_digit((unsigned char)shown[at]) || strchr("+-e", shown[at]) != NULL;
        if (plain) query_put_byte(reply, shown[at]);
        else if (query_is_digit((unsigned char)shown[at - 1])) query_put_byte(reply, '.');
    }
}

/* The label of a code; NULL when there is none. */
static const query_label *query_label_of(const query_parameter *parameter, int64_t code) {
    for (size_t i = 0; i < parameter->label_count; i++) {
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
    for (size_t i = 0; i < query_config.count; i++) {
        const query_parameter *parameter = &query_config.parameters[i];
        const int64_t value = query_config_value(config, i);
        if (parameter->kind != QUERY_LABEL || value == KERNCAST_MISSING) continue;
        if (query_label_of(parameter, value) == NULL) return false;
    }
    return true;
}

static void query_put_config(query_reply *reply, const kerncast_config *config) {
    const char *before = "{\"";
    for (size_t i = 0; i < query_config.count; i++) {
        const query_parameter *parameter = &query_config.parameters[i];
        const int64_t value = query_config_value(config, i);
        if (value == KERNCAST_MISSING) continue;
        query_put_between(reply, before, parameter->name, "\":");
        before = ",\"";
        if (parameter->kind == QUERY_FLAG) query_put(reply, value != 0 ? "true" : "false");
        else if (parameter->kind == QUERY_NUMBER) query_put_integer(reply, value);
        else query_put_between(reply, "\"", query_label_of(parameter, value)->name, "\"");
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
    for (size_t i = 0; i < query_nodes[0].children; i++)
        query_put_between(reply, "", query_nodes[query_nodes[0].first_child + i].name, ", ");
    for (size_t i = 1; i < QUERY_SPECIALS; i++) query_put_between(reply, "", query_specials[i].name, ", ");
    query_put(reply, "tier, or problem and tier");
}

/* Ends a message, and says where in the text the trouble is. */
static void query_put_place(query_reply *reply, const char *parameter, size_t position) {
    if (parameter != NULL) query_put_between(reply, "\",\"parameter\":\"", parameter, "");
    query_put(reply, "\",\"position\":");
    query_put_integer(reply, (int64_t)position);
}

static bool query_is_unsupported(query_fault_kind kind) {
    return kind == QUERY_UNSUPPORTED || kind == QUERY_RANK || kind == QUERY_NEEDS;
}

static void query_put_fault(query_reply *reply, query_text in, const query_fault *fault) {
    const char *shown = (const char *)in.text + fault->shown.from;
    const size_t size = fault->shown.to - fault->shown.from;
    query_put(reply, query_is_unsupported(fault->kind) ? "{\"status\":\"unsupported\",\"message\":\"" : "{\"status\":\"bad_input\",\"message\":\"");
    switch (fault->kind) {
    case QUERY_UNKNOWN_KEY:
        query_put(reply, "unknown key ");
        query_put_text(reply, shown, size, QUERY_SHOWN);
        query_put(reply, ": known keys are ");
        query_put_keys(reply);
        break;
    case QUERY_TWICE:
        query_put_text(reply, shown, size, QUERY_SHOWN);
        query_put(reply, " is given twice: give it once");
        break;
    case QUERY_CONTRADICTS:
        query_put_text(reply, shown, size, QUERY_SHOWN);
        query_put(reply, " contradicts what is given elsewhere in the request: leave one of them out");
        break;
    case QUERY_BESIDE:
        query_put(reply, "parameters must not be given next to an object problem: put all of them into it, or leave it out");
        break;
    case QUERY_RANK:
        query_put_between(reply, "", fault->subject, " must have at most ");
        query_put_integer(reply, (int64_t)fault->most);
        query_put(reply, " dimensions, got ");
        query_put_text(reply, shown, size, QUERY_SHOWN);
        break;
    case QUERY_NEEDS: query_put_words(reply, fault->rule); break;
    case QUERY_UNSUPPORTED:
    case QUERY_WRONG_VALUE:
        query_put_between(reply, "", fault->subject, " must be ");
        query_put_between(reply, "", fault->rule, ", got ");
        query_put_text(reply, shown, size, QUERY_SHOWN);
        break;
    default:
        query_put_between(reply, "", fault->rule, ", found ");
        query_put_found(reply, in, fault->position);
    }
    query_put_place(reply, fault->parameter, fault->position);
    query_put_byte(reply, '}');
}

/* A string of the request as UTF-8, escapes decoded; its length, or SIZE_MAX when there is no room for it. */
static size_t query_decode(query_text in, query_span string, char *out, size_t room) {
    size_t at = string.from + 1, length = 0;
    while (at + 1 < string.to) {
        uint32_t point = 0;
        const size_t taken = query_character(in.text + at, string.to - at, &point);
        const size_t size = point < 0x80 ? 1 : point < 0x800 ? 2 : point < 0x10000 ? 3 : 4;
        if (taken == 0 || room - length < size) return SIZE_MAX;
        for (size_t i = size - 1; i > 0; i--, point >>= 6) out[length + i] = (char)(0x80 | (point & 0x3F));
        out[length] = (char)(size == 1 ? point : (0xF00u >> size & 0xFF) | point);
        length += size;
        at += taken;
    }
    return length;
}

/* Whether two values are the same, or one the beginning of the other: commits may be abbreviated, but fewer
 * than seven digits are ambiguous. */
static bool query_is_same(const char *known, size_t length, bool hexadecimal, const char *asked, size_t size) {
    const size_t shorter = size < length ? size : length;
    if (memcmp(known, asked, shorter) != 0) return false;
    if (size == length) return true;
    for (size_t i = 0; hexadecimal && i < size; i++) hexadecimal = asked[i] != '\0' && strchr("0123456789abcdef", asked[i]) != NULL;
    return hexadecimal && shorter >= 7;
}

/* Whether a JSON object has the model's parts, each with its value, in any order, and no others. */
static bool query_is_software_object(query_text in) {
    query_fault fault = {0};
    const size_t start = query_after_space(in, 0);
    size_t members = 0, parts = 0, at;
    query_span key, value;
    if (!query_check(in, &fault) || in.text[start] != '{') return false;
    for (size_t i = 0; i < query_software_count; i++) {
        const query_software_name *known = &query_software[i];
        const char *text = known->name + known->value;
        const size_t length = known->length - known->value;
        bool found = false;
        if (known->value == 0) continue;
        for (parts++, members = 0, at = start + 1; query_key(in, &at, &key); at = value.to, members++) {
            value.from = at;
            value.to = query_value_end(in, at);
            if (!query_equals(in, key, query_is_plain(in, key), known->name, known->value - 1)) continue;
            if (in.text[at] == '"') found = query_equals(in, value, query_is_plain(in, value), text, length);
            else found = value.to - value.from == length && memcmp(in.text + value.from, text, length) == 0;
        }
        if (!found) return false;
    }
    return parts > 0 && members == parts;
}

/* Whether the software that is asked for is the model's: what its data say as a whole, one of the parts of that by its value
 * or as NAME=VALUE, or all of them in another order. */
static bool query_is_software(query_text in, query_span asked) {
    char text[QUERY_SOFTWARE];
    const size_t size = query_decode(in, asked, text, sizeof text);
    if (size == SIZE_MAX) return false;
    for (size_t i = 0; i < query_software_count; i++) {
        const query_software_name *known = &query_software[i];
        const size_t skipped = known->value;
        if (size < skipped || memcmp(text, known->name, skipped) != 0) continue;
        if (query_is_same(known->name + skipped, known->length - skipped, known->hexadecimal, text + skipped, size - skipped)) return true;
    }
    const query_text inner = {(const unsigned char *)text, size};
    return query_software_count > 0 && query_is_software_object(inner);
}

/* Whose answer it is, and whether it was trained on the software that was asked for. */
static void query_put_origin(query_reply *reply, query_text in, const query_request *request) {
    query_put(reply, query_origin);
    if (request->software.to == 0 || query_is_software(in, request->software)) return;
    query_put(reply, ",\"warning\":\"asked for the software ");
    query_put_text(reply, (const char *)in.text + request->software.from, request->software.to - request->software.from, QUERY_SHOWN);
    query_put(reply, ", the model ");
    query_put(reply, query_trained);
    query_put_byte(reply, '"');
}
