"""The inductor backend: kernels that Inductor renders and compiles with tiles it would not have chosen."""

import sys
from importlib.util import find_spec

import polars as pl
import pytest

from kerncast.core.op import Config, Problem
from kerncast.data import Dataset
from kerncast.library.families.gemm_inductor_cpp import gemm_inductor_cpp
from kerncast.measuring.backends.contract import CannotCompile
from kerncast.measuring.backends.inductor import InductorBackend, build
from kerncast.measuring.collection import Request
from kerncast.measuring.messages import Policy
from kerncast.measuring.run import collect

pytestmark = pytest.mark.needs("torch")
# Tiles are whole vectors of fp32; others never end.
LANES = 16 if find_spec("torch") is not None and "avx512" in build.cpu_software()["isa"].lower() else 8
TILES = [
    {"kind": "default"},
    {"kind": "tile", "mr": 4, "nr": 2 * LANES, "mc": 0, "kc": 0, "split": "default"},
    {"kind": "tile", "mr": 3, "nr": LANES, "mc": 0, "kc": 64, "split": "k"},
]


@pytest.fixture(scope="module", autouse=True)
def cache(tmp_path_factory):
    """Kernels are compiled here, not taken from what an earlier run left."""
    with pytest.MonkeyPatch.context() as patch:
        patch.setenv("TORCHINDUCTOR_CACHE_DIR", str(tmp_path_factory.mktemp("inductor")))
        yield


def problem(**values):
    return Problem(gemm_inductor_cpp, {"M": 7, "N": 37, "K": 150, "dtype": "fp32", "layout": "rcr", "threads": 2, **values})


@pytest.mark.needs("make soak")
def test_tiles_are_compiled_together_and_compute_the_product():
    """bf16, rows and columns that no tile divides, gaps in A, threads: not one bit is wrong; nor is ATen's."""
    backend, gaps = InductorBackend(), problem(lda=160, dtype="bf16")
    vectors = [(gaps, Config(gemm_inductor_cpp, values)) for values in [*TILES, {"kind": "aten"}]]
    assert backend.compilations(vectors) == 3
    backend.compile(vectors, jobs=1)
    assert backend.compilations(vectors) == 0
    assert len({id(kernel.loop) for kernel in backend._kernels._kernels.values()}) == 1
    errors = []
    for vector in vectors:
        kernel = backend.prepare(*vector)
        kernel.operands.poison()
        assert kernel.operands.error() > 0
        errors.append(kernel.check())
        assert kernel.run(3) > 0
    assert errors == [0.0] * 4


def test_a_kernel_is_what_its_config_says():
    """The tile, the blocks and the division among threads are in the text that Inductor renders."""
    kernels, product = build.CppKernels(), build.Product.of(problem())
    text = kernels._unit(product, {"mine": TILES[2]})
    for line in ("Mr = 3;", f"Nr = {LANES};", "Kc_blocks = 64;", "Kt_blocks = 75;", "num_threads = 2;"):
        assert f"constexpr int64_t {line}" in text, line


@pytest.mark.needs("make soak")
def test_a_kernel_that_does_not_compile_costs_only_itself(monkeypatch):
    """A unit with a broken kernel is given up, and each of its kernels is compiled alone."""
    sources = build.sources

    def broken(*arguments):
        *rest, configs, names = arguments
        texts = sources(*rest, configs, names)
        return [
            f"{text}\n#error broken" if values["nr"] == LANES else text for text, values in zip(texts, configs, strict=True)
        ]

    monkeypatch.setattr(build, "sources", broken)
    backend, small = InductorBackend(), problem(M=3, N=16, K=8, threads=1)
    good = {"kind": "tile", "mr": 1, "nr": LANES, "mc": 0, "kc": 0, "split": "default"}
    vectors = [(small, Config(gemm_inductor_cpp, {**good, "nr": nr})) for nr in (LANES, 2 * LANES)]
    backend.compile(vectors)
    with pytest.raises(CannotCompile, match="broken"):
        backend.prepare(*vectors[0])
    assert backend.prepare(*vectors[1]).check() == 0.0


def test_the_collector_runs_them(tmp_path):
    """Tiles that divide nothing, gaps in A, threads, and ATen: every result is right; rows say which torch and compiler."""
    given = [*TILES, {"kind": "aten"}]
    configs = pl.DataFrame([{f"config.{name}": value for name, value in values.items()} for values in given])
    vectors = configs.with_columns(
        *(pl.lit(value).alias(f"problem.{name}") for name, value in problem(lda=160).as_dict().items())
    )
    policy = Policy(samples=2, fewest_samples=2, sample_ns=20_000, warmup_ns=20_000, give_up=1e9)
    collect(Request(gemm_inductor_cpp, "inductor", ("0",), tmp_path / "d", policy), [vectors])
    rows = Dataset.open(tmp_path / "d").read()
    assert rows["status"].to_list() == ["ok"] * 4
    assert all(f'"{name}"' in rows["software"][0] for name in ("torch", "isa", "compiler"))


def test_importing_the_backend_does_not_import_torch():
    """torch takes seconds to load, and most users never need it."""
    import subprocess

    home = "kerncast.measuring.backends"
    code = f"import sys, {home} as them, {home}.inductor; them.backends(); sys.exit('torch' in sys.modules)"
    assert subprocess.run([sys.executable, "-c", code], check=False).returncode == 0
