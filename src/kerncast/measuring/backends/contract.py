"""What a backend is: it prepares one (family, problem, config) on one device, runs it and checks the result.

A backend runs in a worker process that may be killed at any moment; it need not defend itself against
kernels that crash or hang, because the supervisor does. It says what went wrong by raising one of the exceptions
below; any other exception counts as a launch error.
"""

from __future__ import annotations

import abc
from collections.abc import Callable, Hashable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from typing import ClassVar, Protocol, Self

from kerncast.core.arrays import Array
from kerncast.core.device import Device
from kerncast.core.op import Config, Problem
from kerncast.errors import InvalidValue

# Valid configs to draw if a backend knows no better ones to try.
TRIALS = 256


class Failed(Exception):
    """A vector that cannot be measured; `status` is what its row will say."""

    status: str = "launch_error"


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


class Ended(Failed):
    """An external program ended with this status."""

    def __init__(self, status: str, message: str) -> None:
        super().__init__(message)
        self.status = status


class Prepared(abc.ABC):
    """A kernel with its buffers, ready to launch."""

    @abc.abstractmethod
    def run(self, launches: int) -> int:
        """Launch it `launches` times in a row; return the nanoseconds for all of them, by the backend's own clock."""

    @abc.abstractmethod
    def check(self) -> float:
        """Launch it once and return the largest absolute error of the result (0.0 when exact)."""

    def close(self) -> None:
        """Release what it holds."""
        return


class CheckedOperands(Protocol):
    """What the kernels of one problem read and write, and what must come out."""

    def poison(self) -> None:
        """Fill the result with what no kernel computes."""

    def error(self) -> float:
        """The largest absolute difference of the result from what it must be; infinite where nothing was written."""


class CheckedKernel(Prepared):
    """A kernel on operands that know the result; without operands there is nothing to check."""

    def __init__(self, operands: CheckedOperands | None = None) -> None:
        self.operands = operands

    def check(self) -> float:
        if self.operands is not None:
            self.operands.poison()
        self.run(1)
        return 0.0 if self.operands is None else self.operands.error()


class Bound(abc.ABC):
    """A kernel that runs on the caller's arrays. One object serves every call with the same signature."""

    @abc.abstractmethod
    def __call__(self, *arrays: Array, out: Array | None = None) -> Array:
        """The result, in `out` where that is given."""


class Call(abc.ABC):
    """The problem that the arrays of a call make, by their shapes, strides and types alone. It holds no data."""

    @staticmethod
    @abc.abstractmethod
    def signature(*arrays: Array, **attributes: Hashable) -> Hashable:
        """Equal for calls that one `Bound` serves. It is computed in every call, so nothing is checked."""

    @classmethod
    @abc.abstractmethod
    def of(cls, *arrays: Array, **attributes: Hashable) -> Self:
        """The checked call; InvalidValue with the rule if the arrays do not fit each other or the family."""

    @property
    @abc.abstractmethod
    def values(self) -> Mapping[str, int | bool | str]:
        """The problem's values, except those that only the environment knows (threads)."""

    @abc.abstractmethod
    def without_kernel(self) -> Bound | None:
        """What computes the result if no kernel is needed (empty arrays), else None."""


class Backend(abc.ABC):
    """Runs the kernels of some families on one device. Constructed once per worker process."""

    name: ClassVar[str]
    doc: ClassVar[str] = ""
    families: ClassVar[tuple[str, ...]]
    max_prepared: ClassVar[int] = 64
    """How many kernels may be prepared at once; 1 means that samples of different vectors cannot interleave."""

    runs_on_cpu: ClassVar[bool] = False
    """Whether kernels use this process's own CPU time, which then shows that a sample was pre-empted."""

    calls: ClassVar[Mapping[str, type[Call]]] = {}
    """By family: how a caller's arrays become a problem. `bind` runs the families named here."""

    @classmethod
    def devices(cls) -> list[str]:
        """The indices of this machine's devices, as `--devices` takes them."""
        return ["0"]

    @classmethod
    def unavailable(cls) -> str | None:
        """Why this backend cannot work on this machine and what to do about it; None when it can."""
        return None

    @classmethod
    def advice(cls, how: str) -> str:
        """What to do about a worker that ended in this way (`SIGILL`, `exit code 3`), where that is known; else nothing."""
        return ""

    def __init__(self, index: str = "0") -> None:
        self.index = index

    @classmethod
    def configured(cls, index: str, options: Mapping[str, str]) -> Self:
        """A backend with the user's options; every worker gets `options` as they are."""
        if options:
            raise InvalidValue(f"backend {cls.name} takes no options, got {', '.join(options)}: leave them out")
        return cls(index)

    @abc.abstractmethod
    def device(self) -> Device:
        """The profile of the device, measured numbers included."""

    @abc.abstractmethod
    def software(self, family: str) -> Mapping[str, str]:
        """What else decides the times of a family: compiler, driver, library versions."""

    @abc.abstractmethod
    def prepare(self, problem: Problem, config: Config) -> Prepared:
        """Buffers and kernel for one vector."""

    def bind(self, call: Call, problem: Problem, config: Config) -> Bound:
        """The kernel of a vector for arrays of the caller; for the families in `calls`."""
        raise Unsupported(f"backend {self.name} runs no kernels on arrays of the caller")

    def first_configs(self, problem: Problem) -> Iterator[Config]:
        """Valid configs to try for a problem about which nothing is known, promising ones first."""
        family = problem.family
        assert family is not None
        drawn = family.config.sample(TRIALS, 0, family.bindings(problem, self.device()))
        return (Config.trusted(family, row) for row in drawn.iter_rows(named=True))

    def smaller(self, problem: Problem) -> Problem:
        """A similar problem, shared by many, on which configs can be tried quickly; the problem itself if it is short."""
        return problem

    def compile(self, vectors: Sequence[tuple[Problem, Config]], jobs: int = 1) -> None:
        """Build what the vectors need, many at a time; `prepare` must then be quick."""
        return

    def compile_seconds(self, vectors: Sequence[tuple[Problem, Config]], jobs: int = 1) -> float:
        """How long `compile` may take before it counts as hanging."""
        return 600.0

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


@dataclass(frozen=True)
class ProgramAnswer:
    """What a program that times itself said about one vector."""

    time_ns: float
    max_abs_err: float | None = None
    """None: it did not say, whether or not it checked."""
    compile_ns: float | None = None
    label: str | None = None
    """What the program calls the kernel."""


class TimesItself(Backend):
    """A backend of programs that warm up, repeat and take the time themselves: one answer is one sample.

    The collector neither warms up nor loops such kernels. It asks in passes, as for launches, and a pass may go
    to one program as a whole.
    """

    max_prepared = 1

    @abc.abstractmethod
    def ask(
        self, vectors: Sequence[tuple[Problem, Config]], begin: Callable[[int, float], None], verify: bool, cache: str
    ) -> Iterator[tuple[int, ProgramAnswer | Failed]]:
        """One answer or failure for each vector, by its position, in any order.

        `begin(position, seconds)` is called before each program: that vector runs now and ends within `seconds`.
        The backend itself must ensure this; the collector's own deadline is later.
        """

    def prepare(self, problem: Problem, config: Config) -> Prepared:
        return _OneAnswer(self, (problem, config))


class _OneAnswer(Prepared):
    """A vector of a backend that times itself, for code that needs launches."""

    def __init__(self, backend: TimesItself, vector: tuple[Problem, Config]) -> None:
        self.backend, self.vector = backend, vector

    def _ask(self, verify: bool) -> ProgramAnswer:
        ((_, answer),) = self.backend.ask([self.vector], lambda position, seconds: None, verify, "warm")
        if isinstance(answer, Failed):
            raise answer
        return answer

    def run(self, launches: int) -> int:
        return max(1, round(launches * self._ask(False).time_ns))

    def check(self) -> float:
        """0.0 also when the program says no more than that it is correct."""
        return self._ask(True).max_abs_err or 0.0
