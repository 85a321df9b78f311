"""Another system's choices compared with the model's, on the problems that both answer."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np
import polars as pl

from kerncast.core.io.terminal import printable
from kerncast.core.op import Family
from kerncast.core.parameters import Value
from kerncast.data.choices import REASONS, Solutions
from kerncast.errors import InvalidValue
from kerncast.evaluating.evaluation import Evaluation

Values = tuple[Value, ...]


class _Answers:
    """Which configs a file lists for a problem, in its order."""

    def __init__(self, solutions: Solutions, family: Family) -> None:
        places = {name: place for place, name in enumerate(family.problem.parameters)}
        # Grouped by the parameters that a choice names: a file has few different sets of them.
        self._by_names: dict[tuple[int, ...], dict[Values, list[tuple[int, Mapping[str, Value]]]]] = {}
        for order, item in enumerate(solutions.choices):
            named = self._by_names.setdefault(tuple(places[name] for name in item.problem), {})
            named.setdefault(tuple(item.problem.values()), []).append((order, item.config))

    def to(self, problem: Values) -> list[Mapping[str, Value]]:
        """The configs for a problem, given by its values in declared order."""
        found = [
            item
            for named, answers in self._by_names.items()
            for item in answers.get(tuple(problem[place] for place in named), ())
        ]
        return [config for _, config in sorted(found, key=lambda item: item[0])]


@dataclass(frozen=True)
class _Tried:
    """What was measured on a problem: times by config values in declared order, infinite for what failed."""

    names: tuple[str, ...]
    times: Mapping[Values, float]

    def time(self, config: Mapping[str, Value]) -> float | None:
        """The time of the fastest config that agrees with `config`, which may be partial; None: none was measured."""
        if len(config) == len(self.names):
            return self.times.get(tuple(config[name] for name in self.names))
        said = [(place, config[name]) for place, name in enumerate(self.names) if name in config]
        return min((t for tried, t in self.times.items() if all(tried[place] == value for place, value in said)), default=None)


def _tried(found: Evaluation, family: Family) -> dict[int, _Tried]:
    """What was measured, by problem number."""
    names = tuple(family.config.parameters)
    columns = [f"config.{name}" for name in names]
    parts = [found.rows.select("number", *columns, time="measured_ns")]
    if found.failures.height:
        parts.append(found.failures.select("number", *columns, time=pl.lit(float("inf"))))
    times: dict[int, dict[Values, float]] = {}
    for number, *config, time in pl.concat(parts).iter_rows():
        times.setdefault(number, {}).setdefault(tuple(config), time)
    return {number: _Tried(names, of_problem) for number, of_problem in times.items()}


def score_solutions(solutions: Solutions, found: Evaluation, family: Family) -> dict[str, Any]:
    """The efficiency of the solutions and of the model. A problem is scored by the first of its listed configs that was
    measured and, separately, by the best of them. A config that failed gets 0."""
    answers, tried = _Answers(solutions, family), _tried(found, family)
    columns = [f"problem.{name}" for name in family.problem.parameters]
    answered, first, best, ours, most = 0, [], [], [], 0
    for row in found.problems.iter_rows(named=True):
        configs = answers.to(tuple(row[name] for name in columns))
        answered += bool(configs)
        times = [time for config in configs if (time := tried[row["number"]].time(config)) is not None]
        if times:
            first.append(row["best_ns"] / times[0])
            best.append(row["best_ns"] / min(times))
            ours.append(row["efficiency"])
            most = max(most, len(times))
    if not first:
        raise InvalidValue(
            f"{solutions.path} answers {answered} of these problems, and none of its choices was measured on them: "
            "there is nothing to compare"
        )
    return {
        "name": solutions.path.name, "n_problems": len(first), "solutions_not_measured": answered - len(first),
        "problems_without_solution": found.problems.height - answered,
        **_figures("model", ours), **_figures("solutions", first), **_figures("solutions_best", best),
        "model_better": int(np.sum(np.array(ours) > np.array(first))),
        "solutions_better": int(np.sum(np.array(ours) < np.array(first))),
        "most_configs_measured": most, "format": solutions.format, "choices": len(solutions.choices),
        "choices_for_every_problem": sum(not item.problem for item in solutions.choices),
        "choices_left_open": _open(solutions, family), "choices_left_out": dict(solutions.left_out),
        "columns_not_read": list(solutions.columns_not_read),
    }  # fmt: skip


def _figures(whose: str, efficiency: Sequence[float]) -> dict[str, float]:
    return {
        f"{whose}_efficiency_mean": float(np.mean(efficiency)),
        f"{whose}_efficiency_p10": float(np.quantile(efficiency, 0.1)),
    }


def _open(solutions: Solutions, family: Family) -> int:
    """How many choices name only part of a config."""
    return sum(len(item.config) < len(family.config.parameters) for item in solutions.choices)


def said(against: Mapping[str, Any]) -> str:
    """The scores, and what was read, as text."""
    lines = [
        f"against {printable(against['name'])}: on {against['n_problems']:,} problems the model gets "
        f"{against['model_efficiency_mean']:.2%}, the solutions {against['solutions_efficiency_mean']:.2%} "
        f"({against['solutions_not_measured']:,} of the solutions were not measured and are left out)"
    ]
    if against["most_configs_measured"] > 1:
        lines.append(
            f"  the best of those listed for a problem, up to {against['most_configs_measured']:,} measured: "
            f"{against['solutions_best_efficiency_mean']:.2%}" + _tried_all(against)
        )
    left = [f"{count:,} {REASONS[reason]}" for reason, count in against["choices_left_out"].items()]
    parts = [f"  read as a {against['format']}: {_counted(against['choices'])}"]
    parts += [f"left out: {', '.join(left)}"] if left else []
    if against["choices_left_open"]:
        parts.append(f"{against['choices_left_open']:,} name part of a config and count as the fastest that agrees")
    if against["columns_not_read"]:
        parts.append(f"columns not read: {', '.join(against['columns_not_read'])}")
    return "\n".join([*lines, "; ".join(parts)])


def _tried_all(against: Mapping[str, Any]) -> str:
    """A note for lists that are the same for every problem: their order means nothing, since all of them are tried."""
    every = against["choices_for_every_problem"] == against["choices"]
    return " (look at this figure: the list is the same for every problem, and all of it is meant to be tried)" if every else ""


def _counted(count: int) -> str:
    return "1 choice" if count == 1 else f"{count:,} choices"
