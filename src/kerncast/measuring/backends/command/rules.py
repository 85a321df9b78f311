"""The rules for a benchmark, checked once when it is loaded: an error names the key, the value and what is known.

The rule that matters most: every parameter of the problem and of the config either reaches the program or is
fixed under `[only]`. A program that is not told the batch measures another problem under this one's name.
"""

from __future__ import annotations

import re
from collections.abc import Iterable

from kerncast.core.op import Family
from kerncast.errors import BadFile, NotFound
from kerncast.measuring.backends.command.asking import ID, progress_pattern
from kerncast.measuring.backends.command.benchmark import At, Benchmark, Input, Result
from kerncast.measuring.backends.command.reading import RATES, UNITS
from kerncast.measuring.backends.command.template import check_names, leaves, names_in, text_of

# As in kerncast.data.schema, which loads more than a worker needs; a test keeps the two equal.
STATUSES = (
    "ok", "invalid", "compile_error", "launch_error", "out_of_memory", "wrong_result", "timeout", "crash", "unsupported",
    "not_run",
)  # fmt: skip
# Known before any vector is: the device's index, a fresh folder, what the user asked for.
STATIC = ("device", "scratch", "verify", "cache", "vectors_file", "result_file")
WHOLE = ("vector", "vectors", "vectors_by_id")


class _Names:
    """The placeholders of a benchmark, by what they depend on."""

    def __init__(self, benchmark: Benchmark, family: Family) -> None:
        self.benchmark = benchmark
        halves = (("problem", family.problem), ("config", family.config))
        found = {f"{half}.{name}": parameter for half, space in halves for name, parameter in space.parameters.items()}
        self.parameters = set(found)
        # The only value that there is need not be told.
        self.fixed = {name for name, parameter in found.items() if parameter.size == 1 and not parameter.nullable}
        self.settings = {f"setting.{name}" for name in benchmark.settings}
        self.static = {*self.settings, *STATIC}
        self.vector = {*self.parameters, "id"}
        self.reads: dict[str, set[str]] = {}
        for name, word in benchmark.words.items():
            where = f"words.{name}"
            if name in self.static | self.vector | set(WHOLE) | {"binary"} or "." in name:
                raise BadFile(f"{where}: the name is taken or has a dot; choose another")
            if bool(word.of) == bool(word.text) or bool(word.of) != bool(word.values):
                raise BadFile(f"{where} needs either `of` and `values`, or `text`")
            # A word may use only the words above it, so there are no cycles.
            used = check_names(["{" + word.of + "}"] if word.of else [word.text], self.static | self.vector, where)
            self.reads[name] = {leaf for item in used for leaf in self.reads.get(item, {item})}
            (self.vector if self.reads[name] & self.vector else self.static).add(name)

    def parameters_of(self, used: Iterable[str]) -> set[str]:
        """The parameters that placeholders stand for, directly or through words."""
        return self.behind(used) & self.parameters

    def behind(self, used: Iterable[str]) -> set[str]:
        """What placeholders stand for, directly or through words."""
        return {leaf for name in used for leaf in self.reads.get(name, {name})}


def check(benchmark: Benchmark) -> None:
    """Refuse a benchmark that cannot work."""
    family = benchmark.measured_family
    names = _Names(benchmark, family)
    if not benchmark.argv:
        raise BadFile("argv must name a program and its arguments, got none")
    if (
        benchmark.chunk < 1
        or benchmark.timeout <= 0
        or benchmark.startup < 0
        or (benchmark.each is not None and benchmark.each <= 0)
        or (benchmark.samples is not None and benchmark.samples < 1)
    ):
        raise BadFile("chunk and samples must be at least 1, timeout and each more than 0 and startup not negative")
    _check_chunk(benchmark, names)
    _check_statuses(benchmark)
    _check_result(benchmark.result, family, benchmark.mode == "chunk")
    _check_only(benchmark, family)
    used = _check_templates(benchmark, names)
    told = names.parameters_of(used)
    if benchmark.input is not None and not benchmark.input.vector and _sends_vectors(benchmark):
        told = names.parameters  # without input.vector the whole vector is sent
    left = sorted(names.parameters - names.fixed - told - set(benchmark.only))
    if left:
        raise BadFile(f"nothing tells the program {left[0]}: put {{{left[0]}}} where it reads it, or fix it under [only]")
    if "cache" in used and benchmark.cache != "warm":
        raise BadFile("cache says what a program measures that does not get {cache}: leave it out, or do not use {cache}")


def _check_chunk(benchmark: Benchmark, names: _Names) -> None:
    """Refuse keys for chunks elsewhere, and those that name nothing."""
    for name in ("alike", "each", "progress"):
        if getattr(benchmark, name) and benchmark.mode != "chunk":
            raise BadFile(f'{name} is for programs that take many vectors: set mode = "chunk", or leave it out')
    for name in benchmark.alike:
        if name not in names.vector - {ID}:
            raise BadFile(f"alike: {NotFound.named('word or parameter', name, names.vector - {ID})}")
    check_names([benchmark.progress], {ID}, "progress")
    _check_regex(progress_pattern(benchmark.progress), "progress", 0)


def _sends_vectors(benchmark: Benchmark) -> bool:
    """Whether the document has the vectors in it."""
    document = benchmark.input.document if benchmark.input else None
    return document is None or bool(set(WHOLE) & {name for text in leaves(document) for name in names_in(text)})


def _check_templates(benchmark: Benchmark, names: _Names) -> set[str]:
    """Every template uses known placeholders; returns those that reach the program."""
    early, build = names.settings | {"device"}, benchmark.build
    static, chunk = names.static, benchmark.mode == "chunk"
    every = static | names.vector
    check_names([benchmark.device], names.settings, "device")
    check_names(benchmark.reset, early, "reset")
    check_names(leaves(benchmark.software), early, "software")
    used: set[str] = set()
    if build is not None:
        made = every - {"vectors_file", "result_file", "scratch", "id", "verify", "cache"}
        if build.each and not build.output:
            raise BadFile("build.each makes many binaries in one call: build.output must say where each of them is")
        one = names.settings | {"device", "build_jobs"} if build.each else made | {"build_jobs"}
        target = set() if build.output else {"binary"}
        used |= check_names([*build.argv, build.directory], one | target, "build.argv")
        used |= check_names([build.each, build.output, *build.sources], made, "build.each, build.output and build.sources")
        every = every | {"binary"}
    if chunk and (benchmark.patterns or build is not None or benchmark.input is None or not benchmark.result.match):
        raise BadFile('mode = "chunk" needs [input] and result.match, and allows neither patterns nor a build step')
    # In a chunk the vectors travel in the document alone; a program is started once for many.
    outer = static | set(benchmark.alike) if chunk else every
    texts = [*benchmark.argv, *benchmark.environment.values(), benchmark.directory]
    called = check_names(texts, outer, "argv, environment and directory")
    used |= called
    if benchmark.input is not None and benchmark.input.to == "file" and "vectors_file" not in names.behind(called):
        raise BadFile('input.to = "file" writes {vectors_file}, but nothing tells the program its path: put it into argv')
    if build is not None and "binary" not in used:
        raise BadFile("a build step makes {binary}, but argv does not use it")
    check_names([benchmark.result.file], outer - {"binary"}, "result.file")
    check_names(
        [text for item in benchmark.result.match for text in (item.equals, item.pattern) if text], every, "result.match"
    )
    if benchmark.input is not None:
        shape = _check_shapes(benchmark.input, every - {"binary"}, names)
        used |= shape if _sends_vectors(benchmark) else set()
        used |= check_names(leaves(benchmark.input.document), outer | set(WHOLE), "input.document")
    return used


def _check_shapes(wanted: Input, known: set[str], names: _Names) -> set[str]:
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
        kept = {name: text for name, text in wanted.vector.items() if name not in variant.without} | variant.vector
        shared &= names.behind(check_names(leaves(kept), known, "input.variants"))
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


def _check_result(result: Result, family: Family, chunk: bool) -> None:
    places: list[tuple[str, At]] = [("result.time", result.time.at)]
    places += [
        (f"result.{name}", item.at) for name in ("status", "error", "max_abs_err", "label") if (item := getattr(result, name))
    ]
    places += [("result.match", item.at) for item in result.match]
    for where, at in places:
        if isinstance(at, str) != (result.format != "json") or not at:
            form = (
                'a list of keys, as ["a", 0]'
                if result.format == "json"
                else "a column"
                if result.format == "csv"
                else "a regular expression"
            )
            raise BadFile(f"{where}: for {result.format} `at` is {form}, got {at!r}")
        if result.format == "regex":
            _check_regex(str(at), where, 1)
    if result.format == "regex" and (result.match or chunk or result.rows):
        raise BadFile("a regex answer has no rows: use json or csv for match, rows and chunks")
    for item in result.match:
        if (item.equals is None) == (item.pattern is None):
            raise BadFile("each result.match needs either equals or pattern")
    if result.time.unit not in (*UNITS, *RATES):
        raise BadFile(f"result.time.unit must be one of {', '.join((*UNITS, *RATES))}, got '{result.time.unit}'")
    if result.time.unit in RATES and family.op.work(family.op.namespace()) is None:
        raise BadFile(f"{family.op.name} does not declare its arithmetic: read a time instead of {result.time.unit}")
    if result.tolerance is not None and result.max_abs_err is None:
        raise BadFile("result.tolerance needs result.max_abs_err")


def _check_only(benchmark: Benchmark, family: Family) -> None:
    for name, values in benchmark.only.items():
        kind, _, short = name.partition(".")
        space = {"problem": family.problem, "config": family.config}.get(kind)
        if space is None or short not in space.parameters:
            known = [f"problem.{n}" for n in family.problem.parameters] + [f"config.{n}" for n in family.config.parameters]
            raise BadFile(f"[only] {NotFound.named('parameter', name, known)}")
        rule = space.parameters[short]
        for value in values:
            if rule.index(value) is None:
                raise BadFile(f"[only] {name} must be {rule.describe()}, got {text_of(value)}")
