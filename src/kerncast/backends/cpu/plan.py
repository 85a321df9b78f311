"""From a problem and a config to what the C driver takes: where the operands lie, which kernel, which blocks."""

from __future__ import annotations

import ctypes
from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

from kerncast.backends.cpu.codegen import C_TYPES, Item, Micro, Packer

LOOP_ORDERS = {"nkm": 0, "mkn": 1}
TILE_ORDERS = {"nm": 0, "mn": 1}
SPLITS = {"none": 0, "m": 1, "n": 2, "k": 3}
RESULTS = {"fp32": 0, "fp64": 1}


class COperand(ctypes.Structure):
    """`operand` of driver.c."""

    _fields_ = [
        ("base", ctypes.c_void_p),
        ("stride", ctypes.c_int64),
        ("batch_stride", ctypes.c_int64),
        ("width", ctypes.c_int64),
        ("rows", ctypes.c_int64),
        ("pack", ctypes.c_int64),
        ("packer", ctypes.c_void_p),
    ]


class CPlan(ctypes.Structure):
    """`plan` of driver.c."""

    _fields_ = [
        ("a", COperand),
        ("b", COperand),
        ("c", ctypes.c_void_p),
        ("micros", ctypes.POINTER(ctypes.c_void_p)),
        *((name, ctypes.c_int64) for name in ("vectors", "lanes")),
        *((name, ctypes.c_int64) for name in ("m", "n", "k", "batch", "mc", "kc", "nc")),
        *((name, ctypes.c_int64) for name in ("loop_order", "tile_order", "threads", "split")),
        *((name, ctypes.c_int64) for name in ("element_bytes", "result_bytes", "result")),
    ]


@dataclass(frozen=True)
class Geometry:
    """The product as the driver computes it.

    Kernels are vectorised along the columns of C, so a product with one column is computed as its transpose:
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

    @classmethod
    def of(cls, problem: Mapping[str, Any]) -> Geometry:
        """The geometry of a problem's values."""
        m, n, k, layout = problem["M"], problem["N"], problem["K"], problem["layout"]
        a_rows, b_rows = layout[0] == "r" or m == 1, layout[1] == "c" or n == 1
        a_stride, b_stride = k if a_rows else m, k if b_rows else n
        if n == 1:
            return cls(1, m, k, True, True, k, a_rows, a_stride)
        return cls(m, n, k, False, a_rows, a_stride, b_rows, b_stride)


def _tiles(extent: int, tile: int) -> set[int]:
    """The sizes of tile that occur along a dimension."""
    return {size for size in (tile if extent >= tile else 0, extent % tile) if size}


@dataclass(frozen=True)
class Kernels:
    """What a vector needs compiled."""

    micro: Micro
    edges: tuple[Micro, ...]
    """The kernels of the last row and column of tiles, where they are cut."""
    a_packer: Packer | None
    b_packer: Packer | None

    @classmethod
    def of(cls, geometry: Geometry, dtype: str, config: Mapping[str, Any]) -> Kernels:
        """The kernels for one config."""
        dot = config["kernel"] == "dot"
        micro = Micro(
            kind=config["kernel"],
            dtype=dtype,
            vector_bytes=config["vector_bytes"],
            mr=config["mr"],
            nv=config["nv"],
            k_unroll=config["k_unroll"],
            prefetch=config["prefetch"],
            rows=dot or (geometry.a_rows and not config["pack_a"]),
        )
        sizes = {(rows, columns) for rows in _tiles(geometry.m, micro.mr) for columns in _tiles(geometry.n, micro.nr)}
        edges = tuple(sorted({micro.edge(*size) for size in sizes} - {micro}))
        if dot:
            return cls(micro, edges, None, None)
        return cls(micro, edges, Packer(dtype, micro.mr), Packer(dtype, micro.nr))

    def items(self) -> list[Item]:
        """All of them."""
        return [item for item in (self.micro, *self.edges, self.a_packer, self.b_packer) if item is not None]


def refusal(geometry: Geometry, problem: Mapping[str, Any], config: Mapping[str, Any]) -> str | None:
    """The name of the constraint of the family without which the driver would compute nonsense, if one is broken.

    Constraints on registers and caches are about speed; whoever made the config has checked them.
    """
    if problem["dtype"] not in C_TYPES:
        return "dtype"
    if problem["split_k"] != 1:
        return "split_k"
    if config["kernel"] == "dot":
        return None if geometry.a_rows and geometry.b_rows else "dot_layout"
    return None if config["pack_b"] or not geometry.b_rows else "direct_b"


def fill(
    geometry: Geometry, kernels: Kernels, problem: Mapping[str, Any], config: Mapping[str, Any], pointers: tuple[int, int, int]
) -> CPlan:
    """The plan, functions still missing. `pointers` are those of A, B and C as the problem has them."""
    left, right = (pointers[1], pointers[0]) if geometry.swapped else pointers[:2]
    size = C_TYPES[problem["dtype"]][1]
    plan = CPlan(c=pointers[2], m=geometry.m, n=geometry.n, k=geometry.k, batch=problem["batch"])
    plan.a = COperand(
        left, geometry.a_stride, geometry.m * geometry.k, kernels.micro.mr, geometry.a_rows, bool(config["pack_a"]), None
    )
    plan.b = COperand(
        right, geometry.b_stride, geometry.n * geometry.k, kernels.micro.nr, geometry.b_rows, bool(config["pack_b"]), None
    )
    micro = kernels.micro
    plan.vectors, plan.lanes = micro.nv, micro.nr // micro.nv
    plan.mc, plan.kc, plan.nc = config["mc"], config["kc"], config["nc"]
    plan.loop_order, plan.tile_order = LOOP_ORDERS[config["loop_order"]], TILE_ORDERS[config["tile_order"]]
    plan.threads, plan.split = problem.get("threads", 1), SPLITS[config["split"]]
    plan.element_bytes = plan.result_bytes = size
    plan.result = RESULTS[problem["dtype"]]
    return plan
