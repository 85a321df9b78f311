"""Listening to torch.compile: every autotune is a line of a log, and a row where a family has the kernel."""

import math
import os
import signal
import subprocess
import sys
import textwrap
import threading
import time
from pathlib import Path
from types import SimpleNamespace

import pytest

import kerncast as kc
from kerncast.core.io.lock import claimed
from kerncast.data import Dataset
from kerncast.errors import InvalidValue
from kerncast.measuring.backends.cpu import CpuBackend
from kerncast.torch import observe, observed_rows, observing
from kerncast.torch.observed_log import FOLDER, ObservedLog
from kerncast.torch.observed_rows import CACHED, Gathered, gather

pytestmark = pytest.mark.needs("torch")
ROOT = Path(kc.__file__).parents[1]
PROGRAM = """
    import torch, torch._inductor.config as config
    config.max_autotune, config.max_autotune_gemm_backends = True, "CPP,ATEN"
    torch.set_num_threads(1)
    model, x = torch.nn.Linear(40, 24, bias=False).eval(), torch.randn(5, 40)
    with torch.no_grad():
        torch.testing.assert_close(torch.compile(model)(x), model(x))
    from torch._inductor.select_algorithm import AlgorithmSelectorCache
    assert AlgorithmSelectorCache.__init__.__name__ == "__init__"
"""
GPU = {"name": "NVIDIA H100 80GB HBM3", "multi_processor_count": 132, "warp_size": 32, "total_memory": 85_000_000_000}


@pytest.fixture(scope="module")
def observed(inductor_cache, tmp_path_factory):
    """What a program that knows nothing of kerncast leaves: the one real compilation of this file."""
    folder = tmp_path_factory.mktemp("observed")
    variables = {
        "KERNCAST_OBSERVE": str(folder / "data"),
        "TORCHINDUCTOR_CACHE_DIR": str(inductor_cache),
        "TORCHINDUCTOR_FREEZING": "1",
        "PYTHONPATH": str(ROOT),
    }
    done = run(PROGRAM, **variables)
    assert done.returncode == 0, done.stderr
    return folder / "data"


def run(program, *arguments, **variables):
    return subprocess.run(
        [sys.executable, "-c", textwrap.dedent(program), *map(str, arguments)],
        env={**os.environ, "OMP_NUM_THREADS": "1", **variables}, capture_output=True, text=True, timeout=600, check=False,
    )  # fmt: skip


def whole(path):
    """Whether verify finds neither a fault nor a file that it does not know."""
    verified = kc.inspect(path, verify=True, progress=False)
    (checked,), others = verified.artefacts, verified.unknown
    return (checked.faults, checked.notes, others) == ((), (), ())


def test_a_program_that_one_cannot_edit_leaves_a_dataset(observed):
    """The variable alone: both choices are rows as the `inductor` backend writes them, and verify finds nothing wrong."""
    rows = Dataset.open(observed).read()
    assert sorted(rows["config.kind"]) == ["aten", "default"]
    assert set(rows["status"]) == {"ok"}
    assert rows.select("problem.M", "problem.N", "problem.K", "problem.threads").unique().rows() == [(5, 24, 40, 1)]
    assert set(rows["device"]) == {CpuBackend().device().name}
    assert set(rows["backend"]) == {"torch.compile"}
    assert all(f'"{name}"' in rows["software"][0] for name in ("torch", "isa", "compiler"))
    assert (rows["time_ns"] > 0).all()
    assert whole(observed)
    assert Dataset.open(observed).device(rows["device"][0]).peak_tflops


def test_software_is_what_the_backend_says(observed):
    """Rows that were listened to and rows that were collected agree about torch, instruction set and compiler."""
    from kerncast.data.journal import software_text
    from kerncast.measuring.backends.inductor.build import cpu_software

    rows = Dataset.open(observed).read()
    assert set(rows["software"]) == {software_text(cpu_software())}


# -- the function that Inductor calls ------------------------------------------------------------------


class Node:
    def __init__(self, size, stride, dtype="torch.float32", device="cpu"):
        self.size, self.stride, self.dtype, self.device = size, stride, dtype, device

    def get_size(self):
        return self.size

    def get_stride(self):
        return self.stride

    def get_dtype(self):
        return self.dtype

    def get_device(self):
        return self.device


class Choice:
    def __init__(self, name, layout, **more):
        self.name, self.layout, self.description = name, layout, ""
        vars(self).update(more)

    def benchmark(self):
        raise AssertionError


class ExternKernelCaller(Choice):
    pass


class CppTemplateCaller(Choice):
    pass


class TritonTemplateCaller(Choice):
    pass


class SubgraphChoiceCaller(Choice):
    pass


class CppGemmTemplate:
    def __init__(self, **more):
        vars(self).update({"has_bias": False, "alpha": 1, "beta": 1, "num_threads": 2, "epilogue_creator": None, **more})


class Wrapper:
    def __init__(self, inner):
        self._wrapped = inner

    def __getattr__(self, name):
        return getattr(self._wrapped, name)


def autotuned(timings, name, nodes, *rest, measured=True):
    """What Inductor does at the end of an autotune, in a function with its variable."""
    from torch._inductor.select_algorithm import get_algorithm_selector_cache

    has_autotuned = measured
    for function in get_algorithm_selector_cache().feedback_saver_fns:
        function(timings, name, nodes, list(timings), *rest)
    return has_autotuned


def linear(m=6, k=48, n=32, lda=48, dtype="torch.float32"):
    """X, packed W, W and the layout of Y of a frozen `nn.Linear`."""
    nodes = [Node([m, k], [lda, 1], dtype), Node([1459233, 1], [1, 0], dtype), Node([n, k], [k, 1], dtype)]
    return nodes, SimpleNamespace(size=[m, n], stride=[n, 1], dtype=dtype, device="cpu")


def cpu_choices(layout, times=(0.002, 0.001, 0.004), **kernel):
    tile = {"mr": 4, "nr": 16, "mc": 0, "kc": 0, "split": "default"}
    default = Wrapper(CppTemplateCaller("cpp_0", layout, template=CppGemmTemplate(**kernel)))
    given = Wrapper(CppTemplateCaller("cpp_1", layout, template=CppGemmTemplate(kerncast_config=tile, **kernel)))
    return dict(zip((default, given, ExternKernelCaller("_mkl_linear", layout, kwargs={"B": None})), times, strict=True))


@pytest.mark.parametrize("extra", [(), (None,), (None, {})])
def test_every_version_of_the_call_is_heard(tmp_path, extra):
    """4, 5 and 6 arguments; a default, a tile of kerncast and ATen; gaps in A; what failed is a row that says so."""
    nodes, layout = linear(lda=64)
    with observe(tmp_path / "data") as seen:
        autotuned(cpu_choices(layout, (0.002, math.inf, 0.004)), "packed_linear", nodes, *extra)
    rows = Dataset.open(tmp_path / "data").read().sort("order")
    assert rows["config.kind"].to_list() == ["default", "tile", "aten"]
    assert rows["status"].to_list() == ["ok", "launch_error", "ok"]
    assert rows["time_ns"].to_list() == [2000.0, None, 4000.0]
    assert rows.row(0, named=True)["problem.lda"] == 64
    assert set(rows["problem.threads"]) == {2}
    assert seen.gathered.rows == {"gemm/inductor_cpp": 3}
    assert "3 rows of gemm/inductor_cpp" in repr(seen)


def test_what_no_family_has_stays_in_the_log(tmp_path):
    """A dynamic shape, a batch, fp16, strides of neither order, a scaled sum, a convolution: counted, and lost nowhere."""
    nodes, layout = linear()
    half, half_layout = linear(dtype="torch.float16")
    dynamic = [Node(["s0", 48], [48, 1]), *nodes[1:]]
    strided = [Node([6, 48], [96, 2]), *nodes[1:]]
    batch = SimpleNamespace(size=[4, 6, 32], stride=[192, 32, 1], dtype="torch.float32", device="cpu")
    with observe(tmp_path / "data") as seen:
        for given in (dynamic, strided):
            autotuned(cpu_choices(layout), "packed_linear", given)
        autotuned(cpu_choices(half_layout), "packed_linear", half)
        autotuned(cpu_choices(layout, alpha=2), "packed_linear", nodes)
        autotuned(cpu_choices(batch), "bmm", [Node([4, 6, 48], [288, 48, 1]), Node([4, 48, 32], [1536, 32, 1])])
        autotuned(cpu_choices(layout), "convolution", nodes)
    assert seen.gathered.rows == {}
    assert (seen.gathered.autotunes, sum(seen.gathered.left_out.values())) == (6, 18)
    (log,) = (tmp_path / "data" / FOLDER).iterdir()
    assert len(log.read_text().splitlines()) == 7
    assert '"s0"' in log.read_text()


def test_bias_and_activation_are_read(tmp_path):
    """addmm's vector is a bias, oneDNN's attribute an activation; a matrix that is added is neither."""
    from kerncast.library.families.torch_products import gemm_problem
    from kerncast.torch.describing import describe_choice, describe_inputs, describe_tensor

    nodes, layout = linear()
    x, _, w = nodes
    transposed = Node([48, 32], [1, 48])
    output = describe_tensor(layout)
    added = {name: describe_inputs([node, x, transposed]) for name, node in
             (("vector", Node([6, 32], [0, 1])), ("matrix", Node([6, 32], [32, 1])))}  # fmt: skip
    found = gemm_problem("addmm", added["vector"], output)
    assert (found["layout"], found["bias"]) == ("rcr", True)
    assert "vector of N" in gemm_problem("addmm", added["matrix"], output)
    relu = describe_choice(ExternKernelCaller("_linear_pointwise", layout, kwargs={"attr": "relu", "algorithm": ""}))
    found = gemm_problem("linear_unary", describe_inputs([x, w, Node([32], [1])]), output, [relu])
    assert (found["bias"], found["activation"]) == (True, "relu")
    with observe(tmp_path / "data") as seen:
        autotuned(cpu_choices(layout), "addmm", [Node([6, 32], [0, 1]), x, transposed])
    assert sum(seen.gathered.rows.values()) + sum(seen.gathered.left_out.values()) == 3


def test_times_from_inductors_cache_are_not_measurements(tmp_path):
    """They are in the log, marked, and not in the rows; `again` turns that cache off while it listens."""
    from torch._inductor import config

    nodes, layout = linear()
    before = config.autotune_local_cache
    with observe(tmp_path / "data", again=True) as seen:
        assert not config.autotune_local_cache
        autotuned(cpu_choices(layout), "packed_linear", nodes, measured=False)
    assert config.autotune_local_cache == before
    assert (seen.gathered.rows, seen.gathered.left_out) == ({}, {CACHED: 3})


def test_nothing_that_goes_wrong_reaches_the_compiler(tmp_path, caplog):
    """Objects that raise whatever they are asked, a folder that cannot be written: one line is logged, and no more."""

    class Broken:
        def __getattr__(self, name):
            raise RuntimeError("broken")

    _, layout = linear()
    with observe(tmp_path / "data") as seen:
        autotuned({Broken(): 1.0, **cpu_choices(layout)}, "packed_linear", [Broken()])
        autotuned(None or {}, "mm", None)
        autotuned({}, "mm", None)
        (tmp_path / "data").mkdir(exist_ok=True)
    assert len([record for record in caplog.records if "not recorded" in record.message]) == 1
    assert seen.gathered.rows == {}


def test_others_who_listen_are_left_alone(tmp_path):
    """Only our own function is removed; two observers of one path record once, and the inner one makes rows at its end."""
    from torch._inductor.select_algorithm import get_algorithm_selector_cache

    heard = []
    other = lambda *arguments: heard.append(arguments)  # noqa: E731
    cache = get_algorithm_selector_cache()
    cache.add_feedback_saver(other)
    nodes, layout = linear()
    try:
        outer = observe(tmp_path / "data").start()
        with observe(tmp_path / "data"):
            autotuned(cpu_choices(layout), "packed_linear", nodes)
        assert Dataset.open(tmp_path / "data").rows == 3
        autotuned(cpu_choices(layout), "packed_linear", nodes)
        outer.stop()
        autotuned(cpu_choices(layout), "packed_linear", nodes)
        assert cache.feedback_saver_fns == [other]
    finally:
        cache.feedback_saver_fns.remove(other)
    assert len(heard) == 3
    assert Dataset.open(tmp_path / "data").rows == 6
    assert whole(tmp_path / "data")


def test_threads_that_begin_at_once_record_once(tmp_path):
    """However many threads ask for one path at the same moment: one function listens, and none is left when all have ended."""
    from torch._inductor.select_algorithm import get_algorithm_selector_cache

    nodes, layout = linear()
    before = list(get_algorithm_selector_cache().feedback_saver_fns)
    begin, heard, end = (threading.Barrier(9) for _ in range(3))

    def listen():
        begin.wait(60)
        observer = observe(tmp_path / "data").start()
        heard.wait(60)
        end.wait(60)
        observer.stop()

    original = observing._Listener.__init__

    def slow(self, path):  # so that all of them are between looking and finding
        original(self, path)
        time.sleep(0.05)

    threads = [threading.Thread(target=listen) for _ in range(8)]
    with pytest.MonkeyPatch.context() as patched:
        patched.setattr(observing._Listener, "__init__", slow)
        for thread in threads:
            thread.start()
        begin.wait(60)
        heard.wait(60)
    autotuned(cpu_choices(layout), "packed_linear", nodes)
    end.wait(60)
    for thread in threads:
        thread.join(60)
    gather(tmp_path / "data")
    assert Dataset.open(tmp_path / "data").rows == 3
    assert get_algorithm_selector_cache().feedback_saver_fns == before
    assert observing._LISTENING == {}


def test_an_end_that_fails_does_not_fail_the_program(tmp_path, monkeypatch, caplog):
    """Whatever making rows raises is one line of the log, with where the times are; control characters are escaped."""
    nodes, layout = linear()
    monkeypatch.setattr(observed_rows, "gather", lambda path: 1 / 0)
    with observe(tmp_path / "da\x1b[31mta"):
        autotuned(cpu_choices(layout), "packed_linear", nodes)
    (record,) = caplog.records
    assert record.getMessage().startswith("what torch.compile timed stays in ")
    assert "da\\x1b[31mta" in record.getMessage()


def test_what_was_left_out_is_said_with_its_reason(tmp_path):
    """Nothing became rows: the text names why, most frequent first, without a control character."""
    nodes, layout = linear()
    with observe(tmp_path / "data") as seen:
        autotuned(cpu_choices(layout), "packed_linear", nodes, measured=False)
    assert str(seen.gathered) == f"1 autotune: no rows, 3 choices only in the log ({CACHED})"
    several = Gathered({"gemm/inductor_cpp": 1}, 2, {"rare": 1, "often\x1b[31m": 2})
    assert str(several) == ("2 autotunes: 1 row of gemm/inductor_cpp, 3 choices only in the log (mostly: often\\x1b[31m)")


def test_a_path_that_is_something_else_is_refused(tmp_path):
    """Before anything is compiled: a file, or a folder of something else; an empty folder will do, and one in which another
    process is making the dataset right now."""
    (tmp_path / "file").write_text("")
    for path in (tmp_path / "file", tmp_path):
        with pytest.raises(InvalidValue, match="dataset"):
            observe(path).start()
    (tmp_path / "empty").mkdir()
    (tmp_path / "empty" / ".dataset.json.123.0.kerncast").write_text("")
    with observe(tmp_path / "empty"):
        pass
    assert Dataset.open(tmp_path / "empty").rows == 0
    assert observing._LISTENING == {}


# -- GPUs ----------------------------------------------------------------------------------------------


def gpu_node(size, stride):
    return Node(size, stride, "torch.float16", "cuda:0")


def tile(layout, template="mm", **more):
    sizes = {
        "BLOCK_M": 64,
        "BLOCK_N": 128,
        "BLOCK_K": 32,
        "num_stages": 3,
        "num_warps": 4,
        "GROUP_M": 8,
        "EVEN_K": True,
        **more,
    }
    source = SimpleNamespace(
        template=SimpleNamespace(uid=f"triton::{template}"), params=SimpleNamespace(to_serializeable_dict=lambda: sizes)
    )
    return TritonTemplateCaller(f"triton_{template}_7", layout, annotations={"ktc": source})


def test_triton_on_a_gpu(tmp_path, monkeypatch):
    """Templates as torch keeps them today and as it described them before, the library; other kernels stay in the log."""
    monkeypatch.setattr(observing, "gpu", lambda device: GPU)
    layout = SimpleNamespace(size=[512, 256], stride=[256, 1], dtype="torch.float16", device="cuda:0")
    older = TritonTemplateCaller("triton_mm_3", layout)
    older.description = "ACC_TYPE='tl.float32', ALLOW_TF32=False, BLOCK_K=64, BLOCK_M=128, BLOCK_N=64, GROUP_M=8"
    older.info_dict = lambda: {"tile_shape": "(128, 64, 64)", "num_stages": 4, "num_warps": 8, "backend": "Triton"}
    timings = {
        ExternKernelCaller("addmm", layout, kwargs={"alpha": 1, "beta": 1}): 0.02,
        ExternKernelCaller("bias_addmm", layout, kwargs={"alpha": 1, "beta": 1}): 0.03,
        tile(layout): 0.025,
        older: math.inf,
        tile(layout, num_stages=99): 0.1,
        SubgraphChoiceCaller("decompose_k_mm", layout): 0.05,
    }
    nodes = [gpu_node([512, 256], [0, 1]), gpu_node([512, 1024], [1024, 1]), gpu_node([1024, 256], [1, 1024])]
    with observe(tmp_path / "data") as seen:
        autotuned(timings, "addmm", nodes)
    rows = Dataset.open(tmp_path / "data").read().sort("order")
    assert seen.gathered.rows == {"gemm/triton": 3}
    assert rows["config.kind"].to_list() == ["library", "triton", "triton"]
    assert rows["status"].to_list() == ["ok", "ok", "launch_error"]
    assert rows["config.BLOCK_M"].to_list() == [None, 64, 128]
    assert (set(rows["device"]), set(rows["problem.layout"]), set(rows["problem.bias"])) == ({"h100"}, {"rcr"}, {True})
    assert sum(seen.gathered.left_out.values()) == 3


def test_flex_attention(tmp_path, monkeypatch):
    """The size of the score function is read from the lowering that waits for the choice; without it there is no row."""
    monkeypatch.setattr(observing, "gpu", lambda device: GPU)
    size, stride = [2, 8, 128, 64], [65536, 8192, 64, 1]
    layout = SimpleNamespace(size=size, stride=stride, dtype="torch.float16", device="cuda:0")
    nodes = [gpu_node(size, stride)] * 3
    placeholders = [SimpleNamespace(op="placeholder", users=users) for users in ({1: 1}, {}, {}, {1: 1}, {1: 1})]
    graph = SimpleNamespace(nodes=[*placeholders, SimpleNamespace(op="call_function", users={}), SimpleNamespace(op="output")])

    def flex_attention(subgraph):
        choice = TritonTemplateCaller("triton_flex_attention_0", layout)
        choice.info_dict = lambda: {
            "tile_shape": "(128, -1, 32)",
            "BLOCK_M": 128,
            "BLOCK_N": 32,
            "num_stages": 3,
            "num_warps": 4,
        }
        autotuned({choice: 0.5}, "flex_attention", nodes)
        return subgraph

    with observe(tmp_path / "data") as seen:
        flex_attention(SimpleNamespace(graph_module=SimpleNamespace(graph=graph)))
        flex_attention(None)
    (row,) = Dataset.open(tmp_path / "data").read("flex_attention/triton").to_dicts()
    assert (row["problem.mod_nodes"], row["problem.mod_args"], row["problem.q_layout"]) == (7, 3, "bhmd")
    assert (row["config.BLOCK_M"], row["config.BLOCK_N"], row["time_ns"]) == (128, 32, 500_000.0)
    assert sum(seen.gathered.left_out.values()) == 1


# -- processes -----------------------------------------------------------------------------------------

WRITER = """
    import json, os, signal, sys
    from pathlib import Path
    from kerncast.torch.observed_log import ObservedLog
    path, header, record, ending = Path(sys.argv[1]), *map(json.loads, sys.argv[2:4]), sys.argv[4]
    log = ObservedLog(path, header)
    for _ in range(20):
        log.write(record)
    print(flush=True)
    sys.stdin.readline()
    if ending == "killed":
        os.write(log._fd, b'00000000 {"op": "cut o')
        os.kill(os.getpid(), signal.SIGKILL)
    log.close()
    from kerncast.torch.observed_rows import gather
    gather(path)
"""


@pytest.fixture
def raw(tmp_path):
    """A header and a record as the function writes them."""
    import json

    nodes, layout = linear()
    with observe(tmp_path / "sample"):
        autotuned(cpu_choices(layout), "packed_linear", nodes)
    (log,) = (tmp_path / "sample" / FOLDER).iterdir()
    return tuple(line.partition(" ")[2] for line in log.read_text().splitlines()), json


def test_processes_write_at_once_and_the_killed_are_not_lost(tmp_path, raw):
    """Two end at the same time, one is killed in the middle of a line: all their rows are there, each once."""
    (header, record), _ = raw
    path = tmp_path / "data"
    started = [
        subprocess.Popen(
            [sys.executable, "-c", textwrap.dedent(WRITER), str(path), header, record, ending],
            stdin=subprocess.PIPE,
            stdout=subprocess.PIPE,
            text=True,
            env={**os.environ, "PYTHONPATH": str(ROOT)},
        )
        for ending in ("killed", "ended", "ended")
    ]
    for process in started:
        process.stdout.readline()
    assert gather(path).autotunes == 0  # nobody has ended yet
    for process in started:
        process.stdin.write("\n")
        process.stdin.close()
    codes = [process.wait(timeout=600) for process in started]
    for process in started:
        process.stdout.close()
    assert codes == [-signal.SIGKILL, 0, 0]
    gather(path)
    assert Dataset.open(path).rows == 3 * 20 * 3
    assert whole(path)


def test_a_log_that_is_read_again_adds_nothing(tmp_path, raw):
    """A crash between the rows and the mark of the log; and on request, for a kerncast that represents more."""
    (header, record), json = raw
    log = ObservedLog(tmp_path / "data", json.loads(header))
    log.write(json.loads(record))
    log.close()
    assert gather(tmp_path / "data").rows == {"gemm/inductor_cpp": 3}
    (kept,) = (tmp_path / "data" / FOLDER).iterdir()
    kept.rename(kept.with_name(kept.name.replace("kept-", "run-")))
    assert gather(tmp_path / "data").rows == {}
    assert gather(tmp_path / "data", again=True).rows == {}
    assert Dataset.open(tmp_path / "data").rows == 3


def test_hostile_logs(tmp_path, raw):
    """Damaged lines, values of other kinds, another machine's log, a link: the good records count, and nothing is raised."""
    (header, record), json = raw
    good = json.loads(record)
    odd = [{}, {"op": 1}, {**good, "inputs": [{"size": "x"}] * 3}, {**good, "choices": [1]}, {**good, "output": {}},
           {**good, "at": 1e300}, {**good, "choices": [{**good["choices"][0], "ms": -1.0}]}]  # fmt: skip
    log = ObservedLog(tmp_path / "data", json.loads(header))
    for item in [*odd, good]:
        log.write(item)
    os.write(log._fd, b"\xff\x00 not a line\n")
    log.write(good)
    log.close()
    elsewhere = ObservedLog(tmp_path / "data", {"cpu": {"name": "another_cpu-1c-avx2"}})
    elsewhere.write(good)
    elsewhere.close()
    (tmp_path / "data" / FOLDER / f"run-{0:016x}.jsonl").symlink_to(tmp_path / "nowhere")
    found = gather(tmp_path / "data")
    assert found.rows == {"gemm/inductor_cpp": 6}
    assert sorted(path.name[:4] for path in (tmp_path / "data" / FOLDER).iterdir()) == ["kept", "run-", "run-"]
    assert gather(tmp_path / "data").rows == {}


def test_a_forked_process_writes_a_file_of_its_own(tmp_path, raw):
    """The parent's file and its lock stay the parent's."""
    (header, record), json = raw
    log = ObservedLog(tmp_path / "data", json.loads(header))
    log.write(json.loads(record))
    child = ObservedLog.__new__(ObservedLog)
    vars(child).update(vars(log) | {"_pid": -1})  # as after a fork
    child.write(json.loads(record))
    child.close()
    assert gather(tmp_path / "data").autotunes == 1
    log.close()
    assert gather(tmp_path / "data").autotunes == 1


@pytest.mark.filterwarnings("ignore:.*fork:DeprecationWarning")
def test_a_living_child_does_not_keep_the_log(tmp_path):
    """What a process recorded becomes rows when it ends its log, although a process that it forked is still there."""
    log = ObservedLog(tmp_path / "data", {"cpu": {"name": "some_cpu"}})
    log.write({"op": "mm"})
    (file,) = (tmp_path / "data").rglob("*.jsonl")
    child = os.fork()
    if child == 0:
        signal.pause()
    try:
        log.close()
        fd = claimed(file)
        assert fd is not None
        os.close(fd)
    finally:
        os.kill(child, signal.SIGKILL)
        os.waitpid(child, 0)
