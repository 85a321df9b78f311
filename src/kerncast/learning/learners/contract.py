"""What a learner is: it fits a table, predicts rows, and writes and reads its own weights. No pickle."""

from __future__ import annotations

import abc
import zlib
from collections.abc import Collection, Sequence
from dataclasses import dataclass
from lzma import LZMAError
from pathlib import Path
from typing import ClassVar, Self
from zipfile import BadZipFile

import msgspec
import numpy as np
import numpy.typing as npt

from kerncast.core.arrays import Flags, Floats
from kerncast.core.expr import Expr
from kerncast.core.io.foreign import refuse_large_archive
from kerncast.core.op import Family
from kerncast.core.progress import QUIET, Progress
from kerncast.errors import BadFile, InvalidValue
from kerncast.learning.learners.c_source import CScope, CSource
from kerncast.learning.learners.knobs import refuse_bad_values
from kerncast.learning.learners.lowering import Lowered
from kerncast.learning.learners.target import Target
from kerncast.learning.scoring.splits import held_out
from kerncast.learning.tables.feature_rows import Rows
from kerncast.learning.tables.table import Table

# Early stopping uses this share of the groups that a learner is given, never those it is scored on.
INNER_SHARE = 0.15
# What numpy and zipfile raise for damaged archives: bad streams, sizes that do not fit, members that need a password.
UNREADABLE = (
    OSError, ValueError, KeyError, EOFError, BadZipFile, zlib.error, LZMAError, MemoryError, OverflowError, RuntimeError,
)  # fmt: skip
# Fewer groups than this are too few for early stopping: all are trained on, for the full number of rounds.
FEWEST_GROUPS = 20

# With fewer rows threads wait for each other more than they work, especially next to another busy process: at 78,000 rows
# two threads of LightGBM spent 183 of 322 CPU seconds waiting.
WORTH_THREADS = 500_000


@dataclass(frozen=True)
class Fitting:
    """What a fit needs besides the table."""

    target: Target
    seed: int = 0
    threads: int = 0
    """0: all cores."""
    progress: Progress = QUIET
    rough: bool = False
    """The fit only shows how errors grow on other kinds of problems: where fits are expensive, a cheaper one is enough."""
    elsewhere: bool = False
    """It is asked about devices alone that are not in the table."""


@dataclass(frozen=True)
class Output:
    """Predictions in target space, and the scores to choose by if they differ (lower is chosen)."""

    target: Floats
    score: Floats | None = None


class Options(msgspec.Struct, frozen=True, forbid_unknown_fields=True):
    """The knobs of a learner; each kind declares its own."""


class Learner(abc.ABC):
    """One way to learn. `fit` returns self; names of learned attributes end in an underscore."""

    kind: ClassVar[str]
    doc: ClassVar[str]
    options_type: ClassVar[type[Options]] = Options
    continues: ClassVar[bool] = False
    """Whether a warm start can continue from its weights."""
    side_by_side: ClassVar[bool] = False
    """Whether several fits may run at the same time in threads of one process, each with its own `Fitting.threads`."""
    reads_features: ClassVar[bool] = True
    """Whether predictions depend on the features; False: on the work and on `problem_numbers` only."""
    names_: tuple[str, ...] | None = None
    """The features that its weights say they read, in order; None: they do not say."""

    def __init__(self, options: Options | None = None) -> None:
        self.options = self.options_type() if options is None else options

    @abc.abstractmethod
    def fit(self, table: Table, fitting: Fitting, base: Self | None = None) -> Self:
        """Learn from all rows of the table (failures included), continuing from `base` if there is one."""

    @abc.abstractmethod
    def predict(self, rows: Rows) -> Output:
        """Predictions for rows whose features are those it was fitted on, in that order."""

    def fails(self, rows: Rows) -> Flags:
        """Which rows it expects to fail; none, unless it learns from failures. They are never chosen."""
        return np.zeros(len(rows), dtype=bool)

    @abc.abstractmethod
    def save(self, folder: Path) -> None:
        """Write the weights; `load` reads them back to the same predictions."""

    @classmethod
    @abc.abstractmethod
    def load(cls, folder: Path, options: Options) -> Self:
        """A fitted learner from its files."""

    def importances(self) -> dict[str, float]:
        """How much each feature mattered, adding up to 1; empty if unknown."""
        return {}

    def size(self) -> dict[str, int]:
        """The numbers of trees, leaves, weights …, for the manifest."""
        return {}

    def lowered(self, family: Family, values: Collection[str]) -> Lowered | None:
        """The same predictions as data; None: they are none of those kinds. `values` are the numbers of the problem."""
        return None

    def c_source(self, scope: CScope) -> CSource | None:
        """The same predictions in C, of a learner that is not lowered. None: Python answers, and it cannot be exported to C."""
        return None

    def problem_numbers(self, family: Family) -> dict[str, Expr]:
        """Numbers of the problem alone that its C code reads, besides those of its work."""
        return {}


def set_aside(table: Table, seed: int) -> npt.NDArray[np.bool_] | None:
    """The rows for early stopping, in whole groups; None if there are too few to set any aside."""
    if len(np.unique(table.group)) < FEWEST_GROUPS:
        return None
    aside = held_out(table.group, INNER_SHARE, seed)
    # A validation part without a single label could not stop anything.
    return aside if table.ok[aside].any() and table.ok[~aside].any() else None


def inner_split(table: Table, seed: int) -> tuple[Table, Table | None]:
    """The rows to learn from and the rows for early stopping: whole groups on either side."""
    aside = set_aside(table, seed)
    return (table, None) if aside is None else (table.take(~aside), table.take(aside))


def label_weights(table: Table) -> Floats:
    """Weights of rows that worked: labels noisier than what a model can resolve count less."""
    # Even a perfect label is predicted to a few percent at best, so noise below that makes no difference.
    own = 0.03
    known = np.isfinite(table.noise)
    noise = np.where(known, table.noise, np.median(table.noise[known]) if known.any() else 0.0)
    return table.weight * own**2 / (own**2 + noise**2)


def read_arrays(path: Path) -> dict[str, npt.NDArray[np.generic]]:
    """The arrays of an .npz file; a damaged one is refused by name."""
    try:
        # Opened here: numpy forgets to close a file that turns out not to be one of its own.
        with path.open("rb") as file:
            refuse_large_archive(file, path)
            with np.load(file, allow_pickle=False) as stored:
                found = {name: stored[name] for name in stored.files}
    except UNREADABLE as error:
        raise BadFile(f"{path} is damaged ({error}): train the model again, or restore the file") from error
    for name, array in found.items():
        if not isinstance(array, np.ndarray):  # numpy hands out the bytes of a member that is no array
            raise BadFile(f"{path} is damaged ('{name}' is not an array): train the model again, or restore the file")
    return found


def write_arrays(path: Path, arrays: dict[str, npt.NDArray[np.generic]], compress: bool = False) -> None:
    """An .npz file with the same bytes for the same arrays (numpy stamps its members with 1980)."""
    with path.open("wb") as file:
        (np.savez_compressed if compress else np.savez)(file, **arrays)  # type: ignore[arg-type]


def refuse_other_shape(base: Options, options: Options, knobs: Sequence[str]) -> None:
    """A warm start continues from existing weights, so knobs that set their number must be those of the base."""
    for knob in knobs:
        theirs, ours = getattr(base, knob), getattr(options, knob)
        if theirs != ours:
            raise InvalidValue(
                f"`{knob}` is {ours}, but the model to continue has {theirs}: leave it out, or "
                "train from scratch, without `base`"
            )


def options_of(kind: type[Learner], given: dict[str, object]) -> Options:
    """The options of one kind from knobs by name; a knob that this kind does not have is refused."""
    known = kind.options_type.__struct_fields__
    for name in given:
        if name not in known:
            knobs = ", ".join(f"`{field}`" for field in known) or "none"
            raise InvalidValue(f"the model {kind.kind} has no knob `{name}` (its knobs: {knobs})")
    refuse_bad_values(kind.options_type, given)
    return msgspec.convert(given, kind.options_type)
