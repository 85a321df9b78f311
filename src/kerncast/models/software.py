"""The software that a model was trained on (compiler, driver, kernels, commit), as recorded in its data.

A row records it as a JSON object (`{"commit": "3f2a…", "compiler": "gcc 12"}`) or as plain text.
"""

from __future__ import annotations

import hashlib
import re
from collections.abc import Sequence
from typing import NamedTuple

import msgspec

from kerncast.parsing import decode_json

# The keys that best tell two versions of the same software apart, the most useful first.
TELLING = ("commit", "kernels", "program", "version")
# Commits may be abbreviated; fewer digits than this are ambiguous.
SHORTEST_COMMIT = 7
UNKNOWN = "unknown"


def parts(text: str) -> dict[str, str]:
    """The named parts of a row's software text, values that are not strings as JSON; plain text has no parts."""
    try:
        found = decode_json(text)
    except msgspec.DecodeError:
        return {}
    if not isinstance(found, dict):
        return {}
    return {name: value if isinstance(value, str) else msgspec.json.encode(value).decode() for name, value in found.items()}


def digest(software: Sequence[str]) -> str:
    """A short hash, the same whatever the order; `unknown` where the data did not say."""
    if not software:
        return UNKNOWN
    return hashlib.blake2b("\n".join(sorted(software)).encode(), digest_size=6).hexdigest()


def short(software: Sequence[str]) -> str:
    """One word for a table: the commit, else the closest thing to one."""
    if not software:
        return UNKNOWN
    known = parts(software[0])
    telling = next((known[name] for name in TELLING if name in known), None)
    word = telling or (" ".join(known.values()) if known else software[0])
    # Hashes are cut as git cuts them; a version such as 1.2.0rc4 stays whole.
    word = word[:12] if re.fullmatch(r"[0-9a-f]{13,}", word) else word
    return word if len(software) == 1 else f"{word} and {len(software) - 1} more"


def telling(software: Sequence[str]) -> str | None:
    """For a reply: the most useful part of each text, else the whole text; None if the data did not say."""
    told = [(text, parts(text)) for text in software]
    return ", ".join(next((known[name] for name in TELLING if name in known), text) for text, known in told) or None


class Name(NamedTuple):
    """The names by which a request may refer to the software of a model."""

    text: str
    value: int = 0
    """Position of the value in NAME=VALUE."""


def names(software: Sequence[str]) -> tuple[Name, ...]:
    """The whole text, the value of each part, and each part as NAME=VALUE; empty for several texts."""
    if len(software) != 1:
        return ()
    found = {Name(software[0]): None}
    for name, value in parts(software[0]).items():
        found |= {Name(value): None, Name(f"{name}={value}", len(name) + 1): None}
    return tuple(found)


def is_same(software: Sequence[str], asked: str | Sequence[str]) -> bool:
    """Whether a model's software is what was asked for; exported C answers by the same rule (`query_is_software`).

    Several texts (of a pooled model) must be the same set. One text is one of `names`, or the same parts in another
    order. A commit may be abbreviated, in the model or in the request.
    """
    if not isinstance(asked, str):
        return sorted(software) == sorted(asked)
    known = names(software)
    for item in known:
        if asked.startswith(item.text[: item.value]) and _is_begun(item.text[item.value :], asked[item.value :]):
            return True
    whole = parts(software[0]) if known else {}
    return bool(whole) and whole == parts(asked)


def trained(software: Sequence[str]) -> str:
    """What to say about a model whose software is not the one asked for."""
    return "was trained on another" if software else "does not say what it was trained on"


def is_cut(text: str) -> bool:
    """Whether a value may be abbreviated like a commit: it is hexadecimal."""
    return re.fullmatch(r"[0-9a-f]+", text) is not None


def _is_begun(text: str, asked: str) -> bool:
    shorter, longer = sorted((text, asked), key=len)
    cut = len(shorter) >= SHORTEST_COMMIT and is_cut(text) and is_cut(asked)
    return text == asked or (cut and longer.startswith(shorter))
