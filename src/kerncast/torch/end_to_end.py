"""A whole model, compiled in several ways in one process, then run in turns."""

from __future__ import annotations

import gc
import resource
import statistics
import time
from collections.abc import Callable
from contextlib import nullcontext
from dataclasses import dataclass
from importlib import import_module
from typing import Any

from kerncast.core.progress import QUIET, Progress
from kerncast.models.model import Model
from kerncast.torch.chooser import Policy
from kerncast.torch.enabling import active_here, choices
from kerncast.torch.factory import SETTING, has_setting
from kerncast.torch.shape_tracing import arguments
from kerncast.torch.validation import Mode

BACKENDS = "CPP,ATEN,TRITON"
# A round of a mode lasts at least this long, so that a small model is not timed by the clock's own steps.
ROUND_NS = 4_000_000


@dataclass
class _Compiled:
    name: str
    call: Callable[[], Any]
    cpu_seconds: float
    seconds: float
    timed: int
    difference: float
    times: list[float]


def compare_modes(
    model: Model, module: Any, inputs: Any, policy: Policy, exhaustive: int = 0, rounds: int = 20, progress: Progress = QUIET
) -> list[Mode]:
    """Compile with stock settings, with max-autotune, with choosing, and with a max-autotune of `exhaustive` kernels a product.

    Inductor's caches are empty for each of them; the precompiled headers, which all share, are made first.
    """
    args, kwargs = arguments(inputs)

    def call(function: Callable[..., Any]) -> Any:
        return function(*args, **kwargs)

    autotune: dict[str, Any] = {"max_autotune": True, "max_autotune_gemm_backends": BACKENDS}
    chosen = {**autotune, "inductor_choices_class": choices(model, top_k=policy.top_k, any_software=policy.any_software)}
    modes: dict[str, dict[str, Any]] = {"stock": {}, "max-autotune": autotune, "kerncast": chosen}
    if exhaustive:
        many = choices(model, top_k=exhaustive, any_software=policy.any_software)
        modes[f"max-autotune of {exhaustive}"] = {**autotune, "inductor_choices_class": many}
    torch, config = import_module("torch"), import_module("torch._inductor.config")
    torch._dynamo.reset()
    compiled = []
    # Weights are frozen, and everything is compiled in this process and by its children, so that the time can be told.
    with config.patch(freezing=True, compile_threads=1), torch.no_grad():
        _warm_headers()
        for number, (name, options) in enumerate(modes.items()):
            progress.stage(f"compiling: {name}", number + 1, len(modes) + 1)
            compiled.append(_compile(name, module, call, options))
        progress.stage("running them in turns", len(modes) + 1, len(modes) + 1)
        _take_turns(compiled, rounds)
    return [
        Mode(item.name, item.cpu_seconds, item.seconds, statistics.median(item.times), item.timed, item.difference)
        for item in compiled
    ]


def _warm_headers() -> None:
    torch = import_module("torch")
    layer = torch.nn.Linear(16, 16).eval()
    options = {"max_autotune": True, "max_autotune_gemm_backends": "CPP"}
    with _empty_caches():
        torch.compile(layer, options=options, dynamic=False)(torch.ones(4, 16))


def _empty_caches() -> Any:
    """A block in which Inductor's caches are new and empty."""
    utilities = import_module("torch._inductor.utils")
    return (getattr(utilities, "fresh_cache", None) or utilities.fresh_inductor_cache)()


def _compile(name: str, module: Any, call: Callable[[Any], Any], options: dict[str, Any]) -> _Compiled:
    torch, selecting = import_module("torch"), import_module("torch._inductor.select_algorithm")
    timed = 0

    def count(timings: Any, *rest: Any) -> None:
        nonlocal timed
        timed += len(timings)

    # As an option where torch has it: Dynamo then knows that this is another compilation of the same module.
    given = options if has_setting() else {name: value for name, value in options.items() if name != SETTING}
    factory = options.get(SETTING)
    selecting.add_feedback_saver(count)
    try:
        with _empty_caches(), nullcontext() if factory is None or has_setting() else active_here(factory):
            expected = call(module)
            cpu, wall = _cpu_seconds(), time.perf_counter()
            function = torch.compile(module, options=given, dynamic=False)
            result = call(function)
            cpu, wall = _cpu_seconds() - cpu, time.perf_counter() - wall
    finally:
        savers = selecting.get_algorithm_selector_cache().feedback_saver_fns
        savers[:] = [function for function in savers if function is not count]
    return _Compiled(name, lambda: call(function), cpu, wall, timed, _difference(result, expected), [])


def _cpu_seconds() -> float:
    """Of this process and of the compilers that it has waited for."""
    spent = [resource.getrusage(who) for who in (resource.RUSAGE_SELF, resource.RUSAGE_CHILDREN)]
    return sum(item.ru_utime + item.ru_stime for item in spent)


def _difference(result: Any, expected: Any) -> float:
    torch = import_module("torch")
    flat = import_module("torch.utils._pytree").tree_leaves
    pairs = zip(flat(result), flat(expected), strict=True)
    return max((float((a.double() - b.double()).abs().max()) for a, b in pairs if isinstance(a, torch.Tensor)), default=0.0)


def _take_turns(compiled: list[_Compiled], rounds: int) -> None:
    """One round of each after the other, so that a slow moment of the machine affects all of them alike."""
    launches = {}
    for item in compiled:
        item.call()
        begin = time.perf_counter_ns()
        item.call()
        launches[item.name] = max(1, ROUND_NS // max(1, time.perf_counter_ns() - begin))
    gc.disable()
    try:
        for _ in range(rounds):
            for item in compiled:
                begin = time.perf_counter_ns()
                for _ in range(launches[item.name]):
                    item.call()
                item.times.append((time.perf_counter_ns() - begin) / launches[item.name])
    finally:
        gc.enable()
