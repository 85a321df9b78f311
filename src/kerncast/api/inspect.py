"""`kerncast.inspect`: what a dataset holds, or whether an artefact is whole."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import Annotated, Any, Literal, overload

from kerncast.api.parameters import Where
from kerncast.api.showing import Wanted, shown
from kerncast.data.dataset import Dataset
from kerncast.errors import InvalidValue
from kerncast.files.given import given_path, texts
from kerncast.verifying.findings import Checked
from kerncast.verifying.verify import verify as run
from kerncast.writing.help import Help
from kerncast.writing.terminal import line

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
        return Verification(place, *run(place, show))
