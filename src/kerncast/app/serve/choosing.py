"""`POST /v1/select`: which model chooses for a problem, and what it says."""

from __future__ import annotations

import time
from collections.abc import Iterator
from typing import Any

from kerncast.answering.selector import Selector
from kerncast.app.serve.background import FIRST_PIECE, PIECE_SECONDS, piece_after
from kerncast.app.serve.schema import Problem, SelectRequest, whole
from kerncast.app.serve.settings import Settings
from kerncast.app.serve.sources import InterimSelector, Sources, check_device
from kerncast.core.op import Problem as Asked
from kerncast.errors import InvalidValue, NotFound
from kerncast.models.limits.trained import completed
from kerncast.models.model import Model
from kerncast.models.store.find import only_group
from kerncast.models.store.groups import is_meant
from kerncast.models.store.store import Entry

# The tiers that are built before they are asked; the others are ready as soon as the model is.
QUICK = ("tree", "portfolio")


def choose(sources: Sources, asked: SelectRequest, settings: Settings) -> Iterator[Any]:
    """The answers as JSON values: an object for a problem, a list for a list, lists of objects with `top`.

    They come after some steps that give None: a long list is answered piece by piece.
    """
    check_device(asked.device)
    listed, began = isinstance(asked.problem, list), time.perf_counter()
    problems: list[Problem] = asked.problem if isinstance(asked.problem, list) else [asked.problem]
    answers: list[Any] = [None] * len(problems)
    checked: list[Asked] = []
    parts: dict[int, tuple[Selector, list[int]]] = {}
    for place, problem in enumerate(problems):
        try:
            entry = _entry(sources, asked, problem, settings)
            # Before anything is compiled, which may take a minute.
            checked.append(_checked(sources.model_at(entry.path), problem))
            device = asked.device if len(entry.record.devices) > 1 else None
            selector = sources.selector_at(entry.path, device, quick=asked.tier in QUICK)
        except (InvalidValue, NotFound) as error:
            raise _at(error, place, len(problems)) from error
        parts.setdefault(id(selector), (selector, []))[1].append(place)
        if time.perf_counter() - began > PIECE_SECONDS:
            yield None
            began = time.perf_counter()
    for first, places in parts.values():
        selector, done, size = first, 0, FIRST_PIECE
        while done < len(places):
            piece, began = places[done : done + size], time.perf_counter()
            if isinstance(selector, InterimSelector) and selector.built is not None:
                selector = selector.built
            for place, answer in zip(piece, _answers(selector, asked, [checked[at] for at in piece]), strict=True):
                answers[place] = answer
            done, size = done + size, piece_after(size, time.perf_counter() - began)
            yield None
    yield answers if listed else answers[0]


def _checked(model: Model, problem: Problem) -> Asked:
    """The problem as the model takes it; what it saw one value of only may be left out."""
    return model.problem(completed(model, _given(problem)))


def _answers(selector: Selector, asked: SelectRequest, checked: list[Asked]) -> list[Any]:
    if asked.top is None:
        return [answer.as_json() for answer in selector.select_many(checked, asked.tier)]
    tier = "portfolio" if asked.tier == "tree" else asked.tier
    return [[answer.as_json() for answer in ranking] for ranking in selector.rank_many(checked, asked.top, tier)]


def _entry(sources: Sources, asked: SelectRequest, problem: Problem, settings: Settings) -> Entry:
    """The model that is named, or that covers the problem."""
    if asked.model is not None:
        entry = sources.listed(asked.model).entry
    elif asked.op is None:
        raise InvalidValue("a request names its `model` (see /v1/models) or its `op`, and this one has neither: add one")
    else:
        entry = _found(sources, asked, problem, settings)
    if len(entry.record.devices) > 1 and asked.device is None:
        raise InvalidValue(f"the model is of {', '.join(entry.record.devices)}: name the `device` to choose for")
    return entry


def _found(sources: Sources, asked: SelectRequest, problem: Problem, settings: Settings) -> Entry:
    assert asked.op is not None
    meant = (asked.op, asked.family, asked.device)
    for item in (item for item in sources.models() if item.origin == "path"):
        record = item.entry.record
        if is_meant(meant, record.op, record.family, record.devices):
            return item.entry
    software = asked.software or settings.software
    group = only_group(asked.op, asked.family, asked.device, software, strict=settings.strict, store=sources.store_or_none)
    if group.entries[0].shipped:
        # They are in the order in which `query` asks them, and none was named by the user.
        return group.nearest(_given(problem))
    try:
        return group.only(_given(problem))
    except InvalidValue as error:
        raise InvalidValue(str(error).replace("`name`", "`model`")) from error


def _given(problem: Problem) -> dict[str, Any]:
    """The parameters that have a value."""
    return {name: whole(value) for name, value in problem.items() if value is not None}


def _at(error: Exception, place: int, count: int) -> Exception:
    return type(error)(f"problem {place + 1} of {count}: {error}" if count > 1 else str(error))
