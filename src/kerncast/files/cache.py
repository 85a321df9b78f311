"""The folder of what can be made again: compiled kernels, builds of external benchmarks, listed configs."""

from __future__ import annotations

import os
from pathlib import Path


def cache_folder(name: str) -> Path:
    """The folder for one kind of thing: in KERNCAST_CACHE, else in ~/.cache/kerncast."""
    given = os.environ.get("KERNCAST_CACHE")
    return (Path(given) if given else Path.home() / ".cache" / "kerncast") / name
