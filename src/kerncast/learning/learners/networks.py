"""What networks share: how their inputs are scaled, and CSV files of a network, for other tools and back.

    inputs.csv           feature,code,log,mean,deviation: a row for each column that the network reads, in order
    layer_1_weights.csv  a row for each input of the layer, a column for each unit; no header
    layer_1_biases.csv   one row
    output.csv           target,log,mean,deviation

An input is `(feature - mean) / deviation`, or with `log` `(log1p(feature) - mean) / deviation`, cut to ±10; with a `code` it is
1 where the feature has this code, else 0. Hidden layers end with a rectifier. The output times `deviation` plus `mean` is the
target. Numbers are written so that they read back as the same double.
"""

from __future__ import annotations

import csv
import io
import re
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from pathlib import Path

import numpy as np
import numpy.typing as npt

from kerncast.core import arrays
from kerncast.core.arrays import Floats
from kerncast.core.io.foreign import CELL
from kerncast.core.io.quoting import c_number, packaged_c
from kerncast.errors import BadFile, NotFound
from kerncast.learning.feature_rows import Rows
from kerncast.learning.learners.contract import TARGETS, Learner, Target

# Descriptions of knobs that both networks share.
HIDDEN, EPOCHS, BATCH_SIZE = "layer sizes such as 100,50", "maximum passes over the data", "rows per step"
INPUTS, OUTPUT = "inputs.csv", "output.csv"
INPUT_COLUMNS = ("feature", "code", "log", "mean", "deviation")
OUTPUT_COLUMNS = ("target", "log", "mean", "deviation")
_NUMBER = re.compile(r"[+-]?(\d+\.?\d*|\.\d+)(e[+-]?\d+)?", re.ASCII | re.IGNORECASE)
_LAYER = re.compile(r"layer_(\d{1,4})_(weights|biases)\.csv", re.ASCII)
# Bytes that a cell may have on average: 24 are enough for a double.
CELL_BYTES = 64


class Scaling:
    """Features with mean 0 and deviation 1, wide-ranging ones in log space; categorical ones one column per code."""

    def __init__(self, arrays: dict[str, npt.NDArray[np.generic]]) -> None:
        self.arrays = arrays

    @classmethod
    def of(cls, rows: Rows) -> Scaling:
        """Learned from training rows."""
        low, high = rows.features.min(axis=0), rows.features.max(axis=0)
        # Sizes and counts span many powers of two; times follow their logarithm.
        wide = (low >= 0) & (high > 100 * np.maximum(low, 1.0))
        codes = np.full((len(rows.names), max([len(item) for item in rows.codes.values()], default=1)), -1, dtype=np.int64)
        for place, name in enumerate(rows.names):
            if name in rows.codes:
                codes[place, : len(rows.codes[name])] = rows.codes[name]
        wide &= codes[:, 0] < 0
        logged = np.where(wide, arrays.log1p(np.maximum(rows.features, 0.0)), rows.features)
        deviation = logged.std(axis=0)
        return cls(
            {"wide": wide, "codes": codes, "mean": logged.mean(axis=0), "deviation": np.where(deviation > 0, deviation, 1.0)}
        )

    def apply(self, features: Floats) -> Floats:
        """The columns that the network reads."""
        wide, codes = self.arrays["wide"], self.arrays["codes"]
        logged = np.where(wide, arrays.log1p(np.maximum(features, 0.0)), features)
        plain = np.asarray(codes)[:, 0] < 0
        scaled = ((logged - self.arrays["mean"]) / self.arrays["deviation"])[:, plain]
        # Outside the trained range a network extrapolates wildly; ten deviations are far enough.
        parts = [np.clip(scaled, -10.0, 10.0)]
        for place in np.flatnonzero(~plain):
            known = np.asarray(codes)[place]
            parts.append((features[:, [place]] == known[known >= 0]).astype(np.float64))
        return np.concatenate(parts, axis=1)

    def in_c(self) -> tuple[str, int]:
        """C text of `kc_scale(x, out)`, which writes the same columns, and their number; `kc_dense` comes with it."""
        codes, wide = np.asarray(self.arrays["codes"]), np.asarray(self.arrays["wide"])
        lines, column = [], 0
        for place in np.flatnonzero(codes[:, 0] < 0):
            read = f"log1p(x[{place}] > 0.0 ? x[{place}] : 0.0)" if wide[place] else f"x[{place}]"
            mean, deviation = (c_number(float(np.asarray(self.arrays[name])[place])) for name in ("mean", "deviation"))
            lines.append(f"    out[{column}] = kc_clip(({read} - {mean}) / {deviation});")
            column += 1
        for place in np.flatnonzero(codes[:, 0] >= 0):
            for code in codes[place][codes[place] >= 0]:
                lines.append(f"    out[{column}] = x[{place}] == {c_number(float(code))};")
                column += 1
        body = "\n".join(lines)
        function = f"static void kc_scale(const double *x, double *out) {{\n{body}\n}}\n"
        return packaged_c(__package__, "clip.c") + function + packaged_c(__package__, "dense.c"), column


def write_network(
    folder: Path,
    scaling: Scaling,
    layers: Sequence[tuple[Floats, Floats]],
    center: Floats,
    names: Sequence[str],
    target: Target,
) -> None:
    """Write a network into a folder."""
    codes, wide, mean, deviation = (np.asarray(scaling.arrays[name]) for name in ("codes", "wide", "mean", "deviation"))
    plain = codes[:, 0] < 0
    rows = [
        [names[place], "", str(bool(wide[place])).lower(), _text(mean[place]), _text(deviation[place])]
        for place in map(int, np.flatnonzero(plain))
    ]
    for place in map(int, np.flatnonzero(~plain)):
        rows += [[names[place], str(int(code)), "", "", ""] for code in codes[place][codes[place] >= 0]]
    _write(folder / INPUTS, [list(INPUT_COLUMNS), *rows])
    for number, (weights, biases) in enumerate(layers, 1):
        _write(folder / f"layer_{number}_weights.csv", [[_text(value) for value in row] for row in weights])
        _write(folder / f"layer_{number}_biases.csv", [[_text(value) for value in biases]])
    middle, spread = map(_text, center)
    _write(folder / OUTPUT, [list(OUTPUT_COLUMNS), [target.name, str(target.log).lower(), middle, spread]])


def _text(value: object) -> str:
    return repr(float(value))  # type: ignore[arg-type]


def _write(file: Path, rows: list[list[str]]) -> None:
    with file.open("w", newline="", encoding="utf-8") as stream:
        csv.writer(stream, lineterminator="\n").writerows(rows)


@dataclass(frozen=True)
class CsvInput:
    """A column that a network reads: a number, or whether a categorical feature has a code."""

    feature: str
    line: int
    code: int | None = None
    log: bool = False
    mean: float = 0.0
    deviation: float = 1.0


@dataclass(frozen=True)
class CsvNetwork:
    """A network from a folder of CSV files."""

    folder: Path
    inputs: tuple[CsvInput, ...]
    layers: tuple[tuple[Floats, Floats], ...]
    center: Floats
    target: Target

    def features(self, known: Sequence[str]) -> list[str]:
        """The features that it reads, in the order in which they are known."""
        for item in self.inputs:
            if item.feature not in known:
                said = str(NotFound.named("feature of the data", item.feature, known))
                raise BadFile(f"{self.folder / INPUTS}: line {item.line}: {said}")
        read = {item.feature for item in self.inputs}
        return [name for name in known if name in read]

    def impossible(self, learner: Learner, rows: Rows) -> str:
        """On how many rows it predicts no time at all, in words, or nothing; refused if it never predicts one.

        A network of the time itself, and not of its logarithm, may say zero or less: an answer is then as good as none.
        """
        none = np.zeros(len(rows), bool) if self.target.log else learner.predict(rows).target <= 0.0
        rows_said = f"{none.sum():,} of {len(rows):,} rows"
        said = f"the network in {self.folder} predicts a {self.target.name} of zero or less on {rows_said}"
        if none.any() and none.all():
            raise BadFile(
                f"{said}: check mean, deviation and log in {OUTPUT} and {INPUTS}, which must be those of its training"
            )
        return f"{said}; times of such problems mean nothing" if none.any() else ""

    def scaling(self, rows: Rows) -> Scaling:
        """How its inputs are scaled, for rows that have exactly its features."""
        own: dict[str, list[CsvInput]] = {name: [item for item in self.inputs if item.feature == name] for name in rows.names}
        codes = np.full((len(rows.names), max([1, *(len(items) for items in own.values())])), -1, dtype=np.int64)
        wide, mean, deviation = np.zeros(len(own), dtype=bool), np.zeros(len(own)), np.ones(len(own))
        for place, (name, items) in enumerate(own.items()):
            self._refuse_kinds(name, items, rows)
            if items[0].code is None:
                wide[place], mean[place], deviation[place] = items[0].log, items[0].mean, items[0].deviation
            else:
                codes[place, : len(items)] = [item.code if item.code is not None else -1 for item in items]
        scaling = Scaling({"wide": wide, "codes": codes, "mean": mean, "deviation": deviation})
        plain = [name for name, items in own.items() if items[0].code is None]
        order = [*plain, *(item.feature for name, items in own.items() if items[0].code is not None for item in items)]
        for item, name in zip(self.inputs, order, strict=True):
            if item.feature != name:
                raise BadFile(
                    f"{self.folder / INPUTS}: line {item.line}: '{item.feature}' stands where '{name}' belongs: numbers come "
                    "first, then the codes of categorical features, each in the order of the model's features"
                )
        return scaling

    def _refuse_kinds(self, name: str, items: list[CsvInput], rows: Rows) -> None:
        where, known = f"{self.folder / INPUTS}: line {items[-1].line}", rows.codes.get(name)
        given = [item.code for item in items]
        if known is None and given != [None]:
            raise BadFile(f"{where}: '{name}' is a number, so it has one row without a code")
        if known is not None and (len(set(given)) < len(given) or not {*given} <= {*known}):
            listed = ", ".join(map(str, known))
            raise BadFile(f"{where}: '{name}' is a category, so its rows have one of the codes {listed} each")


def read_network(folder: Path) -> CsvNetwork:
    """Read a folder of CSV files; whatever is missing, damaged or contradicts itself is refused by name."""
    if not folder.is_dir():
        raise BadFile(f"{folder} is not a folder of CSV files: `kerncast export MODEL --to csv` writes one")
    inputs = tuple(_inputs(folder / INPUTS))
    layers = _layers(folder)
    width = len(inputs)
    for number, (weights, biases) in enumerate(layers, 1):
        if weights.shape != (width, len(biases)):
            raise BadFile(
                f"{folder / f'layer_{number}_weights.csv'} has {weights.shape[0]:,} rows of {weights.shape[1]:,} numbers, but "
                f"it reads {width:,} inputs and there are {len(biases):,} biases: one row per input, one column per unit"
            )
        width = len(biases)
    if width != 1:
        raise BadFile(f"{folder}: the last layer has {width:,} units, but a time is one number: it must have one")
    return CsvNetwork(folder, inputs, layers, *_output(folder / OUTPUT))


def _layers(folder: Path) -> tuple[tuple[Floats, Floats], ...]:
    named = [_LAYER.fullmatch(item.name) for item in folder.iterdir()]
    count = max((int(match[1]) for match in named if match), default=0)
    if count == 0:
        raise BadFile(f"{folder} has no layer: layer_1_weights.csv is missing")
    found = []
    for number in range(1, count + 1):
        biases = _matrix(folder / f"layer_{number}_biases.csv")
        if len(biases) != 1:
            raise BadFile(f"{folder / f'layer_{number}_biases.csv'} has {len(biases):,} rows: biases are one row")
        found.append((_matrix(folder / f"layer_{number}_weights.csv"), biases[0]))
    return tuple(found)


def _inputs(file: Path) -> Iterator[CsvInput]:
    for line, row in _records(file, INPUT_COLUMNS):
        where = f"{file}: line {line}"
        if row["code"]:
            if not row["code"].isascii() or not row["code"].isdigit() or len(row["code"]) > 18:
                raise BadFile(f"{where}: a code is a whole number, got '{row['code'][:40]}'")
            yield CsvInput(row["feature"], line, int(row["code"]))
            continue
        deviation = _number(row["deviation"], f"{where}: deviation")
        if deviation <= 0.0:
            raise BadFile(f"{where}: deviation must be above 0, got {row['deviation']}")
        yield CsvInput(row["feature"], line, None, _flag(row["log"], where), _number(row["mean"], f"{where}: mean"), deviation)


def _output(file: Path) -> tuple[Floats, Target]:
    records = list(_records(file, OUTPUT_COLUMNS))
    if len(records) != 1:
        raise BadFile(f"{file} has {len(records):,} rows below its header: it must have one")
    line, row = records[0]
    if row["target"] not in TARGETS:
        raise BadFile(f"{file}: line {line}: a target is one of {', '.join(TARGETS)}, got '{row['target'][:40]}'")
    spread = _number(row["deviation"], f"{file}: line {line}: deviation")
    center = np.array([_number(row["mean"], f"{file}: line {line}: mean"), spread])
    return center, Target(row["target"], _flag(row["log"], f"{file}: line {line}"))


def _flag(text: str, where: str) -> bool:
    if text not in ("true", "false"):
        raise BadFile(f"{where}: log must be true or false, got '{text[:40]}'")
    return text == "true"


def _number(text: str, where: str) -> float:
    found = float(text) if len(text) <= CELL_BYTES and _NUMBER.fullmatch(text.strip()) else float("nan")
    if not np.isfinite(found):
        raise BadFile(f"{where} must be a finite number, got '{text[:40]}'")
    return found


def _records(file: Path, columns: Sequence[str]) -> Iterator[tuple[int, dict[str, str]]]:
    """The rows of a table with these columns, each with its line."""
    rows = _rows(file)
    header = [name.strip() for name in rows[0][1]] if rows else []
    missing = [name for name in columns if name not in header]
    if missing or len(header) != len(columns):
        raise BadFile(f"{file}: line 1: the columns must be {','.join(columns)}, got '{','.join(header)[:80]}'")
    for line, cells in rows[1:]:
        if len(cells) != len(header):
            raise BadFile(f"{file}: line {line} has {len(cells):,} cells, the header has {len(header)}")
        yield line, dict(zip(header, (cell.strip() for cell in cells), strict=True))


def _matrix(file: Path) -> Floats:
    rows = _rows(file)
    if not rows:
        raise BadFile(f"{file} is empty: it must have rows of numbers")
    for line, cells in rows:
        if len(cells) != len(rows[0][1]):
            raise BadFile(f"{file}: line {line} has {len(cells):,} numbers, the first line has {len(rows[0][1]):,}")
    return np.array([[_number(cell, f"{file}: line {line}: every cell") for cell in cells] for line, cells in rows])


def _rows(file: Path) -> list[tuple[int, list[str]]]:
    """The rows of a CSV file with their lines, empty ones left out."""
    try:
        size = file.stat().st_size
        CELL.refuse(size // CELL_BYTES, str(file))
        reader = csv.reader(io.StringIO(file.read_text(encoding="utf-8-sig")), strict=True)
        return [(reader.line_num, cells) for cells in reader if cells]
    except FileNotFoundError as error:
        raise BadFile(f"{file.parent} is incomplete: {file.name} is missing") from error
    except (OSError, UnicodeDecodeError, csv.Error) as error:
        raise BadFile(f"{file} cannot be read as CSV ({error})") from error
