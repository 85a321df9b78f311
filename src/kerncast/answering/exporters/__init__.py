"""Exporters: one file per target, each writing a model for programs that do not have Python.

An exporter is a class with `name`, `doc`, `options_type` and `write`; it is found by being in a module here, or by an entry
point in the group `kerncast.exporters`. Its options are a frozen dataclass: some of the arguments of `kerncast.export`, with
the same names and defaults. Arguments that no field is named after are refused.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, fields
from functools import cache
from pathlib import Path
from typing import Any

from kerncast.core.progress import Progress
from kerncast.errors import BadFile, InvalidValue
from kerncast.library.registry import discover
from kerncast.models.model import Model


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
    """The options of an exporter, from the arguments that differ from their defaults; those of other exporters are refused."""
    own = {field.name for field in fields(exporter.options_type)}
    for name in given:
        if name not in own:
            targets = [f"`to={other.name}`" for other in exporters().values() if name in _names(other)]
            raise InvalidValue(f"`{name}` is only for {' and '.join(targets)}: leave it out")
    return exporter.options_type(**given)


def _names(exporter: Exporter) -> set[str]:
    return {field.name for field in fields(exporter.options_type)}
