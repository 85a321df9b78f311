"""The answers of models and selectors: a config with its expected time and efficiency, or the reason for none."""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass, replace
from enum import Flag, StrEnum, auto
from functools import cached_property
from typing import Any

from kerncast.core.io import html
from kerncast.core.io.terminal import assignments, duration, known, printable, three_digits
from kerncast.core.op import Config, Family, Problem
from kerncast.core.op.declaration import BANDWIDTH, TFLOPS
from kerncast.core.parameters import Bool, Categorical
from kerncast.errors import InvalidValue
from kerncast.models.limits.envelope import AnswerWorth, OutOfRange


class StatusPlace(Flag):
    """Where a status may occur."""

    PYTHON = auto()
    """In an `Answer`; other errors are raised."""
    C = auto()
    """As an enumerator of the C and C++ headers."""
    JSON = auto()
    """In the reply to a JSON request."""
    EVERYWHERE = PYTHON | C | JSON


class Answered(StrEnum):
    """The status of an answer. Numbers are those of the C enumerators: a new status gets the next one, none ever changes."""

    OK = "ok", 0, StatusPlace.EVERYWHERE, ""
    OUT_OF_RANGE = (
        "out_of_range", 1, StatusPlace.EVERYWHERE,
        "unlike what the model was trained on; `config` is the choice if there is a tier, else a fallback, if any fits",
    )  # fmt: skip
    UNSUPPORTED = "unsupported", 2, StatusPlace.EVERYWHERE, "the op or the family does not do this at all"
    NO_VALID_CONFIG = "no_valid_config", 3, StatusPlace.EVERYWHERE, "no config that the model knows can run this problem"
    BAD_INPUT = (
        "bad_input",
        4,
        StatusPlace.C | StatusPlace.JSON,
        "not a problem of this op, or a pointer that must not be NULL is",
    )
    MISMATCH = "mismatch", 5, StatusPlace.C, "header and library are from different exports"
    CORRUPT = "corrupt", 6, StatusPlace.C | StatusPlace.JSON, "the model's own numbers are damaged"
    TOO_SMALL = "too_small", 7, StatusPlace.C, "the buffer given is too small, or there is not enough memory"
    UNSURE = (
        "unsure", 8, StatusPlace.EVERYWHERE,
        "the tree alone does not decide this problem; `config` is a fallback, if any fits",
    )  # fmt: skip
    NO_MODEL = "no_model", None, StatusPlace.JSON, "no available model answers this"

    number: int | None
    places: StatusPlace
    doc: str

    def __new__(cls, name: str, number: int | None, places: StatusPlace, doc: str) -> Answered:
        member = str.__new__(cls, name)
        member._value_ = name
        member.number, member.places, member.doc = number, places, doc
        return member


C_STATUSES = tuple(
    sorted((status for status in Answered if StatusPlace.C in status.places), key=lambda status: status.number or 0)
)
"""The statuses of C, by number."""


class Tier(StrEnum):
    """Which tier answered; the quickest first."""

    MEMO = "memo"
    TREE = "tree"
    PORTFOLIO = "portfolio"
    FULL = "full"
    MEASURE = "measure"
    PIN = "pin"


CHOOSING = (Tier.TREE, Tier.PORTFOLIO, Tier.FULL)
"""The tiers that a caller may ask for; an artefact may have all of them or some."""
ALONE = (Tier.TREE,)
"""A tree without another tier to leave a problem to."""
C_TIERS = {
    str(Tier.MEMO): "",
    str(Tier.TREE): "",
    str(Tier.PORTFOLIO): "",
    str(Tier.FULL): "",
    "auto": "only to ask for: the portfolio, or all configs if there is none, or the tree if it is alone",
    "none": "",
    str(Tier.PIN): "only in answers: a pin decided",
}
"""The tiers of C, in the order of their numbers, each with what its enumerator says. A new one is appended."""
C_TIER_NAMES = tuple(C_TIERS)


def named_tiers(given: str | Iterable[str]) -> tuple[Tier, ...]:
    """Some of the tiers that choose, the quickest first, from their names or from a text such as `tree,portfolio`."""
    names = {str(item).strip() for item in (given.split(",") if isinstance(given, str) else given)} - {""}
    if not names or names - set(CHOOSING):
        raise InvalidValue(f"`tiers` are {', '.join(CHOOSING)} (the memo is always there), got '{', '.join(sorted(names))}'")
    return tuple(tier for tier in CHOOSING if tier in names)


class Pin(StrEnum):
    """What became of a pinned choice."""

    DECIDED = "decided"
    """The config is the pinned one, not the model's choice."""
    NOT_APPLIED = "not_applied"
    """The pinned config cannot run the problem or is not available, so the model chose; `reason` says why."""


@dataclass(frozen=True, repr=False)
class Answer:
    """The reply to one problem. `config` is set if `status` is ok; outside the trained range there is a named fallback instead.

    A problem in range but unlike all measured ones (`model.manifest.facts`) is out_of_range with a config and its time.
    """

    status: Answered
    problem: Problem
    config: Config | None = None
    time_ns: float | None = None
    lower_ns: float | None = None
    upper_ns: float | None = None
    efficiency: float | None = None
    """Expected best time over this config's time, from out-of-fold choices of about the same length."""
    tier: Tier | None = None
    reason: str = ""
    outside: OutOfRange | None = None
    fallback: Config | None = None
    """A config that can run anyway: the library's own choice, else the config that is best on average."""
    fallback_name: str = ""
    label: str | None = None
    """What the chosen kernel (or the fallback) is called in the training data; None: it has no name there."""
    pin: Pin | None = None
    """Set if a choice was pinned for this problem."""
    note: str = ""
    """What else to know: why the model was not compiled, with the command that changes it; why there is no interval."""
    known: bool | None = None
    """Whether the config worked in training; None unless the configs to choose from were given, or it always failed there."""
    failed: int = 0
    """How often the config was tried in training, if it failed each time."""

    @property
    def ok(self) -> bool:
        return self.status is Answered.OK

    @classmethod
    def quick(cls, problem: Problem, config: Config, time_ns: float | None, lower_ns: float | None, upper_ns: float | None,
              efficiency: float | None, tier: Tier, label: str | None = None) -> Answer:  # fmt: skip
        """An answer with a config, made quickly: setting a dozen frozen fields one by one takes as long as the choice."""
        made = object.__new__(cls)
        made.__dict__.update(status=Answered.OK, problem=problem, config=config, time_ns=time_ns, lower_ns=lower_ns,
                             upper_ns=upper_ns, efficiency=efficiency, tier=tier, label=label)  # fmt: skip
        return made

    def remembered(self) -> Answer:
        """The same answer, from the memo."""
        copy = object.__new__(Answer)
        copy.__dict__.update(self.__dict__, tier=Tier.MEMO)
        return copy

    @property
    def tflops(self) -> float | None:
        """The op's arithmetic over the expected time, in TFLOPS; None if either is unknown, or there is no arithmetic."""
        return self._rates.get(TFLOPS)

    @property
    def bandwidth_gb_s(self) -> float | None:
        """The op's bytes, each moved once, over the expected time, in GB/s; None if either is unknown."""
        return self._rates.get(BANDWIDTH)

    @cached_property
    def _rates(self) -> dict[str, float]:
        family = self.problem.family or (None if self.config is None else self.config.family)
        if family is None or not self.time_ns:
            return {}
        work = family.work_program.scalar(family.problem.qualified(self.problem.as_dict()))
        found = {TFLOPS: work.get("flops", 0.0) / self.time_ns / 1e3, BANDWIDTH: work.get("bytes", 0.0) / self.time_ns}
        return {name: rate for name, rate in found.items() if rate > 0}

    @property
    def worked_in_training(self) -> str:
        """`yes`, `never tried`, or how often it failed."""
        return "yes" if self.known else f"no, {self.failed:,} of {self.failed:,} failed" if self.failed else "never tried"

    def _parts(self) -> list[tuple[str, str]]:
        """The parts that are known, as names and texts."""
        bounds = () if self.lower_ns is None or self.upper_ns is None else (self.lower_ns, self.upper_ns)
        found = [
            ("status", str(self.status)),
            ("problem", assignments(known(self.problem))),
            ("config", assignments(known(self.config)) if self.config else None),
            ("label", self.label),
            ("time", None if self.time_ns is None else duration(self.time_ns)),
            ("90 % interval", " to ".join(map(duration, bounds))),
            *((name, three_digits(rate)) for name, rate in (("TFLOPS", self.tflops), ("GB/s", self.bandwidth_gb_s)) if rate),
            ("expected efficiency", None if self.efficiency is None else f"{self.efficiency:.1%}"),
            ("tier", None if self.tier is None else str(self.tier)),
            ("worked in training", None if self.known is None else self.worked_in_training),
            ("pin", None if self.pin is None else PIN_WORDS[self.pin]),
            ("reason", self.reason),
            ("fallback", assignments(known(self.fallback)) if self.fallback else None),
            ("note", self.note),
        ]
        return [(name, text) for name, text in found if text]

    def __repr__(self) -> str:
        (_, status), *others = self._parts()
        return f"Answer({status}: {printable('; '.join(f'{name} {text}' for name, text in others))})"

    def _repr_html_(self) -> str:
        return html.panel(f"{self.problem.op.name}: {self.status}", html.facts(self._parts()[1:]))

    def as_json(self) -> dict[str, Any]:
        """The values that are known, for `--json` and JSON files."""
        found: dict[str, Any] = {"status": str(self.status), "problem": self.problem.as_dict()}
        if self.config is not None:
            found["config"] = {name: value for name, value in self.config.items() if value is not None}
        for name in ("time_ns", "lower_ns", "upper_ns", TFLOPS, BANDWIDTH, "efficiency", "tier", "label", "known"):
            value = getattr(self, name)
            if value is not None:
                found[name] = str(value) if isinstance(value, StrEnum) else value
        if self.failed:
            found["failed"] = self.failed
        if self.pin is not None:
            found["pin"] = str(self.pin)
        if self.reason:
            found["reason"] = self.reason
        if self.outside is not None:
            found["outside"] = {"parameter": self.outside.parameter, "value": self.outside.value, "rule": self.outside.rule}
        if self.fallback is not None:
            chosen = {name: value for name, value in self.fallback.items() if value is not None}
            found["fallback"] = {"name": self.fallback_name, "config": chosen}
        if self.note:
            found["note"] = self.note
        return found


PIN_WORDS = {Pin.DECIDED: "decided", Pin.NOT_APPLIED: "not applied"}


def fallback_words(called: str) -> str:
    """What the reason of a refusal says of its fallback."""
    return f"; the fallback is the {'library' if called == 'library' else 'best config on average that can run it'}"


def as_judged(answer: Answer, verdict: AnswerWorth) -> Answer:
    """An answer with what a verdict makes of it: its bounds, its status and what is said of it. What was chosen stays."""
    if not answer.ok or verdict == AnswerWorth():
        return answer
    answer = replace(answer, known=answer.known if verdict.known is None else verdict.known)
    if not verdict.calibrated:
        assert answer.time_ns is not None
        bounds = verdict.widened(answer.time_ns, answer.lower_ns, answer.upper_ns)
        lower, upper = (None if bound is None else float(bound) for bound in bounds)
        answer = replace(answer, lower_ns=lower, upper_ns=upper, efficiency=None)
    if verdict.stands:
        return replace(answer, note=verdict.words or answer.note)
    note = verdict.away.words if verdict.away is not None and verdict.away.believed else answer.note
    return replace(answer, status=Answered.OUT_OF_RANGE, reason=verdict.words, outside=verdict.outside, note=note)


def refused_outside(problem: Problem, outside: OutOfRange, fallback: Config | None = None, called: str = "") -> Answer:
    """A refusal that says what is outside the trained range, with a fallback that can run anyway."""
    return with_fallback(Answer(Answered.OUT_OF_RANGE, problem, reason=outside.words, outside=outside), fallback, called)


def with_fallback(refused: Answer, fallback: Config | None, called: str) -> Answer:
    """A refusal with a config that can run anyway, if there is one; where there is nothing to choose, it need not be said."""
    if fallback is None:
        return refused
    reason = refused.reason + (fallback_words(called) if len(fallback) else "")
    return replace(refused, reason=reason, fallback=fallback, fallback_name=called)


def without_choice(family: Family, answer: Answer) -> Answer:
    """A refusal for a family with nothing to choose, so without a fallback.

    A label that is not in the training data is unsupported rather than out of range: labels have no order.
    """
    outside = answer.outside
    if family.config.parameters or outside is None or outside.parameter not in family.problem.parameters:
        return answer
    label = isinstance(family.problem.parameters[outside.parameter], (Bool, Categorical))
    status = Answered.UNSUPPORTED if label else answer.status
    return replace(answer, status=status, reason=outside.words, fallback=None, fallback_name="")
