"""Made-up measurements of any family, and the check that what a selector chooses from them can run.

Configs that break a rule fail, and so do some that obey all of them: `fails` plants failures that no rule explains.
"""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path
from typing import Any

import numpy as np
import polars as pl

from kerncast.core.arrays import Flags, Floats
from kerncast.core.device import NUMBERS, Device
from kerncast.core.dtypes import CODES
from kerncast.core.expr import Program
from kerncast.core.op import Family
from kerncast.core.parameters import Int, Parameter
from kerncast.data import Dataset, schema
from kerncast.data.dataset import record_of
from kerncast.learning.feature_rows import Featurizer
from kerncast.models.answer import Answer
from kerncast.models.model import Model
from kerncast.native.tiers.teaching import allowed_problems

# Everything is known about this device, so every rule and every feature of every family can be computed.
DEVICE = Device(
    "made_up",
    "a device that does not exist",
    "gpu",
    {**dict.fromkeys(NUMBERS, 8.0), "num_cus": 100.0, "lds_capacity_bytes": 65_536.0, "smem_per_block_bytes": 65_536.0,
     "max_work_group_size": 1024.0, "l1_cache_kb": 48.0, "l2_cache_kb": 2048.0, "l3_cache_kb": 65_536.0,
     "memory_bandwidth_gb_s": 1000.0, "vector_bytes": 32.0, "wavefront_size": 64.0, "max_waves_per_cu": 32.0},
    dict.fromkeys(CODES, 100.0),
)  # fmt: skip
# A size is a multiple of one of these: kernels without guarded edges need aligned ones, and the others must be tried, too.
MULTIPLES = (1, 2, 8, 16, 64, 128, 256)
LARGEST = 4096
# The first of these that a parameter has; else its own first.
LABELS = ("fp32", "rcr", "nhwc")
# Rules refuse most problems that are drawn at random; after this many rounds drawing stops.
MOST_ROUNDS = 20


def random_problems(
    family: Family, count: int, seed: int = 0, multiples: Sequence[int] = MULTIPLES, smallest: int = 1
) -> pl.DataFrame:
    """Up to `count` different problems (`problem.*`) of one dtype and layout that the family does not refuse altogether."""
    rng, kinds = np.random.default_rng(seed), schema.schema_of(family)
    names = {name: kinds[f"problem.{name}"] for name in family.problem.parameters}
    found = pl.DataFrame(schema={f"problem.{name}": kind for name, kind in names.items()})
    for _ in range(MOST_ROUNDS):
        columns = [
            pl.Series(
                f"problem.{name}", _draw(family.problem.parameters[name], 20 * count, rng, multiples, smallest), dtype=kind
            )
            for name, kind in names.items()
        ]
        drawn = allowed_problems(family.problem, pl.DataFrame(columns))
        found = pl.concat([found, drawn.filter(pl.Series(obeys(family, drawn, reads="p"), dtype=pl.Boolean))]).unique(
            maintain_order=True
        )
        if found.height >= count:
            break
    return found.head(count)


def _draw(parameter: Parameter, count: int, rng: np.random.Generator, multiples: Sequence[int], smallest: int) -> list[Any]:
    """Values of one parameter: its default, none if it is optional; sizes log-uniform, a third of them 1 if that is allowed."""
    if parameter.default is not None or parameter.optional:
        return [parameter.default] * count
    if not isinstance(parameter, Int):
        known = [parameter.value(index) for index in range(parameter.size)]
        return [next((label for label in LABELS if label in known), known[0])] * count
    low, high = max(parameter.low, min(smallest, parameter.high)), min(parameter.high, LARGEST)
    multiple = rng.choice(multiples, count) if high == LARGEST else np.ones(count)
    sizes = np.rint(np.exp(rng.uniform(np.log(low), np.log(high), count)) / multiple) * multiple
    ones = (rng.random(count) < 0.3) & (1 in multiples) & (low == 1)
    sizes = np.where(ones, 1, np.clip(np.maximum(sizes, multiple), low, high)).astype(np.int64)
    return [int(size) for size in parameter.low + (sizes - parameter.low) // parameter.step * parameter.step]


def obeys(family: Family, vectors: pl.DataFrame, device: Device = DEVICE, reads: str = "c") -> Flags:
    """Which vectors obey the family's constraints: all of them, or those that the problem alone decides (`reads="p"`)."""
    bound = device.bindings(family.op.dtype)
    symbols = vectors.rename(lambda name: f"{name[0]}.{name.partition('.')[2]}")
    held = np.ones(vectors.height, dtype=bool)
    for constraint in family.config.constraints if vectors.height else ():
        program = Program({"holds": constraint.holds}).bind(bound)
        spaces = {item.name.partition(".")[0] for item in program.symbols}
        if spaces and (reads == "c" or spaces == {"p"}):
            held &= program.frame(symbols, trusted=True).to_series().to_numpy() != 0.0
    return held


def made_up_rows(
    family: Family, problems: pl.DataFrame, configs: int, seed: int = 0, fails: float = 0.1, successes_only: bool = False
) -> pl.DataFrame:
    """Every problem with the configs of one sample; a share `fails` of kinds of vectors fails although no rule says so."""
    same = {name.partition(".")[2]: problems[name][0] for name in problems.columns if problems[name].n_unique() == 1}
    pool = family.config.sample(configs, seed, family.bindings(same, DEVICE))
    pool = pool.rename({name: f"config.{name}" for name in pool.columns})
    rows = problems.join(pool, how="cross", maintain_order="left_right")
    described = Featurizer(family, DEVICE, None).describe(rows)
    rng = np.random.default_rng(seed)
    base: Floats = np.full(rows.height, 1e5) if described.expected_ns is None else described.expected_ns
    # Each config is good at some sizes: its time is a wave in the logarithm of the work.
    phase, speed = (
        np.tile(rng.uniform(0, 6, pool.height), problems.height),
        np.tile(rng.uniform(0.6, 1, pool.height), problems.height),
    )
    time_ns = base * (1.0 + 0.3 * np.sin(np.log(base) + phase)) / speed * np.exp(0.01 * rng.standard_normal(rows.height))
    planted = np.sin(2.0 * np.log(base) + 3.0 * phase) > 1.0 - 2.0 * fails
    ok = obeys(family, rows) & ~planted
    rows = rows.with_columns(
        device=pl.lit(DEVICE.name),
        status=pl.Series(np.where(ok, "ok", "launch_error")),
        time_ns=pl.Series(np.where(ok, time_ns, np.nan)).fill_nan(None),
    )
    return schema.conform(family, rows.filter(pl.Series(ok)) if successes_only else rows)


def made_up_dataset(path: Path, family: Family, rows: pl.DataFrame) -> Path:
    """The rows as a dataset on disk."""
    Dataset.create(path).append(family, rows.drop("key", "op", "family", strict=False), machines=[record_of(DEVICE)])
    return path


def unrunnable(model: Model, answers: Sequence[Answer]) -> Flags:
    """Which answers have a config that breaks a constraint of the family or that the model itself expects to fail."""
    family, kinds = model.family, schema.schema_of(model.family)
    chosen = [place for place, answer in enumerate(answers) if answer.config is not None]
    found = np.zeros(len(answers), dtype=bool)
    if not chosen:
        return found
    rows = [(*answers[place].problem.values(), *(answers[place].config or {}).values()) for place in chosen]
    frame = pl.DataFrame(rows, schema={name: kinds[name] for name in schema.parameter_columns(family)}, orient="row")
    found[chosen] = ~obeys(family, frame) | model.learner.fails(model.describe(frame))
    return found
