"""The dotted names of a page, resolved against the package: modules, functions, classes, and what their instances have.

Types are followed as far as annotations say them: `kc.train(…).figures.runtime` is `Model`, then `Figures`, then `Runtime`.
Where they end (a dictionary, another package), nothing more is checked.
"""

from __future__ import annotations

import ast
import contextlib
import functools
import importlib
import inspect
import re
import textwrap
import types
import typing
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from typing import Any, TypeAlias

from page_blocks import blocks_of, without_blocks

import kerncast
from kerncast.answering.dispatch import Dispatcher
from kerncast.core.op import Config, Family, Op, Problem
from kerncast.evaluating.compare import Verdict
from kerncast.evaluating.results import Evaluation
from kerncast.models.answer import Answer

Known: TypeAlias = "Value | Instance | Items | None"


@dataclass(frozen=True)
class Value:
    """A module, a class or a function itself."""

    of: Any


@dataclass(frozen=True)
class Instance:
    """Some instance of a class of the package."""

    of: type


@dataclass(frozen=True)
class Items:
    """A sequence; what is known of each of its items."""

    each: Known


_CLASSES = (Answer, Config, Evaluation, Family, Op, Problem, Verdict)
_CLASSES += (kerncast.Dataset, Dispatcher, kerncast.Model, kerncast.Selector, kerncast.Store)
# What the text of every page means by a first name. `op` and `family` are left out: they are also tables of TOML files.
ROOTS: Mapping[str, Known] = {
    "kerncast": Value(kerncast),
    "kc": Value(kerncast),
    **{item.__name__: Value(item) for item in _CLASSES},
    "answer": Instance(Answer),
    "dataset": Instance(kerncast.Dataset),
    "model": Instance(kerncast.Model),
    "selector": Instance(kerncast.Selector),
    "store": Instance(kerncast.Store),
}
_INLINE = re.compile(r"`([^`]+)`")
_DOTTED = re.compile(rf"(?<![\w./-])({'|'.join(ROOTS)})((?:\.[A-Za-z_]\w*)+)(?![\w/-])")
# The ends of files that are called like a root, and what an answer of exported C and C++ has beside those of Python.
_OTHERS = {"c", "h", "hpp", "in", "json", "kcb", "pc", "py", "toml", "message"}
# Groups of entry points, which are no modules.
_GROUPS = {f"kerncast.{name}" for name in ("backends", "exporters", "families", "importers", "learners", "ops", "problems")}
_AUTO = re.compile(r"^\.\. auto(?:class|function|module):: (\S+)(?:\n +:members:(.*))?", re.M)
_STARTED = re.compile(r"-m (kerncast(?:\.\w+)*)")


def wrong_names(text: str) -> Iterator[tuple[int, str]]:
    """The line and the name of everything that a page names and the package does not have."""
    prose = without_blocks(text)
    for code in _INLINE.finditer(prose):
        for found in _DOTTED.finditer(code[1]):
            known = found[0] in _GROUPS or found[2].rpartition(".")[2] in _OTHERS
            if not known and not resolved(found[0])[0]:
                yield prose.count("\n", 0, code.start(1) + found.start()) + 1, found[0]
    names = Names()
    for block in blocks_of(text):
        if block.language in ("python", "pycon"):
            lines = block.text.split("\n")
            if block.language == "pycon":
                lines = [line[4:] if line.startswith((">>> ", "... ")) else "" for line in lines]
            tree = ast.parse(textwrap.dedent("\n".join(lines)))
            yield from ((block.line + line - 1, name) for line, name in names.read(tree))
        for found in _STARTED.finditer(block.text if block.language == "console" else ""):
            if not resolved(found[1])[0]:
                yield block.line + block.text.count("\n", 0, found.start()), found[1]
        for found in _AUTO.finditer(block.text if block.language == "{eval-rst}" else ""):
            members = [f"{found[1]}.{name.strip()}" for name in (found[2] or "").split(",") if name.strip()]
            missing = [name for name in [found[1], *members] if not resolved(name)[0]]
            yield from ((block.line + block.text.count("\n", 0, found.start()), name) for name in missing)


def resolved(name: str) -> tuple[bool, Known]:
    """Whether a dotted name that begins with a root is there, and what is known of it."""
    first, *rest = name.split(".")
    found, known = True, ROOTS[first]
    for part in rest:
        found, known = attribute(known, part)
        if not found:
            break
    return found, known


def attribute(known: Known, name: str) -> tuple[bool, Known]:
    """Whether it has an attribute, and what is known of that."""
    if isinstance(known, Value) and isinstance(known.of, types.ModuleType):
        if hasattr(known.of, name):
            return True, _value(getattr(known.of, name))
        module = f"{known.of.__name__}.{name}"
        try:
            return True, Value(importlib.import_module(module))
        except ModuleNotFoundError as error:  # another one that is missing here, such as torch, says nothing
            return error.name != module, None
    if not isinstance(known, Value | Instance) or not isinstance(known.of, type) or not _ours(known.of):
        return True, None
    if hasattr(known.of, name):
        return True, _member(known.of, name)
    # Parameters are attributes of problems and configs; a selector only refuses by its `__getattr__`.
    any_name = hasattr(known.of, "__getattr__") and not issubclass(known.of, kerncast.Selector)
    return name in _annotated(known.of) or name in _assigned(known.of) or any_name, _field(known.of, name)


def _ours(item: Any) -> bool:
    return str(getattr(item, "__module__", "")).startswith("kerncast")


def _value(item: Any) -> Known:
    """Objects of the package that have names of their own; an instance by its class."""
    if isinstance(item, types.ModuleType | types.FunctionType | type) and (_ours(item) or isinstance(item, types.ModuleType)):
        return Value(item)
    return Instance(type(item)) if _ours(type(item)) else None


def _member(owner: type, name: str) -> Known:
    item = inspect.getattr_static(owner, name)
    if isinstance(item, property):
        return _type(item.fget.__annotations__.get("return"), item.fget, owner) if item.fget else None
    if isinstance(item, functools.cached_property):
        return _type(item.func.__annotations__.get("return"), item.func, owner)
    if isinstance(item, classmethod | staticmethod):
        return Value(functools.partial(item.__func__, owner) if isinstance(item, classmethod) else item.__func__)
    if isinstance(item, types.FunctionType):
        return Value(functools.partial(item, owner))
    return _field(owner, name)


def _field(owner: type, name: str) -> Known:
    return _type(*_annotated(owner)[name], owner) if name in _annotated(owner) else None


@functools.cache
def _annotated(owner: type) -> dict[str, tuple[Any, type]]:
    """The annotations of a class, each with the class that makes it."""
    return {name: (what, base) for base in reversed(owner.__mro__) for name, what in inspect.get_annotations(base).items()}


@functools.cache
def _assigned(owner: type) -> frozenset[str]:
    """What the methods of a class assign to `self`."""
    found = set[str]()
    for base in owner.__mro__:
        source = ""
        with contextlib.suppress(OSError):  # a class that has another name than its source assigns nothing of its own
            source = inspect.getsource(base) if _ours(base) else ""
        if source:
            tree = ast.parse(textwrap.dedent(source))
            stored = (node for node in ast.walk(tree) if isinstance(node, ast.Attribute) and isinstance(node.ctx, ast.Store))
            found |= {node.attr for node in stored if isinstance(node.value, ast.Name) and node.value.id == "self"}
    return frozenset(found)


class _Scope(dict[str, Any]):
    """The names of a module, also those that it imports for annotations alone."""

    def __init__(self, module: str) -> None:
        super().__init__(vars(importlib.import_module(module)))
        self._module = module

    def __missing__(self, name: str) -> Any:
        for node in ast.walk(_tree(self._module)):
            if isinstance(node, ast.ImportFrom) and node.module and name in {item.asname or item.name for item in node.names}:
                original = next(item.name for item in node.names if name in (item.asname, item.name))
                return getattr(importlib.import_module(node.module), original)
        raise KeyError(name)


@functools.cache
def _tree(module: str) -> ast.Module:
    return ast.parse(inspect.getsource(importlib.import_module(module)))


def _type(annotation: Any, where: Any, owner: type | None = None) -> Known:
    """What an annotation says, as far as it is about one class of the package."""
    if isinstance(annotation, str):
        try:
            annotation = eval(annotation, {"__builtins__": __builtins__}, _Scope(where.__module__))
        except (ImportError, NameError, KeyError, TypeError, AttributeError):
            return None
    if annotation is typing.Self:
        return None if owner is None else Instance(owner)
    origin, given = typing.get_origin(annotation), typing.get_args(annotation)
    if origin in (typing.Union, types.UnionType):
        rest = [item for item in given if item is not types.NoneType]
        return _type(rest[0], where, owner) if len(rest) == 1 else None
    if origin in (tuple, list, Sequence, Iterator) and given and len({item for item in given if item is not ...}) == 1:
        return Items(_type(given[0], where, owner))
    return Instance(annotation) if isinstance(annotation, type) and _ours(annotation) else None


class Names(ast.NodeVisitor):
    """What the names of a page's Python stand for, block after block. Visiting an expression gives what is known of it."""

    def __init__(self) -> None:
        self.known: dict[str, Known] = {"kerncast": Value(kerncast), "kc": Value(kerncast)}
        self.wrong: list[tuple[int, str]] = []

    def read(self, tree: ast.Module) -> list[tuple[int, str]]:
        """The lines and names of a block that are wrong."""
        self.wrong = []
        self.visit(tree)
        return self.wrong

    @contextlib.contextmanager
    def _inside(self, arguments: ast.arguments | None = None) -> Iterator[None]:
        """A scope of its own, where arguments hide what has their names."""
        outer, self.known = self.known, dict(self.known)
        if arguments is not None:
            self.known |= {node.arg: None for node in ast.walk(arguments) if isinstance(node, ast.arg)}
        yield
        self.known = outer

    def _assign(self, target: ast.expr | None, value: Known) -> None:
        for node in ast.walk(target) if target is not None else ():
            if isinstance(node, ast.Name) and isinstance(node.ctx, ast.Store):
                self.known[node.id] = value if node is target else None

    def visit_Import(self, node: ast.Import) -> None:
        for item in node.names:
            first = item.name.partition(".")[0]
            known = self._imported(node, item.name, first)
            self.known[item.asname or first] = known if item.asname else ROOTS.get(first) if first == "kerncast" else None

    def visit_ImportFrom(self, node: ast.ImportFrom) -> None:
        first = (node.module or "").partition(".")[0]
        for item in node.names:
            self.known[item.asname or item.name] = self._imported(node, f"{node.module}.{item.name}", first)

    def _imported(self, node: ast.stmt, name: str, first: str) -> Known:
        found, known = resolved(name) if first == "kerncast" else (True, None)
        if not found:
            self.wrong.append((node.lineno, name))
        return known

    def visit_FunctionDef(self, node: ast.FunctionDef | ast.AsyncFunctionDef) -> None:
        self.known[node.name] = None
        for each in [*node.decorator_list, node.args, *([] if node.returns is None else [node.returns])]:
            self.visit(each)
        with self._inside(node.args):
            for statement in node.body:
                self.visit(statement)

    visit_AsyncFunctionDef = visit_FunctionDef

    def visit_ClassDef(self, node: ast.ClassDef) -> None:
        self.known[node.name] = None
        with self._inside():
            self.generic_visit(node)

    def visit_Lambda(self, node: ast.Lambda) -> None:
        with self._inside(node.args):
            self.generic_visit(node)

    def visit_Assign(self, node: ast.Assign) -> None:
        value = self.visit(node.value)
        for target in node.targets:
            self.visit(target)
            self._assign(target, value)

    def visit_For(self, node: ast.For) -> None:
        self._loop(node)
        for statement in [*node.body, *node.orelse]:
            self.visit(statement)

    def _loop(self, node: ast.For | ast.comprehension) -> None:
        items = self.visit(node.iter)
        self._assign(node.target, items.each if isinstance(items, Items) else None)

    def visit_With(self, node: ast.With) -> None:
        for item in node.items:
            self.visit(item.context_expr)
            self._assign(item.optional_vars, None)
        for statement in node.body:
            self.visit(statement)

    def _comprehension(self, node: ast.ListComp | ast.SetComp | ast.GeneratorExp | ast.DictComp) -> None:
        with self._inside():
            for part in node.generators:
                self._loop(part)
                for condition in part.ifs:
                    self.visit(condition)
            for each in [node.key, node.value] if isinstance(node, ast.DictComp) else [node.elt]:
                self.visit(each)

    visit_ListComp = visit_SetComp = visit_GeneratorExp = visit_DictComp = _comprehension

    def visit_Name(self, node: ast.Name) -> Known:
        return self.known.get(node.id)

    def visit_Attribute(self, node: ast.Attribute) -> Known:
        found, known = attribute(self.visit(node.value), node.attr)
        if not found:
            self.wrong.append((node.lineno, ast.unparse(node)))
        return known

    def visit_Subscript(self, node: ast.Subscript) -> Known:
        known, _ = self.visit(node.value), self.visit(node.slice)
        return known.each if isinstance(known, Items) and not isinstance(node.slice, ast.Slice) else None

    def visit_Call(self, node: ast.Call) -> Known:
        called = self.visit(node.func)
        for each in [*node.args, *node.keywords]:
            self.visit(each)
        return _result(called)


def _result(called: Known) -> Known:
    """What calling something gives."""
    if isinstance(called, Instance):
        return _result(_member(called.of, "__call__")) if hasattr(called.of, "__call__") else None  # noqa: B004
    if not isinstance(called, Value):
        return None
    if isinstance(called.of, type):
        return Instance(called.of) if _ours(called.of) else None
    bound = called.of
    owner = bound.args[0] if isinstance(bound, functools.partial) else None
    function = bound.func if isinstance(bound, functools.partial) else bound
    return _type(getattr(function, "__annotations__", {}).get("return"), function, owner)
