"""What a model directory holds besides its weights: candidates, names of kernels, problems, predictions, figures.

Each is read when it is used.
A slim model has only those that answers need, in as few bytes as they need.
"""

from __future__ import annotations

import shutil
from functools import cached_property
from pathlib import Path
from typing import TYPE_CHECKING, Any

import msgspec
import polars as pl

from kerncast.core.io.artefact import file_checksum, json_text
from kerncast.core.io.atomic import build_directory, refuse_unwritable
from kerncast.core.io.foreign import guarded, read_json
from kerncast.core.io.parquet import read_parquet
from kerncast.core.op import Family
from kerncast.data import schema
from kerncast.errors import InvalidValue
from kerncast.learning.metrics import Figures
from kerncast.models.limits.configs import SERVING, Serving, read_serving, serving_of, worked_on
from kerncast.models.manifest import (
    CANDIDATES,
    CARD,
    EVALUATION,
    IMPORTANCES,
    LABELS,
    PREDICTIONS,
    PROBLEMS,
    Manifest,
    write_manifest,
)
from kerncast.models.measured import KernelNames, labels_of

if TYPE_CHECKING:
    from kerncast.models.candidates import GivenConfigs
    from kerncast.models.model import Model


class ModelFiles:
    """The files of a model."""

    path: Path
    manifest: Manifest
    family: Family
    own: Model | None
    """The model that this one is a part of: one of its devices, or with configs of a user's own; None: it is whole."""
    given: GivenConfigs | None
    """The configs to choose from instead of those that worked in training."""

    @cached_property
    def candidates(self) -> pl.DataFrame:
        """Every config that worked at least once, and how well it did in training (empty: not recorded)."""
        own = self.own
        if own is not None and self.given is not None:
            return self.given.candidates(own)
        if own is not None:
            bound = bool(self.family.config.parameters) and (own.out_of_fold is not None or own.serving is not None)
            there = own.candidates
            return there.filter(pl.Series(worked_on(own, self.manifest.device.name))) if bound else there
        if not self.recorded:
            columns = {name: dtype for name, dtype in schema.schema_of(self.family).items() if name.startswith("config.")}
            counts = {"ok": pl.Int64, "failed": pl.Int64, "share": pl.Float64, "portfolio_place": pl.Int64}
            return pl.DataFrame(schema={**columns, **counts})
        return schema.with_optional(self.family, _read(self.path / CANDIDATES), "config.")

    @property
    def label_table(self) -> pl.DataFrame | None:
        """What each config is called in the training data, as stored; None: the data name no kernels."""
        if self.own is not None:
            return self.own.label_table if self.given is None or self.given.names is None else self.given.names
        return _read(self.path / LABELS) if LABELS in self.manifest.files else None

    @cached_property
    def labels(self) -> KernelNames | None:
        """The names of the candidates; None: the training data name no kernels."""
        table = self.label_table
        return None if table is None else labels_of(table, self.candidates)

    @cached_property
    def seen(self) -> pl.DataFrame:
        """The groups of problems (`split_group`) that it was trained on (empty: not recorded)."""
        if not self.recorded:
            return pl.DataFrame(schema={f"problem.{name}": pl.Int64 for name in self.manifest.split_group})
        if self.slim:
            raise InvalidValue(
                f"{self.path} is a slim model, which does not list the problems that it was trained on: use the model that it "
                "was made from"
            )
        return _read(self.path / PROBLEMS)

    @cached_property
    def out_of_fold(self) -> pl.DataFrame | None:
        """The out-of-fold prediction and the measurement of every training vector.

        `device` is where it ran; `fold`, `time_ns` and `score` are the prediction (null: it was trained without folds);
        `measured_ns` (null: it failed) and `noise` the measurement. None for configs that are given: measurements of others say
        nothing of these.
        """
        if self.own is not None:
            whole = None if self.given is not None else self.own.out_of_fold
            return None if whole is None else whole.filter(pl.col("device") == self.manifest.device.name)
        if PREDICTIONS not in self.manifest.files:
            return None
        return schema.with_optional(self.family, _read(self.path / PREDICTIONS))

    @cached_property
    def serving(self) -> Serving | None:
        """What choosing needs of the training data, where a slim model keeps it; None: its predictions say it, or nothing."""
        if self.own is not None:
            whole = None if self.given is not None else self.own.serving
            return None if whole is None else whole.narrowed(self.manifest.device.name)
        if SERVING not in self.manifest.files:
            return None
        names = [record.name for record in self.manifest.devices]
        return read_serving(self.path / SERVING, names, self.candidates.height, len(self.family.problem.parameters))

    @property
    def slim(self) -> bool:
        """Whether it has only what answers need: no predictions, no list of problems."""
        return bool(self.manifest.slim)

    @property
    def recorded(self) -> bool:
        """Whether it says what it was trained on; False for a model of another system."""
        return bool(self.manifest.files)

    @property
    def evaluated(self) -> bool:
        """Whether training evaluated it: False with `no_folds`, and for a model of another system."""
        return self.manifest.folds > 0

    @cached_property
    def evaluation(self) -> dict[str, Any]:
        """The out-of-fold figures of the procedure that made it."""
        data: dict[str, Any] = read_json(self.path / EVALUATION)
        return data

    @cached_property
    def figures(self) -> Figures | None:
        """The same figures, typed; None: the model has none."""
        return Figures.of(self.evaluation["overall"]) if EVALUATION in self.manifest.files and self.evaluated else None


def _read(file: Path) -> pl.DataFrame:
    with guarded(file, "train the model again, or restore the file"):
        return read_parquet(file)


KEPT = (CANDIDATES, LABELS, IMPORTANCES, CARD)


def write_slim(model: Model, out: Path) -> None:
    """Write a model without what only training, tiers and evaluation read, completely or not at all.

    Its forests are packed, so numpy alone answers, with the same numbers. It has no out-of-fold predictions and no list of
    the problems that it was trained on.
    """
    if not model.recorded:
        raise InvalidValue(f"{model.path} is a model of another system, which has nothing to leave out: use it as it is")
    if model.slim:
        raise InvalidValue(f"{model.path} is a slim model already: copy it, or use the model that it was made from")
    refuse_unwritable(out)

    def fill(folder: Path) -> None:
        model.learner.save_packed(folder)
        for name in KEPT:
            if name in model.manifest.files:
                shutil.copyfile(model.path / name, folder / name)
        (folder / EVALUATION).write_bytes(json_text({**model.evaluation, "held_out": held_out_errors(model)}))
        serving = serving_of(model)
        if serving is not None:
            serving.write(folder / SERVING)
        files = {file.name: file_checksum(file) for file in sorted(folder.iterdir())}
        write_manifest(folder, msgspec.structs.replace(model.manifest, files=files, slim=model.manifest.checksum))

    build_directory(out, fill)


def held_out_errors(model: Model) -> dict[str, dict[str, dict[str, float]]]:
    """By device and by dtype: rows, and the mean and the median error of the times that were predicted out of fold."""
    rows = model.out_of_fold
    if rows is None or not model.evaluated:
        return {}
    error = (pl.col("time_ns") / pl.col("measured_ns") - 1.0).abs()
    known = rows.filter(pl.col("time_ns").is_finite(), pl.col("measured_ns").is_finite()).with_columns(__error=error)
    found = {}
    for name, column in (("device", "device"), ("dtype", "problem.dtype")):
        if column not in known.columns or not known.height:
            continue
        parts = known.group_by(column).agg(
            pl.len().alias("rows"), pl.col("__error").mean().alias("mape"), pl.col("__error").median().alias("median_ape")
        )
        found[name] = {row[0]: dict(zip(parts.columns[1:], row[1:], strict=True)) for row in parts.sort(column).iter_rows()}
    return found
