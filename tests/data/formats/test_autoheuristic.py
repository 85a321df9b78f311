"""The `autoheuristic` importer: what each kind of log becomes, and what is refused."""

import io
import json
import zipfile

import pytest

import kerncast
from kerncast.data.formats import ImportOptions
from kerncast.data.importing import import_files
from kerncast.errors import BadFile, InvalidValue, KerncastError
from kerncast.library import devices
from kerncast.library.declared.family_file import family_named
from kerncast.testing.importers import ImporterContract

A100 = ImportOptions(device="a100")
PRODUCT = "m,k,n,mat1_dtype,mat2_dtype,mat1_stride_0,mat1_stride_1,mat2_stride_0,mat2_stride_1"


def log(name, header, *rows, shared_memory=166912, capability=(8, 0)):
    features = header.split(",")
    words = [feature for feature in features if feature.endswith(("dtype", "iscontig", "tf32")) or "prepadded" in feature]
    first = {"shared_memory": shared_memory, "device_capa": capability, "name": name,
             "numerical_features": [f for f in features if f not in words], "categorical_features": words}  # fmt: skip
    return "\n".join([json.dumps(first), header + ",choice,feedback", *rows, ""]).encode()


def tile(m, k, n, stages, warps):
    return f"type=triton_BLOCK-M={m}_BLOCK-K={k}_BLOCK-N={n}_numstages={stages}_numwarps={warps}"


HALF, FLOAT = "torch.float16,torch.float16", "torch.float32,torch.float32"
MM = log(
    "mm",
    f"{PRODUCT},mat1_iscontig,mat2_iscontig,using_tf32",
    f"64,32,128,{HALF},32,1,128,1,True,True,not_float_32,extern_mm,0.25",
    f"64,32,128,{HALF},32,1,128,1,True,True,not_float_32,{tile(16, 32, 64, 3, 2)},0.5",
    "",
    f"64,32,128,{HALF},32,1,128,1,True,True,not_float_32,{tile(16, 32, 64, 3, 2)},0.75",
    f"64,32,128,{HALF},32,1,1,32,True,False,not_float_32,{tile(16, 32, 64, 3, 2)},0.5",
    f"64,32,128,{FLOAT},1,64,128,1,False,True,False,{tile(128, 64, 128, 5, 8)},inf",
    f"64,32,128,{FLOAT},1,64,1,32,False,False,True,extern_mm,1",
    f"1,32,128,{FLOAT},1,1,128,1,True,True,True,extern_mm,1",
)
MIXED = log(
    "mixed_mm",
    f"{PRODUCT},mat1_iscontig,mat2_iscontig",
    "2,1024,2048,torch.float16,torch.int8,1024,1,1,1024,True,False,extern_fallback_mixed_mm,0.132",
    f"2,1024,2048,torch.float16,torch.int8,1024,1,1,1024,True,False,{tile(16, 256, 128, 3, 4)},0.075",
    f"2,1024,2048,torch.bfloat16,torch.uint8,1024,1,1,1024,True,False,{tile(16, 256, 128, 3, 4)},0.08",
)
FLEX = log(
    "flex_attention",
    "b,h,m,n,kv_seq_length,dtype,q_stride_0,q_stride_1,q_stride_2,q_stride_3,subgraph_num_nodes,subgraph_num_args_used",
    f"2,4,256,64,512,torch.bfloat16,65536,64,256,1,8,3,{tile(128, -1, 64, 3, 4)},0.5",
    f"2,4,256,64,512,torch.bfloat16,65536,64,256,1,6,1,{tile(128, -1, 64, 3, 4)},0.4",
    f"2,4,256,64,512,torch.float32,65536,16384,64,1,6,1,{tile(32, -1, 32, 3, 4)},inf",
)
PAD = log(
    "pad_mm",
    f"{PRODUCT},m_padded_length,k_padded_length,n_padded_length,mat1_align_size,mat2_align_size,"
    "prepadded_mat1,prepadded_mat2,using_tf32",
    f"1023,512,768,{HALF},512,1,768,1,1,0,0,8,8,False,True,not_float_32,orig,0.2",
    f"1023,512,768,{HALF},512,1,768,1,1,0,0,8,8,False,True,not_float_32,pad,0.1",
    f"1023,511,768,{FLOAT},511,1,768,1,1,1,0,4,4,False,False,True,pad,0.3",
)


def zipped(**members):
    buffer = io.BytesIO()
    with zipfile.ZipFile(buffer, "w", zipfile.ZIP_DEFLATED) as archive:
        archive.writestr("logs/", b"")
        for name, content in members.items():
            archive.writestr(name, content)
    return buffer.getvalue()


class TestMm(ImporterContract):
    format_name, sample, options = "autoheuristic", MM, A100


class TestFlexAttention(ImporterContract):
    format_name, sample, options = "autoheuristic", FLEX, A100


class TestPadMm(ImporterContract):
    format_name, sample, options = "autoheuristic", PAD, A100


class TestZip(ImporterContract):
    format_name, sample, options = "autoheuristic", zipped(**{"a/mm.txt": MM, "b/mixed.txt": MIXED}), A100


def imported(folder, content, options=A100, strict=False):
    source = folder / "log.txt"
    source.write_bytes(content)
    return import_files("autoheuristic", [source], folder / "out", options, strict=strict)


def test_mm_keeps_what_tells_problems_apart(tmp_path):
    """Layout from strides, TF32 from its flag; repeats share a key, an empty line counts as a line, ms become ns."""
    rows = imported(tmp_path, MM).read("gemm/triton")
    assert rows["problem.layout"].to_list() == ["rrr", "rrr", "rrr", "rcr", "crr", "ccr", "crr"]
    assert rows["problem.tf32"].to_list() == [False] * 5 + [True, True]
    assert rows["time_ns"].to_list() == [250e3, 500e3, 750e3, 500e3, None, 1e6, 1e6]
    assert rows["source_line"].to_list() == [3, 4, 6, 7, 8, 9, 10]
    assert rows["key"].n_unique() == 6
    assert rows["key"][1] == rows["key"][2]
    assert rows.select("config.kind", "config.BLOCK_M", "config.BLOCK_K", "config.num_warps").rows()[:2] == [
        ("library", None, None, None), ("triton", 16, 32, 2),
    ]  # fmt: skip


def test_a_choice_that_did_not_run_is_a_failure_without_a_time(tmp_path):
    """`inf` is no time; the log does not say why, and neither does the row."""
    rows = imported(tmp_path, MM).read()
    failed = rows.filter(rows["status"] != "ok")
    assert failed.select("status", "time_ns", "config.BLOCK_M").rows() == [("launch_error", None, 128)]
    assert "does not say why" in failed["error"][0]


def test_mixed_mm_has_two_types_and_features_that_see_both(tmp_path):
    """The narrow operand's tile takes half the shared memory; int8 and uint8 are different problems."""
    rows = imported(tmp_path, MIXED).read("mixed_mm/triton")
    assert rows.select("problem.dtype", "problem.b_dtype", "problem.layout").unique(maintain_order=True).rows() == [
        ("fp16", "int8", "rcr"), ("bf16", "uint8", "rcr"),
    ]  # fmt: skip
    assert rows["key"].n_unique() == 3
    family, device = family_named("mixed_mm/triton"), devices.get("a100")
    values = {f"p.{name}": rows[f"problem.{name}"][1] for name in family.problem.parameters}
    values |= {f"c.{name}": rows[f"config.{name}"][1] for name in family.config.parameters}
    got = family.features_on(device, ["fp16"]).program.scalar(values)
    assert got["shared_memory_bytes"] == (16 * 2 + 128 * 1) * 256 * 2
    assert got["operand_traffic_bytes"] == 16 * 2 * 1024 * 2 + 1024 * 2048 + 2 * 2048 * 2
    assert got["weight_share"] == pytest.approx(1024 * 2048 / (1024 * 2048 + 2 * (2 * 1024 + 2 * 2048)))
    assert got["library_widening_bytes"] == 0


def test_flex_attention_reads_axes_from_strides_and_the_function_from_its_graph(tmp_path):
    """Two score functions on the same tensors are two problems."""
    rows = imported(tmp_path, FLEX).read("flex_attention/triton")
    assert rows["problem.q_layout"].to_list() == ["bmhd", "bmhd", "bhmd"]
    names = [f"problem.{name}" for name in ("batch", "heads", "q_len", "kv_len", "head_dim", "mod_nodes", "mod_args")]
    assert rows.select(names).row(0) == (2, 4, 256, 512, 64, 8, 3)
    assert rows["key"].n_unique() == 3
    assert rows["status"].to_list() == ["ok", "ok", "launch_error"]


def test_pad_mm_has_padding_in_the_problem_and_the_choice_in_the_config(tmp_path):
    """Whether to pad is the config; how much, and whether the copy is free, is the problem."""
    rows = imported(tmp_path, PAD).read("pad_mm/inductor")
    assert rows["config.choice"].to_list() == ["orig", "pad", "pad"]
    names = [f"problem.{name}" for name in ("pad_m", "pad_k", "pad_n", "align", "a_prepadded", "b_prepadded", "tf32")]
    assert rows.select(names).rows()[1:] == [(1, 0, 0, 8, False, True, False), (1, 1, 0, 4, False, False, True)]
    family, device = family_named("pad_mm/inductor"), devices.get("a100")
    values = {f"p.{name}": rows[f"problem.{name}"][1] for name in family.problem.parameters}
    program = family.features_on(device, ["fp16"]).program
    orig, pad = (program.scalar({**values, "c.choice": choice}) for choice in ("orig", "pad"))
    assert (orig["copied_bytes"], orig["unaligned_m"], pad["unaligned_m"]) == (0, 1, 0)
    assert pad["copied_bytes"] == 2 * (1023 * 512 + 1024 * 512 + 2 * 1023 * 768)


def test_an_archive_may_hold_several_logs(tmp_path):
    """Each becomes rows of its family; lines are numbered through, what a Mac adds is left out."""
    content = zipped(**{"x/b.txt": MIXED, "x/a.txt": MM, "__MACOSX/x/._a.txt": b"\x00", "x/.DS_Store": b"\x01"})
    dataset = imported(tmp_path, content)
    assert {family.id: dataset.read(family).height for family in dataset.families} == {"gemm/triton": 7, "mixed_mm/triton": 3}
    assert dataset.read("mixed_mm/triton")["source_line"].to_list() == [14, 15, 16]
    (tmp_path / "second").mkdir()
    with pytest.raises(BadFile, match=r"log\.txt, x/b\.txt, line 3: feedback must be milliseconds, or inf, got '0\.x32'"):
        imported(tmp_path / "second", zipped(**{"x/b.txt": MIXED.replace(b"0.132", b"0.x32"), "x/a.txt": MM}), strict=True)


def test_the_device_is_asked_for_and_checked(tmp_path):
    """Capability and shared memory are those of several GPUs: enough to contradict a name, not to give one."""
    with pytest.raises(InvalidValue, match=r"compute capability 8\.0 with 166,912 bytes .* add `device=a100`"):
        imported(tmp_path, MM, ImportOptions())
    with pytest.raises(InvalidValue, match="but h100 has 232,448 per block: `device` must name the GPU of the log"):
        imported(tmp_path, MM, ImportOptions(device="h100"))


def test_matrices_with_gaps_have_leading_dimensions(tmp_path):
    """A slice or a padded matrix is told by its larger stride; what is packed, or has one row, has none."""
    gaps = MM.replace(b"32,1,1,32,True", b"40,1,1,48,False").replace(b"1,64,128,1", b"1,72,136,1")
    rows = imported(tmp_path, gaps.replace(b"1,1,128,1,True", b"99,1,128,1,True")).read("gemm/triton")
    found = rows.sort("source_line").select("problem.layout", "problem.lda", "problem.ldb").rows()
    assert found == [("rrr", None, None)] * 3 + [("rcr", 40, 48), ("crr", 72, 136), ("ccr", None, None), ("rrr", None, None)]
    assert rows["key"].n_unique() == 6


@pytest.mark.parametrize(
    ("content", "old", "new", "why"),
    [
        (MM, b'"mm"', b'"bmm"', "line 1: logs named 'bmm' are not known (known: mm, mixed_mm, flex_attention, pad_mm)"),
        (MM, b'"name": "mm", ', b"", "line 1 is not AutoHeuristic's JSON line"),
        (MM, b"m,k,n,mat1_dtype", b"m,k,o,mat1_dtype", "line 2: a log of mm lacks the column 'n'"),
        (MIXED, b"iscontig", b"density", "line 1: unknown column 'mat1_density'"),
        (MM, b"extern_mm,0.25", b"cublas,0.25", "line 3: choice must be extern_… or type=triton_BLOCK-M=…"),
        (MM, b"extern_mm,0.25", b"extern_bmm,0.25", "line 3: choice is a second library kernel besides extern_mm"),
        (MM, b"extern_mm,0.25", b"extern_mm,-1", "line 3: feedback must be milliseconds, or inf, got '-1'"),
        (MM, b"extern_mm,0.25", b"extern_mm", "line 3 has 13 cells, the header has 14"),
        (MM, b"32,1,128,1,True", b"48,2,128,1,True", "line 3: mat1_stride_0 and mat1_stride_1 must be those of a m × k m"),
        (MIXED, b"1024,1,1,1024", b"1032,1,1,1024", "line 3: mat1_stride_0 and mat1_stride_1 must be those of a m × k"),
        (MM, b"torch.float16,32", b"torch.float32,32", "line 3: mat2_dtype must be the type of mat1"),
        (MM, b"not_float_32,extern", b"False,extern", "line 3: using_tf32 must be True or False for torch.float32"),
        (MM, b"BLOCK-M=16", b"BLOCK-M=17", "line 4: config.BLOCK_M must be"),
        (FLEX, b"BLOCK-K=-1", b"BLOCK-K=16", "line 3: choice must be type=triton_BLOCK-M=…_BLOCK-K=-1_"),
        (FLEX, b"65536,64,256,1", b"65536,64,250,1", "line 3: q_stride_0 and the next three must be those of a packed Q"),
        (PAD, b"orig,", b"autotune,", "line 3: choice must be one of orig, pad, got 'autotune'"),
        (PAD, b"8,8,", b"8,4,", "line 3: mat2_align_size must be that of mat1, got '4'"),
    ],
)  # fmt: skip
def test_what_is_not_known_is_refused_with_its_line(tmp_path, content, old, new, why):
    """A name, a feature, a choice, a stride: never a guess."""
    # What line 1 names, line 2 names too.
    damaged = content.replace(old, new) if old in content.split(b"\n")[0] else content.replace(old, new, 1)
    with pytest.raises(KerncastError) as caught:
        imported(tmp_path, damaged, strict=True)
    assert why in str(caught.value)


def test_a_log_read_in_pieces_is_the_log_read_at_once(tmp_path, monkeypatch):
    """Pieces bound the memory; lines, numbers and skipped rows stay the same."""
    (tmp_path / "log.txt").write_bytes(MM + b"1,2,3\n")
    whole = kerncast.read(tmp_path / "log.txt", file_format="autoheuristic", device="a100")
    monkeypatch.setattr("kerncast.data.formats.autoheuristic.PIECE_BYTES", 100)
    pieces = kerncast.read(tmp_path / "log.txt", file_format="autoheuristic", device="a100")
    assert pieces.frame().equals(whole.frame())
    assert pieces.skipped.kinds == whole.skipped.kinds
    assert whole.skipped.rows == 1
