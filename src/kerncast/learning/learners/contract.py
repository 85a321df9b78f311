"""What a learner is: it fits a table, predicts rows, and writes and reads its own weights. No pickle."""

from __future__ import annotations

import abc
import zlib
from collections.abc import Collection, Mapping, Sequence
from dataclasses import dataclass, field
from lzma import LZMAError
from pathlib import Path
from typing import Any, ClassVar, Self
from zipfile import BadZipFile

import msgspec
import numpy as np
import numpy.typing as npt

from kerncast.core import arrays
from kerncast.core.arrays import Flags, Floats
from kerncast.core.expr import Expr
from kerncast.core.io.foreign import refuse_large_archive
from kerncast.core.io.quoting import Sealed
from kerncast.core.op import Family
from kerncast.core.progress import QUIET, Progress
from kerncast.errors import BadFile, InvalidValue
from kerncast.learning.feature_rows import Rows
from kerncast.learning.learners.trees import Tree
from kerncast.learning.table import Table
from kerncast.learning.trials import held_out

# The buffers of a network, and the steps over them.
INPUT, A, B, D, RAW = range(5)
DENSE, ADD, COPY = range(3)


@dataclass(frozen=True)
class Level:
    """The same for every row."""

    value: float


@dataclass(frozen=True)
class Lines:
    """Lines in the order of their keys; the last one, which has no key, is for any other key."""

    keys: Floats
    lines: Floats
    """[line, (intercept, slope, shortest)]"""
    reads: tuple[int, ...]
    """What each column is compared with: a problem parameter by its place, or, after these, a config parameter."""
    size: str
    """The number of the problem that the time grows with."""


@dataclass(frozen=True)
class Boosted:
    """Forests, and how their sums become a score: `own` × the time's − `weight` × the order's."""

    trees: Mapping[str, Sequence[Sequence[Tree]]]
    """By name (time, rank, valid, library) and bag."""
    own: float = 1.0
    weight: float = 0.0


@dataclass
class Network:
    """Layers over scaled features. What is predicted is the first output × `spread` + `middle`."""

    scaling: Any
    middle: float
    spread: float
    blend: tuple[float, float] | None = None
    """Shares of the time and of the second output in the score; None: there is one output."""
    steps: list[tuple[int, ...]] = field(default_factory=list)
    """Operation, source, offset, rows, first weight, first bias or -1, columns, rectify, target."""
    kept: list[Floats] = field(default_factory=list)

    def dense(self, source: int, offset: int, weights: Any, bias: Any, rectify: bool, target: int) -> None:
        """target = source · weights + bias."""
        rows, columns = np.asarray(weights).shape
        first = self._keep(weights)
        self.steps.append((DENSE, source, offset, rows, first, self._keep(bias), columns, int(rectify), target))

    def move(self, operation: int, source: int, columns: int, target: int) -> None:
        """target = source, or target += source."""
        self.steps.append((operation, source, 0, 0, 0, -1, columns, 0, target))

    @property
    def outputs(self) -> int:
        return self.steps[-1][6]

    @property
    def weights(self) -> Floats:
        """All weights, in one row."""
        return np.concatenate(self.kept)

    def _keep(self, weights: Any) -> int:
        if weights is None:
            return -1
        first = sum(len(each) for each in self.kept)
        self.kept.append(np.asarray(weights, np.float64).ravel())
        return first


Lowered = Level | Lines | Boosted | Network


@dataclass(frozen=True)
class CScope:
    """The context of a learner's C code."""

    family: Family
    values: Mapping[str, int]
    """The index in `v` of each number of the problem: `roofline_ns`, `flops`, `bytes` where they are known, and
    `Learner.problem_numbers`."""
    sealed: Sealed
    """Writes constant arrays, which are checked when a context is made."""


@dataclass(frozen=True)
class CSource:
    """C99 text with the function `kc_learn`; all names in it begin with `kc_`."""

    text: str
    outputs: int = 1
    """How many numbers `kc_learn` writes to `raw`."""
    score: str = "*time_ns"
    """The score (low is chosen): an expression of `raw`, `v` and `*time_ns`; it may call `kc_log_time(raw[0], v)`."""


def learn_function(body: str) -> str:
    """The function `kc_learn` with these statements."""
    arguments = "const double *x, const double *p, const double *c, const double *v, double *raw"
    return f"static void kc_learn({arguments}) {{\n    (void)x, (void)p, (void)c, (void)v;\n{body}}}\n"


TARGETS = ("relative", "latency", "tflops", "bandwidth")
# A rate is clipped to at least this before it becomes a time: a model may predict zero or less.
LEAST_RATE = 1e-6


@dataclass(frozen=True)
class Target:
    """`relative`: time over the softened roofline; `latency`: time; `tflops`, `bandwidth`: work over time.

    In log space by default: log of the times, log1p of the rates (CK Tile's classic recipe).
    """

    name: str
    log: bool = True

    def __post_init__(self) -> None:
        if self.name not in TARGETS:
            raise InvalidValue(f"a target is one of {', '.join(TARGETS)}, got '{self.name}'")

    @property
    def higher_is_faster(self) -> bool:
        return self.name in ("tflops", "bandwidth")

    def _base(self, rows: Rows) -> Floats:
        """The number that the time is divided by, or that is divided by the time."""
        base = {"relative": rows.expected_ns, "tflops": rows.flops, "bandwidth": rows.bytes}.get(self.name, np.ones(len(rows)))
        if base is None:
            need = "a roofline" if self.name == "relative" else f"the {'FLOPs' if self.name == 'tflops' else 'bytes'}"
            raise InvalidValue(f"the target {self.name} needs {need} of {rows.family.op.name}, unknown here: use latency")
        # FLOP per ns is GFLOP/s; bytes per ns is GB/s.
        return base / 1e3 if self.name == "tflops" else base

    def encode(self, time_ns: Floats, rows: Rows) -> Floats:
        """Labels for the learner."""
        base = self._base(rows)
        if self.higher_is_faster:
            rate = base / time_ns
            return np.log1p(rate) if self.log else rate
        ratio = time_ns / base
        return np.log(ratio) if self.log else ratio

    def decode(self, predicted: Floats, rows: Rows) -> Floats:
        """Nanoseconds, always positive."""
        base = self._base(rows)
        if self.higher_is_faster:
            rate = arrays.expm1(predicted) if self.log else predicted
            return base / np.maximum(rate, LEAST_RATE)
        ratio = arrays.exp(predicted) if self.log else predicted
        # A raw target may come out negative; no time is shorter than a picosecond.
        return np.maximum(ratio * base, 1e-3)

    def log_time(self, predicted: Floats, rows: Rows) -> Floats:
        """The log of the time, up to a constant per problem: the score to choose by.

        If the target is a logarithm already, no exp or log is needed, so exported C ranks exactly alike.
        """
        if self.log and not self.higher_is_faster:
            return predicted
        return np.log(self.decode(predicted, rows))


def default_target(rows: Rows) -> Target:
    """Relative to the roofline where there is one, else the time itself."""
    return Target("relative" if rows.expected_ns is not None else "latency")


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


class LearnerOptions(msgspec.Struct, frozen=True, forbid_unknown_fields=True):
    """The knobs of a learner; each kind declares its own."""


class Learner(abc.ABC):
    """One way to learn. `fit` returns self; names of learned attributes end in an underscore."""

    kind: ClassVar[str]
    doc: ClassVar[str]
    options_type: ClassVar[type[LearnerOptions]] = LearnerOptions
    continues: ClassVar[bool] = False
    """Whether a warm start can continue from its weights."""
    side_by_side: ClassVar[bool] = False
    """Whether several fits may run at the same time in threads of one process, each with its own `Fitting.threads`."""
    reads_features: ClassVar[bool] = True
    """Whether predictions depend on the features; False: on the work and on `problem_numbers` only."""
    reads_csv: ClassVar[bool] = False
    """Whether its weights can be given as CSV files; then it has `from_csv`."""
    names_: tuple[str, ...] | None = None
    """The features that its weights say they read, in order; None: they do not say."""

    options: Any
    """Of `options_type`; a learner may narrow it to its own."""

    def __init__(self, options: LearnerOptions | None = None) -> None:
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
    def load(cls, folder: Path, options: LearnerOptions) -> Self:
        """A fitted learner from its files."""

    def save_packed(self, folder: Path) -> None:
        """Write the weights in as few bytes as predictions need."""
        self.save(folder)

    def write_csv(self, out: Path, names: Sequence[str], target: Target) -> bool:
        """Write what it learned as CSV, one file or a folder of several, for features of these names; False: it cannot."""
        return False

    @classmethod
    def from_csv(cls, network: Any, rows: Rows, knobs: dict[str, Any]) -> Self:
        """A learner with weights that are given, for rows that have their features."""
        raise InvalidValue(f"`weights` are not those of a {cls.kind} model: leave out `kind`")

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


def damaged(path: Path, why: object) -> BadFile:
    """The refusal of a file of weights."""
    return BadFile(f"{path} is damaged ({why}): train the model again, or restore the file")


def read_arrays(path: Path) -> dict[str, npt.NDArray[np.generic]]:
    """The arrays of an .npz file; a damaged one is refused by name."""
    try:
        # Opened here: numpy forgets to close a file that turns out not to be one of its own.
        with path.open("rb") as file:
            refuse_large_archive(file, path)
            with np.load(file, allow_pickle=False) as stored:
                found = {name: stored[name] for name in stored.files}
    except UNREADABLE as error:
        raise damaged(path, error) from error
    for name, array in found.items():
        if not isinstance(array, np.ndarray):  # numpy hands out the bytes of a member that is no array
            raise damaged(path, f"'{name}' is not an array")
    return found


def write_arrays(path: Path, arrays: dict[str, npt.NDArray[np.generic]], compress: bool = False) -> None:
    """An .npz file with the same bytes for the same arrays (numpy stamps its members with 1980)."""
    with path.open("wb") as file:
        (np.savez_compressed if compress else np.savez)(file, **arrays)  # type: ignore[arg-type]


def refuse_other_shape(base: LearnerOptions, options: LearnerOptions, knobs: Sequence[str]) -> None:
    """A warm start continues from existing weights, so knobs that set their number must be those of the base."""
    for knob in knobs:
        theirs, ours = getattr(base, knob), getattr(options, knob)
        if theirs != ours:
            raise InvalidValue(
                f"`{knob}` is {ours}, but the model to continue has {theirs}: leave it out, or "
                "train from scratch, without `base`"
            )
