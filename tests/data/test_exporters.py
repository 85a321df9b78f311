"""`export-data`: rows for other tools, and back without a loss."""

import json

import polars as pl
import pytest
from click.testing import CliRunner

import kerncast
from kerncast.app.cli import program
from kerncast.data import Dataset
from kerncast.data.dataset import merge
from kerncast.data.formats import ImportOptions
from kerncast.data.importing import import_files
from kerncast.errors import InvalidValue, NotFound
from kerncast.library.registry import FAMILIES
from kerncast.testing.importers import ImporterContract, sample_of
from kerncast.testing.models import synthetic_dataset, synthetic_rows

CONFIGS = [(x, y) for x in (16, 32, 64) for y in (1, 2)]
ODD = 'a "quoted", text\nwith a line = [break]; \u2028 <b>é</b>'


def tuned(failed=(2, 3)):
    """A cache of Kernel Tuner over a whole grid; two configs failed."""
    entries = {}
    for number, (x, y) in enumerate(CONFIGS):
        time = 1.0 + abs(x - 32) / 64 + y / 7
        good = {"time": time * 1.01, "times": [time * 1.04, time, time * 0.99]}
        bad = {"time": "RuntimeFailedConfig" if number == 2 else "CompilationFailedConfig", "times": []}
        entries[f"{x},{y}"] = {
            "block_size_x": x,
            "block_size_y": y,
            **(bad if number in failed else good),
            "compile_time": 12.5,
        }
    return {
        "device_name": "Some GPU 9000", "kernel_name": "blur-kernel", "problem_size": [1024, 512],
        "tune_params_keys": ["block_size_x", "block_size_y"],
        "tune_params": {"block_size_x": [16, 32, 64], "block_size_y": [1, 2]}, "objective": "time", "cache": entries,
    }  # fmt: skip


def rows_of(dataset, family=None):
    """The rows without where they came from, in an order of their own."""
    frame = dataset.read(family).drop("source", "source_line")
    return frame.select(sorted(frame.columns)).sort("key", "time_ns", "status", "run_id")


@pytest.fixture
def drafted(tmp_path):
    """The rows of a cache, under an op with another name than the kernel's."""
    path = tmp_path / "cache.json"
    path.write_text(json.dumps(tuned()), encoding="utf-8")
    return import_files("kernel-tuner", [path], tmp_path / "drafted", ImportOptions(values={"op": "blur"}))


@pytest.fixture
def own(tmp_path):
    """Rows of an installed family: failures, hostile texts, statistics, gaps in memory, several problems."""
    rows = synthetic_rows(problems=3).with_columns(
        error=pl.when(pl.col("status") != "ok").then(pl.lit(ODD)),
        software=pl.lit('{"driver":"1 \\"2\\""}'),
        time_ns_mad=pl.col("time_ns") / 3,
        samples=pl.lit(7, pl.Int64),
        run_id=pl.int_range(pl.len()).cast(pl.String),
        source=pl.lit("0" * 64),
        source_line=pl.int_range(1, pl.len() + 1, dtype=pl.Int64),
    )
    rows = rows.with_columns(
        pl.when(pl.int_range(pl.len()) == 4).then(pl.lit("out_of_memory")).otherwise("status").alias("status"),
        pl.when(pl.int_range(pl.len()) == 4).then(None).otherwise("time_ns").alias("time_ns"),
    )
    return Dataset.open(synthetic_dataset(tmp_path / "own", rows))


WRITTEN = """
[op]
name = "blur"
doc = "a blur of \\"lines\\""
work = { flops = "2 * pixels", bytes = "8 * pixels" }
derived = { pixels = "width * height" }
constraints = { small = "pixels <= 2 ** 16" }
features = { log2_pixels = "log2(pixels)" }
split_group = ["width"]

[op.problem]
width = { from = 1, to = 4096 }
height = { from = 8, to = 64, step = 8 }
dtype = ["fp16", "fp32"]
edge = ["a\\nb", "#"]

[family]
name = "tiled"
library = { kind = "theirs" }
constraints = { fits = { rule = "kind == 'theirs' or tile <= width", says = "a tile must fit" } }
features = { tiles = "where(kind == 'theirs', 0, ceil_div(width, max(tile, 1)))" }

[family.config]
kind = ["ours", "theirs"]
tile = { powers_of_two = [4, 64], when = "kind == 'ours'", doc = "é" }
wide = { flag = true }
u = [1, 3]
"""
ROWS = "width,height,dtype,edge,kind,tile,wide,u,us\n16,8,fp16,#,ours,4,true,3,1.5\n64,16,fp32,#,theirs,,false,1,2.5\n"
SAME = {name: name for name in ("width", "height", "dtype", "edge")}


@pytest.mark.parametrize("to", ["csv", "parquet"])
def test_a_table_of_a_declared_family_has_the_declaration_in_its_mapping(tmp_path, to):
    """Written as TOML or drafted from a cache: the rows come back under the same declaration, without the first file."""
    mapping = tmp_path / "blur.toml"
    sections = "\n[problem]\n" + "".join(f'{name} = "{name}"\n' for name in SAME)
    sections += "[config]\n" + "".join(f'{name} = "{name}"\n' for name in ("kind", "tile", "wide", "u"))
    mapping.write_text('device = "a100"\n' + WRITTEN + sections + '[time]\ncolumn = "us"\nunit = "us"\n', encoding="utf-8")
    (tmp_path / "rows.csv").write_text(ROWS)
    written = kerncast.read(tmp_path / "rows.csv", mapping=mapping, out=tmp_path / "written", progress=False)
    mapping.unlink()
    (tmp_path / "cache.json").write_text(json.dumps(tuned() | {"device_name": "h100"}), encoding="utf-8")
    drafted = import_files(
        "kernel-tuner", [tmp_path / "cache.json"], tmp_path / "drafted", ImportOptions(values={"op": "blur"})
    )
    for number, dataset in enumerate((written, drafted)):
        table, found = dataset.export(tmp_path / f"out{number}.{to}", to=to)
        again = import_files(to, [table], tmp_path / f"again{number}", ImportOptions(mapping=found))
        assert rows_of(again).equals(rows_of(dataset))
        assert again.families == dataset.families  # one object for one declaration


@pytest.mark.parametrize("to", ["csv", "parquet"])
def test_a_table_and_its_mapping_give_the_same_rows(own, tmp_path, to):
    """All columns, exact numbers, any text; the mapping is complete."""
    table, mapping = own.export(tmp_path / f"times.{to}", to=to)
    again = kerncast.read(table, file_format=to, mapping=mapping, out=tmp_path / "again", progress=False)
    assert rows_of(again).equals(rows_of(own))
    assert not again.notes
    assert not again.skipped.rows


@pytest.mark.parametrize("to", ["t4", "kernel-tuner"])
def test_a_drafted_kernel_goes_and_comes_back(drafted, tmp_path, to):
    """Status, statistics, compile time, device, problem size and the name of the op; the format is recognised."""
    (path,) = drafted.export(tmp_path / "out.json", to=to)
    again = kerncast.read(path, out=tmp_path / "again", progress=False)
    assert [family.id for family in again.families] == ["blur/kernel_tuner"]
    assert rows_of(again).equals(rows_of(drafted))
    assert again.contents.devices == drafted.contents.devices


@pytest.mark.parametrize("to", ["t4", "kernel-tuner"])
def test_an_installed_family_goes_and_comes_back(own, tmp_path, to):
    """One file for each problem in a folder; together they are the same rows of the same family."""
    files = own.export(tmp_path / "out", to=to)
    assert len(files) == 3
    parts = [kerncast.read(path, out=tmp_path / f"part{number}", progress=False) for number, path in enumerate(files)]
    whole, _ = merge(parts, tmp_path / "whole")
    assert whole.families == own.families
    assert rows_of(whole).equals(rows_of(own))


def test_repeats_become_the_launches_of_one_entry(tmp_path):
    """A cache has one entry per config; T4 keeps each row."""
    dataset = Dataset.open(synthetic_dataset(tmp_path / "d", synthetic_rows(problems=1, repeats=3)))
    (cache,) = dataset.export(tmp_path / "cache.json", to="kernel-tuner")
    entries = json.loads(cache.read_text())["cache"].values()
    assert sum(len(entry.get("times", [])) for entry in entries) == dataset.read().filter(pl.col("status") == "ok").height
    (t4,) = dataset.export(tmp_path / "t4.json", to="t4")
    assert len(json.loads(t4.read_text())["results"]) == dataset.rows


@pytest.mark.needs("Kernel Tuner")
def test_kernel_tuner_itself_reads_what_is_written(drafted, tmp_path):
    """Its cache reader, its simulation mode and its own T4 schema take the files."""
    import jsonschema
    import kernel_tuner
    from kernel_tuner.file_utils import output_file_schema
    from kernel_tuner.util import read_cache

    (t4,) = drafted.export(tmp_path / "t4.json", to="t4")
    jsonschema.validate(json.loads(t4.read_text()), output_file_schema("results")[1])
    (path,) = drafted.export(tmp_path / "written.json", to="kernel-tuner")
    found = read_cache(str(path), open_cache=False)
    assert len(found["cache"]) == len(CONFIGS)
    results, _ = kernel_tuner.tune_kernel(
        "blur-kernel", "", (1024, 512), [], found["tune_params"], cache=str(path), simulation_mode=True, lang="C"
    )
    best = min((result for result in results if "__error__" not in result), key=lambda result: result["time"])
    assert (best["block_size_x"], best["block_size_y"]) == (16, 1)  # the best of those that ran


def test_what_cannot_be_written_is_refused_by_name(own, tmp_path):
    """An existing path, an unknown format, no rows, a table that would be its own mapping, several families."""
    with pytest.raises(InvalidValue, match="exists already"):
        own.export(own.path)
    with pytest.raises(NotFound, match="format to write 'xml'"):
        own.export(tmp_path / "x", to="xml")
    with pytest.raises(InvalidValue, match="nothing to write"):
        own.export(tmp_path / "x", where="dtype=fp8")
    with pytest.raises(InvalidValue, match="its own mapping"):
        own.export(tmp_path / "x.toml")
    (tmp_path / "y.toml").write_text("mine")
    with pytest.raises(InvalidValue, match=r"y\.toml exists already"):
        own.export(tmp_path / "y.csv")
    assert not (tmp_path / "y.csv").exists()
    library = FAMILIES.get("gemm/library")
    row = {"problem.M": 8, "problem.N": 8, "problem.K": 8, "problem.dtype": "fp16", "problem.layout": "rcr",
           "config.kernel_source": library.config.parameters["kernel_source"].value(0), "device": "a100", "status": "ok",
           "time_ns": 5.0}  # fmt: skip
    Dataset.open(own.path).append(library, pl.DataFrame([row]))
    with pytest.raises(InvalidValue, match="several families"):
        Dataset.open(own.path).export(tmp_path / "z.csv")
    assert len(Dataset.open(own.path).export(tmp_path / "z.csv", family="gemm/library")) == 2


def test_the_verb_writes_and_says_how_to_read_it_again(drafted, own, tmp_path):
    """`export` of a dataset with and without `--json`; conditions choose rows."""
    run = CliRunner()
    done = run.invoke(program, ["export", str(own.path), "--to", "csv", "--out", str(tmp_path / "t.csv")])
    assert done.exit_code == 0, done.output
    assert f"kerncast import csv {tmp_path}/t.csv --mapping {tmp_path}/t.toml" in done.output
    done = run.invoke(program, ["export", str(drafted.path), "--to", "t4", "--where", "status=ok", "--json", "--out",
                             str(tmp_path / "t.json")])  # fmt: skip
    assert list(json.loads(done.output)["files"]) == [str(tmp_path / "t.json")]
    assert len(json.loads((tmp_path / "t.json").read_text())["results"]) == len(CONFIGS) - 2


class TestT4(ImporterContract):
    """A T4 file as Kernel Tuner writes it: no device, no kernel."""

    format_name = "t4"
    options = ImportOptions(device="a100", values={"op": "blur"})
    sample = json.dumps({
        "results": [
            {"timestamp": "2024-01-01", "configuration": {"block_size_x": x, "block_size_y": y},
             "times": {"compilation": 12.5, "benchmark": 3, "framework": 1.5, "search_algorithm": 0, "validation": 0,
                       "runtimes": [1.5 + x / 64, 1.25 + y]},
             "invalidity": "correct", "correctness": 1, "measurements": [{"name": "time", "value": 1.25, "unit": "ms"}],
             "objectives": ["time"]}
            for x, y in CONFIGS
        ],
        "schema_version": "1.0.0",
        "metadata": {"timeunit": "milliseconds"},
    }, indent=1).encode()  # fmt: skip


def test_damage_in_what_kerncast_adds_costs_a_row_or_the_file_by_name(own, tmp_path):
    """A column of another type costs its row; a header that names no family is refused."""
    (path, *_) = own.export(tmp_path / "out", to="t4")
    document = json.loads(path.read_text())
    before = len(document["results"])
    named = next(item for item in document["results"][0]["measurements"] if item["name"] == "kerncast_samples")
    named["value"] = "seven"
    path.write_text(json.dumps(document))
    found = kerncast.read(path, out=tmp_path / "a", progress=False)
    assert (found.rows, found.skipped.rows) == (before - 1, 1)
    document["metadata"]["kerncast"] = {"family": 3}
    path.write_text(json.dumps(document))
    with pytest.raises(kerncast.BadFile, match="must name a family"):
        kerncast.read(path, out=tmp_path / "b", progress=False)
    assert sample_of(path.read_bytes()) is not None
