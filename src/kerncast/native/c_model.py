"""One model as C: its tables and functions, and the constant `kc_this` that names them (`c/model.h`)."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping
from dataclasses import dataclass, field

import numpy as np
import numpy.typing as npt

from kerncast.core.expr import Expr, Table
from kerncast.core.expr.to_c import statements
from kerncast.core.io.c import Sealed, array, define
from kerncast.core.op import Family

MODEL = "const kc_model *m"


def symbol_reader(family: Family) -> Callable[[str], str]:
    """How C reads `p.M` and `c.tile_m`: from the arrays `p` and `c`, in declared order."""
    places = {
        f"{space.namespace}.{name}": f"{space.namespace}[{place}]"
        for space in (family.problem, family.config)
        for place, name in enumerate(space.parameters)
    }
    return places.__getitem__


def structure(fields: Mapping[str, object]) -> str:
    """The initializer of a struct."""
    return "{" + ", ".join(f".{name} = {value}" for name, value in fields.items()) + "}"


@dataclass
class CModel:
    """What the sections of a model write into."""

    family: Family
    sealed: Sealed = field(default_factory=Sealed)
    fields: dict[str, object] = field(default_factory=dict)
    """Of `kc_model`, each with its initializer."""
    sizes: dict[str, int | str] = field(default_factory=dict)
    """Macros: the largest sizes, and which parts of the engine are needed."""
    types: dict[str, str] = field(default_factory=dict)
    """The widths of numbers, by the name of the type."""
    parts: list[str] = field(default_factory=list)
    op_tables: dict[Table, str] = field(default_factory=dict)
    """Tables of the op, which may be large, and which several functions read."""

    def add(self, text: str) -> None:
        """Text after everything so far."""
        self.parts.append(text)

    def table(self, kind: str, name: str, values: npt.NDArray[np.generic], *, sealed: bool = True) -> None:
        """An array of numbers as a field; it is checked when a context is made, if it is sealed."""
        write = self.sealed.array if sealed else array
        self.add(write(kind, f"kc_{name}", values))
        self.fields[name] = f"kc_{name}"

    def rows(self, kind: str, name: str, rows: Iterable[str], *, nothing: str = "{0}") -> None:
        """An array of structs or strings as a field; `nothing` stands in an empty one, because C has none."""
        texts = list(rows) or [nothing]
        lines = ",\n    ".join(texts)
        self.add(f"static const {kind} kc_{name}[{len(texts)}] = {{\n    {lines}\n}};\n")
        self.fields[name] = f"kc_{name}"

    def function(self, name: str, outputs: Mapping[str, Expr], arguments: str = "const double *p") -> None:
        """A function of the engine that computes `outputs` from the parameters of a problem (and a config)."""
        tables, lines = statements(name, outputs, symbol_reader(self.family), lambda place: f"out[{place}]", self.op_tables)
        unused = [f"    (void){item.rsplit('*', 1)[1]};" for item in (MODEL, *arguments.split(", "), "double *out")]
        body = "\n".join([*unused, *lines])
        self.add(f"{tables}static void {name}({MODEL}, {arguments}, double *out) {{\n{body}\n}}\n")

    def head(self) -> str:
        """What stands before the engine's own types."""
        return define(**self.sizes) + "".join(f"typedef {kind} {name};\n" for name, kind in self.types.items())

    def text(self) -> str:
        """The tables, the functions, and the constant that the engine reads."""
        fields = "".join(f"    .{name} = {value},\n" for name, value in self.fields.items())
        return f"{''.join(self.parts)}static const kc_model kc_this = {{\n{fields}}};\n\n"
