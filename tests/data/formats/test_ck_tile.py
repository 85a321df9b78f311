"""The `ck-tile` importer: logs, JSON, CSV and parquet of CK Tile's benchmarks, and what is left out of them."""

import io
import json

import polars as pl
import pytest

from kerncast.data.formats import ImportOptions
from kerncast.data.importing import import_files
from kerncast.errors import BadFile, InvalidValue
from kerncast.testing.importers import ImporterContract

GFX950 = ImportOptions(device="gfx950")


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


def as_parquet(rows):
    buffer = io.BytesIO()
    pl.DataFrame(rows).write_parquet(buffer)
    return buffer.getvalue()


class TestLog(ImporterContract):
    format_name, sample, options = "ck-tile", LOG, GFX950


class TestCsv(ImporterContract):
    format_name, sample, options = "ck-tile", CSV, GFX950


class TestParquet(ImporterContract):
    format_name, options = "ck-tile", ImportOptions()
    sample = as_parquet([
        {"op_type": "gemm", "kernel_name": gemm_name(), "m": 64, "n": n, "k": 1024, "latency_ms": 0.0123, "arch": "gfx942"}
        for n in (64, 128, 256)
    ])  # fmt: skip


@pytest.fixture
def read(tmp_path):
    """Rows of each family in the order of the file, and what was noted and skipped."""

    def call(content, options=GFX950, name="sample"):
        source = tmp_path / name
        source.write_bytes(content)
        notes = []
        dataset = import_files("ck-tile", [source], tmp_path / f"out{len(list(tmp_path.iterdir()))}", options, notes.append)
        told = [f"{kind.rows} {kind.kind}: {kind.example}" for kind in dataset.skipped.kinds]
        return {family.id: dataset.read(family).sort("source_line") for family in dataset.families}, [*notes, *told]

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
        *[shape(0, 64, 256, 1024), good] * 10, cut, good, cut, shape(1, 32, 256, 1024), good, block(32, 256, 1024, 0.01, 1.678),
        block(32, 256, 1024, 0.01, 9.0), '{"name": 7}', "{ no json }", block(32, 256, 1024, 0.01, 1.678, "gemm_something"),
        block(32, 256, 1024, 0.01, 1.678, gemm_name(dtype="bf16")), block(32, 256, 0, 0.01, 1.678),
        block(32, 256, 1024, 0.01, 1.678, gemm_name(tile="48x128x64")), cut,
    ]  # fmt: skip
    rows, notes = read("\n".join(log).encode())
    assert rows["gemm/ck_tile"]["problem.M"].to_list() == [64] * 11 + [32]
    told = "\n".join(notes)
    for words in (
        "6 a benchmark block must be a whole JSON object",
        "1 a benchmark block must not contradict the `Shape` line above it",
        "1 latency and rate must give the same time",
        "1 dtype and layout must be those of the kernel's name",
        "2 the kernel's name must be known: line",
        ": a kernel's name must be gemm[_universal]_{dtype}_{layout}",
    ):
        assert words in told


def test_one_benchmark_a_list_of_them_and_a_run_are_read_the_same(read):
    """The JSON of a kernel, of several, and the results file, failures with their reasons."""
    one = block(64, 256, 1024, 0.0123, 2.7282, gemm_name(prefix="gemm"))
    (alone,), _ = (read(one.encode())[0].values(), None)
    (listed,) = read(f"[{one}]".encode())[0].values()
    assert alone["key"].to_list() == listed["key"].to_list()
    assert alone["time_ns"].to_list() == listed["time_ns"].to_list() == pytest.approx([2 * 64 * 256 * 1024 / 2.7282e3])
    entries = [
        {"m": 64, "n": 256, "k": 1024, "avg_time_ms": 0.0123, "tflops": 2.7282, "is_valid": True, "error": ""},
        {"m": 1, "n": 256, "k": 1024, "avg_time_ms": 0, "tflops": 0, "is_valid": False, "error": "Arguments not supported!"},
        {"m": 2, "n": 256, "k": 1024, "is_valid": False, "error": "HIP: out of memory"},
        {"m": 3, "n": 256, "k": 1024, "avg_time_ms": 0.1, "is_valid": False, "error": None},
        {"m": None, "n": 256, "k": 1024},
    ]
    run = {"metadata": {"dtype": "fp16", "layout": "rcr", "arch": "gfx942"}, "problem_sizes": [],
           "results": [{"kernel_config": {"name": gemm_name("mem")}, "benchmarks": entries}]}  # fmt: skip
    rows, notes = read(json.dumps(run).encode(), ImportOptions())
    found = rows["gemm/ck_tile"]
    assert found["status"].to_list() == ["ok", "unsupported", "out_of_memory", "launch_error"]
    assert found["device"].unique().to_list() == ["gfx942"]
    assert found["error"].to_list()[1] == "Arguments not supported!"
    assert any("1 a benchmark must have a kernel's name and sizes" in note for note in notes)
    assert any("gfx942 has several parts (compute units: gfx942 228, mi300x 304, mi325x 304)" in note for note in notes)
    rows, notes = read(json.dumps(run).encode(), ImportOptions(device="MI300X"))
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
    assert forward["time_ns"].to_list() == pytest.approx([10_000.0, 30_000.0])
    assert not notes
    old = pl.DataFrame(CSV_ROWS).drop("Di", "Z", "^.*_d$", "^dilation.*$")
    again, _ = read(old.write_csv().encode())
    assert again["grouped_conv_bwd_data/ck_tile"]["key"].to_list() == backward["key"].to_list()
    (turned,) = read(pl.DataFrame([convolution(dilation_h=2, pad_h=2)]).write_csv().encode())[0].values()
    assert turned["key"][0] != forward["key"][0]


def test_convolution_rows_that_cannot_be_are_left_out_or_failures(read):
    """Dimensions against the name, rates against latencies, kernels that are not known, output of zeros."""
    rows, notes = read(pl.DataFrame([
        convolution(), convolution(non_zero=0, N=4), *[convolution()] * 2, convolution(Di=4, Z=3, pad_d=1),
        convolution(tflops=1.0), convolution("grouped_conv_forward_bf16_2d_64x64x64_compv3_interwave"),
        convolution("grouped_conv_forward_bf16_3d_64x64x64_compv3_intrawave"),
    ]).write_csv().encode())  # fmt: skip
    (found,) = rows.values()
    assert found["status"].to_list() == ["ok", "wrong_result", "ok", "ok"]
    told = "\n".join(notes)
    assert "2 kernel and problem must both be 2-D or both be 3-D" in told
    assert "1 latency and rate must give the same time" in told
    assert "line 8: 'grouped_conv_forward_bf16_2d_64x64x64_compv3_interwave' is not" in told


BAD_CELLS = {
    "a size below its range": ({"N": 0}, "line 3: N must be a whole number"),
    "a negative size": ({"Di": -1}, "line 3: Di must be a whole number"),
    "a size that is not whole": ({"Hi": 28.5}, "line 3: Hi must be a whole number, got '28.5'"),
    "a size that is no number": ({"pad_h": "?"}, "line 3: pad_h must be a whole number, got '?'"),
    "a latency that is no number": ({"latency_ms": "fast"}, "line 3: latency_ms must be a number, got 'fast'"),
    "a latency of ages": ({"latency_ms": 1e15, "tflops": 0}, "line 3: the time must be possible"),
    "channels that do not divide": ({"G": 3}, "line 3: the problem must be possible: C and K must be multiples of G"),
    "a filter that does not fit": ({"Y": 31}, "line 3: the problem must be possible: the dilated filter must fit"),
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
        {**base, "arch": "gfx950", "m": 32},
    ])  # fmt: skip
    rows, notes = read(parquet(tmp_path, table), ImportOptions())
    (found,) = rows.values()
    assert found.select("device", "problem.M", "status").rows() == [
        ("gfx950", 64, "ok"), ("gfx950", 64, "launch_error"), ("gfx950", 32, "ok"),
    ]  # fmt: skip
    assert [note.partition(":")[0] for note in notes[1:]] == [
        "1 m must be a whole number", "1 the kernel's name must be known", "1 tile_m must be a whole number",
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
    rows, notes = read(parquet(tmp_path, table), ImportOptions())
    found = rows["gemm/ck_tile"]
    assert found.select("device", "status").rows() == [("gfx950", "ok"), ("gfx942", "ok"), ("gfx950", "launch_error")]
    assert found["run_id"].to_list() == ["a"] * 3
    assert any("1 columns must not contradict the kernel's name" in note for note in notes)
    conv = pl.DataFrame([{**row, "op_type": "grouped_conv", "arch": "gfx950", "is_valid": True} for row in CSV_ROWS])
    rows, _ = read(parquet(tmp_path, conv.rename({"kernel": "kernel_name"}).drop("problem_idx")), ImportOptions())
    assert sum(frame.height for frame in rows.values()) == 4
    for wrong, words in (
        (table.drop("op_type"), "op_type must be one of gemm_universal"),
        (table.drop("n"), "there is no column 'n'"),
        (
            table.with_columns(m=pl.lit("x")),
            "none of its rows can be used: line 1: m must be a whole number, got 'x' .4 such rows",
        ),
        (table.with_columns(arch=pl.lit("gfx1")), "arch 'gfx1' is not known here: add `device` NAME"),
    ):
        with pytest.raises((BadFile, InvalidValue), match=words):
            read(parquet(tmp_path, wrong), ImportOptions())


@pytest.mark.parametrize(
    ("content", "words"),
    [
        (b'{"a": 1}', "no benchmark in it .line 1: a benchmark block must be a whole"),
        (b"Shape 0: M=1 N=1 K=1 dtype=fp16 layout=rcr\n", "there is no benchmark in it"),
        (
            block(8, 8, 8, 0.1, 0.1, "gemm_x").encode(),
            "none of its rows can be used: line 1: a kernel's name must be gemm",
        ),
        (CSV.replace(b"stride_h", b"step_h"), "line 1: there is no column 'stride_h'"),
        (CSV.replace(b"latency_ms", b"ms").replace(b"tflops", b"rate"), "neither a column 'latency_ms' nor a rate"),
        (
            CSV.replace(b",8,64,", b",8.5,64,"),
            "none of its rows can be used: line 2: N must be a whole number, got '8.5'",
        ),
    ],
)
def test_files_without_anything_to_read_are_refused_with_the_rule(read, content, words):
    """The rule, the value and what was counted."""
    with pytest.raises(BadFile, match=words):
        read(content)
    with pytest.raises(InvalidValue, match="`constants` and `mapping` do not apply"):
        read(LOG, ImportOptions(device="gfx950", values={"func": "exp"}))


def test_latency_and_rate_are_two_readings_of_one_time(read):
    """Every time from 2 µs to 2 ms comes back from what is printed of it; only what no time explains is skipped."""
    flops = 2 * 64 * 256 * 1024
    times = [1000 * 2 ** (step / 8) for step in range(8, 89)]
    blocks = [block(64, 256, 1024, round(time / 1e6, 2), round(flops / time / 1e3, 2)) for time in times]
    rows, notes = read("\n".join(blocks).encode())
    found = rows["gemm/ck_tile"]
    assert not notes
    assert found["time_ns"].to_list() == pytest.approx(times, rel=0.03)
    fast = [time for time in times if 5000 < time < 6000]
    assert len(fast) >= 2
    assert found["time_ns"].to_list()[times.index(fast[0])] == pytest.approx(fast[0], rel=1e-3)
    # 14.9 µs is the most that 0.01 ms may stand for, and the least is 5.
    blocks += [block(64, 256, 1024, 0.01, round(flops / time / 1e3, 2)) for time in (4800, 15600)]
    rows, (note,) = read("\n".join(blocks).encode())
    assert note.startswith("2 latency and rate must give the same time")
    assert rows["gemm/ck_tile"].height == len(times)
    # A latency with more digits than the rate stands.
    (precise,) = read(block(64, 256, 1024, 0.0164321, 2.04).encode())[0].values()
    assert precise["time_ns"].to_list() == pytest.approx([16_432.1], rel=1e-12)
