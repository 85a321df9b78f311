"""A model on disk: manifest, weights, candidates. It predicts and scores vectors; the selector makes quick choices."""

from __future__ import annotations

import contextlib
import hashlib
from collections.abc import Callable, Mapping, Sequence
from dataclasses import replace
from functools import cached_property
from pathlib import Path
from typing import Any, ClassVar, overload

import msgspec
import numpy as np
import polars as pl

from kerncast.core.arrays import Flags, Floats, Ints
from kerncast.core.device import Device
from kerncast.core.expr import Program
from kerncast.core.io.arguments import given_path
from kerncast.core.io.atomic import copy_directory
from kerncast.core.io.foreign import key_rule
from kerncast.core.io.terminal import printable
from kerncast.core.op import Family, Problem
from kerncast.data import schema
from kerncast.data.tables import Frame, as_polars, is_frame, with_columns
from kerncast.errors import BadFile, CannotWrite, InvalidValue, NotFound
from kerncast.learning.feature_rows import Featurizer, Rows
from kerncast.learning.learners.contract import Learner, Target
from kerncast.learning.learners.kinds import learner_class
from kerncast.learning.learners.lightgbm_text import refuse_other_names
from kerncast.learning.metrics import Predicted
from kerncast.library import devices
from kerncast.library.declared.declaration import resolve
from kerncast.models.answer import Answer
from kerncast.models.answerer import PythonAnswerer
from kerncast.models.candidates import GivenConfigs, model_rules
from kerncast.models.card import card_html, summary_line
from kerncast.models.files import ModelFiles
from kerncast.models.limits.configs import chosen_last
from kerncast.models.limits.devices import away_from
from kerncast.models.limits.envelope import Coverage, Envelope
from kerncast.models.manifest import MANIFEST, Manifest, read_manifest
from kerncast.models.problem_frames import DEVICE, no_column, respelled
from kerncast.models.products import SizeProduct, products_of, whole_problem

BLOCK_ROWS = 16_384
Bests = Callable[[pl.DataFrame], tuple[Ints, Floats]]
"""The best candidate of each problem of a frame (`problem.*`), and its time; NaN where none can run it."""


class Model(ModelFiles):
    """A trained model, loaded and checked. `Model.load(path)` is how to get one."""

    compiled: ClassVar[Callable[[Model], Bests | None]] = staticmethod(lambda model: None)
    """Gives what finds the best candidates in compiled code, if there is a compiler; set by `selecting`, which can compile."""

    def __init__(
        self,
        path: Path,
        manifest: Manifest,
        family: Family,
        learner: Learner,
        profile: Device | None = None,
        *,
        own: Model | None = None,
        given: GivenConfigs | None = None,
    ) -> None:
        """`profile` is the device that rules about configs hold for, if features are computed from other numbers."""
        self.path, self.manifest, self.family, self.learner = path, manifest, family, learner
        self.target = Target(manifest.target, manifest.target_log)
        self.profile = profile or manifest.device
        self.own, self.given = own, given
        self._answerers: dict[Device, PythonAnswerer] = {}
        self._featurizers: dict[Device, Featurizer] = {}
        self._bound: dict[str, Model] = {}

    @classmethod
    def load(cls, path: str | Path) -> Model:
        """Read a model directory; anything that this kerncast cannot use is refused by name."""
        path = given_path(path, "a model or its path", "train one with `kerncast.train`")
        if is_ck_directory(path):
            from kerncast.models.ck import read_ck

            return cls(path, *read_ck(path))
        manifest = read_manifest(path)
        try:
            family = resolve(manifest.family, manifest.declaration, path)
        except NotFound as error:
            raise BadFile(f"{path} is a model of {manifest.family}, which is not installed here: {error}") from error
        kind = learner_class(manifest.kind)
        try:
            options = msgspec.convert(manifest.options, kind.options_type)
        except msgspec.ValidationError as error:
            raise BadFile(
                f"{path}: the options in model.json are not those of {manifest.kind} ({key_rule(error)}): train it again"
            ) from error
        try:
            learner = kind.load(path, options)
            if learner.names_ is not None:
                refuse_other_names(learner.names_, manifest.features.names)
        except (InvalidValue, KeyError, ValueError, TypeError, IndexError) as error:
            raise BadFile(
                f"{path}: its weights are not those of a {manifest.kind} model of these features ({error}): restore it, or "
                "train the model again"
            ) from error
        model = cls(path, manifest, family, learner)
        model._check_features()
        return model

    def save(self, path: str | Path) -> Model:
        """Write a copy to `path`, completely or not at all, and return the model loaded from there."""
        copy_directory(self.path, Path(path))
        return Model.load(path)

    def slimmed(self, path: str | Path) -> Model:
        """Write what answers need to `path`, and return the model loaded from there: the same answers, without LightGBM.

        It is a small part of the size, and has neither the predictions nor the problems that it was trained on.
        """
        from kerncast.models import trust
        from kerncast.models.files import write_slim

        write_slim(self, Path(path))
        found = Model.load(path)
        if trust.refusal(self) is None:
            trust.hold(found)
            with contextlib.suppress(CannotWrite, BadFile):  # then other processes answer with it in Python
                trust.trust(found)
        return found

    @property
    def device(self) -> Device:
        """The device it was trained for, with the numbers of that time."""
        return self.manifest.device

    def _check_features(self) -> None:
        wanted = self.manifest.features
        declared = {*self.family.feature_program.outputs, *self.family.foreign_program.outputs}
        missing = [name for name in wanted.names if name not in declared] or self._unknown_somewhere(wanted.names)
        if missing:
            raise BadFile(f"{self.path} reads the feature '{missing[0]}', which {self.family.id} no longer has: train it again")
        if feature_digest(self.family, wanted.names) != wanted.digest:
            raise BadFile(
                f"{self.path} was trained with other formulas for its features than {self.family.id} has now: train it again"
            )

    def _unknown_somewhere(self, names: tuple[str, ...]) -> list[str]:
        """The features that read a number which the profile of one of its devices lacks."""
        # Binding the formulas for each of ten devices would take longer than the rest of loading.
        outputs = self.family.outputs_of(names)
        read = {item.name for item in Program(outputs).symbols if item.name.startswith("hw.")}
        lacking = set()
        for record in self.manifest.devices:
            lacking |= read - set(record.device.bindings(self.family.op.dtype, self._dtypes_on(record.device)))
        return (
            [name for name in names if lacking & {item.name for item in Program({name: outputs[name]}).symbols}]
            if lacking
            else []
        )

    @cached_property
    def products(self) -> tuple[SizeProduct, ...]:
        """What a problem may be given by instead of two of its sizes."""
        return products_of(self.manifest, self.family, Coverage.of(self.manifest, self.family.problem.parameters))

    def problem(self, values: Mapping[str, Any]) -> Problem:
        """A problem of the model's family, validated; `tiles` may replace two sizes if the model reads only their product."""
        if isinstance(values, Problem):
            if values.family is self.family:
                return values
            if values.op is not self.family.op:
                raise InvalidValue(f"the model is of {self.family.op.name}, the problem of {values.op.name}")
        whole = whole_problem(self, values) if self.family.op.products else values
        try:
            return Problem(self.family, whole)
        except InvalidValue:
            spelled = respelled(self.family, whole)
            if spelled == whole:
                raise
            return Problem(self.family, spelled)

    @property
    def trust_digest(self) -> str:
        """What the list of trusted models has for it."""
        return self.manifest.checksum if self.own is None else self.own.trust_digest

    def built_for(self, problem: Mapping[str, Any]) -> Flags | None:
        """Which candidates are there for a problem; None: all of them."""
        return None if self.given is None else self.given.built_for(problem, self.labels)

    @cached_property
    def always_failed(self) -> dict[tuple[Any, ...], int]:
        """Configs that failed whenever they were tried in training, with how often; a slim model does not record them."""
        if self.given is not None and self.own is not None:
            return self.own.always_failed
        columns = [f"config.{name}" for name in self.family.config.parameters]
        if self.out_of_fold is None or not columns:
            return {}
        counted = self.out_of_fold.group_by(columns).agg(tried=pl.len(), worked=pl.col("measured_ns").count())
        return {row[:-1]: row[-1] for row in counted.filter(pl.col("worked") == 0).drop("worked").iter_rows()}

    def promising(self, answer: Answer) -> Answer:
        """An answer about a config; one that failed whenever it was tried gets no interval, and the answer says so."""
        config = answer.config
        tried = (
            0 if config is None else self.always_failed.get(tuple(config[name] for name in self.family.config.parameters), 0)
        )
        if not tried or not answer.ok:
            return answer
        note = f"this config never worked in training ({tried:,} of {tried:,} rows failed), so its time has no interval"
        return replace(answer, known=False, failed=tried, lower_ns=None, upper_ns=None, efficiency=None, note=note)

    def featurizer(self, device: Device | None = None) -> Featurizer:
        """The featurizer, for the model's own device unless another is given.

        Kept by device: tracing and binding the formulas takes longer than computing the features of one problem.
        """
        device = device or self.device
        if device not in self._featurizers:
            self._featurizers[device] = Featurizer.reading(
                self.family, device, self._dtypes_on(device), self.manifest.features.names
            )
        return self._featurizers[device]

    def _dtypes_on(self, device: Device) -> tuple[str, ...] | None:
        """The dtypes whose peak rate a device must have: those that were measured there, elsewhere those that it knows."""
        if device.name in {record.name for record in self.manifest.devices}:
            return self.manifest.dtypes_on(device.name) or None
        known = tuple(name for name in self.manifest.dtypes if name in device.peak_tflops)
        return known or self.manifest.dtypes or None

    def describe(self, frame: pl.DataFrame, device: Device | None = None) -> Rows:
        """Features of vectors (`problem.*`, `config.*`), in the model's own order."""
        return self.featurizer(device).describe(frame).only(self.manifest.features.names)

    def predict_rows(self, rows: Rows) -> Predicted:
        """Time, interval and score of described vectors."""
        score, time_ns = self.scored(rows)
        if self.manifest.interval is None:
            return Predicted(score, time_ns)
        return Predicted(score, time_ns, *self.envelope.bounds(rows.frame, time_ns))

    def scored(self, rows: Rows) -> tuple[Floats, Floats]:
        """Score (low is chosen) and time of described vectors."""
        output = self.learner.predict(rows)
        time_ns = self.target.decode(output.target, rows)
        return time_ns if output.score is None else output.score, time_ns

    def rank_rows(self, rows: Rows) -> Predicted:
        """Like `predict_rows`, for judging choices: configs that break a rule or never worked in training are chosen last."""
        # In blocks: the features of a million rows take gigabytes.
        return Predicted.joined([self._ranked(block) for block in rows.blocks(BLOCK_ROWS)])

    def _ranked(self, rows: Rows) -> Predicted:
        predicted = self.predict_rows(rows)
        failed = ~self._obeys(rows)
        if self.out_of_fold is not None:
            failed |= _among(rows, self.out_of_fold) & ~self.offers(rows)
        return replace(predicted, score=chosen_last(predicted.score, failed))

    def _obeys(self, rows: Rows) -> Flags:
        """Which rows obey the rules that a selector applies; a pooled model has none, for it serves no one device."""
        rules = Program({rule.name: rule.holds for rule in model_rules(self)} if len(self.manifest.devices) == 1 else {})
        if not rules.symbols:
            return np.ones(len(rows), dtype=bool)
        symbols = schema.symbol_columns(self.family, rows.frame)
        return np.asarray((rules.frame(symbols, trusted=True).to_numpy() != 0.0).all(axis=1))

    def offers(self, rows: Rows) -> Flags:
        """Which rows have a config that is among the candidates."""
        return _among(rows, self.candidates)

    @overload
    def predict(
        self, problems: Mapping[str, Any], config: Mapping[str, Any] | None = None, *, device: Device | str | None = None
    ) -> Answer: ...
    @overload
    def predict(
        self, problems: pl.DataFrame, config: Mapping[str, Any] | None = None, *, device: Device | str | None = None
    ) -> pl.DataFrame: ...
    @overload
    def predict(
        self,
        problems: Sequence[Mapping[str, Any]],
        config: Mapping[str, Any] | Sequence[Mapping[str, Any]] | None = None,
        *,
        device: Device | str | None = None,
    ) -> list[Answer]: ...
    @overload
    def predict(
        self, problems: Frame, config: Mapping[str, Any] | None = None, *, device: Device | str | None = None
    ) -> Frame: ...
    def predict(self, problems: Any, config: Any = None, *, device: Device | str | None = None) -> Any:
        """Predict how long a config takes on a problem; without a config, how long the best known one takes.

        One problem gives one answer, a list of problems a list of answers (with one config for all, or a list of as many).
        A frame of polars or pandas (columns `problem.M` or `M`, and `config.BLOCK_M` or `BLOCK_M`) comes back with `time_ns`,
        `lower_ns`, `upper_ns` and `status`; of a model of several devices its column `device` says which. Many problems are
        answered in compiled code if the model can be compiled here.
        `device` is a profile, its name or the path of its file. On one that was not measured the interval is wider by how far
        it is from those that were; a model of fewer than three devices says `out_of_range`, and gives a time without interval.
        """
        if isinstance(problems, Mapping):
            if config is not None and not isinstance(config, Mapping):
                raise InvalidValue("one problem has one config, got a list: give a list of problems too")
            return self.answerer(device).one(problems, config)
        several = device is None and len(self.manifest.devices) > 1
        if several and is_frame(problems) and DEVICE in problems.columns:
            return with_columns(problems, self._by_device(as_polars(problems), config))
        asked = self.answerer(device)
        if is_frame(problems):
            if config is not None and not isinstance(config, Mapping):
                raise InvalidValue("configs of a frame are columns of it ('config.*'), or one mapping for all rows; got a list")
            return with_columns(problems, asked.frame(as_polars(problems), config))
        listed = [config] * len(problems) if isinstance(config, Mapping) else config
        if listed is not None and len(listed) != len(problems):
            raise InvalidValue(f"{len(problems)} problems need as many configs, or one for all; got {len(listed)}")
        return asked.many(problems, listed)

    def _by_device(self, frame: pl.DataFrame, config: Mapping[str, Any] | None) -> pl.DataFrame:
        """The columns of an answer, each row by the device that it names."""
        names = frame[DEVICE].cast(pl.String)
        if names.null_count():
            named = ", ".join(record.name for record in self.manifest.devices)
            raise InvalidValue(f"row {(names.is_null().arg_max() or 0) + 1} of the frame names no device: name one of {named}")
        rows = [np.flatnonzero(names == name) for name in names.unique(maintain_order=True)]
        if not rows:
            return self.answerer(self.manifest.devices[0].name).frame(frame, config)
        parts = [self.answerer(names[int(part[0])]).frame(frame[part], config) for part in rows]
        return pl.concat(parts, how="diagonal_relaxed")[np.argsort(np.concatenate(rows))]

    def ranked(self, problem: Mapping[str, Any], k: int = 10, *, device: Device | str | None = None) -> list[Answer]:
        """The k best configs for a problem on a device, as `predict` finds the best one; a refusal is a list of one."""
        if k < 1:
            raise InvalidValue(f"`k` must be at least 1, got {k}")
        return self.answerer(device).ranked(problem, k)

    def answerer(self, device: Device | str | None = None) -> PythonAnswerer:
        """What answers for a device; for a model of several devices the caller must say which."""
        if device is None and len(self.manifest.devices) > 1:
            named = ", ".join(record.name for record in self.manifest.devices)
            raise InvalidValue(f"the model is for several devices ({named}): name one with `device`")
        found = self.rated(self._named(device) if isinstance(device, str) else device or self.device)
        if found not in self._answerers:
            own = len(self.manifest.devices) > 1 and away_from(self, found) is None
            self._answerers[found] = PythonAnswerer(self.on(found) if own else self, found)
        return self._answerers[found]

    def rated(self, device: Device) -> Device:
        """A profile of one of its devices with the rates that times were learned relative to; others stay as they are."""
        return replace(device, estimated=self.estimated.get(device.name, device.estimated))

    @cached_property
    def estimated(self) -> dict[str, Mapping[str, float]]:
        """By device: the rates that were estimated from the training rows, because its profile lacked them."""
        records = (record.device for record in self.manifest.devices)
        return {device.name: device.estimated for device in records if device.estimated}

    def _named(self, device: str) -> Device:
        """A device by name: one of the model's own with its numbers of that time, else a profile; a file has its own."""
        known = {record.name: record for record in self.manifest.devices}
        if device in known:
            return known[device].device
        found = devices.get(device)
        return known[found.name].device if found.name in known and not device.endswith(".toml") else found

    def predict_vectors(self, frame: pl.DataFrame, device: Device | None = None) -> pl.DataFrame:
        """`time_ns`, `lower_ns`, `upper_ns` and `score` (lower is chosen) for every vector of a frame."""
        missing = [name for name in schema.parameter_columns(self.family) if name not in frame.columns]
        if missing:
            raise no_column(missing[0], self.family)
        schema.check_parameters(self.family, frame)
        found = self.predict_rows(self.describe(frame, device))
        columns = {"time_ns": found.time_ns, "lower_ns": found.lower_ns, "upper_ns": found.upper_ns, "score": found.score}
        return frame.with_columns(pl.Series(name, values) for name, values in columns.items() if values is not None)

    def on(self, device: Device | str) -> Model:
        """The model for one of the devices that it was trained on together: with its candidates and dtypes alone."""
        if not isinstance(device, Device | str):
            raise InvalidValue(f"`device` is the name of a device or a Device, got {type(device).__name__}")
        wanted = device.name if isinstance(device, Device) else self._named(device).name
        known = (devices.find(wanted), *(item.device for item in self.manifest.devices)) if isinstance(device, Device) else ()
        if known and device not in known:
            raise InvalidValue(f"the device '{wanted}' has other numbers than the one that the model saw: give it another name")
        if len(self.manifest.devices) == 1 and wanted == self.device.name:
            return self
        if wanted not in self._bound:
            self._bound[wanted] = self._of_device(wanted)
        return self._bound[wanted]

    def _of_device(self, device: str) -> Model:
        """Its candidates are those that worked on the device, its dtypes those that were measured there."""
        manifest, records = self.manifest, {record.name: record for record in self.manifest.devices}
        if device not in records:
            raise InvalidValue(f"{self.path} was trained on {', '.join(records)}, not on {device}: name one of these")
        digest = hashlib.blake2b(f"{manifest.checksum} on {device}".encode(), digest_size=16)
        return self.part(
            msgspec.structs.replace(
                manifest, devices=(records[device],), dtypes=manifest.dtypes_on(device), hull=manifest.hull_on(device),
                device_dtypes={}, device_software={}, software=manifest.software_on(device),
                checksum=digest.hexdigest(),
            )
        )  # fmt: skip

    def part(self, manifest: Manifest, given: GivenConfigs | None = None) -> Model:
        """A part of this model that its `manifest` describes, or the model with configs that are `given`."""
        profile = None if given is None else self.profile
        return Model(self.path, manifest, self.family, self.learner, profile, own=self, given=given)

    @cached_property
    def envelope(self) -> Envelope:
        """What its answers are worth, on a device that was measured."""
        return Envelope(self)

    @cached_property
    def notes(self) -> list[str]:
        """What its data leave open: kinds of problems that were never measured, failures that were never seen."""
        from kerncast.models.card import data_notes  # it loads the sets of problems

        return data_notes(self)

    def __repr__(self) -> str:
        return printable(summary_line(self))

    def _repr_html_(self) -> str:
        return card_html(self)


def is_model(path: Path) -> bool:
    """Whether a folder holds a model. If not, an op or a stored model of the same name is meant."""
    return (path / MANIFEST).is_file() or is_ck_directory(path)


def is_ck_directory(path: Path) -> bool:
    """Whether a directory has the layout of CK Tile's heuristics rather than ours."""
    return (path / "feature_spec.json").is_file() and not (path / MANIFEST).exists()


def _among(rows: Rows, known: pl.DataFrame) -> Flags:
    """Which rows have a config that occurs in a frame."""
    columns = [name for name in rows.frame.columns if name.startswith("config.")]
    if not columns:
        return np.full(rows.frame.height, known.height > 0)
    marked = known.select(columns).unique().with_columns(__known=pl.lit(True))
    joined = rows.frame.select(columns).join(marked, on=columns, how="left", nulls_equal=True, maintain_order="left")
    return joined["__known"].fill_null(False).to_numpy()


def feature_digest(family: Family, names: tuple[str, ...]) -> str:
    """A hash of names, order and arithmetic. Hardware numbers stay symbols, because measured ones vary from day to day."""
    return Program(family.outputs_of(names)).digest
