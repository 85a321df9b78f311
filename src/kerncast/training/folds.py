"""Cross-validation of a procedure, fold by fold, each kept on disk as soon as it is done."""

from __future__ import annotations

import glob
import hashlib
import shutil
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

import msgspec
import numpy as np
import numpy.typing as npt

from kerncast.core.arrays import Flags, Floats, Ints
from kerncast.core.io.atomic import replace_file
from kerncast.errors import BadFile
from kerncast.learning.assess import HeldOutKind, kinds_of
from kerncast.learning.learners.contract import Learner, read_arrays, write_arrays
from kerncast.learning.metrics import choice_figures
from kerncast.learning.table import Table
from kerncast.learning.trials import CONFIG, folds_by_group
from kerncast.models.limits.devices import FEWEST_DEVICES, DeviceErrors, Elsewhere, calibrate_elsewhere, nearest, numbers_read
from kerncast.training.fits import Fit, run_fits
from kerncast.training.procedure import Procedure, Recipe
from kerncast.version import __version__

# How errors grow with the distance is seen in a sample of whole groups; each device that is left out costs one more fit.
MOST_FITTED, MOST_JUDGED = 20_000, 4_000


@dataclass(frozen=True)
class DevicePart:
    """One device: rows of the others to learn from, and rows of its own to judge by."""

    device: str
    number: int
    fitted: Ints
    judged: Ints


def device_parts(table: Table, seed: int) -> list[DevicePart]:
    """Each device of a table that has enough of them."""
    if len(table.devices) < FEWEST_DEVICES:
        return []
    found = []
    for number, device in enumerate(table.devices):
        if device.estimated:  # of a device that was not measured nothing could be estimated
            continue
        own = np.flatnonzero(table.device == number)
        others = np.flatnonzero(table.device != number)
        fitted, judged = _some(table, others, MOST_FITTED, seed), _some(table, own, MOST_JUDGED, seed)
        if table.ok[fitted].any() and table.ok[judged].any():
            found.append(DevicePart(device.name, number, fitted, judged))
    return found


def _some(table: Table, rows: Ints, most: int, seed: int) -> Ints:
    """About as many of the rows, in whole groups; all if there are no more."""
    if len(rows) <= most:
        return rows
    groups, dense = np.unique(table.group[rows], return_inverse=True)
    order = np.random.default_rng(seed).permutation(len(groups))
    upto = np.cumsum(np.bincount(dense, minlength=len(groups))[order])
    kept = np.zeros(len(groups), dtype=bool)
    kept[order[: max(1, int(np.searchsorted(upto, most, side="right")))]] = True
    return rows[kept[dense]]


def judge_left_out(table: Table, parts: Sequence[tuple[DevicePart, Floats]]) -> Elsewhere | None:
    """How wrong the model is on devices it has not seen; `parts` are the devices with their predicted times."""
    numbers, found = numbers_read(table.family, table.rows.names), []
    for part, predicted_ns in parts:
        measured = table.time_ns[part.judged]
        known = np.isfinite(measured) & np.isfinite(predicted_ns)
        if not known.any():
            continue
        others = [device for number, device in enumerate(table.devices) if number != part.number]
        limit = table.rows.limit_ns if table.rows.limit_ns is not None else table.rows.roofline_ns
        roofline = None if limit is None else np.log(measured[known] / limit[part.judged][known])
        name, far = nearest(table.devices[part.number], others, numbers)
        found.append(DeviceErrors(part.device, name, far, np.log(measured[known] / predicted_ns[known]), roofline))
    return calibrate_elsewhere(found, numbers)


@dataclass(frozen=True)
class Predictions:
    """A procedure's predictions for rows that it was not given; NaN where there is none."""

    time_ns: Floats
    score: Floats


# Of the hash in the name of the folder of kept folds.
DIGEST_BYTES = 6


@dataclass(frozen=True)
class Partial:
    """Finished folds, kept next to the model's future directory: an interrupted training continues from them."""

    folder: Path

    @classmethod
    def beside(cls, out: Path, table: Table, recipe: Recipe) -> Partial:
        """The folder is named by a hash of everything that decides the predictions, so nothing stale is reused."""
        hasher = hashlib.blake2b(digest_size=DIGEST_BYTES)
        program = table.family.feature_program.digest
        hasher.update(f"{__version__}|{table.digest}|{program}|{table.rows.names}|{recipe.as_options()}".encode())
        # The rows themselves too: a filter or a device's numbers can change them while the dataset stays the same.
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
        except BadFile:  # damaged: predict it again
            return None
        return Predictions(np.asarray(arrays["time_ns"], np.float64), np.asarray(arrays["score"], np.float64))

    def write(self, number: int, found: Predictions) -> None:
        """Keep a fold; if it cannot be written, it is not kept."""
        try:
            self.folder.mkdir(parents=True, exist_ok=True)
            arrays: dict[str, npt.NDArray[np.generic]] = {"time_ns": found.time_ns, "score": found.score}
            replace_file(self.folder / f"{number}.npz", lambda draft: write_arrays(draft, arrays))
        except OSError:
            return


def discard_folds(out: Path) -> None:
    """Remove the folds that trainings of a model kept next to its directory."""
    kept = "[0-9a-f]" * (2 * DIGEST_BYTES)
    for folder in out.absolute().parent.glob(f".{glob.escape(out.name)}.{kept}.folds"):
        shutil.rmtree(folder, ignore_errors=True)


def cross_validate(
    table: Table, procedure: Procedure, fold: Ints | None = None, partial: Partial | None = None
) -> tuple[Ints, Predictions, dict[str, Any]]:
    """Predict every row with a learner that saw nothing of its fold; folds are whole groups unless given."""
    fold, found, extra, _ = _validated(table, procedure, fold, partial, final=False)
    return fold, found, extra


def cross_validate_seeds(table: Table, procedure: Procedure, folds: Mapping[int, Ints]) -> dict[int, Predictions]:
    """The predictions of `cross_validate` with other seeds, each with its own folds; all fits may run in parallel."""
    parts = [(seed, number) for seed, fold in folds.items() for number in np.unique(fold).tolist()]
    fits = [
        Fit(f"seed {seed}, fold {place + 1} of {len(parts)}", _seeded_fold(folds[seed] == number, seed))
        for place, (seed, number) in enumerate(parts)
    ]
    done = dict(zip(parts, run_fits(fits, procedure, table), strict=True))
    numbers = {seed: [number for each, number in parts if each == seed] for seed in folds}
    return {seed: _together(fold, numbers[seed], [done[seed, n] for n in numbers[seed]]) for seed, fold in folds.items()}


@dataclass(frozen=True)
class Validated:
    """What a procedure predicts out of fold and out of kind, and the learner that it makes of everything."""

    fold: Ints
    predictions: Predictions
    kinds: tuple[tuple[HeldOutKind, Predictions], ...]
    """For each kind of problems: the predictions of its rows by a learner that saw no problem of this kind."""
    devices: tuple[tuple[DevicePart, Predictions], ...]
    """For each of several devices: the predictions of some of its rows by a learner that saw none of them."""
    learner: Learner
    extra: dict[str, Any]


def validate_and_fit(table: Table, procedure: Procedure, partial: Partial) -> Validated:
    """Cross-validate a procedure, at random and by kind, and run it once more on everything; all fits may run in parallel."""
    kinds = [] if procedure.recipe.hold_out == CONFIG else kinds_of(table)
    devices = device_parts(table, procedure.recipe.seed)
    fold, found, extra, done = _validated(table, procedure, None, partial, kinds, devices, final=True)
    *others, learner = done
    by_kind, by_device = others[: len(kinds)], others[len(kinds) :]
    return Validated(
        fold, found, tuple(zip(kinds, by_kind, strict=True)), tuple(zip(devices, by_device, strict=True)), learner, extra
    )


def _validated(
    table: Table, procedure: Procedure, fold: Ints | None, partial: Partial | None, kinds: Sequence[HeldOutKind] = (),
    devices: Sequence[DevicePart] = (), *, final: bool,
) -> tuple[Ints, Predictions, dict[str, Any], list[Any]]:  # fmt: skip
    """Folds, predictions, what else is known, and the results by kind and by device, followed by the final learner."""
    recipe = procedure.recipe
    fold = folds_by_group(table.group, recipe.folds, recipe.seed) if fold is None else fold
    numbers = [int(number) for number in np.unique(fold)]
    names = [f"fold {place + 1} of {len(numbers)}" for place in range(len(numbers))]
    fits: list[Fit] = [
        _fold(name, fold == number, place, partial) for place, (name, number) in enumerate(zip(names, numbers, strict=True))
    ]
    fits += [
        _fold(f"without {kind.words}", kind.held, len(numbers) + place, partial, rough=True) for place, kind in enumerate(kinds)
    ]
    fits += [_left_out(part, len(numbers) + len(kinds) + place, partial) for place, part in enumerate(devices)]
    if final:
        fits.append(Fit("the final fit", lambda table, own: own.fit(table)))
    if recipe.hard_mining:
        fits += [
            Fit(f"{name} without mining", _plain_fold(fold == number)) for name, number in zip(names, numbers, strict=True)
        ]
    done = run_fits(fits, procedure, table)
    found = _together(fold, numbers, done[: len(numbers)])
    extra: dict[str, Any] = {}
    if recipe.hard_mining:
        plain = _together(fold, numbers, done[-len(numbers) :])
        beside = choice_figures(table.trials, table.trials.choose(plain.score))
        extra = {"without_hard_mining": msgspec.to_builtins(beside)}
    return fold, found, extra, done[len(numbers) : len(numbers) + len(kinds) + len(devices) + final]


def _fold(name: str, own: Flags, place: int, partial: Partial | None, *, rough: bool = False) -> Fit:
    """Predicts one fold."""
    return _kept(
        name, partial, place, int(own.sum()), lambda table, procedure: _out_of_fold(table, replace(procedure, rough=rough), own)
    )


def _left_out(part: DevicePart, place: int, partial: Partial | None) -> Fit:
    """Predicts rows of one device with a learner of the others."""

    def run(table: Table, procedure: Procedure) -> Predictions:
        rough = replace(procedure, rough=True, elsewhere=True)
        seen, held = table.divided(part.fitted, part.judged)
        return Predictions(*rough.scores(rough.fit(seen), held, seen))

    return _kept(f"without {part.device}", partial, place, len(part.judged), run)


def _kept(name: str, partial: Partial | None, place: int, rows: int, predict: Callable[[Table, Procedure], Predictions]) -> Fit:
    """Predicts some rows, unless an earlier run has done so, and keeps the result."""
    if partial is None:
        return Fit(name, predict)

    def kept() -> Predictions | None:
        found = partial.read(place)
        return None if found is None or len(found.time_ns) != rows else found

    return Fit(name, predict, kept, lambda found: partial.write(place, found))


def _plain_fold(own: Flags) -> Callable[[Table, Procedure], Predictions]:
    return lambda table, procedure: _out_of_fold(
        table, replace(procedure, recipe=replace(procedure.recipe, hard_mining=0)), own
    )


def _seeded_fold(own: Flags, seed: int) -> Callable[[Table, Procedure], Predictions]:
    return lambda table, procedure: _out_of_fold(table, replace(procedure, recipe=replace(procedure.recipe, seed=seed)), own)


def _out_of_fold(table: Table, procedure: Procedure, own: Flags) -> Predictions:
    seen, held = table.divided(~own, own)
    return Predictions(*procedure.scores(procedure.fit(seen), held, seen))


def _together(fold: Ints, numbers: list[int], parts: list[Predictions]) -> Predictions:
    time_ns, score = np.full(len(fold), np.nan), np.full(len(fold), np.nan)
    for number, part in zip(numbers, parts, strict=True):
        time_ns[fold == number], score[fold == number] = part.time_ns, part.score
    return Predictions(time_ns, score)
