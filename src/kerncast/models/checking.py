"""What `kerncast inspect --verify` checks of a model."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path

import polars as pl

from kerncast.core.io.artefact import ArtefactKind, Findings, PathContents
from kerncast.data import schema
from kerncast.errors import BadFile, InvalidValue
from kerncast.models.limits.configs import SERVING
from kerncast.models.manifest import (
    CANDIDATES,
    CARD,
    EVALUATION,
    LABELS,
    MANIFEST,
    PREDICTIONS,
    PROBLEMS,
    damaged_files,
    manifest_alone,
)
from kerncast.models.model import Model, is_ck_directory
from kerncast.models.store.entry import ENTRY, Entry, read_entry
from kerncast.models.store.store import LOCK, Store

AGAIN = "restore it, or train the model again"


def check_model(findings: Findings) -> None:
    """The manifest, every file that it lists, the weights, the range it was trained on, and its tables."""
    check_files(findings, findings.path)
    if not findings.faults:
        findings.checks += ["manifest", "checksums", "weights", "features", "trained range", "tables"]


def check_files(findings: Findings, path: Path) -> None:
    """Record what is wrong with the model in a folder, which may be part of a store."""
    if not is_ck_directory(path):
        with findings.looking(path / MANIFEST):
            for file, wrong in damaged_files(path, manifest_alone(path)):
                findings.wrong(file, wrong)
        if findings.faults:
            return
    with findings.looking(path):
        model = Model.load(path)
        for wrong in _contradictions(model):
            findings.wrong(path, f"{path}: {wrong}; {AGAIN}")
        if model.manifest.files:
            _tables(findings, model)


def _contradictions(model: Model) -> Iterator[str]:
    """What a manifest says that cannot be: a range of no parameter of the op, or one that ends before it begins."""
    parameters = model.family.problem.parameters
    for name, seen in model.manifest.hull.items():
        if name not in parameters:
            yield f"its trained range is of '{name}', which {model.family.op.name} does not have"
        elif seen.low is not None and seen.high is not None and seen.low > seen.high:
            yield f"its trained range of {name} goes from {seen.low} to {seen.high}"


def _tables(findings: Findings, model: Model) -> None:
    """The tables beside the weights: their columns, and that their values are in the declared spaces."""
    family = model.family
    configs = [name for name in schema.parameter_columns(family) if name.startswith("config.")]
    with findings.looking(model.path / CANDIDATES):
        _refuse_lacking(model.path / CANDIDATES, model.candidates, [*configs, "ok", "failed", "share", "portfolio_place"])
        if not model.candidates.height:
            raise BadFile(f"{model.path / CANDIDATES} has no candidates, so the model can choose nothing: {AGAIN}")
    if model.slim:
        with findings.looking(model.path / SERVING):
            _ = model.serving
    else:
        with findings.looking(model.path / PROBLEMS):
            _refuse_lacking(model.path / PROBLEMS, model.seen, [f"problem.{name}" for name in model.manifest.split_group])
    with findings.looking(model.path / LABELS):
        _ = model.labels
    with findings.looking(model.path / PREDICTIONS):
        rows = model.out_of_fold
        if rows is not None:
            _refuse_lacking(model.path / PREDICTIONS, rows, [*schema.parameter_columns(family), "measured_ns", "noise"])
            _refuse_impossible(model.path / PREDICTIONS, model, rows)
    with findings.looking(model.path / EVALUATION):
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


def _is_at(contents: PathContents) -> bool:
    if contents.holds(MANIFEST) or (contents.is_folder and is_ck_directory(contents.path)):
        return True
    return contents.holds(CANDIDATES) and contents.holds(CARD)


MODEL = ArtefactKind("model", _is_at, check_model, (MANIFEST,))


def check_store(findings: Findings) -> None:
    """Every entry, and the model that it names."""
    files = sorted(findings.path.glob(f"*/*/*/*/*/{ENTRY}"))
    kept: set[Path] = set()
    for number, file in enumerate(files):
        findings.progress.step("entries", number, len(files))
        with findings.looking(file):
            entry = read_entry(file)
            kept.add(entry.path)
            _entry(findings, entry)
    entries, _ = Store.open(findings.path).survey()
    if entries and not findings.faults:
        findings.checks += [f"{len(entries):,} {'entry' if len(entries) == 1 else 'entries'}", "the models that they name"]
    for folder in sorted({file.parent for file in findings.path.glob(f"*/*/*/*/*/*/{MANIFEST}")} - kept):
        findings.notes.append(f"{folder} is a model that no entry names: adding the model again removes it")
    if (findings.path / LOCK).exists():
        findings.notes.append(f"{findings.path / LOCK} is there: another process is writing, or was killed while it did")


def _entry(findings: Findings, entry: Entry) -> None:
    before = len(findings.faults)
    if entry.path.is_dir():
        check_files(findings, entry.path)
    if len(findings.faults) == before:
        entry.load()


STORE = ArtefactKind("store", lambda contents: contents.holds_like(f"*/*/*/*/*/{ENTRY}"), check_store)
