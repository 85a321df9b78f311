"""Words of a shell command: what a message tells the user to run is one word for each value, whatever the value is."""

from __future__ import annotations

import shlex


def word(text: object) -> str:
    """One word of a command; a text with control characters is written with their codes (`$'…'`, as bash and zsh read it)."""
    plain = str(text)
    if plain.isprintable():
        return shlex.quote(plain)
    return "$'" + "".join(_coded(char) for char in plain) + "'"


def _coded(char: str) -> str:
    if char in "\\'":
        return f"\\{char}"
    if char.isprintable():
        return char
    # Half of a character stands for a byte of a path that is not UTF-8.
    errors = "surrogateescape" if "\udc80" <= char <= "\udcff" else "surrogatepass"
    return "".join(f"\\{byte:03o}" for byte in char.encode("utf-8", errors))
