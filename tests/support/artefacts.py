"""One small artefact of every kind that kerncast writes or reads, made by kerncast itself: for tests of damage."""

from __future__ import annotations

import json
from collections.abc import Callable
from pathlib import Path
from typing import Any

import msgspec
import polars as pl

import kerncast
from kerncast.answering.measure import ChoiceCache
from kerncast.core.op import Config, Problem
from kerncast.core.progress import Progress
from kerncast.evaluating.results import write_predictions
from kerncast.library.devices import get
from kerncast.library.registry import FAMILIES
from kerncast.measuring.collection import Request
from kerncast.measuring.run import collect
from kerncast.measuring.sweeping import open_sweep, parse_selection
from kerncast.models.store.store import Store
from kerncast.regenerating import loop as state
from kerncast.regenerating import routine
from kerncast.testing.backends import QUICK, Instant
from kerncast.testing.models import synthetic_dataset, synthetic_rows
from kerncast.training.procedure import Recipe
from kerncast.training.train import train

# One row in three cannot be represented, and `note` is a column that the importer does not know.
EXP = """input_shape_1,input_shape_2,input_shape_3,input_shape_4,bfloat16,input_DRAM,input_L1,kernel_duration,note
64,32,0,0,1,1,0,1000,first
64,64,0,0,1,0,1,1800,second
128,64,0,0,1,0,1,2800,third
64,64,0,0,1,0,1,soon,fourth
"""
OVERRIDES = """deny = [{ BLOCK_M = 16 }]

[[pin]]
problem = { M = 128 }
candidate = 2
"""
MAPPING = """family = "gemm/triton"
device = "a100"

[problem]
M = "m"
N = "n"
K = "k"
dtype = { value = "fp16" }
layout = { value = "rcr" }

[config]
kind = { value = "triton" }
BLOCK_M = "bm"
BLOCK_N = "bn"
BLOCK_K = "bk"
num_stages = "stages"
num_warps = "warps"

[time]
column = "latency"
unit = "us"
"""
PROFILE = """name = "somebody"
title = "Somebody's accelerator"
kind = "gpu"

[numbers]
num_cus = { value = 64, source = "its data sheet" }

[peak_tflops]
fp16 = { value = 100.0, source = "its data sheet" }
"""
ROUTINE = """name = "small"
families = ["gemm/triton"]

[sweep]
problems = ["grid:M=64,128;N=64;K=64"]
vary = ["dtype=fp16", "layout=rcr"]
configs = "sample:4"
"""
SHAPE = {"M": 1000, "N": 512, "K": 768, "dtype": "fp16", "layout": "rcr"}


def imported_dataset(path: Path) -> None:
    """A dataset with skipped rows and unknown columns."""
    source = path.with_name(f"{path.name}.csv")
    source.write_text(EXP)
    kerncast.read(source, file_format="ttnn-csv", constants={"func": "exp"}, device="wormhole_b0", out=path, progress=False)
    source.unlink()


def unfinished_collection(path: Path, rows: int = 12, total: int = 24) -> None:
    """A collection that was stopped after some rows."""
    seen = _Counting()
    collect(collection_request(path), [vectors(total)], total=total, progress=seen, stop=lambda: seen.count >= rows)


def collection_request(path: Path) -> Request:
    """How `unfinished_collection` measures, so that it can be resumed."""
    return Request(
        FAMILIES.get("gemm/triton"), "kerncast.testing.backends:Instant", ("0",), path, policy=QUICK, chunk_size=4, extend=True
    )


def vectors(total: int = 24) -> Any:
    """Some configs of gemm/triton on two problems."""
    family = FAMILIES.get("gemm/triton")
    chosen = parse_selection(family, f"sample:{total // 2}")
    axes = {"dtype": ["fp16"], "layout": ["rcr"]}
    return next(open_sweep(family, get("a100"), ["grid:M=64,65;N=64;K=64"], axes, chosen).iter_blocks())


class _Counting(Progress):
    count = 0

    def result(self, status: str, **facts: Any) -> None:
        self.count += 1


def trained_model(path: Path, kind: str = "gbdt") -> None:
    """A model of made-up measurements."""
    knobs: dict[str, dict[str, Any]] = {"gbdt": {"trees": 8, "library_trees": 2, "leaves": 7}, "mlp": {"epochs": 5}}
    data = synthetic_dataset(path.with_name(f"{path.name}.data"), synthetic_rows(24))
    train(data, path, Recipe(kind, knobs.get(kind, {}), folds=2, threads=1))


def store_of_one(path: Path, model: Path) -> None:
    """A store with one model."""
    Store.open(path).add(model)


def swept(path: Path, form: str) -> None:
    """Vectors on disk."""
    if form == "tt-sweep":
        kerncast.sweep(
            "reshard/single",
            problems="published",
            vary=["in_x=1", "in_y=2", "out_x=2", "out_y=2"],
            device="wormhole_b0",
            max_vectors=12,
            file_format=form,
            out=path,
            progress=False,
        )
        return
    kerncast.sweep(
        "gemm/triton",
        problems="grid:M=64,65;N=64;K=64",
        vary=["dtype=fp16", "layout=rcr"],
        configs="sample:8",
        device="a100",
        file_format=form,
        out=path,
        progress=False,
    )


def measured_choices(path: Path) -> None:
    """Two choices that were made by measuring."""
    family = FAMILIES.get("gemm/triton")
    kept = ChoiceCache(family, Instant(), path)
    for size, config in zip((64, 128), vectors().filter(pl.col("config.kind") == "triton").iter_rows(named=True), strict=False):
        values = {name.removeprefix("config."): value for name, value in config.items() if name.startswith("config.")}
        problem = Problem(family, {**SHAPE, "M": size})
        kept.put(problem, Config(family, {name: value for name, value in values.items() if value is not None}), 1e3 * size)


def regeneration(path: Path) -> None:
    """A work directory whose first stage is done."""
    path.mkdir()
    source = path.with_name(f"{path.name}.toml")
    source.write_text(ROUTINE)
    wanted = routine.load(str(source))
    begun = state.RoutineState(
        wanted.name,
        wanted.measures,
        wanted.learns,
        state.now(),
        "host",
        state.own_version(),
        tuple(wanted.families),
        wanted.steps,
    )
    state.write(path, begun.with_done("gemm/triton", "sweep", {"vectors": 8}))


def every_artefact(folder: Path) -> dict[str, Path]:
    """One of each kind in a folder, by the name of its kind."""
    made: dict[str, Path] = {}

    def make(name: str, fill: Callable[[Path], object], suffix: str = "") -> Path:
        made[name] = folder / f"{name.replace(' ', '_')}{suffix}"
        fill(made[name])
        return made[name]

    make("dataset", imported_dataset)
    make("unfinished collection", unfinished_collection)
    model = make("model", trained_model)
    make("store", lambda path: store_of_one(path, model))
    for form in ("parquet", "json", "tt-sweep"):
        make(f"vectors {form}", lambda path, form=form: swept(path, form))  # type: ignore[misc]
    make("exported C", lambda path: kerncast.export(model, out=path, progress=False))
    make(
        "table of choices", lambda path: kerncast.export(model, to="json", out=path, problems=[SHAPE], progress=False), ".json"
    )
    make("measured choices", measured_choices, ".json")
    judged = kerncast.evaluate(model, folder / "model.data", include_seen=True, tiers=False, progress=False)
    make("predictions", lambda path: write_predictions(path, judged.rows), ".parquet")
    make("evaluation", lambda path: path.write_text(json.dumps(judged.as_json(), indent=2)), ".json")
    make("regeneration", regeneration)
    for name, text in {"overrides": OVERRIDES, "mapping": MAPPING, "device profile": PROFILE, "routine": ROUTINE}.items():
        make(name, lambda path, text=text: path.write_text(text), ".toml")  # type: ignore[misc]
    return made


def reseal(data: dict[str, Any]) -> bytes:
    """The text of a changed manifest with the checksum that it would have: for tests of what checksums do not find."""
    from kerncast.core.io.artefact import SEAL, json_text, seal_of

    bare = {name: value for name, value in data.items() if name != SEAL}
    return json_text({**bare, SEAL: seal_of(msgspec.json.decode(msgspec.json.encode(bare)))})
