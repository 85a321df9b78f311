"""Time the family of this example on this machine and write `times.csv`.

    python measure.py times.csv

The table is like that of any benchmark script: one row per run, times in milliseconds, three runs of each vector.
"""

import csv
import sys
import time

import numpy as np
from kerncast_softmax import softmax_numpy

SHAPES = [
    (64, 64),
    (64, 1024),
    (256, 256),
    (256, 4096),
    (1024, 128),
    (1024, 1024),
    (4096, 64),
    (4096, 512),
    (30, 5000),
    (777, 333),
]
CHUNKS = (1, 8, 64, 512, 4096)


def softmax_rows(x, out, chunk, in_place):
    """The kernel that is being timed."""
    for start in range(0, len(x), chunk):
        part = x[start : start + chunk]
        target = out[start : start + chunk]
        if in_place:
            np.subtract(part, part.max(axis=1, keepdims=True), out=target)
            np.exp(target, out=target)
            np.divide(target, target.sum(axis=1, keepdims=True), out=target)
        else:
            e = np.exp(part - part.max(axis=1, keepdims=True))
            target[:] = e / e.sum(axis=1, keepdims=True)


def milliseconds(run):
    """Milliseconds of one warm run, looped until the loop is long enough to time."""
    run()
    loops = 1
    while True:
        start = time.perf_counter()
        for _ in range(loops):
            run()
        spent = time.perf_counter() - start
        if spent > 2e-3:
            return spent / loops * 1e3
        loops *= 2


def main(path):
    """Make three passes over all vectors, so that a slow moment of the machine does not affect a single config only."""
    rng = np.random.default_rng(0)
    vectors = []
    for rows, columns in SHAPES:
        for dtype, kind in (("float32", np.float32), ("float64", np.float64)):
            x = rng.standard_normal((rows, columns)).astype(kind)
            for chunk in CHUNKS:
                for in_place in (False, True):
                    problem = {"rows": rows, "columns": columns, "dtype": "fp32" if dtype == "float32" else "fp64"}
                    config = {"chunk": chunk, "in_place": in_place}
                    bindings = softmax_numpy.bindings(problem)
                    if not softmax_numpy.config.validate(config, bindings):
                        vectors.append((dtype, x, np.empty_like(x), chunk, in_place))
    with open(path, "w", newline="") as file:
        writer = csv.writer(file)
        writer.writerow(["rows", "columns", "numpy_dtype", "chunk", "in_place", "pass", "latency_ms"])
        for number in range(3):
            for index in rng.permutation(len(vectors)):
                dtype, x, out, chunk, in_place = vectors[index]
                spent = milliseconds(lambda: softmax_rows(x, out, chunk, in_place))  # noqa: B023
                writer.writerow([*x.shape, dtype, chunk, in_place, number, f"{spent:.6g}"])


if __name__ == "__main__":
    main(sys.argv[1])
