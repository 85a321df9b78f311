"""The store: a directory of models, found by op, family, device and software.

    Store.open().find(op="gemm", family="gemm/cpu", device="local")

Layout: `<op>/<family>/<device>/<software digest>/<name>/` holds `entry.json` and the model that it names. A model
appears whole or not at all: it is copied next to the old one, `entry.json` is replaced, then the old one is removed.
"""

from __future__ import annotations

import contextlib
import dataclasses
import datetime
import hashlib
import os
import shutil
import sys
import tempfile
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Any

import msgspec

from kerncast import devices as profiles
from kerncast.collecting.request import Stop, never
from kerncast.errors import BadFile, InvalidValue, NotFound
from kerncast.files.atomic import cannot_write, remove_directory, sync_tree, write_bytes
from kerncast.files.lock import one_writer
from kerncast.files.user_data import data_folder
from kerncast.models import software as softwares
from kerncast.models import trust as trusting
from kerncast.models.model import Model
from kerncast.progress import QUIET, Progress
from kerncast.registry import OPS
from kerncast.store.entry import ENTRY, ENTRY_FILE, Entry, Record, place_of, read_entry
from kerncast.writing.terminal import printable

if TYPE_CHECKING:  # it imports collecting, which a store only needs for checks
    from kerncast.store.recheck import Checked

__all__ = ["DEFAULT", "ENTRY", "LOCK", "Changed", "Entry", "Record", "Store", "check_name", "default_path"]

VARIABLE = "KERNCAST_STORE"
LOCK = "store.lock"
DEFAULT = "default"
LONGEST_NAME = 100


def default_path(environment: Mapping[str, str] = os.environ, platform: str = sys.platform) -> Path:
    """`KERNCAST_STORE`, else `kerncast/models` in the user's data directory."""
    if environment.get(VARIABLE):
        return Path(environment[VARIABLE])
    return data_folder(environment, platform) / "models"


class Changed(InvalidValue):
    """Another process has added, replaced or removed the model since it was looked at."""


def check_name(name: str) -> None:
    """Refuse a model's name that cannot be one folder."""
    if not name.replace("-", "").replace("_", "").replace(".", "").isalnum() or name.startswith("."):
        raise InvalidValue(f"a model's name is letters, digits, '-', '_' and '.', got '{name}'")
    if len(name.encode()) > LONGEST_NAME:
        raise InvalidValue(f"a model's name has at most {LONGEST_NAME} bytes, got {len(name.encode())}: choose a shorter one")


class Store:
    """An opened store. One that does not exist yet is empty; `add` creates it."""

    def __init__(self, path: Path) -> None:
        self.path = path

    @classmethod
    def open(cls, path: str | Path | None = None) -> Store:
        """Open the store at `path`, else the user's own."""
        found = Path(path) if path is not None else default_path()
        if found.exists() and not found.is_dir():
            raise BadFile(f"the store {found} is a file, not a directory: name another with {VARIABLE}")
        return cls(found)

    def __repr__(self) -> str:
        entries, damaged = self.survey()
        unread = f", {len(damaged):,} damaged" if damaged else ""
        return printable(f"Store({self.path}; {len(entries):,} {'model' if len(entries) == 1 else 'models'}{unread})")

    # -- checking ----------------------------------------------------------------------------------------

    def check(
        self,
        model: Model | str | Path,
        *,
        backend: str | None = None,
        benchmark: str | None = None,
        set: Mapping[str, str] | None = None,
        devices: str | Sequence[str] = "0",
        sample: int = 96,
        seconds: str | float | None = None,
        cache: str | None = None,
        max_shift: float = 10.0,
        max_choice: float = 2.0,
        seed: int = 0,
        progress: Progress = QUIET,
        stop: Stop = never,
    ) -> Checked:
        """Measure a sample of the training data again: is the model fresh, drifted, or is it impossible to tell?

        `model` is a model, its directory, or an id in this store. The limits are in per cent.
        """
        from kerncast.collecting import plan
        from kerncast.store.drift import Tolerance
        from kerncast.store.recheck import How, recheck

        loaded = self._loaded(model)
        measuring = plan.Measuring(cache=cache)
        runs = plan.runner(loaded.family, backend, benchmark, set or {}, devices, measuring)
        how = How(
            backend=runs.name,
            devices=runs.devices,
            options=runs.options,
            policy=measuring.policy(runs.benchmark),
            seconds=None if seconds is None else plan.seconds(seconds),
            reset_command=runs.reset_words,
        )
        tolerance = Tolerance(max_shift / 100, max_choice / 100)
        return recheck(loaded, how, count=sample, seed=seed, tolerance=tolerance, progress=progress, stop=stop)

    # -- reading -----------------------------------------------------------------------------------------

    def entries(self, op: str | None = None) -> list[Entry]:
        """All models, or those of one op, by family and device, newest first; raises if an entry is damaged."""
        found, damaged = self.survey(op)
        if damaged:
            raise damaged[0]
        return found

    def survey(self, op: str | None = None) -> tuple[list[Entry], list[BadFile]]:
        """The readable `entries`, and the errors of those that cannot be read."""
        folders = [item for item in self.path.iterdir() if op in (None, item.name)] if self.path.is_dir() else []
        found, damaged = [], []
        # Family (without its op), device, software, name.
        for file in sorted(file for folder in folders for file in folder.glob(f"*/*/*/*/{ENTRY}")):
            try:
                found.append(read_entry(file))
            except BadFile as error:
                damaged.append(error)
        found.sort(key=lambda entry: entry.record.name)
        found.sort(key=lambda entry: entry.record.added, reverse=True)
        return sorted(found, key=lambda entry: (entry.family, entry.record.devices)), damaged

    def find(
        self,
        op: str,
        family: str | None = None,
        device: str | None = None,
        software: str | Sequence[str] | None = None,
        name: str | None = None,
        strict: bool = False,
    ) -> Entry:
        """The model to use: one of the same software, else the newest with a warning, never one of another device.

        `family` and `device` may be left out if the store has only one. Without `name`, an unnamed model comes first.
        `op` may be an alias (`exp`), or the store's name of an op that is not installed here.
        """
        with contextlib.suppress(NotFound):
            op = OPS.get(op).name
        there = self.entries(op)
        if not there:
            known = sorted({entry.op for entry in self.entries()})
            raise NotFound(
                f"the store {self.path} has no model of {op} ({'it has ' + ', '.join(known) if known else 'it is empty'}): "
                "add one with `kerncast models add MODEL`"
            )
        found = _of_family(there, op, family)
        found = _on_device(found, device, self.path)
        if name is not None:
            named = [entry for entry in found if entry.record.name == name]
            if not named:
                raise NotFound.named(f"model of {found[0].family}", name, {entry.record.name for entry in found})
            found = named
        found = sorted(found, key=lambda entry: entry.record.added, reverse=True)
        found = sorted(found, key=lambda entry: entry.record.name != DEFAULT)
        if software is None:
            return found[0]
        same = [entry for entry in found if softwares.is_same(entry.software, software)]
        if same:
            return same[0]
        asked = (software if isinstance(software, str) else "; ".join(software)) or "software without a name"
        nearest = found[0]
        said = "; ".join(nearest.software) or "software that its data do not name"
        if strict:
            raise NotFound(
                f"no model of {nearest.family} on {nearest.device} was trained on {asked}; the newest was trained on {said}: "
                "leave out `strict` to use it, or train one on that software"
            )
        if not nearest.software:
            return dataclasses.replace(nearest, warning=f"asked for {asked}, the model {softwares.trained(())}")
        return dataclasses.replace(nearest, warning=f"trained on {said}, not on {asked}")

    def get(self, name: str) -> Entry:
        """An entry by its id, or by any consecutive parts of it that are unique."""
        there, damaged = self.survey()
        words = name.strip("/").split("/")
        found = [entry for entry in there if _holds(entry.id.split("/"), words)]
        if len(found) == 1:
            return found[0]
        if found:
            raise InvalidValue(f"'{name}' names {len(found)} models: say which of {', '.join(entry.id for entry in found)}")
        if damaged:  # it may be one of these
            raise damaged[0]
        raise NotFound.named(f"model in {self.path}", name, [entry.id for entry in there], "kerncast models" if there else "")

    def at(self, model: Model, name: str = DEFAULT) -> Entry | None:
        """The entry that `add` would replace with this model; damaged entries elsewhere do not matter."""
        file = self._folder(_record(model, name)) / ENTRY
        return read_entry(file) if file.exists() else None

    def mark(self, model: Model, name: str = DEFAULT) -> str:
        """A hash of that entry's file, readable or not; empty if there is none. For `add`."""
        return _mark(self._folder(_record(model, name)))

    # -- writing -----------------------------------------------------------------------------------------

    def add(
        self,
        model: Model | str | Path,
        *,
        name: str = DEFAULT,
        replace: bool = False,
        software: Mapping[str, str] | None = None,
        origin: Mapping[str, str] | None = None,
        trust: bool = False,
        over: str | None = None,
    ) -> Entry:
        """Copy a model into the store. `software` is for a model whose data did not say what it was trained on.

        With `trust`, this user trusts the model, as `trust` does. With `over`, replace only an entry with this `mark`, and
        raise `Changed` if it is another one by now.
        """
        check_name(name)
        loaded = model if isinstance(model, Model) else Model.load(model)
        if trust:
            trusting.trust(loaded)
        record = _record(loaded, name, software, origin)
        target = self._folder(record)
        try:
            self.path.mkdir(parents=True, exist_ok=True)
            with one_writer(self.path, LOCK, "name another store"):
                if (target / ENTRY).exists() and not replace:
                    raise InvalidValue(
                        f"the store already has a model of {record.family} on {', '.join(record.devices)} for this software, "
                        f"called '{name}': add `replace`, or give this one another `name`"
                    )
                if over is not None and _mark(target) != over:
                    raise Changed(f"{target} was changed before it could be replaced: look at what is there now, and try again")
                return self._put(loaded.path, target, record)
        except OSError as error:
            raise cannot_write(f"the store {self.path}", error) from error

    def trust(self, model: Model | str | Path, *, revoke: bool = False) -> Model:
        """Trust a model that someone else made: from now on its code is compiled and run here. `revoke` takes that back.

        `model` is a model, its directory, or an id in this store.
        """
        loaded = self._loaded(model)
        if not revoke:
            trusting.trust(loaded)
        elif not trusting.revoke(loaded):
            raise NotFound(f"{loaded.path} is not on the list of trusted models, {trusting.list_path()}: nothing was changed")
        return loaded

    def _loaded(self, model: Model | str | Path) -> Model:
        """A model, the one in a directory, or the one with an id in this store."""
        if isinstance(model, Model):
            return model
        return Model.load(model) if Path(model).is_dir() else self.get(str(model)).load()

    def _folder(self, record: Record) -> Path:
        return self.path.joinpath(*place_of(record.family, record.devices, record.software, record.name))

    def _put(self, source: Path, target: Path, record: Record) -> Entry:
        target.mkdir(parents=True, exist_ok=True)
        draft = Path(tempfile.mkdtemp(prefix="model-", dir=target))
        try:
            shutil.copytree(source, draft, dirs_exist_ok=True, ignore=shutil.ignore_patterns(".*"))
            record = msgspec.structs.replace(record, model=draft.name, bytes=_size(draft))
            entry = Entry(draft, record)
            entry.load()  # verify the copy
            sync_tree(draft)
            write_bytes(target / ENTRY, ENTRY_FILE.text(record))
        except BaseException:
            shutil.rmtree(draft, ignore_errors=True)
            raise
        # Remove the old model, and copies that a crash left behind.
        for item in target.iterdir():
            if item.is_dir() and item != draft:
                shutil.rmtree(item)
        return entry

    def remove(self, name: str) -> Entry:
        """Remove a model from the store."""
        entry = self.get(name)
        with one_writer(self.path, LOCK, "name another store"):
            folder = entry.path.parent
            remove_directory(folder, self.path)
            for parent in folder.parents:
                if parent == self.path or any(parent.iterdir()):
                    break
                parent.rmdir()
        return entry


def _of_family(there: list[Entry], op: str, family: str | None) -> list[Entry]:
    known = sorted({entry.family for entry in there})
    if family is None:
        if len(known) > 1:
            raise InvalidValue(f"the store has models of several families of {op} ({', '.join(known)}): name one")
        return there
    found = [entry for entry in there if entry.family in (family, f"{op}/{family}")]
    if not found:
        raise NotFound.named("family in the store", family, known)
    return found


def _on_device(there: list[Entry], device: str | None, path: Path) -> list[Entry]:
    known = sorted({name for entry in there for name in entry.record.devices})
    if device is None:
        if len({entry.record.devices for entry in there}) > 1:
            raise InvalidValue(f"the store has models of {there[0].family} for several devices ({', '.join(known)}): name one")
        return there
    wanted = canonical(device)
    found = [entry for entry in there if wanted in {canonical(name) for name in entry.record.devices}]
    if not found:
        raise NotFound(
            f"the store {path} has no model of {there[0].family} for the device {wanted}, only for {', '.join(known)}, and "
            "a model of another device is never used: train one there"
        )
    return found


def canonical(device: str) -> str:
    """The profile name of a device; a device without a profile keeps its own name."""
    try:
        return profiles.get(device).name
    except (NotFound, InvalidValue):
        return device


def _mark(folder: Path) -> str:
    try:
        return hashlib.blake2b((folder / ENTRY).read_bytes(), digest_size=16).hexdigest()
    except FileNotFoundError:
        return ""


def _record(
    model: Model, name: str, stated: Mapping[str, str] | None = None, origin: Mapping[str, str] | None = None
) -> Record:
    manifest = model.manifest
    software = manifest.software
    if stated and software:
        raise InvalidValue(f"{model.path} already says what it was trained on ({'; '.join(software)}): leave out `software`")
    if stated:
        software = (msgspec.json.encode(dict(sorted(stated.items()))).decode(),)
    return Record(
        op=manifest.op, family=manifest.family, devices=tuple(item.name for item in manifest.devices), software=software,
        name=name, added=datetime.datetime.now(datetime.UTC).strftime("%Y-%m-%dT%H:%M:%S.%fZ"), model="",
        checksum=manifest.checksum, kind=manifest.kind, dtypes=manifest.dtypes, rows=manifest.data.rows,
        problems=manifest.data.problems, **_figures(model), bytes=0, origin=dict(origin or {}),
    )  # fmt: skip


def _figures(model: Model) -> dict[str, Any]:
    """The out-of-fold figures of `evaluation.json`; a model in another tool's layout has none."""
    names = {"r2": "r2", "mape": "mape", "efficiency": "efficiency_mean"}
    overall = model.evaluation["overall"] if model.manifest.files else {}
    return {key: found["value"] if (found := overall.get(name)) else None for key, name in names.items()}


def _size(folder: Path) -> int:
    return sum(file.stat().st_size for file in folder.rglob("*") if file.is_file())


def _holds(whole: Sequence[str], words: Sequence[str]) -> bool:
    """Whether the words are consecutive parts of an id."""
    return any(list(whole[at : at + len(words)]) == list(words) for at in range(len(whole) - len(words) + 1))
