"""Grouped convolutions on this CPU, in three directions: generated tiles, checked bit for bit.

The files are the pipeline: `plan` (which taps meet which pixels, and what conv.c takes), `codegen` (tiles as C text), `arrays`
(a caller's own tensors); here are the operands with their exact result, and what to try where nothing is known. On the C side
`conv.c` with `staging.h` (copies and packed weights), `gather.h` (forward and the gradient of the input) and `weight.h` (the
gradient of the weights).
"""

from __future__ import annotations

import ctypes
import hashlib
import itertools
import math
from collections.abc import Iterable, Iterator, Mapping
from typing import Any

import numpy as np

from kerncast.core.arrays import Array
from kerncast.core.expr import Program
from kerncast.core.op import Config, Problem
from kerncast.library.families.conv_tiles import LARGEST_DEPTHWISE
from kerncast.library.families.grouped_conv_cpu import DTYPES, FAMILIES
from kerncast.measuring.backends.contract import Bound, Call, OutOfMemory, Prepared
from kerncast.measuring.backends.cpu import build
from kerncast.measuring.backends.cpu.conv.arrays import CALLS, BoundConvolution, Convolution
from kerncast.measuring.backends.cpu.conv.codegen import Tile
from kerncast.measuring.backends.cpu.conv.plan import CConvPlan, ConvGeometry, ConvLayout
from kerncast.measuring.backends.cpu.inputs import NUMPY_TYPES, Arena, InputCache, Inputs, largest_value, memory_for
from kerncast.measuring.backends.cpu.machine import CpuPart, Machine, PlannedKernel

SOURCES = ("codegen.py", "conv.c", "staging.h", "gather.h", "weight.h")
# Configs are tried on small problems first: about a millisecond of arithmetic, with a minimum number of rows.
FEW_PRODUCTS, FEW_ROWS = 2**25, 4
# Configs to draw before sorting; more than there is time to try.
DRAWN = 512
SEED = 0
# Two units with a latency of four cycles: fewer sums than these wait for each other.
FULL_CHAINS = 8
# Loads that keep pace with the products, in products for each load.
FULL_LOADS = 1.2
# The cost of a call, in nanoseconds of arithmetic.
CALL_NS = 8.0
# The cost of a read from beyond a cache, relative to a read from it.
BEYOND_CACHE = 1.15
NEEDED = (
    "chains", "fma_per_load", "log2_calls", "log2_compute_and_moved_ns", "log2_compute_ns", "strip_l1", "block_l2",
)  # fmt: skip
# What is read and made, in the order of `Inputs`.
TENSORS = {
    "forward": ("input", "weights", "output"),
    "bwd_data": ("output", "weights", "input"),
    "bwd_weight": ("input", "output", "weights"),
}
AXES = "dhw"


class ConvPart(CpuPart):
    """Runs `grouped_conv_*/cpu`."""

    families = tuple(family.id for family in FAMILIES)
    calls = CALLS
    driver = "conv/conv"
    symbols = ("kc_conv_reserve", "kc_conv_run")
    plan_type = CConvPlan

    def __init__(self, machine: Machine) -> None:
        super().__init__(machine)
        self.inputs = InputCache(make_tensors)

    def digest(self) -> str:
        hasher = hashlib.blake2b((build.SOURCES / "kernels.h").read_bytes(), digest_size=8)
        for name in SOURCES:
            hasher.update((build.SOURCES / "conv" / name).read_bytes())
        return hasher.hexdigest()

    def kernels(self, problem: Problem, config: Config) -> Iterable[Tile]:
        return self._layout(problem, config).tiles.values()

    def prepare(self, problem: Problem, config: Config) -> Prepared:
        layout = self._layout(problem, config)
        plan = self.plan(layout)
        inputs = self.inputs.get(problem.as_dict(), layout.g.direction)
        plan.source, plan.other, plan.result = inputs.pointers
        return PlannedKernel(self.functions[1], plan, inputs)

    def bind(self, call: Call, problem: Problem, config: Config) -> Bound:
        assert isinstance(call, Convolution)
        # Build all missing kernels in one compilation. `prepare` does not: its caller uses `compile` for a whole chunk.
        self.compile([(problem, config)])
        plan, run = self.plan(self._layout(problem, config)), self.functions[1]
        place = ctypes.byref(plan)

        def launch(source: int, other: int, result: int) -> None:
            plan.source, plan.other, plan.result = source, other, result
            run(place, 1)

        return BoundConvolution(call, launch)

    def plan(self, layout: ConvLayout) -> CConvPlan:
        """A plan with its functions and memory, but no operands yet: `source`, `other` and `result` are pointers to set."""
        plan, nv = layout.plan(), layout.config["nv"]
        table = (ctypes.c_void_p * (layout.config["mr"] * nv))()
        for (rows, vectors), tile in layout.tiles.items():
            table[(rows - 1) * nv + vectors - 1] = self.library.function(tile, tile.name)
        plan.tiles = ctypes.cast(table, ctypes.POINTER(ctypes.c_void_p))
        if self.functions[0](ctypes.byref(plan)):
            raise OutOfMemory(f"no memory for the {plan.bytes / 1e6:.0f} MB in which operands are staged")
        return plan

    def first_configs(self, problem: Problem) -> Iterator[Config]:
        """Those that the family's own features expect to be fast."""
        import polars as pl  # a worker has no use for it

        family = problem.family
        assert family is not None
        known = family.bindings(problem, self.machine.profile)
        drawn = family.config.sample(DRAWN, SEED, known)
        features = family.features_on(self.machine.profile, [problem.dtype]).program.outputs
        bound = Program({name: features[name] for name in NEEDED}).bind(known)
        seen = bound.frame(drawn.rename({name: f"c.{name}" for name in drawn.columns}))
        compute = 2 ** pl.col("log2_compute_ns")
        moved = 2 ** pl.col("log2_compute_and_moved_ns") - compute
        kept = pl.min_horizontal(pl.col("chains") / FULL_CHAINS, pl.col("fma_per_load") / FULL_LOADS, 1.0)
        beyond = pl.when((pl.col("strip_l1") > 1) | (pl.col("block_l2") > 1)).then(BEYOND_CACHE).otherwise(1.0)
        cost = compute / kept * beyond + moved + CALL_NS * 2 ** pl.col("log2_calls")
        order = seen.select(cost.arg_sort()).to_series()
        return (Config.trusted(family, row) for row in drawn[order].iter_rows(named=True))

    def smaller(self, problem: Problem) -> Problem:
        """One image with few rows, to be quick; configs differ in how they treat channels and the width of a row."""
        values: Mapping[str, Any] = problem.as_dict()
        sizes = {"N": 1, "Di": problem.Di, "Hi": problem.Hi}
        for name, axis, taps in (("Di", "d", "Z"), ("Hi", "h", "Y")):
            reach = (values[taps] - 1) * values[f"dilation_{axis}"] + 1
            least = reach + (FEW_ROWS - 1) * values[f"stride_{axis}"]
            while _products({**values, **sizes}) > FEW_PRODUCTS and sizes[name] > least:
                sizes[name] = max(least, sizes[name] // 2)
        assert problem.family is not None
        return Problem.trusted(problem.family, {**values, **sizes}) if _products(values) > FEW_PRODUCTS else problem

    def _layout(self, problem: Problem, config: Config) -> ConvLayout:
        """The config on the problem, or why this machine cannot run it."""
        direction = config.family.id.removeprefix("grouped_conv_").removesuffix("/cpu")
        channels = (problem.K if direction == "bwd_data" else problem.C) // problem.G
        # The constraints of the family without which the C side would compute nonsense.
        rules = {
            "dtype": problem.dtype not in DTYPES,
            "one_thread": problem.as_dict().get("threads", 1) != 1,
            "small_group": config.kernel == "depthwise" and channels > LARGEST_DEPTHWISE,
        }
        self.refuse(config, next((name for name, broken in rules.items() if broken), None))
        return ConvLayout(ConvGeometry.of(direction, problem.as_dict()), problem.dtype, config.as_dict())


def _products(values: Mapping[str, Any]) -> int:
    outputs = math.prod(shapes(values)["output"])
    return int(outputs * values["C"] // values["G"] * values["Z"] * values["Y"] * values["X"])


# -- operands --------------------------------------------------------------------------------------------


def shapes(p: Mapping[str, Any]) -> dict[str, tuple[int, ...]]:
    """How each tensor of a problem is stored."""
    size, taps = (p["Di"], p["Hi"], p["Wi"]), (p["Z"], p["Y"], p["X"])
    made = tuple(
        (i + 2 * p[f"pad_{axis}"] - (t - 1) * p[f"dilation_{axis}"] - 1) // p[f"stride_{axis}"] + 1
        for i, t, axis in zip(size, taps, AXES, strict=True)
    )
    inner = p["C"] // p["G"]
    if p["layout"] == "nhwc":
        return {"input": (p["N"], *size, p["C"]), "weights": (p["K"], *taps, inner), "output": (p["N"], *made, p["K"])}
    return {"input": (p["N"], p["C"], *size), "weights": (p["K"], inner, *taps), "output": (p["N"], p["K"], *made)}


def reference(direction: str, p: Mapping[str, Any], first: Array, second: Array) -> Array:
    """What a direction makes of its two operands, tap by tap, each a product of matrices for every group."""
    known = shapes(p)
    source, other, made = TENSORS[direction]
    tensors = {source: first, other: second, made: np.zeros(known[made], first.dtype)}
    last = {name: tensor if p["layout"] == "nhwc" else np.moveaxis(tensor, 1, -1) for name, tensor in tensors.items()}
    groups, pads = p["G"], [p[f"pad_{axis}"] for axis in AXES]
    image = np.pad(last["input"], [(0, 0), *((pad, pad) for pad in pads), (0, 0)])
    image = image.reshape(*image.shape[:-1], groups, -1)
    output = last["output"].shape[:-1]
    # Groups first, then rows of pixels and columns of channels.
    made_rows = np.ascontiguousarray(np.moveaxis(last["output"].reshape(-1, groups, p["K"] // groups), 1, 0))
    weights = last["weights"].reshape(groups, p["K"] // groups, *last["weights"].shape[1:])
    found = np.zeros_like(weights)
    for tap in itertools.product(*(range(p[name]) for name in "ZYX")):
        place = tuple(
            slice(
                t * p[f"dilation_{axis}"],
                t * p[f"dilation_{axis}"] + (count - 1) * p[f"stride_{axis}"] + 1,
                p[f"stride_{axis}"],
            )
            for t, axis, count in zip(tap, AXES, output[1:], strict=True)
        )
        window = image[(slice(None), *place)]
        rows = np.ascontiguousarray(np.moveaxis(window.reshape(-1, groups, p["C"] // groups), 1, 0))
        at: tuple[slice | int, ...] = (slice(None), slice(None), *tap)
        part = np.ascontiguousarray(weights[at])
        if direction == "forward":
            made_rows += rows @ part.transpose(0, 2, 1)
        elif direction == "bwd_data":
            window += np.moveaxis(made_rows @ part, 0, 1).reshape(window.shape)
        else:
            found[at] = made_rows.transpose(0, 2, 1) @ rows
    if direction == "forward":
        result = np.moveaxis(made_rows, 0, 1).reshape(last["output"].shape)
    elif direction == "bwd_data":
        inside = tuple(slice(pad, pad + size) for pad, size in zip(pads, last["input"].shape[1:-1], strict=True))
        result = image[(slice(None), *inside)].reshape(last["input"].shape)
    else:
        result = found.reshape(last["weights"].shape)
    return np.ascontiguousarray(result if p["layout"] == "nhwc" else np.moveaxis(result, -1, 1))


def make_tensors(p: Mapping[str, Any], direction: str) -> Inputs:
    """The operands of a problem: always the same for the same problem."""
    known, dtype = shapes(p), np.dtype(NUMPY_TYPES[p["dtype"]])
    counts = {name: int(np.prod(shape, dtype=np.int64)) for name, shape in known.items()}
    # Besides the operands: whole numbers, copies with a border, copies by groups, and the product of a tap.
    needed = dtype.itemsize * (4 * counts["input"] + 4 * counts["output"] + 3 * counts["weights"])
    key = (direction, *(value for name, value in p.items() if name not in ("dtype", "threads")))
    seed = hashlib.blake2b(repr(key).encode(), digest_size=8).digest()
    rng = np.random.default_rng(int.from_bytes(seed, "little"))
    taps = p["Z"] * p["Y"] * p["X"]
    summed = {
        "forward": p["C"] // p["G"] * taps,
        "bwd_data": p["K"] // p["G"] * taps,
        "bwd_weight": counts["output"] // p["K"],
    }[direction]
    bound = largest_value(p["dtype"], summed)
    names = TENSORS[direction]
    with memory_for(needed, "tensors"):
        sizes = [counts[name] * dtype.itemsize for name in names]
        arena = Arena(sizes[:2], sizes[2], sizes[2:])
        first, second = (arena.operand(known[name], dtype) for name in names[:2])
        result = arena.result(known[names[2]], dtype)
        for operand in (first, second):
            operand[...] = rng.integers(-bound, bound + 1, operand.shape, np.int8)
        made = Inputs(first, second, result, arena.keep(reference(direction, p, first, second)), arena)
        arena.seal()
        return made
