"""Backends: what runs kernels. Found as classes in the modules here, or by entry points (`kerncast.backends`)."""

from __future__ import annotations

from functools import cache
from importlib import import_module

from kerncast.errors import InvalidValue, NotFound
from kerncast.library.registry import discover
from kerncast.measuring.backends.contract import Backend


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
    """The backend called `name`, or the class that `module:Class` names."""
    if ":" in name:
        module, _, attribute = name.partition(":")
        try:
            found = getattr(import_module(module), attribute)
        except (ImportError, AttributeError) as error:
            raise NotFound(
                f"backend '{name}' does not load ({error}): expected module:Class, and the module is installed or in a folder "
                "of PYTHONPATH"
            ) from error
        if not (isinstance(found, type) and issubclass(found, Backend)):
            raise NotFound(f"backend '{name}' is not a subclass of kerncast.measuring.backends.contract.Backend")
        return found
    if name not in backends():
        raise NotFound.named("backend", name, backends(), "kerncast doctor")
    return backends()[name]


def backend_for(family: str) -> type[Backend]:
    """The first backend that runs a family."""
    for item in backends().values():
        if family in item.families:
            return item
    runnable = ", ".join(sorted({name for item in backends().values() for name in item.families}))
    raise NotFound(f"no backend here runs {family}: choose one of {runnable}, or name a backend with `backend`")


def backend_that_runs(family: str, name: str | None = None, *, here: bool = True) -> type[Backend]:
    """The backend that runs a family here: the named one, refused if it cannot, or the first that can.

    If it is to run on other machines, only those know what is installed there.
    """
    kind = get_backend(name) if name else backend_for(family)
    if family not in kind.families and "*" not in kind.families:
        raise InvalidValue(f"backend {kind.name} does not run {family} (it runs {', '.join(kind.families)}): name another")
    why_not = kind.unavailable() if here else None
    if why_not is not None:
        raise NotFound(why_not)
    return kind
