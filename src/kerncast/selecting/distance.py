"""How far apart two problems are."""

from __future__ import annotations

import math
from collections.abc import Mapping

from kerncast.space import Value

# What a different label counts: more than any difference in size.
OTHER_LABEL = 100.0


def distance(one: Mapping[str, Value], other: Mapping[str, Value]) -> float:
    """The sum of the doublings between the sizes; labels count only as equal or different."""
    total = 0.0
    for name, value in one.items():
        against = other[name]
        if isinstance(value, int) and isinstance(against, int):
            total += abs(math.log2(max(value, 1)) - math.log2(max(against, 1)))
        elif value != against:
            total += OTHER_LABEL
    return total
