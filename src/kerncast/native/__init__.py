"""A model as C: lowered, written, compiled, bound; and an interpreter with the same answers."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from kerncast.core.io.quoting import packaged_c
from kerncast.core.space import Space
from kerncast.errors import InvalidValue


def packaged(name: str) -> str:
    """One of the files in `c/`."""
    return packaged_c(__package__, name)


MISSING = -(2**63)


def encode(space: Space, values: Mapping[str, Any]) -> list[int]:
    """A point as numbers, in declared order; MISSING where it has no value."""
    found = []
    for name, parameter in space.parameters.items():
        value = values.get(name)
        index = None if value is None else parameter.index(value)
        if value is not None and index is None:
            raise InvalidValue(f"{name} {parameter.refusal(value)}")
        found.append(MISSING if index is None else parameter.number(index))
    return found
