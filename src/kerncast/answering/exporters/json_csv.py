"""Models as plain tables: JSON with the forests or what a table says, CSV of lines and weights."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import msgspec

from kerncast.answering.exporters import ConfigsOf, Exporter, NoOptions, OverridesOf, ProblemsOf
from kerncast.answering.inputs import read_problem_file
from kerncast.answering.selector import Selector
from kerncast.core.io.artefact import ArtefactKind, Findings, Versioned
from kerncast.core.io.atomic import write_bytes
from kerncast.core.op import Problem
from kerncast.core.progress import Progress
from kerncast.errors import BadFile, InvalidValue
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


@dataclass(frozen=True)
class TableOptions:
    """The problems to choose for, and the configs to choose from."""

    problems: ProblemsOf = None
    configs: ConfigsOf = None
    overrides: OverridesOf = None


class JsonExporter(Exporter):
    """A table of choices."""

    name = "json"
    doc = "a JSON table of choices"
    options_type = TableOptions

    def write(self, model: Model, out: Path, options: TableOptions, progress: Progress) -> list[Path]:
        # Of configs that were given, Python answers.
        compiled = model.given is None
        selector = Selector(model, tiers="full", compile=compiled, overrides=options.overrides, progress=progress)
        problems = problems_of(model, options.problems)
        progress.stage(f"deciding {len(problems):,} problems")
        write_table(out, model, [answer.as_json() for answer in selector.select_many(problems)])
        return [out]


def problems_of(model: Model, problems: str | Path | Sequence[Problem | Mapping[str, Any]] | None) -> Sequence[Any]:
    """The problems to choose for: those given, else the training problems."""
    if problems is None:
        return trained_problems(model)
    return read_problem_file(Path(problems), model.family) if isinstance(problems, str | Path) else list(problems)


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


class CsvExporter(Exporter):
    """Lines or weights."""

    name = "csv"
    doc = "CSV (the lines of a linear model; a folder with the weights of an mlp)"
    one_device = False

    def write(self, model: Model, out: Path, options: NoOptions, progress: Progress) -> list[Path]:
        if model.learner.write_csv(out, model.manifest.features.names, model.target):
            return sorted(out.iterdir()) if out.is_dir() else [out]
        raise InvalidValue(
            f"`to=csv` writes the lines of a linear model or the weights of an mlp; {model.path} is {model.manifest.kind}: "
            "use c or json"
        )
