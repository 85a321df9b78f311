"""Vectors of TTNN's ops as the parameters of their sweep modules, the inverse of what the importer `tt-sweep` reads."""

from __future__ import annotations

import json
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from typing import Any

from kerncast.data.importers.tt_sweep import modules
from kerncast.data.importers.tt_sweep.ttnn_ops import PAGED_FLAGS
from kerncast.errors import InvalidValue
from kerncast.library.ops.concatenate_heads import SHAPE as HEADS
from kerncast.library.ops.eltwise_unary import DIMENSIONS
from kerncast.library.ops.paged_sdpa_decode import FIDELITY_NAMES
from kerncast.library.ops.ttnn import BUFFERS, INPUT, LAYOUTS, SHARDINGS
from kerncast.library.ops.ttnn import DTYPES as TTNN_DTYPES

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


@dataclass(frozen=True)
class Module:
    """How the vectors of one op are named, put into suites and written."""

    name: Callable[[Row], str]
    suite: Callable[[Row], str]
    parameters: Callable[[Row], dict[str, Any]]


def _memory(buffer: str, sharding: str) -> dict[str, str]:
    """A memory config as TTNN serialises it; shards follow from shape and sharding."""
    data = {"buffer_type": BUFFERS[buffer], "created_with_nd_shard_spec": False, "memory_layout": SHARDINGS[sharding]}
    return {"type": MEMORY_CONFIG, "data": json.dumps(data, separators=(",", ":"))}


def _source(row: Row) -> dict[str, str]:
    return _memory(row["buffer"], row["sharding"])


def _target(row: Row) -> dict[str, str]:
    own = {name: row[name] if row[f"out_{name}"] == INPUT else row[f"out_{name}"] for name in ("buffer", "sharding")}
    return _memory(own["buffer"], own["sharding"])


def _layout(row: Row) -> str:
    assert row["layout"] in LAYOUTS
    return f"Layout.{row['layout'].upper()}"


def _shape(row: Row, names: tuple[str, ...]) -> str:
    return str([row[name] for name in names])


def _unary(row: Row) -> dict[str, Any]:
    dtype, layout, memory = modules.UNARY_NAMES.get(row["func"], modules.USUAL)
    found: dict[str, Any] = {"input_shape": _shape(row, DIMENSIONS), dtype: DTYPES[row["dtype"]], layout: _layout(row)}
    found |= {memory: _source(row), "output_memory_config": _target(row)}
    return found | modules.UNARY_EXTRA.get(row["func"], {})


def _rank(row: Row) -> str:
    sizes = [row[name] for name in DIMENSIONS]
    while len(sizes) > 2 and sizes[0] == 1:
        del sizes[0]
    return f"{len(sizes)}dim"


def _one_tensor(row: Row, shape: str) -> dict[str, Any]:
    return {
        "input_shape": shape, "input_dtype": DTYPES[row["dtype"]], "input_layout": _layout(row),
        "input_memory_config": _source(row), "output_memory_config": _target(row),
    }  # fmt: skip


def _qkv(row: Row) -> dict[str, Any]:
    each = row["kv_heads"] or row["heads"]
    head_dim = row["hidden"] // (row["heads"] + 2 * each)
    found = _one_tensor(row, str([row["batch"], row["dim1"], row["seq_len"], head_dim]))
    heads = {"num_heads": str(row["heads"]), "num_kv_heads": str(each), "transpose_k_heads": str(row["transpose_k"])}
    return found | heads


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
        "input_q_memory_config": _source(row),
        "output_memory_config": _target(row),
        "math_fidelity": _FIDELITIES[str(given["math_fidelity"])],
        **{theirs: str(given[own]) for own, theirs in PAGED_FLAGS.items()},
        "exp_approx_mode": str(given["exp_approx"]),
        "q_chunk_size": str(given["q_chunk"]),
        "use_sdpa_program_config": str(row["program_config"]),
        "use_device_compute_kernel_config": str(row["compute_config"]),
    }


MODULES = {
    "eltwise_unary/single": Module(lambda row: modules.UNARY[row["func"]], _rank, _unary),
    "concatenate_heads/single": Module(
        lambda row: modules.CONCATENATE_HEADS,
        lambda row: f"suite_{max(64, row['seq_len'])}",
        lambda row: _one_tensor(row, _shape(row, HEADS)),
    ),
    "create_qkv_heads/single": Module(lambda row: modules.CREATE_QKV_HEADS, lambda row: f"suite_{row['seq_len']}", _qkv),
    "paged_sdpa_decode/single": Module(
        lambda row: modules.PAGED_SDPA_DECODE, lambda row: f"suite_{row['batch']}_{row['heads']}", _paged
    ),
}
"""By family."""
