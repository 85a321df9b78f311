"""The C99 compiler: one function, every shared subexpression a local constant.

Build it with `-ffp-contract=off` (a fused multiply-add rounds once where we round twice) and without
`-ffast-math`. Symbols arrive as doubles in name order, labels already as their codes.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from functools import cache

from kerncast.core.expr import nodes as meaning
from kerncast.core.expr.nodes import ConstantTable, Expr, Symbol, topological
from kerncast.core.io.quoting import c_number, comment, filled, packaged_c

_TEMPLATES = {
    "add": "kc_saturate({0} + {1})",
    "sub": "kc_saturate({0} - {1})",
    "mul": "kc_saturate({0} * {1})",
    "div": "kc_div({0}, {1})",
    "min": "kc_min({0}, {1})",
    "max": "kc_max({0}, {1})",
    "abs": "fabs({0})",
    "floor": "floor({0})",
    "ceil": "ceil({0})",
    "sqrt": "kc_sqrt({0})",
    "log2": "kc_log2({0})",
    "log1p": "kc_log1p({0})",
    "lt": "(double)({0} < {1})",
    "le": "(double)({0} <= {1})",
    "eq": "(double)({0} == {1})",
    "and": "(double)({0} != 0.0 && {1} != 0.0)",
    "or": "(double)({0} != 0.0 || {1} != 0.0)",
    "not": "(double)({0} == 0.0)",
    "where": "({0} != 0.0 ? {1} : {2})",
}


@cache
def prelude() -> str:
    """What generated functions call: the meaning of each operation, as `nodes.py` has it."""
    numbers = {"largest": meaning.LARGEST, "smallest": meaning.SMALLEST, "ln_two": meaning.LN2,
               "above_minus_one": meaning.ABOVE_MINUS_ONE}  # fmt: skip
    return filled(packaged_c(__package__, "prelude.c"), "kerncast", **{name: value.hex() for name, value in numbers.items()})


def _table(name: str, table: ConstantTable) -> str:
    rows = [", ".join(map(c_number, table.values[i : i + 6])) for i in range(0, len(table.values), 6)]
    body = ",\n    ".join(rows)
    return f"static const double {name}[{len(table.values)}] = {{\n    {body}\n}};\n"


def generate(function: str, outputs: Mapping[str, Expr], symbols: Sequence[Symbol]) -> str:
    """`void function(const double *symbols, double *outputs)` and the tables it reads."""
    position = {declared.name: index for index, declared in enumerate(symbols)}
    tables, lines = statements(
        function, outputs, lambda name: f"kc_read(symbols[{position[name]}])", lambda place: f"outputs[{place}]"
    )
    unused = "" if symbols else "    (void)symbols;\n"
    body = "\n".join(lines)
    return f"{tables}void {function}(const double *symbols, double *outputs) {{\n{unused}{body}\n}}\n"


def statements(
    function: str,
    outputs: Mapping[str, Expr],
    read: Callable[[str], str],
    write: Callable[[int], str],
    shared: dict[ConstantTable, str] | None = None,
) -> tuple[str, list[str]]:
    """The body of a function that computes `outputs`, and the tables it reads (named after the function).

    `read` says how a symbol is read, `write` where an output goes. Tables in `shared` are already in the file under
    those names; new ones are added to it.
    """
    names: dict[bytes, str] = {}
    known: dict[ConstantTable, str] = {} if shared is None else shared
    tables: dict[ConstantTable, str] = {}
    lines: list[str] = []
    for expr in topological(list(outputs.values())):
        if isinstance(expr.payload, float):
            names[expr.digest] = c_number(expr.payload)
            continue
        args = [names[arg.digest] for arg in expr.args]
        if isinstance(expr.payload, Symbol):
            text = read(expr.payload.name)
        elif isinstance(expr.payload, ConstantTable):
            if expr.payload not in known:
                known[expr.payload] = tables[expr.payload] = f"{function}_table{len(tables)}"
            table = known[expr.payload]
            offset = "0"
            for size, arg in zip(expr.payload.shape, args, strict=True):
                offset = f"({offset}) * {size} + kc_index({arg}, {size})"
            text = f"{table}[{offset}]"
        else:
            text = _TEMPLATES[expr.kind].format(*args)
        names[expr.digest] = f"t{len(lines)}"
        lines.append(f"    const double {names[expr.digest]} = {text};")
    lines += [
        f"    {write(i)} = {names[expr.digest]};  /* {comment(name)} */" for i, (name, expr) in enumerate(outputs.items())
    ]
    return "".join(_table(name, table) for table, name in tables.items()), lines
