"""What the cpu backend proposes where nothing is known about a problem."""

import numpy as np
import pytest

from kerncast.core.op import Problem
from kerncast.library.families.gemm_cpu import SETS, gemm_cpu
from kerncast.measuring.backends.contract import TRIALS, Backend, Unsupported
from kerncast.measuring.backends.cpu import CpuBackend
from kerncast.measuring.backends.cpu.gemm.arrays import MatrixProduct

pytestmark = pytest.mark.needs("a C compiler")


@pytest.fixture(autouse=True)
def _own_cache(tmp_path, monkeypatch):
    monkeypatch.setenv("KERNCAST_CACHE", str(tmp_path))


def test_promising_configs_are_tried_first():
    """Where there are many rows those that pack both operands, for a vector those that read it in place; all are valid."""
    real = CpuBackend()
    for m, pack in ((512, True), (1, None)):
        problem = Problem(gemm_cpu, M=m, N=1024, K=1024, dtype="fp32", layout="rcr")
        found = list(real.first_configs(problem))
        assert len(found) == len(set(found)) == SETS["quick"]
        assert [chosen.pack_a for chosen in found[:5]] == [pack] * 5
        known = gemm_cpu.bindings(problem, real.device())
        assert not any(gemm_cpu.config.validate(chosen.as_dict(), known) for chosen in found)
    drawn = list(super(CpuBackend, real).first_configs(problem))
    assert len(set(drawn)) == TRIALS, "what a backend that knows no better tries"


def test_a_few_small_problems_stand_for_all():
    """Few rows stay few, long sides become one of a few lengths; what is short stays what it is."""
    backend, small = CpuBackend(), []
    for m, n, k in ((1, 4096, 8192), (3, 14336, 4096), (700, 3000, 5000), (5000, 1, 6000), (60, 50, 40)):
        found = backend.smaller(Problem(gemm_cpu, M=m, N=n, K=k, batch=2, dtype="fp32", layout="rrr"))
        small.append((found.M, found.N, found.K, found.batch))
        assert backend.smaller(found) == found
    assert small == [(1, 1920, 2048, 1), (4, 1920, 2048, 1), (120, 960, 1024, 1), (1920, 1, 2048, 1), (60, 50, 40, 2)]


def test_a_backend_without_calls_refuses_arrays():
    """What a backend does not say how to run on arrays, it refuses; a problem is then its own small one."""
    backend, ones = CpuBackend(), np.ones((2, 2), np.float32)
    problem = Problem(gemm_cpu, M=2, N=2, K=2, dtype="fp32", layout="rrr")
    assert Backend.smaller(backend, problem) is problem
    with pytest.raises(Unsupported, match="runs no kernels on arrays of the caller"):
        Backend.bind(backend, MatrixProduct.of(ones, ones), problem, next(backend.first_configs(problem)))
