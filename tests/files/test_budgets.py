"""Files that ask for far more memory or time than their size: each is refused before that, with the way to allow it."""

import contextlib
import gzip
import json
import re
import zipfile
from pathlib import Path

import numpy as np
import polars as pl
import pytest

from kerncast import budgets, devices
from kerncast.data.importers import Options, import_files
from kerncast.data.importers.mapped import read_table
from kerncast.data.importers.recognise import head_of
from kerncast.declared.family_file import family_named
from kerncast.errors import BadFile, KerncastError
from kerncast.evaluating.solutions.formats import read_solutions
from kerncast.files.parquet import read_parquet, refuse_large_table
from kerncast.learners.contract import read_arrays
from kerncast.learners.lightgbm_text import load_forest
from kerncast.parsing import decode_toml
from kerncast.problems.tables import read_points
from kerncast.selecting.problem_files import read_problem_file

DOCS = Path(__file__).parents[2] / "docs" / "security.md"
FAMILY = family_named("gemm/triton")
ZEROS = bytes(1_000_000)


def archived(path):
    with zipfile.ZipFile(path, "w", zipfile.ZIP_DEFLATED) as archive:
        archive.writestr("gemm_perf.parquet", ZEROS)
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


def arrays(path):
    np.savez_compressed(path, a=np.zeros(125_000))
    return path


def imported(name):
    return lambda path: import_files(name, [path], path.with_name("out"), Options())


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
    "zip of logs": (archived, imported("autoheuristic"), "EXPANDED_BYTES"),
    "zip of tables": (archived, imported("aiconfigurator"), "EXPANDED_BYTES"),
    "zip, format unknown": (archived, head_of, "EXPANDED_BYTES"),
    "zip, members": (archived, head_of, "ZIP_MEMBERS"),
    "npz": (arrays, read_arrays, "EXPANDED_BYTES"),
    "gzipped csv": (gzipped, imported("reshard-lines"), "EXPANDED_BYTES"),
    "gzipped json": (gzipped, imported("kernel-tuner"), "EXPANDED_BYTES"),
    "gzipped forest": (gzipped, load_forest, "FOREST_BYTES"),
    "a dictionary of one text": (lambda path: table(path, **CONSTANT), mapped, "EXPANDED_BYTES"),
    "parquet, format unknown": (lambda path: table(path, **CONSTANT), head_of, "EXPANDED_BYTES"),
    "parquet, columns": (lambda path: table(path, **WIDE), mapped, "COLUMNS"),
    "parquet, pages": (lambda path: table(path, **WIDE), mapped, "TABLE_PAGES"),
    "parquet of problems": (lambda path: table(path, M=CONSTANT["s"]), problems, "EXPANDED_BYTES"),
    "csv, columns": (lambda path: text(path, ",".join(WIDE)), mapped, "COLUMNS"),
    "csv, one line": (lambda path: text(path, "a,b\n1," + "2" * 1000), mapped, "LINE_CHARACTERS"),
    "csv, cells": (lambda path: text(path, "a,b\n" + "1,2\n" * 1000), mapped, "TABLE_CELLS"),
    "csv of problems": (lambda path: text(path, ",".join(WIDE)), points, "COLUMNS"),
    "json of problems": (lambda path: text(path, "[]" + " " * 100), problems, "JSON_BYTES"),
    "choices": (lambda path: text(path, "[]" + " " * 100), lambda p: read_solutions(p, FAMILY, ["a100"]), "JSON_BYTES"),
    "a sweep's results": (lambda path: text(path, "[" + " " * 100), imported("tt-sweep"), "JSON_BYTES"),
    "a program's log": (lambda path: text(path, "[" + " " * 100), imported("ck-tile"), "JSON_BYTES"),
    "a device's profile": (lambda path: text(path, "#" * 100), lambda p: devices.get(str(p)), "TOML_BYTES"),
}  # fmt: skip
SUFFIXES = {"parquet": ".parquet", "a dictionary": ".parquet", "csv": ".csv", "a device": ".toml", "gzipped forest": ".gz"}


@pytest.mark.parametrize("bomb", BOMBS)
def test_a_bomb_is_refused_with_the_variable_that_allows_it(bomb, tmp_path, monkeypatch):
    """In each reader, by name of the file or line; with a higher limit it is an ordinary (bad) file."""
    make, read, name = BOMBS[bomb]
    suffix = next((suffix for start, suffix in SUFFIXES.items() if bomb.startswith(start)), ".npz")
    file = make(tmp_path / f"bomb{suffix}")
    variable = f"KERNCAST_MAX_{name}"
    limits = {"EXPANDED_BYTES": "100000", "FOREST_BYTES": "100000", "ZIP_MEMBERS": "1", "TABLE_CELLS": "1500"}
    monkeypatch.setenv(variable, limits.get(name, "40"))
    if name == "ZIP_MEMBERS":
        with zipfile.ZipFile(file, "a") as archive:
            archive.writestr("second", b"")
    with pytest.raises(BadFile, match=rf"(bomb|line \d|the table).*: if it is meant to be that large, set {variable}$"):
        read(file)
    assert not (tmp_path / "out").exists()
    monkeypatch.setenv(variable, "1e9")
    with contextlib.suppress(KerncastError):
        read(file)


def test_keys_and_headers_that_parsers_take_minutes_for(tmp_path):
    """At the limits as they are: a dotted key of 200,000 parts, in any spelling, and a million columns, twice each."""
    for part in ("a", '"a b"', "'a'"):
        for place in ("{} = 1", "[{}]", "x = {{ {} = 1 }}"):
            with pytest.raises(BadFile, match=r"more than 100 parts.* set KERNCAST_MAX_TOML_KEY_PARTS"):
                decode_toml(place.format(" . ".join([part] * 200_000)))
    assert decode_toml(f"a = '{'1.5, ' * 1000}'\nb = {[1.5] * 1000}")["b"][0] == 1.5
    csv = text(tmp_path / "wide.csv", ",".join(f"c{number // 2}" for number in range(1_000_000)))
    with pytest.raises(BadFile, match=r"1,000,000 columns, and at most 20,000 are read"):
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
        monkeypatch.setenv("KERNCAST_MAX_EXPANDED_BYTES", str(frame.estimated_size() - 1))
        with pytest.raises(BadFile, match="MAX_EXPANDED_BYTES"):
            refuse_large_table(file)
        monkeypatch.delenv("KERNCAST_MAX_EXPANDED_BYTES")
        assert read_parquet(file).equals(frame)
    frame.head(100).write_parquet(file)
    data = file.read_bytes()
    for place in range(len(data) - 200, len(data) - 8):
        file.write_bytes(data[:place] + bytes([data[place] ^ 0x55]) + data[place + 1 :])
        # Damage ends in one of the errors that every reader of tables words.
        with contextlib.suppress(BadFile, pl.exceptions.ComputeError):
            refuse_large_table(file)


def test_the_docs_list_every_limit_as_it_is():
    """Each row of the table is one budget with its default and its variable."""
    rows = re.findall(r"^\| (.*) \| ([\d,]+ \w+) \| `(KERNCAST_MAX_\w+)` \|$", DOCS.read_text(), re.MULTILINE)
    assert rows == [(item.about, f"{item.default:,} {item.unit}", item.variable) for item in budgets.ALL]
    known = {item for item in vars(budgets).values() if isinstance(item, budgets.Budget)}
    assert known == set(budgets.ALL)
    assert len({item.variable for item in known}) == len(known)


def test_what_is_no_whole_file_is_not_read_without_end(tmp_path, monkeypatch):
    """A device that never ends is refused as too large."""
    monkeypatch.setenv("KERNCAST_MAX_JSON_BYTES", "1000")
    (tmp_path / "p.json").symlink_to("/dev/zero")
    with pytest.raises(BadFile, match="more than 1,000 bytes"):
        points(tmp_path / "p.json")
    assert json.loads(budgets.JSON_BYTES.read(text(tmp_path / "q.json", "[1]"))) == [1]
