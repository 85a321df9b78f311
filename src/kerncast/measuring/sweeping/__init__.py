"""Sweeps: which vectors to measure. Generated lazily, block by block, checked against every constraint.

    problems = problem_set(family, ["llm"], {"dtype": ["fp16"], "layout": ["rcr"]})
    sweep = Sweep(family, device, problems, parse_selection(family, "sample:100"))
    for block in sweep.iter_blocks():  # a polars frame with columns problem.* and config.*
        ...

`open_sweep` also knows the sweeps that an op generates itself (`Op.sweep`).
`write_vectors` puts a sweep on disk, `Vectors.open` reads it back; both give blocks the same way.
"""

from kerncast.measuring.sweeping.files import SweepSummary, Vectors, write_vectors
from kerncast.measuring.sweeping.selection import Selection, parse_selection
from kerncast.measuring.sweeping.sweep import Slice, SuiteSweep, Sweep, Vector, open_sweep, vectors_of

__all__ = [
    "Selection",
    "Slice",
    "SuiteSweep",
    "Sweep",
    "SweepSummary",
    "Vector",
    "Vectors",
    "open_sweep",
    "parse_selection",
    "vectors_of",
    "write_vectors",
]
