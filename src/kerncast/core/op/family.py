"""Family: interchangeable kernels for one op, with their configs, constraints and features."""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from dataclasses import dataclass
from functools import cached_property
from typing import TYPE_CHECKING, Any, ClassVar

from kerncast.core.device import Device, hardware_namespace
from kerncast.core.expr import Expr, Namespace, Program, constant
from kerncast.core.expr.nodes import Operand
from kerncast.core.io import html
from kerncast.core.io.terminal import printable
from kerncast.core.op.operation import Op
from kerncast.core.space import Constraint, Parameter, Space, Value
from kerncast.core.work import Work
from kerncast.errors import InvalidValue, NotFound

if TYPE_CHECKING:
    from kerncast.core.op.values import Problem


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
