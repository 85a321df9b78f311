"""The cpu backend under the collector: good kernels, faults, a killed collection, cold caches."""

import polars as pl
import pytest

from kerncast import devices
from kerncast.backends.cpu import CpuBackend
from kerncast.collecting.messages import Policy
from kerncast.collecting.run import Request, collect
from kerncast.data import Dataset
from kerncast.families.gemm_cpu import config_set, gemm_cpu
from kerncast.testing.backends import BackendContract

pytestmark = pytest.mark.skipif(CpuBackend.unavailable() is not None, reason="no C compiler")


def vectors(count, **sizes):
    """The first configs of the quick set on one small problem."""
    problem = {"M": 40, "N": 50, "K": 60, "split_k": 1, "batch": 1, "dtype": "fp32", "layout": "rrr", "threads": 1, **sizes}
    configs = config_set("quick", problem, devices.local()).head(count)
    return configs.rename({name: f"config.{name}" for name in configs.columns}).with_columns(
        *(pl.lit(value).alias(f"problem.{name}") for name, value in problem.items())
    )


class TestCpu(BackendContract):
    backend, family = "cpu", "gemm/cpu"

    def vectors(self):
        return vectors(12)


def test_cold_caches_are_slower_than_warm_ones(tmp_path):
    """Operands of 800 kB have to come from memory again."""
    times = {}
    for cache in ("warm", "cold"):
        policy = Policy(samples=5, fewest_samples=5, cache=cache, give_up=1e9)
        collect(Request(gemm_cpu, "cpu", ("0",), tmp_path / cache, policy), [vectors(2, M=1, N=400, K=500)])
        rows = Dataset.open(tmp_path / cache).read()
        assert rows["cache"].unique().to_list() == [cache]
        times[cache] = rows["time_ns"].min()
    assert times["cold"] > times["warm"]
