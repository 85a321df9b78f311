"""Shipped models of Tenstorrent Wormhole cards: `exp` and reshards, from the two tables that are public."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import numpy as np
import polars as pl

from kerncast.core.io.quoting import markdown_text, word
from kerncast.core.progress import Progress
from kerncast.data.dataset import Dataset
from kerncast.data.formats import Options
from kerncast.data.formats.tt_metal import ReshardLines, TtnnCsv
from kerncast.data.importing import import_files
from kerncast.data.label_shift import NOT_SUSPECT
from kerncast.errors import InvalidValue
from kerncast.evaluating.evaluation import refitted
from kerncast.learning.scoring.metrics import flat, runtime_figures
from kerncast.learning.tables.table import Table
from kerncast.models.model import Model
from kerncast.regenerating.shipping.attribution import Origin
from kerncast.regenerating.shipping.plans import Plan

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
        options = Options(device=DEVICE, values=self.settings, software=self.software)
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


def _plans() -> tuple[WormholePlan, ...]:
    # There is nothing to choose, so forests are of times anyway; `times_only` has fewer bins, too few for counts of tiles.
    exp = {"times_only": False, "trees": 300, "leaves": 31, "lr": 0.08}
    reshard = {"times_only": False, "trees": 300, "leaves": 63, "lr": 0.1}
    lines = "Its rows are points of straight lines that were fitted to measurements, twelve points of each line."
    suspect = "Rows whose times belong to other rows are left out."
    found = [
        _plan("exp", "eltwise_unary", exp, 5, OLD_EXP),
        _plan("exp_all_dtypes", "eltwise_unary", exp, 5, EXP, NOT_SUSPECT, suspect),
    ]
    # From width to width and from height to height nothing was measured: models of one strategy of the input know that.
    found += [
        _plan(f"reshard_{strategy}", "reshard", reshard, 3, LINES, f"problem.in_strategy={strategy}", lines)
        for strategy in ("block", "width", "height")
    ]
    return tuple(found)


def _plan(
    title: str, op: str, knobs: dict[str, Any], folds: int, table: PublicTable, where: str = "", note: str = ""
) -> WormholePlan:
    command = f"kerncast regenerate shipped --tables {word(table.files[0])} --only {word(title)}-wormhole"
    return WormholePlan(
        op, "ttnn", MOST_ROWS, knobs, folds, command,
        (where,) if where else (), title, table, note,
    )  # fmt: skip


WORMHOLE = _plans()


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
