"""Checks of single rows against what is possible, a piece of the rows at a time."""

from __future__ import annotations

from collections import Counter
from collections.abc import Sequence
from typing import Any

import polars as pl

from kerncast.core.expr import Program
from kerncast.core.op import Family, limits
from kerncast.core.space import Constraint
from kerncast.data import schema
from kerncast.data.condensed import OK, halves_of
from kerncast.data.label_shift import DeviceOf
from kerncast.errors import NotFound
from kerncast.library import devices

Report = dict[str, Any]


class Impossible:
    """Constraints that rows with status ok break: the constraint, or the table, is wrong."""

    def __init__(self, family: Family, device_of: DeviceOf = devices.get) -> None:
        self.family, self.device_of = family, device_of
        self.constraints = (*family.problem.constraints, *family.config.constraints)
        self.rows: Counter[str] = Counter()
        """Rows with status ok, by device."""
        self.broken: dict[tuple[str, str], tuple[int, Report]] = {}
        """By device and constraint: how many rows break it, and the first of them."""
        self._bound: dict[str, list[tuple[Constraint, Program]]] = {}

    def add(self, ok: pl.DataFrame) -> None:
        """Look at some rows."""
        for (name,), rows in ok.group_by("device", maintain_order=True):
            self.rows[str(name)] += rows.height
            symbols = schema.symbol_columns(self.family, rows)
            halves = self._halves(str(name), symbols)
            for constraint, program in self._programs(str(name)):
                broken = _violations(program, symbols, halves)
                if broken is not None:
                    known, example = self.broken.get((str(name), constraint.name), (0, None))
                    row = example or halves_of(rows.row(broken.arg_max() or 0, named=True))
                    self.broken[str(name), constraint.name] = known + int(broken.sum()), row

    def _halves(self, device: str, symbols: pl.DataFrame) -> list[pl.DataFrame]:
        """The different problems and the different configs, in what constraints read of them; labels belong to both."""
        names = {item.name for _, program in self._programs(device) for item in program.symbols}
        labels = {name for name in names if symbols.schema[name] == pl.String}
        halves = ([name for name in sorted(names) if name.startswith(half) or name in labels] for half in ("p.", "c."))
        return [symbols.select(half).unique() for half in halves if half]

    def _programs(self, device: str) -> list[tuple[Constraint, Program]]:
        """The constraints that can be judged on a device: those that read no number which is unknown for it."""
        if device not in self._bound:
            try:
                bindings = self.device_of(device).bindings(self.family.op.dtype)
            except NotFound:
                bindings = {}
            bound = [(item, item.program.bind(bindings)) for item in self.constraints]
            self._bound[device] = [
                (item, program) for item, program in bound if not any(read.name.startswith("hw.") for read in program.symbols)
            ]
        return self._bound[device]

    def report(self) -> list[Report]:
        """What was found, by device, in the order of the constraints."""
        return [
            {
                "device": name, "constraint": item.name, "sentence": item.sentence, "rows": count,
                "share": count / self.rows[name], "example": example,
            }
            for name in sorted(self.rows) for item in self.constraints
            for count, example in [self.broken.get((name, item.name), (0, {}))] if count
        ]  # fmt: skip


def _violations(program: Program, symbols: pl.DataFrame, halves: Sequence[pl.DataFrame]) -> pl.Series | None:
    """Which rows break a constraint; None: none.

    Most constraints read the problem or the config alone, of which there are few different ones, and nearly all rows obey them.
    """
    read = [item.name for item in program.symbols]
    few = next((half for half in halves if set(read) <= set(half.columns)), None)
    if read and not _broken(program, symbols.select(read).unique() if few is None else few).any():
        return None
    broken = _broken(program, symbols)
    return broken if broken.any() else None


def _broken(program: Program, symbols: pl.DataFrame) -> pl.Series:
    return program.frame(symbols).to_series() == 0.0


class TooFast:
    """Rows that took less time than their work needs on the device: the work is overcounted, or the label is wrong."""

    def __init__(self, family: Family, device_of: DeviceOf = devices.get) -> None:
        self.family, self.device_of = family, device_of
        self.together = ["device", *(["problem.dtype"] if family.op.dtype is not None else [])]
        self.parts: list[Report] = []
        self._programs: dict[tuple[Any, ...], Program | None] = {}

    def add(self, ok: pl.DataFrame) -> None:
        """Look at some rows."""
        columns = [*schema.parameter_columns(self.family)]
        for kind, rows in ok.select(*dict.fromkeys([*self.together, *columns, "time_ns"])).group_by(
            self.together, maintain_order=True
        ):
            program = self._program(kind)
            if program is not None:
                floor = program.frame(schema.symbol_columns(self.family, rows))["floor_ns"].to_numpy()
                self.parts.append(limits.faster_than_possible(rows.select(columns), rows["time_ns"].to_numpy(), floor))

    def _program(self, kind: tuple[Any, ...]) -> Program | None:
        """The shortest possible time on a device; None: it is unknown."""
        if kind not in self._programs:
            try:
                found = limits.limit_program(self.family, self.device_of(str(kind[0])), list(kind[1:]) or None)
            except NotFound:
                found = None
            self._programs[kind] = found if found is not None and "floor_ns" in found.outputs else None
        return self._programs[kind]

    def report(self) -> Report:
        """How many rows are faster than possible, and the worst of them."""
        return limits.together(self.parts)


def measured_though_impossible(family: Family, ok: pl.DataFrame, device_of: DeviceOf = devices.get) -> list[Report]:
    """Constraints that some rows with status ok break."""
    found = Impossible(family, device_of)
    found.add(ok)
    return found.report()


def faster_than_possible(family: Family, ok: pl.DataFrame, device_of: DeviceOf = devices.get) -> Report:
    """Rows with status ok that are faster than the device allows."""
    found = TooFast(family, device_of)
    found.add(ok)
    return found.report()


class RowChecks:
    """All checks of single rows."""

    def __init__(self, family: Family, device_of: DeviceOf) -> None:
        self.impossible, self.too_fast = Impossible(family, device_of), TooFast(family, device_of)

    def add(self, rows: pl.DataFrame) -> None:
        """Look at some rows of any status."""
        ok = rows.filter(pl.col("status") == OK)
        if ok.height:
            self.impossible.add(ok)
            self.too_fast.add(ok)
