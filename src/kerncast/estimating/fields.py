"""The fields of a model's config: each is read with its type and range, or refused with its name."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any

from kerncast.errors import BadFile, quoted

# Larger than any size of any model: sums and products of sizes stay exact and finite.
LARGEST = 2**31 - 1
MOST_LAYERS = 100_000


@dataclass(frozen=True)
class Fields:
    """A JSON object, with the name of its file for messages."""

    values: Mapping[str, Any]
    source: str

    def filled(self, defaults: Mapping[str, int]) -> tuple[Fields, tuple[str, ...]]:
        """The same fields and those of `defaults` that are not there, and the names of the latter."""
        missing = tuple(name for name in defaults if name not in self.values)
        return Fields({**self.values, **{name: defaults[name] for name in missing}}, self.source), missing

    def renamed(self, others: Mapping[str, Sequence[str]]) -> Fields:
        """The same fields, with those that are called otherwise by their usual name too."""
        found = {name: self.values[own] for name, known in others.items() if (own := self.present(name, *known)) is not None}
        return Fields({**self.values, **found}, self.source)

    def present(self, *names: str) -> str | None:
        """The first of these names that has a value other than null."""
        return next((name for name in names if self.values.get(name) is not None), None)

    def whole(self, *names: str, default: int | None = None, least: int = 1, most: int = LARGEST) -> int:
        """The whole number that is called by the first of these names that is there."""
        found = self.present(*names)
        if found is None:
            if default is None:
                raise BadFile(
                    f"{self.source} has no {' or '.join(names)}, which a decoder needs: give the config.json of a decoder, or "
                    "add the field if it is called otherwise there"
                )
            return default
        value = self.values[found]
        if isinstance(value, float) and value.is_integer():
            value = int(value)
        if isinstance(value, bool) or not isinstance(value, int) or not least <= value <= most:
            rule = f"must be a whole number from {least} to {most:,}"
            raise BadFile(f"{self.source}: {found} {rule}, got {quoted(repr(value))}: correct it")
        return value

    def flag(self, name: str, default: bool) -> bool:
        """A boolean."""
        value = self.values.get(name)
        if value is None:
            return default
        if not isinstance(value, bool):
            raise BadFile(f"{self.source}: {name} must be true or false, got {quoted(repr(value))}: correct it")
        return value

    def text(self, name: str) -> str | None:
        """A text, or None."""
        value = self.values.get(name)
        if value is not None and not isinstance(value, str):
            raise BadFile(f"{self.source}: {name} must be a text, got {quoted(repr(value))}: correct it")
        return value

    def items(self, name: str) -> Sequence[Any] | None:
        """A list, or None."""
        value = self.values.get(name)
        if value is not None and not isinstance(value, list):
            raise BadFile(f"{self.source}: {name} must be a list, got {quoted(repr(value))}: correct it")
        return value

    def inner(self, name: str) -> Fields | None:
        """An object within this one, or None."""
        value = self.values.get(name)
        if value is None:
            return None
        if not isinstance(value, Mapping):
            raise BadFile(f"{self.source}: {name} must be an object, got {quoted(repr(value))}: correct it")
        return Fields(value, f"{self.source}, {name}")

    def per_layer(self, name: str, layers: int) -> Sequence[Any] | None:
        """A list with one item for each layer, or None."""
        value = self.items(name)
        if value is not None and len(value) != layers:
            raise BadFile(f"{self.source}: {name} has {len(value):,} items for {layers:,} layers: correct one of them")
        return value
