"""Best of gemm/cpu against numpy's OpenBLAS and torch's MKL: 38 shapes in all four layouts, fp32, one and two threads.

    python benchmarks/gemm_cpu.py [--threads 1,2] [--shapes N]

Every config of the `quick` set is tried, the best few are timed again, interleaved, and the winner is timed once more,
interleaved with the libraries. Only this last race gives the ratios, so they do not profit from taking the best of many noisy
times. Both libraries are called as numpy and torch call them (sgemm, or sgemv for vectors), but from a C loop, so that
Python's overhead does not count. Samples wait until no other process runs. If they rarely could, the ratios mean nothing, and
the last row says so. Without torch, that comparison is left out, and a line says so.
"""

from __future__ import annotations

import ctypes
import importlib.util
import json
import math
import os
import statistics
import subprocess
import sys
import tempfile
import time
from collections.abc import Callable
from functools import cache
from pathlib import Path
from typing import Any

import numpy as np
from reporting import Benchmark, Row, Target, bootstrap, finish, script_parser

BENCHMARK = Benchmark(__file__, "CPU kernels against libraries", "Best of gemm/cpu against OpenBLAS and torch's MKL")
# Library time ÷ ours, by library and threads.
TARGETS = {"OpenBLAS": {1: 1.2, 2: 1.35}, "torch": {1: 0.97, 2: 1.1}}
LAYOUTS = ("rcr", "rrr", "crr", "ccr")
CUBES = [(s, s, s) for s in (48, 64, 100, 128, 200, 256, 384, 512)]
FEW_ROWS = [
    *((1, 1024, 1024), (1, 4096, 512), (2, 1024, 1024), (4, 1024, 1024), (8, 2048, 512)),
    *((12, 1024, 768), (16, 768, 768), (32, 1024, 512), (64, 512, 1024)),
]
FEW_COLUMNS = [(2048, 16, 256), (4096, 32, 64), (1024, 64, 128), (3000, 8, 300), (768, 4, 768)]
LONG_K = [(16, 16, 16384), (32, 48, 8192), (64, 64, 4096), (100, 100, 2500)]
SHORT_K = [(300, 300, 8), (500, 400, 3), (640, 640, 32), (64, 3000, 64)]
PRIMES = [(127, 131, 137), (251, 257, 263), (509, 127, 61), (37, 1009, 41), (17, 23, 2003), (397, 401, 83)]
VECTORS = [(512, 1, 512), (2000, 1, 300)]
SHAPES = CUBES + FEW_ROWS + FEW_COLUMNS + LONG_K + SHORT_K + PRIMES + VECTORS

SAMPLE_NS = 40_000
RACE_NS = 150_000
SETTLE_SECONDS = 0.0005
PATIENCE = 10
MOST_DISTURBED = 25
FINALISTS, WINNERS = 16, 4
LOOPS = """
#include <stdint.h>
#include <time.h>
static int64_t now(void) { struct timespec t; clock_gettime(CLOCK_MONOTONIC, &t); return t.tv_sec * 1000000000L + t.tv_nsec; }
/* Fortran's interface, which both libraries have: 64-bit integers in numpy's, 32-bit ones in torch's. */
#define LOOPS(NAME, INT)                                                                                               \\
    typedef void NAME##_gemm_fn(const char *, const char *, const INT *, const INT *, const INT *, const float *,      \\
                                const float *, const INT *, const float *, const INT *, const float *, float *,        \\
                                const INT *);                                                                          \\
    typedef void NAME##_gemv_fn(const char *, const INT *, const INT *, const float *, const float *, const INT *,     \\
                                const float *, const INT *, const float *, float *, const INT *);                      \\
    int64_t NAME##_gemm(int64_t launches, NAME##_gemm_fn *f, int ta, int tb, int64_t m_, int64_t n_, int64_t k_,       \\
                        const float *a, int64_t lda_, const float *b, int64_t ldb_, float *c) {                        \\
        const char sa = ta, sb = tb;                                                                                   \\
        const INT m = m_, n = n_, k = k_, lda = lda_, ldb = ldb_;                                                      \\
        const float one = 1, zero = 0;                                                                                 \\
        const int64_t start = now();                                                                                   \\
        for (int64_t i = 0; i < launches; i++) f(&sb, &sa, &n, &m, &k, &one, b, &ldb, a, &lda, &zero, c, &n);          \\
        return now() - start;                                                                                          \\
    }                                                                                                                  \\
    int64_t NAME##_gemv(int64_t launches, NAME##_gemv_fn *f, int t, int64_t rows_, int64_t columns_, const float *a,   \\
                        const float *x, float *y) {                                                                    \\
        const char st = t;                                                                                             \\
        const INT rows = rows_, columns = columns_, step = 1;                                                          \\
        const float one = 1, zero = 0;                                                                                 \\
        const int64_t start = now();                                                                                   \\
        for (int64_t i = 0; i < launches; i++) f(&st, &columns, &rows, &one, a, &columns, x, &step, &zero, y, &step);  \\
        return now() - start;                                                                                          \\
    }
LOOPS(OpenBLAS, int64_t)
LOOPS(torch, int32_t)
"""
NO_TORCH = "torch is not installed (pip install torch), so there is no comparison with it"
NO_MKL = "this torch is built without MKL's sgemm, so there is no comparison with it"


def library_runner(name: str, problem: dict[str, object], inputs: object) -> Callable[[int], int]:
    """A function that runs numpy's or torch's matmul for this problem N times and returns the nanoseconds."""
    m, n, k = (int(str(problem[x])) for x in "MNK")
    layout = str(problem["layout"])
    gemm, gemv = functions()[name]
    a, b, c = (ctypes.c_void_p(x) for x in inputs.pointers)  # type: ignore[attr-defined]
    # To Fortran, a row-major matrix is its column-major transpose: C' = B' · A'.
    if m == 1 or n == 1:
        stored, vector = (a, b) if n == 1 else (b, a)
        by_rows = layout[0] == "r" if n == 1 else layout[1] == "c"
        long = m if n == 1 else n
        sizes = [ctypes.c_int64(x) for x in ((long, k) if by_rows else (k, long))]
        run_gemv = loops()[f"{name}_gemv"]
        return lambda launches: int(
            run_gemv(ctypes.c_int64(launches), gemv, ord("T" if by_rows else "N"), *sizes, stored, vector, c)
        )
    ta, tb = (ord("N" if order == "r" else "T") for order in layout[:2])
    sizes = [ctypes.c_int64(x) for x in (m, n, k)]
    lda, ldb = ctypes.c_int64(k if layout[0] == "r" else m), ctypes.c_int64(n if layout[1] == "r" else k)
    run_gemm = loops()[f"{name}_gemm"]
    return lambda launches: int(run_gemm(ctypes.c_int64(launches), gemm, ta, tb, *sizes, a, lda, b, ldb, c))


@cache
def loops() -> ctypes.CDLL:
    from kerncast.measuring.backends.cpu.build import find_compiler

    compiler = find_compiler()
    assert compiler is not None
    with tempfile.TemporaryDirectory() as scratch:
        made = Path(scratch) / "loops.so"
        command = [compiler.path, "-O2", "-shared", "-fPIC", "-x", "c", "-", "-o", str(made)]
        subprocess.run(command, input=LOOPS, text=True, check=True)
        library = ctypes.CDLL(str(made))
    for name in ("OpenBLAS_gemm", "OpenBLAS_gemv", "torch_gemm", "torch_gemv"):
        library[name].restype = ctypes.c_int64
    return library


@cache
def functions() -> dict[str, tuple[ctypes.c_void_p, ctypes.c_void_p]]:
    """sgemm and sgemv of each library that is installed."""
    folder = Path(np.__file__).parent.parent / "numpy.libs"
    found = sorted(folder.glob("libscipy_openblas64*"))
    if not found:
        sys.exit(f"this numpy has no OpenBLAS in {folder}: install numpy from PyPI")
    blas = ctypes.CDLL(str(found[0]))
    pairs = {"OpenBLAS": (blas.scipy_sgemm_64_, blas.scipy_sgemv_64_)}
    if importlib.util.find_spec("torch"):
        import torch

        mkl = ctypes.CDLL(str(Path(torch.__file__).parent / "lib" / "libtorch_cpu.so"))
        if hasattr(mkl, "SGEMM"):
            pairs["torch"] = mkl.SGEMM, mkl.SGEMV
    return {name: (ctypes.cast(x, ctypes.c_void_p), ctypes.cast(y, ctypes.c_void_p)) for name, (x, y) in pairs.items()}


def per_launch(run: Callable[[int], int], sample_ns: int, guess: float | None = None) -> float:
    """Nanoseconds of one launch, from one sample of about `sample_ns`."""
    once = guess or max(run(1), 1)
    launches = max(1, int(sample_ns / once))
    return run(launches) / launches


def others_running() -> int:
    """How many other processes want a CPU right now."""
    try:
        return int(Path("/proc/loadavg").read_text().split()[3].split("/")[0]) - 1
    except (OSError, ValueError, IndexError):
        return 0


def quiet_sample(run: Callable[[int], int], sample_ns: int, guess: float) -> tuple[float, bool]:
    """One sample, started when the machine is quiet or after PATIENCE checks; and whether it was quiet."""
    if os.environ.get("OPENBLAS_NUM_THREADS") != "1":
        time.sleep(SETTLE_SECONDS)  # until the threads of the previous kernel sleep
    for _ in range(PATIENCE):
        if not others_running():
            break
        time.sleep(SETTLE_SECONDS)
    quiet = not others_running()
    run(1)  # wakes the threads of this kernel
    return per_launch(run, sample_ns, guess), quiet


def race(runs: list[Callable[[int], int]], rounds: int, sample_ns: int) -> tuple[list[float], float]:
    """The lower quartile of interleaved samples of each, and the share of samples that were disturbed."""
    guess = [per_launch(run, sample_ns) for run in runs]
    samples = [[quiet_sample(run, sample_ns, guess[at]) for at, run in enumerate(runs)] for _ in range(rounds)]
    disturbed = sum(not quiet for taken in samples for _, quiet in taken)
    return [_lower_quartile([taken[at] for taken in samples]) for at in range(len(runs))], disturbed / (rounds * len(runs))


def _lower_quartile(samples: list[tuple[float, bool]]) -> float:
    """The lower quartile of the quiet samples, or of all samples if fewer than half are quiet."""
    quiet = [taken for taken, was_quiet in samples if was_quiet]
    kept = sorted(quiet if 2 * len(quiet) >= len(samples) else [taken for taken, _ in samples])
    return kept[len(kept) // 4]


def measure(backend: object, problem: object, configs: list[object]) -> dict[str, object]:
    """Find the fastest config of the set and time it against the libraries."""
    prepared = [backend.prepare(problem, config) for config in configs]  # type: ignore[attr-defined]
    first = [per_launch(item.run, SAMPLE_NS) for item in prepared]
    order = sorted(range(len(first)), key=first.__getitem__)[:FINALISTS]
    again, _ = race([prepared[at].run for at in order], 3, SAMPLE_NS)
    order = [order[at] for at in sorted(range(len(order)), key=again.__getitem__)[:WINNERS]]
    final, _ = race([prepared[at].run for at in order], 7, RACE_NS)
    winner = order[min(range(len(order)), key=final.__getitem__)]
    error = prepared[winner].check()
    assert error == 0.0, f"{configs[winner]} is wrong by {error}"
    inputs = prepared[winner].inputs
    libraries = {name: library_runner(name, problem.as_dict(), inputs) for name in functions()}  # type: ignore[attr-defined]
    for name, run in libraries.items():
        inputs.poison()
        run(1)
        assert inputs.error() == 0.0, f"the result of {name} is wrong"
    (ours, *theirs), disturbed = race([prepared[winner].run, *libraries.values()], 15, RACE_NS)
    return {
        "problem": problem.as_dict(),  # type: ignore[attr-defined]
        "config": configs[winner].as_dict(),  # type: ignore[attr-defined]
        "ours_ns": ours,
        "library_ns": dict(zip(libraries, theirs, strict=True)),
        "disturbed": disturbed,
        "worst_ns": max(first),
    }


def worker(threads: int, shapes: int) -> None:
    """Print one line of JSON per problem. Runs in its own process: libraries read the number of threads when loaded."""
    from kerncast.core.op import Config, Problem
    from kerncast.library import devices
    from kerncast.library.families.gemm_cpu import config_set, gemm_cpu
    from kerncast.measuring.backends.cpu import CpuBackend

    backend = CpuBackend()
    for m, n, k in SHAPES[:shapes]:
        for layout in LAYOUTS:
            problem = Problem(gemm_cpu, M=m, N=n, K=k, dtype="fp32", layout=layout, threads=threads)
            rows = config_set("quick", problem.as_dict(), devices.local()).iter_rows(named=True)
            configs = [Config(gemm_cpu, {x: y for x, y in row.items() if y is not None}) for row in rows]
            backend.compile([(problem, config) for config in configs], os.cpu_count() or 1)
            print(json.dumps(measure(backend, problem, configs)), flush=True)


def geometric_mean(values: list[float]) -> float:
    return math.exp(statistics.fmean(map(math.log, values)))


def ratio(row: dict[str, Any], library: str) -> float:
    return float(row["library_ns"][library] / row["ours_ns"])


def table_row(group: list[dict[str, Any]]) -> str:
    p, c = group[0]["problem"], group[1]["config"]
    ratios = "  | ".join("  ".join(f"{ratio(row, name):6.2f}" for row in group) for name in group[0]["library_ns"])
    rate = 2 * p["M"] * p["N"] * p["K"] / min(row["ours_ns"] for row in group)
    return (
        f"{p['M']:6} {p['N']:6} {p['K']:6}  {ratios}  {rate:8.1f}  {c['kernel']} v{c['vector_bytes']} {c['mr']}x{c['nv']} "
        f"pack {int(c['pack_a'] or 0)}{int(c['pack_b'] or 0)} {c['mc']}/{c['kc']}/{c['nc']} split {c['split']}"
    )


def stated(rows: list[dict[str, Any]], library: str, threads: int) -> Row:
    """The row of one library, with a trimmed mean as its note. The bootstrap draws shapes, each with all its layouts."""
    ratios = np.array([ratio(row, library) for row in rows])
    ordered, cut = np.sort(ratios).tolist(), len(ratios) // 20
    target = TARGETS[library].get(threads)
    logs = np.log(ratios)[: len(ratios) // len(LAYOUTS) * len(LAYOUTS)].reshape(-1, len(LAYOUTS))
    return Row(
        f"{library}'s time ÷ gemm/cpu's, fp32, {threads} thread{'s' if threads > 1 else ''}: geometric mean",
        geometric_mean(ordered),
        "×",
        None if target is None else Target(target),
        n=f"{len(rows)} problems: {len(logs)} shapes × {len(LAYOUTS)} layouts",
        interval=bootstrap(logs, lambda drawn: np.exp(np.mean(drawn))),
        note=f"without the highest and lowest 5 %: {geometric_mean(ordered[cut : len(ordered) - cut]):.3f}",
    )


def disturbance(rows: list[dict[str, Any]], threads: int) -> Row:
    """The share of disturbed samples. Above its target the machine was too busy, and the ratios mean nothing."""
    share = 100 * statistics.fmean(row["disturbed"] for row in rows)
    text = f"samples taken while other processes ran, {threads} thread{'s' if threads > 1 else ''}"
    note = "the machine was too busy: the ratios mean nothing" if share > MOST_DISTURBED else ""
    return Row(text, share, "%", Target(high=MOST_DISTURBED), n=f"{len(rows)} problems", note=note)


def environment(threads: int) -> dict[str, str]:
    """Thread settings. By default, idle threads of both libraries spin for milliseconds and slow down whatever runs next."""
    count = str(threads)
    openblas = {"OPENBLAS_NUM_THREADS": count, "OPENBLAS_THREAD_TIMEOUT": "20"}
    return {**os.environ, **openblas, "OMP_NUM_THREADS": count, "MKL_NUM_THREADS": count, "GOMP_SPINCOUNT": "20000"}


def report(threads: int, shapes: int) -> list[Row]:
    start = time.perf_counter()
    command = [sys.executable, __file__, "--worker", str(threads), "--shapes", str(shapes)]
    print(f"\n{threads} thread(s): library time ÷ gemm/cpu time, by layout, for {' | '.join(functions())}")
    layouts = "  | ".join(["  ".join(f"{layout:>6}" for layout in LAYOUTS)] * len(functions()))
    print(f"{'M':>6} {'N':>6} {'K':>6}  {layouts}   GFLOP/s  winner (rrr)")
    rows: list[dict[str, Any]] = []
    with subprocess.Popen(command, env=environment(threads), stdout=subprocess.PIPE, text=True) as process:
        assert process.stdout is not None
        for line in process.stdout:
            rows.append(json.loads(line))
            if len(rows) % len(LAYOUTS) == 0:
                print(table_row(rows[-len(LAYOUTS) :]), flush=True)
    if process.returncode or not rows:
        sys.exit(f"the measurements with {threads} threads failed")
    spread = geometric_mean([row["worst_ns"] / row["ours_ns"] for row in rows])
    print(f"slowest ÷ fastest config {spread:.1f}; {time.perf_counter() - start:.0f} s")
    if "torch" not in functions():
        print(NO_MKL if importlib.util.find_spec("torch") else NO_TORCH)
    return [*(stated(rows, library, threads) for library in functions()), disturbance(rows, threads)]


def main() -> int:
    parser = script_parser(__doc__)
    parser.add_argument("--threads", default="1,2")
    parser.add_argument("--shapes", type=int, default=len(SHAPES))
    parser.add_argument("--worker", type=int)
    given = parser.parse_args()
    if given.worker:
        worker(given.worker, given.shapes)
        return 0
    rows = [row for threads in given.threads.split(",") for row in report(int(threads), given.shapes)]
    return finish(BENCHMARK, rows, given.json)


if __name__ == "__main__":
    sys.exit(main())
