"""The `aiconfigurator` importer: GEMM tables as parquet, and the wheel that holds them."""

import datetime
import io
import os
import zipfile

import polars as pl
import pytest

import kerncast
from kerncast.core.op import Problem
from kerncast.data.formats import ImportOptions
from kerncast.data.importing import import_files
from kerncast.errors import InvalidValue, KerncastError
from kerncast.library import devices
from kerncast.library.declared.family_file import family_named
from kerncast.library.registry import OPS
from kerncast.testing.importers import ImporterContract

COLUMNS = ["framework", "version", "device", "op_name", "kernel_source", "gemm_dtype", "m", "n", "k", "latency"]
LINEAR, CUTLASS = "torch.nn.functional.linear", "CutlassFp8BlockScaledMMKernel"
H200 = [
    ("VLLM", "0.24.0", "NVIDIA H200", "gemm", LINEAR, "bfloat16", 81, 3584, 8192, 0.05),
    ("VLLM", "0.24.0", "NVIDIA H200", "gemm", LINEAR, "bfloat16", 81, 3584, 8192, 0.06),
    ("VLLM", "0.24.0", "NVIDIA H200", "gemm", CUTLASS, "fp8_block", 81, 3584, 8192, 0.03),
    ("VLLM", "0.24.0", "NVIDIA H200", "gemm", "DeepGemmFp8BlockScaledMMKernel", "fp8_block", 81, 3584, 8192, 0.02),
]
GB200 = [
    ("SGLang", "0.5.14", "NVIDIA GB200", "gemm", "sglang_torch_linear", "bfloat16", 1, 128, 64, 0.0017),
    ("SGLang", "0.5.14", "NVIDIA GB200", "gemm", "sglang", "int8_wo", 1, 128, 64, 0.002),
    ("SGLang", "0.5.14", "NVIDIA GB200", "gemm", "sglang", "sq", 1, 128, 64, 0.003),
]


def parquet(rows, **changes):
    buffer = io.BytesIO()
    table = pl.DataFrame(rows, schema=COLUMNS, orient="row").with_columns(**changes)
    table.write_parquet(buffer)
    return buffer.getvalue()


def wheel(**members):
    buffer = io.BytesIO()
    with zipfile.ZipFile(buffer, "w", zipfile.ZIP_DEFLATED) as archive:
        archive.writestr("aiconfigurator_core/__init__.py", "")
        for system, content in members.items():
            archive.writestr(f"aiconfigurator_core/systems/data/{system}/gemm/vllm/1/gemm_perf.parquet", content)
    return buffer.getvalue()


class TestTable(ImporterContract):
    format_name, sample, options = "aiconfigurator", parquet(H200), ImportOptions()


class TestWheel(ImporterContract):
    format_name, sample, options = "aiconfigurator", wheel(gb200=parquet(GB200), h200=parquet(H200)), ImportOptions()


def imported(folder, content, options=None, strict=False):
    source = folder / "gemm_perf.parquet"
    source.write_bytes(content)
    out = folder / f"out{len(list(folder.iterdir()))}"
    return import_files("aiconfigurator", [source], out, options or ImportOptions(), strict=strict)


def test_the_code_path_is_the_config_and_rows_that_come_again_are_repeats(tmp_path):
    """One problem, two code paths: two keys. Milliseconds become nanoseconds, framework and version the software."""
    rows = imported(tmp_path, parquet(H200), ImportOptions(software={"driver": "1"})).read("gemm/library")
    assert rows["config.kernel_source"].to_list() == [row[4] for row in H200]
    assert rows["key"].n_unique() == 3
    assert rows["key"][0] == rows["key"][1]
    assert rows["time_ns"].to_list() == pytest.approx([50e3, 60e3, 30e3, 20e3])
    assert rows["device"].unique().to_list() == ["h200"]
    assert rows["software"].unique().to_list() == ['{"driver":"1","framework":"VLLM","version":"0.24.0"}']
    assert rows.select("problem.M", "problem.N", "problem.K", "problem.layout", "problem.dtype").row(2) == (
        81, 3584, 8192, "rcr", "fp8_block",
    )  # fmt: skip


def test_weight_only_products_are_products_of_two_types(tmp_path):
    """int8 weights under bf16 activations are no int8 GEMM; SmoothQuant's is one."""
    dataset = imported(tmp_path, parquet(GB200))
    assert dataset.read("mixed_mm/library").select("problem.dtype", "problem.b_dtype").rows() == [("bf16", "int8")]
    assert dataset.read("gemm/library")["problem.dtype"].to_list() == ["bf16", "int8"]


def test_device_on_the_command_line_fills_a_gap_and_contradicts_nothing(tmp_path):
    """One name cannot stand for several GPUs, nor for one that the table names itself."""
    rows = imported(tmp_path, parquet(H200, device=pl.lit("NVIDIA X1")), ImportOptions(device="b200")).read()
    assert rows["device"].unique().to_list() == ["b200"]
    for content in (parquet(H200 + GB200), wheel(a=parquet(H200), b=parquet(GB200))):
        with pytest.raises(InvalidValue, match=r"several devices \(NVIDIA GB200, NVIDIA H200\)"):
            imported(tmp_path, content, ImportOptions(device="h200"))
    with pytest.raises(InvalidValue, match="measured on h200, not a100: leave `device` out"):
        imported(tmp_path, parquet(H200), ImportOptions(device="a100"))


@pytest.mark.parametrize(("main", "again", "asked"), [("NVIDIA H200", "h200", "h200"), ("NVIDIA X1", "NVIDIA X1", "b200")])
def test_a_damaged_device_cell_costs_its_row_and_not_the_table(tmp_path, main, again, asked):
    """With `device`, too: rows of another spelling of the same GPU and rows without a device stay."""
    rows = [(*row[:2], cell, *row[3:]) for row, cell in zip(H200, [main, "NVIDI\ufffd H2", again, None], strict=True)]
    dataset = imported(tmp_path, parquet(rows), ImportOptions(device=asked))
    assert dataset.read().sort("source_line").select("source_line", "device").rows() == [(1, asked), (3, asked), (4, asked)]
    (kind,) = dataset.skipped.kinds
    assert (kind.rows, f"the other rows are of {main}" in kind.kind) == (1, True)


def test_a_wheel_gives_all_its_tables_and_numbers_their_rows_through(tmp_path):
    """Other files in it are not looked at."""
    dataset = imported(tmp_path, wheel(b=parquet(H200), a=parquet(GB200)))
    assert dataset.rows == 7
    rows = dataset.read("gemm/library")
    assert dict(rows.group_by("device").len().rows()) == {"gb200": 2, "h200": 4}
    assert rows.filter(pl.col("device") == "h200")["source_line"].to_list() == [4, 5, 6, 7]


def test_one_code_path_without_a_name_here_is_other_and_two_are_refused(tmp_path):
    """Under one name, two kernels would be each other's repeats."""
    new = [(*row[:4], "BrandNewKernel", *row[5:]) for row in H200[:1]]
    rows = imported(tmp_path, parquet(new + H200[2:])).read()
    assert rows.select("config.kernel_source", "backend").row(0) == ("other", "BrandNewKernel")
    assert rows["backend"].null_count() == 2
    newer = [(*row[:4], "EvenNewerKernel", *row[5:]) for row in H200[:1]]
    with pytest.raises(KerncastError, match="line 2: kernel_source is a second unknown one besides BrandNewKernel"):
        imported(tmp_path, parquet(new + newer), strict=True)


def test_library_features_have_the_values_that_pencil_and_paper_give():
    """M=300 N=1000 K=64 in tiles of 128 × 256: 3 × 4 tiles on 132 units, 300 · 1000 of 384 · 1024 used."""
    family, device = family_named("gemm/library"), devices.get("h100")
    problem = Problem(OPS.get("gemm"), M=300, N=1000, K=64, dtype="fp16", layout="rcr")
    values = {**family.problem.qualified(problem.as_dict()), "c.kernel_source": LINEAR}
    got = family.features_on(device, ["fp16"]).program.scalar(values)
    assert (got["tiles_128x256"], got["waves_128x256"]) == (12, 1)
    assert got["wave_fill_128x256"] == got["last_wave_128x256"] == pytest.approx(12 / 132)
    assert got["tile_fill_128x256"] == pytest.approx(300 * 1000 / (384 * 1024))
    assert (got["M_aligned_8"], got["N_aligned_8"], got["K_aligned_64"], got["K_aligned_128"]) == (0, 1, 1, 0)
    assert max(got["compute_ns"], got["memory_ns"]) == pytest.approx(got["roofline_ns"])


@pytest.mark.parametrize(
    ("changes", "why"),
    [
        ({"op_name": pl.lit("moe")}, "line 1: op_name must be gemm, got 'moe'"),
        ({"gemm_dtype": pl.lit("fp5")}, "line 1: gemm_dtype must be one of"),
        ({"latency": pl.lit(0.0)}, "line 1: latency must be a positive number of milliseconds, got '0.0'"),
        ({"m": pl.lit("many")}, "line 1: m must be a whole number, got 'many'"),
        ({"m": pl.lit(b"\xff")}, "line 1: m must be a whole number, got"),
        ({"m": pl.lit(datetime.date(2020, 1, 1))}, "line 1: m must be a whole number, got '2020-01-01'"),
        ({"version": pl.lit(b"\xff")}, "line 1: version must be text, got"),
        ({"m": pl.lit(0)}, "line 1: problem.M must be a whole number from 1"),
        ({"tokens": pl.lit(1)}, "line 1: unknown column 'tokens'"),
        ({"device": pl.lit("NVIDIA X1")}, "line 1: device 'NVIDIA X1' is not known"),
        ({"gemm_dtype": pl.lit(None, dtype=pl.String)}, "line 1: gemm_dtype must not be empty"),
    ],
)
def test_what_is_not_known_is_refused_with_its_line(tmp_path, changes, why):
    """Another op's table, a new dtype, a time that is none."""
    with pytest.raises(KerncastError) as caught:
        imported(tmp_path, parquet(H200, **changes), strict=True)
    assert why in str(caught.value)


def test_numbers_may_be_categories(tmp_path):
    """Writers turn columns of few values into dictionaries; the values are the same."""
    coded = [pl.col(name).cast(pl.String).cast(pl.Categorical) for name in ("m", "latency", "kernel_source")]
    plain = imported(tmp_path, parquet(H200))
    found = imported(tmp_path, parquet(H200, **dict(zip(("m", "latency", "kernel_source"), coded, strict=True))))
    columns = ["problem.M", "config.kernel_source", "time_ns"]
    assert found.read("gemm/library").select(columns).equals(plain.read("gemm/library").select(columns))


def test_a_pipe_is_refused(tmp_path):
    """Nobody may ever write to it, and it cannot be read twice."""
    os.mkfifo(tmp_path / "gemm_perf.parquet")
    with pytest.raises(KerncastError, match=r"gemm_perf\.parquet is a pipe or a device"):
        kerncast.read(tmp_path / "gemm_perf.parquet", out=tmp_path / "out")
    with pytest.raises(KerncastError, match=r"gemm_perf\.parquet is a pipe or a device"):
        import_files("aiconfigurator", [tmp_path / "gemm_perf.parquet"], tmp_path / "out", ImportOptions())
