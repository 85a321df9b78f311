"""What PyTorch's own files say, in the parameters of `gemm/triton`: tiles and choices."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

import msgspec

from kerncast.core.io.foreign import key_rule
from kerncast.errors import BadFile, InvalidValue
from kerncast.evaluating.solutions.solution import LeftOut, Solution, Target, partial
from kerncast.library.families.gemm_triton import triton
from kerncast.library.families.torch_products import WORDS

# A product with a scale or another output type is a different kernel from those that were measured.
OPS = ("mm", "bmm")


class Tile(msgspec.Struct, frozen=True):
    """The arguments of a plain Triton template; those that the family lacks (EVEN_K, ACC_TYPE …) are ignored."""

    block_m: int
    block_n: int
    block_k: int
    num_stages: int
    num_warps: int
    group_m: int | None = None
    allow_tf32: bool | str | None = None

    @classmethod
    def read(cls, values: Any) -> Tile:
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


def require_triton(target: Target, format_name: str) -> None:
    """Refuse other families: these files choose among Triton's tiles and the library, for matrix products."""
    if target.family.id != triton.id:
        raise InvalidValue(
            f"a {format_name} chooses configs of {triton.id}, but the model is for {target.family.id}: "
            "give a list of problems and configs, or a table with its parameters as columns"
        )


def choice(problem: Mapping[str, Any], config: Mapping[str, Any]) -> Solution | LeftOut:
    """A choice of `gemm/triton`; invalid tiles are left out. TF32 is left open unless the file says."""
    try:
        chosen = partial(triton.config, config)
    except InvalidValue as error:
        return LeftOut("config", str(error))
    # A choice for any problem names no parameters, so defaults must not narrow it.
    return Solution(partial(triton.problem, problem, triton.environment.parameters) if problem else {}, chosen)


def of_tile(problem: Mapping[str, Any], tile: Tile) -> Solution | LeftOut:
    """A tile for a problem, with what it says about TF32."""
    says = {"tf32": tile.tf32} if problem.get("dtype") == "fp32" and tile.tf32 is not None else {}
    return choice({**problem, **says}, tile.config)
