"""`torch.compile(m, backend="kerncast")`: Inductor with max-autotune, its kernels chosen by a model."""

from __future__ import annotations

from collections.abc import Mapping
from contextlib import ExitStack
from importlib import import_module
from typing import Any

from kerncast.errors import KerncastError, NotFound
from kerncast.torch.saying import say, say_if_not_frozen

OWN_OPTIONS = ("model", "top_k", "widen", "any_software", "store")


def kerncast(graph: Any, example_inputs: Any, *, mode: str | None = None, options: Mapping[str, Any] | None = None) -> Any:
    """The backend of torch.compile. `options` may name a `model`, `top_k` …; all others are Inductor's own.

    Without a model it compiles as `backend="inductor"` with max-autotune does.
    """
    from torch._inductor import list_mode_options
    from torch._inductor.compile_fx import compile_fx

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
    known = import_module("torch._inductor.config").get_config_copy()
    unknown = next((name for name in named if name not in known), None)
    if unknown is not None:
        raise NotFound.named("option of torch.compile", unknown, [*OWN_OPTIONS, *known], "torch._inductor.config")
    return own, named
