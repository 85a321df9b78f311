"""Problems of an op on a device, answered by the user's models, by those that ship, or by the roofline."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, field, replace
from functools import lru_cache
from pathlib import Path
from typing import Any

import numpy as np

from kerncast import devices
from kerncast.device import Device
from kerncast.errors import InvalidValue, NotFound
from kerncast.models.answer import Answer, fallback_words, unlike_measured, without_choice
from kerncast.models.card import card_line
from kerncast.models.manifest import MANIFEST
from kerncast.models.model import Model
from kerncast.models.physics import lacking, missing, rates_read, rooflines
from kerncast.models.roofline_misses import FILE, Misses, read_misses
from kerncast.models.statuses import Answered
from kerncast.op import Config, Family, Problem
from kerncast.querying.covering import Chosen, Point
from kerncast.querying.covering import chosen as covering
from kerncast.querying.naming import knowing, never_seen
from kerncast.querying.prediction import Prediction
from kerncast.querying.twins import as_asked, with_rates_of_twins
from kerncast.registry import FAMILIES, OPS
from kerncast.software import also_of, is_same, matching, short_name
from kerncast.store.entry import Entry
from kerncast.store.shipped import INSTALLED, folder
from kerncast.store.sources import Source, entries_of, no_model, profile_of, sources_of
from kerncast.store.store import Store, canonical

# Families of an op that may stand for it where no model says which is meant.
USUAL = ("library", "single")
# From its lower to its upper end, an interval of more than this says less than a roofline: kernels of the ten GPUs that were
# measured take up to some tens of times theirs, mostly because they are tiny.
WIDEST = 100.0
Ask = Callable[[Model, Sequence[Problem], Device | str], list[Answer]]


@dataclass(frozen=True)
class Asked:
    """One question about some problems."""

    op: str
    device: Device | str
    software: str | None = None
    family: str | None = None
    config: Point | None = None
    strict: bool = False
    """Ask no model of other software than is asked for."""
    store: Store | None = None
    """None: the user's own."""
    lenient: bool = False
    """A problem that is wrong gets the status `bad_input` instead of an error."""
    ask: Ask | None = field(default=None, compare=False, repr=False)
    """Asks a model in another way than `Model.predict` does, with the same answers."""

    @property
    def name(self) -> str:
        """The name of the device."""
        return self.device.name if isinstance(self.device, Device) else canonical(self.device)

    def sources(self) -> list[Source]:
        """Where to ask, the first one first."""
        return sources_of(
            self.op, self.device, family=self.family, software=self.software, store=self.store, strict=self.strict
        )


@dataclass(frozen=True)
class Ground:
    """What a question is answered from. Finding it takes longer than an answer, so a caller that asks often keeps it."""

    profile: Device | None
    sources: Sequence[Source]
    family: Family

    @classmethod
    def of(cls, asked: Asked) -> Ground:
        """What the store and the package have now; a device that nobody knows is refused."""
        profile = profile_of(asked.device)
        usable = [item for item in asked.sources() if item.lookup.family is not None and (item.seen or profile is not None)]
        if profile is None and not usable:
            assert isinstance(asked.device, str)
            raise devices.unknown(asked.device)
        usable = knowing(usable, asked.name, asked.config, loaded)
        family = usable[0].lookup.family if usable else _stand_in(asked)
        assert family is not None
        return cls(profile, usable, family)


def predictions(asked: Asked, problems: Sequence[Point], ground: Ground | None = None) -> list[Prediction]:
    """An answer to each problem, in order: of the first model that covers it, else of the roofline, and it says which."""
    ground = ground or Ground.of(asked)
    profile, sources, family = ground.profile, ground.sources, ground.family
    refusing = _Refusing(asked, len(problems))
    found: dict[int, Prediction] = {}
    chosen: list[Chosen] = []
    for place, problem in enumerate(problems):
        with refusing.at(place, found):
            if sources:
                chosen.append(covering(sources, problem, place, profile))
            else:
                found[place] = _without_model(asked, family, problem)
    for key in dict.fromkeys(item.key for item in chosen):
        found |= _answered(asked, profile, [item for item in chosen if item.key == key], refusing)
    answers = [found[place] for place in range(len(problems))]
    open_ = [place for place, item in enumerate(answers) if item.status != Answered.BAD_INPUT]
    others = _other_software(sources, chosen)
    strange = {item.place for item in chosen if not item.source.seen}
    ready = [_unless_vague(answers[at]) if at in strange else answers[at] for at in open_]
    for place, item in zip(open_, _by_roofline(family, profile, asked.name, ready), strict=True):
        answers[place] = replace(item, note="; ".join(filter(None, [item.note, _between_nodes(item, profile), others])))
    return answers


def _between_nodes(item: Prediction, profile: Device | None) -> str:
    """A model knows how fast the links within a node are, of other devices too that have larger ones."""
    gpus = item.problem.get("gpus")
    if profile is None or not isinstance(gpus, int) or gpus <= profile.node_devices or item.time_ns is None:
        return ""
    return f"a node of {profile.name} has {profile.node_devices} devices: {gpus} are answered as if they were in one node"


class _Refusing:
    """What becomes of a problem that is wrong."""

    def __init__(self, asked: Asked, count: int) -> None:
        self.asked, self.count = asked, count

    @contextmanager
    def at(self, place: int, found: dict[int, Prediction]) -> Iterator[None]:
        """The error says which problem it is of, or becomes its answer."""
        try:
            yield
        except (InvalidValue, NotFound) as error:
            if not self.asked.lenient:
                raise type(error)(f"problem {place + 1} of {self.count}: {error}" if self.count > 1 else str(error)) from error
            found[place] = Prediction(self.asked.op, {}, self.asked.name, str(Answered.BAD_INPUT), reason=str(error))


def _without_model(asked: Asked, family: Family, problem: Point) -> Prediction:
    op = family.op
    store = Store.open() if asked.store is None else asked.store
    values = {**op.aliases.get(asked.op, {}), **_checked(family, problem)}
    absent = missing(family, values)
    if absent:
        raise InvalidValue(f"the work of {op.name} depends on {', '.join(absent)}: give {'it' if len(absent) == 1 else 'them'}")
    if asked.config is not None:
        Config(family, asked.config)  # refuses what is no config
    why = no_model(op.name, asked.name, asked.software, store, asked.family)
    return Prediction(op.name, values, asked.name, str(Answered.OK), reason=why)


def family_of(asked: Asked) -> Family:
    """The family whose problems are asked about: that of the first model that may answer, else the op's usual one."""
    found = next((source.lookup.family for source in asked.sources() if source.lookup.family is not None), None)
    return _stand_in(asked) if found is None else found


def devices_of(op: str, family: str | None = None, software: str | None = None, store: Store | None = None) -> list[str]:
    """The devices that models of an op were trained on: the user's, then those of models that ship."""
    opened = Store.open() if store is None else store
    known = entries_of(op, family, software, opened)
    return list(dict.fromkeys(name for entry in known for name in entry.record.devices))


def _answered(asked: Asked, profile: Device | None, chosen: Sequence[Chosen], refusing: _Refusing) -> dict[int, Prediction]:
    """What one model says to its problems, by their places."""
    source, entry = chosen[0].source, chosen[0].entry
    model = loaded(entry)
    op = model.family.op.name
    found: dict[int, Prediction] = {}
    valid: dict[int, Problem] = {}
    for item in chosen:
        with refusing.at(item.place, found):
            valid[item.place] = model.problem(item.problem)
    blank = {
        item.place: Prediction(op, item.whole, asked.name, str(Answered.OK), filled=item.filled)
        for item in chosen
        if item.place in valid
    }
    given = isinstance(asked.device, Device) or str(asked.device).endswith(".toml")
    device: Device | str = profile if profile is not None and (given or not source.seen) else asked.name
    taken = chosen[0].taken
    if taken and isinstance(device, Device):
        device = with_rates_of_twins(device)
    try:
        if asked.ask is not None and asked.config is None:
            answers = asked.ask(model, list(valid.values()), device)
        else:
            answers = model.predict(list(valid.values()), asked.config, device=device)
    except InvalidValue as error:
        if source.seen and not given:
            raise
        # A profile that lacks a number which the model reads.
        status, why = str(Answered.OUT_OF_RANGE), str(error).replace(str(entry.path), entry.id)
        return found | {place: replace(item, status=status, reason=why) for place, item in blank.items()}
    texts = model.manifest.software_on(asked.name) or entry.software
    software = ", ".join(dict.fromkeys(map(short_name, texts))) or None
    if asked.software is not None and entry.warning is None and not _is_of(texts, asked.software):
        entry = replace(entry, warning=f"{asked.name} was measured with {software}, not with {asked.software}")
    line = card_line(model, asked.name)
    strange = never_seen(model, asked.name, asked.config or {})
    divided = {item.place: item.parts for item in chosen if item.parts is not None}
    answers = [unlike_measured(answer, strange) for answer in answers]
    for number, place in enumerate(valid):
        if place in divided:
            whole = model.problem(blank[place].problem)
            answers[number] = divided[place].added(answers[number], whole, entry.id)
            blank[place] = replace(blank[place], parts={divided[place].side.name: divided[place].size})
    told = zip(blank.items(), answers, strict=True)
    return found | {
        place: as_asked(_told(item, without_choice(model.family, answer), entry, software, line), taken)
        for (place, item), answer in told
    }


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


def _unless_vague(item: Prediction) -> Prediction:
    """The answer for a device that was not measured; without its time if the interval says nothing, for the roofline then."""
    if item.lower_ns is None or item.upper_ns is None or item.upper_ns <= WIDEST * item.lower_ns:
        return item
    why = f"the interval of {item.model} is too wide to be of use: {item.reason or item.note}"
    return Prediction(item.op, item.problem, item.device, item.status, filled=item.filled, reason=why)


def _is_of(texts: Sequence[str], software: str) -> bool:
    return is_same(texts, software) or bool(matching(software, texts))


@lru_cache(64)
def _loaded(path: Path, _: int) -> Model:
    return Model.load(path)


def loaded(entry: Entry) -> Model:
    """The model of an entry; kept, and read again if its manifest changes."""
    if not (entry.path / MANIFEST).is_file():
        return entry.load()  # says what is wrong with it, or is of another system
    return _loaded(entry.path, (entry.path / MANIFEST).stat().st_mtime_ns)


def _other_software(sources: Sequence[Source], chosen: Sequence[Chosen]) -> str:
    """The software of models that were not asked, for a note."""
    if not chosen:
        return ""
    used = {item.entry.id for item in chosen}
    place = next((source for source in sources if any(item.source is source for item in chosen)), sources[0])
    others = [entry for entry in place.lookup.entries if entry.id not in used and entry.software]
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


def _by_roofline(family: Family, profile: Device | None, device: str, answers: Sequence[Prediction]) -> list[Prediction]:
    """The roofline beside every answer, and in the place of those that have no time."""
    if profile is None:
        why = f"{device} has no profile, so its roofline is not known"
        return [item if item.time_ns is not None else replace(item, status=_refused(item), reason=_and(item.reason, why))
                for item in answers]  # fmt: skip
    floors = rooflines(family, profile, [item.problem for item in answers])
    misses, found = known_misses(), []
    for item, floor in zip(answers, floors, strict=True):
        if item.time_ns is not None:
            found.append(replace(item, roofline_ns=floor))
        elif floor is None:
            why = f"there is no roofline: {lacking(family, profile, item.problem)}"
            found.append(replace(item, status=_refused(item), reason=_and(item.reason, why)))
        else:
            found.append(_missed(item, floor, family, profile, misses))
    return found


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


def _refused(item: Prediction) -> str:
    """The status of an answer without a time."""
    return str(Answered.NO_MODEL) if item.status == Answered.OK else item.status


def _and(*reasons: str) -> str:
    return "; ".join(filter(None, reasons))


def _stand_in(asked: Asked) -> Family:
    """The family whose work is computed where no model says which one is meant."""
    op = OPS.get(asked.op)
    known = {family.id: family for family in FAMILIES if family.op is op}
    if asked.family is not None:
        wanted = asked.family if "/" in asked.family else f"{op.name}/{asked.family}"
        if wanted not in known:
            raise NotFound.named(f"family of {op.name}", asked.family, known)
        return known[wanted]
    usual = [known[name] for name in (f"{op.name}/{item}" for item in USUAL) if name in known]
    return (usual or list(known.values()))[0]


def _checked(family: Family, problem: Point) -> dict[str, Any]:
    """The given parameters of a problem, each of which must be one of the family's and have a value that it may have."""
    found = {}
    for name, value in problem.items():
        rule = family.problem.parameters.get(name)
        if rule is None:
            raise NotFound.named(f"parameter of {family.op.name}", name, family.problem.parameters)
        if value is not None and rule.index(value) is None:
            raise InvalidValue(f"{name} {rule.refusal(value)}")
        if value is not None:
            found[name] = value
    return found
