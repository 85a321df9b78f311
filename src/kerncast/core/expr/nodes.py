"""The graph: immutable, hash-consed nodes, each with a digest that is the same on every machine; and what operations mean.

What each operation means is said on Python floats. The column and C compilers reproduce it bit for bit. The arithmetic is
total and never leaves the finite numbers, because a model must never see a NaN:

- overflow saturates at ±1.797e308; NaN as an input reads as 0, infinities as the saturated number;
- anything divided by zero is 0 (and so are `floor_div`, `ceil_div`; `mod` by zero is its first argument);
- a root of a negative number is 0; a log clamps its argument to the smallest positive normal number,
  `log1p` to the number just above -1;
- a table index is rounded down and clamped to the table.

The sign of a zero cannot be observed through any of these, and is not part of the meaning.
"""

from __future__ import annotations

import hashlib
import math
import struct
import sys
import weakref
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any, Union

from kerncast.errors import InvalidValue

LARGEST = sys.float_info.max
SMALLEST = sys.float_info.min
ABOVE_MINUS_ONE = math.nextafter(-1.0, 0.0)
LN2 = math.log(2.0)


def saturate(x: float) -> float:
    """`x`, or the nearest finite number."""
    if x > LARGEST:
        return LARGEST
    return -LARGEST if x < -LARGEST else x


def read_number(x: float) -> float:
    """A number from outside, as every evaluator sees it."""
    try:
        value = float(x)
    except OverflowError:  # an integer beyond the float range
        return LARGEST if x > 0 else -LARGEST
    except (TypeError, ValueError) as error:
        raise InvalidValue(f"a formula reads numbers, got {x!r}") from error
    return 0.0 if math.isnan(value) else saturate(value)


def _divide(a: float, b: float) -> float:
    return 0.0 if b == 0.0 else saturate(a / b)


# log2 is ln(x) / ln 2 in all three evaluators: dataframe engines have no log2 of their own.
OPERATIONS: dict[str, Callable[..., float]] = {
    "add": lambda a, b: saturate(a + b),
    "sub": lambda a, b: saturate(a - b),
    "mul": lambda a, b: saturate(a * b),
    "div": _divide,
    "min": lambda a, b: b if b < a else a,
    "max": lambda a, b: b if b > a else a,
    "abs": abs,
    "floor": lambda a: float(math.floor(a)),
    "ceil": lambda a: float(math.ceil(a)),
    "sqrt": lambda a: math.sqrt(a) if a > 0.0 else 0.0,
    "log2": lambda a: math.log(max(a, SMALLEST)) / LN2,
    "log1p": lambda a: math.log1p(max(a, ABOVE_MINUS_ONE)),
    "lt": lambda a, b: float(a < b),
    "le": lambda a, b: float(a <= b),
    "eq": lambda a, b: float(a == b),
    "and": lambda a, b: float(a != 0.0 and b != 0.0),
    "or": lambda a, b: float(a != 0.0 or b != 0.0),
    "not": lambda a: float(a == 0.0),
    "where": lambda test, a, b: a if test != 0.0 else b,
}


def table_offset(shape: tuple[int, ...], indices: tuple[float, ...]) -> int:
    """Where a lookup reads: row-major, each index rounded down and clamped to its side."""
    offset = 0
    for size, index in zip(shape, indices, strict=True):
        clamped = min(max(math.floor(index), 0), size - 1)
        offset = offset * size + clamped
    return offset


COMMUTATIVE = frozenset({"add", "mul", "min", "max", "eq", "and", "or"})
BOOLEAN = frozenset({"lt", "le", "eq", "and", "or", "not"})
INEXACT = frozenset({"log2", "log1p", "sqrt"})
# How many leading arguments of these operations can turn a last-bit difference into a difference of one.
DISCRETE = {"floor": 1, "ceil": 1, "lt": 2, "le": 2, "eq": 2, "and": 2, "or": 2, "not": 1, "where": 1}

Operand = Union["Expr", float, int, bool, str]


@dataclass(frozen=True, slots=True)
class Symbol:
    """A value that comes from outside: `p.*`, `c.*` or `hw.*`.

    `codes` are the numbers of a categorical's labels; `inactive` is what the symbol reads as when its
    parameter does not apply (None: it always applies).
    """

    name: str
    codes: tuple[tuple[str, int], ...] = ()
    inactive: float | None = None


@dataclass(frozen=True, slots=True)
class ConstantTable:
    """A constant array, row-major, declared with an op and hashed with every graph that reads it."""

    shape: tuple[int, ...]
    values: tuple[float, ...]

    def __post_init__(self) -> None:
        if not self.shape or math.prod(self.shape) != len(self.values) or not self.values:
            raise InvalidValue(f"a table of shape {self.shape} needs {math.prod(self.shape)} values, got {len(self.values)}")
        object.__setattr__(self, "values", tuple(float(value) for value in self.values))
        if not all(math.isfinite(value) for value in self.values):
            raise InvalidValue("a table holds finite numbers only: replace the NaN or infinity")

    @classmethod
    def of(cls, nested: Sequence[Any]) -> ConstantTable:
        """From nested lists, or anything with `tolist()` such as a numpy array."""
        rows: Any = nested.tolist() if hasattr(nested, "tolist") else nested
        shape: list[int] = []
        flat: list[Any] = [rows]
        while isinstance(flat[0], (list, tuple)):
            shape.append(len(flat[0]))
            if any(len(row) != shape[-1] for row in flat):
                raise InvalidValue("a table's rows must all have the same length")
            flat = [item for row in flat for item in row]
            if not flat:
                raise InvalidValue("a table needs at least one value")
        return cls(tuple(shape), tuple(float(value) for value in flat))


Payload = float | Symbol | ConstantTable | None
_interned: weakref.WeakValueDictionary[bytes, Expr] = weakref.WeakValueDictionary()


class Expr:
    """One node. Build it with operators and the functions of `kerncast.core.expr`, never directly."""

    __slots__ = ("__weakref__", "args", "digest", "exact", "kind", "payload")

    kind: str
    args: tuple[Expr, ...]
    payload: Payload
    digest: bytes
    exact: bool

    def __add__(self, other: Operand) -> Expr:
        return node("add", self, other)

    def __radd__(self, other: Operand) -> Expr:
        return node("add", other, self)

    def __sub__(self, other: Operand) -> Expr:
        return node("sub", self, other)

    def __rsub__(self, other: Operand) -> Expr:
        return node("sub", other, self)

    def __mul__(self, other: Operand) -> Expr:
        return node("mul", self, other)

    def __rmul__(self, other: Operand) -> Expr:
        return node("mul", other, self)

    def __truediv__(self, other: Operand) -> Expr:
        return node("div", self, other)

    def __rtruediv__(self, other: Operand) -> Expr:
        return node("div", other, self)

    def __floordiv__(self, other: Operand) -> Expr:
        return node("floor", node("div", self, other))

    def __rfloordiv__(self, other: Operand) -> Expr:
        return node("floor", node("div", other, self))

    def __mod__(self, other: Operand) -> Expr:
        return self - as_expr(other) * (self // other)

    def __rmod__(self, other: Operand) -> Expr:
        return as_expr(other) % self

    def __neg__(self) -> Expr:
        return node("sub", 0.0, self)

    def __abs__(self) -> Expr:
        return node("abs", self)

    def __lt__(self, other: Operand) -> Expr:
        return node("lt", self, other)

    def __le__(self, other: Operand) -> Expr:
        return node("le", self, other)

    def __gt__(self, other: Operand) -> Expr:
        return node("lt", other, self)

    def __ge__(self, other: Operand) -> Expr:
        return node("le", other, self)

    def __eq__(self, other: object) -> Expr:  # type: ignore[override]
        return node("eq", self, _label(self, other))

    def __ne__(self, other: object) -> Expr:  # type: ignore[override]
        return node("not", self == other)

    def __and__(self, other: Operand) -> Expr:
        return node("and", self, other)

    def __rand__(self, other: Operand) -> Expr:
        return node("and", other, self)

    def __or__(self, other: Operand) -> Expr:
        return node("or", self, other)

    def __ror__(self, other: Operand) -> Expr:
        return node("or", other, self)

    def __invert__(self) -> Expr:
        return node("not", self)

    __hash__ = object.__hash__

    def __bool__(self) -> bool:
        raise TypeError(
            "a traced value has no truth value while tracing: use `&`, `|`, `~` instead of and/or/not, "
            "where(test, a, b) instead of if, and minimum/maximum instead of min/max"
        )

    def __reduce__(self) -> Any:
        raise TypeError("a traced expression cannot be sent to another process: trace it again there")

    def __repr__(self) -> str:
        return self._words(depth=4)

    def _words(self, depth: int) -> str:
        """As text, cut at some depth: a graph written out as a tree can be exponentially long."""
        if isinstance(self.payload, Symbol):
            return self.payload.name
        if self.kind == "constant":
            return repr(self.payload)
        return f"{self.kind}({', '.join(arg._words(depth - 1) for arg in self.args) if depth else '…'})"


def _label(expr: Expr, other: object) -> Operand:
    """The code of a label, when a categorical symbol is compared with a string."""
    if not isinstance(other, str):
        return other  # type: ignore[return-value]
    codes = dict(expr.payload.codes) if isinstance(expr.payload, Symbol) else {}
    if other not in codes:
        known = ", ".join(codes) or "none: it is not categorical"
        raise InvalidValue(f"{expr!r} has no label '{other}' (its labels: {known})")
    return codes[other]


def _intern(kind: str, args: tuple[Expr, ...], payload: Payload, detail: bytes) -> Expr:
    hasher = hashlib.blake2b(kind.encode(), digest_size=16)
    hasher.update(detail)
    for arg in args:
        hasher.update(arg.digest)
    digest = hasher.digest()
    found = _interned.get(digest)
    if found is None:
        found = object.__new__(Expr)
        found.kind, found.args, found.payload, found.digest = kind, args, payload, digest
        found.exact = kind not in INEXACT and all(arg.exact for arg in args)
        _interned[digest] = found
    return found


def constant(value: float) -> Expr:
    """A literal number."""
    number = float(value) if not isinstance(value, int) else read_number(value)
    if not math.isfinite(number):
        raise InvalidValue(f"a constant must be a finite number, got {value}")
    number += 0.0  # -0.0 becomes 0.0: one zero, one digest
    return _intern("constant", (), number, struct.pack("<d", number))


def symbol(declared: Symbol) -> Expr:
    """The node that reads `declared`."""
    text = repr((declared.name, declared.codes, declared.inactive))
    return _intern("symbol", (), declared, text.encode())


def table_lookup(table: ConstantTable, indices: Sequence[Operand]) -> Expr:
    """The node that reads `table` at `indices`."""
    if len(indices) != len(table.shape):
        raise InvalidValue(f"a lookup in a table of {len(table.shape)} dimensions takes as many indices, got {len(indices)}")
    args = tuple(as_expr(index) for index in indices)
    _refuse_inexact("lookup", args)
    if all(arg.kind == "constant" for arg in args):
        return constant(table.values[table_offset(table.shape, tuple(_number(arg) for arg in args))])
    detail = repr(table.shape).encode() + struct.pack(f"<{len(table.values)}d", *table.values)
    return _intern("lookup", args, table, detail)


def as_expr(value: Operand) -> Expr:
    """An operand of an operator: a node as it is, a number as a constant."""
    if isinstance(value, Expr):
        return value
    if isinstance(value, str):
        raise InvalidValue(f"the label '{value}' can only be compared with == or != to a categorical parameter")
    return constant(value)


def _number(expr: Expr) -> float:
    assert isinstance(expr.payload, float)
    return expr.payload


def _refuse_inexact(kind: str, args: Sequence[Expr]) -> None:
    for arg in args:
        if not arg.exact:
            raise InvalidValue(
                f"{kind} of a log or a root is refused, because a last-bit difference between machines would become a "
                f"difference of one: apply {kind} to the value before its log or root (in {arg!r})"
            )


def _simplify(kind: str, args: tuple[Expr, ...]) -> Expr | None:
    """Simplify a partly constant operation; exact, because every value is finite and zeros have no sign."""
    if kind == "where":
        return (args[1] if _number(args[0]) else args[2]) if args[0].kind == "constant" else None
    if kind in ("and", "or", "add", "mul") and "constant" in (args[0].kind, args[1].kind):
        known, other = args if args[0].kind == "constant" else args[::-1]
        number = _number(known)
        if (kind == "and" and number == 0) or (kind == "mul" and number == 0):
            return constant(0.0)
        if kind == "or" and number != 0:
            return constant(1.0)
        if (kind == "add" and number == 0) or (kind == "mul" and number == 1):
            return other
        if kind in ("and", "or") and other.kind in BOOLEAN:
            return other
    return None


def node(kind: str, *operands: Operand) -> Expr:
    """A node of an operation; folded when every operand is a constant."""
    args = tuple(as_expr(operand) for operand in operands)
    _refuse_inexact(kind, args[: DISCRETE.get(kind, 0)])
    if all(arg.kind == "constant" for arg in args):
        return constant(OPERATIONS[kind](*(_number(arg) for arg in args)))
    simpler = _simplify(kind, args)
    if simpler is not None:
        return simpler
    if kind in COMMUTATIVE:
        args = tuple(sorted(args, key=lambda arg: arg.digest))
    return _intern(kind, args, None, b"")


def topological(outputs: Sequence[Expr]) -> list[Expr]:
    """Every node that `outputs` need, operands before their users, each once."""
    order: list[Expr] = []
    seen: set[bytes] = set()
    stack: list[tuple[Expr, bool]] = [(output, False) for output in reversed(outputs)]
    while stack:
        expr, operands_done = stack.pop()
        if operands_done:
            order.append(expr)
        elif expr.digest not in seen:
            seen.add(expr.digest)
            stack.append((expr, True))
            stack.extend((arg, False) for arg in reversed(expr.args) if arg.digest not in seen)
    # A node pushed twice before its first visit is skipped by `seen`, so `order` has no duplicates.
    return order


def substitute(outputs: Sequence[Expr], values: Mapping[str, Expr]) -> list[Expr]:
    """The same graphs with some symbols replaced by expressions, folded again."""
    rebuilt: dict[bytes, Expr] = {}
    for expr in topological(outputs):
        args = [rebuilt[arg.digest] for arg in expr.args]
        if isinstance(expr.payload, Symbol):
            rebuilt[expr.digest] = values.get(expr.payload.name, expr)
        elif isinstance(expr.payload, ConstantTable):
            rebuilt[expr.digest] = table_lookup(expr.payload, args)
        elif args:
            rebuilt[expr.digest] = node(expr.kind, *args)
        else:
            rebuilt[expr.digest] = expr
    return [rebuilt[output.digest] for output in outputs]


def symbols_of(outputs: Sequence[Expr]) -> list[Symbol]:
    """The symbols that `outputs` read, by name; one name with two declarations is refused."""
    found: dict[str, Symbol] = {}
    for expr in topological(outputs):
        if isinstance(expr.payload, Symbol):
            declared = found.setdefault(expr.payload.name, expr.payload)
            if declared != expr.payload:
                raise InvalidValue(f"the symbol {declared.name} is declared twice, differently: {declared} and {expr.payload}")
    return [found[name] for name in sorted(found)]
