"""What a feature may read, symbols as attributes (`p.M`, `c.tile_m`, `hw.num_cus`), and call besides the operators.

The functions accept nodes and plain numbers.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from functools import reduce

from kerncast.core.expr.nodes import ConstantTable, Expr, Operand, as_expr, node, table_lookup
from kerncast.errors import NotFound


class Namespace:
    """The symbols of one prefix as attributes: `p.M` while tracing."""

    def __init__(self, owner: str, entries: Mapping[str, Expr]) -> None:
        self._owner = owner
        self._entries = dict(entries)

    def __getattr__(self, name: str) -> Expr:
        if name.startswith("__"):
            raise AttributeError(name)
        if name not in self._entries:
            raise NotFound.named(f"symbol of {self._owner}", name, self._entries)
        return self._entries[name]

    def __iter__(self) -> Iterator[str]:
        return iter(self._entries)


def values_of(p: Namespace, *names: str) -> dict[str, Expr]:
    """Symbols by their own names, as features."""
    return {name: getattr(p, name) for name in names}


def ceil(x: Operand) -> Expr:
    """The smallest whole number ≥ x."""
    return node("ceil", x)


def floor(x: Operand) -> Expr:
    """The largest whole number ≤ x."""
    return node("floor", x)


def ceil_div(a: Operand, b: Operand) -> Expr:
    """⌈a / b⌉, exact for whole numbers below 2^53; 0 when b is 0."""
    return node("ceil", node("div", a, b))


def floor_div(a: Operand, b: Operand) -> Expr:
    """⌊a / b⌋, exact for whole numbers below 2^53; 0 when b is 0. Also written `a // b`."""
    return node("floor", node("div", a, b))


def mod(a: Operand, b: Operand) -> Expr:
    """a − b·⌊a / b⌋; a when b is 0. Also written `a % b`."""
    return as_expr(a) % b


def minimum(first: Operand, *rest: Operand) -> Expr:
    """The smallest of its arguments."""
    return reduce(lambda a, b: node("min", a, b), rest, as_expr(first))


def maximum(first: Operand, *rest: Operand) -> Expr:
    """The largest of its arguments."""
    return reduce(lambda a, b: node("max", a, b), rest, as_expr(first))


def absolute(x: Operand) -> Expr:
    """x without its sign. Also written `abs(x)`."""
    return node("abs", x)


def sqrt(x: Operand) -> Expr:
    """The square root; 0 for a negative argument."""
    return node("sqrt", x)


def log2(x: Operand) -> Expr:
    """The binary logarithm; an argument that is not positive counts as the smallest positive normal number."""
    return node("log2", x)


def log1p(x: Operand) -> Expr:
    """ln(1 + x); an argument ≤ −1 counts as the number just above −1."""
    return node("log1p", x)


def where(test: Operand, then: Operand, otherwise: Operand) -> Expr:
    """`then` where `test` is not 0, else `otherwise`; both are computed."""
    return node("where", test, then, otherwise)


def power_of_two_in(x: Operand, most: int) -> Expr:
    """The largest power of two, up to `most`, that divides x."""
    found = as_expr(1)
    for exponent in range(1, most.bit_length()):
        found = where(mod(x, 1 << exponent) == 0, 1 << exponent, found)
    return found


def lookup(table: ConstantTable, *indices: Operand) -> Expr:
    """The entry of a constant table; each index is rounded down and clamped to the table."""
    return table_lookup(table, indices)
