"""The rules of a family on one device: what a problem and a config must obey before a model is asked about them."""

from __future__ import annotations

from dataclasses import dataclass

from kerncast.device import Device
from kerncast.expr import Expr, Program
from kerncast.op import Family


@dataclass(frozen=True)
class Rule:
    """A predicate, and the sentence that a caller sees if it does not hold."""

    name: str
    sentence: str
    holds: Expr


def family_rules(family: Family, device: Device, dtypes: tuple[str, ...]) -> list[Rule]:
    """Rules of the family, hardware numbers bound; those that need an unknown number are left to the backend."""
    bound = device.bindings(family.op.dtype, dtypes or None)
    found = []
    for constraint in family.config.constraints:
        program = Program({constraint.name: constraint.holds}).bind(bound)
        if not any(item.name.startswith("hw.") for item in program.symbols):
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
