"""The kinds of model by name: learners in the modules here, or by entry points (`kerncast.learning.learners`)."""

from __future__ import annotations

from collections.abc import Iterable
from functools import cache
from importlib import import_module
from typing import TYPE_CHECKING

from kerncast.errors import BadFile, NotFound
from kerncast.learning.learners.contract import Learner

if TYPE_CHECKING:
    from importlib.metadata import EntryPoint

# Imported when needed: scikit-learn, lightgbm and torch each take a second or more to import.
SHIPPED = {"gbdt": "Gbdt", "mlp": "Mlp", "deep": "Deep", "linear": "Linear", "roofline": "Roofline"}


@cache
def learner_class(kind: str) -> type[Learner]:
    """The class of one kind of model."""
    if kind in SHIPPED:
        found: type[Learner] = getattr(import_module(f"kerncast.learning.learners.{kind}"), SHIPPED[kind])
        return found
    named = [entry for entry in _entries() if entry.name == kind]
    if not named:
        raise NotFound.named("model", kind, learner_kinds())
    if len(named) > 1:
        places = " and ".join(entry.value for entry in named)
        raise BadFile(f"the model '{kind}' is declared by both {places}: uninstall one of the packages")
    return _loaded(named[0])


def learner_kinds() -> tuple[str, ...]:
    """The names of all kinds: the shipped ones, then those of other packages."""
    return (*SHIPPED, *sorted({entry.name for entry in _entries()} - set(SHIPPED)))


def _entries() -> Iterable[EntryPoint]:
    from importlib.metadata import entry_points

    return entry_points(group="kerncast.learners")


def _loaded(entry: EntryPoint) -> type[Learner]:
    """Load an entry point; errors in another package name that package."""
    try:
        found = entry.load()
    except Exception as error:
        raise BadFile(f"the model '{entry.name}' cannot be loaded from {entry.value} ({error}): fix that package") from error
    if not (isinstance(found, type) and issubclass(found, Learner) and found.kind == entry.name):
        raise BadFile(f"{entry.value} is not a Learner of the kind '{entry.name}': fix the package that declares it")
    return found
