"""What a feature may read, symbols as attributes (`p.M`, `c.tile_m`, `hw.num_cus`), and call besides the operators.

The functions accept nodes and plain numbers. Ops and families that a file declares write the same as text (`formula`):
Python's arithmetic, and nothing else of Python.

    ceil_div(rows, block) * 4 <= hw.l1_cache_kb and order == 'rows'

The text is taken apart by Python's own parser and never run. What is not listed here is refused by name.
"""

from __future__ import annotations

import ast
import keyword
import operator
import re
from collections.abc import Callable, Iterator, Mapping
from functools import reduce

from kerncast.core.expr.nodes import ConstantTable, Expr, Operand, as_expr, node, table_lookup
from kerncast.errors import InvalidValue, KerncastError, NotFound, quoted


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


LONGEST = 2_000
DEEPEST = 200
"""Parts within parts. A bound of our own, because Python's is whatever the program around us set it to."""
LARGEST_EXPONENT = 16
LARGEST_NUMBER = 1e300
FUNCTIONS: dict[str, tuple[Callable[..., Expr], int, int | None]] = {
    "abs": (absolute, 1, 1),
    "ceil": (ceil, 1, 1),
    "ceil_div": (ceil_div, 2, 2),
    "floor": (floor, 1, 1),
    "floor_div": (floor_div, 2, 2),
    "log1p": (log1p, 1, 1),
    "log2": (log2, 1, 1),
    "max": (maximum, 1, None),
    "min": (minimum, 1, None),
    "mod": (mod, 2, 2),
    "sqrt": (sqrt, 1, 1),
    "where": (where, 3, 3),
}
"""Name → the function, and its fewest and most arguments."""

_WORDS = ("and", "or", "not", "if", "else")
"""The keywords that a formula may have."""

_BINARY: dict[type[ast.operator], Callable[[Expr, Expr], Expr]] = {
    ast.Add: operator.add, ast.Sub: operator.sub, ast.Mult: operator.mul, ast.Div: operator.truediv,
    ast.FloorDiv: operator.floordiv, ast.Mod: operator.mod,
}  # fmt: skip
_COMPARED: dict[type[ast.cmpop], Callable[[Expr, Operand], Expr]] = {
    ast.Lt: operator.lt, ast.LtE: operator.le, ast.Gt: operator.gt, ast.GtE: operator.ge,
    ast.Eq: operator.eq, ast.NotEq: operator.ne,
}  # fmt: skip


def formula(text: str, spaces: Mapping[str, Namespace]) -> Expr:
    """The traced value of a formula. `spaces` are `p`, `c` and `hw`; a name alone is looked for in `p` and `c`."""
    if len(text) > LONGEST:
        raise InvalidValue(f"a formula has at most {LONGEST:,} characters, got {len(text):,}: split it into several")
    try:
        tree = ast.parse(text.strip(), mode="eval")
        return as_expr(_Reader(text, spaces).read(tree.body))
    except KerncastError:
        raise
    except (SyntaxError, ValueError, RecursionError, MemoryError) as error:
        why = error.msg if isinstance(error, SyntaxError) else "it nests too deeply or holds what is not text"
        reserved = [word for word in re.findall(r"[A-Za-z_]\w*", text) if keyword.iskeyword(word) and word not in _WORDS]
        if reserved:
            why = f"'{reserved[0]}' is a word of its language: give the parameter another name"
        raise InvalidValue(f"'{quoted(text)}' is not a formula ({why})") from error


class _Reader:
    def __init__(self, text: str, spaces: Mapping[str, Namespace]) -> None:
        self.text, self.spaces = text, spaces
        self.depth = 0

    def read(self, node: ast.expr) -> Expr:
        """The value of one part of the text."""
        if self.depth >= DEEPEST:
            raise self._refused(f"it nests more than {DEEPEST} deep: split it into several")
        self.depth += 1
        value = self._part(node)
        self.depth -= 1
        return value

    def _part(self, node: ast.expr) -> Expr:
        if isinstance(node, ast.Constant):
            return self._number(node.value)
        if isinstance(node, ast.Name):
            return self._named(node.id)
        if isinstance(node, ast.Attribute) and isinstance(node.value, ast.Name) and node.value.id in self.spaces:
            return self._entry(node.value.id, node.attr)
        if isinstance(node, ast.BinOp):
            return self._binary(node)
        if isinstance(node, ast.UnaryOp):
            value = self.read(node.operand)
            return ~value if isinstance(node.op, ast.Not) else -value if isinstance(node.op, ast.USub) else value
        if isinstance(node, ast.BoolOp):
            first, *rest = (self.read(value) for value in node.values)
            for value in rest:
                first = first & value if isinstance(node.op, ast.And) else first | value
            return first
        if isinstance(node, ast.Compare):
            return self._compared(node)
        if isinstance(node, ast.IfExp):
            return where(self.read(node.test), self.read(node.body), self.read(node.orelse))
        if isinstance(node, ast.Call):
            return self._called(node)
        raise self._refused(f"{type(node).__name__} is not arithmetic")

    def _number(self, value: object) -> Expr:
        if isinstance(value, str):
            raise self._refused("a label may only be compared, as in mode == 'fast'")
        if not isinstance(value, bool | int | float) or not abs(value) <= LARGEST_NUMBER:
            raise self._refused("a number must be finite and not too large")
        return as_expr(value)

    def _named(self, name: str) -> Expr:
        holders = [space for key, space in self.spaces.items() if key != "hw" and name in space]
        if len(holders) > 1:
            raise self._refused(f"'{name}' is a parameter of the problem and of the config: write p.{name} or c.{name}")
        if not holders:
            known = [other for key, space in self.spaces.items() if key != "hw" for other in space]
            raise NotFound(f"{NotFound.named('name', name, known)}, in the formula '{quoted(self.text)}'")
        found: Expr = getattr(holders[0], name)
        return found

    def _entry(self, space: str, name: str) -> Expr:
        if name.startswith("_") or name not in self.spaces[space]:
            raise NotFound(f"{NotFound.named(f'name in {space}', name, self.spaces[space])}, in '{quoted(self.text)}'")
        found: Expr = getattr(self.spaces[space], name)
        return found

    def _binary(self, node: ast.BinOp) -> Expr:
        if isinstance(node.op, ast.Pow):
            times = node.right.value if isinstance(node.right, ast.Constant) else None
            if type(times) is not int or not 1 <= times <= LARGEST_EXPONENT:
                raise self._refused(f"an exponent is a whole number from 1 to {LARGEST_EXPONENT}")
            base = value = self.read(node.left)
            for _ in range(times - 1):
                value = value * base
            return value
        if type(node.op) not in _BINARY:
            raise self._refused(f"the operator {type(node.op).__name__} is not arithmetic")
        return _BINARY[type(node.op)](self.read(node.left), self.read(node.right))

    def _compared(self, node: ast.Compare) -> Expr:
        parts = [node.left, *node.comparators]
        found: Expr | None = None
        for place, sign in enumerate(node.ops):
            one = self._pair(parts[place], parts[place + 1], sign)
            found = one if found is None else found & one
        assert found is not None
        return found

    def _pair(self, left: ast.expr, right: ast.expr, sign: ast.cmpop) -> Expr:
        if type(sign) not in _COMPARED:
            raise self._refused(f"the comparison {type(sign).__name__} is not known")
        label = next(
            (side.value for side in (left, right) if isinstance(side, ast.Constant) and isinstance(side.value, str)), None
        )
        if label is None:
            return _COMPARED[type(sign)](self.read(left), self.read(right))
        if not isinstance(sign, ast.Eq | ast.NotEq):
            raise self._refused("labels have no order: compare them with == or !=")
        other = right if isinstance(left, ast.Constant) else left
        return _COMPARED[type(sign)](self.read(other), label)

    def _called(self, node: ast.Call) -> Expr:
        name = node.func.id if isinstance(node.func, ast.Name) else ""
        if name not in FUNCTIONS:
            raise NotFound(f"{NotFound.named('function', name or '?', FUNCTIONS)}, in the formula '{quoted(self.text)}'")
        function, fewest, most = FUNCTIONS[name]
        if node.keywords or len(node.args) < fewest or (most is not None and len(node.args) > most):
            count = f"{fewest}" if most == fewest else f"at least {fewest}" if most is None else f"{fewest} to {most}"
            raise self._refused(f"{name} takes {count} arguments without names")
        return function(*(self.read(item) for item in node.args))

    def _refused(self, why: str) -> InvalidValue:
        return InvalidValue(f"{why}, in the formula '{quoted(self.text)}'")
