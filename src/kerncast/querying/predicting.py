"""Problems of an op on a device, answered by the user's models, by those that ship, or by the roofline."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from functools import lru_cache
from pathlib import Path
from typing import Any

import numpy as np

from kerncast.device import Device
from kerncast.errors import InvalidValue, NotFound
from kerncast.models.answer import Answer, without_choice
from kerncast.models.card import card_line
from kerncast.models.manifest import MANIFEST
from kerncast.models.model import Model
from kerncast.models.physics import lacking, rooflines
from kerncast.models.roofline_misses import FILE, Misses, read_misses
from kerncast.models.statuses import Answered
from kerncast.op import Family
from kerncast.querying.prediction import Prediction
from kerncast.registry import FAMILIES, OPS
from kerncast.software import short_name
from kerncast.store.entry import Entry
from kerncast.store.shipped import folder
from kerncast.store.sources import Source, entries_of, no_model, profile_of, sources_of
from kerncast.store.store import Store, canonical

Point = Mapping[str, Any]
# Families of an op that may stand for it where no model says which is meant.
USUAL = ("library", "single")


@dataclass(frozen=True)
class Asked:
    """One question about some problems."""

    op: str
    device: Device | str
    software: str | None = None
    family: str | None = None
    config: Point | None = None
    strict: bool = False

    @property
    def name(self) -> str:
        """The name of the device."""
        return self.device.name if isinstance(self.device, Device) else canonical(self.device)


@dataclass(frozen=True)
class _Chosen:
    """Who answers one problem."""

    source: Source
    entry: Entry
    problem: Point
    filled: Point


def predictions(asked: Asked, problems: Sequence[Point], store: Store | None = None) -> list[Prediction]:
    """An answer to each problem, in order: of the first model that covers it, else of the roofline, and it says which."""
    opened = Store.open() if store is None else store
    profile = profile_of(asked.device)
    sources = sources_of(
        asked.op, asked.device, family=asked.family, software=asked.software, store=opened, strict=asked.strict
    )
    sources = [source for source in sources if source.lookup.family is not None and (source.seen or profile is not None)]
    if not sources:
        op = OPS.alone(asked.op)
        family, why = _stand_in(asked), no_model(op.name, asked.name, asked.software, opened)
        whole = [{**op.aliases.get(asked.op, {}), **_checked(family, problem, problems)} for problem in problems]
        blank = [Prediction(op.name, values, asked.name, str(Answered.OK), reason=why) for values in whole]
        return _by_roofline(family, profile, asked.name, blank)
    chosen = [_chosen(sources, problem, asked.name, place, len(problems)) for place, problem in enumerate(problems)]
    found: dict[int, Prediction] = {}
    for entry in dict.fromkeys(item.entry.id for item in chosen):
        places = [place for place, item in enumerate(chosen) if item.entry.id == entry]
        found |= zip(places, _answered(asked, profile, [chosen[place] for place in places]), strict=True)
    family = next(source.lookup.family for source in sources if source.lookup.family is not None)
    others = _other_software(sources, chosen)
    whole_list = _by_roofline(family, profile, asked.name, [found[place] for place in range(len(problems))])
    return [replace(item, note="; ".join(filter(None, [item.note, others]))) for item in whole_list]


def family_of(asked: Asked, store: Store | None = None) -> Family:
    """The family whose problems are asked about: that of the first model that may answer, else the op's usual one."""
    sources = sources_of(asked.op, asked.device, family=asked.family, software=asked.software, store=store)
    found = next((source.lookup.family for source in sources if source.lookup.family is not None), None)
    return _stand_in(asked) if found is None else found


def devices_of(op: str, family: str | None = None, software: str | None = None, store: Store | None = None) -> list[str]:
    """The devices that models of an op were trained on: the user's, then those of models that ship."""
    opened = Store.open() if store is None else store
    known = entries_of(op, family, software, opened)
    return list(dict.fromkeys(name for entry in known for name in entry.record.devices))


def _chosen(sources: Sequence[Source], problem: Point, device: str, place: int, count: int) -> _Chosen:
    """The first model that covers a problem, else the one that comes closest in the first place."""
    first: _Chosen | None = None
    for source in sources:
        family = source.lookup.family
        assert family is not None
        products = {name: value for name, value in problem.items() if name in family.op.products}
        try:
            given = source.lookup.checked({name: value for name, value in problem.items() if name not in products})
        except (InvalidValue, NotFound) as error:
            if first is not None:
                continue  # a later place may know other parameters
            raise type(error)(f"problem {place + 1} of {count}: {error}" if count > 1 else str(error)) from error
        entry = source.covering(given, device)
        if entry is None and first is not None:
            continue
        filled = _filled(entry or source.lookup.nearest(problem), family, given, products, device)
        made = _Chosen(source, entry or source.lookup.nearest(problem), {**given, **products, **filled}, filled)
        if entry is not None:
            return made
        first = made
    assert first is not None
    return first


def _filled(entry: Entry, family: Family, given: Point, products: Point, device: str) -> dict[str, Any]:
    """The parameters that are not given and of which the model saw one value only."""
    found: dict[str, Any] = {}
    hull = entry.coverage(family).on(device).hull
    factors = {factor for name in products for factor in family.op.products[name]}
    for name, parameter in family.problem.parameters.items():
        seen = hull.get(name)
        if given.get(name) is not None or seen is None or parameter.optional or name in factors:
            continue
        if len(seen.labels) == 1:
            found[name] = seen.labels[0]
        elif seen.low is not None and seen.low == seen.high:
            found[name] = seen.low
    return found


def _answered(asked: Asked, profile: Device | None, chosen: Sequence[_Chosen]) -> list[Prediction]:
    """What one model says to its problems."""
    source, entry = chosen[0].source, chosen[0].entry
    op = source.lookup.family.op.name if source.lookup.family is not None else asked.op
    blank = [Prediction(op, item.problem, asked.name, str(Answered.OK), filled=item.filled) for item in chosen]
    model = loaded(entry)
    given = isinstance(asked.device, Device) or str(asked.device).endswith(".toml")
    device = profile if profile is not None and (given or not source.seen) else asked.name
    try:
        answers = model.predict([item.problem for item in chosen], asked.config, device=device)
    except InvalidValue as error:
        if source.seen:
            raise
        # A profile that lacks a number which the model reads.
        return [replace(item, status=str(Answered.OUT_OF_RANGE), reason=str(error)) for item in blank]
    software = ", ".join(dict.fromkeys(map(short_name, entry.software))) or None
    line = card_line(model, asked.name)
    return [
        _told(item, without_choice(model.family, answer), entry, software, line)
        for item, answer in zip(blank, answers, strict=True)
    ]


def _told(blank: Prediction, answer: Answer, entry: Entry, software: str | None, line: str) -> Prediction:
    """An answer of a model, as a prediction; one without a time is left for the roofline."""
    problem = {name: value for name, value in answer.problem.items() if value is not None}
    said = replace(blank, problem=problem, status=str(answer.status), reason=answer.reason, note=entry.warning or answer.note)
    if answer.time_ns is None:
        return replace(said, reason=f"{entry.id} does not answer: {answer.reason}")
    return replace(
        said, time_ns=answer.time_ns, lower_ns=answer.lower_ns, upper_ns=answer.upper_ns, basis="model", model=entry.id,
        software=software, config=dict(answer.config.items()) if answer.config else None, card=line,
        tflops=answer.tflops, bandwidth_gb_s=answer.bandwidth_gb_s,
    )  # fmt: skip


@lru_cache(64)
def _loaded(path: Path, _: int) -> Model:
    return Model.load(path)


def loaded(entry: Entry) -> Model:
    """The model of an entry; kept, and read again if its manifest changes."""
    if not (entry.path / MANIFEST).is_file():
        return entry.load()  # says what is wrong with it, or is of another system
    return _loaded(entry.path, (entry.path / MANIFEST).stat().st_mtime_ns)


def _other_software(sources: Sequence[Source], chosen: Sequence[_Chosen]) -> str:
    """The software of models that were not asked, for a note."""
    used = {item.entry.id for item in chosen}
    place = next((source for source in sources if any(item.source is source for item in chosen)), sources[0])
    others = [entry for entry in place.lookup.entries if entry.id not in used and entry.software]
    texts = dict.fromkeys(short_name(text) for entry in others for text in entry.software)
    return f"there are also models of {', '.join(texts)}: name one with `software`" if texts else ""


# -- physics -------------------------------------------------------------------------------------------


@lru_cache(4)
def _misses(file: Path, _: int) -> Misses:
    return read_misses(file)


def known_misses() -> Misses | None:
    """How kernels miss their rooflines, as it ships; None: it is not there."""
    for place in (folder(), Path(__file__).resolve().parents[1] / "shipped"):
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
            found.append(_missed(item, floor, profile, misses))
    return found


def _missed(item: Prediction, floor: float, profile: Device, misses: Misses | None) -> Prediction:
    dtype = str(item.problem.get("dtype"))
    peak = f"{profile.peak_tflops[dtype]:g} TFLOPS of {dtype}, " if dtype in profile.peak_tflops else ""
    bandwidth = f"{profile.numbers['memory_bandwidth_gb_s']:g} GB/s" if "memory_bandwidth_gb_s" in profile.numbers else ""
    card = f"roofline of {profile.title} ({peak}{bandwidth})"
    if misses is None:
        why = "the time is the roofline itself, which no kernel beats"
        return replace(item, time_ns=floor, roofline_ns=floor, basis="roofline", card=card, reason=_and(item.reason, why))
    miss, own = misses.of(item.op)
    median, lower, upper = (float(part[0]) for part in miss.times(np.array([floor])))
    kernels = f"kernels of {item.op}" if own else "kernels of other ops"
    why = f"the time is {median / floor:.2f} times the roofline, as {kernels} of this size take on {len(miss.devices)} devices"
    return replace(
        item, time_ns=median, lower_ns=lower, upper_ns=upper, roofline_ns=floor, basis="roofline", card=card,
        reason=_and(item.reason, why),
    )  # fmt: skip


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


def _checked(family: Family, problem: Point, problems: Sequence[Point]) -> dict[str, Any]:
    """The given parameters of a problem, each of which must be one of the family's and have a value that it may have."""
    found = {}
    for name, value in problem.items():
        rule = family.problem.parameters.get(name)
        where = f"problem {list(problems).index(problem) + 1} of {len(problems)}: " if len(problems) > 1 else ""
        if rule is None:
            error = NotFound.named(f"parameter of {family.op.name}", name, family.problem.parameters)
            raise NotFound(f"{where}{error}")
        if value is not None and rule.index(value) is None:
            raise InvalidValue(f"{where}{name} {rule.refusal(value)}")
        if value is not None:
            found[name] = value
    return found
