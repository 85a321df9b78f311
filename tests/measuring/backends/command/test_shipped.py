"""The shipped benchmarks, from the command line to the dataset, against programs that answer in the real ones' formats."""

import json
import sys
import tomllib

import pytest

from kerncast.library.families.grouped_conv_ck_tile import parse_conv_kernel
from kerncast.measuring.backends.command import CommandBackend
from kerncast.measuring.backends.command.benchmark import load, shipped, shipped_for

# A benchmark of CK Tile: ends with 0 whatever happened, JSON with two decimals.
CK = r"""
a = dict(item.lstrip("-").split("=") for item in sys.argv[1:])
m, n, k = int(a["m"]), int(a["n"]), int(a["k"])
name = os.path.basename(sys.argv[0]).removeprefix("benchmark_")
if m == 65: os.kill(os.getpid(), signal.SIGSEGV)
if m == 66:
    child = os.fork()
    if child: open(os.environ["NOTES"], "a").write(f"{os.getpid()} {child}\n")
    time.sleep(1000)
if m == 67: print("}{ [[[ no JSON", "\x00", '{"perf_result": '); sys.exit()
if m == 68:
    print("Verification failed, skip kernel: " + name)
    print("Benchmark failed: Empty instances", file=sys.stderr); sys.exit()
if m == 69: print("Benchmark failed: Wrong! Arguments not supported! Skipping gemm!", file=sys.stderr); sys.exit()
if m == 70: print("HIP runtime error: out of memory", file=sys.stderr); sys.exit(1)
if m == 71: print("noise " * 4_000_000)
assert a["verify"] in "02" and a["flush_cache"] in ("true", "false"), a
tflops = 0.5 if a["flush_cache"] == "true" else 2.0
print('{\n "name": "%s",\n "problem": {\n   "split_k":%s,\n   "m":%d,\n   "n":%d,\n   "k":%d,\n   "dtype_a":"fp16"\n},'
      '\n "perf_result": {\n   "latency(ms)": %.2f,\n   "tflops(TFlops)": %.2f,\n   "bandwidth(GB/s)": 10.00\n}\n}'
      % (name, a["split_k"], m, n, k, 2e-9 * m * n * k / tflops, tflops))
"""
# Builds every target but those of bf16, and goes on after a failure (-k 0).
NINJA = r"""
folder, targets = sys.argv[2], sys.argv[7:]
assert sys.argv[1:7:2] == ["-C", "-j", "-k"], sys.argv
open(os.environ["NOTES"], "a").write(f"ninja -j {sys.argv[4]} {len(targets)}\n")
for target in targets:
    if "_bf16_" not in target:
        os.makedirs(folder + "/bin", exist_ok=True)
        link = folder + "/bin/" + target
        if not os.path.lexists(link): os.symlink(folder + "/benchmark", link)
if any("_bf16_" in target for target in targets):
    print("FAILED: bf16 does not compile"); sys.exit(1)
"""
CK_CONFIG = {
    "tile_m": 128, "tile_n": 128, "tile_k": 32, "warp_m": 2, "warp_n": 2, "warp_k": 1, "warp_tile_m": 32, "warp_tile_n": 32,
    "warp_tile_k": 8, "pipeline": "compv3", "scheduler": "intrawave", "epilogue": "cshuffle", "pad_m": True, "pad_n": True,
    "pad_k": False, "persistent": False,
}  # fmt: skip


@pytest.fixture
def ck(program, tmp_path):
    """What `--benchmark ck-tile` needs on this machine."""
    program("hipconfig", 'print("6.4.0")')
    program("ninja", NINJA)
    program("benchmark", CK, tmp_path / "build")
    (tmp_path / "one.json").write_text(json.dumps([CK_CONFIG]))
    return ["gemm/ck_tile", "--benchmark", "ck-tile", "--set", f"build_dir={tmp_path / 'build'}", "--set", "arch=gfx942",
            "--vary", "layout=rcr", "--configs", "portfolio:one.json"]  # fmt: skip


def test_ck_tile_survives_every_end_of_its_binaries(ck, collect, notes, gone):
    """Segfault, hang with a child, garbage, wrong result, refusal, exhausted memory, endless output: one row each."""
    sizes = "grid:M=64,65,66,67,68,69,70,71;N=128;K=256"
    code, rows, shown = collect(*ck, "--problems", sizes, "--vary", "dtype=fp16", "--timeout", "6s", "--build-jobs", "3")
    assert code == 0, shown.err
    status = dict(zip(rows["problem.M"], rows["status"], strict=True))
    assert status == {
        64: "ok", 65: "crash", 66: "timeout", 67: "launch_error", 68: "wrong_result", 69: "unsupported",
        70: "out_of_memory", 71: "ok",
    }  # fmt: skip
    good = rows.filter(rows["problem.M"] == 64).row(0, named=True)
    assert good["time_ns"] == pytest.approx(2 * 64 * 128 * 256 / 2.0e3)
    assert (good["device"], good["backend"], good["max_abs_err"], good["inner_loops"]) == ("gfx942", "command", None, None)
    assert (good["samples"], good["cache"]) == (3, "warm")
    assert json.loads(good["software"])["rocm"] == "6.4.0"
    assert json.loads(good["software"])["results"] == "checked by the program"
    assert "SIGSEGV" in rows.filter(rows["problem.M"] == 65)["error"][0]
    assert "Arguments not supported" in rows.filter(rows["problem.M"] == 69)["error"][0]
    assert [line for line in notes() if line.startswith("ninja")] == ["ninja -j 3 1"]
    assert gone([int(pid) for line in notes() if not line.startswith("ninja") for pid in line.split()])


def test_ck_tile_builds_once_and_a_kernel_that_does_not_build_costs_one_row(ck, collect, notes, tmp_path):
    """bf16 kernels are compile errors, the others are measured; a second collection builds nothing of them."""
    problems = ["--problems", "grid:M=64;N=128;K=256", "--vary", "dtype=fp16,bf16"]
    code, rows, shown = collect(*ck, *problems, "--dry-run", "--json")
    plan = {"vectors": 2, "exact": True, "already_there": 0, "compilations": 2, "seconds": None, "bytes": 300}
    assert json.loads(shown.out) == plan
    code, rows, shown = collect(*ck, *problems, "--cache", "cold")
    assert code == 0, shown.err
    name = "benchmark_gemm_universal_fp16_rcr_compv3_cshuffle_intrawave_True_True_False_False_128x128x32_2x2x1_32x32x8"
    assert [path.name for path in (tmp_path / "build/bin").iterdir()] == [name]
    found = {row["problem.dtype"]: row for row in rows.iter_rows(named=True)}
    assert {name: row["status"] for name, row in found.items()} == {"fp16": "ok", "bf16": "compile_error"}
    assert found["fp16"]["cache"] == "cold"
    assert found["fp16"]["time_ns"] == pytest.approx(2 * 64 * 128 * 256 / 0.5e3)
    assert found["fp16"]["compile_ns"] > 0
    assert "bf16 does not compile" in found["bf16"]["error"]
    before = len(notes())
    collect(*ck, *problems[:2], "--vary", "dtype=fp16", out="again")
    assert len(notes()) == before


# The profiler's report: all its kernels whose name holds the part asked for, a row each.
CUTLASS = r"""
a = dict(item.lstrip("-").split("=", 1) for item in sys.argv[1:])
columns = "m n k A B C split_k_mode split_k_slices batch_count op_class cta_m cta_n cta_k stages warps_m warps_n".split()
columns += ["inst_m", "inst_n", "inst_k"]
m = int(a["n"])  # the transposed product: n is M
if m == 72: os.kill(os.getpid(), signal.SIGSEGV)
if m == 80: time.sleep(1000)
if m == 88: print("no device"); sys.exit(1)
if m == 96: sys.exit(0)
said = {104: ("incorrect", "success"), 112: ("not_supported", "error_not_supported")}.get(m, ("passed", "success"))
if a["verification-enabled"] == "false": said = ("not_verified", "success")
shape = f"{a['cta_m']}x{a['cta_n']}_{a['cta_k']}x{a['stages']}"
with open(a["output"].removesuffix(".csv") + ".gemm.csv", "w") as file:
    head = "Problem,Provider,OperationKind,Operation,Disposition,Status," + ",".join(columns)
    print(head + ",Bytes,Flops,Flops/Byte,Runtime,GB/s,GFLOPs", file=file)
    for number, runtime in ((a["kernels"].removeprefix("_align"), 0.0125), ("16" if a["kernels"] == "_align1" else "1", 9.0)):
        if "_align" + number != a["kernels"] and a["kernels"] not in "_align" + number: continue
        name = f"cutlass_tensorop_f16_s16816gemm_f16_{shape}_tn_align{number}"
        cells = ["1", "CUTLASS", "gemm", name, *said, *(a[c] for c in columns)]
        print(",".join(cells) + f",1024,2048,2,{runtime},1,1", file=file)
open(os.environ["NOTES"], "a").write(" ".join(sys.argv[1:]) + "\n")
"""
CUTLASS_CONFIG = {
    "tile_m": 128, "tile_n": 256, "tile_k": 32, "stages": 3, "warps_m": 2, "warps_n": 4, "instruction": "16x8x16",
    "alignment": 1, "split_k_mode": "serial",
}  # fmt: skip


def test_the_cutlass_profiler_is_asked_for_the_transposed_product_and_read_by_column(program, collect, notes, tmp_path):
    """Rows are told by their columns; a report that never came, a signal and a hang cost one row each."""
    program("cutlass_profiler", CUTLASS)
    program("nvidia-smi", 'print("550.54.15")')
    (tmp_path / "one.json").write_text(json.dumps([CUTLASS_CONFIG]))
    sizes = "grid:M=64,72,80,88,96,104,112;N=128;K=256"
    code, rows, shown = collect(
        "gemm/cutlass", "--benchmark", "cutlass-profiler", "--set", "arch=h100", "--problems", sizes, "--vary", "dtype=fp16",
        "--vary", "layout=rcr", "--configs", "portfolio:one.json", "--timeout", "6s",
    )  # fmt: skip
    assert code == 0, shown.err
    assert dict(zip(rows["problem.M"], rows["status"], strict=True)) == {
        64: "ok", 72: "crash", 80: "timeout", 88: "launch_error", 96: "launch_error", 104: "wrong_result", 112: "unsupported",
    }  # fmt: skip
    good = rows.filter(rows["problem.M"] == 64).row(0, named=True)
    assert good["time_ns"] == pytest.approx(12_500)
    assert json.loads(good["software"])["driver"] == "550.54.15"
    assert good["label"] == "cutlass_tensorop_f16_s16816gemm_f16_256x128_32x3_tn_align1"
    asked = dict(item.lstrip("-").split("=", 1) for item in next(line for line in notes() if "--n=64 " in line).split())
    assert (asked["m"], asked["n"], asked["A"], asked["B"], asked["C"]) == ("128", "64", "f16:row", "f16:column", "f16:column")
    assert (asked["cta_m"], asked["cta_n"], asked["warps_m"], asked["warps_n"]) == ("256", "128", "4", "2")
    assert (asked["inst_m"], asked["inst_n"], asked["inst_k"], asked["op_class"]) == ("16", "8", "16", "tensorop")
    assert asked["verification-enabled"] == "true"


# tt-metal's runner: results of a suite only when it is done, appended to those that are there.
SWEEPS = r"""
a = dict(zip(sys.argv[1::2], sys.argv[2::2]))
(suite, vectors), = json.load(open(a["--file-path"])).items()
results = []
for identity, vector in vectors.items():
    width = json.loads(vector["input_shape"])[-1]
    assert vector["input_hash"] == identity and json.loads(vector["input_a_memory_config"]["data"])["buffer_type"] == 0
    if width == 64: os.kill(os.getpid(), signal.SIGSEGV)
    if width == 96: time.sleep(1000)
    status = {128: "FAIL_L1_OUT_OF_MEM", 160: "FAIL_ASSERT_EXCEPTION", 192: "FAIL_CRASH_HANG"}.get(width, "PASS")
    perf = {"DEVICE FW DURATION [ns]": 1, "DEVICE KERNEL DURATION [ns]": 0 if width == 224 else str(10 * width)}
    good = status == "PASS"
    results.append({"sweep_name": a["--module-name"], "input_hash": identity, "status": "TestStatus." + status,
                    "exception": None if good else "said " + status, "device_perf": perf if good else None})
path = os.path.dirname(sys.argv[0]) + "/results_export/" + a["--module-name"] + ".json"
os.makedirs(os.path.dirname(path), exist_ok=True)
old = json.load(open(path)) if os.path.exists(path) else []
json.dump(old + results, open(path, "w"))
open(os.environ["NOTES"], "a").write(f"{len(vectors)} on {os.environ['TT_VISIBLE_DEVICES']}\n")
"""


def test_the_tt_metal_sweep_runner_is_joined_by_hash_and_a_lost_suite_is_cut_down_to_the_culprit(
    program, collect, notes, tmp_path
):
    """A crash or hang takes a whole suite's results; every other vector is measured all the same, and the chip is reset."""
    program("tests/sweep_framework/sweeps_runner.py", SWEEPS, tmp_path / "metal")
    program("git", 'print("0123abcd")')
    program("tt-smi", 'open(os.environ["NOTES"], "a").write("reset " + sys.argv[2] + chr(10))')
    # As shipped, but for the time that it is given to start: this one starts at once.
    (tmp_path / "quick.toml").write_text(shipped()["tt-metal-sweep"].replace("startup = 120", "startup = 3"))
    widths = [32, 64, 96, 128, 160, 192, 224, 256]
    code, rows, shown = collect(
        "eltwise_unary/single", "--benchmark", "./quick.toml", "--set", f"tt_metal={tmp_path / 'metal'}", "--problems",
        f"grid:dim2=32;dim3={','.join(map(str, widths))};func=exp;buffer=dram", "--vary", "dtype=bf16", "--timeout", "0.2s",
    )  # fmt: skip
    assert code == 0, shown.err
    assert dict(zip(rows["problem.dim3"], rows["status"], strict=True)) == {
        32: "ok", 64: "crash", 96: "timeout", 128: "out_of_memory", 160: "launch_error", 192: "timeout", 224: "launch_error",
        256: "ok",
    }  # fmt: skip
    times = dict(zip(rows["problem.dim3"], rows["time_ns"], strict=True))
    assert (times[32], times[256]) == (320.0, 2560.0)
    assert "no time" in rows.filter(rows["problem.dim3"] == 224)["error"][0]
    assert "reset 0" in notes()
    assert any(line.startswith("2 on 0") for line in notes()), "the good ones went together in the end"


# The reshard module's runner: two files by name, results keyed by vector_id, and a suite's worth of them or nothing.
RESHARD = r"""
a = dict(zip(sys.argv[1:-1:2], sys.argv[2:-1:2]))
(suite, vectors), = json.load(open(a["--read-file"])).items()
assert sys.argv[-1] == "--device-perf" and a["--card"] == os.environ["TT_VISIBLE_DEVICES"]
results = []
for identity, vector in vectors.items():
    height, width = (32 * int(side.split("32 * ")[1].strip("]")) for side in vector["shape"].split(",")[2:])
    assert vector["input_core_grid"] == "ttnn.CoreGrid(x=2, y=4)" and vector["dtype"] == "DataType.BFLOAT16"
    if height == 256: os.kill(os.getpid(), signal.SIGSEGV)
    status = {384: "FAIL_L1_OUT_OF_MEM"}.get(height, "PASS")
    perf = {"DEVICE KERNEL DURATION [ns]": height + (1 if vector["output_shard_strategy"] == "ShardStrategy.WIDTH" else 0)}
    results.append({"vector_id": identity, "suite_name": suite, "status": "TestStatus." + status, "exception": "said " + status,
                    "device_perf": perf if status == "PASS" else None})
json.dump(results, open(a["--result-file"], "w"))
"""


def test_reshards_go_to_the_runner_in_its_own_words(program, collect, tmp_path):
    """Grids, strategies and shapes as the module reads them; results by hash; a crash costs one row."""
    program("tests/sweep_framework/sweeps_runner.py", RESHARD, tmp_path / "metal")
    program("git", 'print("0123abcd")')
    program("tt-smi", "pass")
    (tmp_path / "quick.toml").write_text(shipped()["tt-metal-reshard"].replace("startup = 120", "startup = 3"))
    code, rows, shown = collect(
        "reshard/single", "--benchmark", "./quick.toml", "--set", f"tt_metal={tmp_path / 'metal'}", "--set",
        f"python={sys.executable}", "--problems",
        "grid:height_tiles=4,8,12,16;width_tiles=8;in_x=2;in_y=4;out_x=8;out_y=1;in_strategy=block;out_strategy=width,block",
        "--vary", "dtype=bf16", "--timeout", "0.5s",
    )  # fmt: skip
    assert code == 0, shown.err
    found = rows.select("problem.height_tiles", "problem.out_strategy", "status", "time_ns").sort(
        "problem.height_tiles", "problem.out_strategy"
    )
    assert found.rows() == [
        (4, "block", "ok", 128.0), (4, "width", "ok", 129.0), (8, "block", "crash", None), (8, "width", "crash", None),
        (12, "block", "out_of_memory", None), (12, "width", "out_of_memory", None), (16, "block", "ok", 512.0),
        (16, "width", "ok", 513.0),
    ]  # fmt: skip


# CK's dispatcher, as far as the benchmark calls it: it builds libraries by name, and fixes what it does not like.
DISPATCHER = r"""
import pathlib
class GroupedConvKernelConfig:
    def __init__(self, **values): self.__dict__ |= values
def setup_multiple_grouped_conv_dispatchers(configs, verbose, max_workers):
    folder = pathlib.Path(__file__).parent.parent / "build/examples"
    folder.mkdir(parents=True, exist_ok=True)
    built = []
    for c in configs:
        pipeline = "compv3" if c.variant != "forward" and c.pipeline not in ("compv3", "mem") else c.pipeline
        flags = ("_dsb" if c.double_smem_buffer else "") + ("_si" if c.split_image else "")
        wave, warp = f"{c.wave_m}x{c.wave_n}x{c.wave_k}", f"{c.warp_tile_m}x{c.warp_tile_n}x{c.warp_tile_k}"
        name = f"libdispatcher_conv_{c.variant}_{c.ndim_spatial}d_{c.dtype}_{c.tile_m}x{c.tile_n}x{c.tile_k}_{wave}_{warp}"
        (folder / f"{name}_{pipeline}_{c.scheduler}{flags}.so").write_text(c.arch)
        built.append(folder / name)
    return built
"""
WORKER = r"""
asked = json.load(sys.stdin)
problem, kernel = asked["problem"], asked["kernel_name"]
assert open(asked["so_path"]).read() == "gfx950" and os.environ["GCONV_PYPATH"].endswith("/dispatcher/python")
if problem["N"] == 2: os.kill(os.getpid(), signal.SIGSEGV)
if problem["N"] == 3: print(json.dumps({"idx": 0, "ok": False, "error": "Unsupported arguments", "kernel": kernel})); sys.exit()
zeros = problem["N"] == 4
print(json.dumps({"idx": 0, "ok": True, "ms": 0.5 * problem["stride_h"], "non_zero": 0 if zeros else 9, "kernel": kernel}))
"""


@pytest.fixture
def conv(program, tmp_path):
    """What `--benchmark ck-tile-conv` needs on this machine; a function of the direction."""
    program("hipconfig", 'print("6.4.0")')
    program("git", 'print("0123abcd")')
    program("tile_engine/ops/grouped_conv/run_one_grouped_conv_kernel.py", WORKER, tmp_path / "ck")
    module = tmp_path / "ck/dispatcher/python/grouped_conv_utils.py"
    module.parent.mkdir(parents=True)
    module.write_text(DISPATCHER)
    names = ("mem_interwave_dsb_si", "compv5_intrawave")
    kernels = [parse_conv_kernel(f"grouped_conv_forward_bf16_2d_128x64x128_{name}").config for name in names]
    (tmp_path / "two.json").write_text(json.dumps(kernels))
    return lambda direction: [
        f"grouped_conv_{direction}/ck_tile", "--benchmark", "ck-tile-conv", "--set", f"ck={tmp_path / 'ck'}", "--set",
        f"direction={direction}", "--set", "arch=gfx950", "--set", f"python={sys.executable}", "--vary", "dtype=bf16",
        "--configs", "portfolio:two.json",
    ]  # fmt: skip


def test_ck_convolutions_are_built_by_the_dispatcher_and_timed_by_its_worker(conv, collect):
    """The whole problem reaches the worker; a crash, a refusal and an output of zeros cost one row each; 3-D is refused."""
    sizes = "grid:N=1,2,3,4;C=64;K=64;Hi=14;Wi=14;Y=3;X=3;stride_h=2;pad_h=1"
    code, rows, shown = collect(*conv("forward"), "--problems", sizes)
    assert code == 0, shown.err
    first = rows.filter(rows["config.pipeline"] == "mem").sort("problem.N")
    assert first["status"].to_list() == ["ok", "crash", "launch_error", "wrong_result"]
    assert first["time_ns"][0] == 1_000_000
    assert first["error"][2] == "Unsupported arguments"
    assert json.loads(first["software"][0])["composable_kernel"] == "0123abcd"
    code, rows, shown = collect(*conv("forward"), "--problems", "grid:N=1;C=8;K=8;Di=2;Hi=4;Wi=4;Y=1;X=1", out="deep")
    assert rows["status"].unique().to_list() == ["unsupported"]


def test_a_kernel_that_the_dispatcher_replaces_is_not_measured_under_its_name(conv, collect):
    """Another pipeline than the one asked for is a compile error, not a time."""
    code, rows, shown = collect(*conv("bwd_data"), "--problems", "grid:N=1;C=64;K=64;Hi=14;Wi=14;Y=1;X=1")
    assert code == 0, shown.err
    assert dict(zip(rows["config.pipeline"], rows["status"], strict=True)) == {"mem": "ok", "compv5": "compile_error"}
    other = [text.replace("direction=bwd_weight", "direction=forward") for text in conv("bwd_weight")]
    code, _, shown = collect(*other, "--problems", "wide", out="other")
    assert code == 2
    assert "ck-tile-conv measures grouped_conv_forward/ck_tile, not grouped_conv_bwd_weight/ck_tile" in " ".join(
        shown.err.split()
    )


@pytest.mark.parametrize("name", sorted(shipped()))
def test_shipped_recipes_are_found_by_the_families_they_measure(name):
    """The backend names their families; a benchmark's own name is its file's."""
    given = {"build_dir": "b", "arch": "gfx942", "tt_metal": "t", "ck": "c", "direction": "forward"}
    benchmark = load(name, {key: value for key, value in given.items() if key in tomllib.loads(shipped()[name])["settings"]})
    assert benchmark.name == name
    assert benchmark.family in CommandBackend.families
    assert name in shipped_for(benchmark.family)


def test_every_family_of_the_backend_has_a_recipe():
    """None is promised that nothing measures."""
    assert all(shipped_for(family) for family in CommandBackend.families)
    assert not shipped_for("grouped_conv_forward/cpu")
