/* JSON queries, the first pass: query_check accepts nothing but one well-formed JSON text, so the second pass may
 * step over every byte without asking again. No allocation, no recursion, nothing that a locale could change. */

enum { QUERY_DEPTH = 16, QUERY_SHOWN = 40 };

/* A part of the request: bytes from..to. */
typedef struct { size_t from, to; } query_span;

/* Why a request is refused. Which members are read depends on the kind. */
typedef enum {
    QUERY_NO_FAULT, QUERY_SYNTAX, QUERY_UNKNOWN_KEY, QUERY_TWICE, QUERY_CONTRADICTS, QUERY_WRONG_VALUE, QUERY_BESIDE,
    QUERY_UNSUPPORTED, QUERY_RANK, QUERY_NEEDS
} query_fault_kind;
typedef struct {
    query_fault_kind kind;
    size_t position;
    const char *subject, *parameter, *rule;
    query_span shown;
    size_t most;
} query_fault;

typedef struct { const unsigned char *text; size_t length; } query_text;

static bool query_broken(query_fault *fault, size_t position, const char *rule) {
    fault->kind = QUERY_SYNTAX;
    fault->position = position;
    fault->rule = rule;
    return false;
}

static bool query_is_space(unsigned char byte) { return byte == ' ' || byte == '\t' || byte == '\n' || byte == '\r'; }

static bool query_is_digit(unsigned char byte) { return byte >= '0' && byte <= '9'; }

static size_t query_after_space(query_text in, size_t at) {
    while (at < in.length && query_is_space(in.text[at])) at++;
    return at;
}

/* The byte at a position; 0 at the end, where a request can have none: query_check refuses NUL like any stray byte. */
static unsigned char query_byte(query_text in, size_t at) { return at < in.length ? in.text[at] : 0; }

/* The bytes that the UTF-8 character at the start of a text takes; 0 when it is malformed, overlong or a surrogate. */
static size_t query_utf8(const unsigned char *text, size_t left, uint32_t *point) {
    static const uint32_t smallest[5] = {0, 0, 0x80, 0x800, 0x10000};
    const unsigned char lead = text[0];
    if (lead < 0x80) {
        *point = lead;
        return 1;
    }
    const size_t size = lead >= 0xF8 ? 0 : lead >= 0xF0 ? 4 : lead >= 0xE0 ? 3 : lead >= 0xC0 ? 2 : 0;
    if (size == 0 || size > left) return 0;
    uint32_t value = lead & (0x7Fu >> size);
    for (size_t i = 1; i < size; i++) {
        if ((text[i] & 0xC0) != 0x80) return 0;
        value = value << 6 | (text[i] & 0x3Fu);
    }
    if (value < smallest[size] || value > 0x10FFFF || value >> 11 == 0x1B) return 0;
    *point = value;
    return size;
}

/* The four hexadecimal digits of an escape; false when there are none. */
static bool query_hex(const unsigned char *text, size_t left, uint32_t *unit) {
    *unit = 0;
    if (left < 4) return false;
    for (size_t i = 0; i < 4; i++) {
        const unsigned char byte = text[i], letter = byte | 0x20;
        if (query_is_digit(byte)) *unit = *unit << 4 | (uint32_t)(byte - '0');
        else if (letter >= 'a' && letter <= 'f') *unit = *unit << 4 | (uint32_t)(letter - 'a' + 10);
        else return false;
    }
    return true;
}

/* The bytes that an escape takes; 0 if it is not an escape, or half of a surrogate pair. */
static size_t query_escape(const unsigned char *text, size_t left, uint32_t *point) {
    static const char letters[8] = {'"', '\\', '/', 'b', 'f', 'n', 'r', 't'}, meant[8] = {'"', '\\', '/', 8, 12, 10, 13, 9};
    uint32_t second;
    if (left < 2) return 0;
    const char *found = memchr(letters, text[1], sizeof letters);
    if (found != NULL) {
        *point = (uint32_t)meant[found - letters];
        return 2;
    }
    if (text[1] != 'u' || !query_hex(text + 2, left - 2, point) || *point >> 10 == 0x37) return 0;
    if (*point >> 10 != 0x36) return 6;
    if (left < 12 || text[6] != '\\' || text[7] != 'u' || !query_hex(text + 8, left - 8, &second)) return 0;
    if (second >> 10 != 0x37) return 0;
    *point = 0x10000 + ((*point & 0x3FF) << 10 | (second & 0x3FF));
    return 12;
}

/* The bytes that one character inside a string takes, written out or as an escape; 0 when it is malformed. */
static size_t query_character(const unsigned char *text, size_t left, uint32_t *point) {
    if (text[0] < 0x20) return 0;
    return text[0] == '\\' ? query_escape(text, left, point) : query_utf8(text, left, point);
}

static bool query_check_string(query_text in, size_t *at, query_fault *fault) {
    uint32_t point;
    for (++*at; *at < in.length && in.text[*at] != '"';) {
        const unsigned char byte = in.text[*at];
        const bool plain = byte >= 0x20 && byte < 0x80 && byte != '\\';
        const size_t size = plain ? 1 : query_character(in.text + *at, in.length - *at, &point);
        if (size == 0) {
            return query_broken(
                fault, *at,
                in.text[*at] < 0x20    ? "control characters inside a string must be written as escapes"
                : in.text[*at] != '\\' ? "strings must be UTF-8"
                                       : "an escape must be one of \\\" \\\\ \\/ \\b \\f \\n \\r \\t, or \\u and four "
                                         "hexadecimal digits, surrogates in pairs");
        }
        *at += size;
    }
    if (*at >= in.length) return query_broken(fault, *at, "a string must end with a double quote");
    ++*at;
    return true;
}

static bool query_check_digits(query_text in, size_t *at, query_fault *fault) {
    if (!query_is_digit(query_byte(in, *at))) return query_broken(fault, *at, "a digit is expected here");
    while (query_is_digit(query_byte(in, *at))) ++*at;
    return true;
}

static bool query_check_number(query_text in, size_t *at, query_fault *fault) {
    if (in.text[*at] == '-') ++*at;
    if (query_byte(in, *at) == '0' && query_is_digit(query_byte(in, *at + 1))) {
        return query_broken(fault, *at, "a number must not begin with more than one zero");
    }
    if (!query_check_digits(in, at, fault)) return false;
    if (query_byte(in, *at) == '.') {
        ++*at;
        if (!query_check_digits(in, at, fault)) return false;
    }
    if ((query_byte(in, *at) | 0x20) == 'e') {
        ++*at;
        if (query_byte(in, *at) == '+' || query_byte(in, *at) == '-') ++*at;
        return query_check_digits(in, at, fault);
    }
    return true;
}

/* A string, a number, true, false or null. */
static bool query_check_scalar(query_text in, size_t *at, query_fault *fault) {
    static const char *const words[3] = {"true", "false", "null"};
    const unsigned char byte = query_byte(in, *at);
    if (byte == '"') return query_check_string(in, at, fault);
    if (byte == '-' || query_is_digit(byte)) return query_check_number(in, at, fault);
    for (size_t i = 0; i < 3; i++) {
        const size_t size = strlen(words[i]);
        if (in.length - *at >= size && memcmp(in.text + *at, words[i], size) == 0) {
            *at += size;
            return true;
        }
    }
    return query_broken(fault, *at, "a value must be an object, a list, a string, a number, true, false or null");
}

static bool query_check_key(query_text in, size_t *at, query_fault *fault) {
    if (query_byte(in, *at) != '"') return query_broken(fault, *at, "a key in double quotes is expected here");
    if (!query_check_string(in, at, fault)) return false;
    *at = query_after_space(in, *at);
    if (query_byte(in, *at) != ':') return query_broken(fault, *at, "a colon must follow a key");
    *at = query_after_space(in, *at + 1);
    return true;
}

/* Steps over what follows a whole value, closing brackets too; `at` stops where the next key or value must be. */
static bool query_check_after(query_text in, size_t *at, const char *closing, size_t *depth, query_fault *fault) {
    for (*at = query_after_space(in, *at); *depth > 0; *at = query_after_space(in, *at)) {
        const unsigned char byte = query_byte(in, *at);
        if (byte == ',') {
            *at = query_after_space(in, *at + 1);
            return true;
        }
        if (byte != (unsigned char)closing[*depth - 1]) {
            const bool object = closing[*depth - 1] == '}';
            return query_broken(fault, *at, object ? "a comma or } must follow" : "a comma or ] must follow");
        }
        ++*at;
        --*depth;
    }
    return *at == in.length || query_broken(fault, *at, "nothing may follow the request");
}

static bool query_check(query_text in, query_fault *fault) {
    char closing[QUERY_DEPTH];
    size_t depth = 0, at = query_after_space(in, 0);
    if (at == in.length) return query_broken(fault, at, "a request must be an object, or a list of objects");
    do {
        if (depth > 0 && closing[depth - 1] == '}' && !query_check_key(in, &at, fault)) return false;
        const unsigned char byte = query_byte(in, at);
        if (byte == '{' || byte == '[') {
            if (depth == QUERY_DEPTH) return query_broken(fault, at, "brackets must not nest more than 16 deep");
            closing[depth++] = byte == '{' ? '}' : ']';
            at = query_after_space(in, at + 1);
            if (query_byte(in, at) != (unsigned char)closing[depth - 1]) continue;
        } else if (!query_check_scalar(in, &at, fault)) {
            return false;
        }
        if (!query_check_after(in, &at, closing, &depth, fault)) return false;
    } while (depth > 0);
    return true;
}
