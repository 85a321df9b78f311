"""`torch.compile(m, backend="kerncast")`: Inductor with max-autotune, its kernels chosen by a model."""

from __future__ import annotations

from collections.abc import Mapping
from contextlib import ExitStack
from importlib import import_module
from typing import Any

from kerncast.errors import KerncastError
from kerncast.inductor.factory import log, say

OWN_OPTIONS = ("model", "top_k", "widen", "any_software", "store")


def kerncast(graph: Any, example_inputs: Any, *, mode: str | None = None, options: Mapping[str, Any] | None = None) -> Any:
    """The backend of torch.compile. `options` may name a `model`, `top_k` …; all others are Inductor's own.

    Without a model it compiles as `backend="inductor"` with max-autotune does.
    """
    from torch._inductor import list_mode_options
    from torch._inductor.compile_fx import compile_fx

    given = dict(options or {})
    own = {name: given.pop(name) for name in OWN_OPTIONS if name in given}
    patches = {**(list_mode_options(mode) if mode else {}), "max_autotune": True, **given}
    with ExitStack() as stack:
        try:
            from kerncast.inductor.enabling import active_here, choices, settings_of

            factory = choices(own.get("model"), **{name: value for name, value in own.items() if name != "model"})
            # As settings of the compilation, too: the backward pass is compiled later, outside of this block.
            patches |= settings_of(factory)
            stack.enter_context(active_here(factory))
        except Exception as error:
            if own and isinstance(error, KerncastError):
                raise  # what the user asked for cannot be done
            say("kernels are not chosen, Inductor times them", error)
        _say_what_is_off()
        return compile_fx(graph, example_inputs, config_patches=patches)


def _say_what_is_off() -> None:
    config = import_module("torch._inductor.config")
    torch = import_module("torch")
    if not config.freezing and not torch.is_grad_enabled():
        log.warning(
            "freezing is off, so products with weights have one kernel on CPUs: set torch._inductor.config.freezing = True "
            "or TORCHINDUCTOR_FREEZING=1 before the model is compiled"
        )
