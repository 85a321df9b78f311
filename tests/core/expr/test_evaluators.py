"""The three evaluators of expr agree; tracing refuses what could not agree."""

import ctypes
import math
import struct
import subprocess
import tempfile
from pathlib import Path

import numpy as np
import polars as pl
import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from kerncast.core.expr import (
    ConstantTable,
    Program,
    Symbol,
    absolute,
    ceil,
    ceil_div,
    constant,
    floor,
    floor_div,
    log1p,
    log2,
    lookup,
    maximum,
    minimum,
    mod,
    sqrt,
    substitute,
    symbol,
    where,
)
from kerncast.core.expr.nodes import as_expr
from kerncast.core.expr.program import FEW_ROWS
from kerncast.errors import InvalidValue
from kerncast.testing import repeats

NAMES = ("p.a", "p.b", "c.x", "hw.n")
SYMBOLS = [symbol(Symbol(name)) for name in NAMES]
TABLE = ConstantTable.of([[1.0, -2.5, 3.0], [0.0, 1e300, 7.0]])

NUMBERS = st.one_of(
    st.floats(allow_nan=True, allow_infinity=True),
    st.sampled_from([0.0, -0.0, 1.0, -1.0, 2.0, 0.5, 7919.0, 104729.0, 2.0**53, -(2.0**53) - 2, 1e308, -1e308, 5e-324, 1e-310]),
    st.integers(-(2**40), 2**40).map(float),
)
CONSTANTS = st.one_of(st.integers(-100, 100), st.sampled_from([0.5, 1e308, -1e308, 2.0**-1022, 3.7]))


def _grow(children):
    pair = st.tuples(children, children)
    return st.one_of(
        pair.map(lambda x: x[0] + x[1]),
        pair.map(lambda x: x[0] - x[1]),
        pair.map(lambda x: x[0] * x[1]),
        pair.map(lambda x: x[0] / x[1]),
        pair.map(lambda x: ceil_div(*x)),
        pair.map(lambda x: floor_div(*x)),
        pair.map(lambda x: mod(*x)),
        pair.map(lambda x: minimum(*x)),
        pair.map(lambda x: maximum(*x)),
        pair.map(lambda x: x[0] < x[1]),
        pair.map(lambda x: x[0] <= x[1]),
        pair.map(lambda x: x[0] == x[1]),
        pair.map(lambda x: x[0] != x[1]),
        pair.map(lambda x: x[0] & x[1]),
        pair.map(lambda x: x[0] | x[1]),
        pair.map(lambda x: lookup(TABLE, *x)),
        st.tuples(children, children, children).map(lambda x: where(*x)),
        children.map(lambda x: ~x),
        children.map(lambda x: -x),
        children.map(absolute),
        children.map(floor),
        children.map(ceil),
    )


EXACT = st.recursive(st.one_of(st.sampled_from(SYMBOLS), CONSTANTS.map(constant)), _grow, max_leaves=12)
INEXACT = st.tuples(st.sampled_from([log2, log1p, sqrt]), EXACT).map(lambda x: x[0](x[1]))


def run_c(program, rows):
    """The outputs of the generated C for each row of symbol values."""
    with tempfile.TemporaryDirectory() as folder:
        source, library = Path(folder, "f.c"), Path(folder, "f.so")
        source.write_text(program.c_source("f"))
        flags = ["-std=c99", "-O2", "-ffp-contract=off", "-Wall", "-Wextra", "-Werror", "-Wno-unused-function"]
        subprocess.run(["gcc", *flags, "-shared", "-fPIC", source, "-o", library, "-lm"], check=True)
        function = ctypes.CDLL(str(library)).f
        results = []
        for row in rows:
            values = (ctypes.c_double * max(len(program.symbols), 1))(*(row[item.name] for item in program.symbols))
            outputs = (ctypes.c_double * len(program.outputs))()
            function(values, outputs)
            results.append(list(outputs))
        return results


def steps_apart(a, b):
    """How many representable numbers lie between two finite floats."""

    def rank(x):
        bits = struct.unpack("<q", struct.pack("<d", x))[0]
        return bits if bits >= 0 else -(bits & 0x7FFFFFFFFFFFFFFF)

    return abs(rank(a) - rank(b))


@settings(max_examples=repeats(40, 5_000), suppress_health_check=[HealthCheck.too_slow, HealthCheck.data_too_large])
@given(
    exact=st.lists(EXACT, min_size=1, max_size=15),  # many in a program: most of an example's time is the compiler's start
    inexact=st.lists(INEXACT, max_size=9),
    rows=st.lists(st.fixed_dictionaries(dict.fromkeys(NAMES, NUMBERS)), min_size=1, max_size=12),
)
def test_columns_c_and_scalars_agree_on_random_graphs_and_inputs(exact, inexact, rows):
    """Bit for bit in arithmetic (zeros have no sign), within 2 ulp in logs and roots, always finite."""
    outputs = {f"exact{i}": expr for i, expr in enumerate(exact)} | {f"inexact{i}": expr for i, expr in enumerate(inexact)}
    program = Program(outputs)
    frame = pl.DataFrame(rows, schema=dict.fromkeys(NAMES, pl.Float64))
    assert_agreement(program, rows, frame)


def assert_agreement(program, rows, frame):
    """All three evaluators on all rows; outputs named inexact… may differ in the last two bits."""
    by_columns = program.frame(frame).rows()
    by_c = run_c(program, rows)
    many = program.columns(pl.concat([frame] * (FEW_ROWS + 1)))  # a row alone has the numbers that it has among many
    assert np.array_equal(many[: frame.height], np.concatenate([program.columns(frame[i]) for i in range(frame.height)]))
    for row, column_row, c_row in zip(rows, by_columns, by_c, strict=True):
        by_scalar = program.scalar(row)
        for name, from_columns, from_c in zip(program.outputs, column_row, c_row, strict=True):
            assert math.isfinite(by_scalar[name])
            allowed = 2 if name.startswith("inexact") else 0
            assert steps_apart(by_scalar[name], from_c) <= allowed, (name, program.outputs[name], row)
            assert steps_apart(by_scalar[name], from_columns) <= allowed, (name, program.outputs[name], row)


def test_every_operation_agrees_on_thousands_of_values_with_a_constant_on_either_side():
    """Where engines cut corners: a column divided by a constant is not the column times its reciprocal."""
    rng = np.random.default_rng(0)
    scale = 10.0 ** rng.integers(-3, 12, 2000)
    whole = np.round(rng.random(2000) * scale)
    frame = pl.DataFrame({"p.a": rng.standard_normal(2000) * scale, "p.b": whole}).with_columns(pl.lit(7.0).alias("c.x"))
    a, b, x = SYMBOLS[0], SYMBOLS[1], SYMBOLS[2]
    outputs = {}
    for number in (3, 7, 0.1, 2.039e12, 1e9, -1.7):
        for name, left, right in (("ac", a, number), ("ca", number, a), ("bc", b, number), ("xc", x, number)):
            outputs |= {
                f"{name}{number}{symbol}": result
                for symbol, result in {
                    "+": as_expr(left) + right, "-": as_expr(left) - right, "*": as_expr(left) * right,
                    "/": as_expr(left) / right, "%": mod(left, right), "ceil": ceil_div(left, right),
                    "<": as_expr(left) < right, "min": minimum(left, right),
                }.items()
            }  # fmt: skip
    outputs |= {"a/b": a / b, "b/a": b / a, "a/x": a / x, "b%x": b % x, "x/b": x / b, "nested": (a / 3 + b / 7) / (x * 0.1)}
    outputs |= {f"inexact {f.__name__}": f(b / 3) for f in (log2, log1p, sqrt)}
    assert_agreement(Program(outputs), frame.to_dicts(), frame)


@settings(max_examples=repeats(60, 5_000))
@given(expr=EXACT, row=st.fixed_dictionaries(dict.fromkeys(NAMES, NUMBERS)), fixed=st.sets(st.sampled_from(NAMES)))
def test_binding_symbols_first_gives_the_same_answer(expr, row, fixed):
    """Folding constants early is only an optimisation."""
    program = Program({"y": expr})
    bound = program.bind({name: row[name] for name in fixed})
    assert not {item.name for item in bound.symbols} & fixed
    assert bound.scalar(row)["y"] == program.scalar(row)["y"]


@pytest.mark.parametrize(
    "discrete", [floor, ceil, lambda x: x < 3, lambda x: x == 1, lambda x: where(x, 1, 2), lambda x: x % 4]
)
@pytest.mark.parametrize("inexact", [log2, log1p, sqrt])
def test_discrete_functions_of_logs_and_roots_are_refused(discrete, inexact):
    """A last-bit difference must never become a whole one."""
    with pytest.raises(InvalidValue, match="of a log or a root is refused"):
        discrete(inexact(SYMBOLS[0]) + 1)


def test_shared_subexpressions_are_one_node_and_are_computed_once():
    """Equal arithmetic is the same object, whatever the order of commutative operands."""
    a, b = SYMBOLS[0], SYMBOLS[1]
    assert (a + b) is (b + a)
    x = a + b
    for _ in range(60):  # a tree would have 2^60 nodes
        x = x * x + b
    program = Program({"x": x})
    assert program.frame(pl.DataFrame({"p.a": [0.0], "p.b": [0.0]})).item() == 0.0
    assert program.c_source("f").count("const double t") < 150


def test_a_graphs_hash_is_stable_and_sensitive():
    """The digest is pinned: it may only change with the meaning of stored graphs."""
    a, kind = SYMBOLS[0], symbol(Symbol("c.kind", (("x", 0), ("y", 1)), inactive=2.0))
    program = Program({"f": where(kind == "y", a / 3, lookup(ConstantTable.of([1, 2]), a)), "g": log2(a)})
    assert program.digest == "556c161f76cfefacb0f5c9a2cbe07d8b"
    renumbered = symbol(Symbol("c.kind", (("x", 1), ("y", 0)), inactive=2.0))
    assert Program({"f": kind}).digest != Program({"f": renumbered}).digest
    assert Program({"f": a, "g": a}).digest != Program({"g": a, "f": a}).digest


def test_labels_inactive_values_and_missing_ones_read_alike_everywhere():
    """A label reads as its code, an inactive parameter as its declared number, a missing key is an error."""
    kind = symbol(Symbol("c.kind", (("triton", 0), ("library", 7))))
    block = symbol(Symbol("c.BLOCK", inactive=-1.0))
    program = Program({"kind": kind, "block": block, "is_library": kind == "library"})
    frame = pl.DataFrame({"c.kind": ["triton", "library"], "c.BLOCK": [64, None]})
    assert program.frame(frame).rows() == [(0.0, 64.0, 0.0), (7.0, -1.0, 1.0)]
    assert program.scalar({"c.kind": "library", "c.BLOCK": None}) == {"kind": 7.0, "block": -1.0, "is_library": 1.0}
    with pytest.raises(InvalidValue, match=r"no value was given for c\.BLOCK"):
        program.scalar({"c.kind": "library"})
    with pytest.raises(InvalidValue, match="undeclared label 'cutlass'"):
        program.frame(pl.DataFrame({"c.kind": ["cutlass"], "c.BLOCK": [1]}))
    with pytest.raises(InvalidValue, match="1 empty cells"):
        program.frame(pl.DataFrame({"c.kind": [None], "c.BLOCK": [1]}, schema={"c.kind": pl.String, "c.BLOCK": pl.Int64}))
    with pytest.raises(InvalidValue, match="no label 'cutlass'"):
        kind == "cutlass"  # noqa: B015


def test_python_control_flow_on_a_traced_value_teaches_the_alternative():
    """`if p.M > 3` would trace one branch only."""
    with pytest.raises(TypeError, match=r"where\(test, a, b\)"):
        bool(SYMBOLS[0] > 3)


def test_a_constant_output_has_one_value_per_row():
    """Features that read no symbol still fill a column, for no rows, one and many."""
    program = Program({"two": 2})
    for rows in (0, 1, 3):
        frame = pl.DataFrame({"any": [0.0] * rows})
        assert program.frame(frame).rows() == [(2.0,)] * rows
        assert program.columns(frame).tolist() == [[2.0]] * rows


def test_substitute_replaces_a_symbol_by_an_expression():
    """How a device's rate by dtype becomes a lookup in the problem's dtype."""
    (doubled,) = substitute([SYMBOLS[0] + 1], {"p.a": SYMBOLS[1] * 2})
    assert Program({"y": doubled}).scalar({"p.b": 5.0}) == {"y": 11.0}


def test_a_refusal_of_a_huge_graph_is_quick():
    """Written out as a tree it would have 2^60 terms."""
    x = log2(SYMBOLS[0])
    for _ in range(60):
        x = x + x * SYMBOLS[1]
    with pytest.raises(InvalidValue, match="of a log or a root is refused"):
        floor(x)
