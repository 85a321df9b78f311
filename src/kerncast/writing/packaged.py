"""C files that a package ships in its folder `c/`."""

from __future__ import annotations

from functools import cache
from importlib import resources


@cache
def packaged_c(package: str, name: str) -> str:
    """The text of one of these files."""
    return resources.files(package).joinpath("c", name).read_text(encoding="utf-8")
