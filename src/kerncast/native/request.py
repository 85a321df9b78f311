"""What a JSON request may say about a problem: one tree of keys, from the op's declaration. Both parsers use it.

The parameters' own names are at the top; `Op.json` adds paths with other spellings. `query.py` writes the tree as
C tables, `selecting/request.py` reads requests by it in Python.
"""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass, field

from kerncast.core.op import Op
from kerncast.core.space import Space, Value
from kerncast.errors import InvalidValue
from kerncast.library import devices
from kerncast.models import software as softwares
from kerncast.models.model import Model
from kerncast.models.products import Product

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
    products: tuple[Product, ...] = ()
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
