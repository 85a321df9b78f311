"""TTNN's ops from a sweep to an answer, through every file that tt-metal's runner reads and writes; the card is simulated."""

import json
import os
import re
import shutil
import stat
import subprocess
import sys
from pathlib import Path

import pytest

from kerncast.core.op import Config, Problem
from kerncast.data import Dataset
from kerncast.data.formats.tt_metal import vectors as modules
from kerncast.data.formats.tt_metal.vectors import problem_of
from kerncast.data.formats.tt_metal.writing import module_vector
from kerncast.library.ops import ttnn_suites
from kerncast.library.registry import FAMILIES
from kerncast.measuring.backends.command import CommandBackend
from kerncast.measuring.backends.command.asking import vector_document
from kerncast.measuring.backends.command.benchmark import load, shipped

RUNNER = Path(__file__).with_name("sweeps_runner.py")
# By family: the op's name as TTNN writes it, its benchmark, its module, axes of a small sweep, and a request.
OPS = {
    "eltwise_unary/single": (
        "ttnn.exp", "tt-metal-sweep", "eltwise.unary.exp.exp", ["dtype=bf16,bfp8", "dim0=1", "dim1=1"],
        {"tensor": {"shape": [96, 640], "dtype": "bfloat16", "memory": {"buffer": "DRAM"}}},
    ),
    "concatenate_heads/single": (
        "ttnn.transformer.concatenate_heads", "tt-metal-concatenate-heads", modules.CONCATENATE_HEADS,
        ["batch=1", "head_dim=64"],
        {"tensor_spec": {"logical_shape": [1, 32, 512, 64],
                         "tensor_layout": {"dtype": 0, "memory_config": {"buffer_type": 0}}},
         "output_memory_config": {"buffer_type": 0}},
    ),
    "create_qkv_heads/single": (
        "ttnn.experimental.create_qkv_heads", "tt-metal-create-qkv-heads", modules.CREATE_QKV_HEADS, ["batch=1", "dtype=bf16"],
        # As the predictor's users write it: without a memory config.
        {"tensor_spec": {"logical_shape": [1, 1, 512, (32 + 2 * 8) * 64], "tensor_layout": {"dtype": 0}}, "num_heads": 32,
         "num_kv_heads": 8, "transpose_k_heads": True},
    ),
    "paged_sdpa_decode/single": (
        "ttnn.transformer.paged_scaled_dot_product_attention_decode", "tt-metal-paged-sdpa-decode", modules.PAGED_SDPA_DECODE,
        ["batch=1,8", "heads=32", "dtype=bf16"],
        {"q": {"shape": [1, 8, 32, 64], "dtype": "bfloat16", "memory": {"buffer": "DRAM"}}, "k": {"shape": [8, 8, 64, 64]},
         "v": {"shape": [8, 8, 64, 64]}, "page_table": {"shape": [8, 2]}, "cur_pos": {"shape": [8]}, "scale": 8.0,
         "is_causal": True, "program_config": {"q_chunk_size": 64, "k_chunk_size": 64, "exp_approx_mode": True}},
    ),
}  # fmt: skip


@pytest.fixture
def metal(tmp_path, monkeypatch):
    """A checkout with the simulated runner, and programs that a benchmark asks for."""
    monkeypatch.chdir(tmp_path)
    home = tmp_path / "metal/tests/sweep_framework"
    home.mkdir(parents=True)
    shutil.copy(RUNNER, home)
    programs = tmp_path / "bin"
    programs.mkdir()
    for name, says in (("git", "0123abcd"), ("tt-smi", "reset")):
        (programs / name).write_text(f"#!/bin/sh\necho {says}\n")
        (programs / name).chmod((programs / name).stat().st_mode | stat.S_IXUSR)
    monkeypatch.setenv("PATH", f"{programs}{os.pathsep}{os.environ['PATH']}")
    monkeypatch.setenv("KERNCAST_STORE", str(tmp_path / "store"))
    return home


def collect(run, family, *more):
    name, benchmark, _, axes, _ = OPS[family]
    vary = [word for axis in axes for word in ("--vary", axis)]
    return run(
        "collect", name, "--benchmark", benchmark, "--set", "tt_metal=metal", "--set", f"python={sys.executable}", "--samples",
        "1", "--problems", "published", *vary, "--max-vectors", "40", "--out", "measured", *more,
    )  # fmt: skip


@pytest.mark.parametrize("family", OPS)
def test_an_op_goes_from_a_sweep_through_the_runners_files_to_an_answer(family, metal, run):
    """Sweep, run, import, train, store, ask in Python and C; measuring through the benchmark file gives the same rows."""
    name, _, module, axes, request = OPS[family]
    vary = [word for axis in axes for word in ("--vary", axis)]
    sweep = ("sweep", name, "--problems", "published", *vary, "--max-vectors", "40", "--device", "wormhole_b0")
    assert run(*sweep, "--format", "tt-sweep", "--out", "swept")[0] == 0
    shutil.copytree("swept/vectors_export", metal / "vectors_export")
    arguments = [
        "--module-name",
        module,
        "--vector-source",
        "vectors_export",
        "--result-dest",
        "results_export",
        "--device-perf",
    ]
    environment = {**os.environ, "ARCH_NAME": "wormhole_b0"}
    program = [sys.executable, metal / "sweeps_runner.py", *arguments]
    subprocess.run(program, check=True, env=environment, capture_output=True)
    code, _, err = run("import", "tt-sweep", metal, "--device", "wormhole_b0", "--out", "imported")
    assert code == 0, err
    imported = Dataset.open("imported").read(family)
    assert imported["status"].to_list() == ["ok"] * 40
    assert json.loads(imported["software"][0]) == {"commit": "0123abc"}
    code, _, err = collect(run, family)
    assert code == 0, err
    measured = Dataset.open("measured").read(family)
    assert measured["error"].unique().to_list() == [None]
    columns = [name for name in measured.columns if name.startswith("problem.")]
    assert sorted(measured.select(*columns, "time_ns").rows(), key=str) == sorted(
        imported.select(*columns, "time_ns").rows(), key=str
    )
    assert run("train", "imported", "--trees", "5", "--folds", "2", "--out", "model")[0] == 0
    assert run("models", "add", "model")[0] == 0
    code, out, err = run("predict", json.dumps({"op": name, "device": "n150", **request}))
    assert code == 0, (out, err)
    answer = json.loads(out)
    assert answer["status"] in ("ok", "out_of_range"), answer
    assert answer["time_ns"] > 0
    assert answer["software"] == "0123abc"
    code, out, err = run("predict", "--no-compile", json.dumps({"op": name, "device": "n150", **request}))
    without = json.loads(out)
    assert {key: value for key, value in without.items() if not key.endswith("_ns")} == {
        key: value for key, value in answer.items() if not key.endswith("_ns")
    }
    assert without["time_ns"] == pytest.approx(answer["time_ns"])
    assert json.loads(run("models", "find", name, "--json")[1])["op"] == family.split("/")[0]


def test_an_exported_model_answers_to_ttnns_names_in_c(metal, run, tmp_path):
    """`ttnn.exp` sets func in C as in Python; another function, and a name that is none, get the same refusals."""
    rows = [f"1,1,32,{32 * place},0,1,1,0,{1000 + 50 * place}" for place in range(1, 60)]
    head = "input_shape_1,input_shape_2,input_shape_3,input_shape_4,bfloat8,bfloat16,input_DRAM,input_L1,kernel_duration"
    Path("exp.csv").write_text("\n".join([head, *rows]))
    assert run("import", "ttnn-csv", "exp.csv", "--set", "func=exp", "--device", "n150", "--out", "exp")[0] == 0
    assert run("train", "exp", "--trees", "5", "--folds", "2", "--out", "model")[0] == 0
    assert run("export", "model", "--to", "c", "--out", "c")[0] == 0
    ask = r"""
#include "kerncast.h"
#include <stdio.h>
#include <string.h>
int main(int count, char **texts) {
    static char reply[8192];
    size_t needed;
    kerncast_context *context;
    if (kerncast_create(&context) != KERNCAST_OK) return 1;
    for (int i = 1; i < count; i++) {
        kerncast_query_json(context, texts[i], strlen(texts[i]), reply, sizeof reply, &needed);
        puts(reply);
    }
    kerncast_destroy(context);
    return 0;
}
"""
    Path("c/ask.c").write_text(ask)
    subprocess.run(["gcc", "-std=c99", "-O0", "-Ic", "-o", "ask", "c/ask.c", "c/kerncast.c", "-lm"], check=True)
    tensor = {"tensor": {"shape": [32, 320], "dtype": "bfloat16", "memory": {"buffer": "DRAM"}}}
    asked = [{"op": name, **tensor} for name in ("exp", "ttnn.exp", "ttnn.trunc", "ttnn.expp")] + [{**tensor, "func": "expp"}]
    texts = [json.dumps(item) for item in asked]
    found = [
        json.loads(line)
        for line in subprocess.run(["./ask", *texts], check=True, capture_output=True, text=True).stdout.splitlines()
    ]
    assert found[0] == found[1]
    assert (found[0]["status"], found[2]["status"], found[3]["status"]) == ("ok", "unsupported", "unsupported")
    assert "eltwise_unary, or one of its 146 other names such as exp, relu, gelu" in found[3]["message"]
    for place in (0, 1, 2, 4):  # an op that does not exist is refused before a model is asked
        text, answer = texts[place], found[place]
        for how in ([], ["--no-compile"]):
            assert json.loads(run("predict", "--model", "model", *how, text)[1]) == answer


def test_a_hang_that_the_runner_misses_costs_one_vector(metal, run, monkeypatch):
    """The vector that was begun is blamed, the others are measured; a crash and a failure cost one row each."""
    quick = shipped()["tt-metal-concatenate-heads"].replace("startup = 120", "startup = 6")
    Path("quick.toml").write_text(quick)
    monkeypatch.setenv("SIMULATE", "hang=[1,24, crash=[1,32, fail=[1,40,")
    code, _, err = run(
        "collect", "concatenate_heads/single", "--benchmark", "./quick.toml", "--set", "tt_metal=metal", "--set",
        f"python={sys.executable}", "--samples", "1", "--timeout", "3s", "--problems",
        "grid:batch=1;heads=16,24,32,40,48;seq_len=32;head_dim=64;buffer=dram", "--vary", "dtype=bf16", "--out", "measured",
    )  # fmt: skip
    assert code == 0, err
    rows = Dataset.open("measured").read()
    assert dict(zip(rows["problem.heads"], rows["status"], strict=True)) == {
        16: "ok", 24: "timeout", 32: "crash", 40: "out_of_memory", 48: "ok",
    }  # fmt: skip


def problems(family):
    """Some problems of the published sweep, of every kind."""
    op = FAMILIES.get(family).op
    for suite in op.sweep("published", {"func": list(modules.UNARY)[::3]} if family.startswith("eltwise") else {}):
        step = max(1, suite.problems.height // 23)
        yield from (Problem(FAMILIES.get(family), row) for row in suite.problems.gather_every(step).iter_rows(named=True))


@pytest.mark.parametrize("family", OPS)
def test_a_vector_is_the_same_in_a_sweep_in_a_benchmark_file_and_in_an_import(family, tmp_path):
    """What a module is asked by the benchmark file evaluates to what a sweep writes; read back, it is the problem."""
    (tmp_path / "tests/sweep_framework").mkdir(parents=True)
    settings = {"tt_metal": str(tmp_path), "python": sys.executable}
    backend = CommandBackend("0", load(OPS[family][1], settings))
    words = type("ttnn", (), {"MathFidelity": type("W", (), {"__getattr__": lambda self, name: f"MathFidelity.{name}"})()})

    def meaning(value):
        if isinstance(value, dict):
            return json.loads(value["data"])
        return value if re.match(r"[A-Z][A-Za-z]+\.", value) else eval(value, {"ttnn": words})

    count = 0
    for problem in problems(family):
        row = problem.as_dict()
        vector = module_vector(family, row)
        found, again = problem_of(vector, vector["sweep_name"])
        assert (found.id, Problem(found, again)) == (family, problem)
        scope = backend.scope((problem, Config(found)), "x", {"verify": True, "cache": "warm"})
        told = vector_document(backend.benchmark.input, scope)
        after = {"suite_name", "validity", "invalid_reason", "status", "input_hash", "sweep_name"}
        assert told["sweep_name"] == vector["sweep_name"]
        own = {name: meaning(value) for name, value in told.items() if name not in after}
        # A config that is not used may say anything.
        unused = set()
        if family.startswith("paged"):
            unused |= set() if row["compute_config"] else {"math_approx_mode", "fp32_dest_acc_en", "packer_l1_acc"}
        written = {name: meaning(value) for name, value in vector.items() if name not in after}
        assert {k: v for k, v in own.items() if k not in unused} == {k: v for k, v in written.items() if k not in unused}
        count += 1
    backend.programs.close()
    assert count > 60


def test_the_published_rules_of_heads_one_problem_at_a_time():
    """Against plain loops over the published lists: which problems fit, and how many there are."""
    wanted = set()
    for batch, heads, length, size in (
        (b, h, s, d)
        for b in (1, 32, 64, 96, 128)
        for h in (16, 24, 32, 40, 48, 52, 64, 80, 96, 128)
        for s in (1, *(2**power for power in range(5, 18)))
        for d in (64, 128)
    ):
        for dtype, factor in (("bf16", 1), ("bfp8", 2)):
            for source, target in (("dram", "dram"), ("dram", "l1"), ("l1", "dram"), ("l1", "l1")):
                most = {"dramdram": 88_080_384, "l1l1": 17_825_792}.get(source + target, 29_360_128) * factor
                if batch * heads * length * size < most:
                    wanted.add((batch, heads, length, size, dtype, source, "input" if source == target else target))
    found = [row for suite in ttnn_suites.concatenate_heads({}) for row in suite.problems.rows()]
    assert len(found) == len(wanted)
    assert set(found) == wanted
    pairs = {(h, k) for h in ttnn_suites.MANY_HEADS for k in ttnn_suites.KV_HEADS if h % k == 0}
    assert sum(suite.problems.height for suite in ttnn_suites.create_qkv_heads({})) == 5 * 13 * 2 * 2 * 2 * len(pairs)
    (one,) = ttnn_suites.create_qkv_heads({"seq_len": [64], "hidden": [3072], "layout": ["row_major"]})
    assert set(one.problems["hidden"]) == {3072}
    assert set(one.problems["layout"]) == {"row_major"}


@pytest.mark.parametrize("name", ["exp", "concatenate-heads", "create-qkv-heads", "paged-sdpa-decode"])
def test_every_op_has_a_routine_that_regenerates_its_model(name, metal, run):
    """One command measures, trains and stores; the setting it lacks is asked for in its own words."""
    code, _, err = run("regenerate", f"ttnn-{name}", "--dry-run")
    assert code == 2
    assert "needs --set collect.settings.tt_metal=…" in err
    given = ["--set", "collect.settings.tt_metal=metal", "--set", f"collect.settings.python={sys.executable}"]
    small = [
        "--set",
        "sweep.max_vectors=40",
        "--set",
        "collect.samples=1",
        "--set",
        "train.knobs={trees = 5}",
        "--set",
        "train.folds=2",
    ]
    if name != "exp":
        if name.startswith("paged"):
            small += ["--set", 'sweep.vary=["heads=32"]']
        code, out, err = run("regenerate", f"ttnn-{name}", *given, *small, "--dry-run", "--json")
        assert code == 0, err
        assert json.loads(out)[0]["vectors"] == 40
        return
    code, out, err = run("regenerate", f"ttnn-{name}", *given, *small, "--out", "work")
    assert code == 0, err
    assert "NEW" in out
    assert run("models", "find", "ttnn.exp")[0] == 0
