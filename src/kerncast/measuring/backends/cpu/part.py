"""What the `cpu` backend is made of: this machine, and a part for each group of families that run on it."""

from __future__ import annotations

import abc
from collections.abc import Iterator, Mapping, Sequence
from functools import cached_property
from typing import ClassVar

from kerncast.core.device import Device
from kerncast.core.op import Config, Problem
from kerncast.library import devices
from kerncast.measuring.backends.contract import Bound, Call, Prepared, Unsupported
from kerncast.measuring.backends.cpu import build, profile
from kerncast.measuring.backends.cpu.build import Compiler, Library


class Machine:
    """What the kernels of every family share."""

    @cached_property
    def compiler(self) -> Compiler:
        """The compiler in use."""
        found = build.find_compiler()
        if found is None:
            raise Unsupported(build.NO_COMPILER)
        return found

    @cached_property
    def library(self) -> Library:
        """The compiled kernels and the probes."""
        return Library(self.compiler)

    @cached_property
    def profile(self) -> Device:
        """This machine with its measured numbers."""
        return profile.measured(self.library, devices.local())


class Part(abc.ABC):
    """The kernels of some families, as `Backend` asks for them; constructed once per process, when first needed."""

    families: ClassVar[tuple[str, ...]]
    calls: ClassVar[Mapping[str, type[Call]]] = {}

    def __init__(self, machine: Machine) -> None:
        self.machine = machine

    @abc.abstractmethod
    def digest(self) -> str:
        """A hash of the sources of these kernels: times of different sources cannot be compared."""

    @abc.abstractmethod
    def prepare(self, problem: Problem, config: Config) -> Prepared:
        """Buffers and kernel for one vector."""

    def bind(self, call: Call, problem: Problem, config: Config) -> Bound:
        """The kernel of a vector for arrays of the caller; for the families in `calls`."""
        raise Unsupported(f"{config.family.id} runs no kernels on arrays of the caller")

    def first_configs(self, problem: Problem) -> Iterator[Config] | None:
        """Configs to try for a problem about which nothing is known, promising ones first; None: any valid ones."""
        return None

    def smaller(self, problem: Problem) -> Problem:
        """A similar problem on which configs can be tried quickly; the problem itself if it is short."""
        return problem

    def compile(self, vectors: Sequence[tuple[Problem, Config]], jobs: int = 1) -> None:
        """Build what the vectors need; `prepare` must then be quick."""
        return

    def compilations(self, vectors: Sequence[tuple[Problem, Config]]) -> int:
        """How many kernels `compile` would have to build."""
        return 0

    def tolerance(self, problem: Problem) -> float:
        """The largest absolute error that still counts as correct."""
        return 0.0
