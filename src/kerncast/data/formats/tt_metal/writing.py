"""Vectors as tt-metal's sweep framework writes them, and measured reshards as its results.

    vectors_export/eltwise.unary.exp.exp.json       a file for each sweep module
    vectors_export/2x4/reshard-2x4-8x8.json         {"2x4-8x8-DataType.BFLOAT16": {"<hash>": {"shape": "[1, 1, 64, 32]", …}}}
    results_export_batch/2x4/reshard-2x4-8x8.json   [{"vector_id": "<hash>", "status": "TestStatus.PASS", "device_perf": …}]

A file of vectors holds suites (`2dim`, `2x4-8x8-DataType.BFLOAT16`), a suite its vectors by `input_hash`. The hash is the one
that tt-metal's own generator would give, SHA-224 over the Python text of the vector, so that results of either can be joined
with the vectors of the other.
"""

from __future__ import annotations

import hashlib
import itertools
import json
from collections import Counter
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import msgspec
import polars as pl

from kerncast.core.io.atomic import drafted, refuse_existing
from kerncast.core.io.foreign import read_json
from kerncast.core.op import Family
from kerncast.data import schema
from kerncast.data.dataset import Dataset
from kerncast.data.formats.tt_metal.vectors import (
    CONCATENATE_HEADS,
    CREATE_QKV_HEADS,
    KERNEL_NS,
    KERNEL_STD,
    PAGED_FLAGS,
    PAGED_SDPA_DECODE,
    RESHARD_SIDES,
    RUNS,
    UNARY,
    UNARY_EXTRA,
    UNARY_NAMES,
    USUAL,
    VECTORS,
    problem_of,
)
from kerncast.errors import BadFile, InvalidValue
from kerncast.library.families.single import reshard_single
from kerncast.library.ops.ttnn import BUFFERS, INPUT, LAYOUTS, SHARDINGS, TILE
from kerncast.library.ops.ttnn import DTYPES as TTNN_DTYPES
from kerncast.library.ops.ttnn_ops import DIMENSIONS, FIDELITY_NAMES, HEADS_SHAPE
from kerncast.library.registry import FAMILIES

PROBLEM = "problem."
RESHARD = "data_movement.reshard.reshard"
# Vectors of one file that are held in memory, about 1 KB each.
MOST_VECTORS = 500_000
GRIDS = ["problem.in_x", "problem.in_y", "problem.out_x", "problem.out_y"]
_GROUP = [f"problem.{side}_{what}" for side in ("in", "out") for what in ("strategy", "orientation")]
# Fields that the framework's runner removes from a vector before it runs it. There is no timestamp, so that equal vectors
# are equal bytes.
_AFTER = {"timestamp": "", "input_hash": "", "tag": "kerncast"}
DTYPES = {label: f"DataType.{name.upper()}" for name, label in TTNN_DTYPES.items()}
MEMORY_CONFIG = "ttnn._ttnn.tensor.MemoryConfig"
_FIDELITIES = {label: f"MathFidelity.{name}" for name, label in FIDELITY_NAMES.items()}
# What a chunk or a flag of a config is worth that the caller does not give.
_UNUSED: dict[str, Any] = {
    "q_chunk": 32,
    "k_chunk": 32,
    "exp_approx": False,
    "math_fidelity": "hifi2",
    **dict.fromkeys(PAGED_FLAGS, False),
}

Row = Mapping[str, Any]
"""A problem, by the names of its parameters."""


# -- vectors as the parameters of sweep modules: the inverse of `vectors.problem_of` ------------------------


@dataclass(frozen=True)
class SweepModule:
    """How the vectors of one op are named, put into suites and written."""

    name: Callable[[Row], str]
    suite: Callable[[Row], str]
    parameters: Callable[[Row], dict[str, Any]]


def _memory(row: Row, of: str = "") -> dict[str, str]:
    """A memory config as TTNN serialises it; shards follow from shape and sharding. `of` may be "out_"."""
    own = {name: row[name] if row[f"{of}{name}"] == INPUT else row[f"{of}{name}"] for name in ("buffer", "sharding")}
    data = {
        "buffer_type": BUFFERS[own["buffer"]],
        "created_with_nd_shard_spec": False,
        "memory_layout": SHARDINGS[own["sharding"]],
    }
    return {"type": MEMORY_CONFIG, "data": json.dumps(data, separators=(",", ":"))}


def _layout(row: Row) -> str:
    assert row["layout"] in LAYOUTS
    return f"Layout.{row['layout'].upper()}"


def _shape(row: Row, names: Sequence[str]) -> str:
    return str([row[name] for name in names])


def _unary(row: Row) -> dict[str, Any]:
    dtype, layout, memory = UNARY_NAMES.get(row["func"], USUAL)
    own = {"input_shape": _shape(row, DIMENSIONS), dtype: DTYPES[row["dtype"]], layout: _layout(row), memory: _memory(row)}
    return {**own, "output_memory_config": _memory(row, "out_"), **UNARY_EXTRA.get(row["func"], {})}


def _rank(row: Row) -> str:
    sizes = [row[name] for name in DIMENSIONS]
    while len(sizes) > 2 and sizes[0] == 1:
        del sizes[0]
    return f"{len(sizes)}dim"


def _one_tensor(row: Row, shape: str) -> dict[str, Any]:
    return {
        "input_shape": shape, "input_dtype": DTYPES[row["dtype"]], "input_layout": _layout(row),
        "input_memory_config": _memory(row), "output_memory_config": _memory(row, "out_"),
    }  # fmt: skip


def _qkv(row: Row) -> dict[str, Any]:
    each = row["kv_heads"] or row["heads"]
    head_dim = row["hidden"] // (row["heads"] + 2 * each)
    tensor = _one_tensor(row, str([row["batch"], row["dim1"], row["seq_len"], head_dim]))
    heads = {"num_heads": str(row["heads"]), "num_kv_heads": str(each), "transpose_k_heads": str(row["transpose_k"])}
    return tensor | heads


def _paged(row: Row) -> dict[str, Any]:
    if not row["cur_pos"]:
        raise InvalidValue("the sweep module of paged_sdpa_decode always has positions: sweep cur_pos=true only")
    keys = (row["blocks"], row["kv_heads"], row["block_size"], row["head_dim"])
    mask = (row["batch"], 1, row["heads"], row["mask_len"]) if row["mask"] else None
    given = {name: value if row[name] is None else row[name] for name, value in _UNUSED.items()}
    combination = (
        (1, row["batch"], row["heads"], row["head_dim"]), keys, keys, (row["batch"], row["pages"]), mask, (row["batch"],),
        row["is_causal"], given["k_chunk"], row["head_dim"] ** 0.5,
    )  # fmt: skip
    return {
        "valid_combination": str(combination),
        "input_dtype": DTYPES[row["dtype"]],
        "input_q_memory_config": _memory(row),
        "output_memory_config": _memory(row, "out_"),
        "math_fidelity": _FIDELITIES[str(given["math_fidelity"])],
        **{theirs: str(given[own]) for own, theirs in PAGED_FLAGS.items()},
        "exp_approx_mode": str(given["exp_approx"]),
        "q_chunk_size": str(given["q_chunk"]),
        "use_sdpa_program_config": str(row["program_config"]),
        "use_device_compute_kernel_config": str(row["compute_config"]),
    }


def _reshard(row: Row) -> dict[str, Any]:
    """The shape is `@`: see `_reshards`."""
    sides = RESHARD_SIDES.items()
    return {
        **{f"{side}_shard_strategy": f"ShardStrategy.{row[f'{own}_strategy'].upper()}" for side, own in sides},
        **{f"{side}_shard_orientation": f"ShardOrientation.{row[f'{own}_orientation'].upper()}" for side, own in sides},
        "dtype": DTYPES[row["dtype"]],
        **{f"{side}_core_grid": f"ttnn.CoreGrid(x={row[f'{own}_x']}, y={row[f'{own}_y']})" for side, own in sides},
        "shape": "@",
    }


def _reshard_suite(row: Row) -> str:
    return f"{row['in_x']}x{row['in_y']}-{row['out_x']}x{row['out_y']}-{DTYPES[row['dtype']]}"


MODULES = {
    reshard_single.id: SweepModule(lambda row: RESHARD, _reshard_suite, _reshard),
    "eltwise_unary/single": SweepModule(lambda row: UNARY[row["func"]], _rank, _unary),
    "concatenate_heads/single": SweepModule(
        lambda row: CONCATENATE_HEADS,
        lambda row: f"suite_{max(64, row['seq_len'])}",
        lambda row: _one_tensor(row, _shape(row, HEADS_SHAPE)),
    ),
    "create_qkv_heads/single": SweepModule(lambda row: CREATE_QKV_HEADS, lambda row: f"suite_{row['seq_len']}", _qkv),
    "paged_sdpa_decode/single": SweepModule(
        lambda row: PAGED_SDPA_DECODE, lambda row: f"suite_{row['batch']}_{row['heads']}", _paged
    ),
}
"""By family."""


def module_vector(family: str, row: Row) -> dict[str, Any]:
    """A vector as the framework serialises it, its fields in the order that the hash depends on."""
    own = MODULES[family]
    return own.parameters(row) | {
        "suite_name": own.suite(row),
        "validity": "VectorValidity.VALID",
        "invalid_reason": "",
        "status": "VectorStatus.CURRENT",
        "sweep_name": own.name(row),
    }


def _problem(row: Row) -> dict[str, Any]:
    """The problem in a row of a dataset or of a sweep."""
    return {name.removeprefix(PROBLEM): value for name, value in row.items() if name.startswith(PROBLEM)}


def _family_id(rows: pl.DataFrame) -> str:
    """The family whose parameters the columns are."""
    known = {family: {PROBLEM + name for name in FAMILIES.get(family).problem.parameters} for family in MODULES}
    return next(family for family, columns in known.items() if columns == set(rows.columns))


# -- files of vectors ------------------------------------------------------------------------------------


def vector_files(blocks: Iterable[pl.DataFrame]) -> Iterator[tuple[str, pl.DataFrame]]:
    """The vectors of each file with its name: a file for each pair of grids, or for each sweep module."""
    kept = iter(blocks)
    first = next(kept, None)
    if first is not None:
        files = _files_by_grids if GRIDS[0] in first.columns else _files_by_module
        yield from files(itertools.chain([first], kept))


def _files_by_module(blocks: Iterable[pl.DataFrame]) -> Iterator[tuple[str, pl.DataFrame]]:
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
    names = [own.name(_problem(row)) for row in rows.iter_rows(named=True)]
    marked = rows.with_columns(pl.Series("__module", names))
    for (name,), part in marked.partition_by("__module", maintain_order=True, include_key=False, as_dict=True).items():
        yield f"{VECTORS}/{name}.json", part


def _files_by_grids(blocks: Iterable[pl.DataFrame]) -> Iterator[tuple[str, pl.DataFrame]]:
    """The vectors of a pair of grids must come one after another, as sweeps of the op do."""
    seen: set[tuple[int, ...]] = set()

    def named(rows: pl.DataFrame) -> tuple[str, pl.DataFrame]:
        in_x, in_y, out_x, out_y = grids = rows.select(GRIDS).row(0)
        if grids in seen:
            raise InvalidValue(
                f"the problems from {in_x}x{in_y} to {out_x}x{out_y} are not next to each other, but make one file: "
                "sort them by grids"
            )
        seen.add(grids)
        return f"{VECTORS}/{_grid_file(rows)}", rows

    held: pl.DataFrame | None = None
    for block in blocks:
        joined = block if held is None else pl.concat([held, block])
        *whole, held = joined.with_columns(pl.struct(GRIDS).rle_id().alias("__run")).partition_by(
            "__run", maintain_order=True, include_key=False
        )
        yield from map(named, whole)
    if held is not None:
        yield named(held)


def _grid_file(rows: pl.DataFrame) -> str:
    """The file of a pair of grids, below the folder of vectors or of results."""
    in_x, in_y, out_x, out_y = rows.select(GRIDS).row(0)
    return f"{in_x}x{in_y}/reshard-{in_x}x{in_y}-{out_x}x{out_y}.json"


def write_vectors(rows: pl.DataFrame, file: Path) -> None:
    """Write one of these files, suite by suite."""
    suites: dict[str, list[str]] = {}
    if GRIDS[0] in rows.columns:
        for suite in rows.partition_by("problem.dtype", maintain_order=True):
            lines = suites.setdefault(_reshard_suite(_problem(suite.row(0, named=True))), [])
            for group in suite.partition_by(_GROUP, maintain_order=True):
                lines += [line for _, line in _reshards(group)]
    else:
        family = _family_id(rows)
        for row in rows.iter_rows(named=True):
            vector = module_vector(family, _problem(row))
            digest = hashlib.sha224(str(vector).encode()).hexdigest()
            whole = msgspec.json.encode(vector | _AFTER | {"input_hash": digest}).decode()
            suites.setdefault(vector["suite_name"], []).append(f'"{digest}": {whole}')
    parts = (f'"{name}": {{\n' + ",\n".join(lines) + "\n}" for name, lines in suites.items())
    file.write_text("{" + ",\n".join(parts) + "}\n")


def _reshards(group: pl.DataFrame) -> Iterator[tuple[str, str]]:
    """The vectors of one sharding: the hash and the line of each.

    They differ in their shapes alone: the text around those is made and hashed once.
    """
    vector = module_vector(reshard_single.id, _problem(group.row(0, named=True)))
    python_head, python_tail = str(vector).split("@")
    head, tail = msgspec.json.encode(vector).decode().split("@")
    hashed = hashlib.sha224(python_head.encode())
    after = ", ".join(f'"{name}": "{value}"' for name, value in _AFTER.items()).replace('"input_hash": ""', '"input_hash": "@"')
    before_hash, after_hash = f"{tail[:-1]}, {after}}}".split("@")
    for height, width in group.select("problem.height_tiles", "problem.width_tiles").iter_rows():
        shape = f"[1, 1, {TILE * height}, {TILE * width}]"
        own = hashed.copy()
        own.update((shape + python_tail).encode())
        digest = own.hexdigest()
        yield digest, f'"{digest}": {head}{shape}{before_hash}{digest}{after_hash}'


def read_vectors(file: Path, family: Family) -> pl.DataFrame:
    """The vectors of a file as problems of a family, one row each."""
    problems = []
    try:
        suites = read_json(file, type=dict[str, dict[str, dict[str, Any]]])
        for vector in (vector for suite in suites.values() for vector in suite.values()):
            own, problem = problem_of(vector, str(vector.get("sweep_name", RESHARD)))
            if own is not family:
                raise InvalidValue(f"it has a vector of {own.id}")
            problems.append(problem)
    except (msgspec.DecodeError, InvalidValue) as error:
        raise BadFile(f"{file} holds no vectors of {family.id} as tt-metal writes them ({error}): sweep again") from error
    frame = pl.DataFrame(problems, orient="row").rename(lambda name: PROBLEM + name)
    types = {
        name: schema.column_type(space.parameters[item]) for name, (space, item) in schema.parameter_columns(family).items()
    }
    return frame.select(pl.col(name).cast(dtype) for name, dtype in types.items())


# -- measured reshards -------------------------------------------------------------------------------------

WRITTEN_RESULTS = "results_export_batch"
# The framework's status for each of ours; it has no word of its own for the last three.
WRITTEN_STATUSES = {
    "ok": "PASS", "launch_error": "FAIL_ASSERT_EXCEPTION", "timeout": "FAIL_CRASH_HANG", "out_of_memory": "FAIL_L1_OUT_OF_MEM",
    "unsupported": "FAIL_UNSUPPORTED_DEVICE_PERF", "crash": "FAIL_CRASH_HANG", "compile_error": "FAIL_ASSERT_EXCEPTION",
    "wrong_result": "FAIL_ASSERT_EXCEPTION",
}  # fmt: skip
RENAMED = ("crash", "compile_error", "wrong_result")
_COLUMNS = ("device", "status", "time_ns", "time_ns_std", "samples", "started_at", "software", "error")


def write_reshards(dataset: Dataset, out: Path, family: str | None, where: Sequence[str]) -> list[Path]:
    """Write the reshards of a dataset into a new folder, whole or not at all: a file of vectors and one of results a grid pair.

    The kernel duration is the label, with the standard deviation and the number of samples beside it where they are known.
    """
    if family not in (None, reshard_single.id):
        raise InvalidValue(f"tt-sweep is a format of {reshard_single.id}, got '{family}': use another format")
    if reshard_single.id not in {item.id for item in dataset.families}:
        held = ", ".join(item.id for item in dataset.families) or "no rows"
        raise InvalidValue(f"tt-sweep is a format of {reshard_single.id}, but {dataset.path} holds {held}: use another format")
    problem = [PROBLEM + name for name in reshard_single.problem.parameters]
    rows = dataset.read(reshard_single, where, [*problem, *_COLUMNS])
    machines = rows["device"].unique().sort().to_list()
    if len(machines) != 1:
        held = f"rows of {', '.join(machines)}" if machines else "no such rows"
        raise InvalidValue(f"a sweep is of one device, and {dataset.path} holds {held}: choose one with `where`")
    counts: Counter[str] = Counter(rows["status"].cast(pl.String).to_list())
    rows = rows.filter(pl.col("status") != "invalid")
    refuse_existing(out)
    with drafted(out) as folder:
        for part in rows.sort(GRIDS, maintain_order=True).partition_by(GRIDS, maintain_order=True):
            vectors, results = (folder / home / _grid_file(part) for home in (VECTORS, WRITTEN_RESULTS))
            for file in (vectors, results):
                file.parent.mkdir(parents=True, exist_ok=True)
            write_vectors(part.select(problem).unique(maintain_order=True), vectors)
            # A vector that was not run has no result: that is how the framework's files say it.
            run = part.filter(pl.col("status") != "not_run")
            entries = [_result(row, key) for row, key in zip(run.iter_rows(named=True), _input_hashes(run), strict=True)]
            lines = ",\n".join(json.dumps(entry) for entry in entries)
            results.write_text(f"[\n{lines}\n]\n" if lines else "[]\n")
    dataset.notes = (*dataset.notes, *_what_changed(counts))
    return sorted(path for path in out.rglob("*") if path.is_file())


def _input_hashes(rows: pl.DataFrame) -> list[str]:
    """The hash of each vector of some rows, as a vectors file has it."""
    digests = [""] * rows.height
    for group in rows.with_row_index("__row").partition_by([*GRIDS, *_GROUP, "problem.dtype"], maintain_order=True):
        for row, (digest, _) in zip(group["__row"].to_list(), _reshards(group), strict=True):
            digests[row] = digest
    return digests


def _result(row: Mapping[str, Any], key: str) -> dict[str, Any]:
    status = str(row["status"])
    perf: dict[str, float] | None = None
    if status == "ok":
        perf = {KERNEL_NS: row["time_ns"]}
        perf |= {} if row["time_ns_std"] is None else {KERNEL_STD: row["time_ns_std"]}
        perf |= {} if row["samples"] is None else {RUNS: row["samples"]}
    error = row["error"] if status not in RENAMED or not row["error"] else f"{status}: {row['error']}"
    return {
        "sweep_name": RESHARD, "suite_name": _reshard_suite(_problem(row)), "vector_id": key, "input_hash": key,
        "status": f"TestStatus.{WRITTEN_STATUSES[status]}", "exception": error or (status if status in RENAMED else None),
        "device_perf": perf, "timestamp": row["started_at"], "git_hash": _commit(row["software"]),
    }  # fmt: skip


def _commit(software: str | None) -> str | None:
    """The commit that a row was measured with, if it says so."""
    try:
        known = json.loads(software or "{}")
    except (ValueError, RecursionError):
        return None
    commit = known.get("commit") if isinstance(known, dict) else None
    return commit if isinstance(commit, str) else None


def _what_changed(counts: Mapping[str, int]) -> Iterator[str]:
    """What is not written as it was."""
    if counts["invalid"]:
        yield f"{counts['invalid']:,} invalid vectors were left out, as the framework does"
    for status in RENAMED:
        if counts[status]:
            yield f"{counts[status]:,} rows with the status {status} are written as {WRITTEN_STATUSES[status]}"
    if not counts["ok"]:
        yield "no row has a time: there is nothing to fit"
