"""The opencl backend under the collector: good kernels, faults, a killed collection."""

import polars as pl
import pytest

from kerncast.measuring.messages import Policy
from kerncast.testing.backends import BackendContract

pytestmark = pytest.mark.needs("a working OpenCL")

CONFIG = {
    "MWG": 8, "NWG": 16, "MDIMC": 2, "NDIMC": 2, "VWM": 1, "VWN": 4, "local_a": False, "local_b": False, "KWG": None,
    "KWI": 1, "strided_m": False, "strided_n": False, "guard": True,
}  # fmt: skip
LOCAL = {**CONFIG, "local_a": True, "local_b": True, "KWG": 8}


class TestOpenCl(BackendContract):
    backend, family = "opencl", "gemm/opencl"
    # A driver compiles inside `prepare`, and its compiler takes memory of its own.
    memory_bytes = 1 << 30
    policy = Policy(
        samples=3,
        fewest_samples=2,
        sample_ns=20_000,
        warmup_ns=20_000,
        deadline_floor_ns=4_000_000_000,
        deadline_ceiling_ns=12_000_000_000,
    )

    def vectors(self):
        """Two programs on six problems."""
        problem = {"M": 24, "N": 40, "K": 30, "split_k": 1, "batch": 1, "dtype": "fp32", "layout": "rrr"}
        rows = [
            {f"problem.{x}": y for x, y in {**problem, "M": 20 + at}.items()} | {f"config.{x}": y for x, y in config.items()}
            for at in range(6)
            for config in (CONFIG, LOCAL)
        ]
        return pl.DataFrame(rows, schema_overrides={"config.KWG": pl.Int64})
