"""A plain table of choices: JSON for programs that look up instead of computing."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import msgspec

from kerncast.errors import BadFile, InvalidValue
from kerncast.files.artefact import ArtefactKind, Findings
from kerncast.files.atomic import write_bytes
from kerncast.files.versioned import Versioned
from kerncast.models.model import Model
from kerncast.version import __version__

FORMAT = "kerncast-choices"
VERSION = 1


class ChoicesFile(msgspec.Struct, frozen=True, forbid_unknown_fields=True, kw_only=True):
    """The contents of a table of choices."""

    format: str = FORMAT
    version: int = VERSION
    kerncast: str
    family: str
    device: str
    software: tuple[str, ...]
    model: str
    """The checksum of the model."""
    choices: list[dict[str, Any]]
    """What each answer says."""


CHOICES_FILE = Versioned(FORMAT, VERSION, ChoicesFile, "a table of choices", "export the model again")


def trained_problems(model: Model) -> list[dict[str, Any]]:
    """The problems that a model was trained on."""
    if model.out_of_fold is None:
        raise InvalidValue(f"{model.path} does not say what it was trained on: name the problems with `problems`")
    columns = {f"problem.{name}": name for name in model.family.problem.parameters}
    rows = model.out_of_fold.select(list(columns)).rename(columns).unique(maintain_order=True).to_dicts()
    return [{name: value for name, value in row.items() if value is not None} for row in rows]


def write_table(out: Path, model: Model, answers: list[dict[str, Any]]) -> None:
    """One entry per problem, with everything that its answer says."""
    manifest = model.manifest
    data = ChoicesFile(
        kerncast=__version__, family=manifest.family, device=manifest.device.name, software=manifest.software,
        model=manifest.checksum, choices=answers,
    )  # fmt: skip
    write_bytes(out, CHOICES_FILE.text(data, indent=1))


def check_table_of_choices(findings: Findings) -> None:
    """A table of choices that `export` wrote: its checksum, and that every entry is an answer."""
    with findings.looking(findings.path):
        contents = CHOICES_FILE.read(findings.path)
        for number, answer in enumerate(contents.choices, 1):
            if not {"problem", "status"} <= answer.keys():
                raise BadFile(f"{findings.path}, choice {number} has no problem or no status: export the model again")
        findings.checks += ["checksum", f"{len(contents.choices):,} choices"]


CHOICES = ArtefactKind("table of choices", lambda contents: f'"{FORMAT}"'.encode() in contents.head, check_table_of_choices)
