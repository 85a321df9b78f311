"""Whether a command line in a page could be right: its verb, its options, and the names that it gives."""

from __future__ import annotations

import re
import shlex
from collections.abc import Iterable, Iterator

import click

from kerncast.app.cli import program
from kerncast.data.formats import importers
from kerncast.errors import KerncastError
from kerncast.learning.learners.kinds import learner_class
from kerncast.library import devices
from kerncast.library.problems import named_sets, parse_vary, problem_set
from kerncast.library.registry import OPS, family_named
from kerncast.measuring.backends.command.benchmark import load, shipped, shipped_for
from kerncast.measuring.sweeping import parse_selection

SAMPLES = 5


def split(text: str) -> list[str]:
    """A command as words, without the comment behind it; typed quotes and backslashes as a shell reads them."""
    return shlex.split(text.replace("\\\n", " "), comments=True)


def find(words: list[str]) -> tuple[click.Command, list[str]]:
    """The command that words after `kerncast` call, and the words that are left for it."""
    found: click.Command = program
    while isinstance(found, click.Group) and words and not words[0].startswith("-"):
        inner = found.get_command(click.Context(found), words[0])
        if inner is None:
            raise KerncastError(f"there is no verb '{words[0]}'")
        # A routine is named where a verb could be, and is an argument of the command that runs it.
        found, words = inner, words[1:] if inner.name == words[0] else ["ROUTINE", *words[1:]]
    return found, words


def all_options() -> set[str]:
    """Every option of every verb."""
    return {name for command in _commands(program) for item in _parameters(command) for name in _names(item)}


def _names(item: click.Parameter) -> list[str]:
    return [*item.opts, *item.secondary_opts]


def _parameters(command: click.Command) -> list[click.Parameter]:
    """All of them: those that a command finds out when it is asked, too."""
    return command.get_params(click.Context(command))


def _commands(group: click.Command) -> Iterator[click.Command]:
    yield group
    if isinstance(group, click.Group):
        for name in group.list_commands(click.Context(group)):
            inner = group.get_command(click.Context(group), name)
            assert inner is not None
            yield from _commands(inner)


def open_word(word: str) -> bool:
    """A word that stands for what the reader puts there: FILE, RECIPE.toml, M=…, $CK."""
    return bool(re.search(r"…|\$|^[A-Z][A-Z0-9_|]+\b", word)) or word == "..."


def check(words: list[str], *, whole: bool) -> None:
    """Raise if a command line cannot be right; only a whole one must give every required argument."""
    command, rest = find(words)
    given, arguments = _read(command, rest)
    if whole:
        # Click's own reading: types, choices, required arguments; nothing is run.
        command.make_context(command.name, list(rest))
    _check_names(command, given, [item for item in arguments if not open_word(item)], "…" not in arguments)


def _read(command: click.Command, words: Iterable[str]) -> tuple[dict[str, list[str]], list[str]]:
    """The options that words give, under their longest names, and the arguments."""
    options = {name: item for item in _parameters(command) if isinstance(item, click.Option) for name in _names(item)}
    given: dict[str, list[str]] = {}
    arguments: list[str] = []
    left = iter(words)
    for word in left:
        name, _, value = word.partition("=")
        if name in ("-h", "--help", "--version"):
            continue
        if not word.startswith("-") or word == "-":
            arguments.append(word)
            continue
        if name not in options:
            raise KerncastError(f"`{command.name}` has no option {name}; it has {', '.join(sorted(options))}")
        option = options[name]
        if option.is_flag:
            value = ""
        elif not value:
            value = next(left, "…")
        if isinstance(option.type, click.Choice) and not open_word(value):
            option.type.convert(value, option, None)
        given.setdefault(max(option.opts, key=len), []).append(value)
    return given, arguments


def _names_a_family(word: str) -> bool:
    return "/" in word and not word.endswith(".toml")


def _check_names(command: click.Command, given: dict[str, list[str]], arguments: list[str], whole: bool) -> None:
    """Names of families, ops, formats, devices, kinds of models, benchmarks, problem sets and parameters."""
    known = {name: [item for item in values if not open_word(item)] for name, values in given.items()}
    for name in known.get("--device", []):
        # A profile of the page's own is there when its blocks run.
        everywhere = name == "all" and command.name in ("estimate", "predict")
        if not everywhere and not name.endswith(".toml"):
            devices.get(name)
    if command.name == "train":
        for name in known.get("--kind", []):
            learner_class(name)
    if command.name == "import" and arguments and arguments[0] not in importers():
        raise KerncastError(f"there is no format '{arguments[0]}'")
    if command.name == "list":
        what, arguments = arguments[0], arguments[1:]
        if what == "op" and arguments:
            OPS.get(arguments[0])
        if what == "device" and arguments:
            devices.get(arguments[0])
        if what != "family":
            return
    # A family in a file exists only while the page runs, and so does a sweep.
    if command.name not in ("collect", "sweep", "list") or not arguments or not _names_a_family(arguments[0]):
        return
    family = family_named(arguments[0])[0]
    vary = parse_vary(family, known.get("--vary", []))
    if "--configs" in known:
        for text in known["--configs"]:
            if not text.startswith("portfolio:"):
                parse_selection(family, re.sub(r"N$", str(SAMPLES), text))
    for text in known.get("--problems", []):
        if text not in {**named_sets(family.op), **family.op.sweeps} and ":" not in text and "." not in text:
            raise KerncastError(f"{family.op.name} has no problem set '{text}'")
        if text.startswith(("grid:", "lognormal:")) and "…" not in "".join(given.get("--vary", [])):
            problem_set(family, [text], vary)
    for name in known.get("--benchmark", []):
        if name in shipped() and whole:
            load(name, dict(item.split("=", 1) for item in given.get("--set", [])))
        if name in shipped() and name not in shipped_for(family.id):
            raise KerncastError(f"benchmark {name} does not measure {family.id}")
