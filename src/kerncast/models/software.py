"""The software that a model was trained on (compiler, driver, kernels, commit), as recorded in its data.

`kerncast.core.software` says what a text names, and by which names one asks for it.
"""

from __future__ import annotations

import hashlib
import re
from collections.abc import Sequence

from kerncast.core.software import FRAMEWORK, Name, is_cut, is_same, names, parts, short_name

__all__ = ["UNKNOWN", "Name", "digest", "is_cut", "is_same", "names", "parts", "short", "telling", "trained"]

# The keys that best tell two versions of the same software apart, the most useful first.
TELLING = ("commit", "kernels", "program", "version")
UNKNOWN = "unknown"


def digest(software: Sequence[str]) -> str:
    """A short hash, the same whatever the order; `unknown` where the data did not say."""
    if not software:
        return UNKNOWN
    return hashlib.blake2b("\n".join(sorted(software)).encode(), digest_size=6).hexdigest()


def short(software: Sequence[str]) -> str:
    """One word for a table: the short name of a framework, the commit, else the closest thing to one."""
    if not software:
        return UNKNOWN
    known = parts(software[0])
    telling = next((known[name] for name in TELLING if name in known), None)
    word = telling or (" ".join(known.values()) if known else software[0])
    word = short_name(software[0]) if FRAMEWORK in known else word
    # Hashes are cut as git cuts them; a version such as 1.2.0rc4 stays whole, one such as 0.1.dev19262+gb6bbf29dd has a number.
    word = word[:12] if re.fullmatch(r"[0-9a-f]{13,}", word) else re.sub(r"(?<=\d)\+g[0-9a-f]{7,}(\.d\d{8})?$", "", word)
    return word if len(software) == 1 else f"{word} and {len(software) - 1} more"


def telling(software: Sequence[str]) -> str | None:
    """For a reply: the most useful part of each text, else the whole text; None if the data did not say."""
    told = [(text, parts(text)) for text in software]
    return ", ".join(next((known[name] for name in TELLING if name in known), text) for text, known in told) or None


def trained(software: Sequence[str]) -> str:
    """What to say about a model whose software is not the one asked for."""
    return "was trained on another" if software else "does not say what it was trained on"
