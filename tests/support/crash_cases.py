"""Commands that die at each of their file calls, what readers see then, and how the next run ends."""

from __future__ import annotations

import hashlib
import json
import shutil
from collections.abc import Callable, Iterator
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from tests.support.crashing import DEAD, ended
from tests.support.routines import tiny_routine

from kerncast.data.dataset import Dataset
from kerncast.errors import KerncastError
from kerncast.measuring.sweeping.files import Vectors
from kerncast.models.model import Model
from kerncast.models.store.store import Store
from kerncast.testing.models import synthetic_dataset, synthetic_rows

PROBLEMS = ["--problems", "lognormal:3;M=16:512;N=16:512;K=16:512", "--vary", "dtype=fp16", "--vary", "layout=rcr"]
BACKEND = ["--backend", "kerncast.testing.backends:Instant", "--devices", "0", "--samples", "1"]
TRAINED = ["--kind", "gbdt", "--trees", "2", "--leaves", "4", "--folds", "2", "--threads", "1"]
CACHE = {
    "device_name": "Some GPU", "kernel_name": "blur", "problem_size": [1024, 512], "objective": "time",
    "tune_params_keys": ["block_size_x"], "tune_params": {},
    "cache": {str(size): {"block_size_x": size, "time": 1.0 + size, "times": [1.0 + size]} for size in (16, 32, 64, 128, 256)},
}  # fmt: skip


@dataclass(frozen=True)
class Case:
    """A command, what has to be there before it, and what is there after it, as something to compare."""

    argv: list[str]
    result: Callable[[Path], Any]
    """What readers see; None where there is nothing yet. A half artefact is an error of theirs."""
    needs: tuple[str, ...] = ()
    first: list[list[str]] = field(default_factory=list)
    """Commands that come before it."""
    again: bool = False
    """Whether the finished command may be given again; else it refuses what exists."""


def _rows(folder: Path) -> Any:
    """The rows of a dataset, with the times that this backend gives each config; None: not finished."""
    if not folder.exists():
        return None
    dataset = Dataset.open(folder)
    dataset.verify()
    if dataset.unfinished or not dataset.rows:
        return None
    return sorted(dataset.read().select("key", "status", "time_ns").rows())


def _dataset(folder: Path) -> Any:
    if not folder.exists():
        return None
    dataset = Dataset.open(folder)
    dataset.verify()
    return dataset.digest


def _model(folder: Path) -> Any:
    return Model.load(folder).manifest.files if folder.exists() else None


def _bytes(folder: Path) -> Any:
    files = sorted(item for item in folder.rglob("*") if item.is_file())
    return {item.name: hashlib.blake2b(item.read_bytes()).hexdigest() for item in files} or None


def _store(folder: Path) -> Any:
    entries = Store.open(folder).entries() if folder.exists() else []
    return [(entry.id, entry.load().manifest.files) for entry in entries] or None


def _regenerated(folder: Path) -> Any:
    found = _store(folder)
    return None if found is None else [(name, files["predictions.parquet"]) for name, files in found]


def _vectors(folder: Path) -> Any:
    if not folder.exists() or not (folder / "vectors.json").exists():
        return None
    try:
        return [(part.file, part.checksum) for part in Vectors.open(folder).contents.parts]
    except KerncastError as error:
        if "is unfinished: run the same" in str(error):
            return None
        raise


COLLECT = ["collect", "gemm/triton", *PROBLEMS, *BACKEND, "--out", "out", "--configs"]
CASES = {
    "import": Case(["import", "kernel-tuner", "cache.json", "--out", "out"], lambda at: _dataset(at / "out"), ("cache.json",)),
    "merge": Case(["merge", "d", "d2", "--out", "out"], lambda at: _dataset(at / "out"), ("d", "d2")),
    "sweep": Case(["sweep", "gemm/triton", *PROBLEMS, "--configs", "sample:3", "--out", "out"],
                  lambda at: _vectors(at / "out"), again=True),
    "collect": Case([*COLLECT, "sample:3"], lambda at: _rows(at / "out")),
    "collect --resume": Case([*COLLECT, "sample:6", "--resume"], lambda at: _rows(at / "out"),
                             first=[[*COLLECT, "sample:3"]], again=True),
    "train": Case(["train", "d", *TRAINED, "--out", "out"], lambda at: _model(at / "out"), ("d",)),
    "models add": Case(["models", "add", "m", "--store", "store"], lambda at: _store(at / "store"), ("m",)),
    "models add --replace": Case(["models", "add", "m", "--store", "store", "--replace"], lambda at: _store(at / "store"),
                                 ("m", "m2"), first=[["models", "add", "m2", "--store", "store"]], again=True),
    "export": Case(["export", "m", "--out", "out"], lambda at: _bytes(at / "out"), ("m",)),
    "regenerate": Case(["regenerate", "tiny.toml", "--out", "work", "--store", "store"],
                       lambda at: _regenerated(at / "store"), ("tiny.toml",), again=True),
}  # fmt: skip


def prepare(home: Path) -> None:
    """Make what the cases need, once."""
    synthetic_dataset(home / "d", synthetic_rows(problems=8, repeats=1))
    shutil.copytree(home / "d", home / "d2")
    (home / "cache.json").write_text(json.dumps(CACHE))
    (home / "tiny.toml").write_text(tiny_routine())
    for name, trees in (("m", "2"), ("m2", "3")):
        done = ended(["train", "d", *TRAINED, "--trees", trees, "--out", name], home)
        assert done.code == 0, done.said


@dataclass(frozen=True)
class Undisturbed:
    """A run of a case that nothing disturbs."""

    calls: tuple[str, ...]
    before: Any
    result: Any

    @property
    def points(self) -> int:
        """How many file calls it makes."""
        return sum(not call.startswith("say ") for call in self.calls)


def _begun(case: Case, home: Path, folder: Path) -> None:
    shutil.rmtree(folder, ignore_errors=True)
    folder.mkdir()
    for name in case.needs:
        source = home / name
        shutil.copytree(source, folder / name) if source.is_dir() else shutil.copy(source, folder / name)
    for argv in case.first:
        done = ended(argv, folder)
        assert done.code == 0, done.said


def undisturbed(case: Case, home: Path, folder: Path) -> Undisturbed:
    """Run a case to its end."""
    _begun(case, home, folder)
    before = case.result(folder)
    done = ended(case.argv, folder)
    assert done.code == 0, done.said
    assert not list(leftovers(folder)), list(leftovers(folder))
    return Undisturbed(done.calls, before, case.result(folder))


def leftovers(folder: Path) -> Iterator[Path]:
    """Files that nobody asked for: hidden ones except the lock of a dataset, and copies that no entry of a store names."""
    for item in folder.rglob("*"):
        if item.name.startswith(".") and item.name != ".lock":
            yield item
        if item.name.startswith("model-") and item.is_dir() and item.name not in (item.parent / "entry.json").read_text():
            yield item


def faults_at(case: Case, home: Path, folder: Path, at: int, whole: Undisturbed) -> list[str]:
    """What went wrong when a case died at a point and was run again; nothing, if all is well."""
    _begun(case, home, folder)
    died = ended(case.argv, folder, at)
    if died.code != DEAD:
        return [] if died.code == 0 else [f"it did not die, but ended with {died.code}: {died.said[-300:]}"]
    found: list[str] = []
    try:
        seen = case.result(folder)
        if seen not in (whole.before, whole.result, None) or (seen is None and whole.before is not None and not case.again):
            found.append("readers see neither the old nor the new artefact")
    except (KerncastError, OSError, ValueError) as error:
        seen = None
        found.append(f"readers see a half artefact: {error}")
    done = ended(case.argv, folder)
    refused = seen == whole.result and not case.again and ("already" in done.said or "finished dataset" in done.said)
    if done.code != 0 and not refused:
        found.append(f"the next run ended with {done.code}: {done.said[-300:]}")
    elif case.result(folder) != whole.result:
        found.append("the next run has another result")
    found += [f"left behind: {item.relative_to(folder)}" for item in leftovers(folder)]
    return found
