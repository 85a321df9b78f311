"""Texts with placeholders: `--m={problem.M}`. Doubled braces stand for themselves.

Names are checked when a benchmark is loaded, so that filling a template later can only fail for a value that has
no word in the benchmark.
"""

from __future__ import annotations

import re
from collections.abc import Iterable, Iterator, Mapping
from typing import Any

from kerncast.errors import BadFile, NotFound
from kerncast.measuring.backends.contract import Unsupported

_TOKEN = re.compile(r"\{\{|\}\}|\{([^{}]*)\}|[{}]")

Value = int | bool | str | None


def text_of(value: Value) -> str:
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


class Word:
    """A named text of a benchmark: a translation of a value, or a template."""

    def __init__(self, of: str, values: Mapping[str, str], text: str) -> None:
        self.of, self.values, self.text = of, values, text


class Scope:
    """What placeholders stand for, words included; a value without a word is unsupported."""

    def __init__(self, values: Mapping[str, Value], words: Mapping[str, Word]) -> None:
        self.values, self.words = values, words

    def __getitem__(self, name: str) -> Value:
        if name in self.values:
            return self.values[name]
        word = self.words[name]
        if not word.of:
            return self.fill(word.text)
        value = text_of(self[word.of])
        if value not in word.values:
            raise Unsupported(f"there is no word for {word.of} = {value} (words.{name} knows {', '.join(word.values)})")
        return word.values[value]

    def fill(self, text: str, *, escape: bool = False) -> str:
        """A template as text; `escape` makes the values literal inside a regular expression."""

        def replaced(token: re.Match[str]) -> str:
            if token[1] is None:
                return token[0][0]
            filled = text_of(self[token[1]])
            return re.escape(filled) if escape else filled

        return _TOKEN.sub(replaced, text)

    def fill_all(self, texts: Iterable[str]) -> list[str]:
        """Several templates."""
        return [self.fill(text) for text in texts]

    def document(self, node: Any, whole: Mapping[str, Any] | None = None) -> Any:
        """Lists and tables with their texts filled; a text that is one placeholder keeps its value's type."""
        if isinstance(node, Mapping):
            return {key: self.document(value, whole) for key, value in node.items()}
        if isinstance(node, list):
            return [self.document(value, whole) for value in node]
        if not isinstance(node, str):
            return node
        alone = re.fullmatch(r"\{([^{}]+)\}", node)
        if alone and whole is not None and alone[1] in whole:
            return whole[alone[1]]
        return self[alone[1]] if alone else self.fill(node)
