"""The kinds of model by name: learners in the modules here, or by entry points (`kerncast.learners`)."""

from __future__ import annotations

from functools import cache
from importlib import import_module

from kerncast.errors import NotFound
from kerncast.learners.contract import Learner

# Loaded when asked for: scikit-learn, lightgbm and torch each take a second or more to import.
SHIPPED = {"deep": "Deep", "gbdt": "Gbdt", "linear": "Linear", "mlp": "Mlp", "roofline": "Roofline"}


@cache
def learner_class(kind: str) -> type[Learner]:
    """The class of one kind of model."""
    if kind in SHIPPED:
        found: type[Learner] = getattr(import_module(f"kerncast.learners.{kind}"), SHIPPED[kind])
        return found
    from importlib.metadata import entry_points

    for entry in entry_points(group="kerncast.learners"):
        if entry.name == kind:
            loaded: type[Learner] = entry.load()
            return loaded
    raise NotFound.named("model", kind, SHIPPED)
