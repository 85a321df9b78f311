"""What a step has to know of its calls, and how it asks for it."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from typing import Any, Protocol


class Answered(Protocol):
    """What is known of the time of one problem."""

    @property
    def time_ns(self) -> float | None: ...
    @property
    def lower_ns(self) -> float | None: ...
    @property
    def upper_ns(self) -> float | None: ...
    @property
    def basis(self) -> str: ...
    @property
    def model(self) -> str | None: ...
    @property
    def software(self) -> str | None: ...
    @property
    def reason(self) -> str: ...
    @property
    def note(self) -> str: ...


Ask = Callable[[str, list[Mapping[str, Any]]], Sequence[Answered]]
"""Answers for the problems of an op, in their order."""
