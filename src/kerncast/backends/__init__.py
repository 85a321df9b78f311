"""Backends: what runs kernels. Found as classes in the modules here, or by entry points (`kerncast.backends`)."""

from __future__ import annotations

from functools import cache

from kerncast.backends.contract import Backend
from kerncast.errors import NotFound
from kerncast.registry import discover


@cache
def backends() -> dict[str, type[Backend]]:
    """Every backend class by name."""
    found = {
        item.name: item
        for _, item in discover(__name__)
        if isinstance(item, type) and issubclass(item, Backend) and hasattr(item, "name")
    }
    return dict(sorted(found.items()))


def get_backend(name: str) -> type[Backend]:
    """The backend called `name`."""
    if name not in backends():
        raise NotFound.named("backend", name, backends(), "kerncast doctor")
    return backends()[name]


def backend_for(family: str) -> type[Backend]:
    """The first backend that runs a family."""
    for item in backends().values():
        if family in item.families:
            return item
    runnable = ", ".join(sorted({name for item in backends().values() for name in item.families}))
    raise NotFound(f"no backend here runs {family}: choose one of {runnable}, or name a backend with --backend")
