"""What a server answers from: a store with the models that ship, or models and datasets that were named by their paths.

    sources = Sources.open("models", paths=["my_model", "my_dataset"])
    sources.models(), sources.selector("shipped/gemm-vllm"), sources.dataset("my_dataset")

Everything is loaded when it is first asked for, and kept. `refresh` looks whether files have changed since; what has not
changed stays loaded, and a caller that holds an old model may go on using it.
"""

from __future__ import annotations

import os
import threading
import time
from collections.abc import Iterable, Iterator, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any, Literal

from kerncast.answering.query import selector_of
from kerncast.answering.routes import Address, Find, Route, among, asking_for, in_store
from kerncast.answering.selector import Selector
from kerncast.app.api.read import open as open_path
from kerncast.app.serve.background import FIRST_PIECE, PIECE_SECONDS, BackgroundBuilder, piece_after
from kerncast.app.serve.schema import Problem, SelectRequest, whole
from kerncast.app.serve.server import Settings
from kerncast.core.device import Device
from kerncast.core.op import Problem as Checked
from kerncast.core.progress import QUIET, Progress
from kerncast.data.dataset import MANIFEST as DATASET
from kerncast.data.dataset import Dataset
from kerncast.errors import BadFile, InvalidValue, NotFound, quoted
from kerncast.measuring.backends.cpu.build import find_compiler
from kerncast.models import trust
from kerncast.models.answer import CHOOSING, Answer, Tier
from kerncast.models.limits.envelope import completed
from kerncast.models.manifest import MANIFEST as MODEL
from kerncast.models.model import Model
from kerncast.models.store.entry import ENTRY, Entry, shipped_entries
from kerncast.models.store.entry import folder as shipped_folder
from kerncast.models.store.find import only_group
from kerncast.models.store.groups import is_meant
from kerncast.models.store.store import Store, entry_of
from kerncast.native.tiers.build import plain_tiers

Origin = Literal["path", "store", "shipped"]
SelectorKey = tuple[Path, str | None, bool]
"""The path, for a model of several devices the one that is chosen for, and whether there are quick tiers."""
# What answers say until the quick tiers of their model are built, and if that fails.
BUILDING = "tree and portfolio are being built: until then Python scores every config"
FAILED = "tree and portfolio could not be built, which the server's log explains: Python scores every config"
# Compiled code scores so many configs in about a millisecond.
MOST_QUICK = 500
Stamp = tuple[str, int, int, int]
"""A file as it was: its path, time of change, size and inode."""


@dataclass(frozen=True)
class ServedModel:
    """A model that may be asked for."""

    id: str
    """What it is called here: its id in the store, `shipped/NAME`, or the name of its folder."""
    entry: Entry
    origin: Origin

    def as_json(self) -> dict[str, Any]:
        """For `GET /v1/models`: what `kerncast models --json` says but its path, and where it is from."""
        found = {**self.entry.as_json(), "id": self.id, "origin": self.origin}
        return {name: value for name, value in found.items() if name not in ("path", "warning", "shipped")}


@dataclass(frozen=True)
class Contents:
    """What there was when the files were last looked at, and what of it is loaded."""

    models: dict[str, ServedModel]
    datasets: dict[str, Path]
    problems: tuple[str, ...]
    """Sentences about models that cannot be read."""
    stamps: frozenset[Stamp]
    trusted: Stamp | None
    loaded: dict[Path, Model] = field(default_factory=dict)
    selectors: dict[SelectorKey, Selector] = field(default_factory=dict)
    """What answers now."""
    turns: dict[Path, threading.RLock] = field(default_factory=dict)
    """While one model is loaded, which may take long, others may be, too."""


class InterimSelector(Selector):
    """Answers in Python until the selector that was asked for is built: of whatever tier, the model scores every config."""

    def __init__(self, model: Model, note: str) -> None:
        super().__init__(model, tiers=plain_tiers(model), tier=Tier.FULL, compile=False)
        self.note = note
        self.built: Selector | None = None
        """Answers the rest of a long list."""

    def give_up(self, note: str) -> None:
        """Building failed: answers say so from now on."""
        self.note = note
        self._forget()

    def _there(self, given: Tier | str) -> Tier:
        self._included(given)
        return Tier.FULL

    @property
    def answering(self) -> tuple[Tier, ...]:
        return CHOOSING


class Sources:
    """Models and datasets, by name. Threads may share it; a slow load holds up only those who ask for a model, too."""

    def __init__(self, store: Store | None, paths: Sequence[Path] = (), *, compile: bool = True, progress: Progress = QUIET):
        """Without a `store`, nothing but the given paths and the models that ship is there."""
        self.store, self.paths, self.compile, self.progress = store, tuple(paths), compile, progress
        self.builder = BackgroundBuilder()
        self.version = 0
        """Counts how often the contents have changed."""
        self._refreshing = threading.Lock()
        self._contents = self._read()

    @classmethod
    def open(
        cls,
        store: Store | str | Path | None = None,
        *,
        paths: Iterable[str | Path] = (),
        compile: bool = True,
        progress: Progress = QUIET,
    ) -> Sources:
        """Open a store (your own, unless one is named), or the models, datasets and stores at some paths instead of it."""
        given = [Path(path) for path in paths]
        if not given:
            return cls(store if isinstance(store, Store) else Store.open(store), compile=compile, progress=progress)
        kinds = {path: _kind(path) for path in given}
        stores = [path for path, kind in kinds.items() if kind is Store]
        if len(stores) > 1 or (stores and store is not None):
            raise InvalidValue(f"one store is served at a time, got {', '.join(map(str, stores))}: leave one out")
        named = stores[0] if stores else store
        opened = named if isinstance(named, Store) or named is None else Store.open(named)
        return cls(opened, [path for path in given if path not in stores], compile=compile, progress=progress)

    # -- what there is ----------------------------------------------------------------------------------

    def models(self) -> list[ServedModel]:
        """All models: those that were named by path, those of the store, those that ship."""
        return list(self._contents.models.values())

    def datasets(self) -> list[str]:
        """The names of the datasets that were given."""
        return list(self._contents.datasets)

    @property
    def problems(self) -> tuple[str, ...]:
        """Sentences about what is there and cannot be read."""
        return self._contents.problems

    def listed(self, name: str) -> ServedModel:
        """A model by its id."""
        contents = self._contents
        if name not in contents.models:
            raise NotFound.named("model", name, contents.models)
        return contents.models[name]

    def model(self, name: str) -> Model:
        """A model by its id, loaded and verified."""
        return self.model_at(self.listed(name).entry.path)

    def model_at(self, path: Path) -> Model:
        """The model at a path that is one of the listed ones."""
        contents = self._contents
        if path not in contents.loaded:
            with contents.turns.setdefault(path, threading.RLock()):
                if path not in contents.loaded:
                    contents.loaded[path] = Model.load(path)
        return contents.loaded[path]

    def selector(self, name: str, device: str | None = None) -> Selector:
        """What answers now for a model by its id. A model of several devices chooses for one of them: name it."""
        return self.selector_at(self.listed(name).entry.path, device)

    def selector_at(self, path: Path, device: str | None = None, *, quick: bool = True) -> Selector:
        """What answers now for the model at a path that is one of the listed ones: until it is built, an `InterimSelector`.

        Without its `quick` tiers, which may take a minute to build, it has `full` alone: the model scores every config.
        """
        contents, model = self._contents, self.model_at(path)
        bound = model if device is None else model.on(device)
        key = (path, None if device is None else bound.device.name, quick)
        if key not in contents.selectors:
            with contents.turns.setdefault(path, threading.RLock()):
                if key not in contents.selectors:
                    contents.selectors[key] = self._first_selector(contents, key, bound)
        return contents.selectors[key]

    def ask(self, model: Model, problems: Sequence[Checked], device: Device | str) -> list[Answer]:
        """As `Model.predict` for a model that ships, and faster once it is compiled for the device: who asks first begins that.

        Compiled code answers as Python does on a device that was measured, for a model that is trusted.
        """
        named = device if device in {record.name for record in model.manifest.devices} else None
        if named is None or not (self.compile and model.slim and model.recorded) or trust.refusal(model) is not None:
            return model.predict(problems, device=device)
        self._contents.loaded.setdefault(model.path, model)
        selector = self.selector_at(model.path, str(named))
        if not selector.is_compiled:
            return model.predict(problems, device=device)
        answers = selector.select_many(problems, Tier.FULL)
        refused = [place for place, answer in enumerate(answers) if not answer.ok]
        if refused:  # by Python, in its own words
            for place, answer in zip(refused, model.predict([problems[at] for at in refused], device=device), strict=True):
                answers[place] = answer
        return answers

    def is_quick(self, path: Path, device: str | None) -> bool:
        """Whether the model at a path is compiled and chooses among few configs: it answers in microseconds."""
        selector = self._contents.selectors.get((path, device, True))
        return selector is not None and selector.is_compiled and len(selector.tiers.portfolio) <= MOST_QUICK

    def _first_selector(self, contents: Contents, key: SelectorKey, model: Model) -> Selector:
        path, device, quick = key
        builds = quick and not model.slim and bool(model.family.config.parameters)
        if not builds and (not self.compile or find_compiler() is None or trust.refusal(model) is not None):
            return self._selector(model, quick, QUIET)  # at once: there is nothing to wait for
        interim = InterimSelector(model, BUILDING if builds else "")

        def make(progress: Progress) -> None:
            try:
                interim.built = self._selector(model, quick, progress)
            except Exception:
                interim.give_up(FAILED if builds else "")
                raise
            with self._refreshing:  # the files may have changed meanwhile, and this model may not
                for each in (contents, self._contents):
                    if each.selectors.get(key) is interim:
                        each.selectors[key] = interim.built

        name = next((item.id for item in contents.models.values() if item.entry.path == path), path.name)
        self.builder.put(path, name if device is None else f"{name} on {device}", make)
        return interim

    def _selector(self, model: Model, quick: bool, progress: Progress) -> Selector:
        if quick:
            return selector_of(model, compile=self.compile, progress=progress)
        return Selector(model, tiers=plain_tiers(model), tier="full", compile=self.compile, progress=progress)

    def dataset(self, name: str) -> Dataset:
        """A dataset by its name; rows that a running collection has added since are in it."""
        contents = self._contents
        if name not in contents.datasets:
            raise NotFound.named("dataset", name, contents.datasets)
        return Dataset.open(contents.datasets[name])

    @property
    def store_or_none(self) -> Store:
        """The store; if none is served, one without models, in the place of the user's own."""
        return self.store or Store(Path(os.devnull))

    def finding(self, software: str | None = None, strict: bool = False) -> Find:
        """Which model answers a request: one that was named by path, else what the store and the package have."""
        given = [self.model(item.id) for item in self.models() if item.origin == "path"]
        finds = [among(given, strict)] if given else []
        if self.store is not None or not given:
            finds.append(in_store(self.store_or_none, strict, self.ask))
        if software is not None:
            finds = [asking_for(software, find) for find in finds]

        def find(asked: Address) -> Route:
            check_device(asked.device)
            try:
                return finds[0](asked)
            except NotFound:
                if len(finds) == 1:
                    raise
                return finds[1](asked)

        return find

    # -- changes ----------------------------------------------------------------------------------------

    def refresh(self) -> bool:
        """Look at the files again; True if something has changed, and what is asked for from now on is new."""
        with self._refreshing:
            before = self._contents
            if self._stamps() == before.stamps and _stamp(trust.list_path()) == before.trusted:
                return False
            if _stamp(trust.list_path()) != before.trusted:
                trust.reread()
            after = self._read()
            if after.trusted == before.trusted:
                unchanged = {item.entry.path for item in after.models.values() if item in before.models.values()}
                same = {stamp for stamp in after.stamps if stamp in before.stamps}
                kept = {path for path in unchanged if any(Path(stamp[0]).is_relative_to(path) for stamp in same)}
                after.loaded.update({path: model for path, model in list(before.loaded.items()) if path in kept})
                after.selectors.update({key: made for key, made in list(before.selectors.items()) if key[0] in kept})
            self._contents, self.version = after, self.version + 1
            return True

    def _read(self) -> Contents:
        stamps = self._stamps()
        models: dict[str, ServedModel] = {}
        datasets: dict[str, Path] = {}
        problems: list[str] = []
        for path in self.paths:
            kind = _kind(path)
            if kind is Dataset:
                datasets[_unused(path, datasets)] = path
            elif kind is Model:
                name = _unused(path, models)
                models[name] = ServedModel(name, entry_of(Model.load(path)), "path")
            else:
                raise InvalidValue(f"{path} is neither a model nor a dataset nor a store: name one of these")
        if self.store is not None:
            entries, damaged = self.store.survey()
            models.update({entry.id: ServedModel(entry.id, entry, "store") for entry in entries})
            problems += [str(error) for error in damaged]
        try:
            ready = shipped_entries()
        except BadFile as error:
            ready, problems = [], [*problems, str(error)]
        models.update({entry.id: ServedModel(entry.id, entry, "shipped") for entry in ready})
        return Contents(models, datasets, tuple(problems), stamps, _stamp(trust.list_path()))

    def _stamps(self) -> frozenset[Stamp]:
        """Every file that says what there is; what a model holds is verified by checksums when it is loaded."""
        files = [path / name for path in self.paths for name in (MODEL, DATASET)]
        if self.store is not None:
            entries = sorted(self.store.path.glob(f"*/*/*/*/*/{ENTRY}"))
            files += [*entries, *(file for entry in entries for file in entry.parent.glob(f"*/{MODEL}"))]
        if (place := shipped_folder()) is not None:
            files += sorted(place.glob(f"*/{MODEL}"))
        return frozenset(stamp for file in files if (stamp := _stamp(file)) is not None)


def _stamp(file: Path) -> Stamp | None:
    try:
        found = file.stat()
    except OSError:
        return None
    return str(file), found.st_mtime_ns, found.st_size, found.st_ino


def _kind(path: Path) -> type:
    """What is at a path; an error says that nothing is, or nothing that can be served."""
    return type(open_path(path))


def _unused(path: Path, taken: Iterable[str]) -> str:
    """What a path is called: its last part, the whole path if another one has that name."""
    return str(path) if path.resolve().name in taken else path.resolve().name


def check_device(device: str | None) -> None:
    """A request from elsewhere names a device: it must not make this machine read a file."""
    if device is not None and ("/" in device or device.endswith(".toml")):
        raise InvalidValue(f"a request names its device, got '{quoted(device, 80)}': `kerncast list device` lists the names")


def choose(sources: Sources, asked: SelectRequest, settings: Settings) -> Iterator[Any]:
    """The answers as JSON values: an object for a problem, a list for a list, lists of objects with `top`.

    They come after some steps that give None: a long list is answered piece by piece.
    """
    check_device(asked.device)
    listed, began = isinstance(asked.problem, list), time.perf_counter()
    problems: list[Problem] = asked.problem if isinstance(asked.problem, list) else [asked.problem]
    answers: list[Any] = [None] * len(problems)
    checked: list[Checked] = []
    parts: dict[int, tuple[Selector, list[int]]] = {}
    for place, problem in enumerate(problems):
        try:
            given = {name: whole(value) for name, value in problem.items() if value is not None}
            entry = _entry(sources, asked, given, settings)
            model = sources.model_at(entry.path)
            # Before anything is compiled, which may take a minute. What the model saw one value of only may be left out.
            checked.append(model.problem(completed(model, given)))
            device = asked.device if len(entry.record.devices) > 1 else None
            selector = sources.selector_at(entry.path, device, quick=asked.tier not in (None, Tier.FULL))
        except (InvalidValue, NotFound) as error:
            raise type(error)(
                f"problem {place + 1} of {len(problems)}: {error}" if len(problems) > 1 else str(error)
            ) from error
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
            part = [checked[at] for at in piece]
            if asked.top is None:
                values: list[Any] = [answer.as_json() for answer in selector.select_many(part, asked.tier)]
            else:
                rankings = selector.rank_many(part, asked.top, asked.tier)
                values = [[answer.as_json() for answer in ranking] for ranking in rankings]
            for place, value in zip(piece, values, strict=True):
                answers[place] = value
            done, size = done + size, piece_after(size, time.perf_counter() - began)
            yield None
    yield answers if listed else answers[0]


def _entry(sources: Sources, asked: SelectRequest, problem: dict[str, Any], settings: Settings) -> Entry:
    """The model that is named, or that covers the problem."""
    if asked.model is not None:
        entry = sources.listed(asked.model).entry
    elif asked.op is None:
        raise InvalidValue("a request names its `model` (see /v1/models) or its `op`, and this one has neither: add one")
    else:
        entry = _covering(sources, asked.op, asked, problem, settings)
    if len(entry.record.devices) > 1 and asked.device is None:
        raise InvalidValue(f"the model is of {', '.join(entry.record.devices)}: name the `device` to choose for")
    return entry


def _covering(sources: Sources, op: str, asked: SelectRequest, problem: dict[str, Any], settings: Settings) -> Entry:
    for item in (item for item in sources.models() if item.origin == "path"):
        record = item.entry.record
        if is_meant((op, asked.family, asked.device), record.op, record.family, record.devices):
            return item.entry
    software = asked.software or settings.software
    group = only_group(op, asked.family, asked.device, software, strict=settings.strict, store=sources.store_or_none)
    if group.entries[0].shipped:
        # They are in the order in which `query` asks them, and none was named by the user.
        return group.nearest(problem)
    try:
        return group.only(problem)
    except InvalidValue as error:
        raise InvalidValue(str(error).replace("`name`", "`model`")) from error
