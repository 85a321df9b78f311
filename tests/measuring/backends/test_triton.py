"""The triton backend: its kernel under Triton's interpreter, which needs no GPU. Times can only be had on one."""

import json
import os
import subprocess
import sys
from types import SimpleNamespace

import pytest

from kerncast.core.op import Config, Problem
from kerncast.library import devices
from kerncast.library.families.gemm_triton import triton as gemm_triton
from kerncast.measuring.backends import triton
from kerncast.measuring.backends.contract import Unsupported
from kerncast.measuring.backends.triton import TritonBackend, device_profile, launch_library, tensors
from kerncast.testing.backends import BackendContract

INTERPRETED = """
import json, sys
from kerncast.measuring.backends.triton import launch_triton, tensors
for problem, config in json.loads(sys.argv[1]):
    on = tensors(problem, "cpu")
    on.poison()
    assert on.error() > 0
    launch_triton(on, config)
    print(on.error(), list(on.a.stride()), list(on.b.stride()))
"""
CONFIG = {"kind": "triton", "BLOCK_M": 16, "BLOCK_N": 32, "BLOCK_K": 16, "num_stages": 2, "num_warps": 4}


def interpreted(vectors):
    """The error of each vector, and the strides of A and B; in a process of its own, where Triton's import can see the flag."""
    environment = {**os.environ, "TRITON_INTERPRET": "1"}
    command = [sys.executable, "-c", INTERPRETED, json.dumps(vectors)]
    answer = subprocess.run(command, env=environment, capture_output=True, text=True, check=False)
    assert answer.returncode == 0, answer.stderr[-2000:]
    return [line.split(" ", 1) for line in answer.stdout.splitlines()]


def problem(m, n, k, layout="rrr", dtype="fp32", batch=1):
    return {"M": m, "N": n, "K": k, "split_k": 1, "batch": batch, "dtype": dtype, "layout": layout, "tf32": False}


@pytest.mark.needs("triton")
def test_the_kernel_is_exact_in_every_layout_and_at_every_edge():
    """Ones, primes, whole tiles, more rows of blocks than one group, batches: not one bit is wrong under the interpreter."""
    shapes = [(1, 1, 1), (16, 32, 16), (17, 33, 19), (5, 70, 48), (150, 40, 31)]
    vectors = [(problem(*shape, layout), CONFIG) for layout in ("rcr", "rrr", "crr", "ccr") for shape in shapes]
    vectors += [(problem(20, 40, 24, "rcr", batch=3), CONFIG), ({**problem(20, 40, 24), "tf32": True}, CONFIG)]
    vectors += [(problem(40, 40, 70), {**CONFIG, "BLOCK_M": 32, "BLOCK_K": 64})]
    # GROUP_M only changes the order of blocks: one row, a number that does not divide the rows, more than there are.
    vectors += [(problem(70, 40, 31, batch=2), {**CONFIG, "GROUP_M": group}) for group in (1, 3, 64, None)]
    found = interpreted(vectors)
    assert [error for error, _ in found] == ["0.0"] * len(vectors)
    strides = {p["layout"]: text for (p, _), (_, text) in zip(vectors[:20], found[:20], strict=True) if p["M"] == 17}
    assert strides == {
        "rcr": "[323, 19, 1] [627, 1, 19]",
        "rrr": "[323, 19, 1] [627, 33, 1]",
        "crr": "[323, 1, 17] [627, 33, 1]",
        "ccr": "[323, 1, 17] [627, 1, 19]",
    }


@pytest.mark.needs("triton")
@pytest.mark.parametrize(
    ("given", "why"),
    [
        ({"template": "persistent_tma"}, "runs the plain template, not persistent_tma"),
        ({"kpack": 2}, "kpack is an argument of AMD's compiler"),
    ],
)
def test_other_templates_are_unsupported(given, why):
    """The sentence is that of the row; nothing is asked of a GPU before."""
    backend = TritonBackend()
    backend.__dict__["_properties"] = SimpleNamespace(gcnArchName="")
    with pytest.raises(Unsupported, match=why):
        backend.prepare(Problem(gemm_triton, problem(64, 64, 64)), Config(gemm_triton, {**CONFIG, **given}))


@pytest.mark.needs("triton")
def test_gaps_between_rows_and_epilogues_are_computed():
    """Leading dimensions become strides; bias and activation are applied to the sums, for our kernel and for the library's."""
    gaps = {"lda": 40, "ldb": 41, "ldc": 47}
    asked = [{**problem(17, 33, 19, layout, batch=2), **gaps} for layout in ("rrr", "ccr")]
    asked += [{**problem(17, 33, 19), "bias": True, "activation": name} for name in (None, "relu", "gelu", "silu")]
    found = interpreted([(item, CONFIG) for item in asked])
    assert [error for error, _ in found] == ["0.0"] * len(asked)
    assert [strides for _, strides in found[:2]] == ["[680, 40, 1] [779, 41, 1]", "[760, 1, 40] [1353, 1, 41]"]
    for item in asked:
        on = tensors(item, "cpu")
        launch_library(on)
        assert on.error() == 0.0, item


@pytest.mark.needs("triton")
def test_the_kernel_is_exact_in_every_dtype():
    """Sums are exact and rounded once, when they are stored. (bf16: see the next test.)"""
    found = interpreted([(problem(33, 40, 37, "rcr", dtype), CONFIG) for dtype in ("fp16", "fp8", "bf8", "int8")])
    assert [error for error, _ in found] == ["0.0"] * 4


@pytest.mark.needs("a GPU")
def test_bf16_is_exact_on_a_gpu():
    """The interpreter has no bf16 products (triton-lang/triton issue 11584), so this takes the real compiler."""
    vector = Problem(gemm_triton, problem(33, 40, 37, "rcr", "bf16")), Config(gemm_triton, CONFIG)
    assert TritonBackend().prepare(*vector).check() == 0.0


@pytest.mark.needs("triton")
def test_the_library_is_exact_too():
    """kind=library goes through torch.matmul's kernels, one product or a batch, into the same C."""
    for batch in (1, 3):
        on = tensors(problem(33, 40, 37, "ccr", batch=batch), "cpu")
        on.poison()
        launch_library(on)
        assert on.error() == 0.0


def test_a_gpu_is_known_by_its_shipped_profile_or_by_what_torch_says():
    """Data-sheet numbers win; an unknown GPU has no peak and no bandwidth."""
    said = {"multi_processor_count": 132, "total_memory": 85 * 10**9, "warp_size": 32, "max_threads_per_block": 1024}
    known = device_profile(SimpleNamespace(name="NVIDIA H100 80GB HBM3", L2_cache_size=1024, **said), "")
    assert known.name == "h100"
    assert known.numbers["l2_cache_kb"] == devices.get("h100").numbers["l2_cache_kb"]
    assert known.numbers["max_work_group_size"] == 1024
    other = device_profile(SimpleNamespace(name="NVIDIA GeForce RTX 9999", **said), "")
    assert (other.name, dict(other.peak_tflops)) == ("nvidia_geforce_rtx_9999-132cu", {})
    amd = {**said, "multi_processor_count": 228}
    assert device_profile(SimpleNamespace(name="AMD Instinct", **amd), "gfx942:sramecc+:xnack-").name == "gfx942"


@pytest.mark.skipif(TritonBackend.unavailable() is None, reason="there is a GPU here")
def test_without_a_gpu_the_reason_says_what_is_needed():
    """unavailable() says plainly that a GPU, torch and triton are needed; a backend made anyway refuses the same way."""
    assert "needs a CUDA or ROCm GPU with torch and triton" in TritonBackend.unavailable()
    assert TritonBackend.devices() == []
    with pytest.raises(Unsupported, match="needs a CUDA or ROCm GPU"):
        TritonBackend().device()


def test_without_triton_the_reason_names_the_extra(monkeypatch):
    """What is missing is named, with the extra that brings it."""
    monkeypatch.setattr(triton, "find_spec", lambda name: None if name == "triton" else object())
    assert "triton is not installed" in TritonBackend.unavailable()
    assert "pip install 'kerncast[triton]'" in TritonBackend.unavailable()


@pytest.mark.needs("a GPU")
class TestTriton(BackendContract):
    backend, family = "triton", "gemm/triton"

    def vectors(self):
        """One program on twelve problems."""
        import polars as pl

        return pl.DataFrame(
            {f"problem.{x}": y for x, y in problem(64, 64 + 8 * at, 64, "rcr", "fp16").items()}
            | {f"config.{x}": y for x, y in CONFIG.items()}
            for at in range(12)
        )
