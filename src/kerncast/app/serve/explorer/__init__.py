"""The page at `/`: what models say about a problem, and what datasets hold."""

from kerncast.app.serve.explorer.routes import explorer_routes

__all__ = ["explorer_routes"]
