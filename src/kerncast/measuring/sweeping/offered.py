"""The configs that PyTorch Inductor itself would offer for a problem: its heuristics scale and prune a list for each shape.

They are asked for `gemm/triton`, and for the plain template with the library's kernel beside it: other templates are not run by
the backend `triton`. torch is imported when the first problem is asked about; no GPU is needed for NVIDIA's lists.
"""

from __future__ import annotations

import inspect
from collections.abc import Iterator, Mapping
from contextlib import ExitStack
from dataclasses import dataclass
from importlib import import_module
from types import SimpleNamespace
from typing import Any

import numpy as np
import polars as pl

from kerncast.core.arrays import Ints
from kerncast.core.device import Device
from kerncast.core.dtypes import BYTES
from kerncast.core.op import Family
from kerncast.errors import InvalidValue, KerncastError, NotFound
from kerncast.library.families.inductor_templates import config_of
from kerncast.library.problems.tables import complete
from kerncast.measuring.sweeping.pool import ListedPool, check_of, compact

FAMILY = "gemm/triton"
SPACES = {"default": "DEFAULT", "exhaustive": "EXHAUSTIVE"}
SETTING = "max_autotune_gemm_search_space"
# Where torch has its heuristics, the newest place first.
HOMES = ("torch._inductor.template_heuristics.triton", "torch._inductor.template_heuristics")
ROCM_CHIPS, CHIPS = "ROCmConfigHeuristic", "CUDAConfigHeuristic"
# About as many as NVIDIA's exhaustive list has; how much work a problem is can only be estimated.
ABOUT = 1_900


@dataclass(frozen=True)
class Offered:
    """Inductor's search space, `default` or `exhaustive`."""

    space: str

    @property
    def identity(self) -> str:
        """What decides the configs, besides the problem and the device."""
        return f"inductor {self.space} torch {_torch('torch').__version__}"

    def configs(self, problem: Mapping[str, Any], device: Device) -> list[dict[str, Any]]:
        """For one problem, the library's kernel first."""
        found = [{"kind": "library"}]
        op = "bmm" if problem["batch"] > 1 else "addmm" if problem.get("bias") else "mm"
        told = {"dtype_size": int(BYTES[str(problem["dtype"])]), "op_name": op, "has_int8_tensor": problem["dtype"] == "int8"}
        with _asking(self.space):
            heuristic = _heuristic(device)
            listed = heuristic.get_exhaustive_mm_configs() if self.space == "exhaustive" else heuristic.get_mm_configs()
            known = inspect.signature(listed).parameters
            told = {name: value for name, value in told.items() if name in known}
            for item in listed(problem["M"], problem["N"], problem["K"], **told):
                arguments = {**item.kwargs, "num_stages": item.num_stages, "num_warps": item.num_warps}
                config = config_of("triton::mm", arguments)
                found += [] if config is None or config in found else [config]
        return found


def offered(family: Family, space: str) -> Offered:
    """Inductor's search space by name, for the family that it is of."""
    if family.id != FAMILY:
        raise InvalidValue(
            f"`configs=inductor` lists what Inductor offers for {FAMILY}, not for {family.id}: use all or sample:N"
        )
    if space not in SPACES:
        raise InvalidValue(f"Inductor's search space is {' or '.join(SPACES)}, got '{space}'")
    return Offered(space)


def _torch(name: str) -> Any:
    try:
        return import_module(name)
    except ImportError as error:
        raise NotFound(f"`configs=inductor` asks PyTorch, and {error}: pip install 'kerncast[triton]'") from error


def _asking(space: str) -> ExitStack:
    """Inductor as its heuristics need it: a search space, and a graph that knows sizes."""
    config, virtual = _torch("torch._inductor.config"), _torch("torch._inductor.virtualized").V
    sizes = _torch("torch._inductor.sizevars").SizeVarAllocator()
    with ExitStack() as stack:
        if hasattr(config, SETTING):
            stack.enter_context(config.patch({SETTING: SPACES[space]}))
        stack.enter_context(virtual.set_graph_handler(SimpleNamespace(sizevars=sizes)))
        return stack.pop_all()


def _heuristic(device: Device) -> Any:
    name = ROCM_CHIPS if (device.architecture or device.name).startswith("gfx") else CHIPS
    for home in HOMES:
        try:
            kind = getattr(import_module(home), name, None)
        except ImportError:
            continue
        if kind is not None:
            return _made(kind, device)
    raise NotFound(f"this torch has no {name}, which lists Inductor's configs: use torch 2.7 or later")


def _made(kind: Any, device: Device) -> Any:
    try:
        return kind()
    except RuntimeError as error:
        # AMD's lists depend on what the driver says.
        raise KerncastError(
            f"Inductor cannot list its configs for {device.name} here ({error}): ask on a machine with it"
        ) from error


class OfferedPool:
    """A pool whose configs are asked for, problem by problem."""

    size, checks_problems = ABOUT, True

    def __init__(self, family: Family, device: Device, known: Mapping[str, Any], offer: Offered) -> None:
        self.family, self.device, self.offer = family, device, offer
        self._check = check_of(family, known, whole=True)

    def _pool(self, problem: Mapping[str, Any]) -> ListedPool:
        frame = pl.DataFrame(self.offer.configs(problem, self.device), infer_schema_length=None)
        whole = complete(self.family.config, frame, "Inductor", strict=False)
        return ListedPool(self.family, compact(self.family, whole), self._check)

    def counts(self, problems: pl.DataFrame, at_most: int | None, seed: int) -> Ints:
        """How many configs each problem allows, counting no further than `at_most`."""
        pools = zip(problems.iter_rows(named=True), problems.iter_slices(1), strict=True)
        return np.array([self._pool(row).counts(piece, at_most, seed)[0] for row, piece in pools], dtype=np.int64)

    def blocks(self, problems: pl.DataFrame, take: Ints | None, seed: int) -> Iterator[pl.DataFrame]:
        """The vectors, problem after problem."""
        for index, row in enumerate(problems.iter_rows(named=True)):
            yield from self._pool(row).blocks(problems[[index]], None if take is None else take[index : index + 1], seed)
