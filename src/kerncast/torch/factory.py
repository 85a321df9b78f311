"""The value of `config.inductor_choices_class`: it says which models choose, and keys Inductor's caches by them."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from contextvars import ContextVar
from functools import cached_property
from importlib import import_module
from pathlib import Path
from typing import Any

from kerncast.errors import InvalidValue
from kerncast.models.model import Model
from kerncast.torch.chooser import Chooser, Policy
from kerncast.torch.entry import turned_off
from kerncast.version import __version__

SETTING = "inductor_choices_class"
_without_setting: ContextVar[Factory | None] = ContextVar("kerncast_factory", default=None)
"""What is active with a torch that has no such setting (before 2.10)."""


class Factory:
    """Makes Inductor's choices handler. While it is the setting, its models choose."""

    def __init__(self, models: Sequence[Model], policy: Policy, parent: Any = None) -> None:
        """`parent` makes the handler that would be used otherwise: it stays in charge of everything else. Without models
        nothing is chosen."""
        families = [model.family.id for model in models]
        twice = {family for family in families if families.count(family) > 1}
        if twice:
            raise InvalidValue(
                f"one model chooses for a family, and {families.count(min(twice))} of {min(twice)} were given: leave one out"
            )
        self.policy, self.parent = policy, parent
        self.choosers: Mapping[str, Chooser] = {model.family.id: Chooser(model, policy) for model in models}

    @cached_property
    def identity(self) -> str:
        """What makes two compilations differ: versions, models, policy and the handler below."""
        models = "+".join(f"{name}:{chooser.digest}" for name, chooser in sorted(self.choosers.items()))
        below = getattr(self._below(), "uuid", str)
        return f"kerncast-{__version__}:{models}:{below()}"

    def uuid(self) -> str:
        """The key for Inductor's caches; while choosing is turned off, that of the kernels without it."""
        return self.identity + (":off" if turned_off() else "")

    def _below(self) -> Any:
        return self.parent() if self.parent is not None else import_module("torch._inductor.choices").InductorChoices()

    def __call__(self) -> Any:
        """The handler below with our key. It keeps its class's methods and its state."""
        handler = self._below()
        handler.__class__ = _handler_class(type(handler))
        handler.kerncast_factory = self
        return handler

    def __deepcopy__(self, memo: Any) -> Factory:
        # Inductor copies its settings; the factory is compared by identity.
        return self

    def __reduce__(self) -> Any:
        return _again, (tuple(str(c.model.path) for c in self.choosers.values()), self.policy, self.parent)

    def __repr__(self) -> str:
        return f"kerncast.torch.choices({self.identity})"


def _again(paths: Sequence[str], policy: Policy, parent: Any) -> Factory:
    """The same factory in another process."""
    return Factory([Model.load(Path(path)) for path in paths], policy, parent)


def _handler_class(base: Any) -> Any:
    """The class of the handler below, with the key. What it chooses is decided in `hooks`, for every handler alike."""

    class KerncastChoices(base):  # type: ignore[misc]
        def uuid(self) -> str:
            return str(self.kerncast_factory.uuid())

    return KerncastChoices


def has_setting() -> bool:
    """Whether this torch has `config.inductor_choices_class`."""
    return hasattr(import_module("torch._inductor.config"), SETTING)


def keys_caches() -> bool:
    """Whether this torch keys its caches by the setting; otherwise they must be off while a model chooses."""
    return SETTING in getattr(import_module("torch._inductor.config"), "_cache_config_factory_keys", ())


def active() -> Factory | None:
    """The factory whose models choose here: in this thread, in this compilation."""
    if turned_off():
        return None
    found = getattr(import_module("torch._inductor.config"), SETTING, None) if has_setting() else _without_setting.get()
    return found if isinstance(found, Factory) else None
