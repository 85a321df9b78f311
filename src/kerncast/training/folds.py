"""Cross-validation of a procedure, fold by fold, each kept on disk as soon as it is done."""

from __future__ import annotations

import glob
import hashlib
import shutil
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import msgspec
import numpy as np
import numpy.typing as npt

from kerncast.errors import BadFile
from kerncast.learners.contract import read_arrays, write_arrays
from kerncast.scoring.scorecard import choice_figures
from kerncast.scoring.splits import folds_by_group
from kerncast.tables.table import Table
from kerncast.training.procedure import Procedure, Recipe
from kerncast.version import __version__

Floats = npt.NDArray[np.float64]
Ints = npt.NDArray[np.int64]
Stage = Callable[[str, int, int], None]


@dataclass(frozen=True)
class Predictions:
    """What a procedure says of rows that it was not given; NaN where it was never asked."""

    time_ns: Floats
    score: Floats


@dataclass(frozen=True)
class Partial:
    """Finished folds beside the model to be: an interrupted training goes on from them."""

    folder: Path

    @classmethod
    def beside(cls, out: Path, table: Table, recipe: Recipe) -> Partial:
        """Named by everything that decides the predictions, so nothing stale is ever taken up."""
        hasher = hashlib.blake2b(digest_size=6)
        program = table.family.feature_program.digest
        hasher.update(f"{__version__}|{table.digest}|{program}|{table.rows.names}|{recipe.as_options()}".encode())
        # The rows themselves too: a filter or a device's numbers can change them while the dataset stays as it is.
        for values in (table.rows.features, table.time_ns, table.noise, table.group):
            hasher.update(np.ascontiguousarray(values).tobytes())
        digest = hasher.hexdigest()
        return cls(out.absolute().parent / f".{out.name}.{digest}.folds")

    def read(self, number: int) -> Predictions | None:
        """A fold that an earlier run finished."""
        file = self.folder / f"{number}.npz"
        if not file.exists():
            return None
        try:
            arrays = read_arrays(file)
        except BadFile:  # cut off while it was written
            return None
        return Predictions(np.asarray(arrays["time_ns"], np.float64), np.asarray(arrays["score"], np.float64))

    def write(self, number: int, found: Predictions) -> None:
        """Keep a fold; without a place to write it is simply not kept."""
        try:
            self.folder.mkdir(parents=True, exist_ok=True)
            write_arrays(self.folder / f"{number}.npz", {"time_ns": found.time_ns, "score": found.score})
        except OSError:
            return

    def discard(self) -> None:
        """The model is there; its folds, and those of earlier tries under that name, are not needed any more."""
        name = self.folder.name.rsplit(".", 2)[0]
        for folder in self.folder.parent.glob(f"{glob.escape(name)}.*.folds"):
            shutil.rmtree(folder, ignore_errors=True)


def cross_validate(
    table: Table, procedure: Procedure, stage: Stage, fold: Ints | None = None, partial: Partial | None = None
) -> tuple[Ints, Predictions, dict[str, Any]]:
    """Every row predicted by a learner that saw nothing of its fold; folds are whole groups unless given."""
    recipe = procedure.recipe
    fold = folds_by_group(table.group, recipe.folds, recipe.seed) if fold is None else fold
    numbers = [int(number) for number in np.unique(fold)]
    found = _run(table, procedure, fold, numbers, stage, partial)
    if not recipe.hard_mining:
        return fold, found, {}
    plain = _run(
        table, procedure.without_mining(), fold, numbers, lambda name, n, of: stage(f"{name} without mining", n, of), None
    )
    beside = choice_figures(table.trials, table.trials.choose(plain.score))
    return fold, found, {"without_hard_mining": msgspec.to_builtins(beside)}


def _run(
    table: Table, procedure: Procedure, fold: Ints, numbers: list[int], stage: Stage, partial: Partial | None
) -> Predictions:
    time_ns, score = np.full(len(fold), np.nan), np.full(len(fold), np.nan)
    for place, number in enumerate(numbers):
        stage(f"fold {place + 1} of {len(numbers)}", place + 1, len(numbers) + 1)
        own = fold == number
        kept = partial.read(place) if partial is not None else None
        if kept is None or len(kept.time_ns) != int(own.sum()):
            seen = table.take(~own)
            kept = Predictions(*procedure.scores(procedure.fit(seen), table.take(own), seen))
            if partial is not None:
                partial.write(place, kept)
        time_ns[own], score[own] = kept.time_ns, kept.score
    return Predictions(time_ns, score)
