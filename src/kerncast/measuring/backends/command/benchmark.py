"""An external benchmark program: how it is called and what its answer means, in a TOML file that is checked when it is loaded.

docs/command.md explains every key. Benchmarks that ship are the files in `benchmarks/`.
"""

from __future__ import annotations

import hashlib
import re
from collections.abc import Mapping
from importlib import resources
from pathlib import Path
from typing import Any, Literal

import msgspec
from msgspec import structs

from kerncast.core.io.artefact import ArtefactKind, Findings
from kerncast.core.io.foreign import TOML, decode_toml, guarded
from kerncast.core.op import Family
from kerncast.errors import BadFile, InvalidValue, KerncastError, NotFound
from kerncast.library.declared.declaration import Declaration, declaration_of, resolve
from kerncast.library.declared.family_file import TABLES, declaration_in
from kerncast.measuring.backends.command.template import Scope, check_names, leaves, names_in

At = str | list[str | int]
SHIPPED = "benchmarks"
# Keys that may change without changing the meaning of the times.
_NOT_IDENTITY = ("doc", "timeout", "startup", "each", "progress", "samples", "reset", "reset_after", "chunk", "declaration")


class Setting(msgspec.Struct, frozen=True, forbid_unknown_fields=True):
    """A value that the user gives with `--set NAME=VALUE`; required if it has no default."""

    doc: str
    default: str | None = None


class WordTable(msgspec.Struct, frozen=True, forbid_unknown_fields=True):
    """A text made from the vector: a translation (`of`, `values`), or a template (`text`)."""

    of: str = ""
    values: dict[str, str] = {}
    text: str = ""


class Match(msgspec.Struct, frozen=True, forbid_unknown_fields=True):
    """A row of the answer belongs to the vector if it has this value `at` a place."""

    at: At
    equals: str | None = None
    pattern: str | None = None


class Time(msgspec.Struct, frozen=True, forbid_unknown_fields=True):
    """Where the time is, and its unit; or a rate, from which the time follows."""

    at: At
    unit: str


class Read(msgspec.Struct, frozen=True, forbid_unknown_fields=True):
    """Where another value is."""

    at: At
    values: dict[str, str] = {}


class Result(msgspec.Struct, frozen=True, forbid_unknown_fields=True):
    """How an answer is read."""

    format: Literal["json", "csv", "regex"]
    time: Time
    file: str = ""
    rows: list[str | int] = []
    match: list[Match] = []
    pick: Literal["only", "first", "last"] = "only"
    status: Read | None = None
    error: Read | None = None
    max_abs_err: Read | None = None
    tolerance: float | None = None
    label: Read | None = None
    """What the program calls the kernel, if its answer says so."""


class Variant(msgspec.Struct, frozen=True, forbid_unknown_fields=True):
    """Where `of` has one of these values, a vector has other keys."""

    of: str
    values: list[str]
    vector: dict[str, Any] = {}
    without: list[str] = []


class Input(msgspec.Struct, frozen=True, forbid_unknown_fields=True):
    """JSON for the program: what it looks like, and where it goes."""

    to: Literal["stdin", "file"]
    vector: dict[str, Any] = {}
    variants: list[Variant] = []
    document: Any = None


class Pattern(msgspec.Struct, frozen=True, forbid_unknown_fields=True):
    """A regular expression that, found in what the program printed, decides the status."""

    text: str
    status: str


class Build(msgspec.Struct, frozen=True, forbid_unknown_fields=True):
    """How the binary of one kernel is made."""

    argv: list[str]
    each: str = ""
    output: str = ""
    sources: list[str] = []
    directory: str = ""
    timeout: float = 600.0


class Benchmark(msgspec.Struct, frozen=True, forbid_unknown_fields=True):
    """Everything about one external benchmark."""

    name: str
    family: str
    device: str
    argv: list[str]
    result: Result
    doc: str = ""
    mode: Literal["vector", "chunk"] = "vector"
    chunk: int = 64
    directory: str = ""
    alike: list[str] = []
    """Placeholders that stand for the same in all vectors of a chunk, so that `argv` may use them."""
    timeout: float = 60.0
    startup: float = 0.0
    each: float | None = None
    """Seconds that a vector of a chunk usually takes; `timeout` is what the slowest may take."""
    progress: str = ""
    """A regular expression; a line of output that it matches says that the next vector of the chunk begins."""
    samples: int | None = None
    cache: Literal["warm", "cold"] = "warm"
    checks: bool = False
    reset: list[str] = []
    reset_after: tuple[str, ...] = ("crash", "timeout")
    settings: dict[str, Setting] = {}
    words: dict[str, WordTable] = {}
    only: dict[str, list[int | bool | str]] = {}
    environment: dict[str, str] = {}
    input: Input | None = None
    patterns: list[Pattern] = []
    exit_codes: dict[str, str] = {}
    software: dict[str, str | list[str]] = {}
    build: Build | None = None
    declaration: Declaration | None = None
    """The family, if the file declares it as well (tables `op` and `family`)."""

    @property
    def measured_family(self) -> Family:
        """The family that is measured: as the file declares it, else an installed one."""
        return resolve(self.family, self.declaration, f"benchmark {self.name}")

    @property
    def digest(self) -> str:
        """A hash of what decides the meaning of a time."""
        body = {name: value for name, value in msgspec.to_builtins(self).items() if name not in _NOT_IDENTITY}
        return hashlib.blake2b(msgspec.json.encode(body, order="sorted"), digest_size=6).hexdigest()

    def setting_values(self) -> dict[str, str]:
        """The settings, as placeholders name them."""
        return {f"setting.{name}": item.default or "" for name, item in self.settings.items()}

    def tells(self, name: str) -> bool:
        """Whether the program gets the value of a placeholder, directly or through a word."""
        texts = [*self.argv, *self.environment.values(), *leaves(self.input.document if self.input else None)]
        names = {name, *(word for word, item in self.words.items() if item.of == name)}
        return any(names & set(names_in(text)) for text in texts)

    def reset_words(self) -> list[str]:
        """The reset command with everything but `{device}` filled in."""
        return [Scope({**self.setting_values(), "device": "{device}"}, {}).fill(text) for text in self.reset]


def shipped() -> dict[str, str]:
    """The benchmarks that come with kerncast, name → text."""
    folder = resources.files(__package__) / SHIPPED
    files = sorted((item for item in folder.iterdir() if item.name.endswith(".toml")), key=lambda item: item.name)
    return {item.name.removesuffix(".toml"): item.read_text(encoding="utf-8") for item in files}


def shipped_for(family: str) -> list[str]:
    """The names of the shipped benchmarks that measure a family, some of them by a setting."""
    forms = {name: names_of_family(decode_toml(text)["family"]) for name, text in shipped().items()}
    return [name for name, form in forms.items() if form.fullmatch(family)]


def names_of_family(text: str) -> re.Pattern[str]:
    """The families that `family` may name: a placeholder in it stands for any word."""
    return re.compile(r"\w+".join(re.escape(part) for part in re.split(r"\{[^{}]*\}", text)))


def toml_text(what: str, name: str, known: Mapping[str, str]) -> str:
    """The text of a `what`: one of the `known` ones by name, or a file by its path."""
    if name in known:
        return known[name]
    if not name.endswith(".toml") and "/" not in name:
        raise NotFound(f"{NotFound.named(what, name, known)}, or the path of a .toml file")
    try:
        return TOML.read(Path(name)).decode()
    except (OSError, UnicodeDecodeError) as error:
        raise BadFile(f"the {what} {name} cannot be read ({error}): name a TOML file or one of {', '.join(known)}") from error


def load(name: str, settings: Mapping[str, str] | None = None, family: Family | None = None) -> Benchmark:
    """A benchmark by name or by the path of its file, checked, with its settings in place.

    `family` is the one to be measured: a benchmark may be written for a family that another file declares.
    """
    from kerncast.measuring.backends.command.rules import check

    text = toml_text("benchmark", name, shipped())
    with guarded(name, "every key is explained in docs/command.md", "is not a benchmark"):
        tables = decode_toml(text)
        own = _declared(name, tables)
        if own is not None:
            tables = {key: value for key, value in tables.items() if key not in TABLES} | {"family": own.family}
        elif family is not None and tables.get("family") == family.id:
            own = declaration_of(family)
        benchmark = msgspec.structs.replace(msgspec.convert(tables, Benchmark), declaration=own)
    try:
        if check_names([benchmark.family], benchmark.setting_values(), "family"):
            # A setting decides the family, so the settings are filled in before the rules of that family are checked.
            benchmark = _with_settings(benchmark, settings or {})
            benchmark = structs.replace(benchmark, family=Scope(benchmark.setting_values(), {}).fill(benchmark.family))
        check(benchmark)
    except BadFile as error:
        raise BadFile(f"benchmark {name}: {error}") from error
    return _with_settings(benchmark, settings or {})


def _declared(name: str, tables: Mapping[str, Any]) -> Declaration | None:
    if "declaration" in tables:
        raise BadFile(f"{name} has a key `declaration`: declare a family in the tables [op] and [family]")
    try:
        return declaration_in(tables)
    except KerncastError as error:
        raise BadFile(f"benchmark {name}: {error}") from error


def _with_settings(benchmark: Benchmark, given: Mapping[str, str]) -> Benchmark:
    for name in given:
        if name not in benchmark.settings:
            raise NotFound.named(f"setting of benchmark {benchmark.name}", name, benchmark.settings)
    filled = {name: structs.replace(item, default=given.get(name, item.default)) for name, item in benchmark.settings.items()}
    for name, item in filled.items():
        if item.default is None:
            raise InvalidValue(f"benchmark {benchmark.name} needs `settings` {name}=… ({item.doc})")
    return structs.replace(benchmark, settings=filled)


def check_benchmark(findings: Findings) -> None:
    """An external benchmark for `collect`: its keys, words and patterns. Nothing of it is run."""
    with findings.looking(findings.path, "keys"):
        try:
            load(str(findings.path.absolute()))
        except InvalidValue as error:  # a setting without a default: only the user can give it
            findings.notes.append(str(error))


BENCHMARK = ArtefactKind("benchmark", lambda contents: {"argv", "result"} <= contents.toml.keys(), check_benchmark)
