"""Shared by the public functions: datasets and models as objects or paths, and temporary places for results."""

from __future__ import annotations

import tempfile
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

from kerncast.data.dataset import Dataset
from kerncast.errors import InvalidValue
from kerncast.models.model import Model

Data = Dataset | str | Path | Sequence[Dataset | str | Path]
"""A dataset, its path, or several of either."""

# Removed when the process ends: `.save(path)` keeps a result.
_temporary: list[tempfile.TemporaryDirectory[str]] = []


def place_of(out: str | Path | None, name: str) -> Path:
    """Where a result goes: where the caller says, else a temporary folder that lasts as long as the process."""
    if out is not None:
        return Path(out)
    _temporary.append(tempfile.TemporaryDirectory(prefix="kerncast-"))
    return Path(_temporary[-1].name) / name


def paths_of(data: Data) -> list[Path]:
    """The paths of datasets."""
    several = [data] if isinstance(data, Dataset | str | Path) else list(data)
    if not several:
        raise InvalidValue("there is no dataset: name at least one")
    return [item.path if isinstance(item, Dataset) else Path(item) for item in several]


def model_of(model: Model | str | Path) -> Model:
    """A model, loaded if it is a path."""
    return model if isinstance(model, Model) else Model.load(model)


def texts(given: str | Sequence[str] | None) -> tuple[str, ...]:
    """One text or several, as a tuple."""
    return () if given is None else (given,) if isinstance(given, str) else tuple(given)


def assignments(given: Mapping[str, Any] | Sequence[str] | str | None) -> tuple[str, ...]:
    """`{"dtype": ["fp32", "fp64"], "layout": "all"}` as texts `dtype=fp32,fp64` and `layout=all`; texts stay as they are."""
    if not isinstance(given, Mapping):
        return texts(given)
    return tuple(f"{name}={_listed(values)}" for name, values in given.items())


def _listed(values: Any) -> str:
    several = [values] if isinstance(values, str | int | bool) else list(values)
    return ",".join(str(value).lower() if isinstance(value, bool) else str(value) for value in several)


def named_values(given: Mapping[str, Any] | Sequence[str] | None, argument: str) -> dict[str, str]:
    """A mapping, or `NAME=VALUE` texts with each name once."""
    if isinstance(given, Mapping):
        return {name: str(value) for name, value in given.items()}
    found: dict[str, str] = {}
    for pair in texts(given):
        name, separator, text = pair.partition("=")
        if not separator or not name or not text:
            raise InvalidValue(f"`{argument}` takes NAME=VALUE, got '{pair}'")
        if name in found:
            raise InvalidValue(f"`{argument}` {name} is given twice: keep one")
        found[name] = text
    return found
