"""The JSON entry point of an exported model: what a request may say, and the C tables and code that read it.

One tree of keys comes from the op's declaration: its parameters' own names at the top, and the paths of `Op.json` with other
spellings. It is written as C tables here, and `answering/request.py` reads requests by it in Python. The C code is in
`c/query_*.c`, written for the prefix `kerncast`; it follows the artefact's header in one translation unit, in the order check,
tables, read, reply, answer.
"""

from __future__ import annotations

import json
from collections.abc import Iterable, Sequence
from dataclasses import dataclass, field

from kerncast.core import software as softwares
from kerncast.core.io.quoting import c_integer, c_string, with_prefix
from kerncast.core.op import Op
from kerncast.core.parameters import Bool, Categorical, Parameter
from kerncast.core.space import Space, Value
from kerncast.errors import InvalidValue
from kerncast.library import devices
from kerncast.models.answer import CHOOSING
from kerncast.models.model import Model
from kerncast.models.products import SizeProduct
from kerncast.native import packaged

RESERVED = ("problem", "tier", "op", "family", "device", "software")
"""Keys of a request that are not parameters."""


@dataclass
class Node:
    """A key: further keys inside an object, a value, or both."""

    name: str
    path: str
    children: dict[str, Node] = field(default_factory=dict)
    leaf: bool = False
    parameters: tuple[str, ...] = ()
    """The parameters that a leaf's value sets, as a list if there are several; none: the key is ignored."""
    once: bool = False
    """True for the parameter's own name: given once, with its own labels only. Otherwise it may repeat if values agree."""
    names: tuple[tuple[str | int, str], ...] = ()
    present: str = ""
    """A flag parameter that is true if there is an object here."""
    product: str = ""
    """A value that is given instead of two parameters (`Op.products`)."""


@dataclass(frozen=True)
class Identity:
    """Whose answers an artefact gives: which op, on which device, by which model."""

    op: Op
    family: str
    devices: tuple[str, ...]
    """The device's name and its aliases."""
    model: str
    software: str | None
    trained_on: tuple[str, ...] = ()
    """The software that its data record, as written."""
    products: tuple[SizeProduct, ...] = ()
    """What a problem may be given by instead of two of its sizes."""

    @property
    def names(self) -> tuple[str, ...]:
        """The op's name and its aliases."""
        return (self.op.name, *self.op.aliases)


@dataclass(frozen=True)
class Same:
    """A value that equals another parameter's is written as one value."""

    parameter: str
    other: str
    value: Value


def request_tree(problem: Space, op: Op | None = None, products: Iterable[str] = ()) -> Node:
    """The keys that a request may have, products of sizes among them; paths that cannot be told apart are refused."""
    reserved = [name for name in problem.parameters if name in RESERVED]
    if reserved:
        raise InvalidValue(f"{problem.owner}: JSON requests reserve the key '{reserved[0]}': rename that problem parameter")
    root = Node("", "")
    for name in problem.parameters:
        root.children[name] = Node(name, name, leaf=True, parameters=(name,), once=True)
    for name in products:
        root.children[name] = Node(name, name, leaf=True, once=True, product=name)
    for item in op.json if op is not None else ():
        for path in item.paths:
            node = root
            for key in path.split("."):
                so_far = f"{node.path}.{key}" if node.path else key
                node = node.children.setdefault(key, Node(key, so_far))
            if item.present:
                node.present = item.parameters[0]
                continue
            if path in RESERVED or node.leaf:
                raise InvalidValue(f"{problem.owner}: the JSON path '{path}' means two things; rename one")
            node.leaf, node.parameters, node.names = True, item.parameters, item.names
    return root


def sameness(op: Op | None) -> list[Same]:
    """The rules of `JsonField.same`."""
    fields = op.json if op is not None else ()
    return [Same(item.parameters[0], item.same[0], item.same[1]) for item in fields if item.same is not None]


def device_names(model: Model) -> tuple[str, ...]:
    """The names of a model's device: its name, and the aliases in the profile of that name."""
    name = model.device.name
    known = devices.profiles().get(name, model.device)
    return (name, *known.aliases)


def identity_of(model: Model) -> Identity:
    """Whose answers the artefact of a model gives."""
    manifest = model.manifest
    return Identity(
        op=model.family.op,
        family=model.family.id,
        devices=device_names(model),
        model=f"{model.family.id}@{model.device.name}#{manifest.checksum[:8]}",
        software=softwares.telling(manifest.software),
        trained_on=manifest.software,
        products=model.products,
    )


__all__ = ["RESERVED", "query_source"]

# A rule is one string literal, for which C99 guarantees 4,095 bytes; longer lists of labels would not be read anyway.
LONGEST_RULE = 600
MANY_NAMES = 12
# From here on a writer that uses doubles may have rounded, so numbers with a point or an exponent are not trusted.
WHOLE_AS_DOUBLE = 2**53
# Room for the software that a request names; a longer text cannot be the model's.
SHORTEST_ROOM = 256
ROOM_FACTOR = 2

_INCLUDES = "".join(f"#include <{name}.h>\n" for name in ("float", "stdbool", "stddef", "stdint", "stdio", "string"))


def query_source(prefix: str, problem: Space, config: Space, identity: Identity | None = None) -> str:
    """The C text of `PREFIX_query_json` and everything it needs besides the artefact's header."""
    products = identity.products if identity else ()
    totals = [item.name for item in products]
    tables = [
        packaged("query_types.c"),
        *(_space(prefix, name, space) for name, space in (("problem", problem), ("config", config))),
        _nodes(problem, request_tree(problem, identity.op if identity else None, totals), totals),
        _specials(prefix, identity),
        _rules(problem, identity),
        _products(problem, products),
        f"/* C has no empty arrays. */\nenum {{ QUERY_PLACES = {max(len(problem.parameters), 1)} }};\n",
    ]
    check, *code = (with_prefix(packaged(f"query_{name}.c"), prefix) for name in ("check", "read", "reply", "answer"))
    return "\n".join([_INCLUDES, check, *tables, *code])


# -- parameters ----------------------------------------------------------------------------------------------------------


def _space(prefix: str, name: str, space: Space) -> str:
    """The table of a space, in declared order, and a check that the header's struct is laid out like it."""
    if not space.parameters:
        return f"static const query_space query_{name} = {{NULL, 0}};\n"
    labels = []
    rows = []
    for place, (parameter_name, parameter) in enumerate(space.parameters.items()):
        table = f"query_{name}_labels{place}"
        if parameter.codes:
            labels.append(_labels(table, ((label, c_integer(code)) for label, code in parameter.codes)))
        rows.append(_row(parameter_name, parameter, table))
    count = len(rows)
    return (
        f"{''.join(labels)}"
        f"static const query_parameter query_{name}_parameters[{count}] = {{\n{''.join(rows)}}};\n"
        f"static const query_space query_{name} = {{query_{name}_parameters, {count}}};\n"
        f"typedef char query_{name}_layout[sizeof({prefix}_{name}) == {count} * sizeof(int64_t) ? 1 : -1];\n"
    )


def rule_of(parameter: Parameter) -> str:
    """What completes "must be" in a refusal."""
    rule = parameter.describe()
    if not parameter.codes and not isinstance(parameter, Bool) and parameter.number(parameter.size - 1) >= WHOLE_AS_DOUBLE:
        rule += ", from 2^53 on in digits alone"
    return rule if len(rule) <= LONGEST_RULE else f"{rule[:LONGEST_RULE]} …"


def _row(name: str, parameter: Parameter, table: str) -> str:
    kind = "FLAG" if isinstance(parameter, Bool) else "LABEL" if isinstance(parameter, Categorical) else "NUMBER"
    return _parameter(name, rule_of(parameter), kind, parameter.nullable, table, len(parameter.codes))


def _parameter(name: str, rule: str, kind: str, nullable: bool, table: str, labels: int) -> str:
    fields = [c_string(name), _size(name), c_string(rule), f"QUERY_{kind}", str(nullable).lower()]
    return f"    {{{', '.join([*fields, table if labels else 'NULL', str(labels)])}}},\n"


def _labels(table: str, codes: Iterable[tuple[str, str]]) -> str:
    rows = [f"    {{{c_string(label)}, {_size(label)}, {code}}},\n" for label, code in codes]
    return f"static const query_label {table}[{len(rows)}] = {{\n{''.join(rows)}}};\n"


# -- keys ----------------------------------------------------------------------------------------------------------------


def _nodes(problem: Space, root: Node, totals: list[str]) -> str:
    """The tree of keys, level by level: the children of a node are adjacent."""
    nodes, rows = [root], []
    places: list[int] = []
    spellings: dict[tuple[str, tuple[tuple[str | int, str], ...]], int] = {}
    text = ""
    listed = list(problem.parameters)
    for node in nodes:  # grows while it is read
        first_child, first_place = len(nodes), len(places)
        nodes.extend(node.children.values())
        places.extend(listed.index(name) for name in node.parameters)
        names, numbers = "NULL, 0", "NULL, 0"
        if node.names:
            known = (node.parameters[0], node.names)
            if known not in spellings:
                spellings[known] = len(spellings)
                text += _spellings(spellings[known], problem.parameters[node.parameters[0]], node.names)
            texts = sum(isinstance(given, str) for given, _ in node.names)
            names = f"query_names{spellings[known]}, {texts}" if texts else names
            numbers = f"query_codes{spellings[known]}, {len(node.names) - texts}" if texts < len(node.names) else numbers
        present = listed.index(node.present) if node.present else -1
        product = totals.index(node.product) if node.product else -1
        flags = f"{str(node.leaf).lower()}, {str(node.once).lower()}"
        rows.append(
            f"    {{{c_string(node.name)}, {_size(node.name)}, {c_string(node.path)}, {first_child}, {len(node.children)}, "
            f"{first_place}, {len(node.parameters)}, {present}, {product}, {flags}, {names}, {numbers}}},\n"
        )
    listing = ", ".join(map(str, places)) or "0"
    text += f"static const size_t query_places[{max(1, len(places))}] = {{{listing}}};\n"
    text += f"enum {{ QUERY_NODES = {len(rows)} }};\n"
    return text + f"static const query_node query_nodes[QUERY_NODES] = {{\n{''.join(rows)}}};\n"


def _spellings(number: int, parameter: Parameter, names: tuple[tuple[str | int, str], ...]) -> str:
    codes = dict(parameter.codes)
    texts = [(given, c_integer(codes[label])) for given, label in names if isinstance(given, str)]
    numbers = [f"{{{c_integer(given)}, {c_integer(codes[label])}}}" for given, label in names if isinstance(given, int)]
    text = _labels(f"query_names{number}", texts) if texts else ""
    if numbers:
        text += f"static const query_code query_codes{number}[{len(numbers)}] = {{{', '.join(numbers)}}};\n"
    return text


def _specials(prefix: str, identity: Identity | None) -> str:
    """Keys that are not parameters but are read like them: the tier, and whose answer is asked for."""
    text = _labels("query_tier_labels", ((tier, f"{prefix.upper()}_TIER_{tier.upper()}") for tier in CHOOSING))
    rows = [_parameter("tier", f"one of {', '.join(CHOOSING)}", "LABEL", False, "query_tier_labels", len(CHOOSING))]
    if identity is not None:
        families = (identity.family, identity.family.split("/")[1])
        for name, known in (("op", identity.names), ("family", families), ("device", identity.devices)):
            text += _labels(f"query_{name}_labels", ((label, str(code)) for code, label in enumerate(known)))
            kind = "NAME" if name == "device" else "LABEL"
            rows.append(_parameter(name, one_of(known), kind, False, f"query_{name}_labels", len(known)))
        rows.append(_parameter("software", "the name of a commit or a version", "LABEL", False, "NULL", 0))
    text += f"enum {{ QUERY_TIER = 0, QUERY_OP = 1, QUERY_SPECIALS = {len(rows)} }};\n"
    return text + f"static const query_parameter query_specials[{len(rows)}] = {{\n{''.join(rows)}}};\n"


def one_of(known: tuple[str, ...]) -> str:
    """What completes "must be" where one of a few names is asked for; of many, the first ones are said."""
    if len(known) > MANY_NAMES:
        return f"{known[0]}, or one of its {len(known) - 1} other names such as {', '.join(known[1:4])}"
    return known[0] if len(known) == 1 else f"one of {', '.join(known)}"


def origin_json(identity: Identity) -> str:
    """What a reply says of the model that gave it: the members at its end."""
    return f',"model":{json.dumps(identity.model)},"software":{json.dumps(identity.software)}'


def _rules(problem: Space, identity: Identity | None) -> str:
    """Tables of the op's aliases, of the values to normalise, and of the origin that an answer names."""
    listed, presets, same = list(problem.parameters), [], []
    op = identity.op if identity else None
    for code, alias in enumerate(op.aliases if op is not None else (), start=1):
        assert op is not None
        for name, value in op.aliases[alias].items():
            presets.append(f"{{{code}, {listed.index(name)}, {c_integer(_code_of(problem.parameters[name], value))}}}")
    for rule in sameness(op):
        own, other = problem.parameters[rule.parameter], problem.parameters[rule.other]
        if any(dict(other.codes).get(label, code) != code for label, code in own.codes):
            raise InvalidValue(
                f"{problem.owner}: {rule.parameter} and {rule.other} must have the same codes for the same labels"
            )
        otherwise = "INT64_MIN" if other.default is None else c_integer(_code_of(other, other.default))
        places = f"{listed.index(rule.parameter)}, {listed.index(rule.other)}"
        same.append(f"{{{places}, {otherwise}, {c_integer(_code_of(own, rule.value))}}}")
    known = softwares.names(identity.trained_on) if identity else ()
    rows = [f"{{{c_string(item.text)}, {_size(item.text)}, {_size(item.text[: item.value])}, "
            f"{str(softwares.is_cut(item.text[item.value :])).lower()}}}" for item in known]  # fmt: skip
    room = max(SHORTEST_ROOM, *(ROOM_FACTOR * len(item.text.encode()) for item in known)) if known else SHORTEST_ROOM
    origin = origin_json(identity) if identity else ""
    return (
        _table("query_assignment", "query_presets", "query_preset_count", presets, "{-1, 0, 0}")
        + _table("query_same_as", "query_same", "query_same_count", same, "{0, 0, 0, 0}")
        + _table("query_software_name", "query_software", "query_software_count", rows, '{"", 0, 0, false}')
        + f"enum {{ QUERY_SOFTWARE = {room} }};\n"
        + f"static const char query_trained[] = {c_string(softwares.trained(identity.trained_on if identity else ()))};\n"
        + f"static const char query_origin[] = {c_string(origin)};\n"
    )


def _products(problem: Space, products: Sequence[SizeProduct]) -> str:
    """What may be given instead of two sizes, and how their shape is found."""
    listed, rows = list(problem.parameters), []
    for item in products:
        ranges = ", ".join(f"{listed.index(name)}, {rule.low}, {rule.high}, {rule.step}"
                           for name, rule in zip(item.factors, item.rules, strict=True))  # fmt: skip
        words = ", ".join(c_string(text) if text else "NULL" for text in (item.name, item.rule, item.parted, item.needs))
        rows.append(f"{{{words}, {item.most}, {ranges}}}")
    text = f"#define QUERY_PRODUCTS {len(rows)}\n"
    return text + (f"static const query_product query_products[{len(rows)}] = {{{', '.join(rows)}}};\n" if rows else "")


def _table(kind: str, name: str, count: str, rows: list[str], nothing: str) -> str:
    listing = ", ".join(rows) or nothing
    return f"static const {kind} {name}[{max(1, len(rows))}] = {{{listing}}};\nstatic const size_t {count} = {len(rows)};\n"


def _code_of(parameter: Parameter, value: object) -> int:
    index = parameter.index(value)
    assert index is not None  # the op was checked when it was declared
    return parameter.number(index)


def _size(text: str) -> str:
    return str(len(text.encode()))
