"""What software a model was trained on: compiler, driver, kernels, commit, as the rows of its data said it.

A row says it as a JSON object (`{"commit": "3f2a…", "compiler": "gcc 12"}`), or as plain text.
"""

from __future__ import annotations

import hashlib
import re
from collections.abc import Sequence

import msgspec

# What tells two versions of the same software apart, the most telling first.
TELLING = ("commit", "kernels", "program", "version")
# Commits are named by their first digits; fewer than these may be anybody's.
SHORTEST_COMMIT = 7
UNKNOWN = "unknown"


def parts(text: str) -> dict[str, str]:
    """The named parts of what a row says; plain text has none."""
    try:
        found = msgspec.json.decode(text)
    except msgspec.DecodeError:
        return {}
    return {str(name): str(value) for name, value in found.items()} if isinstance(found, dict) else {}


def digest(software: Sequence[str]) -> str:
    """A short hash, the same whatever the order; `unknown` where the data did not say."""
    if not software:
        return UNKNOWN
    return hashlib.blake2b("\n".join(sorted(software)).encode(), digest_size=6).hexdigest()


def short(software: Sequence[str]) -> str:
    """In one word for a table: the commit, else what comes closest to one."""
    if not software:
        return UNKNOWN
    known = parts(software[0])
    telling = next((known[name] for name in TELLING if name in known), None)
    word = telling or (" ".join(known.values()) if known else software[0])
    # Hashes are cut as git cuts them; a version such as 1.2.0rc4 stays whole.
    word = word[:12] if re.fullmatch(r"[0-9a-f]{13,}", word) else word
    return word if len(software) == 1 else f"{word} and {len(software) - 1} more"


def is_same(software: Sequence[str], asked: str | Sequence[str]) -> bool:
    """Whether a model's software is what was asked for.

    Several texts (of a pooled model) must be the same set. One text is the whole of it, one of its parts as
    NAME=VALUE, or the value of a part alone; hexadecimal values may be cut short, as commits are.
    """
    if not isinstance(asked, str):
        return sorted(software) == sorted(asked)
    if not asked or len(software) != 1:
        return list(software) == [asked]
    known = parts(software[0])
    if software[0] == asked or (known and known == parts(asked)):
        return True
    name, equals, value = asked.partition("=")
    if equals and name in known:
        return _begins(known[name], value)
    return any(_begins(text, asked) for text in known.values())


def _begins(text: str, asked: str) -> bool:
    cut = len(asked) >= SHORTEST_COMMIT and re.fullmatch(r"[0-9a-f]+", asked) is not None
    return text == asked or (cut and re.fullmatch(r"[0-9a-f]+", text) is not None and text.startswith(asked))
