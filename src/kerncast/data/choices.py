"""Another system's choices: what every format is read into, and the tiles of PyTorch's own files.

A choice may leave parameters open. An open problem parameter means every value of it (torch-diode does not say how the
operands are stored); an open config parameter means the fastest measured config that agrees with the rest.
"""

from __future__ import annotations

import re
from collections import Counter
from collections.abc import Iterable, Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import msgspec

from kerncast.core.io.foreign import key_rule
from kerncast.core.op import Family
from kerncast.core.parameters import Value
from kerncast.core.space import Space
from kerncast.errors import BadFile, InvalidValue
from kerncast.library import devices
from kerncast.library.families.gemm_triton import triton
from kerncast.library.families.torch_products import WORDS

# Boards that share a GPU's name but differ from it: fewer compute units, less power.
OTHER_BOARDS = frozenset({"pcie", "nvl"})
# Why a choice is not for the model, in words.
REASONS = {
    "device": "for another device", "op": "of another op", "family": "of another family", "template": "of another template",
    "dtype": "of types that the family lacks", "layout": "with strides that are not packed", "shape": "with symbolic sizes",
    "config": "with a config that the family lacks", "superseded": "superseded by a key of the device",
}  # fmt: skip


@dataclass(frozen=True)
class Solution:
    """One config for the problems that agree with `problem`; parameters not named are open, inactive ones None."""

    problem: Mapping[str, Value]
    config: Mapping[str, Value]


@dataclass(frozen=True)
class LeftOutChoices:
    """Choices that are not for this model: why (a key of `REASONS`), the name that says so, how many."""

    reason: str
    name: str = ""
    count: int = 1


@dataclass(frozen=True)
class Solutions:
    """A file that was read: its choices in order of preference, and what was left out."""

    path: Path
    format: str
    choices: tuple[Solution, ...]
    left_out: Mapping[str, int]
    columns_not_read: tuple[str, ...] = ()


@dataclass(frozen=True)
class ChoiceTarget:
    """The family and the devices that choices are wanted for."""

    family: Family
    devices: tuple[str, ...]

    def is_on(self, name: str) -> bool:
        """Whether a foreign name (`NVIDIA A100-SXM4-80GB`, `gfx942:sramecc+:xnack-`) means the model's device."""
        if len(self.devices) != 1:
            raise InvalidValue(
                f"its choices are for one device ('{name}'), and the model is for {len(self.devices)} "
                f"({', '.join(self.devices)}): compare with a model of one device"
            )
        own = devices.profiles().get(self.devices[0])
        names = {devices.plain(text) for text in (self.devices[0], *(own.aliases if own else ()))}
        if devices.plain(name) in {*names, devices.plain(own.title) if own else ""}:
            return True
        found = devices.named(name)
        if found is not None and own is not None:
            # A file often tells only the architecture, which is that of several parts.
            shared = found.architecture is not None and found.architecture == own.architecture
            return found is own or (shared and (devices.names_an_architecture(found) or devices.names_an_architecture(own)))
        words = set(re.split(r"[^a-z0-9_]+", name.lower()))
        return bool(words & names) and not words & OTHER_BOARDS


def partial(space: Space, values: Mapping[str, Any], keep_open: Iterable[str] = ()) -> dict[str, Value]:
    """Checked values in declared order with defaults; parameters not given are left out, inactive ones are None."""
    point = space.fill(values)
    violated = space.validate(values)
    # Active parameters without a value: the only rule that a choice may break.
    needed = {item.name for item in violated if item.name in point and point[item.name] is None}
    broken = [item for item in violated if item.name not in needed]
    if broken:
        raise InvalidValue("; ".join(map(str, broken)))
    silent = {name for name in keep_open if name not in values}
    return {name: value for name, value in point.items() if name not in needed | silent}


def gathered(
    path: Path, format_name: str, found: Iterable[Solution | LeftOutChoices], target: ChoiceTarget, unread: Iterable[str] = ()
) -> Solutions:
    """The choices and counts of a reader; a file that has none for this model is refused with the reasons."""
    choices: list[Solution] = []
    left_out: Counter[str] = Counter()
    names: dict[str, str] = {}
    for item in found:
        if isinstance(item, Solution):
            choices.append(item)
        else:
            left_out[item.reason] += item.count
            names.setdefault(item.reason, item.name)
    if choices:
        return Solutions(path, format_name, tuple(choices), dict(left_out), tuple(unread))
    if not left_out.total():
        raise BadFile(f"the {format_name} holds no choices: give at least one config for one problem")
    why = ", ".join(
        f"{count:,} {REASONS[reason]}" + (f" ('{names[reason]}')" if names[reason] else "")
        for reason, count in left_out.items()
    )
    raise InvalidValue(
        f"the {format_name} holds no choice for {target.family.id} on {', '.join(target.devices)}: {why}; "
        "give a file made for this family and device"
    )


# A product with a scale or another output type is a different kernel from those that were measured.
OPS = ("mm", "bmm")


class TritonTile(msgspec.Struct, frozen=True):
    """The arguments of a plain Triton template; those that the family lacks (EVEN_K, ACC_TYPE …) are ignored."""

    block_m: int
    block_n: int
    block_k: int
    num_stages: int
    num_warps: int
    group_m: int | None = None
    allow_tf32: bool | str | None = None

    @classmethod
    def read(cls, values: Any) -> TritonTile:
        """From `BLOCK_M …` (Inductor) or `block_m …` (torch-diode)."""
        if not isinstance(values, dict):
            raise BadFile(f"a config must be an object with BLOCK_M, BLOCK_N, …, got {values!r:.100}")
        try:
            return msgspec.convert({str(name).lower(): value for name, value in values.items()}, cls)
        except msgspec.ValidationError as error:
            raise BadFile(f"not the arguments of a Triton GEMM ({key_rule(error)}): {values!s:.200}") from error

    @property
    def tf32(self) -> bool | None:
        """Whether fp32 operands may be rounded; None: not given."""
        return WORDS.get(self.allow_tf32) if isinstance(self.allow_tf32, str) else self.allow_tf32

    @property
    def config(self) -> dict[str, Any]:
        return {"kind": "triton", "BLOCK_M": self.block_m, "BLOCK_N": self.block_n, "BLOCK_K": self.block_k,
                "num_stages": self.num_stages, "num_warps": self.num_warps, "GROUP_M": self.group_m}  # fmt: skip


def require_triton(target: ChoiceTarget, format_name: str) -> None:
    """Refuse other families: these files choose among Triton's tiles and the library, for matrix products."""
    if target.family.id != triton.id:
        raise InvalidValue(
            f"a {format_name} chooses configs of {triton.id}, but the model is for {target.family.id}: "
            "give a list of problems and configs, or a table with its parameters as columns"
        )


def choice(problem: Mapping[str, Any], config: Mapping[str, Any]) -> Solution | LeftOutChoices:
    """A choice of `gemm/triton`; invalid tiles are left out. TF32 is left open unless the file says."""
    try:
        chosen = partial(triton.config, config)
    except InvalidValue as error:
        return LeftOutChoices("config", str(error))
    # A choice for any problem names no parameters, so defaults must not narrow it.
    return Solution(partial(triton.problem, problem, triton.environment.parameters) if problem else {}, chosen)


def of_tile(problem: Mapping[str, Any], tile: TritonTile) -> Solution | LeftOutChoices:
    """A tile for a problem, with what it says about TF32."""
    says = {"tf32": tile.tf32} if problem.get("dtype") == "fp32" and tile.tf32 is not None else {}
    return choice({**problem, **says}, tile.config)
