"""What users of CK Tile's heuristics expect, for GEMM and grouped convolution. Times are made up; no AMD GPU is needed."""

from __future__ import annotations

import json
import math
import random
from itertools import product
from pathlib import Path
from typing import Any

import polars as pl
from promises import Work, promise

GEMM, CONV = "CK Tile, GEMM", "CK Tile, grouped convolution"
GPU = "an AMD GPU and a build of CK Tile to run the kernels"
TILES = ((128, 128, 64), (64, 128, 64), (64, 64, 64), (256, 128, 64), (32, 64, 64), (128, 64, 128))
PIPELINES = ("compv3", "compv4", "mem")
SHAPES = [(m, n, k) for m in (1, 16, 64, 256, 1024, 4096) for n, k in ((512, 512), (1536, 7168), (4096, 1024), (7168, 2048))]
PEAK_TFLOPS = 2000.0


def kernel(tile: tuple[int, int, int], pipeline: str, dtype: str = "fp16") -> str:
    size = "x".join(map(str, tile))
    return f"gemm_universal_{dtype}_rcr_{pipeline}_cshuffle_intrawave_True_True_True_False_{size}_2x2x1_32x32x16"


def milliseconds(m: int, n: int, k: int, tile: tuple[int, int, int], pipeline: str) -> float:
    """Whole tiles on 256 compute units, at a rate that depends on the pipeline and on the depth."""
    waves = math.ceil(math.ceil(m / tile[0]) * math.ceil(n / tile[1]) / 256)
    rate = {"compv3": 0.8, "compv4": 0.9 if k >= 2048 else 0.6, "mem": 0.75 if m <= 64 else 0.5}[pipeline]
    flops = waves * 256 * 2 * tile[0] * tile[1] * k
    noise = random.Random(f"{m} {n} {k} {tile} {pipeline}").uniform(1, 1.02)
    return noise * (0.002 + flops / (PEAK_TFLOPS * 1e9 * rate))


def results(shapes: list[tuple[int, int, int]]) -> dict[str, Any]:
    """The results JSON of `generate_benchmark_data.py`."""
    listed = []
    for tile, pipeline in product(TILES, PIPELINES):
        benchmarks = [
            {"kernel_name": kernel(tile, pipeline), "m": m, "n": n, "k": k,
             "avg_time_ms": milliseconds(m, n, k, tile, pipeline),
             "tflops": 2e-9 * m * n * k / milliseconds(m, n, k, tile, pipeline), "is_valid": True, "error": None}
            for m, n, k in shapes
        ]  # fmt: skip
        config = {"name": kernel(tile, pipeline), "dtype": "fp16", "layout": "rcr"}
        listed.append({"kernel_config": config, "benchmarks": benchmarks})
    sizes = [{"m": m, "n": n, "k": k} for m, n, k in shapes]
    return {"metadata": {"dtype": "fp16", "layout": "rcr", "arch": "gfx950"}, "problem_sizes": sizes, "results": listed}


@promise("29", GEMM, "Benchmark CK Tile kernels on a set of shapes", "`kerncast collect … --benchmark ck-tile`")
def benchmark_recipe(work: Work) -> None:
    work("kerncast collect gemm/ck_tile --benchmark ck-tile --set build_dir=build --set arch=gfx950 --problems llm "
         "--vary dtype=fp16 --vary layout=rcr --configs sample:20 --out data", exits=2)  # fmt: skip
    work.needs(GPU)


@promise("33", GEMM, "Turn result files in JSON into training data", "`kerncast import ck-tile FILE`")
def imported(work: Work) -> None:
    work.write("results.json", results(SHAPES))
    work.write("held_out.json", results([(m, 2560, 3072) for m in (1, 48, 200, 2048)] + [(96, 1000, 640)]))
    work("kerncast import ck-tile results.json --device gfx950 --out data")
    work("kerncast import ck-tile held_out.json --device gfx950 --out held_out")


@promise("30", GEMM, "Measure exactly the kernels of a build folder", "`--configs build:DIR`", after=imported)
def kernels_of_a_build(work: Work) -> None:
    for tile, pipeline in product(TILES[:2], PIPELINES):
        binary = work.write(f"build/bin/benchmark_{kernel(tile, pipeline)}", "#!/bin/sh\n")
        binary.chmod(0o755)
    work("kerncast sweep gemm/ck_tile --problems small --vary dtype=fp16 --vary layout=rcr --configs build:build "
         "--device gfx950 --out vectors")  # fmt: skip
    work.needs(GPU)


@promise("31", GEMM, "A list of about 25 shapes for a first look", "`--problems small`", after=imported)
def small_set(work: Work) -> None:
    told = work.json("kerncast sweep gemm/library --problems small --vary dtype=fp16 --vary layout=rcr --configs sample:1 "
                     "--device gfx950 --out small-vectors")  # fmt: skip
    assert 20 <= told["problems"] <= 30, told


@promise("32", GEMM, "706 shapes with wide coverage and edge cases", "`--problems wide --problems edge`", after=imported)
def wide_set(work: Work) -> None:
    told = work.json("kerncast sweep gemm/library --problems wide --problems edge --vary dtype=fp16 --vary layout=rcr "
                     "--configs sample:1 --device gfx950 --out wide-vectors")  # fmt: skip
    assert told["problems"] >= 706, told


@promise("34", GEMM, "Correct the padding flags of kernels of the `mem` pipeline", "`kerncast import ck-tile FILE`")
def pads_corrected(work: Work) -> None:
    made = results(SHAPES[:4])
    work.write("results.json", json.dumps(made).replace("intrawave_True_True_True", "intrawave_False_False_False"))
    work("kerncast import ck-tile results.json --device gfx950 --out data", says="pad flags")


@promise("35", GEMM, "Turn raw benchmark logs into training data", "`kerncast import ck-tile run.log`")
def logs_imported(work: Work) -> None:
    lines = []
    for number, (m, n, k) in enumerate(SHAPES):
        lines.append(f"Shape {number}: M={m} N={n} K={k} dtype=fp16 layout=rcr")
        for tile, pipeline in product(TILES[:3], PIPELINES):
            latency = milliseconds(m, n, k, tile, pipeline)
            measured = {"latency(ms)": latency, "tflops(TFlops)": 2e-9 * m * n * k / latency, "bandwidth(GB/s)": 10.0}
            asked = {"split_k": 1, "m": m, "n": n, "k": k, "dtype_a": "fp16", "layout_a": "RowMajor",
                     "layout_b": "ColumnMajor", "layout_c": "RowMajor"}  # fmt: skip
            lines.append(json.dumps({"name": kernel(tile, pipeline), "problem": asked, "perf_result": measured}, indent=1))
    work.write("run.log", "\n".join(lines))
    told = work.json("kerncast import ck-tile run.log --device gfx950 --out data")
    assert str(9 * len(SHAPES)) in json.dumps(told), told


@promise(
    "36",
    GEMM,
    "Read and write the parquet files of the heuristics",
    "`kerncast import ck-tile`, `kerncast export --to parquet`",
    after=imported,
)
def parquet_both_ways(work: Work) -> None:
    rows = [
        {"op_type": "gemm_universal", "dtype": "fp16", "layout": "rcr", "arch": "gfx950", "kernel_name": kernel(tile, pipeline),
         "m": m, "n": n, "k": k, "split_k": 1, "latency_ms": milliseconds(m, n, k, tile, pipeline), "is_valid": True}
        for (m, n, k), tile, pipeline in product(SHAPES, TILES, PIPELINES)
    ]  # fmt: skip
    pl.DataFrame(rows).write_parquet(work.folder / "canonical.parquet")
    work("kerncast import ck-tile canonical.parquet --out canonical")
    work("kerncast export data --to parquet --out written.parquet")


@promise("37", GEMM, "Record the hardware beside the measurements", "`kerncast collect --capture-hw`")
def hardware_captured(work: Work) -> None:
    work("kerncast collect gemm/cpu --problems 'grid:M=32;N=32;K=32' --vary dtype=fp32 --vary layout=rrr --configs sample:2 "
         "--samples 1 --capture-hw --out data")  # fmt: skip
    work("kerncast inspect data", says="lscpu")
    work.needs("rocminfo and an AMD GPU; lscpu was captured")


@promise(
    "38-39",
    GEMM,
    "Train on the engine's 55 features and the later ones, for TFLOPS, latency and bandwidth",
    "`kerncast train --format ck --targets tflops,latency,bandwidth`",
    after=imported,
)
def three_targets(work: Work) -> None:
    work("kerncast train data --format ck --targets tflops,latency,bandwidth --trees 60 --folds 3 --out ck")
    spec = work.read("ck/feature_spec.json")
    assert len(spec["feature_names"]) >= 55, len(spec["feature_names"])
    assert sorted(path.name for path in (work.folder / "ck").glob("model_*")) == [
        f"model_{name}.lgbm.gz" for name in ("bandwidth", "latency", "tflops")
    ]


@promise("40", GEMM, "Predict and rank in TFLOPS and GB/s", "`kerncast predict MODEL …`", after=imported)
def in_tflops(work: Work) -> None:
    work("kerncast train data --trees 80 --folds 3 --out model")
    told = work("kerncast predict model M=128 N=1536 K=7168 dtype=fp16 layout=rcr")
    assert "TFLOPS" in told, told
    assert "GB/s" in told, told


@promise(
    "41-42",
    GEMM,
    "Write the heuristics' own files: forests, `feature_spec.json`, `train_manifest.json`",
    "`kerncast train --format ck`",
    after=imported,
)
def files_of_ck(work: Work) -> None:
    assert {"op_type", "dtype", "arch", "feature_names", "categorical_features", "targets", "log_targets", "params"} <= set(
        work.read("ck/feature_spec.json")
    )
    assert {"warm_start_from", "data_rows", "unique_shapes"} <= set(work.read("ck/train_manifest.json"))
    work("gzip -dk ck/model_tflops.lgbm.gz")
    work.python("import lightgbm; print(lightgbm.Booster(model_file='ck/model_tflops.lgbm').num_trees())")
    work("rm ck/model_tflops.lgbm")


@promise("43", GEMM, "Write scores of each fold and importances of features", "`kerncast train --format ck`", after=imported)
def metrics_of_ck(work: Work) -> None:
    for name in ("cv_metrics_tflops.json", "feature_importances_tflops.json"):
        assert work.read(f"ck/{name}"), name
    work("ls ck")


@promise(
    "44-46",
    GEMM,
    "Learn logarithms, hold out whole shapes in five folds, learn more from shapes that went wrong",
    "`kerncast train --hard-mining N`",
    after=imported,
)
def mined(work: Work) -> None:
    work("kerncast train data --targets tflops --folds 5 --trees 30 --hard-mining 2 --out mined", says="hard")


@promise("47", GEMM, "Tune the learner's settings", "`kerncast train --tune N`", after=imported)
def tuned(work: Work) -> None:
    work("kerncast train data --tune 2 --trees 20 --folds 2 --out tuned")


@promise(
    "48",
    GEMM,
    "Continue a model with new data, and refuse data that do not fit it",
    "`kerncast train NEW --base MODEL`",
    after=imported,
)
def warm_started(work: Work) -> None:
    work("kerncast train held_out --base model --trees 20 --out model2")


@promise("49", GEMM, "Continue the heuristics' files", "`kerncast train NEW --base MODEL --format ck`", after=imported)
def ck_warm_started(work: Work) -> None:
    work("kerncast train held_out --format ck --base ck --targets tflops,latency,bandwidth --trees 20 --out ck2")
    manifest = work.read("ck2/train_manifest.json")
    assert manifest["warm_start_from"], manifest
    work("gzip -dk ck/model_tflops.lgbm.gz ck2/model_tflops.lgbm.gz")
    count = "import lightgbm; print([lightgbm.Booster(model_file=f'{n}/model_tflops.lgbm').num_trees() for n in ('ck', 'ck2')])"
    base, grown = json.loads(work.python(count))
    assert base < grown <= base + 20, (base, grown)
    work("rm ck/model_tflops.lgbm ck2/model_tflops.lgbm")


@promise(
    "50",
    GEMM,
    "Continue a model that CK Tile's own script trained",
    "`kerncast train NEW --base CKMODEL --format ck`",
    after=imported,
)
def warm_started_from_theirs(work: Work) -> None:
    theirs(work)
    work("kerncast train held_out --format ck --base theirs --targets tflops --trees 20 --out grown")
    assert work.read("grown/train_manifest.json")["warm_start_from"]


def theirs(work: Work) -> None:
    """A model directory as AMD's own script writes it: LightGBM text beside a specification, nothing of kerncast."""
    if (work.folder / "theirs").exists():
        return
    work.python(
        "import gzip, json, shutil\nfrom pathlib import Path\n"
        "Path('theirs').mkdir()\n"
        "Path('theirs/model_tflops.lgbm').write_bytes(gzip.decompress(Path('ck/model_tflops.lgbm.gz').read_bytes()))\n"
        "spec = json.loads(Path('ck/feature_spec.json').read_text())\n"
        "keys = ('op_type', 'dtype', 'arch', 'feature_names', 'categorical_features', 'log_targets', 'params')\n"
        "spec = {key: spec[key] for key in keys} | {'targets': ['tflops']}\n"
        "Path('theirs/feature_spec.json').write_text(json.dumps(spec))\n"
        "Path('theirs/train_manifest.json').write_text(json.dumps({'warm_start_from': None, 'total_n_estimators': 60}))"
    )


@promise("51", GEMM, "Name the best kernel for a shape", "`kerncast select MODEL M=… N=… K=…`", after=imported)
def best_kernel(work: Work) -> None:
    work("kerncast select model M=128 N=1536 K=7168 dtype=fp16 layout=rcr", says="ok")


@promise("52", GEMM, "List the ten best kernels for a shape", "`kerncast select MODEL … --top 10`", after=imported)
def top_kernels(work: Work) -> None:
    told = work.json("kerncast select model M=128 N=1536 K=7168 dtype=fp16 layout=rcr --top 10")
    assert len(json.dumps(told).split('"config"')) == 11, told


@promise(
    "53",
    GEMM,
    "Let a model that CK Tile trained choose, in Python and in C",
    "[Your CK Tile model chooses](coming-from.md#your-ck-tile-model-chooses)",
    after=imported,
)
def their_model_chooses(work: Work) -> None:
    theirs(work)
    work.write("kernels.txt", "\n".join(kernel(tile, pipeline) for tile, pipeline in product(TILES, PIPELINES)))
    work("kerncast select theirs M=128 N=1536 K=7168 dtype=fp16 layout=rcr --configs kernels:kernels.txt", says="ok")
    work("kerncast export theirs --to c --configs kernels:kernels.txt --out theirs-in-c")


@promise(
    "54-55",
    GEMM,
    "Search a space at random or by differential evolution; report mean, P10, minimum and top-k efficiency",
    "`kerncast select --search --strategy de`, `kerncast evaluate`",
    after=imported,
)
def searched(work: Work) -> None:
    for strategy in ("random", "de"):
        work(
            "kerncast select model M=128 N=1536 K=7168 dtype=fp16 layout=rcr "
            f"--search --strategy {strategy} --budget 200 --top 10"
        )
    work("kerncast evaluate model held_out", says="P10")


@promise("56", GEMM, "Report the median efficiency", "`kerncast evaluate MODEL DATA`", after=imported)
def median_shown(work: Work) -> None:
    work("kerncast evaluate model held_out", says="P50")


@promise(
    "57-58",
    GEMM,
    "Report efficiency by size, layout and pipeline, also for pipelines that are never chosen",
    "`kerncast evaluate MODEL DATA`",
    after=imported,
)
def slices_shown(work: Work) -> None:
    told = work.json("kerncast evaluate model held_out")
    text = json.dumps(told)
    assert all(name in text for name in PIPELINES)


@promise(
    "59",
    GEMM,
    "Choose kernels from C++",
    "`kerncast export MODEL --to c`, [in a C++ project](exporting.md#in-a-c-project)",
    after=imported,
)
def chosen_in_cpp(work: Work) -> None:
    work("kerncast export model --to c --out picker")
    work("cmake -S picker -B picker/build")
    work("cmake --build picker/build")
    work("ctest --test-dir picker/build")


@promise("60", GEMM, "Ready models for fp8 and fp16", "", after=imported)
def ready_models(work: Work) -> None:
    work.cannot("measuring them needs an AMD GPU, and no measurements of CK Tile kernels are public")


@promise(
    "64",
    GEMM,
    "Read what was learned, and what to do when something fails",
    "[Lessons](lessons.md), [Troubleshooting](troubleshooting.md), `kerncast doctor`",
)
def documented(work: Work) -> None:
    docs = Path(__file__).resolve().parent.parent / "docs"
    assert all((docs / name).stat().st_size > 2_000 for name in ("lessons.md", "concepts.md", "troubleshooting.md"))
    work("kerncast doctor")


def convolution_rows(direction: str, counts: range) -> list[dict[str, Any]]:
    rows = []
    pool = [(tile, pipeline) for tile in ("16x64x64", "64x64x64", "128x128x64", "32x64x128") for pipeline in ("compv3", "mem")]
    for number in counts:
        drawn = random.Random(number)
        c, k, size = (drawn.choice(values) for values in ((32, 64, 128, 256), (32, 64, 128), (7, 14, 28, 56)))
        n, y = drawn.choice((1, 8, 32)), drawn.choice((1, 3))
        for tile, pipeline in pool:
            a, b, _ = map(int, tile.split("x"))
            flops = 2 * n * k * size * size * c * y * y
            waste = math.ceil(n * size * size / a) * a / (n * size * size) * math.ceil(k / b) * b / k
            latency = 0.003 + flops * waste / 4e11 * (1.0 if pipeline == "compv3" else 1.2) * drawn.uniform(1, 1.02)
            rows.append({
                "kernel": f"grouped_conv_{direction}_bf16_2d_{tile}_{pipeline}_intrawave", "problem_idx": number,
                "N": n, "C": c, "K": k, "G": 1, "Di": 1, "Hi": size, "Wi": size, "Z": 1, "Y": y, "X": y,
                "stride_d": 1, "stride_h": 1, "stride_w": 1, "pad_d": 0, "pad_h": y // 2, "pad_w": y // 2,
                "dilation_d": 1, "dilation_h": 1, "dilation_w": 1,
                "latency_ms": latency, "tflops": flops / latency / 1e9, "non_zero": 5,
            })  # fmt: skip
    return rows


@promise(
    "65-69",
    CONV,
    "Model three directions of grouped convolution with 300 kernels each, from the benchmarks' CSV",
    "`kerncast list family grouped_conv_forward/ck_tile`",
)
def convolutions_imported(work: Work) -> None:
    for direction in ("forward", "bwd_data", "bwd_weight"):
        pl.DataFrame(convolution_rows(direction, range(40))).write_csv(work.folder / f"{direction}.csv")
        work(f"kerncast import ck-tile {direction}.csv --device gfx950 --out {direction}")
    pl.DataFrame(convolution_rows("forward", range(100, 112))).write_csv(work.folder / "held_out.csv")
    work("kerncast import ck-tile held_out.csv --device gfx950 --out held_out")
    work("kerncast list family grouped_conv_forward/ck_tile")


@promise(
    "70", CONV, "A validation set of 300 layers that no other set has", "`--problems validation`", after=convolutions_imported
)
def validation_set(work: Work) -> None:
    told = work.json("kerncast sweep grouped_conv_forward/ck_tile --problems validation --vary dtype=bf16 --configs sample:1 "
                     "--device gfx950 --out vectors")  # fmt: skip
    assert told["problems_asked"] == 300, told
    assert told["problems"] > 200, told


@promise(
    "71",
    CONV,
    "Write models of convolutions in the heuristics' layout",
    "`kerncast train --format ck`",
    after=convolutions_imported,
)
def convolutions_in_ck_layout(work: Work) -> None:
    for direction in ("forward", "bwd_data", "bwd_weight"):
        work(f"kerncast train {direction} --format ck --targets tflops --trees 30 --folds 2 --out ck-{direction}")
        assert (work.folder / f"ck-{direction}" / "model_tflops.lgbm.gz").is_file()
        assert work.read(f"ck-{direction}/cv_metrics_tflops.json")


PROBLEM = "N=16 C=128 K=64 G=1 Hi=28 Wi=28 Y=3 X=3 stride_h=1 stride_w=1 pad_h=1 pad_w=1 dtype=bf16"


@promise(
    "72",
    CONV,
    "Rank a list of kernels of your own",
    "`kerncast select MODEL … --configs kernels:FILE`",
    after=convolutions_imported,
)
def pool_ranked(work: Work) -> None:
    work("kerncast train forward --trees 40 --folds 2 --out model")
    names = sorted({row["kernel"] for row in convolution_rows("forward", range(1))})
    work.write("kernels.txt", "\n".join([*names[:3], "grouped_conv_forward_bf16_2d_64x128x64_compv3_intrawave"]))
    work(f"kerncast select model {PROBLEM} --configs kernels:kernels.txt --top 4", says="64")


@promise(
    "73-76",
    CONV,
    "Validate a model on new data, save its predictions, and accept or reject it by fixed criteria",
    "`kerncast evaluate --save-predictions`, `kerncast compare OLD NEW DATA`",
    after=convolutions_imported,
)
def convolutions_validated(work: Work) -> None:
    work("kerncast evaluate model held_out --save-predictions old.parquet")
    work("kerncast train forward --trees 60 --folds 2 --seed 1 --out model2")
    work("kerncast compare model model held_out", says="SAME")


@promise("77", CONV, "Compare two files of saved predictions", "", after=convolutions_imported)
def saved_predictions_compared(work: Work) -> None:
    work.cannot("`kerncast compare` takes two models and the data")


@promise("78", CONV, "Run the whole quality test in one command", "`kerncast regenerate ROUTINE`", after=convolutions_imported)
def quality_test(work: Work) -> None:
    work("kerncast regenerate conv-cpu --set sweep.max_problems=6 --set sweep.max_flops=1e7 --set sweep.configs=sample:3 "
         "--set train.folds=2 --store quality")  # fmt: skip
    work("kerncast models --store quality", says="grouped_conv_bwd_weight")


@promise(
    "79",
    CONV,
    "Run the chosen convolution on given tensors",
    "[Dispatching](selecting.md#dispatching-choose-a-kernel-and-run-it)",
)
def convolution_run(work: Work) -> None:
    work.python(
        "import numpy as np\nfrom kerncast.answering.dispatch import Dispatcher\n"
        "run = Dispatcher('grouped_conv_forward/cpu')\n"
        "x, w = np.ones((1, 8, 8, 16), np.float32), np.ones((16, 3, 3, 16), np.float32)\n"
        "print(run.run(x, w).shape)"
    )
    work.needs("an AMD GPU for its own tensors: arrays of the CPU are run")


@promise("80", CONV, "Measure instead, where there is no model", "[Dispatching](selecting.md#how-a-kernel-is-chosen)")
def searched_without_model(work: Work) -> None:
    work.python(
        "import numpy as np\nfrom kerncast.answering.dispatch import Dispatcher\n"
        "found = Dispatcher('gemm/cpu').run(np.ones((8, 16), np.float32), np.ones((16, 8), np.float32))\n"
        "print(float(found[0, 0]))",
        says="16.0",
    )
