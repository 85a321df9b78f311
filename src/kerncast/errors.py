"""Everything kerncast raises on purpose, one class per thing the caller can do about it.

Each message is one sentence with the rule, the value that broke it and the next step, so the command
line can print it as it is.
"""

from __future__ import annotations

import difflib
from collections.abc import Iterable

# Characters of a value that a message quotes, and names that it lists.
LONGEST_VALUE = 200
MOST_NAMES = 100


def quoted(value: object, longest: int = LONGEST_VALUE) -> str:
    """A value in a message: a long one is cut, with its length."""
    text = str(value)
    return text if len(text) <= longest else f"{text[:longest]}… ({len(text):,} characters)"


class KerncastError(Exception):
    """The base class: catch this to catch every error that kerncast raises on purpose."""

    @property
    def partial(self) -> bool:
        """Whether a part of the result was kept and the same command continues."""
        return False


class InvalidValue(KerncastError, ValueError):
    """A value breaks a declared rule: change the value."""


class NotFound(KerncastError, LookupError):
    """A name is not known: choose one of the names in the message."""

    @classmethod
    def named(cls, kind: str, name: object, known: Iterable[str], listing: str = "") -> NotFound:
        """An error that suggests the nearest known name, then lists all names (or says where to list them)."""
        names = sorted(known)
        same = [item for item in names if item.lower() == str(name).lower()]
        near = same or difflib.get_close_matches(str(name)[:LONGEST_VALUE], names, n=1)
        hint = f"did you mean '{quoted(near[0])}'? " if near else ""
        more = f", … ({len(names) - MOST_NAMES:,} more)" if len(names) > MOST_NAMES else ""
        where = f"see `{listing}`" if listing else f"known: {', '.join(map(quoted, names[:MOST_NAMES])) or 'none'}{more}"
        return cls(f"unknown {kind} '{quoted(name)}': {hint}{where}")

    @classmethod
    def package(cls, what: str, name: str, extra: str) -> NotFound:
        """An error for a package that only an extra of kerncast brings."""
        return cls(f"{what} needs {name}, not installed here: pip install 'kerncast[{extra}]'")


class BadFile(KerncastError):
    """A file is truncated, foreign, newer than this version or contradicts itself: fix or replace it."""


class CannotWrite(KerncastError):
    """The disk refused: free some space, or choose another place."""
