"""The rows of new data that a model has not learned from, with their times as the model's own data would have them.

Rows that the model has learned from already are recognised by their problem and config.

Times of another backend, software or cache state are not repeats of the model's: Inductor's own timer says another number
for the same kernel than the collector does. Such rows are left out, unless `pool` asks for them or torch.compile timed them
with the model's own software. Then they are scaled by one factor per condition, so that the median of measured over predicted
time is 1: what is learned from them is which config is faster, not that all times have changed. What the model's times mean
stays the same.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np
import polars as pl

from kerncast.data import Dataset, schema
from kerncast.errors import InvalidValue
from kerncast.learning.tables.measurements import CONDITIONS
from kerncast.learning.tables.table import NOT_TRIED
from kerncast.models.limits.record import CARRIED
from kerncast.models.model import Model

# The backend of rows that torch.compile timed.
LISTENED = "torch.compile"
# Fewer rows of a condition than this do not tell by which factor its times differ.
FEWEST_TO_SCALE = 10
TIMES = ("time_ns", "time_ns_min", "time_ns_mean", "time_ns_std", "time_ns_mad")
HOW = (*CONDITIONS, "software")
# Reasons for leaving rows out, in words.
SEEN = "the model has learned from them already"
OTHER_DEVICE = "of another device"
OTHER_DTYPE = "of a dtype that the model does not know"
OTHER_CONDITIONS = "measured by another backend, software or cache state (`pool` uses them, scaled)"
FEW_TO_SCALE = f"timed by another timer, and fewer than {FEWEST_TO_SCALE} rows do not tell by which factor: record more"


@dataclass(frozen=True)
class Fresh:
    """Rows that a model has not learned from yet, and how many others were left out, by reason."""

    rows: pl.DataFrame
    left_out: dict[str, int]
    factors: dict[str, float]
    """By condition: what its times were divided by."""

    @property
    def problems(self) -> int:
        return self.rows.select(pl.col("^(device|problem\\..*)$")).n_unique() if self.rows.height else 0

    def groups(self, model: Model) -> int:
        """How many groups of problems have a row that worked."""
        columns = [f"problem.{name}" for name in model.family.op.split_group]
        return self.rows.filter(pl.col("status") == "ok").select(columns).n_unique()


def fresh_rows(model: Model, datasets: Sequence[Dataset], pool: bool = False) -> Fresh:
    """The rows of the model's family, device, dtypes and conditions that it has not learned from yet."""
    family, manifest = model.family, model.manifest
    holders = [item for item in datasets if family.id in {held.id for held in item.families}]
    if not holders:
        held = sorted({one.id for item in datasets for one in item.families})
        raise InvalidValue(f"{model.path} is a model of {family.id}; the data holds {', '.join(held) or 'no rows'}")
    rows = pl.concat([item.read(family) for item in holders], how="diagonal_relaxed")
    rows = rows.filter(~pl.col("status").is_in(NOT_TRIED)).unique(maintain_order=True)
    left_out: dict[str, int] = {}

    def keep(condition: pl.Expr, reason: str) -> None:
        nonlocal rows
        kept = rows.filter(condition)
        if kept.height < rows.height:
            left_out[reason] = left_out.get(reason, 0) + rows.height - kept.height
        rows = kept

    keep(pl.col("device").is_in([item.name for item in manifest.devices]), OTHER_DEVICE)
    if manifest.dtypes:
        keep(pl.col("problem.dtype").is_in(manifest.dtypes), OTHER_DTYPE)
    rows, again = _unseen(model, rows)
    if again:
        left_out[SEEN] = again
    factors: dict[str, float] = {}
    own = _own_conditions(model)
    if not pool:
        keep(own | _own_conditions(model, listened=True), OTHER_CONDITIONS)
    rows, factors, unscaled = _scaled(model, rows, own)
    if unscaled:
        left_out[FEW_TO_SCALE] = unscaled
    return Fresh(rows, left_out, factors)


def _unseen(model: Model, rows: pl.DataFrame) -> tuple[pl.DataFrame, int]:
    """The rows whose vectors the model has not learned from, and the number of the others.

    A model that does not keep its training vectors knows only the problems.
    """
    known, columns = model.out_of_fold, ["device", *schema.parameter_columns(model.family)]
    earlier = known is not None and bool(model.manifest.warm_start) and CARRIED not in known["fold"].to_list()
    if known is None or "device" not in known.columns or earlier:
        known, columns = model.seen, model.seen.columns
    new = rows.join(known.select(columns).unique(), on=columns, how="anti", nulls_equal=True, maintain_order="left")
    return new, rows.height - new.height


def _own_conditions(model: Model, *, listened: bool = False) -> pl.Expr:
    """Whether a row was measured as the model's own data were; what either does not say is taken for the same.

    `listened`: whether torch.compile timed it, of which only the software can be the same.
    """
    known = {**model.manifest.conditions, "software": model.manifest.software}
    alike = {
        name: pl.col(name).is_null() | pl.lit(not known.get(name)) | pl.col(name).is_in(list(known.get(name, ())))
        for name in HOW
    }
    return alike["software"] & pl.col("backend").eq_missing(LISTENED) if listened else pl.all_horizontal(alike.values())


def _scaled(model: Model, rows: pl.DataFrame, own: pl.Expr) -> tuple[pl.DataFrame, dict[str, float], int]:
    """Rows of other conditions with their times brought to the model's; the factors; how many could not be."""
    others, kept, factors, unscaled = rows.filter(~own), [rows.filter(own)], {}, 0
    for part in others.partition_by([*HOW, "device"], maintain_order=True):
        worked = part.filter(pl.col("status") == "ok")
        if worked.height < FEWEST_TO_SCALE:
            unscaled += part.height
            continue
        machine = next(item.device for item in model.manifest.devices if item.name == part["device"][0])
        predicted = model.predict_rows(model.describe(worked.select(*schema.parameter_columns(model.family)), machine)).time_ns
        assert predicted is not None
        factor = float(np.exp(np.median(np.log(worked["time_ns"].to_numpy() / predicted))))
        said = [str(part[name][0]) for name in CONDITIONS if part[name][0] is not None]
        factors[" ".join(said) or "unnamed software"] = factor
        kept.append(part.with_columns(pl.col(name) / factor for name in TIMES if name in part.columns))
    return pl.concat(kept), factors, unscaled


def kept_rows(base: Model) -> pl.DataFrame | None:
    """What a model keeps of its training data, repeats folded, as rows of a dataset; None: it keeps nothing that worked."""
    kept = base.out_of_fold
    if kept is None or "device" not in kept.columns or not kept["measured_ns"].is_not_null().any():
        return None
    status = pl.when(pl.col("measured_ns").is_not_null()).then(pl.lit("ok")).otherwise(pl.lit("launch_error"))
    return kept.select(
        "device", *schema.parameter_columns(base.family), status.alias("status"), pl.col("measured_ns").alias("time_ns"),
        (pl.col("noise") * pl.col("measured_ns")).alias("time_ns_std"), pl.lit(1).alias("samples"),
    )  # fmt: skip
