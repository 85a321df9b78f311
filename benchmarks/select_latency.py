"""Time to choose among 4,608 CK Tile GEMM kernels, from C and from Python, on one core.

The kernels are a sample of those that `gemm/ck_tile` declares for an MI350X-class GPU (gfx950, fp16). There are no public times
for all of them, so the model learns times from a formula: this measures how long *choosing* takes, not how good the choice is.
tiers_loss.py measures the loss of the tiers on real data. The comparison is with `lightgbm.predict` of a forest of 500 trees
with 127 leaves on the same kernels, one thread, interleaved with the exported model.

    python benchmarks/select_latency.py [--keep DIR]
"""

from __future__ import annotations

import subprocess
import sys
import tempfile
import time
from pathlib import Path

import numpy as np
import numpy.typing as npt
import polars as pl
from reporting import Benchmark, Interval, Row, Target, bootstrap, finish, script_parser, spread

import kerncast
from kerncast.answering.exporters.project import write_project
from kerncast.answering.selector import Selector
from kerncast.core.device import Device
from kerncast.core.op import Family
from kerncast.data import Dataset, schema
from kerncast.learning.feature_rows import Featurizer
from kerncast.library import devices
from kerncast.library.registry import FAMILIES
from kerncast.measuring.backends.cpu.build import find_compiler
from kerncast.native.build import FLAGS
from kerncast.native.lower import lower
from kerncast.native.tiers.build import TierOptions, build_tiers

BENCHMARK = Benchmark(
    __file__,
    "How long choosing and predicting take",
    "Choosing among 4,608 CK Tile GEMM kernels, one core",
    note="The kernels' times come from a formula: this measures how long choosing takes, not how good the choice is.",
)
CONFIGS, PROBLEMS, ASKED = 4_608, 48, 600
SIZES = np.array([16, 32, 64, 96, 128, 256, 384, 512, 768, 1024, 1536, 2048, 3072, 4096, 6144, 8192, 11008, 14336])
FIXED = {"problem.split_k": 1, "problem.batch": 1, "problem.dtype": "fp16", "problem.layout": "rcr"}
# Maximum microseconds, and the minimum ratio of lightgbm.predict's time for the large forest to this time.
TARGETS = {"memo": (0.2, None), "tree": (1.0, 100_000), "portfolio": (50.0, 2_000), "full": (2_000.0, None)}
LARGE_TARGET, LARGE_ASKED = (8_000.0, 25), 200
# A shared machine is slow for seconds at a time: the figures are those of the fastest round, the range is over all rounds.
ROUNDS = 5
PYTHON_TARGETS = {"portfolio": 80.0, "memo": 1.0}
EXPORT_SECONDS, ARTEFACT_MB = 20.0, 2.0
C_NAMES = {"memo": "a problem asked before", "tree": "the tree", "portfolio": "the portfolio", "full": "all configs"}
PYTHON_NAMES = {"portfolio": "a new problem by the portfolio", "memo": "a problem asked before"}
Times = dict[str, list[float]]


def made_up_rows() -> pl.DataFrame:
    """Rows with times from a formula, with 1 % noise."""
    family, device, rng = FAMILIES.get("gemm/ck_tile"), devices.get("gfx950"), np.random.default_rng(0)
    pool = family.config.sample(CONFIGS, 0, family.bindings({"dtype": "fp16"}, device))
    pool = pool.rename({name: f"config.{name}" for name in pool.columns})
    frames = []
    for _ in range(PROBLEMS):
        shape = {f"problem.{name}": int(value) for name, value in zip("MNK", rng.choice(SIZES, 3), strict=True)}
        frames.append(pool.with_columns(pl.lit(value).alias(name) for name, value in {**shape, **FIXED}.items()))
    return timed(pl.concat(frames), family, device, rng)


def timed(vectors: pl.DataFrame, family: Family, device: Device, rng: np.random.Generator) -> pl.DataFrame:
    """Rows of these vectors that worked, with times from the formula and 1 % noise."""
    noisy = formula_ns(vectors, family, device) * np.exp(0.01 * rng.standard_normal(vectors.height))
    return vectors.with_columns(device=pl.lit(device.name), status=pl.lit("ok"), time_ns=pl.Series(noisy))


def formula_ns(frame: pl.DataFrame, family: Family, device: Device) -> npt.NDArray[np.float64]:
    """Times without noise: tile and wave quantisation, instruction shape, pipeline and traffic."""
    rows = Featurizer(family, device, ("fp16",)).describe(schema.with_optional(family, frame))
    x = dict(zip(rows.names, rows.features.T, strict=True))
    efficiency = (0.6 + 0.4 * np.tanh(x["num_warps"] / 4)) / (1 + 60 / x["tile_intensity"])
    efficiency *= (1 - 0.05 * (x["pipeline"] % 3)) * (1 - 0.03 * x["scheduler"]) * (1 - 0.02 * x["epilogue"])
    efficiency *= (1 - 0.04 * x["pad_m"] - 0.03 * x["pad_n"]) * (
        1 - 0.04 * np.abs(np.log2(x["warp_tile_m"] / x["warp_tile_n"]))
    )
    assert rows.flops is not None
    assert rows.bytes is not None
    compute = rows.flops / (1.2e6 * efficiency * x["true_utilization"] * x["wave_quantization"] + 1e-3)
    memory = x["operand_traffic_bytes"] / 8e3 * 0.3 + rows.bytes / 8e3
    time_ns = 3e3 + np.maximum(compute, memory) + 0.3 * np.minimum(compute, memory) + 40 * x["k_steps"]
    return np.asarray(time_ns)


def asked_problems(model: kerncast.Model, count: int) -> np.ndarray:
    """Random problems within the trained ranges, as C takes them; columns are M, N, K, split_k, batch, dtype, layout …"""
    rng, spans = np.random.default_rng(1), [model.manifest.hull[name] for name in "MNK"]
    sizes = [np.exp(rng.uniform(np.log(span.low), np.log(span.high), count)).astype(np.int64).clip(span.low) for span in spans]
    dtype = dict(model.family.problem.parameters["dtype"].codes)["fp16"]
    # The optional parameters are at the end, where 0 means left out.
    optional = np.zeros((count, len(model.family.problem.optional)), np.int64)
    return np.column_stack([*sizes, np.ones((count, 2), np.int64), np.full(count, dtype), np.zeros(count, np.int64), optional])


def run_c(folder: Path, problems: np.ndarray, *more: str) -> dict[str, list[float]]:
    """Compile the exported model with select_latency.c, and run it."""
    compiler = find_compiler()
    assert compiler is not None, "this benchmark needs gcc or clang"
    program, data = folder.parent / f"{folder.name}.bench", folder.parent / "problems.bin"
    if not program.exists():
        sources = [str(folder / "picker.c"), str(Path(__file__).with_suffix(".c"))]
        flags = [flag for flag in FLAGS if flag not in ("-fPIC", "-shared")]
        subprocess.run([compiler.path, *flags, f"-I{folder}", *sources, "-o", str(program), "-lm"], check=True)
    np.ascontiguousarray(problems, np.int64).tofile(data)
    done = subprocess.run([program, data, str(len(problems)), *more], check=True, capture_output=True, text=True)
    return {line.split()[0]: [float(word) for word in line.split()[1:]] for line in done.stdout.splitlines()}


def lightgbm_us(model: kerncast.Model, selector: Selector, problem: np.ndarray) -> float:
    """Microseconds of `lightgbm.predict` of the first forest for all candidates, without computing features; one thread."""
    values = dict(zip(("M", "N", "K"), (int(value) for value in problem[:3]), strict=True))
    built = selector.problem({**values, "dtype": "fp16", "layout": "rcr"})
    features = model.describe(selector.vectors(built, range(model.candidates.height))).features
    begin = time.perf_counter()
    model.learner.forests_["time"][0].predict(features, raw_score=True, num_threads=1)
    return (time.perf_counter() - begin) * 1e6


def python_us(selector: Selector, problems: np.ndarray) -> dict[str, tuple[float, np.ndarray]]:
    """The median and all times of a call from Python, in microseconds, for new and for repeated problems."""
    built = [
        selector.problem({"M": int(m), "N": int(n), "K": int(k), "dtype": "fp16", "layout": "rcr"})
        for m, n, k in problems[:, :3]
    ]
    new, again = [], []
    for problem in built:
        begin = time.perf_counter()
        selector.select(problem)
        new.append(time.perf_counter() - begin)
    for problem in built:
        begin = time.perf_counter()
        for _ in range(100):
            selector.select(problem)
        again.append((time.perf_counter() - begin) / 100)
    return {
        name: (float(np.median(times)) * 1e6, 1e6 * np.array(times)) for name, times in (("portfolio", new), ("memo", again))
    }


def main() -> int:
    parser = script_parser(__doc__)
    parser.add_argument("--keep", type=Path, help="keep models and exports in this folder, and reuse those in it")
    arguments = parser.parse_args()
    with tempfile.TemporaryDirectory() as scratch:
        return finish(BENCHMARK, measure(arguments.keep or Path(scratch)), arguments.json)


def trained(folder: Path, *names: str) -> list[kerncast.Model]:
    """The models of these names: `default`, and `large` with a single large forest."""
    if not (folder / "data").exists():
        family = FAMILIES.get("gemm/ck_tile")
        Dataset.build(folder / "data", lambda draft: draft.append(family, made_up_rows()))
    recipes = {"default": {}, "large": {"trees": 500, "leaves": 127, "blend": 0.0}}
    for name in names:
        if not (folder / name).exists():
            kerncast.train(folder / "data", out=folder / name, folds=2, **recipes[name])
    return [kerncast.Model.load(folder / name) for name in names]


def measure(folder: Path) -> list[Row]:
    folder.mkdir(parents=True, exist_ok=True)
    default, large = trained(folder, "default", "large")
    begin = time.perf_counter()
    tiers = build_tiers(default, TierOptions())
    if not (folder / "default_c").exists():
        write_project(lower(default, tiers), folder / "default_c", "picker")
    selector = Selector(default, tiers=tiers)
    export_seconds = time.perf_counter() - begin
    plain = Selector(large, tiers=tiers, compile=False)
    if not (folder / "large_c").exists():
        write_project(lower(large, tiers, ["full"]), folder / "large_c", "picker")
    problems = asked_problems(default, ASKED)
    rounds, reference = [], []
    for part in range(ROUNDS):
        reference += [lightgbm_us(large, plain, problem) for problem in problems[part * 7 : part * 7 + 7]]
        rounds.append((run_c(folder / "default_c", problems), run_c(folder / "large_c", problems[:LARGE_ASKED], "full")))
    lightgbm = float(np.median(reference))
    quickest = int(np.argmin([default_times["full"][0] for default_times, _ in rounds]))
    features = len(default.manifest.features.names)
    trees = {name: len(bags) for name, bags in selector.artefact.forests.trees.items()} if selector.artefact.forests else {}
    sizes = {name: [len(bag) for bag in bags] for name, bags in selector.artefact.forests.trees.items()} if trees else {}
    print(f"pool of {default.candidates.height:,} configs, {features} features; default model: trees {sizes}, 63 leaves;")
    print(f"portfolio of {len(tiers.portfolio)}; lightgbm.predict of 500 x 127 on the pool: {lightgbm:,.0f} us")
    rows = latency_rows(rounds, quickest, lightgbm, spread(reference, "calls"))
    n = f"{ASKED} problems"
    for tier, (value, values) in python_us(selector, problems).items():
        text = f"from Python, {PYTHON_NAMES[tier]}, p50"
        rows.append(Row(text, value, "µs", Target(high=PYTHON_TARGETS[tier]), n=n, interval=bootstrap(values, np.median)))
    shared = folder / "default.so"
    compiler = find_compiler()
    assert compiler is not None
    subprocess.run([compiler.path, *FLAGS, str(folder / "default_c" / "picker.c"), "-o", str(shared), "-lm"], check=True)
    rows.append(Row("building the tiers, exporting and compiling", export_seconds, "s", Target(high=EXPORT_SECONDS), n="1 run"))
    rows.append(Row("size of the compiled artefact", shared.stat().st_size / 1e6, "MB", Target(high=ARTEFACT_MB)))
    return rows


def latency_rows(rounds: list[tuple[Times, Times]], quickest: int, lightgbm: float, calls: Interval) -> list[Row]:
    """Rows for each tier: its p50 in the fastest round, and LightGBM's time ÷ this p50."""
    rows = []
    n = f"{ASKED} problems, {ROUNDS} rounds"
    large = [large_times["full"][0] for _, large_times in rounds]
    found = {tier: [default_times[tier] for default_times, _ in rounds] for tier in TARGETS}
    for tier, (most, ratio) in TARGETS.items():
        p50s = [values[0] for values in found[tier]]
        _, p99, own, asked = found[tier][quickest][:4]
        note = f"p99 {p99:.3g} µs; answered {own:.0f} of {asked:.0f} itself"
        text = f"from C, {C_NAMES[tier]}, p50 of the quickest round"
        rows.append(Row(text, p50s[quickest], "µs", Target(high=most), n=n, interval=spread(p50s, "rounds"), note=note))
        if ratio:
            against = f"lightgbm.predict, 500 trees × 127 leaves, one thread: {lightgbm:,.0f} µs"
            text = f"lightgbm.predict's time ÷ that of {C_NAMES[tier]}"
            rows.append(Row(text, lightgbm / p50s[quickest], "×", Target(ratio), against, n))
    most, ratio = LARGE_TARGET
    n = f"{LARGE_ASKED} problems, {ROUNDS} rounds"
    text = "from C, all configs by a forest of 500 trees × 127 leaves, p50 of the quickest round"
    rows.append(Row(text, large[quickest], "µs", Target(high=most), n=n, interval=spread(large, "rounds")))
    against = f"lightgbm.predict of the same forest: {lightgbm:,.0f} µs ({calls.low:,.0f} to {calls.high:,.0f}, {calls.kind})"
    text = "lightgbm.predict's time ÷ that of the same forest in C"
    rows.append(Row(text, lightgbm / large[quickest], "×", Target(ratio), against, n))
    return rows


if __name__ == "__main__":
    sys.exit(main())
