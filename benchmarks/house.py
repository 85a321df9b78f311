"""How heavy the package is, and how far one question walks through it: lines, files, rooms, imports, names, options.

    python benchmarks/house.py [--edges]

A *room* is a folder of the package. `ROWS` says which rooms a room may import from; `--edges` lists the imports that break
this, one a line.
"""

from __future__ import annotations

import argparse
import ast
import inspect
import re
import statistics
import sys
import tempfile
import tomllib
from collections import Counter, defaultdict
from collections.abc import Callable, Iterable, Iterator, Sequence
from dataclasses import dataclass
from functools import cached_property
from pathlib import Path
from types import FrameType

from reporting import ROOT, Row, Target, show

SOURCES = ROOT / "src"
PACKAGE = SOURCES / "kerncast"
# From the lowest row up. A room imports from rows below its own, and from itself.
ROWS = (
    ("core",),
    ("data", "library"),
    ("measuring", "learning"),
    ("models",),
    ("training", "answering", "native"),
    ("regenerating", "evaluating", "estimating", "torch"),
    ("app", "testing"),
)
WITHIN_A_ROW = {("data", "library"), ("answering", "native"), ("regenerating", "evaluating")}
# What is in no room, is below all of them: errors, version, torch_entry.
HOME = {f"kerncast.{room}": room for rooms in ROWS for room in rooms}
# Public names and torch's entry points: what they load when it is used is in the rooms.
FRONTS = ("kerncast", "kerncast.torch_entry")
SENTENCE_LETTERS = 20
# One that exists stands for the next of its kind: in how many files its name is code.
EXISTING = {
    "a tier (`portfolio`)": ("portfolio", 5),
    "an export target (`autoheuristic`)": ("autoheuristic", 1),
    "an importer (`ttnn-csv`)": ("ttnn-csv", 1),
    "a learner with C (`mlp`)": ("mlp", 1),
}
# What the words above mean elsewhere: a layer of a language model.
NOT_MEANT = ("kerncast.estimating", "kerncast.testing")
PROBLEM = {"M": 4096, "N": 4096, "K": 4096, "dtype": "bf16"}


@dataclass(frozen=True)
class Edge:
    """An import of one module by another: its line, and whether the module is named by a string."""

    importer: str
    imported: str
    line: int
    by_string: bool = False


@dataclass(frozen=True)
class Source:
    """A file of the package."""

    path: Path

    @property
    def module(self) -> str:
        parts = self.path.relative_to(SOURCES).with_suffix("").parts
        return ".".join(parts[:-1] if parts[-1] == "__init__" else parts)

    @cached_property
    def text(self) -> str:
        return self.path.read_text(encoding="utf-8")

    @cached_property
    def tree(self) -> ast.Module:
        return ast.parse(self.text)

    @property
    def lines(self) -> int:
        return self.text.count("\n")

    def edges(self, modules: set[str]) -> Iterator[Edge]:
        """Imports of the package's own modules, also those inside functions and by a string."""
        for node in ast.walk(self.tree):
            if isinstance(node, ast.ImportFrom) and node.module and node.level == 0:
                for name in node.names:
                    inner = f"{node.module}.{name.name}"
                    yield from self._edge(inner if inner in modules else node.module, node.lineno, modules)
            elif isinstance(node, ast.Import):
                for name in node.names:
                    yield from self._edge(name.name, node.lineno, modules)
            elif isinstance(node, ast.Constant) and isinstance(node.value, str):
                # `package` alone is the name of an entry point or of resources, `package:Class` and `package.module` are code.
                named = node.value.split(":")[0]
                if named.count(".") > 1 or ":" in node.value:
                    yield from self._edge(named, node.lineno, modules, by_string=True)

    def _edge(self, name: str, line: int, modules: set[str], by_string: bool = False) -> Iterator[Edge]:
        if name in modules and self.module not in FRONTS and name not in ("kerncast", self.module):
            yield Edge(self.module, name, line, by_string)

    def classes(self) -> list[str]:
        return [node.name for node in self.tree.body if isinstance(node, ast.ClassDef)]

    def sentences(self) -> set[str]:
        """What it raises, with `{}` for what is filled in."""
        raised = (node.exc for node in ast.walk(self.tree) if isinstance(node, ast.Raise) and isinstance(node.exc, ast.Call))
        found = (_template(argument) for call in raised for argument in call.args[:1])
        return {text for text in found if len(re.findall(r"[a-z]", text)) >= SENTENCE_LETTERS}

    def names(self, word: str) -> bool:
        """Whether the word is code here: a string, a name or an attribute of its own, or a module."""
        for node in ast.walk(self.tree):
            if isinstance(node, ast.Constant) and node.value == word:
                return True
            if isinstance(node, ast.ImportFrom) and node.module and word.replace("-", "_") in node.module.split("."):
                return True
        return False


def _template(node: ast.expr) -> str:
    if isinstance(node, ast.Constant) and isinstance(node.value, str):
        return node.value
    if isinstance(node, ast.JoinedStr):
        return "".join(part.value if isinstance(part, ast.Constant) else "{}" for part in node.values)
    if isinstance(node, ast.BinOp):
        return _template(node.left) + _template(node.right)
    return ""


def sources() -> list[Source]:
    return [Source(path) for path in sorted(PACKAGE.rglob("*.py"))]


def room_of(module: str) -> str | None:
    while module and module not in HOME:
        module = module.rpartition(".")[0]
    return HOME.get(module)


def is_allowed(importer: str | None, imported: str | None) -> bool:
    if imported is None or importer == imported:
        return True
    if importer is None:
        return False
    row = {room: number for number, rooms in enumerate(ROWS) for room in rooms}
    return row[imported] < row[importer] or (importer, imported) in WITHIN_A_ROW


def broken(edges: Iterable[Edge]) -> list[Edge]:
    return [edge for edge in edges if not is_allowed(room_of(edge.importer), room_of(edge.imported))]


@dataclass
class Walk:
    """What runs while a question is answered: files and top-level entries of the package, calls of Python functions."""

    files: set[str]
    calls: int = 0

    @classmethod
    def of(cls, act: Callable[[], object]) -> Walk:
        walk = cls(set())

        def seen(frame: FrameType, event: str, _: object) -> None:
            if event == "call":
                walk.calls += 1
                walk.files.add(frame.f_code.co_filename)

        sys.setprofile(seen)
        try:
            act()
        finally:
            sys.setprofile(None)
        walk.calls -= 1  # `act` itself
        walk.files = {name for name in walk.files if Path(name).is_relative_to(PACKAGE)}
        return walk

    @property
    def rooms(self) -> int:
        return len({Path(name).relative_to(PACKAGE).parts[0] for name in self.files})


def weight_rows(files: Sequence[Source]) -> list[Row]:
    entries = {path.name for path in PACKAGE.iterdir() if path.suffix == ".py" or (path.is_dir() and any(path.rglob("*.py")))}
    c_lines = sum(path.read_text(encoding="utf-8").count("\n") for path in (PACKAGE / "native").rglob("*.[ch]"))
    pages = list((ROOT / "docs").glob("*.md"))
    readme = (ROOT / "README.md").read_text(encoding="utf-8")
    return [
        Row("lines of Python in src", sum(file.lines for file in files), target=Target(high=76_000)),
        Row("files in src", len(files), target=Target(high=340)),
        Row("lines of a file, median", statistics.median(file.lines for file in files), target=Target(low=170)),
        Row("top-level entries in src/kerncast", len(entries), target=Target(high=19), note="15 rooms and 4 modules"),
        Row("lines of C in the engine", c_lines, target=Target(high=4_700)),
        Row("pages of docs", len(pages), target=Target(high=32)),
        Row("lines of README", readme.count("\n"), target=Target(high=110)),
    ]


def layer_rows(files: Sequence[Source]) -> tuple[list[Row], list[Edge]]:
    contracts = tomllib.loads((ROOT / "pyproject.toml").read_text(encoding="utf-8"))["tool"]["importlinter"]["contracts"]
    layers = sum(len(contract.get("layers", ())) for contract in contracts)
    modules = {file.module for file in files}
    edges = {edge for file in files for edge in file.edges(modules)}
    wrong = sorted(broken(edges), key=lambda edge: (edge.importer, edge.line))
    pairs = {(edge.importer, edge.imported) for edge in wrong}
    by_string = {(edge.importer, edge.imported) for edge in wrong if edge.by_string}
    return [
        Row("layers of import-linter", layers, target=Target(high=7)),
        Row("imports that break the rooms' order", len(pairs), target=Target(high=0)),
        Row("of these by a string", len(by_string), target=Target(high=0)),
    ], wrong


def repeated(found: Iterable[Iterable[str]]) -> list[str]:
    """What stands in more than one file."""
    return sorted(name for name, count in Counter(item for items in found for item in set(items)).items() if count > 1)


def name_rows(files: Sequence[Source]) -> list[Row]:
    sentences = repeated(file.sentences() for file in files)
    homes = defaultdict(list)
    for file in files:
        for name in file.classes():
            homes[name].append(file.module)
    rows = [
        Row("class names used twice", sum(len(places) > 1 for places in homes.values()), target=Target(high=0)),
        Row("error sentences that stand in two files", len(sentences), target=Target(high=0)),
    ]
    for what, (word, most) in EXISTING.items():
        places = [file for file in files if not file.module.startswith(NOT_MEANT) and file.names(word)]
        note = "what one more of its kind touches"
        rows.append(Row(f"files that name {what}", len(places), target=Target(high=most), note=note))
    return rows


def option_rows() -> list[Row]:
    import kerncast as kc
    from kerncast.app.cli import VERBS

    public = {*kc.__all__} - {*kc.ERRORS, "__version__"}
    return [
        Row("verbs", len(VERBS), target=Target(high=18)),
        Row("parameters of collect", len(inspect.signature(kc.collect).parameters), target=Target(high=12)),
        Row("public names beside the errors", len(public), target=Target(high=20)),
    ]


def walk_rows() -> list[Row]:
    """A warm question of each kind; the second one of a kind loads nothing more."""
    import kerncast as kc
    from kerncast.testing.models import synthetic_dataset, synthetic_rows

    def predict() -> object:
        return kc.predict("gemm", PROBLEM, device="h100")

    for _ in range(3):
        predict()
    walk = Walk.of(predict)
    with tempfile.TemporaryDirectory() as folder:
        data = synthetic_dataset(Path(folder) / "data", synthetic_rows(problems=12))
        pick = kc.Selector(kc.train(data, kind="roofline", folds=2, progress=False), compile=False)
    asked = {"M": 512, "N": 512, "K": 512, "dtype": "fp16", "layout": "rcr"}
    pick(**asked)
    again = Walk.of(lambda: pick(**asked))
    return [
        Row("kc.predict, warm: files", len(walk.files), target=Target(high=25)),
        Row("kc.predict, warm: top-level entries", walk.rooms, target=Target(high=9)),
        Row("kc.predict, warm: calls", walk.calls, target=Target(high=6_000)),
        Row("pick(M=…), the second time: calls", again.calls, target=Target(high=40)),
    ]


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--edges", action="store_true", help="list the imports that break the order of the rooms")
    given = parser.parse_args()
    files = sources()
    layers, wrong = layer_rows(files)
    if given.edges:
        for edge in wrong:
            way = " by a string" if edge.by_string else ""
            print(f"{room_of(edge.importer)} → {room_of(edge.imported)}{way}: {edge.importer}:{edge.line} {edge.imported}")
    return show([*weight_rows(files), *layers, *name_rows(files), *option_rows(), *walk_rows()])


if __name__ == "__main__":
    sys.exit(main())
