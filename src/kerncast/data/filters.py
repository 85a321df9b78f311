"""Conditions that choose rows: `where` 'problem.dtype=fp8' in one line of text, and whole problems that are drawn by a hash.

`software=vllm` keeps the newest version of each device. The hash of a problem is arithmetic over columns: polars computes it
while it reads, for any number of rows. It depends on values alone, not on their order, on the version of a library or on
optional parameters that are not given, so the same data and seed always give the same rows."""

from __future__ import annotations

import hashlib
import operator
import re
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass
from functools import reduce

import numpy as np
import polars as pl

from kerncast.core import software
from kerncast.core.arrays import Ints
from kerncast.core.op import Family
from kerncast.core.parameters import Categorical
from kerncast.errors import InvalidValue, NotFound

# Problems are told apart by this many values of their hash: a device with 10^8 rows has some thousand rows in each.
SHARES = 2**16
# An odd number that mixes well: that of splitmix64.
_FACTOR = 0x94D049BB133111EB


def columns_of(family: Family) -> list[str]:
    """The columns that a draw reads."""
    return ["device", *(f"problem.{name}" for name in family.problem.parameters)]


@dataclass(frozen=True)
class DrawnProblems:
    """A condition on rows: of each device, the problems whose hash is below a limit."""

    family: Family
    seed: int
    limits: Mapping[str, int]
    """By device: how many of all `SHARES` of its problems."""

    def __str__(self) -> str:
        return "drawn problems"

    @property
    def expression(self) -> pl.Expr:
        """Which rows are kept."""
        names, shares = list(self.limits), list(self.limits.values())
        limit = pl.col("device").replace_strict(names, shares, default=0, return_dtype=pl.UInt64)
        return problem_share(self.family, self.seed) < limit


def problem_share(family: Family, seed: int) -> pl.Expr:
    """A number below `SHARES` for each row: equal for all rows of a problem, as good as random otherwise."""
    # A sum of products, mixed once: an expression that reads the one before it twice doubles with each parameter.
    terms = [pl.lit(_number(f"seed {seed}"), pl.UInt64)]
    for name, parameter in family.problem.parameters.items():
        column = pl.col(f"problem.{name}")
        if isinstance(parameter, Categorical):
            labels = [label for label, _ in parameter.labels]
            cells = column.replace_strict(labels, [_number(label) for label in labels], default=0, return_dtype=pl.UInt64)
        else:
            cells = column.cast(pl.Int64).reinterpret(signed=False)
        terms.append(cells.fill_null(0) * pl.lit(_number(f"{name} {seed}") | 1, pl.UInt64))
    total = reduce(operator.add, terms)
    return (total ^ (total // 2**32)) * pl.lit(_FACTOR, pl.UInt64) // (2**64 // SHARES)


def _number(text: str) -> int:
    return int.from_bytes(hashlib.blake2b(text.encode(), digest_size=8).digest(), "little")


def draw_problems(family: Family, pieces: Iterable[pl.DataFrame], rows: int, seed: int) -> tuple[DrawnProblems, int]:
    """A draw of about `rows` rows in whole problems, of each device about as many, and how many rows it takes.

    Of the rows that are drawn from, the pieces need `columns_of` only. They are counted one at a time: polars' streaming engine
    took 13 GB for 10^8 rows. A device whose first problem alone has more rows keeps that one.
    """
    counts: dict[str, Ints] = {}
    for piece in pieces:
        shared = piece.select("device", share=problem_share(family, seed))
        for (name,), own in shared.group_by("device", maintain_order=True):
            found = np.bincount(own["share"].to_numpy(), minlength=SHARES)
            counts[str(name)] = counts[str(name)] + found if str(name) in counts else found
    by_device = {name: np.cumsum(found) for name, found in sorted(counts.items())}
    left, taken, limits = rows, 0, dict[str, int]()
    # The smallest devices first: what they do not need is divided among the others.
    for place, (name, total) in enumerate(sorted(by_device.items(), key=lambda item: (int(item[1][-1]), item[0]))):
        quota = min(int(total[-1]), left // (len(by_device) - place))
        first = int(np.argmax(total > 0)) + 1
        limits[name] = max(first, int(np.searchsorted(total, quota, side="right")))
        drawn = int(total[limits[name] - 1])
        left, taken = max(0, left - drawn), taken + drawn
    return DrawnProblems(family, seed, dict(sorted(limits.items()))), taken


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
