"""Exporters: one file per target, each writing a model for programs that do not have Python.

An exporter is a class with `name`, `doc`, `options_type` and `write`; it is found by being in a module here, or by an entry
point in the group `kerncast.exporters`. Its options are a frozen dataclass, whose fields are arguments of `kerncast.export`. A
field with a `Help` is an option of the command line, too. Arguments that no field is named after are refused.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, fields
from functools import cache
from pathlib import Path
from typing import Annotated, Any, TypeAlias

from kerncast.core.io.arguments import Help
from kerncast.core.op import Problem
from kerncast.core.progress import Progress
from kerncast.errors import BadFile, InvalidValue, NotFound
from kerncast.library.registry import discover
from kerncast.models.model import Model
from kerncast.native.overrides import Overrides

# Options that several exporters have.
ProblemsOf: TypeAlias = Annotated[
    str | Path | Sequence[Problem | Mapping[str, Any]] | None,
    Help("the problems (.json or .parquet). [default: the training problems]", metavar="FILE", several=False),
]
ConfigsOf: TypeAlias = Annotated[
    Any,
    "choose from these instead of the configs that worked in training: kernels:FILE (names of kernels), build:DIR (a build "
    "folder of CK Tile), portfolio:FILE, a dataset, a benchmark file.",
    Help(metavar="SPEC"),
]
OverridesOf: TypeAlias = Annotated[
    Overrides | Mapping[str, Any] | str | Path | None,
    Help("which kernels exist and which choices are fixed: `available`, `deny`, [[pin]].", metavar="FILE.toml", several=False),
]
LossOf: TypeAlias = Annotated[
    float,
    Help(
        "allowed loss of the portfolio's best config, on average over held-out problems, as a share. [default: 0.002]", above=0
    ),
]
MostOf: TypeAlias = Annotated[int, Help("maximum configs in the portfolio. [default: 64]", metavar="N", least=1)]


@dataclass(frozen=True)
class NoOptions:
    """Of an exporter that has nothing to choose."""


class Exporter:
    """The contract: `write` makes the files of a model and returns them, or raises a KerncastError."""

    name: str
    doc: str
    options_type: type[Any] = NoOptions
    one_device: bool = True
    """Whether a model of several devices has to be bound to one of them."""

    def check(self, out: Path) -> None:
        """Refuse a path, before anything is computed."""

    def write(self, model: Model, out: Path, options: Any, progress: Progress) -> list[Path]:
        """Write the model to `out`, which does not exist."""
        raise NotImplementedError


@cache
def exporters() -> dict[str, Exporter]:
    """Every exporter by its name."""
    named: dict[str, Exporter] = {}
    for source, item in discover(__name__):
        if not (isinstance(item, type) and issubclass(item, Exporter) and hasattr(item, "name")):
            continue
        if type(named.setdefault(item.name, item())) is not item:
            raise BadFile(f"{source} declares the export target '{item.name}', which already exists: rename one")
    return dict(sorted(named.items()))


def exporter_of(name: str) -> Exporter:
    """The exporter with this name."""
    if name not in exporters():
        raise InvalidValue(f"`to` is one of {', '.join(exporters())}, got '{name}'")
    return exporters()[name]


def options_of(exporter: Exporter, given: Mapping[str, Any]) -> Any:
    """The options of an exporter, from the arguments that are given; those of other exporters are refused."""
    own = {field.name for field in fields(exporter.options_type)}
    for name in given:
        if name not in own:
            targets = [f"`to={other.name}`" for other in exporters().values() if name in _names(other)]
            if not targets:
                raise NotFound.named(f"option of `to={exporter.name}`", name, sorted(own))
            raise InvalidValue(f"`{name}` is only for {' and '.join(targets)}: leave it out")
    return exporter.options_type(**given)


def _names(exporter: Exporter) -> set[str]:
    return {field.name for field in fields(exporter.options_type)}
