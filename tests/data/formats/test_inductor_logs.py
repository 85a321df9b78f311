"""Logs of torch.compile's max-autotune as training data: what it prints, and the files that it writes."""

import json
import math
import random

import pytest

import kerncast
from kerncast.data.formats import ImportOptions
from kerncast.errors import BadFile, InvalidValue, KerncastError
from kerncast.testing import repeats
from kerncast.testing.importers import ImporterContract


def tile(m, n, k, stages, warps, separator=", ", **more):
    """The arguments of a template as torch prints them: in alphabetical order, stages and warps last."""
    given = {"ACC_TYPE": "'tl.float32'", "ALLOW_TF32": False, "BLOCK_K": k, "BLOCK_M": m, "BLOCK_N": n, "EVEN_K": True,
             "GROUP_M": 8, "USE_FAST_ACCUM": False, **more}  # fmt: skip
    words = [f"{name}={value}" for name, value in sorted(given.items())] + [f"num_stages={stages}", f"num_warps={warps}"]
    return separator.join(words)


NEW = f"""W1117 some other line
Autotune Choices Stats:
{{"num_choices": 20, "num_triton_choices": 19, "best_kernel": "triton_mm_12", "best_time": 0.012288000, "best_triton_pos": 0}}
AUTOTUNE mm(64x128, 128x256)
strides: [128, 1], [1, 128]
dtypes: torch.float16, torch.float16
  triton_mm_12 0.0123 ms 100.0% {tile(64, 64, 32, 3, 4)}
  mm 0.0133 ms 92.3%{" "}
  triton_mm_3 0.0140 ms 87.8% {tile(128, 64, 32, 2, 8, GROUP_M=4)}
  triton_mm_persistent_tma_30 0.0150 ms 81.9% {tile(128, 128, 32, 3, 8, NUM_SMS=132)}
  decompose_k_mm_4_split_5 0.0160 ms 76.8% k_split=4
  cutlass3x_sm90_tensorop_gemm_f16_1 0.0170 ms 72.3%{" "}
  triton_mm_7 inf ms 0.0% {tile(256, 128, 64, 4, 8)}
SingleProcess AUTOTUNE benchmarking takes 1.2345 seconds and 0.6789 seconds precompiling for 20 choices
"""
BIASED = f"""AUTOTUNE addmm(64x256, 64x128, 128x256)
strides: [0, 1], [160, 1], [256, 1]
dtypes: torch.bfloat16, torch.bfloat16, torch.bfloat16
  bias_addmm 0.0200 ms 100.0%
  addmm 0.0300 ms 66.7%
  triton_mm_40 0.0310 ms 64.5% {tile(32, 64, 32, 3, 4)}
SubProcess AUTOTUNE benchmarking takes 0.2 seconds and 0.1 seconds precompiling
"""
OLD = f"""AUTOTUNE bmm(8x64x128, 8x128x256)
  triton_bmm_1 0.0500 ms 100.0% {tile(64, 64, 32, 3, 4, separator="-")}-
  bmm 0.0600 ms 83.3%
SingleProcess AUTOTUNE takes 2.5 seconds
"""
OLDEST = """AUTOTUNE mm(64x128, 128x256)
  mm 0.0100 ms 100.0%
  triton_mm_1 0.0200 ms 50.0%
SingleProcess AUTOTUNE takes 2.949904441833496 seconds
"""
CPU = """Autotune Choices Stats:
{"num_choices": 2, "num_triton_choices": 0, "best_kernel": "_mkl_linear", "best_time": 0.04305499987822259}
AUTOTUNE packed_linear(32x256, 1982689x1, 128x256)
strides: [256, 1], [1, 0], [256, 1]
dtypes: torch.float32, torch.float32, torch.float32
  _mkl_linear 0.0431 ms 100.0%
  cpp_CppMicroGemmFP32Vec_0 0.0454 ms 94.8%
SingleProcess AUTOTUNE benchmarking takes 7.7914 seconds and 0.0002 seconds precompiling for 2 choices
Autotune Choices Stats:
{"num_choices": 2, "num_triton_choices": 0, "best_kernel": "cpp_CppMicroGemmFP32Vec_2", "best_time": 0.005059999921286362}
AUTOTUNE bmm(4x16x32, 4x32x8)
strides: [512, 32, 1], [256, 8, 1]
dtypes: torch.float32, torch.float32
  cpp_CppMicroGemmFP32Vec_2 0.0051 ms 100.0%
  bmm 0.0208 ms 24.4%
SingleProcess AUTOTUNE benchmarking takes 8.0923 seconds and 0.0002 seconds precompiling for 2 choices
"""
LISTED = [
    {"(64, 128, 256)": [
        {"type": "triton", "time": 0.0123, "BLOCK_M": 64, "BLOCK_K": 32, "BLOCK_N": 64, "num_stages": 3, "num_warps": 4,
         "waves_per_eu": 0, "matrix_instr_nonkdim": 0, "kpack": 2},
        {"type": "triton", "time": 0.0140, "BLOCK_M": 128, "BLOCK_K": 32, "BLOCK_N": 64, "num_stages": 3, "num_warps": 4,
         "waves_per_eu": 0, "matrix_instr_nonkdim": 0, "kpack": 2},
        {"type": "cublas", "time": 0.0133},
     ], "kernel_type": "mm"},
]  # fmt: skip


class TestListedFile(ImporterContract):
    """The file of TORCHINDUCTOR_MM_LOGGING_FILE."""

    format_name = "inductor"
    sample = json.dumps(LISTED, indent=4).encode()
    options = ImportOptions(device="h100", values={"dtype": "fp16", "layout": "rrr"})


def read(tmp_path, text, name="out", device="h100", **options):
    path = tmp_path / f"{name}.log"
    path.write_bytes(text if isinstance(text, bytes) else text.encode())
    return kerncast.read(path, out=tmp_path / name, device=device, progress=False, **options)


def seen(dataset, *names):
    return dataset.frame().select(*names, "time_ns").rows()


def test_a_block_becomes_rows_with_strides_dtypes_and_exact_times(tmp_path):
    """Templates, the library, a failure; other kernels are left out and counted; a cut list is said."""
    found = read(tmp_path, NEW)
    rows = found.frame()
    assert rows.select("problem.M", "problem.N", "problem.K", "problem.dtype", "problem.layout").unique().rows() == [
        (64, 256, 128, "fp16", "rcr")
    ]
    assert seen(found, "config.kind", "config.template", "config.BLOCK_M", "config.GROUP_M", "config.k_split", "status") == [
        ("triton", None, 64, None, None, "ok", pytest.approx(12_288)),  # not the rounded 12,300
        ("library", None, None, None, None, "ok", pytest.approx(13_313, abs=8)),  # 12,288 / 92.3 %, within 13,250 to 13,350
        ("triton", None, 128, 4, None, "ok", pytest.approx(13_995, abs=8)),
        ("triton", "persistent_tma", 128, None, None, "ok", pytest.approx(15_004, abs=10)),
        ("library", "decompose_k", None, None, 4, "ok", pytest.approx(16_000, abs=12)),
        ("triton", None, 256, None, None, "launch_error", None),
    ]
    assert rows["source_line"].to_list() == [7, 8, 9, 10, 11, 13]
    told = " ".join(found.notes)
    assert "1 autotunes list only their fastest choices" in told
    assert "cutlass is no kernel of gemm/triton" in told


def test_a_bias_gaps_and_older_versions_are_read(tmp_path):
    """addmm has a bias and a leading dimension; of two library kernels the op's own counts; hyphens separate arguments."""
    found = read(tmp_path, BIASED + OLD, constants={"dtype": "fp16", "layout": "rrr"})
    assert seen(found, "problem.batch", "problem.bias", "problem.lda", "problem.dtype", "config.kind") == [
        (1, True, 160, "bf16", "library", pytest.approx(30_000)),
        (1, True, 160, "bf16", "triton", pytest.approx(31_000)),
        (8, None, None, "fp16", "triton", pytest.approx(50_000)),
        (8, None, None, "fp16", "library", pytest.approx(60_000)),
    ]
    with pytest.raises(InvalidValue, match="neither dtypes nor strides: add `constants` dtype=fp16"):
        read(tmp_path, OLD, name="asked")
    oldest = read(tmp_path, OLDEST, name="oldest", constants=["dtype=fp16", "layout=rcr"])
    assert seen(oldest, "config.kind", "problem.layout") == [("library", "rcr", pytest.approx(10_000))]
    assert any("whose tile the log does not give" in note for note in oldest.notes)


def test_tf32_is_that_of_the_templates(tmp_path):
    """ALLOW_TF32 is part of the problem, for fp32 only."""
    text = NEW.replace("torch.float16", "torch.float32").replace("ALLOW_TF32=False", "ALLOW_TF32=True")
    assert set(read(tmp_path, text).frame()["problem.tf32"]) == {True}
    assert set(read(tmp_path, NEW.replace("ALLOW_TF32=False", "ALLOW_TF32=True"), name="half").frame()["problem.tf32"]) == {
        False
    }


def test_lines_of_several_processes_may_alternate(tmp_path):
    """A prefix says whose line it is; colours, carriage returns and other output between the lines do not matter."""
    first = [f"[rank0]: {line}" for line in NEW.splitlines()]
    second = [f"\x1b[32m[rank1]: {line}\x1b[0m\r" for line in NEW.splitlines()]
    mixed = [line for pair in zip(first, second, strict=True) for line in (*pair, "epoch 3, loss 0.5")]
    both = read(tmp_path, "\n".join(mixed)).frame()
    alone = read(tmp_path, NEW, name="alone").frame()
    assert both.height == 2 * alone.height
    assert set(both["time_ns"].drop_nulls()) == set(alone["time_ns"].drop_nulls())


def test_kernels_of_a_cpu_belong_to_the_cpu_family(tmp_path):
    """Inductor's C++ kernel and ATen's; threads are said by the caller; a device of the other kind is refused."""
    found = read(tmp_path, CPU, device="cpu_generic", constants={"threads": "2"})
    assert found.families[0].id == "gemm/inductor_cpp"
    assert seen(found, "problem.M", "problem.N", "problem.K", "problem.threads", "config.kind") == [
        (32, 128, 256, 2, "aten", pytest.approx(43_055)),
        (32, 128, 256, 2, "default", pytest.approx(45_418, abs=30)),
    ]
    assert any("2 × bmm on a CPU" in note for note in found.notes)
    with pytest.raises(InvalidValue, match="ran on a CPU, and h100 is none"):
        read(tmp_path, CPU, name="gpu")
    with pytest.raises(InvalidValue, match="add `device` NAME"):
        read(tmp_path, CPU, name="none", device=None)


def choice_line(time, tile_shape="(64, 32, 64)", backend="Triton", **more):
    """A line of autotuning_result_json_list.txt as torch 2.13 writes it."""
    node = {
        "name": "arg0_1",
        "type": "InputBuffer",
        "layout": "…",
        "dtype": "torch.float16",
        "device": "cuda:0",
        "numel": "8192",
    }
    own = {"tile_shape": tile_shape, "num_stages": 3, "num_warps": 4, "GROUP_M": 8, "allow_tf32": "False",
           "acc_type": "tl.float32", "matrix_instr_nonkdim": 0, "waves_per_eu": 0, "kpack": 2}  # fmt: skip
    library = {"kernel_call_name": "extern_kernels.mm"}
    return json.dumps({
        **(own if backend == "Triton" else library), "backend": backend, "op_name": "mm",
        "cuda_device_name": "NVIDIA H100 80GB HBM3", "cuda_device_count": 1,
        "input_nodes": [{**node, "size": "[64, 128]", "stride": "[128, 1]"},
                        {**node, "size": "[128, 256]", "stride": "[1, 128]"}],
        "autotuning_time": 1.5, "precompile_time": 0.5, "prescreening_time": None, "benchmark_result": time, **more,
    })  # fmt: skip


def test_the_list_of_results_has_all_choices_and_names_the_gpu(tmp_path):
    """`LOG_AUTOTUNE_RESULTS=1`: exact times, Infinity for what did not run; a bad line costs itself."""
    lines = [
        choice_line(0.0123456),
        choice_line(0.02, "(128, 32, 64)"),
        choice_line(math.inf, "(256, 64, 128)"),
        choice_line(0.0133, backend="extern"),
        choice_line(0.1, op_name="convolution"),
        "{broken",
        choice_line(0.01, autotuning_time=2.5),
    ]
    found = read(tmp_path, "\n".join(lines) + "\n", device=None)
    assert found.frame()["device"].unique().to_list() == ["h100"]
    assert seen(found, "config.kind", "config.BLOCK_M", "config.BLOCK_N", "status", "source_line") == [
        ("triton", 64, 64, "ok", 1, pytest.approx(12_345.6)),
        ("triton", 128, 64, "ok", 2, pytest.approx(20_000)),
        ("triton", 256, 128, "launch_error", 3, None),
        ("library", None, None, "ok", 4, pytest.approx(13_300)),
        ("triton", 64, 64, "ok", 7, pytest.approx(10_000)),
    ]
    assert found.skipped.rows == 1
    with pytest.raises(InvalidValue, match="measured on h100"):
        read(tmp_path, "\n".join(lines), name="other", device="a100")


def test_sizes_that_the_listed_file_has_wrong_are_left_out(tmp_path):
    """It takes a batch for M and packed weights for a matrix: only mm and addmm are read."""
    both = [*LISTED, {"(4, 16, 8)": [{"type": "cublas", "time": 0.02}, None], "kernel_type": "bmm"}]
    found = read(tmp_path, json.dumps(both), constants={"dtype": "torch.float16", "layout": "rrr"})
    assert found.rows == 3
    assert set(found.frame()["problem.M"]) == {64}
    assert found.frame()["config.kpack"].null_count() == 3  # what Inductor writes where there is none


def test_other_ops_symbols_and_foreign_files_are_refused_or_counted(tmp_path):
    """A log without any product is refused with its reasons; so is a text without an autotune."""
    conv = NEW.replace("AUTOTUNE mm(", "AUTOTUNE convolution(")
    with pytest.raises(BadFile, match="convolution is not a product"):
        read(tmp_path, conv, name="a")
    symbolic = NEW.replace("strides: [128, 1]", "strides: [s77, 1]")
    with pytest.raises(BadFile, match="not known numbers"):
        read(tmp_path, symbolic, name="b")
    with pytest.raises(BadFile, match="no log of max-autotune"):
        read(tmp_path, "just some words\n", name="c", file_format="inductor")
    assert read(tmp_path, conv + NEW, name="d").rows == 6


def test_damaged_logs_are_read_or_refused_but_never_crash(tmp_path):
    """Bytes changed, cut and doubled in all forms: a dataset, or one sentence."""
    rng = random.Random(3)
    sources = [NEW + BIASED, CPU, "\n".join(choice_line(time) for time in (0.1, 0.2)), OLD]
    for number in range(repeats(80, 20_000)):
        data = bytearray(rng.choice(sources).encode())
        for _ in range(rng.randint(1, 5)):
            place = rng.randrange(len(data))
            match rng.randrange(4):
                case 0:
                    data[place] = rng.randrange(256)
                case 1:
                    del data[place : place + rng.randint(1, 30)]
                case 2:
                    data[place:place] = data[place : place + rng.randint(1, 30)]
                case _:
                    data[place:place] = rng.choice(
                        [b"9" * 400, b"\x00", b"'" * 50, b"\n", b"x" * 3000, b"-1", b"1e999", b"\xff"]
                    )
        try:
            read(tmp_path, bytes(data), name=f"n{number}", device=rng.choice(["h100", "cpu_generic"]), file_format="inductor",
                 constants={"dtype": "fp16", "layout": "rrr"} if rng.random() < 0.5 else None)  # fmt: skip
        except KerncastError as error:
            assert "\n" not in str(error)  # noqa: PT017
