"""What a model decides about one product of torch.compile. It knows nothing of torch: problems and configs in, configs out."""

from __future__ import annotations

import hashlib
import math
import re
import time
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from functools import cached_property
from typing import Any

import numpy as np
import polars as pl

from kerncast.answering.selector import Selector
from kerncast.core import software as softwares
from kerncast.core.arrays import Flags, Floats, Ints
from kerncast.core.io.terminal import assignments, known
from kerncast.core.op import Config, Problem
from kerncast.data import schema
from kerncast.errors import InvalidValue
from kerncast.models.answer import Tier
from kerncast.models.model import Model
from kerncast.native.tiers.build import short_tiers
from kerncast.torch.reporting import ABSTAINED, CHOSEN, TIMED, Decision

# What a model that never saw an epilogue is asked without: an epilogue costs all generated kernels the same, and the
# library's one more pass over the result.
EPILOGUE = ("bias", "activation")


class Abstain(Exception):
    """There is no answer; the message says why."""


def in_range(model: Model, values: Mapping[str, Any]) -> Problem:
    """The problem as the model's family has it; without its epilogue if the model has never seen one."""
    asked = Problem(model.family, {name: value for name, value in values.items() if name in model.family.problem.parameters})
    outside = model.envelope.coverage.outside(asked)
    if outside and all(item.parameter in EPILOGUE for item in outside):
        asked = Problem(model.family, {**asked.as_dict(), **dict.fromkeys(item.parameter for item in outside)})
    beyond = model.envelope.judge(asked).outside
    if beyond is not None:
        raise Abstain(f"{beyond.parameter}={beyond.value} is out of range: in training it was {beyond.rule}")
    return asked


# How often the ratio of two predicted times was within the error, out of fold.
LEVEL = 0.9
# A wrong choice that costs no more than this does not matter.
HARMLESS = 1.05
# Too few problems tell nothing about the error.
FEWEST_PROBLEMS = 20


@dataclass(frozen=True)
class Confidence:
    """The error of log(time of the library / time of the best generated kernel), from predictions out of fold."""

    error: float
    """Nine of ten predictions were at most this far off; infinite where that is not known."""
    problems: int

    @classmethod
    def of(cls, model: Model) -> Confidence:
        """Measured on the model's own training problems, each predicted by a model that had not seen it."""
        rows = model.out_of_fold
        if rows is None or not model.family.library or "time_ns" not in rows.columns:
            return cls(math.inf, 0)
        usable = rows.filter(pl.col("measured_ns").is_not_null() & pl.col("time_ns").is_not_null())
        is_library = schema.is_library(model.family).fill_null(False)
        problem = [name for name in rows.columns if name.startswith("problem.") or name == "device"]

        def ratio(column: str) -> pl.Expr:
            ours = pl.col(column).filter(~is_library).sort_by(pl.col("score").filter(~is_library)).first()
            return (pl.col(column).filter(is_library).first() / ours).log()

        pairs = usable.group_by(problem).agg(error=(ratio("measured_ns") - ratio("time_ns")).abs()).drop_nulls("error")
        if pairs.height < FEWEST_PROBLEMS:
            return cls(math.inf, pairs.height)
        found = pairs["error"].quantile(LEVEL, "higher")
        return cls(math.inf if found is None else float(found), pairs.height)

    def sure(self, library_ns: float, generated_ns: float) -> bool:
        """Whether preferring the faster of the two by these predictions loses no more than is harmless, nine times in ten."""
        return self.error - abs(math.log(library_ns / generated_ns)) <= math.log(HARMLESS)

    def doubt(self, one: str, other: str) -> str:
        """Why both are kept."""
        if self.problems < FEWEST_PROBLEMS:
            measured = f"{one} and {other} were both measured on {self.problems} problems"
            return f"{measured}, and it takes {FEWEST_PROBLEMS} to know how far predictions are off"
        return f"the model cannot tell {one} from {other}"


# What must be as it was when the model's data were measured.
SAME_SOFTWARE = ("torch", "isa", "compiler", "triton")


@dataclass(frozen=True)
class ChoicePolicy:
    """How much is left to Inductor."""

    top_k: int = 1
    """Kernels that are left; with more than one, Inductor times them."""
    any_software: bool = False
    """Whether the model is used although torch, the instruction set or the compiler is not that of its data."""
    widen: bool = True
    """Whether configs are ranked that Inductor by itself does not offer."""

    def __post_init__(self) -> None:
        if not isinstance(self.top_k, int) or isinstance(self.top_k, bool) or self.top_k < 1:
            raise InvalidValue(f"`top_k` is a whole number, at least 1, got {self.top_k!r}")
        for name in ("any_software", "widen"):
            if not isinstance(getattr(self, name), bool):
                raise InvalidValue(f"`{name}` is True or False, got {getattr(self, name)!r}")

    @property
    def identity(self) -> str:
        return f"top{self.top_k}{'-any' if self.any_software else ''}{'' if self.widen else '-stock'}"


@dataclass(frozen=True)
class Picked:
    """The kernels to render, best first, whether the library's stays, and what to report."""

    decision: Decision
    configs: tuple[Mapping[str, Any], ...] = ()
    library: bool = True


@dataclass
class Chooser:
    """One model and a policy. Opening the model takes a moment, so it happens at the first question."""

    model: Model
    policy: ChoicePolicy = field(default_factory=ChoicePolicy)

    @cached_property
    def digest(self) -> str:
        """What decides the choices: the model's contents and the policy."""
        text = f"{self.model.manifest.checksum} {self.policy.identity}"
        return hashlib.blake2b(text.encode(), digest_size=8).hexdigest()

    @cached_property
    def selector(self) -> Selector:
        return Selector(self.model, tier="full", tiers=short_tiers(self.model))

    @cached_property
    def confidence(self) -> Confidence:
        return Confidence.of(self.model)

    @cached_property
    def optional_values(self) -> Mapping[str, tuple[Any, ...]]:
        """The values of optional config parameters that the model has measured; None: the usual one."""
        configs = self.model.candidates
        return {name: tuple(configs[f"config.{name}"].unique()) for name in self.model.family.config.optional}

    @cached_property
    def _library(self) -> Flags:
        """Which candidates are the library's kernel."""
        return self.model.candidates.select(schema.is_library(self.model.family).fill_null(False)).to_series().to_numpy()

    def mismatch(self, device: str, software: Mapping[str, str]) -> str | None:
        """Why the model is not for this machine; None if it is."""
        known_devices = [record.name for record in self.model.manifest.devices]
        if device not in known_devices:
            # Where only the number of cores differs: it is that of the cores that the process may use.
            cores, hint = re.compile(r"-\d+c(?=-|$)"), ""
            if any(cores.sub("", name) == cores.sub("", device) for name in known_devices):
                counted = "those that this process may run on count, so look at `taskset` or the container's limit"
                hint = f" (with other cores: {counted})"
            return f"the model is for {', '.join(known_devices)}, and this is {device}{hint}"
        if self.policy.any_software:
            return None
        trained = [softwares.parts(text) for text in self.model.manifest.software]
        for name in SAME_SOFTWARE:
            values = {parts[name] for parts in trained if name in parts}
            if name in software and values and software[name] not in values:
                return f"the model was trained with {name} {', '.join(sorted(values))}, and this is {software[name]}"
        return None

    def decide(self, op: str, problem: Mapping[str, Any], *, library: bool) -> Picked:
        """The configs to render for a problem. `library`: whether the library's kernel may be chosen."""
        assert self.selector  # opening the model is not part of deciding
        began = time.perf_counter()
        try:
            asked = in_range(self.model, problem)
            for tier in (Tier.PORTFOLIO, Tier.FULL):
                rows, times = self._ranked(asked, tier, library)
                if len(rows):
                    return self._picked(op, asked, rows, times, library, began)
            raise Abstain("no config that the model knows can run it")
        except (InvalidValue, Abstain) as error:
            return Picked(self.abstention(op, str(error), problem, began=began))

    def _ranked(self, asked: Problem, tier: Tier, library: bool) -> tuple[Ints, Floats]:
        """The configs of a tier that may be chosen, best first, and the times of all candidates; NaN: not in the tier."""
        members = self.selector.artefact.members(tier)
        scores, times = self.selector.scores(asked, tier)
        open_to = np.isfinite(scores) & (library | ~self._library[members])
        if not self.policy.widen:
            open_to &= np.array([self.selector.configs[row]["kind"] != "tile" for row in members])
        order = np.lexsort((members, scores))
        by_row = np.full(len(self._library), np.nan)
        by_row[members] = times
        return members[order[open_to[order]]], by_row

    def _picked(self, op: str, asked: Problem, rows: Ints, times: Floats, library: bool, began: float) -> Picked:
        """Top k of the ranking; the library's kernel stays beside the best tile unless one of the two is surely better."""
        best, ours = rows[: self.policy.top_k], rows[~self._library[rows]]
        reason, keep = "", bool(self._library[best].any())
        if library and len(ours):
            theirs = rows[self._library[rows]]
            first = ours[0]
            if not len(theirs) or not self.confidence.sure(float(times[theirs[0]]), float(times[first])):
                keep, best = True, np.array([first, *(row for row in best if row != first)])[: self.policy.top_k]
                reason = self.confidence.doubt("the library's kernel", "its own choice")
        configs = [self.selector.configs[row] for row in best if not self._library[row]]
        words = [*map(in_words, configs), *(["library"] if keep else [])]
        chosen = best[0] if words else rows[0]
        config = self.selector.configs[chosen].as_dict()
        decision = self.decision(op, asked, len(rows), words, config, float(times[chosen]), reason, began)
        return Picked(decision, tuple(config.as_dict() for config in configs), keep)

    def decision(
        self, op: str, problem: Problem, ranked: int, words: Sequence[str], config: Mapping[str, Any] | None,
        predicted_ns: float, reason: str, began: float,
    ) -> Decision:  # fmt: skip
        """A decision that leaves the kernels of these words."""
        return Decision(
            op=op,
            family=self.model.family.id,
            problem=known(problem),
            candidates=ranked,
            kept=len(words),
            chosen=", ".join(words),
            config=config,
            predicted_ns=predicted_ns,
            status=CHOSEN if len(words) == 1 else TIMED,
            reason=reason or (f"top_k={self.policy.top_k}" if len(words) > 1 and self.policy.top_k > 1 else ""),
            seconds=time.perf_counter() - began,
        )

    def abstention(
        self, op: str, reason: str, problem: Mapping[str, Any] | None = None, offered: int = 0, began: float | None = None
    ) -> Decision:
        """A decision that leaves everything to Inductor: of `offered` kernels, if they are counted."""
        seconds = 0.0 if began is None else time.perf_counter() - began
        return Decision(op, self.model.family.id, problem, 0, offered, "", None, None, ABSTAINED, reason, seconds)


def in_words(config: Config) -> str:
    """A config for the report."""
    return assignments(known(config))
