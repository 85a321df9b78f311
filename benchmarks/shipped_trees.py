"""The decision trees that torch ships for kernel choices (AutoHeuristic), on the problems that they were learned from.

A tree lists choices for a problem, best first, or says that it is not sure. Its choice is the first listed one that was
measured. Where it is not sure, the choice is the vendor's library: their training script names it as the default.
The trees were trained on rows of the same files, so their figures flatter them. Needs torch 2.5 or newer.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from importlib import import_module
from typing import Any

import numpy as np
import polars as pl
from choosing import Peer

from kerncast.core.arrays import Floats
from kerncast.data.formats.autoheuristic import DTYPES, EXTERN, NOT_FP32, TILE_NAMES
from kerncast.learning.metrics import baseline_card
from kerncast.learning.table import Table

TREES_NOTE = "PyTorch's trees were trained on rows of this file, so their figures flatter them."
PACKAGE = "torch._inductor.autoheuristic"
SPELLED = {ours: theirs for theirs, ours in DTYPES.items()}
NAME = "type=triton_BLOCK-M={}_BLOCK-K={}_BLOCK-N={}_numstages={}_numwarps={}"


@dataclass(frozen=True)
class Tree:
    """A tree in torch's package: its module, its class, and the function that names the derived features it reads."""

    module: str
    name: str
    operations: str

    def lister(self) -> Callable[[dict[str, Any]], list[str] | None]:
        """A function from features to listed choices."""
        terms = import_module(f"{PACKAGE}.autoheuristic_utils")
        derived = getattr(terms, self.operations)()
        tree = getattr(import_module(f"{PACKAGE}.artifacts.{self.module}"), self.name)()

        def listed(features: dict[str, Any]) -> list[str] | None:
            context = terms.AHContext()
            for name, value in features.items():
                context.add_feature(name, value)
            context.apply_operations(derived)
            found: list[str] | None = tree.get_decisions_ranked(context)
            return found

        return listed


MM = Tree("_MMRankingA100", "MMRankingA100", "mm_operations")
MIXED_MM = Tree("_MixedMMA100", "MixedMMA100", "mixed_mm_operations")


def features_of(problem: dict[str, Any]) -> dict[str, Any]:
    """The features that AutoHeuristic records of a product of packed matrices."""
    m, n, k = (problem[f"problem.{name}"] for name in "MNK")
    dtype = problem["problem.dtype"]
    features = {"m": m, "k": k, "n": n, "mat1_dtype": SPELLED[dtype]}
    features["mat2_dtype"] = SPELLED[problem.get("problem.b_dtype", dtype)]
    features["using_tf32"] = problem["problem.tf32"] if dtype == "fp32" else NOT_FP32
    for matrix, letter, (rows, columns) in zip(("mat1", "mat2"), problem["problem.layout"], ((m, k), (k, n)), strict=False):
        by_rows = letter == "r"
        features |= {f"{matrix}_stride_0": columns if by_rows else 1, f"{matrix}_stride_1": 1 if by_rows else rows}
        features[f"{matrix}_iscontig"] = by_rows
    return features


def choice_names(table: Table) -> list[str]:
    """AutoHeuristic's name of the config of each row."""
    tile = pl.format(NAME, *(f"config.{name}" for name in TILE_NAMES))
    library = pl.col("config.kind") == "library"
    return table.rows.frame.select(pl.when(library).then(pl.lit(EXTERN)).otherwise(tile)).to_series().to_list()


def places(table: Table, listed: Callable[[dict[str, Any]], list[str] | None]) -> Floats:
    """The place of each row in the list of its problem, infinite if it is not listed or there is no list."""
    lists = [listed(features_of(problem)) for problem in table.problems.iter_rows(named=True)]
    by_name = [
        {EXTERN if name.startswith(EXTERN) else name: place for place, name in enumerate(names or ())} for names in lists
    ]
    rows = zip(table.problem.tolist(), choice_names(table), strict=True)
    return np.array([by_name[problem].get(name, np.inf) for problem, name in rows])


def shipped(tree: Tree, table: Table) -> list[Peer]:
    """The tree's first choice, with the library where it is not sure, and the best of what it lists."""
    try:
        listed, version = tree.lister(), import_module("torch").__version__.partition("+")[0]
    except ImportError as error:
        return [Peer(f"PyTorch's shipped trees: not run ({error})", None)]
    place = places(table, listed)
    trials = table.trials
    chosen = trials.choose(place)
    answered = np.isfinite(place[chosen])
    later = int((place[chosen][answered] > 0).sum())
    unmeasured = f"; on {later} problems their first choice was not measured, the next one counts" if later else ""
    told = f"PyTorch's shipped trees (torch {version}{unmeasured})"
    best = np.maximum.reduceat(np.where(np.isfinite(place), trials.share, 0.0)[trials.order], trials.starts)
    oracle = Peer("best of all that they list, chosen by an oracle", baseline_card(best[answered]))
    first = trials.share[chosen]
    if answered.all():
        return [Peer(told, baseline_card(first)), oracle]
    unsure = np.asarray(trials.per_row(~answered))
    filled = trials.share[trials.choose(np.where(unsure, np.where(table.rows.is_library, 0.0, np.inf), place))]
    where = f"{told}, on the {int(answered.sum()):,} problems where they are sure"
    return [
        Peer(where, baseline_card(first[answered]), answered),
        oracle,
        Peer(f"the trees there, and the vendor's library on the {int((~answered).sum()):,} others", baseline_card(filled)),
    ]
