"""What a model decides about one product of torch.compile. It knows nothing of torch: problems and configs in, configs out."""

from __future__ import annotations

import hashlib
import re
import time
from collections.abc import Callable, Hashable, Mapping, Sequence
from dataclasses import dataclass, field, replace
from functools import cached_property
from typing import Any

import numpy as np

from kerncast.answering.selector import Selector
from kerncast.core import software as softwares
from kerncast.core.arrays import Flags, Floats, Ints
from kerncast.core.device import Device
from kerncast.core.io.terminal import assignments, known
from kerncast.core.op import Config, Problem
from kerncast.data import schema
from kerncast.errors import InvalidValue
from kerncast.models.answer import Tier
from kerncast.models.model import Model
from kerncast.native.tiers.build import short_tiers
from kerncast.torch.asking import Abstain, in_range
from kerncast.torch.confidence import Confidence
from kerncast.torch.decisions import ABSTAINED, CHOSEN, TIMED, Decision

Offered = Callable[[Mapping[str, Any]], bool]
"""Whether a config may be chosen."""
# What must be as it was when the model's data were measured.
SAME_SOFTWARE = ("torch", "isa", "compiler", "triton")


@dataclass(frozen=True)
class Policy:
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

    @property
    def abstained(self) -> bool:
        return self.decision.status == ABSTAINED


@dataclass
class Chooser:
    """One model and a policy. Opening the model takes a moment, so it happens at the first question."""

    model: Model
    policy: Policy = field(default_factory=Policy)

    def __post_init__(self) -> None:
        self._remembered: dict[Hashable, Picked] = {}

    @property
    def family(self) -> str:
        return self.model.family.id

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
    def _library(self) -> Flags:
        """Which candidates are the library's kernel."""
        return self.model.candidates.select(schema.is_library(self.model.family).fill_null(False)).to_series().to_numpy()

    def device(self, name: str) -> Device:
        """The model's device of this name."""
        return next(record.device for record in self.model.manifest.devices if record.name == name)

    def mismatch(self, device: str, software: Mapping[str, str]) -> str | None:
        """Why the model is not for this machine; None if it is."""
        known_devices = [record.name for record in self.model.manifest.devices]
        if device not in known_devices:
            return f"the model is for {', '.join(known_devices)}, and this is {device}{_other_cores(device, known_devices)}"
        if self.policy.any_software:
            return None
        trained = [softwares.parts(text) for text in self.model.manifest.software]
        for name in SAME_SOFTWARE:
            values = {parts[name] for parts in trained if name in parts}
            if name in software and values and software[name] not in values:
                return f"the model was trained with {name} {', '.join(sorted(values))}, and this is {software[name]}"
        return None

    def decide(
        self,
        op: str,
        problem: Mapping[str, Any],
        *,
        library: bool,
        offered: Offered | None = None,
    ) -> Picked:
        """The configs to render for a problem. `library`: whether the library's kernel may be chosen; `offered`: which of the
        others may be."""
        assert self.selector  # opening the model is not part of deciding
        began = time.perf_counter()
        # Layers of one network ask the same again and again.
        key = (op, tuple(sorted(problem.items())), library, offered)
        found = self._remembered.get(key)
        if found is None:
            found = self._remembered[key] = self._decide(op, problem, library, offered)
        return replace(found, decision=replace(found.decision, seconds=time.perf_counter() - began))

    def _decide(self, op: str, problem: Mapping[str, Any], library: bool, offered: Offered | None) -> Picked:
        try:
            asked = in_range(self.model, problem)
        except (InvalidValue, Abstain) as error:
            return Picked(self.abstention(op, str(error), problem))
        for tier in (Tier.PORTFOLIO, Tier.FULL):
            rows, times = self._ranked(asked, tier, library, offered)
            if len(rows):
                return self._picked(op, asked, rows, times, library)
        return Picked(self.abstention(op, "no config that the model knows can run it", problem))

    def _ranked(self, asked: Problem, tier: Tier, library: bool, offered: Offered | None) -> tuple[Ints, Floats]:
        """The configs of a tier that may be chosen, best first, and the times of all candidates; NaN: not in the tier."""
        members = self.selector.artefact.members(tier)
        scores, times = self.selector.scores(asked, tier)
        open_to = np.isfinite(scores) & (library | ~self._library[members])
        if offered is not None:
            open_to &= np.array([offered(self.selector.configs[row]) for row in members])
        order = np.lexsort((members, scores))
        by_row = np.full(len(self._library), np.nan)
        by_row[members] = times
        return members[order[open_to[order]]], by_row

    def _picked(self, op: str, asked: Problem, rows: Any, times: Any, library: bool) -> Picked:
        """Top k of the ranking; the library's kernel stays beside the best tile unless one of the two is surely better."""
        best, ours = rows[: self.policy.top_k], rows[~self._library[rows]]
        reason, keep = "", bool(self._library[best].any())
        if library and len(ours):
            theirs = rows[self._library[rows]]
            first = ours[0]
            if not len(theirs) or not self.confidence.sure(float(times[theirs[0]]), float(times[first])):
                keep, best = True, np.array([first, *(row for row in best if row != first)])[: max(self.policy.top_k, 1)]
                reason = self.confidence.doubt("the library's kernel", "its own choice")
        configs = [self.selector.configs[row] for row in best if not self._library[row]]
        kept = len(configs) + keep
        chosen = best[0] if configs or keep else rows[0]
        decision = Decision(
            op=op,
            family=self.family,
            problem=known(asked),
            candidates=len(rows),
            kept=kept,
            chosen=", ".join([*map(in_words, configs), *(["library"] if keep else [])]),
            config=self.selector.configs[chosen].as_dict(),
            predicted_ns=float(times[chosen]),
            status=CHOSEN if kept == 1 else TIMED,
            reason=reason or (f"top_k={self.policy.top_k}" if kept > 1 else ""),
            seconds=0.0,
        )
        return Picked(decision, tuple(config.as_dict() for config in configs), keep)

    def abstention(self, op: str, reason: str, problem: Mapping[str, Any] | None = None) -> Decision:
        """A decision that leaves everything to Inductor."""
        return Decision(op, self.family, problem, 0, 0, "", None, None, ABSTAINED, reason, 0.0)


def in_words(config: Config) -> str:
    """A config for the report."""
    return assignments(known(config))


def _other_cores(device: str, known_devices: Sequence[str]) -> str:
    """What to say where only the number of cores differs: it is that of the cores that the process may use."""
    cores = re.compile(r"-\d+c(?=-|$)")
    if any(cores.sub("", name) == cores.sub("", device) for name in known_devices):
        return " (with other cores: those that this process may run on count, so look at `taskset` or the container's limit)"
    return ""
