"""A model moved to another device by a few measurements there.

The base is a model of other devices, or of this one with other software. What it misses on the new rows is learned on top of it
and judged on rows that were held out in whole groups, so the interval is that of this device. A model of the rows alone is
judged on the same rows, and kept in its place if it is better. Either is written as a model of one device, like any other.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace
from pathlib import Path
from typing import Any

import msgspec
import numpy as np
import polars as pl

from kerncast.core.arrays import Flags, Floats, Ints
from kerncast.core.device import Device
from kerncast.core.io.artefact import file_checksum
from kerncast.core.io.atomic import build_directory, refuse_unwritable
from kerncast.core.parameters import Categorical
from kerncast.core.progress import QUIET, Progress
from kerncast.data.dataset import Dataset
from kerncast.errors import InvalidValue
from kerncast.learning.feature_rows import Rows
from kerncast.learning.learners.contract import label_weights
from kerncast.learning.learners.gbdt import Gbdt
from kerncast.learning.measurements import Folded, read_measurements
from kerncast.learning.table import MIXTURES, Table, refuse_mixtures, table_of, tried_rows
from kerncast.learning.trials import folds_by_group
from kerncast.models.limits.configs import FEWEST, SERVING, Reach, Serving, expectation_of, reach_of, worked_on
from kerncast.models.limits.devices import away_from
from kerncast.models.manifest import write_manifest
from kerncast.models.measured import measured_by_model
from kerncast.models.model import Model
from kerncast.training.folds import Predictions
from kerncast.training.judging import Trained
from kerncast.training.procedure import Procedure, Recipe
from kerncast.training.train import expand, trusted, write_model

FOLDS = 5
# Fewer rows that worked cannot be held out and learned from.
FEWEST_ROWS = 4
# Fewer are too few for trees that know nothing else.
FEWEST_ALONE = 40
# A model of the rows alone answers for fewer problems, so it must be better by this share of the error.
BETTER = 0.05
# If its error on the first folds is this many times the other's, the rest are not worth their time.
HOPELESS = 1.5
# Values that a message lists.
LISTED = 4


def adapt(
    base: Model,
    datasets: Sequence[str | Path] | str | Path,
    out: str | Path,
    *,
    device: Device | None = None,
    where: Sequence[str] = (),
    seed: int = 0,
    progress: Progress = QUIET,
) -> Model:
    """Move a model to the device of some rows and write it to `out`; `device` is its profile, else that of the data."""
    out = Path(out)
    refuse_unwritable(out)
    _refuse_unfit(base)
    paths = [datasets] if isinstance(datasets, str | Path) else list(datasets)
    progress.stage("reading the measurements")
    table, unused = rows_of(base, [Dataset.open(path) for path in expand(paths)], device, tuple(where))
    for line in unused:
        progress.say(line)
    trained = _judged(base, table, seed, progress)
    if unused:
        trained.extra["adapted"]["not_used"] = unused
    recipe = Recipe(base.manifest.kind, target=base.manifest.target, target_log=base.manifest.target_log,
                    folds=max(2, len(np.unique(trained.fold))), seed=seed)  # fmt: skip
    procedure = Procedure(recipe, progress)
    alone = _alone(procedure, trained)

    def fill(folder: Path) -> None:
        if alone is not None:
            write_model(folder, table, procedure, alone, tuple(where), None)
            return
        write_model(folder, table, procedure, trained, tuple(where), base, fitted=False)
        _write_reach(folder, base)

    build_directory(out, fill)
    return trusted(out, progress)


def _refuse_unfit(base: Model) -> None:
    if not isinstance(base.learner, Gbdt) or not base.recorded:
        raise InvalidValue(
            f"{base.path} is a {base.manifest.kind} model{'' if base.recorded else ' of another system'}, and only gbdt models "
            "of kerncast can be adapted: train one with `kerncast train`"
        )
    if not base.target.log:
        raise InvalidValue(f"{base.path} predicts {base.target.name} itself, not its logarithm: train it without `raw_target`")


def rows_of(base: Model, datasets: Sequence[Dataset], device: Device | None, where: tuple[str, ...]) -> tuple[Table, list[str]]:
    """The rows of one device, as the base reads them, and which were left out and why; another op or device is refused."""
    holders = [dataset for dataset in datasets if base.family.id in {item.id for item in dataset.families}]
    if not holders:
        held = sorted({item.id for dataset in datasets for item in dataset.families})
        raise InvalidValue(
            f"{base.path} is a model of {base.family.id}; the data hold {', '.join(held) or 'no rows'}: import them as "
            f"{base.family.id} (`family` of the mapping)"
        )
    rows = tried_rows(read_measurements(base.family, holders, where), where, base.family.id, "there is nothing to learn from")
    named = sorted(rows["device"].unique())
    if device is not None and device.name not in named:
        raise InvalidValue(
            f"the rows were measured on {', '.join(named)}, not on {device.name}: name that device, or import them with "
            f"`device` {device.name}"
        )
    if len(named) > 1:
        raise InvalidValue(f"the rows are of several devices ({', '.join(named)}): keep one with `where` 'device=…'")
    refuse_mixtures(rows, [column for column in MIXTURES if column != "device"])
    rows, unused = _known_to(base, rows)
    machine = base.rated(device or next(holder.device(named[0]) for holder in holders))
    away_from(base, machine)  # refuses a profile that lacks a number
    names = base.manifest.features.names
    folded = Folded.of(base.family, rows.get_columns())
    digest = "+".join(sorted(dataset.digest for dataset in holders))
    if set(digest.split("+")) & set(base.manifest.data.digest.split("+")):
        raise InvalidValue(
            f"{base.path} has learned from these rows already, so its error on them would say nothing: adapt the model that it "
            "was made from, or give other rows"
        )
    table = table_of(base.family, folded, {named[0]: machine}, digest, kept=names)
    lacking = [name for name in names if name not in table.rows.names]
    if lacking:
        raise InvalidValue(
            f"{base.path} reads {lacking[0]}, which needs {', '.join(table.left_out.get(lacking[0], ('other parameters',)))} "
            f"of {machine.name}: add the numbers to its profile"
        )
    table = replace(table, rows=table.rows.only(names))
    if int(table.ok.sum()) < FEWEST_ROWS:
        raise InvalidValue(f"{int(table.ok.sum())} rows worked, and at least {FEWEST_ROWS} are needed: measure more")
    return table, unused


def _known_to(base: Model, rows: pl.DataFrame) -> tuple[pl.DataFrame, list[str]]:
    """The rows whose kind the base knows, and which were left out and why.

    Of a layout or dtype that the base never saw it knows nothing, and neither of what changes with a number of which it saw one
    value only. Learned from with the others, such rows would only blur them.
    """
    unused = []
    for name, seen in base.manifest.hull.items():
        column = f"problem.{name}"
        if column not in rows.columns:
            continue
        known: list[Any] = list(seen.labels) or ([seen.low] if seen.low is not None and seen.low == seen.high else [])
        if not known:
            continue
        wanted = ",".join(map(str, known))
        strange = rows.filter(pl.col(column).is_not_null() & ~pl.col(column).is_in(known))
        if not strange.height:
            continue
        values = [str(value) for value in strange[column].unique().sort()]
        listed = ", ".join(values[:LISTED]) + (" …" if len(values) > LISTED else "")
        why = f"{strange.height:,} of {rows.height:,} rows have {name} {listed}, of which {base.path} knows nothing"
        only = f"it was trained with {', '.join(map(str, known[:LISTED]))}{' …' if len(known) > LISTED else ''} only"
        if strange.height == rows.height and not seen.labels:
            continue  # another size of everything: what is known of the first may still help
        if strange.height == rows.height:
            raise InvalidValue(f"{why} ({only}): give rows with `where` '{column}={wanted}', or train a model on these alone")
        unused.append(f"not used: {why} ({only})")
        rows = rows.filter(pl.col(column).is_null() | pl.col(column).is_in(known))
    return rows, unused


def _judged(base: Model, table: Table, seed: int, progress: Progress) -> Trained:
    """The moved learner, and what moved learners say of rows that they were not given."""
    group = _groups(table)
    groups = len(np.unique(group[table.ok]))
    said = base.target.decode(base.learner.predict(table.rows).target, table.rows)
    time_ns = np.full(len(table.time_ns), np.nan)
    fold = np.zeros(len(table.time_ns), np.int64)
    count = min(FOLDS, groups)
    if count > 1:
        fold = folds_by_group(group, min(count, len(np.unique(group))), seed)
        for place, number in enumerate(np.unique(fold)):
            progress.stage(f"fold {place + 1} of {count}", place + 1, count + 1)
            own = fold == number
            if table.ok[~own].any():
                time_ns[own] = _times(_moved(base, table, ~own, seed), base, table.rows.take(own))
    progress.stage("the final fit", count + 1, count + 1)
    learner = _moved(base, table, np.ones(len(table.ok), dtype=bool), seed)
    known = table.ok & np.isfinite(time_ns)
    judged = {"before": _mape(said, table, known), "after": _mape(time_ns, table, known)} if known.any() else {}
    extra: dict[str, Any] = {"adapted": {
        "from": [record.name for record in base.manifest.devices], "base": base.manifest.checksum,
        "rows": int(table.ok.sum()), "groups": groups, **judged, "kept": "moved",
    }}  # fmt: skip
    predictions = Predictions(time_ns, time_ns) if known.any() else None
    return Trained(learner, table, fold, predictions, extra, adapted=True)


def _groups(table: Table) -> Ints:
    """What is held out together: the problems of a group, or configs if there is one group."""
    return table.group if len(np.unique(table.group[table.ok])) > 1 else table.config


def _alone(procedure: Procedure, moved: Trained) -> Trained | None:
    """A model of the rows alone, if it is better on the same held-out rows; None: the moved one is.

    `moved` is told how good the other one is, whichever is kept.
    """
    table, fold, progress = moved.table, moved.fold, procedure.progress
    if moved.predictions is None or int(table.ok.sum()) < FEWEST_ALONE:
        return None
    table = replace(table, group=_groups(table))
    time_ns, numbers, facts = np.full(len(table.time_ns), np.nan), np.unique(fold), moved.extra["adapted"]
    for place, number in enumerate(numbers):
        progress.stage(f"the rows alone, fold {place + 1} of {len(numbers)}", place + 1, len(numbers) + 1)
        own = fold == number
        if not table.ok[~own].any():
            return None
        learner = procedure.fit(table.take(~own).renumbered())
        time_ns[own] = procedure.target.decode(learner.predict(table.rows.take(own)).target, table.rows.take(own))
        known = table.ok & np.isfinite(time_ns) & np.isfinite(moved.predictions.time_ns)
        facts["alone"] = _mape(time_ns, table, known)
        if facts["alone"] > HOPELESS * _mape(moved.predictions.time_ns, table, known):
            facts["alone_folds"] = place + 1
            return None
    if facts["alone"] > (1.0 - BETTER) * facts["after"]:
        return None
    progress.stage("the rows alone, the final fit", len(numbers) + 1, len(numbers) + 1)
    extra = {"adapted": {**facts, "kept": "alone"}}
    return Trained(procedure.fit(table), moved.table, fold, Predictions(time_ns, time_ns), extra)


def _write_reach(folder: Path, base: Model) -> None:
    """Say where each config may be chosen, from what the rows and the base have seen of it.

    A kernel of fp8 that is not among the rows must not be chosen for bf16, which it was never tried on.
    """
    moved = Model.load(folder)
    own, theirs = reach_of(moved), reach_of(base)
    if own is None or theirs is None:
        return
    config = [name for name in moved.candidates.columns if name.startswith("config.")]
    known = base.candidates.select(config).with_row_index("__place")
    found = moved.candidates.select(config).join(known, on=config, how="left", nulls_equal=True, maintain_order="left")
    place, strange = found["__place"].fill_null(0).to_numpy(), found["__place"].is_null().to_numpy()[:, None]
    # A config that the rows have often may still run on sizes that they do not have. One that they have seldom says nothing.
    often = ((~np.isnan(measured_by_model(moved).shares)).sum(axis=0) >= FEWEST)[:, None]

    def merged(ours: Any, base_s: Any, either: Any) -> Any:
        return np.where(strange, ours, np.where(often, either(ours, base_s[place]), base_s[place]))

    reach = Reach(
        merged(own.low, theirs.low, np.minimum), merged(own.high, theirs.high, np.maximum),
        merged(own.labels, theirs.labels, np.bitwise_or),
    )  # fmt: skip
    (device,) = (record.name for record in moved.manifest.devices)
    worked, problem = worked_on(moved, device), list(moved.family.problem.parameters)
    if "dtype" in problem and all(isinstance(item, Categorical) for item in moved.family.config.parameters.values()):
        reach = _giving_way(reach, worked, problem.index("dtype"))
    Serving((device,), worked[None], (reach, reach), expectation_of(moved)).write(folder / SERVING)
    files = {**moved.manifest.files, SERVING: file_checksum(folder / SERVING)}
    write_manifest(folder, msgspec.structs.replace(moved.manifest, files=dict(sorted(files.items()))))


def _giving_way(reach: Reach, worked: Flags, dtype: int) -> Reach:
    """Without the dtypes of a kernel that never ran here, where one that did was tried on all its problems of that dtype.

    The new device may not have the kernel. Tile sizes are another matter: among those, others than the rows have may be better.
    """
    labels, others = reach.labels.copy(), np.arange(reach.labels.shape[1]) != dtype
    for kernel in np.flatnonzero(~worked):
        wider = (reach.low <= reach.low[kernel]) & (reach.high[kernel] <= reach.high)
        same = (reach.labels[kernel] & ~reach.labels) == 0
        instead = worked & (wider & (same | ~others)).all(axis=1)
        labels[kernel, dtype] &= ~np.bitwise_or.reduce(reach.labels[instead, dtype], initial=np.uint64(0))
    return replace(reach, labels=labels)


def _moved(base: Model, table: Table, rows: Flags, seed: int) -> Gbdt:
    assert isinstance(base.learner, Gbdt)
    part = table.take(rows & table.ok)
    labels = base.target.encode(part.time_ns, part.rows)
    weight = np.clip(label_weights(part), 1e-3, 1.0)
    return base.learner.moved(part.rows, labels, weight, seed)


def _times(learner: Gbdt, base: Model, rows: Rows) -> Floats:
    return base.target.decode(learner.predict(rows).target, rows)


def _mape(time_ns: Floats, table: Table, rows: Flags) -> float:
    return float(np.mean(np.abs(time_ns[rows] / table.time_ns[rows] - 1.0)))
