"""The C files of this package: what is the same in every artefact, and the templates for generated text."""

from __future__ import annotations

from kerncast.core.io.c import packaged_c


def packaged(name: str) -> str:
    """One of the files in `c/`."""
    return packaged_c(__package__, name)
