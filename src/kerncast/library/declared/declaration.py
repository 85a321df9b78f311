"""Ops that a file declares: drafted by an importer or written as TOML, stored as data inside `dataset.json` and `model.json`.

An installed op is Python code. A file of measurements of your own kernel comes without code, but its contents (the
parameters, their values, which configs exist) must be known wherever the dataset or a model trained on it is opened.
So the declaration is stored with them, and the op is built when they are opened. It is not registered: two datasets
may hold different drafts of one kernel, and each uses its own. A family that is written as TOML (`declared.family_file`) has
formulas for its rules and features; a drafted one has the list of its configs, and features that follow from names.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping, Sequence
from functools import lru_cache, partial, reduce
from math import prod
from typing import Any, ClassVar, Literal

import msgspec

from kerncast.core.dtypes import dtype_parameter
from kerncast.core.expr import Expr, Namespace, ceil_div, constant, log2
from kerncast.core.expr.nodes import Operand
from kerncast.core.expr.trace import formula
from kerncast.core.io.foreign import decode_json
from kerncast.core.op import Family, Op, Work
from kerncast.core.parameters import PowerOfTwo
from kerncast.core.space import Bool, Categorical, Choice, Constraint, Int, Parameter
from kerncast.errors import BadFile, InvalidValue
from kerncast.library.declared import diagram
from kerncast.library.registry import FAMILIES, OPS, refuse_odd_names

LARGEST_SIZE = 2**53
# Above this many combinations there is a check after each parameter, so that configs are listed step by step.
CHECKED_AT_ONCE = 65_536
DEVICE_NUMBERS = ("num_cus", "max_clock_mhz", "memory_bandwidth_gb_s")
AXES = ("x", "y", "z")
# Kinds of values that are numbers with a lowest one first.
SIZED = ("numbers", "range", "powers")


class Values(msgspec.Struct, frozen=True, forbid_unknown_fields=True):
    """One parameter: some numbers or labels, a flag, any size from 1, a range, or powers of two."""

    kind: Literal["numbers", "labels", "flag", "size", "range", "powers", "dtypes"]
    numbers: tuple[int, ...] = ()
    """The numbers; of a range the lowest, the highest and the step, of powers of two the lowest and the highest."""
    labels: tuple[str, ...] = ()
    """Their codes are their positions; dtypes have the codes that they have everywhere."""
    default: str | None = None
    preset: int | bool | str | msgspec.UnsetType = msgspec.UNSET
    """What fills a problem that leaves the parameter out; stored only if there is one, as are the next two."""
    when: str | msgspec.UnsetType = msgspec.UNSET
    """The formula that says for which configs it applies."""
    doc: str | msgspec.UnsetType = msgspec.UNSET

    @property
    def parameter(self) -> Parameter:
        """The parameter as a space declares it."""
        shared: dict[str, Any] = {"default": self.default if self.preset is msgspec.UNSET else self.preset}
        shared |= {} if self.doc is msgspec.UNSET else {"doc": self.doc}
        if isinstance(self.when, str):
            shared["when"] = partial(_applies, self.when)
        if self.kind == "numbers":
            return Choice(*self.numbers, **shared)
        if self.kind == "labels":
            return Categorical({label: code for code, label in enumerate(self.labels)}, **shared)
        if self.kind == "dtypes":
            return dtype_parameter(*self.labels, **shared)
        if self.kind in ("range", "powers"):
            return (Int if self.kind == "range" else PowerOfTwo)(*self.numbers, **shared)
        return Bool(**shared) if self.kind == "flag" else Int(1, LARGEST_SIZE, **shared)

    def joined(self, other: Values) -> Values:
        """The values of both; old labels keep their codes."""
        if self.kind in ("range", "powers"):
            if self != other:
                raise InvalidValue(f"a range is declared twice with different ends ({self.numbers} and {other.numbers})")
            return self
        return msgspec.structs.replace(
            self,
            numbers=tuple(sorted({*self.numbers, *other.numbers})),
            labels=self.labels + tuple(label for label in other.labels if label not in self.labels),
            default=self.default if self.default == other.default else None,
        )


def _applies(text: str, c: Namespace) -> Expr:
    return formula(text, {"c": c})


class Rule(msgspec.Struct, frozen=True, forbid_unknown_fields=True):
    """A constraint: the formula that must hold, and its sentence."""

    holds: str
    says: str


class Formulas(msgspec.Struct, frozen=True, forbid_unknown_fields=True):
    """What a family that is written as TOML computes, as text (`formula` in `core.expr.trace`)."""

    derived: dict[str, str] = {}
    flops: str | None = None
    bytes: str | None = None
    problem_rules: dict[str, Rule] = {}
    problem_features: dict[str, str] = {}
    rules: dict[str, Rule] = {}
    features: dict[str, str] = {}
    split_group: tuple[str, ...] = ()
    library: dict[str, int | bool | str] = {}


class Declaration(msgspec.Struct, frozen=True, forbid_unknown_fields=True):
    """An op with one family, from a file. Without a `problem`, the op is an installed one."""

    op: str
    family: str
    doc: str
    problem: dict[str, Values]
    config: dict[str, Values]
    configs: tuple[tuple[str, ...], ...]
    """Which configs exist: the diagram over the parameters' values (`declared.diagram`); empty if formulas say so."""
    formulas: Formulas | msgspec.UnsetType = msgspec.UNSET
    """Rules and features that were written; omitted for a draft."""

    @property
    def layers(self) -> diagram.Layers:
        """The diagram, checked."""
        return diagram.read(self.configs, [values.parameter.size for values in self.config.values()])

    def covers(self, other: Declaration) -> bool:
        """Whether it has every value of the other, under the same name and code."""
        return (
            _shape(self) == _shape(other)
            and self.formulas == other.formulas
            and all(
                set(theirs.numbers) <= set(ours.numbers) and theirs.labels == ours.labels[: len(theirs.labels)]
                for ours, theirs in _pairs(self, other)
            )
        )

    def joined(self, other: Declaration) -> Declaration:
        """The union of both; refused if the parameters are not the same."""
        if self == other:
            return self
        if _shape(self) != _shape(other):
            raise InvalidValue(
                f"{self.family} is declared twice with different parameters ({', '.join(self.config)} and "
                f"{', '.join(other.config)}): give one of them another name when it is imported (`set` op=NAME)"
            )
        if self.formulas != other.formulas:
            raise InvalidValue(f"{self.family} is declared twice with different formulas: give one of them another name")
        problem = {name: values.joined(other.problem[name]) for name, values in self.problem.items()}
        config = {name: values.joined(other.config[name]) for name, values in self.config.items()}
        if self.formulas is not msgspec.UNSET:
            return msgspec.structs.replace(self, problem=problem, config=config)
        points = {point for part in (self, other) for point in _moved(part, config)}
        sizes = [values.parameter.size for values in config.values()]
        layers = diagram.diagram_of(sorted(points), sizes)
        return Declaration(self.op, self.family, self.doc, problem, config, diagram.written(layers))


def _shape(declared: Declaration) -> list[tuple[str, str]]:
    return [(name, values.kind) for part in (declared.problem, declared.config) for name, values in part.items()]


def _pairs(one: Declaration, other: Declaration) -> list[tuple[Values, Values]]:
    return [*zip(one.problem.values(), other.problem.values(), strict=True),
            *zip(one.config.values(), other.config.values(), strict=True)]  # fmt: skip


def _moved(declared: Declaration, config: Mapping[str, Values]) -> Iterable[tuple[int, ...]]:
    """The configs of a declaration as positions among the values of another."""
    places = []
    for name, values in declared.config.items():
        old, new = values.parameter, config[name].parameter
        places.append([new.index(old.value(index)) for index in range(old.size)])
    for point in diagram.points_of(declared.layers):
        yield tuple(place[index] or 0 for place, index in zip(places, point, strict=True))


class DeclaredOp(Op):
    """An op built from a declaration. The work of a draft is unknown: a file of times does not say what was computed."""

    declaration: ClassVar[Declaration]

    def derive(self, p: Namespace) -> Mapping[str, Expr]:
        found: dict[str, Expr] = {}
        for name, text in _formulas(self.declaration).derived.items():
            # A derived value may read those above it.
            scope = Namespace(self.name, {**{own: getattr(p, own) for own in p}, **found})
            found[name] = formula(text, {"p": scope})
        return found

    def constraints(self, p: Namespace) -> Iterable[Constraint]:
        for name, rule in _formulas(self.declaration).problem_rules.items():
            yield Constraint(name, rule.says, formula(rule.holds, {"p": p}))

    def work(self, p: Namespace) -> Work | None:
        said = _formulas(self.declaration)
        if said.flops is None and said.bytes is None:
            return None
        flops, moved = (constant(0) if text is None else formula(text, {"p": p}) for text in (said.flops, said.bytes))
        return Work(flops, moved)

    def features(self, p: Namespace, hw: Namespace) -> Mapping[str, Operand]:
        declared = self.declaration
        found: dict[str, Operand] = {}
        for name, values in declared.problem.items():
            size = getattr(p, name)
            if values.kind == "size" or (values.kind in ("range", "powers") and values.numbers[0] >= 1):
                found[f"log2_{name}"] = log2(size)
            elif declared.formulas is not msgspec.UNSET:
                found[name] = size
        # They tell several devices apart; a model of one device leaves them out.
        found |= {f"hw_{name}": getattr(hw, name) for name in DEVICE_NUMBERS if f"hw_{name}" not in declared.problem}
        written = _formulas(declared).problem_features
        return found | {name: formula(text, {"p": p, "hw": hw}) for name, text in written.items()}


class DeclaredFamily(Family):
    """The kernels of a declared op: exactly the configs that the file lists, or those that its rules allow."""

    declaration: ClassVar[Declaration]

    def constraints(self, p: Namespace, c: Namespace, hw: Namespace) -> Iterable[Constraint]:
        if self.declaration.formulas is not msgspec.UNSET:
            for name, rule in self.declaration.formulas.rules.items():
                yield Constraint(name, rule.says, formula(rule.holds, {"p": p, "c": c, "hw": hw}))
            return
        layers = self.declaration.layers
        if diagram.is_everything(layers):
            return
        names = list(self.parameters)
        checks = diagram.alive(layers, [_index(parameter, getattr(c, name)) for name, parameter in self.parameters.items()])
        raw = prod(parameter.size for parameter in self.parameters.values())
        for count in range(1, len(checks) + 1) if raw > CHECKED_AT_ONCE else (len(checks),):
            which = "such config" if count == len(names) else f"config with such {', '.join(names[:count])}"
            yield Constraint(f"exists_{count}", f"the file that declares {self.id} has no {which}", checks[count - 1])

    def features(self, p: Namespace, c: Namespace, hw: Namespace) -> Mapping[str, Operand]:
        written = _formulas(self.declaration).features
        spaces = {"p": p, "c": c, "hw": hw}
        return drafted_features(self.declaration, p, c) | {name: formula(text, spaces) for name, text in written.items()}


_NONE = Formulas()


def _formulas(declared: Declaration) -> Formulas:
    return _NONE if isinstance(declared.formulas, msgspec.UnsetType) else declared.formulas


def is_written(family: Family) -> bool:
    """Whether a person wrote the family as TOML, and so can add to it."""
    declared = declaration_of(family)
    return declared is not None and declared.problem != {} and declared.formulas is not msgspec.UNSET


def _index(parameter: Parameter, value: Expr) -> Operand:
    """The position of a value among the declared ones, as arithmetic; labels and flags are positions already."""
    if not isinstance(parameter, Choice):
        return value
    return reduce(lambda total, bound: total + (value >= bound), parameter.values[1:], 0 * value)


def drafted_features(declared: Declaration, p: Namespace, c: Namespace) -> dict[str, Operand]:
    """Features that can be drafted from names and values alone.

    Every parameter that varies, as it is; the product of sizes that differ in the last part of their name
    (`block_size_x`, `block_size_y`), of sizes that share an axis (`block_size_x`, `tile_size_x`), and of all of these;
    and how many blocks of that extent the problem has along each axis.
    """
    varying = {name: values for name, values in declared.config.items() if values.parameter.size > 1}
    found: dict[str, Operand] = {name: getattr(c, name) for name in varying}
    sizes = [name for name, values in varying.items() if values.kind in SIZED and values.numbers[0] >= 1 and not values.when]
    stems, axes = _by(sizes, lambda name: name.rpartition("_")[0]), _by(sizes, _axis)
    for stem, names in stems.items():
        if len(names) > 1:
            found[f"log2_all_{stem}"] = log2(_product(c, names))
    for axis, names in axes.items():
        if len(names) > 1:
            found[f"log2_along_{axis}"] = log2(_product(c, names))
        extent = getattr(p, f"size_{axis}") if f"size_{axis}" in declared.problem else None
        if extent is not None:
            found[f"blocks_{axis}"] = blocks = ceil_div(extent, _product(c, names))
            found[f"padding_{axis}"] = blocks * _product(c, names) / extent
    if len(axes) > 1 and any(len(names) > 1 for names in axes.values()):
        found["log2_all"] = log2(_product(c, [name for names in axes.values() for name in names]))
    return found


def _axis(name: str) -> str:
    last = name.rpartition("_")[2].lower()
    return last if last in AXES else ""


def _by(names: Sequence[str], part: Callable[[str], str]) -> dict[str, list[str]]:
    """Names by some part of them; those without it are left out."""
    groups: dict[str, list[str]] = {}
    for name in names:
        key = part(name)
        if key:
            groups.setdefault(key, []).append(name)
    return groups


def _product(c: Namespace, names: Sequence[str]) -> Expr:
    product: Expr = reduce(lambda a, b: a * b, (getattr(c, name) for name in names))
    return product


# The families that this process has read, by id; None: several of one id. A frame has no place for a declaration but the id.
_met: dict[str, DeclaredFamily | None] = {}


def met_family(name: str) -> DeclaredFamily | None:
    """The declared family of that id that this process has read, from a dataset, a model or a file; None: none, or several."""
    return _met.get(name)


@lru_cache(maxsize=64)
def _built(text: bytes) -> DeclaredFamily:
    declared = decode_json(text, type=Declaration)
    values = {**declared.problem, **declared.config}
    refuse_odd_names(declared.op, declared.family, {name: item.labels for name, item in values.items()}, declared.doc)
    installed = OPS.found.get(declared.op)
    if declared.problem and installed is not None:
        raise InvalidValue(f"the op '{declared.op}' is installed here and differs from the one that a file declares")
    if not declared.problem and (installed is None or declared.family in FAMILIES.found):
        rule = "is not installed here" if installed is None else f"has a family {declared.family} already"
        raise InvalidValue(f"these are kernels of the op '{declared.op}', which {rule}")
    parts = {"declaration": declared, "doc": declared.doc}
    problem = {name: values.parameter for name, values in declared.problem.items()}
    config = {name: values.parameter for name, values in declared.config.items()}
    said = _formulas(declared)
    group = said.split_group or tuple(problem)
    op = type("DeclaredOp", (DeclaredOp,), {**parts, "name": declared.op, "parameters": problem, "split_group": group})
    own = {"id": declared.family, "op": op() if declared.problem else installed, "parameters": config, "library": said.library}
    family = type("DeclaredFamily", (DeclaredFamily,), {**parts, **own})
    built = family()
    assert isinstance(built, DeclaredFamily)
    known = _met.setdefault(built.id, built)
    if known is not None and known.declaration != declared:
        _met[built.id] = None
    return built


def declared_family(declared: Declaration) -> DeclaredFamily:
    """The family that a declaration describes: the same object for the same declaration."""
    return _built(msgspec.json.encode(declared))


def declaration_of(family: Family) -> Declaration | None:
    """The declaration to store with rows or a model of a family; None for an installed one."""
    return family.declaration if isinstance(family, DeclaredFamily) else None


def joined_family(families: Sequence[Family]) -> Family:
    """One family for the rows of several drafts of it; an installed one is returned as it is."""
    drafts = [family.declaration for family in families if isinstance(family, DeclaredFamily)]
    return declared_family(reduce(Declaration.joined, drafts)) if drafts else families[0]


def refuse_another_draft(asked: Family, held: Family, where: object) -> None:
    """Rows may be read as another draft of their family only if that one knows all their values."""
    ours, theirs = declaration_of(asked), declaration_of(held)
    if ours is not None and theirs is not None and not ours.covers(theirs):
        raise InvalidValue(
            f"{where} holds another draft of {asked.id}, with other parameters or values: join the datasets first "
            "(`kerncast merge`), and train on the result"
        )


def resolve(name: str, declared: Declaration | None, where: object) -> Family:
    """The family of that name: as it was declared in `where`, else an installed one."""
    if declared is None:
        return FAMILIES.alone(name)  # the others need not be loaded to answer with one model
    try:
        if declared.family != name:
            raise InvalidValue(f"the declaration is of {declared.family}, but the rest is of {name}")
        return declared_family(declared)
    except InvalidValue as error:
        raise BadFile(f"{where} declares {name}, which cannot be used: {error}; import the data again") from error
