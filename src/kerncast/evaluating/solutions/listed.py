"""kerncast's own list: `[{"problem": {…}, "config": {…}}]`, or with `"configs": [{…}, …]` in order of preference."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

import msgspec

from kerncast.core.io.foreign import key_rule
from kerncast.core.op import Config, Problem
from kerncast.errors import BadFile, InvalidValue
from kerncast.evaluating.solutions.solution import Solution, Target

FORMAT = "list of problems and configs"


class Listed(msgspec.Struct, frozen=True, forbid_unknown_fields=True):
    """The choice or choices for one problem."""

    problem: dict[str, Any]
    config: dict[str, Any] | None = None
    configs: list[dict[str, Any]] | None = None


def read_listed(data: Any, target: Target) -> Iterator[Solution]:
    """The choices, every problem and config whole and valid; two different choices for a problem are refused."""
    try:
        entries = msgspec.convert(data, list[Listed])
    except msgspec.ValidationError as error:
        form = '[{"problem": {"M": 128, …}, "config": {…}}, …]'
        raise BadFile(f"this is not a list of solutions ({key_rule(error)}): expected {form}") from error
    chosen: dict[tuple[Any, ...], tuple[int, list[dict[str, Any]]]] = {}
    for place, entry in enumerate(entries, 1):
        try:
            problem = Problem(target.family, entry.problem).as_dict()
            configs = [Config(target.family, config).as_dict() for config in _configs(entry)]
        except InvalidValue as error:
            raise BadFile(f"solution {place}: {error}") from error
        before, same = chosen.setdefault(tuple(problem.values()), (place, configs))
        if same != configs:
            raise BadFile(f"solution {place}: solution {before} has another choice for this problem: keep one of them")
        if before == place:
            for config in configs:
                yield Solution(problem, config)


def _configs(entry: Listed) -> list[dict[str, Any]]:
    if (entry.config is None) == (entry.configs is None):
        raise InvalidValue("a solution has either `config` or `configs`: give one of them")
    configs = [entry.config] if entry.config is not None else entry.configs
    if not configs:
        raise InvalidValue("`configs` is empty: list the preferred config first, or drop the solution")
    return configs
