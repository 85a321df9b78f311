"""Turning choosing on: for one compilation, for a block, or for a program that cannot be edited."""

from __future__ import annotations

import os
from collections.abc import Iterator, Sequence
from contextlib import ExitStack, contextmanager
from importlib import import_module
from pathlib import Path
from typing import Any

from kerncast import devices
from kerncast.errors import KerncastError, NotFound
from kerncast.inductor import hooks
from kerncast.inductor.chooser import Policy
from kerncast.inductor.entry import MODEL
from kerncast.inductor.factory import SETTING, Factory, _without_setting, has_setting, keys_caches, log, turned_off
from kerncast.inductor.reporting import write_at_exit
from kerncast.models.model import Model
from kerncast.store.store import Store

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
    """
    hooks.install()
    policy = Policy(top_k, any_software, widen)
    return Factory(models_of(model, store), policy, _handler_below())


@contextmanager
def enable(
    model: Given = None, *, top_k: int = 1, widen: bool = True, any_software: bool = False, store: str | Path | None = None
) -> Iterator[Factory]:
    """A block in which a model chooses for everything that is compiled in it, with `choices`' options.

    torch.compile compiles when the function is first called: call it in the block.
    """
    factory = choices(model, top_k=top_k, widen=widen, any_software=any_software, store=store)
    with active_here(factory):
        yield factory


@contextmanager
def active_here(factory: Factory) -> Iterator[None]:
    """Make a factory the setting in this thread."""
    config = import_module("torch._inductor.config")
    with ExitStack() as stack:
        patches: dict[str, Any] = {SETTING: factory} if has_setting() else {}
        if not keys_caches():
            # Otherwise a kernel that this model chose would be found in the cache by a compilation without it.
            patches |= {name: False for name in ("fx_graph_cache", "fx_graph_remote_cache") if hasattr(config, name)}
        if not has_setting():
            token = _without_setting.set(factory)
            stack.callback(_without_setting.reset, token)
        stack.enter_context(config.patch(patches))
        yield


def models_of(given: Given, store: str | Path | None = None) -> list[Model]:
    """The models that were given; without any, those of this machine in the store."""
    if given is None:
        return stored_models(store)
    several = given if isinstance(given, Sequence) and not isinstance(given, str) else [given]
    return [item if isinstance(item, Model) else _loaded(item, store) for item in several]


def _loaded(given: str | Path, store: str | Path | None) -> Model:
    return Model.load(given) if Path(given).is_dir() else Store.open(store).get(str(given)).load()


def stored_models(store: str | Path | None = None) -> list[Model]:
    """The store's models of Inductor's families for the devices of this machine."""
    opened, found = Store.open(store), []
    for family in FAMILIES:
        for device in local_devices():
            try:
                found.append(opened.find(family.split("/")[0], family, device).load())
                break
            except NotFound:
                continue
    if not found:
        raise NotFound(
            f"the store {opened.path} has no model of {' or '.join(FAMILIES)} for {' or '.join(local_devices())}: make one "
            "with `kerncast regenerate inductor-cpu`, or give a model"
        )
    return found


def local_devices() -> list[str]:
    """This machine's processor and, if torch sees one, its first GPU, as models name them."""
    torch = import_module("torch")
    names = [devices.local().name]
    if torch.cuda.is_available():
        title = torch.cuda.get_device_name(0)
        gpu = devices.named(title)
        names.insert(0, gpu.name if gpu is not None else title)
    return names


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
    try:
        factory = choices(None if given in FROM_STORE else given)
    except KerncastError as error:
        log.warning("%s is set, but nothing is chosen: %s", MODEL, error)
        return
    make_default(factory)
    write_at_exit()
    config = import_module("torch._inductor.config")
    for name, what in (("max_autotune", "TORCHINDUCTOR_MAX_AUTOTUNE=1"), ("freezing", "TORCHINDUCTOR_FREEZING=1")):
        if not getattr(config, name, True):
            log.warning("%s is set, but %s is off, so few kernels are there to choose from: set %s", MODEL, name, what)


def make_default(factory: Factory) -> None:
    """Make a factory the setting wherever nobody sets another; an assignment would only hold in this thread."""
    config = import_module("torch._inductor.config")
    entry = getattr(config, "_config", {}).get(SETTING)
    if entry is None or not keys_caches():
        log.warning('%s needs torch 2.13 or newer: use `backend="kerncast"` instead', MODEL)
        return
    entry.env_value_default = factory
    setattr(config, SETTING, factory)  # what this thread has read already
