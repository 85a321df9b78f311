"""The fenced blocks of a page, the markers above them, and the commands inside them.

A marker is a comment that readers do not see, on a line of its own directly above a block:

    <!-- needs: gpu -->                        not run, for it needs a gpu, files, minutes, a program or opencl;
                                               its commands are checked against the options of the command line
    <!-- uses: cmake g++ -->                   run only where these programs are; without them the rest of the page is skipped
    <!-- exits: 0, 1 -->                       exit codes other than 0 that are right
    <!-- smaller: collect --max-vectors 9 -->  options that the test adds to commands of that verb, to be done in seconds
    <!-- file: bench.py -->                    the block is the content of a file that the next blocks use
    <!-- makes: the example data -->           run once for all pages, before them
    <!-- printed: elsewhere -->                what it shows is of another machine or other data, and is not compared

and one anywhere in a page: `<!-- starts with: mine held_out more=mine -->`, what of the example data its folder holds.

What a block shows below a command must be what the command prints, up to white space; `…` stands for anything. `make examples`
writes what is printed now into the pages.
"""

from __future__ import annotations

import itertools
import re
from dataclasses import dataclass, field
from pathlib import Path

ROOT = Path(__file__).parents[2]
PAGES = [ROOT / "README.md", *sorted((ROOT / "docs").glob("*.md"))]
NEEDS = {"gpu", "files", "minutes", "program", "opencl"}
MARKERS = {"needs", "uses", "exits", "smaller", "file", "makes", "printed"}
_MARKER = re.compile(r"<!-- ([a-z ]+): (.*) -->")
_FENCE = re.compile(r"```(\S*)")
_LEFT_OUT = "…"
_NUMBER = re.compile(r"(?<![\w.])-?\d[\d,]*(?:\.\d+)?(?:e[-+]?\d+)?")


@dataclass(frozen=True)
class Command:
    """What a shell would run: a line after `$ `, with its continuations and here-documents; and what it is shown to print."""

    line: int
    text: str
    shown: str = ""

    @property
    def shown_at(self) -> int:
        """The line of the page where that begins."""
        return self.line + self.text.count("\n") + 1


@dataclass(frozen=True)
class Block:
    """A fenced block, with the line of its first line of text."""

    language: str
    line: int
    text: str
    markers: dict[str, str] = field(default_factory=dict)

    def commands(self) -> list[Command]:
        """The commands of a console block, each with the lines that follow it."""
        found: list[Command] = []
        lines = self.text.split("\n")
        place = 0
        while place < len(lines):
            first = place
            place += 1
            if not lines[first].startswith("$ "):
                continue
            whole = [lines[first][2:]]
            while whole[-1].endswith("\\"):
                whole.append(lines[place])
                place += 1
            end = re.search(r"<<\s*'?(\w+)'?", whole[-1])
            while end and whole[-1] != end[1]:
                whole.append(lines[place])
                place += 1
            shown = list(itertools.takewhile(lambda line: not line.startswith("$ "), lines[place:]))
            place += len(shown)
            found.append(Command(self.line + first, "\n".join(whole), "\n".join(shown)))
        return found

    def smaller(self) -> dict[str, list[str]]:
        """By verb, the options that make a command of it quick."""
        words = (item.split() for item in self.markers.get("smaller", "").split(";") if item)
        return {verb: options for verb, *options in words}


def blocks_of(text: str) -> list[Block]:
    """The blocks of a page in its order."""
    found: list[Block] = []
    markers: dict[str, str] = {}
    lines = text.split("\n")
    place = 0
    while place < len(lines):
        line = lines[place]
        place += 1
        if fence := _FENCE.match(line):
            begin = place
            while not lines[place].startswith("```"):
                place += 1
            found.append(Block(fence[1], begin + 1, "\n".join(lines[begin:place]), markers))
            place += 1
            markers = {}
        elif marker := _MARKER.fullmatch(line):
            markers[marker[1]] = marker[2]
        else:
            markers = {}
    return found


def starts_with(text: str) -> dict[str, str]:
    """What a page's folder holds at first: its name there, and the name in the example data."""
    found = re.search(r"^<!-- starts with: (.*) -->$", text, re.M)
    pairs = (item.split("=") for item in found[1].split()) if found else ()
    return {pair[0]: pair[-1] for pair in pairs}


def without_blocks(text: str) -> str:
    """The prose of a page, line by line: fenced blocks and comments become empty lines."""
    prose = re.sub(r"^```.*?^```|<!--.*?-->", lambda found: "\n" * found[0].count("\n"), text, flags=re.M | re.S)
    assert prose.count("\n") == text.count("\n")
    return prose


def is_printed(shown: str, printed: str) -> bool:
    """Whether that is what a page shows, up to white space and what is left out."""
    return _pattern(shown).fullmatch(printed) is not None


def rewritten(shown: str, printed: str) -> str | None:
    """What a page shows, with what is printed now; None if more than numbers changed and only a person can say what to show."""
    if _LEFT_OUT not in shown and shown.count("\n") == printed.strip().count("\n"):
        return printed.rstrip()
    found = _pattern(shown, numbers=False).fullmatch(printed)
    if found is None:
        return None if _LEFT_OUT in shown else printed.rstrip()
    numbers = iter(found.groups())
    return _NUMBER.sub(lambda _: next(numbers), shown)


def _pattern(shown: str, *, numbers: bool = True) -> re.Pattern[str]:
    """What matches a printed text; without `numbers`, a group for each number."""
    parts = []
    for word in re.split(rf"(\s+|{_LEFT_OUT})", shown.strip()):
        if word == _LEFT_OUT:
            parts.append(".*?")
        elif not word.strip():
            parts.append(r"\s*" if word else "")
        elif numbers:
            parts.append(re.escape(word))
        else:
            ends = [0, *itertools.chain.from_iterable(found.span() for found in _NUMBER.finditer(word)), len(word)]
            between = (re.escape(word[begin:end]) for begin, end in zip(ends[::2], ends[1::2], strict=True))
            parts.append(f"({_NUMBER.pattern})".join(between))
    return re.compile(r"\s*" + "".join(parts) + r"\s*", re.DOTALL)
