"""The tables of a benchmark file, and its texts with placeholders: `--m={problem.M}`. Doubled braces stand for themselves.

docs/command.md explains every key. `benchmark` checks names when it loads a file, so filling a text later can only fail
for a value that has no word in the benchmark.
"""

from __future__ import annotations

import hashlib
import re
from collections.abc import Iterable, Iterator, Mapping
from typing import Any, Literal

import msgspec

from kerncast.core.op import Family
from kerncast.errors import BadFile, NotFound
from kerncast.library.declared.declaration import Declaration, resolve
from kerncast.measuring.backends.contract import Unsupported

_TOKEN = re.compile(r"\{\{|\}\}|\{([^{}]*)\}|[{}]")

At = str | list[str | int]
UNITS = {"ns": 1.0, "us": 1e3, "ms": 1e6, "s": 1e9}
# Floating-point operations per nanosecond: programs often print rates with more digits than times.
RATES = {"gflops": 1.0, "tflops": 1e3}
# Keys that may change without changing the meaning of the times.
_NOT_IDENTITY = ("doc", "timeout", "startup", "each", "progress", "samples", "reset", "reset_after", "chunk", "declaration")


def text_of(value: object) -> str:
    """A value as programs and benchmarks write it."""
    if isinstance(value, bool):
        return "true" if value else "false"
    return "none" if value is None else str(value)


def names_in(text: str) -> list[str]:
    """The placeholders of a template, in order."""
    found = []
    for token in _TOKEN.finditer(text):
        if token[1] is not None:
            found.append(token[1])
        elif token[0] in "{}":
            raise BadFile(f"a single '{token[0]}' in '{text}': write {token[0] * 2} for the character itself")
    return found


def leaves(node: Any) -> Iterator[str]:
    """Every text inside lists and tables."""
    if isinstance(node, str):
        yield node
    elif isinstance(node, Mapping):
        for value in node.values():
            yield from leaves(value)
    elif isinstance(node, list | tuple):
        for value in node:
            yield from leaves(value)


def check_names(texts: Iterable[str], known: Iterable[str], where: str) -> set[str]:
    """The placeholders that the texts use, all of which must be known."""
    names, used = set(known), set()
    for text in texts:
        try:
            found = names_in(text)
        except BadFile as error:
            raise BadFile(f"{where} has {error}") from error
        for name in found:
            if name not in names:
                raise BadFile(f"{where}: {NotFound.named('placeholder', '{' + name + '}', ('{' + n + '}' for n in names))}")
            used.add(name)
    return used


class Setting(msgspec.Struct, frozen=True, forbid_unknown_fields=True):
    """A value that the user gives with `--set NAME=VALUE`; required if it has no default."""

    doc: str
    default: str | None = None


class WordTable(msgspec.Struct, frozen=True, forbid_unknown_fields=True):
    """A text made from the vector: a translation (`of`, `values`), or a template (`text`)."""

    of: str = ""
    values: dict[str, str] = {}
    text: str = ""

    @property
    def source(self) -> str:
        """What it is made from, as a text with placeholders."""
        return f"{{{self.of}}}" if self.of else self.text


class RowMatch(msgspec.Struct, frozen=True, forbid_unknown_fields=True):
    """A row of the answer belongs to the vector if it has this value `at` a place."""

    at: At
    equals: str | None = None
    pattern: str | None = None


class TimePlace(msgspec.Struct, frozen=True, forbid_unknown_fields=True):
    """Where the time is, and its unit; or a rate, from which the time follows."""

    at: At
    unit: str


class ValuePlace(msgspec.Struct, frozen=True, forbid_unknown_fields=True):
    """Where another value is."""

    at: At
    values: dict[str, str] = {}


class ResultTable(msgspec.Struct, frozen=True, forbid_unknown_fields=True):
    """How an answer is read."""

    format: Literal["json", "csv", "regex"]
    time: TimePlace
    file: str = ""
    rows: list[str | int] = []
    match: list[RowMatch] = []
    pick: Literal["only", "first", "last"] = "only"
    status: ValuePlace | None = None
    error: ValuePlace | None = None
    max_abs_err: ValuePlace | None = None
    tolerance: float | None = None
    label: ValuePlace | None = None
    """What the program calls the kernel, if its answer says so."""

    def places(self) -> list[tuple[str, At]]:
        """Where everything is, with the key that says so."""
        values = ((name, getattr(self, name)) for name in ("time", "status", "error", "max_abs_err", "label"))
        found = [*((name, item) for name, item in values if item), *(("match", item) for item in self.match)]
        return [(f"result.{name}", item.at) for name, item in found]


class VectorVariant(msgspec.Struct, frozen=True, forbid_unknown_fields=True):
    """Where `of` has one of these values, a vector has other keys."""

    of: str
    values: list[str]
    vector: dict[str, Any] = {}
    without: list[str] = []

    def changed(self, vector: Mapping[str, Any]) -> dict[str, Any]:
        """A vector with these keys."""
        return {name: text for name, text in vector.items() if name not in self.without} | self.vector


class InputTable(msgspec.Struct, frozen=True, forbid_unknown_fields=True):
    """JSON for the program: what it looks like, and where it goes."""

    to: Literal["stdin", "file"]
    vector: dict[str, Any] = {}
    variants: list[VectorVariant] = []
    document: Any = None


class StatusPattern(msgspec.Struct, frozen=True, forbid_unknown_fields=True):
    """A regular expression that, found in what the program printed, decides the status."""

    text: str
    status: str


class BuildTable(msgspec.Struct, frozen=True, forbid_unknown_fields=True):
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
    result: ResultTable
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
    input: InputTable | None = None
    patterns: list[StatusPattern] = []
    exit_codes: dict[str, str] = {}
    software: dict[str, str | list[str]] = {}
    build: BuildTable | None = None
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


class Scope:
    """What placeholders stand for, words included; a value without a word is unsupported."""

    def __init__(self, values: Mapping[str, Any], words: Mapping[str, WordTable]) -> None:
        self.values, self.words = values, words

    def __getitem__(self, name: str) -> Any:
        if name in self.values:
            return self.values[name]
        word = self.words[name]
        if not word.of:
            return self.fill(word.text)
        value = text_of(self[word.of])
        if value not in word.values:
            raise Unsupported(f"there is no word for {word.of} = {value} (words.{name} knows {', '.join(word.values)})")
        return word.values[value]

    def plus(self, **values: object) -> Scope:
        """With more values, or others."""
        return Scope({**self.values, **values}, self.words)

    def knows(self, text: str) -> bool:
        """Whether there is a value for every placeholder of a text, directly or through words."""
        names = names_in(text)
        return all(name in self.values or (name in self.words and self.knows(self.words[name].source)) for name in names)

    def fill(self, text: str, *, escape: bool = False) -> str:
        """A text with its values; `escape` makes them literal inside a regular expression."""

        def replaced(token: re.Match[str]) -> str:
            if token[1] is None:
                return token[0][0]
            filled = text_of(self[token[1]])
            return re.escape(filled) if escape else filled

        return _TOKEN.sub(replaced, text)

    def fill_all(self, texts: Iterable[str]) -> list[str]:
        """Several texts."""
        return [self.fill(text) for text in texts]

    def document(self, node: Any) -> Any:
        """Lists and tables with their texts filled; a text that is one placeholder keeps its value's type."""
        if isinstance(node, Mapping):
            return {key: self.document(value) for key, value in node.items()}
        if isinstance(node, list):
            return [self.document(value) for value in node]
        if not isinstance(node, str):
            return node
        alone = re.fullmatch(r"\{([^{}]+)\}", node)
        return self[alone[1]] if alone else self.fill(node)


def progress_pattern(text: str) -> str:
    """`progress` as a regular expression: `{id}` becomes a group of that name, doubled braces single ones."""
    return Scope({"id": "(?P<id>[0-9a-f]+-[0-9]+-[0-9]+)"}, {}).fill(text)
