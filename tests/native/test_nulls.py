"""NULL is treated alike at every entry point of the exported C."""

import json
import re
import subprocess
from pathlib import Path

import numpy as np
import polars as pl
import pytest

from kerncast.answering.exporters.project import write_project
from kerncast.data import schema
from kerncast.library.registry import FAMILIES
from kerncast.native.lower import lower
from kerncast.native.tiers.build import TierOptions, build_tiers, plain_tiers
from kerncast.testing.exported import COMPILERS, EACH_COMPILER, LEVEL, SANITIZED, STRICT
from kerncast.testing.models import synthetic_dataset, synthetic_rows
from kerncast.training.procedure import Recipe
from kerncast.training.train import train

PROGRAM = Path(__file__).with_name("nulls.c")
pytestmark = pytest.mark.needs("a C compiler")


def gemm(folder):
    """Many configs, a tree."""
    model = train(synthetic_dataset(folder / "d", synthetic_rows(problems=25)), folder / "m", Recipe("roofline", folds=2))
    fields = {"M": 1024, "N": 512, "K": 768, "dtype": "KERNCAST_DTYPE_FP16", "layout": "KERNCAST_LAYOUT_RCR"}
    asked = {"M": 1024, "N": 512, "K": 768, "dtype": "fp16", "layout": "rcr"}
    return lower(model, build_tiers(model, TierOptions(samples=50))), fields, asked


def exp(folder):
    """Nothing to choose: problems are answered 64 at a time."""
    sides = 32 * np.random.default_rng(0).integers(1, 64, (60, 2))
    rows = pl.DataFrame(
        {"problem.func": "exp", "problem.dim2": sides[:, 0], "problem.dim3": sides[:, 1], "problem.dtype": "bf16",
         "problem.buffer": "l1", "device": "wormhole_b0", "status": "ok", "time_ns": 900.0 + 0.01 * sides[:, 0] * sides[:, 1]}
    )  # fmt: skip
    family = FAMILIES.get("eltwise_unary/single")
    data = synthetic_dataset(folder / "d", schema.conform(family, rows), family)
    model = train(data, folder / "m", Recipe("gbdt", {"trees": 5}, folds=2))
    fields = {
        "func": "KERNCAST_FUNC_EXP",
        "dim2": 320,
        "dim3": 640,
        "dtype": "KERNCAST_DTYPE_BF16",
        "buffer": "KERNCAST_BUFFER_L1",
    }
    asked = {"op": "exp", "dim2": 320, "dim3": 640, "dtype": "bf16", "buffer": "l1"}
    return lower(model, plain_tiers(model), ["portfolio", "full"]), fields, asked


@pytest.mark.parametrize("compiler", EACH_COMPILER)
@pytest.mark.parametrize("family", [gemm, exp])
def test_null_gives_bad_input_everywhere_and_nothing_is_read_or_written(family, compiler, tmp_path):
    """Warnings as errors, addresses and undefined behaviour watched."""
    artefact, fields, asked = family(tmp_path)
    write_project(artefact, tmp_path / "c", "kerncast")
    problem = " ".join(f"problem.{name} = {value};" for name, value in fields.items())
    source = PROGRAM.read_text().replace("    PROBLEM\n", f"    {problem}\n")
    quoted = json.dumps(json.dumps(asked))
    (tmp_path / "c" / "nulls.c").write_text(f"#define QUERY {quoted}\n{source}")
    files = [str(tmp_path / "c" / name) for name in ("kerncast.c", "nulls.c")]
    subprocess.run([compiler, *STRICT, LEVEL, *SANITIZED, *files, "-o", str(tmp_path / "nulls"), "-lm"], check=True)
    done = subprocess.run([tmp_path / "nulls"], capture_output=True, text=True)
    assert (done.returncode, done.stdout, done.stderr) == (0, "", "")


def tree(folder):
    """Only a tree: no model, no pools."""
    artefact, fields, asked = gemm(folder)
    return lower(artefact.model, build_tiers(artefact.model, TierOptions(samples=50, alone=True)), ["tree"]), fields, asked


# What may be NULL, by function and argument, and gives another status; and functions without a status.
MAY_BE_NULL = {("pin", "answer"): "OK", ("query_json", "out"): "TOO_SMALL", ("query_json", "needed"): "OK"}
VALID = {
    "memory": "memory", "bytes": "kerncast_context_bytes()", "schema": "KERNCAST_SCHEMA", "problem": "&problem",
    "problems": "&problem", "config": "&config", "answer": "&answer", "answers": "&answer", "count": "&count",
    "available": "available", "candidate": "0", "text": "QUERY", "length": "strlen(QUERY)", "out": "out", "needed": "&count",
    "scores": "scores", "times_ns": "times", "features": "scores", "tier": "KERNCAST_TIER_AUTO", "status": "KERNCAST_OK",
}  # fmt: skip


def null_calls(header):
    """A call of every function of a header with NULL for each of its pointers, everything else being right."""
    found = []
    for result, name, given in re.findall(r"KERNCAST_API ([\w ]+\*?)\s*kerncast_(\w+)\(([^)]*)\);", header):
        arguments = [] if given == "void" else [" ".join(item.split()) for item in given.split(",")]
        named = [re.search(r"(\w+)$", item)[1] for item in arguments]
        for null in (own for own, item in zip(named, arguments, strict=True) if "*" in item):
            words = []
            for own, item in zip(named, arguments, strict=True):
                room = {"count": "1" if name == "select_many" else "(size_t)kerncast_candidates()", "capacity": "sizeof out"}
                right = room.get(own) if "*" not in item and own in room else VALID.get(own)
                if own == "capacity" and name != "query_json":
                    right = "1" if name == "rank" else "4096"
                if own == "context":
                    right = "&another" if "**" in item else "context"
                words.append("NULL" if own == null else right)
            call = f"kerncast_{name}({', '.join(words)})"
            wanted = MAY_BE_NULL.get((name, null), "BAD_INPUT")
            status = result.strip() == "kerncast_status"
            found.append(f'    is("{name} without {null}", {call}, KERNCAST_{wanted});' if status else f"    (void){call};")
    return found


@pytest.mark.parametrize("family", [gemm, exp, tree])
def test_each_pointer_of_each_function_may_be_null_without_harm(family, tmp_path):
    """Written from the header, so no function is forgotten; addresses and undefined behaviour watched."""
    artefact, fields, asked = family(tmp_path)
    write_project(artefact, tmp_path / "c", "kerncast")
    calls = null_calls((tmp_path / "c" / "kerncast.h").read_text())
    assert len(calls) > 35
    setting = " ".join(f"problem.{name} = {value};" for name, value in fields.items())
    quoted = json.dumps(json.dumps(asked))
    head = PROGRAM.read_text().split("#define BAD")[0]
    body = "\n".join(calls)
    (tmp_path / "c" / "nulls.c").write_text(f"""{head}
#define QUERY {quoted}
int main(void) {{
    static double scores[4096], times[4096];
    static unsigned char available[4096];
    static char out[4096], memory[1];
    kerncast_context *context = NULL, *another = NULL;
    kerncast_problem problem;
    kerncast_config config;
    kerncast_answer answer;
    size_t count = 0;
    memset(available, 1, sizeof available);
    is("create", kerncast_create(&context), KERNCAST_OK);
    kerncast_problem_init(&problem);
    for (int32_t i = 0; i < kerncast_candidates() && kerncast_candidate(i, &config) != KERNCAST_OK; i++) {{}}
    {setting}
{body}
    (void)another, (void)memory, (void)times;
    kerncast_destroy(context);
    return failed;
}}
""")
    files = [str(tmp_path / "c" / name) for name in ("kerncast.c", "nulls.c")]
    subprocess.run([COMPILERS[0], *STRICT, LEVEL, *SANITIZED, *files, "-o", str(tmp_path / "nulls"), "-lm"], check=True)
    done = subprocess.run([tmp_path / "nulls"], capture_output=True, text=True)
    assert (done.returncode, done.stdout, done.stderr) == (0, "", "")
