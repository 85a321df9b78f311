"""What a selector answers: a config with what is expected of it, or the reason why there is none. Never a made-up number."""

from __future__ import annotations

from dataclasses import dataclass
from enum import StrEnum
from typing import Any

from kerncast.models.hull import OutOfRange
from kerncast.op import Config, Problem


class Answered(StrEnum):
    """How a question ended."""

    OK = "ok"
    OUT_OF_RANGE = "out_of_range"
    """Outside what the model was trained on."""
    UNSUPPORTED = "unsupported"
    """The op or the family does not do this at all."""
    NO_VALID_CONFIG = "no_valid_config"
    """The problem is fine, but no config that the model knows can run it."""


class Tier(StrEnum):
    """Who answered; the quickest first."""

    MEMO = "memo"
    TREE = "tree"
    PORTFOLIO = "portfolio"
    FULL = "full"
    MEASURE = "measure"


@dataclass(frozen=True)
class Answer:
    """The reply to one problem. `config` is there when `status` is ok; outside the hull there is a named fallback instead."""

    status: Answered
    problem: Problem
    config: Config | None = None
    time_ns: float | None = None
    lower_ns: float | None = None
    upper_ns: float | None = None
    efficiency: float | None = None
    """Expected: best time over this config's time, as out-of-fold choices of about this length got it."""
    tier: Tier | None = None
    reason: str = ""
    outside: OutOfRange | None = None
    fallback: Config | None = None
    """What can run all the same: the library's own choice, else the config that is best on average."""
    fallback_name: str = ""

    @property
    def ok(self) -> bool:
        return self.status is Answered.OK

    @classmethod
    def quick(cls, problem: Problem, config: Config, time_ns: float | None, lower_ns: float | None, upper_ns: float | None,
              efficiency: float | None, tier: Tier) -> Answer:  # fmt: skip
        """An answer with a config, for hot paths: setting a dozen frozen fields one by one takes as long as the choice."""
        made = object.__new__(cls)
        made.__dict__.update(status=Answered.OK, problem=problem, config=config, time_ns=time_ns, lower_ns=lower_ns,
                             upper_ns=upper_ns, efficiency=efficiency, tier=tier)  # fmt: skip
        return made

    def remembered(self) -> Answer:
        """The same answer, from the memo."""
        copy = object.__new__(Answer)
        copy.__dict__.update(self.__dict__, tier=Tier.MEMO)
        return copy

    def as_json(self) -> dict[str, Any]:
        """For `--json` and JSON files: only what is known."""
        found: dict[str, Any] = {"status": str(self.status), "problem": self.problem.values}
        if self.config is not None:
            found["config"] = {name: value for name, value in self.config if value is not None}
        for name in ("time_ns", "lower_ns", "upper_ns", "efficiency"):
            if getattr(self, name) is not None:
                found[name] = getattr(self, name)
        if self.tier is not None:
            found["tier"] = str(self.tier)
        if self.reason:
            found["reason"] = self.reason
        if self.outside is not None:
            found["outside"] = {"parameter": self.outside.parameter, "value": self.outside.value, "rule": self.outside.rule}
        if self.fallback is not None:
            chosen = {name: value for name, value in self.fallback if value is not None}
            found["fallback"] = {"name": self.fallback_name, "config": chosen}
        return found
