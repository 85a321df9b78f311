"""Searching the declared space of configs with a model, including configs that were never measured.

A selector chooses among the configs that worked in training. A search covers every config that the family declares and
that the problem and the device allow. Constraints are checked first, so every result can be built. Finalists that are timed
are collected like any vectors: interleaved, checked, and safe if one crashes.
"""

from __future__ import annotations

from dataclasses import dataclass, replace
from typing import Any

import polars as pl

from kerncast.answering.inputs import Configs, offering
from kerncast.answering.search.space import SearchSpace
from kerncast.answering.search.strategies import STRATEGIES, Scoring
from kerncast.core.io.atomic import scratch_folder
from kerncast.core.op import Config, Problem, hash_key, key_text
from kerncast.core.progress import QUIET, Progress, Stop, never
from kerncast.data import Dataset, schema
from kerncast.errors import InvalidValue, KerncastError, NotFound
from kerncast.measuring.backends import backend_that_runs
from kerncast.measuring.collection import Request
from kerncast.measuring.messages import Policy
from kerncast.measuring.run import collect
from kerncast.models.limits.envelope import OutOfRange
from kerncast.models.model import Model

# How many configs a strategy may score by default; an exhaustive search scores everything.
BUDGET = 500
# Up to this size the default strategy is exhaustive: it takes some seconds.
EXHAUSTED = 100_000


@dataclass(frozen=True)
class Finalist:
    """A config that the search ends with, what the model expects of it, and what was measured."""

    config: Config
    score: float
    time_ns: float
    lower_ns: float | None
    upper_ns: float | None
    known: bool | None
    """Whether it worked somewhere in training; otherwise it may never have been built. None: the model does not record it."""
    status: str | None = None
    """The result of the measurement, if there was one."""
    measured_ns: float | None = None

    def as_json(self) -> dict[str, Any]:
        """The values that are known, for `--json`."""
        values = {name: value for name, value in self.config.items() if value is not None}
        rest = ("score", "time_ns", "lower_ns", "upper_ns", "known", "status", "measured_ns")
        return {"config": values, **{name: getattr(self, name) for name in rest if getattr(self, name) is not None}}


@dataclass(frozen=True)
class Search:
    """What a search found, the best by the model first."""

    problem: Problem
    strategy: str
    seed: int
    finalists: tuple[Finalist, ...]
    scored: int
    space: int
    exact: bool
    """Whether `space` is the number of valid configs; otherwise it is a lower bound."""
    outside: tuple[OutOfRange, ...] = ()
    """The parameters of the problem outside the trained range: there the model extrapolates."""

    @property
    def seen(self) -> str:
        """How much of the space was scored, in words."""
        share = f" ({self.scored / self.space:.1%})" if self.exact else ""
        return f"{self.scored:,} of {'' if self.exact else 'at least '}{self.space:,} valid configs scored{share}"

    @property
    def warnings(self) -> tuple[str, ...]:
        """One sentence for each parameter outside the trained range."""
        return tuple(
            f"{item.parameter}={item.value} is outside the trained range ({item.rule}): predictions there are guesses"
            for item in self.outside
        )

    def as_json(self) -> dict[str, Any]:
        """For `--json`."""
        return {
            "problem": self.problem.as_dict(), "strategy": self.strategy, "seed": self.seed, "scored": self.scored,
            "space": self.space, "space_is_exact": self.exact, "notes": list(self.warnings),
            "found": [item.as_json() for item in self.finalists],
        }  # fmt: skip


def search(
    model: Model,
    problem: Problem,
    strategy: str | None = None,
    *,
    budget: int | None = None,
    top_k: int = 10,
    seed: int = 0,
    configs: Configs | None = None,
    progress: Progress = QUIET,
) -> Search:
    """Search the declared space for the `top_k` configs that the model scores best; or the given `configs` alone.

    `budget` is how many different configs are scored; by default 500, or all of them if the search is exhaustive. The
    default strategy is exhaustive in a space of up to 100,000 configs, and local in larger ones.
    """
    if strategy is not None and strategy not in STRATEGIES:
        raise NotFound.named("strategy", strategy, STRATEGIES)
    for name, number in (("a budget", budget), ("top_k", top_k)):
        if number is not None and number < 1:
            raise InvalidValue(f"{name} must be at least 1, got {number}")
    problem = model.problem(problem)
    if not model.family.config.parameters:
        raise InvalidValue(f"{model.family.id} has only one config: there is nothing to search")
    searched = SearchSpace(model.family, problem, model.profile)
    if configs is not None:
        return _among(model, problem, searched, configs, strategy, budget, top_k, seed, progress)
    if not searched.size:
        raise InvalidValue(f"no config of {model.family.id} can run this problem on {model.device.name}: its rules exclude all")
    if strategy is None:
        strategy = "exhaustive" if searched.exact and searched.size <= EXHAUSTED else "local"
    limit = budget if strategy == "exhaustive" else budget or BUDGET
    total = searched.size if limit is None and searched.exact else limit
    scoring = Scoring(model, problem, limit, top_k, total, progress)
    STRATEGIES[strategy](searched, scoring, seed)
    everything = strategy == "exhaustive" and not scoring.spent
    return Search(
        problem=problem,
        strategy=strategy,
        seed=seed,
        finalists=_finalists(model, scoring),
        scored=scoring.scored,
        space=scoring.scored if everything else searched.size,
        exact=everything or searched.exact,
        outside=model.envelope.coverage.outside(problem),
    )


def _among(
    model: Model,
    problem: Problem,
    searched: SearchSpace,
    configs: Configs,
    strategy: str | None,
    budget: int | None,
    top_k: int,
    seed: int,
    progress: Progress,
) -> Search:
    """The best of some given configs: all that can run the problem are scored."""
    if strategy not in (None, "exhaustive"):
        raise InvalidValue(f"`configs` lists what to score, so there is nothing to search: leave out `strategy={strategy}`")
    pool = offering(model, configs, seed=seed, progress=progress)
    rows = pool.candidates.select(pl.col(f"config.{name}").alias(name) for name in model.family.config.parameters)
    built = pool.built_for(problem)
    valid = searched.valid(rows if built is None else rows.filter(pl.Series(built)))
    if not valid.height:
        raise InvalidValue(f"none of the {rows.height:,} given configs can run this problem on {model.device.name}")
    scoring = Scoring(model, problem, budget, top_k, valid.height, progress)
    scoring.once(valid)
    return Search(
        problem=problem,
        strategy="exhaustive",
        seed=seed,
        finalists=_finalists(model, scoring),
        scored=scoring.scored,
        space=valid.height,
        exact=True,
        outside=model.envelope.coverage.outside(problem),
    )


def _finalists(model: Model, scoring: Scoring) -> tuple[Finalist, ...]:
    names = list(model.family.config.parameters)
    seen = set(model.candidates.select(f"config.{name}" for name in names).rows())
    known = model.recorded
    found = []
    for row in scoring.best.iter_rows(named=True):
        values = {name: row[name] for name in names}
        config = Config.trusted(model.family, values)
        figures = {name: row[f"__{name}"] for name in ("score", "time_ns", "lower_ns", "upper_ns")}
        found.append(Finalist(config, **figures, known=tuple(values.values()) in seen if known else None))
    return tuple(found)


def measured_first(found: Search, finalists: tuple[Finalist, ...]) -> Search:
    """The same search with measured finalists: the fastest first, what failed last."""
    slowest = float("inf")
    ordered = sorted(finalists, key=lambda item: (slowest if item.measured_ns is None else item.measured_ns, item.score))
    return replace(found, finalists=tuple(ordered))


@dataclass(frozen=True)
class MeasuredSearch:
    """A search whose finalists were timed, the fastest first, and the device they ran on."""

    search: Search
    backend: str
    device: str


def measure(
    found: Search,
    backend: str | None = None,
    policy: Policy | None = None,
    *,
    progress: Progress = QUIET,
    stop: Stop = never,
) -> MeasuredSearch:
    """Time the finalists on this machine, with the given backend or the one that runs their family."""
    family = found.finalists[0].config.family
    kind = backend_that_runs(family.id, backend)
    problem = {f"problem.{name}": value for name, value in found.problem.items()}
    rows = [{**problem, **{f"config.{name}": value for name, value in item.config.items()}} for item in found.finalists]
    types = {name: dtype for name, dtype in schema.schema_of(family).items() if name.startswith(("problem.", "config."))}
    with scratch_folder() as folder:
        out = folder / "measured"
        request = Request(family, backend or kind.name, ("0",), out, policy or Policy())
        summary = collect(request, [pl.DataFrame(rows, schema=types)], total=len(rows), progress=progress, stop=stop)
        if summary.without_a_row:
            raise KerncastError("the measurement was interrupted: run the same command again")
        ends = _ends(Dataset.open(out).read(family))
    device = summary.device
    finalists = []
    for item in found.finalists:
        status, time_ns = ends[hash_key(key_text(family.id, device, found.problem.items(), item.config.items()))]
        finalists.append(replace(item, status=status, measured_ns=time_ns))
    return MeasuredSearch(measured_first(found, tuple(finalists)), kind.name, device)


def _ends(rows: pl.DataFrame) -> dict[str, tuple[str, float | None]]:
    """The result of each vector; the median if it was repeated (near-ties are)."""
    ok = pl.col("status") == "ok"
    folded = rows.group_by("key", maintain_order=True).agg(
        status=pl.when(ok.any()).then(pl.lit("ok")).otherwise(pl.col("status").first()),
        time_ns=pl.col("time_ns").filter(ok).median(),
    )
    return {key: (status, time_ns) for key, status, time_ns in folded.select("key", "status", "time_ns").rows()}
