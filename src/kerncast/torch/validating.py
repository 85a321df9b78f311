"""Whether choosing is as good as max-autotune on this machine: product by product, and a whole model end to end."""

from __future__ import annotations

import gc
import math
import random
import resource
import statistics
import time
from collections.abc import Callable, Iterable, Mapping, Sequence
from contextlib import nullcontext
from dataclasses import dataclass
from importlib import import_module
from importlib.util import find_spec
from pathlib import Path
from typing import Annotated, Any

from kerncast.answering.measure import TimedConfig, measure_top
from kerncast.core.io.arguments import Help, assignment_texts
from kerncast.core.io.atomic import write_bytes
from kerncast.core.io.terminal import assignments, known
from kerncast.core.op import Config
from kerncast.core.progress import QUIET, Progress
from kerncast.errors import InvalidValue, KerncastError, NotFound
from kerncast.library.problems import parse_vary, problem_set
from kerncast.measuring.backends import backend_that_runs
from kerncast.measuring.sweeping.selection import offered
from kerncast.models.model import Model
from kerncast.torch.chooser import ChoicePolicy, Chooser, in_range, in_words
from kerncast.torch.enabling import active_here, choices, models_of
from kerncast.torch.hooks import SETTING, has_setting
from kerncast.torch.reporting import ABSTAINED, Decision
from kerncast.torch.shape_tracing import arguments
from kerncast.torch.shapes import example_of
from kerncast.torch.validation import Mode, ValidatedProduct, Validation

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
    model: Model, module: Any, inputs: Any, policy: ChoicePolicy, exhaustive: int = 0, rounds: int = 20, *,
    progress: Progress = QUIET,
) -> list[Mode]:  # fmt: skip
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
        with _empty_caches():  # the precompiled headers
            layer = torch.nn.Linear(16, 16).eval()
            options: dict[str, Any] = {"max_autotune": True, "max_autotune_gemm_backends": "CPP"}
            torch.compile(layer, options=options, dynamic=False)(torch.ones(4, 16))
        for number, (name, options) in enumerate(modes.items()):
            progress.stage(f"compiling: {name}", number + 1, len(modes) + 1)
            compiled.append(_compile(name, module, call, options))
        progress.stage("running them in turns", len(modes) + 1, len(modes) + 1)
        _take_turns(compiled, rounds)
    return [
        Mode(item.name, item.cpu_seconds, item.seconds, statistics.median(item.times), item.timed, item.difference)
        for item in compiled
    ]


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


SECONDS_PER_PRODUCT = 2.0


def validate(
    model: Annotated[Model | str | Path, Help(metavar="MODEL", names="model_folders")],
    *,
    model_file: Annotated[
        str | None,
        Help(
            "A network to compile in each way and run in turns. Its products are measured, too.", metavar="FILE.py[:FUNCTION]"
        ),
    ] = None,
    shapes: Annotated[
        str | Sequence[Mapping[str, Any]] | None,
        Help("Products to measure: a problem set as for `kerncast collect`, or a file.", metavar="SPEC", several=False),
    ] = None,
    vary: Annotated[
        Mapping[str, Any] | Sequence[str] | None,
        Help("With `shapes`, one more axis: threads=1,2. May be repeated.", metavar="NAME=VALUES"),
    ] = None,
    threads: Annotated[int | None, Help("Threads that torch may use. [default: as torch decides]", least=1)] = None,
    top_k: Annotated[int, Help("Kernels that are left for Inductor to time.", least=1)] = 1,
    sample: Annotated[
        int, Help("Other configs of each product to measure, to see how far the choice is from the best.", least=0)
    ] = 0,
    exhaustive: Annotated[
        int,
        Help("With `model_file`, also compile with a max-autotune of N kernels a product; takes long.", metavar="N", least=0),
    ] = 0,
    any_software: Annotated[bool, Help("Use the model although torch or the compiler is not that of its data.")] = False,
    picture: Annotated[str | Path | None, Help("With `model_file`: speed against compile time.", metavar="FILE.svg")] = None,
    store: Annotated[
        str | Path | None, Help("The store of MODEL. [default: KERNCAST_STORE, else the user's]", metavar="DIR")
    ] = None,
    seed: Annotated[int, Help(least=0)] = 0,
    progress: Progress = QUIET,
) -> Validation:
    """Measure what a model chooses and what max-autotune would: for the products of `shapes`, or for those of a network.

    `model_file` is `FILE.py[:function]`; the function returns a module and its inputs, which are compiled in each way and run
    in turns. `picture` is written as SVG.
    """
    if find_spec("torch") is None:
        raise NotFound.package("validating", "torch", "torch")
    if (model_file is None) == (shapes is None):
        raise InvalidValue("give either `model_file` or `shapes`")
    if model_file is None and (exhaustive or picture is not None or threads is not None):
        raise InvalidValue("`exhaustive`, `picture` and `threads` are for `model_file`: leave them out")
    if model_file is not None and vary:
        raise InvalidValue("`vary` is for `shapes`: leave it out")
    torch, (loaded,) = import_module("torch"), models_of(model, store)
    if threads is not None:
        torch.set_num_threads(threads)
    example = None if model_file is None else example_of(model_file)
    problems = _products_of(loaded, example) if example is not None else _given(loaded, shapes, vary, seed)
    chooser = Chooser(loaded, ChoicePolicy(top_k, any_software))
    products = tuple(_products(chooser, problems, sample, SECONDS_PER_PRODUCT, seed, progress))
    modes = () if example is None else compare_modes(loaded, *example, chooser.policy, exhaustive, progress=progress)
    found = Validation(str(loaded.path), loaded.device.name, chooser.digest, products, tuple(modes))
    if picture is not None:
        write_bytes(Path(picture), found.picture().encode())
    return found


def _products_of(model: Model, example: tuple[Any, Any]) -> list[dict[str, Any]]:
    """The products of a network, on as many threads as torch has. On a CPU, Inductor packs weights whatever their layout is."""
    from kerncast.torch.shapes import shapes_of

    if "threads" not in model.family.environment.parameters:
        return [dict(item) for item in shapes_of(*example)]
    packed = {"layout": "rcr", "ldb": None, "threads": import_module("torch").get_num_threads()}
    found = [{**item, **packed} for item in shapes_of(*example) if item.get("batch", 1) == 1]
    return [{name: value for name, value in item.items() if value is not None} for item in found]


def _given(model: Model, shapes: Any, vary: Any, seed: int) -> list[dict[str, Any]]:
    if not isinstance(shapes, str):
        return [dict(item) for item in shapes]
    frame = problem_set(model.family, [shapes], parse_vary(model.family, assignment_texts(vary)), seed=seed)
    return [{name: value for name, value in row.items() if value is not None} for row in frame.iter_rows(named=True)]


def _products(
    chooser: Chooser, problems: Sequence[Mapping[str, Any]], sample: int, seconds: float, seed: int, progress: Progress
) -> Iterable[ValidatedProduct]:
    if not problems:
        return
    family = chooser.model.family
    backend = backend_that_runs(family.id)("0")
    why_not = chooser.mismatch(backend.device().name, backend.software(family.id))
    for number, values in enumerate(problems):
        progress.stage(f"measuring {assignments(known(values))}", number + 1, len(problems))
        picked = chooser.decide(family.op.name, values, library=True)
        if why_not is not None or picked.decision.status == ABSTAINED:
            yield ValidatedProduct(dict(values), ABSTAINED, why_not or picked.decision.reason)
            continue
        problem = chooser.selector.problem(values)
        bindings = family.bindings(problem, backend.device())
        listed = family.always or offered(family, "default").configs(problem, backend.device())
        stock = [Config(family, item) for item in listed if not family.config.validate(item, bindings)]
        library = [item for item in stock if all(item[name] == value for name, value in family.library.items())]
        chosen = [Config(family, item) for item in picked.configs] + (library[:1] if picked.library else [])
        others = random.Random(seed).sample(chooser.selector.configs, min(sample, len(chooser.selector.configs)))
        others = [config for config in others if not family.config.validate(config.as_dict(), bindings)]
        configs = list(dict.fromkeys([*chosen, *stock, *others]))
        try:
            backend.compile([(problem, config) for config in configs])  # the seconds are for measuring
            timed = measure_top(backend, problem, configs, seconds * len(configs))
        except KerncastError as error:
            yield ValidatedProduct(dict(values), "failed", str(error))
            continue
        yield _judged(chooser, dict(values), picked.decision, chosen, stock, timed)


def _judged(
    chooser: Chooser,
    values: dict[str, Any],
    decision: Decision,
    chosen: Sequence[Config],
    stock: Sequence[Config],
    timed: Sequence[TimedConfig],
) -> ValidatedProduct:
    times = {item.config: item.time_ns for item in timed}
    mine = [config for config in chosen if config in times]
    theirs = [config for config in stock if config in times]
    if not mine:
        return ValidatedProduct(values, "failed", "none of the chosen kernels ran")
    # Of several kernels that are left, Inductor takes the one that it finds fastest.
    best_of_mine = min(mine, key=lambda config: times[config])
    asked = in_range(chooser.model, values)
    predicted = [chooser.model.predict(asked, config).time_ns for config in times]
    errors = [
        math.log(guess / times[config])
        for guess, config in zip(predicted, times, strict=True)
        if guess is not None and guess > 0
    ]
    return ValidatedProduct(
        values,
        decision.status,
        decision.reason,
        chosen=in_words(best_of_mine),
        chosen_ns=times[best_of_mine],
        stock={in_words(config): times[config] for config in theirs},
        best=in_words(timed[0].config),
        best_ns=timed[0].time_ns,
        measured=len(times),
        skipped=decision.candidates - decision.kept,
        log_errors=tuple(errors),
    )
