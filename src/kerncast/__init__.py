"""kerncast: learned performance models for kernels and tensor ops.

The functions are the verbs of the command line; the classes are what they take and return. docs/api.md has examples.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

from kerncast.errors import BadFile, CannotWrite, InvalidValue, KerncastError, NotFound
from kerncast.version import __version__

if TYPE_CHECKING:
    from kerncast.answering.selector import Selector
    from kerncast.app.api.arguments import Cluster
    from kerncast.app.api.collect import collect, sweep
    from kerncast.app.api.estimate import estimate
    from kerncast.app.api.evaluate import compare, evaluate
    from kerncast.app.api.export import export
    from kerncast.app.api.inspect import inspect
    from kerncast.app.api.predict import predict
    from kerncast.app.api.read import open, read
    from kerncast.app.api.regenerate import regenerate
    from kerncast.app.api.train import train
    from kerncast.data.dataset import Dataset
    from kerncast.evaluating.compare import Limits
    from kerncast.measuring.plan import Extent, Measuring
    from kerncast.models.model import Model
    from kerncast.models.store.store import Store

ERRORS = ("BadFile", "CannotWrite", "InvalidValue", "KerncastError", "NotFound")

# Loaded on first use: `import kerncast` stays under 100 ms and pulls in nothing heavy.
_HOMES = {
    "Cluster": "kerncast.app.api.arguments",
    "Dataset": "kerncast.data.dataset",
    "Extent": "kerncast.measuring.plan",
    "Limits": "kerncast.evaluating.compare",
    "Measuring": "kerncast.measuring.plan",
    "Model": "kerncast.app.api.read",
    "Selector": "kerncast.app.api.export",
    "Store": "kerncast.app.api.read",
    "collect": "kerncast.app.api.collect",
    "compare": "kerncast.app.api.evaluate",
    "estimate": "kerncast.app.api.estimate",
    "evaluate": "kerncast.app.api.evaluate",
    "export": "kerncast.app.api.export",
    "inspect": "kerncast.app.api.inspect",
    "open": "kerncast.app.api.read",
    "predict": "kerncast.app.api.predict",
    "read": "kerncast.app.api.read",
    "regenerate": "kerncast.app.api.regenerate",
    "sweep": "kerncast.app.api.collect",
    "train": "kerncast.app.api.train",
}

__all__ = [
    "BadFile",
    "CannotWrite",
    "Cluster",
    "Dataset",
    "Extent",
    "InvalidValue",
    "KerncastError",
    "Limits",
    "Measuring",
    "Model",
    "NotFound",
    "Selector",
    "Store",
    "__version__",
    "collect",
    "compare",
    "estimate",
    "evaluate",
    "export",
    "inspect",
    "open",
    "predict",
    "read",
    "regenerate",
    "sweep",
    "train",
]


def __getattr__(name: str) -> Any:
    if name in _HOMES:
        from importlib import import_module

        globals()[name] = getattr(import_module(_HOMES[name]), name)  # found at once from now on
        return globals()[name]
    raise AttributeError(f"module 'kerncast' has no attribute '{name}'")


def __dir__() -> list[str]:
    return sorted(__all__)
