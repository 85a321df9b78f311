"""`Dataset.export(to="tt-sweep")`: measured reshards in the two folders that tt-metal's scripts read, and back."""

import json
import os

import numpy as np
import polars as pl
import pytest

from kerncast.data import Dataset
from kerncast.data.formats import ImportOptions
from kerncast.data.formats.tt_metal.writing import write_vectors
from kerncast.data.importing import import_files
from kerncast.errors import InvalidValue, KerncastError
from kerncast.library.families.single import reshard_single
from kerncast.testing.models import synthetic_dataset

SLOPE, START = 36.5, 900.0
PROBLEM = [f"problem.{name}" for name in reshard_single.problem.parameters]
HOSTILE = 'no "room"\n\x1b[2J </script>'


def rows_of(count=40, grids=((1, 1, 2, 1), (1, 2, 8, 8)), device="wormhole_b0"):
    """Reshards on a straight line in tiles, ten runs each."""
    made = [
        {
            "height_tiles": 64 * (1 + number % 5), "width_tiles": 64 * (1 + number // 5), "in_x": in_x, "in_y": in_y,
            "out_x": out_x, "out_y": out_y, "in_strategy": "height", "out_strategy": ("width", "block")[number % 2],
            "in_orientation": "row_major", "out_orientation": "row_major", "dtype": "bf16",
        }
        for in_x, in_y, out_x, out_y in grids
        for number in range(count)
    ]  # fmt: skip
    tiles = pl.col("problem.height_tiles") * pl.col("problem.width_tiles")
    frame = pl.DataFrame(made).select(pl.all().name.prefix("problem."))
    return frame.with_columns(
        device=pl.lit(device), backend=pl.lit("tt-metal"), status=pl.lit("ok"), time_ns=START + SLOPE * tiles,
        time_ns_std=tiles / 10.0, samples=pl.lit(10), software=pl.lit('{"commit":"0123abc"}'),
        started_at=pl.lit("2026-01-05_10-00-00"), error=pl.lit(None, pl.String),
    )  # fmt: skip


def failing(rows):
    """The first rows end in every other way."""
    statuses = ["timeout", "out_of_memory", "launch_error", "unsupported", "not_run", "crash", "invalid"]
    failed = pl.int_range(pl.len()) < len(statuses)
    return rows.with_columns(
        status=pl.Series([*statuses, *["ok"] * (rows.height - len(statuses))]), error=pl.when(failed).then(pl.lit(HOSTILE)),
        **{name: pl.when(~failed).then(name) for name in ("time_ns", "time_ns_std", "samples")},
    )  # fmt: skip


def dataset_of(path, rows):
    dataset = Dataset.create(path)
    dataset.append(reshard_single, rows)
    return dataset


def written(dataset, home, where=()):
    """What an export writes: how many files of vectors, vectors and results, and its notes."""
    dataset.export(home, to="tt-sweep", where=where)
    vectors = [json.loads(file.read_text()) for file in home.glob("vectors_export/**/*.json")]
    results = [json.loads(file.read_text()) for file in home.glob("results_export_batch/**/*.json")]
    counted = sum(len(suite) for file in vectors for suite in file.values())
    return len(vectors), counted, sum(map(len, results)), dataset.notes


def fitted(home):
    """Lines as the published script fits them: by suite, group and tile count, from the two folders alone."""
    found = {}
    for in_grid in sorted(os.listdir(home / "results_export_batch")):
        for name in sorted(os.listdir(home / "results_export_batch" / in_grid)):
            suite = f"{in_grid}-{name.rpartition('-')[2].removesuffix('.json')}-DataType.BFLOAT16"
            results = json.loads((home / "results_export_batch" / in_grid / name).read_text())
            times = {
                item["vector_id"]: float(item["device_perf"]["DEVICE KERNEL DURATION [ns]"])
                for item in results
                if item["status"] == "TestStatus.PASS" and item["suite_name"] == suite
            }
            groups = {}
            for key, vector in json.loads((home / "vectors_export" / in_grid / name).read_text())[suite].items():
                if vector["validity"] == "VectorValidity.VALID" and key in times:
                    _, _, height, width = (int(size) for size in vector["shape"][1:-1].split(","))
                    points = groups.setdefault((suite, vector["output_shard_strategy"]), {})
                    points.setdefault(height * width / 1024, []).append(times[key])
            for group, points in groups.items():
                x, y = np.array([(tiles, np.mean(values)) for tiles, values in points.items()]).T
                found[group] = np.polyfit(x, y, 1)
    return found


def test_the_published_fit_finds_its_lines_in_the_two_folders(tmp_path):
    """A series of grids, each with a file of vectors and one of results; every group's line is the one that was measured."""
    assert written(dataset_of(tmp_path / "d", rows_of()), tmp_path / "out") == (2, 80, 80, ())
    lines = fitted(tmp_path / "out")
    assert set(lines) == {
        (f"{grids}-DataType.BFLOAT16", f"ShardStrategy.{target}")
        for grids in ("1x1-2x1", "1x2-8x8")
        for target in ("WIDTH", "BLOCK")
    }
    for slope, start in lines.values():
        assert (slope, start) == (pytest.approx(SLOPE), pytest.approx(START))


def test_what_is_written_is_imported_again_with_its_deviation_and_runs(tmp_path):
    """Times, deviation, runs, commit, statuses and errors; a crash is a hang there, and invalid vectors are not written."""
    rows = failing(rows_of())
    _, vectors, results, notes = written(dataset_of(tmp_path / "d", rows), tmp_path / "out")
    assert (vectors, results) == (79, 78)
    assert notes == (
        "1 invalid vectors were left out, as the framework does",
        "1 rows with the status crash are written as FAIL_CRASH_HANG",
    )
    again = import_files("tt-sweep", [tmp_path / "out"], tmp_path / "again", ImportOptions(device="wormhole_b0")).read()
    told = [*PROBLEM, "status", "time_ns", "time_ns_std", "samples", "started_at"]
    ran = pl.col("status") != "not_run"
    expected = rows.filter(pl.col("status") != "invalid").with_columns(
        pl.col("status").replace("crash", "timeout"), started_at=pl.when(ran).then("started_at")
    )
    assert again.sort(PROBLEM).select(told).rows() == expected.sort(PROBLEM).select(told).rows()
    assert again.filter(pl.col("status") == "ok").select((pl.col("time_ns_mean") == pl.col("time_ns")).all()).item()
    assert set(again.filter(ran)["software"]) == {'{"commit":"0123abc"}'}
    assert "crash: " + " ".join(HOSTILE.split()) in again["error"].to_list()


def test_repeats_are_results_of_one_vector(tmp_path):
    """A problem that was measured twice has one vector and two results."""
    rows = rows_of(count=3, grids=((1, 2, 8, 8),))
    twice = pl.concat([rows, rows.with_columns(pl.col("time_ns") + 1.0)])
    assert written(dataset_of(tmp_path / "d", twice), tmp_path / "out")[1:3] == (3, 6)
    assert import_files("tt-sweep", [tmp_path / "out"], tmp_path / "again", ImportOptions(device="wormhole_b0")).rows == 6


def test_vectors_are_those_of_a_generated_sweep(tmp_path):
    """The same bytes as a sweep in this format, so that results of either belong to the vectors of the other."""
    rows = rows_of(count=8, grids=((1, 2, 8, 8),))
    dataset_of(tmp_path / "d", rows).export(tmp_path / "out", to="tt-sweep")
    write_vectors(rows.select(PROBLEM), tmp_path / "generated.json")
    file = tmp_path / "out/vectors_export/1x2/reshard-1x2-8x8.json"
    assert file.read_bytes() == (tmp_path / "generated.json").read_bytes()


def test_what_cannot_be_written_is_refused_and_leaves_nothing(tmp_path):
    """Other families, several devices, no rows that fit, and a folder that exists."""
    mixed = dataset_of(tmp_path / "mixed", pl.concat([rows_of(4), rows_of(4, device="l4")]))
    for where, said in (([], "holds rows of l4, wormhole_b0: choose one with `where`"), (["in_x=7"], "holds no such rows")):
        with pytest.raises(InvalidValue, match=said):
            mixed.export(tmp_path / "out", to="tt-sweep", where=where)
    assert written(mixed, tmp_path / "one", ["device=l4"])[2] == 8
    with pytest.raises(KerncastError, match="exists"):
        mixed.export(tmp_path / "one", to="tt-sweep", where=["device=l4"])
    with pytest.raises(InvalidValue, match=r"tt-sweep is a format of reshard/single, but .* holds gemm/triton"):
        Dataset.open(synthetic_dataset(tmp_path / "gemm")).export(tmp_path / "out", to="tt-sweep")
    assert not (tmp_path / "out").exists()


def test_the_command_writes_it_and_says_what_it_left_out(tmp_path, run):
    """`export-data --to tt-sweep`: both folders, a note about invalid vectors; another family is refused by name."""
    dataset_of(tmp_path / "data", failing(rows_of()))
    code, out, err = run("export", tmp_path / "data", "--to", "tt-sweep", "--out", tmp_path / "sweep")
    assert code == 0, err
    assert "1 invalid vectors were left out" in out
    assert {path.name for path in (tmp_path / "sweep").iterdir()} == {"vectors_export", "results_export_batch"}
    code, out, err = run("export", tmp_path / "data", "--to", "tt-sweep", "--family", "gemm/cpu", "--out", tmp_path / "other")
    assert (code, "a format of reshard/single" in err) == (2, True)
