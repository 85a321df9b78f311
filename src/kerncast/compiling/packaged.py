"""The C files of this package: what is the same in every artefact, and the frames that generated text is put into."""

from __future__ import annotations

from functools import cache
from importlib import resources


@cache
def packaged(name: str) -> str:
    """One of the files in `c/`."""
    return resources.files(__package__).joinpath("c", name).read_text(encoding="utf-8")
