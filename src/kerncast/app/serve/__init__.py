"""HTTP: JSON queries and the explorer page. The verbs `serve` and `explore` need the extra `serve`."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from kerncast.app.serve.server import explore, serve, watched

__all__ = ["explore", "serve", "watched"]


def __getattr__(name: str) -> Any:
    if name in __all__:  # loaded on first use, because that takes time
        from kerncast.app.serve import server

        return getattr(server, name)
    raise AttributeError(f"module 'kerncast.app.serve' has no attribute '{name}'")
