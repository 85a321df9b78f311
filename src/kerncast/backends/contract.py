"""What a backend is: it prepares one (family, problem, config) on one device, runs it and checks the result.

A backend lives in a worker process that may be killed at any moment; it need not defend itself against
kernels that crash or hang, for the supervisor does. It says what went wrong by raising one of the exceptions
below; any other exception counts as a launch error.
"""

from __future__ import annotations

import abc
from collections.abc import Mapping, Sequence
from typing import ClassVar

from kerncast.device import Device
from kerncast.op import Config, Problem


class Failed(Exception):
    """A vector that cannot be measured; `status` is what its row will say."""

    status: ClassVar[str] = "launch_error"


class CannotCompile(Failed):
    """The kernel does not build."""

    status = "compile_error"


class OutOfMemory(Failed):
    """The buffers or the kernel do not fit."""

    status = "out_of_memory"


class Unsupported(Failed):
    """This device or backend cannot run such a problem at all."""

    status = "unsupported"


class WrongResult(Failed):
    """It ran, but what it computed is not what it should be."""

    status = "wrong_result"

    def __init__(self, max_abs_err: float) -> None:
        super().__init__(f"the largest error is {max_abs_err:g}")
        self.max_abs_err = max_abs_err


class Prepared(abc.ABC):
    """A kernel with its buffers, ready to launch."""

    @abc.abstractmethod
    def run(self, launches: int) -> int:
        """Launch it so many times in a row; nanoseconds for all of them, by the backend's own clock."""

    @abc.abstractmethod
    def check(self) -> float:
        """Launch it once and return the largest absolute error of the result (0.0 when exact)."""

    def close(self) -> None:
        """Give back what it holds."""
        return


class Backend(abc.ABC):
    """Runs the kernels of some families on one device. Constructed once per worker process."""

    name: ClassVar[str]
    doc: ClassVar[str] = ""
    families: ClassVar[tuple[str, ...]]
    max_prepared: ClassVar[int] = 64
    """How many kernels may be prepared at once; 1 means that samples of different vectors cannot interleave."""

    runs_on_cpu: ClassVar[bool] = False
    """Kernels run on this process's own CPU time, so that a pre-empted sample can be told by it."""

    @classmethod
    def devices(cls) -> list[str]:
        """The indices of the devices at hand, as `--devices` takes them."""
        return ["0"]

    @classmethod
    def unavailable(cls) -> str | None:
        """Why this backend cannot work on this machine and what to do about it; None when it can."""
        return None

    def __init__(self, index: str = "0") -> None:
        self.index = index

    @abc.abstractmethod
    def device(self) -> Device:
        """The profile of the device, measured numbers included."""

    @abc.abstractmethod
    def software(self) -> Mapping[str, str]:
        """What else decides the times: compiler, driver, library versions."""

    @abc.abstractmethod
    def prepare(self, problem: Problem, config: Config) -> Prepared:
        """Buffers and kernel for one vector."""

    def compile(self, vectors: Sequence[tuple[Problem, Config]], jobs: int = 1) -> None:
        """Build what the vectors need, many at a time; `prepare` must then be quick."""
        return

    def compilations(self, vectors: Sequence[tuple[Problem, Config]]) -> int:
        """How many kernels `compile` would have to build (0: none, or all are cached)."""
        return 0

    def sentinel(self, kind: str) -> Prepared | None:
        """A fixed small kernel that tells whether the machine is disturbed: `compute` or `memory`."""
        return None

    def tolerance(self, problem: Problem) -> float:
        """The largest absolute error that still counts as correct."""
        return 0.0

    def flush_cache(self) -> bool:
        """Make the next launch find cold caches; False when the backend cannot (then `--cache cold` is refused)."""
        return False

    def reset(self) -> None:
        """Bring the device back after a failure that spoiled it."""
        return
