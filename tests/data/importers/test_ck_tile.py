"""The `ck-tile` importer: logs, JSON, CSV and parquet of CK Tile's benchmarks, and what is left out of them."""

import json

import polars as pl
import pytest

from kerncast.data.importers import Options, import_files
from kerncast.errors import BadFile, InvalidValue
from kerncast.testing.importers import ImporterContract

GFX950 = Options(device="gfx950")


def gemm_name(
    pipeline="compv3", pads="False_False_False", tile="128x128x64", dtype="fp16", layout="rcr", prefix="gemm_universal"
):
    return f"{prefix}_{dtype}_{layout}_{pipeline}_cshuffle_intrawave_{pads}_False_{tile}_2x2x1_32x32x16"


def block(m, n, k, latency, tflops, name=None, **problem):
    name = name or gemm_name()
    problem = {"split_k": 1, "m": m, "n": n, "k": k, "dtype_a": "fp16", "layout_a": "RowMajor", "layout_b": "ColumnMajor",
               "layout_c": "RowMajor", **problem}  # fmt: skip
    measured = {"latency(ms)": latency, "tflops(TFlops)": tflops, "bandwidth(GB/s)": 10.0}
    return json.dumps({"name": name, "problem": problem, "perf_result": measured}, indent=1)


def shape(number, m, n, k, words=" dtype=fp16 layout=rcr"):
    return f"Shape {number}: M={m} N={n} K={k}{words}"


# 2·64·256·1024 FLOP at 2.00 TFLOPS are 16,777 ns, of which 0.02 ms is left in the latency.
LOG = "\n".join([
    "[2026-01-05] building", shape(0, 64, 256, 1024), block(64, 256, 1024, 0.02, 2.0),
    "  noise { of the build", block(64, 256, 1024, 0.0123456, 2.72, gemm_name("mem")), "",
    shape(1, 4096, 4096, 4096), block(4096, 4096, 4096, 1.37, 100.32), block(4096, 4096, 4096, 0.0, 0.0, gemm_name("compv4")),
    "",
]).encode()  # fmt: skip


def convolution(kernel="grouped_conv_forward_bf16_2d_64x64x64_compv3_intrawave", latency=0.01, tflops=None, **sizes):
    cells = {"N": 8, "C": 64, "K": 128, "G": 1, "Di": 1, "Hi": 28, "Wi": 28, "Z": 1, "Y": 3, "X": 3, "stride_d": 1,
             "stride_h": 1, "stride_w": 1, "pad_d": 0, "pad_h": 1, "pad_w": 1, "dilation_d": 1, "dilation_h": 1,
             "dilation_w": 1}  # fmt: skip
    non_zero = sizes.pop("non_zero", 5)
    cells |= sizes
    flops = 2 * cells["N"] * cells["K"] * 28 * 28 * cells["C"] / cells["G"] * 9
    rate = flops / latency / 1e9 if tflops is None else tflops
    return {"kernel": kernel, "problem_idx": 0, **cells, "latency_ms": latency, "tflops": rate, "non_zero": non_zero}


CSV_ROWS = (
    convolution(),
    convolution("grouped_conv_bwd_data_bf16_2d_16x64x128_mem_interwave_dsb_si", 0.02, G=2),
    convolution("grouped_conv_bwd_data_bf16_2d_16x64x128_mem_interwave_dsb", 0.025, G=2),
    convolution("grouped_conv_forward_bf16_2d_64x64x64_compv4", 0.03),
)
CSV = pl.DataFrame(CSV_ROWS).write_csv().encode()


class TestLog(ImporterContract):
    format_name, sample, options = "ck-tile", LOG, GFX950


class TestCsv(ImporterContract):
    format_name, sample, options = "ck-tile", CSV, GFX950


@pytest.fixture
def read(tmp_path):
    """Rows of each family in the order of the file, and what was noted."""

    def call(content, options=GFX950, name="sample"):
        source = tmp_path / name
        source.write_bytes(content)
        notes = []
        dataset = import_files("ck-tile", [source], tmp_path / f"out{len(list(tmp_path.iterdir()))}", options, notes.append)
        return {family.id: dataset.read(family).sort("source_line") for family in dataset.families}, notes

    return call


def test_a_log_gives_a_row_per_block_with_the_time_from_what_tells_it_best(read):
    """Two decimals of a millisecond give way to the rate; a latency with more digits is taken; zeros are failures."""
    rows, notes = read(LOG)
    found = rows["gemm/ck_tile"]
    assert found["problem.M"].to_list() == [64, 64, 4096, 4096]
    assert found["time_ns"].to_list()[:3] == pytest.approx([2 * 64 * 256 * 1024 / 2e3, 12_345.6, 2 * 4096**3 / 100.32e3])
    assert found["status"].to_list() == ["ok", "ok", "ok", "launch_error"]
    assert found["config.pipeline"].to_list() == ["compv3", "mem", "compv3", "compv4"]
    # A mem kernel pads, whatever its name says.
    assert found["config.pad_k"].to_list() == [False, True, False, False]
    assert [LOG.decode().split("\n")[line - 1] for line in found["source_line"]] == ["{"] * 4
    (note,) = notes
    assert "set the pad flags of 1 rows of mem kernels" in note


def test_malformed_blocks_are_counted_and_cost_nothing_else(read):
    """A block cut short by the next block or shape, garbage, a missing key, a contradiction, an unknown name: not fatal."""
    good = block(64, 256, 1024, 0.0123, 2.7282)
    cut = "\n".join(good.split("\n")[:-3])
    log = [
        shape(0, 64, 256, 1024), good, cut, good, cut, shape(1, 32, 256, 1024), good, block(32, 256, 1024, 0.01, 1.678),
        block(32, 256, 1024, 0.01, 9.0), '{"name": 7}', "{ no json }", block(32, 256, 1024, 0.01, 1.678, "gemm_something"),
        block(32, 256, 1024, 0.01, 1.678, gemm_name(dtype="bf16")), block(32, 256, 0, 0.01, 1.678),
        block(32, 256, 1024, 0.01, 1.678, gemm_name(tile="48x128x64")), cut,
    ]  # fmt: skip
    rows, notes = read("\n".join(log).encode())
    assert rows["gemm/ck_tile"]["problem.M"].to_list() == [64, 64, 32]
    told = "\n".join(notes)
    for words in (
        "left out 6 benchmark blocks that are not whole JSON objects",
        "left out 1 benchmark blocks that contradict the `Shape` line above them",
        "left out 1 rows whose latency and rate give different times",
        "left out 1 rows whose dtype or layout is not that of the kernel's name",
        "left out 2 rows whose kernel is not known (a kernel's name must be gemm[_universal]_{dtype}",
    ):
        assert words in told
    assert all(str(note).count("sample: ") == 1 for note in notes)


def test_one_benchmark_a_list_of_them_and_a_run_are_read_the_same(read):
    """The JSON of a kernel, of several, and the results file, failures with their reasons."""
    one = block(64, 256, 1024, 0.0123, 2.7282, gemm_name(prefix="gemm"))
    (alone,), _ = (read(one.encode())[0].values(), None)
    (listed,) = read(f"[{one}]".encode())[0].values()
    assert alone["key"].to_list() == listed["key"].to_list()
    assert alone["time_ns"].to_list() == listed["time_ns"].to_list() == [12_300.0]
    entries = [
        {"m": 64, "n": 256, "k": 1024, "avg_time_ms": 0.0123, "tflops": 2.7282, "is_valid": True, "error": ""},
        {"m": 1, "n": 256, "k": 1024, "avg_time_ms": 0, "tflops": 0, "is_valid": False, "error": "Arguments not supported!"},
        {"m": 2, "n": 256, "k": 1024, "is_valid": False, "error": "HIP: out of memory"},
        {"m": 3, "n": 256, "k": 1024, "avg_time_ms": 0.1, "is_valid": False, "error": None},
        {"m": None, "n": 256, "k": 1024},
    ]
    run = {"metadata": {"dtype": "fp16", "layout": "rcr", "arch": "gfx942"}, "problem_sizes": [],
           "results": [{"kernel_config": {"name": gemm_name("mem")}, "benchmarks": entries}]}  # fmt: skip
    rows, notes = read(json.dumps(run).encode(), Options())
    found = rows["gemm/ck_tile"]
    assert found["status"].to_list() == ["ok", "unsupported", "out_of_memory", "launch_error"]
    assert found["device"].unique().to_list() == ["gfx942"]
    assert found["error"].to_list()[1] == "Arguments not supported!"
    assert any("left out 1 benchmarks without a kernel's name or sizes" in note for note in notes)
    assert any("gfx942 has several parts (compute units: gfx942 228, mi300x 304, mi325x 304)" in note for note in notes)
    rows, notes = read(json.dumps(run).encode(), Options(device="MI300X"))
    assert rows["gemm/ck_tile"]["device"].unique().to_list() == ["mi300x"]
    assert not any("several parts" in note for note in notes)
    with pytest.raises(InvalidValue, match="measured on gfx942, not gfx950: name one of its parts"):
        read(json.dumps(run).encode())


def test_convolution_tables_are_split_by_direction_and_keep_stride_pad_and_dilation(read):
    """Config from the name, the whole problem in the key, older tables and names included."""
    rows, notes = read(CSV)
    assert {family: frame.height for family, frame in rows.items()} == {
        "grouped_conv_forward/ck_tile": 2, "grouped_conv_bwd_data/ck_tile": 2,
    }  # fmt: skip
    forward, backward = rows["grouped_conv_forward/ck_tile"], rows["grouped_conv_bwd_data/ck_tile"]
    assert backward["config.split_image"].to_list() == [True, False]
    assert backward["config.gemm_k_per_block"].to_list() == [128, 128]
    assert forward["config.double_smem_buffer"].to_list() == [False, True]
    assert forward["time_ns"].to_list() == [10_000.0, 30_000.0]
    assert not notes
    old = pl.DataFrame(CSV_ROWS).drop("Di", "Z", "^.*_d$", "^dilation.*$")
    again, _ = read(old.write_csv().encode())
    assert again["grouped_conv_bwd_data/ck_tile"]["key"].to_list() == backward["key"].to_list()
    (turned,) = read(pl.DataFrame([convolution(dilation_h=2, pad_h=2)]).write_csv().encode())[0].values()
    assert turned["key"][0] != forward["key"][0]


def test_convolution_rows_that_cannot_be_are_left_out_or_failures(read):
    """Dimensions against the name, rates against latencies, kernels that are not known, output of zeros."""
    rows, notes = read(pl.DataFrame([
        convolution(), convolution(non_zero=0, N=4), convolution(Di=4, Z=3, pad_d=1),
        convolution(tflops=1.0), convolution("grouped_conv_forward_bf16_2d_64x64x64_compv3_interwave"),
        convolution("grouped_conv_forward_bf16_3d_64x64x64_compv3_intrawave"),
    ]).write_csv().encode())  # fmt: skip
    (found,) = rows.values()
    assert found["status"].to_list() == ["ok", "wrong_result"]
    told = "\n".join(notes)
    assert "left out 2 rows of a 2-D kernel on a 3-D problem" in told
    assert "left out 1 rows whose latency and rate give different times" in told
    assert "left out 1 rows whose kernel is not known ('grouped_conv_forward_bf16_2d_64x64x64_compv3_interwave' is not" in told


BAD_CELLS = {
    "a size below its range": ({"N": 0}, "left out 1 rows with a size out of range (first: line 3: N must be a whole number"),
    "a negative size": ({"Di": -1}, "left out 1 rows with a size out of range (first: line 3: Di must be a whole number"),
    "a size that is not whole": ({"Hi": 28.5}, "left out 1 rows with a cell that cannot be read (first: line 3: Hi must be"),
    "a size that is no number": ({"pad_h": "?"}, "(first: line 3: pad_h must be a whole number, got '?')"),
    "a latency that is no number": ({"latency_ms": "fast"}, "(first: line 3: latency_ms must be a number, got 'fast')"),
    "a latency of ages": ({"latency_ms": 1e15, "tflops": 0}, "left out 1 rows with an impossible time"),
    "channels that do not divide": ({"G": 3}, "left out 1 rows with an impossible problem (C and K must be multiples of G)"),
    "a filter that does not fit": ({"Y": 31}, "left out 1 rows with an impossible problem (the dilated filter must fit"),
    "a name without end": ({"kernel": f"grouped_conv_forward_bf16_2d_{9:05000}x64x64_compv3"}, "at most 400 characters"),
}  # fmt: skip


@pytest.mark.parametrize("bad", BAD_CELLS)
def test_a_bad_row_of_a_table_costs_itself_and_is_told_with_its_reason(read, tmp_path, bad):
    """Whatever is wrong with one row of a CSV or of the parquet, the other one comes in."""
    change, words = BAD_CELLS[bad]
    texts = [{name: str(value) for name, value in row.items()} for row in (convolution(), {**convolution(), **change})]
    table = pl.DataFrame(texts)
    canonical = table.rename({"kernel": "kernel_name"}).with_columns(op_type=pl.lit("grouped_conv"))
    for content, told in (
        (table.write_csv().encode(), words),
        (parquet(tmp_path, canonical), words.replace("line 3", "line 2")),
    ):
        (found,), (note,) = (part.values() if isinstance(part, dict) else part for part in read(content))
        assert found["status"].to_list() == ["ok"]
        assert told in note


def test_an_output_that_was_not_counted_is_not_zero(read):
    """An empty `non_zero` says nothing about the row."""
    table = pl.DataFrame([convolution(), convolution(N=4, non_zero=None)])
    (found,), notes = (part.values() if isinstance(part, dict) else part for part in read(table.write_csv().encode()))
    assert found["status"].to_list() == ["ok", "ok"]
    assert not notes


@pytest.mark.parametrize("nothing", ["nan", "inf", "", "0"])
def test_without_a_latency_the_rate_tells_the_time_and_without_either_it_failed(read, nothing):
    """NaN, infinity, an empty cell and 0 are no latency: the row is kept, as a failure where the rate says nothing too."""
    rows = [{**convolution(), "latency_ms": nothing}, {**convolution(N=4), "latency_ms": nothing, "tflops": nothing}]
    texts = [{name: str(value) for name, value in row.items()} for row in rows]
    (found,), notes = (
        part.values() if isinstance(part, dict) else part for part in read(pl.DataFrame(texts).write_csv().encode())
    )
    assert found["status"].to_list() == ["ok", "launch_error"]
    assert found["time_ns"][0] == pytest.approx(10_000)
    assert not notes


def test_an_architecture_without_a_usable_row_does_not_cost_the_others(read, tmp_path):
    """Rows of one table fail or stand by themselves, whatever they were measured on; sizes may be floats if they are whole."""
    base = {
        "op_type": "gemm",
        "kernel_name": gemm_name(),
        "m": 64.0,
        "n": 256,
        "k": 1024,
        "latency_ms": 0.0123,
        "tile_m": "128",
    }
    table = pl.DataFrame([
        {**base, "arch": "gfx942", "kernel_name": "gemm_x"}, {**base, "arch": "gfx950"}, {**base, "arch": "gfx950", "m": 64.5},
        {**base, "arch": "gfx950", "tile_m": "wide"}, {**base, "arch": "gfx950", "latency_ms": float("inf")},
    ])  # fmt: skip
    rows, notes = read(parquet(tmp_path, table), Options())
    (found,) = rows.values()
    assert found.select("device", "problem.M", "status").rows() == [("gfx950", 64, "ok"), ("gfx950", 64, "launch_error")]
    assert [note.partition(" (")[0].rpartition(": ")[2] for note in notes] == [
        "left out 1 rows whose kernel is not known", "left out 2 rows with a cell that cannot be read",
        "arch gfx950 has several parts",
    ]  # fmt: skip


def parquet(tmp_path, frame):
    frame.write_parquet(tmp_path / "t.parquet")
    return (tmp_path / "t.parquet").read_bytes()


def test_the_canonical_parquet_is_read_by_architecture(read, tmp_path):
    """GEMM and convolution tables; columns that contradict the name cost their row; hardware columns mean nothing here."""
    base = {
        "op_type": "gemm_universal", "dtype": "fp16", "layout": "rcr", "kernel_name": gemm_name(), "m": 64, "n": 256, "k": 1024,
        "split_k": 1, "measured_tflops": 2.7282, "latency_ms": 0.0123, "bandwidth_gb_s": 1.0, "is_valid": True,
        "tile_m": 128, "pipeline": "compv3", "pad_m": False, "persistent": False, "run_id": "a", "hw_num_cus": 256,
    }  # fmt: skip
    table = pl.DataFrame([
        {**base, "arch": "gfx950"}, {**base, "arch": "gfx942"}, {**base, "arch": "gfx950", "tile_m": 64},
        {**base, "arch": "gfx950", "kernel_name": gemm_name("mem"), "pipeline": "mem", "pad_m": True, "is_valid": False},
    ])  # fmt: skip
    rows, notes = read(parquet(tmp_path, table), Options())
    found = rows["gemm/ck_tile"]
    assert found.select("device", "status").rows() == [("gfx950", "ok"), ("gfx942", "ok"), ("gfx950", "launch_error")]
    assert found["run_id"].to_list() == ["a"] * 3
    assert any("left out 1 rows whose columns contradict the kernel's name" in note for note in notes)
    conv = pl.DataFrame([{**row, "op_type": "grouped_conv", "arch": "gfx950", "is_valid": True} for row in CSV_ROWS])
    rows, _ = read(parquet(tmp_path, conv.rename({"kernel": "kernel_name"}).drop("problem_idx")), Options())
    assert sum(frame.height for frame in rows.values()) == 4
    for wrong, words in (
        (table.drop("op_type"), "op_type must be one of gemm_universal"),
        (table.drop("n"), "there is no column 'n'"),
        (
            table.with_columns(m=pl.lit("x")),
            "none of its rows can be used, 4 rows with a cell that cannot be read .first: line 1: m must",
        ),
        (table.with_columns(arch=pl.lit("gfx1")), "arch 'gfx1' is not known here: add `device` NAME"),
    ):
        with pytest.raises((BadFile, InvalidValue), match=words):
            read(parquet(tmp_path, wrong), Options())


@pytest.mark.parametrize(
    ("content", "words"),
    [
        (b'{"a": 1}', "no benchmark in it, 1 benchmark blocks that are not whole"),
        (b"Shape 0: M=1 N=1 K=1 dtype=fp16 layout=rcr\n", "there is no benchmark in it"),
        (
            block(8, 8, 8, 0.1, 0.1, "gemm_x").encode(),
            "none of its rows can be used, 1 rows whose kernel is not known .a kernel's name must be gemm",
        ),
        (CSV.replace(b"non_zero", b"non_null"), "line 1: unknown column 'non_null'"),
        (
            CSV.replace(b",8,64,", b",8.5,64,"),
            "none of its rows can be used, 4 rows with a cell .*line 2: N must be a whole number, got '8.5'",
        ),
    ],
)
def test_files_without_anything_to_read_are_refused_with_the_rule(read, content, words):
    """The rule, the value and what was counted."""
    with pytest.raises(BadFile, match=words):
        read(content)
    with pytest.raises(InvalidValue, match="`set` and `mapping` do not apply"):
        read(LOG, Options(device="gfx950", values={"func": "exp"}))
