"""What TTNN ops share: tensors with shape, dtype, layout and memory, as parameters, in JSON requests and as features.

TTNN writes a tensor as `{"tensor_spec": {"logical_shape": …, "tensor_layout": {"dtype": 0, "memory_config": …}}}`, with
numbers for its enumerations; the short form is `{"shape": …, "dtype": "bfloat16", "memory": {"buffer": "L1"}}`.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from functools import reduce
from operator import mul

from kerncast.core.dtypes import bytes_per_element, dtype_parameter
from kerncast.core.expr import Expr, Namespace, ceil_div, log2
from kerncast.core.op import Op
from kerncast.core.op.declaration import Work
from kerncast.core.parameters import Categorical, JsonField, Parameter
from kerncast.core.space import Constraint

TILE = 32  # Tensix hardware works on 32 × 32 tiles; edges are padded up
MOST = 2**31 - 1

BUFFERS = {"dram": 0, "l1": 1}
# TTNN's own numbers; 1, a single bank, is no longer used.
SHARDINGS = {"interleaved": 0, "height": 2, "width": 3, "block": 4}
LAYOUTS = {"row_major": 0, "tile": 1}
INPUT = "input"
"""For an output: the same as the input."""

DTYPES = {"bfloat16": "bf16", "float32": "fp32", "uint32": "uint32", "bfloat8_b": "bfp8", "bfloat4_b": "bfp4",
          "uint8": "uint8", "uint16": "uint16", "int32": "int32"}  # fmt: skip
"""TTNN's names, in the order of its numbers."""

# In the measurements, the size of shards and their cores follow from shape and sharding.
SHARDS = ("shard_spec", "nd_shard_spec", "created_with_nd_shard_spec")
# Other fields of a serialised tensor, which do not change what is computed or how it is laid out.
SILENT = ("storage", "tensor_spec.tensor_layout.alignment", "tensor_spec.tensor_layout.page_config.config.value",
          *(f"tensor_spec.tensor_layout.memory_config.{name}" for name in SHARDS))  # fmt: skip


MEMORY = ("dtype", "buffer", "layout", "sharding", "out_buffer", "out_sharding")
"""What `memory_parameters` declares."""


def memory_parameters(
    of: str = "the input",
    to: str = "the output",
    *,
    dtype: str | None = None,
    buffer: str | None = None,
    sharding: str = "interleaved",
    out_sharding: str = INPUT,
) -> dict[str, Parameter]:
    """Element type and layout, and the memory of the tensors `of` and `to`; tiled and interleaved by default."""
    return {
        "dtype": dtype_parameter(*DTYPES.values(), default=dtype),
        "buffer": Categorical(BUFFERS, default=buffer, doc=f"memory that holds {of}"),
        "layout": Categorical(LAYOUTS, default="tile", doc="order of elements in memory"),
        "sharding": Categorical(SHARDINGS, default=sharding, doc=f"how {of} is spread over the cores"),
        "out_buffer": Categorical({**BUFFERS, INPUT: 2}, default=INPUT, doc=f"memory that holds {to}"),
        "out_sharding": Categorical({**SHARDINGS, INPUT: 5}, default=out_sharding, doc=f"how {to} is spread"),
    }


def padded_tiles(rows: Expr, columns: Expr) -> Expr:
    """Number of tiles of a matrix, partial ones included."""
    return ceil_div(rows, TILE) * ceil_div(columns, TILE)


def shown(p: Namespace, names: Iterable[str]) -> dict[str, Expr]:
    """Parameters used as features unchanged."""
    return {name: getattr(p, name) for name in names}


class TtnnOp(Op):
    """An op with `memory_parameters`."""

    def constraints(self, p: Namespace) -> Iterable[Constraint]:
        """Rules that leave one way to write an output stored like the input."""
        return [
            Constraint(f"out_{name}_once", f"write out_{name}={INPUT} if the output has the input's {name}",
                       getattr(p, f"out_{name}") != getattr(p, name))
            for name in ("buffer", "sharding")
        ]  # fmt: skip


class TiledOp(TtnnOp):
    """An op that processes one tensor tile by tile: `split_group` names the tensor's sizes, `derive` gives `tiles`."""

    def work(self, p: Namespace) -> Work:
        """Each element of each tile is read, changed and written once."""
        elements = p.tiles * TILE * TILE
        return Work(flops=elements, bytes=2 * elements * bytes_per_element(p.dtype))

    def sizes(self, p: Namespace) -> Mapping[str, Expr]:
        """The caller's settings, as features."""
        return shown(p, self.split_group)

    def own_features(self, p: Namespace, hw: Namespace) -> Mapping[str, Expr]:
        """Features that only this op has."""
        return {}

    def features(self, p: Namespace, hw: Namespace) -> Mapping[str, Expr]:
        """How tiles are distributed over the cores, and the share of padding, besides the op's own features."""
        cores = hw.grid_x * hw.grid_y
        per_core = ceil_div(p.tiles, cores)
        elements = reduce(mul, shown(p, self.split_group).values())
        return {
            **self.sizes(p),
            **shown(p, MEMORY),
            "tiles": p.tiles,
            "log2_tiles": log2(p.tiles),
            **self.own_features(p, hw),
            "tiles_per_core": per_core,
            "core_fill": p.tiles / (per_core * cores),
            "padding": elements / (p.tiles * TILE * TILE),
            "tile_bytes": p.tiles * TILE * TILE * bytes_per_element(p.dtype),
        }


def tensor_fields(at: str, shape: tuple[str, ...], *, memory: Mapping[str, str] | None = None) -> tuple[JsonField, ...]:
    """A tensor under the key `at` (or, for `tensor`, also at the top level, as TTNN passes one), in both forms.

    `memory` maps dtype, buffer, layout and sharding to the parameters that hold them; anything not in it is ignored.
    """
    read = {name: name for name in ("dtype", "buffer", "layout", "sharding")} if memory is None else memory
    places = (f"{at}.", "") if at == "tensor" else (f"{at}.",)
    forms = {
        "dtype": ("dtype", "tensor_spec.tensor_layout.dtype"),
        "buffer": ("memory.buffer", "tensor_spec.tensor_layout.memory_config.buffer_type"),
        "sharding": ("memory.sharding", "tensor_spec.tensor_layout.memory_config.memory_layout"),
        "layout": ("layout", "tensor_spec.tensor_layout.page_config.config.index"),
    }
    found = [JsonField(_under(places, ("shape", "tensor_spec.logical_shape")), shape)]
    for name, paths in forms.items():
        known = (read[name],) if name in read else ()
        found.append(JsonField(_under(places, paths), known, NAMES[name] if known else ()))
    return (*found, JsonField(_under(places, SILENT)))


def output_fields() -> tuple[JsonField, ...]:
    """The memory of the output, in both forms."""
    found = [
        JsonField(
            (f"output.memory.{name}", f"output_memory_config.{theirs}"), (f"out_{name}",), NAMES[name], same=(name, INPUT)
        )
        for name, theirs in (("buffer", "buffer_type"), ("sharding", "memory_layout"))
    ]
    return (*found, JsonField(tuple(f"output_memory_config.{name}" for name in SHARDS)))


def one_tensor(shape: tuple[str, ...]) -> tuple[JsonField, ...]:
    """The fields of an op that takes one tensor and makes one."""
    return (*tensor_fields("tensor", shape), *output_fields())


def _under(places: tuple[str, ...], paths: tuple[str, ...]) -> tuple[str, ...]:
    # The short form is not allowed at the top level: `shape` alone would be read as a parameter's name.
    return tuple(place + path for place in places for path in paths if place or "tensor_spec" in path or path == "storage")


def _spellings(labels: Mapping[str, str], enumeration: str, numbers: Mapping[str, int]) -> tuple[tuple[str | int, str], ...]:
    found: dict[str | int, str] = {}
    for name, label in labels.items():
        found |= dict.fromkeys((name, name.upper(), f"{enumeration}.{name.upper()}"), label)
    found |= {number: labels[name] for name, number in numbers.items()}
    return tuple(found.items())


NAMES = {
    "dtype": _spellings(DTYPES, "DataType", {name: number for number, name in enumerate(DTYPES)}),
    "buffer": _spellings({name: name for name in BUFFERS}, "BufferType", BUFFERS),
    "sharding": _spellings(
        {"interleaved": "interleaved", "height_sharded": "height", "width_sharded": "width", "block_sharded": "block"},
        "TensorMemoryLayout",
        {"interleaved": 0, "height_sharded": 2, "width_sharded": 3, "block_sharded": 4},
    ),
    "layout": _spellings({name: name for name in LAYOUTS}, "Layout", LAYOUTS),
}
"""Other spellings of each label: TTNN's names and numbers."""
