"""Points of a space as the numbers that C reads."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from kerncast.core.space import Space
from kerncast.errors import InvalidValue

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
