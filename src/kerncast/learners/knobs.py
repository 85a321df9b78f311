"""What a knob may be, in a sentence made from the type that an options struct declares for it."""

from __future__ import annotations

import msgspec
from msgspec import inspect

from kerncast.errors import InvalidValue


def refuse_bad_values(options: type[msgspec.Struct], given: dict[str, object]) -> None:
    """The first value that its knob cannot have, refused by name."""
    info = inspect.type_info(options)
    assert isinstance(info, inspect.StructType)
    types = {item.name: item.type for item in info.fields}
    for name, value in given.items():
        try:
            msgspec.convert({name: value}, options)
        except msgspec.ValidationError as error:
            shown = ",".join(map(str, value)) if isinstance(value, list | tuple) else repr(value)
            rule = _rule(types[name], value) or f"cannot be so ({error})"
            raise InvalidValue(f"--{name.replace('_', '-')} {rule}, got {shown}") from error


def _rule(kind: inspect.Type, value: object) -> str | None:
    """What may follow the knob's name; None where its type is none of those that knobs usually have."""
    if isinstance(kind, inspect.UnionType):
        return next((rule for item in kind.types if (rule := _rule(item, value)) is not None), None)
    if isinstance(kind, inspect.LiteralType):
        *others, last = map(str, kind.values)
        return f"is {', '.join(others)} or {last}" if others else f"is {last}"
    if isinstance(kind, inspect.IntType | inspect.FloatType):
        bounds = _bounds(kind)
        right = isinstance(value, int if isinstance(kind, inspect.IntType) else int | float) and not isinstance(value, bool)
        return f"must be {bounds}" if bounds and right else f"must be {_what(kind)}{f' ({bounds})' if bounds else ''}"
    if isinstance(kind, inspect.VarTupleType) and isinstance(kind.item_type, inspect.IntType | inspect.FloatType):
        bounds = _bounds(kind.item_type)
        return f"is a list of sizes, each {_what(kind.item_type)}{f' ({bounds})' if bounds else ''}"
    return None


def _what(kind: inspect.IntType | inspect.FloatType) -> str:
    return "a whole number" if isinstance(kind, inspect.IntType) else "a number"


def _bounds(kind: inspect.IntType | inspect.FloatType) -> str:
    if kind.ge is not None and kind.le is not None:
        return f"from {kind.ge:g} to {kind.le:g}"
    named = (("at least", kind.ge), ("above", kind.gt), ("at most", kind.le), ("below", kind.lt))
    return " and ".join(f"{word} {limit:g}" for word, limit in named if limit is not None)
