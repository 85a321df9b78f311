"""HTTP: JSON queries and the explorer page. To run a server takes the extra `serve`."""

from kerncast.app.serve.server import explore, serve, watched

__all__ = ["explore", "serve", "watched"]
