"""What the columns of a table are, by their names and cells: the draft of an op, or of kernels, of one's own.

Whole numbers are sizes of the problem unless their name has a word that kernels are described by, such as `block`. Words are
parameters of the kernel unless they are dtypes or have such a name.
"""

from __future__ import annotations

import keyword
import re
import unicodedata
from collections.abc import Collection, Iterable, Mapping
from dataclasses import dataclass, field
from functools import lru_cache

import polars as pl

from kerncast.core import dtypes
from kerncast.core.io.quoting import toml_string, toml_table
from kerncast.data.formats.kernel_tuner.attempts import RESERVED
from kerncast.library.declared.declaration import LARGEST_SIZE, Declaration, Formulas, Values
from kerncast.library.registry import LONGEST_LABEL, LONGEST_NAME, OPS

# What a draft could not guess.
OPEN = "?"
TIME_WORDS = ("time", "latency", "duration", "feedback", "runtime", "elapsed")
# Columns beside the time that have its name in theirs.
NOT_THE_TIME = {
    "build", "compile", "cv", "date", "end", "err", "limit", "max", "min", "p90", "p95", "p99", "start", "std", "stddev",
    "stdev", "step", "steps", "timeout", "timestamp", "var", "variance", "warmup",
}  # fmt: skip
UNITS = {
    "ns": "ns", "nanoseconds": "ns", "nsec": "ns", "us": "us", "microseconds": "us", "usec": "us", "µs": "us", "μs": "us",
    "ms": "ms", "milliseconds": "ms", "msec": "ms", "s": "s", "seconds": "s", "sec": "s",
}  # fmt: skip
FILLERS = ("size", "dim", "num", "param", "problem", "config")
# A table with more different cells than this in a column does not hold labels.
MOST_LABELS = 32
# A column is judged by most of its cells: an import skips odd rows, and refuses a table only if more than half of it is odd.
FITTING = 0.5
# Labels that nobody knows are asked about, unless they are as rare as this: then their rows are odd.
ODD = 0.01


@lru_cache(maxsize=100_000)
def words(name: str) -> tuple[str, ...]:
    """The words of a column's name; `latencyMs` has two."""
    parted = re.sub(r"(?<=[a-z0-9])(?=[A-Z][a-z])", " ", name)
    return tuple(word for word in re.split(r"[^a-z0-9µμ]+", parted.lower()) if word)


def plain(name: str) -> str:
    """A column name without case, punctuation and filler words."""
    return "".join(word for word in words(name) if word not in FILLERS)


def texts(cells: pl.Series) -> pl.Series:
    """The cells as text; no null."""
    found = cells.cast(pl.String).fill_null("")
    return found.str.to_lowercase() if cells.dtype == pl.Boolean else found  # as in TOML


def labels_of(cells: pl.Series) -> list[str]:
    """The different texts in a column, sorted; none if there are too many to be labels."""
    found = texts(cells).unique()
    return sorted(text for text in found.to_list() if text != "") if found.len() <= MOST_LABELS + 1 else []


def whole_numbers(cells: pl.Series) -> pl.Series:
    """The cells that are whole numbers of a size that parameters have; null elsewhere."""
    found = texts(cells)
    plain_numbers = found.str.replace(r"^(-?\d+)\.0+$", "${1}")
    return plain_numbers.set(~plain_numbers.str.contains(r"^-?\d{1,15}$"), None).cast(pl.Int64)


def times_of(cells: pl.Series) -> tuple[pl.Series, pl.Series]:
    """The numbers of cells such as `5.41` and `5.41 us`, and the unit that each cell says itself; null where there is none."""
    found = texts(cells)
    plain_numbers = found.cast(pl.Float64, strict=False)
    if not (plain_numbers.is_null() & (found != "")).any():
        return plain_numbers, pl.Series(found.name, [None], dtype=pl.String).new_from_index(0, found.len())
    parts = found.str.extract_groups(r"^\s*([+-]?[\d.]+(?:[eE][+-]?\d+)?)\s*([A-Za-zµμ]+)\s*$").struct
    units = parts[1].str.to_lowercase().replace_strict(UNITS, default=None, return_dtype=pl.String)
    with_unit = parts[0].cast(pl.Float64, strict=False).set(units.is_null(), None)
    return plain_numbers.zip_with(with_unit.is_null(), with_unit), units.set(with_unit.is_null(), None)


def numbers(cells: pl.Series) -> pl.Series:
    """The cells that are finite numbers; null elsewhere."""
    found = texts(cells).cast(pl.Float64, strict=False)
    return found.set(~found.is_finite(), None)


# Beginnings of words in the names of what a kernel chooses.
_KERNEL_STEMS = (
    "algo", "block", "blk", "buffering", "cfg", "cluster", "config", "cta", "impl", "lds", "lib", "method", "occupancy",
    "persist", "pipelin", "prefetch", "schedul", "shared", "smem", "simd", "solution", "split", "stage", "strateg", "swizz",
    "thread", "tile", "tiling", "unroll", "variant", "vec", "warp", "wave", "workgroup",
)  # fmt: skip
_KERNEL_WORDS = {"group", "lanes", "opt", "optlevel", "per", "wg"}
# Words in the names of what is computed, for columns of words.
_PROBLEM_WORDS = {
    "act", "activation", "border", "boundary", "direction", "dist", "distribution", "dtype", "func", "function", "has", "is",
    "layout", "mode", "op", "operation", "padding", "pattern", "precision", "trans", "transa", "transb", "type", "with",
}  # fmt: skip
# What was measured beside the time.
_MEASURED_WORDS = {
    "bandwidth", "bw", "clock", "cycles", "diff", "efficiency", "energy", "err", "error", "errratio", "flops", "freq", "gbps",
    "gflops", "ipc", "joules", "mhz", "power", "roofline", "speedup", "temperature", "tflops", "throughput", "util",
    "utilization", "watts", *TIME_WORDS,
}  # fmt: skip
# Where a row comes from.
_ORIGIN_WORDS = {
    "branch", "build", "card", "comment", "comments", "commit", "cuda", "date", "datetime", "device", "driver", "file", "git",
    "gpu", "hash", "host", "hostname", "id", "idx", "index", "log", "message", "node", "note", "notes", "path", "remark", "rep",
    "repeat", "repeats", "reps", "rev", "revision", "rocm", "run", "seed", "sha", "source", "timestamp", "trial", "unnamed",
    "url", "user", "uuid", "warmup",
}  # fmt: skip
_HASH = r"^[0-9a-f]{7,64}$"
# Kernels may have more names than other columns have labels, but each of them in several rows.
_MOST_KERNELS = 1_000
# How much larger than the largest size of the table a problem may be.
_LARGER = 16
# A label that occurs once in a table with so many rows for each label is an odd cell.
_ROWS_FOR_AN_ODD_LABEL = 100
# Words that functions, requests and formulas use beside the parameters of a problem.
_TAKEN = {*RESERVED, "device", *(word.lower() for word in keyword.kwlist)}
# Sizes that occur in a message.
_SHOWN = 3


@dataclass(frozen=True)
class Drafted:
    """A declaration, and how the columns of the table map to its parameters."""

    declaration: Declaration
    cells: Mapping[str, str]
    """`problem.rows` → the mapping's entry, in TOML."""
    used: Collection[str]
    notes: list[str]


@dataclass
class _DraftedColumns:
    table: pl.DataFrame
    names: set[str] = field(default_factory=lambda: set(_TAKEN))
    values: dict[str, dict[str, Values]] = field(default_factory=lambda: {"problem": {}, "config": {}})
    cells: dict[str, str] = field(default_factory=dict)
    used: list[str] = field(default_factory=list)
    assumed: list[str] = field(default_factory=list)
    left_out: dict[str, list[str]] = field(default_factory=dict)
    notes: list[str] = field(default_factory=list)

    def add(self, column: str, part: str, values: Values, translated: Mapping[str, str] | None = None, name: str = "") -> None:
        name = _free(name or _identifier(column) or f"column_{self.table.columns.index(column) + 1}", self.names)
        self.names.add(name.lower())
        self.values[part][name] = values
        self.used.append(column)
        table = f"{{ column = {toml_string(column)}, values = {toml_table(translated or {})} }}"
        self.cells[f"{part}.{name}"] = table if translated else toml_string(column)


def own_op(table: pl.DataFrame, columns: Iterable[str], called: str) -> Drafted | None:
    """An op with one family; None if no column looks like a size of the problem."""
    draft = _DraftedColumns(table)
    for column in columns:
        _place(draft, column)
    if not draft.values["problem"]:
        return None
    op = _free(_identifier(called) or "kernel", {*OPS.found, *OPS.by_alias}, "_own")
    problem, config = draft.values["problem"], draft.values["config"]
    declared = Declaration(op, f"{op}/{'own' if config else 'single'}", "", problem, config, (), Formulas())
    sizes = [name for name, values in problem.items() if values.kind == "range"]
    example = " * ".join(["8", *(sizes or ["n"])[:_SHOWN]])
    notes = [
        "Drafted from the columns: [op.problem] is what is computed, [family.config] what a kernel chooses. A parameter in the",
        "wrong one can be moved, also from [problem] to [config] below. docs/command.md explains every key.",
        *_told(draft),
        f'To learn times relative to the roofline, say in [op] what has to be done, such as  work = {{ bytes = "{example}" }}',
    ]
    return Drafted(declared, draft.cells, draft.used, notes)


def own_kernels(op: str, table: pl.DataFrame, columns: Iterable[str]) -> Drafted:
    """A family of an installed op, whose kernels are told apart by these columns."""
    draft = _DraftedColumns(table)
    for column in columns:
        _place(draft, column, only="config")
    name = "own"
    declared = Declaration(op, f"{op}/{name}", "", {}, draft.values["config"], (), Formulas())
    notes = [
        "Drafted from the columns that differ between rows of one problem. docs/command.md explains every key.",
        *_told(draft),
    ]
    return Drafted(declared, draft.cells, draft.used, notes)


def part_of(table: pl.DataFrame, column: str) -> str:
    """`problem`, `config`, or nothing if a column says neither."""
    draft = _DraftedColumns(table)
    _place(draft, column)
    return next((part for part, values in draft.values.items() if values), "")


def _told(draft: _DraftedColumns) -> list[str]:
    found = [f"assumed to be choices of the kernel: {_listed(draft.assumed)}"] if draft.assumed else []
    found += [f"left out, {why}: {_listed(columns)}" for why, columns in draft.left_out.items()]
    return found + draft.notes


def _listed(columns: Iterable[str]) -> str:
    return ", ".join(map(toml_string, columns))


def _place(draft: _DraftedColumns, column: str, only: str = "") -> None:
    """Put one column where its name and its cells say that it belongs."""
    cells = texts(draft.table[column])
    said = {word.rstrip("0123456789") or word for word in words(column)}  # `err1` and `err2` are errors
    filled = cells.filter(cells != "")
    whole = whole_numbers(filled).drop_nulls()
    real = filled.cast(pl.Float64, strict=False).drop_nulls()
    if not only and (why := _why_not(said, cells.len(), filled, whole, real)):
        draft.left_out.setdefault(why, []).append(column)
        return
    kernel = bool(said & _KERNEL_WORDS) or any(word.startswith(_KERNEL_STEMS) for word in said) or {"kernel", "id"} <= said
    if whole.len() >= (1 - ODD) * filled.len():
        _place_numbers(draft, column, only or ("config" if kernel else "problem"), cells, whole)
        return
    meant = {text: dtypes.named(text) for text in labels_of(filled)}
    is_dtype = sum(filled.is_in([text for text, name in meant.items() if name])) >= FITTING * filled.len() and bool(meant)
    if is_dtype and not only and "dtype" not in draft.values["problem"]:
        _place_dtype(draft, column, filled, meant)
        return
    part = only or ("problem" if not kernel and (is_dtype or said & _PROBLEM_WORDS or real.len() == filled.len()) else "config")
    if not only and not kernel and part == "config" and not said & {"kernel", "name"}:
        draft.assumed.append(column)
    _place_labels(draft, column, part, cells)


def _why_not(said: set[str], rows: int, filled: pl.Series, whole: pl.Series, real: pl.Series) -> str:
    """Why a column is no parameter; nothing if it is one."""
    different = filled.n_unique()
    if different == 0:
        return "because it is empty"
    fractions = real.len() >= FITTING * filled.len() and whole.len() < (1 - ODD) * filled.len()
    of_kernel = {"kernel", "id"} <= said or {"kernel", "index"} <= said
    if (said & _ORIGIN_WORDS and not of_kernel) or (filled.str.contains(_HASH).all() and whole.len() < filled.len()):
        return "because it says where a row comes from"
    if (said & _MEASURED_WORDS and not said & {"step", "steps"}) or (fractions and said & NOT_THE_TIME):
        return "because it was measured"
    few = different <= MOST_LABELS or (bool(said & {"kernel", "name", "variant", "config"}) and different <= _MOST_KERNELS)
    if fractions and not (different <= MOST_LABELS and 4 * different <= filled.len()):
        return "because parameters are whole numbers or words"
    if whole.len() < (1 - ODD) * filled.len() and not (few and 2 * different <= max(filled.len(), 4)):
        return "because it has too many different words to be labels"
    if (filled.str.len_chars() > LONGEST_LABEL).any():
        return "because its words are too long to be labels"
    if different == 1 and filled.len() == rows and not whole.len() and dtypes.named(filled[0]) is None:
        return "because it is the same in every row"
    return ""


def _place_numbers(draft: _DraftedColumns, column: str, part: str, cells: pl.Series, whole: pl.Series) -> None:
    found = sorted(int(value) for value in whole.unique().to_list())
    translated = None
    if (cells == "").sum() > ODD * cells.len() and len(found) <= MOST_LABELS:
        translated = {"": "0"} | {text: str(value) for value in found for text in _spelled(cells, value)}
        found = sorted({0, *found})
        draft.notes.append(f"{toml_string(column)} is empty in some rows: there it counts as 0")
    if len(found) == 1 or (part == "config" and len(found) <= MOST_LABELS):
        values = Values("numbers", numbers=tuple(found))
    elif part == "config":
        values = Values("range", numbers=(found[0], found[-1], 1))
    else:
        # Sizes that the table does not have may be asked about; a model says where it was not measured.
        highest = min(1 << max(found[-1] * _LARGER - 1, 1).bit_length(), LARGEST_SIZE)
        values = Values("range", numbers=(min(found[0], 1), highest, 1))
    draft.add(column, part, values, translated)


def _spelled(cells: pl.Series, value: int) -> list[str]:
    """How a table writes a number: 8, and 8.0 where pandas had empty cells beside it."""
    return sorted(cells.filter(whole_numbers(cells) == value).unique().to_list())


def _place_dtype(draft: _DraftedColumns, column: str, filled: pl.Series, meant: Mapping[str, str | None]) -> None:
    found = tuple(name for name in dtypes.CODES if name in meant.values())
    unknown = [text for text, name in meant.items() if name is None]
    asked = filled.is_in(unknown).sum() > ODD * filled.len()
    translated = {text: name or OPEN for text, name in meant.items()} if asked else None
    if asked:
        draft.notes.append(f"{toml_string(column)} has words that are no dtypes: name what they mean also in [op.problem]")
    draft.add(column, "problem", Values("dtypes", labels=found), translated, "dtype")


def _place_labels(draft: _DraftedColumns, column: str, part: str, cells: pl.Series) -> None:
    counts = cells.filter(cells != "").value_counts(sort=True, name="rows")
    rare = counts.height * _ROWS_FOR_AN_ODD_LABEL <= cells.len()
    kept = counts.filter(pl.col("rows") > 1) if rare else counts
    found = sorted(kept[kept.columns[0]].to_list())
    odd = counts.height - len(found)
    if odd:
        draft.notes.append(
            f"{toml_string(column)} has {odd} labels in one row each, which are left out: these rows are skipped"
        )
    if {text.lower() for text in found} == {"false", "true"} and len(found) == 2:
        draft.add(column, part, Values("flag"))
        return
    translated = None
    if (cells == "").sum() > ODD * cells.len():
        empty = _free("none", {text.lower() for text in found})
        translated = {"": empty} | {text: text for text in found}
        found = [*found, empty]
        draft.notes.append(f"{toml_string(column)} is empty in some rows: there it counts as {empty}")
    draft.add(column, part, Values("labels", labels=tuple(found)), translated)


def _identifier(text: str) -> str:
    """A name in letters, digits and `_` as near to a text as that allows."""
    ascii_text = unicodedata.normalize("NFKD", text).encode("ascii", "ignore").decode()
    found = re.sub(r"\W+", "_", ascii_text).strip("_")[: LONGEST_NAME - 10]
    return f"_{found}" if found[:1].isdigit() else found


def _free(name: str, taken: Collection[str], ending: str = "_") -> str:
    """The name, with something added while it is taken."""
    number = 1
    found = name
    while found.lower() in taken:
        number += 1
        found = f"{name}{ending}" if number == 2 else f"{name}{ending}{number}"
    return found
