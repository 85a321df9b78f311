"""Models, and stores of models."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path

import polars as pl

from kerncast.data import schema
from kerncast.errors import BadFile, InvalidValue
from kerncast.models.manifest import (
    CANDIDATES,
    EVALUATION,
    LABELS,
    MANIFEST,
    PREDICTIONS,
    PROBLEMS,
    damaged_files,
    manifest_alone,
)
from kerncast.models.model import Model, is_ck_directory
from kerncast.models.serving import SERVING
from kerncast.store.entry import ENTRY, Entry, read_entry
from kerncast.store.store import LOCK, Store
from kerncast.verifying.findings import Findings

AGAIN = "restore it, or train the model again"


def check_model(found: Findings) -> None:
    """The manifest, every file that it lists, the weights, the range it was trained on, and its tables."""
    _check(found, found.path)
    if not found.faults:
        found.checks += ["manifest", "checksums", "weights", "features", "trained range", "tables"]


def check_store(found: Findings) -> None:
    """Every entry, and the model that it names."""
    files = sorted(found.path.glob(f"*/*/*/*/*/{ENTRY}"))
    kept: set[Path] = set()
    for number, file in enumerate(files):
        found.progress.step("entries", number, len(files))
        with found.looking(file):
            entry = read_entry(file)
            kept.add(entry.path)
            _entry(found, entry)
    entries, _ = Store.open(found.path).survey()
    if entries and not found.faults:
        found.checks += [f"{len(entries):,} {'entry' if len(entries) == 1 else 'entries'}", "the models that they name"]
    for folder in sorted({file.parent for file in found.path.glob(f"*/*/*/*/*/*/{MANIFEST}")} - kept):
        found.notes.append(f"{folder} is a model that no entry names: adding the model again removes it")
    if (found.path / LOCK).exists():
        found.notes.append(f"{found.path / LOCK} is there: another process is writing, or was killed while it did")


def _entry(found: Findings, entry: Entry) -> None:
    before = len(found.faults)
    if entry.path.is_dir():
        _check(found, entry.path)
    if len(found.faults) == before:
        entry.load()


def _check(found: Findings, path: Path) -> None:
    if not is_ck_directory(path):
        with found.looking(path / MANIFEST):
            for file, wrong in damaged_files(path, manifest_alone(path)):
                found.wrong(file, wrong)
        if found.faults:
            return
    with found.looking(path):
        model = Model.load(path)
        for wrong in _contradictions(model):
            found.wrong(path, f"{path}: {wrong}; {AGAIN}")
        if model.manifest.files:
            _tables(found, model)


def _contradictions(model: Model) -> Iterator[str]:
    """What a manifest says that cannot be: a range of no parameter of the op, or one that ends before it begins."""
    parameters = model.family.problem.parameters
    for name, seen in model.manifest.hull.items():
        if name not in parameters:
            yield f"its trained range is of '{name}', which {model.family.op.name} does not have"
        elif seen.low is not None and seen.high is not None and seen.low > seen.high:
            yield f"its trained range of {name} goes from {seen.low} to {seen.high}"


def _tables(found: Findings, model: Model) -> None:
    """The tables beside the weights: their columns, and that their values are in the declared spaces."""
    family = model.family
    configs = [name for name in schema.parameter_columns(family) if name.startswith("config.")]
    with found.looking(model.path / CANDIDATES):
        _refuse_lacking(model.path / CANDIDATES, model.candidates, [*configs, "ok", "failed", "share", "portfolio_place"])
        if not model.candidates.height:
            raise BadFile(f"{model.path / CANDIDATES} has no candidates, so the model can choose nothing: {AGAIN}")
    if model.slim:
        with found.looking(model.path / SERVING):
            _ = model.serving
    else:
        with found.looking(model.path / PROBLEMS):
            _refuse_lacking(model.path / PROBLEMS, model.seen, [f"problem.{name}" for name in model.manifest.split_group])
    with found.looking(model.path / LABELS):
        _ = model.labels
    with found.looking(model.path / PREDICTIONS):
        rows = model.out_of_fold
        if rows is not None:
            _refuse_lacking(model.path / PREDICTIONS, rows, [*schema.parameter_columns(family), "measured_ns", "noise"])
            _refuse_impossible(model.path / PREDICTIONS, model, rows)
    with found.looking(model.path / EVALUATION):
        _ = model.figures


def _refuse_lacking(file: Path, frame: pl.DataFrame, columns: list[str]) -> None:
    for name in columns:
        if name not in frame.columns:
            raise BadFile(f"{file} has no column '{name}': {AGAIN}")


def _refuse_impossible(file: Path, model: Model, rows: pl.DataFrame) -> None:
    try:
        schema.check_parameters(model.family, rows)
    except InvalidValue as error:
        raise BadFile(f"{file}, {error}: {AGAIN}") from error
    shortest, longest = schema.POSSIBLE_NS
    measured = rows["measured_ns"].drop_nulls()
    worked = measured.filter(measured.is_finite())
    if not worked.is_between(shortest, longest).all():
        raise BadFile(f"{file} has measured times that no clock could print: {AGAIN}")
