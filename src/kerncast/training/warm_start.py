"""Continuing an existing model with new data; both are scored on problems that neither has seen."""

from __future__ import annotations

from dataclasses import dataclass, replace
from typing import Any

import numpy as np
import polars as pl

from kerncast.errors import InvalidValue
from kerncast.learning.learners.contract import Learner
from kerncast.learning.scoring.metrics import Predicted, scorecard
from kerncast.learning.scoring.trials import held_out
from kerncast.learning.tables.table import Table
from kerncast.models.limits.configs import chosen_last, never_worked
from kerncast.models.model import Model, feature_digest
from kerncast.training.folds import Predictions
from kerncast.training.procedure import Procedure

HELD_OUT = 0.2


@dataclass(frozen=True)
class Continuation:
    """The continued learner, and the one fixed hold-out that it and its base were scored on."""

    learner: Learner
    held_out: Table
    predictions: Predictions
    extra: dict[str, Any]


def continue_model(table: Table, procedure: Procedure, base: Model) -> Continuation:
    """Continue on 80 % of the new groups and judge on the rest; then continue on all of them for the final model."""
    refuse_strangers(table, procedure, base)
    fresh = ~_seen_by(base, table)
    seen_too = len(np.unique(table.group[fresh])) < 2
    pool = np.ones(len(fresh), dtype=bool) if seen_too else fresh
    aside = np.zeros(len(fresh), dtype=bool)
    aside[np.flatnonzero(pool)] = held_out(table.group[pool], HELD_OUT, procedure.recipe.seed)
    judge, training = table.take(aside), table.take(~aside)
    procedure.progress.stage("continuing on 80 % of the new problems", 1, 2)
    time_ns, score = procedure.scores(procedure.fit(training, base.learner), judge)
    # Configs that worked with the base are still served, even if they failed wherever they were tried again.
    score = chosen_last(score, never_worked(training, judge) & ~base.offers(judge.rows))
    before = base.rank_rows(judge.rows)
    procedure.progress.stage("continuing on all of them", 2, 2)
    learner = procedure.fit(table, base.learner)
    extra = {
        "warm_start": {
            "base": scorecard(judge.trials, before),
            "continued": scorecard(judge.trials, Predicted(score, time_ns)),
            # Then both figures are too good: the base was trained on these problems.
            "hold_out_seen_by_base": seen_too,
        }
    }
    return Continuation(learner, judge, Predictions(time_ns, score), extra)


def _seen_by(base: Model, table: Table) -> Any:
    columns = base.seen.columns
    marked = base.seen.unique().with_columns(__seen=pl.lit(True))
    joined = table.rows.frame.select(columns).join(marked, on=columns, how="left", nulls_equal=True, maintain_order="left")
    return joined["__seen"].fill_null(False).to_numpy()


def refuse_strangers(table: Table, procedure: Procedure, base: Model) -> None:
    """Check that the base has the same inputs, target, family and device as the data."""
    manifest, recipe = base.manifest, procedure.recipe
    if not type(base.learner).continues:
        raise InvalidValue(f"a {manifest.kind} model cannot be continued: train it from scratch, without `base`")
    dtypes = tuple(table.rows.frame["problem.dtype"].unique().sort()) if "problem.dtype" in table.rows.frame.columns else ()
    device = {item.name for item in table.devices}
    same = (
        ("op", manifest.op, table.family.op.name),
        ("family", manifest.family, table.family.id),
        ("target", f"{manifest.target}{'' if manifest.target_log else ' (raw)'}",
         f"{recipe.target}{'' if recipe.target_log else ' (raw)'}"),
        ("device", ", ".join(sorted(item.name for item in manifest.devices)), ", ".join(sorted(device))),
        # Data of some of its dtypes are enough: the others keep what the base learned of them.
        ("dtypes", ", ".join(manifest.dtypes), ", ".join(manifest.dtypes if {*dtypes} <= {*manifest.dtypes} else dtypes)),
    )  # fmt: skip
    if recipe.kind != manifest.kind:
        raise InvalidValue(
            f"`base` {base.path}: it is a {manifest.kind} model, but the model asked for is {recipe.kind}: leave `kind` "
            "out, or train from scratch"
        )
    for what, theirs, ours in same:
        if theirs != ours:
            raise InvalidValue(
                f"`base` {base.path}: its {what} is {_short(theirs)}, the data's is {_short(ours)}; they must agree: "
                "train from scratch, or choose other data"
            )
    _refuse_other_features(base, table.rows.names)
    if manifest.features.digest != feature_digest(table.family, table.rows.names):
        raise InvalidValue(f"`base` {base.path}: the formulas of its features have changed since: train from scratch")


def as_read_by(base: Model, table: Table) -> Table:
    """The table as a model of another system reads it: its features in its order, from the hardware numbers that it used.

    Of another family or device, it stays as it is, and `refuse_strangers` says what differs.
    """
    if not type(base.learner).continues:
        raise InvalidValue(
            f"`base` {base.path}: its only forest is of milliseconds, which a model of kerncast cannot continue: use a "
            "directory that has model_tflops.lgbm or model_bandwidth.lgbm"
        )
    if table.family is not base.family or [item.name for item in table.devices] != [base.device.name]:
        return table
    rows = base.featurizer().describe(table.rows.frame, yardsticks=True).only(base.manifest.features.names)
    return replace(table, rows=rows, devices=(base.device,))


def _refuse_other_features(base: Model, ours: tuple[str, ...]) -> None:
    theirs = base.manifest.features.names
    if theirs == ours:
        return
    sides = (("only the model has", [name for name in theirs if name not in ours]),
             ("only the data have", [name for name in ours if name not in theirs]))  # fmt: skip
    told = [f"{who} {', '.join(names[:3])}{' …' if len(names) > 3 else ''}" for who, names in sides if names]
    raise InvalidValue(
        f"`base` {base.path}: its features are not those of the data: {'; '.join(told) or 'their order differs'}; they "
        "must agree: train from scratch, or choose other data"
    )


def _short(text: str) -> str:
    return repr(text if len(text) <= 80 else text[:77] + "…")
