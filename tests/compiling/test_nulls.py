"""NULL is treated alike at every entry point of the exported C."""

import json
import subprocess
from pathlib import Path

import numpy as np
import polars as pl
import pytest

from kerncast.compiling.lower import lower
from kerncast.data import schema
from kerncast.exporting.project import write_project
from kerncast.registry import FAMILIES
from kerncast.selecting.tiers.build import TierOptions, build_tiers, plain_tiers
from kerncast.testing.exporters import COMPILERS, SANITIZED, STRICT
from kerncast.testing.models import synthetic_dataset, synthetic_rows
from kerncast.training.procedure import Recipe
from kerncast.training.train import train

PROGRAM = Path(__file__).with_name("nulls.c")
pytestmark = pytest.mark.skipif(not COMPILERS, reason="there is no C compiler")


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


@pytest.mark.parametrize("compiler", COMPILERS)
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
    subprocess.run([compiler, *STRICT, "-O1", *SANITIZED, *files, "-o", str(tmp_path / "nulls"), "-lm"], check=True)
    done = subprocess.run([tmp_path / "nulls"], capture_output=True, text=True)
    assert (done.returncode, done.stdout, done.stderr) == (0, "", "")
