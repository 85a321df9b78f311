"""A model on disk: manifest, weights, candidates. It predicts and scores vectors; choosing is the selector's."""

from __future__ import annotations

from dataclasses import replace
from functools import cached_property
from pathlib import Path
from typing import Any

import msgspec
import numpy as np
import numpy.typing as npt
import polars as pl

from kerncast.data import schema
from kerncast.declared.declaration import resolve
from kerncast.device import Device
from kerncast.errors import BadFile, InvalidValue, NotFound
from kerncast.learners.contract import Learner
from kerncast.learners.kinds import learner_class
from kerncast.learners.target import Target
from kerncast.models.manifest import CANDIDATES, EVALUATION, MANIFEST, PREDICTIONS, PROBLEMS, Manifest, read_manifest
from kerncast.op import Family
from kerncast.scoring.scorecard import Predicted
from kerncast.tables.feature_rows import Featurizer, Rows
from kerncast.tables.never_worked import chosen_last

Floats = npt.NDArray[np.float64]


class Model:
    """A trained model, loaded and checked. `Model.load(path)` is how to get one."""

    def __init__(self, path: Path, manifest: Manifest, family: Family, learner: Learner) -> None:
        self.path, self.manifest, self.family, self.learner = path, manifest, family, learner
        self.target = Target(manifest.target, manifest.target_log)

    @classmethod
    def load(cls, path: str | Path) -> Model:
        """Read a model directory; whatever does not fit this kerncast is refused by name."""
        path = Path(path)
        if is_ck_directory(path):
            from kerncast.models.ck import read_ck

            return cls(path, *read_ck(path))
        manifest = read_manifest(path)
        try:
            family = resolve(manifest.family, manifest.declaration or None, path)
        except NotFound as error:
            raise BadFile(f"{path} is a model of {manifest.family}, which is not installed here: {error}") from error
        kind = learner_class(manifest.kind)
        try:
            options = msgspec.convert(manifest.options, kind.options_type)
        except msgspec.ValidationError as error:
            raise BadFile(f"{path}: the options in model.json are not those of {manifest.kind} ({error})") from error
        model = cls(path, manifest, family, kind.load(path, options))
        model._check_features()
        return model

    @property
    def device(self) -> Device:
        """The device it was trained for, numbers as they were then."""
        return self.manifest.device

    def _check_features(self) -> None:
        wanted = self.manifest.features
        for record in self.manifest.devices:
            program = self.featurizer(record.device).program
            missing = [name for name in wanted.names if name not in program.outputs]
            if missing:
                raise BadFile(
                    f"{self.path} reads the feature '{missing[0]}', which {self.family.id} no longer has: train it again"
                )
        if feature_digest(self.featurizer(), wanted.names) != wanted.digest:
            raise BadFile(
                f"{self.path} was trained with other formulas for its features than {self.family.id} has now: train it again"
            )

    def featurizer(self, device: Device | None = None) -> Featurizer:
        """What computes the features; for another device than its own only if the model is asked to."""
        return Featurizer(self.family, device or self.device, self.manifest.dtypes or None)

    def describe(self, frame: pl.DataFrame, device: Device | None = None) -> Rows:
        """Features of vectors (`problem.*`, `config.*`), in the model's own order."""
        return self.featurizer(device).describe(frame).only(self.manifest.features.names)

    def predict_rows(self, rows: Rows) -> Predicted:
        """Time, interval and score of described vectors."""
        output = self.learner.predict(rows)
        time_ns = self.target.decode(output.target, rows)
        score = time_ns if output.score is None else output.score
        if self.manifest.interval is None:
            return Predicted(score, time_ns)
        lower, upper = self.manifest.interval.bounds(time_ns)
        return Predicted(score, time_ns, lower, upper)

    def rank_rows(self, rows: Rows) -> Predicted:
        """As `predict_rows`, for judging choices: what was tried in training and never worked is chosen last."""
        predicted = self.predict_rows(rows)
        if self.out_of_fold is None:
            return predicted
        tried = _among(rows, self.out_of_fold)
        return replace(predicted, score=chosen_last(predicted.score, tried & ~self.offers(rows)))

    def offers(self, rows: Rows) -> npt.NDArray[np.bool_]:
        """Which rows have a config that is among the candidates."""
        return _among(rows, self.candidates)

    def predict(self, frame: pl.DataFrame, device: Device | None = None) -> pl.DataFrame:
        """`time_ns`, `lower_ns`, `upper_ns` and `score` (lower is chosen) for every vector of a frame."""
        missing = [name for name in schema.parameter_columns(self.family) if name not in frame.columns]
        if missing:
            raise InvalidValue(f"the frame has no column '{missing[0]}', which {self.family.id} needs")
        schema.check_parameters(self.family, frame)
        found = self.predict_rows(self.describe(frame, device))
        columns = {"time_ns": found.time_ns, "lower_ns": found.lower_ns, "upper_ns": found.upper_ns, "score": found.score}
        return frame.with_columns(pl.Series(name, values) for name, values in columns.items() if values is not None)

    @cached_property
    def candidates(self) -> pl.DataFrame:
        """Every config that worked at least once, with how well it did in training (empty: not recorded)."""
        if not self.manifest.files:
            columns = {name: dtype for name, dtype in schema.schema_of(self.family).items() if name.startswith("config.")}
            counts = {"ok": pl.Int64, "failed": pl.Int64, "share": pl.Float64, "portfolio_place": pl.Int64}
            return pl.DataFrame(schema={**columns, **counts})
        return _read(self.path / CANDIDATES)

    @cached_property
    def seen(self) -> pl.DataFrame:
        """The groups of problems (`split_group`) that it was trained on (empty: not recorded)."""
        if not self.manifest.files:
            return pl.DataFrame(schema={f"problem.{name}": pl.Int64 for name in self.manifest.split_group})
        return _read(self.path / PROBLEMS)

    @cached_property
    def out_of_fold(self) -> pl.DataFrame | None:
        """What the procedure said of every training vector without having seen its fold, and what was measured.

        `fold`, `time_ns` and `score` are the prediction; `measured_ns` (null: it failed) and `noise` the measurement.
        """
        return _read(self.path / PREDICTIONS) if PREDICTIONS in self.manifest.files else None

    @cached_property
    def evaluation(self) -> dict[str, Any]:
        """The figures of the procedure that made it, out of fold."""
        data: dict[str, Any] = msgspec.json.decode((self.path / EVALUATION).read_bytes())
        return data


def is_ck_directory(path: Path) -> bool:
    """Whether a directory has the layout of CK Tile's heuristics rather than ours."""
    return (path / "feature_spec.json").is_file() and not (path / MANIFEST).exists()


def _among(rows: Rows, known: pl.DataFrame) -> npt.NDArray[np.bool_]:
    """Which rows have a config that some row of a frame has."""
    columns = [name for name in rows.frame.columns if name.startswith("config.")]
    if not columns:
        return np.full(rows.frame.height, known.height > 0)
    marked = known.select(columns).unique().with_columns(__known=pl.lit(True))
    joined = rows.frame.select(columns).join(marked, on=columns, how="left", nulls_equal=True, maintain_order="left")
    return joined["__known"].fill_null(False).to_numpy()


def _read(file: Path) -> pl.DataFrame:
    try:
        return pl.read_parquet(file)
    except (OSError, pl.exceptions.PolarsError) as error:
        raise BadFile(f"{file} is damaged ({error}): train the model again, or restore the file") from error


def feature_digest(featurizer: Featurizer, names: tuple[str, ...]) -> str:
    """A hash of names, order and arithmetic, hardware numbers left as symbols: measured ones differ from day to day."""
    from kerncast.expr import Program

    outputs = featurizer.family.feature_program.outputs
    return Program({name: outputs[name] for name in names}).digest
