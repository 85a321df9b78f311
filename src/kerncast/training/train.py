"""Training: cross-validate the procedure, run it once more on everything, write a model directory whole or not at all."""

from __future__ import annotations

import os
import shutil
import tempfile
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field
from importlib.metadata import version as version_of
from pathlib import Path
from typing import Any, Protocol

import msgspec
import numpy as np
import numpy.typing as npt
import polars as pl

from kerncast.data.dataset import Dataset, file_checksum, record_of
from kerncast.declared.declaration import declaration_of
from kerncast.errors import NO_SPACE, CannotWrite, InvalidValue
from kerncast.learners.contract import Learner
from kerncast.models import card, coverage
from kerncast.models.conformal import calibrate, cross_bounds
from kerncast.models.manifest import (
    CANDIDATES,
    CARD,
    EVALUATION,
    IMPORTANCES,
    PREDICTIONS,
    PROBLEMS,
    Data,
    Features,
    Manifest,
    write_manifest,
)
from kerncast.models.model import Model, feature_digest
from kerncast.scoring.scorecard import Predicted
from kerncast.scoring.splits import CONFIG
from kerncast.tables import assess
from kerncast.tables.feature_rows import Featurizer
from kerncast.tables.table import Table, load_table
from kerncast.training.folds import Partial, Predictions, cross_validate
from kerncast.training.procedure import Procedure, Recipe
from kerncast.training.warm_start import Continuation, continue_model
from kerncast.version import __version__

__all__ = ["Progress", "Recipe", "train"]

Floats = npt.NDArray[np.float64]

# Of one problem: fewer configs than this are looked up, not learned from.
FEWEST_CONFIGS = 20


class Progress(Protocol):
    """What is told while training."""

    def stage(self, name: str, number: int, of: int) -> None:
        """A fold, or the final fit, begins."""

    def step(self, what: str, done: int, of: int) -> None:
        """How far that is."""


class _Quiet:
    def stage(self, name: str, number: int, of: int) -> None:
        return

    def step(self, what: str, done: int, of: int) -> None:
        return


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
    progress: Progress | None = None,
) -> Model:
    """Train a model on one or several datasets and write it to `out`.

    Interrupted, the folds that are finished are kept beside `out`, and the same call goes on from there. `ck`
    adds the files of CK Tile's heuristics; it names the targets to write beside the recipe's own.
    """
    out, told = Path(out), progress or _Quiet()
    refuse_unwritable(out)
    paths = [datasets] if isinstance(datasets, str | Path) else list(datasets)
    where = (where,) if isinstance(where, str) else tuple(where)
    if not paths:
        raise InvalidValue("there is no dataset to train on: name at least one")
    base = warm_start if warm_start is None or isinstance(warm_start, Model) else Model.load(warm_start)
    recipe = recipe or (Recipe() if base is None else Recipe(base.manifest.kind))
    table = load_table([Dataset.open(path) for path in expand(paths)], family, where, pool)
    # A warm start has one hold-out, whatever the folds.
    _refuse_too_little(table, recipe.folds if base is None else 2)
    recipe = recipe.resolved(table, base)
    if ck is not None:
        from kerncast.models.ck import refuse_unfit

        refuse_unfit(table.family, recipe.kind, len(table.devices), (recipe.target or "", *ck))
    procedure = Procedure(recipe, told.step)
    trained = _continued(table, procedure, base, told) if base is not None else _from_scratch(table, procedure, out, told)

    def fill(folder: Path) -> None:
        if ck is not None:
            from kerncast.models.ck import write_ck

            write_ck(folder, table, trained.learner, procedure.fitting, ck)
        _write(folder, table, procedure, trained, where, base)

    build_directory(out, fill)
    Partial.beside(out, table, recipe).discard()
    return Model.load(out)


@dataclass(frozen=True)
class Trained:
    """A learner with the out-of-fold predictions of the procedure that made it."""

    learner: Learner
    table: Table
    """The rows that were predicted without having been seen."""
    fold: npt.NDArray[np.int64]
    predictions: Predictions
    extra: dict[str, Any] = field(default_factory=dict)


def _from_scratch(table: Table, procedure: Procedure, out: Path, told: Progress) -> Trained:
    partial = Partial.beside(out, table, procedure.recipe)
    grouped = procedure.recipe.grouped(table)
    fold, predictions, extra = cross_validate(grouped, procedure, told.stage, partial=partial)
    told.stage("the final fit", procedure.recipe.folds + 1, procedure.recipe.folds + 1)
    return Trained(procedure.fit(grouped), table, fold, predictions, extra)


def _continued(table: Table, procedure: Procedure, base: Model, told: Progress) -> Trained:
    done: Continuation = continue_model(procedure.recipe.grouped(table), procedure, base, told.stage)
    return Trained(done.learner, done.held_out, np.zeros(len(done.held_out.problem), np.int64), done.predictions, done.extra)


def expand(paths: Sequence[str | Path]) -> list[Path]:
    """Datasets as they are; a directory of datasets becomes all of them."""
    found: list[Path] = []
    for path in map(Path, paths):
        inside = sorted(item.parent for item in path.glob("*/dataset.json")) if path.is_dir() else []
        found += inside if inside and not (path / "dataset.json").exists() else [path]
    return found


def _refuse_too_little(table: Table, folds: int) -> None:
    groups = len(np.unique(table.group[table.ok]))
    if groups < 2:
        configs = len(np.unique(table.config[table.ok]))
        if len(np.unique(table.group)) > 1 or configs < max(FEWEST_CONFIGS, folds):
            raise InvalidValue(
                f"there is one problem only ({', '.join(table.family.op.split_group)} are the same in all rows that worked) "
                f"and {configs} configs worked on it: nothing could be held out to judge a model; measure more problems, or at "
                f"least {max(FEWEST_CONFIGS, folds)} configs of this one"
            )
        return
    if groups < folds:
        raise InvalidValue(
            f"{groups} groups of problems worked and {folds} folds were asked for: measure more problems, or use "
            f"--folds {groups}"
        )


def refuse_unwritable(out: Path) -> None:
    """Before the hours of training that would come before the directory is written."""
    try:
        if out.exists():
            raise InvalidValue(f"{out} exists already: choose another name, or remove it first")
    except OSError as error:
        raise _cannot_write(out, error) from error
    shutil.rmtree(_scratch_beside(out), ignore_errors=True)


def _scratch_beside(out: Path) -> Path:
    """A directory of its own in the nearest folder above `out` that is there."""
    beside = next(folder for folder in out.absolute().parents if folder.exists())
    try:
        return Path(tempfile.mkdtemp(prefix=".kerncast-", dir=beside))
    except OSError as error:
        raise _cannot_write(out, error) from error


def _cannot_write(out: Path, error: OSError) -> CannotWrite:
    cure = "free some space or choose another place" if error.errno in NO_SPACE else "choose another place"
    return CannotWrite(f"could not write {out}: {error.strerror or error}; {cure}")


def build_directory(out: Path, fill: Callable[[Path], None]) -> None:
    """A directory that appears whole or not at all."""
    scratch = _scratch_beside(out)
    try:
        draft = scratch / "model"
        draft.mkdir()
        fill(draft)
        out.parent.mkdir(parents=True, exist_ok=True)
        os.rename(draft, out)
    except OSError as error:
        raise _cannot_write(out, error) from error
    finally:
        shutil.rmtree(scratch, ignore_errors=True)


def _write(
    folder: Path, table: Table, procedure: Procedure, trained: Trained, where: tuple[str, ...], base: Model | None
) -> None:
    recipe = procedure.recipe
    held = trained.table
    by_config = recipe.hold_out == CONFIG
    # What errs together: the rows of a problem, or of a config where there is one problem only.
    unit = held.config if by_config else held.problem
    lower, upper = cross_bounds(unit, trained.fold, held.time_ns, trained.predictions.time_ns)
    if base is not None and base.manifest.interval is not None:
        # One hold-out has no other folds to calibrate on: what is claimed is the base's interval.
        lower, upper = base.manifest.interval.bounds(trained.predictions.time_ns)
    predicted = Predicted(trained.predictions.score, trained.predictions.time_ns, *_known(lower, upper))
    # Baselines that learn from other problems have none to learn from.
    evaluation = assess.assess(held, predicted, np.zeros_like(trained.fold) if by_config else trained.fold) | {
        "folds": recipe.folds if base is None else 1,
        "split": CONFIG if by_config else ",".join(table.family.op.split_group),
        "problems_trained_on": int(table.trials.solvable.sum()),
        **(
            {"tuned": {name: getattr(trained.learner.options, name) for name in procedure.tuned_knobs()}} if recipe.tune else {}
        ),
        **trained.extra,
    }
    ok = np.isfinite(held.time_ns) & np.isfinite(trained.predictions.time_ns)
    interval = calibrate(unit[ok], held.time_ns[ok], trained.predictions.time_ns[ok])
    importances = dict(sorted(trained.learner.importances().items(), key=lambda item: (-item[1], item[0])))
    trained.learner.save(folder)
    coverage.candidates(table, base).write_parquet(folder / CANDIDATES)
    coverage.seen_groups(table, base).write_parquet(folder / PROBLEMS)
    held.rows.frame.with_columns(
        fold=pl.Series(trained.fold),
        time_ns=pl.Series(trained.predictions.time_ns),
        score=pl.Series(trained.predictions.score),
        measured_ns=pl.Series(held.time_ns).fill_nan(None),
        noise=pl.Series(held.noise).fill_nan(None),
    ).write_parquet(folder / PREDICTIONS)
    _write_json(folder / EVALUATION, evaluation)
    _write_json(folder / IMPORTANCES, importances)
    manifest = _manifest(folder, table, procedure, trained.learner, where, base)
    manifest = msgspec.structs.replace(manifest, interval=interval)
    (folder / CARD).write_text(card.model_card(manifest, evaluation, importances), encoding="utf-8")
    files = {file.name: file_checksum(file) for file in sorted(folder.iterdir())}
    write_manifest(folder, msgspec.structs.replace(manifest, files=files))


def _known(lower: Floats, upper: Floats) -> tuple[Floats | None, Floats | None]:
    return (lower, upper) if np.isfinite(lower).any() else (None, None)


def _write_json(path: Path, value: Any) -> None:
    path.write_bytes(msgspec.json.format(msgspec.json.encode(value), indent=2) + b"\n")


def _manifest(
    folder: Path, table: Table, procedure: Procedure, learner: Learner, where: tuple[str, ...], base: Model | None
) -> Manifest:
    recipe, names = procedure.recipe, table.rows.names
    constant = tuple(name for name, low, high in zip(names, table.rows.features.min(0), table.rows.features.max(0), strict=True)
                     if low == high)  # fmt: skip
    dtypes = table.rows.frame["problem.dtype"].unique().sort().to_list() if "problem.dtype" in table.rows.frame.columns else []
    featurizer = Featurizer(table.family, table.devices[0], tuple(dtypes) or None)
    assert recipe.target is not None
    assert recipe.target_log is not None
    return Manifest(
        kind=recipe.kind,
        op=table.family.op.name,
        family=table.family.id,
        devices=tuple(record_of(device) for device in table.devices),
        dtypes=tuple(dtypes),
        software=table.software,
        features=Features(names, feature_digest(featurizer, names), table.left_out, constant, aliased_rows(table)),
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
        hull=coverage.hull(table, base),
        interval=None,
        versions={"kerncast": __version__, **{name: version_of(name) for name in ("lightgbm", "numpy", "polars")}},
        files={},
        recipe=recipe.as_options(),
        declaration=declaration_of(table.family) or msgspec.UNSET,
        warm_start=() if base is None else (*base.manifest.warm_start, base.manifest.data.digest),
    )  # fmt: skip


def aliased_rows(table: Table) -> int:
    """Rows whose features are those of another config on the same problem: no model can tell them apart."""
    if not table.rows.features.shape[1]:
        return 0
    rows = np.column_stack([table.problem.astype(np.float64), table.rows.features])
    hashes = pl.DataFrame(rows).hash_rows(seed=0)
    return int(hashes.is_duplicated().sum()) if len(np.unique(table.config)) > 1 else 0
