"""Lines for the log `kerncast.torch`: what went wrong here, and which settings of Inductor leave nothing to do."""

from __future__ import annotations

import logging
from functools import cache
from importlib import import_module

from kerncast.core.io.terminal import line

log = logging.getLogger("kerncast.torch")
# Settings without which Inductor offers one kernel for most products, and the variables that turn them on.
NEEDED = {"max_autotune": "TORCHINDUCTOR_MAX_AUTOTUNE=1", "freezing": "TORCHINDUCTOR_FREEZING=1"}


def say(why: str, error: object) -> None:
    """One line in the log; texts of files and of other programs are made printable."""
    told = f"{type(error).__name__}: {error}" if isinstance(error, Exception) else str(error)
    log.warning("%s: %s", line(why), line(told))


@cache
def say_once(text: str) -> None:
    """A line that would be the same each time."""
    log.warning("%s", text)


def say_what_is_off(variable: str) -> None:
    """Which settings are off that a variable's purpose needs. The program may turn them on itself, later."""
    config = import_module("torch._inductor.config")
    for name, how in NEEDED.items():
        if not getattr(config, name, True):
            log.warning(
                "%s is set, but %s is off, and unless the program turns it on, Inductor has one kernel for most products: "
                "set %s", variable, name, how,
            )  # fmt: skip


def say_if_not_frozen() -> None:
    """For models that are compiled without gradients: with them, nothing can be frozen."""
    if not import_module("torch._inductor.config").freezing and not import_module("torch").is_grad_enabled():
        say_once(
            "freezing is off, so products with weights have one kernel on CPUs: set torch._inductor.config.freezing = True "
            "or TORCHINDUCTOR_FREEZING=1 before the model is compiled"
        )
