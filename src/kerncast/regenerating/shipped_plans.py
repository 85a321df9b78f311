"""How the shipped models are made: one for each op and framework of AIConfigurator's tables, and those of Wormhole cards."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import Any

import numpy as np
import polars as pl

from kerncast.core.io.quoting import markdown_code, markdown_text, word
from kerncast.core.progress import Progress
from kerncast.data.dataset import Dataset
from kerncast.data.formats import ImportOptions
from kerncast.data.formats.tt_metal import ReshardLines, TtnnCsv
from kerncast.data.importing import import_files
from kerncast.data.label_shift import NOT_SUSPECT
from kerncast.errors import InvalidValue
from kerncast.evaluating.evaluation import refitted
from kerncast.learning.metrics import flat, runtime_figures
from kerncast.learning.table import Table
from kerncast.models.model import Model
from kerncast.training.procedure import Recipe

SERVERS = ("trtllm", "vllm", "sglang")
SMALL = "small"
"""The sample that CI rebuilds: few rows and few trees, otherwise the same recipe."""
# Times alone are learned, so no forest is grown for the order: most problems of these tables have one code path. The number of
# trees is fixed, for a search would take a second fit, and at this rate it never stops early.
TIMES = {"times_only": True, "early_stopping": False, "library_trees": 0}
SMALL_ROWS, SMALL_TREES = 4000, 40
# A version of a framework is passed over if it has a smaller share of the rows of its fullest version on a device: TensorRT-LLM
# 1.3.0rc23 has experts of three models, 1.3.0rc20 of twenty.
LEAST_SHARE = 0.5
# Whose experts are learned as medians: a part of TensorRT-LLM's ran untuned, up to nine times slower than their neighbours. On
# the H200, one fold, (shape, tp, ep) unseen, 100 trees: TensorRT-LLM's err by 12.9 % (as means 16.3), vLLM's by 7.5 % (8.2),
# SGLang's by 6.9 % (6.2).
MEDIANS = ("trtllm", "vllm")


RECURRENT = ("causal_conv", "linear_attention")
# Rows of an op and a framework that are no good. Before 0.27.0, KDA's convolution of a prompt was timed with 0.4 ms or more of
# work on the host, whatever its size. SGLang's one table of the A100 is of an older version and has no linear attention of
# prompts: its rows err by 10 and 30 %.
LEFT_OUT = {
    ("causal_conv", "vllm"): ("kernel_source!=causal_conv1d_fn_qkv3",),
    **{(op, "sglang"): ("device!=a100",) for op in RECURRENT},
}


@dataclass(frozen=True)
class Origin:
    """Who published tables, where, and under which licence."""

    title: str
    place: str
    licence: str
    copyright: str

    @property
    def words(self) -> str:
        return f"{self.title}, {self.place}, licence {self.licence}"

    @property
    def bullet(self) -> str:
        """Its line in NOTICE."""
        return f"- {self.words}. {self.copyright.removesuffix('.')}."


@dataclass(frozen=True)
class Plan:
    """How one shipped model is made."""

    op: str
    framework: str
    rows: int
    """At most this many are learned from, as evenly over devices as they go."""
    knobs: dict[str, Any] = field(default_factory=dict)
    folds: int = 2
    command: str = ""
    """What builds it again."""
    where: tuple[str, ...] = ()
    """The rows to learn from; empty: all."""

    @property
    def name(self) -> str:
        """The name of its folder."""
        return f"{self.op}-{self.framework}"

    @property
    def family(self) -> str:
        return f"{self.op}/library"

    @property
    def says_misses(self) -> bool:
        """Whether its rows say how kernels miss their rooflines."""
        return True

    def recipe(self, seed: int = 0, threads: int = 0) -> Recipe:
        """The recipe that it is trained with."""
        return Recipe(knobs={**TIMES, **self.knobs}, folds=self.folds, seed=seed, threads=threads, rows=self.rows)

    def came_from(self, source: Origin, versions: str) -> str:
        """The tables that the rows are of, in Markdown."""
        only = f" Only rows with {' and '.join(map(markdown_code, self.where))}." if self.where else ""
        return (
            f"Tables: {markdown_text(source.words)}; op {markdown_code(self.op)}, framework {markdown_code(self.framework)}, "
            "of each device the newest version, passing over those with less than half the rows of its fullest one: "
            f"{markdown_text(versions)}.{only}"
        )

    def more_errors(self, model: Model, table: Table, threads: int, progress: Progress) -> Sequence[str]:
        """Lines for the card about errors on problems that are held out in other ways."""
        return ()

    def limited(self, rows: int) -> Plan:
        """The same plan with at most so many rows; 0: as it is."""
        return replace(self, rows=rows, command=f"{self.command} --rows {rows}") if 0 < rows < self.rows else self

    def smaller(self) -> Plan:
        """The same plan with a small sample of the rows and few trees."""
        few: dict[str, Any] = {
            name: min(SMALL_TREES, self.knobs[name]) for name in ("trees", "own_trees") if name in self.knobs
        }
        knobs = {**self.knobs, **few, "leaves": 31, "lr": 0.2}
        return replace(self, rows=min(SMALL_ROWS, self.rows), knobs=knobs, command=f"{self.command} --sample {SMALL}")


def medians_of(op: str, framework: str) -> dict[str, Any]:
    """The knob with which the rows of an op and a framework are learned as medians, where they are."""
    return {"medians": True} if op == "moe" and framework in MEDIANS else {}


def _plans() -> tuple[Plan, ...]:
    # Few enough that all models are built in an hour of one core. More trees, leaves and rows err less: on vLLM's GEMMs of the
    # H200 alone, pairs (N, K) unseen, 100 and 200 trees of 127 leaves err by 3.5 and 3.4 %, 200 of 255 leaves by 3.2 %.
    large = {"trees": 60, "own_trees": 100, "leaves": 127, "lr": 0.12}
    small = {"trees": 60, "own_trees": 80, "leaves": 63, "lr": 0.12}
    few = {"trees": 40, "own_trees": 50, "leaves": 63, "lr": 0.15}
    sizes: dict[str, tuple[Sequence[str], int, dict[str, Any]]] = {
        "gemm": (SERVERS, 300_000, large | {"own_loss": "absolute"}),
        "mixed_mm": (("trtllm",), 60_000, small),
        "attention_context": (SERVERS, 120_000, large),
        "attention_generation": (SERVERS, 120_000, large),
        "moe": (SERVERS, 120_000, large),
        "attention_encoder": (SERVERS, 60_000, small),
        "mla_context": (("trtllm", "sglang"), 40_000, small),
        "mla_generation": (("trtllm", "sglang"), 40_000, small),
        "mla_bmm": (SERVERS, 40_000, small),
        "collective": (("nccl", *SERVERS), 40_000, small),
        "quantize": (SERVERS, 40_000, small),
        **dict.fromkeys(RECURRENT, (SERVERS, 40_000, few)),
    }
    command = "kerncast regenerate shipped --only"
    return tuple(
        Plan(op, name, rows, knobs | medians_of(op, name), command=f"{command} {op}-{name}", where=LEFT_OUT.get((op, name), ()))
        for op, (names, rows, knobs) in sizes.items()
        for name in names
    )


AICONFIGURATOR = _plans()


DEVICE = "wormhole_b0"
LICENCE = "Apache-2.0"
# tt-metal's commit, as the repository of the table says.
COMMIT = "87144607f757092c2c0cc817d12a8942d30fbfc9"
PREDICTOR = Origin(
    "the TTNN op runtime predictor (Tenstorrent)",
    "https://github.com/tenstorrent/ttnn-op-runtime-predictor",
    f"{LICENCE} (files LICENSE and NOTICE there)",
    "Copyright 2025 Tenstorrent AI ULC",
)
TT_METAL = Origin(
    "the reshard sweep of tt-metal (Tenstorrent)",
    "published with https://github.com/tenstorrent/tt-metal/issues/14762",
    f"{LICENCE} (file LICENSE of that repository)",
    "Copyright 2023 Tenstorrent Inc.",
)
GRIDS = "grids"
# More than the tables have.
MOST_ROWS = 200_000


@dataclass(frozen=True, eq=False)
class PublicTable:
    """A table that is one file."""

    files: tuple[str, ...]
    """Its names, one of which it has."""
    format: str
    origin: Origin
    settings: Mapping[str, str] = field(default_factory=dict)
    software: Mapping[str, str] = field(default_factory=dict)

    def rows(self, file: Path, out: Path, progress: Progress) -> Dataset:
        """The table as a dataset."""
        options = ImportOptions(device=DEVICE, values=self.settings, software=self.software)
        return import_files(self.format, [file], out, options, progress=progress)


OLD_EXP = PublicTable(("big_exp_dataset.csv",), TtnnCsv.name, PREDICTOR, {"func": "exp"})
EXP = PublicTable(("final_exp_dataset.csv",), TtnnCsv.name, PREDICTOR, {"func": "exp"}, {"commit": COMMIT})
LINES = PublicTable(("all_models.csv.gz", "all_models.csv"), ReshardLines.name, TT_METAL, {"points": "12"})
TABLES = (OLD_EXP, EXP, LINES)


@dataclass(frozen=True)
class WormholePlan(Plan):
    """How one model of a Wormhole card is made."""

    title: str = ""
    table: PublicTable = EXP
    note: str = ""
    """What a reader of the card should know of the rows."""

    @property
    def name(self) -> str:
        return f"{self.title}-wormhole"

    @property
    def family(self) -> str:
        return f"{self.op}/single"

    @property
    def says_misses(self) -> bool:
        """Kernels of a card with another memory than GPUs have do not: the roofline answers for GPUs."""
        return False

    def came_from(self, source: Origin, versions: str) -> str:
        return f"Table: {markdown_text(f'{self.table.files[0]} of {source.words}. {self.note}'.rstrip())}"

    def more_errors(self, model: Model, table: Table, threads: int, progress: Progress) -> Sequence[str]:
        """Lines about reshards between grids that no fold has seen, by pair of strategies."""
        if GRIDS not in table.family.op.splits:
            return ()
        predicted, _ = refitted(model, table, GRIDS, threads, progress=progress)
        lines = [
            "", "## Held-out error of pairs of grids", "",
            "Out of fold: no fold saw a row of the pairs of grids that it predicts.", "",
            "| from | to | rows | R² | MAPE | median error |", "|---|---|---|---|---|---|",
        ]  # fmt: skip
        assert predicted.time_ns is not None
        pairs = table.rows.frame.select("problem.in_strategy", "problem.out_strategy")
        for source, target in pairs.unique().sort(pl.all()).iter_rows():
            own = np.flatnonzero(
                (pairs["problem.in_strategy"] == source).to_numpy() & (pairs["problem.out_strategy"] == target).to_numpy()
            )
            found = runtime_figures(table.problem[own], table.time_ns[own], predicted.time_ns[own])
            r2, mape, median = (flat(found, name) for name in ("r2", "mape", "median_ape"))
            lines.append(f"| {source} | {target} | {len(own):,} | {r2:.3f} | {mape:.1%} | {median:.1%} |")
        return lines


def _wormhole_plans() -> tuple[WormholePlan, ...]:
    def plan(
        title: str, op: str, knobs: dict[str, Any], folds: int, table: PublicTable, where: tuple[str, ...] = (), note: str = ""
    ) -> WormholePlan:
        command = f"kerncast regenerate shipped --tables {word(table.files[0])} --only {word(title)}-wormhole"
        return WormholePlan(op, "ttnn", MOST_ROWS, knobs, folds, command, where, title, table, note)

    # There is nothing to choose, so forests are of times anyway; `times_only` has fewer bins, too few for counts of tiles.
    exp = {"times_only": False, "trees": 300, "leaves": 31, "lr": 0.08}
    reshard = {"times_only": False, "trees": 300, "leaves": 63, "lr": 0.1}
    lines = "Its rows are points of straight lines that were fitted to measurements, twelve points of each line."
    suspect = "Rows whose times belong to other rows are left out."
    return (
        plan("exp", "eltwise_unary", exp, 5, OLD_EXP),
        plan("exp_all_dtypes", "eltwise_unary", exp, 5, EXP, (NOT_SUSPECT,), suspect),
        # From width to width and from height to height nothing was measured: models of one strategy of the input know that.
        *(
            plan(f"reshard_{strategy}", "reshard", reshard, 3, LINES, (f"problem.in_strategy={strategy}",), lines)
            for strategy in ("block", "width", "height")
        ),
    )


WORMHOLE = _wormhole_plans()


def files_at(path: Path) -> dict[PublicTable, Path]:
    """The tables in a folder, or the one that a path is."""
    found = {}
    for table in TABLES:
        files = [path] if path.name in table.files else []
        if path.is_dir():
            files = sorted(file for name in table.files for file in path.rglob(name) if file.is_file())
        if len(files) > 1:
            raise InvalidValue(
                f"{path} has two files that may be {table.files[0]}, {files[0]} and {files[1]}: name one of them"
            )
        if files:
            found[table] = files[0]
    return found
