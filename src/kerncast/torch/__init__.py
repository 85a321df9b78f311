"""torch.compile: record what it autotunes, choose its kernels, compare both.

Importing this package imports neither torch nor Inductor, and changes nothing in them.
"""

from __future__ import annotations

from importlib import import_module
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from kerncast.torch.enabling import choices, enable
    from kerncast.torch.observing import observe
    from kerncast.torch.reporting import report
    from kerncast.torch.shapes import shapes_of
    from kerncast.torch.validating import validate

_HOMES = {
    "choices": "kerncast.torch.enabling",
    "enable": "kerncast.torch.enabling",
    "observe": "kerncast.torch.observing",
    "report": "kerncast.torch.reporting",
    "shapes_of": "kerncast.torch.shapes",
    "validate": "kerncast.torch.validating",
}

__all__ = ["choices", "enable", "observe", "report", "shapes_of", "validate"]


def __getattr__(name: str) -> Any:
    if name in _HOMES:
        return getattr(import_module(_HOMES[name]), name)
    raise AttributeError(f"module 'kerncast.torch' has no attribute '{name}'")


def __dir__() -> list[str]:
    return sorted(__all__)
