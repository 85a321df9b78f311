"""What a model was trained on, and what lies outside of it."""

from __future__ import annotations

from kerncast.export.c_spaces import range_words
from kerncast.models import Model
from kerncast.models.manifest import Range
from kerncast.op import Problem
from kerncast.select.answer import OutOfRange


def outside_hull(model: Model, problem: Problem) -> tuple[OutOfRange, ...]:
    """The parameters of a problem that lie outside of what the model was trained on."""
    found = []
    for name, value in problem:
        seen = model.manifest.hull.get(name)
        if value is not None and seen is not None and not _inside(seen, value):
            found.append(OutOfRange(name, value, range_words(seen)))
    return tuple(found)


def _inside(seen: Range, value: int | bool | str) -> bool:
    if seen.labels:
        return value in seen.labels
    return seen.low is None or seen.high is None or seen.low <= int(value) <= seen.high
