"""An exported model under test: compiled, asked random problems, and compared with Python or another form of it."""

from __future__ import annotations

import shutil
import subprocess
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np
import polars as pl
import pytest

from kerncast.core.arrays import Floats, Ints
from kerncast.core.expr import Program
from kerncast.core.parameters import Int
from kerncast.data import schema
from kerncast.models.limits.configs import problem_numbers
from kerncast.models.model import Model
from kerncast.models.problem_frames import problem_frame
from kerncast.native import MISSING, encode
from kerncast.native.binding import Binding
from kerncast.native.header import schema_number
from kerncast.native.lower import Artefact
from kerncast.testing import soaking

# Sanitizers watch the most without optimization, and a compiler is done in a third of the time.
LEVEL = "-O1" if soaking() else "-O0"
# Some warnings appear only with optimization; all of it takes a compiler three times as long.
OPTIMIZED = "-O3" if soaking() else "-O1"
STRICT = ("-std=c99", "-pedantic", "-Wall", "-Wextra", "-Werror", "-ffp-contract=off")
CPP_STRICT = ("-Wall", "-Wextra", "-Wconversion", "-Wshadow", "-Wold-style-cast", "-Werror", "-pedantic")
SANITIZED = ("-fsanitize=address,undefined", "-fno-sanitize-recover=all")
COMPILERS = [name for name in ("gcc", "clang") if shutil.which(name)]
# For tests that each of them takes: one that is not there is left out by name, so that it counts.
EACH_COMPILER = [
    pytest.param(name, marks=pytest.mark.skipif(name not in COMPILERS, reason=f"needs {name}")) for name in ("gcc", "clang")
]
SIZES = ("M", "N", "K")

needs_compiler = pytest.mark.skipif(not COMPILERS, reason="needs a C compiler")


@dataclass(frozen=True)
class Exported:
    """A trained model, its artefact, and the directory that was written."""

    model: Model
    artefact: Artefact
    folder: Path
    optimization: str = OPTIMIZED

    def binding(self) -> Binding:
        """The artefact, compiled once and loaded."""
        made = self.folder.parent / "artefact.so"
        if not made.exists():
            flags = [*STRICT, self.optimization, "-fPIC", "-shared"]
            subprocess.run([COMPILERS[0], *flags, str(self.folder / "picker.c"), "-o", str(made), "-lm"], check=True)
        return Binding(made, self.model.family, schema_number(self.artefact), "picker")

    def sanitized(self, compiler: str) -> Path:
        """The artefact as an object that watches addresses and undefined behaviour, compiled once by each compiler."""
        made = self.folder.parent / f"picker-{compiler}.o"
        if not made.exists():
            command = [compiler, *STRICT, LEVEL, *SANITIZED, "-c", str(self.folder / "picker.c"), "-o", str(made)]
            subprocess.run(command, check=True)
        return made


def random_problems(model: Model, count: int, seed: int = 0) -> list[dict[str, Any]]:
    """Problems inside the hull, sizes log-uniform, the rest as in training."""
    rng = np.random.default_rng(seed)
    assert model.out_of_fold is not None
    names = list(model.family.problem.parameters)
    base = model.out_of_fold.select(f"problem.{name}" for name in names).row(0)
    values: dict[str, Any] = dict(zip(names, base, strict=True))
    drawn = {}
    for name in (sizes := varied(model)):
        span = model.manifest.hull[name]
        assert span.low is not None
        assert span.high is not None
        drawn[name] = (
            np.exp(rng.uniform(np.log(span.low), np.log(span.high + 1), count)).astype(np.int64).clip(span.low, span.high)
        )
    return [{**values, **{name: int(drawn[name][i]) for name in sizes}} for i in range(count)]


def varied(model: Model) -> tuple[str, ...]:
    """The sizes to draw: those of a product, or of another op all that were trained on and that no constraint reads."""
    space = model.family.problem
    if set(SIZES) <= set(space.parameters):
        return SIZES
    bound = {symbol.name for rule in space.constraints for symbol in rule.program.symbols}
    spans = {name: model.manifest.hull[name] for name, rule in space.parameters.items() if isinstance(rule, Int)}
    return tuple(name for name, span in spans.items() if f"p.{name}" not in bound and span.low and span.low != span.high)


def expected_choices(artefact: Artefact, problems: list[dict[str, Any]]) -> tuple[Ints, Floats]:
    """What Python chooses among all candidates and the time it predicts, from the model itself, in bulk."""
    model, kinds = artefact.model, schema.schema_of(artefact.model.family)
    columns = [name for name in kinds if name.startswith("config.")]
    asked = pl.DataFrame({f"problem.{name}": pl.Series([values[name] for values in problems], dtype=kinds[f"problem.{name}"])
                          for name in model.family.problem.parameters})  # fmt: skip
    vectors = asked.join(model.candidates.select(columns), how="cross")
    rules = Program({rule.name: rule.holds for rule in artefact.config_rules})
    symbols = schema.symbol_columns(model.family, vectors)
    holds = rules.frame(symbols, trusted=True).to_numpy() != 0.0 if rules.outputs else np.ones((vectors.height, 1), dtype=bool)
    found = model.predict_rows(model.describe(vectors))
    assert found.time_ns is not None
    shape = (len(problems), artefact.candidates)
    allowed = holds.all(axis=1).reshape(shape)
    numbers = problem_numbers(model.family, problem_frame(model.family, problems))
    for sizes in (False, True):
        reached = allowed & artefact.tried.holds(numbers, sizes)
        allowed = np.where(reached.any(axis=1, keepdims=True), reached, allowed)
    best = np.where(allowed, found.score.reshape(shape), np.inf).argmin(axis=1)
    return best, found.time_ns.reshape(shape)[np.arange(len(problems)), best]


def asked_numbers(model: Model, count: int, seed: int) -> Ints:
    """Random problems as C reads them; a third of them spoiled: a value missing, not allowed, or not trained on."""
    space, rng = model.family.problem, np.random.default_rng(seed)
    numbers = np.array([encode(space, values) for values in random_problems(model, count, seed)], np.int64)
    for row in numbers[::3]:
        row[rng.integers(len(row))] = rng.choice([MISSING, -1, 0, 1, 3, 33, 999, 10**9, 2**62])
    return numbers


def same_answers(exported: Exported, one: Binding, other: Binding, tiers: Sequence[str]) -> None:
    """Two bindings of a model must not differ in a bit."""
    model, numbers = exported.model, asked_numbers(exported.model, 150, seed=7)
    for tier in (*tiers, "auto"):
        wanted, got = one.select_many(numbers, tier), other.select_many(numbers, tier)
        for field in wanted.dtype.names or ():
            if field != "label":  # an address
                width = wanted[field].shape[1:]
                assert (wanted[field] == got[field][(slice(None), *map(slice, width))]).all(), f"{field} of tier {tier}"
    count = len(model.manifest.features.names)
    for problem in numbers[:12].tolist():
        for row in range(0, model.candidates.height, 3):
            chosen = {name: model.candidates[f"config.{name}"][row] for name in model.family.config.parameters}
            config = encode(model.family.config, chosen) or [MISSING]
            assert one.predict(problem, config) == other.predict(problem, config)
        for tier in tiers:
            assert one.rank(problem, tier, 9) == other.rank(problem, tier, 9)
    for problem in numbers[1:12:3].tolist():
        assert (one.features(problem, config, count) == other.features(problem, config, count)).all()
