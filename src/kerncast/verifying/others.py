"""Everything besides datasets and models: vectors, exports, regenerations, and single files."""

from __future__ import annotations

import tomllib
from collections.abc import Mapping
from pathlib import Path
from typing import Any

from kerncast.backends.command import benchmark
from kerncast.compiling.blob.binding import BlobBinding, compiled_runtime
from kerncast.compiling.blob.container import unpacked
from kerncast.compiling.overrides import read_overrides
from kerncast.data.importers.mapped import read_mapping
from kerncast.devices import read_profile
from kerncast.errors import BadFile, InvalidValue, KerncastError
from kerncast.evaluating.predictions import read_predictions
from kerncast.exporting.json_table import CHOICES_FILE
from kerncast.exporting.project import EXPORT, EXPORT_FILE
from kerncast.files.atomic import file_checksum
from kerncast.op import Config, Problem
from kerncast.parsing import decode_json, decode_toml
from kerncast.regenerating import routine, state
from kerncast.registry import FAMILIES
from kerncast.scoring.figures import Figures
from kerncast.selecting.choice_cache import CHOICES
from kerncast.sweeping.files import MANIFEST as VECTORS
from kerncast.sweeping.files import Tally, family_of, read_part, read_sweep_file
from kerncast.sweeping.formats import format_named
from kerncast.verifying.findings import Findings


def check_vectors(found: Findings) -> None:
    """The manifest, and every vector of every part."""
    path = found.path
    with found.looking(path / VECTORS):
        contents = read_sweep_file(path)
        found.checks.append("manifest")
        layout, family = format_named(contents.header.file_format), family_of(path, contents.header)
    if found.faults:
        return
    tally = Tally()
    for number, part in enumerate(contents.parts):
        found.progress.step("parts", number, len(contents.parts))
        with found.looking(path / part.file):
            tally.add(read_part(path, part, layout, family))
    if found.faults:
        return
    found.checks += [f"checksums of {len(contents.parts):,} parts", f"{tally.vectors:,} vectors"]
    if not contents.complete:
        found.notes.append(f"{path} is unfinished: run the same `kerncast sweep` again, it continues where it stopped")
    elif tally.distinct() != (contents.problems, contents.configs):
        found.wrong(path / VECTORS, f"{path / VECTORS} counts other problems or configs than its parts have: sweep again")


def check_export(found: Findings) -> None:
    """Exported C: the checksums of its sources. The tables in them have a checksum of their own, which the C compares."""
    path = found.path
    if not (path / EXPORT).exists():
        found.notes.append(f"{path} has no {EXPORT}, so only its own self-test can check it: export the model again for one")
        return
    with found.looking(path / EXPORT, "manifest"):
        listed = EXPORT_FILE.read(path / EXPORT).files
        for name, checksum in listed.items():
            if "/" in name or not (path / name).is_file():
                found.wrong(path / name, f"{path} is incomplete: {name} is missing; export the model again")
            elif file_checksum(path / name) != checksum:
                found.wrong(path / name, f"{path / name} differs from its checksum: export the model again")
    if not found.faults:
        found.checks.append(f"checksums of {len(listed):,} files")


def check_regeneration(found: Findings) -> None:
    """The state of a work directory; the artefacts in it are checked by themselves."""
    with found.looking(found.path / state.FILE, "state"):
        read = state.read(found.path)
        if read is not None and not read.finished:
            found.notes.append("it is unfinished: the same `kerncast regenerate` continues it")


def check_blob(found: Findings) -> None:
    """A model in one file: its checksum and tables; if there is a compiler, also that the runtime takes it and its answers."""
    with found.looking(found.path):
        data = found.path.read_bytes()
        found.checks += ["checksum", f"{len(unpacked(data, str(found.path))):,} tables"]
        found.progress.stage("compiling the runtime")
        library = compiled_runtime()
        if library is None:
            found.notes.append("there is no C compiler, so its answers were not compared with those stored in it")
            return
        loaded = BlobBinding(library, data, str(found.path))
        found.checks.append(f"{loaded.self_test():,} golden vectors")
        loaded.close()


# -- single files ----------------------------------------------------------------------------------------


def check_table_of_choices(found: Findings) -> None:
    """A table of choices that `export` wrote: its checksum, and that every entry is an answer."""
    with found.looking(found.path):
        contents = CHOICES_FILE.read(found.path)
        for number, answer in enumerate(contents.choices, 1):
            if not {"problem", "status"} <= answer.keys():
                raise BadFile(f"{found.path}, choice {number} has no problem or no status: export the model again")
        found.checks += ["checksum", f"{len(contents.choices):,} choices"]


def check_measured_choices(found: Findings) -> None:
    """Choices that `select --measure` keeps: each is a problem and a config of the family."""
    with found.looking(found.path):
        contents = CHOICES.read(found.path)
        family = FAMILIES.get(contents.family)
        for number, choice in enumerate(contents.choices, 1):
            try:
                Problem(family, choice.problem), Config(family, choice.config)
            except KerncastError as error:
                raise BadFile(f"{found.path}, choice {number}: {error}; {CHOICES.remedy}") from error
            if not 0 < choice.time_ns < float("inf"):
                raise BadFile(f"{found.path}, choice {number}: its time is {choice.time_ns:g} ns; {CHOICES.remedy}")
        found.checks += ["checksum", f"{len(contents.choices):,} choices"]


def check_predictions(found: Findings) -> None:
    """A table of predictions: the checksum of its cells."""
    with found.looking(found.path):
        frame = read_predictions(found.path)
        found.checks += ["checksum", f"{frame.height:,} rows"]


def check_evaluation(found: Findings) -> None:
    """What `evaluate --json` printed: the figures of the model and the baselines."""
    with found.looking(found.path, "figures"):
        try:
            data = decode_json(found.path.read_bytes(), dict[str, Any])
            for card in (data["overall"], *data["baselines"].values()):
                Figures.of(card)
        except (KeyError, TypeError, ValueError, AttributeError) as error:
            raise BadFile(f"{found.path} is damaged ({type(error).__name__}: {error}): evaluate the model again") from error
        found.notes.append(f"{found.path} has no checksum: what a command prints has none")


def check_overrides(found: Findings) -> None:
    """`overrides.toml`: its keys, and that every pin names one kernel. What fits a model is checked with the model."""
    with found.looking(found.path, "keys"):
        given = read_overrides(found.path)
        for pin in given.pin:
            _ = pin.kernel


def check_mapping(found: Findings) -> None:
    """A mapping for `import csv`: its keys, against what the family declares."""
    with found.looking(found.path, "keys"):
        read_mapping(found.path)


def check_profile(found: Findings) -> None:
    """A device profile: its numbers and their sources."""
    with found.looking(found.path, "numbers and their sources"):
        read_profile(found.path)


def check_routine(found: Findings) -> None:
    """A routine for `regenerate`: its keys and values."""
    with found.looking(found.path, "keys"):
        routine.load(str(found.path.absolute()))


def check_benchmark(found: Findings) -> None:
    """An external benchmark for `collect`: its keys, words and patterns. Nothing of it is run."""
    with found.looking(found.path, "keys"):
        try:
            benchmark.load(str(found.path.absolute()))
        except InvalidValue as error:  # a setting without a default: only the user can give it
            found.notes.append(str(error))


def toml_kind(data: Mapping[str, Any]) -> str | None:
    """What a TOML file is, by its keys."""
    for kind, keys in {
        "benchmark": {"argv", "result"},
        "routine": {"families", "sweep"},
        "mapping": {"family", "time"},
        "device profile": {"title", "kind"},
    }.items():
        if keys <= data.keys():
            return kind
    return "overrides" if data and data.keys() <= {"available", "deny", "pin"} else None


def read_toml(path: Path) -> dict[str, Any] | None:
    """The tables of a TOML file; None: it is not one."""
    try:
        return decode_toml(path.read_bytes())
    except (OSError, tomllib.TOMLDecodeError):
        return None
