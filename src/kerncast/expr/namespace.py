"""Symbols as attributes, which is how features read them: `p.M`, `c.tile_m`, `hw.num_cus`."""

from __future__ import annotations

from collections.abc import Iterator, Mapping

from kerncast.errors import NotFound
from kerncast.expr.nodes import Expr


class Namespace:
    """The symbols of one prefix as attributes: `p.M` while tracing."""

    def __init__(self, owner: str, entries: Mapping[str, Expr]) -> None:
        self._owner = owner
        self._entries = dict(entries)

    def __getattr__(self, name: str) -> Expr:
        if name.startswith("__"):
            raise AttributeError(name)
        if name not in self._entries:
            raise NotFound.named(f"symbol of {self._owner}", name, self._entries)
        return self._entries[name]

    def __iter__(self) -> Iterator[str]:
        return iter(self._entries)
