"""The cpu backend under the collector: good kernels, faults, a killed collection, cold caches."""

import polars as pl
import pytest

from kerncast.data import Dataset
from kerncast.library import devices
from kerncast.library.families.gemm_cpu import config_set, gemm_cpu
from kerncast.measuring.backends.cpu import CpuBackend
from kerncast.measuring.collection import Request
from kerncast.measuring.messages import Policy
from kerncast.measuring.run import collect
from kerncast.testing.backends import BackendContract

pytestmark = pytest.mark.needs("a C compiler")


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


def test_caches_can_be_made_cold(tmp_path):
    """By reading twice what the last cache holds; one launch is a sample, and the rows say so."""
    backend = CpuBackend()
    assert backend.flush_cache()
    assert backend._eviction._data.nbytes >= 2048 * max(
        devices.local().numbers.get(f"l{level}_cache_kb", 0) for level in (2, 3)
    )
    policy = Policy(samples=3, fewest_samples=3, cache="cold", give_up=1e9)
    collect(Request(gemm_cpu, "cpu", ("0",), tmp_path / "d", policy), [vectors(2)])
    rows = Dataset.open(tmp_path / "d").read()
    assert rows.select("cache", "status", "inner_loops").rows() == [("cold", "ok", 1)] * 2
