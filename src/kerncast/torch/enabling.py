"""Turning choosing on: for one compilation, for a block, or for a program that cannot be edited."""

from __future__ import annotations

import os
from collections.abc import Iterator, Mapping, Sequence
from contextlib import ExitStack, contextmanager
from importlib import import_module
from pathlib import Path
from typing import Any

from kerncast.core.io.arguments import given_path
from kerncast.errors import InvalidValue, NotFound
from kerncast.library import devices
from kerncast.measuring.backends.inductor.build import cpu_software
from kerncast.models.model import Model, is_model
from kerncast.models.store.store import Store
from kerncast.torch import hooks
from kerncast.torch.chooser import ChoicePolicy, Chooser
from kerncast.torch.hooks import SETTING, Factory, _without_setting, has_setting, keys_caches, local_gpu
from kerncast.torch.reporting import log, say_if_not_frozen, say_what_is_off, write_at_exit
from kerncast.torch_entry import MODEL, turned_off

Given = Model | str | Path | Sequence[Model | str | Path] | None
FAMILIES = ("gemm/inductor_cpp", "gemm/triton", "flex_attention/triton")
# Values of KERNCAST_INDUCTOR that name no model.
FROM_STORE = ("1", "store", "auto")


def choices(
    model: Given = None, *, top_k: int = 1, widen: bool = True, any_software: bool = False, store: str | Path | None = None
) -> Factory:
    """What `torch.compile(m, options={"inductor_choices_class": …})` takes: models that choose kernels.

    `model` is a model, its path, or several of different families; by default the models for this machine in the store.
    With `top_k` above 1 that many kernels are left, and Inductor times them. `widen=False` keeps to the kernels that Inductor
    itself offers. `any_software` uses a model although torch or the compiler is not the one that its data were measured with.
    With `KERNCAST_DISABLE=1` no model is opened: a damaged one is no hindrance, and nothing is chosen.
    """
    policy = ChoicePolicy(top_k, any_software, widen)
    if turned_off():
        return Factory((), policy, _handler_below())
    hooks.install()
    factory = Factory(_fitting(models_of(model, store)), policy, _handler_below())
    log.info("kernels are chosen by %s", factory.identity)
    write_at_exit()
    return factory


@contextmanager
def enable(
    model: Given = None, *, top_k: int = 1, widen: bool = True, any_software: bool = False, store: str | Path | None = None
) -> Iterator[Factory]:
    """A block in which a model chooses for everything that is compiled in it, with `choices`' options.

    max-autotune is on in it: without it, Inductor offers one kernel. torch.compile compiles when the function is first called:
    call it in the block.
    """
    factory = choices(model, top_k=top_k, widen=widen, any_software=any_software, store=store)
    with active_here(factory, **{} if turned_off() else {"max_autotune": True}):
        say_if_not_frozen()
        yield factory


@contextmanager
def active_here(factory: Factory, **settings: bool) -> Iterator[None]:
    """Make a factory the setting in this thread, with other settings of Inductor."""
    with ExitStack() as stack:
        if not has_setting():
            token = _without_setting.set(factory)
            stack.callback(_without_setting.reset, token)
        stack.enter_context(import_module("torch._inductor.config").patch({**settings, **settings_of(factory)}))
        yield


def settings_of(factory: Factory) -> dict[str, Any]:
    """Inductor's settings while a factory's models choose."""
    config = import_module("torch._inductor.config")
    settings: dict[str, Any] = {SETTING: factory} if has_setting() else {}
    if not keys_caches():
        # Otherwise a kernel that this model chose would be found in the cache by a compilation without it.
        settings |= {name: False for name in ("fx_graph_cache", "fx_graph_remote_cache") if hasattr(config, name)}
    return settings


def models_of(given: Given, store: str | Path | None = None) -> list[Model]:
    """The models that were given; without any, those of this machine in the store."""
    if given is None:
        return stored_models(store)
    several = given if isinstance(given, Sequence) and not isinstance(given, str) else [given]
    return [item if isinstance(item, Model) else _loaded(item, store) for item in several]


def _loaded(given: str | Path, store: str | Path | None) -> Model:
    path = given_path(given, "a model", "name its folder, or its id in the store")
    entry = None if is_model(path) else Store.open(store).meant(path)
    return Model.load(path) if entry is None else entry.load()


def _fitting(models: Sequence[Model]) -> Sequence[Model]:
    """Only models of kernels that torch.compile has."""
    other = next((model for model in models if model.family.id not in FAMILIES), None)
    if other is not None:
        raise InvalidValue(
            f"{other.path} is a model of {other.family.id}, and torch.compile has kernels of {', '.join(FAMILIES)}: give a "
            "model of one of these"
        )
    if not models:
        raise InvalidValue("give at least one model, got an empty list: leave `model` out for the store's")
    return models


def stored_models(store: str | Path | None = None) -> list[Model]:
    """The store's models of Inductor's families for the devices of this machine."""
    opened, found = Store.open(store), []
    for family in FAMILIES:
        for device in local_devices():
            entries = [entry for entry in opened.survey(family.split("/")[0])[0]
                       if entry.family == family and device in entry.record.devices]  # fmt: skip
            if entries:
                # Newest first; one that was measured with this torch and compiler before all others.
                models = [entry.load() for entry in entries]
                fitting = [model for model in models if Chooser(model).mismatch(device, _software(family)) is None]
                found.append((fitting or models)[0])
                break
    if not found:
        raise NotFound(
            f"the store {opened.path} has no model of {' or '.join(FAMILIES)} for {' or '.join(local_devices())}: make one "
            "with `kerncast regenerate inductor-cpu`, or give a model"
        )
    return found


def _software(family: str) -> Mapping[str, str]:
    return cpu_software() if family == hooks.CPU_FAMILY else local_gpu()[1]


def local_devices() -> list[str]:
    """This machine's processor and, if torch sees one, its first GPU, as models name them."""
    gpu = [local_gpu()[0]] if import_module("torch").cuda.is_available() else []
    return [*gpu, devices.local().name]


def _handler_below() -> Any:
    """What makes the handler that is in use now; a factory of ours is passed through to what is below it."""
    if not has_setting():
        return None
    set_now = getattr(import_module("torch._inductor.config"), SETTING)
    if isinstance(set_now, Factory):
        return set_now.parent
    return set_now


def enable_from_environment() -> None:
    """What `KERNCAST_INDUCTOR` asks for: choose in every thread of this process. Called when Inductor is imported."""
    if turned_off():
        return
    given = os.environ.get(MODEL, "")
    make_default(choices(None if given in FROM_STORE else given))
    say_what_is_off(MODEL)


def make_default(factory: Factory) -> None:
    """Make a factory the setting wherever nobody sets another; an assignment would only hold in this thread."""
    config = import_module("torch._inductor.config")
    entry = getattr(config, "_config", {}).get(SETTING)
    if entry is None or not keys_caches():
        log.warning('%s needs torch 2.13 or newer: use `backend="kerncast"` instead', MODEL)
        return
    entry.env_value_default = factory
    setattr(config, SETTING, factory)  # what this thread has read already
