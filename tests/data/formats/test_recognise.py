"""Every format that can be recognised is read without its name."""

import io
import json
import zipfile

import polars as pl
import pytest

import kerncast
from kerncast.errors import InvalidValue

KERNEL = "DEVICE KERNEL DURATION [ns]"
GEMM = pl.DataFrame({
    "framework": ["VLLM"] * 2, "version": ["1"] * 2, "device": ["NVIDIA H200"] * 2, "op_name": ["gemm"] * 2,
    "kernel_source": ["torch.nn.functional.linear"] * 2, "gemm_dtype": ["bfloat16"] * 2, "m": [1, 2], "n": [64, 64],
    "k": [64, 64], "latency": [0.01, 0.02],
})  # fmt: skip
UNARY = {
    "input_shape": "[32, 64]", "input_a_dtype": "DataType.BFLOAT16", "input_a_layout": "Layout.TILE",
    "input_a_memory_config": {"buffer_type": 0, "memory_layout": 0},
}  # fmt: skip
RESULT = {"input_hash": "a", "sweep_name": "eltwise.unary.exp.exp", "status": "TestStatus.PASS", "device_perf": {KERNEL: 900}}


def perf(folder, name="gemm_perf.parquet"):
    folder.mkdir(parents=True, exist_ok=True)
    GEMM.write_parquet(folder / name)
    return folder / name


def test_aiconfigurator_is_recognised_as_a_table_a_wheel_and_a_folder(tmp_path):
    """By its columns or by the names in it; what it leaves of the other tables is said."""
    alone = perf(tmp_path / "alone", "t.parquet")
    deep = tmp_path / "systems"
    perf(deep / "h200_sxm/gemm/vllm/1")
    perf(deep / "h200_sxm/dsa/vllm/1", "dsa_perf.parquet")
    perf(deep / "h200_sxm/dsa/vllm/2", "dsa_perf.parquet")
    buffer = io.BytesIO()
    with zipfile.ZipFile(buffer, "w") as archive:
        for file in sorted(deep.rglob("*.parquet")):
            archive.write(file, file.relative_to(tmp_path).as_posix())
    (tmp_path / "core.whl").write_bytes(buffer.getvalue())
    read = {path.name: kerncast.read(path) for path in (alone, deep, tmp_path / "core.whl")}
    assert {name: dataset.rows for name, dataset in read.items()} == dict.fromkeys(read, 2)
    left = "read 1 of 3 tables; left out 4 rows of kinds that have no op here: dsa (4 rows in 2 files)"
    assert [any(left in note for note in dataset.notes) for dataset in read.values()] == [False, True, True]
    assert read["systems"].contents.sources[0].name == "h200_sxm/gemm/vllm/1/gemm_perf.parquet"
    (tmp_path / "other").mkdir()
    perf(tmp_path / "other", "dsa_perf.parquet")
    with pytest.raises(InvalidValue, match="is not recognised: name its `file_format`"):
        kerncast.read(tmp_path / "other")


def test_tt_sweep_is_recognised_as_a_results_file_and_as_a_folder(tmp_path):
    """Results with their vectors in them, and the folders that a runner writes."""
    results = tmp_path / "sweeps/results_export/unary/exp.json"
    vectors = tmp_path / "sweeps/vectors_export/unary/exp.json"
    for path, content in (
        (tmp_path / "one.json", [{**RESULT, "original_vector_data": UNARY}]),
        (results, [RESULT]),
        (vectors, {"suite": {"a": {**UNARY, "sweep_name": RESULT["sweep_name"]}}}),
    ):
        path.parent.mkdir(parents=True, exist_ok=True)
        path.write_text(json.dumps(content))
    for path in (tmp_path / "one.json", tmp_path / "sweeps", tmp_path / "sweeps/results_export", results):
        assert kerncast.read(path, device="wormhole_b0").read()["time_ns"].to_list() == [900.0]


def test_an_empty_table_is_refused_in_words_with_and_without_a_device(tmp_path):
    """No row says on which device; there is nothing to import."""
    GEMM.clear().write_parquet(tmp_path / "t.parquet")
    for device in (None, "h200"):
        with pytest.raises(kerncast.KerncastError, match="holds no rows: there is nothing to import"):
            kerncast.read(tmp_path / "t.parquet", device=device)
