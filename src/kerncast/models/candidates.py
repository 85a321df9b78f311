"""The configs that a model chooses from: those that worked in training, or those that a user gives."""

from __future__ import annotations

import hashlib
from collections.abc import Mapping
from dataclasses import dataclass
from functools import cached_property
from typing import TYPE_CHECKING, Any

import msgspec
import numpy as np
import polars as pl

from kerncast.core.arrays import Flags, Floats, Ints
from kerncast.core.device import Device
from kerncast.core.expr import Program
from kerncast.core.op import Family
from kerncast.data import schema
from kerncast.errors import InvalidValue
from kerncast.learning.table import BoundRule, config_rules, family_rules
from kerncast.models.limits.configs import Reach, problem_numbers
from kerncast.models.limits.envelope import KNOWN
from kerncast.models.manifest import Range
from kerncast.models.measured import KernelNames
from kerncast.models.problem_frames import problem_frame

if TYPE_CHECKING:
    from kerncast.models.model import Model


def model_rules(model: Model, device: Device | None = None) -> list[BoundRule]:
    """What a problem and a config must obey before the model is asked about them, on its own device unless one is given."""
    manifest = model.manifest
    asked = model.profile if device is None or device == model.device else device
    return [*family_rules(model.family, asked, manifest.dtypes, manifest.contradicted), *_of_the_op(model.family)]


def _of_the_op(family: Family) -> list[BoundRule]:
    """Kernels that compute something else than the op are no answer to its problems, however fast they ran."""
    found = []
    for name, labels in family.other_work.items():
        parameter = family.config.parameters[name]
        # Rules of configs alone are settled before a model is made; compiled code asks those again that read the problem too.
        impossible = next(iter(family.op.problem.symbols.values())) < 0
        for label, words in labels.items():
            index = parameter.index(label)
            assert index is not None
            symbol = family.config.symbols[name]
            found.append(
                BoundRule(f"not_{label}", f"{label} computes {words}", (symbol != parameter.number(index)) | impossible)
            )
    return found


# Vectors that are described and predicted at a time, to limit memory.
MOST_TOGETHER = 50_000


class Candidates:
    """The candidates of a model, as rows; `reach` says where each was tried (None: not known)."""

    def __init__(self, model: Model, reach: Reach | None, device: Device | None = None) -> None:
        self.model, self.reach, self.device = model, reach, device
        self.available: Flags | None = None
        """By candidate: whether it may be chosen; None: all may."""
        self.preferred: Flags | None = None
        """By candidate: whether it is chosen before the others that were tried on such problems; None: all are alike."""

    @cached_property
    def _configs(self) -> pl.DataFrame:
        columns = [f"config.{name}" for name in self.model.family.config.parameters]
        frame = self.model.candidates.select(columns)
        return frame if columns else pl.DataFrame({"__none": np.zeros(self.model.candidates.height)})

    @cached_property
    def _rules(self) -> Program:
        return Program({rule.name: rule.holds for rule in config_rules(model_rules(self.model, self.device))})

    def vectors(self, values: Mapping[str, Any], rows: Ints) -> pl.DataFrame:
        """One problem with some candidates, as stored in a dataset."""
        kinds = schema.schema_of(self.model.family)
        problem = [pl.lit(value, kinds[f"problem.{name}"]).alias(f"problem.{name}") for name, value in values.items()]
        return self._configs[rows].with_columns(problem)

    def allowed(self, values: Mapping[str, Any], rows: Ints) -> Flags:
        """Which candidates are available and can run the problem, by the family's rules."""
        problem = problem_frame(self.model.family, [values])
        return np.asarray(self._available(problem, self.rules_of_many(problem, rows), rows)[0])

    def _available(self, problems: pl.DataFrame, holds: Flags, rows: Ints) -> Flags:
        """[problem, place in `rows`]: which of the candidates that obey the rules are there."""
        if self.available is not None:
            holds = holds & self.available[rows]
        for number in range(problems.height if self.model.given is not None else 0):
            built = self.model.built_for({n.removeprefix("problem."): v for n, v in problems.row(number, named=True).items()})
            if built is not None:
                holds[number] &= built[rows]
        return holds

    def _rules_hold(self, vectors: pl.DataFrame) -> Flags:
        if not self._rules.outputs:
            return np.ones(vectors.height, dtype=bool)
        symbols = schema.symbol_columns(self.model.family, vectors)
        return np.asarray((self._rules.frame(symbols, trusted=True).to_numpy() != 0.0).all(axis=1))

    def rules_of_many(self, problems: pl.DataFrame, rows: Ints) -> Flags:
        """[problem, place in `rows`]: whether the rules allow the candidate."""
        configs, together = self._configs[rows], max(1, MOST_TOGETHER // len(rows))
        parts = [problems[start : start + together] for start in range(0, problems.height, together)]
        holds = [self._rules_hold(part.join(configs, how="cross", maintain_order="left_right")) for part in parts]
        return np.concatenate(holds).reshape(problems.height, len(rows))

    def reached(self, values: Mapping[str, Any]) -> Flags:
        """Which candidates were tried on problems like this one."""
        if self.reach is None:
            return np.ones(self.model.candidates.height, dtype=bool)
        return self.reach.holds(problem_numbers(self.model.family, problem_frame(self.model.family, [values]))[0])

    def _narrowed(self, allowed: Flags, numbers: Floats, rows: Ints) -> Flags:
        """Of the candidates that can run a problem those tried on such problems, else on its labels, else all.

        Beyond the sizes that were measured a kernel of bf16 may still run bf16, and one of int8 may not.
        """
        if self.reach is None:
            return allowed
        limits = [self.reach.holds(numbers, sizes)[..., rows] for sizes in (False, True)]
        for limit in limits if self.preferred is None else [*limits, self.preferred[rows]]:
            fewer = allowed & limit
            allowed = np.where(fewer.any(axis=-1, keepdims=True), fewer, allowed)
        return allowed

    def runs(self, values: Mapping[str, Any], row: int) -> bool:
        """Whether the model expects one candidate to run, so far as it learned from failures."""
        return not self.model.learner.fails(self.model.describe(self.vectors(values, np.array([row])), self.device))[0]

    def choosable(self, values: Mapping[str, Any], rows: Ints) -> Flags:
        """The candidates that can run the problem; if any of those were tried on similar problems, only these."""
        problem = problem_frame(self.model.family, [values])
        allowed = self._available(problem, self.rules_of_many(problem, rows), rows)
        return np.asarray(self._narrowed(allowed, problem_numbers(self.model.family, problem), rows)[0])

    def scores(self, values: Mapping[str, Any], rows: Ints) -> tuple[Floats, Floats]:
        """Scores (low is chosen) and times; infinite and negative where a config cannot run, or is expected to fail."""
        score, time_ns = self.scores_of_many(problem_frame(self.model.family, [values]), rows)
        return score[0], time_ns[0]

    def scores_of_many(self, problems: pl.DataFrame, rows: Ints) -> tuple[Floats, Floats]:
        """`scores` for a frame of problems: [problem, place in `rows`]. One call of the learner serves many problems."""
        score, time_ns = np.full((problems.height, len(rows)), np.inf), np.full((problems.height, len(rows)), -1.0)
        every = np.array_equal(rows, np.arange(self._configs.height))
        configs, together = self._configs if every else self._configs[rows], max(1, MOST_TOGETHER // len(rows))
        for start in range(0, problems.height, together):
            part, own = problems[start : start + together], slice(start, start + together)
            vectors = part.join(configs, how="cross", maintain_order="left_right")
            allowed = self._available(part, self._rules_hold(vectors).reshape(part.height, len(rows)), rows)
            allowed = self._narrowed(allowed, problem_numbers(self.model.family, part), rows)
            if allowed.any():
                kept = vectors if allowed.all() else vectors.filter(pl.Series(allowed.ravel()))
                described = self.model.describe(kept, self.device)
                scored, runs = self.model.scored(described), ~self.model.learner.fails(described)
                score[own][allowed] = np.where(runs, scored[0], np.inf)
                time_ns[own][allowed] = np.where(runs, scored[1], -1.0)
        return score, time_ns


def refuse_no_candidates(model: Model) -> None:
    """Refuse to choose from a model that does not say which configs work."""
    if not model.candidates.height:
        raise InvalidValue(
            f"{model.path} does not record which configs work, so there is nothing to choose from: give the configs with "
            "`configs` (kernels:FILE, build:DIR, a dataset or benchmark file, all)"
        )


def library_rows(model: Model) -> list[int]:
    """The candidates that are the vendor library's own choice; empty if the family declares none."""
    if not model.family.library:
        return []
    found = model.candidates.with_row_index("__row").filter(schema.is_library(model.family))
    return [int(row) for row in found["__row"].to_list()]


def by_share(model: Model) -> Ints:
    """All candidates, best on average first."""
    share = model.candidates["share"].to_numpy()
    return np.lexsort((np.arange(model.candidates.height), -share)).astype(np.int64)


FLAT = 2


@dataclass(frozen=True, eq=False)
class GivenConfigs:
    """A list of configs, of which a model need not have seen any."""

    configs: pl.DataFrame
    """`config.*`."""
    names: pl.DataFrame | None = None
    """What they are called, as `label_table` says it; None: as in the training data."""
    named_only: bool = False
    """A config runs only those problems for which `names` has a name of it."""
    dimensions: int | None = None
    """Convolutions that are built for images (2) or volumes (3) run only those; None: both."""

    def candidates(self, model: Model) -> pl.DataFrame:
        """These configs: those that worked in the training of a model with how well they did, the others with nothing."""
        columns = self.configs.columns
        seen = model.candidates.with_columns(pl.lit(True).alias(KNOWN))
        joined = self.configs.join(seen, on=columns, how="left", nulls_equal=True, maintain_order="left")
        nothing = [pl.col(name).fill_null(0) for name in ("ok", "failed", "share")]
        return joined.select(*columns, *nothing, "portfolio_place", pl.col(KNOWN).fill_null(False))

    def built_for(self, problem: Mapping[str, Any], labels: KernelNames | None) -> Flags | None:
        """Which of them are there for a problem; None: all of them."""
        if not self.named_only or labels is None:
            return None
        names = labels.names.get(tuple(problem.get(name) for name in labels.by))
        # A convolution is one of images, or of volumes.
        deep = any(problem.get(name, flat) != flat for name, flat in (("Di", 1), ("Z", 1), ("pad_d", 0)))
        if self.dimensions not in (None, FLAT + deep):
            names = None
        return np.zeros(self.configs.height, dtype=bool) if names is None else np.array([name is not None for name in names])


def with_configs(
    model: Model,
    configs: pl.DataFrame,
    names: pl.DataFrame | None = None,
    *,
    named_only: bool = False,
    dimensions: int | None = None,
    contradicted: tuple[str, ...] = (),
) -> Model:
    """The model, choosing from these configs (`config.*`), which need not obey the rules that are `contradicted`.

    The other arguments are those of `GivenConfigs`.
    """
    kinds = schema.schema_of(model.family)
    columns = [f"config.{name}" for name in model.family.config.parameters]
    pool = configs.select(pl.col(name).cast(kinds[name]) for name in columns).unique(maintain_order=True)
    if not pool.height:
        raise InvalidValue(f"there is no config to choose from: give at least one of {model.family.id}")
    lifted = tuple(sorted({*model.manifest.contradicted, *contradicted}))
    digest = hashlib.blake2b(f"{model.manifest.checksum} {named_only} {dimensions} {lifted}".encode(), digest_size=16)
    for frame in (pool, *(() if names is None else (names,))):
        digest.update(schema.content_digest([frame]).encode())
    manifest = msgspec.structs.replace(model.manifest, checksum=digest.hexdigest(), contradicted=lifted)
    return model.part(manifest, GivenConfigs(pool, names, named_only, dimensions))


def for_export(model: Model) -> Model:
    """The model as an artefact can hold it, which has one list of configs for all its problems.

    Problems that the names of given configs are not of are outside its range, and there is no interval if one of them is
    untried.
    """
    if model.given is None or model.own is None:
        return model
    hull = dict(model.manifest.hull)
    if model.given.named_only and model.labels is not None:
        lists = {tuple(name is not None for name in names) for names in model.labels.names.values()}
        if len(lists) > 1:
            kinds = "; ".join(sorted(" ".join(map(str, key)) for key in model.labels.names))
            raise InvalidValue(
                f"not every kernel is there for each of {kinds}, and an export has one list for all of its problems: "
                "export one of them at a time, each from a list of its own"
            )
        for place, name in enumerate(model.labels.by):
            hull[name] = Range(labels=tuple(sorted({key[place] for key in model.labels.names})))
        if model.given.dimensions == FLAT:
            hull |= {"Di": Range(1, 1), "Z": Range(1, 1), "pad_d": Range(0, 0)}
    interval = model.manifest.interval if model.candidates[KNOWN].all() else None
    return model.own.part(msgspec.structs.replace(model.manifest, hull=hull, interval=interval), model.given)
