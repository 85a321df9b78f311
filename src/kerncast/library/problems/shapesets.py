"""torch-diode's shape sets as problems of gemm, JSON or msgpack.

    {"operations": {"mm": {"shapes": [SHAPE, …]}, "addmm": …}}     by operation
    {"shapes": [SHAPE, …]}                                         a set alone

SHAPE is an object, or the text of one: B, M, N, K, M_dtype, K_dtype; what else it says (the result's type, size and strides)
follows from these. It does not say how A and B are stored. Formats as written by https://github.com/exclamaforte/diode
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import msgspec
import polars as pl

from kerncast.core import dtypes
from kerncast.core.io.foreign import JSON, decode_json, guarded, load_document
from kerncast.core.parameters import Value
from kerncast.core.space import Space
from kerncast.errors import BadFile, InvalidValue, KerncastError
from kerncast.library.problems.tables import column_type

KIND = "shapeset"
# Operation → what it computes beyond the product. Others scale, mask or quantise.
OPERATIONS: dict[str, dict[str, Value]] = {"mm": {}, "bmm": {}, "baddbmm": {}, "addmm": {"bias": True}}
ANY = "shapes"
# What torch-diode puts around a dtype in msgpack.
MARKED_DTYPE = "__torch_dtype__"
SIZES = {"M": "M", "N": "N", "K": "K", "B": "batch"}


@dataclass(frozen=True)
class ShapeSet:
    """The problems of a file, and how many of its shapes are none, by reason."""

    problems: tuple[Mapping[str, Value], ...]
    left_out: Mapping[str, int]

    def __str__(self) -> str:
        reasons = "; ".join(f"{count:,} {why}" for why, count in self.left_out.items())
        unused = sum(self.left_out.values())
        return f"{unused:,} of {len(self.problems) + unused:,} shapes left out: {reasons}"


def read_shapeset(text: str, space: Space) -> ShapeSet:
    """`FILE` or `FILE;op=mm,addmm`."""
    name, separator, listed = text.partition(";")
    wanted = [item.strip() for item in listed.removeprefix("op=").split(",")]
    if not name or (separator and (not listed.startswith("op=") or not all(wanted))):
        raise InvalidValue(f"a shape set is {KIND}:FILE or {KIND}:FILE;op=mm,addmm, got '{KIND}:{text}'")
    if space.owner.partition("/")[0] != "gemm":
        raise InvalidValue(f"a shape set holds matrix products, and {space.owner} is none: give a named set or a file")
    path = Path(name)
    try:
        sets = _sets(_content(JSON.read(path)))
        if separator and (unknown := [item for item in wanted if item not in sets]):
            raise BadFile(f"it has no operation {unknown[0]}, only {', '.join(sets)}")
        return _problems(sets, wanted if separator else list(sets), space)
    except KerncastError as error:
        raise BadFile(f"{path}: {error}") from error
    except OSError as error:
        raise BadFile(f"cannot read {path} ({error.strerror or error}): check the path") from error


def shapeset_points(found: ShapeSet, space: Space) -> pl.DataFrame:
    """The problems as columns; what only some of them say is empty in the others."""
    names = [name for name in space.parameters if any(name in problem for problem in found.problems)]
    return pl.DataFrame(
        [
            pl.Series(name, [problem.get(name) for problem in found.problems], dtype=column_type(space.parameters[name]))
            for name in names
        ]
    )


def _content(data: bytes) -> Any:
    with guarded("it", "check how it was made", "is neither JSON nor msgpack"):
        return load_document(data)


def _sets(content: Any) -> dict[str, list[Any]]:
    """The shapes by operation."""
    rule = 'a shape set is {"operations": {"mm": {"shapes": […]}}} or {"shapes": […]}'
    if not isinstance(content, dict):
        raise BadFile(f"{rule}, it is {type(content).__name__}")
    by_name = content.get("operations", {ANY: content})
    if not isinstance(by_name, dict):
        raise BadFile(f"{rule}; `operations` is {type(by_name).__name__}")
    found = {}
    for name, part in by_name.items():
        shapes = part.get("shapes") if isinstance(part, dict) else part
        if not isinstance(shapes, list):
            raise BadFile(f"{rule}; there is no list of shapes for '{name!s:.50}'")
        found[str(name)] = shapes
    if not any(found.values()):
        raise BadFile("it lists no shape")
    return found


def _problems(sets: Mapping[str, list[Any]], wanted: list[str], space: Space) -> ShapeSet:
    problems: list[dict[str, Value]] = []
    left_out: Counter[str] = Counter()
    for name in dict.fromkeys(wanted):
        if name != ANY and name not in OPERATIONS:
            left_out[f"of {name:.50}, which is more than a product"] += len(sets[name])
            continue
        for problem in _of(sets[name], space):
            if isinstance(problem, str):
                left_out[problem] += 1
            else:
                problems.append({**problem, **OPERATIONS.get(name, {})})
    # A type that only some shapes give cannot be filled in for the others.
    typed = [problem for problem in problems if "dtype" in problem]
    if typed and len(typed) < len(problems):
        left_out["without a dtype"] += len(problems) - len(typed)
        problems = typed
    if not problems:
        raise BadFile(f"no shape can be used: {'; '.join(f'{count:,} {why}' for why, count in left_out.items())}")
    return ShapeSet(tuple(problems), dict(left_out))


def _of(shapes: list[Any], space: Space) -> Iterator[dict[str, Value] | str]:
    """Each shape as a problem, or why it is none."""
    for shape in shapes:
        if isinstance(shape, str):
            try:
                shape = decode_json(shape)
            except msgspec.DecodeError:
                shape = None
        if not isinstance(shape, dict) or not all(name in shape for name in "MNK"):
            yield "without M, N and K"
            continue
        sizes = {ours: shape.get(theirs, 1) for theirs, ours in SIZES.items()}
        if any(type(size) is not int or space.parameters[name].index(size) is None for name, size in sizes.items()):
            yield "with a size that is unknown or out of range"
            continue
        spelled = {_dtype_text(shape[side]) for side in ("M_dtype", "K_dtype") if shape.get(side) is not None}
        named = {dtypes.named(text) for text in spelled}
        dtype = next(iter(named), None)
        if len(named) > 1 or (spelled and (dtype is None or space.parameters["dtype"].index(dtype) is None)):
            yield "with a dtype that gemm does not have"
        else:
            yield {**sizes, "dtype": dtype} if dtype is not None else dict(sizes)


def _dtype_text(value: Any) -> str:
    """The name of a dtype; msgpack files of torch-diode have it in an object."""
    return str(value.get(MARKED_DTYPE, value) if isinstance(value, dict) else value)
