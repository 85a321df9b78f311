"""One model as C: parameters, rules, what is learned, and the constant `kc_this` that names them (`c/model.h`)."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass, field

import numpy as np
import numpy.typing as npt

from kerncast.core.expr import ConstantTable, Expr, Program
from kerncast.core.expr.to_c import statements
from kerncast.core.io.quoting import Sealed, array, c_integer, c_number, c_string, define, packaged_c
from kerncast.core.op import Family
from kerncast.core.parameters import Bool
from kerncast.core.space import Space
from kerncast.learning.learners.contract import ADD, DENSE, RAW, CScope, CSource, Level, Lines, Network, learn_function
from kerncast.learning.table import BoundRule
from kerncast.native import packaged
from kerncast.native.lower import Artefact
from kerncast.native.values import ParameterRow, Tables, fact_rows, hull_rows, parameter_rows

MODEL = "const kc_model *m"
C_TYPES = {"i": "int32_t", "l": "int64_t", "q": "int64_t", "d": "double"}


def symbol_reader(family: Family) -> Callable[[str], str]:
    """How C reads `p.M` and `c.tile_m`: from the arrays `p` and `c`, in declared order."""
    places = {
        f"{space.namespace}.{name}": f"{space.namespace}[{place}]"
        for space in (family.problem, family.config)
        for place, name in enumerate(space.parameters)
    }
    return places.__getitem__


def structure(fields: Mapping[str, object]) -> str:
    """The initializer of a struct."""
    return "{" + ", ".join(f".{name} = {value}" for name, value in fields.items()) + "}"


def listing(kind: str, name: str, rows: Iterable[str], nothing: str) -> str:
    """An array of structs or strings."""
    texts = list(rows) or [nothing]
    lines = ",\n    ".join(texts)
    return f"static const {kind} {name}[{len(texts)}] = {{\n    {lines}\n}};\n"


@dataclass
class CModel:
    """What the sections of a model write into."""

    family: Family
    sealed: Sealed = field(default_factory=Sealed)
    fields: dict[str, object] = field(default_factory=dict)
    """Of `kc_model`, each with its initializer."""
    sizes: dict[str, int | str] = field(default_factory=dict)
    """Macros: the largest sizes, and which parts of the engine are needed."""
    types: dict[str, str] = field(default_factory=dict)
    """The widths of numbers, by the name of the type."""
    parts: list[str] = field(default_factory=list)
    op_tables: dict[ConstantTable, str] = field(default_factory=dict)
    """Tables of the op, which may be large, and which several functions read."""

    def add(self, text: str) -> None:
        """Text after everything so far."""
        self.parts.append(text)

    def table(self, kind: str, name: str, values: npt.NDArray[np.generic], *, sealed: bool = True) -> None:
        """An array of numbers as a field; it is checked when a context is made, if it is sealed."""
        write = self.sealed.array if sealed else array
        self.add(write(kind, f"kc_{name}", values))
        self.fields[name] = f"kc_{name}"

    def rows(self, kind: str, name: str, rows: Iterable[str], *, nothing: str = "{0}") -> None:
        """An array of structs or strings as a field; `nothing` stands in an empty one, because C has none."""
        self.add(listing(kind, f"kc_{name}", rows, nothing))
        self.fields[name] = f"kc_{name}"

    def tables(self, tables: Tables, *, sealed: bool = True) -> None:
        """Arrays as fields, in their own types; empty ones stay NULL."""
        for name, values in tables.items():
            if values.size:
                self.table(C_TYPES[values.dtype.char], name, values, sealed=sealed)

    def function(self, name: str, outputs: Mapping[str, Expr], arguments: str = "const double *p") -> None:
        """A function of the engine that computes `outputs` from the parameters of a problem (and a config)."""
        tables, lines = statements(name, outputs, symbol_reader(self.family), lambda place: f"out[{place}]", self.op_tables)
        unused = [f"    (void){item.rsplit('*', 1)[1]};" for item in (MODEL, *arguments.split(", "), "double *out")]
        body = "\n".join([*unused, *lines])
        self.add(f"{tables}static void {name}({MODEL}, {arguments}, double *out) {{\n{body}\n}}\n")

    def head(self) -> str:
        """What stands before the engine's own types."""
        return define(**self.sizes) + "".join(f"typedef {kind} {name};\n" for name, kind in self.types.items())

    def text(self) -> str:
        """The tables, the functions, and the constant that the engine reads."""
        fields = "".join(f"    .{name} = {value},\n" for name, value in self.fields.items())
        return f"{''.join(self.parts)}static const kc_model kc_this = {{\n{fields}}};\n\n"


def space_tables(artefact: Artefact, out: CModel) -> None:
    """Every parameter with its rule, the order of reading, the conditions, and the trained ranges."""
    family = artefact.model.family
    if any(isinstance(item, Bool) for space in (family.problem, family.config) for item in space.parameters.values()):
        out.add('static const char *const kc_flags[2] = {"false", "true"};\n')
    for word, space in (("problem", family.problem), ("config", family.config)):
        order = [list(space.parameters).index(name) for name in space.reading_order]
        out.add(parameter_table(f"kc_{word}_parameters", parameter_rows(space)) + array("int32_t", f"kc_{word}_order", order))
        out.add(_applies(f"kc_{word}_applies", space) + _usual(f"kc_{word}_usual", space))
        out.fields[word] = f"{{kc_{word}_parameters, kc_{word}_order, {len(space.parameters)}}}"
    out.add(packaged("spaces.c"))
    # A formula reads parameters by their places, and C has no empty arrays.
    out.sizes |= {"KC_MOST_PROBLEM": len(family.problem.parameters), "KC_MOST_CONFIG": len(family.config.parameters) + 1}
    out.add(parameter_table("kc_hull", hull_rows(artefact)))
    facts = fact_rows(artefact)
    rows = [f"{{{place}, {c_integer(step)}, {c_integer(rest)}, {c_string(words)}}}" for place, step, rest, words in facts]
    out.rows("kc_fact", "facts", rows, nothing="{0, 1, 0, NULL}")
    out.fields |= {"hull": "kc_hull", "fact_count": len(facts)}


def rule_functions(artefact: Artefact, out: CModel) -> None:
    """Which rule of the op is broken, which of the family for any config, and which by a config."""
    read = symbol_reader(artefact.model.family)
    functions = {"rules": "kc_broken_rule", "family_rules": "kc_unsupported", "config_rules": "kc_broken_config_rule"}
    for name, rules in artefact.rules.items():
        function, of = functions[name], ("p", "c") if name == "config_rules" else ("p",)
        out.rows("char *const", name, (c_string(rule.sentence) for rule in rules), nothing="NULL")
        out.add(_first_broken(function, rules, read, of))


def _first_broken(name: str, rules: list[BoundRule], read: Callable[[str], str], of: tuple[str, ...]) -> str:
    """The number of the first rule that a problem (or a problem and a config) breaks, or -1."""
    outputs = {rule.name: rule.holds for rule in rules}
    tables, lines = statements(name, outputs, read, lambda place: f"const double r{place}")
    lines += [f"    if (r{place} == 0.0) return {place};" for place in range(len(rules))]
    unused = ", ".join(f"(void){item}" for item in ("m", *of))
    body = "\n".join([f"    {unused};", *lines, "    return -1;"])
    arguments = ", ".join(["const kc_model *m", *(f"const double *{item}" for item in of)])
    return f"{tables}static int32_t {name}({arguments}) {{\n{body}\n}}\n"


def parameter_table(name: str, rows: Sequence[ParameterRow]) -> str:
    """An array of `kc_parameter`, with what it points to."""
    text, structs = "", []
    for place, row in enumerate(rows):
        own, labels = f"{name}_{place}", "kc_flags" if row.flag else "NULL"
        if row.listed:
            text += array("int64_t", own, row.listed)
        if row.labels:
            labels = f"{own}_labels"
            text += f"static const char *const {labels}[{len(row.labels)}] = {{{', '.join(map(c_string, row.labels))}}};\n"
        numbers = ", ".join(map(c_integer, (row.low, row.high, row.step)))
        structs.append(
            f"{{{c_string(row.name)}, {c_string(row.rule)}, {numbers}, {own if row.listed else 'NULL'}, {len(row.listed)}, "
            f"{c_integer(row.otherwise)}, {int(row.conditional)}, {int(row.optional)}, {c_number(row.inactive)}, {labels}}}"
        )
    return text + listing("kc_parameter", name, structs, '{"", "", 0, 0, 1, NULL, 0, 0, 0, 0, 0.0, NULL}')


def _applies(name: str, space: Space) -> str:
    """Whether a conditional parameter applies, from the numbers of those before it."""
    text, cases = _computed(name, space, {item: space.active[item] for item in space.condition_order}, " != 0.0")
    body = f"    switch (i) {{\n{cases}    default: return 1;\n    }}\n" if cases else "    (void)i, (void)p;\n    return 1;\n"
    return f"{text}static int {name}(int32_t i, const double *p) {{\n{body}}}\n"


def _usual(name: str, space: Space) -> str:
    """Whether a value of an optional parameter is the usual one, which is read as missing."""
    programs = {item: program for item, program in space.optional.items() if program is not None}
    text, cases = _computed(name, space, programs, " == (double)value", ", int64_t value", ", value")
    body = (
        f"    switch (i) {{\n{cases}    default: return 0;\n    }}\n"
        if cases
        else "    (void)i, (void)p, (void)value;\n    return 0;\n"
    )
    return f"{text}static int {name}(int32_t i, const double *p, int64_t value) {{\n{body}}}\n"


def _computed(
    name: str, space: Space, programs: Mapping[str, Program], test: str, declared: str = "", passed: str = ""
) -> tuple[str, str]:
    """A function for each parameter that tests the number its program computes, and the cases that call them."""
    text, cases = "", ""
    index = list(space.parameters)
    for parameter, program in programs.items():
        own = f"{name}_{index.index(parameter)}"
        tables, lines = statements(
            own,
            program.outputs,
            lambda symbol: f"p[{index.index(symbol.split('.', 1)[1])}]",
            lambda _: "const double found",
        )
        body = "\n".join([*lines, f"    return found{test};"])
        text += f"{tables}static int {own}(const double *p{declared}) {{\n{body}\n}}\n"
        cases += f"    case {index.index(parameter)}: return {own}(p{passed});\n"
    return text, cases


LEARNERS = "kerncast.learning.learners"
BUFFERS = ("in", "a", "b", "d", "raw")


def written(lowered: Level | Lines | Network, scope: CScope) -> CSource:
    """The C of a learner that is lowered."""
    match lowered:
        case Level():
            return CSource(learn_function(f"    raw[0] = {c_number(lowered.value)};\n"))
        case Lines():
            return _lines(lowered, scope)
        case Network():
            return _network(lowered, scope)


def _lines(lines: Lines, scope: CScope) -> CSource:
    problems = len(scope.family.problem.parameters)
    text = scope.sealed.array("double", "kc_line_keys", lines.keys.ravel())
    text += scope.sealed.array("double", "kc_lines", lines.lines.ravel())
    reads = [f"p[{place}]" if place < problems else f"c[{place - problems}]" for place in lines.reads]
    body = f"    const double key[{max(1, len(reads))}] = {{{', '.join(reads) or '0'}}};\n"
    sizes, size = f"{len(lines.keys)}, {len(lines.reads)}", f"v[{scope.values[lines.size]}]"
    body += f"    raw[0] = kc_encode(kc_line_time(kc_line_keys, kc_lines, {sizes}, key, {size}), v);\n"
    return CSource(text + packaged_c(LEARNERS, "lines.c") + learn_function(body))


def _network(network: Network, scope: CScope) -> CSource:
    text, width = network.scaling.in_c()
    text += scope.sealed.array("double", "kc_weights", network.weights)
    body, widest = [], {0: width}
    for operation, source, offset, rows, first, bias, columns, rectify, target in network.steps:
        given, result = BUFFERS[source] + (f" + {offset}" if offset else ""), BUFFERS[target]
        if operation == DENSE:
            shift = "NULL" if bias < 0 else f"kc_weights + {bias}"
            body.append(f"kc_dense({given}, {rows}, kc_weights + {first}, {shift}, {columns}, {rectify}, {result});")
        else:
            body.append(f"for (int32_t i = 0; i < {columns}; i++) {result}[i] {'+=' if operation == ADD else '='} {given}[i];")
        widest[target] = max(widest.get(target, 0), columns)
    buffers = [f"{BUFFERS[number]}[{size}]" for number, size in sorted(widest.items()) if number != RAW]
    body = [f"double {', '.join(buffers)};", "kc_scale(x, in);", *body]
    body.append(f"raw[0] = raw[0] * {c_number(network.spread)} + {c_number(network.middle)};")
    function = learn_function("".join(f"    {line}\n" for line in body))
    if network.blend is None:
        return CSource(text + function)
    own, other = (c_number(share) for share in network.blend)
    return CSource(text + function, network.outputs, f"{own} * kc_log_time(raw[0], v) + {other} * raw[1]")


def scaling_columns(network: Network) -> tuple[np.ndarray, np.ndarray, list[tuple[int, float]]]:
    """What a network reads: (feature, in log space), means and deviations; and (feature, code) of each column for a label."""
    arrays = network.scaling.arrays
    codes, wide = np.asarray(arrays["codes"]), np.asarray(arrays["wide"])
    plain, labelled = np.flatnonzero(codes[:, 0] < 0), np.flatnonzero(codes[:, 0] >= 0)
    coded = [(int(place), float(code)) for place in labelled for code in codes[place][codes[place] >= 0]]
    spread = np.column_stack([np.asarray(arrays[name])[plain] for name in ("mean", "deviation")])
    return np.column_stack([plain, wide[plain]]), spread, coded
