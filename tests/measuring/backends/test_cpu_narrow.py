"""bf16 and int8 on the cpu backend: what this CPU runs is checked bit for bit, what it cannot run is emulated and compiled."""

import os
import subprocess
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
import polars as pl
import pytest

from kerncast.core.device import Device
from kerncast.core.op import Config, Problem
from kerncast.errors import InvalidValue
from kerncast.library import devices
from kerncast.library.devices import product_numbers
from kerncast.library.families.gemm_cpu import config_set, gemm_cpu
from kerncast.measuring.backends.contract import Unsupported
from kerncast.measuring.backends.cpu import CpuBackend, build
from kerncast.measuring.backends.cpu.build import Library, translation_unit
from kerncast.measuring.backends.cpu.gemm.codegen import GROUPS, Item, Micro, Packer
from kerncast.measuring.backends.cpu.inputs import as_float, to_bf16
from kerncast.testing.exported import EACH_COMPILER

LAYOUTS = ("rcr", "rrr", "crr", "ccr")
SPLITS = ("none", "m", "n", "k")
SHAPES = [(1, 1, 1), (1, 37, 19), (53, 1, 23), (13, 31, 127), (29, 41, 301)]
BASE: dict[str, Any] = {
    "kernel": "outer", "vector_bytes": 16, "mr": 4, "nv": 2, "k_unroll": 2, "prefetch": 0, "pack_a": True, "pack_b": True,
    "mc": 24, "kc": 64, "nc": 64, "loop_order": "nkm", "tile_order": "nm", "split": "none",
}  # fmt: skip
PACKED = {"pack_a": None, "pack_b": None}
KERNELS: list[dict[str, Any]] = [
    {},
    {"pack_a": False, "mr": 3, "nv": 3, "prefetch": 8},
    {"pack_b": False, "mr": 5, "nv": 2, "kc": 2048},
    {"pack_a": False, "pack_b": False, "mr": 2, "nv": 4, "loop_order": "mkn", "tile_order": "mn"},
    {"kernel": "dot", **PACKED, "mr": 2, "nv": 3, "prefetch": 8},
    {"kernel": "pairs", **PACKED, "mr": 3, "nv": 3, "prefetch": 8},
    {"kernel": "pairs", **PACKED, "mr": 6, "nv": 1, "kc": 2048, "loop_order": "mkn"},
]
FOREIGN: list[dict[str, Any]] = [
    {"kernel": "pairs", **PACKED, "vector_bytes": 64, "mr": 3, "nv": 2},
    {"kernel": "quads", **PACKED, "vector_bytes": 64, "mr": 2, "nv": 2},
    {"kernel": "quads", **PACKED, "mr": 3, "nv": 4, "kc": 2048},
    {"kernel": "amx", **PACKED, "vector_bytes": 64, "mr": 1, "nv": 2, "k_unroll": 1},
    {"kernel": "amx", **PACKED, "vector_bytes": 64, "mr": 2, "nv": 1, "k_unroll": 1, "mc": 48, "kc": 128},
]
WIDEST = {"vector_bytes": 64.0, "bf16_group": 2.0, "int8_group": 4.0, "matrix_tile_rows": 16.0}


@pytest.fixture(scope="module")
def backend() -> CpuBackend:
    """The backend as it is here."""
    return CpuBackend()


@pytest.fixture(scope="module")
def emulating() -> CpuBackend:
    """The backend with every instruction that this CPU may lack in plain C."""
    made = CpuBackend()
    flags = tuple("-O1" if flag == "-O2" else flag for flag in made.compiler.flags)
    made.library = Library(replace(made.compiler, flags=(*flags, "-DKC_EMULATE")))
    return made


def problem(m: int, n: int, k: int, dtype: str, layout: str = "rrr", **more: Any) -> Problem:
    return Problem(gemm_cpu, {"M": m, "N": n, "K": k, "dtype": dtype, "layout": layout, **more})


def config(**changes: Any) -> Config:
    return Config(gemm_cpu, {name: value for name, value in {**BASE, **changes}.items() if value is not None})


def widest() -> Device:
    """This machine, if it had everything."""
    local = devices.local()
    return replace(local, numbers={**local.numbers, **WIDEST})


def vectors(kernels: list[dict[str, Any]], dtype: str, device: Device, shapes: list[tuple[int, int, int]]) -> list[Any]:
    """All layouts, one and two threads, each split; what the family calls invalid left out."""
    found = []
    for at, (m, n, k) in enumerate(shapes):
        for layout in LAYOUTS:
            for threads, splits in ((1, ("none",)), (2, SPLITS)):
                known = problem(m, n, k, dtype, layout, threads=threads, batch=1 + at % 2)
                bindings = gemm_cpu.bindings(known, device)
                made = [config(**kernel, split=split) for kernel in kernels for split in splits]
                found += [(known, c) for c in made if not gemm_cpu.config.validate(c.as_dict(), bindings)]
    return found


def assert_exact(backend: CpuBackend, tried: list[Any]) -> None:
    backend.compile(tried, 2)
    wrong = [(p, c, error) for p, c in tried if (error := backend.prepare(p, c).check()) != 0.0]
    assert not wrong, f"{len(wrong)} of {len(tried)}, first {wrong[0]}"


@pytest.mark.needs("a C compiler")
@pytest.mark.parametrize("dtype", ["bf16", "int8"])
def test_every_way_of_multiplying_is_exact(backend: CpuBackend, dtype: str) -> None:
    """Outer (packed, direct), dot and pairs: all layouts, edges, batches, blocks of K, both thread counts, each split."""
    wide = [{**kernel, "vector_bytes": 32} for kernel in KERNELS[3:6]] if devices.local().numbers["vector_bytes"] >= 32 else []
    tried = vectors(KERNELS + wide, dtype, devices.local(), SHAPES)
    expected = {"outer", "dot"} | ({"pairs"} if dtype == "int8" else set())
    assert {c.kernel for _, c in tried} >= expected
    assert {c.split for _, c in tried} == set(SPLITS)
    assert_exact(backend, tried)


@pytest.mark.needs("a C compiler")
@pytest.mark.parametrize("dtype", ["bf16", "int8"])
def test_kernels_for_other_cpus_are_exact_when_emulated(emulating: CpuBackend, dtype: str) -> None:
    """Pairs, quads and tiles with their instructions written out in C: packing, edges, blocks of K, splits."""
    tried = vectors(FOREIGN, dtype, widest(), [(1, 37, 19), (53, 1, 23), (41, 35, 200)])
    assert {(c.kernel, dtype) for _, c in tried} == {group for group in GROUPS if group[1] == dtype}
    assert_exact(emulating, tried)


@pytest.mark.needs("a C compiler")
def test_bf16_is_rounded_once_and_to_even(backend: CpuBackend) -> None:
    """Ties go to even, sums of several blocks of K are not rounded in between, infinities and NaN stay what they are."""
    for kernel in ({}, {"kernel": "dot", **PACKED}, {"kc": 8}):
        for split, threads in (("none", 1), ("k", 2)):
            prepared: Any = backend.prepare(problem(1, 3, 24, "bf16", "rcr", threads=threads), config(**kernel, split=split))
            a, b = np.ones((1, 1, 24), np.float32), np.zeros((1, 3, 24), np.float32)
            b[0, 0, ::8] = 255, 1, 1  # 257, a tie between 256 and 258
            b[0, 1, ::8] = 256, 1, 2  # 259, a tie that goes to 260; rounded after 256 + 1, it would be 258
            b[0, 2, ::8] = np.inf, 1, 1
            with prepared.operands.arena.filling():
                prepared.operands.a[...], prepared.operands.b[...] = to_bf16(a), to_bf16(b)
            prepared.run(1)
            assert as_float(prepared.operands.c).ravel().tolist() == [256.0, 260.0, np.inf], (kernel, split)
            with prepared.operands.arena.filling():
                prepared.operands.b[0, 1, 3] = 0x7F81  # a NaN whose payload would be lost by cutting it off
            prepared.run(1)
            assert np.isnan(as_float(prepared.operands.c)).ravel().tolist() == [False, True, False]
            backend.part("gemm/cpu").inputs._kept.clear()  # these inputs were written over


@pytest.mark.needs("a C compiler")
def test_int8_sums_the_extremes(backend: CpuBackend) -> None:
    """-128 × -128 over a long K neither saturates nor wraps, and a result that was not written does not pass."""
    for kernel in ({}, {"kernel": "dot", **PACKED}, {"kernel": "pairs", **PACKED}):
        prepared: Any = backend.prepare(problem(3, 5, 4099, "int8", "rcr"), config(**kernel))
        assert prepared.check() == 0.0
        prepared.operands.poison()
        assert prepared.operands.error() == np.inf
        with prepared.operands.arena.filling():
            prepared.operands.a.fill(-128), prepared.operands.b.fill(-128)
        prepared.run(1)
        assert (prepared.operands.c == 4099 * 128 * 128).all()
        backend.part("gemm/cpu").inputs._kept.clear()


def _samples() -> list[Item]:
    """A handful of kernels of every kind, and the packers that they need."""
    items: list[Item] = []
    for kind, dtype in GROUPS:
        tiles = ((2, 2), (1, 3), (3, 1)) if kind == "amx" else ((6, 2), (3, 4))
        for width in (64,) if kind == "amx" else (16, 32, 64):
            items += [Micro(kind, dtype, width, mr, nv, 1 if kind == "amx" else 2, 0, False) for mr, nv in tiles]
    for sums, dtype in (("fp32", ""), ("fp64", ""), ("fp32", "bf16"), ("int32", "int8")):
        items.append(Micro("outer", sums, 64, 6, 2, 2, 8, True, dtype, dtype))
        items.append(Micro("dot", sums, 64, 3, 3, 2, 8, True, dtype, dtype))
    items += [Packer(f"{dtype}_{form}", 6) for dtype, form in (("bf16", "fp32"), ("int8", "int32"), ("int8", "unsigned"))]
    items += [Packer(f"{dtype}_lines", 32) for dtype in ("bf16", "int8")]
    return [*items, Packer("bf16_pairs", 32, True), Packer("int8_quads", 32, True), Packer("int8_pairs", 6)]


@pytest.mark.needs("an x86-64 CPU")
@pytest.mark.parametrize("compiler", EACH_COMPILER)
def test_kernels_for_other_cpus_compile(compiler: str, tmp_path: Path) -> None:
    """For Sapphire Rapids every kernel, the driver and the probe compile without a warning, to the instructions meant."""
    command = [compiler, "-O2", "-march=sapphirerapids", "-Wall", "-Werror", "-fPIC", f"-I{build.SOURCES}"]
    known = subprocess.run([*command, "-E", "-x", "c", os.devnull], capture_output=True, text=True)
    if known.returncode:
        pytest.skip(f"{compiler} does not know -march=sapphirerapids: {known.stderr.strip()}")
    made = tmp_path / "kernels.s"
    done = subprocess.run([*command, "-S", "-x", "c", "-", "-o", made], input=translation_unit(_samples()), text=True)
    assert done.returncode == 0
    text = made.read_text()
    for instruction in ("vdpbf16ps", "vpdpbusd", "vpdpwssd", "tdpbf16ps", "tdpbssd", "tileloadd"):
        assert instruction in text, instruction
    for name in ("driver.c", "probe.c"):
        assert subprocess.run([*command, "-c", build.SOURCES / name, "-o", tmp_path / "made.o"]).returncode == 0


def test_a_cpu_says_what_it_can_multiply() -> None:
    """Flags of /proc/cpuinfo become numbers that constraints read; a CPU without the instructions says one, not nothing."""
    assert product_numbers({"avx2"}) == {"bf16_group": 1, "int8_group": 1, "matrix_tile_rows": 1}
    assert product_numbers({"avx_vnni"})["int8_group"] == 4
    everything = {"avx512_bf16", "avx512_vnni", "amx_tile", "amx_bf16", "amx_int8"}
    assert product_numbers(everything) == {"bf16_group": 2, "int8_group": 4, "matrix_tile_rows": 16}
    assert product_numbers(everything - {"amx_int8"})["matrix_tile_rows"] == 1


def test_kernels_that_the_cpu_lacks_are_invalid() -> None:
    """Constraints name the dtype or the instruction set; with the instructions the same configs are valid."""
    plain = replace(widest(), numbers={**widest().numbers, "bf16_group": 1.0, "int8_group": 1.0, "matrix_tile_rows": 1.0})
    pairs, _, quads, amx, _ = FOREIGN
    for kernel, dtype, sentence in (
        (pairs, "bf16", "AVX512-BF16"),
        (quads, "int8", "VNNI"),
        (amx, "bf16", "needs AMX"),
        (amx, "int8", "needs AMX"),
    ):
        known = problem(64, 64, 64, dtype)
        with pytest.raises(InvalidValue, match=sentence):
            Config(gemm_cpu, config(**kernel).as_dict(), problem=known, device=plain)
        Config(gemm_cpu, config(**kernel).as_dict(), problem=known, device=widest())
    Config(gemm_cpu, config(**pairs).as_dict(), problem=problem(64, 64, 64, "int8"), device=plain)
    for kernel, dtype in ((pairs, "fp32"), (amx, "fp64"), (quads, "bf16")):
        with pytest.raises(InvalidValue, match="quads kernels int8"):
            Config(gemm_cpu, config(**kernel).as_dict(), problem=problem(64, 64, 64, dtype), device=widest())
    with pytest.raises(InvalidValue, match="64 bytes of K"):
        Config(gemm_cpu, config(**amx, prefetch=8).as_dict(), problem=problem(64, 64, 64, "int8"), device=widest())
    with pytest.raises(InvalidValue, match="8 tile registers"):
        Config(gemm_cpu, config(**{**amx, "mr": 3}).as_dict(), problem=problem(64, 64, 64, "int8"), device=widest())


@pytest.mark.needs("a C compiler")
def test_the_backend_refuses_instructions_that_are_not_here(backend: CpuBackend) -> None:
    """A config made for another CPU is refused before it is compiled or run, and the dtype before the config."""
    with pytest.raises(Unsupported, match="quads kernels int8"):
        backend.prepare(problem(8, 8, 8, "fp32"), config(**FOREIGN[0]))
    probe, numbers = backend.library.probe, devices.local().numbers
    assert (probe.kc_bf16_group(), probe.kc_int8_group()) == (numbers["bf16_group"], numbers["int8_group"])
    assert probe.kc_tile_rows() == numbers["matrix_tile_rows"]
    if probe.kc_tile_rows() == 1:
        vector = problem(8, 8, 8, "int8"), config(**FOREIGN[3])
        assert backend.compilations([vector]) == 0, "nothing that could not run is compiled"
        with pytest.raises(Unsupported, match="need AMX, which this CPU does not have"):
            backend.prepare(*vector)


@pytest.mark.needs("a C compiler")
def test_narrow_types_have_peaks(backend: CpuBackend) -> None:
    """The rates of bf16 and int8 are measured like the others, so that both have a roofline."""
    device = backend.device()
    for dtype in ("bf16", "int8"):
        assert device.peak_tflops[dtype] > 0
        assert device.sources[dtype].startswith("measured")
        assert "roofline_ns" not in gemm_cpu.features_on(device, [dtype]).left_out


@pytest.mark.parametrize("dtype", ["bf16", "int8"])
def test_features_and_sets_cover_narrow_types(dtype: str) -> None:
    """Named sets hold every kernel that the device has; features are finite and tell all configs apart; tiles are AMX's."""
    known = {"dtype": dtype, "layout": "rcr", "threads": 2}
    configs = config_set("default", known, widest())
    assert set(configs["kernel"]) == {"outer", "dot"} | {kind for kind, of in GROUPS if of == dtype}
    plain = replace(widest(), numbers={**widest().numbers, **product_numbers({"avx2"})})
    there = {"outer", "dot"} | ({"pairs"} if dtype == "int8" else set())
    assert set(config_set("quick", known, plain)["kernel"]) == there
    program = gemm_cpu.features_on(widest(), [dtype]).program
    for m, n, k in ((1, 1, 1), (333, 1, 1000), (512, 512, 512)):
        values = problem(m, n, k, **known).as_dict()
        rows = configs.rename(lambda name: f"c.{name}").with_columns(
            [pl.lit(value).alias(f"p.{name}") for name, value in values.items()]
        )
        found = program.frame(rows)
        assert found.select(pl.all().cast(pl.Float64).is_finite().all()).row(0) == (True,) * found.width
        assert found.is_duplicated().sum() == 0
    tiles = found.with_columns(configs["kernel"], configs["mr"], configs["nv"]).filter(pl.col("kernel") == "amx")
    assert tiles["nr"].to_list() == [16 * nv for nv in tiles["nv"]]
    assert tiles["tiles_m"].to_list() == [-(-512 // (16 * mr)) for mr in tiles["mr"]]
