"""`shapes_of`: the matrix products of a PyTorch model as problems of op gemm, found without running it."""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterator, Mapping
from dataclasses import dataclass, replace
from pathlib import Path
from types import MappingProxyType
from typing import Any

from kerncast.core.io.arguments import given_path
from kerncast.core.io.artefact import json_text
from kerncast.core.io.atomic import write_bytes
from kerncast.core.io.html import note, panel
from kerncast.core.io.html import table as html_table
from kerncast.core.io.terminal import TextTable, counted, line
from kerncast.core.parameters import Value
from kerncast.errors import InvalidValue
from kerncast.torch.shape_problems import problem_of
from kerncast.torch.shape_tracing import Matrix, Seen, trace

NOT_A_PRODUCT = "no matrix product"
FOLDED = "Inductor computes it elementwise"
PARAMETERS = ("M", "N", "K", "batch", "dtype", "layout", "lda", "ldb", "bias")
COLUMNS = ("count", "op", *PARAMETERS)
RIGHT = ("count", "M", "N", "K", "batch", "lda", "ldb")


@dataclass(frozen=True)
class Product:
    """One kind of matrix product in a model."""

    op: str
    """PyTorch's operator: mm, addmm, bmm, …"""
    problem: Mapping[str, Value]
    """The parameters of op gemm; a leading dimension only where the matrix has gaps."""
    a: Matrix
    b: Matrix
    count: int
    """How often the model computes it."""

    def as_json(self) -> dict[str, Any]:
        """For `--json` and files."""
        sides = {name: {"size": list(one.size), "stride": list(one.stride)} for name, one in (("a", self.a), ("b", self.b))}
        return {"problem": dict(self.problem), "op": self.op, "count": self.count, **sides}


@dataclass(frozen=True)
class LeftOut:
    """Operators that are not listed as products, and why."""

    op: str
    why: str
    count: int


@dataclass(frozen=True, repr=False)
class Shapes:
    """The products of a model in the order of their first call. Iterating gives each problem of gemm once."""

    products: tuple[Product, ...]
    left_out: tuple[LeftOut, ...] = ()

    def __iter__(self) -> Iterator[dict[str, Value]]:
        """Each problem once: products that differ only in how their batches are stored are one."""
        return iter([dict(problem) for problem in dict.fromkeys(tuple(item.problem.items()) for item in self.products)])

    def __len__(self) -> int:
        return len(list(iter(self)))

    @property
    def count(self) -> int:
        """All products that the model computes."""
        return sum(item.count for item in self.products)

    def as_json(self) -> dict[str, Any]:
        """For `--json`."""
        return {
            "products": [item.as_json() for item in self.products],
            "left_out": [{"op": item.op, "why": item.why, "count": item.count} for item in self.left_out],
        }

    def save(self, path: str | Path) -> Path:
        """Write the problems to a .json file that `problems` of `collect` and `sweep` and the files of `select` take."""
        out = given_path(path, "a path", "name the file to write")
        if out.suffix != ".json":
            raise InvalidValue(f"a problem set is read by its ending, which must be .json: got '{out}'")
        if not self.products:
            raise InvalidValue(f"the model has no matrix product, so there is nothing to write to '{out}'")
        write_bytes(out, json_text([item.as_json() for item in self.products]))
        return out

    @property
    def table(self) -> TextTable:
        """The products as rows."""
        rows = [(item.count, item.op, *(_shown(item.problem.get(name)) for name in PARAMETERS)) for item in self.products]
        return TextTable(COLUMNS, rows, self._title, RIGHT)

    @property
    def notes(self) -> list[str]:
        """What was left out, a line each."""
        return [f"left out: {item.count:,} × {item.op} ({item.why})" for item in self.left_out]

    @property
    def _title(self) -> str:
        if not self.products:
            return "no matrix product"
        return f"{counted(self.count, 'matrix product')}, {counted(len(self), 'different problem')}"

    def __repr__(self) -> str:
        return "\n".join([str(self.table) if self.products else self._title, *map(line, self.notes)])

    def _repr_html_(self) -> str:
        table = self.table
        return panel("Shapes", html_table(table.columns, table.cells, table.title, table.right), *map(note, self.notes))


def shapes_of(model: Any, inputs: Any, *, backward: bool = False, bias: bool = True) -> Shapes:
    """The matrix products that a PyTorch model computes, as `torch.compile` sees them, found without running it.

    `model` is a module or a function; its weights may be real or on device `meta`. `inputs` are a tensor, a tuple of positional
    arguments, a dict of keyword arguments, or the pair of both; only their sizes, strides and types matter. `backward` adds the
    products of the backward pass. With `bias=False` the products are listed alone, for families that have no epilogue.
    """
    return _listed(trace(model, inputs, backward=backward), bias)


def _listed(seen: Seen, bias: bool) -> Shapes:
    left_out: Counter[tuple[str, str]] = Counter()
    counted: Counter[tuple[Any, ...]] = Counter()
    parts: dict[tuple[Any, ...], Product] = {}
    for call, count in seen.calls.items():
        given = problem_of(call if bias else replace(call, bias=False))
        if isinstance(given, str):
            left_out[call.op, given] += count
            continue
        key = (call.op, call.a, call.b, tuple(given.items()))
        parts.setdefault(key, Product(call.op, MappingProxyType(given), call.a, call.b, 0))
        counted[key] += count
    for name, count in seen.folded.items():
        left_out[name, FOLDED] += count
    for name, count in seen.others.items():
        left_out[name, NOT_A_PRODUCT] += count
    return Shapes(
        tuple(replace(product, count=counted[key]) for key, product in parts.items()),
        tuple(LeftOut(op, why, count) for (op, why), count in left_out.items()),
    )


def _shown(value: Value | None) -> str:
    return "-" if value is None else "yes" if value is True else str(value)
