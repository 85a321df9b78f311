"""The kinds of model by name, and the knobs of each.

Learners are modules here, or entry points (`kerncast.learners`). A knob is a field of the options struct of its learner:

    trees: Annotated[int, Meta(ge=1, description="maximum trees in each forest")] = 300
"""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass
from functools import cache
from importlib import import_module
from pathlib import Path
from pkgutil import iter_modules
from typing import TYPE_CHECKING, Literal

import msgspec
from msgspec import inspect

from kerncast.errors import BadFile, InvalidValue, NotFound
from kerncast.learning.learners.contract import Learner, LearnerOptions

if TYPE_CHECKING:
    from importlib.metadata import EntryPoint


HERE = __name__.rpartition(".")[0]


@cache
def learner_class(kind: str) -> type[Learner]:
    """The class of one kind of model."""
    # Most kinds have a module of their own name, so the others need not be imported.
    found = (_in_module(kind) if kind in _modules() else {}) or _shipped()
    if kind in found:
        return found[kind]
    named = [entry for entry in _entries() if entry.name == kind]
    if not named:
        raise NotFound.named("model", kind, learner_kinds())
    if len(named) > 1:
        places = " and ".join(entry.value for entry in named)
        raise BadFile(f"the model '{kind}' is declared by both {places}: uninstall one of the packages")
    return _loaded(named[0])


def learner_kinds() -> tuple[str, ...]:
    """The names of all kinds: the shipped ones, then those of other packages."""
    return (*_shipped(), *sorted({entry.name for entry in _entries()} - set(_shipped())))


def kind_of_csv() -> str:
    """The kind whose weights can be given as CSV files."""
    return next(kind for kind, learner in _shipped().items() if learner.reads_csv)


@cache
def _shipped() -> dict[str, type[Learner]]:
    """The learners in the modules here; scikit-learn, lightgbm and torch are imported when they are needed."""
    return {kind: learner for module in _modules() for kind, learner in _in_module(module).items()}


@cache
def _modules() -> tuple[str, ...]:
    return tuple(sorted(item.name for item in iter_modules([str(Path(__file__).parent)])))


def _in_module(name: str) -> dict[str, type[Learner]]:
    module = import_module(f"{HERE}.{name}")
    own = [item for item in vars(module).values() if isinstance(item, type) and item.__module__ == module.__name__]
    return {item.kind: item for item in own if issubclass(item, Learner) and item is not Learner}


def _entries() -> Iterable[EntryPoint]:
    from importlib.metadata import entry_points

    return entry_points(group="kerncast.learners")


def _loaded(entry: EntryPoint) -> type[Learner]:
    """Load an entry point; errors in another package name that package."""
    try:
        found = entry.load()
    except Exception as error:
        raise BadFile(f"the model '{entry.name}' cannot be loaded from {entry.value} ({error}): fix that package") from error
    if not (isinstance(found, type) and issubclass(found, Learner) and found.kind == entry.name):
        raise BadFile(f"{entry.value} is not a Learner of the kind '{entry.name}': fix the package that declares it")
    return found


Shape = Literal["whole", "number", "flag", "list", "text"]


@dataclass(frozen=True)
class Knob:
    """One field of an options struct."""

    name: str
    shape: Shape
    doc: str


def knobs_of(options: type[msgspec.Struct]) -> list[Knob]:
    """The knobs, in declared order."""
    info = inspect.type_info(options)
    assert isinstance(info, inspect.StructType)
    return [
        Knob(item.name, _shape(item.type), str((getattr(item.type, "extra_json_schema", None) or {}).get("description", "")))
        for item in info.fields
    ]


def options_of(kind: type[Learner], given: dict[str, object]) -> LearnerOptions:
    """The options of one kind from knobs by name; a knob that this kind does not have is refused."""
    known = kind.options_type.__struct_fields__
    for name in given:
        if name not in known:
            knobs = ", ".join(f"`{field}`" for field in known) or "none"
            raise InvalidValue(f"the model {kind.kind} has no knob `{name}` (its knobs: {knobs})")
    refuse_bad_values(kind.options_type, given)
    return msgspec.convert(given, kind.options_type)


def _shape(kind: inspect.Type) -> Shape:
    kind = _bare(kind)
    if isinstance(kind, inspect.UnionType):
        return next((_shape(item) for item in kind.types if not isinstance(item, inspect.NoneType)), "text")
    shapes: dict[type[inspect.Type], Shape] = {
        inspect.IntType: "whole", inspect.FloatType: "number", inspect.BoolType: "flag", inspect.VarTupleType: "list",
        inspect.ListType: "list",
    }  # fmt: skip
    return shapes.get(type(kind), "text")


def _bare(kind: inspect.Type) -> inspect.Type:
    return kind.type if isinstance(kind, inspect.Metadata) else kind


def refuse_bad_values(options: type[msgspec.Struct], given: dict[str, object]) -> None:
    """Refuse the first invalid value, by the name of its knob."""
    info = inspect.type_info(options)
    assert isinstance(info, inspect.StructType)
    types = {item.name: item.type for item in info.fields}
    for name, value in given.items():
        try:
            msgspec.convert({name: value}, options)
        except msgspec.ValidationError as error:
            shown = ",".join(map(str, value)) if isinstance(value, list | tuple) else repr(value)
            rule = _rule(types[name], value) or f"is invalid ({error})"
            raise InvalidValue(f"`{name}` {rule}, got {shown}") from error


def _rule(kind: inspect.Type, value: object) -> str | None:
    """The rule that follows the knob's name; None if its type is unusual for a knob."""
    kind = _bare(kind)
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
