"""Op and Family, the two declarations that others write; the work of an op."""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from functools import cached_property
from typing import TYPE_CHECKING, Any, ClassVar

from kerncast.core.device import Device, hardware_namespace
from kerncast.core.expr import Expr, Namespace, Program, constant, log2, maximum, sqrt
from kerncast.core.expr.nodes import Operand
from kerncast.core.io import html
from kerncast.core.io.terminal import printable
from kerncast.core.parameters import Int, JsonField
from kerncast.core.space import Constraint, Parameter, Space, Value
from kerncast.errors import InvalidValue, NotFound

if TYPE_CHECKING:
    import polars as pl

    from kerncast.core.op.values import Problem


TFLOPS, BANDWIDTH = "tflops", "bandwidth_gb_s"
"""The names of the two rates of a kernel: its arithmetic and its bytes over its time."""


@dataclass(frozen=True)
class Work:
    """The minimum work of a problem: its arithmetic, its bytes moved once, and the bytes that leave a device for others."""

    flops: Expr
    bytes: Expr
    link_bytes: Expr = field(default_factory=lambda: constant(0), kw_only=True)

    def roofline_ns(self, hw: Namespace) -> Expr:
        """The time below which no kernel can go: the slowest of the arithmetic, the traffic and the links."""
        local = maximum(*self.parts_ns(hw))
        return maximum(local, self.link_ns(hw)) if self.communicates else local

    @property
    def communicates(self) -> bool:
        """Whether several devices take part."""
        return self.link_bytes is not constant(0)

    def link_ns(self, hw: Namespace) -> Expr:
        """The time of the bytes on the links alone."""
        return self.link_bytes / hw.link_bandwidth_gb_s if self.communicates else self.link_bytes

    def parts_ns(self, hw: Namespace) -> tuple[Expr, Expr]:
        """The arithmetic and the traffic, each alone."""
        # An op that only moves data needs no peak rate, which is unknown for most dtypes without arithmetic.
        compute = self.flops if self.flops is constant(0) else self.flops / hw.peak_flops * 1e9
        return compute, self.bytes / (hw.memory_bandwidth_gb_s * 1e9) * 1e9

    def features(self, hw: Namespace) -> dict[str, Expr]:
        """What a model may read of it."""
        roofline = self.roofline_ns(hw)
        return {
            "log2_flops": log2(self.flops),
            "log2_bytes": log2(self.bytes),
            "arithmetic_intensity": self.flops / self.bytes,
            "roofline_ns": roofline,
            "log2_roofline_ns": log2(roofline),
        }

    def expected_ns(self, hw: Namespace, overhead_ns: float) -> Expr:
        """The roofline that good kernels reach in practice; times are learned relative to it.

        A launch takes time, kernels reach 70 and 80 percent of the peaks, and arithmetic and traffic do not
        overlap perfectly where they are about equal. On 35,700 H100 GEMMs a forest that learns times relative
        to this errs by 2.8 % instead of 3.3 % relative to the sharp roofline.
        """
        compute, memory = self.parts_ns(hw)
        squares = (compute / 0.7) * (compute / 0.7) + (memory / 0.8) * (memory / 0.8)
        if self.communicates:
            link = self.link_ns(hw) / 0.8
            squares = squares + link * link
        return overhead_ns + sqrt(squares)


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

    other_work: ClassVar[Mapping[str, Mapping[str, str]]] = {}
    """By config parameter: labels of kernels that compute something else than the op, and what, in words. They are measured
    with the others, and a model never chooses them."""

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
        # Optional parameters come last: a caller in C leaves the end of the struct zero.
        usual = {name: rule for name, rule in self.op.parameters.items() if not rule.optional}
        optional = {name: rule for name, rule in self.op.parameters.items() if rule.optional}
        self.problem = Space(
            self.op.name, "p", {**usual, **self.environment_parameters, **optional}, self.op.problem.constraints
        )
        declared = Space(self.id, "c", self.parameters)
        c, hw = Namespace(self.id, declared.symbols), hardware_namespace()
        rules = self.constraints(self.namespace, c, hw)
        self.config = Space(self.id, "c", self.parameters, rules)

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
