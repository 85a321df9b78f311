"""Paths that a caller gives."""

from __future__ import annotations

import os
from pathlib import Path
from typing import Any

from kerncast.errors import InvalidValue


def given_path(given: Any, rule: str, next_step: str) -> Path:
    """The path; a value of another kind (a frame, a mapping) is refused with what was expected and what to do instead."""
    if not isinstance(given, str | os.PathLike):
        raise InvalidValue(f"{rule} was expected, got {type(given).__name__}: {next_step}")
    return Path(given)
