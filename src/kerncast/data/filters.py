"""`where` 'problem.dtype=fp8': a row filter in one line of text; `software=vllm` keeps the newest version of each device."""

from __future__ import annotations

import re
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass

import polars as pl

from kerncast.core import software
from kerncast.data.drawing import DrawnProblems
from kerncast.errors import InvalidValue, NotFound

SOFTWARE = "software"
# What only a run that worked has.
MEASURED_OF_OK = ("time_ns", "time_ns_min", "time_ns_mean", "time_ns_std", "time_ns_mad", "samples", "max_abs_err")
_PATTERN = re.compile(r"\s*([A-Za-z_][\w.]*)\s*(!=|<=|>=|=|<|>)\s*(.*?)\s*")


def _literal(text: str, column: str, dtype: pl.DataType) -> object:
    try:
        if dtype == pl.Boolean:
            return {"true": True, "false": False}[text.lower()]
        if dtype.is_integer():
            return int(text)
        return float(text) if dtype.is_float() else text
    except (KeyError, ValueError):
        raise InvalidValue(f"`where` compares {column} ({dtype}) with '{text}', which is not a value of that type") from None


def parse_filter(text: str, schema: Mapping[str, pl.DataType]) -> pl.Expr:
    """One condition: `column=value`, `column=a,b` (any of them), `!=`, `<`, `<=`, `>`, `>=`.

    What is measured of a run that worked, such as `time_ns`, is asked of rows that have it: a row that failed has no time, and
    is kept.
    """
    match = _PATTERN.fullmatch(text)
    if not match:
        raise InvalidValue(f"`where` takes column=value (also !=, <, <=, >, >=), got '{text}'")
    name, operator, right = match.groups()
    name = column_named(name, schema)
    column, dtype = pl.col(name), schema[name]
    if operator in ("=", "!="):
        # `software` is JSON and contains commas, so it is not split.
        items = [right] if right.startswith("{") else right.split(",")
        found = column.is_in([_literal(item.strip(), name, dtype) for item in items]).fill_null(False)
        kept = found if operator == "=" else ~found
    else:
        value = pl.lit(_literal(right, name, dtype))
        kept = {"<": column < value, "<=": column <= value, ">": column > value, ">=": column >= value}[operator]
    failed = column.is_null() & (pl.col("status") != "ok")
    return kept.fill_null(False) | failed if name in MEASURED_OF_OK else kept


def column_named(name: str, columns: Iterable[str]) -> str:
    """The column that a condition means: `dtype` is `problem.dtype`, unless `config.dtype` exists too."""
    known = list(columns)
    found = [name] if name in known else [column for column in (f"problem.{name}", f"config.{name}") if column in known]
    if len(found) > 1:
        raise InvalidValue(f"`where` {name} may be {' or '.join(found)}: write one of them")
    if not found:
        raise NotFound.named("column", name, known)
    return found[0]


@dataclass(frozen=True)
class SoftwareRows:
    """A condition such as `software=vllm`, resolved: on each device the rows of the newest version that the name means."""

    text: str
    """The condition as it was given."""
    kept: tuple[tuple[str, str], ...]
    """Devices and software texts."""
    notes: tuple[str, ...] = ()
    """The devices that have nothing of the kind, and what they have."""

    def __str__(self) -> str:
        return self.text

    @property
    def expression(self) -> pl.Expr:
        """Which rows are kept."""
        by_device: dict[str, list[str]] = {}
        for device, text in self.kept:
            by_device.setdefault(device, []).append(text)
        return pl.any_horizontal(
            pl.lit(False), *((pl.col("device") == name) & pl.col(SOFTWARE).is_in(texts) for name, texts in by_device.items())
        ).fill_null(False)


Condition = str | SoftwareRows | DrawnProblems
"""What keeps rows: a text, one that was resolved, or a draw."""


def combine(conditions: Iterable[Condition], schema: Mapping[str, pl.DataType]) -> pl.Expr:
    """All conditions together; no conditions keep every row."""
    found = (parse_filter(item, schema) if isinstance(item, str) else item.expression for item in conditions)
    return pl.all_horizontal([pl.lit(True), *found])


def resolved(
    conditions: Sequence[Condition], known: Callable[[], Iterable[tuple[str, str | None]]], of: str
) -> tuple[Condition, ...]:
    """The conditions with every short name of software resolved; `known` gives the devices and software texts of all rows.

    Whole texts stay as they are. `of` says what the rows are, for the error if no device has the software.
    """
    found: list[Condition] = []
    for condition in conditions:
        match = _PATTERN.fullmatch(condition) if isinstance(condition, str) else None
        if match is None or match[1] != SOFTWARE or match[2] not in ("=", "!=") or match[3].startswith("{"):
            found.append(condition)
            continue
        pairs = sorted((device, text) for device, text in known() if text is not None)
        items = [item.strip() for item in match[3].split(",")]
        if {match[3], *items} & {text for _, text in pairs} or not items[0]:
            found.append(condition)
            continue
        chosen = _newest if match[2] == "=" else _others
        found.append(chosen(condition if isinstance(condition, str) else "", items, pairs, of))
    return tuple(found)


def _newest(text: str, names: Sequence[str], pairs: Sequence[tuple[str, str]], of: str) -> SoftwareRows:
    """The newest version of each name on each device; an error if no device has any."""
    kept, notes = dict[tuple[str, str], None](), list[str]()
    for device in dict.fromkeys(device for device, _ in pairs):
        own = [known for name, known in pairs if name == device]
        for name in names:
            if software.matching(name, own):
                kept |= dict.fromkeys((device, known) for known in software.newest(name, own))
            else:
                notes.append(f"{device} {software.lacks(name, own)}; its rows are left out")
    for name in names:
        every = [known for _, known in pairs]
        if not software.matching(name, every):
            raise NotFound(f"{of} {software.lacks(name, every)}")
    return SoftwareRows(text, tuple(sorted(kept)), tuple(notes))


def _others(text: str, names: Sequence[str], pairs: Sequence[tuple[str, str]], of: str) -> SoftwareRows:
    """All rows but those of any version of some names."""
    every = [known for _, known in pairs]
    without = {found for name in names for found in software.matching(name, every)}
    return SoftwareRows(text, tuple(pair for pair in pairs if pair[1] not in without))
