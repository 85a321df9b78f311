"""Whether a command has printed its result as JSON: standard output holds one JSON document, a result or an error."""

from __future__ import annotations

from contextvars import ContextVar

json_printed: ContextVar[bool] = ContextVar("json_printed", default=False)
