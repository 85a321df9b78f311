"""The memory of a worker: what is free, what it took, and what happens to one that takes too much."""

import subprocess
import sys

import polars as pl
import pytest

from kerncast.core.op import Config, Problem
from kerncast.data import Dataset
from kerncast.errors import InvalidValue
from kerncast.library import devices
from kerncast.library.declared.family_file import family_named
from kerncast.measuring.backends.environment import available_bytes, worker_share
from kerncast.measuring.collection import Request
from kerncast.measuring.plan import memory_bytes
from kerncast.measuring.run import collect
from kerncast.testing.backends import FAULTY, QUICK, planned, vector_text

GB = 1 << 30
TRITON = family_named("gemm/triton")


@pytest.fixture
def machine(tmp_path):
    """A /proc and a /sys/fs/cgroup with 8 GB free; `write` puts files there."""

    def write(**files):
        for name, text in files.items():
            path = tmp_path / name.replace("__", "/").replace("DOT", ".")
            path.parent.mkdir(parents=True, exist_ok=True)
            path.write_text(text)

    write(proc__meminfo=f"MemTotal:  99 kB\nMemAvailable:  {8 * GB // 1024} kB\n")
    return write, lambda: available_bytes(tmp_path / "proc", tmp_path / "cgroup")


def test_what_is_free_is_what_the_machine_and_every_control_group_leave(machine):
    """The tightest limit counts, also one further up, and pages of files are as good as free."""
    write, available = machine
    assert available() == 8 * GB
    write(proc__self__cgroup="0::/a/b\n")
    write(cgroup__a__b__memoryDOTmax="max\n", cgroup__a__b__memoryDOTcurrent="5\n")
    assert available() == 8 * GB
    write(cgroup__a__memoryDOTmax=f"{4 * GB}\n", cgroup__a__memoryDOTcurrent=f"{3 * GB}\n")
    assert available() == 1 * GB
    write(cgroup__a__memoryDOTstat=f"anon 7\ninactive_file {GB}\n")
    assert available() == 2 * GB


def test_control_groups_of_the_first_version_count_too(machine):
    """The path is the host's in a container: then the root is the group."""
    write, available = machine
    write(proc__self__cgroup="3:cpu,memory:/docker/abc\n1:name=systemd:/\n")
    write(cgroup__memory__memoryDOTlimit_in_bytes=f"{2 * GB}\n", cgroup__memory__memoryDOTusage_in_bytes=f"{GB}\n")
    assert available() == 1 * GB


def test_workers_share_what_is_free_and_reserved_address_space_is_not_counted():
    """Half for each of two; a mapping that nobody wrote to takes nothing, in a process where nothing else happens."""
    assert worker_share(2) == pytest.approx(worker_share(1) / 2, rel=0.3)
    code = (
        "import mmap, os; from kerncast.measuring.backends.environment import resident_bytes as taken\n"
        "written = bytes(64 << 20); "
        "before = taken(os.getpid()); reserved = mmap.mmap(-1, 1 << 30, flags=mmap.MAP_PRIVATE); "
        "untouched = taken(os.getpid()); reserved[: len(written)] = written; "
        "print(untouched - before, taken(os.getpid()) - before)"
    )
    untouched, touched = subprocess.check_output([sys.executable, "-c", code], text=True).split()
    assert int(untouched) < GB // 2
    assert int(touched) > 60 << 20


def test_a_worker_that_grows_beyond_its_share_costs_one_row_without_any_limit_on_allocations(tmp_path):
    """What `--memory` is not asked to do, watching does."""
    configs = TRITON.config.sample(6, 0, TRITON.bindings({"dtype": "fp16"}, devices.get("a100")))
    values = {"M": 64, "N": 64, "K": 64, "split_k": 1, "batch": 1, "dtype": "fp16", "layout": "rcr", "tf32": False}
    frame = configs.rename({name: f"config.{name}" for name in configs.columns}).with_columns(
        *(pl.lit(value).alias(f"problem.{name}") for name, value in values.items())
    )
    row = frame.row(3, named=True)
    problem = Problem.trusted(TRITON, {name: row.get(f"problem.{name}") for name in TRITON.problem.parameters})
    config = Config.trusted(TRITON, {name: row[f"config.{name}"] for name in TRITON.config.parameters})
    with planned("kerncast.testing.backends:Instant", {vector_text(problem, config): "leak"}):
        collect(Request(TRITON, FAULTY, ("0",), tmp_path / "d", QUICK, memory_bytes=300 << 20), [frame])
    rows = Dataset.open(tmp_path / "d").read()
    assert sorted(rows["status"]) == ["ok"] * 5 + ["out_of_memory"]
    words = rows.filter(pl.col("status") == "out_of_memory")["error"][0]
    assert "more than the 0.31 GB that a worker may have; the worker was killed (see `memory`)" in words


def test_the_option_takes_gigabytes_or_none():
    """Nothing is the default, 0 and none turn it off."""
    assert [memory_bytes(text) for text in (None, "none", "0", "2.5")] == [None, 0, 0, 2_500_000_000]
    with pytest.raises(InvalidValue, match="`memory` takes GB"):
        memory_bytes("much")
