"""Damages one file in many ways, one after the other, and uses it each time: what came of it is counted."""

from __future__ import annotations

import os
import random
import shutil
from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass, field
from itertools import count
from pathlib import Path
from typing import Any

import polars as pl

from kerncast.errors import KerncastError

Use = Callable[[Path], Any]
# Files have times of their own, so that nothing that a process remembers of an earlier state of a file is used.
_TIMES = count(1)


@dataclass(frozen=True)
class Subject:
    """One kind of file: where a whole one is, and what people do with it."""

    kind: str
    artefact: Path
    """What is copied before it is damaged: a folder, or the file itself."""
    file: str
    """The file that is damaged, inside of the artefact; empty: the artefact is the file."""
    uses: Mapping[str, Use]
    seldom: Mapping[str, Use] = field(default_factory=dict)
    """Uses that take a second or more; they are tried on one damage in `SELDOM`."""
    repaired: Callable[[Any, Any], bool] | None = None
    """Whether an answer (the second) is a documented repair of the whole one (the first)."""
    by_hand: bool = False
    """People write it, and it has no checksum: what it says counts, as long as it can be read."""


SELDOM = 25


@dataclass
class Counts:
    """What came of the damage to one kind of file; each use of each damaged file counts once."""

    kind: str
    damages: int = 0
    named: int = 0
    repaired: int = 0
    same: int = 0
    as_written: int = 0
    tracebacks: list[str] = field(default_factory=list)
    differences: list[str] = field(default_factory=list)

    def __str__(self) -> str:
        return (
            f"{self.kind}: {self.damages} damaged files; uses: {self.named} named it, {self.repaired} repaired it, "
            f"{self.same} the same answer, {self.as_written} read as written, {len(self.tracebacks)} tracebacks, "
            f"{len(self.differences)} silent differences"
        )


def damaged(subject: Subject, folder: Path, *, cuts: int, flips: int, seed: int = 0) -> Counts:
    """Damage a copy of one file in many ways, one after the other, and use it each time."""
    counts, place = Counts(subject.kind), folder / subject.artefact.name
    _copy(subject.artefact, place)
    file = place / subject.file if subject.file else place
    whole = file.read_bytes()
    uses = {**subject.uses, **subject.seldom}
    before = {name: _before(use, place, subject.artefact, file, whole) for name, use in uses.items()}
    for number, (how, data) in enumerate(_damages(whole, cuts, flips, random.Random(f"{seed} {subject.kind}"))):
        counts.damages += 1
        for name, use in uses.items():
            if name in subject.seldom and number % SELDOM:
                continue
            said = f"{how}, {name}"
            try:
                after = _used(use, place, subject.artefact, file, data)
            except KerncastError:
                counts.named += 1
            except (KeyboardInterrupt, SystemExit):
                raise
            except BaseException as error:  # a panic of polars is no `Exception`
                counts.tracebacks.append(f"{said}: {type(error).__name__}: {error}"[:300])
            else:
                if _same(before[name], after):
                    counts.same += 1
                elif subject.repaired is not None and subject.repaired(before[name], after):
                    counts.repaired += 1
                elif subject.by_hand:
                    counts.as_written += 1
                else:
                    counts.differences.append(said)
    _remove(place)
    return counts


def _before(use: Use, place: Path, artefact: Path, file: Path, whole: bytes) -> Any:
    """The answer of a whole artefact, which is the same for each of its files."""
    if (use, place, artefact) not in _ANSWERS:
        _ANSWERS[use, place, artefact] = _used(use, place, artefact, file, whole)
    return _ANSWERS[use, place, artefact]


_ANSWERS: dict[tuple[Use, Path, Path], Any] = {}


def _damages(whole: bytes, cuts: int, flips: int, draw: random.Random) -> Iterator[tuple[str, bytes]]:
    """The file without its last bytes, up to `cuts` of them or a sample, and with single bits flipped."""
    longest = min(200, len(whole))
    for size in sorted(draw.sample(range(1, longest + 1), min(cuts, longest))):
        yield f"{size} bytes cut off", whole[:-size]
    for _ in range(flips):
        place = draw.randrange(8 * len(whole))
        data = bytearray(whole)
        data[place // 8] ^= 1 << place % 8
        yield f"bit {place} flipped", bytes(data)


def _used(use: Use, place: Path, artefact: Path, file: Path, data: bytes) -> Any:
    """What a use makes of the artefact with these bytes in a file. A use may write: the artefact is then made again."""
    # Uses that write leave another modification time than this one on some file, or another set of files.
    if _state(place) != _KNOWN_STATE.get(place):
        _copy(artefact, place)
    file.write_bytes(data)
    now = next(_TIMES) * 10**9
    os.utime(file, ns=(now, now))
    _KNOWN_STATE[place] = _state(place)
    return use(place)


_KNOWN_STATE: dict[Path, Any] = {}


def _state(place: Path) -> Any:
    files = sorted(place.rglob("*")) if place.is_dir() else [place]
    return [(str(item), item.stat().st_mtime_ns, item.stat().st_size) for item in files if item.is_file()]


def _copy(source: Path, place: Path) -> None:
    _remove(place)
    if source.is_dir():
        shutil.copytree(source, place)
    else:
        shutil.copyfile(source, place)


def _remove(place: Path) -> None:
    if place.is_dir():
        shutil.rmtree(place)
    else:
        place.unlink(missing_ok=True)


def _same(one: Any, other: Any) -> bool:
    if isinstance(one, pl.DataFrame):
        return isinstance(other, pl.DataFrame) and one.equals(other)
    return bool(one == other)
