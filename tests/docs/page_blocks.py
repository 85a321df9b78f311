"""The fenced blocks of a page, the markers above them, and the commands inside them.

A marker is a comment that readers do not see, on a line of its own directly above a block:

    <!-- needs: gpu -->                        not run, for it needs a gpu, files, minutes, a program or opencl;
                                               its commands are checked against the options of the command line
    <!-- uses: cmake g++ -->                   run only where these programs are; without them the rest of the page is skipped
    <!-- exits: 0, 1 -->                       exit codes other than 0 that are right
    <!-- smaller: collect --max-vectors 9 -->  options that the test adds to commands of that verb, to be done in seconds
    <!-- file: bench.py -->                    the block is the content of a file that the next blocks use
    <!-- makes: the example data -->           run once for all pages, before them

and one anywhere in a page: `<!-- starts with: mine held_out more=mine -->`, what of the example data its folder holds.
"""

from __future__ import annotations

import re
from dataclasses import dataclass, field
from pathlib import Path

ROOT = Path(__file__).parents[2]
PAGES = [ROOT / "README.md", *sorted((ROOT / "docs").glob("*.md"))]
NEEDS = {"gpu", "files", "minutes", "program", "opencl"}
MARKERS = {"needs", "uses", "exits", "smaller", "file", "makes"}
_MARKER = re.compile(r"<!-- ([a-z ]+): (.*) -->")
_FENCE = re.compile(r"```(\S*)")


@dataclass(frozen=True)
class Command:
    """What a shell would run: a line after `$ `, with its continuations and here-documents."""

    line: int
    text: str


@dataclass(frozen=True)
class Block:
    """A fenced block, with the line of its first line of text."""

    language: str
    line: int
    text: str
    markers: dict[str, str] = field(default_factory=dict)

    def commands(self) -> list[Command]:
        """The commands of a console block; what they print is left out."""
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
            found.append(Command(self.line + first, "\n".join(whole)))
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
