"""From a problem and a config to what the C driver takes: where the operands are, which kernel, which blocks."""

from __future__ import annotations

import ctypes
from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

from kerncast.measuring.backends.cpu.gemm.codegen import C_TYPES, GROUPS, SUMS, Item, Micro, Packer

# Where A, B, C and the bias begin, as the problem has them; 0: there is none.
Pointers = tuple[int, int, int, int]

LOOP_ORDERS = {"nkm": 0, "mkn": 1}
TILE_ORDERS = {"nm": 0, "mn": 1}
SPLITS = {"none": 0, "m": 1, "n": 2, "k": 3}
RESULTS = {"fp32": 0, "fp64": 1, "bf16": 2, "int32": 3}
# What C holds: bf16 is rounded once from sums in fp32; sums of int8 are left as they are.
OUTPUTS = {"fp32": "fp32", "fp64": "fp64", "bf16": "bf16", "int8": "int32"}
ACTIVATIONS = {None: 0, "relu": 1, "gelu": 2, "silu": 3}


class COperand(ctypes.Structure):
    """`operand` of driver.c."""

    _fields_ = [
        ("base", ctypes.c_void_p),
        ("stride", ctypes.c_int64),
        ("batch_stride", ctypes.c_int64),
        ("width", ctypes.c_int64),
        ("rows", ctypes.c_int64),
        ("pack", ctypes.c_int64),
        ("along", ctypes.c_int64),
        ("packer", ctypes.c_void_p),
    ]


class CEpilogue(ctypes.Structure):
    """`epilogue` of epilogue.h."""

    _fields_ = [("bias", ctypes.c_void_p), ("bias_stride", ctypes.c_int64), ("activation", ctypes.c_int64)]


class CProductPlan(ctypes.Structure):
    """`plan` of driver.c."""

    _fields_ = [
        ("a", COperand),
        ("b", COperand),
        ("c", ctypes.c_void_p),
        ("micros", ctypes.POINTER(ctypes.c_void_p)),
        *((name, ctypes.c_int64) for name in ("vectors", "lanes", "row_unit", "group", "k_unit")),
        *((name, ctypes.c_int64) for name in ("m", "n", "k", "batch", "mc", "kc", "nc")),
        *((name, ctypes.c_int64) for name in ("loop_order", "tile_order", "threads", "split")),
        *((name, ctypes.c_int64) for name in ("element_bytes", "cell_bytes", "sum_bytes", "result_bytes", "result")),
        *((name, ctypes.c_int64) for name in ("c_stride", "c_batch_stride")),
        ("after", CEpilogue),
    ]


@dataclass(frozen=True)
class ProductGeometry:
    """The product as the driver computes it; strides in elements.

    ProductKernels are vectorised along the columns of C, so a product with one column is computed as its transpose:
    C is a vector either way, A and B change places.
    """

    m: int
    n: int
    k: int
    swapped: bool
    a_rows: bool
    """The left operand is contiguous along K."""
    a_stride: int
    b_rows: bool
    """The right operand is contiguous along K."""
    b_stride: int
    c_stride: int

    @classmethod
    def of(cls, problem: Mapping[str, Any]) -> ProductGeometry:
        """The geometry of a problem's values."""
        m, n, k, layout = problem["M"], problem["N"], problem["K"], problem["layout"]
        a_rows, b_rows = layout[0] == "r" or m == 1, layout[1] == "c" or n == 1
        a_stride, b_stride = k if a_rows else m, k if b_rows else n
        if n == 1:
            return cls(1, m, k, True, True, problem.get("ldb") or k, a_rows, problem.get("lda") or a_stride, m)
        leading = problem.get("lda") or a_stride, problem.get("ldb") or b_stride, problem.get("ldc") or n
        return cls(m, n, k, False, a_rows, leading[0], b_rows, leading[1], leading[2])

    def batch_strides(self) -> tuple[int, int, int]:
        """From one product of a batch to the next: the stored rows (columns) of the operands and of C follow each other."""
        a, b = self.m if self.a_rows else self.k, self.n if self.b_rows else self.k
        return a * self.a_stride, b * self.b_stride, self.m * self.c_stride


def _tiles(extent: int, tile: int) -> set[int]:
    """The sizes of tile that occur along a dimension."""
    return {size for size in (tile if extent >= tile else 0, extent % tile) if size}


def packs(geometry: ProductGeometry, config: Mapping[str, Any]) -> tuple[bool, bool]:
    """Whether A and B are packed: outer kernels as the config says, dot where they have to be, grouped ones always."""
    if config["kernel"] == "outer":
        return bool(config["pack_a"]), bool(config["pack_b"])
    if config["kernel"] == "dot":
        return not geometry.a_rows, not geometry.b_rows
    return True, True


def _forms(kind: str, dtype: str, pack_a: bool, pack_b: bool) -> tuple[str, str]:
    """The forms to which strips of A and B are packed (see packing.h); unpacked, B's last columns are copied as they are."""
    if kind == "amx":
        return f"{dtype}_lines", f"{dtype}_{'pairs' if dtype == 'bf16' else 'quads'}"
    if kind == "quads":
        return f"{dtype}_unsigned", f"{dtype}_quads"
    if kind == "pairs":
        return f"{dtype}_pairs", f"{dtype}_pairs"
    wide = dtype if SUMS[dtype] == dtype else f"{dtype}_{SUMS[dtype]}"
    return wide if pack_a else dtype, wide if pack_b else dtype


@dataclass(frozen=True)
class ProductKernels:
    """What a vector needs compiled."""

    micro: Micro
    edges: tuple[Micro, ...]
    """The kernels of the last row and column of tiles, where they are cut."""
    a_packer: Packer | None
    b_packer: Packer | None

    @classmethod
    def of(cls, geometry: ProductGeometry, dtype: str, config: Mapping[str, Any]) -> ProductKernels:
        """The kernels for one config."""
        kind = config["kernel"]
        grouped = (kind, dtype) in GROUPS
        pack_a, pack_b = packs(geometry, config)
        narrow = dtype if SUMS[dtype] != dtype and not grouped else ""
        micro = Micro(
            kind=kind,
            dtype=dtype if grouped else SUMS[dtype],
            vector_bytes=config["vector_bytes"],
            mr=config["mr"],
            nv=config["nv"],
            k_unroll=config["k_unroll"],
            prefetch=config["prefetch"],
            rows=kind == "dot" or (geometry.a_rows and not pack_a),
            a="" if pack_a and kind != "dot" else narrow,
            b="" if pack_b and kind != "dot" else narrow,
        )
        sizes = {(rows, columns) for rows in _tiles(geometry.m, micro.height) for columns in _tiles(geometry.n, micro.nr)}
        edges = tuple(sorted({micro.edge(*size) for size in sizes} - {micro}))
        if kind == "dot":
            form = f"{dtype}_along"
            return cls(micro, edges, Packer(form, micro.mr) if pack_a else None, Packer(form, micro.nr) if pack_b else None)
        a_form, b_form = _forms(kind, dtype, pack_a, pack_b)
        tiles = kind == "amx"
        return cls(micro, edges, Packer(a_form, micro.height), Packer(b_form, micro.nr, tiles))

    def items(self) -> list[Item]:
        """All of them."""
        return [item for item in (self.micro, *self.edges, self.a_packer, self.b_packer) if item is not None]


def gaps_in_vector(problem: Mapping[str, Any]) -> bool:
    """Whether a matrix of one row or column has gaps between its elements."""
    layout, one_row, one_column = problem["layout"], problem["M"] == 1, problem["N"] == 1
    gaps = (one_row and layout[0] == "c", "lda"), (one_column and layout[1] == "r", "ldb"), (one_column, "ldc")
    return any(vector and problem.get(name) is not None for vector, name in gaps)


def refusal(geometry: ProductGeometry, problem: Mapping[str, Any], config: Mapping[str, Any]) -> str | None:
    """The name of the constraint of the family without which the driver would compute nonsense, if one is broken.

    Constraints on registers and caches are about speed; they were checked when the config was made.
    """
    if problem["dtype"] not in SUMS:
        return "dtype"
    if problem["split_k"] != 1:
        return "split_k"
    if gaps_in_vector(problem):
        return "vectors"
    if problem["dtype"] == "int8" and problem.get("activation") not in (None, "relu"):
        return "int8_activation"
    if config["kernel"] not in ("outer", "dot"):
        return None if (config["kernel"], problem["dtype"]) in GROUPS else "kernel_dtype"
    if config["kernel"] == "dot":
        return None
    return None if config["pack_b"] or not geometry.b_rows else "direct_b"


def fill(
    geometry: ProductGeometry, kernels: ProductKernels, problem: Mapping[str, Any], config: Mapping[str, Any], at: Pointers
) -> CProductPlan:
    """The plan without its functions."""
    left, right = (at[1], at[0]) if geometry.swapped else at[:2]
    plan = CProductPlan(c=at[2], m=geometry.m, n=geometry.n, k=geometry.k, batch=problem["batch"])
    micro, (pack_a, pack_b), dot = kernels.micro, packs(geometry, config), config["kernel"] == "dot"
    a_apart, b_apart, plan.c_batch_stride = geometry.batch_strides()
    plan.a = COperand(left, geometry.a_stride, a_apart, micro.height, geometry.a_rows, pack_a, dot)
    plan.b = COperand(right, geometry.b_stride, b_apart, micro.nr, geometry.b_rows, pack_b, dot)
    plan.c_stride = geometry.c_stride
    # The transpose of a product with one column has one row, all of whose columns get the one element of the bias.
    plan.after = CEpilogue(at[3], 0 if geometry.swapped else 1, ACTIVATIONS[problem.get("activation")])
    plan.vectors, plan.lanes, plan.row_unit = micro.nv, micro.nr // micro.nv, micro.row_unit
    plan.group, plan.k_unit = micro.group, micro.k_unit
    plan.mc, plan.kc, plan.nc = config["mc"], config["kc"], config["nc"]
    plan.loop_order, plan.tile_order = LOOP_ORDERS[config["loop_order"]], TILE_ORDERS[config["tile_order"]]
    plan.threads, plan.split = problem.get("threads", 1), SPLITS[config["split"]]
    output = OUTPUTS[problem["dtype"]]
    plan.element_bytes, plan.result_bytes = C_TYPES[problem["dtype"]][1], C_TYPES[output][1]
    plan.sum_bytes = C_TYPES[micro.sums][1]
    plan.cell_bytes = plan.element_bytes if dot else plan.sum_bytes
    plan.result = RESULTS[output]
    return plan
