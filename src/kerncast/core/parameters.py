"""The kinds of parameter a space is made of: what values it may take, in which order, by which codes."""

from __future__ import annotations

import dataclasses
import operator
from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from typing import Any

from kerncast.core.expr import Expr, Namespace, Symbol
from kerncast.errors import InvalidValue, quoted

Value = int | bool | str | None

# Characters of a rule that a refusal says: a parameter may have thousands of labels.
LONGEST_RULE = 2_000


@dataclass(frozen=True)
class Computed:
    """A usual value that follows from the parameters that are always there, with a word for it (`packed`)."""

    word: str
    rule: Callable[[Namespace], Expr]


@dataclass(frozen=True, kw_only=True)
class Parameter:
    """What every kind shares.

    `default` fills a missing key once, at the edge (None: a missing key is an error). `when` says in which
    points the parameter applies; where it does not, it is None and reads as the number `inactive`.

    A parameter with a `usual` value is optional: the usual value is stored as None however it is given, and None reads as
    its number (0 if it is computed). So a model knows whether any other value was measured.
    """

    default: Value = None
    when: Callable[[Namespace], Expr] | None = None
    inactive: int = 0
    usual: Value | Computed = None
    spelled: Callable[[str], str | None] | None = field(default=None, compare=False, repr=False)
    """What other tools' spellings of a label mean; for suggestions only."""
    doc: str = ""

    def _settle(self) -> None:
        """The only value that there is need not be given anywhere, and a usual one is what None reads as."""
        if self.usual is not None and not isinstance(self.usual, Computed):
            index = self.index(self.usual)
            if index is None:
                raise InvalidValue(f"the usual value {self.refusal(self.usual)}")
            object.__setattr__(self, "inactive", self.number(index))
        if self.default is None and self.size == 1 and not self.nullable:
            object.__setattr__(self, "default", self.value(0))

    @property
    def optional(self) -> bool:
        """Whether None is one of its values."""
        return self.usual is not None

    @property
    def usual_word(self) -> str:
        """What people call the usual value; empty if there is none."""
        if self.usual is None or isinstance(self.usual, Computed):
            return "" if self.usual is None else self.usual.word
        return str(self.usual).lower() if isinstance(self.usual, bool) else str(self.usual)

    @property
    def nullable(self) -> bool:
        """Whether it may be None: always, or where it does not apply."""
        return self.optional or self.when is not None

    @property
    def size(self) -> int:
        """How many values there are."""
        raise NotImplementedError

    @property
    def ordered(self) -> bool:
        """Whether index steps measure a distance; otherwise any two values are one step apart."""
        return True

    @property
    def codes(self) -> tuple[tuple[str, int], ...]:
        """The declared number of each label; empty for numbers."""
        return ()

    def number(self, index: int) -> int:
        """The value at `index` as the evaluators see it."""
        raise NotImplementedError

    def value(self, index: int) -> int | bool | str:
        """The value at `index` as people see it."""
        return self.number(index)

    def index(self, value: Any) -> int | None:
        """The index of `value`, or None when it is not one of the values."""
        raise NotImplementedError

    def refusal(self, value: Any) -> str:
        """The rule, the value that breaks it, and the value that was probably meant."""
        return f"must be {quoted(self.describe(), LONGEST_RULE)}, got {quoted(repr(value))}{self.suggestion(value)}"

    def suggestion(self, value: Any) -> str:
        """What an error adds about the value that was probably meant; empty if it is not clear."""
        meant = None if self.spelled is None else self.spelled(str(value)[:LONGEST_RULE])
        return f": did you mean '{meant}'?" if meant is not None and self.index(meant) is not None else ""

    def nearest(self, value: Any) -> int:
        """The index of the closest value."""
        found = self.index(value)
        if found is None:
            raise InvalidValue(f"{value!r} is not one of {self.describe()}, and no value is closer than another")
        return found

    def describe(self) -> str:
        """The rule, for error messages and listings."""
        raise NotImplementedError

    def symbol(self, name: str) -> Symbol:
        """How expressions read this parameter."""
        return Symbol(name, self.codes, float(self.inactive) if self.nullable else None)


def _integer(value: Any) -> int | None:
    """A whole number as a Python int (numpy's too), or None. True is not 1 here: a flag is not a tile size."""
    if isinstance(value, bool) or type(value).__name__ in ("bool", "bool_"):
        return None
    try:
        return operator.index(value)
    except TypeError:
        return None


def _declared(*numbers: Any) -> None:
    """Refuse numbers that a declaration cannot hold: they must be whole and fit into 64 bits."""
    for number in numbers:
        if not isinstance(number, int) or isinstance(number, bool) or not -(2**63) <= number < 2**63:
            raise InvalidValue(f"a parameter takes whole numbers of at most 64 bits, got {number!r}")


@dataclass(frozen=True, kw_only=True)
class _Ordered(Parameter):
    """Integers in ascending order."""

    def nearest(self, value: Any) -> int:
        given, value = value, _integer(value)
        if value is None:
            raise InvalidValue(f"a whole number was expected ({self.describe()}), got {given!r}")
        low, high = 0, self.size - 1
        while low < high:
            middle = (low + high) // 2
            if self.number(middle) < value:
                low = middle + 1
            else:
                high = middle
        below = max(low - 1, 0)
        return below if abs(self.number(below) - value) <= abs(self.number(low) - value) else low


@dataclass(frozen=True)
class Int(_Ordered):
    """Whole numbers from `low` to `high`, both included, `step` apart."""

    low: int
    high: int
    step: int = 1

    def __post_init__(self) -> None:
        _declared(self.low, self.high, self.step)
        if self.step < 1 or self.high < self.low:
            raise InvalidValue(f"an integer range needs low ≤ high and step ≥ 1, got {self.low}..{self.high} step {self.step}")
        self._settle()

    @property
    def size(self) -> int:
        return (self.high - self.low) // self.step + 1

    def number(self, index: int) -> int:
        return self.low + index * self.step

    def index(self, value: Any) -> int | None:
        number = _integer(value)
        if number is None or not self.low <= number <= self.high or (number - self.low) % self.step:
            return None
        return (number - self.low) // self.step

    def describe(self) -> str:
        step = f" in steps of {self.step}" if self.step > 1 else ""
        return f"a whole number from {self.low} to {self.high}{step}"


@dataclass(frozen=True)
class PowerOfTwo(_Ordered):
    """Powers of two from `low` to `high`, both included."""

    low: int
    high: int

    def __post_init__(self) -> None:
        _declared(self.low, self.high)
        if self.low < 1 or self.high < self.low or self.low & (self.low - 1) or self.high & (self.high - 1):
            raise InvalidValue(f"a power-of-two range needs two powers of two, low ≤ high, got {self.low}..{self.high}")
        self._settle()

    @property
    def size(self) -> int:
        return self.high.bit_length() - self.low.bit_length() + 1

    def number(self, index: int) -> int:
        return self.low << index

    def index(self, value: Any) -> int | None:
        number = _integer(value)
        if number is None or not self.low <= number <= self.high or number & (number - 1):
            return None
        return number.bit_length() - self.low.bit_length()

    def describe(self) -> str:
        return f"a power of two from {self.low} to {self.high}"


@dataclass(frozen=True, init=False)
class Choice(_Ordered):
    """A few whole numbers, in ascending order."""

    values: tuple[int, ...] = field(default=())

    def __init__(self, *values: int, **shared: Any) -> None:
        _declared(*values)
        if not values or list(values) != sorted(set(values)):
            raise InvalidValue(f"choices must be different whole numbers in ascending order, got {values}")
        super().__init__(**shared)
        object.__setattr__(self, "values", values)
        self._settle()

    @property
    def size(self) -> int:
        return len(self.values)

    def number(self, index: int) -> int:
        return self.values[index]

    def index(self, value: Any) -> int | None:
        number = _integer(value)
        return self.values.index(number) if number in self.values and number is not None else None

    def describe(self) -> str:
        return f"one of {', '.join(map(str, self.values))}"


@dataclass(frozen=True)
class Bool(Parameter):
    """False or true."""

    @property
    def size(self) -> int:
        return 2

    @property
    def ordered(self) -> bool:
        return False

    def number(self, index: int) -> int:
        return index

    def value(self, index: int) -> bool:
        return bool(index)

    def index(self, value: Any) -> int | None:
        return int(value) if isinstance(value, bool) or type(value).__name__ in ("bool", "bool_") else None

    def describe(self) -> str:
        return "true or false"


@dataclass(frozen=True, init=False)
class Categorical(Parameter):
    """Labels with explicit codes, which are never renumbered: datasets and models outlive a list's order."""

    labels: tuple[tuple[str, int], ...] = field(default=())

    def __init__(self, codes: Mapping[str, int], **shared: Any) -> None:
        if not codes or len(set(codes.values())) != len(codes) or min(codes.values()) < 0:
            raise InvalidValue(f"a categorical needs labels with different codes ≥ 0, got {dict(codes)}")
        super().__init__(**shared)
        object.__setattr__(self, "labels", tuple(codes.items()))
        self._settle()

    @property
    def size(self) -> int:
        return len(self.labels)

    @property
    def ordered(self) -> bool:
        return False

    @property
    def codes(self) -> tuple[tuple[str, int], ...]:
        return self.labels

    def number(self, index: int) -> int:
        return self.labels[index][1]

    def value(self, index: int) -> str:
        return self.labels[index][0]

    def index(self, value: Any) -> int | None:
        return next((i for i, (label, _) in enumerate(self.labels) if isinstance(value, str) and label == value), None)

    def describe(self) -> str:
        return f"one of {', '.join(label for label, _ in self.labels)}"

    def only(self, *labels: str, **changes: Any) -> Categorical:
        """The same parameter with some of its labels, codes unchanged."""
        known = dict(self.labels)
        unknown = [label for label in labels if label not in known]
        if unknown:
            raise InvalidValue(f"unknown labels {quoted(', '.join(unknown))}: {quoted(self.describe(), LONGEST_RULE)}")
        shared = {item.name: getattr(self, item.name) for item in dataclasses.fields(Parameter)}
        return Categorical({label: known[label] for label in labels}, **{**shared, **changes})


@dataclass(frozen=True)
class JsonField:
    """A field of a JSON request that gives parameters under another name than their own (`Op.json`).

    A path steps into objects: `tensor_spec.logical_shape`. For several parameters the value is a list, right-aligned
    and padded with 1 on the left. For none, the field is accepted and ignored. `names` are other spellings of a label:
    strings, or another system's numbers.
    """

    paths: tuple[str, ...]
    parameters: tuple[str, ...] = ()
    names: tuple[tuple[str | int, str], ...] = ()
    present: bool = False
    """The parameter is a flag: true for an object, false for null."""
    same: tuple[str, Value] | None = None
    """(another parameter, value): a value equal to that parameter's is replaced by this one."""

    def check(self, owner: str, parameters: Mapping[str, Parameter]) -> None:
        """Refuse a field that names something undeclared."""
        unknown = [name for name in (*self.parameters, *(self.same or ())[:1]) if name not in parameters]
        if unknown:
            raise InvalidValue(f"op {owner}: the JSON field {self.paths[0]} names '{unknown[0]}', which is not a parameter")
        if (self.names or self.present or self.same) and len(self.parameters) != 1:
            raise InvalidValue(f"op {owner}: the JSON field {self.paths[0]} has spellings, so it must name one parameter")
        wrong = [label for _, label in self.names if parameters[self.parameters[0]].index(label) is None]
        if wrong:
            raise InvalidValue(f"op {owner}: the JSON field {self.paths[0]} means '{wrong[0]}', which is not a label")
