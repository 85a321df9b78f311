"""Shared code of the model benchmarks: import data, cross-validate the default recipe, print, return rows."""

from __future__ import annotations

import os
import sys
import tempfile
import time
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

from reporting import Row, Target, format_figure, percent

from kerncast.app.api.showing import shown
from kerncast.core.arrays import Flags, Ints
from kerncast.data import Dataset
from kerncast.data.formats import ImportOptions
from kerncast.data.importing import import_files
from kerncast.learning.assess import assess
from kerncast.learning.metrics import Predicted, baseline_card
from kerncast.learning.table import Table, load_table
from kerncast.models.conformal import cross_bounds
from kerncast.models.limits.widening import Errors
from kerncast.training.folds import cross_validate
from kerncast.training.procedure import Procedure
from kerncast.training.train import Recipe

COVERAGE = Target(88, 92)
# Figures of a scorecard, and their names in the results.
FIGURES = {
    "efficiency_mean": "speed of the choice ÷ best measured speed, mean",
    "efficiency_p10": "speed of the choice ÷ best measured speed, P10",
    "efficiency_p1": "speed of the choice ÷ best measured speed, P1",
    "efficiency_min": "speed of the choice ÷ best measured speed, worst",
    "top1": "the choice is the fastest",
    "noise_ceiling": "noise ceiling",
    "mape": "error of predicted times, MAPE",
    "median_ape": "error of predicted times, median",
    "ape_p95": "error of predicted times, P95",
}
BASELINES = {
    "random": "random choice",
    "best_single": "best fixed config of the other folds",
    "portfolio_8_oracle": "best of 8 fixed configs, chosen by an oracle",
    "library": "always the vendor's library",
    "roofline": "roofline",
}
IN_VIEW = (
    "The settings of the default recipe were chosen by their scores on these folds. Expect slightly lower scores on other data."
)
PEERS_NOTE = "as reported by others, not rerun here"


@dataclass(frozen=True)
class Peer:
    """Another system on the same problems: its figures, or None if it cannot run here."""

    label: str
    card: Mapping[str, Any] | None
    answered: Flags | None = None
    """The problems that it has a choice for; None: all."""


Rerun = Callable[[Table, Ints], Sequence[Peer]]


def data_file(*parts: str, source: str) -> Path:
    """A file under KERNCAST_DATA. If it is missing, exit and say where to get it."""
    root = os.environ.get("KERNCAST_DATA")
    path = Path(root, *parts) if root else None
    if path is None or not path.exists():
        sys.exit(f"set KERNCAST_DATA to a folder that holds {'/'.join(parts)} (public source: {source})")
    return path


def table_of(format_name: str, path: Path, device: str | None, where: tuple[str, ...] = ()) -> Table:
    """A public file as a training table."""
    with tempfile.TemporaryDirectory() as folder:
        import_files(format_name, [path], Path(folder, "data"), ImportOptions(device=device))
        return load_table([Dataset.open(Path(folder, "data"))], where=where)


def report(
    name: str,
    table: Table,
    targets: Mapping[str, Target],
    split: str,
    reported: Mapping[str, str] | None = None,
    group: str | None = None,
    rerun: Rerun | None = None,
) -> list[Row]:
    """Cross-validate the default recipe in five folds by group; return its figures.

    `rerun` runs other systems on the same table and folds. `reported` has figures that others reported of theirs.
    """
    from kerncast.evaluating.evaluation import folds_of, split_groups

    recipe = Recipe().resolved(table, None)
    fitted = table if group is None else replace(table, group=split_groups(table, group))
    start = time.perf_counter()
    with shown(plain=True) as progress:
        fold, found, _ = cross_validate(fitted, Procedure(recipe, progress), folds_of(table, group or "problem", recipe))
    spent = time.perf_counter() - start
    lower, upper = cross_bounds(Errors(fitted.problem, table.time_ns, found.time_ns, fold))
    predicted = Predicted(found.score, found.time_ns, lower, upper)
    evaluation = assess(table, predicted, fold)
    n = f"{evaluation['overall']['n_problems']:,} problems, {len(table.time_ns):,} vectors"
    print(f"{name}: {n}, five folds in {spent:.0f} s")
    evaluation["baselines"] |= cards_of(table, predicted, rerun(table, fold) if rerun else ())
    return rows_of(name, evaluation, targets, n, split, reported or {})


def cards_of(table: Table, predicted: Predicted, peers: Sequence[Peer]) -> dict[str, Mapping[str, Any] | None]:
    """The figures of each peer; after one that leaves problems out, those of the model on the same problems."""
    cards: dict[str, Mapping[str, Any] | None] = {}
    for peer in peers:
        cards[peer.label] = peer.card
        if peer.answered is not None:
            ours = table.trials.share[table.trials.choose(predicted.score)]
            cards["kerncast on the same problems"] = baseline_card(ours[peer.answered])
    return cards


def rows_of(
    name: str, evaluation: Mapping[str, Any], targets: Mapping[str, Target], n: str, split: str, reported: Mapping[str, str]
) -> list[Row]:
    """One row per figure of the model, with the baselines and peers of the same run and reported figures as its `against`."""
    rows = []
    for key, label in FIGURES.items():
        figure = evaluation["overall"].get(key)
        if figure is None or figure["value"] is None:
            continue
        value, interval = percent(figure)
        beside = [] if key == "noise_ceiling" else list(others(evaluation["baselines"], key))
        if key in reported:
            beside.append(f"{reported[key]} ({PEERS_NOTE})")
        rows.append(Row(f"{name}: {label}", value, "%", targets.get(key), "; ".join(beside), n, split, interval))
    value, interval = percent(evaluation["overall"]["coverage_90"])
    rows.append(Row(f"{name}: times inside the 90 % interval", value, "%", COVERAGE, "", n, split, interval))
    return rows


def others(cards: Mapping[str, Mapping[str, Any] | None], key: str) -> Iterator[str]:
    """One figure of everything that the model is compared with. A peer that could not run is named once."""
    for who, card in cards.items():
        if card is None and key == "efficiency_mean":
            yield who
        elif card is not None and card.get(key) is not None:
            yield f"{BASELINES.get(who, who)} {format_figure(percent(card[key])[0], '%')}"
