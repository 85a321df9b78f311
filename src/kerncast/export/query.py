"""The JSON entry point of an exported model: tables of names and labels, and the C that reads requests by them.

The C stands in `c/query_*.c`, written for the prefix `kerncast`; it follows the artefact's header in one translation
unit, in the order check, tables, read, reply.
"""

from __future__ import annotations

from collections.abc import Iterable
from importlib import resources

from kerncast.errors import InvalidValue
from kerncast.export.ctext import c_integer, c_string, renamed
from kerncast.parameters import Bool, Categorical, Parameter
from kerncast.space import Space

TIERS = ("tree", "portfolio", "full")
"""Those that a request may name: the enumerators PREFIX_TIER_TREE … (the memo answers unasked)."""
RESERVED = ("problem", "tier")
"""Keys of a request that are not parameters."""
# A rule is one string literal, of which C99 promises 4,095 bytes; longer lists of labels would not be read anyway.
LONGEST_RULE = 600
# From here on a writer that has doubles in its hands may have rounded: a point or an exponent is not trusted.
WHOLE_AS_DOUBLE = 2**53

_INCLUDES = "".join(f"#include <{name}.h>\n" for name in ("float", "stdbool", "stddef", "stdint", "stdio", "string"))
_TYPES = """\
typedef enum { QUERY_NUMBER, QUERY_FLAG, QUERY_LABEL } query_kind;
typedef struct {
    const char *name;
    size_t length;
    int64_t code;
} query_label;
/* `rule` completes "must be"; `nullable`: where it does not apply, null says so. */
typedef struct {
    const char *name;
    size_t length;
    const char *rule;
    query_kind kind;
    bool nullable;
    const query_label *labels;
    size_t label_count;
} query_parameter;
typedef struct {
    const query_parameter *parameters;
    size_t count;
} query_space;
"""


def query_source(prefix: str, problem: Space, config: Space) -> str:
    """The C text of `PREFIX_query_json` and all it needs beyond the artefact's header."""
    reserved = [name for name in problem.parameters if name in RESERVED]
    if reserved:
        raise InvalidValue(
            f"{problem.owner}: a JSON request keeps the key '{reserved[0]}' for itself; rename that problem parameter"
        )
    tables = [
        _TYPES,
        *(_space(prefix, name, space) for name, space in (("problem", problem), ("config", config))),
        _tier(prefix),
        f"/* C has no empty arrays. */\nenum {{ QUERY_PLACES = {max(len(problem.parameters), 1)} }};\n",
    ]
    parts = [_INCLUDES, _code(prefix, "check"), *tables, _code(prefix, "read"), _code(prefix, "reply")]
    return "\n".join(parts)


def _code(prefix: str, name: str) -> str:
    """One of the C files, under the artefact's own prefix."""
    text = resources.files(__package__).joinpath("c", f"query_{name}.c").read_text(encoding="utf-8")
    return renamed(text, {"kerncast_": f"{prefix}_", "KERNCAST_": f"{prefix.upper()}_"})


def _space(prefix: str, name: str, space: Space) -> str:
    """The table of a space, in declared order, and a check that the header's struct is laid out like it."""
    if not space.parameters:
        return f"static const query_space query_{name} = {{NULL, 0}};\n"
    labels = []
    rows = []
    for place, (parameter_name, parameter) in enumerate(space.parameters.items()):
        table = f"query_{name}_labels{place}"
        if parameter.codes:
            labels.append(_labels(table, ((label, c_integer(code)) for label, code in parameter.codes)))
        rows.append(_row(parameter_name, parameter, table))
    count = len(rows)
    return (
        f"{''.join(labels)}"
        f"static const query_parameter query_{name}_parameters[{count}] = {{\n{''.join(rows)}}};\n"
        f"static const query_space query_{name} = {{query_{name}_parameters, {count}}};\n"
        f"typedef char query_{name}_layout[sizeof({prefix}_{name}) == {count} * sizeof(int64_t) ? 1 : -1];\n"
    )


def _row(name: str, parameter: Parameter, table: str) -> str:
    kind = "FLAG" if isinstance(parameter, Bool) else "LABEL" if isinstance(parameter, Categorical) else "NUMBER"
    rule = parameter.describe()
    if kind == "NUMBER" and parameter.number(parameter.size - 1) >= WHOLE_AS_DOUBLE:
        rule += ", from 2^53 on in digits alone"
    return _parameter(name, rule, kind, parameter.when is not None, table, len(parameter.codes))


def _parameter(name: str, rule: str, kind: str, nullable: bool, table: str, labels: int) -> str:
    if len(rule) > LONGEST_RULE:
        rule = f"{rule[:LONGEST_RULE]} …"
    fields = [c_string(name), _size(name), c_string(rule), f"QUERY_{kind}", str(nullable).lower()]
    return f"    {{{', '.join([*fields, table if labels else 'NULL', str(labels)])}}},\n"


def _labels(table: str, codes: Iterable[tuple[str, str]]) -> str:
    rows = [f"    {{{c_string(label)}, {_size(label)}, {code}}},\n" for label, code in codes]
    return f"static const query_label {table}[{len(rows)}] = {{\n{''.join(rows)}}};\n"


def _tier(prefix: str) -> str:
    """What a request may say under `tier`, read like a parameter."""
    labels = _labels("query_tier_labels", ((tier, f"{prefix.upper()}_TIER_{tier.upper()}") for tier in TIERS))
    row = _parameter("tier", f"one of {', '.join(TIERS)}", "LABEL", False, "query_tier_labels", len(TIERS))
    return f"{labels}static const query_parameter query_tier =\n{row.rstrip().removesuffix(',')};\n"


def _size(text: str) -> str:
    return str(len(text.encode()))
