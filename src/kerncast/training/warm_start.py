"""Continuing an existing model, and CK's forests, with new data; both are scored on problems that neither has seen."""

from __future__ import annotations

import gzip
import re
from collections.abc import Mapping
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

import msgspec
import numpy as np
import polars as pl

from kerncast.core.arrays import Flags
from kerncast.core.io.artefact import json_text
from kerncast.core.op import Family
from kerncast.errors import InvalidValue
from kerncast.learning.feature_rows import Featurizer
from kerncast.learning.learners.contract import Learner, LearnerOptions, Target
from kerncast.learning.learners.gbdt import Gbdt, GbdtOptions
from kerncast.learning.learners.lightgbm_text import parse_forest
from kerncast.learning.metrics import Predicted, scorecard
from kerncast.learning.table import Table
from kerncast.learning.trials import folds_by_group, held_out
from kerncast.models.ck import HARDWARE, LAYOUTS, SPEC, TARGETS, TRAINING, CkForests, CkLayout, read_forests, target_of
from kerncast.models.limits.configs import chosen_last, never_worked
from kerncast.models.model import Model, feature_digest
from kerncast.training.fits import Fit, run_fits
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
    columns = base.seen.columns
    marked = base.seen.unique().with_columns(__seen=pl.lit(True))
    joined = table.rows.frame.select(columns).join(marked, on=columns, how="left", nulls_equal=True, maintain_order="left")
    fresh = ~joined["__seen"].fill_null(False).to_numpy()
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


@dataclass(frozen=True)
class PlannedForests:
    """What will be written once the model next to them is trained."""

    table: Table
    """The rows that worked, with CK's columns: failures have no time, and the layout has no forest for them."""
    tried: int
    """Rows with failures."""
    layout: CkLayout
    procedure: Procedure
    targets: Mapping[str, Target]
    """In the layout's units, the one to choose by first."""
    base: CkForests | None
    judged: bool
    """Whether to cross-validate."""

    def write(self, folder: Path, options: LearnerOptions) -> None:
        """Grow the forests with the options of the model next to them, and write all files of the layout."""
        assert isinstance(options, GbdtOptions)
        plain = msgspec.structs.replace(options, blend=0.0, bags=1)
        parts = self._parts()
        fits = [
            Fit(f"CK's {name}: {what}", self._fit(name, plain, held))
            for name in self.targets
            for what, held in [
                *((f"fold {place + 1} of {len(parts)}", part) for place, part in enumerate(parts)),
                ("fit", None),
            ]
        ]
        done = iter(run_fits(fits, self.procedure, self.table))
        counts = {}
        for name in self.targets:
            metrics = [{"fold": place, **next(done)} for place in range(len(parts))]
            grown: Gbdt = next(done)
            if metrics:
                (folder / f"cv_metrics_{name}.json").write_bytes(json_text(metrics))
            counts[name] = _write_forest(folder, name, grown)
        (folder / SPEC).write_bytes(json_text(self._spec(options)))
        (folder / TRAINING).write_bytes(json_text(self._training(counts)))

    def _parts(self) -> list[Flags]:
        """The rows to hold out, fold by fold; a warm start has one hold-out."""
        recipe = self.procedure.recipe
        if not self.judged or len(np.unique(self.table.group)) < 2:
            return []
        if self.base is not None:
            return [held_out(self.table.group, HELD_OUT, recipe.seed)]
        fold = folds_by_group(self.table.group, min(recipe.folds, len(np.unique(self.table.group))), recipe.seed)
        return [fold == number for number in np.unique(fold)]

    def _fit(self, name: str, options: GbdtOptions, held: Flags | None) -> Any:
        categorical, target = self.layout.categorical, self.targets[name]
        base = None if self.base is None else self.base.by_target[name]

        def grow(procedure: Procedure, table: Table) -> Gbdt:
            learner = Gbdt(options)
            learner.categorical_ = categorical
            return learner.fit(table, replace(procedure.fitting, target=target), base)

        def run(table: Table, procedure: Procedure) -> Any:
            if held is None:
                return grow(procedure, table)
            own = table.take(held)
            return _metrics(grow(procedure, table.take(~held)), own) | {
                "train_size": int((~held).sum()), "val_size": int(held.sum()), "val_groups": len(np.unique(own.group)),
            }  # fmt: skip

        return run

    def _spec(self, options: LearnerOptions) -> dict[str, Any]:
        device = self.table.devices[0]
        dtypes = {*self.table.rows.frame["problem.dtype"].unique(), *(() if self.base is None else self.base.spec.dtypes)}
        variant = {} if self.layout.variant is None else {"variant": self.layout.variant}
        categorical = self.layout.categorical if self.base is None else self.base.spec.categorical_features
        return {
            "op_type": self.layout.op_type, **variant, "dtype": ",".join(sorted(dtypes)),
            "arch": device.name if self.base is None else self.base.spec.arch,
            "feature_names": list(self.table.rows.names), "categorical_features": list(categorical),
            "targets": list(self.targets), "log_targets": [name for name, target in self.targets.items() if target.log],
            "params": msgspec.to_builtins(options), "feature_encoding_version": 0,
            # CK's engine reads whole numbers.
            "hardware": {name: round(device.numbers[ours]) for name, (ours, _) in HARDWARE.items() if ours in device.numbers},
        }  # fmt: skip

    def _training(self, counts: Mapping[str, int]) -> dict[str, Any]:
        """`train_manifest.json`: its numbers of trees are those of the forest to choose by."""
        first = next(iter(self.targets))
        before = dict.fromkeys(counts, 0)
        if self.base is not None:
            before = {name: self.base.by_target[name].size()["time_trees"] for name in counts}
        trees = {
            name: {"prev_n_estimators": before[name], "new_n_estimators": total - before[name], "total_n_estimators": total}
            for name, total in counts.items()
        }
        return {
            "warm_start_from": None if self.base is None else str(self.base.path), **trees[first],
            "data_rows": self.tried, "valid_rows": len(self.table.time_ns), "unique_shapes": len(np.unique(self.table.group)),
            **({"n_estimators": trees} if len(trees) > 1 else {}),
        }  # fmt: skip


def planned_forests(
    table: Table, procedure: Procedure, others: tuple[str, ...], base: Model | None, *, judged: bool
) -> PlannedForests:
    """What CK's layout will hold; what it cannot hold is refused now, before anything is trained."""
    recipe = procedure.recipe
    names = tuple(dict.fromkeys((recipe.target or "", *others)))
    layout = _refuse_unfit(table.family, recipe.kind, len(table.devices), names)
    continued = None if base is None else _continued(base, table, names)
    if continued is None:
        targets = {name: target_of(name, procedure.target.log and name != "latency") for name in names}
    else:
        targets = {name: continued.by_target[name].target_ for name in names}
    return PlannedForests(
        _with_columns(table.take(table.ok), layout, continued),
        len(table.time_ns),
        layout,
        procedure,
        targets,
        continued,
        judged,
    )


def _with_columns(table: Table, layout: CkLayout, base: CkForests | None) -> Table:
    """The table with CK's columns under CK's names, computed from the numbers that the base used, if there is one."""
    dtypes = tuple(table.rows.frame["problem.dtype"].unique().sort()) if base is None else base.spec.dtypes
    device = table.devices[0] if base is None else base.device
    featurizer = Featurizer.reading(table.family, device, dtypes, set(layout.columns.values()))
    columns = base.spec.feature_names if base is not None else layout.columns
    names = [name for name in columns if layout.columns[name] in featurizer.program.outputs]
    rows = featurizer.describe(table.rows.frame).only([layout.columns[name] for name in names])
    return replace(table, rows=replace(rows, names=tuple(names), codes={}), devices=(device,))


def _refuse_unfit(family: Family, kind: str, machines: int, targets: tuple[str, ...]) -> CkLayout:
    """Refuse what the layout cannot hold."""
    if family.id not in LAYOUTS or kind != Gbdt.kind:
        raise InvalidValue(f"`file_format=ck` is for gbdt models of {', '.join(LAYOUTS)}, not for {kind} models of {family.id}")
    if machines > 1:
        raise InvalidValue(f"`file_format=ck` holds one device, the rows are of {machines}: keep one with `where` 'device=…'")
    strange = [name for name in targets if name not in TARGETS]
    if strange:
        raise InvalidValue(f"`file_format=ck` needs targets that its readers know ({', '.join(TARGETS)}), not {strange[0]}")
    return LAYOUTS[family.id]


def _continued(base: Model, table: Table, targets: tuple[str, ...]) -> CkForests:
    """The forests of the base, whose schema must be that of the data."""
    where = f"`base` {base.path}"
    if not (base.path / SPEC).is_file():
        raise InvalidValue(
            f"{where}: `file_format=ck` continues its CK forests, and it has none: train it with `file_format=ck`, or "
            "leave `file_format` out"
        )
    found = read_forests(base.path)
    lacking = [name for name in targets if name not in found.by_target]
    if lacking:
        raise InvalidValue(
            f"{where}: it has no model_{lacking[0]}.lgbm to continue, only {', '.join(found.by_target)}: leave {lacking[0]} "
            "out of `targets`, or train from scratch"
        )
    dtypes = sorted(set(table.rows.frame["problem.dtype"].unique()) - set(found.spec.dtypes))
    same = (
        ("family", found.layout.family, table.family.id),
        ("arch", found.device.name, table.devices[0].name),
        ("dtype", found.spec.dtype, ", ".join(dtypes) or found.spec.dtype),
    )
    for what, theirs, ours in same:
        if theirs != ours:
            raise InvalidValue(
                f"{where}: the {what} of its CK files is '{theirs}', the data's is '{ours}'; they must agree: train from "
                "scratch, or choose other data"
            )
    for name in targets:
        if parse_forest(found.by_target[name].boosters["time"][0].model_to_string()).averaged:
            raise InvalidValue(
                f"{where}: model_{name}.lgbm averages its trees, so no tree can be added to it: train from scratch"
            )
    return found


def _metrics(learner: Gbdt, table: Table) -> dict[str, Any]:
    """The figures of a fold, under CK's names; errors are in the space of the target."""
    predicted = np.asarray(Gbdt.predict(learner, table.rows).target)
    labels = learner.target_.encode(table.time_ns, table.rows)
    squares = (predicted - labels) ** 2
    spread = float(((labels - labels.mean()) ** 2).sum())
    trials = table.trials
    share = trials.share[trials.choose(learner.target_.decode(predicted, table.rows))]
    return {
        "rmse": float(np.sqrt(squares.mean())), "r2": 1.0 - float(squares.sum()) / max(spread, 1e-10),
        "mean_efficiency": float(share.mean()), "p10_efficiency": float(np.quantile(share, 0.1)),
    }  # fmt: skip


def _write_forest(folder: Path, name: str, learner: Gbdt) -> int:
    """Write one forest with its importances, and return its number of trees."""
    forest = learner.boosters["time"][0]
    # The number of threads is written into the text; it changes nothing else.
    text = re.sub(r"\[num_threads: \d+\]", "[num_threads: 0]", forest.model_to_string(num_iteration=-1))
    (folder / f"model_{name}.lgbm.gz").write_bytes(gzip.compress(text.encode(), compresslevel=6, mtime=0))
    splits = zip(forest.feature_name(), forest.feature_importance("split").tolist(), strict=True)
    (folder / f"feature_importances_{name}.json").write_bytes(json_text(dict(splits)))
    return int(forest.num_trees())
