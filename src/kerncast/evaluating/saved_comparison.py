"""`compare` of two saved tables of predictions: the models are not needed, and problems are paired by what they are."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import numpy as np
import polars as pl

from kerncast.core.arrays import Floats
from kerncast.core.io.terminal import assignments, duration, on_device
from kerncast.errors import BadFile, InvalidValue
from kerncast.evaluating.compare import Limits, Verdict, accuracy_of, judge, noise_margin
from kerncast.evaluating.points import part_of
from kerncast.evaluating.predictions import AGAIN, Saved, read_evaluated
from kerncast.learning.scoring.trials import TIE_SIGMAS

# Times of the same measurements are the same numbers; this allows for nothing but another way to write them.
SAME_TIME = 1e-9
# The columns of the old and of the new side, once they are joined.
SUFFIXES = ("", "_new")


def compare_saved(old: Path, new: Path, *, limits: Limits | None = None) -> Verdict:
    """Compare two evaluations of the same data, problem by problem, by the rules of `compare`."""
    sides = [read_evaluated(path) for path in (old, new)]
    families = [side.evaluated.family for side in sides]
    if families[0] != families[1]:
        raise InvalidValue(f"{old} is of {families[0]}, {new} of {families[1]}: only predictions of one family can be compared")
    keys = ["device", *dict.fromkeys(name for side in sides for name in side.rows.columns if name.startswith("problem."))]
    before, after = (_problems(side, keys) for side in sides)
    both = before.join(after, on=keys, how="inner", suffix="_new", nulls_equal=True, maintain_order="left")
    if not both.height:
        counts = f"{old} ({before.height:,} problems) and {new} ({after.height:,})"
        raise InvalidValue(f"no problem is in both {counts}: evaluate both models on the same data")
    both = both.sort("device", *(f"given.{name}" for name in keys[1:]))  # the order of the files decides nothing
    _refuse_other_times(both, keys, old, new)
    same = both["choice"] == both["choice_new"]
    facts = _facts(sides) | {
        "only_in_old": before.height - both.height, "only_in_new": after.height - both.height,
        "agreement": float(same.to_numpy().mean()),
    }  # fmt: skip
    choosing = both.select((pl.max_horizontal("configs", "configs_new") > 1).any()).item()
    what = "efficiency" if choosing else "accuracy"
    noises = [both[f"noise{suffix}"].fill_null(np.nan).to_numpy() for suffix in SUFFIXES]
    if choosing:
        first, second = (_efficiency(both, suffix) for suffix in SUFFIXES)
        margin = noise_margin(noises[0], noises[1])
    else:
        first, second = (_accuracy(both, side, suffix) for side, suffix in zip(sides, SUFFIXES, strict=True))
        margin = TIE_SIGMAS * np.nan_to_num(noises[0])
    given = both.select("device", *(pl.col(f"given.{name}").alias(name) for name in keys[1:]))
    points = given.with_columns(old_efficiency=pl.Series(first), new_efficiency=pl.Series(second), same_choice=same)
    return judge(first, second, margin, limits or Limits(), points, facts, what)


def _problems(side: Saved, keys: list[str]) -> pl.DataFrame:
    """One row per problem on which something worked: its fastest time, and the config that was chosen."""
    # As text, since the labels of a column may be stored in another order; a parameter that is newer than the file is null.
    rows = side.rows.with_columns(pl.lit(None, pl.String).alias(name) for name in keys if name not in side.rows.columns)
    config = sorted(name for name in rows.columns if name.startswith("config."))
    choice = pl.concat_str([pl.format("{}={} ", pl.lit(name), pl.col(name).cast(pl.String)).fill_null("") for name in config])
    rows = rows.select(
        pl.col(keys).cast(pl.String), pl.col(keys[1:]).name.prefix("given."), "measured_ns", "chosen",
        pl.col("noise").cast(pl.Float64), choice=choice if config else pl.lit(""),
        predicted_ns="predicted_ns" if "predicted_ns" in rows.columns else pl.lit(None, pl.Float64),
    )  # fmt: skip
    grouped = rows.group_by(keys, maintain_order=True).agg(
        pl.col("^given\\..*$").first(), pl.col("measured_ns").min().alias("best_ns"),
        pl.len().alias("configs"), pl.col("chosen").sum().alias("choices"),
        *(pl.col(name).filter("chosen").first().alias(name) for name in ("measured_ns", "noise", "choice", "predicted_ns")),
    )  # fmt: skip
    if grouped.filter(pl.col("choices") != 1).height:
        raise BadFile(f"{side.path} is damaged (a problem does not have one chosen config): {AGAIN}")
    return grouped.filter(pl.col("best_ns").is_not_null())


def _refuse_other_times(both: pl.DataFrame, keys: list[str], old: Path, new: Path) -> None:
    """Refuse tables of different measurements: their efficiencies have different yardsticks."""
    apart = (pl.col("best_ns") - pl.col("best_ns_new")).abs() > SAME_TIME * pl.col("best_ns")
    differ = both.filter(apart)
    if differ.height:
        row = differ.row(0, named=True)
        problem = assignments(part_of(row, "problem")) + on_device(row)
        times = f"{duration(row['best_ns'])} in the one and {duration(row['best_ns_new'])} in the other"
        raise InvalidValue(
            f"{old} and {new} are of different data: the fastest time of {problem} is {times} ({differ.height:,} of "
            f"{both.height:,} problems differ); evaluate both models on the same data"
        )


def _efficiency(both: pl.DataFrame, suffix: str) -> Floats:
    return (both[f"best_ns{suffix}"] / both[f"measured_ns{suffix}"]).fill_null(0.0).to_numpy()


def _accuracy(both: pl.DataFrame, side: Saved, suffix: str) -> Floats:
    predicted = both[f"predicted_ns{suffix}"]
    if predicted.null_count():
        raise InvalidValue(
            f"{side.evaluated.family} has nothing to choose, and {side.path} has no predicted times: nothing is left to compare"
        )
    return accuracy_of(predicted.to_numpy(), both[f"best_ns{suffix}"].to_numpy())


def _facts(sides: list[Saved]) -> dict[str, Any]:
    old, new = (side.evaluated for side in sides)
    return {
        "old_model": old.model, "new_model": new.model, "old_predictions": str(sides[0].path),
        "new_predictions": str(sides[1].path), "family": old.family,
        "datasets": list(dict.fromkeys((*old.datasets, *new.datasets))),
        "includes_training_data": old.includes_training_data or new.includes_training_data,
    }  # fmt: skip
