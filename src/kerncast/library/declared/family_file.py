"""A family written as TOML: an op, its kernels' parameters, rules and features, without a Python package.

    [op]
    name = "transpose"
    work = { bytes = "8 * rows * columns" }

    [op.problem]
    rows = { from = 1, to = 65536 }
    columns = { from = 1, to = 65536 }

    [family]
    name = "blocked"

    [family.config]
    block = { powers_of_two = [4, 64] }
    order = ["rows", "columns"]

    [family.constraints]
    fits = { rule = "block * block * 8 <= 32768", says = "two blocks must fit in the L1 cache" }

    [family.features]
    blocks = "ceil_div(rows, block) * ceil_div(columns, block)"

Kernels of an op that exists name it instead: `[family] op = "gemm"`. The other tables of such a file say how the kernels are
measured (`backends.command`).
"""

from __future__ import annotations

from collections.abc import Mapping
from pathlib import Path
from typing import Any

import msgspec

from kerncast.core import dtypes
from kerncast.core.expr.nodes import BOOLEAN
from kerncast.core.io.foreign import guarded, key_rule, read_toml
from kerncast.core.io.quoting import toml_key, toml_value
from kerncast.core.op import Family
from kerncast.core.parameters import Value
from kerncast.errors import BadFile, InvalidValue, KerncastError, NotFound
from kerncast.library import registry
from kerncast.library.declared.declaration import LARGEST_SIZE, Declaration, Formulas, Rule, Values, declared_family
from kerncast.library.registry import FAMILIES, OPS

SUFFIX = ".toml"
TABLES = ("op", "family")
# More would be a table of numbers, not formulas that a person wrote.
MOST_FORMULAS = 500


class _Parameter(msgspec.Struct, frozen=True, forbid_unknown_fields=True, rename={"low": "from", "high": "to"}):
    """One of: a range (`from`, `to`, `step`), `values`, `powers_of_two`, `labels`, `flag`."""

    low: int | None = None
    high: int | None = None
    step: int = 1
    values: list[int] = []
    powers_of_two: tuple[int, int] | None = None
    labels: list[str] = []
    flag: bool = False
    default: int | bool | str | None = None
    when: str | None = None
    doc: str | None = None


Written = _Parameter | list[int] | list[str]


class _Rule(msgspec.Struct, frozen=True, forbid_unknown_fields=True):
    rule: str
    says: str = ""


class _Work(msgspec.Struct, frozen=True, forbid_unknown_fields=True):
    flops: str | None = None
    bytes: str | None = None


class _Op(msgspec.Struct, frozen=True, forbid_unknown_fields=True):
    name: str
    problem: dict[str, Any]
    doc: str = ""
    derived: dict[str, str] = {}
    work: _Work = _Work()
    constraints: dict[str, str | _Rule] = {}
    features: dict[str, str] = {}
    split_group: list[str] = []


class _Family(msgspec.Struct, frozen=True, forbid_unknown_fields=True):
    name: str
    config: dict[str, Any]
    op: str | None = None
    doc: str = ""
    constraints: dict[str, str | _Rule] = {}
    features: dict[str, str] = {}
    library: dict[str, int | bool | str] = {}
    configs: list[list[str]] = []
    """Which configs exist, as `Declaration.configs` has it: written by `family_tables`, not by people."""


def family_named(name: str) -> Family:
    """An installed family by its name, or the one that a TOML file declares."""
    if not name.endswith(SUFFIX):
        return FAMILIES.get(name)
    path = Path(name)
    with guarded(path, "docs/command.md shows one", "is not the file of a family"):
        tables = read_toml(path)
    try:
        declared = declaration_in(tables)
        if declared is None:
            raise BadFile("it has no [family] table; docs/command.md shows one")
        return declared_family(declared)
    except KerncastError as error:
        raise type(error)(f"{path}: {error}") from error


def family_with_preset(name: str) -> tuple[Family, dict[str, Value]]:
    """The family that is meant by its id, by its TOML file, or by the name of an op with one family; and the parameters that
    an alias of the op sets."""
    return (family_named(name), {}) if name.endswith(SUFFIX) else registry.family_named(name)


def declaration_in_file(file: Path | str, tables: Mapping[str, Any]) -> Declaration | None:
    """What a file declares that has other tables, too."""
    if "declaration" in tables:
        raise BadFile(f"{file} has a key `declaration`: declare a family in the tables [op] and [family]")
    try:
        return declaration_in(tables)
    except KerncastError as error:
        raise BadFile(f"{file}: {error}") from error


def declaration_in(tables: Mapping[str, Any]) -> Declaration | None:
    """What the tables `op` and `family` of a file declare; None if `family` is not a table."""
    if not isinstance(tables.get("family"), dict):
        if "op" in tables:
            raise BadFile("[op] declares an op, and its kernels are missing: add a [family] table")
        return None
    family = _read(tables["family"], _Family, "family")
    op = _read(tables["op"], _Op, "op") if "op" in tables else None
    if (op is None) == (family.op is None):
        raise BadFile("the kernels need one op: an [op] table that declares it, or family.op = NAME of one that is installed")
    # A family that lists its configs was drafted from results of an auto-tuner, where no label is a dtype.
    listed = bool(family.configs)
    config = {name: _values("" if listed else name, item, f"family.config.{name}") for name, item in family.config.items()}
    if op is None:
        base, problem, doc = OPS.get(str(family.op)).name, dict[str, Values](), family.doc
    else:
        base, doc = op.name, family.doc or op.doc
        problem = {name: _values("" if listed else name, item, f"op.problem.{name}") for name, item in op.problem.items()}
        if not problem:
            raise BadFile("op.problem must declare at least one parameter, got none")
    formulas: Formulas | msgspec.UnsetType = _formulas(op, family)
    if listed:
        if formulas != Formulas():
            raise BadFile("family.configs lists the configs that exist, so the file must not have rules, features or work")
        formulas = msgspec.UNSET
        problem = {name: _with_draft_default(values) for name, values in problem.items()}
    declared = Declaration(base, f"{base}/{family.name}", doc, problem, config, tuple(map(tuple, family.configs)), formulas)
    _refuse_mistakes(declared_family(declared))
    return declared


def _with_draft_default(values: Values) -> Values:
    """A draft stores its default elsewhere."""
    if not isinstance(values.preset, str):
        return values
    return msgspec.structs.replace(values, default=values.preset, preset=msgspec.UNSET)


def _refuse_mistakes(family: Family) -> None:
    """Trace every formula, so that a mistake is found before anything is measured."""
    assert family.feature_program
    for space in (family.problem, family.config):
        for rule in space.constraints:
            if rule.holds.kind not in BOOLEAN:
                raise BadFile(f"the rule '{rule.name}' must be a comparison, or several with and, or, not")
    family.op.work(family.op.namespace())
    for name, value in family.library.items():
        if name not in family.parameters or family.parameters[name].index(value) is None:
            raise BadFile(f"family.library has {name} = {value!r}, which no config has")


def _read(table: Any, kind: type[Any], where: str) -> Any:
    try:
        return msgspec.convert(table, kind)
    except msgspec.ValidationError as error:
        raise BadFile(f"[{where}] is not understood: {key_rule(error)} (every key is explained in docs/command.md)") from error


def _formulas(op: _Op | None, family: _Family) -> Formulas:
    work = _Work() if op is None else op.work
    found = Formulas(
        derived={} if op is None else op.derived,
        flops=work.flops,
        bytes=work.bytes,
        problem_rules={} if op is None else _rules(op.constraints),
        problem_features={} if op is None else op.features,
        rules=_rules(family.constraints),
        features=family.features,
        split_group=() if op is None else tuple(op.split_group),
        library=family.library,
    )
    count = sum(len(part) for part in (found.derived, found.problem_rules, found.problem_features, found.rules, found.features))
    if count > MOST_FORMULAS:
        raise BadFile(f"a file has at most {MOST_FORMULAS} formulas, got {count:,}")
    return found


def _rules(given: Mapping[str, str | _Rule]) -> dict[str, Rule]:
    found = {}
    for name, item in given.items():
        text, says = (item, "") if isinstance(item, str) else (item.rule, item.says)
        found[name] = Rule(text, says or f"{text} must hold")
    return found


def _values(name: str, item: Any, where: str) -> Values:
    """A parameter as it is stored."""
    if isinstance(item, list):
        item = {"values" if all(type(value) is int for value in item) else "labels": item}
    said: _Parameter = _read(item, _Parameter, where)
    kinds = {
        "range": said.low is not None or said.high is not None, "numbers": bool(said.values),
        "powers": said.powers_of_two is not None, "labels": bool(said.labels), "flag": said.flag,
    }  # fmt: skip
    chosen = [kind for kind, given in kinds.items() if given]
    if len(chosen) != 1 or (kinds["range"] and (said.low is None or said.high is None)):
        raise BadFile(f"{where} must have one of from and to, values, powers_of_two, labels or flag = true")
    kind = chosen[0]
    if kind == "range" and (said.low, said.high, said.step) == (1, LARGEST_SIZE, 1):
        kind = "size"
    numbers = {"range": (said.low, said.high, said.step), "powers": said.powers_of_two, "numbers": tuple(sorted(said.values))}
    if kind == "labels" and name == "dtype":
        kind = "dtypes"
        unknown = [label for label in said.labels if label not in dtypes.CODES]
        if unknown:
            raise BadFile(
                f"{where}: {NotFound.named('dtype', unknown[0], dtypes.CODES)}; name the parameter otherwise if it is none"
            )
    more: dict[str, Any] = {"preset": said.default, "when": said.when, "doc": said.doc}
    found = msgspec.convert(
        {"kind": kind, "numbers": numbers.get(kind, ()), "labels": said.labels,
         **{key: value for key, value in more.items() if value is not None}},
        Values,
    )  # fmt: skip
    try:
        rule = found.parameter
    except InvalidValue as error:
        raise BadFile(f"{where}: {error}") from error
    if said.default is not None and rule.index(said.default) is None:
        raise BadFile(f"{where}: the default must be {rule.describe()}, got {said.default!r}")
    return found


def family_tables(declared: Declaration) -> list[str]:
    """The lines of the tables [op] and [family]; read again, they are the same declaration."""
    said = Formulas() if isinstance(declared.formulas, msgspec.UnsetType) else declared.formulas
    doc = {"doc": declared.doc} if declared.doc else {}
    work = {name: text for name, text in (("flops", said.flops), ("bytes", said.bytes)) if text is not None}
    name = declared.family.rpartition("/")[2]
    lines: list[str] = []
    if declared.problem:
        op = {"name": declared.op, **doc, "work": work, "split_group": said.split_group}
        lines += [*_table("op", op), "", *_parameters("op.problem", declared.problem)]
        lines += _tables(("op.derived", said.derived), ("op.constraints", _rule_lines(said.problem_rules)))
        lines += [*_tables(("op.features", said.problem_features)), ""]
    family = {"name": name} | ({} if declared.problem else {"op": declared.op, **doc})
    lines += _table("family", {**family, "library": said.library, "configs": declared.configs})
    lines += ["", *_parameters("family.config", declared.config)]
    return [*lines, *_tables(("family.constraints", _rule_lines(said.rules)), ("family.features", said.features))]


def _table(name: str, entries: Mapping[str, Any]) -> list[str]:
    """A table with what is not empty."""
    kept = {key: item for key, item in entries.items() if item not in ("", (), {})}
    return [f"[{name}]", *(f"{toml_key(key)} = {toml_value(item)}" for key, item in kept.items())]


def _tables(*named: tuple[str, Mapping[str, Any]]) -> list[str]:
    return [line for name, entries in named if entries for line in ("", *_table(name, entries))]


def _rule_lines(rules: Mapping[str, Rule]) -> dict[str, Any]:
    return {name: {"rule": rule.holds, "says": rule.says} for name, rule in rules.items()}


def _parameters(table: str, parameters: Mapping[str, Values]) -> list[str]:
    return [f"[{table}]", *(f"{toml_key(name)} = {_parameter(values)}" for name, values in parameters.items())]


def _parameter(values: Values) -> str:
    numbers = (1, LARGEST_SIZE) if values.kind == "size" else values.numbers
    found: dict[str, Any] = {}
    if values.kind in ("range", "size"):
        found = dict(zip(("from", "to", "step"), numbers, strict=False))
        if found.get("step") == 1:
            del found["step"]
    elif values.kind == "flag":
        found = {"flag": True}
    else:
        found = {{"numbers": "values", "powers": "powers_of_two"}.get(values.kind, "labels"): values.numbers or values.labels}
    preset = values.default if isinstance(values.preset, msgspec.UnsetType) else values.preset
    more = {"default": preset, "when": values.when, "doc": values.doc}
    found |= {key: item for key, item in more.items() if item is not None and not isinstance(item, msgspec.UnsetType)}
    bare = len(found) == 1 and values.kind in ("numbers", "labels", "dtypes")
    return toml_value(next(iter(found.values())) if bare else found)
