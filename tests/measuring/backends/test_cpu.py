"""The cpu backend: real kernels, compiled here, so everything but the family's declaration needs a C compiler."""

import functools
import itertools
import json
import math
import os
import random
import re
import subprocess
import sys
from pathlib import Path
from typing import Any

import polars as pl
import pytest

from kerncast.core.op import Config, Problem
from kerncast.errors import CannotWrite, InvalidValue, NotFound
from kerncast.library import devices
from kerncast.library.families.gemm_cpu import SETS, config_set, gemm_cpu
from kerncast.measuring.backends.contract import CannotCompile, OutOfMemory, Unsupported
from kerncast.measuring.backends.cpu import CpuBackend, build
from kerncast.measuring.backends.cpu.build import Library
from kerncast.measuring.backends.cpu.gemm import make_matrices
from kerncast.measuring.backends.cpu.gemm.codegen import Micro, Packer
from kerncast.measuring.backends.cpu.gemm.plan import ProductGeometry
from kerncast.measuring.backends.cpu.inputs import InputCache
from kerncast.testing import repeats

LAYOUTS = ("rcr", "rrr", "crr", "ccr")
# Ones, primes, sizes just beside a tile or a vector, one long K that needs several blocks.
AWKWARD = [(1, 1, 1), (1, 37, 19), (53, 1, 23), (7, 17, 1), (13, 31, 127), (25, 47, 8), (61, 33, 600), (2, 113, 65)]
BASE: dict[str, Any] = {
    "kernel": "outer",
    "vector_bytes": 16,
    "mr": 4,
    "nv": 2,
    "k_unroll": 1,
    "prefetch": 0,
    "pack_a": True,
    "pack_b": True,
    "mc": 24,
    "kc": 64,
    "nc": 64,
    "loop_order": "nkm",
    "tile_order": "nm",
    "split": "none",
}
WIDTH = int(devices.local().numbers["vector_bytes"])


@pytest.fixture(scope="module")
def backend() -> CpuBackend:
    """One backend, whose kernels are kept where KERNCAST_CACHE says."""
    made = CpuBackend()
    assert made.unavailable() is not None or made.library.folder.is_relative_to(os.environ["KERNCAST_CACHE"])
    return made


def problem(m: int, n: int, k: int, layout: str = "rrr", **more: Any) -> Problem:
    return Problem(gemm_cpu, {"M": m, "N": n, "K": k, "dtype": "fp32", "layout": layout, **more})


def config(**changes: Any) -> Config:
    return Config(gemm_cpu, {**BASE, **changes})


def sampled(known: Problem, count: int, seed: int) -> list[Config]:
    """Valid configs for a problem here, uniformly drawn."""
    pool = drawn_from(known.layout, known.dtype, known.threads)
    shuffled = random.Random(seed).sample(pool, len(pool))
    found = list(itertools.islice((item for item in shuffled if is_valid(known, item)), count))
    assert len(found) == count
    return found


@functools.cache
def drawn_from(layout: str, dtype: str, threads: int) -> list[Config]:
    """Configs of which some are valid for any problem of a kind: listing all valid ones of a problem takes a second."""
    widest = problem(2, 2, 50, layout, dtype=dtype, threads=threads)  # few rows and columns are multiplied in every way
    frame = gemm_cpu.config.sample(repeats(300, 5_000), 0, gemm_cpu.bindings(widest, devices.local()))
    return [Config.trusted(gemm_cpu, row) for row in frame.iter_rows(named=True)]


def is_valid(known: Problem, chosen: Config) -> bool:
    return not gemm_cpu.config.validate(chosen.as_dict(), gemm_cpu.bindings(known, devices.local()))


@pytest.mark.needs("a C compiler")
def test_sampled_configs_are_exact_on_awkward_shapes(backend: CpuBackend) -> None:
    """Any valid config gives the exact product: all layouts, edges in every dimension, batches, one and two threads."""
    vectors = []
    dot = {"kernel": "dot", "pack_a": None, "pack_b": None, "mr": 3, "nv": 4}
    for at, (layout, threads) in enumerate((layout, threads) for layout in LAYOUTS for threads in (1, 2)):
        drawn = sampled(problem(50, 50, 50, layout, threads=threads), repeats(2, 60), at)
        # Whatever was drawn on this CPU, every way to split the work and both kinds of kernel are among them.
        splits = ("m", "n", "k") if threads == 2 else ("none",)
        drawn += [config(split=split, **kind) for split in splits for kind in ({}, dot)]
        for m, n, k in AWKWARD:
            known = problem(m, n, k, layout, threads=threads, batch=1 + (m + n) % 2)
            vectors += [(known, c) for c in drawn + (sampled(known, 1, at) if 1 in (m, n) else [])]
    vectors = [(p, c) for p, c in vectors if is_valid(p, c)]
    assert len(vectors) > 200
    assert {c.kernel for _, c in vectors} == {"outer", "dot"}
    assert {c.split for _, c in vectors} == {"none", "m", "n", "k"}
    backend.compile(vectors, 2)
    wrong = [(p, c, error) for p, c in vectors if (error := backend.prepare(p, c).check()) != 0.0]
    assert not wrong, f"{len(wrong)} of {len(vectors)}, first {wrong[0]}"


@pytest.mark.needs("a C compiler")
def test_every_tile_and_edge_is_exact(backend: CpuBackend) -> None:
    """Each register tile, packed and direct, with every remainder of rows and columns: nothing is out of bounds."""
    vectors = []
    for mr, nv in ((1, 1), (4, 3), (6, 2), (3, 4), (12, 1), (1, 12)):
        for pack_a, layout in ((True, "rrr"), (False, "rrr"), (False, "crr")):
            for rest in range(0, mr * nv, 3):
                known = problem(2 * mr + rest % mr, 8 * nv + 1 + rest, 21, layout)
                vectors.append((known, config(mr=mr, nv=nv, pack_a=pack_a, pack_b=rest % 2 == 0, k_unroll=2, prefetch=8)))
    backend.compile(vectors, 2)
    assert backend.compilations(vectors) == 0
    assert [v for v in vectors if backend.prepare(*v).check() != 0.0] == []


@pytest.mark.needs("a C compiler")
def test_cut_strips_are_packed_exactly(backend: CpuBackend) -> None:
    """Strips of any width, whole and cut, from either order, for K of less than a vector, of whole lines, and in between."""
    vectors = []
    for mr, nv, width in ((2, 2, 32), (3, 3, 32), (4, 3, 16), (5, 2, 32), (6, 2, 32), (10, 1, 16), (14, 1, 16)):
        for layout in LAYOUTS:
            for k in (3, 5, 16, 39):
                known = problem(2 * mr + 1 + k % (mr - 1), 60 + k, k, layout)
                vectors.append((known, config(mr=mr, nv=nv, vector_bytes=min(width, WIDTH), kc=32, mc=24)))
    backend.compile(vectors, 2)
    assert [v for v in vectors if backend.prepare(*v).check() != 0.0] == []


@pytest.mark.needs("a C compiler")
@pytest.mark.parametrize("dtype", ["fp32", "fp64", "bf16", "int8"])
def test_dot_kernels_copy_an_operand_that_is_short(backend: CpuBackend, dtype: str) -> None:
    """Few rows of A or columns of B that are not contiguous along K are copied so, in every block of K and for every split."""
    dot = {"kernel": "dot", "pack_a": None, "pack_b": None, "mr": 3, "nv": 4}
    vectors = []
    for m, n, layout in ((1, 90, "ccr"), (3, 50, "ccr"), (32, 41, "ccr"), (41, 32, "rrr"), (90, 2, "rrr"), (70, 7, "rrr")):
        for k, threads, split in ((2, 1, "none"), (75, 1, "none"), (150, 2, "m"), (150, 2, "n"), (150, 2, "k")):
            known = problem(m, n, k, layout, dtype=dtype, threads=threads, batch=1 + m % 2)
            vectors.append((known, config(**dot, loop_order="mkn" if n < m else "nkm", split=split)))
            assert is_valid(*vectors[-1])
    backend.compile(vectors, 2)
    assert [v for v in vectors if backend.prepare(*v).check() != 0.0] == []


@pytest.mark.needs("gcc", "an x86-64 CPU")
@pytest.mark.parametrize("unroll", [1, 2, 4])
def test_sums_stay_in_registers(unroll: int) -> None:
    """Loops of tiles that take all sixteen registers neither move a sum nor keep one on the stack."""
    kernels = [
        Micro("outer", "fp32", 32, mr, nv, unroll, 0, rows)
        for mr, nv in ((6, 2), (4, 3), (3, 4), (2, 6), (12, 1))
        for rows in (False, True)
    ]
    command = ["gcc", "-O2", "-march=haswell", "-w", "-fPIC", f"-I{build.SOURCES}", "-S", "-x", "c", "-", "-o", "-"]
    done = subprocess.run(command, input=build.translation_unit(kernels), text=True, capture_output=True, check=True)
    loops = [block for block in re.split(r"^\.L\d+:", done.stdout, flags=re.MULTILINE) if block.count("vfmadd") >= 12 * unroll]
    assert len(loops) >= len(kernels)
    spilled = [re.findall(r"\tv\S+.*\(%rsp\)|vmovaps\s+%ymm\d+, %ymm\d+", block.partition("\tj")[0]) for block in loops]
    assert not any(spilled), spilled


@pytest.mark.needs("a C compiler")
def test_double_precision_is_exact(backend: CpuBackend) -> None:
    """fp64 has kernels of its own, dot products and both kinds of packing included."""
    problems = [problem(29, 43, 71, layout, dtype="fp64") for layout in LAYOUTS]
    vectors = [(known, chosen) for known in problems for chosen in sampled(known, repeats(1, 3), 5)]
    backend.compile(vectors, 2)
    assert [v for v in vectors if backend.prepare(*v).check() != 0.0] == []


# Rows further apart than they are long, by an odd number of elements; a bias; activations. int8 has no smooth ones.
APART = [("rrr", 3, 0, 5), ("rcr", 0, 7, 1), ("crr", 1, 16, 0), ("ccr", 5, 2, 3)]


@pytest.mark.needs("a C compiler")
@pytest.mark.parametrize("dtype", ["fp32", "fp64", "bf16", "int8"])
def test_gaps_between_rows_and_epilogues_are_computed_in_place(backend: CpuBackend, dtype: str) -> None:
    """Nothing between rows is read or written; bias and activation are applied once, for every split, batch and block of K."""
    activations = (None, "relu") if dtype == "int8" else (None, "relu", "gelu", "silu")
    vectors = []
    for at, (layout, a, b, c) in enumerate(APART * 2):
        threads, (m, n, k) = 1 + at % 2, [(13, 31, 127), (25, 47, 8), (61, 1, 200), (1, 37, 19)][(at + at // 4) % 4]
        packed = {"lda": k if layout[0] == "r" else m, "ldb": n if layout[1] == "r" else k, "ldc": n}
        apart = {name: packed[name] + more for name, more in zip(packed, (a, b, c), strict=True)}
        vector = [m == 1 and layout[0] == "c" and "lda", n == 1 and layout[1] == "r" and "ldb", n == 1 and "ldc"]
        more = {**apart, **dict.fromkeys([name for name in vector if name]), "bias": at % 3 > 0}
        more["activation"] = activations[at % len(activations)] or "none"
        known = problem(m, n, k, layout, dtype=dtype, threads=threads, batch=1 + at % 3, **more)
        chosen = [config(split=split, kc=64) for split in (("m", "n", "k") if threads == 2 else ("none",))]
        vectors += [(known, item) for item in chosen if is_valid(known, item)]
        vectors += [(known, item) for item in sampled(known, 1, at)]
    assert len(vectors) > 20
    backend.compile(vectors, 2)
    assert [v for v in vectors if backend.prepare(*v).check() != 0.0] == []


@pytest.mark.needs("a C compiler")
def test_what_lies_between_the_rows_of_c_is_watched(backend: CpuBackend) -> None:
    """A kernel that writes there is wrong, whatever else it computes; so is a smooth activation that is a little off."""
    prepared: Any = backend.prepare(problem(9, 9, 9, ldc=11), config())
    assert prepared.check() == 0.0
    prepared.operands.between[0, 4, 1] = 0.0
    assert prepared.operands.error() == math.inf
    prepared = backend.prepare(problem(9, 9, 9, activation="gelu"), config())
    assert prepared.check() == 0.0
    prepared.operands.c[0, 4, 4] += 1e-3
    assert prepared.operands.error() == pytest.approx(1e-3, rel=0.1)


@pytest.mark.needs("a C compiler")
def test_vectors_with_gaps_and_smooth_activations_of_int8_are_refused(backend: CpuBackend) -> None:
    """By the family's rules, and by the backend where these were not asked."""
    wrong = [("crr", {"M": 1, "lda": 2}), ("rrr", {"N": 1, "ldb": 2}), ("rcr", {"N": 1, "ldc": 2})]
    for layout, sizes in wrong:
        known = problem(**{"m": 5, "n": 6, "k": 7, **{name.lower() if name in "MN" else name: x for name, x in sizes.items()}},
                        layout=layout)  # fmt: skip
        assert "vectors" in {item.name for item in gemm_cpu.config.validate(config(), gemm_cpu.bindings(known))}
        with pytest.raises(Unsupported, match="vectors without gaps"):
            backend.prepare(known, config())
    with pytest.raises(Unsupported, match="gelu and silu need a floating-point dtype"):
        backend.prepare(problem(5, 6, 7, dtype="int8", activation="silu"), config())


@pytest.mark.needs("a C compiler")
def test_check_sees_a_result_that_was_not_written(backend: CpuBackend) -> None:
    """A kernel that leaves C alone, or writes a wrong number, does not pass the check."""
    prepared: Any = backend.prepare(problem(9, 9, 9), config())
    assert prepared.check() == 0.0
    prepared.operands.c[0, 4, 4] += 2.5
    assert prepared.operands.error() == 2.5
    prepared.operands.c[0, 0, 0] = math.nan
    assert prepared.operands.error() == math.inf


@pytest.mark.needs("a C compiler")
def test_inputs_are_shared_within_a_problem_and_bounded(backend: CpuBackend) -> None:
    """Configs of one problem share buffers, whatever the threads; the cache gives up the oldest beyond its bytes."""
    one: Any = backend.prepare(problem(40, 40, 40), config())
    two: Any = backend.prepare(problem(40, 40, 40, threads=2), config(split="m"))
    assert one.operands is two.operands
    cache = InputCache(make_matrices, limit=4 * 4 * 32 * 32 + 1)
    first = cache.get(problem(32, 32, 32).as_dict())
    assert cache.get(problem(32, 32, 32).as_dict()) is first
    cache.get(problem(32, 32, 31).as_dict())
    assert cache.get(problem(32, 32, 32).as_dict()) is not first
    assert (cache.get(problem(32, 32, 32).as_dict()).a == first.a).all(), "the same problem, the same numbers"


@pytest.mark.needs("a C compiler")
def test_times_grow_with_launches_and_sentinels_run(backend: CpuBackend) -> None:
    """run(n) is the time of all n launches: a busy machine makes it longer, never shorter."""
    kernel = backend.prepare(problem(96, 96, 96), config())
    once, many = min(kernel.run(1) for _ in range(50)), min(kernel.run(40) for _ in range(10))
    assert 0 < 10 * once < many
    for kind in ("compute", "memory"):
        sentinel = backend.sentinel(kind)
        assert sentinel is not None
        assert min(sentinel.run(1) for _ in range(20)) > 5_000
    assert backend.sentinel("network") is None


@pytest.mark.needs("a C compiler")
def test_compiled_kernels_are_found_again(backend: CpuBackend, monkeypatch: pytest.MonkeyPatch) -> None:
    """A second process start finds every kernel on disk and compiles nothing."""
    known = problem(64, 64, 64)
    vectors = [(known, c) for c in sampled(known, 6, 3)]
    backend.compile(vectors)
    monkeypatch.setattr(Library, "_compile", lambda *_: pytest.fail("compiled again"))
    fresh = CpuBackend()
    assert fresh.compilations(vectors) == 0
    fresh.compile(vectors)
    assert fresh.prepare(*vectors[0]).check() == 0.0


@pytest.mark.needs("a C compiler")
def test_workers_may_build_the_same_kernel_at_once(tmp_path: Path) -> None:
    """Two processes with one empty cache both end with working kernels and leave no half-written files."""
    code = (
        "import json, sys\n"
        "from kerncast.measuring.backends.cpu import CpuBackend; from kerncast.library.families.gemm_cpu import gemm_cpu\n"
        "from kerncast.core.op import Config, Problem\n"
        "values, chosen = json.loads(sys.argv[1])\n"
        "error = CpuBackend().prepare(Problem(gemm_cpu, values), Config(gemm_cpu, chosen)).check()\n"
        "assert 'polars' not in sys.modules, 'a worker has no use for dataframes'\n"
        "sys.exit(error != 0.0)"
    )
    arguments = json.dumps([problem(20, 20, 20).as_dict(), BASE])
    environment = {**os.environ, "KERNCAST_CACHE": str(tmp_path)}
    both = [subprocess.Popen([sys.executable, "-c", code, arguments], env=environment) for _ in range(2)]
    assert [process.wait(60) for process in both] == [0, 0]
    assert [path.name for path in tmp_path.rglob(".*")] == []


@pytest.mark.needs("a C compiler")
def test_a_kernel_that_does_not_compile_costs_only_itself(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """One bad kernel in a compilation is named with the compiler's reason; the others are built."""
    backend = CpuBackend()
    backend.library = Library(backend.compiler, tmp_path)
    real = Library._compile
    bad = "outer_fp32_v16_5x2"

    def compile_(self: Library, source: str, path: Path, names: list[str]) -> None:
        if bad in source:
            raise CannotCompile("error: no such register")
        real(self, source, path, names)

    monkeypatch.setattr(Library, "_compile", compile_)
    vectors = [(problem(40, 40, 8), config(mr=mr)) for mr in (4, 5, 2)]
    backend.compile(vectors)
    assert backend.prepare(*vectors[0]).check() == 0.0
    with pytest.raises(CannotCompile, match=r"5x2.*no such register"):
        backend.prepare(*vectors[1])


def test_without_a_compiler_the_reason_is_one_sentence(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    """No compiler: unavailable() says so and how to get one, and nothing crashes on import or construction."""
    monkeypatch.setenv("PATH", str(tmp_path))
    monkeypatch.delenv("CC", raising=False)
    build.find_compiler.cache_clear()
    try:
        reason = CpuBackend.unavailable()
        assert reason is not None
        assert "apt install gcc" in reason
        assert "\n" not in reason
        with pytest.raises(Unsupported, match="needs gcc or clang"):
            CpuBackend().device()
    finally:
        build.find_compiler.cache_clear()


@pytest.mark.needs("a C compiler")
def test_refusals_are_one_sentence(backend: CpuBackend, tmp_path: Path) -> None:
    """What this machine or the family cannot do is refused before anything runs, with the rule that is broken."""
    with pytest.raises(Unsupported, match="leave split_k at 1"):
        backend.prepare(problem(8, 8, 8, split_k=2), config())
    with pytest.raises(Unsupported, match="fp32, fp64, bf16 and int8"):
        backend.prepare(problem(8, 8, 8, dtype="fp16"), config())
    with pytest.raises(Unsupported, match="only where B is row-major"):
        backend.prepare(problem(8, 8, 8, "rcr"), config(pack_b=False))
    with pytest.raises(OutOfMemory, match="GB"):
        backend.prepare(problem(2**20, 2**20, 8), config())
    (tmp_path / "file").write_text("")
    with pytest.raises(CannotWrite, match="KERNCAST_CACHE"):
        Library(backend.compiler, tmp_path / "file").build([Packer("fp32", 4)])


@pytest.mark.needs("a C compiler")
def test_the_device_is_the_local_one_with_measured_rates(backend: CpuBackend) -> None:
    """Identity stays that of the machine; clock, peak and bandwidth are measured, plausible and kept on disk."""
    device = backend.device()
    assert device.name == devices.local().name
    assert 0.8 < device.numbers["max_clock_mhz"] / 1000 < 7
    lanes = device.numbers["vector_bytes"] / 4
    per_cycle = device.peak_tflops["fp32"] * 1e6 / device.numbers["num_cus"] / device.numbers["max_clock_mhz"]
    assert lanes < per_cycle < 4.6 * lanes, "one or two FMA units"
    assert 1 < device.numbers["memory_bandwidth_gb_s"] < 2000
    assert device.sources["memory_bandwidth_gb_s"].startswith("measured")
    assert CpuBackend().device() == device, "the second process of a boot reads what the first measured"
    assert {"compiler", "flags", "kernels"} <= backend.software("gemm/cpu").keys()


def test_the_geometry_in_python_is_that_of_the_features() -> None:
    """Features describe the product that is computed: columns, operand order and direct access agree with the plan."""
    program = gemm_cpu.features_on(devices.local(), ["fp32"]).program
    for m, n, k in AWKWARD:
        for layout in LAYOUTS:
            known = problem(m, n, k, layout)
            geometry = ProductGeometry.of(known.as_dict())
            bound = {**gemm_cpu.problem.qualified(known.as_dict()), **gemm_cpu.config.qualified(BASE)}
            found = program.scalar({x.name: bound[x.name] for x in program.symbols})
            assert found["tiles_m"] == math.ceil(geometry.m / 4)
            assert found["tiles_n"] == math.ceil(geometry.n / 8)
            assert (found["a_rows"], found["b_rows"]) == (geometry.a_rows, geometry.b_rows)


def test_the_registers_that_a_constraint_counts_are_those_that_the_generator_uses() -> None:
    """The formula of the family and the one that decides which sums are pinned agree on every kind of tile."""
    program = gemm_cpu.features_on(devices.local(), ["fp32"]).program
    problem_values = gemm_cpu.problem.qualified(problem(64, 64, 64, "rcr").as_dict())
    for kind in ("outer", "dot", "pairs", "quads"):
        for mr, nv in ((1, 12), (3, 4), (6, 2), (14, 1)):
            tile = {"kernel": kind, "mr": mr, "nv": nv}
            bound = {**problem_values, **gemm_cpu.config.qualified({**BASE, **tile})}
            found = program.scalar({x.name: bound[x.name] for x in program.symbols})
            assert found["registers"] == Micro(kind, "int8", 32, mr, nv, 1, 0, rows=True).registers, tile


@pytest.mark.parametrize("layout", ["rcr", "rrr"])
@pytest.mark.parametrize("threads", [1, 2])
def test_named_sets_are_valid_nested_and_diverse(layout: str, threads: int) -> None:
    """Sets have their size, hold only valid configs, repeat exactly, and cover widths, tiles, packing and splits."""
    known = {"dtype": "fp32", "layout": layout, "threads": threads}
    sets = {name: config_set(name, known, devices.local()) for name in SETS}
    assert {name: frame.height for name, frame in sets.items()} == SETS
    assert sets["quick"].equals(sets["default"].head(SETS["quick"]))
    assert sets["default"].equals(config_set("default", known, devices.local()))
    assert all(frame.is_duplicated().sum() == 0 for frame in sets.values())
    quick = sets["quick"]
    for name, least in (("vector_bytes", 2), ("kc", 6), ("mc", 5), ("split", 1 if threads == 1 else 4), ("loop_order", 2)):
        assert quick[name].n_unique() >= min(least, gemm_cpu.config.parameters[name].size), name
    assert quick.select("mr", "nv").n_unique() >= 15
    bindings = gemm_cpu.bindings({"M": 99, "N": 99, "K": 99, **known}, devices.local())
    for row in quick.head(40).iter_rows(named=True):
        assert gemm_cpu.config.validate({x: y for x, y in row.items() if y is not None}, bindings) == []
    with pytest.raises(NotFound, match="quick"):
        config_set("quik", known, devices.local())


def test_features_are_finite_and_tell_configs_apart() -> None:
    """No two of 4,000 configs share a feature row, and every feature is a finite number on degenerate shapes too."""
    device = devices.local()
    configs = config_set("full", {"dtype": "fp32", "layout": "rcr", "threads": 2}, device)
    program = gemm_cpu.features_on(device, ["fp32"]).program
    for m, n, k in ((1, 1, 1), (1, 4096, 7), (333, 1, 1000), (512, 512, 512)):
        known = problem(m, n, k, "rcr", threads=2).as_dict()
        rows = configs.rename(lambda name: f"c.{name}").with_columns(
            [pl.lit(value).alias(f"p.{name}") for name, value in known.items()]
        )
        found = program.frame(rows)
        assert found.select(pl.all().cast(pl.Float64).is_finite().all()).row(0) == (True,) * found.width
        assert found.is_duplicated().sum() == 0


def test_the_constraints_say_what_is_wrong() -> None:
    """Too many registers, vectors too wide, blocks beyond a cache, a split for one thread: refused with the rule."""
    avx2 = devices.local().__class__(
        "box", "a box", "cpu", {"vector_bytes": 32, "l1_cache_kb": 32, "l2_cache_kb": 512, "l3_cache_kb": 32768}
    )
    known = problem(64, 64, 64, "crr")
    for changes, sentence in (
        ({"mr": 8, "nv": 2}, "vector registers"),
        ({"vector_bytes": 64}, "wider than the CPU"),
        ({"mc": 1536, "kc": 256}, "fit in L2"),
        ({"split": "m"}, "nothing to split"),
        ({"kernel": "dot", "pack_a": None, "pack_b": None}, "contiguous along K"),
    ):
        values = {name: value for name, value in {**BASE, **changes}.items() if value is not None}
        with pytest.raises(InvalidValue, match=sentence):
            Config(gemm_cpu, values, problem=known, device=avx2)
    for mr, nv in ((6, 2), (4, 3), (12, 1), (3, 4)):
        Config(gemm_cpu, {**BASE, "vector_bytes": 32, "mr": mr, "nv": nv}, problem=known, device=avx2)
