"""Shared by the public functions: datasets and models as objects or paths, and temporary places for results."""

from __future__ import annotations

import contextlib
import json
import tempfile
from collections.abc import Iterable, Mapping, Sequence
from pathlib import Path
from typing import Any

from kerncast.answering import compiled as compiled
from kerncast.core.io.arguments import listed, texts
from kerncast.errors import InvalidValue, NotFound
from kerncast.models.model import Model, is_model
from kerncast.models.store.store import Store

PROBLEMS = "`problems`: a text (llm, grid:M=1,2;N=8;K=8, or the path of a table), a mapping of parameters, or a list of these"
Problems = str | Mapping[str, Any] | Iterable[str | Mapping[str, Any]]
"""What `problems` takes: specifications and single problems."""

# Removed when the process ends: `.save(path)` keeps a result.
_temporary: list[tempfile.TemporaryDirectory[str]] = []


def place_of(out: str | Path | None, name: str) -> Path:
    """Where a result goes: where the caller says, else a temporary folder that lasts as long as the process."""
    if out is not None:
        return Path(out)
    _temporary.append(tempfile.TemporaryDirectory(prefix="kerncast-"))
    return Path(_temporary[-1].name) / name


def model_of(model: Model | str | Path, store: Store | str | Path | None = None) -> Model:
    """A model, loaded if it is a path, or the id of a model in the store (your own, unless another is given)."""
    if isinstance(model, Model):
        return model
    entry = None
    if isinstance(model, str) and not is_model(Path(model)):
        with contextlib.suppress(NotFound):  # it is refused as a path
            entry = (store if isinstance(store, Store) else Store.open(store)).meant(model)
    return Model.load(model) if entry is None else entry.load()


def row_conditions(where: str | Sequence[str] | None, software: str | None) -> tuple[str, ...]:
    """The conditions on rows: those that are given, and that of the software."""
    if software is None:
        return texts(where)
    if not isinstance(software, str) or not software.strip():
        raise InvalidValue(f"`software` takes one name, such as vllm or vllm==0.24.0, got {software!r}")
    return (*texts(where), f"software={software.strip()}")


def problem_texts(given: Problems | None) -> tuple[str, ...]:
    """Specifications of problems as texts; problems that are given by their parameters become a table of their own."""
    items = [] if given is None else listed(given)
    single = [dict(item) for item in items if isinstance(item, Mapping)]
    said = texts([item for item in items if not isinstance(item, Mapping)], PROBLEMS)
    if not single:
        return said
    table = place_of(None, "problems.json")
    try:
        table.write_text(json.dumps(single))
    except TypeError as error:
        raise InvalidValue(f"the values of a problem are whole numbers, texts and booleans: {error}") from error
    return (*said, str(table))


def problems_described(given: Problems) -> str:
    """What was asked for, in a line that says the same in every run."""
    items = listed(given)
    single = sum(isinstance(item, Mapping) for item in items)
    said = texts([item for item in items if not isinstance(item, Mapping)], PROBLEMS)
    return " ".join([*said, f"{single} given by their parameters"] if single else said)


def assignments(given: Mapping[str, Any] | Sequence[str] | str | None) -> tuple[str, ...]:
    """`{"dtype": ["fp32", "fp64"], "layout": "all"}` as texts `dtype=fp32,fp64` and `layout=all`; texts stay as they are."""
    if not isinstance(given, Mapping):
        return texts(given)
    return tuple(f"{name}={_listed(values)}" for name, values in given.items())


def with_preset(preset: Mapping[str, Any], given: tuple[str, ...]) -> tuple[str, ...]:
    """The assignments, and those that an alias of the op makes; one that contradicts the alias is refused."""
    own = {name: f"{name}={_listed(value)}" for name, value in preset.items()}
    for text in given:
        name = text.partition("=")[0].strip()
        if name in own and text.replace(" ", "") != own[name]:
            raise InvalidValue(f"the op's name means {own[name]}, which contradicts {text}: leave one of them out")
        own.pop(name, None)
    return (*given, *own.values())


def _listed(values: Any) -> str:
    several = [values] if isinstance(values, str | int | bool) else list(values)
    return ",".join(str(value).lower() if isinstance(value, bool) else str(value) for value in several)
