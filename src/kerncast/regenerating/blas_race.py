"""The best measured kernel of each problem against numpy, interleaved: `python -P -m kerncast.regenerating.blas_race PATH...`.

It is a separate process, because the number of BLAS threads is fixed when numpy is first imported. It prints JSON:
the problem's canonical text and how many times faster than numpy its winner is. Problems in dtypes that numpy
has no BLAS for are left out.
"""

from __future__ import annotations

import json
import statistics
import sys
import time

import numpy as np
import polars as pl

from kerncast.core.op import Config, Problem, key_text
from kerncast.data import Dataset
from kerncast.learning.tables.table import load_table
from kerncast.measuring.backends import get_backend

DTYPES = {"fp32": np.float32, "fp64": np.float64}
ROUNDS = 9
REGION_NS = 300_000


def _loops(time_ns: float) -> int:
    return max(1, round(REGION_NS / max(time_ns, 1.0)))


def race(paths: list[str]) -> list[dict[str, object]]:
    """One entry per problem; the ratio is the median over rounds in which both ran side by side."""
    table = load_table([Dataset.open(path) for path in paths])
    family, trials = table.family, table.trials
    best = trials.choose(trials.time_ns)
    winners = table.rows.frame[best].with_columns(time_ns=pl.Series(trials.time_ns[best])).filter(pl.Series(trials.solvable))
    backend = get_backend("cpu")("0")
    rng = np.random.default_rng(0)
    found: list[dict[str, object]] = []
    for row in winners.filter(pl.col("problem.dtype").is_in(list(DTYPES))).iter_rows(named=True):
        problem = Problem.trusted(family, {name: row[f"problem.{name}"] for name in family.problem.parameters})
        config = Config.trusted(family, {name: row[f"config.{name}"] for name in family.config.parameters})
        kernel = backend.prepare(problem, config)
        dtype = DTYPES[problem.dtype]
        a = rng.standard_normal((problem.M, problem.K)).astype(dtype, order="F" if problem.layout[0] == "c" else "C")
        b = rng.standard_normal((problem.K, problem.N)).astype(dtype, order="F" if problem.layout[1] == "c" else "C")
        out = np.empty((problem.M, problem.N), dtype)
        loops = _loops(row["time_ns"])
        ratios = []
        for _ in range(ROUNDS + 1):
            start = time.perf_counter_ns()
            for _ in range(loops):
                np.matmul(a, b, out=out)
            ratios.append((time.perf_counter_ns() - start) / kernel.run(loops))
        kernel.close()
        found.append({"problem": key_text(family.id, "", problem.items(), []), "ratio": statistics.median(ratios[1:])})
    return found


if __name__ == "__main__":
    print(json.dumps(race(sys.argv[1:])))
