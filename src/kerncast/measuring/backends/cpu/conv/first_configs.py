"""Which configs to try first when nothing is known: those that the family's own features expect to be fast."""

from __future__ import annotations

from kerncast.core.device import Device
from kerncast.core.expr import Program
from kerncast.core.op import Config, Problem

# Configs to draw before sorting; more than there is time to try.
DRAWN = 512
SEED = 0
# Two units with a latency of four cycles: fewer sums than these wait for each other.
FULL_CHAINS = 8
# Loads that keep pace with the products, in products for each load.
FULL_LOADS = 1.2
# The cost of a call, in nanoseconds of arithmetic.
CALL_NS = 8.0
# The cost of a read from beyond a cache, relative to a read from it.
BEYOND_CACHE = 1.15
NEEDED = (
    "chains", "fma_per_load", "log2_calls", "log2_compute_and_moved_ns", "log2_compute_ns", "strip_l1", "block_l2",
)  # fmt: skip


def first_configs(problem: Problem, device: Device) -> list[Config]:
    """Valid configs for a problem, promising ones first."""
    import polars as pl  # a worker has no use for it

    family = problem.family
    assert family is not None
    known = family.bindings(problem, device)
    drawn = family.config.sample(DRAWN, SEED, known)
    features = family.features_on(device, [str(problem.as_dict()["dtype"])]).program.outputs
    bound = Program({name: features[name] for name in NEEDED}).bind(known)
    seen = bound.frame(drawn.rename({name: f"c.{name}" for name in drawn.columns}))
    compute = 2 ** pl.col("log2_compute_ns")
    moved = 2 ** pl.col("log2_compute_and_moved_ns") - compute
    kept = pl.min_horizontal(pl.col("chains") / FULL_CHAINS, pl.col("fma_per_load") / FULL_LOADS, 1.0)
    beyond = pl.when((pl.col("strip_l1") > 1) | (pl.col("block_l2") > 1)).then(BEYOND_CACHE).otherwise(1.0)
    cost = compute / kept * beyond + moved + CALL_NS * 2 ** pl.col("log2_calls")
    order = seen.select(cost.arg_sort()).to_series()
    return [Config.trusted(family, row) for row in drawn[order].iter_rows(named=True)]
