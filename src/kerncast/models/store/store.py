"""The store: a directory of models, found by op, family, device, what they cover and software.

    Store.open().find(op="gemm", family="gemm/cpu", device="local")

Layout: `<op>/<family>/<device>/<software digest>/<name>/` holds `entry.json` and the model that it names. A model
appears whole or not at all: it is copied next to the old one, `entry.json` is replaced, then the old one is removed.
"""

from __future__ import annotations

import contextlib
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

from kerncast.core.io.arguments import data_folder
from kerncast.core.io.atomic import cannot_write, remove_directory, sync_tree, write_bytes
from kerncast.core.io.lock import one_writer
from kerncast.core.io.terminal import printable
from kerncast.core.progress import QUIET, Progress, Stop, never
from kerncast.errors import BadFile, InvalidValue, NotFound
from kerncast.library.registry import OPS
from kerncast.models import trust as trusting
from kerncast.models.limits.envelope import Coverage
from kerncast.models.model import Model, is_model
from kerncast.models.store.entry import (
    DEFAULT,
    ENTRY,
    ENTRY_FILE,
    SHIPPED,
    Entry,
    EntryRecord,
    check_name,
    own_name,
    place_of,
    read_entry,
    shipped_entries,
)
from kerncast.models.store.groups import ModelGroup, in_order, of_one_family, on_one_device

if TYPE_CHECKING:  # it imports collecting, which a store only needs for checks
    from kerncast.measuring.plan import Measuring
    from kerncast.models.store.recheck import ModelCheck


VARIABLE = "KERNCAST_STORE"
LOCK = "store.lock"
# Digits of a model's checksum that name it.
SHORTEST_CHECKSUM = 8


def default_path(environment: Mapping[str, str] = os.environ, platform: str = sys.platform) -> Path:
    """`KERNCAST_STORE`, else `kerncast/models` in the user's data directory."""
    if environment.get(VARIABLE):
        return Path(environment[VARIABLE])
    return data_folder(environment, platform) / "models"


class Changed(InvalidValue):
    """Another process has added, replaced or removed the model since it was looked at."""


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
        measuring: Measuring | None = None,
        sample: int = 96,
        seconds: str | float | None = None,
        max_shift: float = 10.0,
        max_choice: float = 2.0,
        seed: int = 0,
        progress: Progress = QUIET,
        stop: Stop = never,
    ) -> ModelCheck:
        """Measure a sample of the training data again: is the model fresh, drifted, or is it impossible to tell?

        `model` is a model, its directory, or an id in this store. The limits are in per cent.
        """
        from kerncast.measuring import plan
        from kerncast.models.store.recheck import Tolerance, recheck

        loaded, measuring = self._loaded(model), measuring or plan.Measuring()
        return recheck(
            loaded, plan.runner(loaded.family, measuring), count=sample, seed=seed, seconds=seconds,
            tolerance=Tolerance(max_shift / 100, max_choice / 100), progress=progress, stop=stop,
        )  # fmt: skip

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

    def lookup(
        self,
        op: str,
        family: str | None = None,
        device: str | None = None,
        software: str | Sequence[str] | None = None,
        name: str | None = None,
        strict: bool = False,
    ) -> ModelGroup:
        """The models that may answer for an op: of one family, on one device, in the order in which they are taken.

        `family` and `device` may be left out if the store has only one. `op` may be an alias (`exp`), or the store's name of
        an op that is not installed here.
        """
        asked, preset = op, {}
        with contextlib.suppress(NotFound):
            op, preset = OPS.get(asked).name, dict(OPS.get(asked).aliases.get(asked, {}))
        there = self.entries(op)
        if not there:
            known = sorted({entry.op for entry in self.entries()})
            raise NotFound(
                f"the store {self.path} has no model of {op} ({'it has ' + ', '.join(known) if known else 'it is empty'}): "
                "add one with `kerncast models add MODEL`"
            )
        entries = on_one_device(of_one_family(there, op, family), device, self.path)
        return ModelGroup(in_order(entries, software, name, strict), asked, preset)

    def find(
        self,
        op: str,
        family: str | None = None,
        device: str | None = None,
        software: str | Sequence[str] | None = None,
        name: str | None = None,
        strict: bool = False,
        problem: Mapping[str, Any] | None = None,
    ) -> Entry:
        """The model to use: one that covers the problem, of the same software, else with a warning; never of another device.

        `problem` has some or all parameters of a problem. If several models remain, those without a name come first, then the
        newest; it is an error if the choice is among named models, or among models of different parts of the op.
        """
        return self.lookup(op, family, device, software, name, strict).only(problem or {})

    def get(self, name: str) -> Entry:
        """An entry by its id, by any part of it that is unique, or by the name of the model in a reply.

        Whole parts (`gemm/cpu`) come before other pieces of text (`emm/cp`). A model that ships with the package is
        `shipped/NAME`.
        """
        there, damaged = self.survey()
        if name.startswith(f"{SHIPPED}/"):
            there = shipped_entries()
            known = [entry for entry in there if entry.id == name]
            if not known:
                raise NotFound.named("shipped model", name, [entry.id for entry in there], "kerncast models" if there else "")
            return known[0]
        words = name.strip("/").split("/")
        found = [entry for entry in there if _holds(entry.id.split("/"), words)]
        found = found or [entry for entry in there if name.strip("/") and name.strip("/") in entry.id]
        # By the name of the model in a reply: `gemm/cpu@local#3f2a91c0`, or the end of it.
        place, _, checksum = name.rpartition("#")
        if len(checksum) >= SHORTEST_CHECKSUM:
            found = found or [
                entry
                for entry in there
                if entry.record.checksum.startswith(checksum) and place in ("", f"{entry.family}@{entry.device}")
            ]
        if len(found) == 1:
            return found[0]
        if found:
            raise InvalidValue(f"'{name}' names {len(found)} models: say which of {', '.join(entry.id for entry in found)}")
        if damaged:  # it may be one of these
            raise damaged[0]
        raise NotFound.named(f"model in {self.path}", name, [entry.id for entry in there], "kerncast models" if there else "")

    def meant(self, name: str | Path) -> Entry | None:
        """The entry that a name stands for, as `get` finds it; None: it is a path. A folder that holds a model is a path.

        Of another folder's name whole parts must be in the id (`gemm`, `gemm/cpu`), so that a mistake does not find a model.
        """
        path = Path(name)
        if is_model(path) or path.is_file():
            return None
        if not path.exists():
            return self.get(str(name))
        try:
            found = self.get(str(name))
        except (NotFound, BadFile):
            return None
        return found if _holds(found.id.split("/"), str(name).strip("/").split("/")) else None

    def at(self, model: Model, name: str | None = None) -> Entry | None:
        """The entry that `add` would replace with this model; damaged entries elsewhere do not matter."""
        file = self._folder(_record(model, name)) / ENTRY
        return read_entry(file) if file.exists() else None

    def mark(self, model: Model, name: str | None = None) -> str:
        """A hash of that entry's file, readable or not; empty if there is none. For `add`."""
        return _mark(self._folder(_record(model, name)))

    def earlier(self, model: Model, name: str | None = None) -> Entry | None:
        """The entry that `add` would replace with this model, else the one that answers for some of its problems now."""
        there = self.at(model, name)
        if there is not None:
            return there
        record = _record(model, name)
        try:
            found = self.lookup(record.op, record.family, model.device.name, record.software, name or DEFAULT)
        except NotFound:
            return None
        own = Coverage.of(model.manifest, model.family.problem.parameters)
        return next((entry for entry, coverage in found.coverages if name is not None or coverage.overlaps(own)), None)

    # -- writing -----------------------------------------------------------------------------------------

    def add(
        self,
        model: Model | str | Path,
        *,
        name: str | None = None,
        replace: bool = False,
        software: Mapping[str, str] | None = None,
        origin: Mapping[str, str] | None = None,
        trust: bool = False,
        over: str | None = None,
    ) -> Entry:
        """Copy a model into the store. `software` is for a model whose data did not say what it was trained on.

        Without a `name` it is called by the part of the op that it covers (`in_strategy=width,out_strategy=height`), so
        models of different parts do not replace each other.
        With `trust`, this user trusts the model, as `trust` does. With `over`, replace only an entry with this `mark`, and
        raise `Changed` if it is another one by now.
        """
        if name is not None:
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
                        f"called '{record.name}': add `replace`, or give this one another `name`"
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
        entry = self.meant(model)
        return Model.load(model) if entry is None else entry.load()

    def _folder(self, record: EntryRecord) -> Path:
        return self.path.joinpath(*place_of(record.family, record.devices, record.software, record.name))

    def _put(self, source: Path, target: Path, record: EntryRecord) -> Entry:
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
        if entry.shipped:
            raise InvalidValue(f"{entry.id} is part of the package, and cannot be removed: a model of yours comes before it")
        with one_writer(self.path, LOCK, "name another store"):
            folder = entry.path.parent
            remove_directory(folder, self.path)
            for parent in folder.parents:
                if parent == self.path or any(parent.iterdir()):
                    break
                parent.rmdir()
        return entry


def entry_of(model: Model) -> Entry:
    """What an entry would say of a model that is in no store."""
    return Entry(model.path, msgspec.structs.replace(_record(model), added="", bytes=_size(model.path)))


def _mark(folder: Path) -> str:
    try:
        return hashlib.blake2b((folder / ENTRY).read_bytes(), digest_size=16).hexdigest()
    except FileNotFoundError:
        return ""


def _record(
    model: Model, name: str | None = None, stated: Mapping[str, str] | None = None, origin: Mapping[str, str] | None = None
) -> EntryRecord:
    """What is known of a model; without a name, that of its part of the op."""
    manifest = model.manifest
    software = manifest.software
    if stated and software:
        raise InvalidValue(f"{model.path} already says what it was trained on ({'; '.join(software)}): leave out `software`")
    if stated:
        software = (msgspec.json.encode(dict(sorted(stated.items()))).decode(),)
    return EntryRecord(
        op=manifest.op, family=manifest.family, devices=tuple(item.name for item in manifest.devices), software=software,
        name=name or own_name(model), added=datetime.datetime.now(datetime.UTC).strftime("%Y-%m-%dT%H:%M:%S.%fZ"), model="",
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
