"""Splitting features by what they depend on: the problem (once per call), the config (once ever), or both (the rest)."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass

from kerncast.core.expr import Expr, Program, Symbol, symbol
from kerncast.core.expr.nodes import Table as ConstantTable
from kerncast.core.expr.nodes import node, table_lookup, topological

PROBLEM, CONFIG = 1, 2
_SIDE = {"p": PROBLEM, "c": CONFIG}


@dataclass(frozen=True)
class Stages:
    """Outputs by what they read. Mixed ones read `s.*` and `t.*`: the largest parts that only one side decides."""

    problem: dict[str, Expr]
    config: dict[str, Expr]
    mixed: dict[str, Expr]
    problem_parts: dict[str, Expr]
    """`s.0`, `s.1` …: expressions over `p.*`."""
    config_parts: dict[str, Expr]
    """`t.0`, `t.1` …: expressions over `c.*`."""


def cut(outputs: Mapping[str, Expr]) -> Stages:
    """Split a program's outputs; hardware numbers must be bound already."""
    side: dict[bytes, int] = {}
    rebuilt: dict[bytes, Expr] = {}
    parts: dict[int, dict[str, Expr]] = {PROBLEM: {}, CONFIG: {}}
    named: dict[bytes, Expr] = {}

    def part(expr: Expr) -> Expr:
        """A one-sided subexpression as an operand of a mixed one: its own symbol, unless it is a constant."""
        own = side[expr.digest]
        if own == 0:
            return expr
        if own == PROBLEM | CONFIG:
            return rebuilt[expr.digest]
        if expr.digest not in named:
            name = f"{'s' if own == PROBLEM else 't'}.{len(parts[own])}"
            parts[own][name] = expr
            named[expr.digest] = symbol(Symbol(name))
        return named[expr.digest]

    for expr in topological(list(outputs.values())):
        if isinstance(expr.payload, Symbol):
            side[expr.digest] = _SIDE[expr.payload.name.split(".")[0]]
            continue
        sides = 0
        for arg in expr.args:
            sides |= side[arg.digest]
        side[expr.digest] = sides
        if sides == PROBLEM | CONFIG:
            args = [part(arg) for arg in expr.args]
            table = isinstance(expr.payload, ConstantTable)
            rebuilt[expr.digest] = table_lookup(expr.payload, args) if table else node(expr.kind, *args)  # type: ignore[arg-type]
    by_side: dict[int, dict[str, Expr]] = {0: {}, PROBLEM: {}, CONFIG: {}, PROBLEM | CONFIG: {}}
    for name, expr in outputs.items():
        own = side[expr.digest]
        by_side[own][name] = rebuilt[expr.digest] if own == PROBLEM | CONFIG else expr
    # What depends on nothing is computed with the problem.
    return Stages({**by_side[0], **by_side[PROBLEM]}, by_side[CONFIG], by_side[3], parts[PROBLEM], parts[CONFIG])


def reads(expr: Expr, prefix: str) -> tuple[str, ...]:
    """The symbols of one prefix that an expression reads, in order."""
    names = [item.name for item in Program({"": expr}).symbols if item.name.startswith(f"{prefix}.")]
    return tuple(sorted(names, key=lambda name: int(name.split(".")[1])))
