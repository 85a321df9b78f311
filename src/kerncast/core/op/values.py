"""Problem and Config, the values that ops and families validate, and the key of a measurement."""

from __future__ import annotations

import hashlib
from collections.abc import ItemsView, Iterable, Iterator, Mapping
from typing import Any, Self

from kerncast.core.device import Device
from kerncast.core.expr import Program
from kerncast.core.op.declaration import Family, Op
from kerncast.core.space import Value


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

    An optional parameter that is left out reads as None but is not listed: most configs have none of them.
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


KEY_BYTES = 12


def hash_key(text: str) -> str:
    """A key from its canonical text."""
    return hashlib.blake2b(text.encode(), digest_size=KEY_BYTES).hexdigest()


def key_digests(texts: Iterable[bytes]) -> list[bytes]:
    """The bytes of the keys of many texts, in two thirds of the time: a new hasher costs more than a copy."""
    fresh, found = hashlib.blake2b(digest_size=KEY_BYTES), []
    for text in texts:
        hasher = fresh.copy()
        hasher.update(text)
        found.append(hasher.digest())
    return found


def key(problem: Problem, config: Config, device: str) -> str:
    """The key of a measurement, from family, device, problem and config, never from a position."""
    return hash_key(key_text(config.family.id, device, problem.items(), config.items()))
