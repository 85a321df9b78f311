"""A directory that other builds can use: sources, headers, self-test, CMake, pkg-config, and their checksums."""

from __future__ import annotations

import re
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Annotated

import msgspec

from kerncast.answering.exporters import ConfigsOf, Exporter, LossOf, MostOf, OverridesOf
from kerncast.answering.exporters.golden import golden_decisions, golden_vectors
from kerncast.core.io.arguments import Help
from kerncast.core.io.artefact import ArtefactKind, Findings, PathContents, Versioned, file_checksum
from kerncast.core.io.atomic import build_directory, refuse_existing
from kerncast.core.io.quoting import KEYWORDS, c_integer, c_number, filled, plain_words
from kerncast.core.progress import QUIET, Progress
from kerncast.errors import InvalidValue
from kerncast.models.answer import CHOOSING, Tier, named_tiers
from kerncast.models.candidates import for_export
from kerncast.models.model import Model
from kerncast.native import packaged
from kerncast.native.c99 import c_source
from kerncast.native.header import c_header, cpp_header
from kerncast.native.lower import Artefact, lower
from kerncast.native.overrides import decide
from kerncast.native.tiers.build import TierOptions, plain_tiers, tiers_named
from kerncast.version import __version__

# Names of other files, functions and namespaces.
TAKEN = ("selftest", "main", "std")
EXPORT = "export.json"


class ExportFile(msgspec.Struct, frozen=True, forbid_unknown_fields=True, kw_only=True):
    """The contents of `export.json`: what the sources were made from, and their checksums. No build needs it."""

    format: str = "kerncast-export"
    version: int = 1
    kerncast: str
    family: str
    device: str
    model: str
    """The checksum of the model."""
    files: dict[str, str]


EXPORT_FILE = Versioned("kerncast-export", 1, ExportFile, "the manifest of an exported model", "export the model again")


@dataclass(frozen=True)
class CompiledOptions:
    """What is compiled into a program."""

    tiers: Annotated[
        str | Sequence[str],
        f"the tiers to include; others are left out. `tree` alone is the smallest. [default: {','.join(CHOOSING)}]",
        Help(metavar="TIERS", several=False),
    ] = CHOOSING
    prefix: Annotated[
        str,
        "prefix of functions, types and files; each artefact in a program needs its own. CMake: kerncast::NAME, "
        "find_package(kerncast_NAME). [default: kerncast]",
        Help(metavar="NAME"),
    ] = "kerncast"
    loss: LossOf = TierOptions.loss
    max_configs: MostOf = TierOptions.most
    configs: ConfigsOf = None
    overrides: OverridesOf = None

    def lowered(self, model: Model, progress: Progress) -> Artefact:
        """The model with these tiers, ready to be written. Of configs that were given, the model scores each."""
        tiers = named_tiers(self.tiers)
        offered = model.given is not None
        slim = model.slim and bool(model.family.config.parameters)
        if (offered or slim) and tiers not in (CHOOSING, (Tier.FULL,)):
            which = "of configs that are given" if offered else "of a slim model"
            raise InvalidValue(
                f"`tiers` {which} are full alone, got '{','.join(tiers)}': portfolio and tree are built from measurements"
            )
        model = for_export(model)
        decided = None if self.overrides is None else decide(model, self.overrides)
        for note in decided.notes if decided is not None else ():
            progress.say(note)
        if offered or slim:
            return lower(model, plain_tiers(model), [Tier.FULL], decided)
        built, include = tiers_named(model, tiers, TierOptions(self.loss, self.max_configs), progress=progress)
        if built.tree is None and len(include) > 1:  # a family with nothing to choose has no tree
            include = tuple(tier for tier in include if tier is not Tier.TREE)
        if built.judged is not None:
            answered, loss = built.judged
            progress.say(
                f"of held-out problems the tree answers {answered:.0%}, and loses {loss:.1%} to the model's own choice; where "
                "it is unsure, it gives a status and a fallback"
            )
        return lower(model, built, include, decided)


class CExporter(Exporter):
    """C with everything in it."""

    name = "c"
    doc = "C99 with a C++17 header"
    options_type = CompiledOptions

    def write(self, model: Model, out: Path, options: CompiledOptions, progress: Progress) -> list[Path]:
        return write_project(options.lowered(model, progress), out, options.prefix, progress=progress)


def write_project(artefact: Artefact, out: Path, prefix: str = "kerncast", *, progress: Progress = QUIET) -> list[Path]:
    """Write the exported C to a new directory, whole or not at all."""
    refuse_prefix(prefix)
    refuse_existing(out)
    progress.stage("writing C")
    files = {
        f"{prefix}.c": c_source(artefact, prefix),
        f"{prefix}.h": c_header(artefact, prefix),
        f"{prefix}.hpp": cpp_header(artefact, prefix),
        "CMakeLists.txt": cmake_lists(prefix),
        f"{prefix}.pc.in": pkg_config(artefact, prefix),
    }
    progress.stage("computing golden vectors")
    files["selftest.c"] = self_test(artefact, prefix)
    return write_sources(artefact, out, {name: text.encode() for name, text in files.items()})


def refuse_prefix(prefix: str) -> None:
    """Refuse a prefix that makes no names in C."""
    if not re.fullmatch(r"[a-z][a-z0-9_]*", prefix):
        raise InvalidValue(f"a prefix has lowercase letters, digits and '_' and begins with a letter, got '{prefix}'")
    if prefix in KEYWORDS or prefix in TAKEN:
        raise InvalidValue(f"the prefix '{prefix}' means something else in C or in the export: choose another name")


def write_sources(artefact: Artefact, out: Path, files: Mapping[str, bytes]) -> list[Path]:
    """Write these files to a new directory, with their checksums, whole or not at all."""

    def fill(folder: Path) -> None:
        for name, data in files.items():
            (folder / name).write_bytes(data)
        manifest = artefact.model.manifest
        written = ExportFile(
            kerncast=__version__, family=manifest.family, device=manifest.device.name, model=manifest.checksum,
            files={name: file_checksum(folder / name) for name in files},
        )  # fmt: skip
        (folder / EXPORT).write_bytes(EXPORT_FILE.text(written))

    build_directory(out, fill)
    return [out / name for name in (*files, EXPORT)]


def self_test(artefact: Artefact, prefix: str) -> str:
    """A program that checks features, scores, times and choices of golden vectors; exit status 0 when all agree."""
    tier = artefact.include[-1]
    blocks = {"alone": str(int(artefact.alone)), "features": str(len(artefact.features)), "tier": tier.upper()}
    rows = []
    if artefact.alone:
        rows += [
            f"    {{{{{', '.join(map(c_integer, item.problem))}}}, {item.candidate}}}" for item in golden_decisions(artefact)
        ]
    for item in () if artefact.alone else golden_vectors(artefact):
        numbers = ", ".join(c_number(float(value)) for value in item.features)
        problem, config = (", ".join(map(c_integer, part)) for part in (item.problem, item.config))
        score, time_ns = c_number(item.score), c_number(item.time_ns)
        rows.append(f"    {{{{{problem}}}, {item.candidate}, {{{config}}}, {score}, {time_ns}, {{{numbers or '0'}}}}}")
    blocks |= {"configs": str(len(artefact.members(tier))), "vectors": ",\n".join(rows)}
    return filled(packaged("selftest.c"), prefix, **blocks)


def cmake_lists(prefix: str) -> str:
    """A static library by default (`-DBUILD_SHARED_LIBS=ON` for a shared one), its self-test, and installation."""
    package = package_name(prefix)
    return filled(packaged("CMakeLists.txt"), prefix, version=numeric_version(), package=package, options=package.upper())


def package_name(prefix: str) -> str:
    """What `find_package` is asked for."""
    return f"kerncast_{prefix}"


def numeric_version() -> str:
    """The numeric part of the version: CMake accepts nothing else."""
    found = re.match(r"\d+(\.\d+)*", __version__)
    return found.group() if found else "0"


def pkg_config(artefact: Artefact, prefix: str) -> str:
    """What CMake fills in and installs for `pkg-config`."""
    said = plain_words(f"choice of {artefact.model.family.id} kernels on {artefact.model.device.name}")
    # CMake fills these in when it configures the project.
    cmake = {f"cmake_{name}": f"@{package_name(prefix)}_{name}@" for name in ("up", "libdir", "includedir")}
    return filled(packaged("artefact.pc.in"), prefix, description=said, cmake_version="@PROJECT_VERSION@", **cmake)


def check_export(findings: Findings) -> None:
    """Exported C: the checksums of its sources. The tables in them have a checksum of their own, which the C compares."""
    path = findings.path
    if not (path / EXPORT).exists():
        findings.notes.append(f"{path} has no {EXPORT}, so only its own self-test can check it: export the model again for one")
        return
    with findings.looking(path / EXPORT, "manifest"):
        listed = EXPORT_FILE.read(path / EXPORT).files
        for name, checksum in listed.items():
            if "/" in name or not (path / name).is_file():
                findings.wrong(path / name, f"{path} is incomplete: {name} is missing; export the model again")
            elif file_checksum(path / name) != checksum:
                findings.wrong(path / name, f"{path / name} differs from its checksum: export the model again")
    if not findings.faults:
        findings.checks.append(f"checksums of {len(listed):,} files")


def _is_at(contents: PathContents) -> bool:
    return contents.holds(EXPORT) or (contents.holds("selftest.c") and contents.holds_like("*.pc.in"))


PROJECT = ArtefactKind("exported C", _is_at, check_export, (EXPORT,))
