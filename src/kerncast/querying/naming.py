"""A config that the caller names: models that have seen it are asked first, and one that has not says so."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import replace
from typing import Any

from kerncast.models.hull import OutOfRange
from kerncast.models.model import Model
from kerncast.parameters import Categorical
from kerncast.store.entry import Entry
from kerncast.store.sources import Source


def never_seen(model: Model, device: str, config: Mapping[str, Any]) -> OutOfRange | None:
    """The label of a config that a model has not seen on a device; None: it has seen all of them.

    Numbers (tile sizes) may lie between those that were seen. A device that is not one of the model's has all its configs.
    """
    own = model.on(device) if device in {record.name for record in model.manifest.devices} else model
    for name, value in config.items():
        if isinstance(model.family.config.parameters.get(name), Categorical):
            seen = sorted({str(label) for label in own.candidates[f"config.{name}"] if label is not None})
            if str(value) not in seen:
                return OutOfRange(name, value, ", ".join(seen))
    return None


def knowing(
    sources: Sequence[Source], device: str, config: Mapping[str, Any] | None, load: Callable[[Entry], Model]
) -> list[Source]:
    """Each place with the models that have seen a config; with all of them if none has."""
    if not config:
        return list(sources)
    found = []
    for source in sources:
        kept = tuple(entry for entry in source.lookup.entries if never_seen(load(entry), device, config) is None)
        found.append(replace(source, lookup=replace(source.lookup, entries=kept)) if kept else source)
    return found
