"""An external benchmark program, in a TOML file that is checked when it is loaded: an error names the key, the value and what
is known. The keys are in `schema`; benchmarks that ship are the files in `benchmarks/`.

The rule that matters most: every parameter of the problem and of the config either reaches the program or is
fixed under `[only]`. A program that is not told the batch measures another problem under this one's name.
"""

from __future__ import annotations

import re
from collections.abc import Mapping
from importlib import resources
from pathlib import Path

import msgspec
from msgspec import structs

from kerncast.core.io.artefact import ArtefactKind, Findings
from kerncast.core.io.foreign import TOML, decode_toml, guarded
from kerncast.core.op import Family
from kerncast.errors import BadFile, InvalidValue, NotFound
from kerncast.library.declared.declaration import declaration_of
from kerncast.library.declared.family_file import TABLES, declaration_in_file
from kerncast.measuring.backends.command.schema import (
    RATES,
    UNITS,
    Benchmark,
    InputTable,
    ResultTable,
    Scope,
    check_names,
    leaves,
    names_in,
    progress_pattern,
    text_of,
)

# As in kerncast.data.schema, which loads more than a worker needs; a test keeps the two equal.
STATUSES = (
    "ok", "invalid", "compile_error", "launch_error", "out_of_memory", "wrong_result", "timeout", "crash", "unsupported",
    "not_run",
)  # fmt: skip
# Known before any vector is: the device's index, a fresh folder, what the user asked for.
STATIC = ("device", "scratch", "verify", "cache", "vectors_file", "result_file")
WHOLE = {"vector", "vectors", "vectors_by_id"}
FORMS = {"json": 'a list of keys, as ["a", 0]', "csv": "a column", "regex": "a regular expression"}


class _Names:
    """The placeholders of a benchmark, by what they depend on."""

    def __init__(self, benchmark: Benchmark, family: Family) -> None:
        halves = (("problem", family.problem), ("config", family.config))
        self.parameters = {f"{half}.{name}": rule for half, space in halves for name, rule in space.parameters.items()}
        self.settings = set(benchmark.setting_values())
        self.static = {*self.settings, *STATIC}
        self.vector = {*self.parameters, "id"}
        self.reads: dict[str, set[str]] = {}
        for name, word in benchmark.words.items():
            where = f"words.{name}"
            if name in self.static | self.vector | WHOLE | {"binary"} or "." in name:
                raise BadFile(f"{where}: the name is taken or has a dot; choose another")
            if bool(word.of) == bool(word.text) or bool(word.of) != bool(word.values):
                raise BadFile(f"{where} needs either `of` and `values`, or `text`")
            # A word may use only the words above it, so there are no cycles.
            self.reads[name] = self.behind(check_names([word.source], self.static | self.vector, where))
            (self.vector if self.reads[name] & self.vector else self.static).add(name)

    def behind(self, used: set[str]) -> set[str]:
        """What placeholders stand for, directly or through words."""
        return {leaf for name in used for leaf in self.reads.get(name, {name})}


def check(benchmark: Benchmark) -> None:
    """Refuse a benchmark that cannot work."""
    family = benchmark.measured_family
    names = _Names(benchmark, family)
    if not benchmark.argv:
        raise BadFile("argv must name a program and its arguments, got none")
    least = (benchmark.chunk, 1 if benchmark.samples is None else benchmark.samples)
    above = (benchmark.timeout, 1 if benchmark.each is None else benchmark.each)
    if min(least) < 1 or min(above) <= 0 or benchmark.startup < 0:
        raise BadFile("chunk and samples must be at least 1, timeout and each more than 0 and startup not negative")
    for name in ("alike", "each", "progress"):
        if getattr(benchmark, name) and benchmark.mode != "chunk":
            raise BadFile(f'{name} is for programs that take many vectors: set mode = "chunk", or leave it out')
    for name in benchmark.alike:
        if name not in names.vector - {"id"}:
            raise BadFile(f"alike: {NotFound.named('word or parameter', name, names.vector - {'id'})}")
    check_names([benchmark.progress], {"id"}, "progress")
    _check_regex(progress_pattern(benchmark.progress), "progress", 0)
    _check_statuses(benchmark)
    _check_result(benchmark.result, family, benchmark.mode == "chunk")
    for name, values in benchmark.only.items():
        if name not in names.parameters:
            raise BadFile(f"[only] {NotFound.named('parameter', name, names.parameters)}")
        rule = names.parameters[name]
        for value in values:
            if rule.index(value) is None:
                raise BadFile(f"[only] {name} must be {rule.describe()}, got {text_of(value)}")
    used = _check_texts(benchmark, names)
    told = names.behind(used)
    if benchmark.input is not None and not benchmark.input.vector and _sends_vectors(benchmark.input):
        told |= names.parameters.keys()  # without input.vector the whole vector is sent
    # The only value that there is need not be told.
    fixed = {name for name, rule in names.parameters.items() if rule.size == 1 and not rule.nullable}
    left = sorted(names.parameters.keys() - fixed - told - benchmark.only.keys())
    if left:
        raise BadFile(f"nothing tells the program {left[0]}: put {{{left[0]}}} where it reads it, or fix it under [only]")
    if "cache" in used and benchmark.cache != "warm":
        raise BadFile("cache says what a program measures that does not get {cache}: leave it out, or do not use {cache}")


def _sends_vectors(wanted: InputTable) -> bool:
    """Whether the document has the vectors in it."""
    return wanted.document is None or bool(WHOLE & {name for text in leaves(wanted.document) for name in names_in(text)})


def _check_texts(benchmark: Benchmark, names: _Names) -> set[str]:
    """Every text uses known placeholders; returns those that reach the program."""
    early, build, result = names.settings | {"device"}, benchmark.build, benchmark.result
    chunk, every = benchmark.mode == "chunk", names.static | names.vector
    check_names([benchmark.device], names.settings, "device")
    check_names(benchmark.reset, early, "reset")
    check_names(leaves(benchmark.software), early, "software")
    used: set[str] = set()
    if build is not None:
        made = every - {"vectors_file", "result_file", "scratch", "id", "verify", "cache"}
        if build.each and not build.output:
            raise BadFile("build.each makes many binaries in one call: build.output must say where each of them is")
        one = (early if build.each else made) | {"build_jobs"} | (set() if build.output else {"binary"})
        used |= check_names([*build.argv, build.directory], one, "build.argv")
        used |= check_names([build.each, build.output, *build.sources], made, "build.each, build.output and build.sources")
        every = every | {"binary"}
    if chunk and (benchmark.patterns or build is not None or benchmark.input is None or not result.match):
        raise BadFile('mode = "chunk" needs [input] and result.match, and allows neither patterns nor a build step')
    # In a chunk the vectors travel in the document alone; a program is started once for many.
    outer = names.static | set(benchmark.alike) if chunk else every
    texts = [*benchmark.argv, *benchmark.environment.values(), benchmark.directory]
    called = check_names(texts, outer, "argv, environment and directory")
    used |= called
    if benchmark.input is not None and benchmark.input.to == "file" and "vectors_file" not in names.behind(called):
        raise BadFile('input.to = "file" writes {vectors_file}, but nothing tells the program its path: put it into argv')
    if build is not None and "binary" not in used:
        raise BadFile("a build step makes {binary}, but argv does not use it")
    check_names([result.file], outer - {"binary"}, "result.file")
    check_names([text for item in result.match for text in (item.equals, item.pattern) if text], every, "result.match")
    if benchmark.input is not None:
        shape = _check_shapes(benchmark.input, every - {"binary"}, names)
        used |= shape if _sends_vectors(benchmark.input) else set()
        used |= check_names(leaves(benchmark.input.document), outer | WHOLE, "input.document")
    return used


def _check_shapes(wanted: InputTable, known: set[str], names: _Names) -> set[str]:
    """What is in a vector whatever variant of it is sent."""
    shared = names.behind(check_names(leaves(wanted.vector), known, "input.vector"))
    for variant in wanted.variants:
        if not wanted.vector:
            raise BadFile("input.variants change input.vector, which is empty: write it out")
        if variant.of not in names.vector:
            raise BadFile(f"input.variants: {NotFound.named('word or parameter', variant.of, names.vector)}")
        missing = [name for name in variant.without if name not in wanted.vector]
        if missing:
            raise BadFile(f"input.variants: {NotFound.named('key of input.vector', missing[0], wanted.vector)}")
        shared &= names.behind(check_names(leaves(variant.changed(wanted.vector)), known, "input.variants"))
    return shared


def _check_statuses(benchmark: Benchmark) -> None:
    said = [*benchmark.exit_codes.values(), *benchmark.reset_after, *(item.status for item in benchmark.patterns)]
    said += benchmark.result.status.values.values() if benchmark.result.status else []
    for status in said:
        if status not in STATUSES:
            raise BadFile(str(NotFound.named("status", status, STATUSES)))
    for code in benchmark.exit_codes:
        if not re.fullmatch(r"\d{1,3}", code):
            raise BadFile(f"exit_codes must be numbers, got '{code}' (signals are crashes by themselves)")
    for pattern in benchmark.patterns:
        _check_regex(pattern.text, "patterns", 0)


def _check_regex(text: str, where: str, groups: int) -> None:
    try:
        compiled = re.compile(text)
    except re.error as error:
        raise BadFile(f"{where}: '{text}' is not a regular expression ({error})") from error
    if compiled.groups < groups:
        raise BadFile(f"{where}: '{text}' needs a group around the value: (…)")


def _check_result(result: ResultTable, family: Family, chunk: bool) -> None:
    for where, at in result.places():
        if isinstance(at, str) != (result.format != "json") or not at:
            raise BadFile(f"{where}: for {result.format} `at` is {FORMS[result.format]}, got {at!r}")
        if result.format == "regex":
            _check_regex(str(at), where, 1)
    if result.format == "regex" and (result.match or chunk or result.rows):
        raise BadFile("a regex answer has no rows: use json or csv for match, rows and chunks")
    if any((item.equals is None) == (item.pattern is None) for item in result.match):
        raise BadFile("each result.match needs either equals or pattern")
    if result.time.unit not in (*UNITS, *RATES):
        raise BadFile(f"result.time.unit must be one of {', '.join((*UNITS, *RATES))}, got '{result.time.unit}'")
    if result.time.unit in RATES and family.op.work(family.op.namespace()) is None:
        raise BadFile(f"{family.op.name} does not declare its arithmetic: read a time instead of {result.time.unit}")
    if result.tolerance is not None and result.max_abs_err is None:
        raise BadFile("result.tolerance needs result.max_abs_err")


def shipped() -> dict[str, str]:
    """The benchmarks that come with kerncast, name → text."""
    folder = resources.files(__package__) / "benchmarks"
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
    text = toml_text("benchmark", name, shipped())
    with guarded(name, "every key is explained in docs/command.md", "is not a benchmark"):
        tables = decode_toml(text)
        own = declaration_in_file(f"benchmark {name}", tables)
        if own is not None:
            tables = {key: value for key, value in tables.items() if key not in TABLES} | {"family": own.family}
        elif family is not None and tables.get("family") == family.id:
            own = declaration_of(family)
        benchmark = structs.replace(msgspec.convert(tables, Benchmark), declaration=own)
    try:
        if check_names([benchmark.family], benchmark.setting_values(), "family"):
            # A setting decides the family, so the settings are filled in before the rules of that family are checked.
            benchmark = _with_settings(benchmark, settings or {})
            benchmark = structs.replace(benchmark, family=Scope(benchmark.setting_values(), {}).fill(benchmark.family))
        check(benchmark)
    except BadFile as error:
        raise BadFile(f"benchmark {name}: {error}") from error
    return _with_settings(benchmark, settings or {})


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
