"""Find the artefacts at a path, and check each."""

from __future__ import annotations

import os
from collections.abc import Callable, Iterator
from pathlib import Path

from kerncast.compiling.blob.container import MAGIC
from kerncast.data import journal
from kerncast.data.dataset import MANIFEST as DATASET
from kerncast.errors import BadFile, KerncastError, NotFound
from kerncast.evaluating.predictions import is_predictions
from kerncast.exporting.json_table import FORMAT as TABLE
from kerncast.exporting.project import EXPORT
from kerncast.models.manifest import CANDIDATES, CARD
from kerncast.models.manifest import MANIFEST as MODEL
from kerncast.models.model import is_ck_directory
from kerncast.progress import QUIET, Progress
from kerncast.regenerating import state
from kerncast.selecting.choice_cache import KIND as MEASURED
from kerncast.store.entry import ENTRY
from kerncast.sweeping.files import MANIFEST as VECTORS
from kerncast.verifying import others
from kerncast.verifying.datasets import check_dataset
from kerncast.verifying.findings import Checked, Findings
from kerncast.verifying.models import check_model, check_store

# Bytes of a file that say what it is.
HEAD = 4096
DEEPEST = 100
CHECKS: dict[str, Callable[[Findings], None]] = {
    "dataset": check_dataset,
    "model": check_model,
    "store": check_store,
    "vectors": others.check_vectors,
    "exported C": others.check_export,
    "blob": others.check_blob,
    "regeneration": others.check_regeneration,
    "table of choices": others.check_table_of_choices,
    "measured choices": others.check_measured_choices,
    "predictions": others.check_predictions,
    "evaluation": others.check_evaluation,
    "overrides": others.check_overrides,
    "mapping": others.check_mapping,
    "device profile": others.check_profile,
    "routine": others.check_routine,
    "benchmark": others.check_benchmark,
}
# Naming the manifest of a folder means the folder.
MANIFESTS = (DATASET, MODEL, VECTORS, EXPORT, journal.NAME, journal.STATE, state.FILE)


def verify(path: Path, progress: Progress = QUIET) -> tuple[tuple[Checked, ...], tuple[Path, ...]]:
    """Every artefact at a path, checked; and the files beside them that are none."""
    if not path.exists():
        raise NotFound(f"there is nothing at {path}: check the path")
    place = path.parent if path.is_file() and path.name in MANIFESTS and folder_kind(path.parent) else path
    progress.stage(f"looking for artefacts in {place}")
    found = list(artefacts(place))
    known = [(item, kind) for item, kind in found if kind is not None]
    if not known:
        raise NotFound(
            f"{path} is not something that kerncast writes or reads (a dataset, model, store, sweep, export, measured choices, "
            "predictions, or a TOML file of its own): check the path"
        )
    checked = []
    for number, (item, kind) in enumerate(known, 1):
        progress.stage(f"verifying {item}", number, len(known))
        findings = Findings(item, kind, progress)
        CHECKS[kind](findings)
        checked.append(findings.checked())
    return tuple(checked), tuple(item for item, kind in found if kind is None)


def artefacts(path: Path, depth: int = 0) -> Iterator[tuple[Path, str | None]]:
    """The artefacts at a path with their kinds, in order of their names; None: a file that is not one."""
    if path.is_file():
        yield path, file_kind(path)
        return
    kind = folder_kind(path)
    if kind is not None:
        yield path, kind
        if kind != "regeneration":
            return
    # A link may lead anywhere, and hidden folders are drafts of a process.
    with os.scandir(path) as entries:
        inside = sorted(Path(item.path) for item in entries if not item.is_symlink() and not item.name.startswith("."))
    for item in inside:
        if item.is_dir():
            if depth == DEEPEST:
                raise BadFile(f"{item} is more than {DEEPEST} folders deep: verify a folder further down")
            yield from artefacts(item, depth + 1)
        elif item.is_file() and not (kind == "regeneration" and item.name == state.FILE):
            yield item, file_kind(item)


def folder_kind(path: Path) -> str | None:
    """What a folder is by the names in it, so that one with a damaged or missing manifest is still known."""
    if not path.is_dir():
        return None
    if (path / DATASET).exists() or (path / journal.NAME).exists() or next(path.glob("rows/*/*/part-*.parquet"), None):
        return "dataset"
    if (path / MODEL).exists() or is_ck_directory(path) or ((path / CANDIDATES).exists() and (path / CARD).exists()):
        return "model"
    if (path / VECTORS).exists():
        return "vectors"
    if (path / EXPORT).exists() or ((path / "selftest.c").exists() and next(path.glob("*.pc.in"), None)):
        return "exported C"
    if next(path.glob(f"*/*/*/*/*/{ENTRY}"), None):
        return "store"
    return "regeneration" if (path / state.FILE).exists() else None


def file_kind(path: Path) -> str | None:
    """What a file is by its beginning or its keys; None: not one of ours, or too damaged to tell."""
    try:
        if path.suffix == ".parquet":
            return "predictions" if is_predictions(path) else None
        if path.suffix == ".toml":
            data = others.toml_of(path)
            return None if data is None else others.toml_kind(data)
        with path.open("rb") as file:
            head = file.read(HEAD)
    except (OSError, KerncastError):
        return None
    if head.startswith(MAGIC):
        return "blob"
    if f'"{TABLE}"'.encode() in head:
        return "table of choices"
    if f'"{MEASURED}"'.encode() in head:
        return "measured choices"
    return "evaluation" if path.suffix == ".json" and b'"includes_training_data"' in head and b'"overall"' in head else None
