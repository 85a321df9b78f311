"""`kerncast.inspect` and `kerncast.doctor`: what a dataset holds, whether an artefact is whole, what works on this machine."""

from __future__ import annotations

import os
import platform
import shutil
import subprocess
from collections.abc import Iterator
from dataclasses import asdict, dataclass
from importlib import metadata
from importlib.util import find_spec
from pathlib import Path
from typing import Annotated, Any, Literal, overload

from kerncast.answering.exporters.blob import BLOB
from kerncast.answering.exporters.json_csv import CHOICES
from kerncast.answering.exporters.project import PROJECT
from kerncast.answering.measure import MEASURED
from kerncast.app.api.arguments import Where
from kerncast.app.api.showing import Wanted, shown
from kerncast.core.io.arguments import Help, given_path, texts
from kerncast.core.io.artefact import ArtefactKind, Checked, Findings, PathContents
from kerncast.core.io.terminal import line
from kerncast.core.progress import Progress
from kerncast.data.checking import DATASET
from kerncast.data.dataset import Dataset
from kerncast.data.formats.table import MAPPING
from kerncast.errors import BadFile, InvalidValue, KerncastError, NotFound
from kerncast.evaluating.results import EVALUATION, PREDICTIONS
from kerncast.library import devices
from kerncast.library.devices import PROFILE
from kerncast.library.registry import FAMILIES, OPS
from kerncast.measuring.backends import backends
from kerncast.measuring.backends.command.benchmark import BENCHMARK
from kerncast.measuring.backends.contract import Backend
from kerncast.measuring.backends.inductor import bf16_products
from kerncast.measuring.sweeping.files import SWEEP
from kerncast.models.checking import MODEL, STORE
from kerncast.native.overrides import OVERRIDES
from kerncast.regenerating.loop import WORK
from kerncast.regenerating.routine import ROUTINE
from kerncast.version import __version__

# In this order: what two of them fit is of the first.
KINDS = (
    DATASET, MODEL, SWEEP, PROJECT, STORE, WORK, PREDICTIONS, BENCHMARK, ROUTINE, MAPPING, PROFILE, OVERRIDES, BLOB, CHOICES,
    MEASURED, EVALUATION,
)  # fmt: skip
MANIFESTS = {name for kind in KINDS for name in kind.manifests}
DEEPEST = 100
# Files that are no artefacts, of which this many are named.
NAMED = 3


@dataclass(frozen=True, repr=False)
class Verification:
    """Whether artefacts are whole, one entry for each. `bool(verification)` is False if something is wrong."""

    path: Path
    artefacts: tuple[Checked, ...]
    unknown: tuple[Path, ...]
    """Files beside the artefacts that kerncast does not know, and did not check."""

    @property
    def whole(self) -> bool:
        """Whether nothing is wrong with any of them."""
        return all(item.whole for item in self.artefacts)

    def __bool__(self) -> bool:
        return self.whole

    def as_json(self) -> dict[str, Any]:
        """For `--json`."""
        return {
            "path": str(self.path),
            "whole": self.whole,
            "artefacts": [
                {
                    "path": str(item.path),
                    "kind": item.kind,
                    "whole": item.whole,
                    "checked": list(item.checks),
                    "faults": [{"file": str(fault.file), "fault": fault.sentence} for fault in item.faults],
                    "notes": list(item.notes),
                }
                for item in self.artefacts
            ],
            "unknown": [str(item) for item in self.unknown],
        }

    def lines(self) -> Iterator[str]:
        """One line per artefact, and one below it for everything that is wrong (`!`) or worth knowing (`-`)."""
        for item in self.artefacts:
            said = ", ".join(item.checks)
            yield f"{item.path}: {item.kind}, {'whole' if item.whole else 'DAMAGED'}" + (f" ({said})" if said else "")
            yield from (f"! {fault.sentence}" for fault in item.faults)
            yield from (f"- {note}" for note in item.notes)
        if self.unknown:
            names = ", ".join(str(item) for item in self.unknown[:NAMED])
            more = f" and {len(self.unknown) - NAMED:,} more" if len(self.unknown) > NAMED else ""
            yield f"not checked, because kerncast does not know them: {names}{more}"
        if len(self.artefacts) > 1:
            damaged = sum(not item.whole for item in self.artefacts)
            yield f"{len(self.artefacts):,} artefacts, {damaged or 'none'} damaged"

    def __repr__(self) -> str:
        return "\n".join(map(line, self.lines()))


@overload
def inspect(
    path: Dataset | str | Path, *, verify: Literal[True], where: Where = (), progress: Wanted = "auto"
) -> Verification: ...
@overload
def inspect(
    path: Dataset | str | Path, *, verify: Literal[False] = False, where: Where = (), progress: Wanted = "auto"
) -> dict[str, Any]: ...
def inspect(
    path: Annotated[Dataset | str | Path, Help(metavar="DATASET|PATH", names="dataset_folders")],
    *,
    verify: Annotated[bool, Help("Check an artefact of any kind whole, and say what is wrong with it.")] = False,
    where: Where = (),
    progress: Wanted = "auto",
) -> dict[str, Any] | Verification:
    """What a dataset holds, how noisy it is and what is wrong with it; `where` looks at some of its rows.

    With `verify`, check everything of an artefact that can be checked: checksums, rows, weights, keys. Nothing of it is run.
    `path` is then a dataset, an unfinished collection, a model, a store, a sweep, exported C or a table of choices, measured
    choices, predictions, what `evaluate --json` printed, a TOML file (overrides, mapping, device profile, routine,
    benchmark), or a folder of these.
    """
    if not verify:
        return (path if isinstance(path, Dataset) else Dataset.open(path)).inspect(texts(where))
    if texts(where):
        raise InvalidValue("`where` looks at some rows, and `verify` checks all of an artefact: leave one of them out")
    held = path.path if isinstance(path, Dataset) else path
    place = given_path(held, "the path of an artefact", "name the folder or the file")
    with shown(progress) as show:
        return Verification(place, *_verified(place, show))


def _verified(path: Path, progress: Progress) -> tuple[tuple[Checked, ...], tuple[Path, ...]]:
    """Every artefact at a path, checked; and the files beside them that are none."""
    if not path.exists():
        raise NotFound(f"there is nothing at {path}: check the path")
    above = kind_at(path.parent) if path.is_file() else None
    place = path.parent if above is not None and path.name in MANIFESTS else path
    progress.stage(f"looking for artefacts in {place}")
    there = list(_artefacts(place))
    known = [(item, kind) for item, kind in there if kind is not None]
    if not known:
        raise NotFound(
            f"{path} is not something that kerncast writes or reads (a dataset, model, store, sweep, export, measured choices, "
            "predictions, or a TOML file of its own): check the path"
        )
    checked = []
    for number, (item, kind) in enumerate(known, 1):
        progress.stage(f"verifying {item}", number, len(known))
        findings = Findings(item, kind.name, progress)
        kind.check(findings)
        checked.append(findings.checked())
    return tuple(checked), tuple(item for item, kind in there if kind is None)


def kind_at(path: Path) -> ArtefactKind | None:
    """What lies at a path; None: not an artefact, or one too damaged to tell."""
    contents = PathContents(path)
    return next((kind for kind in KINDS if kind.is_at(contents)), None)


def _artefacts(path: Path, depth: int = 0) -> Iterator[tuple[Path, ArtefactKind | None]]:
    """The artefacts at a path with their kinds, in order of their names; None: a file that is not one."""
    kind = kind_at(path)
    if kind is not None or not path.is_dir():
        yield path, kind
        if kind is None or not kind.holds_others:
            return
    # A link may lead anywhere, and hidden folders are drafts of a process.
    with os.scandir(path) as entries:
        inside = sorted(Path(item.path) for item in entries if not item.is_symlink() and not item.name.startswith("."))
    for item in inside:
        if item.is_dir():
            if depth == DEEPEST:
                raise BadFile(f"{item} is more than {DEEPEST} folders deep: verify a folder further down")
            yield from _artefacts(item, depth + 1)
        elif item.is_file() and not (kind is not None and item.name in kind.manifests):
            yield item, kind_at(item)


CORE = ("click", "lightgbm", "msgspec", "numpy", "polars", "rich", "scipy")
# Package → the extra that brings it, and what for.
EXTRAS = {
    "jinja2": ("train", "reports"),
    "optuna": ("tune", "kerncast train --tune"),
    "plotly": ("train", "reports and plot()"),
    "pyopencl": ("opencl", "the backend opencl"),
    "ray": ("ray", "work on a cluster: --on ray"),
    "scikit-learn": ("train", "training mlp models, and models of families with a library's kernel"),
    "torch": ("torch", "training deep models, the backend inductor, kerncast torch"),
    "triton": ("triton", "the backend triton"),
    "uvicorn": ("serve", "kerncast serve"),
}
# Command → the package that brings it.
COMPILERS = {"gcc": "gcc", "clang": "clang", "cc": "gcc"}
DEVICE_NUMBERS = ("num_cus", "l1_cache_kb", "l2_cache_kb", "vector_bytes")


@dataclass(frozen=True)
class Check:
    """One check and its result."""

    what: str
    kind: str
    works: bool
    detail: str


@dataclass(frozen=True)
class Diagnosis:
    """All checks, and whether kerncast has everything that it requires."""

    checks: tuple[Check, ...]

    @property
    def healthy(self) -> bool:
        """Whether every package that kerncast needs is there."""
        return all(item.works for item in self.checks if item.kind == "package")

    @property
    def compiles(self) -> bool:
        """Whether some C compiler works."""
        return any(item.works for item in self.checks if item.kind == "compiler")

    def as_json(self) -> dict[str, Any]:
        """For `--json`."""
        python, checks = platform.python_version(), [asdict(item) for item in self.checks]
        return {"kerncast": __version__, "python": python, "healthy": self.healthy, "checks": checks}

    def __repr__(self) -> str:
        lines = [f"kerncast {__version__}, Python {platform.python_version()} on {platform.platform()}"]
        lines += [f"{'yes' if c.works else 'no ':3} {c.kind:<9} {c.what}: {c.detail}" for c in self.checks]
        return "\n".join(lines)


def doctor() -> Diagnosis:
    """Check packages, extras, compilers, this machine's numbers and backends."""
    device = devices.local()
    unknown = [name for name in DEVICE_NUMBERS if name not in device.numbers]
    title = device.title + (f"; unknown: {', '.join(unknown)}" if unknown else "")
    plugins = f"{len(list(OPS))} ops, {len(list(FAMILIES))} families"
    return Diagnosis(
        (
            *(_package(name) for name in CORE),
            *(_extra(name) for name in EXTRAS),
            *(_compiler(name) for name in COMPILERS),
            Check(device.name, "device", not unknown, title),
            *(_backend(kind) for kind in backends().values()),
            *_bf16_products(),
            Check("plug-ins", "registry", True, plugins),
        )
    )


def _package(name: str) -> Check:
    try:
        return Check(name, "package", True, metadata.version(name))
    except metadata.PackageNotFoundError:
        return Check(name, "package", False, f"not installed: pip install {name}")


def _extra(name: str) -> Check:
    extra, purpose = EXTRAS[name]
    found = _package(name)
    detail = found.detail if found.works else f"not installed: pip install 'kerncast[{extra}]' for {purpose}"
    return Check(name, "extra", found.works, detail)


def _compiler(name: str) -> Check:
    path = shutil.which(name)
    if path is None:
        return Check(name, "compiler", False, f"not found: apt install {COMPILERS[name]}")
    try:
        answer = subprocess.run([path, "--version"], capture_output=True, text=True, timeout=10, check=False)
        first = (answer.stdout or answer.stderr).splitlines()[:1] or ["no version"]
        return Check(name, "compiler", answer.returncode == 0, first[0])
    except (OSError, subprocess.TimeoutExpired) as error:
        return Check(name, "compiler", False, f"{path} does not run: {error}")


def _bf16_products() -> tuple[Check, ...]:
    """Only where torch is installed: a second or two."""
    return () if find_spec("torch") is None else (Check("bf16", "torch", *bf16_products()),)


def _backend(kind: type[Backend]) -> Check:
    try:
        why_not = kind.unavailable()
    except KerncastError as error:  # a setting that names something that does not exist
        why_not = str(error)
    detail = why_not or f"runs {', '.join(kind.families)} on device {', '.join(kind.devices())}"
    return Check(kind.name, "backend", why_not is None, detail)
