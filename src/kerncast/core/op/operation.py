"""Op: what is computed, with its problem parameters, its work and the features of a problem."""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from functools import cached_property
from typing import TYPE_CHECKING, ClassVar

from kerncast.core.expr import Expr, Namespace, Program
from kerncast.core.expr.nodes import Operand
from kerncast.core.io import html
from kerncast.core.io.terminal import printable
from kerncast.core.parameters import Int, JsonField
from kerncast.core.space import Constraint, Parameter, Space, Value
from kerncast.core.work import Work
from kerncast.errors import InvalidValue, NotFound

if TYPE_CHECKING:
    import polars as pl


@dataclass(frozen=True)
class Suite:
    """Problems of a sweep that belong together, a column for each parameter of the op."""

    name: str
    problems: pl.DataFrame
    valid: int
    """How many problems the rules allow; the sweep may have thinned them out."""


class Op:
    """What is computed. Subclass it, declare, instantiate once at module level."""

    name: ClassVar[str]
    doc: ClassVar[str] = ""
    parameters: ClassVar[Mapping[str, Parameter]]
    split_group: ClassVar[tuple[str, ...]]
    """What cross-validation folds group by: coarser than the problem, so near-copies stay on one side."""

    line_group: ClassVar[tuple[str, ...]] = ()
    """The model `linear` fits one line for each combination of these parameters."""

    splits: ClassVar[Mapping[str, tuple[str, ...]]] = {}
    """Harder ways to hold problems out, by name: what must be unseen together (gemm's `nk`: N and K)."""

    products: ClassVar[Mapping[str, tuple[str, str]]] = {}
    """Derived values that a request may give instead of the two sizes that they are the product of, to a model that reads
    these sizes in no other way (reshard's `tiles`)."""

    bands: ClassVar[Mapping[str, tuple[tuple[str, float], ...]]] = {}
    """How reports cut problems by size: parameter → (label, largest value) in ascending order; the last one is open."""

    aliases: ClassVar[Mapping[str, Mapping[str, Value]]] = {}
    """Other names of the op, each with the parameters that it sets (exp: func=exp)."""

    json: ClassVar[tuple[JsonField, ...]] = ()
    """Other ways to give a problem in JSON, besides the parameters' own names; for both the Python and the C parser."""

    sweeps: ClassVar[Mapping[str, str]] = {}
    """Problem sets too large for memory, by name, with a line about each: `sweep` generates them suite by suite."""

    def sweep(self, name: str, axes: Mapping[str, Sequence[Value]]) -> Iterator[Suite]:
        """The suites of one of `sweeps`, in a fixed order; `axes` replace the values that a parameter runs through."""
        raise NotFound.named(f"sweep of {self.name}", name, self.sweeps)

    def constraints(self, p: Namespace) -> Iterable[Constraint]:
        """Rules between problem parameters."""
        return ()

    def derive(self, p: Namespace) -> Mapping[str, Expr]:
        """Values that follow from the parameters, readable as `p.name` everywhere, not part of the key."""
        return {}

    def work(self, p: Namespace) -> Work | None:
        """FLOPs and bytes, or None when they are unknown."""
        return None

    def line_size(self, p: Namespace) -> Expr | None:
        """What time grows with along a straight line, for the model `linear`; None: the roofline."""
        return None

    def features(self, p: Namespace, hw: Namespace) -> Mapping[str, Operand]:
        """Features of the problem alone."""
        return {}

    def __init__(self) -> None:
        declared = Space(self.name, "p", self.parameters)
        derived = dict(self.derive(Namespace(self.name, declared.symbols)))
        clash = sorted(set(derived) & set(self.parameters))
        if clash:
            raise InvalidValue(f"op {self.name}: '{clash[0]}' is both a parameter and derived; rename one")
        # A problem's methods would hide derived values of the same name, which are not items of the mapping.
        hidden = set(derived) & {"as_dict", "get", "items", "keys", "usual"}
        reserved = sorted({*self.parameters, *derived} & {"op", "family", "values", "trusted"} | hidden)
        if reserved:
            raise InvalidValue(f"op {self.name}: '{reserved[0]}' is reserved; rename it")
        missing = sorted(set(self.split_group) - set(self.parameters))
        if missing or not self.split_group:
            raise InvalidValue(f"op {self.name}: split_group must name parameters, got {self.split_group}")
        for alias, name, value in ((alias, *one) for alias, preset in self.aliases.items() for one in preset.items()):
            if name not in self.parameters or self.parameters[name].index(value) is None:
                raise InvalidValue(f"op {self.name}: the alias '{alias}' sets {name}={value!r}, which is not declared")
        for item in self.json:
            item.check(self.name, self.parameters)
        for name, factors in self.products.items():
            wrong = name not in derived or not all(isinstance(self.parameters.get(factor), Int) for factor in factors)
            if wrong or len(factors) != 2:
                raise InvalidValue(f"op {self.name}: the product '{name}' must be a derived value of two whole numbers")
        self.derived: dict[str, Expr] = derived
        scope = Namespace(self.name, {**declared.symbols, **derived})
        self.problem = Space(self.name, "p", self.parameters, self.constraints(scope))

    def namespace(self, environment: Space | None = None) -> Namespace:
        """The symbols `p.*`: parameters, a family's environment, derived values."""
        extra = environment.symbols if environment else {}
        return Namespace(self.name, {**self.problem.symbols, **extra, **self.derived})

    @cached_property
    def line_program(self) -> Program | None:
        """`line_size` as a program with one output."""
        size = self.line_size(self.namespace())
        return None if size is None else Program({"size": size})

    @property
    def dtype(self) -> Expr | None:
        """The symbol that names the element type, for rates that depend on it."""
        return self.problem.symbols.get("dtype")

    def __repr__(self) -> str:
        told = f": {self.doc.splitlines()[0]}" if self.doc else ""
        return printable(f"Op({self.name}; {', '.join(self.parameters)}){told}")

    def _repr_html_(self) -> str:
        return html.panel(self.name, html.note(self.doc), *self.problem.html_parts("problem"))
