"""Somebody else's choices, scored on the same measurements: a max-autotune file, a lookup table, a list of configs."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import msgspec
import numpy as np
import polars as pl

from kerncast.errors import BadFile, InvalidValue
from kerncast.evaluate.evaluation import Evaluation
from kerncast.op import Config, Family, Problem


class Solution(msgspec.Struct, frozen=True, forbid_unknown_fields=True):
    """One choice."""

    problem: dict[str, Any]
    config: dict[str, Any]


def read_solutions(path: Path) -> list[Solution]:
    """A JSON list of `{"problem": {…}, "config": {…}}`, or an object with that list under `solutions`."""
    try:
        data = msgspec.json.decode(path.read_bytes())
        listed = data["solutions"] if isinstance(data, dict) and "solutions" in data else data
        return msgspec.convert(listed, list[Solution])
    except OSError as error:
        raise BadFile(f"cannot read {path}: {error.strerror}") from error
    except (msgspec.DecodeError, RecursionError) as error:
        raise BadFile(
            f'{path} is not a list of solutions ({error}): expected [{{"problem": {{"M": 128, …}}, "config": {{…}}}}, …]'
        ) from error


def _chosen(path: Path, family: Family) -> dict[tuple[Any, ...], dict[str, Any]]:
    """Problem → config, by their values in declared order; two choices for one problem are refused."""
    chosen: dict[tuple[Any, ...], dict[str, Any]] = {}
    place_of: dict[tuple[Any, ...], int] = {}
    for place, solution in enumerate(read_solutions(path), 1):
        try:
            problem = tuple(Problem(family, solution.problem).values.values())
            config = Config(family, solution.config).values
        except InvalidValue as error:
            raise BadFile(f"{path}, solution {place}: {error}") from error
        if chosen.setdefault(problem, config) != config:
            raise BadFile(
                f"{path}, solution {place}: solution {place_of[problem]} chooses otherwise for this problem; keep one"
            )
        place_of.setdefault(problem, place)
    return chosen


def score_solutions(path: Path, found: Evaluation, family: Family) -> dict[str, Any]:
    """The efficiency of the solutions beside the model's, on the problems that both answer; one that failed gets 0."""
    chosen = _chosen(path, family)
    problems = [f"problem.{name}" for name in family.problem.parameters]
    answered, theirs, ours, missing = 0, [], [], 0
    measured = {number: part for (number,), part in found.rows.group_by("number")}
    failed = {number: part for (number,), part in found.failures.group_by("number")} if found.failures.height else {}
    for row in found.problems.iter_rows(named=True):
        picked = chosen.get(tuple(row[name] for name in problems))
        if picked is None:
            continue
        answered += 1
        same = [pl.col(f"config.{name}").eq_missing(pl.lit(value)) for name, value in picked.items()]
        this = pl.all_horizontal(same) if same else pl.lit(True)
        time = measured[row["number"]].filter(this)["measured_ns"]
        if len(time):
            theirs.append(row["best_ns"] / time[0])
        elif row["number"] in failed and failed[row["number"]].filter(this).height:
            theirs.append(0.0)
        else:
            missing += 1
            continue
        ours.append(row["efficiency"])
    if not theirs:
        raise InvalidValue(
            f"{path} answers {answered} of these problems, and none of its choices was measured on them: nothing to compare"
        )
    return {
        "name": path.name, "n_problems": len(theirs), "solutions_not_measured": missing,
        "problems_without_solution": found.problems.height - answered,
        "model_efficiency_mean": float(np.mean(ours)), "solutions_efficiency_mean": float(np.mean(theirs)),
        "model_efficiency_p10": float(np.quantile(ours, 0.1)), "solutions_efficiency_p10": float(np.quantile(theirs, 0.1)),
        "model_better": int(np.sum(np.array(ours) > np.array(theirs))),
        "solutions_better": int(np.sum(np.array(ours) < np.array(theirs))),
    }  # fmt: skip
