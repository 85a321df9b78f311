"""The C code of a learner: what it provides, and what that code may read and call.

`kc_learn` computes one row. It reads the features `x`, the parameters of the problem `p` and of the config `c`, and numbers
of the problem `v` (see `CScope.values`), and writes what the learner predicts to `raw`: the target first. It may call
`kc_encode(time_ns, v)`, from nanoseconds to the target, and libm. It allocates nothing and keeps no state.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass

from kerncast.core.io.c import Sealed
from kerncast.core.op import Family


@dataclass(frozen=True)
class CScope:
    """The context of a learner's C code."""

    family: Family
    values: Mapping[str, int]
    """The index in `v` of each number of the problem: `roofline_ns`, `flops`, `bytes` where they are known, and
    `Learner.problem_numbers`."""
    sealed: Sealed
    """Writes constant arrays, which are checked when a context is made."""


@dataclass(frozen=True)
class CSource:
    """C99 text with the function `kc_learn`; all names in it begin with `kc_`."""

    text: str
    outputs: int = 1
    """How many numbers `kc_learn` writes to `raw`."""
    score: str = "*time_ns"
    """The score (low is chosen): an expression of `raw`, `v` and `*time_ns`; it may call `kc_log_time(raw[0], v)`."""


def learn_function(body: str) -> str:
    """The function `kc_learn` with these statements."""
    arguments = "const double *x, const double *p, const double *c, const double *v, double *raw"
    return f"static void kc_learn({arguments}) {{\n    (void)x, (void)p, (void)c, (void)v;\n{body}}}\n"
