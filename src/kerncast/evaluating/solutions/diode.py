"""The choices in torch-diode's files; timed configs are preferred by their time."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from typing import Any

from kerncast.data.diode_files import Entry, Unusable, as_object, entries, problem_of
from kerncast.errors import BadFile
from kerncast.evaluating.solutions.solution import LeftOut, Solution, Target
from kerncast.evaluating.solutions.torch_tiles import OPS, Tile, of_tile, require_triton

FORMAT = "torch-diode file"


def read_diode(data: Mapping[str, Any], target: Target) -> Iterator[Solution | LeftOut]:
    """The choices of a file, in its order; the fastest first where it has times."""
    require_triton(target, FORMAT)
    for entry in entries(data):
        configs = _preferred(entry)
        if entry.hardware is not None and not target.is_on(entry.hardware):
            yield LeftOut("device", entry.hardware, len(configs))
        elif entry.op is not None and (entry.op not in OPS or (entry.shape is None and entry.op != OPS[0])):
            yield LeftOut("op", entry.op, len(configs))
        else:
            problem = {} if entry.shape is None else problem_of(entry.shape)
            for config in configs:
                if isinstance(problem, Unusable):
                    yield LeftOut(problem.reason, problem.name)
                else:
                    yield of_tile(problem, Tile.read(as_object(config, "a config")))


def _preferred(entry: Entry) -> list[Any]:
    if not entry.timed:
        return entry.items
    timed = [as_object(item, "a timed config") for item in entry.items]
    if not all(isinstance(item.get("time"), int | float) and "config" in item for item in timed):
        raise BadFile("a timed config must have `config` and a number under `time`")
    return [item["config"] for item in sorted(timed, key=lambda item: item["time"])]
