"""Whether choosing is as good as max-autotune on this machine: product by product, and a whole model end to end."""

from __future__ import annotations

import math
import random
from collections.abc import Iterable, Mapping, Sequence
from typing import Any

from kerncast.answering.measure import Timed, measure_top
from kerncast.core.io.terminal import assignments, known
from kerncast.core.op import Config
from kerncast.core.progress import QUIET, Progress
from kerncast.errors import InvalidValue, KerncastError
from kerncast.measuring.backends import backend_that_runs
from kerncast.measuring.sweeping.selection import offered
from kerncast.models.model import Model
from kerncast.torch import decisions
from kerncast.torch.asking import in_range
from kerncast.torch.chooser import Chooser, Policy, in_words
from kerncast.torch.end_to_end import compare_modes
from kerncast.torch.validation import Product, Validation

SECONDS_PER_PRODUCT = 2.0


def validate(
    model: Model,
    problems: Iterable[Mapping[str, Any]] = (),
    example: tuple[Any, Any] | None = None,
    *,
    top_k: int = 1,
    sample: int = 0,
    exhaustive: int = 0,
    any_software: bool = False,
    seconds: float = SECONDS_PER_PRODUCT,
    rounds: int = 20,
    seed: int = 0,
    progress: Progress = QUIET,
) -> Validation:
    """Measure what the model chooses, what max-autotune would, and `sample` other configs, on each problem.

    With `example`, a model and its inputs, it is also compiled and run: with stock settings, with max-autotune and with
    choosing; with `exhaustive`, with a max-autotune of that many kernels per product, too.
    """
    chooser = Chooser(model, Policy(top_k, any_software))
    listed = list(problems)
    if not listed and example is None:
        raise InvalidValue("there is nothing to validate: give a model file or shapes")
    products = list(_products(chooser, listed, sample, seconds, seed, progress))
    modes = () if example is None else compare_modes(model, *example, chooser.policy, exhaustive, rounds, progress)
    return Validation(str(model.path), model.device.name, chooser.digest, tuple(products), tuple(modes))


def _products(
    chooser: Chooser, problems: Sequence[Mapping[str, Any]], sample: int, seconds: float, seed: int, progress: Progress
) -> Iterable[Product]:
    if not problems:
        return
    family = chooser.model.family
    backend = backend_that_runs(family.id)("0")
    why_not = chooser.mismatch(backend.device().name, backend.software(family.id))
    for number, values in enumerate(problems):
        progress.stage(f"measuring {assignments(known(values))}", number + 1, len(problems))
        picked = chooser.decide(family.op.name, values, library=True)
        if why_not is not None or picked.abstained:
            yield Product(dict(values), decisions.ABSTAINED, why_not or picked.decision.reason)
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
            yield Product(dict(values), "failed", str(error))
            continue
        yield _judged(chooser, dict(values), picked.decision, chosen, stock, timed)


def _judged(
    chooser: Chooser,
    values: dict[str, Any],
    decision: decisions.Decision,
    chosen: Sequence[Config],
    stock: Sequence[Config],
    timed: Sequence[Timed],
) -> Product:
    times = {item.config: item.time_ns for item in timed}
    mine = [config for config in chosen if config in times]
    theirs = [config for config in stock if config in times]
    if not mine:
        return Product(values, "failed", "none of the chosen kernels ran")
    # Of several kernels that are left, Inductor takes the one that it finds fastest.
    best_of_mine = min(mine, key=lambda config: times[config])
    asked = in_range(chooser.model, values)
    predicted = [chooser.model.predict(asked, config).time_ns for config in times]
    errors = [
        math.log(guess / times[config])
        for guess, config in zip(predicted, times, strict=True)
        if guess is not None and guess > 0
    ]
    return Product(
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
