"""How far apart two problems are."""

from __future__ import annotations

import math
from collections.abc import Mapping

from kerncast.core.space import Value

# What a different label counts: more than any difference in size.
OTHER_LABEL = 100.0
# What it counts if only one of them has a parameter: as much as a doubling.
ABSENT = 1.0


def distance(one: Mapping[str, Value], other: Mapping[str, Value]) -> float:
    """The sum of the doublings between the sizes; labels count only as equal or different."""
    total = 0.0
    for name, value in one.items():
        against = other[name]
        if isinstance(value, int) and isinstance(against, int):
            total += abs(math.log2(max(value, 1)) - math.log2(max(against, 1)))
        elif value is None or against is None:
            total += ABSENT * (value is not against)
        elif value != against:
            total += OTHER_LABEL
    return total
