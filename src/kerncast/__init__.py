"""kerncast: learned performance models for kernels and tensor ops.

The functions are the verbs of the command line; the classes are what they take and return. docs/api.md has examples.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

from kerncast.errors import BadFile, CannotWrite, InvalidValue, KerncastError, NotFound
from kerncast.version import __version__

if TYPE_CHECKING:
    from kerncast.api.adapt import adapt
    from kerncast.api.collect import collect
    from kerncast.api.compare import compare
    from kerncast.api.doctor import doctor
    from kerncast.api.estimate import estimate
    from kerncast.api.evaluate import evaluate
    from kerncast.api.export import export
    from kerncast.api.known import get_device, get_family, get_op
    from kerncast.api.open import open
    from kerncast.api.predict import predict
    from kerncast.api.query import query
    from kerncast.api.quickstart import quickstart
    from kerncast.api.read import read
    from kerncast.api.regenerate import regenerate
    from kerncast.api.sweep import sweep
    from kerncast.api.train import train
    from kerncast.api.update import update
    from kerncast.api.verify import verify
    from kerncast.data.dataset import Dataset
    from kerncast.models.model import Model
    from kerncast.selecting.dispatch import Dispatcher
    from kerncast.selecting.selector import Selector
    from kerncast.store.store import Store

ERRORS = ("BadFile", "CannotWrite", "InvalidValue", "KerncastError", "NotFound")

# Loaded on first use: `import kerncast` stays under 100 ms and pulls in nothing heavy.
_HOMES = {
    "Dataset": "kerncast.data.dataset",
    "Dispatcher": "kerncast.selecting.dispatch",
    "Model": "kerncast.api.open",
    "Selector": "kerncast.api.selector",
    "Store": "kerncast.api.open",
    "adapt": "kerncast.api.adapt",
    "collect": "kerncast.api.collect",
    "compare": "kerncast.api.compare",
    "doctor": "kerncast.api.doctor",
    "estimate": "kerncast.api.estimate",
    "evaluate": "kerncast.api.evaluate",
    "export": "kerncast.api.export",
    "get_device": "kerncast.api.known",
    "get_family": "kerncast.api.known",
    "get_op": "kerncast.api.known",
    "open": "kerncast.api.open",
    "predict": "kerncast.api.predict",
    "query": "kerncast.api.query",
    "quickstart": "kerncast.api.quickstart",
    "read": "kerncast.api.read",
    "regenerate": "kerncast.api.regenerate",
    "sweep": "kerncast.api.sweep",
    "train": "kerncast.api.train",
    "update": "kerncast.api.update",
    "verify": "kerncast.api.verify",
}

__all__ = [
    "BadFile",
    "CannotWrite",
    "Dataset",
    "Dispatcher",
    "InvalidValue",
    "KerncastError",
    "Model",
    "NotFound",
    "Selector",
    "Store",
    "__version__",
    "adapt",
    "collect",
    "compare",
    "doctor",
    "estimate",
    "evaluate",
    "export",
    "get_device",
    "get_family",
    "get_op",
    "open",
    "predict",
    "query",
    "quickstart",
    "read",
    "regenerate",
    "sweep",
    "train",
    "update",
    "verify",
]


def __getattr__(name: str) -> Any:
    if name in _HOMES:
        from importlib import import_module

        return getattr(import_module(_HOMES[name]), name)
    raise AttributeError(f"module 'kerncast' has no attribute '{name}'")


def __dir__() -> list[str]:
    return sorted(__all__)
