"""Parameters that several public functions have, said once."""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path
from typing import Annotated, TypeAlias

from kerncast.app.api.measured import Data
from kerncast.core.io.arguments import Help
from kerncast.core.op import Family
from kerncast.models.model import Model
from kerncast.models.store.store import Store

ModelOf: TypeAlias = Annotated[Model | str | Path, Help(metavar="MODEL", names="models")]
Datasets: TypeAlias = Annotated[Data, Help(metavar="DATASET...", names="dataset_folders")]
Where: TypeAlias = Annotated[
    str | Sequence[str],
    Help(
        "Keep only some rows: dtype=fp8 (or problem.dtype=fp8), config.kind=triton, time_ns<1e6 (rows that "
        "failed have no time, and stay), M=1,2,4. May be repeated.",
        metavar="CONDITION", names="conditions")]  # fmt: skip
RowsOf: TypeAlias = Annotated[
    str | None,
    Help(
        "Keep only rows of this software: vllm (the newest version of each device), vllm==0.24.0, commit=3f2a91c.",
        metavar="NAME")]  # fmt: skip
Seed: TypeAlias = Annotated[int, Help("The same data and seed give the same bytes.", least=0)]
MaxFlops: TypeAlias = Annotated[
    float | None, Help("Leave out problems with more arithmetic than this.", metavar="FLOP", above=0)
]
FamilyOf: TypeAlias = Annotated[Family | str, Help(metavar="FAMILY", names="families")]
StoreOf: TypeAlias = Annotated[Store | str | Path | None, Help("The store of models. [default: your own]", metavar="DIR")]
