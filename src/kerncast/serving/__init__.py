"""HTTP: JSON queries and the explorer page. The verbs `serve` and `explore` need the extra `serve`."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from kerncast.serving.exploring import explore, watched
    from kerncast.serving.server import serve

__all__ = ["explore", "serve", "watched"]
_HOMES = {"explore": "exploring", "serve": "server", "watched": "exploring"}


def __getattr__(name: str) -> Any:
    if name in _HOMES:  # loaded on first use, because they need packages that may not be installed
        from importlib import import_module

        return getattr(import_module(f"kerncast.serving.{_HOMES[name]}"), name)
    raise AttributeError(f"module 'kerncast.serving' has no attribute '{name}'")
