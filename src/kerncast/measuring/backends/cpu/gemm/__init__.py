"""The product of matrices on this CPU: generated kernels for fp32, fp64, bf16 and int8, checked bit for bit."""

from __future__ import annotations

import ctypes
import hashlib
import math
from collections.abc import Iterable, Iterator, Mapping
from functools import partial
from typing import Any

import numpy as np

from kerncast.core.arrays import Array
from kerncast.core.op import Config, Problem
from kerncast.library.families.gemm_cpu import WEIGHTS, config_set, gemm_cpu
from kerncast.library.ops.gemm import PACKED
from kerncast.measuring.backends.contract import Bound, Call, OutOfMemory, Prepared, Unsupported
from kerncast.measuring.backends.cpu import build
from kerncast.measuring.backends.cpu.build import Library
from kerncast.measuring.backends.cpu.gemm.arrays import BoundProduct, MatrixProduct
from kerncast.measuring.backends.cpu.gemm.codegen import Item
from kerncast.measuring.backends.cpu.gemm.plan import CProductPlan, Pointers, ProductGeometry, ProductKernels, fill, refusal
from kerncast.measuring.backends.cpu.inputs import (
    NAN_BF16,
    NUMPY_TYPES,
    OUTPUT_TYPES,
    Arena,
    InputCache,
    Inputs,
    largest_value,
    memory_for,
    to_bf16,
)
from kerncast.measuring.backends.cpu.machine import CpuPart, Machine, PlannedKernel

# Configs are tried on small problems first: sides beyond FEW become one of a few lengths. Most tiles divide those of M and N,
# so that few edge kernels are compiled. That of K is a power of two, at which rows compete for the same cache sets, as they
# do in most networks. The longer ones make matrices larger than any L2 with little to compute.
FEW, THIN = 64, 16
SMALL_SIDES, SMALL_SIDES_THIN = {"M": 120, "N": 960, "K": 1024}, {"M": 1920, "N": 1920, "K": 2048}
# kc_reserve's answer when tile registers are refused.
NO_TILES = -2
# The type in which numpy's product of the inputs is exact.
EXACT_TYPES = {"fp32": np.float32, "fp64": np.float64, "bf16": np.float32, "int8": np.float64}
# Smooth activations are computed by series, and a bf16 may then be rounded to its neighbour.
SMOOTH_ROUNDING = {"fp32": 2e-6, "fp64": 1e-13, "bf16": 2**-7}
# From this many rows on, copying both operands into strips pays. Below, B is read about once, and a copy doubles that.
MANY_ROWS = 32
UNLIKELY, LESS_LIKELY = 0.5, 0.75
# Depth of a block: shorter ones pass over C too often, longer ones leave L1. Dot products keep nothing there.
GOOD_DEPTH, GOOD_DEPTH_DOT = (128, 512), (512, 2048)


class GemmPart(CpuPart):
    """Runs `gemm/cpu`."""

    families = ("gemm/cpu",)
    calls = {"gemm/cpu": MatrixProduct}
    driver = "driver"
    symbols = ("kc_reserve", "kc_run")
    plan_type = CProductPlan

    def __init__(self, machine: Machine) -> None:
        super().__init__(machine)
        self.inputs = InputCache(make_matrices)

    @property
    def library(self) -> Library:
        return self.machine.library

    def digest(self) -> str:
        return build.source_digest()

    def kernels(self, problem: Problem, config: Config) -> Iterable[Item]:
        return ProductKernels.of(self._geometry(problem, config), problem.dtype, config.as_dict()).items()

    def prepare(self, problem: Problem, config: Config) -> Prepared:
        geometry, inputs = self._geometry(problem, config), self.inputs.get(problem.as_dict())
        plan = self._plan(geometry, problem, config, (*inputs.pointers, inputs.bias_pointer))
        return PlannedKernel(self.functions[1], plan, inputs)

    def bind(self, call: Call, problem: Problem, config: Config) -> Bound:
        assert isinstance(call, MatrixProduct)
        geometry = self._geometry(problem, config)
        # Build all missing kernels in one compilation. `prepare` does not: its caller uses `compile` for a whole chunk.
        self.compile([(problem, config)])
        plan = self._plan(geometry, problem, config, (0, 0, 0, 0))
        return BoundProduct(call, plan, geometry.swapped, self.functions[1], partial(self._reserve, plan))

    def first_configs(self, problem: Problem) -> Iterator[Config]:
        """Those that a textbook would choose, from the family's quick set."""
        rows = 1 if problem.N == 1 else problem.M
        found = config_set("quick", problem.as_dict(), self.machine.profile).to_dicts()
        found.sort(key=lambda config: -_promise(config, rows))
        return (Config.trusted(gemm_cpu, config) for config in found)

    def smaller(self, problem: Problem) -> Problem:
        """One of a few dozen typical problems: small sides become the next power of two, others one of a few lengths."""
        given = {"M": problem.M, "N": problem.N, "K": problem.K}
        lengths = SMALL_SIDES_THIN if min(problem.M, problem.N) <= THIN else SMALL_SIDES
        sides = {name: 1 << (side - 1).bit_length() if side <= FEW else lengths[name] for name, side in given.items()}
        if math.prod(given.values()) <= math.prod(sides.values()):
            return problem
        packed = dict.fromkeys(PACKED)
        return Problem.trusted(gemm_cpu, {**problem.as_dict(), **sides, "batch": 1, **packed})

    def _plan(self, geometry: ProductGeometry, problem: Problem, config: Config, pointers: Pointers) -> CProductPlan:
        """The plan with its functions, memory and threads. It keeps the table of micro-kernels alive, as ctypes does."""
        kernels = ProductKernels.of(geometry, problem.dtype, config.as_dict())
        plan = fill(geometry, kernels, problem.as_dict(), config.as_dict(), pointers)
        whole = kernels.micro
        table = (ctypes.c_void_p * (whole.mr * whole.nv))()
        for micro in (whole, *kernels.edges):
            table[(micro.mr - 1) * whole.nv + micro.nv - 1] = self.library.function(micro, micro.name)
        plan.micros = ctypes.cast(table, ctypes.POINTER(ctypes.c_void_p))
        for operand, packer in ((plan.a, kernels.a_packer), (plan.b, kernels.b_packer)):
            if packer is not None:
                operand.packer = self.library.function(packer, packer.symbol(bool(operand.rows)))
        self._reserve(plan)
        return plan

    def _reserve(self, plan: CProductPlan) -> None:
        refused = self.functions[0](ctypes.byref(plan))
        if refused == NO_TILES:
            raise Unsupported("the kernel does not grant this process the tile registers of AMX")
        if refused:
            sizes = f"{plan.batch} × {plan.m} × {plan.n} × {plan.k}"
            raise OutOfMemory(f"no memory or no threads for a product of {sizes} on {plan.threads} threads")

    def _geometry(self, problem: Problem, config: Config) -> ProductGeometry:
        """The product as the driver computes it, if this machine can run it."""
        geometry = ProductGeometry.of(problem.as_dict())
        probe, kernel, dtype = self.library.probe, config.kernel, problem.dtype
        # What a kernel needs that the CPU (or the compiler) may lack.
        needed = {
            "AMX": kernel == "amx" and probe.kc_tile_rows() == 1,
            "AVX512-BF16": kernel == "pairs" and dtype == "bf16" and probe.kc_bf16_group() == 1,
            "VNNI": kernel == "quads" and probe.kc_int8_group() == 1,
        }
        missing = next((name for name, lacks in needed.items() if lacks), None)
        lacking = f"{kernel} kernels for {dtype} need {missing}, which this CPU does not have" if missing else None
        self.refuse(config, refusal(geometry, problem.as_dict(), config.as_dict()), lacking)
        return geometry


def _promise(config: Mapping[str, Any], rows: int) -> float:
    mr, nv = min(config["mr"], rows), config["nv"]
    promise: float = mr * nv / (mr + nv) * config["vector_bytes"] * WEIGHTS["kernel"][config["kernel"]]
    many = rows >= MANY_ROWS
    if config["kernel"] == "outer":
        promise *= (1.0 if config["pack_b"] == many else UNLIKELY) * (1.0 if config["pack_a"] == many else UNLIKELY)
    elif config["kernel"] == "dot":
        promise *= LESS_LIKELY if many else 1.0
    shallow, deep = GOOD_DEPTH_DOT if config["kernel"] == "dot" else GOOD_DEPTH
    if not shallow <= config["kc"] <= deep:
        promise *= UNLIKELY
    return promise * (UNLIKELY if config["mr"] > rows else 1.0)


# -- inputs ----------------------------------------------------------------------------------------------


def make_matrices(problem: Mapping[str, Any]) -> Inputs:
    """The inputs of a problem: always the same for the same problem."""
    m, n, k, batch, layout = (problem[name] for name in ("M", "N", "K", "batch", "layout"))
    name = problem["dtype"]
    dtype, output, exact = (np.dtype(types[name]) for types in (NUMPY_TYPES, OUTPUT_TYPES, EXACT_TYPES))
    # While they are made, one more copy of the inputs as whole numbers, and for narrow types one to multiply.
    widened = 0 if exact == dtype else exact.itemsize
    by_rows = {"a": layout[0] == "r", "b": layout[1] == "r"}
    rows = {"a": m if by_rows["a"] else k, "b": k if by_rows["b"] else n, "c": m}
    row = {"a": k if by_rows["a"] else m, "b": n if by_rows["b"] else k, "c": n}
    apart = {matrix: problem.get(f"ld{matrix}") or length for matrix, length in row.items()}
    stored = {matrix: batch * rows[matrix] * apart[matrix] for matrix in rows}
    needed = (stored["a"] + stored["b"]) * dtype.itemsize + batch * (m * k + k * n) * (1 + widened)
    needed += stored["c"] * output.itemsize + batch * m * n * (output.itemsize + 2 * widened)
    seed = hashlib.blake2b(repr((m, n, k, batch, layout)).encode(), digest_size=8).digest()
    rng = np.random.default_rng(int.from_bytes(seed, "little"))
    bound = largest_value(name, k)

    def drawn(shape: tuple[int, ...]) -> Array:
        return rng.integers(-bound, min(bound, 127) + 1, shape, np.int8)

    def matrix(which: str) -> tuple[Array, Array]:
        whole = arena.operand((batch, rows[which], apart[which]), dtype)
        # Where a kernel reads what lies between the rows, its sums become nonsense.
        whole[..., row[which] :] = np.nan if dtype.kind == "f" else NAN_BF16 if name == "bf16" else 127
        values = drawn((batch, rows[which], row[which]))
        used = whole[..., : row[which]]
        used[...] = to_bf16(values.astype(np.float32)) if name == "bf16" else values
        numbers = used if exact == dtype else values.astype(exact)
        return whole, numbers if by_rows[which] else numbers.transpose(0, 2, 1)

    with memory_for(needed, "matrices"):
        sizes = [stored["a"] * dtype.itemsize, stored["b"] * dtype.itemsize]
        kept = [batch * m * n * output.itemsize, n * output.itemsize]
        arena = Arena(sizes, stored["c"] * output.itemsize, kept)
        (a, a_numbers), (b, b_numbers) = matrix("a"), matrix("b")
        whole_c = arena.result((batch, m, apart["c"]), output)
        sums = np.matmul(a_numbers, b_numbers)
        bias = drawn((n,)).astype(exact) if problem.get("bias") else None
        wanted = finished(sums, bias, problem.get("activation"))
        made = Inputs(
            a,
            b,
            whole_c[..., :n],
            arena.keep(to_bf16(wanted.astype(np.float32, copy=False)) if name == "bf16" else wanted.astype(output, copy=False)),
            arena,
            None if bias is None else arena.keep(to_bf16(bias) if name == "bf16" else bias.astype(output)),
            whole_c[..., n:] if apart["c"] > n else None,
            0.0 if problem.get("activation") in (None, "relu") else SMOOTH_ROUNDING[name],
        )
        arena.seal()
        return made


def finished(sums: Array, bias: Array | None, activation: str | None) -> Array:
    """Sums after the epilogue; of a smooth activation, computed in fp64."""
    values = sums if bias is None else sums + bias
    if activation == "relu":
        return np.maximum(values, 0)
    if activation is None:
        return values
    # The sums are whole numbers, so few are different.
    whole, place = np.unique(values.astype(np.float64), return_inverse=True)
    if activation == "silu":
        smooth = whole / (1 + np.exp(np.minimum(-whole, 700.0)))
    else:
        smooth = np.array([0.5 * x * math.erfc(-x * math.sqrt(0.5)) for x in whole.tolist()])
    found: Array = smooth[place].reshape(values.shape)
    return found
