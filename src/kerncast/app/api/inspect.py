"""`kerncast.inspect`: what a dataset holds, or whether an artefact is whole."""

from __future__ import annotations

import os
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import Annotated, Any, Literal, overload

from kerncast.answering.exporters.blob import BLOB
from kerncast.answering.exporters.json_csv import CHOICES
from kerncast.answering.exporters.project import PROJECT
from kerncast.answering.measure import MEASURED
from kerncast.app.api.parameters import Where
from kerncast.app.api.showing import Wanted, shown
from kerncast.core.io.arguments import Help, given_path, texts
from kerncast.core.io.artefact import ArtefactKind, Checked, Findings, PathContents
from kerncast.core.io.terminal import line
from kerncast.core.progress import Progress
from kerncast.data.checking import DATASET
from kerncast.data.dataset import Dataset
from kerncast.data.formats.table import MAPPING
from kerncast.errors import BadFile, InvalidValue, NotFound
from kerncast.evaluating.results import EVALUATION, PREDICTIONS
from kerncast.library.devices import PROFILE
from kerncast.measuring.backends.command.benchmark import BENCHMARK
from kerncast.measuring.sweeping.files import SWEEP
from kerncast.models.checking import MODEL
from kerncast.models.store.checking import STORE
from kerncast.native.overrides import OVERRIDES
from kerncast.regenerating.routine import ROUTINE
from kerncast.regenerating.state import WORK

# In this order: what two of them fit is of the first.
KINDS = (
    DATASET, MODEL, SWEEP, PROJECT, STORE, WORK, PREDICTIONS, BENCHMARK, ROUTINE, MAPPING, PROFILE, OVERRIDES, BLOB, CHOICES,
    MEASURED, EVALUATION,
)  # fmt: skip
MANIFESTS = {name for kind in KINDS for name in kind.manifests}
DEEPEST = 100
# Files that are no artefacts, of which this many are named.
NAMED = 3


@dataclass(frozen=True, repr=False)
class Verification:
    """Whether artefacts are whole, one entry for each. `bool(verification)` is False if something is wrong."""

    path: Path
    artefacts: tuple[Checked, ...]
    unknown: tuple[Path, ...]
    """Files beside the artefacts that kerncast does not know, and did not check."""

    @property
    def whole(self) -> bool:
        """Whether nothing is wrong with any of them."""
        return all(item.whole for item in self.artefacts)

    def __bool__(self) -> bool:
        return self.whole

    def as_json(self) -> dict[str, Any]:
        """For `--json`."""
        return {
            "path": str(self.path),
            "whole": self.whole,
            "artefacts": [
                {
                    "path": str(item.path),
                    "kind": item.kind,
                    "whole": item.whole,
                    "checked": list(item.checks),
                    "faults": [{"file": str(fault.file), "fault": fault.sentence} for fault in item.faults],
                    "notes": list(item.notes),
                }
                for item in self.artefacts
            ],
            "unknown": [str(item) for item in self.unknown],
        }

    def lines(self) -> Iterator[str]:
        """One line per artefact, and one below it for everything that is wrong (`!`) or worth knowing (`-`)."""
        for item in self.artefacts:
            said = ", ".join(item.checks)
            yield f"{item.path}: {item.kind}, {'whole' if item.whole else 'DAMAGED'}" + (f" ({said})" if said else "")
            yield from (f"! {fault.sentence}" for fault in item.faults)
            yield from (f"- {note}" for note in item.notes)
        if self.unknown:
            names = ", ".join(str(item) for item in self.unknown[:NAMED])
            more = f" and {len(self.unknown) - NAMED:,} more" if len(self.unknown) > NAMED else ""
            yield f"not checked, because kerncast does not know them: {names}{more}"
        if len(self.artefacts) > 1:
            damaged = sum(not item.whole for item in self.artefacts)
            yield f"{len(self.artefacts):,} artefacts, {damaged or 'none'} damaged"

    def __repr__(self) -> str:
        return "\n".join(map(line, self.lines()))


@overload
def inspect(
    path: Dataset | str | Path, *, verify: Literal[True], where: Where = (), progress: Wanted = "auto"
) -> Verification: ...
@overload
def inspect(
    path: Dataset | str | Path, *, verify: Literal[False] = False, where: Where = (), progress: Wanted = "auto"
) -> dict[str, Any]: ...
def inspect(
    path: Annotated[Dataset | str | Path, Help(metavar="DATASET|PATH", names="dataset_folders")],
    *,
    verify: Annotated[bool, Help("Check an artefact of any kind whole, and say what is wrong with it.")] = False,
    where: Where = (),
    progress: Wanted = "auto",
) -> dict[str, Any] | Verification:
    """What a dataset holds, how noisy it is and what is wrong with it; `where` looks at some of its rows.

    With `verify`, check everything of an artefact that can be checked: checksums, rows, weights, keys. Nothing of it is run.
    `path` is then a dataset, an unfinished collection, a model, a store, a sweep, exported C or a table of choices, measured
    choices, predictions, what `evaluate --json` printed, a TOML file (overrides, mapping, device profile, routine,
    benchmark), or a folder of these.
    """
    if not verify:
        return (path if isinstance(path, Dataset) else Dataset.open(path)).inspect(texts(where))
    if texts(where):
        raise InvalidValue("`where` looks at some rows, and `verify` checks all of an artefact: leave one of them out")
    held = path.path if isinstance(path, Dataset) else path
    place = given_path(held, "the path of an artefact", "name the folder or the file")
    with shown(progress) as show:
        return Verification(place, *_verified(place, show))


def _verified(path: Path, progress: Progress) -> tuple[tuple[Checked, ...], tuple[Path, ...]]:
    """Every artefact at a path, checked; and the files beside them that are none."""
    if not path.exists():
        raise NotFound(f"there is nothing at {path}: check the path")
    above = kind_at(path.parent) if path.is_file() else None
    place = path.parent if above is not None and path.name in MANIFESTS else path
    progress.stage(f"looking for artefacts in {place}")
    there = list(_artefacts(place))
    known = [(item, kind) for item, kind in there if kind is not None]
    if not known:
        raise NotFound(
            f"{path} is not something that kerncast writes or reads (a dataset, model, store, sweep, export, measured choices, "
            "predictions, or a TOML file of its own): check the path"
        )
    checked = []
    for number, (item, kind) in enumerate(known, 1):
        progress.stage(f"verifying {item}", number, len(known))
        findings = Findings(item, kind.name, progress)
        kind.check(findings)
        checked.append(findings.checked())
    return tuple(checked), tuple(item for item, kind in there if kind is None)


def kind_at(path: Path) -> ArtefactKind | None:
    """What lies at a path; None: not an artefact, or one too damaged to tell."""
    contents = PathContents(path)
    return next((kind for kind in KINDS if kind.is_at(contents)), None)


def _artefacts(path: Path, depth: int = 0) -> Iterator[tuple[Path, ArtefactKind | None]]:
    """The artefacts at a path with their kinds, in order of their names; None: a file that is not one."""
    kind = kind_at(path)
    if kind is not None or not path.is_dir():
        yield path, kind
        if kind is None or not kind.holds_others:
            return
    # A link may lead anywhere, and hidden folders are drafts of a process.
    with os.scandir(path) as entries:
        inside = sorted(Path(item.path) for item in entries if not item.is_symlink() and not item.name.startswith("."))
    for item in inside:
        if item.is_dir():
            if depth == DEEPEST:
                raise BadFile(f"{item} is more than {DEEPEST} folders deep: verify a folder further down")
            yield from _artefacts(item, depth + 1)
        elif item.is_file() and not (kind is not None and item.name in kind.manifests):
            yield item, kind_at(item)
