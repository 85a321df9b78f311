"""kerncast: learned performance models for kernels and tensor ops."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

from kerncast.version import __version__

if TYPE_CHECKING:
    from kerncast.data import Dataset
    from kerncast.device import Device
    from kerncast.errors import KerncastError
    from kerncast.models.model import Model
    from kerncast.op import Config, Family, Op, Problem, Work
    from kerncast.selecting.dispatch import Dispatcher
    from kerncast.selecting.selector import Selector
    from kerncast.space import Constraint, Space
    from kerncast.training.procedure import Recipe
    from kerncast.training.train import train

# Loaded on first use: `import kerncast` stays under 100 ms and pulls in nothing heavy.
_HOMES = {
    "Config": "kerncast.op",
    "Constraint": "kerncast.space",
    "Dataset": "kerncast.data",
    "Device": "kerncast.device",
    "Dispatcher": "kerncast.selecting.dispatch",
    "Family": "kerncast.op",
    "KerncastError": "kerncast.errors",
    "Model": "kerncast.models",
    "Op": "kerncast.op",
    "Problem": "kerncast.op",
    "Recipe": "kerncast.training",
    "Selector": "kerncast.selecting.selector",
    "Space": "kerncast.space",
    "Work": "kerncast.op",
    "train": "kerncast.training",
}

__all__ = [
    "Config",
    "Constraint",
    "Dataset",
    "Device",
    "Dispatcher",
    "Family",
    "KerncastError",
    "Model",
    "Op",
    "Problem",
    "Recipe",
    "Selector",
    "Space",
    "Work",
    "__version__",
    "get_device",
    "get_family",
    "get_op",
    "train",
]


def get_op(name: str) -> Op:
    """The op called `name` (see `kerncast ops`)."""
    from kerncast.registry import OPS

    return OPS.get(name)


def get_family(name: str) -> Family:
    """The kernel family called `name` (see `kerncast families`)."""
    from kerncast.registry import FAMILIES

    return FAMILIES.get(name)


def get_device(name: str) -> Device:
    """The device called `name` (see `kerncast devices`); `local` is this machine."""
    from kerncast import devices

    return devices.get(name)


def __getattr__(name: str) -> Any:
    if name in _HOMES:
        from importlib import import_module

        return getattr(import_module(_HOMES[name]), name)
    raise AttributeError(f"module 'kerncast' has no attribute '{name}'")


def __dir__() -> list[str]:
    return sorted(__all__)
