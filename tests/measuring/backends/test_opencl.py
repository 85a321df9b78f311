"""The opencl backend: real kernels on the first OpenCL device, compiled here by its driver.

`make soak` adds the long form: more than a hundred sampled configs, collected end to end.
"""

import math
import re
import subprocess
import sys
from types import SimpleNamespace

import polars as pl
import pytest

from kerncast.core.op import Config, Problem
from kerncast.data import Dataset
from kerncast.library import devices
from kerncast.library.families.gemm_opencl import gemm_opencl
from kerncast.library.problems import parse_vary, problem_set
from kerncast.measuring.backends import environment, opencl
from kerncast.measuring.backends.contract import CannotCompile, OutOfMemory, Unsupported
from kerncast.measuring.backends.opencl import OpenClBackend, profile, source
from kerncast.measuring.collection import Request
from kerncast.measuring.messages import Policy
from kerncast.measuring.run import collect
from kerncast.measuring.sweeping import Sweep, parse_selection

LAYOUTS = ("rcr", "rrr", "crr", "ccr")
# Ones, primes, sizes just beside a tile or a vector, a K that needs several tiles.
AWKWARD = [(1, 1, 1), (1, 37, 19), (53, 1, 23), (7, 17, 1), (13, 31, 127), (25, 47, 8), (16, 32, 64)]
DIRECT = {
    "MWG": 8, "NWG": 16, "MDIMC": 2, "NDIMC": 2, "VWM": 1, "VWN": 4, "local_a": False, "local_b": False, "KWI": 2,
    "strided_m": True, "strided_n": True, "guard": True,
}  # fmt: skip
LOCAL = {**DIRECT, "VWM": 2, "VWN": 2, "local_a": True, "local_b": True, "KWG": 8, "strided_n": False}


@pytest.fixture(scope="module")
def backend():
    """One backend for all tests: a program that two of them use is compiled once."""
    return OpenClBackend()


def problem(m, n, k, layout="rrr", **more):
    return Problem(gemm_opencl, {"M": m, "N": n, "K": k, "dtype": "fp32", "layout": layout, **more})


def config(base=DIRECT, **changes):
    return Config(gemm_opencl, {name: value for name, value in {**base, **changes}.items() if value is not None})


@pytest.mark.needs("a working OpenCL")
@pytest.mark.parametrize("layout", LAYOUTS)
def test_guarded_kernels_are_exact_on_awkward_shapes(backend, layout):
    """Edges in every dimension, with and without local memory, in every layout: not one bit is wrong."""
    for chosen in (config(), config(LOCAL)):
        found = {shape: backend.prepare(problem(*shape, layout), chosen).check() for shape in AWKWARD}
        assert set(found.values()) == {0.0}, (chosen, found)


@pytest.mark.needs("a working OpenCL")
@pytest.mark.parametrize(
    ("chosen", "layout", "dtype"),
    [
        (config(guard=False), "crr", "fp32"),
        (config(VWM=4, strided_m=None, strided_n=False), "crr", "fp32"),
        (config(LOCAL, guard=False, KWG=16, KWI=8), "rcr", "fp32"),
        (config(LOCAL, local_a=False, VWM=1), "rrr", "fp32"),
        (config(LOCAL, local_b=False, strided_m=None, VWM=4), "ccr", "fp32"),
        (config(LOCAL), "crr", "fp64"),
        (config(LOCAL), "rcr", "fp16"),
        (config(VWN=8, strided_n=None), "rrr", "fp16"),
    ],
)
def test_each_parameter_leaves_the_product_exact(backend, chosen, layout, dtype):
    """Guard off, one operand in local memory, wide vectors, side by side or strided, halves and doubles."""
    if dtype == "fp64" and "cl_khr_fp64" not in backend.queue.device.extensions:
        pytest.skip("this OpenCL device has no fp64")
    assert backend.prepare(problem(32, 64, 48, layout, dtype=dtype), chosen).check() == 0.0
    if chosen.guard:
        assert backend.prepare(problem(33, 57, 50, layout, dtype=dtype), chosen).check() == 0.0


@pytest.mark.needs("a working OpenCL")
def test_check_sees_a_result_that_was_not_written(backend):
    """A kernel that leaves C alone, or writes a wrong number, does not pass the check."""
    prepared = backend.prepare(problem(16, 32, 8), config())
    assert prepared.check() == 0.0
    assert prepared.run(3) > 0
    prepared.operands.reference = prepared.operands.reference.copy()  # the one that it shares with others is read-only
    prepared.operands.reference[0, 4, 4] += 2.5
    assert prepared.check() == 2.5
    prepared.operands.reference[0, 4, 4] -= 2.5
    prepared.operands.poison()
    assert prepared.operands.error() == math.inf


@pytest.mark.needs("a working OpenCL")
def test_sentinels_run_and_caches_can_be_made_cold(backend):
    """Both kinds of sentinel are there and healthy; operands are shared by the configs of a problem."""
    for kind in ("compute", "memory"):
        sentinel = backend.sentinel(kind)
        assert sentinel.run(1) > 0
        assert sentinel.check() == 0.0
    assert backend.sentinel("network") is None
    assert backend.flush_cache()
    one, two = (backend.prepare(problem(16, 32, 64), chosen) for chosen in (config(), config(LOCAL)))
    assert one.operands is two.operands


@pytest.mark.needs("a working OpenCL")
def test_refusals_are_one_sentence(backend):
    """What the device or the family cannot do is refused before anything runs, with the rule that is broken."""
    with pytest.raises(Unsupported, match="leave batch at 1"):
        backend.prepare(problem(8, 8, 8, batch=2), config())
    with pytest.raises(Unsupported, match="without guard M must be a multiple"):
        backend.prepare(problem(9, 16, 8), config(guard=False))
    with pytest.raises(Unsupported, match="has kernels for fp16, fp32 and fp64"):
        backend.prepare(problem(8, 8, 8, dtype="int8"), config())
    with pytest.raises(OutOfMemory, match="GB"):
        backend.prepare(problem(2**20, 2**20, 8), config())
    with pytest.raises(CannotCompile, match="error"):
        backend._kernel("gemm", "__kernel void gemm() { return 1 + ; }")
    with pytest.raises(Unsupported, match="no OpenCL device 99"):
        OpenClBackend("99").device()


@pytest.mark.needs("a working OpenCL")
def test_a_driver_that_cannot_compile_is_said_in_one_sentence(monkeypatch, run, tmp_path):
    """By `doctor` and by `collect`, with the driver's reason and what to install; nothing is measured."""
    monkeypatch.setattr(source, "OPTIONS", ("-no-such-option",))
    opencl._trouble.cache_clear()
    code, out, _ = run("doctor")
    (said,) = (line for line in out.splitlines() if line.startswith("backend") and " opencl " in line)
    small = (
        "--problems",
        "cubes",
        "--vary",
        "dtype=fp32",
        "--vary",
        "layout=rrr",
        "--max-flops",
        "1e6",
        "--configs",
        "sample:2",
    )
    code, out, err = run("collect", "gemm/opencl", *small, "--out", tmp_path / "d")
    opencl._trouble.cache_clear()
    assert (code, out, len(err.splitlines())) == (2, "", 1)
    for text in (said, err):
        assert re.search(r"the OpenCL driver .* cannot compile for .* \(.*\): install a newer driver", text), text
    assert not (tmp_path / "d").exists()


@pytest.mark.needs("a working OpenCL")
def test_the_device_is_what_opencl_says(backend):
    """The limits that constraints read are known; rates that OpenCL does not tell are left out, not guessed."""
    device = backend.device()
    assert {"num_cus", "max_work_group_size", "smem_per_block_bytes"} <= device.numbers.keys()
    assert device.sources["max_work_group_size"] == "CL_DEVICE_MAX_WORK_GROUP_SIZE"
    assert OpenClBackend().device() == device
    assert {"driver", "pyopencl", "kernels"} <= backend.software("gemm/opencl").keys()
    if device.kind == "cpu":
        assert device.name == f"{devices.local().name}-opencl"
        assert "memory_bandwidth_gb_s" not in device.numbers
        assert "log2_roofline_ns" in gemm_opencl.features_on(device).left_out


def test_a_gpu_that_ships_with_a_profile_is_recognised():
    """By name or architecture as a whole word and by its compute units; any other keeps a name of its own."""

    def gpu(name, cus):
        sizes = {"max_clock_frequency": 1980, "max_work_group_size": 1024, "local_mem_size": 49152}
        more = {"global_mem_cacheline_size": 128, "global_mem_size": 85 * 10**9, "extensions": "", "type": 4}
        return profile(SimpleNamespace(name=name, max_compute_units=cus, **sizes, **more))

    known = gpu("NVIDIA H100 80GB HBM3", 132)
    assert (known.name, known.numbers["smem_per_block_bytes"]) == ("h100", 49152)
    assert known.peak_tflops["fp32"] == devices.get("h100").peak_tflops["fp32"]
    assert gpu("gfx942:sramecc+:xnack-", 228).name == "gfx942"
    assert gpu("NVIDIA H100 PCIe", 114).name == "nvidia_h100_pcie-114cu"
    assert gpu("gfx942:sramecc+:xnack-", 304).peak_tflops == {}
    assert environment.shipped("NVIDIA GH1000") is None
    assert environment.shipped("AMD Instinct MI300X OAM", "gfx942:sramecc+:xnack-", num_cus=304).name == "mi300x"
    assert environment.shipped("NVIDIA GeForce RTX 4090 Laptop GPU", num_cus=76) is None
    # A longer name is another board, unless the count of SMs is the profile's.
    assert environment.shipped("NVIDIA GB300", num_cus=152).name == "gb300"
    assert environment.shipped("NVIDIA GB300-WS", num_cus=132) is None
    # Without a count in the profile only the whole name means the board.
    assert environment.shipped("NVIDIA B100-WS", num_cus=132) is None


def test_without_pyopencl_the_reason_names_the_extra(monkeypatch):
    """unavailable() says what to install; nothing crashes on construction."""
    monkeypatch.setattr(opencl, "_opencl", lambda: None)
    assert "pip install 'kerncast[opencl]'" in OpenClBackend.unavailable()
    with pytest.raises(Unsupported, match="needs pyopencl"):
        OpenClBackend().device()


def test_finding_backends_does_not_load_what_they_need():
    """Discovery imports no pyopencl, torch or triton: `kerncast --help` stays quick."""
    probe = (
        "import sys; from kerncast.measuring.backends import backends; assert {'opencl', 'triton'} <= backends().keys()\n"
        "print([name for name in ('pyopencl', 'torch', 'triton') if name in sys.modules])"
    )
    answer = subprocess.run([sys.executable, "-c", probe], capture_output=True, text=True, check=True)
    assert answer.stdout.strip() == "[]"


def sample(count, seed=0, device=None, **known):
    """Valid configs of a problem, uniformly drawn."""
    bindings = gemm_opencl.bindings({"dtype": "fp32", "layout": "rcr", **known}, device or devices.local())
    return gemm_opencl.config.sample(count, seed, bindings)


def test_features_are_finite_and_tell_configs_apart():
    """No two of 2,000 configs share a feature row, and every feature is finite on degenerate shapes too."""
    program = gemm_opencl.features_on(devices.local(), ["fp32"]).program
    for m, n, k in ((1, 1, 1), (1, 4096, 7), (333, 1, 1000), (512, 512, 512)):
        rows = sample(2_000, M=m, N=n, K=k).rename(lambda name: f"c.{name}")
        found = program.frame(
            rows.with_columns(pl.lit(v).alias(f"p.{n}") for n, v in problem(m, n, k, "rcr").as_dict().items())
        )
        assert found.select(pl.all().cast(pl.Float64).is_finite().all()).row(0) == (True,) * found.width
        assert found.is_duplicated().sum() == 0


def test_two_configs_are_two_kernels():
    """Configs of the space differ in their source: none is another one under a second name."""
    rows = sample(2_000, M=512, N=512, K=512)
    assert len({source.source(row, "fp32", "rcr") for row in rows.iter_rows(named=True)}) == rows.height


@pytest.mark.needs("a working OpenCL")
@pytest.mark.needs("make soak")
def test_more_than_a_hundred_configs_are_collected_and_exact(backend, tmp_path):
    """112 sampled vectors in all layouts, on whole and on awkward sizes, each with an ok row and an exact result."""
    chosen = problem_set(
        gemm_opencl, ("grid:M=64,61;N=128;K=64,67",), parse_vary(gemm_opencl, ("dtype=fp32", "layout=all")), seed=0
    )
    sweep = Sweep(gemm_opencl, backend.device(), chosen, parse_selection(gemm_opencl, "sample:7"), seed=0)
    # Compiling takes seconds where the machine is busy.
    policy = Policy(samples=3, fewest_samples=2, deadline_floor_ns=60_000_000_000, deadline_ceiling_ns=120_000_000_000)
    summary = collect(Request(gemm_opencl, "opencl", ("0",), tmp_path / "d", policy), sweep.iter_blocks())
    rows = Dataset.open(tmp_path / "d").read()
    configs = rows.select(pl.selectors.starts_with("config.")).n_unique()
    print(f"{rows.height} vectors, {configs} configs in {summary.seconds:.0f} s: {dict(summary.statuses)}")
    assert configs > 100
    assert rows["status"].to_list() == ["ok"] * rows.height, rows["error"].drop_nulls().to_list()
    assert rows["max_abs_err"].max() == 0.0
