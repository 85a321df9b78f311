"""The matrix products of a PyTorch model as problems of op gemm, found without running it."""

from __future__ import annotations

import importlib.util
import sys
import traceback
from collections import Counter
from collections.abc import Iterator, Mapping
from dataclasses import dataclass, replace
from pathlib import Path
from types import MappingProxyType
from typing import Any

from kerncast.core import dtypes
from kerncast.core.io.arguments import given_path
from kerncast.core.io.artefact import json_text
from kerncast.core.io.atomic import write_bytes
from kerncast.core.io.html import note, panel
from kerncast.core.io.html import table as html_table
from kerncast.core.io.terminal import TextTable, counted, line
from kerncast.core.op import Problem
from kerncast.core.parameters import Value
from kerncast.errors import BadFile, InvalidValue, NotFound
from kerncast.library.ops.gemm import gemm
from kerncast.torch.shape_tracing import Matrix, ProductCall, Seen, trace

# Whether A and B are stored by rows → the letters of gemm's layout. C always is.
LAYOUTS = {(True, False): "rcr", (True, True): "rrr", (False, True): "crr", (False, False): "ccr"}


def problem_of(call: ProductCall) -> dict[str, Value] | str:
    """The problem of a call; a sentence where gemm has no such problem."""
    (*batch, m, k), n = call.a.size, call.b.size[-1]
    if 0 in (*batch, m, n, k):
        return "an empty product"
    dtype = dtypes.named(call.a.dtype)
    if call.a.dtype != call.b.dtype or dtype is None or gemm.problem.parameters["dtype"].index(dtype) is None:
        return f"gemm has no dtype {' × '.join(dict.fromkeys((call.a.dtype, call.b.dtype)))}"
    (a_rows, lda), (b_rows, ldb) = storage(call.a), storage(call.b)
    sizes: dict[str, Value] = {"M": m, "N": n, "K": k, "batch": batch[0] if batch else 1}
    given = {"lda": lda, "ldb": ldb, "bias": call.bias or None}
    values = {**sizes, "dtype": dtype, "layout": LAYOUTS[a_rows, b_rows]}
    values |= {name: value for name, value in given.items() if value is not None}
    try:
        Problem(gemm, values)
    except InvalidValue as error:
        return str(error)
    return values


def storage(matrix: Matrix) -> tuple[bool, int | None]:
    """Whether a matrix is stored by rows, and its leading dimension if it has gaps.

    A matrix whose elements are not adjacent in either direction, or whose rows overlap, is copied before any kernel can read
    it: it counts as packed by rows.
    """
    (rows, columns), (down, along) = matrix.size[-2:], matrix.stride[-2:]
    # A side of one element has no stride that matters; what the strides say comes first (Linear's weights are by columns).
    if along == 1 or (columns == 1 and down != 1):
        return _leading(True, rows, columns, down)
    if down == 1 or rows == 1:
        return _leading(False, columns, rows, along)
    return True, None


def _leading(by_rows: bool, lines: int, length: int, apart: int) -> tuple[bool, int | None]:
    """`lines` rows (or columns) of `length` elements, `apart` elements from one to the next."""
    if lines == 1 or apart == length:
        return by_rows, None
    return (by_rows, apart) if apart > length else (True, None)


FUNCTION = "example"


def example_of(spec: str) -> tuple[Any, Any]:
    """`(model, inputs)` from `FILE.py` or `FILE.py:function`, which runs the file and calls the function."""
    text, separator, name = spec.rpartition(":")
    path, function = (Path(text), name) if separator and not name.endswith(".py") else (Path(spec), FUNCTION)
    if path.suffix != ".py" or not function.isidentifier():
        raise InvalidValue(f"a model is given as FILE.py or FILE.py:function, got '{spec}'")
    if not path.is_file():
        raise BadFile(f"cannot read {path} (no such file): check the path")
    module = _module(path)
    if not callable(getattr(module, function, None)):
        names = [name for name, value in vars(module).items() if callable(value) and not name.startswith("_")]
        if function == FUNCTION:
            raise InvalidValue(
                f"{path} has no function {FUNCTION}() that returns (model, inputs): add it, or name one after a ':'"
            )
        raise NotFound.named(f"function in {path}", function, names)
    try:
        given = getattr(module, function)()
    except Exception as error:
        raise _failed(path, f"{function}()", error) from error
    if not isinstance(given, tuple) or len(given) != 2:
        raise InvalidValue(f"{function}() in {path} must return (model, inputs), it returned {type(given).__name__}")
    return given


def _module(path: Path) -> Any:
    """The file as a module; it may import its neighbours, as it could with `python FILE.py`."""
    spec = importlib.util.spec_from_file_location(path.stem, path)
    assert spec is not None
    assert spec.loader is not None
    module = importlib.util.module_from_spec(spec)
    folder = str(path.resolve().parent)
    sys.path.insert(0, folder)
    try:
        spec.loader.exec_module(module)
    except Exception as error:
        raise _failed(path, "it", error) from error
    finally:
        if folder in sys.path:
            sys.path.remove(folder)
    return module


def _failed(path: Path, what: str, error: Exception) -> BadFile:
    own = [frame.lineno for frame in traceback.extract_tb(error.__traceback__) if Path(frame.filename) == path]
    line = f", line {own[-1]}" if own else ""
    said = " ".join(str(error).split())[:200]
    return BadFile(f"{path}{line}: {what} failed with {type(error).__name__}: {said}")


NOT_A_PRODUCT = "no matrix product"
FOLDED = "Inductor computes it elementwise"
PARAMETERS = ("M", "N", "K", "batch", "dtype", "layout", "lda", "ldb", "bias")
COLUMNS = ("count", "op", *PARAMETERS)
RIGHT = ("count", "M", "N", "K", "batch", "lda", "ldb")


@dataclass(frozen=True)
class ModelProduct:
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
class OtherOperator:
    """Operators that are not listed as products, and why."""

    op: str
    why: str
    count: int


@dataclass(frozen=True, repr=False)
class Shapes:
    """The products of a model in the order of their first call. Iterating gives each problem of gemm once."""

    products: tuple[ModelProduct, ...]
    left_out: tuple[OtherOperator, ...] = ()

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
    parts: dict[tuple[Any, ...], ModelProduct] = {}
    for call, count in seen.calls.items():
        given = problem_of(call if bias else replace(call, bias=False))
        if isinstance(given, str):
            left_out[call.op, given] += count
            continue
        key = (call.op, call.a, call.b, tuple(given.items()))
        parts.setdefault(key, ModelProduct(call.op, MappingProxyType(given), call.a, call.b, 0))
        counted[key] += count
    for name, count in seen.folded.items():
        left_out[name, FOLDED] += count
    for name, count in seen.others.items():
        left_out[name, NOT_A_PRODUCT] += count
    return Shapes(
        tuple(replace(product, count=counted[key]) for key, product in parts.items()),
        tuple(OtherOperator(op, why, count) for (op, why), count in left_out.items()),
    )


def _shown(value: Value | None) -> str:
    return "-" if value is None else "yes" if value is True else str(value)
