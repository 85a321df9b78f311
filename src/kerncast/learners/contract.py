"""What a learner is: it fits a table, predicts rows, and writes and reads its own weights. No pickle."""

from __future__ import annotations

import abc
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import ClassVar, Self
from zipfile import BadZipFile

import msgspec
import numpy as np
import numpy.typing as npt

from kerncast.errors import BadFile, InvalidValue
from kerncast.learners.knobs import refuse_bad_values
from kerncast.learners.target import Target
from kerncast.scoring.splits import held_out
from kerncast.tables.feature_rows import Rows
from kerncast.tables.table import Table

Floats = npt.NDArray[np.float64]

# Early stopping looks at this share of the groups that a learner was given, never at those it is scored on.
INNER_SHARE = 0.15
# Fewer groups than this are too few to stop by: all of them are trained on, for the full number of rounds.
FEWEST_GROUPS = 20

Step = Callable[[str, int, int], None]


def _silent(what: str, done: int, of: int) -> None:
    return


@dataclass(frozen=True)
class Fitting:
    """What a fit needs beside the table."""

    target: Target
    seed: int = 0
    threads: int = 0
    """0: all cores."""
    step: Step = field(default=_silent)


@dataclass(frozen=True)
class Output:
    """Predictions in target space, and what to choose by where that is something else (lower is chosen)."""

    target: Floats
    score: Floats | None = None


class Options(msgspec.Struct, frozen=True, forbid_unknown_fields=True):
    """The knobs of a learner; each kind declares its own."""


class Learner(abc.ABC):
    """One way to learn. `fit` returns self; what was learned ends in an underscore."""

    kind: ClassVar[str]
    doc: ClassVar[str]
    options_type: ClassVar[type[Options]] = Options
    continues: ClassVar[bool] = False
    """A warm start can go on from weights."""

    def __init__(self, options: Options | None = None) -> None:
        self.options = self.options_type() if options is None else options

    @abc.abstractmethod
    def fit(self, table: Table, fitting: Fitting, base: Self | None = None) -> Self:
        """Learn from all rows of the table (failures included), going on from `base` if there is one."""

    @abc.abstractmethod
    def predict(self, rows: Rows) -> Output:
        """Predictions for rows whose features are those it was fitted on, in that order."""

    @abc.abstractmethod
    def save(self, folder: Path) -> None:
        """Write the weights; `load` reads them back to the same predictions."""

    @classmethod
    @abc.abstractmethod
    def load(cls, folder: Path, options: Options) -> Self:
        """A fitted learner from its files."""

    def importances(self) -> dict[str, float]:
        """How much each feature mattered, adding up to 1; empty where that is not known."""
        return {}

    def size(self) -> dict[str, int]:
        """What it is made of (trees, leaves, weights …), for the manifest."""
        return {}


def inner_split(table: Table, seed: int) -> tuple[Table, Table | None]:
    """What to learn from and what to stop by: whole groups on either side."""
    if len(np.unique(table.group)) < FEWEST_GROUPS:
        return table, None
    aside = held_out(table.group, INNER_SHARE, seed)
    # A validation half without a single label could not stop anything.
    if not table.ok[aside].any() or not table.ok[~aside].any():
        return table, None
    return table.take(~aside), table.take(aside)


def label_weights(table: Table) -> Floats:
    """Weights of rows that worked: a label that is twice as noisy as what a model can tell anyway counts less."""
    # Even a perfect label is predicted to a few percent at best, so noise below that makes no difference.
    own = 0.03
    known = np.isfinite(table.noise)
    noise = np.where(known, table.noise, np.median(table.noise[known]) if known.any() else 0.0)
    return table.weight * own**2 / (own**2 + noise**2)


def read_arrays(path: Path) -> dict[str, npt.NDArray[np.generic]]:
    """The arrays of an .npz file; a damaged one is refused by name."""
    try:
        # Opened here: numpy forgets to close a file that turns out not to be one of its own.
        with path.open("rb") as file, np.load(file, allow_pickle=False) as stored:
            return {name: stored[name] for name in stored.files}
    except (OSError, ValueError, KeyError, EOFError, NotImplementedError, BadZipFile) as error:
        raise BadFile(f"{path} is damaged ({error}): train the model again, or restore the file") from error


def write_arrays(path: Path, arrays: dict[str, npt.NDArray[np.generic]]) -> None:
    """An .npz file with the same bytes for the same arrays (numpy stamps its members with 1980)."""
    with path.open("wb") as file:
        np.savez(file, **arrays)  # type: ignore[arg-type]


def refuse_other_shape(base: Options, options: Options, knobs: Sequence[str]) -> None:
    """A warm start goes on with the weights there are: knobs that decide how many must be those of the base."""
    for knob in knobs:
        theirs, ours = getattr(base, knob), getattr(options, knob)
        if theirs != ours:
            raise InvalidValue(
                f"--{knob.replace('_', '-')} is {ours} and that of the model to go on from is {theirs}: leave it out, or "
                "train from scratch, without --warm-start"
            )


def options_of(kind: type[Learner], given: dict[str, object]) -> Options:
    """The options of one kind from knobs by name; a knob that this kind does not have is refused."""
    known = kind.options_type.__struct_fields__
    for name in given:
        if name not in known:
            knobs = ", ".join(f"--{field.replace('_', '-')}" for field in known) or "none"
            raise InvalidValue(f"--{name.replace('_', '-')} means nothing for the model {kind.kind} (its knobs: {knobs})")
    refuse_bad_values(kind.options_type, given)
    return msgspec.convert(given, kind.options_type)
