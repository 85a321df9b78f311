"""Backends that do nothing, and one that puts faults on top of another backend.

A worker imports this module each time it is started, so it imports little.
"""

from __future__ import annotations

import ctypes
import json
import math
import mmap
import os
import random
import time
import zlib
from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager
from typing import Any

from kerncast.core.device import Device
from kerncast.core.op import Config, Problem
from kerncast.library import devices
from kerncast.measuring.backends import get_backend
from kerncast.measuring.backends.contract import Backend, Failed, Prepared

PLAN = "KERNCAST_TEST_FAULTS"
FAULTY = "kerncast.testing.faults:Faulty"
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
# Also what these give: they only take time, need a limit on resident memory, or a backend without a sentinel (which would fail
# at once, so that the kernel itself could not be timed).
OUTCOMES = {"": "ok", "slow": "ok", "hoard": "out_of_memory", "break": "wrong_result", **EXPECTED}
SLOW_SECONDS = 0.05
# A hoarder stops here, in case nobody ends it.
HOARDED_BYTES = 1 << 29


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


class Telling(Instant):
    """The time of a vector tells which one it is, so that a time in the row of another one is seen."""

    name = "telling"

    def prepare(self, problem: Problem, config: Config) -> Prepared:
        return _Instantly(telling_ns(vector_text(problem, config)))


def telling_ns(text: str) -> int:
    """The time of the vector with this text: 1 to 2 ms, so that many of a problem nearly tie."""
    return 1_000_000 + zlib.crc32(text.encode()) % 1_000_000


class Sleeping(Telling):
    """A device that is as busy as its kernels say and needs no core for it: as many as one likes fit on a machine."""

    name = "sleeping"

    def device(self) -> Device:
        return devices.get("a100")

    def prepare(self, problem: Problem, config: Config) -> Prepared:
        return _Asleep(telling_ns(vector_text(problem, config)))


class _Asleep(_Instantly):
    def run(self, launches: int) -> int:
        time.sleep(launches * self.time_ns / 1e9)
        return launches * self.time_ns


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


# -- faults --------------------------------------------------------------------------------------------


class Faults:
    """Which vector has which fault: those that are named, and a share of all others, drawn by a seed."""

    def __init__(self, named: Mapping[str, str], shares: Mapping[str, float], seed: int) -> None:
        """`named` is by the text of a vector (`vector_text`), `shares` by fault."""
        self.named, self.shares, self.seed = named, shares, seed

    def of(self, text: str) -> str:
        """The fault of the vector with this text, or nothing. The same in every process."""
        if text in self.named:
            return self.named[text]
        drawn = random.Random(f"{self.seed} {text}").random()
        for fault, share in self.shares.items():
            if drawn < share:
                return fault
            drawn -= share
        return ""


class Faulty(Backend):
    """Another backend, with faults in the vectors that the environment says (`planned`)."""

    name = "faulty"
    families = ("*",)
    poisoned = False
    """Whether a kernel broke this process: the launches of all others fail from then on."""
    spoiled = False
    """Whether a kernel changed what the others use: their results are wrong from then on, its own are right."""

    @classmethod
    def devices(cls) -> list[str]:
        """As many as anybody asks for."""
        return [str(index) for index in range(8)]

    def __init__(self, index: str = "0") -> None:
        super().__init__(index)
        plan = json.loads(os.environ[PLAN])
        self.inner = get_backend(plan["backend"])(index)
        self.faults = Faults(plan["faults"], plan["shares"], plan["seed"])
        self.runs_on_cpu = self.inner.runs_on_cpu  # type: ignore[misc]

    def device(self) -> Device:
        return self.inner.device()

    def software(self, family: str) -> Mapping[str, str]:
        return self.inner.software(family)

    def compile(self, vectors: Sequence[tuple[Problem, Config]], jobs: int = 1) -> None:
        if any(self.faults.of(vector_text(*vector)) == "compile_segfault" for vector in vectors):
            ctypes.string_at(0)
        self.inner.compile(vectors, jobs)

    def tolerance(self, problem: Problem) -> float:
        return self.inner.tolerance(problem)

    def sentinel(self, kind: str) -> Prepared | None:
        kernel = self.inner.sentinel(kind)
        return None if kernel is None else _Faulty(kernel, "")

    def prepare(self, problem: Problem, config: Config) -> Prepared:
        return _Faulty(self.inner.prepare(problem, config), self.faults.of(vector_text(problem, config)))


class _Faulty(Prepared):
    def __init__(self, kernel: Prepared, fault: str) -> None:
        self.kernel, self.fault = kernel, fault

    def run(self, launches: int) -> int:
        if Faulty.poisoned and self.fault != "break":
            raise Failed("an earlier kernel poisoned this process")
        match self.fault:
            case "segfault":
                ctypes.string_at(0)
            case "hang":
                _wait_for_ever()
            case "leak":
                hoard = []
                while True:
                    hoard.append(bytearray(1 << 24))
            case "hoard":
                # Shared pages: no allocation fails, so only the supervisor can notice it.
                held = mmap.mmap(-1, HOARDED_BYTES)
                for start in range(0, HOARDED_BYTES, mmap.PAGESIZE):
                    held[start] = 1
                _wait_for_ever()
            case "throw":
                raise RuntimeError("the kernel threw")
            case "poison":
                Faulty.poisoned = True
                raise Failed("the kernel poisoned its process")
            case "break":
                Faulty.poisoned = True
            case "print":
                os.write(1, b"noise on standard output\n")
            case "slow":
                time.sleep(SLOW_SECONDS)
        return self.kernel.run(launches)

    def check(self) -> float:
        if Faulty.poisoned and self.fault != "break":
            raise Failed("an earlier kernel poisoned this process")
        if self.fault == "spoil":
            Faulty.spoiled = True
            return self.kernel.check()
        return 1e30 if self.fault == "garbage" or Faulty.spoiled else self.kernel.check()

    def close(self) -> None:
        if self.fault == "close_segfault":
            ctypes.string_at(0)
        self.kernel.close()


def _wait_for_ever() -> None:
    while True:
        time.sleep(60)


def vector_text(problem: Problem, config: Config) -> str:
    """The text by which `Faulty` finds a vector."""
    # Without optional parameters that are not given: a family that gets more of them keeps its faults.
    return json.dumps([problem.as_dict(), dict(config)], sort_keys=True)


def plan(backend: str, faults: Mapping[str, str], shares: Mapping[str, float] | None = None, seed: int = 0) -> dict[str, str]:
    """The environment that gives `Faulty` workers a backend and its faults."""
    return {PLAN: json.dumps({"backend": backend, "faults": dict(faults), "shares": dict(shares or {}), "seed": seed})}


@contextmanager
def planned(backend: str, faults: Mapping[str, str]) -> Iterator[None]:
    """Give `Faulty` workers that are started inside these faults."""
    os.environ.update(plan(backend, faults))
    try:
        yield
    finally:
        del os.environ[PLAN]
