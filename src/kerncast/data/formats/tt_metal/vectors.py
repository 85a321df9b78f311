"""Vectors of tt-metal's sweeps as problems: fields, enumerations, memory, and the sweep modules of TTNN's ops."""

from __future__ import annotations

import ast
import re
from collections.abc import Mapping
from functools import cache
from typing import Any

import msgspec

from kerncast.core.io.foreign import decode_json
from kerncast.core.op import Family
from kerncast.core.parameters import Value
from kerncast.errors import InvalidValue
from kerncast.library.families.single import (
    concatenate_heads_single,
    create_qkv_heads_single,
    eltwise_unary_single,
    paged_sdpa_decode_single,
    reshard_single,
)
from kerncast.library.ops import ttnn_ops
from kerncast.library.ops.ttnn import INPUT, NAMES, TILE
from kerncast.library.ops.ttnn_ops import FIDELITY_NAMES, FUNCTIONS

# The folder of vectors, and what runners call what they measured.
VECTORS = "vectors_export"
KERNEL_NS = "DEVICE KERNEL DURATION [ns]"
# Runners that time a vector several times write the mean, its standard deviation and the number of runs.
KERNEL_STD, RUNS = f"{KERNEL_NS}_std", "runs"
LONGEST = 300
_LITERAL = re.compile(r"(?:[-\d(), .e\[\]+]|True|False|None)+")


class OtherOp(InvalidValue):
    """A vector of an op that is not known here; the message names it."""


def plain(value: Any) -> str | None:
    """A text that a table can store: one line, without the half surrogate pairs that JSON can contain."""
    if not isinstance(value, str):
        return None
    return " ".join(value[:LONGEST].encode("utf-8", "replace").decode().split())


def field_text(vector: Mapping[str, Any], name: str, default: str | None = None) -> str:
    """A field as the framework's older versions write it: as text."""
    value = vector.get(name, default)
    if isinstance(value, list):
        value = str(value)
    if isinstance(value, dict):
        value = _flat(value, name)
    if not isinstance(value, str):
        raise InvalidValue(f"{name} must be text, got {type(value).__name__}")
    return value


def _flat(value: Mapping[str, Any], name: str) -> str:
    """A grid that was written as an object."""
    data = value.get("data", value)
    data = _json(data) if isinstance(data, str) else data
    if not isinstance(data, dict) or not {"x", "y"} <= data.keys():
        raise InvalidValue(f"{name} must be text or a grid with x and y")
    return f"CoreGrid(x={data['x']}, y={data['y']})"


def _json(text: str) -> Any:
    try:
        return decode_json(text)
    except msgspec.DecodeError:
        return None


@cache
def shape_of(text: str) -> tuple[int, ...]:
    """A shape, right-aligned to four dimensions."""
    if not re.fullmatch(r"[\[(]\d{1,9}(, *\d{1,9}){0,3}[\])]", text):
        raise InvalidValue(f"a shape is a list of up to four sizes, got {plain(text)!r}")
    sizes = tuple(map(int, re.findall(r"\d+", text)))
    return (1,) * (4 - len(sizes)) + sizes


@cache
def spelled(kind: str, text: str | int) -> str:
    """TTNN's name or number of an enumeration's member, in our words."""
    known = dict(NAMES[kind])
    given = text.removeprefix("ttnn.") if isinstance(text, str) else text
    if given not in known:
        raise InvalidValue(f"{kind} {plain(str(text))!r} is not known")
    return known[given]


def memory_of(config: Any) -> dict[str, str]:
    """Buffer and sharding of a memory config: `{"type": …, "data": "{…}"}`, with its data unfolded, or the data alone."""
    data = config.get("data", config) if isinstance(config, dict) else config
    data = _json(data) if isinstance(data, str) else data
    if not isinstance(data, dict):
        raise InvalidValue("a memory config must be an object with buffer_type and memory_layout")
    found: dict[str, Any] = {"buffer": data.get("buffer_type"), "sharding": data.get("memory_layout", 0)}
    if not all(isinstance(value, str | int) and not isinstance(value, bool) for value in found.values()):
        raise InvalidValue("a memory config must have buffer_type and memory_layout as names or numbers")
    return {kind: spelled(kind, value) for kind, value in found.items()}


def whole_number(vector: Mapping[str, Any], name: str) -> int:
    """A whole number, or the text of one."""
    value = vector.get(name)
    if isinstance(value, str) and re.fullmatch(r"\d{1,9}", value):
        return int(value)
    if isinstance(value, int) and not isinstance(value, bool):
        return value
    raise InvalidValue(f"{name} must be a whole number, got {plain(str(value))!r}")


def flag(vector: Mapping[str, Any], name: str) -> bool:
    """True or False, or Python's text of them."""
    value = vector.get(name)
    found = {"True": True, "False": False}.get(value) if isinstance(value, str) else value
    if not isinstance(found, bool):
        raise InvalidValue(f"{name} must be True or False, got {plain(str(value))!r}")
    return found


def literal(vector: Mapping[str, Any], name: str) -> Any:
    """A tuple of numbers, flags and tuples, or Python's text of one."""
    value = vector.get(name)
    if not isinstance(value, str):
        return value
    if len(value) > LONGEST or not _LITERAL.fullmatch(value):
        raise InvalidValue(f"{name} must be a tuple of numbers and shapes, got {plain(value)!r}")
    try:
        return ast.literal_eval(value)
    except (SyntaxError, ValueError) as error:
        raise InvalidValue(f"{name} must be a tuple of numbers and shapes, got {plain(value)!r}") from error


CONCATENATE_HEADS = "transformer.concatenate_heads.concatenate_heads"
CREATE_QKV_HEADS = "create_qkv_heads_sweep"
PAGED_SDPA_DECODE = "paged_sdpa_decode_sweep"

# Functions whose module is not called after them.
_OTHERWISE = {"sqrt": "sqrt.sqrt_interleaved", "rsqrt": "rsqrt.rsqrt_pytorch2"}
UNARY = {name: f"eltwise.unary.{_OTHERWISE.get(name, f'{name}.{name}')}" for name in FUNCTIONS}
"""Function → its sweep module."""

# How modules of unary functions name dtype, layout and memory of the input; and what some of them take besides.
USUAL = ("input_a_dtype", "input_a_layout", "input_a_memory_config")
UNARY_NAMES = {
    "tanh": ("input_dtype", "input_layout", "input_memory_config"),
    "hardshrink": ("input_a_dtype", "input_layout", "input_a_memory_config"),
    "hardtanh": ("input_a_dtype", "input_layout", "input_a_memory_config"),
}
UNARY_EXTRA = {
    "exp": {"use_safe_nums": "True"},
    "tanh": {"accuracy": "False"},
    "elu": {"alpha": "0.5"},
    "leaky_relu": {"negative_slope": "0.01"},
}


def unary_function(module: str) -> str | None:
    """The function that a module runs: `eltwise.unary.exp.exp`, `eltwise.unary.sqrt.sqrt_interleaved`, `exp_sweep`."""
    *folders, own = module.split(".")
    for name in (own, own.removesuffix("_sweep"), *folders[-1:]):
        if name in FUNCTIONS:
            return name
    return None


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
            problem = _tensor(vector, ttnn_ops.DIMENSIONS)
            return eltwise_unary_single, {**problem, "func": function}
        if "concatenate_heads" in own:
            return concatenate_heads_single, _tensor(vector, ttnn_ops.HEADS_SHAPE)
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
        **dict(zip(ttnn_ops.QKV_SHAPE, (batch, dim1, seq_len, (heads + 2 * each) * head_dim), strict=True)),
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


_GRID = re.compile(r"(?:ttnn\.)?CoreGrid\((?:x=(\d{1,9}), y=(\d{1,9})|y=(\d{1,9}), x=(\d{1,9}))\)")
RESHARD_SIDES = {"input": "in", "output": "out"}
RESHARD_FIELDS = {"shape", "dtype", *(f"{side}_{what}" for side in RESHARD_SIDES for what in ("core_grid", "shard_strategy"))}


def problem_of(vector: Mapping[str, Any], module: str) -> tuple[Family, dict[str, Value]]:
    """The family and the problem of a vector; InvalidValue for an unknown one."""
    family: Family
    if vector.keys() >= RESHARD_FIELDS:
        family, problem = reshard_single, _reshard(vector)
    else:
        family, problem = ttnn_problem(vector, module)
    # Only ranges are checked: the sweep may have tried tensors that fit no card or divide unevenly.
    for name, value in problem.items():
        if not _is_value(family, name, value):
            raise InvalidValue(f"{name} must be {family.problem.parameters[name].describe()}, got {value!r}")
    return family, problem


@cache
def _is_value(family: Family, name: str, value: Value) -> bool:
    """Whether a parameter has this value. A sweep has millions of vectors, and few values."""
    rule = family.problem.parameters[name]
    return rule.index(value) is not None or (value is None and rule.nullable)


def _reshard(vector: Mapping[str, Any]) -> dict[str, Value]:
    *outer, height, width = shape_of(field_text(vector, "shape"))
    if any(size != 1 for size in outer) or height % TILE or width % TILE:
        raise InvalidValue(f"a resharded tensor has shape [1, 1, {TILE}·j, {TILE}·i], got {field_text(vector, 'shape')!r}")
    problem: dict[str, Value] = {"height_tiles": height // TILE, "width_tiles": width // TILE}
    for side, own in RESHARD_SIDES.items():
        problem[f"{own}_x"], problem[f"{own}_y"] = _grid(field_text(vector, f"{side}_core_grid"))
        problem[f"{own}_strategy"] = _label(field_text(vector, f"{side}_shard_strategy"), "ShardStrategy", f"{own}_strategy")
        turned = field_text(vector, f"{side}_shard_orientation", "ShardOrientation.ROW_MAJOR")
        problem[f"{own}_orientation"] = _label(turned, "ShardOrientation", f"{own}_orientation")
    return problem | {"dtype": spelled("dtype", field_text(vector, "dtype"))}


@cache
def _grid(text: str) -> tuple[int, int]:
    found = _GRID.fullmatch(text)
    if found is None:
        raise InvalidValue(f"a core grid is CoreGrid(x=…, y=…), got {plain(text)!r}")
    x, y = (found[1], found[2]) if found[1] else (found[4], found[3])
    return int(x), int(y)


@cache
def _label(text: str, kind: str, parameter: str) -> str:
    """`ShardStrategy.BLOCK` as the label of a parameter."""
    label = text.removeprefix("ttnn.").removeprefix(f"{kind}.").lower()
    if reshard_single.problem.parameters[parameter].index(label) is None:
        raise InvalidValue(f"{kind} {plain(text)!r} is not known")
    return label
