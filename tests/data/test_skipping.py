"""Rows that an import cannot represent: skipped, counted by kind, kept, and never the price of a table."""

import json
import re

import polars as pl
import pytest

import kerncast
from kerncast.data import Dataset
from kerncast.errors import BadFile, KerncastError

HEADER = "m_size,k_size,n_size,num_cores,duration\n"
ROWS = [f"{64 * size},32,96,10,{1000 + size}\n" for size in range(1, 11)]


@pytest.fixture
def table(tmp_path):
    """Write a table with some lines replaced."""

    def write(changes=(), name="t.csv"):
        lines = [HEADER, *ROWS]
        for line, text in dict(changes).items():
            lines[line - 1] = text
        (tmp_path / name).write_text("".join(lines), encoding="utf-8", errors="surrogateescape")
        return tmp_path / name

    return write


def read(path, out, **options):
    return kerncast.read(path, file_format="ttnn-csv", out=out, device="wormhole_b0", **options)


ODD = {
    "a word for a size": ("x,32,96,10,1\n", "m_size must be a whole number"),
    "a size out of range": ("0,32,96,10,1\n", "problem.M must be a whole number from 1 to"),
    "a time that is none": ("64,32,96,10,-1\n", "duration must be a positive number of nanoseconds"),
    "a cell too few": ("64,32,96,10\n", "a line must have as many cells as the header"),
    "a quote that never ends": ('"64,32,96,10,1\n', "a line must be CSV"),
    "a byte that is no text": ("64,32,96,1\udcff,1\n", "a line must be text in UTF-8"),
}


@pytest.mark.parametrize("odd", ODD)
def test_one_odd_row_costs_itself_and_is_kept(table, tmp_path, odd):
    """Nine rows of ten come in unchanged; the tenth is in skipped.parquet with its file, line, kind and cells."""
    text, kind = ODD[odd]
    dataset = read(table({5: text}), tmp_path / "d")
    assert dataset.rows == 9
    assert dataset.read()["time_ns"].to_list() == [1000 + size for size in range(1, 11) if size != 4]
    (found,) = dataset.skipped.kinds
    assert found.kind.startswith(kind)
    assert (found.rows, found.example.startswith("line 5")) == (1, True)
    kept = Dataset.open(dataset.path).skipped.frame()
    assert kept.select("file", "source_line").row(0) == ("t.csv", 5)
    assert kept["source"].to_list() == [dataset.contents.sources[0].digest]
    assert "32" in kept["row"][0]
    with pytest.raises(KerncastError, match="line 5"):
        read(dataset.path.parent / "t.csv", tmp_path / "strict", strict=True)
    assert not (tmp_path / "strict").exists()


def test_a_quoted_cell_may_span_lines_and_an_open_quote_may_not_eat_the_rest(table, tmp_path):
    """The lines after an open quote are read, and a note with a line break in it is one cell."""
    path = table({1: HEADER.replace("\n", ",notes\n"), **{line: ROWS[line - 2].replace("\n", ",x\n") for line in range(2, 12)}})
    text = path.read_text().replace(",x\n", ',"two\nlines"\n', 1).replace(",x\n", ',"open\n', 1)
    path.write_text(text)
    dataset = read(path, tmp_path / "d")
    assert (dataset.rows, dataset.skipped.rows) == (9, 1)
    assert dataset.extra()["notes"].to_list() == ["two\nlines", *["x"] * 8]


def test_most_rows_skipped_is_a_refusal_with_the_kinds(table, tmp_path):
    """Six of ten rows: not they are odd, the format is another one. Five are skipped."""
    bad = dict.fromkeys(range(2, 7), "?,32,96,10,1\n")
    assert read(table(bad), tmp_path / "half").skipped.rows == 5
    with pytest.raises(
        BadFile, match=r"6 of 10 rows cannot be represented.*m_size must be.*got '\?' \(5 such rows\); .*1 such row"
    ):
        read(table({**bad, 7: "1,2\n"}), tmp_path / "most")
    assert not (tmp_path / "most").exists()


def test_the_import_says_what_it_skipped_and_exits_with_3(table, tmp_path, run):
    """Each kind with its number and first line; as JSON too; `inspect` still knows; --strict exits with 2."""
    path = table({3: "?,1,1,1,1\n", 5: "!,1,1,1,1\n", 7: "1,1,1,1,0\n"})
    command = ("import", "ttnn-csv", path, "--device", "wormhole_b0", "--out")
    code, _, err = run(*command, tmp_path / "d")
    assert code == 3
    assert "skipped 3 rows that cannot be represented" in err
    assert "2 × line 3: m_size must be a whole number, got '?'" in err
    assert "1 × line 7: duration must be a positive number of nanoseconds, got '0'" in err
    code, out, _ = run(*command, tmp_path / "e", "--json")
    assert (code, json.loads(out)["skipped"]["rows"]) == (3, 3)
    code, out, _ = run("inspect", tmp_path / "d")
    assert (code, "skipped 3 rows" in out) == (0, True)
    assert json.loads(run("inspect", tmp_path / "d", "--json")[1])["skipped"]["kinds"][0]["rows"] == 2
    code, _, err = run(*command, tmp_path / "f", "--strict")
    assert (code, "line 3: m_size must be a whole number" in err) == (2, True)


def test_skipped_rows_and_unknown_columns_are_merged_verified_and_kept_on_append(table, tmp_path):
    """Both travel with the dataset; its digest is that of the rows alone."""
    with_notes = {
        1: HEADER.replace("\n", ",notes\n"),
        **{line: ROWS[line - 2].replace("\n", f",n{line}\n") for line in range(2, 12)},
    }
    first = read(table({**with_notes, 4: "?,1,1,1,1,\n"}, "a.csv"), tmp_path / "a")
    second = read(table({6: "?,1,1,1,1\n", 7: "1,1\n"}, "b.csv"), tmp_path / "b")
    merged = Dataset.merge([first, second], tmp_path / "m")
    assert merged.skipped.rows == 3
    assert [(kind.kind.split()[0], kind.rows) for kind in merged.skipped.kinds] == [("m_size", 2), ("a", 1)]
    assert set(merged.skipped.frame()["file"]) == {"a.csv", "b.csv"}
    joined = merged.read().join(merged.extra(), on=["source", "source_line"], how="left")
    assert joined.filter(pl.col("notes").is_not_null())["notes"].to_list() == [f"n{line}" for line in range(2, 12) if line != 4]
    merged.verify()
    merged.append(merged.families[0], second.read().drop("key").with_columns(run_id=pl.lit("again")))
    assert Dataset.open(merged.path).skipped.rows == 3
    for file in ("skipped.parquet", "extra/part-00000.parquet"):
        content = (merged.path / file).read_bytes()
        (merged.path / file).write_bytes(content[:-1] + b"?")
        with pytest.raises(BadFile, match=f"{file} differs from its checksum"):
            merged.verify()
        (merged.path / file).write_bytes(content)
    clean = read(table(name="c.csv"), tmp_path / "c")
    assert not (clean.path / "skipped.parquet").exists()
    assert clean.contents.skipped is None


MAPPING = """family = "gemm/single"
device = { column = "gpu" }
problem = { M = "m", N = { value = 8 }, K = { value = 8 }, dtype = { value = "fp16" }, layout = { value = "rrr" } }
time = { column = "ms", unit = "ms" }
"""


def test_wrong_devices_are_one_kind_and_no_cell_names_a_file(tmp_path):
    """Each wrong name is not a pass over the table of its own; a profile's file that a table names is never read."""
    profile = tmp_path / "mine.toml"
    profile.write_text('name = "mine"\ntitle = "mine"\nkind = "gpu"\n')
    (tmp_path / "m.toml").write_text(MAPPING)
    names = [*["h100"] * 3000, *(f"box-{number}" for number in range(2000)), str(profile), "x" * 100_000, "local.toml"]
    (tmp_path / "t.csv").write_text("m,ms,gpu\n" + "".join(f"8,1,{name}\n" for name in names))
    dataset = kerncast.read(tmp_path / "t.csv", file_format="csv", mapping=tmp_path / "m.toml", out=tmp_path / "d")
    (kind,) = dataset.skipped.kinds
    assert (dataset.rows, kind.rows) == (3000, 2003)
    assert kind.example.endswith("got 'box-0'; other rows have 'box-1', 'box-2', 'box-3', …")
    assert dataset.read()["device"].unique().to_list() == ["h100"]


def test_a_table_cut_in_many_lines_keeps_them_in_order(table, tmp_path, monkeypatch):
    """Lines that are skipped one by one are kept in the order of the file, also between rows that are skipped together."""
    monkeypatch.setattr("kerncast.data.skipping.FRAMED", 2)
    dataset = read(table({3: "1,2\n", 5: "x,32,96,10,1\n", 6: '"\n', 7: "3,4\n", 9: "x,32,96,10,1\n"}), tmp_path / "d")
    kept = dataset.skipped.frame()
    assert kept["source_line"].to_list() == [3, 6, 7, 5, 9]
    assert kept.filter(source_line=7).row(0, named=True) | {"source": ""} == {
        "file": "t.csv", "source": "", "source_line": 7, "kind": "a line must have as many cells as the header", "row": "3,4\n",
    }  # fmt: skip


@pytest.mark.parametrize(
    ("text", "said"),
    [
        (f"{'9' * 50_000}x,32,96,10,1\n", "m_size must be a whole number, got '9{60}…'$"),
        (f"{'9' * 200_000},32,96,10,1\n", "line 5 has a cell that is too long"),
    ],
)
def test_a_long_cell_is_quoted_in_part(table, tmp_path, text, said):
    """What is said of a row stays one line that a person can read, however long the cell is."""
    (kind,) = read(table({5: text}), tmp_path / "d").skipped.kinds
    assert re.search(said, kind.example)
