"""Op and Family, the two things a third party writes; Problem and Config, the values they validate.

An op file declares what is computed, a family file the interchangeable kernels for it:

    class Gemm(Op):
        name = "gemm"
        parameters = {"M": Int(1, 2**31), ...}
        split_group = ("M", "N", "K")
        def work(self, p): return Work(flops=2 * p.M * p.N * p.K, bytes=...)
        def features(self, p, hw): return {"log2_M": log2(p.M), ...}

    gemm = Gemm()

Methods are traced once, with symbols for arguments (see `kerncast.expr`). A module-level instance in a
module of `kerncast.ops`, or an entry point in the group `kerncast.ops`, is all the registration needed.
"""

from __future__ import annotations

import hashlib
from collections.abc import ItemsView, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from functools import cached_property
from typing import TYPE_CHECKING, Any, ClassVar, Self

from kerncast.device import Device, hardware_namespace
from kerncast.errors import InvalidValue, NotFound
from kerncast.expr import Expr, Namespace, Program, constant
from kerncast.expr.nodes import Operand
from kerncast.parameters import Int, JsonField
from kerncast.space import Constraint, Parameter, Space, Value
from kerncast.work import Work as Work
from kerncast.writing import html
from kerncast.writing.terminal import printable

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


class Family:
    """Interchangeable kernels for one op. Subclass it, declare, instantiate once at module level."""

    id: ClassVar[str]
    doc: ClassVar[str] = ""
    op: ClassVar[Op]
    environment_parameters: ClassVar[Mapping[str, Parameter]] = {}
    """Problem parameters that only this family knows (thread count …): part of the key, never chosen."""
    parameters: ClassVar[Mapping[str, Parameter]] = {}
    library: ClassVar[Mapping[str, Value]] = {}
    """The parameters that identify the config of the vendor library's own choice; empty if there is none."""
    always: ClassVar[tuple[Mapping[str, Value], ...]] = ()
    """Parameters of configs that belong to every sample: choices are compared with them."""

    can_fail: ClassVar[bool] = True
    """Whether a config may fail although it obeys the constraints; False: they are known to be complete."""

    def constraints(self, p: Namespace, c: Namespace, hw: Namespace) -> Iterable[Constraint]:
        """Which configs can be built, and which can run the problem."""
        return ()

    def work(self, p: Namespace) -> Work | None:
        """FLOPs and bytes: the op's, unless these kernels move their data differently."""
        return self.op.work(p)

    @cached_property
    def work_program(self) -> Program:
        """`flops` and `bytes` of a problem, each only if it is known."""
        work = self.work(self.op.namespace())
        if work is None:
            return Program({})
        known = {"flops": work.flops, "bytes": work.bytes}
        return Program({n: e for n, e in known.items() if all(s.name.startswith("p.") for s in Program({n: e}).symbols)})

    above_peak: ClassVar[tuple[str, ...]] = ()
    """Flags that let kernels compute in a faster format than the problem's dtype: the peak rate does not bound them."""

    def peak_share(self, p: Namespace, hw: Namespace) -> Expr:
        """The part of the device's peak rate that the cores in use have; 1 unless a problem limits its threads."""
        return constant(1)

    def features(self, p: Namespace, c: Namespace, hw: Namespace) -> Mapping[str, Operand]:
        """Features of the config, and of the config on the problem."""
        return {}

    def foreign_features(self, p: Namespace, c: Namespace, hw: Namespace) -> Mapping[str, Operand]:
        """Columns of another system's models, as that system computes them: read by its models alone."""
        return {}

    def __init__(self) -> None:
        if self.id.split("/")[0] != self.op.name or self.id.count("/") != 1:
            raise InvalidValue(f"family id must be '{self.op.name}/<name>', got '{self.id}'")
        clash = sorted(set(self.environment_parameters) & {*self.op.parameters, *self.op.derived})
        if clash:
            raise InvalidValue(f"family {self.id}: environment parameter '{clash[0]}' is already one of op {self.op.name}")
        self.environment = Space(self.id, "p", self.environment_parameters)
        # Optional parameters come last: structs and tables from before they existed are then a beginning of today's.
        usual = {name: rule for name, rule in self.op.parameters.items() if not rule.optional}
        optional = {name: rule for name, rule in self.op.parameters.items() if rule.optional}
        self.problem = Space(
            self.op.name, "p", {**usual, **self.environment_parameters, **optional}, self.op.problem.constraints
        )
        declared = Space(self.id, "c", self.parameters)
        c, hw = Namespace(self.id, declared.symbols), hardware_namespace()
        rules = self.constraints(self.namespace, c, hw)
        self.config = Space(self.id, "c", self.parameters, rules, (f"p.{name}" for name in optional))

    @property
    def namespace(self) -> Namespace:
        """The symbols `p.*` that this family's features may read."""
        return self.op.namespace(self.environment)

    @cached_property
    def feature_program(self) -> Program:
        """All features, the op's first, hardware numbers still symbols."""
        hw = hardware_namespace()
        problem = dict(self.op.features(self.op.namespace(), hw))
        own = dict(self.features(self.namespace, Namespace(self.id, self.config.symbols), hw))
        clash = sorted(set(problem) & set(own))
        if clash:
            raise InvalidValue(f"family {self.id}: feature '{clash[0]}' is already one of op {self.op.name}; rename it")
        return Program({**problem, **own})

    @cached_property
    def foreign_program(self) -> Program:
        """The columns of `foreign_features`, hardware numbers still symbols."""
        columns = self.foreign_features(self.namespace, Namespace(self.id, self.config.symbols), hardware_namespace())
        clash = sorted(set(columns) & set(self.feature_program.outputs))
        if clash:
            raise InvalidValue(f"family {self.id}: the foreign column '{clash[0]}' is already a feature; rename it")
        return Program(dict(columns))

    def outputs_of(self, names: Iterable[str]) -> dict[str, Expr]:
        """The formulas of some features, foreign ones included."""
        own, foreign = self.feature_program.outputs, self.foreign_program.outputs
        return {name: own[name] if name in own else foreign[name] for name in names}

    def features_on(self, device: Device, dtypes: Iterable[str] | None = None, foreign: Iterable[str] = ()) -> FeatureSet:
        """The features that can be computed for a device (and the dtypes that occur), with the `foreign` ones named."""
        outputs = {**self.feature_program.outputs, **{name: self.foreign_program.outputs[name] for name in foreign}}
        bound = Program(outputs).bind(device.bindings(self.op.dtype, dtypes))
        if not any(item.name.startswith("hw.") for item in bound.symbols):
            return FeatureSet(bound, {})
        kept, left_out = {}, {}
        for name, expr in bound.outputs.items():
            unknown = [item.name for item in Program({name: expr}).symbols if item.name.startswith("hw.")]
            if unknown:
                left_out[name] = tuple(unknown)
            else:
                kept[name] = expr
        return FeatureSet(Program(kept), left_out)

    def bindings(self, problem: Problem | Mapping[str, Any] | None = None, device: Device | None = None) -> dict[str, Any]:
        """What is known outside the config, for the searches of `config`; a problem may be partial."""
        known: dict[str, Any] = {}
        given: Mapping[str, Any] = {} if problem is None else problem
        if device is not None:
            known |= device.bindings(self.op.dtype, [given["dtype"]] if given.get("dtype") is not None else None)
        if problem is not None:
            unknown = [name for name in given if name not in self.problem.parameters]
            if unknown:
                raise NotFound.named(f"parameter of {self.op.name}", unknown[0], self.problem.parameters)
            for name, value in given.items():
                rule = self.problem.parameters[name]
                if value is not None and rule.index(value) is None:
                    raise InvalidValue(f"{name} {rule.refusal(value)}")
            known |= self.problem.qualified(given)
        if device is not None and problem is not None:
            # A rate by dtype is an expression in p.dtype: resolve it with the problem's own.
            known |= (
                Program({k: v for k, v in known.items() if isinstance(v, Expr)})
                .bind({k: v for k, v in known.items() if not isinstance(v, Expr)})
                .outputs
            )
        return known

    def __repr__(self) -> str:
        told = f": {self.doc.splitlines()[0]}" if self.doc else ""
        chosen = f"configs of {', '.join(self.parameters)}" if self.parameters else "nothing to choose"
        known = f"; problems also have {', '.join(self.environment_parameters)}" if self.environment_parameters else ""
        return printable(f"Family({self.id}; {chosen}{known}){told}")

    def _repr_html_(self) -> str:
        spaces = *self.problem.html_parts("problem"), *self.config.html_parts("config")
        return html.panel(self.id, html.note(self.doc), *spaces)


@dataclass(frozen=True)
class FeatureSet:
    """Features for one device, and those left out with the hardware numbers that are unknown."""

    program: Program
    left_out: Mapping[str, tuple[str, ...]]


class _Values(Mapping[str, Value]):
    """A frozen point of a space: a read-only mapping of parameter to value, readable as attributes too."""

    __slots__ = ("_values",)
    _values: tuple[tuple[str, Value], ...]

    def as_dict(self) -> dict[str, Value]:
        """The values by name, in declared order; inactive ones are None."""
        return dict(self._values)

    def __getitem__(self, name: str) -> Value:
        for known, value in self._values:
            if known == name:
                return value
        raise KeyError(name)

    def __iter__(self) -> Iterator[str]:
        return (name for name, _ in self._values)

    def __len__(self) -> int:
        return len(self._values)

    def items(self) -> ItemsView[str, Value]:
        return self.as_dict().items()

    def __copy__(self) -> Self:
        return self

    def __deepcopy__(self, memo: object) -> Self:
        return self

    def __setattr__(self, name: str, value: object) -> None:
        raise AttributeError(f"a {type(self).__name__.lower()} is frozen: make a new one to change {name}")


class Problem(_Values):
    """What to compute: `Problem(gemm, {"M": 128, ...})`, validated; `problem.M` reads a value."""

    __slots__ = ("_hash", "family", "op")
    op: Op
    family: Family | None
    _hash: int

    def __init__(self, target: Op | Family, values: Mapping[str, Any] | None = None, **more: Any) -> None:
        op, family = (target, None) if isinstance(target, Op) else (target.op, target)
        checked = target.problem.check({**(values or {}), **more})
        self._freeze(op, family, checked)

    def _freeze(self, op: Op, family: Family | None, values: Mapping[str, Value]) -> None:
        stored = tuple(values.items())
        # Hashed once: a problem is looked up on hot paths, and hashing a dozen parameters takes longer than the rest.
        for name, value in (("op", op), ("family", family), ("_values", stored), ("_hash", hash((op.name, stored)))):
            object.__setattr__(self, name, value)

    @classmethod
    def trusted(cls, family: Family, values: Mapping[str, Value]) -> Problem:
        """A problem from values that were validated before, in declared order: no check, for the hot path."""
        problem = object.__new__(cls)
        problem._freeze(family.op, family, values)
        return problem

    def usual(self) -> Problem:
        """The same problem without its optional parameters; itself if it has none."""
        target = self.family or self.op
        given = {name: None for name in target.problem.optional if self[name] is not None}
        return Problem(target, {**self.as_dict(), **given}) if given else self

    def __getattr__(self, name: str) -> Any:
        if name.startswith("_"):
            raise AttributeError(name)
        values = self.as_dict()
        if name in values:
            return values[name]
        if name in self.op.derived:
            return Program({name: self.op.derived[name]}).scalar(self.op.problem.qualified(values))[name]
        raise AttributeError(f"{self.op.name} has no parameter or derived value '{name}'")

    def __eq__(self, other: object) -> bool:
        return isinstance(other, Problem) and self.op is other.op and self._values == other._values

    def __hash__(self) -> int:
        return self._hash

    def __repr__(self) -> str:
        return f"Problem({self.op.name}, {_assignments(self._values)})"


class Config(_Values):
    """Which kernel: `Config(family, {...})`, validated; `config.tile_m` reads a value.

    An optional parameter that is left out reads as None but is not listed: configs look as they did before it existed.
    """

    __slots__ = ("family",)
    family: Family

    def __init__(
        self,
        family: Family,
        values: Mapping[str, Any] | None = None,
        *,
        problem: Problem | None = None,
        device: Device | None = None,
    ) -> None:
        checked = family.config.check(values or {}, family.bindings(problem, device))
        object.__setattr__(self, "family", family)
        object.__setattr__(self, "_values", _given(family, checked))

    @classmethod
    def trusted(cls, family: Family, values: Mapping[str, Value]) -> Config:
        """A config from values that were validated before, in declared order: no check, for the hot path."""
        config = object.__new__(cls)
        object.__setattr__(config, "family", family)
        object.__setattr__(config, "_values", _given(family, values))
        return config

    def as_dict(self) -> dict[str, Value]:
        """The values by name, in declared order; inactive ones, and optional ones that are left out, are None."""
        return dict.fromkeys(self.family.config.parameters) | dict(self._values)

    def items(self) -> ItemsView[str, Value]:
        return dict(self._values).items()

    def __getitem__(self, name: str) -> Value:
        for known, value in self._values:
            if known == name:
                return value
        if name in self.family.config.optional:
            return None
        raise KeyError(name)

    def __getattr__(self, name: str) -> Any:
        values = self.as_dict() if not name.startswith("_") else {}
        if name not in values:
            raise AttributeError(f"{'config' if name.startswith('_') else self.family.id} has no parameter '{name}'")
        return values[name]

    def __eq__(self, other: object) -> bool:
        return isinstance(other, Config) and self.family is other.family and self._values == other._values

    def __hash__(self) -> int:
        return hash((self.family.id, self._values))

    def __repr__(self) -> str:
        return f"Config({self.family.id}, {_assignments(self._values)})"


def _given(family: Family, values: Mapping[str, Value]) -> tuple[tuple[str, Value], ...]:
    """The values of a config without the optional ones that are left out."""
    optional = family.config.optional
    if not optional:
        return tuple(values.items())
    return tuple((name, value) for name, value in values.items() if value is not None or name not in optional)


def _assignments(values: Iterable[tuple[str, Value]]) -> str:
    return ", ".join(f"{name}={value}" for name, value in values if value is not None)


def key_text(family: str, device: str, problem: Iterable[tuple[str, Value]], config: Iterable[tuple[str, Value]]) -> str:
    """The canonical text that a key hashes; inactive parameters do not take part."""
    parts = [family, device]
    for prefix, values in (("p", problem), ("c", config)):
        for name, value in sorted(values):
            if value is not None:
                text = ("true" if value else "false") if isinstance(value, bool) else str(value)
                parts.append(f"{prefix}.{name}={text}")
    return "|".join(parts)


def hash_key(text: str) -> str:
    """A key from its canonical text."""
    return hashlib.blake2b(text.encode(), digest_size=12).hexdigest()


def key(problem: Problem, config: Config, device: str) -> str:
    """The key of a measurement, from family, device, problem and config, never from a position."""
    return hash_key(key_text(config.family.id, device, problem.items(), config.items()))
