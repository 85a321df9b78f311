"""The rules of a family on one device, and which of them the measurements contradict."""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass

import numpy as np
import polars as pl

from kerncast.core.arrays import Flags
from kerncast.core.device import Device
from kerncast.core.expr import Expr, Program
from kerncast.core.op import Family
from kerncast.data import schema

# A rule is contradicted if at least this many attempts that break it worked, and at least this share of them: a few wrong rows
# in a table do not abolish a rule.
FEWEST_RAN, SHARE_RAN = 20, 0.5


@dataclass(frozen=True)
class Rule:
    """A predicate, and the sentence that a caller sees if it does not hold."""

    name: str
    sentence: str
    holds: Expr


@dataclass(frozen=True)
class Broken:
    """The attempts that break one rule, and how many of them worked."""

    rule: Rule
    attempts: int
    ran: int
    example: int
    """The first row that worked although it breaks the rule; -1 if there is none."""

    @property
    def contradicted(self) -> bool:
        """Whether the measurements say that the rule does not hold on this device."""
        return self.ran >= FEWEST_RAN and self.ran >= SHARE_RAN * self.attempts


def family_rules(family: Family, device: Device, dtypes: tuple[str, ...], without: Iterable[str] = ()) -> list[Rule]:
    """Rules of the family, hardware numbers bound; those that need an unknown number are left to the backend.

    `without` names rules that are left out, because measurements contradict them.
    """
    bound, left_out = device.bindings(family.op.dtype, dtypes or None), set(without)
    found = []
    for constraint in family.config.constraints:
        program = Program({constraint.name: constraint.holds}).bind(bound)
        if constraint.name not in left_out and not any(item.name.startswith("hw.") for item in program.symbols):
            found.append(Rule(constraint.name, constraint.sentence, program.outputs[constraint.name]))
    return found


def namespaces(expr: Expr) -> set[str]:
    """What a rule reads: `p` the problem, `c` the config."""
    return {item.name.split(".")[0] for item in Program({"": expr}).symbols}


def problem_rules(rules: list[Rule]) -> list[Rule]:
    """The rules that the problem alone decides."""
    return [rule for rule in rules if namespaces(rule.holds) == {"p"}]


def config_rules(rules: list[Rule]) -> list[Rule]:
    """All rules that a config must obey."""
    return [rule for rule in rules if "c" in namespaces(rule.holds)]


def judge_rules(family: Family, device: Device, frame: pl.DataFrame, ok: Flags) -> tuple[list[Broken], Flags]:
    """The rules that some attempts on a device break, and which attempts obey all rules that are not contradicted."""
    dtypes = tuple(sorted(frame["problem.dtype"].drop_nulls().unique())) if "problem.dtype" in frame.columns else ()
    symbols = schema.symbol_columns(family, frame)
    found, allowed = [], np.ones(frame.height, dtype=bool)
    for rule in family_rules(family, device, dtypes):
        program = Program({rule.name: rule.holds})
        if not program.symbols:
            continue
        breaks = program.frame(symbols, trusted=True).to_series().to_numpy() == 0.0
        if not breaks.any():
            continue
        ran = np.flatnonzero(breaks & ok)
        broken = Broken(rule, int(breaks.sum()), len(ran), int(ran[0]) if len(ran) else -1)
        found.append(broken)
        if not broken.contradicted:
            allowed &= ~breaks
    return found, allowed
