"""200 shapes of well-known language models: a Dispatcher against numpy.matmul, fp32, one thread, interleaved.

    python benchmarks/dispatch.py [--model DIR] [--budget SECONDS] [--shapes N] [--seed S]

Row-major activations are multiplied by weights as layers store them, row-major (N, K), from one decoded token to a prompt.
Shapes over 3 GFLOP or 128 MB are left out. Without a model, each new problem is measured once, for `--budget` seconds. With a
model, the model chooses; the time to ask it and to compile is part of the first call. Both sides write to an existing array,
and every result is compared with numpy's. Takes under 3 minutes.
"""

from __future__ import annotations

import math
import os
import random
import statistics
import sys
import time
from collections.abc import Callable, Iterator
from dataclasses import replace

# Before numpy is imported, because numpy reads these on import.
os.environ["OPENBLAS_NUM_THREADS"] = os.environ["OMP_NUM_THREADS"] = "1"

import numpy as np
from reporting import Benchmark, Row, Target, bootstrap, finish, script_parser

from kerncast.answering.dispatch import Dispatcher
from kerncast.library.problems.gemm import llm

BENCHMARK = Benchmark(__file__, "CPU kernels against libraries", "Dispatcher against numpy.matmul")
MOST_FLOPS, MOST_BYTES = 3e9, 128e6
ROUNDS = 5
REGION_NS = 1_000_000
# Many short regions, of which the fastest counts: other processes only make them slower.
TINY, TINY_CALLS, TINY_ROUNDS = 8, 500, 200


def stream(count: int, seed: int) -> list[tuple[int, int, int]]:
    fitting = [(m, n, k) for m, n, k in llm() if 2 * m * n * k <= MOST_FLOPS and 4 * (m * k + n * k + m * n) <= MOST_BYTES]
    return random.Random(seed).sample(fitting, min(count, len(fitting)))


def region_ns(call: Callable[[], object], loops: int) -> float:
    start = time.perf_counter_ns()
    for _ in range(loops):
        call()
    return (time.perf_counter_ns() - start) / loops


def race(ours: Callable[[], object], theirs: Callable[[], object]) -> float:
    """Numpy's time ÷ ours, each the fastest of several interleaved regions: other processes only make them slower."""
    loops = max(1, math.ceil(REGION_NS / max(region_ns(theirs, 1), 1)))
    spent = [(region_ns(theirs, loops), region_ns(ours, loops)) for _ in range(ROUNDS)]
    return min(taken for taken, _ in spent) / min(taken for _, taken in spent)


def operands(shapes: list[tuple[int, int, int]]) -> Iterator[tuple[np.ndarray, np.ndarray]]:
    """Operands of each shape, cut from one buffer: new random numbers for each would take longer than multiplying."""
    rng = np.random.default_rng(0)
    weights = rng.standard_normal(max(n * k for _, n, k in shapes), np.float32)
    tokens = rng.standard_normal(max(m * k for m, _, k in shapes), np.float32)
    for m, n, k in shapes:
        yield tokens[: m * k].reshape(m, k), weights[: n * k].reshape(n, k).T


def overhead(dispatcher: Dispatcher) -> Row:
    """The time of a call minus that of its kernel, for a tiny product."""
    a, b = np.ones((TINY, TINY), np.float32), np.ones((TINY, TINY), np.float32)
    out = np.empty((TINY, TINY), np.float32)
    choice = dispatcher.choice(a, b)
    assert choice is not None
    kernel = dispatcher.backend.prepare(dispatcher.problem(a, b), choice.config)
    rounds = [
        (
            region_ns(lambda: dispatcher.run(a, b), TINY_CALLS),
            region_ns(lambda: dispatcher.run(a, b, out=out), TINY_CALLS),
            region_ns(lambda: np.matmul(a, b), TINY_CALLS),
            kernel.run(TINY_CALLS) / TINY_CALLS,
        )
        for _ in range(TINY_ROUNDS)
    ]
    run, into, numpy_ns, alone = (min(column) for column in zip(*rounds, strict=True))
    note = f"run(a, b) {run / 1e3:.2f} µs, with out= {into / 1e3:.2f} µs, the kernel alone {alone / 1e3:.2f} µs"
    against = f"all of numpy.matmul(a, b) {numpy_ns / 1e3:.2f} µs"
    n = f"{TINY_ROUNDS} rounds of {TINY_CALLS} calls"
    return Row(f"overhead of a call, {TINY} × {TINY} × {TINY}", (run - alone) / 1e3, "µs", None, against, n, note=note)


def main() -> int:
    parser = script_parser(__doc__)
    parser.add_argument("--model")
    parser.add_argument("--budget", type=float, default=0.2)
    parser.add_argument("--shapes", type=int, default=200)
    parser.add_argument("--seed", type=int, default=0)
    given = parser.parse_args()
    begin = time.perf_counter()
    dispatcher = Dispatcher("gemm/cpu", given.model, budget=given.budget)
    shapes = stream(given.shapes, given.seed)
    ratios, firsts, wrong = [], [], 0
    for (m, n, k), (a, b) in zip(shapes, operands(shapes), strict=True):
        ours, theirs = np.empty((m, n), np.float32), np.empty((m, n), np.float32)
        start = time.perf_counter()
        dispatcher.run(a, b, out=ours)
        firsts.append(time.perf_counter() - start)
        np.matmul(a, b, out=theirs)
        wrong += not np.allclose(ours, theirs, rtol=0, atol=4 * k * np.finfo(np.float32).eps)
        ratios.append(race(lambda: dispatcher.run(a, b, out=ours), lambda: np.matmul(a, b, out=theirs)))  # noqa: B023
    rows = []
    parts = {
        "all shapes": ratios,
        "decode (up to 128 rows)": [ratio for ratio, (m, _, _) in zip(ratios, shapes, strict=True) if m <= 128],
        "prefill": [ratio for ratio, (m, _, _) in zip(ratios, shapes, strict=True) if m > 128],
    }
    chooser = "with a model" if given.model else f"measuring each shape for {given.budget:g} s"
    for name, part in parts.items():
        if part:
            what = f"numpy.matmul's time ÷ the Dispatcher's, {chooser}, one thread, {name}: geometric mean"
            interval = bootstrap(part, statistics.geometric_mean)
            rows.append(Row(what, statistics.geometric_mean(part), "×", n=f"{len(part)} shapes", interval=interval))
    ordered, worst = sorted(ratios), shapes[ratios.index(min(ratios))]
    print(
        f"numpy ÷ dispatcher: geometric mean {statistics.geometric_mean(ratios):.3f}, P10 {ordered[len(ordered) // 10]:.3f}, "
        f"worst {ordered[0]:.3f} ({' × '.join(map(str, worst))}), best {ordered[-1]:.3f}, n {len(ratios)}"
    )
    print(f"answered by: {', '.join(f'{name} {count}' for name, count in dispatcher.answered.items())}")
    print(f"first call of a problem: median {statistics.median(firsts) * 1e3:.0f} ms, longest {max(firsts):.2f} s")
    rows[0] = replace(rows[0], note=f"P10 {ordered[len(ordered) // 10]:.3f}, worst {ordered[0]:.3f}, best {ordered[-1]:.3f}")
    rows.append(overhead(dispatcher))
    rows.append(Row("results that differ from numpy's", wrong, "", Target(0, 0), n=f"{len(ratios)} shapes"))
    print(f"{time.perf_counter() - begin:.0f} s in total")
    return finish(BENCHMARK, rows, given.json)


if __name__ == "__main__":
    sys.exit(main())
