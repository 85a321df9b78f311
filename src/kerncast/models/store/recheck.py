"""Measure a sample of a model's training data again: does the model still fit this machine?

The sample is stratified: problems of all durations, and for each of them the configs that matter for choosing (the
model's own choice, the fastest) plus others over the whole range. The old times are those the model learned from;
the new times come from the same collector, so both define a label in the same way.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

import numpy as np
import polars as pl

from kerncast.core.io.atomic import scratch_folder
from kerncast.core.progress import QUIET, Progress
from kerncast.data import Dataset, schema
from kerncast.errors import InvalidValue
from kerncast.learning.tables.measurements import MAD_TO_SIGMA
from kerncast.measuring.messages import Policy
from kerncast.measuring.plan import Runner
from kerncast.measuring.run import Request, Stop, Summary, collect, never
from kerncast.models.model import Model
from kerncast.models.store.drift import FEWEST_PROBLEMS, Finding, Pairs, Tolerance, judge

# Vectors per problem: the choice, the fastest few, and others spread over the rest.
PER_PROBLEM = 8
FASTEST = 3


@dataclass(frozen=True)
class ModelCheck:
    """The result of a check."""

    model: str
    finding: Finding
    software_then: tuple[str, ...]
    software_now: tuple[str, ...]
    device: str

    def as_json(self) -> dict[str, Any]:
        """For `--json`."""
        facts = {"device": self.device, "software_then": self.software_then, "software_now": self.software_now}
        return {
            "model": self.model,
            **self.finding.as_json(),
            **facts,
            "same_software": set(self.software_now) <= set(self.software_then),
        }


def sample(model: Model, count: int, seed: int = 0) -> pl.DataFrame:
    """About `count` vectors that worked in training, problem by problem in random order; `chosen` marks the choices."""
    rows = model.out_of_fold
    if rows is None:
        raise InvalidValue(f"{model.path} does not keep its training times: train it again with `kerncast train`")
    if len(model.manifest.devices) > 1:
        names = ", ".join(item.name for item in model.manifest.devices)
        raise InvalidValue(f"{model.path} was trained on several devices ({names}): check a model of a single device instead")
    problem, config = (
        [name for name in schema.parameter_columns(model.family) if name.startswith(prefix)]
        for prefix in ("problem.", "config.")
    )
    # Out-of-fold scores, so that no choice is judged on times it was trained on.
    tried = rows.with_columns(chosen=(pl.col("score") == pl.col("score").min().over(problem)).fill_null(False))
    worked = tried.filter(pl.col("measured_ns").is_not_null()).sort([*problem, *config], nulls_last=True)
    if worked.is_empty():
        raise InvalidValue(f"no training vector of {model.path} worked: there is nothing to measure again")
    each = min(PER_PROBLEM, max(worked.group_by(problem).len()["len"].to_list()))
    wanted = max(FEWEST_PROBLEMS, round(count / each))
    best = worked.group_by(problem, maintain_order=True).agg(__best=pl.col("measured_ns").min()).sort("__best", *problem)
    rng = np.random.default_rng(seed)
    strata = np.array_split(np.arange(best.height), min(wanted, best.height))
    drawn = rng.permutation([int(rng.choice(part)) for part in strata])
    parts = []
    for number in drawn:
        own = worked.join(best[int(number)].select(problem), on=problem, how="semi", nulls_equal=True).sort(
            "measured_ns", *config
        )
        parts.append(own[_places(own["chosen"].to_numpy(), each)])
    return pl.concat(parts)


def _places(chosen: np.ndarray[Any, np.dtype[np.bool_]], each: int) -> list[int]:
    """Positions in the order of time: the choice, the fastest few, the rest evenly."""
    height = len(chosen)
    kept = {*np.flatnonzero(chosen)[:1].tolist(), *range(min(FASTEST, height))}
    rest = [place for place in range(height) if place not in kept]
    spread = np.linspace(0, len(rest) - 1, max(0, min(each - len(kept), len(rest)))).round().astype(int)
    return sorted(kept | {rest[place] for place in spread})


def recheck(
    model: Model,
    runner: Runner,
    policy: Policy,
    *,
    count: int = 96,
    seed: int = 0,
    seconds: float | None = None,
    tolerance: Tolerance | None = None,
    progress: Progress = QUIET,
    stop: Stop = never,
) -> ModelCheck:
    """Measure a sample again, for so many seconds at most, and say whether the model still fits this machine."""
    then = sample(model, count, seed)
    with scratch_folder() as folder:
        request = Request(
            model.family, runner.name, runner.devices, folder / "now", policy, budget_seconds=seconds,
            options=runner.options, reset_command=runner.reset_words,
        )  # fmt: skip
        vectors = then.select(list(schema.parameter_columns(model.family)))
        summary = collect(request, [vectors], total=vectors.height, progress=progress, stop=stop)
        if summary.interrupted:
            raise KeyboardInterrupt
        # If time is up: decide by what was measured.
        now = Dataset.open(request.out)
        rows = now.read() if now.rows else pl.DataFrame(schema=schema.schema_of(model.family))
    if summary.device != model.device.name:
        raise InvalidValue(
            f"{model.path} was trained on {model.device.name}, but this is {summary.device}: check it on its own device, "
            "because another device is not drift"
        )
    finding = judge(_paired(model, then, rows, summary), tolerance)
    software = tuple(sorted(rows["software"].drop_nulls().unique()))
    return ModelCheck(str(model.path), finding, model.manifest.software, software, summary.device)


def _paired(model: Model, then: pl.DataFrame, rows: pl.DataFrame, summary: Summary) -> Pairs:
    columns = list(schema.parameter_columns(model.family))
    # A vector has one row per visit; the fastest one counts.
    now = rows.group_by(columns, maintain_order=True).agg(
        now_ns=pl.col("time_ns").min(),
        now_noise=(MAD_TO_SIGMA * pl.col("time_ns_mad") / pl.col("time_ns") / pl.col("samples").sqrt()).median(),
    )
    both = then.join(now, on=columns, how="inner", nulls_equal=True, maintain_order="left")
    # The sample comes problem by problem.
    numbers = both.select(pl.struct(name for name in columns if name.startswith("problem.")).rle_id().cast(pl.Int64))
    noise = np.hypot(_floats(both["noise"]), _floats(both["now_noise"]))
    return Pairs(
        numbers.to_series().to_numpy(),
        _floats(both["measured_ns"]),
        _floats(both["now_ns"]),
        noise,
        both["chosen"].to_numpy(),
        summary.disturbed_samples / max(1, summary.samples),
    )


def _floats(values: pl.Series) -> np.ndarray[Any, np.dtype[np.float64]]:
    return values.cast(pl.Float64).fill_null(float("nan")).to_numpy()
