"""Training: cross-validate the procedure, run it once more on everything, write a model directory whole or not at all."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace
from importlib.metadata import version as version_of
from pathlib import Path
from typing import Any

import msgspec
import numpy as np
import polars as pl

from kerncast.core.arrays import Array
from kerncast.core.device import PEAK
from kerncast.core.io.artefact import json_text, own_checksums
from kerncast.core.io.atomic import build_directory, refuse_unwritable
from kerncast.core.progress import QUIET, Progress
from kerncast.data.dataset import Dataset, record_of
from kerncast.data.row_checks import isolated_times, report_of
from kerncast.data.schema import parameter_columns
from kerncast.errors import InvalidValue, KerncastError
from kerncast.learning.learners.contract import Learner, Target
from kerncast.learning.learners.kinds import learner_class
from kerncast.learning.learners.networks import CsvNetwork
from kerncast.learning.measurements import ProblemSample, with_earlier
from kerncast.learning.table import Table, load_table, refuse_alike_devices
from kerncast.library.declared.declaration import declaration_of
from kerncast.models import card, measured, trust
from kerncast.models.limits.devices import numbers_read
from kerncast.models.manifest import (
    CANDIDATES,
    CARD,
    EVALUATION,
    IMPORTANCES,
    LABELS,
    PREDICTIONS,
    PROBLEMS,
    Data,
    Features,
    Manifest,
    Range,
    write_manifest,
)
from kerncast.models.measured import in_order_of_labels
from kerncast.models.model import Model, feature_digest
from kerncast.training.folds import Partial, discard_folds, validate_and_fit
from kerncast.training.judging import Trained, judge
from kerncast.training.procedure import Procedure, Recipe, Spread
from kerncast.training.warm_start import Continuation, as_read_by, continue_model, planned_forests, refuse_strangers
from kerncast.version import __version__

__all__ = ["Recipe", "train"]


# With one problem, fewer configs than this are too few to learn from.
FEWEST_CONFIGS = 20


def train(
    datasets: Sequence[str | Path] | str | Path,
    out: str | Path,
    recipe: Recipe | None = None,
    *,
    family: str | None = None,
    where: Sequence[str] | str = (),
    pool: bool = False,
    warm_start: Model | str | Path | None = None,
    ck: tuple[str, ...] | None = None,
    no_folds: bool = False,
    weights: CsvNetwork | None = None,
    spread: Spread | None = None,
    progress: Progress = QUIET,
) -> Model:
    """Train a model on one or several datasets and write it to `out`.

    If training is interrupted, finished folds are kept next to `out`, and the same call continues from there. `ck` adds
    the files of CK Tile's heuristics; it names the targets to write besides the recipe's own. With `no_folds` the model is
    fitted once, on everything, and is not evaluated: it has no figures and no interval. A network that is given as `weights`
    is not fitted at all; the data say what it covers. `spread` runs the fits elsewhere.
    """
    out = Path(out)
    if out.exists():  # a training that was killed right after it had written the model
        discard_folds(out)
    refuse_unwritable(out)
    paths = [datasets] if isinstance(datasets, str | Path) else list(datasets)
    where = (where,) if isinstance(where, str) else tuple(where)
    if not paths:
        raise InvalidValue("there is no dataset to train on: name at least one")
    base = warm_start if warm_start is None or isinstance(warm_start, Model) else Model.load(warm_start)
    recipe = recipe or (Recipe() if base is None else Recipe(base.manifest.kind))
    opened = [Dataset.open(path) for path in expand(paths)]
    for dataset in opened:
        if dataset.completeness is not None:
            progress.say(f"{dataset.path}: {dataset.completeness}; training goes on with them")
    kept = () if base is None else base.manifest.features.names
    estimated = None if base is None else base.estimated
    table = load_table(opened, family, where, pool, kept, progress, ProblemSample(recipe.rows, recipe.seed), estimated)
    refuse_alike_devices(table)
    isolated = _isolated(table, opened)
    if base is not None and not base.recorded:
        table = as_read_by(base, table)
    table = recipe.sampled(table)
    # A warm start has one hold-out, whatever the folds.
    _refuse_too_little(table, 1 if no_folds or weights is not None else recipe.folds if base is None else 2)
    recipe = recipe.resolved(table, base) if weights is None else _given_recipe(recipe, table, weights)
    table = recipe.narrowed(table)
    procedure = Procedure(recipe, progress, spread=spread)
    forests = None if ck is None else planned_forests(table, procedure, ck, base, judged=not no_folds)
    if weights is not None:
        learner = learner_class(recipe.kind).from_csv(weights, table.rows, recipe.knobs)
        if impossible := weights.impossible(learner, table.rows):
            progress.say(impossible)
        trained = Trained(learner, table, np.zeros(len(table.problem), np.int64), None)
    elif no_folds:
        trained = _not_judged(table, procedure, base)
    elif base is not None:
        trained = _continued(table, procedure, base)
    else:
        trained = _from_scratch(table, procedure, out)
    trained = replace(trained, extra=trained.extra | isolated)

    def fill(folder: Path) -> None:
        if forests is not None:
            forests.write(folder, trained.learner.options)
        write_model(folder, table, procedure, trained, where, base, fitted=weights is None)

    build_directory(out, fill)
    discard_folds(out)
    return trusted(out, progress)


def trusted(out: Path, progress: Progress) -> Model:
    """The model that was just written to `out`; its user made it, so its code may be compiled."""
    model = Model.load(out)
    try:
        trust.trust(model)
    except KerncastError as error:
        progress.say(f"{error}; until then, other processes answer with {out} in Python, which is slower")
    return model


def _isolated(table: Table, datasets: Sequence[Dataset]) -> dict[str, Any]:
    """What `evaluation.json` says of rows whose times cannot be right; nothing if there are none."""
    ok = np.flatnonzero(table.ok)
    places, median_ns = isolated_times(table.problem[ok], table.config[ok], table.time_ns[ok])
    if not len(places):
        return {}
    columns = list(parameter_columns(table.family))
    wanted = table.rows.frame.select(columns)[ok[places]].with_columns(
        table.device_names[ok[places]], median_ns=median_ns, at=pl.int_range(len(places))
    )
    holders = [dataset for dataset in datasets if table.family.id in {family.id for family in dataset.families}]
    rows = pl.concat([dataset.scan(table.family).filter(pl.col("status") == "ok") for dataset in holders])
    found = rows.join(wanted.lazy(), on=["device", *columns], nulls_equal=True).collect(engine="streaming").sort("at")
    files = {item.digest: item.name for dataset in holders for item in dataset.contents.sources}
    return {"isolated_times": report_of(found, found["median_ns"].to_numpy(), files)}


def _from_scratch(table: Table, procedure: Procedure, out: Path) -> Trained:
    partial = Partial.beside(out, table, procedure.recipe)
    grouped = procedure.recipe.grouped(table)
    found = validate_and_fit(grouped, procedure, partial)
    return Trained(found.learner, table, found.fold, found.predictions, found.extra, found.kinds, found.devices)


def _not_judged(table: Table, procedure: Procedure, base: Model | None) -> Trained:
    if base is not None:
        refuse_strangers(table, procedure, base)
    procedure.progress.stage("the only fit", 1, 1)
    learner = procedure.fit(procedure.recipe.grouped(table), None if base is None else base.learner)
    return Trained(learner, table, np.zeros(len(table.problem), np.int64), None)


def _given_recipe(recipe: Recipe, table: Table, weights: CsvNetwork) -> Recipe:
    """The recipe with the target and the features of a network that is given."""
    asked = (recipe.target or weights.target.name, weights.target.log if recipe.target_log is None else recipe.target_log)
    if asked != (weights.target.name, weights.target.log):
        raise InvalidValue(
            f"the network in {weights.folder} predicts {weights.target}, not {Target(*asked)}: leave out `targets` and "
            "`raw_target`"
        )
    features = weights.features(table.rows.names)
    if recipe.features and set(recipe.features) != set(features):
        raise InvalidValue(f"the network in {weights.folder} reads {', '.join(features)}: leave out `features`")
    own = () if tuple(features) == table.rows.names else tuple(features)
    return replace(recipe, target=asked[0], target_log=asked[1], features=own).resolved(table, None)


def _continued(table: Table, procedure: Procedure, base: Model) -> Trained:
    done: Continuation = continue_model(procedure.recipe.grouped(table), procedure, base)
    return Trained(done.learner, done.held_out, np.zeros(len(done.held_out.problem), np.int64), done.predictions, done.extra)


def fit_table(table: Table, procedure: Procedure, out: Path, *, evaluated: bool = False) -> Model:
    """A model of some rows, written to `out`; unless `evaluated`, it is fitted once and has no figures and no interval."""
    table = table.renumbered()
    trained = _from_scratch(table, procedure, out) if evaluated else _not_judged(table, procedure, None)
    build_directory(out, lambda folder: write_model(folder, table, procedure, trained, (), None))
    discard_folds(out)
    model = Model.load(out)
    trust.hold(model)
    return model


def expand(paths: Sequence[str | Path]) -> list[Path]:
    """The datasets, with each directory of datasets replaced by those in it."""
    found: list[Path] = []
    for path in map(Path, paths):
        inside = sorted(item.parent for item in path.glob("*/dataset.json")) if path.is_dir() else []
        found += inside if inside and not (path / "dataset.json").exists() else [path]
    return found


def _refuse_too_little(table: Table, folds: int) -> None:
    groups = len(np.unique(table.group[table.ok]))
    if groups < 2:
        configs, tried = len(np.unique(table.config[table.ok])), len(np.unique(table.group))
        if tried > 1:
            raise InvalidValue(
                f"{tried} problems were tried and only one has rows that worked, so no problem can be held out: measure "
                "more problems, or train on that one alone (name it with `where`)"
            )
        if configs < max(FEWEST_CONFIGS, folds):
            raise InvalidValue(
                f"there is only one problem ({', '.join(table.family.op.split_group)} are the same in all rows that worked) "
                f"and {configs} configs worked on it, so nothing can be held out to judge it: measure more problems, or at "
                f"least {max(FEWEST_CONFIGS, folds)} configs of this one"
            )
        return
    if groups < folds:
        raise InvalidValue(
            f"{groups} groups of problems worked and {folds} folds were asked for: measure more problems, or use "
            f"`folds={groups}`"
        )


def write_model(
    folder: Path, table: Table, procedure: Procedure, trained: Trained, where: tuple[str, ...], base: Model | None,
    fitted: bool = True,
) -> None:  # fmt: skip
    """Fill the directory of a model; `base` is the model that it continues, or was moved from to another device."""
    recipe, held = procedure.recipe, trained.table
    # What was measured elsewhere is not measured here.
    before = None if trained.adapted else base
    evaluation: dict[str, Any] = {
        "evaluated": False, "overall": {}, "baselines": {}, "noise_floor": trained.table.noise_floor, "folds": 0, "split": None,
    }  # fmt: skip
    judged = None
    if trained.predictions is not None:
        judged = judge(trained, recipe, base)
        evaluation = judged.evaluation
    evaluation |= {
        "problems_trained_on": int(table.trials.solvable.sum()),
        "broken_rules": _broken_rules(table),
        **(
            {"tuned": {name: getattr(trained.learner.options, name) for name in procedure.tuned_knobs()}} if recipe.tune else {}
        ),
        **trained.extra,
    }
    importances = dict(sorted(trained.learner.importances().items(), key=lambda item: (-item[1], item[0])))
    trained.learner.save(folder)
    named = with_earlier(table.labels, None if base is None else base.label_table)
    in_order_of_labels(measured.candidates(table, base), named).write_parquet(folder / CANDIDATES)
    if named is not None:
        named.write_parquet(folder / LABELS)
    measured.seen_groups(table, before).write_parquet(folder / PROBLEMS)
    said: dict[str, Array | None] = {"fold": None, "time_ns": None, "score": None}
    if trained.predictions is not None and judged is not None:
        said = {"fold": trained.fold, "time_ns": trained.predictions.time_ns, "score": trained.predictions.score}
        said |= {"lower_ns": judged.lower_ns, "upper_ns": judged.upper_ns} if judged.lower_ns is not None else {}
    types = {"fold": pl.Int64, "time_ns": pl.Float64, "score": pl.Float64}
    predictions = held.rows.frame.with_columns(
        device=held.device_names,
        **{name: pl.lit(None, types[name]) if values is None else pl.Series(values) for name, values in said.items()},
        measured_ns=pl.Series(held.time_ns).fill_nan(None),
        noise=pl.Series(held.noise).fill_nan(None),
    )
    measured.with_base(predictions, table, before).write_parquet(folder / PREDICTIONS)
    (folder / EVALUATION).write_bytes(json_text(evaluation))
    (folder / IMPORTANCES).write_bytes(json_text(importances))
    manifest = _manifest(folder, table, procedure, trained.learner, where, base)
    if trained.adapted:
        manifest = _on_its_device(manifest, table)
    interval, folds = (None, 0) if judged is None else (judged.interval, manifest.folds)
    elsewhere = None if judged is None else judged.elsewhere
    manifest = msgspec.structs.replace(manifest, interval=interval, folds=folds, elsewhere=elsewhere)
    if not fitted:  # no recipe makes these weights again
        manifest = msgspec.structs.replace(manifest, recipe={})
    (folder / CARD).write_text(card.model_card(manifest, evaluation, importances), encoding="utf-8")
    files = own_checksums(folder)
    write_manifest(folder, msgspec.structs.replace(manifest, files=files))


def _manifest(
    folder: Path, table: Table, procedure: Procedure, learner: Learner, where: tuple[str, ...], base: Model | None
) -> Manifest:
    recipe, names = procedure.recipe, table.rows.names
    constant = tuple(name for name, low, high in zip(names, table.rows.features.min(0), table.rows.features.max(0), strict=True)
                     if low == high)  # fmt: skip
    dtypes = table.rows.frame["problem.dtype"].unique().to_list() if "problem.dtype" in table.rows.frame.columns else []
    # What its base was trained on counts too: the model answers for both.
    dtypes = sorted({*dtypes, *(() if base is None else base.manifest.dtypes)})
    software = {*table.software, *(() if base is None else base.manifest.software)}
    conditions = measured.conditions(table, base)
    assert recipe.target is not None
    assert recipe.target_log is not None
    return Manifest(
        kind=recipe.kind,
        op=table.family.op.name,
        family=table.family.id,
        devices=tuple(record_of(device) for device in table.devices),
        dtypes=tuple(dtypes),
        software=tuple(sorted(software)),
        features=Features(names, feature_digest(table.family, names), table.left_out, constant, aliased_rows(table)),
        target=recipe.target,
        target_log=recipe.target_log,
        options=msgspec.to_builtins(learner.options),
        size=learner.size(),
        folds=recipe.folds,
        seed=recipe.seed,
        split_group=table.family.op.split_group,
        data=Data(
            table.digest, len(table.time_ns), int((~table.ok).sum()), int(table.trials.solvable.sum()),
            len(np.unique(table.group)), len(np.unique(table.config)), table.noise_floor, where,
        ),
        hull=measured.hull(table, base),
        interval=None,
        versions={"kerncast": __version__, **{name: version_of(name) for name in ("lightgbm", "numpy", "polars")}},
        files={},
        recipe=recipe.as_options(),
        declaration=declaration_of(table.family),
        facts=measured.facts(table, base),
        conditions=conditions,
        contradicted=tuple(
            sorted(
                {item.rule.name for item in table.broken if item.contradicted}
                | (set() if base is None else set(base.manifest.contradicted))
            )
        ),
        device_dtypes=measured.device_dtypes(table, base),
        device_software=measured.device_software(table, base),
        warm_start=() if base is None else (*base.manifest.warm_start, base.manifest.data.digest),
        slim="",
        elsewhere=None,
    )  # fmt: skip


def _on_its_device(manifest: Manifest, table: Table) -> Manifest:
    """The manifest of a model that was moved to a device: of dtypes that the device has a rate for, and of its software."""
    device, names = table.devices[0], table.rows.names
    hull, dtypes = dict(manifest.hull), manifest.dtypes
    if PEAK in numbers_read(table.family, names):
        dtypes = tuple(name for name in dtypes if device.peak_of(name) is not None)
    if "dtype" in hull:
        hull["dtype"] = Range(labels=tuple(name for name in hull["dtype"].labels if name in dtypes))
    return msgspec.structs.replace(
        manifest, dtypes=dtypes, hull=hull, software=table.software, device_dtypes={}, elsewhere=None,
        conditions=measured.conditions(table, None),
    )  # fmt: skip


def _broken_rules(table: Table) -> list[dict[str, Any]]:
    """The rules that attempts break although some of them worked."""
    return [
        {
            "rule": item.rule.name, "sentence": item.rule.sentence, "attempts": item.attempts, "ran": item.ran,
            "obeyed": not item.contradicted,
        }
        for item in table.broken
        if item.ran
    ]  # fmt: skip


def aliased_rows(table: Table) -> int:
    """Rows whose features are those of another config on the same problem: no model can tell them apart."""
    if not table.rows.features.shape[1]:
        return 0
    rows = np.column_stack([table.problem.astype(np.float64), table.rows.features])
    hashes = pl.DataFrame(rows).hash_rows(seed=0)
    return int(hashes.is_duplicated().sum()) if len(np.unique(table.config)) > 1 else 0
