"""Writing Python: literals and comments that hold any text and nothing else."""

from __future__ import annotations

import math

from kerncast.core.io.terminal import line
from kerncast.errors import InvalidValue


def literal(value: str | int | float | bool) -> str:
    """A value as source code. Only ASCII: what is not is written by its code, so no editor shows it as something else."""
    if isinstance(value, float) and not math.isfinite(value):
        raise InvalidValue(f"a number in generated Python must be finite, got {value}")
    if not isinstance(value, str | int | float):
        raise InvalidValue(f"only texts, numbers and flags are written as Python, got {type(value).__name__}")
    # Subclasses may have a repr of their own.
    plain = next(kind(value) for kind in (bool, int, float, str) if isinstance(value, kind))
    return ascii(plain)


def comment(text: object) -> str:
    """A comment: one line, only ASCII."""
    return f"# {line(text).encode('ascii', 'backslashreplace').decode()}"
