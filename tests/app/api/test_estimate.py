"""`kerncast.estimate` and its verb: models where there are some, rooflines elsewhere, and both say which."""

import json
from dataclasses import replace
from pathlib import Path

import polars as pl
import pytest
from example_configs import LLAMA_8B, MIXTRAL_8X7B

import kerncast
from kerncast.errors import InvalidValue, NotFound
from kerncast.library import devices

COLUMNS = ("framework", "version", "device", "op_name", "kernel_source", "gemm_dtype", "m", "n", "k", "latency")
OPTIONS = ("--device", "h100", "--batch", "8", "--context", "1000")


@pytest.fixture(scope="module")
def store(tmp_path_factory):
    """A store with one model: the products of vLLM on an H100, from a table made by rule."""
    folder = tmp_path_factory.mktemp("estimate")
    device = devices.get("h100")
    rows = []
    for m in (1, 8, 64, 4096):
        for n in (1024, 4096, 16384, 131072):
            for k in (1024, 4096, 16384):
                compute, moved = 2 * m * n * k / (device.peak_tflops["bf16"] * 1e3), 2 * (m * k + k * n + m * n)
                ns = 3000 + 1.5 * max(compute, moved / device.numbers["memory_bandwidth_gb_s"])
                path = "torch.nn.functional.linear"
                rows.append(("VLLM", "0.24.0", "NVIDIA H100 80GB HBM3", "gemm", path, "bfloat16", m, n, k, ns / 1e6))
    pl.DataFrame(rows, schema=COLUMNS, orient="row").write_parquet(folder / "gemm_perf.parquet")
    data = kerncast.read(folder / "gemm_perf.parquet", file_format="aiconfigurator", out=folder / "data", progress=False)
    model = kerncast.train(data, out=folder / "model", trees=10, leaves=7, folds=2, threads=1, blend=0, progress=False)
    kerncast.Store.open(folder / "store").add(model)
    return folder / "store"


@pytest.fixture
def config(tmp_path, monkeypatch):
    """A folder with the config of a Llama, and nothing that ships."""
    monkeypatch.setenv("KERNCAST_SHIPPED", str(tmp_path / "nothing"))
    folder = tmp_path / "Llama-8B"
    folder.mkdir()
    (folder / "config.json").write_text(json.dumps(LLAMA_8B))
    return folder


def test_models_answer_where_there_are_some(config, store, run):
    """Products come from the model and say its software, attention from its roofline; Python and the verb agree."""
    found = kerncast.estimate(config, device="h100", batch=8, context=1000, store=store)
    bases = {row.name: row.basis for row in found.rows}
    assert {bases[name] for name in ("qkv", "o", "gate and up", "down", "lm_head")} == {"model"}
    assert bases["attention"] == bases["norm"] == "roofline"
    assert {row.software for row in found.rows if row.op == "gemm"} == {"vllm==0.24.0"}
    code, out, err = run("estimate", config, *OPTIONS, "--store", store, "--json")
    assert (code, err) == (0, "")
    assert json.loads(out) == found.as_json()
    code, out, _ = run("estimate", config, *OPTIONS, "--store", store)
    assert code == 0
    assert out.splitlines()[0] == "Llama-8B on 1 GPU (h100, tp 1), decode: batch 8, context 1,000"
    assert "not in the time: scheduling" in out
    code, out, _ = run("estimate", config, *OPTIONS, "--store", store, "--software", "trtllm")
    assert code == 0
    assert "trtllm" in out


def test_all_devices_are_compared(config, run):
    """Every GPU with a profile is there or says why not; the fastest is first."""
    code, out, err = run("estimate", config, "--device", "all", "--context", "512", "--json")
    assert code == 0, err
    document = json.loads(out)
    steps = [item["step_ns"] for item in document["estimates"]]
    assert steps == sorted(steps)
    named = {item["device"] for item in document["estimates"]} | set(document["refused"])
    assert {"h100", "h200", "b200", "mi300x", "l4"} <= named
    code, out, _ = run("estimate", config, "--device", "all", "--context", "512")
    assert code == 0
    assert any(line.startswith("by roofline alone") and "b200" in line for line in out.splitlines())


def test_a_profile_of_ones_own(config, tmp_path):
    """A TOML file is enough; a device without links still gets an answer that says what is left out."""
    profile = tmp_path / "mine.toml"
    number = '{ value = 1000, source = "me" }'
    profile.write_text(
        f'name = "mine"\ntitle = "My GPU"\nkind = "gpu"\n[numbers]\nmemory_bandwidth_gb_s = {number}\n'
        f"[peak_tflops]\nbf16 = {number}\n"
    )
    found = kerncast.estimate(config, device=profile, tp=2, context=100)
    assert found.device == "mine"
    assert found.memory.fits is None
    assert "the profile of mine does not say how much it has" in repr(found)
    assert "link_bandwidth_gb_s" in repr(found)
    as_object = kerncast.estimate(LLAMA_8B, device=devices.get(str(profile)), tp=2, context=100)
    assert as_object.step_ns == found.step_ns


def test_options_change_what_they_name(config):
    """Narrower weights are less to read, a narrower cache too, launches add, experts may be unbalanced."""

    def step(given=config, **options):
        return kerncast.estimate(given, **{"device": "h200", "batch": 64, "context": 4096, **options})

    plain = step()
    assert step(dtype="fp8").step_ns < plain.step_ns
    assert step(kv_dtype="fp8").step_ns < plain.step_ns
    assert step(kv_dtype="fp8").memory.cache_bytes == plain.memory.cache_bytes / 2
    assert step(graphs=False).step_ns > plain.step_ns
    assert step(graphs=False, launch_us=50).step_ns > step(graphs=False).step_ns
    assert step(phase="prefill").step_ns > plain.step_ns
    assert step(tp=4).step_ns < plain.step_ns
    moe = next(row for row in step(MIXTRAL_8X7B, imbalance=1.2).rows if row.op == "moe")
    assert moe.problem["imbalance"] == 120


@pytest.mark.parametrize(
    ("options", "message"),
    [
        (("--tp", "3"), "kerncast: --tp 3 must divide attention heads, 32: take one of 1, 2, 4, 8, 16, 32"),
        (("--ep", "2"), "kerncast: --ep 2 divides experts, and Llama-8B has none: leave it out"),
        (("--batch", "0"), "kerncast: --batch must be a whole number from 1 to 2,147,483,647, got 0"),
        (("--phase", "x"), "kerncast: --phase must be prefill or decode, got 'x'"),
        (("--dtype", "w4afp8"), "kerncast: --dtype w4afp8 is a format of experts"),
        (("--imbalance", "nan"), "kerncast: --imbalance must be from 0 to 10, got nan"),
        (("--no-graphs", "--launch-us", "-1"), "kerncast: --launch-us must be above 0"),
        (("--launch-us", "7"), "kerncast: --launch-us counts only with --no-graphs"),
        (("--imbalance", "1.2"), "kerncast: --imbalance 1.2 is about experts, and Llama-8B has none: leave it out"),
        (("--device", "h300"), "kerncast: unknown device 'h300'"),
    ],
)
def test_refusals_name_the_option(config, run, options, message):
    """One sentence in the words of the command line, and exit code 2; with --json an object."""
    code, out, err = run("estimate", config, *OPTIONS, *options, "--json")
    assert code == 2, out
    assert err.startswith(message)
    assert json.loads(out)["error"]


def test_a_wrong_place_or_device_is_said_first(config):
    """Before anything is estimated."""
    with pytest.raises(NotFound, match="there is no"):
        kerncast.estimate(Path("nowhere"), device="h100", context=10)
    with pytest.raises(InvalidValue, match="`device` is a name"):
        kerncast.estimate(config, device=3, context=10)


def test_communication_may_be_of_a_library_that_servers_share(config, monkeypatch):
    """What no model of the asked server knows of communication is asked of all models; other ops are not."""
    from kerncast.app.api import estimate as module

    asked = []

    def predict(op, problems, *, software=None, **others):
        asked.append((op, software))
        known = software is None
        return [
            kerncast.predict(op, problem, **others) if not known else _of_nccl(kerncast.predict(op, problem, **others))
            for problem in problems
        ]

    monkeypatch.setattr(module, "predict", predict)
    found = kerncast.estimate(config, device="h100", tp=2, context=100, software="vllm", progress=False)
    assert {op for op, software in asked if software is None} == {"all_reduce", "all_gather"}
    assert {row.software for row in found.rows if row.op == "all_reduce"} == {"nccl==2.28"}
    assert {row.basis for row in found.rows if row.op == "gemm"} == {"roofline"}


def _of_nccl(answer):
    return replace(answer, basis="model", time_ns=9000.0, lower_ns=8000.0, upper_ns=9999.0, software="nccl==2.28")
