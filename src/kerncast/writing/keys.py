"""What is wrong with a key of a file, in the words of error messages."""

from __future__ import annotations

import re

_KINDS = {"int": "a whole number", "float": "a number", "str": "text", "bool": "true or false", "array": "a list",
          "object": "a table of keys", "null": "empty"}  # fmt: skip
_MISSING = re.compile(r"Object missing required field `(?P<name>[^`]*)`(?: - at `\$(?P<at>.*)`)?")
_UNKNOWN = re.compile(r"Object contains unknown field `(?P<name>.*?)`(?: - at `\$(?P<at>.*)`)?", re.DOTALL)
_WRONG = re.compile(r"Expected (?P<kind>`[^`]*`(?:[^`]*?)?)(?:, got (?P<got>`[^`]*`))?(?: - at `\$(?P<at>.*)`)?")


def key_rule(error: Exception) -> str:
    """An error of checking a file against its declared keys, by the whole name of the key: `train.folds must be …`.

    Backticks mean arguments in messages of ours, so the texts of other libraries are quoted without them.
    """
    text = str(error)
    if found := _MISSING.fullmatch(text):
        return f"the key '{_key(found['at'], found['name'])}' is missing"
    if found := _UNKNOWN.fullmatch(text):
        return f"there is no key '{_key(found['at'], found['name'])}'".replace("`", "'")
    if found := _WRONG.fullmatch(text):
        key = _key(found["at"], "")
        got = f", got {_kind(found['got'])}" if found["got"] else ""
        subject = f"'{key}'" if key else "it"
        return f"{subject} must be {_kind(found['kind'])}{got}"
    return text.replace("`", "'")


def _key(at: str | None, name: str) -> str:
    """The name of a key: `pin[0].problem`. The `[…]` of a table stands for one of its keys, which are not said."""
    return ".".join(part for part in ((at or "").lstrip(".").replace("[...]", ".…"), name) if part)


def _kind(text: str) -> str:
    return re.sub(r"`([^`]*)`", lambda found: " or ".join(_KINDS.get(kind, kind) for kind in found[1].split(" | ")), text)
