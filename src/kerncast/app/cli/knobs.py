"""Options of `kerncast train` for the knobs of every learner, including learners of other packages."""

from __future__ import annotations

from typing import Any

import click

from kerncast.errors import BadFile, InvalidValue


class _Numbers(click.ParamType):  # type: ignore[type-arg]
    """Comma-separated numbers."""

    name = "numbers"

    def convert(self, value: Any, param: click.Parameter | None, ctx: click.Context | None) -> Any:
        if not isinstance(value, str):
            return value
        try:
            return tuple(float(part) if "." in part else int(part) for part in value.split(","))
        except ValueError as error:
            name = param.opts[0] if param is not None else "it"
            raise InvalidValue(f"{name} is a list of numbers such as 100,50, got '{value}'") from error


_TYPES: dict[str, Any] = {"whole": int, "number": float, "flag": bool, "list": _Numbers(), "text": str}


def learner_options() -> list[click.Option]:
    """An option for each knob of any learner."""
    from kerncast.learning.learners.kinds import Knob, knobs_of, learner_class, learner_kinds

    known: dict[str, list[tuple[str, Knob]]] = {}
    for kind in learner_kinds():
        try:
            knobs = knobs_of(learner_class(kind).options_type)
        except BadFile:  # another package is broken: training its kind of model reports that
            continue
        for knob in knobs:
            known.setdefault(knob.name, []).append((kind, knob))
    return [_option(name, owners) for name, owners in known.items()]


def _option(name: str, owners: list[tuple[str, Any]]) -> click.Option:
    shapes = {knob.shape for _, knob in owners}
    # If learners give one name different types, the option is text, and `converted_knobs` converts it.
    shape = shapes.pop() if len(shapes) == 1 else "text"
    kinds: dict[str, list[str]] = {}
    for kind, knob in owners:
        kinds.setdefault(knob.doc, []).append(kind)
    told = "; ".join(f"{', '.join(own)}: {doc}" if doc else ", ".join(own) for doc, own in kinds.items())
    flag = f"--{name.replace('_', '-')}"
    metavar = {"list": "SIZES", "text": "NAME"}.get(shape)
    return click.Option([flag, name], type=_TYPES[shape], default=None, metavar=metavar, help=f"{told}.")


def converted_knobs(kind: str, options: dict[str, Any]) -> dict[str, Any]:
    """The given knobs, converted to the types that this kind of model declares."""
    from kerncast.learning.learners.kinds import knobs_of, learner_class

    shapes = {knob.name: knob.shape for knob in knobs_of(learner_class(kind).options_type)}
    found = {}
    for name, value in options.items():
        shape = shapes.get(name, "text")
        if isinstance(value, str) and shape != "text":
            value = click.types.convert_type(_TYPES[shape])(value)
        if value is not None:
            found[name] = value
    return found
