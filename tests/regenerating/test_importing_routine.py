"""A routine that reads a table instead of measuring: a100-mm, with a made-up log in the place of the public one."""

import json
import shutil
from functools import partial

import pytest

from kerncast.errors import BadFile, InvalidValue, NotFound
from kerncast.models.model import Model
from kerncast.models.store.store import Store
from kerncast.regenerating import load, plan
from kerncast.regenerating import loop as states
from kerncast.regenerating import regenerate as run_once

# A new model takes the place of the old one.
regenerate = partial(run_once, replace=True)

HEADER = "m,k,n,mat1_dtype,mat1_stride_0,mat1_stride_1,mat2_stride_0,mat2_stride_1,choice,feedback"
QUICK = ("train.model=linear", "train.folds=2")


def log(folder, *, tiles=((64, 32, 64), (32, 32, 128), (128, 32, 64))):
    """An AutoHeuristic log of a few products: three tiles and cuBLAS."""
    about = {"name": "mm", "shared_memory": 166912, "device_capa": [8, 0], "numerical_features": ["m", "k", "n"],
             "categorical_features": ["mat1_dtype"]}  # fmt: skip
    lines = [json.dumps(about), HEADER]
    for at, (m, n, k) in enumerate(
        [(128, 256, 512), (256, 256, 256), (512, 128, 1024), (1024, 512, 256), (64, 512, 512), (2048, 64, 128)]
    ):
        own = f"{m},{k},{n},torch.float16,{k},1,1,{k}"
        work = m * n * k / 1e9
        lines += [
            f"{own},type=triton_BLOCK-M={a}_BLOCK-K={b}_BLOCK-N={c}_numstages=3_numwarps=4,{work * (1 + 0.1 * place) + 0.01}"
            for place, (a, b, c) in enumerate(tiles)
        ]
        lines.append(f"{own},extern_mm,{work * (1 + 0.05 * at) + 0.01}")
    path = folder / "a100_mm.txt"
    path.write_text("\n".join(lines) + "\n")
    return path


def test_a_table_becomes_a_model_in_the_store(tmp_path):
    """Imported once, trained and stored; the same call repeats the outcome, and other settings train again without the file."""
    table, store = log(tmp_path), Store.open(tmp_path / "store")
    routine = load("a100-mm", [f"import.files={table}", *QUICK])
    assert [(item.problems, item.seconds) for item in plan(routine, store)] == [(None, 0.0)]
    (outcome,) = regenerate(routine, store, tmp_path / "work")
    assert (outcome.verdict, outcome.replaced) == ("NEW", True)
    (entry,) = store.entries()
    model = entry.load()
    assert (model.family.id, model.device.name, model.manifest.data.rows) == ("gemm/triton", "a100", 24)
    assert regenerate(routine, store, tmp_path / "work") == [outcome]
    other = load("a100-mm", [f"import.files={table}", *QUICK, "train.seed=1"])
    (again,) = regenerate(other, store, tmp_path / "work")
    assert again.finished
    assert Model.load(tmp_path / "work" / "gemm-triton" / "model").manifest.data.rows == 24


def test_a_killed_import_is_read_again(tmp_path):
    """Without the stage's record the dataset is used as it is; without the dataset it is imported."""
    table, store = log(tmp_path), Store.open(tmp_path / "store")
    routine = load("a100-mm", [f"import.files={table}", *QUICK])
    regenerate(routine, store, tmp_path / "work")
    folder = tmp_path / "work"
    states.write(folder, states.read(folder).without("gemm/triton", "collect"))
    shutil.rmtree(tmp_path / "work" / "gemm-triton" / "dataset")
    assert regenerate(routine, store, tmp_path / "work")[0].finished


def test_what_cannot_be_imported_is_refused_at_once(tmp_path):
    """No file named, a missing one, an unknown format or device, neither or both of sweep and import."""
    store = Store.open(tmp_path / "store")
    with pytest.raises(InvalidValue, match=r"reads files that you have \(a100_mm.zip, .*`changes` import.files=FILE"):
        plan(load("a100-mm"), store)
    with pytest.raises(NotFound, match=r"there is no .*nope.zip, which import.files names"):
        plan(load("a100-mm", ["import.files=nope.zip"]), store)
    with pytest.raises(NotFound, match="unknown device"):
        plan(load("a100-mm", [f"import.files={log(tmp_path)}", "import.device=a1000"]), store)
    with pytest.raises(BadFile, match=r"either a \[sweep\] to measure or an \[import\]"):
        load("a100-mm", ['sweep.problems=["llm"]'])
    assert not (tmp_path / "work").exists()
