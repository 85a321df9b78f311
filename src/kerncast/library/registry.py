"""Finding ops and families: modules of this package, and entry points of others.

A built-in is any module-level instance in a module of `kerncast.library.ops` or `kerncast.library.families`. Another package
adds its own with an entry point in the group `kerncast.ops` or `kerncast.families`:

    [project.entry-points."kerncast.ops"]
    softmax = "my_package.softmax:softmax"
"""

from __future__ import annotations

import importlib
import pkgutil
import re
from collections.abc import Iterable, Iterator, Mapping
from functools import cached_property
from importlib import metadata
from typing import Any, Generic, TypeVar

from kerncast.core.op import Family, Op
from kerncast.core.space import Value
from kerncast.errors import BadFile, InvalidValue, NotFound, quoted

T = TypeVar("T", Op, Family)
NAME = r"[A-Za-z_]\w*"
# What is longer is no name that anybody gave, and would be written again and again.
LONGEST_NAME, LONGEST_LABEL, LONGEST_DOC = 100, 2_000, 10_000


def refuse_odd_names(op: str, family: str | None, parameters: Mapping[str, Iterable[str]], doc: str) -> None:
    """Refuse names that are not letters, digits and '_', and long texts; `parameters` have their labels."""
    for name in (op, *parameters):
        if not re.fullmatch(NAME, name, re.ASCII):
            raise InvalidValue(f"a name is letters, digits and '_', got '{quoted(name)}'")
        if name.startswith("__"):  # those are Python's own
            raise InvalidValue(f"a name must not begin with '__', got '{quoted(name)}'")
    if family is not None and not re.fullmatch(rf"{op}/{NAME}", family, re.ASCII):
        raise InvalidValue(f"a family is called '{quoted(op)}/NAME', NAME in letters, digits and '_', got '{quoted(family)}'")
    names = (op, *parameters, *(() if family is None else (family.rpartition("/")[2],)))
    labels = (label for own in parameters.values() for label in own)
    for what, longest, texts in (
        ("name", LONGEST_NAME, names), ("label", LONGEST_LABEL, labels), ("description", LONGEST_DOC, (doc,)),
    ):  # fmt: skip
        for text in texts:
            if len(text) > longest:
                raise InvalidValue(
                    f"a {what} has at most {longest:,} characters, got {len(text):,} ('{text[:40]}…'): shorten it"
                )


def discover(package: str, group: str | None = None) -> Iterator[tuple[str, Any]]:
    """What the modules of a package define, then what entry points in a group load (named after it if none is given); with its
    origin."""
    for module in pkgutil.iter_modules(importlib.import_module(package).__path__, f"{package}."):
        for item in vars(importlib.import_module(module.name)).values():
            yield module.name, item
    yield from entry_points(group or group_of(package))


def group_of(package: str) -> str:
    """The group of entry points beside a package: `kerncast.ops` for `kerncast.library.ops`."""
    return f"kerncast.{package.rpartition('.')[2]}"


def entry_points(group: str) -> Iterator[tuple[str, Any]]:
    """What the entry points in a group load, with its origin."""
    for entry in metadata.entry_points(group=group):
        origin = f"entry point {entry.name} ({entry.value})"
        try:
            item = entry.load()
        except Exception as error:  # whatever a foreign package does on import
            raise BadFile(f"{origin} of group {group} does not load ({error!r}): fix or uninstall its package") from error
        yield origin, item


class Registry(Generic[T]):
    """Ops or families by name, loaded on first use."""

    def __init__(self, kind: type[T], package: str, identity: str, listing: str) -> None:
        self.kind: type[T] = kind
        self.package, self.identity, self.listing = package, identity, listing

    @cached_property
    def found(self) -> dict[str, T]:
        """Everything, by name; a name that two packages claim is refused."""
        found: dict[str, T] = {}
        origin: dict[str, str] = {}
        for source, item in discover(self.package):
            if not isinstance(item, self.kind):
                if source.startswith("entry point"):
                    raise BadFile(
                        f"{source} of group {group_of(self.package)} must be an instance of {self.kind.__name__}, got "
                        f"{type(item).__name__}: fix or uninstall the package that declares it"
                    )
                continue
            name = getattr(item, self.identity)
            if source.startswith("entry point"):
                _check(item, source)
            if found.setdefault(name, item) is not item:
                raise BadFile(
                    f"{self.kind.__name__.lower()} '{name}' is declared by both {origin[name]} and {source}: rename one"
                )
            origin.setdefault(name, source)
        return dict(sorted(found.items()))

    @cached_property
    def by_alias(self) -> dict[str, T]:
        """Everything by its aliases; an alias that is already taken is refused."""
        found: dict[str, T] = {}
        for item in self.found.values():
            for alias in getattr(item, "aliases", {}):
                if alias in self.found or alias in found:
                    raise BadFile(f"{getattr(item, self.identity)} has the alias '{alias}', which is already taken: rename it")
                found[alias] = item
        return found

    def get(self, name: str) -> T:
        """The one with this name or alias; NotFound suggests the nearest name."""
        item = self.found.get(name) or self.by_alias.get(name)
        if item is None:
            raise NotFound.named(self.kind.__name__.lower(), name, [*self.found, *self.by_alias], self.listing)
        return item

    @cached_property
    def _builtin(self) -> set[str]:
        """The modules of the package."""
        folders = importlib.import_module(self.package).__path__
        return {each.name for each in pkgutil.iter_modules(folders, f"{self.package}.")}

    def alone(self, name: str) -> T:
        """`get`, but without loading the others if a built-in module is named after it: for a process that must start fast.

        Whether two packages claim the name is checked by the process that starts it.
        """
        if "found" not in vars(self):
            module = f"{self.package}.{name.replace('/', '_')}"
            for item in vars(importlib.import_module(module)).values() if module in self._builtin else ():
                if isinstance(item, self.kind) and getattr(item, self.identity) == name:
                    return item
        return self.get(name)

    def __iter__(self) -> Iterator[T]:
        return iter(self.found.values())


def _check(item: Op | Family, source: str) -> None:
    """Refuse an op or a family of another package whose names are none."""
    op, family = (item, None) if isinstance(item, Op) else (item.op, item)
    rules = {**op.parameters, **(family.parameters if family is not None else {})}
    labels = {name: [label for label, _ in rule.codes] for name, rule in rules.items()}
    try:
        refuse_odd_names(op.name, family.id if family is not None else None, labels, item.doc)
    except InvalidValue as error:
        raise BadFile(f"{source}: {error}; fix or uninstall the package that declares it") from error


OPS: Registry[Op] = Registry(Op, "kerncast.library.ops", "name", "kerncast list op")
FAMILIES: Registry[Family] = Registry(Family, "kerncast.library.families", "id", "kerncast list family")


def family_named(name: str) -> tuple[Family, dict[str, Value]]:
    """A family by its id; or the only family of an op by the op's name or alias, with the parameters that the alias sets."""
    try:
        op = OPS.get(name) if "/" not in name else None
    except NotFound:
        op = None
    if op is None:
        return FAMILIES.get(name), {}
    found = [family for family in FAMILIES if family.op is op]
    if len(found) != 1:
        raise InvalidValue(f"{name} has several families: name one of {', '.join(family.id for family in found)}")
    return found[0], dict(op.aliases.get(name, {}))
