"""Where Inductor is asked to choose: its C++ template, its Triton templates, and the list of choices before they are timed.

The hooks are put in place once and stay. Without an active factory each of them calls what it stands before, and nothing else.
An exception of ours means stock behaviour and one line in the log, never a failed compilation.
"""

from __future__ import annotations

import threading
import time
from collections.abc import Callable, Mapping
from dataclasses import replace
from functools import cache, wraps
from importlib import import_module
from typing import Any

from kerncast.errors import NotFound
from kerncast.library import devices
from kerncast.measuring.backends.inductor import templates
from kerncast.measuring.backends.inductor.build import cpu_software
from kerncast.torch import cpu_problem, decisions
from kerncast.torch.chooser import Chooser, Picked
from kerncast.torch.factory import Factory, active
from kerncast.torch.saying import say
from kerncast.torch.triton_hooks import LEFT, before_templates, settle_rendered

CPU_FAMILY = "gemm/inductor_cpp"
MARK = "kerncast_picked"
_installing = threading.Lock()


def install() -> None:
    """Put the hooks in place, once in a process."""
    with _installing:
        _install()


@cache
def _install() -> None:
    selecting = import_module("torch._inductor.select_algorithm")
    if not hasattr(selecting, "add_preprocessing_fn"):
        raise NotFound(
            "this torch cannot be told which kernels to try (it has no add_preprocessing_fn): use torch 2.9 or newer"
        )
    handler, why_not = import_module("torch._inductor.choices").InductorChoices, templates.missing()
    selecting.add_preprocessing_fn(keep_picked)
    before_templates(handler)
    if why_not is None:
        _before_cpp_template(templates.inductor().CppGemmTemplate)
    else:
        say("kernels for CPUs are not chosen", why_not)


# -- C++ templates ---------------------------------------------------------------------------------


def _before_cpp_template(template: Any) -> None:
    """Decide before anything is rendered: a kernel takes a tenth of a second to render, and its ranking a tenth of that."""
    own: Callable[..., Any] = template.__dict__["add_choices"].__func__

    @wraps(own)
    def add_choices(cls: Any, choices: list[Any], layout: Any, input_nodes: Any, *rest: Any, **options: Any) -> Any:
        factory = active()
        if factory is None or cls is not template or rest or CPU_FAMILY not in factory.choosers:
            return own(cls, choices, layout, input_nodes, *rest, **options)
        before, began = len(choices), time.perf_counter()
        try:
            picked = pick_for_cpu(factory, layout, input_nodes, options)
            decision = replace(picked.decision, seconds=time.perf_counter() - began)
            if not picked.abstained:
                for config in picked.configs:
                    if config["kind"] == "default":
                        own(cls, choices, layout, input_nodes, **options)
                    else:
                        tile = templates.template_class(templates.key_of(config))
                        tile.add_choices(choices, layout, input_nodes, **options)
                if picked.configs and len(choices) == before:
                    raise RuntimeError("the template rendered none of the chosen configs")
                for choice in choices[before:]:
                    setattr(choice, MARK, picked)
                decisions.note(decision)
                return None
            decisions.note(decision)
        except Exception as error:
            del choices[before:]
            say(LEFT, error)
        return own(cls, choices, layout, input_nodes, **options)

    template.add_choices = classmethod(add_choices)


def pick_for_cpu(factory: Factory, layout: Any, nodes: Any, options: dict[str, Any]) -> Picked:
    """What the model says about a product that the C++ template could compute."""
    chooser = factory.choosers[CPU_FAMILY]
    name = _op_name()
    why_not = _not_this_cpu(chooser)
    if why_not is not None:
        return Picked(chooser.abstention(name, why_not))
    utilities = import_module("torch._inductor.utils")
    problem = cpu_problem.problem_of(layout, nodes, int(utilities.parallel_num_threads()), _node(), **options)
    if isinstance(problem, str):
        return Picked(chooser.abstention(name, problem))
    offered = None if factory.policy.widen else _offered_by_inductor
    return chooser.decide(name, problem, library=bool(utilities.use_aten_gemm_kernels()), offered=offered)


def _offered_by_inductor(config: Mapping[str, Any]) -> bool:
    return bool(config["kind"] != "tile")


def _not_this_cpu(chooser: Chooser) -> str | None:
    """Asked once for each model and software: of these, a program may change the instruction set."""
    software = cpu_software()
    asked = (chooser.digest, *software.values())
    found = _mismatches.get(asked)
    if found is None:
        found = chooser.mismatch(devices.local().name, software) or ""
        if not found and len(chooser.model.manifest.devices) > 1:
            found = "the model is for several devices: train one for this CPU alone"
        _mismatches[asked] = found
    return found or None


_mismatches: dict[tuple[str, ...], str] = {}


def _node() -> Any:
    """The operator that is being lowered; None where Inductor does not say."""
    virtualized = import_module("torch._inductor.virtualized")
    return getattr(getattr(virtualized.V, "graph", None), "current_node", None)


def _op_name() -> str:
    return cpu_problem.name_of(_node()) or "mm"


# -- before choices are timed ------------------------------------------------------------------------


def keep_picked(choices: list[Any]) -> list[Any]:
    """Of a list that a hook has added to: what it picked, and the library's kernel if that was to stay."""
    if active() is None:
        return choices
    try:
        picked = next((vars(choice).get(MARK) for choice in choices if MARK in vars(choice)), None)
        if picked is None:
            return settle_rendered(choices)
        extern = import_module("torch._inductor.select_algorithm").ExternKernelCaller
        kept = [choice for choice in choices if MARK in vars(choice) or (picked.library and isinstance(choice, extern))]
    except Exception as error:
        say(LEFT, error)
        return choices
    return kept or choices
