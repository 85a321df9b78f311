"""What torch finds by its entry points. This module imports nothing of torch, and of kerncast only its errors.

`import torch` calls `autoload` (entry point `torch.backends`): nothing happens unless an environment variable asks for it.
torch is half imported then, and Inductor is imported much later or never. So a finder on `sys.meta_path` waits for the module
that selects kernels, and our functions run right after it.
"""

from __future__ import annotations

import importlib
import importlib.util
import logging
import os
import sys
from collections.abc import Callable, Mapping, Sequence
from contextlib import ExitStack
from importlib.machinery import ModuleSpec
from types import ModuleType
from typing import Any

from kerncast.errors import KerncastError, NotFound

OBSERVE, MODEL, DISABLE = "KERNCAST_OBSERVE", "KERNCAST_INDUCTOR", "KERNCAST_DISABLE"
SELECTING = "torch._inductor.select_algorithm"
# When this one has been imported, no module of Inductor that choosing needs is still half imported.
COMPILING = "torch._inductor.compile_fx"
SAYS = logging.getLogger("kerncast.torch")
OWN_OPTIONS = ("model", "top_k", "widen", "any_software", "store")


def autoload() -> None:
    """Return at once unless `KERNCAST_OBSERVE` or `KERNCAST_INDUCTOR` is set; never raise: that would break `import torch`."""
    if not (os.environ.get(OBSERVE) or os.environ.get(MODEL)) or turned_off():
        return
    try:
        after_import(SELECTING, begin_observing)
        after_import(COMPILING, begin_choosing)
    except Exception as error:
        _say("kerncast does nothing in this process", error)


def turned_off() -> bool:
    """Whether the user has turned everything off, with any value of `KERNCAST_DISABLE` but 0."""
    return os.environ.get(DISABLE, "") not in ("", "0")


def begin_observing() -> None:
    """Record, if the variable asks for it."""
    path = os.environ.get(OBSERVE)
    if path and not turned_off():
        _call(f"{OBSERVE} is set, but nothing is recorded", "kerncast.torch.observing", "observe_from_environment", path)


def begin_choosing() -> None:
    """Choose, if the variable asks for it."""
    if os.environ.get(MODEL) and not turned_off():
        _call(f"{MODEL} is set, but nothing is chosen", "kerncast.torch.enabling", "enable_from_environment")


def _call(otherwise: str, module: str, function: str, *arguments: str) -> None:
    try:
        getattr(importlib.import_module(module), function)(*arguments)
    except Exception as error:
        _say(otherwise, error)


def _say(what: str, error: Exception) -> None:
    said = "".join(letter if letter.isprintable() else "?" for letter in str(error))
    SAYS.warning("%s: %s: %s", what, type(error).__name__, said)


def after_import(name: str, function: Callable[[], None]) -> None:
    """Call a function once, right after a module was imported; at once if it is there already."""
    if name in sys.modules:
        function()
    elif not any(isinstance(item, _Waiting) and item.name == name for item in sys.meta_path):
        sys.meta_path.insert(0, _Waiting(name, function))


class _Waiting:
    """A finder that lets the others find a module, and changes only what happens after it was executed."""

    def __init__(self, name: str, function: Callable[[], None]) -> None:
        self.name, self.function = name, function

    def find_spec(
        self, fullname: str, path: Sequence[str] | None = None, target: ModuleType | None = None
    ) -> ModuleSpec | None:
        """The spec that the other finders have, with a loader that calls us."""
        if fullname != self.name:
            return None
        if self in sys.meta_path:
            sys.meta_path.remove(self)  # once, and the search below must not come back here
        spec = importlib.util.find_spec(fullname)
        if spec is not None and spec.loader is not None:
            spec.loader = _Calling(spec.loader, self.function)  # type: ignore[assignment]
        return spec


class _Calling:
    """A loader that is another one, but for a call after the module was executed."""

    def __init__(self, loader: Any, function: Callable[[], None]) -> None:
        self._loader, self._function = loader, function

    def __getattr__(self, name: str) -> Any:
        return getattr(self._loader, name)

    def exec_module(self, module: ModuleType) -> None:
        """Execute the module as its own loader does, then call the function."""
        # What the module is asked about itself must be answered by its own loader.
        if module.__spec__ is not None:
            module.__spec__.loader = self._loader
        module.__loader__ = self._loader
        self._loader.exec_module(module)
        self._function()


def kerncast(graph: Any, example_inputs: Any, *, mode: str | None = None, options: Mapping[str, Any] | None = None) -> Any:
    """The backend of torch.compile. `options` may name a `model`, `top_k` …; all others are Inductor's own.

    Without a model it compiles as `backend="inductor"` with max-autotune does.
    """
    from torch._inductor import list_mode_options
    from torch._inductor.compile_fx import compile_fx

    from kerncast.torch.reporting import say, say_if_not_frozen

    own, given = _sorted_options(options or {})
    patches = {**(list_mode_options(mode) if mode else {}), "max_autotune": True, **given}
    with ExitStack() as stack:
        try:
            from kerncast.torch.enabling import active_here, choices, settings_of

            factory = choices(own.get("model"), **{name: value for name, value in own.items() if name != "model"})
            # As settings of the compilation, too: the backward pass is compiled later, outside of this block.
            patches |= settings_of(factory)
            stack.enter_context(active_here(factory))
            say_if_not_frozen()
        except Exception as error:
            if own and isinstance(error, KerncastError):
                raise  # what the user asked for cannot be done
            say("kernels are not chosen, Inductor times them", error)
        return compile_fx(graph, example_inputs, config_patches=patches)


def _sorted_options(options: Mapping[str, Any]) -> tuple[dict[str, Any], dict[str, Any]]:
    """Our own options and Inductor's, whose names may have dashes as with Inductor's own backend."""
    named = {name.replace("-", "_"): value for name, value in options.items()}
    own = {name: named.pop(name) for name in OWN_OPTIONS if name in named}
    known = importlib.import_module("torch._inductor.config").get_config_copy()
    unknown = next((name for name in named if name not in known), None)
    if unknown is not None:
        raise NotFound.named("option of torch.compile", unknown, [*OWN_OPTIONS, *known], "torch._inductor.config")
    return own, named
