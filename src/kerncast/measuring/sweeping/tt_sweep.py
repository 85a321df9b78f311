"""The layout of tt-metal's sweep framework: `vectors_export/eltwise.unary.exp.exp.json`, a file for each sweep module; of
reshards `vectors_export/2x4/reshard-2x4-8x8.json`, a file for each pair of grids.

A file holds suites (`2dim`, `2x4-8x8-DataType.BFLOAT16`), a suite its vectors by `input_hash`. The hash is the one that
tt-metal's own generator would give, SHA-224 over the Python text of the vector, so that results of either can be joined
with the vectors of the other.
"""

from __future__ import annotations

import hashlib
import itertools
from collections.abc import Iterable, Iterator, Mapping
from pathlib import Path
from typing import Any

import msgspec
import polars as pl

from kerncast.core.io.foreign import read_json
from kerncast.core.op import Family
from kerncast.data.importers.tt_sweep.vectors import problem_of
from kerncast.errors import BadFile, InvalidValue
from kerncast.library.ops.ttnn import TILE
from kerncast.library.registry import FAMILIES
from kerncast.measuring.sweeping.files import Format, refuse, vector_columns
from kerncast.measuring.sweeping.pool import PROBLEM
from kerncast.measuring.sweeping.tt_vectors import DTYPES, MODULES

FOLDER = "vectors_export"
MODULE = "data_movement.reshard.reshard"
# Vectors of one file that are held in memory, about 1 KB each.
MOST_VECTORS = 500_000
GRIDS = ["problem.in_x", "problem.in_y", "problem.out_x", "problem.out_y"]
_GROUP = [f"problem.{side}_{what}" for side in ("in", "out") for what in ("strategy", "orientation")]
_SIDES = {"input": "in", "output": "out"}
# Fields that the framework's runner removes from a vector before it runs it. There is no timestamp, so that equal vectors
# are equal bytes.
_AFTER = {"timestamp": "", "input_hash": "", "tag": "kerncast"}


def suite_name(row: Mapping[str, Any]) -> str:
    """The suite that a vector belongs to."""
    in_x, in_y, out_x, out_y = (row[name] for name in GRIDS)
    return f"{in_x}x{in_y}-{out_x}x{out_y}-{DTYPES[row['problem.dtype']]}"


def vector_text(row: Mapping[str, Any], shape: str) -> dict[str, str]:
    """A vector as the framework serialises it, its fields in the order that the hash depends on."""
    found = {
        f"{side}_shard_strategy": f"ShardStrategy.{row[f'problem.{own}_strategy'].upper()}" for side, own in _SIDES.items()
    }
    found |= {
        f"{side}_shard_orientation": f"ShardOrientation.{row[f'problem.{own}_orientation'].upper()}"
        for side, own in _SIDES.items()
    }
    found["dtype"] = DTYPES[row["problem.dtype"]]
    for side, own in _SIDES.items():
        found[f"{side}_core_grid"] = f"ttnn.CoreGrid(x={row[f'problem.{own}_x']}, y={row[f'problem.{own}_y']})"
    return found | {
        "shape": shape,
        "suite_name": suite_name(row),
        "validity": "VectorValidity.VALID",
        "invalid_reason": "",
        "status": "VectorStatus.CURRENT",
        "sweep_name": MODULE,
    }


FAMILY_IDS = ("reshard/single", *MODULES)


def _family_id(rows: pl.DataFrame) -> str:
    """The family whose parameters the columns are."""
    known = {family: {PROBLEM + name for name in FAMILIES.get(family).problem.parameters} for family in MODULES}
    return next(family for family, columns in known.items() if columns == set(rows.columns))


def _problems(rows: pl.DataFrame) -> Iterator[dict[str, Any]]:
    return rows.rename(lambda name: name.removeprefix(PROBLEM)).iter_rows(named=True)


def module_vector(family: str, row: Mapping[str, Any]) -> dict[str, Any]:
    """A vector as the framework serialises it, its fields in the order that the hash depends on; `row`: the problem."""
    own = MODULES[family]
    return own.parameters(row) | {
        "suite_name": own.suite(row),
        "validity": "VectorValidity.VALID",
        "invalid_reason": "",
        "status": "VectorStatus.CURRENT",
        "sweep_name": own.name(row),
    }


def _write_module(rows: pl.DataFrame, file: Path) -> None:
    """The vectors of one sweep module, suite by suite."""
    family = _family_id(rows)
    suites: dict[str, list[str]] = {}
    for row in _problems(rows):
        vector = module_vector(family, row)
        digest = hashlib.sha224(str(vector).encode()).hexdigest()
        whole = msgspec.json.encode(vector | _AFTER | {"input_hash": digest}).decode()
        suites.setdefault(vector["suite_name"], []).append(f'"{digest}": {whole}')
    lines = (f'"{name}": {{\n' + ",\n".join(vectors) + "\n}" for name, vectors in suites.items())
    file.write_text("{" + ",\n".join(lines) + "}\n")


def _problem(vector: Mapping[str, Any], family: Family) -> dict[str, Any]:
    """The problem of a vector; one of another family is refused."""
    found, problem = problem_of(vector, str(vector.get("sweep_name", MODULE)))
    if found is not family:
        raise InvalidValue(f"it has a vector of {found.id}")
    return problem


def input_hashes(rows: pl.DataFrame) -> list[str]:
    """The hash of each vector of some rows, as a vectors file has it."""
    found = [""] * rows.height
    for group in rows.with_row_index("__row").partition_by([*GRIDS, *_GROUP, "problem.dtype"], maintain_order=True):
        for row, (digest, _) in zip(group["__row"].to_list(), _vectors(group), strict=True):
            found[row] = digest
    return found


def file_name(row: Mapping[str, Any]) -> str:
    """The file of a vector, below the folder of vectors or of results."""
    in_x, in_y, out_x, out_y = (row[name] for name in GRIDS)
    return f"{in_x}x{in_y}/reshard-{in_x}x{in_y}-{out_x}x{out_y}.json"


def _vectors(group: pl.DataFrame) -> Iterator[tuple[str, str]]:
    """The vectors of one sharding: the hash and the line of each.

    They differ in their shapes alone: the text around those is made and hashed once.
    """
    first = group.row(0, named=True)
    python_head, python_tail = str(vector_text(first, "@")).split("@")
    head, tail = msgspec.json.encode(vector_text(first, "@")).decode().split("@")
    hashed = hashlib.sha224(python_head.encode())
    after = ", ".join(f'"{name}": "{value}"' for name, value in _AFTER.items()).replace('"input_hash": ""', '"input_hash": "@"')
    before_hash, after_hash = f"{tail[:-1]}, {after}}}".split("@")
    for height, width in zip(group["problem.height_tiles"].to_list(), group["problem.width_tiles"].to_list(), strict=True):
        shape = f"[1, 1, {TILE * height}, {TILE * width}]"
        own = hashed.copy()
        own.update((shape + python_tail).encode())
        digest = own.hexdigest()
        yield digest, f'"{digest}": {head}{shape}{before_hash}{digest}{after_hash}'


class TtSweep(Format):
    """Vectors as tt-metal's sweep framework writes them and its runner reads them."""

    name, rows = "tt-sweep", 65_536

    def check(self, family: Family) -> None:
        refuse(self, family, *FAMILY_IDS)

    def cut(self, blocks: Iterable[pl.DataFrame]) -> Iterator[tuple[str, pl.DataFrame]]:
        """A file for each pair of grids, or for each sweep module."""
        kept = iter(blocks)
        first = next(kept, None)
        if first is not None:
            files = self._by_grids if GRIDS[0] in first.columns else self._by_module
            yield from files(itertools.chain([first], kept))

    @staticmethod
    def _by_module(blocks: Iterable[pl.DataFrame]) -> Iterator[tuple[str, pl.DataFrame]]:
        """A file for each sweep module."""
        held, height = [], 0
        for block in blocks:
            held.append(block)
            height += block.height
            if height > MOST_VECTORS:
                raise InvalidValue(
                    f"`file_format=tt-sweep` holds at most {MOST_VECTORS:,} vectors: thin the sweep with `max_vectors`"
                )
        rows = pl.concat(held)
        own = MODULES[_family_id(rows)]
        names = [own.name(row) for row in _problems(rows)]
        marked = rows.with_columns(pl.Series("__module", names))
        for name, part in marked.partition_by("__module", maintain_order=True, as_dict=True).items():
            yield f"{FOLDER}/{name[0]}.json", part.drop("__module")

    def _by_grids(self, blocks: Iterable[pl.DataFrame]) -> Iterator[tuple[str, pl.DataFrame]]:
        """A file for each pair of grids; their vectors must come one after another, as sweeps of the op do."""
        seen: set[tuple[int, ...]] = set()
        held: pl.DataFrame | None = None
        for block in blocks:
            joined = block if held is None else pl.concat([held, block])
            *whole, held = joined.with_columns(pl.struct(GRIDS).rle_id().alias("__run")).partition_by(
                "__run", maintain_order=True, include_key=False
            )
            for rows in whole:
                yield self._named(rows, seen)
        if held is not None:
            yield self._named(held, seen)

    @staticmethod
    def _named(rows: pl.DataFrame, seen: set[tuple[int, ...]]) -> tuple[str, pl.DataFrame]:
        grids = rows.select(GRIDS).row(0)
        in_x, in_y, out_x, out_y = grids
        if grids in seen:
            raise InvalidValue(
                f"the problems from {in_x}x{in_y} to {out_x}x{out_y} are not next to each other, but make one file: "
                "sort them by grids"
            )
        seen.add(grids)
        return f"{FOLDER}/{file_name(rows.row(0, named=True))}", rows

    def write(self, rows: pl.DataFrame, file: Path) -> None:
        if GRIDS[0] not in rows.columns:
            _write_module(rows, file)
            return
        suites = []
        for suite in rows.partition_by("problem.dtype", maintain_order=True):
            groups = suite.partition_by(_GROUP, maintain_order=True)
            vectors = ",\n".join(line for group in groups for _, line in _vectors(group))
            suites.append(f'"{suite_name(suite.row(0, named=True))}": {{\n{vectors}\n}}')
        file.write_text("{" + ",\n".join(suites) + "}\n")

    def read(self, file: Path, family: Family) -> pl.DataFrame:
        try:
            suites = read_json(file, type=dict[str, dict[str, dict[str, Any]]])
            problems = [_problem(vector, family) for suite in suites.values() for vector in suite.values()]
        except (msgspec.DecodeError, InvalidValue) as error:
            raise BadFile(f"{file} holds no vectors of {family.id} as tt-metal writes them ({error}): sweep again") from error
        frame = pl.DataFrame(problems, orient="row").rename(lambda name: PROBLEM + name)
        return frame.select(pl.col(name).cast(dtype) for name, dtype in vector_columns(family).items())
