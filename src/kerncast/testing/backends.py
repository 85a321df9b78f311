"""Tests that every backend must pass, with its own good kernels and with kernels that do everything wrong.

Subclass `BackendContract` in a test module. The faults are put on top of the backend under test by `Faulty`,
so a backend need not ship broken kernels to prove that collecting with it is safe.

    class TestMine(BackendContract):
        backend = "mine"
        family = "gemm/mine"

        def vectors(self):
            return a polars frame with problem.* and config.* columns, at least 12 rows
"""

from __future__ import annotations

import ctypes
import json
import math
import os
import signal
import subprocess
import sys
import time
import zlib
from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager
from pathlib import Path
from typing import Any, ClassVar

import polars as pl
from msgspec import structs

from kerncast import devices
from kerncast.backends import get_backend
from kerncast.backends.contract import Backend, Failed, Prepared
from kerncast.collecting.messages import Policy
from kerncast.collecting.run import Request, Summary, collect
from kerncast.data import Dataset, schema
from kerncast.device import Device
from kerncast.op import Config, Problem
from kerncast.registry import FAMILIES

PLAN = "KERNCAST_TEST_FAULTS"
FAULTY = "kerncast.testing.backends:Faulty"
# What a row must say after each fault. A kernel that spoils others is found out by a good one that runs after it.
EXPECTED = {
    "compile_segfault": "crash",
    "close_segfault": "crash",
    "segfault": "crash",
    "hang": "timeout",
    "leak": "out_of_memory",
    "spoil": "wrong_result",
    "print": "ok",
    "garbage": "wrong_result",
    "throw": "launch_error",
    "poison": "launch_error",
}
QUICK = Policy(
    samples=3,
    fewest_samples=2,
    sample_ns=20_000,
    warmup_ns=20_000,
    # Long enough for a good kernel on a machine that stalls; a test waits for it once for every kernel that hangs.
    deadline_floor_ns=5_000_000_000,
    deadline_ceiling_ns=6_000_000_000,
)


class Instant(Backend):
    """Runs any family without doing anything, to measure the overhead of collecting itself."""

    name = "instant"
    families = ("*",)

    def device(self) -> Device:
        return devices.local()

    def software(self, family: str) -> Mapping[str, str]:
        return {"instant": "1"}

    def prepare(self, problem: Problem, config: Config) -> Prepared:
        return _Instantly(1000 + zlib.crc32(repr(tuple(config.items())).encode()) % 1000)


class _Instantly(Prepared):
    def __init__(self, time_ns: int) -> None:
        self.time_ns = time_ns

    def run(self, launches: int) -> int:
        return launches * self.time_ns

    def check(self) -> float:
        return 0.0


class Analytic(Instant):
    """Triton tiles whose times follow a formula, so that the best config of a problem is known and can be learned."""

    name = "analytic"
    families = ("gemm/triton",)

    def prepare(self, problem: Problem, config: Config) -> Prepared:
        return _Instantly(analytic_ns(problem.as_dict(), config.as_dict()))


def analytic_ns(p: Mapping[str, Any], c: Mapping[str, Any]) -> int:
    """Edges are wasted, small tiles load more often, and warps and stages have a best number for each tile."""
    if c["kind"] == "library":
        return 20_000 + int(p["M"] * p["N"] * p["K"]) // 40
    rows, columns = -(-p["M"] // c["BLOCK_M"]) * c["BLOCK_M"], -(-p["N"] // c["BLOCK_N"]) * c["BLOCK_N"]
    loads = 1.0 + 64.0 / c["BLOCK_M"] + 64.0 / c["BLOCK_N"] + 16.0 / c["BLOCK_K"]
    warps = 1.0 + 0.2 * abs(math.log2(c["BLOCK_M"] * c["BLOCK_N"] / 2048 / c["num_warps"]))
    stages = 1.0 + 0.05 * abs(c["num_stages"] - 3)
    return 5_000 + int(rows * columns * p["K"] * loads * warps * stages / 200)


class Faulty(Backend):
    """Another backend, with faults in the vectors that the environment names by the text of their config."""

    name = "faulty"
    families = ("*",)
    poisoned = False
    spoiled = False
    """Whether a kernel changed what the others use: their results are wrong from then on, its own are right."""

    def __init__(self, index: str = "0") -> None:
        super().__init__(index)
        plan = json.loads(os.environ[PLAN])
        self.inner = get_backend(plan["backend"])(index)
        self.faults: dict[str, str] = plan["faults"]
        self.runs_on_cpu = self.inner.runs_on_cpu  # type: ignore[misc]

    def device(self) -> Device:
        return self.inner.device()

    def software(self, family: str) -> Mapping[str, str]:
        return self.inner.software(family)

    def compile(self, vectors: Sequence[tuple[Problem, Config]], jobs: int = 1) -> None:
        if any(self.faults.get(vector_text(*vector)) == "compile_segfault" for vector in vectors):
            ctypes.string_at(0)
        self.inner.compile(vectors, jobs)

    def tolerance(self, problem: Problem) -> float:
        return self.inner.tolerance(problem)

    def sentinel(self, kind: str) -> Prepared | None:
        kernel = self.inner.sentinel(kind)
        return None if kernel is None else _Faulty(self, kernel, "")

    def prepare(self, problem: Problem, config: Config) -> Prepared:
        return _Faulty(self, self.inner.prepare(problem, config), self.faults.get(vector_text(problem, config), ""))


class _Faulty(Prepared):
    def __init__(self, backend: Faulty, kernel: Prepared, fault: str) -> None:
        self.backend, self.kernel, self.fault = backend, kernel, fault

    def run(self, launches: int) -> int:
        if Faulty.poisoned:
            raise Failed("an earlier kernel poisoned this process")
        match self.fault:
            case "segfault":
                ctypes.string_at(0)
            case "hang":
                while True:
                    time.sleep(60)
            case "leak":
                hoard = []
                while True:
                    hoard.append(bytearray(1 << 24))
            case "throw":
                raise RuntimeError("the kernel threw")
            case "poison":
                Faulty.poisoned = True
                raise Failed("the kernel poisoned its process")
            case "print":
                os.write(1, b"noise on standard output\n")
            case "slow":
                time.sleep(0.05)
        return self.kernel.run(launches)

    def check(self) -> float:
        if Faulty.poisoned:
            raise Failed("an earlier kernel poisoned this process")
        if self.fault == "spoil":
            Faulty.spoiled = True
            return self.kernel.check()
        return 1e30 if self.fault == "garbage" or Faulty.spoiled else self.kernel.check()

    def close(self) -> None:
        if self.fault == "close_segfault":
            ctypes.string_at(0)
        self.kernel.close()


def vector_text(problem: Problem, config: Config) -> str:
    """The text by which `Faulty` finds a vector."""
    return json.dumps([problem.as_dict(), config.as_dict()], sort_keys=True)


class BackendContract:
    """Good kernels are measured and exact; a bad one affects only its own row; a killed collection can be continued."""

    backend: ClassVar[str]
    family: ClassVar[str]
    policy: ClassVar[Policy] = QUICK
    memory_bytes: ClassVar[int] = 400 << 20

    def vectors(self) -> pl.DataFrame:
        """At least 12 valid vectors, columns `problem.*` and `config.*`."""
        raise NotImplementedError

    def _collect(self, out: Path, backend: str, vectors: pl.DataFrame, **changes: Any) -> Summary:
        policy = structs.replace(self.policy, **changes)
        return collect(Request(FAMILIES.get(self.family), backend, ("0",), out, policy, chunk_size=8), [vectors])

    def _texts(self, vectors: pl.DataFrame) -> list[str]:
        family = FAMILIES.get(self.family)
        vectors = schema.with_optional(family, vectors).select(list(schema.parameter_columns(family)))
        return [
            vector_text(Problem.trusted(family, _prefixed(row, "problem.")), Config.trusted(family, _prefixed(row, "config.")))
            for row in vectors.iter_rows(named=True)
        ]

    def test_good_kernels_are_measured_and_exact(self, tmp_path: Path) -> None:
        """Every vector gets an ok row with a positive time and an error within the tolerance."""
        vectors = self.vectors()
        self._collect(tmp_path / "d", self.backend, vectors)
        rows = Dataset.open(tmp_path / "d").read()
        assert rows["status"].to_list() == ["ok"] * vectors.height, rows["error"].to_list()
        assert (rows["time_ns"] > 0).all()
        assert rows["key"].n_unique() == vectors.height
        assert not (tmp_path / "d" / "journal.jsonl").exists()

    def test_each_fault_costs_one_row_and_the_rest_goes_on(self, tmp_path: Path) -> None:
        """Whatever a kernel does, in compiling and closing too, its own row says it: all the others are measured."""
        vectors = self.vectors()
        family = FAMILIES.get(self.family)
        texts = self._texts(vectors)
        faults = dict(zip(texts[1:], EXPECTED, strict=False))
        with planned(self.backend, faults):
            self._collect(tmp_path / "d", FAULTY, vectors, memory_bytes=self.memory_bytes)
        rows = Dataset.open(tmp_path / "d").read()
        keys = schema.row_keys(family, vectors.with_columns(device=pl.lit(rows["device"][0])))
        found = dict(zip(rows["key"], rows["status"], strict=True))
        expected = [EXPECTED[faults[text]] if text in faults else "ok" for text in texts]
        assert [found[key] for key in keys] == expected

    def test_a_killed_collection_is_resumed_without_losing_or_repeating_a_row(self, tmp_path: Path) -> None:
        """kill -9 of the supervisor, then the same call again."""
        vectors = self.vectors()
        vectors.write_parquet(tmp_path / "vectors.parquet")
        code = (
            "import polars as pl; from pathlib import Path; from kerncast.testing.backends import *\n"
            f"class C(BackendContract): backend, family = {self.backend!r}, {self.family!r}\n"
            f"C()._collect(Path({str(tmp_path / 'd')!r}), FAULTY, pl.read_parquet({str(tmp_path / 'vectors.parquet')!r}))"
        )
        journal = tmp_path / "d" / "journal.jsonl"
        with planned(self.backend, dict.fromkeys(self._texts(vectors), "slow")):
            process = subprocess.Popen([sys.executable, "-c", code])
            deadline = time.monotonic() + 120
            # The first chunk is in, the second is being measured.
            while time.monotonic() < deadline and not (journal.exists() and journal.read_bytes().count(b"\n") > 8):
                time.sleep(0.02)
            os.kill(process.pid, signal.SIGKILL)
            process.wait()
        assert journal.exists()
        with planned(self.backend, {}):
            summary = self._collect(tmp_path / "d", FAULTY, vectors)
        assert 0 < summary.already_there < vectors.height
        rows = Dataset.open(tmp_path / "d").read()
        assert rows.height == rows["key"].n_unique() == vectors.height


@contextmanager
def planned(backend: str, faults: dict[str, str]) -> Iterator[None]:
    """Give `Faulty` workers that are started inside these faults."""
    os.environ[PLAN] = json.dumps({"backend": backend, "faults": faults})
    try:
        yield
    finally:
        del os.environ[PLAN]


def _prefixed(row: dict[str, Any], prefix: str) -> dict[str, Any]:
    return {name.removeprefix(prefix): value for name, value in row.items() if name.startswith(prefix)}
