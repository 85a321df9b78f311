"""The tables of a declaration as text: what `declared.family_file` reads."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

import msgspec

from kerncast.core.io.quoting import toml_key, toml_value
from kerncast.library.declared.declaration import LARGEST_SIZE, Declaration, Formulas, Rule, Values


def family_tables(declared: Declaration) -> list[str]:
    """The lines of the tables [op] and [family]; read again, they are the same declaration."""
    said = Formulas() if isinstance(declared.formulas, msgspec.UnsetType) else declared.formulas
    doc = {"doc": declared.doc} if declared.doc else {}
    work = {name: text for name, text in (("flops", said.flops), ("bytes", said.bytes)) if text is not None}
    name = declared.family.rpartition("/")[2]
    lines: list[str] = []
    if declared.problem:
        op = {"name": declared.op, **doc, "work": work, "split_group": said.split_group}
        lines += [*_table("op", op), "", *_parameters("op.problem", declared.problem)]
        lines += _tables(("op.derived", said.derived), ("op.constraints", _rules(said.problem_rules)))
        lines += [*_tables(("op.features", said.problem_features)), ""]
    family = {"name": name} | ({} if declared.problem else {"op": declared.op, **doc})
    lines += _table("family", {**family, "library": said.library, "configs": declared.configs})
    lines += ["", *_parameters("family.config", declared.config)]
    return [*lines, *_tables(("family.constraints", _rules(said.rules)), ("family.features", said.features))]


def _table(name: str, entries: Mapping[str, Any]) -> list[str]:
    """A table with what is not empty."""
    kept = {key: item for key, item in entries.items() if item not in ("", (), {})}
    return [f"[{name}]", *(f"{toml_key(key)} = {toml_value(item)}" for key, item in kept.items())]


def _tables(*named: tuple[str, Mapping[str, Any]]) -> list[str]:
    return [line for name, entries in named if entries for line in ("", *_table(name, entries))]


def _rules(rules: Mapping[str, Rule]) -> dict[str, Any]:
    return {name: {"rule": rule.holds, "says": rule.says} for name, rule in rules.items()}


def _parameters(table: str, parameters: Mapping[str, Values]) -> list[str]:
    return [f"[{table}]", *(f"{toml_key(name)} = {_parameter(values)}" for name, values in parameters.items())]


def _parameter(values: Values) -> str:
    numbers = (1, LARGEST_SIZE) if values.kind == "size" else values.numbers
    found: dict[str, Any] = {}
    if values.kind in ("range", "size"):
        found = dict(zip(("from", "to", "step"), numbers, strict=False))
        if found.get("step") == 1:
            del found["step"]
    elif values.kind == "flag":
        found = {"flag": True}
    else:
        found = {{"numbers": "values", "powers": "powers_of_two"}.get(values.kind, "labels"): values.numbers or values.labels}
    preset = values.default if isinstance(values.preset, msgspec.UnsetType) else values.preset
    more = {"default": preset, "when": values.when, "doc": values.doc}
    found |= {key: item for key, item in more.items() if item is not None and not isinstance(item, msgspec.UnsetType)}
    bare = len(found) == 1 and values.kind in ("numbers", "labels", "dtypes")
    return toml_value(next(iter(found.values())) if bare else found)
