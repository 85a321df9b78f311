"""Vectors of TTNN's ops, told apart by the parameters of their sweep modules, as problems."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from kerncast.core.op import Family
from kerncast.core.parameters import Value
from kerncast.data.importers.tt_sweep.fields import (
    OtherOp,
    field_text,
    flag,
    literal,
    memory_of,
    plain,
    shape_of,
    spelled,
    whole_number,
)
from kerncast.data.importers.tt_sweep.modules import unary_function
from kerncast.errors import InvalidValue
from kerncast.library.families.single import (
    concatenate_heads_single,
    create_qkv_heads_single,
    eltwise_unary_single,
    paged_sdpa_decode_single,
)
from kerncast.library.ops import concatenate_heads, create_qkv_heads, eltwise_unary
from kerncast.library.ops.paged_sdpa_decode import FIDELITY_NAMES
from kerncast.library.ops.ttnn import INPUT

QKV = {"input_shape", "num_heads", "transpose_k_heads"}
PAGED = {"valid_combination", "use_sdpa_program_config", "use_device_compute_kernel_config"}
PAGED_FLAGS = {"math_approx": "math_approx_mode", "fp32_accumulate": "fp32_dest_acc_en", "packer_l1": "packer_l1_acc"}
# What the published module of create_qkv_heads always does.
QKV_MEMORY = {"buffer": "l1", "sharding": "block"}
QKV_OUT = {"buffer": "l1", "sharding": "height"}


def ttnn_problem(vector: Mapping[str, Any], module: str) -> tuple[Family, dict[str, Value]]:
    """The family and the problem of a vector; `OtherOp` for a vector of another op."""
    own = module.rpartition(".")[2]
    if vector.keys() >= PAGED:
        return paged_sdpa_decode_single, _paged(vector)
    if vector.keys() >= QKV and ("create_qkv_heads" in own or not own) and "nlp" not in own:
        return create_qkv_heads_single, _qkv(vector)
    if "input_shape" in vector and _named(vector, "dtype") and _named(vector, "memory_config"):
        function = unary_function(module)
        if function is not None:
            problem = _tensor(vector, eltwise_unary.DIMENSIONS)
            return eltwise_unary_single, {**problem, "func": function}
        if "concatenate_heads" in own:
            return concatenate_heads_single, _tensor(vector, concatenate_heads.SHAPE)
    raise OtherOp(module or "without a name")


def _named(vector: Mapping[str, Any], what: str) -> str | None:
    """What a module calls a property of its input."""
    return next((name for name in (f"input_a_{what}", f"input_{what}") if name in vector), None)


def _tensor(vector: Mapping[str, Any], names: tuple[str, ...]) -> dict[str, Value]:
    """Shape, dtype, layout and memory of an op on one tensor."""
    found = dict(zip(names, shape_of(field_text(vector, "input_shape")), strict=True))
    source = vector[_named(vector, "memory_config") or ""]
    memory = memory_of(source)
    return {**found, **_kind(vector), **memory, **_out(memory, memory_of(vector.get("output_memory_config", source)))}


def _kind(vector: Mapping[str, Any]) -> dict[str, Value]:
    layout = _named(vector, "layout")
    return {
        "dtype": spelled("dtype", field_text(vector, _named(vector, "dtype") or "input_dtype")),
        "layout": "tile" if layout is None else spelled("layout", field_text(vector, layout)),
    }


def _out(memory: Mapping[str, str], out: Mapping[str, str]) -> dict[str, Value]:
    """The memory of the output; in the same memory as the input it always gets the same label."""
    return {f"out_{name}": INPUT if value == memory[name] else value for name, value in out.items()}


def _qkv(vector: Mapping[str, Any]) -> dict[str, Value]:
    """The module takes the shape with the size of one head, and makes the tensor of all heads from it."""
    batch, dim1, seq_len, head_dim = shape_of(field_text(vector, "input_shape"))
    heads = whole_number(vector, "num_heads")
    asked = vector.get("num_kv_heads")
    each = heads if asked in (None, "None") else whole_number(vector, "num_kv_heads")
    memory = memory_of(vector["input_memory_config"]) if "input_memory_config" in vector else QKV_MEMORY
    out = memory_of(vector["output_memory_config"]) if "output_memory_config" in vector else QKV_OUT
    return {
        **dict(zip(create_qkv_heads.SHAPE, (batch, dim1, seq_len, (heads + 2 * each) * head_dim), strict=True)),
        "heads": heads,
        "kv_heads": 0 if each == heads else each,
        "transpose_k": flag(vector, "transpose_k_heads"),
        **_kind(vector),
        **memory,
        **_out(memory, out),
    }


def _paged(vector: Mapping[str, Any]) -> dict[str, Value]:
    problem = _combination(literal(vector, "valid_combination"))
    memory, out = memory_of(vector.get("input_q_memory_config")), memory_of(vector.get("output_memory_config"))
    if memory["sharding"] == "interleaved" != out["sharding"]:
        # The published module places the query by the output's config then, so the vector is not what was measured.
        raise InvalidValue("an interleaved query with a sharded output is not measured as the vector says: left out")
    problem |= {**memory, **_out(memory, out), "dtype": spelled("dtype", field_text(vector, "input_dtype")), "layout": "tile"}
    chosen = flag(vector, "use_sdpa_program_config")
    problem["program_config"] = chosen
    problem["q_chunk"] = whole_number(vector, "q_chunk_size") if chosen else None
    problem["k_chunk"] = problem["k_chunk"] if chosen else None
    problem["exp_approx"] = flag(vector, "exp_approx_mode") if chosen else None
    computed = flag(vector, "use_device_compute_kernel_config")
    problem["compute_config"] = computed
    problem["math_fidelity"] = _fidelity(field_text(vector, "math_fidelity")) if computed else None
    for own, theirs in PAGED_FLAGS.items():
        problem[own] = flag(vector, theirs) if computed else None
    return problem


def _combination(given: Any) -> dict[str, Value]:
    """Shapes of q, k, v, page table, mask and positions, causality, chunk of keys, scale."""
    rule = f"valid_combination must be nine shapes and numbers, q first and scale last, got {plain(str(given))!r}"
    try:
        q, k, v, table, mask, positions, causal, chunk, _ = given
        (q_dim0, batch, heads, head_dim), (blocks, kv_heads, block_size, k_dim), (table_batch, pages) = q, k, table
        mask_len = None if mask is None else mask[3]
        sizes = (*q, *k, *v, *table, *(() if mask is None else mask), chunk)
    except (TypeError, ValueError, IndexError, KeyError) as error:
        raise InvalidValue(rule) from error
    if any(type(size) is not int for size in sizes) or type(causal) is not bool:
        raise InvalidValue(rule)
    if list(v) != list(k) or k_dim != head_dim or table_batch != batch:
        raise InvalidValue(
            "valid_combination must have equal keys and values, as wide as the query, and a page table of its batch"
        )
    return {
        "q_dim0": q_dim0, "batch": batch, "heads": heads, "head_dim": head_dim, "blocks": blocks, "kv_heads": kv_heads,
        "block_size": block_size, "pages": pages, "is_causal": causal, "cur_pos": positions is not None,
        "mask": mask is not None, "mask_len": mask_len, "k_chunk": chunk,
    }  # fmt: skip


def _fidelity(given: str) -> str:
    label = FIDELITY_NAMES.get(given.removeprefix("ttnn.").removeprefix("MathFidelity."))
    if label is None:
        raise InvalidValue(f"math_fidelity {plain(given)!r} is not known")
    return label
