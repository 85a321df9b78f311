"""The `tt-sweep` importer: results joined with vectors by hash, wherever either stands."""

import json

import pytest

from kerncast.data.formats import ImportOptions
from kerncast.data.importing import import_files
from kerncast.errors import BadFile, InvalidValue, KerncastError
from kerncast.testing.importers import ImporterContract

WORMHOLE = ImportOptions(device="wormhole_b0")
KERNEL = "DEVICE KERNEL DURATION [ns]"


def reshard(height, width, source="BLOCK", target="WIDTH", **changes):
    return {
        "input_shard_strategy": f"ShardStrategy.{source}", "output_shard_strategy": f"ShardStrategy.{target}",
        "input_shard_orientation": "ShardOrientation.ROW_MAJOR", "output_shard_orientation": "ShardOrientation.ROW_MAJOR",
        "dtype": "DataType.BFLOAT16", "input_core_grid": "ttnn.CoreGrid(x=2, y=4)",
        "output_core_grid": "ttnn.CoreGrid(x=8, y=1)", "shape": f"[1, 1, {32 * height}, {32 * width}]",
        "validity": "VectorValidity.VALID", "invalid_reason": "", "sweep_name": "data_movement.reshard.reshard", **changes,
    }  # fmt: skip


def unary(shape, buffer=0, out=0, **changes):
    def memory(number):
        return {"type": "ttnn._ttnn.tensor.MemoryConfig", "data": json.dumps({"buffer_type": number, "memory_layout": 0})}

    return {"input_shape": shape, "input_a_dtype": "DataType.BFLOAT8_B", "input_a_layout": "Layout.TILE",
            "input_a_memory_config": memory(buffer), "output_memory_config": memory(out), **changes}  # fmt: skip


def result(key, status="TestStatus.PASS", time=1000, name="input_hash", **more):
    perf = {KERNEL: time} if time is not None else None
    return {
        name: key,
        "sweep_name": "data_movement.reshard.reshard",
        "status": status,
        "exception": None,
        "device_perf": perf,
        **more,
    }


EXP = "eltwise.unary.exp.exp"
SELF_CONTAINED = [
    result("a", time="4321.5", original_vector_data=reshard(4, 8), git_hash="0123abc", timestamp="2026-01-05_10-00-00"),
    result("b", "fail_l1_out_of_mem", None, exception="no room\nat all", original_vector_data=reshard(8, 8, "HEIGHT", "BLOCK")),
    result("c", sweep_name=EXP, original_vector_data=unary("[32, 64]")),
    result("d", sweep_name=EXP, original_vector_data=unary([2, 1, 32, 64], 1, 0)),
]


class TestResultsWithTheirVectors(ImporterContract):
    format_name, options = "tt-sweep", WORMHOLE
    sample = json.dumps(SELF_CONTAINED, indent=1).encode()


@pytest.fixture
def read(tmp_path):
    """Rows of each family in the order of their files, and what was noted."""

    def call(path, options=WORMHOLE):
        notes = []
        out = tmp_path / f"out{len(list(tmp_path.iterdir()))}"
        dataset = import_files("tt-sweep", [path], out, options, notes.append)
        names = {source.digest: source.name for source in dataset.contents.sources}
        told = [f"{kind.rows} {kind.kind}: {kind.example}" for kind in dataset.skipped.kinds]
        return {family.id: dataset.read(family) for family in dataset.families}, [*notes, *told], names

    return call


@pytest.fixture
def write(tmp_path):
    def call(name, content):
        path = tmp_path / name
        path.parent.mkdir(parents=True, exist_ok=True)
        path.write_text(json.dumps(content, indent=2))
        return path

    return call


def test_a_result_that_brings_its_vector_is_a_row(read, write):
    """Both families, TTNN's words in ours, ranks aligned, the commit as software, the status of a failure."""
    rows, notes, _ = read(write("results.json", SELF_CONTAINED))
    moved, exp = rows["reshard/single"], rows["eltwise_unary/single"]
    assert moved.select("^problem\\..*$").row(0, named=True) == {
        "problem.height_tiles": 4, "problem.width_tiles": 8, "problem.in_x": 2, "problem.in_y": 4, "problem.out_x": 8,
        "problem.out_y": 1, "problem.in_strategy": "block", "problem.out_strategy": "width",
        "problem.in_orientation": "row_major", "problem.out_orientation": "row_major", "problem.dtype": "bf16",
    }  # fmt: skip
    assert moved.select("status", "time_ns", "error", "started_at", "software").rows() == [
        ("ok", 4321.5, None, "2026-01-05_10-00-00", '{"commit":"0123abc"}'),
        ("out_of_memory", None, "no room at all", None, None),
    ]  # fmt: skip
    names = ("func", "dim0", "dim1", "dim2", "dim3", "dtype", "buffer", "out_buffer")
    assert exp.select(f"problem.{name}" for name in names).rows() == [
        ("exp", 1, 1, 32, 64, "bfp8", "dram", "input"), ("exp", 2, 1, 32, 64, "bfp8", "l1", "dram"),
    ]  # fmt: skip
    assert not notes


def test_a_folder_is_joined_by_hash_whatever_the_order(read, write, tmp_path):
    """Vectors without a result were not run, results without a vector are counted, other files stay out of it."""
    hashes = [f"{number:x}" * 8 for number in range(1, 7)]
    vectors = {key: reshard(4 * place, 8) for place, key in enumerate(hashes, start=1)}
    vectors[hashes[5]] |= {"validity": "VectorValidity.INVALID", "invalid_reason": "Will not fit in L1"}
    write("sweeps/vectors_export/2x4/reshard-2x4-8x1.json", {"2x4-8x1-DataType.BFLOAT16": vectors})
    write("sweeps/vectors_export/2x4/reshard-2x4-8x2.json", {"other": {"x": reshard(1, 1)}})
    # The reverse order, an old name of the hash, a retry that is there twice and one that is a repeat.
    found = [result(hashes[3], time=4000), result(hashes[2], time=3000, name="vector_id"), result(hashes[2], time=3000),
             result(hashes[2], time=3100), result(hashes[0], "TestStatus.FAIL_CRASH_HANG", None), result("f" * 9),
             result(hashes[1], time=0), result(hashes[1], "TestStatus.STRANGE"), "no object"]  # fmt: skip
    write("sweeps/results_export_batch/2x4/reshard-2x4-8x1.json", found)
    rows, notes, names = read(tmp_path / "sweeps")
    table = rows["reshard/single"].with_columns(file=rows["reshard/single"]["source"].replace_strict(names))
    assert table.select("problem.height_tiles", "status", "time_ns").rows() == [
        (16, "ok", 4000.0), (12, "ok", 3000.0), (12, "ok", 3100.0), (4, "timeout", None), (8, "not_run", None),
        (20, "not_run", None), (24, "invalid", None),
    ]  # fmt: skip
    assert table["error"].to_list()[-3:] == [
        f"the test passed, but {KERNEL} must be a positive number below 1e18, got 0",
        "there is no result for this vector", "Will not fit in L1",
    ]  # fmt: skip
    results, unrun = "results_export_batch/2x4/reshard-2x4-8x1.json", "vectors_export/2x4/reshard-2x4-8x1.json"
    assert table["file"].to_list() == [results] * 5 + [unrun] * 2
    lines = (tmp_path / "sweeps" / unrun).read_text().split("\n")
    assert [hashes[4] in lines[table["source_line"][5] - 1], hashes[5] in lines[table["source_line"][6] - 1]] == [True, True]
    told = "\n".join(notes)
    for words in (
        "1 the input_hash of a result must be that of a vector", "1 results that are in the file twice: kept once",
        "2 a result must have an input_hash and a status that is known",
        f"1 results that passed with a {KERNEL} that is no time: kept as not_run",
        "1 vectors files that have no results file: left out",
    ):  # fmt: skip
        assert words in told


def test_the_vectors_are_found_beside_the_results_or_named(read, write, tmp_path):
    """By the name of the file in the folder of vectors, or with --set vectors; without any there is nothing to join."""
    vectors = {"suite": {"a": reshard(4, 8), "b": reshard(8, 8)}}
    results = [result("b", time=7), result("a", time=5)]
    inside = write("s/results_export/m.json", results)
    write("s/vectors_export/m.json", vectors)
    alone, named = write("alone.json", results), write("named.json", vectors)
    tables = [
        read(path, options)[0]["reshard/single"].sort("time_ns").select("problem.height_tiles", "time_ns").rows()
        for path, options in (
            (inside, WORMHOLE), (tmp_path / "s/results_export", WORMHOLE), (tmp_path / "s", WORMHOLE),
            (alone, ImportOptions(device="wormhole_b0", values={"vectors": str(named)})),
        )
    ]  # fmt: skip
    assert tables == [[(4, 5.0), (8, 7.0)]] * 4
    with pytest.raises(
        BadFile, match=r"no result in it belongs to a known vector, line 2: the input_hash of a result .*2 such rows"
    ):
        read(alone)
    with pytest.raises(InvalidValue, match="there is no file nowhere"):
        read(alone, ImportOptions(device="wormhole_b0", values={"vectors": "nowhere"}))
    with pytest.raises(InvalidValue, match="`constants` func does not apply"):
        read(alone, ImportOptions(device="wormhole_b0", values={"func": "exp"}))
    with pytest.raises(BadFile, match="there is no results file in it"):
        read(tmp_path / "s/vectors_export")


@pytest.mark.parametrize(
    ("vector", "words"),
    [
        (reshard(4, 8, shape="[1, 2, 32, 32]"), "a resharded tensor has shape"),
        (reshard(4, 8, shape="[1, 1, 33, 32]"), "a resharded tensor has shape"),
        (reshard(4, 8, shape="__import__('os')"), "a shape is a list of up to four sizes"),
        (reshard(4, 8, "RING"), "ShardStrategy 'ShardStrategy.RING' is not known"),
        (reshard(4, 8, dtype="DataType.FLOAT64"), "dtype 'DataType.FLOAT64' is not known"),
        (reshard(4, 8, input_core_grid="8x8"), "a core grid is CoreGrid"),
        (reshard(4, 8, input_core_grid="CoreGrid(x=9, y=1)"), "in_x must be a whole number from 1 to 8, got 9"),
        (reshard(4, 8, output_core_grid="CoreGrid(x=8, y=0)"), "out_y must be a whole number from 1 to 8, got 0"),
        (reshard(4, 8, output_core_grid="CoreGrid(x=12, y=1)"), "out_x must be a whole number from 1 to 8, got 12"),
        (reshard(0, 8), "height_tiles must be a whole number from 1 to 65535, got 0"),
        (reshard(65536, 8), "height_tiles must be a whole number from 1 to 65535, got 65536"),
        (unary("[0, 32]"), "dim2 must be a whole number from 1 to 2147483647, got 0"),
        (unary("[32, 32]", 7), "buffer '7' is not known"),
        (unary("[32, 32]", input_a_memory_config=None), "a memory config must be an object"),
        ({"input_shape": "[1]"}, "1 vectors of ops that are not known here: left out (eltwise.unary.exp.exp (1))"),
    ],
)
def test_vectors_that_are_not_known_are_left_out_and_told(read, write, vector, words):
    """A vector is read strictly and evaluated by nobody; the others of its file are kept."""
    good = result("a", original_vector_data=reshard(4, 8))
    rows, notes, _ = read(write("r.json", [good, result("b", sweep_name=EXP, original_vector_data=vector)]))
    assert rows["reshard/single"].height == 1
    (note,) = notes
    assert words in note


def test_other_spellings_of_a_vector_are_the_same_problem(read, write):
    """Enumerations with and without `ttnn.`, grids as objects, memory configs unfolded, names for numbers."""
    grid = {"type": "ttnn.CoreGrid", "data": {"x": 2, "y": 4}}
    turned = reshard(4, 8, input_core_grid="CoreGrid(y=4, x=2)", dtype="ttnn.DataType.BFLOAT16")
    folded = reshard(4, 8, input_core_grid=grid, shape=[1, 1, 128, 256])
    memory = {"buffer_type": "BufferType.L1", "memory_layout": "TensorMemoryLayout.INTERLEAVED"}
    plain = unary("[32, 64]", 1, 1)
    unfolded = {**plain, "input_a_memory_config": memory, "output_memory_config": {"type": "…", "data": memory}}
    rows, _, _ = read(write("r.json", [
        *(result(str(n), original_vector_data=vector) for n, vector in enumerate((reshard(4, 8), turned, folded))),
        *(result(str(n), sweep_name=EXP, original_vector_data=vector) for n, vector in enumerate((plain, unfolded), start=5)),
    ]))  # fmt: skip
    assert rows["reshard/single"]["key"].n_unique() == 1
    assert rows["eltwise_unary/single"]["key"].n_unique() == 1
    assert rows["eltwise_unary/single"].height == 2


def test_a_damaged_file_of_a_folder_is_named(read, write, tmp_path):
    """The results file or the vectors file that is broken, and nothing is written."""
    write("s/results_export/m.json", [result("a", original_vector_data=reshard(4, 8))])
    broken = write("s/vectors_export/m.json", {"suite": {"a": []}})
    with pytest.raises(KerncastError, match=f"{broken.name} is not a vectors file"):
        read(tmp_path / "s")
    broken.unlink()
    (tmp_path / "s/results_export/n.json").write_text('[{"a": 1},\n')
    with pytest.raises(BadFile, match=r"results_export/n\.json, line 2: a result must be whole JSON"):
        read(tmp_path / "s")


def test_a_byte_order_mark_is_no_fault(read, write, tmp_path):
    """Results and vectors that a Windows editor has saved."""
    paths = write("s/results_export/m.json", [result("a")]), write("s/vectors_export/m.json", {"suite": {"a": reshard(4, 8)}})
    for path in paths:
        path.write_bytes(b"\xef\xbb\xbf" + path.read_bytes())
    rows, notes, _ = read(tmp_path / "s")
    assert (rows["reshard/single"].height, notes) == (1, [])


@pytest.mark.parametrize(
    ("value", "words"), [("9" * 5000, "a number with too many digits"), ("[" * 5000 + "]" * 5000, "nested too deeply")]
)
def test_json_beyond_what_can_be_read_is_refused_with_its_line(tmp_path, write, read, value, words):
    """Endless numbers and endless nesting, in results and in vectors: a sentence, no traceback."""
    both = write("both.json", [result("a", original_vector_data=reshard(4, 8)), {"x": "@"}])
    both.write_text(both.read_text().replace('"@"', value))
    rows, (note,), _ = read(both)
    assert (rows["reshard/single"].height, note.startswith("1 a result must be whole JSON")) == (1, True)
    path = write("r.json", [{"x": "@"}])
    path.write_text(path.read_text().replace('"@"', value))
    with pytest.raises(BadFile, match=rf"r\.json, line \d+: this is not a JSON list of results, or damaged \({words}\)"):
        read(path)
    vectors = write("v.json", {"suite": {"a": {"x": "@"}}})
    vectors.write_text(vectors.read_text().replace('"@"', value))
    with pytest.raises(BadFile, match=r"v\.json is not a vectors file"):
        read(write("ok.json", [result("a")]), ImportOptions(device="wormhole_b0", values={"vectors": str(vectors)}))


def test_the_spread_of_several_runs_is_kept_as_noise(read, write):
    """Runners that time a vector ten times write the mean, `…[ns]_std` and `runs`; older ones write the mean alone."""
    entries = [
        result("a", original_vector_data=reshard(4, 8), device_perf={KERNEL: 1000, f"{KERNEL}_std": 12.5, "runs": 10}),
        result("b", original_vector_data=reshard(8, 8), device_perf={KERNEL: "900", f"{KERNEL}_std": "0", "runs": "10"}),
        result("c", original_vector_data=reshard(4, 4), device_perf={KERNEL: 800, f"{KERNEL}_std": -1}, runs=True),
        result("d", original_vector_data=reshard(4, 2)),
    ]
    rows, notes, _ = read(write("r.json", entries))
    assert not notes
    assert rows["reshard/single"].select("time_ns", "time_ns_mean", "time_ns_std", "samples").rows() == [
        (1000.0, 1000.0, 12.5, 10), (900.0, 900.0, 0.0, 10), (800.0, None, None, None), (1000.0, None, None, None),
    ]  # fmt: skip


def test_a_damaged_result_or_file_costs_itself(read, write, tmp_path):
    """Reading goes on at the next result; a file of a folder that is no list is skipped, others are read."""
    path = write("r.json", SELF_CONTAINED)
    text = path.read_text()
    for damaged, lost in ((text.replace('"4321.5"', '"4321.5'), 1), (text[: text.rindex("device_perf")], 1), (text + "]", 0)):
        path.write_text(damaged)
        rows, notes, _ = read(path)
        assert sum(frame.height for frame in rows.values()) == 4 - lost
        assert [note.startswith("1 a result must be whole JSON") for note in notes] == [True] * lost
    write("s/results_export/good.json", SELF_CONTAINED)
    (tmp_path / "s/results_export/bad.json").write_text("oops")
    rows, (note,), _ = read(tmp_path / "s")
    assert sum(frame.height for frame in rows.values()) == 4
    assert "1 a file of the sweep must be readable" in note
