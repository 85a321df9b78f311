"""The `aiconfigurator` importer: what the rows of each kind of table mean, and reading a part of many tables."""

import io
import sys
import zipfile

import polars as pl
import pytest

import kerncast
from kerncast.core import software
from kerncast.data.formats import ImportOptions
from kerncast.data.formats.aiconfigurator.kinds import KINDS
from kerncast.data.importing import import_files
from kerncast.errors import BadFile, InvalidValue, KerncastError, NotFound
from kerncast.testing.importers import ImporterContract

H100, B60 = "NVIDIA H100 80GB HBM3", "Intel(R) Graphics [0xe211]"
SHARED = {"framework": "VLLM", "version": "0.24.0", "device": H100}
ATTENTION = {
    "batch_size": 4, "isl": 128, "num_heads": 32, "num_key_value_heads": 8, "head_dim": 128, "window_size": 0, "beam_width": 1,
    "attn_dtype": "bfloat16", "kv_cache_dtype": "fp8", "step": 0,
}  # fmt: skip
HEADS = {"batch": 4, "heads": 32, "kv_heads": 8, "head_dim": 128, "window": 0, "dtype": "bf16", "kv_dtype": "fp8"}
MLA = {
    "mla_dtype": "bfloat16",
    "kv_cache_dtype": "bfloat16",
    "num_heads": 16,
    "batch_size": 2,
    "isl": 1,
    "tp_size": 8,
    "step": 63,
}
STEP = {"phase": "context", "batch_size": 4, "seq_len": 64, "num_tokens": 256, "d_model": 2048, "d_conv": 4, "model_name": "m"}
STATES = {**STEP, "num_k_heads": 16, "head_k_dim": 128, "num_v_heads": 32, "head_v_dim": 64}
PROMPT = {"phase": "context", "batch": 4, "seq_len": 64, "dtype": "bf16"}
# By kind: op name, code path, columns, family, problem.
MEANT = {
    "gemm": ("gemm", "vllm_default", {"gemm_dtype": "fp8", "m": 8, "n": 64, "k": 32}, "gemm/library",
             {"M": 8, "N": 64, "K": 32, "dtype": "fp8", "layout": "rcr"}),
    "context_attention": ("context_attention", "fa3", ATTENTION, "attention_context/library",
                          {**HEADS, "seq_len": 128, "past_len": 0}),
    "generation_attention": ("generation_attention", "fa3", {**ATTENTION, "isl": 1, "step": 127, "window_size": 64},
                             "attention_generation/library", {**HEADS, "context_len": 128, "window": 64}),
    "encoder_attention": ("encoder_attention", "triton",
                          {"batch_size": 2, "isl": 1024, "num_heads": 16, "head_dim": 72, "attn_dtype": "bfloat16"},
                          "attention_encoder/library",
                          {"batch": 2, "seq_len": 1024, "heads": 16, "head_dim": 72, "dtype": "bf16"}),
    "moe": ("moe", "vllm_fused_moe",
            {"moe_dtype": "w4a16_mxfp4", "num_tokens": 7, "hidden_size": 2880, "inter_size": 2880, "topk": 4,
             "num_experts": 128, "moe_tp_size": 2, "moe_ep_size": 4, "distribution": "power_law_1.01"}, "moe/library",
            {"tokens": 7, "hidden": 2880, "inter": 2880, "top_k": 4, "experts": 128, "tp": 2, "ep": 4, "imbalance": 101,
             "dtype": "w4a16_mxfp4"}),
    "context_mla": ("mla_context", "default", {**MLA, "isl": 64, "step": 0}, "mla_context/library",
                    {"batch": 2, "seq_len": 64, "past_len": 0, "heads": 16, "dtype": "bf16", "kv_dtype": "bf16"}),
    "generation_mla": ("mla_generation", "default", MLA, "mla_generation/library",
                       {"batch": 2, "context_len": 64, "heads": 16, "dtype": "bf16", "kv_dtype": "bf16"}),
    "mla_bmm": ("mla_gen_post", "default", {"bmm_dtype": "bfloat16", "num_tokens": 5, "num_heads": 16}, "mla_bmm/library",
                {"tokens": 5, "heads": 16, "stage": "post", "dtype": "bf16"}),
    "nccl": ("alltoall", "NCCL", {"nccl_dtype": "half", "num_gpus": 8, "message_size": 256}, "collective/library",
             {"kind": "all_to_all", "elements": 256, "gpus": 8, "dtype": "fp16"}),
    "oneccl": ("reduce_scatter", "oneCCL", {"nccl_dtype": "int8", "num_gpus": 2, "message_size": 256}, "collective/library",
               {"kind": "reduce_scatter", "elements": 256, "gpus": 2, "dtype": "int8"}),
    "custom_allreduce": ("all_reduce", "vLLM_custom_graph", {"allreduce_dtype": "bfloat16", "num_gpus": 4, "message_size": 512},
                         "collective/library", {"kind": "all_reduce", "elements": 512, "gpus": 4, "dtype": "bf16"}),
    "scale_matrix": ("scale_matrix", "torch_ops", {"m": 3, "k": 64, "quant_dtype": "fp8"}, "quantize/library",
                     {"M": 3, "K": 64, "dtype": "fp8", "part": "scale_matrix"}),
    "computescale": ("compute_scale", "torch_ops", {"m": 3, "k": 64, "quant_dtype": "fp8"}, "quantize/library",
                     {"M": 3, "K": 64, "dtype": "fp8", "part": "compute_scale"}),
    "gdn": ("gdn", "chunk_gated_delta_rule", STATES, "linear_attention/library",
            {**PROMPT, "kind": "gdn", "k_heads": 16, "v_heads": 32, "k_dim": 128, "v_dim": 64, "state_dtype": "fp32"}),
    "kda": ("kda", "fused_recurrent_kda", {**STATES, "phase": "verify"}, "linear_attention/library",
            {**PROMPT, "phase": "verify", "kind": "kda", "k_heads": 16, "v_heads": 32, "k_dim": 128, "v_dim": 64}),
    "mamba2": ("mamba2", "causal_conv1d_fn",
               {**STEP, "d_state": 128, "nheads": 64, "head_dim": 64, "n_groups": 8, "chunk_size": 256}, "causal_conv/library",
               {**PROMPT, "channels": 64 * 64 + 2 * 8 * 128, "width": 4}),
}  # fmt: skip


def table(kind, rows=2, **changes):
    """A table of a kind: `rows` equal rows, whose times are 1 µs, 2 µs …; a change may be a value or a list of them."""
    op, source, columns, _, _ = MEANT[kind]
    cells = {**SHARED, "op_name": op, "kernel_source": source, **columns, **changes}
    frame = pl.DataFrame({name: value if isinstance(value, list) else [value] * rows for name, value in cells.items()})
    return frame.with_columns(latency=pl.int_range(1, rows + 1) * 1e-3)


def content(frame):
    buffer = io.BytesIO()
    frame.write_parquet(buffer)
    return buffer.getvalue()


def placed(folder, system, kind, framework="vllm", version="0.24.0", frame=None):
    file = folder / system / "group" / framework / version / f"{kind}_perf.parquet"
    file.parent.mkdir(parents=True, exist_ok=True)
    (table(kind) if frame is None else frame).write_parquet(file)
    return file


@pytest.mark.parametrize("kind", MEANT)
def test_rows_mean_what_their_kind_says(tmp_path, kind):
    """Milliseconds, heads of the cache, lengths, messages: each column at its parameter, from the table alone."""
    _, source, _, family, problem = MEANT[kind]
    table(kind).write_parquet(tmp_path / "t.parquet")
    dataset = kerncast.read(tmp_path / "t.parquet")
    rows = dataset.read()
    assert [item.id for item in dataset.families] == [family]
    got = rows.select(f"problem.{name}" for name in problem).row(0)
    assert dict(zip(problem, got, strict=True)) == problem
    assert rows["config.kernel_source"].to_list() == [source] * 2
    assert rows["time_ns"].to_list() == pytest.approx([1e3, 2e3])
    assert rows["device"].to_list() == ["h100"] * 2
    name = {"nccl": "NCCL", "oneccl": "oneCCL"}.get(kind, "VLLM")
    assert rows["software"][0] == f'{{"framework":"{name}","version":"0.24.0"}}'


def test_every_kind_is_tried_here():
    """A new kind needs a row above."""
    assert set(MEANT) == set(KINDS)


class TestMoe(ImporterContract):
    format_name, sample, options = "aiconfigurator", content(table("moe", num_tokens=[1, 2])), ImportOptions()


class TestCollective(ImporterContract):
    format_name, sample, options = "aiconfigurator", content(table("nccl", message_size=[256, 512])), ImportOptions()


@pytest.mark.parametrize(
    ("kind", "column", "cell", "why"),
    [
        ("context_attention", "beam_width", 4, "beam_width must be 1, got '4'"),
        ("context_attention", "kv_cache_dtype", "fp5", "kv_cache_dtype must be one of"),
        ("moe", "distribution", "power_law_1.2\n", "distribution must be balanced or power_law_X"),
        ("moe", "distribution", "zipf", "distribution must be balanced or power_law_X"),
        ("moe", "num_experts", 2**62, "problem.experts must be"),
        ("generation_attention", "step", -(2**63), "problem.context_len must be"),
        ("nccl", "op_name", "broadcast", "op_name must be all_reduce or all_gather or reduce_scatter or alltoall"),
        ("mla_bmm", "op_name", None, "op_name must not be empty"),
        ("custom_allreduce", "device", "\x1b[31mX1" * 100_000, "device '\x1b[31mX1"),
        ("gdn", "phase", "context\n", "phase must be context, generation or verify"),
        ("gdn", "kernel_source", None, "kernel_source must not be empty"),
        ("kda", "num_v_heads", 2**62, "num_v_heads must be from 1 to 999,999"),
        ("mamba2", "n_groups", -8, "n_groups must be from 1 to 999,999"),
        ("quantize", "latency", 0.0, "latency must be a positive number of milliseconds, got '0.0'"),
        ("quantize", "latency", float("nan"), "latency must be a positive number of milliseconds"),
    ],
)
def test_one_odd_row_costs_itself_alone(tmp_path, kind, column, cell, why):
    """It is skipped, with its rule and its value; the others stay."""
    kind = "computescale" if kind == "quantize" else kind
    good = table(kind, rows=5)
    odd = pl.Series([*good[column][:3].to_list(), cell, good[column][4]], dtype=good.schema[column], strict=False)
    good.with_columns(odd.alias(column)).write_parquet(tmp_path / "t.parquet")
    dataset = kerncast.read(tmp_path / "t.parquet", file_format="aiconfigurator")
    assert dataset.read()["source_line"].to_list() == [1, 2, 3, 5]
    (found,) = dataset.skipped.kinds
    assert why in found.example
    assert "line 4" in found.example
    assert len(found.example) < 2_000


def test_key_heads_window_and_length_may_be_left_to_their_defaults(tmp_path):
    """0 key heads: as many as query heads. Older tables have no window and no step; that is said."""
    frame = table("context_attention", num_key_value_heads=[0, 4]).drop("window_size", "step")
    frame.write_parquet(tmp_path / "t.parquet")
    dataset = kerncast.read(tmp_path / "t.parquet")
    rows = dataset.read()
    assert rows.select("problem.kv_heads", "problem.window", "problem.past_len").rows() == [(32, 0, 0), (4, 0, 0)]
    assert sum("taken to be 0" in note for note in dataset.notes) == 2


def test_linear_attention_and_its_convolution_are_two_ops(tmp_path):
    """The code path tells them apart, also one without a name here; channels are those of queries, keys and values."""
    paths = ["causal_conv1d_fn", "chunk_gated_delta_rule", "causal_conv1d_update", "\x1b[31mnew' OR 1\n"]
    frame = table("gdn", rows=4, kernel_source=paths, phase=["context", "context", "generation", "generation"])
    frame = frame.with_columns(seq_len=pl.Series([64, 64, 1, 1]), extra=pl.lit("x")).drop("d_conv", "num_tokens")
    frame.write_parquet(tmp_path / "t.parquet")
    dataset = kerncast.read(tmp_path / "t.parquet")
    conv, states = dataset.read("causal_conv/library"), dataset.read("linear_attention/library")
    chosen = ("source_line", "problem.phase", "problem.channels", "problem.width", "config.kernel_source")
    channels = 2 * 16 * 128 + 32 * 64
    assert conv.select(chosen).rows() == [(1, "context", channels, 4, paths[0]), (3, "generation", channels, 4, paths[2])]
    assert states.select("source_line", "config.kernel_source", "backend").rows() == [
        (2, paths[1], None),
        (4, "other", paths[3]),
    ]
    assert any("d_conv" in note and "taken to be 4" in note for note in dataset.notes)
    assert any("d_model, model_name, extra" in note for note in dataset.notes)
    frame.drop("phase").write_parquet(tmp_path / "gdn_perf.parquet")
    with pytest.raises(KerncastError, match="a table of gdn needs the column 'phase'"):
        kerncast.read(tmp_path / "gdn_perf.parquet", file_format="aiconfigurator")


@pytest.mark.parametrize(
    ("framework", "version", "channels"),
    [("TRTLLM", "1.3.0rc20", 2048), ("SGLang", "0.5.10", 2048), ("TRTLLM", "1.4.0", 6144), ("SGLang", None, 6144)],
)
def test_convolutions_that_were_timed_with_the_queries_alone_have_their_channels(tmp_path, framework, version, channels):
    """Two versions of two frameworks; with all channels their kernels would beat the memory by a factor of four."""
    frame = table("gdn", framework=framework, kernel_source="causal_conv1d_fn")
    frame.with_columns(version=pl.lit(version, pl.String)).write_parquet(tmp_path / "t.parquet")
    assert kerncast.read(tmp_path / "t.parquet").read()["problem.channels"].to_list() == [channels] * 2


def test_frameworks_have_one_spelling_and_unknown_names_stay(tmp_path):
    """vLLM and VLLM are one program; one that nobody knows keeps its name, a code path without a name here is `other`."""
    said = ["vLLM", "vllm", "TensorRT-LLM", "Dyn 'amo\"\n"]
    frame = table("custom_allreduce", rows=4, framework=said, kernel_source=["new\nkernel"] * 2 + ["TRTLLM"] * 2, backend="x")
    frame.write_parquet(tmp_path / "t.parquet")
    dataset = kerncast.read(tmp_path / "t.parquet")
    rows = dataset.read()
    told = pl.Series([software.parts(text)["framework"] for text in rows["software"]]).to_list()
    assert told == ["VLLM", "VLLM", "TRTLLM", said[3]]
    assert rows["config.kernel_source"].to_list() == ["other", "other", "TRTLLM", "TRTLLM"]
    assert not any("backend" in note for note in dataset.notes)  # it says nothing that the code path does not


@pytest.fixture
def systems(tmp_path):
    """A folder of tables as the wheel has them: two GPUs, two frameworks, versions, a kind that has no op, an old table."""
    folder = tmp_path / "systems"
    placed(folder, "h100_sxm", "moe", version="0.9.0", frame=table("moe", version="0.9.0"))
    placed(folder, "h100_sxm", "moe", version="0.10.0rc1", frame=table("moe", version="0.10.0rc1", num_tokens=[1, 2]))
    placed(folder, "l40s", "moe", "trtllm", "1.0.0", table("moe", framework="TRTLLM", version="1.0.0", device="NVIDIA L40S"))
    placed(folder, "l40s", "gemm", frame=table("gemm", device="NVIDIA L40S", gemm_dtype=["fp8", "int4_wo"]))
    placed(folder, "h100_sxm", "dsa", frame=pl.DataFrame({"seq_len": [1, 2, 3]}))
    placed(folder, "b60", "oneccl", frame=table("oneccl", device=B60))
    placed(folder, "h100_sxm", "nccl", "nccl", "2.23", table("nccl").drop("device", "framework", "version"))
    return folder


def test_a_folder_of_all_kinds_is_read_with_what_its_names_say(systems):
    """What is left out is named and counted. A table without a GPU and a version has those of its folders."""
    dataset = kerncast.read(systems)
    counts = {family.id: dataset.read(family).height for family in dataset.families}
    assert counts == {"collective/library": 4, "gemm/library": 1, "mixed_mm/library": 1, "moe/library": 6}
    assert any("left out 3 rows of kinds that have no op here: dsa (3 rows in 1 file)" in note for note in dataset.notes)
    rows = dataset.read("collective/library")
    assert set(rows.select("device", "software").rows()) == {
        ("b60", '{"framework":"oneCCL","version":"0.24.0"}'), ("h100", '{"framework":"NCCL","version":"2.23"}'),
    }  # fmt: skip
    names = {source.digest: source.name for source in dataset.contents.sources}
    assert {names[digest] for digest in rows["source"]} == {
        "b60/group/vllm/0.24.0/oneccl_perf.parquet", "h100_sxm/group/nccl/2.23/nccl_perf.parquet",
    }  # fmt: skip
    # One part a family, not one a file.
    assert len(dataset.contents.parts) == 4


def test_tables_of_older_releases_and_files_of_another_kind(tmp_path):
    """Without a folder for the group, the GPU and the version are those of the folders above; a CSV is told the way."""
    file = tmp_path / "systems" / "h100_sxm" / "vllm" / "0.9.0" / "gemm_perf.parquet"
    file.parent.mkdir(parents=True)
    table("gemm").drop("device", "framework", "version").write_parquet(file)
    rows = kerncast.read(tmp_path / "systems").read("gemm/library")
    assert set(rows.select("device", "software").rows()) == {("h100", '{"framework":"VLLM","version":"0.9.0"}')}
    text = tmp_path / "gemm_perf.txt"
    text.write_text(table("gemm").write_csv())
    with pytest.raises(KerncastError, match=r"gemm_perf\.txt, not a parquet file: .* `kerncast import csv`"):
        kerncast.read(text, file_format="aiconfigurator")


def test_a_part_is_read_by_op_device_and_software(systems):
    """Of each device the newest version; a device that lacks the software is named with what it has."""

    def read(**options):
        return kerncast.read(systems, **options)

    assert {family.id for family in read(only="gemm,collective").families} == {"gemm/library", "collective/library"}
    assert read(only="mixed_mm").rows == 1
    assert read(only=["nccl"]).rows == 2
    assert set(read(devices="l40s").read("moe/library")["device"]) == {"l40s"}
    vllm = read(only="moe", software="vllm")
    assert vllm.read()["software"].unique().to_list() == ['{"framework":"VLLM","version":"0.10.0rc1"}']
    assert any("moe: l40s has nothing of the software 'vllm': it has trtllm==1.0.0" in note for note in vllm.notes)
    assert read(only="moe", software="vllm==0.9.0").read()["software"].n_unique() == 1
    # A name and a statement: the rows of a framework, and what else was the same in all of them.
    stated = read(only="moe", software=["trtllm", "driver=570"]).read()["software"].unique().to_list()
    assert stated == ['{"driver":"570","framework":"TRTLLM","version":"1.0.0"}']
    with pytest.raises(
        NotFound, match=r"moe has nothing of the software 'sglang': it has trtllm==1.0.0, vllm==0.10.0rc1, vllm"
    ):
        read(only="moe", software="sglang")
    with pytest.raises(NotFound, match="unknown op or table 'gem': did you mean 'gemm'"):
        read(only="gem")
    with pytest.raises(BadFile, match="there is no table of scale_matrix, computescale"):
        read(only="quantize")
    with pytest.raises(NotFound, match="no row is of a100"):
        read(devices="a100")
    with pytest.raises(InvalidValue, match="`device` is for tables that do not name their GPU"):
        read(device="h100", devices="h100")


def test_a_wheel_with_a_damaged_table_is_refused_by_name(tmp_path, systems):
    """Of a kind that is left out the damage does not matter."""

    def wheel(damaged):
        buffer = io.BytesIO()
        with zipfile.ZipFile(buffer, "w") as archive:
            for file in sorted(systems.rglob("*.parquet")):
                data = file.read_bytes()
                archive.writestr(file.relative_to(systems).as_posix(), data[:-50] if file.name.startswith(damaged) else data)
        (tmp_path / "t.whl").write_bytes(buffer.getvalue())
        return kerncast.read(tmp_path / "t.whl", file_format="aiconfigurator")

    assert wheel("dsa").rows == 12
    with pytest.raises(KerncastError, match=r"t\.whl, l40s/group/vllm/0\.24\.0/gemm_perf\.parquet, the table is not a parquet"):
        wheel("gemm")


def test_installed_tables_are_found_without_importing_their_package(tmp_path, systems, monkeypatch, run):
    """The package may be broken; the command line reads its tables, in parts too."""
    package = tmp_path / "site" / "aiconfigurator_core"
    package.mkdir(parents=True)
    (package / "__init__.py").write_text("raise RuntimeError")
    with monkeypatch.context() as without:
        without.setitem(sys.modules, "aiconfigurator_core", None)  # as if it were not installed
        with pytest.raises(NotFound, match="the package aiconfigurator-core is not installed: `pip install"):
            kerncast.read(file_format="aiconfigurator", installed=True)
    systems.rename(package / "systems")
    monkeypatch.setattr(sys, "path", [str(tmp_path / "site"), *sys.path])
    code, out, err = run(
        "import", "aiconfigurator", "--installed", "--only", "moe", "--software", "vllm", "--out", tmp_path / "out"
    )
    assert code == 0, err
    assert "2 rows (2 of moe/library)" in out
    assert "it has trtllm==1.0.0" in err
    code, _, err = run("import", "csv", "--installed", "--out", tmp_path / "other")
    assert (code, "no package ships files of the format csv" in err) == (2, True)
    code, _, err = run("import", "csv", "t.csv", "--only", "gemm", "--out", tmp_path / "other")
    assert (code, "read whole: leave out --only" in err) == (2, True)


def test_tables_of_other_ops_have_no_option_to_be_set(tmp_path):
    """`import_files` refuses them as the command line does."""
    (tmp_path / "t.csv").write_text("a\n1\n")
    with pytest.raises(InvalidValue, match="`software` takes NAME=VALUE, got 'vllm'"):
        import_files("csv", [tmp_path / "t.csv"], tmp_path / "out", ImportOptions(keep_software=("vllm",)))


def test_a_newer_version_with_few_rows_is_passed_over_on_request(tmp_path):
    """Only on the device where it has too small a share of the fullest version's rows; by default the newest one counts."""
    _, source, columns, _, _ = MEANT["gemm"]
    here, there = ("h100_sxm", H100), ("b60", B60)
    sizes = {(*here, "0.9.0"): 8, (*here, "0.10.0"): 3, (*there, "0.9.0"): 8, (*there, "0.10.0"): 4}
    for (system, device, version), count in sizes.items():
        place = tmp_path / "systems" / system / "gemm" / "vllm" / version
        place.mkdir(parents=True)
        told = {"framework": "VLLM", "version": version, "device": device, "op_name": "gemm", "kernel_source": source}
        pl.DataFrame([{**told, **columns, "m": m + 1, "latency": 0.1} for m in range(count)]).write_parquet(
            place / "gemm_perf.parquet"
        )

    def versions(**more):
        options = ImportOptions(only=("gemm",), keep_software=("vllm",), **more)
        data = import_files("aiconfigurator", [tmp_path / "systems"], tmp_path / f"out{len(more)}", options)
        return {device: software.parts(text)["version"] for device, text in data.devices_and_software("gemm/library")}

    assert versions() == {"h100": "0.10.0", "b60": "0.10.0"}
    assert versions(least_share=0.5) == {"h100": "0.9.0", "b60": "0.10.0"}
