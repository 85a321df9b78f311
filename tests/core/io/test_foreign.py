"""Files that ask for far more memory or time than their size: each is refused before that, with the way to allow it."""

import contextlib
import gzip
import re
import tomllib
import zipfile
from pathlib import Path

import numpy as np
import polars as pl
import pytest

from kerncast.answering.inputs import read_problem_file
from kerncast.core.io import foreign
from kerncast.core.io.foreign import VARIABLE, decode_toml
from kerncast.core.io.parquet import read_parquet, refuse_large_table
from kerncast.data.formats import ImportOptions
from kerncast.data.formats.solutions import read_solutions
from kerncast.data.formats.table import read_table
from kerncast.data.importing import head_of, import_files
from kerncast.errors import BadFile, InvalidValue, KerncastError
from kerncast.learning.learners.contract import read_arrays
from kerncast.learning.learners.lightgbm_text import load_forest
from kerncast.library import devices
from kerncast.library.declared.family_file import family_named
from kerncast.library.problems.files import read_points

DOCS = Path(__file__).parents[3] / "docs" / "security.md"
FAMILY = family_named("gemm/triton")
ZEROS = bytes(1_000_000)


def archived(path):
    with zipfile.ZipFile(path, "w", zipfile.ZIP_DEFLATED) as archive:
        archive.writestr("gemm_perf.parquet", ZEROS)
    return path


def crowded(path):
    with zipfile.ZipFile(path, "w") as archive:
        for number in range(50):
            archive.writestr(f"{number}", b"")
    return path


def gzipped(path):
    path.write_bytes(gzip.compress(ZEROS))
    return path


def text(path, content):
    path.write_text(content)
    return path


def table(path, **columns):
    pl.DataFrame(columns).write_parquet(path)
    return path


def paged(path):
    """A page of one value each: 50 of them, in one column."""
    pl.DataFrame({"a": range(50)}).write_parquet(path, row_group_size=1)
    return path


def arrays(path):
    np.savez_compressed(path, a=np.zeros(125_000))
    return path


def imported(name):
    return lambda path: import_files(name, [path], path.with_name("out"), ImportOptions())


def mapped(path):
    return read_table(path.suffix[1:], path)


def points(path):
    return read_points(path, FAMILY.problem, "problem.")


def problems(path):
    return read_problem_file(path, FAMILY)


CONSTANT = {"s": pl.repeat("x" * 50, 100_000, eager=True)}
WIDE = {f"c{number}": [1] for number in range(50)}
# How the file is made, how it is read, and the limit that it breaks.
BOMBS = {
    "zip of logs": (archived, imported("autoheuristic"), foreign.EXPANDED),
    "zip of tables": (archived, imported("aiconfigurator"), foreign.EXPANDED),
    "zip, format unknown": (archived, head_of, foreign.EXPANDED),
    "zip, members": (crowded, head_of, foreign.MEMBER),
    "npz": (arrays, read_arrays, foreign.EXPANDED),
    "gzipped csv": (gzipped, imported("reshard-lines"), foreign.EXPANDED),
    "gzipped json": (gzipped, imported("kernel-tuner"), foreign.EXPANDED),
    "gzipped forest": (gzipped, load_forest, foreign.FOREST),
    "a dictionary of one text": (lambda path: table(path, **CONSTANT), mapped, foreign.EXPANDED),
    "parquet, format unknown": (lambda path: table(path, **CONSTANT), head_of, foreign.EXPANDED),
    "parquet, columns": (lambda path: table(path, **WIDE), mapped, foreign.COLUMN),
    "parquet, pages": (paged, mapped, foreign.PAGE),
    "parquet of problems": (lambda path: table(path, M=CONSTANT["s"]), problems, foreign.EXPANDED),
    "csv, columns": (lambda path: text(path, ",".join(WIDE)), mapped, foreign.COLUMN),
    "csv, one line": (lambda path: text(path, "a,b\n1," + "2" * 1000), mapped, foreign.CHARACTER),
    "csv, cells": (lambda path: text(path, "a,b\n" + "1,2\n" * 1000), mapped, foreign.CELL),
    "csv of problems": (lambda path: text(path, ",".join(WIDE)), points, foreign.COLUMN),
    "json of problems": (lambda path: text(path, "[]" + " " * 100), problems, foreign.JSON),
    "choices": (lambda path: text(path, "[]" + " " * 100), lambda p: read_solutions(p, FAMILY, ["a100"]), foreign.JSON),
    "a sweep's results": (lambda path: text(path, "[" + " " * 100), imported("tt-sweep"), foreign.JSON),
    "a program's log": (lambda path: text(path, "[" + " " * 100), imported("ck-tile"), foreign.JSON),
    "a device's profile": (lambda path: text(path, "#" * 100), lambda p: devices.get(str(p)), foreign.TOML),
}  # fmt: skip
SUFFIXES = {"parquet": ".parquet", "a dictionary": ".parquet", "csv": ".csv", "a device": ".toml", "gzipped forest": ".gz"}


# How much of what it limits is read, where it is not 40.
MOST = {foreign.EXPANDED: 100_000, foreign.FOREST: 100_000, foreign.MEMBER: 40, foreign.CELL: 1500}


@pytest.mark.parametrize("bomb", BOMBS)
def test_a_bomb_is_refused_with_the_setting_that_allows_it(bomb, tmp_path, monkeypatch):
    """In each reader, by name of the file or line; with a higher limit it is an ordinary (bad) file."""
    make, read, weight = BOMBS[bomb]
    suffix = next((suffix for start, suffix in SUFFIXES.items() if bomb.startswith(start)), ".npz")
    file = make(tmp_path / f"bomb{suffix}")
    monkeypatch.setenv(VARIABLE, str(MOST.get(weight, 40) * weight.counts_as))
    with pytest.raises(BadFile, match=r"(bomb|line \d|the table).*: if it is meant .*, set KERNCAST_READ_LIMIT to"):
        read(file)
    assert not (tmp_path / "out").exists()
    monkeypatch.setenv(VARIABLE, "1e12")
    with contextlib.suppress(KerncastError):
        read(file)


def test_keys_and_headers_that_parsers_take_minutes_for(tmp_path):
    """At the limits as they are: a dotted key of 200,000 parts, in any spelling, and a million columns, twice each."""
    for part in ("a", '"a b"', "'a'"):
        for place in ("{} = 1", "[{}]", "x = {{ {} = 1 }}"):
            with pytest.raises(tomllib.TOMLDecodeError, match=r"more than 100 parts"):
                decode_toml(place.format(" . ".join([part] * 200_000)))
    assert decode_toml(f"a = '{'1.5, ' * 1000}'\nb = {[1.5] * 1000}")["b"][0] == 1.5
    csv = text(tmp_path / "wide.csv", ",".join(f"c{number // 2}" for number in range(1_000_000)))
    with pytest.raises(BadFile, match=r"1,000,000 columns, and at most 32,768 are read"):
        mapped(csv)


def test_a_parquet_table_is_measured_by_its_pages_not_by_its_totals(tmp_path, monkeypatch):
    """What it is said to take is no less than what polars then takes, and the totals at its end do not matter."""
    frame = pl.DataFrame({
        "constant": pl.repeat(7, 200_000, eager=True), "text": pl.repeat("a", 200_000, eager=True),
        "none": pl.repeat(None, 200_000, dtype=pl.Float64, eager=True), "own": np.arange(200_000) * 1.5,
    })  # fmt: skip
    for number, options in enumerate(
        [{}, {"compression": "uncompressed"}, {"row_group_size": 10_000}, {"data_page_size": 10_000}]
    ):
        file = tmp_path / f"{number}.parquet"
        frame.write_parquet(file, **options)
        monkeypatch.setenv(VARIABLE, str(frame.estimated_size() - 1))
        with pytest.raises(BadFile, match="expanded, has more than"):
            refuse_large_table(file)
        monkeypatch.delenv(VARIABLE)
        assert read_parquet(file).equals(frame)
    frame.head(100).write_parquet(file)
    data = file.read_bytes()
    for place in range(len(data) - 200, len(data) - 8):
        file.write_bytes(data[:place] + bytes([data[place] ^ 0x55]) + data[place + 1 :])
        # Damage ends in one of the errors that every reader of tables words.
        with contextlib.suppress(BadFile, pl.exceptions.ComputeError):
            refuse_large_table(file)


def test_the_docs_list_every_weight_as_it_is():
    """Each row of the table is one weight, and how much of it is read at the limit as it is."""
    rows = re.findall(r"^\| (.*) \| ([\d,]+) \| ([\d,]+ \w+) \|$", DOCS.read_text(), re.MULTILINE)
    assert rows == [(item.about, f"{item.counts_as:,}", f"{item.most:,} {item.unit}") for item in foreign.WEIGHTS]
    assert {item for item in vars(foreign).values() if isinstance(item, foreign.Weight)} == set(foreign.WEIGHTS)


def test_what_is_no_whole_file_is_not_read_without_end(tmp_path, monkeypatch):
    """A device that never ends is refused as too large."""
    monkeypatch.setenv(VARIABLE, "2000")
    (tmp_path / "p.json").symlink_to("/dev/zero")
    with pytest.raises(BadFile, match="more than 1,000 bytes"):
        points(tmp_path / "p.json")
    assert foreign.read_json(text(tmp_path / "q.json", "[1]")) == [1]


def test_the_error_names_the_limit_that_is_enough(monkeypatch):
    """Set to what the error says, the setting allows the document; what is no number of bytes is refused."""
    monkeypatch.setenv(VARIABLE, "20")
    with pytest.raises(BadFile, match=r"11 bytes, and at most 10 are read: .* set KERNCAST_READ_LIMIT to 22$"):
        foreign.decode_json(b"[1,2,3,4,5]")
    monkeypatch.setenv(VARIABLE, "22")
    assert foreign.decode_json(b"[1,2,3,4,5]") == [1, 2, 3, 4, 5]
    monkeypatch.setenv(VARIABLE, "much")
    with pytest.raises(InvalidValue, match="KERNCAST_READ_LIMIT must be a number of bytes of at least 1, got 'much'"):
        foreign.decode_json(b"[]")
