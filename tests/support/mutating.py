"""Mutations for fuzzers: bytes that are cut, spliced and strewn with tokens, and JSON whose values are exchanged; seeded."""

from __future__ import annotations

import copy
import random
from collections.abc import Sequence
from typing import Any

TOKENS = (
    *(bytes([c]) for c in b'{}[]:,"\\ -.e0=\n\t#'),
    b"\\ud83d", b"null", b"1e5", b"-1", b"nan", b"1e999", b"99999999999999999999", b"\xf0\x9f", b"\xff", b"\0", b"../", b"[[",
)  # fmt: skip
VALUES: tuple[Any, ...] = (
    None, True, False, 0, -1, 2**31, 2**63, 10**30, 0.5, -1e308, "", "x", "../x", "\0", "é" * 200,
    [], {}, [[]], [None], {"x": 1},
)  # fmt: skip


def mutated(chance: random.Random, seeds: Sequence[bytes], tokens: Sequence[bytes] = TOKENS) -> bytes:
    """One of some texts: bits flipped, cut, spliced with another, repeated in part, strewn with tokens."""
    text = chance.choice(seeds)
    for _ in range(chance.randint(1, 6)):
        at, end = sorted(chance.randint(0, len(text)) for _ in range(2))
        if chance.random() < 0.5:  # most damage is small
            end = min(end, at + 8)
        piece = chance.choice([b"", chance.choice(tokens), chance.choice(seeds)[:200], text[at:end] * 2, chance.randbytes(3)])
        text = text[:at] + piece + text[chance.choice([at, end]) :]
    return text


def mutated_json(chance: random.Random, value: Any) -> Any:
    """The value with one to three of its parts exchanged, removed or repeated."""
    found = copy.deepcopy(value)
    for _ in range(chance.randint(1, 3)):
        holders = list(_holders(found))
        if not holders:
            return chance.choice(VALUES)
        holder, key = chance.choice(holders)
        how = chance.random()
        if how < 0.6:
            holder[key] = copy.deepcopy(chance.choice(VALUES))
        elif how < 0.8:
            del holder[key]
        elif isinstance(holder, list):
            holder.insert(key, copy.deepcopy(holder[key]))
        else:
            other, name = chance.choice(holders)
            holder[key] = copy.deepcopy(other[name])
    return found


def _holders(value: Any) -> Any:
    """Every place of a value: what holds it, and under which key."""
    pairs = value.items() if isinstance(value, dict) else enumerate(value) if isinstance(value, list) else ()
    for key, item in list(pairs):
        yield value, key
        yield from _holders(item)
