"""A network as CSV files, for other tools and back: what each input is, one matrix per layer, and how outputs become times.

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

from kerncast.core.arrays import Floats
from kerncast.core.io.foreign import CELL
from kerncast.errors import BadFile, InvalidValue, NotFound
from kerncast.learning.learners.contract import TARGETS, Options, Target
from kerncast.learning.learners.kinds import options_of
from kerncast.learning.learners.mlp import Mlp, Scaling
from kerncast.learning.tables.feature_rows import Rows

INPUTS, OUTPUT = "inputs.csv", "output.csv"
INPUT_COLUMNS = ("feature", "code", "log", "mean", "deviation")
OUTPUT_COLUMNS = ("target", "log", "mean", "deviation")
_NUMBER = re.compile(r"[+-]?(\d+\.?\d*|\.\d+)(e[+-]?\d+)?", re.ASCII | re.IGNORECASE)
_LAYER = re.compile(r"layer_(\d{1,4})_(weights|biases)\.csv", re.ASCII)
# Bytes that a cell may have on average: 24 are enough for a double.
CELL_BYTES = 64


def write_network(folder: Path, network: Mlp, names: Sequence[str], target: Target) -> None:
    """Write a network into a folder."""
    arrays = network.scaling_.arrays
    codes, wide, mean, deviation = (np.asarray(arrays[name]) for name in ("codes", "wide", "mean", "deviation"))
    plain = codes[:, 0] < 0
    rows = [
        [names[place], "", str(bool(wide[place])).lower(), _text(mean[place]), _text(deviation[place])]
        for place in map(int, np.flatnonzero(plain))
    ]
    for place in map(int, np.flatnonzero(~plain)):
        rows += [[names[place], str(int(code)), "", "", ""] for code in codes[place][codes[place] >= 0]]
    _write(folder / INPUTS, [list(INPUT_COLUMNS), *rows])
    for number, (weights, biases) in enumerate(network.layers_, 1):
        _write(folder / f"layer_{number}_weights.csv", [[_text(value) for value in row] for row in weights])
        _write(folder / f"layer_{number}_biases.csv", [[_text(value) for value in biases]])
    middle, spread = map(_text, network.center_)
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

    def learner(self, rows: Rows, knobs: dict[str, object]) -> Mlp:
        """The network as a learner of rows that have exactly its features."""
        hidden = tuple(len(biases) for _, biases in self.layers[:-1])
        if "hidden" in knobs and tuple(knobs["hidden"]) != hidden:  # type: ignore[arg-type]
            raise InvalidValue(f"`hidden` is {knobs['hidden']}, but the network in {self.folder} has {hidden}: leave it out")
        options: Options = options_of(Mlp, {**knobs, "hidden": hidden})
        learner = Mlp(options)
        learner.scaling_, learner.center_, learner.layers_ = self._scaling(rows), self.center, list(self.layers)
        return learner

    def impossible(self, learner: Mlp, rows: Rows) -> str:
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

    def _scaling(self, rows: Rows) -> Scaling:
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
