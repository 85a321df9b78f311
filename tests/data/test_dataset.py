"""Datasets: conforming rows, appending, reading, merging, refusing."""

import json

import polars as pl
import pytest

from kerncast.core.op import Config, Problem, key
from kerncast.data import Dataset, dataset, filters, journal, schema
from kerncast.errors import BadFile, InvalidValue, NotFound
from kerncast.library import devices
from kerncast.library.declared.family_file import family_named

TRITON = family_named("gemm/triton")
CK = family_named("gemm/ck_tile")


def rows(times=(1000.0, 1100.0, 900.0), **columns):
    """Rows of gemm/triton: one problem, one tiled config and the library's kernel."""
    count = len(times)
    base = {
        "device": "a100", "problem.M": 128, "problem.N": 256, "problem.K": 512, "problem.dtype": "fp16",
        "problem.layout": "rcr", "config.kind": ["triton", "triton", "library"][:count],
        "config.BLOCK_M": [64, 64, None][:count], "config.BLOCK_N": [32, 32, None][:count],
        "config.BLOCK_K": [32, 32, None][:count], "config.num_stages": [3, 3, None][:count],
        "config.num_warps": [4, 4, None][:count], "status": "ok", "time_ns": list(times),
        "run_id": [f"r{i}" for i in range(count)],
    }  # fmt: skip
    return pl.DataFrame(
        {name: value if isinstance(value, list) else [value] * count for name, value in {**base, **columns}.items()}
    )


def make(path, *frames, family=TRITON):
    made = Dataset.create(path)
    for frame in frames or [rows()]:
        made.append(family, frame)
    return made


def test_rows_go_in_and_come_out_conformed(tmp_path):
    """Columns in schema order, defaults filled, keys computed as for single values."""
    make(tmp_path / "d")
    found = Dataset.open(tmp_path / "d").read()
    assert found.columns == list(schema.schema_of(TRITON))
    assert found["problem.split_k"].to_list() == [1, 1, 1]
    problem = Problem(TRITON, M=128, N=256, K=512, dtype="fp16", layout="rcr")
    assert found["key"][2] == key(problem, Config(TRITON, {"kind": "library"}), "a100")
    tiled = Config(TRITON, {"kind": "triton", "BLOCK_M": 64, "BLOCK_N": 32, "BLOCK_K": 32, "num_stages": 3, "num_warps": 4})
    assert found["key"][0] == found["key"][1] == key(problem, tiled, "a100")


def test_flags_and_labels_have_the_same_key_vectorised_and_one_by_one(tmp_path):
    """Booleans spell alike in both ways of computing a key."""
    device = devices.get("gfx950")
    configs = CK.config.sample(20, 0, CK.bindings({"dtype": "fp8"}, device))
    frame = configs.rename({name: f"config.{name}" for name in configs.columns}).with_columns(
        pl.lit("gfx950").alias("device"), pl.lit("ok").alias("status"), pl.lit(5.0).alias("time_ns"),
        *(pl.lit(v).alias(f"problem.{n}") for n, v in {"M": 1, "N": 2, "K": 3, "dtype": "fp8", "layout": "rrr"}.items()),
    )  # fmt: skip
    found = make(tmp_path / "d", frame, family=CK).read()
    problem = Problem(CK, M=1, N=2, K=3, dtype="fp8", layout="rrr")
    assert found["key"].to_list() == [key(problem, Config(CK, config), "gfx950") for config in configs.iter_rows(named=True)]


@pytest.mark.parametrize(
    ("change", "why"),
    [
        ({"problem.M": [128, 0, 128]}, "row 2: problem.M must be a whole number from 1 to 2147483647, got 0"),
        ({"problem.M": [1.5, 2.0, 3.0]}, "row 1: problem.M must be a whole number, got 1.5"),
        ({"problem.dtype": ["fp16", "fp16", "fp9"]}, "row 3: problem.dtype must be one of"),
        ({"problem.dtype": [None, "fp16", "fp16"]}, "row 1: problem.dtype must be one of"),
        ({"config.BLOCK_M": [64, 48, None]}, "row 2: config.BLOCK_M must be a power of two from 16 to 512, got 48"),
        ({"config.BLOCK_M": [64, None, None]}, "row 2: config.BLOCK_M applies here"),
        ({"config.BLOCK_M": [64, 64, 64]}, "row 3: config.BLOCK_M does not apply here"),
        ({"status": ["ok", "fine", "ok"]}, "row 2: status must be one of ok, invalid"),
        ({"time_ns": [1.0, None, 1.0]}, "row 2: time_ns must be given when status is ok"),
        ({"time_ns": [1.0, -3.0, 1.0]}, "row 2: time_ns must be a positive number of nanoseconds (0.001 to 1e+18), got -3.0"),
        ({"time_ns": [1.0, float("nan"), 1.0]}, "row 2: time_ns must be a positive number"),
        ({"time_ns": ["1", "2", "x"]}, "row 3: time_ns must be a number, got 'x'"),
        ({"device": [None, "a100", "a100"]}, "row 1: device must name a device"),
        ({"colour": "red"}, "unknown column 'colour' for gemm/triton"),
    ],
)
def test_a_bad_row_is_refused_with_its_place_and_nothing_is_written(tmp_path, change, why):
    """The rule, the value, the row; the dataset stays as it was."""
    made = Dataset.create(tmp_path / "d")
    with pytest.raises(InvalidValue) as caught:
        made.append(TRITON, rows(**change))
    assert why in str(caught.value)
    assert Dataset.open(tmp_path / "d").rows == 0


def test_missing_columns_without_a_default_are_named(tmp_path):
    """A missing key is an error, never a guess."""
    with pytest.raises(InvalidValue, match=r"need the columns problem\.K, time_ns: none of them has a default"):
        make(
            tmp_path / "d",
            rows().drop("problem.K", "time_ns", "problem.layout").with_columns(pl.lit("rcr").alias("problem.layout")),
        )


def test_failures_are_rows_too(tmp_path):
    """A status without a time is kept: a model of validity learns from it."""
    made = make(tmp_path / "d", rows(times=(1.0, None, 2.0), status=["ok", "out_of_memory", "ok"]))
    assert made.read(where=["status=out_of_memory"]).height == 1


def test_a_condition_on_a_time_keeps_rows_that_failed(tmp_path):
    """They have no time to judge; `status=ok` leaves them out, and an ok row without the number goes."""
    made = make(tmp_path / "d", rows(times=(1.0, None, 200.0), status=["ok", "out_of_memory", "ok"]))
    for condition, kept in {
        "time_ns>100": {None, 200.0},
        "time_ns<=1": {None, 1.0},
        "time_ns!=1": {None, 200.0},
        "time_ns=1": {None, 1.0},
    }.items():
        assert set(made.read(where=[condition])["time_ns"]) == kept
    assert made.read(where=["time_ns>100", "status=ok"]).height == 1
    assert made.read(where=["samples>1"])["status"].to_list() == ["out_of_memory"]
    assert made.read(where=["order>1"]).height == 0


def test_filters_select_rows_and_refuse_nonsense(tmp_path):
    """`--where` in all its forms."""
    made = make(tmp_path / "d")
    assert made.read(where=["config.kind=triton"]).height == 2
    assert made.read(where=["config.kind!=triton"]).height == 1
    assert made.read(where=["time_ns<=1e3", "config.BLOCK_M>=32"]).height == 1
    assert made.read(where=["problem.M=64,128"]).height == made.read(where=["M=64,128"]).height == 3
    assert made.read(where=["kind=triton"]).height == 2
    with pytest.raises(InvalidValue, match=r"`where` tile may be problem\.tile or config\.tile: write one of them"):
        filters.column_named("tile", ["problem.tile", "config.tile"])
    for text, why in [
        ("Q=3", "unknown column 'Q'"),
        ("problem.M=x", "not a value of that type"),
        ("problem.M", "takes column=value"),
    ]:
        with pytest.raises((InvalidValue, NotFound), match=why):
            made.read(where=[text])


def test_the_digest_is_of_the_contents(tmp_path):
    """Same rows, same digest, wherever they are; other rows, another."""
    assert make(tmp_path / "a").digest == make(tmp_path / "b").digest == Dataset.open(tmp_path / "a").digest
    assert make(tmp_path / "c", rows(times=(1.0, 2.0, 3.0))).digest != make(tmp_path / "e").digest


def test_merge_keeps_repeats_and_drops_exact_duplicates(tmp_path):
    """The same run imported twice counts once; another run of the same thing is a repeat."""
    make(tmp_path / "a")
    make(tmp_path / "b", rows(), rows(run_id=["s0", "s1", "s2"]))
    merged, dropped = dataset.merge([tmp_path / "a", tmp_path / "b"], tmp_path / "c")
    assert (merged.rows, dropped) == (6, 3)
    sizes = {"problem.M": [32], "problem.K": [32], "problem.N": [32], "problem.num_cores": [1]}
    matmul = pl.DataFrame({"device": ["wormhole_b0"], **sizes, "status": ["ok"], "time_ns": [7.0]})
    make(tmp_path / "k", matmul, family=family_named("matmul_sharded/single"))
    both, _ = dataset.merge([tmp_path / "a", tmp_path / "k"], tmp_path / "m")
    assert [family.id for family in both.families] == ["gemm/triton", "matmul_sharded/single"]
    with pytest.raises(InvalidValue, match="holds several families"):
        both.read()


def test_an_existing_directory_is_never_overwritten(tmp_path):
    """Neither by create nor by merge."""
    make(tmp_path / "a")
    with pytest.raises(InvalidValue, match="exists already"):
        Dataset.create(tmp_path / "a")
    with pytest.raises(InvalidValue, match="exists already"):
        dataset.merge([tmp_path / "a"], tmp_path / "a")


def edit_manifest(path, **changes):
    file = path / "dataset.json"
    file.write_text(json.dumps({**json.loads(file.read_text()), **changes}))


def test_foreign_newer_truncated_and_incomplete_datasets_are_refused_by_name(tmp_path):
    """Each with what is wrong and what to do."""
    path = tmp_path / "d"
    part = path / "rows/gemm/triton/part-00000.parquet"

    def use():
        opened = Dataset.open(path)
        opened.verify()
        opened.read()

    def refused(why, error=BadFile):
        with pytest.raises(error, match=why):
            use()

    refused("there is no dataset at", NotFound)
    path.mkdir()
    refused("it has no dataset.json")
    path.rmdir()
    make(path)
    good_manifest, good_part = (path / "dataset.json").read_bytes(), part.read_bytes()
    edit_manifest(path, version=99)
    refused("is version 99, this kerncast reads up to version 1: upgrade kerncast")
    edit_manifest(path, version=1, format="mlflow")
    refused("its format is 'mlflow'")
    (path / "dataset.json").write_bytes(good_manifest[:-20])
    refused("is damaged")
    (path / "dataset.json").write_bytes(b"[]")
    refused("its format is 'list'")
    (path / "dataset.json").write_bytes(good_manifest)
    part.write_bytes(good_part[: len(good_part) // 2])
    with pytest.raises(BadFile, match=r"part-00000\.parquet differs from its checksum"):
        Dataset.open(path).read()
    flipped = bytearray(good_part)
    flipped[len(flipped) // 2] ^= 1
    part.write_bytes(flipped)
    refused("differs from its checksum")
    part.unlink()
    refused("is incomplete")


def test_a_parameter_that_rows_do_not_have_gets_its_default(tmp_path):
    """A parameter with a default may be added to an op without importing everything again."""
    frame = schema.conform(TRITON, rows())
    completed = schema.with_every_column(TRITON, frame.drop("problem.batch").lazy(), "file").collect()
    assert completed.equals(frame)
    without_key = frame.drop("problem.batch").with_columns(key=pl.lit("the key without batch"))
    assert schema.with_every_column(TRITON, without_key.lazy(), "file").collect()["key"].equals(frame["key"])
    with pytest.raises(BadFile, match=r"file has no column 'problem\.layout'"):
        schema.with_every_column(TRITON, frame.drop("problem.layout").lazy(), "file")
    with pytest.raises(BadFile, match=r"file has the column 'problem\.colour'"):
        schema.with_every_column(TRITON, frame.lazy().with_columns(pl.lit(1).alias("problem.colour")), "file")


def test_a_dataset_appears_whole_or_not_at_all(tmp_path):
    """A failure half-way leaves no directory and no scratch behind."""

    def fail(draft):
        draft.append(TRITON, rows())
        raise InvalidValue("half-way")

    with pytest.raises(InvalidValue, match="half-way"):
        Dataset.build(tmp_path / "d", fail)
    assert list(tmp_path.iterdir()) == []


def test_reading_an_empty_dataset_says_so(tmp_path):
    """Empty is an answer, not a traceback."""
    Dataset.create(tmp_path / "d")
    with pytest.raises(InvalidValue, match="is empty: import or collect rows first"):
        Dataset.open(tmp_path / "d").read()


def test_a_collection_that_was_ended_before_its_first_result_says_so(tmp_path):
    """It has no rows yet, and the next step is to run it again."""
    begun = Dataset.create(tmp_path / "begun")
    (begun.path / journal.NAME).write_text("")
    with pytest.raises(InvalidValue, match="begun is a collection that was ended before its first result: run the same"):
        begun.read()


def test_a_path_is_a_path_and_not_a_pattern(tmp_path):
    """Brackets and stars in a name never read someone else's rows."""
    make(tmp_path / "d[1]", rows(times=(1.0, 2.0, 3.0)))
    make(tmp_path / "d1", rows(times=(7.0, 8.0, 9.0)))
    assert Dataset.open(tmp_path / "d[1]").read()["time_ns"].to_list() == [1.0, 2.0, 3.0]


def test_many_rows_are_several_parts(tmp_path, monkeypatch):
    """No part holds more rows than can be read at once; in order, they are the rows that were given."""
    monkeypatch.setattr(dataset, "ROWS_PER_PART", 2)
    made = Dataset.create(tmp_path / "d")
    made.append(TRITON, rows())
    assert [part.rows for part in made.contents.parts] == [2, 1]
    assert Dataset.open(tmp_path / "d").read()["time_ns"].to_list() == rows()["time_ns"].to_list()


def test_two_writers_lose_nothing(tmp_path):
    """An append starts from what is on disk, not from what was there when the dataset was opened."""
    make(tmp_path / "d")
    first, second = Dataset.open(tmp_path / "d"), Dataset.open(tmp_path / "d")
    first.append(TRITON, rows(run_id=["s0", "s1", "s2"]))
    second.append(TRITON, rows(run_id=["t0", "t1", "t2"]))
    opened = Dataset.open(tmp_path / "d")
    opened.verify()
    assert opened.read()["run_id"].n_unique() == 9


@pytest.mark.parametrize(
    ("column", "values", "why"),
    [
        ("time_ns", pl.Series([1, 2, 3], dtype=pl.Duration("us")), "time_ns must be a number"),
        ("time_ns", pl.Series([True, True, True]), "time_ns must be a number"),
        ("problem.M", pl.Series([1, 2, 3], dtype=pl.Date), "problem.M must be a whole number"),
        ("device", pl.Series(["", "a100", "a100"]), "device must name a device"),
        ("status", pl.Series(["timeout", "ok", "ok"]), "time_ns must be empty when status is not ok"),
    ],
)
def test_values_of_another_kind_are_refused_not_reinterpreted(tmp_path, column, values, why):
    """A duration is not a number of nanoseconds, a date no size, true no time."""
    with pytest.raises(InvalidValue, match=why):
        make(tmp_path / "d", rows().with_columns(values.alias(column)))
