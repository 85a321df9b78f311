"""Problem sets: named ones per op, grids and samplers for any op, and lists from files.

    problem_set(family, ["llm"], {"dtype": ["fp16"], "layout": ["rcr"]}, max_flops=1e9)

gives a polars frame with one row per problem and one column per parameter, every value checked.
"""

from __future__ import annotations

import importlib
import pkgutil
from collections.abc import Callable, Iterable, Mapping, Sequence
from functools import cache
from pathlib import Path

import polars as pl

from kerncast.core.expr import Program
from kerncast.core.op import Family, Op
from kerncast.core.parameters import Value
from kerncast.core.space import Space
from kerncast.errors import InvalidValue, NotFound
from kerncast.library.problems.axes import PROBLEMS_LIMIT, check_axes, cross, grid, lognormal, parse_axes, required
from kerncast.library.problems.files import KIND as SHAPESET
from kerncast.library.problems.files import complete, is_table, read_points, read_shapeset, rows_of, shapeset_points
from kerncast.library.registry import entry_points

__all__ = ["affordable", "named_sets", "parse_vary", "problem_notes", "problem_set"]

Rule = Callable[[], Iterable[tuple[int, ...]]]
_OTHERS = ("lognormal:N", "grid:AXES", "shapeset:FILE", "a .json, .parquet or .csv file")
FILE = "file"


@cache
def _named() -> dict[str, tuple[tuple[str, ...], Mapping[str, Rule]]]:
    """By op: the parameters that a rule's tuples give, and the rules; from `NAMED_SETS` of the modules here.

    Another package adds its own with an entry point in the group `kerncast.library.problems` that loads such a mapping.
    """
    found: dict[str, tuple[tuple[str, ...], Mapping[str, Rule]]] = {}
    for module in pkgutil.iter_modules(__path__, f"{__name__}."):
        found |= getattr(importlib.import_module(module.name), "NAMED_SETS", {})
    for _, sets in entry_points("kerncast.problems"):
        found |= sets
    return found


def named_sets(op: Op) -> dict[str, str]:
    """The sets that ship for an op, each with its line of description."""
    _, sets = _named().get(op.name, ((), {}))
    return {name: (rule.__doc__ or "").strip() for name, rule in sets.items()}


def parse_vary(target: Op | Family, items: Iterable[str]) -> dict[str, list[Value]]:
    """`["dtype=fp32,fp64", "threads=1,2"]` as axes of `problem_set`."""
    return parse_axes(target.problem, items)


def problem_set(
    target: Op | Family,
    specs: Sequence[str],
    vary: Mapping[str, Iterable[Value]] | None = None,
    *,
    seed: int = 0,
    max_flops: float | None = None,
    max_bytes: float | None = None,
) -> pl.DataFrame:
    """The problems of all `specs`, each crossed with the axes of `vary`, small enough and each once.

    A family adds its environment parameters to those of its op.
    """
    space = target.problem
    op = target if isinstance(target, Op) else target.op
    if not specs:
        raise InvalidValue(f"a problem set needs at least one of {', '.join([*named_sets(op), *_OTHERS])}")
    axes = check_axes(space, vary or {})
    parts = []
    for spec in specs:
        part, listed = _one(op, space, spec, seed)
        clash = [name for name in axes if name in part.columns]
        if clash:
            raise InvalidValue(f"{clash[0]} is given by {spec} already: leave it out of `vary`")
        open_axes = [name for name in required(space) if name not in part.columns and name not in axes]
        if open_axes:
            raise InvalidValue(
                f"{spec} does not give {' and '.join(open_axes)}, which {op.name} has no default for: add "
                + " ".join(f"`vary` {name}=… ({space.parameters[name].describe()})" for name in open_axes)
            )
        parts.append(complete(space, cross(space, axes, part) if axes else part, spec, strict=listed))
    problems = pl.concat(parts).unique(maintain_order=True)
    if problems.height > PROBLEMS_LIMIT:
        raise InvalidValue(f"{problems.height:,} problems are over the limit of {PROBLEMS_LIMIT:,}: take fewer")
    kept = affordable(op, problems, max_flops, max_bytes)
    if not kept.height:
        why = (
            f"all {problems.height:,} are over `max_flops` or `max_bytes`"
            if problems.height
            else "every one breaks a constraint"
        )
        raise InvalidValue(f"no problem of {', '.join(specs)} is left ({why}): loosen it")
    return kept


def problem_notes(target: Op | Family, specs: Iterable[str]) -> list[str]:
    """What specifications hold that is not a problem of `target`, a sentence for each of them."""
    found = []
    for spec in specs:
        kind, _, rest = spec.partition(":")
        if kind == SHAPESET and (shapes := read_shapeset(rest, target.problem)).left_out:
            found.append(f"{spec}: {shapes}")
    return found


def _one(op: Op, space: Space, spec: str, seed: int) -> tuple[pl.DataFrame, bool]:
    """The columns that one specification gives, and whether it is a list that must be valid as it is."""
    kind, separator, rest = spec.partition(":")
    if separator and kind == "grid":
        return grid(space, rest), False
    if kind == "lognormal":
        return lognormal(space, rest, seed), False
    if separator and kind == SHAPESET:
        return shapeset_points(read_shapeset(rest, space), space), False
    if separator and kind == FILE and not Path(spec).exists():
        if not is_table(rest):
            raise InvalidValue(f"{spec} must be a .json, .parquet or .csv file: list the problems in one of these")
        return read_points(Path(rest), space, "problem."), True
    if is_table(spec):
        return read_points(Path(spec), space, "problem."), True
    axes, sets = _named().get(op.name, ((), {}))
    if spec not in sets:
        raise NotFound.named(f"problem set of {op.name}", spec, [*sets, *op.sweeps, *_OTHERS])
    return rows_of(sets[spec](), axes), False


def affordable(op: Op, problems: pl.DataFrame, max_flops: float | None, max_bytes: float | None) -> pl.DataFrame:
    """The problems within limits on arithmetic and traffic."""
    limits = {name: limit for name, limit in (("flops", max_flops), ("bytes", max_bytes)) if limit is not None}
    if not limits:
        return problems
    work = op.work(op.namespace())
    if work is None:
        raise InvalidValue(f"{op.name} does not declare its work: leave out `max_{next(iter(limits))}`, it cannot be checked")
    amounts = Program({"flops": work.flops, "bytes": work.bytes}).frame(problems.rename(lambda name: f"p.{name}"))
    return problems.filter(
        amounts.select(pl.all_horizontal(pl.col(name) <= limit for name, limit in limits.items())).to_series()
    )
