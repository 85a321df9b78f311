"""`kerncast.verify`: check an artefact whole, and say what is wrong with it."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from kerncast.api.showing import Wanted, shown
from kerncast.files.given import given_path
from kerncast.verifying.findings import Checked
from kerncast.verifying.verify import verify as run
from kerncast.writing.terminal import line

# Files that are no artefacts, of which this many are named.
NAMED = 3


@dataclass(frozen=True, repr=False)
class Verification:
    """What `verify` found: one entry per artefact. `bool(verification)` is False if something is wrong."""

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


def verify(path: str | Path, *, progress: Wanted = "auto") -> Verification:
    """Check everything of an artefact that can be checked: checksums, rows, weights, keys. Nothing of it is run.

    `path` is a dataset, an unfinished collection, a model, a store, a sweep, exported C or a table of choices, measured
    choices, predictions, what `evaluate --json` printed, a TOML file (overrides, mapping, device profile, routine,
    benchmark), or a folder of these.
    """
    place = given_path(path, "the path of an artefact", "name the folder or the file")
    with shown(progress) as show:
        return Verification(place, *run(place, show))
