"""Problems of an op on a device, answered by the user's models, by those that ship, or by the roofline."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, field, replace
from functools import cached_property, lru_cache
from pathlib import Path
from typing import Any, Literal

import numpy as np

from kerncast.core import dtypes
from kerncast.core.device import Device
from kerncast.core.io import html
from kerncast.core.io.terminal import assignments, duration, known, printable, three_digits
from kerncast.core.op import Config, Family, Problem
from kerncast.core.software import also_of, is_same, matching, short_name
from kerncast.errors import InvalidValue, NotFound
from kerncast.library import devices
from kerncast.library.registry import FAMILIES, OPS
from kerncast.models.answer import Answer, Answered, as_judged, fallback_words, without_choice
from kerncast.models.card import card_line
from kerncast.models.limits.configs import never_seen
from kerncast.models.limits.envelope import unlike_measured
from kerncast.models.model import Model
from kerncast.models.physics import FILE, Misses, lacking, missing, rates_read, read_misses, rooflines
from kerncast.models.store.entry import INSTALLED, Entry, folder
from kerncast.models.store.find import (
    ModelMatch,
    Point,
    entries_of,
    find,
    groups_of,
    knowing,
    loaded,
    no_model,
    profile_of,
    with_rates_of_twins,
)
from kerncast.models.store.groups import ModelGroup, canonical, known_parameters
from kerncast.models.store.store import Store

Basis = Literal["model", "roofline", "none"]


@dataclass(frozen=True, repr=False)
class Prediction:
    """The answer to one problem; `basis` says whether a model, a roofline or nothing is behind its time."""

    op: str
    problem: Mapping[str, Any]
    """The parameters, those that were filled in among them."""
    device: str
    status: str
    """`ok`, or why the model did not answer or extrapolates (`out_of_range`, `unsupported` …)."""
    time_ns: float | None = None
    lower_ns: float | None = None
    upper_ns: float | None = None
    roofline_ns: float | None = None
    """What the device's peak rates allow at best; None: the work, or a number of the device, is not known."""
    basis: Basis = "none"
    model: str | None = None
    """The id of the model that answered."""
    software: str | None = None
    """What the model was trained on: `vllm==0.24.0`."""
    config: Mapping[str, Any] | None = None
    """The config that was asked about, or the best one; None: there is nothing to choose, or nothing was chosen."""
    filled: Mapping[str, Any] = field(default_factory=dict)
    """Parameters that were not given, and of which the model saw one value only."""
    taken: Mapping[str, Any] = field(default_factory=dict)
    """Element types that stand for those asked about, for no model saw these: fp16 for bf16."""
    parts: Mapping[str, int] = field(default_factory=dict)
    """The size of the parts whose times were added, for no model saw a problem as large as the whole: M of a product."""
    reason: str = ""
    """Why it is not an answer of a model that was trained on the like."""
    card: str = ""
    """What the answer comes from, in one line."""
    note: str = ""
    """What else to know: a warning about the software, the other software that models are there for."""
    tflops: float | None = None
    bandwidth_gb_s: float | None = None

    @property
    def ok(self) -> bool:
        """Whether the status is ok."""
        return self.status == "ok"

    def lines(self) -> list[tuple[str, str]]:
        """What is known, as names and texts for people."""
        found = [("problem", f"{self.op} {assignments(known(self.problem))} on {self.device}")]
        if self.status != "ok":
            found.append(("status", self.status))
        if self.time_ns is not None:
            label = "time" if self.basis == "model" else "time, by roofline"
            between = (
                f" (90 % interval {duration(self.lower_ns)} to {duration(self.upper_ns)})"
                if self.lower_ns is not None and self.upper_ns is not None
                else " (no interval)"
            )
            found.append((label, duration(self.time_ns) + between))
        if self.roofline_ns is not None:
            times = f", {self.time_ns / self.roofline_ns:.2f} times that" if self.time_ns and self.basis == "model" else ""
            found.append(("roofline", duration(self.roofline_ns) + (f" (the time is{times[1:]})" if times else "")))
        rates = [(self.tflops, "TFLOPS"), (self.bandwidth_gb_s, "GB/s")]
        if any(rate for rate, _ in rates):
            found.append(("rates", ", ".join(f"{three_digits(rate)} {unit}" for rate, unit in rates if rate)))
        if self.config:
            found.append(("best config", assignments(known(self.config))))
        if self.filled:
            found.append(("filled in", f"{assignments(known(self.filled))} (the model saw no other value)"))
        if self.taken:
            found.append(("taken as", assignments(known(self.taken))))
        if self.parts:
            found.append(("in parts", f"{assignments(known(self.parts))} (their times are added)"))
        found.append(("basis", self.basis if self.model is None else f"{self.basis} {self.model}"))
        if self.software:
            found.append(("software", self.software))
        found += [(name, text) for name, text in (("card", self.card), ("reason", self.reason), ("note", self.note)) if text]
        return found

    def __repr__(self) -> str:
        parts = self.lines()
        return f"Prediction({self.status}: {printable('; '.join(f'{name} {text}' for name, text in parts))})"

    def _repr_html_(self) -> str:
        return html.panel(f"{self.op} on {self.device}: {self.status}", html.facts(self.lines()[1:]))

    def as_json(self) -> dict[str, Any]:
        """The values that are known, for `--json` and JSON files."""
        found: dict[str, Any] = {"status": self.status, "op": self.op, "device": self.device, "problem": dict(self.problem)}
        if self.config is not None:
            found["config"] = {name: value for name, value in self.config.items() if value is not None}
        for name in ("time_ns", "lower_ns", "upper_ns", "roofline_ns", "tflops", "bandwidth_gb_s"):
            if getattr(self, name) is not None:
                found[name] = getattr(self, name)
        found["basis"] = self.basis
        for name in ("model", "software"):
            if getattr(self, name) is not None:
                found[name] = getattr(self, name)
        for name in ("filled", "taken", "parts"):
            if getattr(self, name):
                found[name] = dict(getattr(self, name))
        return found | {name: text for name in ("reason", "card", "note") if (text := getattr(self, name))}


# Families of an op that may stand for it where no model says which is meant.
USUAL = ("library", "single")
# From its lower to its upper end, an interval of more than this says less than a roofline: kernels of the ten GPUs that were
# measured take up to some tens of times theirs, mostly because they are tiny.
WIDEST = 100.0
Ask = Callable[[Model, Sequence[Problem], Device | str], list[Answer]]


class OpAnswerer:
    """Answers problems of one op on one device. Finding its models takes longer than an answer, so a caller may keep it."""

    def __init__(
        self,
        op: str,
        device: Device | str,
        software: str | None = None,
        family: str | None = None,
        config: Point | None = None,
        *,
        store: Store | None = None,
        strict: bool = False,
        lenient: bool = False,
        ask: Ask | None = None,
    ) -> None:
        """`strict`: ask no model of other software than is asked for. `lenient`: a wrong problem gets the status `bad_input`
        instead of an error. `ask` asks a model in another way than `Model.predict` does, with the same answers.
        """
        self.op, self.device, self.software, self.family_name, self.config = op, device, software, family, config
        self.store = Store.open() if store is None else store
        self.strict, self.lenient, self._ask = strict, lenient, ask

    @cached_property
    def name(self) -> str:
        """The name of the device."""
        return self.device.name if isinstance(self.device, Device) else canonical(self.device)

    @cached_property
    def profile(self) -> Device | None:
        """The profile of the device; None: only models know it."""
        return profile_of(self.device)

    @cached_property
    def groups(self) -> list[ModelGroup]:
        """The models to ask, the first ones first."""
        return groups_of(
            self.op, self.device, family=self.family_name, software=self.software, store=self.store, strict=self.strict
        )

    @cached_property
    def family(self) -> Family:
        """The family whose problems are asked about: that of the first model that may answer, else the op's usual one."""
        known = next((group.family for group in self.groups if group.family is not None), None)
        return self._stand_in() if known is None else known

    @cached_property
    def usable(self) -> list[ModelGroup]:
        """The models that can answer for the device; a device that nobody knows is refused."""
        there = [group for group in self.groups if group.family is not None and (group.seen or self.profile is not None)]
        if self.profile is None and not there:
            assert isinstance(self.device, str)
            raise devices.unknown(self.device)
        return knowing(there, self.name, self.config)

    def ask(self, problems: Sequence[Point]) -> list[Prediction]:
        """An answer to each problem, in order: of the first model that covers it, else of the roofline, and it says which."""
        groups, count = self.usable, len(problems)
        family = groups[0].family if groups else self._stand_in()
        assert family is not None
        answers: dict[int, Prediction] = {}
        matches: dict[int, ModelMatch] = {}
        for place, problem in enumerate(problems):
            with self._refusing(place, count, answers):
                if groups:
                    matches[place] = find(groups, problem, self.profile)
                else:
                    answers[place] = self._without_model(family, problem)
        for key in dict.fromkeys(match.key for match in matches.values()):
            answers |= self._answered({place: match for place, match in matches.items() if match.key == key}, count)
        open_ = [place for place in range(count) if answers[place].status != Answered.BAD_INPUT]
        others = _other_software(groups, list(matches.values()))
        strange = {place for place, match in matches.items() if not match.group.seen}
        ready = [_unless_vague(answers[place]) if place in strange else answers[place] for place in open_]
        for place, item in zip(open_, self._by_roofline(family, ready), strict=True):
            answers[place] = replace(item, note=_and(item.note, self._between_nodes(item), others))
        return [answers[place] for place in range(count)]

    @contextmanager
    def _refusing(self, place: int, count: int, answers: dict[int, Prediction]) -> Iterator[None]:
        """An error about a problem says which problem it is of, or becomes its answer."""
        try:
            yield
        except (InvalidValue, NotFound) as error:
            if not self.lenient:
                raise type(error)(f"problem {place + 1} of {count}: {error}" if count > 1 else str(error)) from error
            answers[place] = Prediction(self.op, {}, self.name, str(Answered.BAD_INPUT), reason=str(error))

    # -- models ------------------------------------------------------------------------------------------

    def _answered(self, matches: dict[int, ModelMatch], count: int) -> dict[int, Prediction]:
        """What one model says to its problems, by their places."""
        first = next(iter(matches.values()))
        group, entry, model = first.group, first.entry, loaded(first.entry)
        answers: dict[int, Prediction] = {}
        valid: dict[int, Problem] = {}
        for place, match in matches.items():
            with self._refusing(place, count, answers):
                valid[place] = model.problem(match.problem)
        op = model.family.op.name
        blank = {
            place: Prediction(op, match.whole, self.name, str(Answered.OK), filled=match.filled)
            for place, match in matches.items()
            if place in valid
        }
        given = isinstance(self.device, Device) or str(self.device).endswith(".toml")
        device: Device | str = self.profile if self.profile is not None and (given or not group.seen) else self.name
        if first.taken and isinstance(device, Device):
            device = with_rates_of_twins(device)
        try:
            if self._ask is not None and self.config is None:
                told = self._ask(model, list(valid.values()), device)
            else:
                told = model.predict(list(valid.values()), self.config, device=device)
        except InvalidValue as error:
            if group.seen and not given:
                raise
            # A profile that lacks a number which the model reads.
            status, why = str(Answered.OUT_OF_RANGE), str(error).replace(str(entry.path), entry.id)
            return answers | {place: replace(item, status=status, reason=why) for place, item in blank.items()}
        texts = model.manifest.software_on(self.name) or entry.software
        software = ", ".join(dict.fromkeys(map(short_name, texts))) or None
        asked = self.software
        if asked is not None and entry.warning is None and not (is_same(texts, asked) or matching(asked, texts)):
            entry = replace(entry, warning=f"{self.name} was measured with {software}, not with {self.software}")
        line, strange = card_line(model, self.name), never_seen(model, self.name, self.config or {})
        for place, answer in zip(valid, told, strict=True):
            item, parts = blank[place], matches[place].parts
            if strange is not None:
                answer = as_judged(answer, unlike_measured(strange))
            if parts is not None:
                answer = parts.added(answer, model.problem(item.problem), entry.id)
                item = replace(item, parts={parts.side.name: parts.size})
            prediction = _told(item, without_choice(model.family, answer), entry, software, line)
            answers[place] = _as_asked(prediction, first.taken)
        return answers

    # -- without a model ---------------------------------------------------------------------------------

    def _without_model(self, family: Family, problem: Point) -> Prediction:
        op = family.op
        values = {**op.aliases.get(self.op, {}), **known_parameters(family, problem)}
        absent = missing(family, values)
        if absent:
            raise InvalidValue(
                f"the work of {op.name} depends on {', '.join(absent)}: give {'it' if len(absent) == 1 else 'them'}"
            )
        if self.config is not None:
            Config(family, self.config)  # refuses what is no config
        why = no_model(op.name, self.name, self.software, self.store, self.family_name)
        return Prediction(op.name, values, self.name, str(Answered.OK), reason=why)

    def _stand_in(self) -> Family:
        """The family whose work is computed where no model says which one is meant."""
        op = OPS.get(self.op)
        known = {family.id: family for family in FAMILIES if family.op is op}
        if self.family_name is not None:
            wanted = self.family_name if "/" in self.family_name else f"{op.name}/{self.family_name}"
            if wanted not in known:
                raise NotFound.named(f"family of {op.name}", self.family_name, known)
            return known[wanted]
        usual = [known[name] for name in (f"{op.name}/{item}" for item in USUAL) if name in known]
        return (usual or list(known.values()))[0]

    def _between_nodes(self, item: Prediction) -> str:
        """A model knows how fast the links within a node are, of other devices too that have larger ones."""
        gpus, profile = item.problem.get("gpus"), self.profile
        if profile is None or not isinstance(gpus, int) or gpus <= profile.node_devices or item.time_ns is None:
            return ""
        return f"a node of {profile.name} has {profile.node_devices} devices: {gpus} are answered as if they were in one node"

    def _by_roofline(self, family: Family, answers: Sequence[Prediction]) -> list[Prediction]:
        """The roofline beside every answer, and in the place of those that have no time."""
        profile = self.profile
        if profile is None:
            why = f"{self.name} has no profile, so its roofline is not known"
            return [item if item.time_ns is not None else _unanswered(item, why) for item in answers]
        floors = rooflines(family, profile, [item.problem for item in answers])
        misses, found = known_misses(), []
        for item, floor in zip(answers, floors, strict=True):
            if item.time_ns is not None:
                found.append(replace(item, roofline_ns=floor))
            elif floor is None:
                found.append(_unanswered(item, f"there is no roofline: {lacking(family, profile, item.problem)}"))
            else:
                found.append(_missed(item, floor, family, profile, misses))
        return found


def devices_of(op: str, family: str | None = None, software: str | None = None, store: Store | None = None) -> list[str]:
    """The devices that models of an op were trained on: the user's, then those of models that ship."""
    opened = Store.open() if store is None else store
    known = entries_of(op, family, software, opened)
    return list(dict.fromkeys(name for entry in known for name in entry.record.devices))


def _told(blank: Prediction, answer: Answer, entry: Entry, software: str | None, line: str) -> Prediction:
    """An answer of a model, as a prediction; one without a time is left for the roofline."""
    problem = {name: value for name, value in answer.problem.items() if value is not None}
    said = replace(blank, problem=problem, status=str(answer.status), reason=answer.reason, note=entry.warning or answer.note)
    if answer.time_ns is None:
        # The fallback is for those who must run something; a time is asked for here.
        why = answer.reason.removesuffix(fallback_words(answer.fallback_name or ""))
        return replace(said, reason=f"{entry.id} does not answer: {why}")
    return replace(
        said, time_ns=answer.time_ns, lower_ns=answer.lower_ns, upper_ns=answer.upper_ns, basis="model", model=entry.id,
        software=software, config=dict(answer.config.items()) if answer.config else None, card=line,
        tflops=answer.tflops, bandwidth_gb_s=answer.bandwidth_gb_s,
    )  # fmt: skip


def _as_asked(answer: Prediction, taken: Point) -> Prediction:
    """An answer about the twins, as one about the types that were asked for; it says so."""
    if not taken:
        return answer
    back = {name: dtypes.TWINS[twin] for name, twin in taken.items()}
    why = "; ".join(
        f"{name}={back[name]} is answered as {twin}, which has the same size and rate: no model saw {back[name]} here"
        for name, twin in taken.items()
    )
    reason = "; ".join(filter(None, [why, answer.reason]))
    return replace(answer, problem={**answer.problem, **back}, taken=dict(taken), reason=reason)


def _unless_vague(item: Prediction) -> Prediction:
    """The answer for a device that was not measured; without its time if the interval says nothing, for the roofline then."""
    if item.lower_ns is None or item.upper_ns is None or item.upper_ns <= WIDEST * item.lower_ns:
        return item
    why = f"the interval of {item.model} is too wide to be of use: {item.reason or item.note}"
    return Prediction(item.op, item.problem, item.device, item.status, filled=item.filled, reason=why)


def _other_software(groups: Sequence[ModelGroup], matches: Sequence[ModelMatch]) -> str:
    """The software of models that were not asked, for a note."""
    if not matches:
        return ""
    used = {item.entry.id for item in matches}
    asked = next((group for group in groups if any(item.group is group for item in matches)), groups[0])
    others = [entry for entry in asked.entries if entry.id not in used and entry.software]
    texts = dict.fromkeys(short_name(text) for entry in others for text in entry.software)
    return also_of(texts) if texts else ""


# -- physics -------------------------------------------------------------------------------------------


@lru_cache(4)
def _misses(file: Path, _: int) -> Misses:
    return read_misses(file)


def known_misses() -> Misses | None:
    """How kernels miss their rooflines, as it ships; None: it is not there."""
    for place in (folder(), INSTALLED):
        if place is not None and (place / FILE).is_file():
            return _misses(place / FILE, (place / FILE).stat().st_mtime_ns)
    return None


def _missed(item: Prediction, floor: float, family: Family, profile: Device, misses: Misses | None) -> Prediction:
    card = f"roofline of {profile.title} ({rates_read(family, profile, str(item.problem.get('dtype')))})"
    if misses is None:
        why = "the time is the roofline itself, which no kernel beats"
        return replace(item, time_ns=floor, roofline_ns=floor, basis="roofline", card=card, reason=_and(item.reason, why))
    miss, own = misses.of(item.op)
    median, lower, upper = (float(part[0]) for part in miss.times(np.array([floor])))
    kernels = f"kernels of {item.op}" if own else "kernels of other ops"
    why = f"the time is {median / floor:.2f} times the roofline, as {kernels} of this size take on {_counted(miss.devices)}"
    return replace(
        item, time_ns=median, lower_ns=lower, upper_ns=upper, roofline_ns=floor, basis="roofline", card=card,
        reason=_and(item.reason, why),
    )  # fmt: skip


def _counted(names: Sequence[str]) -> str:
    return names[0] if len(names) == 1 else f"{len(names)} devices"


def _unanswered(item: Prediction, why: str) -> Prediction:
    """An answer without a time, and why."""
    status = str(Answered.NO_MODEL) if item.status == Answered.OK else item.status
    return replace(item, status=status, reason=_and(item.reason, why))


def _and(*reasons: str) -> str:
    return "; ".join(filter(None, reasons))
