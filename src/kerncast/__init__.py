"""kerncast: learned performance models for kernels and tensor ops.

The functions are the verbs of the command line; the classes are what they take and return. docs/api.md has examples.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

from kerncast.errors import BadFile, CannotWrite, InvalidValue, KerncastError, NotFound
from kerncast.version import __version__

if TYPE_CHECKING:
    from kerncast.api.collect import collect
    from kerncast.api.compare import compare
    from kerncast.api.estimate import estimate
    from kerncast.api.evaluate import evaluate
    from kerncast.api.export import export
    from kerncast.api.inspect import inspect
    from kerncast.api.on_ray import Cluster
    from kerncast.api.open import open
    from kerncast.api.predict import predict
    from kerncast.api.read import read
    from kerncast.api.regenerate import regenerate
    from kerncast.api.sweep import sweep
    from kerncast.api.train import train
    from kerncast.collecting.plan import Measuring
    from kerncast.collecting.request import Extent
    from kerncast.data.dataset import Dataset
    from kerncast.evaluating.compare import Limits
    from kerncast.models.model import Model
    from kerncast.selecting.selector import Selector
    from kerncast.store.store import Store

ERRORS = ("BadFile", "CannotWrite", "InvalidValue", "KerncastError", "NotFound")

# Loaded on first use: `import kerncast` stays under 100 ms and pulls in nothing heavy.
_HOMES = {
    "Cluster": "kerncast.api.on_ray",
    "Dataset": "kerncast.data.dataset",
    "Extent": "kerncast.collecting.request",
    "Limits": "kerncast.evaluating.compare",
    "Measuring": "kerncast.collecting.plan",
    "Model": "kerncast.api.open",
    "Selector": "kerncast.api.selector",
    "Store": "kerncast.api.open",
    "collect": "kerncast.api.collect",
    "compare": "kerncast.api.compare",
    "estimate": "kerncast.api.estimate",
    "evaluate": "kerncast.api.evaluate",
    "export": "kerncast.api.export",
    "inspect": "kerncast.api.inspect",
    "open": "kerncast.api.open",
    "predict": "kerncast.api.predict",
    "read": "kerncast.api.read",
    "regenerate": "kerncast.api.regenerate",
    "sweep": "kerncast.api.sweep",
    "train": "kerncast.api.train",
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

        return getattr(import_module(_HOMES[name]), name)
    raise AttributeError(f"module 'kerncast' has no attribute '{name}'")


def __dir__() -> list[str]:
    return sorted(__all__)
