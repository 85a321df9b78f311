"""Where Inductor is asked to choose: its C++ template, its Triton templates, and the list of choices before they are timed.

The hooks are put in place once and stay. Without an active factory each of them calls what it stands before, and nothing else.
An exception of ours means stock behaviour and one line in the log, never a failed compilation.
"""

from __future__ import annotations

import threading
import time
from collections.abc import Callable, Mapping, Sequence
from contextvars import ContextVar
from dataclasses import replace
from functools import cache, cached_property, wraps
from importlib import import_module
from pathlib import Path
from typing import Any

from kerncast.core.device import Device
from kerncast.errors import InvalidValue, NotFound
from kerncast.library import devices
from kerncast.measuring.backends.inductor.build import cpu_software, inductor, key_of, missing, template_class
from kerncast.models.model import Model
from kerncast.torch.chooser import ChoicePolicy, Chooser, Picked
from kerncast.torch.describing import flex_asked, name_of, problem_of
from kerncast.torch.observing import software
from kerncast.torch.reporting import ABSTAINED, Decision, note, say
from kerncast.torch.triton_choosing import NOTHING_OFFERED, exhaustively, prune, prune_flex, settle, widened
from kerncast.torch_entry import turned_off
from kerncast.version import __version__

SETTING = "inductor_choices_class"
CPU_FAMILY, GEMM, FLEX = "gemm/inductor_cpp", "gemm/triton", "flex_attention/triton"
# Products with a bias, of matrices and of batches of them: three operands.
BIASED, WITH_BIAS = ("addmm", "baddbmm"), 3
LEFT = "kerncast left a choice to Inductor"
MARK = "kerncast_picked"
_installing = threading.Lock()
_without_setting: ContextVar[Factory | None] = ContextVar("kerncast_factory", default=None)
"""What is active with a torch that has no such setting (before 2.10)."""


class Factory:
    """Makes Inductor's choices handler. While it is the setting, its models choose."""

    def __init__(self, models: Sequence[Model], policy: ChoicePolicy, parent: Any = None) -> None:
        """`parent` makes the handler that would be used otherwise: it stays in charge of everything else. Without models
        nothing is chosen."""
        families = [model.family.id for model in models]
        twice = {family for family in families if families.count(family) > 1}
        if twice:
            raise InvalidValue(
                f"one model chooses for a family, and {families.count(min(twice))} of {min(twice)} were given: leave one out"
            )
        self.policy, self.parent = policy, parent
        self.choosers: Mapping[str, Chooser] = {model.family.id: Chooser(model, policy) for model in models}

    @cached_property
    def identity(self) -> str:
        """What makes two compilations differ: versions, models, policy and the handler below."""
        models = "+".join(f"{name}:{chooser.digest}" for name, chooser in sorted(self.choosers.items()))
        below = getattr(self._below(), "uuid", str)
        return f"kerncast-{__version__}:{models}:{below()}"

    def uuid(self) -> str:
        """The key for Inductor's caches; while choosing is turned off, that of the kernels without it."""
        return self.identity + (":off" if turned_off() else "")

    def _below(self) -> Any:
        return self.parent() if self.parent is not None else import_module("torch._inductor.choices").InductorChoices()

    def __call__(self) -> Any:
        """The handler below with our key. It keeps its class's methods and its state; the hooks choose for every handler."""
        handler, factory = self._below(), self
        base: Any = type(handler)

        class KerncastChoices(base):  # type: ignore[misc]
            def uuid(self) -> str:
                return factory.uuid()

        handler.__class__ = KerncastChoices
        return handler

    def __deepcopy__(self, memo: Any) -> Factory:
        # Inductor copies its settings; the factory is compared by identity.
        return self

    def __reduce__(self) -> Any:
        return _again, (tuple(str(c.model.path) for c in self.choosers.values()), self.policy, self.parent)

    def __repr__(self) -> str:
        return f"kerncast.torch.choices({self.identity})"


def _again(paths: Sequence[str], policy: ChoicePolicy, parent: Any) -> Factory:
    """The same factory in another process."""
    return Factory([Model.load(Path(path)) for path in paths], policy, parent)


def has_setting() -> bool:
    """Whether this torch has `config.inductor_choices_class`."""
    return hasattr(import_module("torch._inductor.config"), SETTING)


def keys_caches() -> bool:
    """Whether this torch keys its caches by the setting; otherwise they must be off while a model chooses."""
    return SETTING in getattr(import_module("torch._inductor.config"), "_cache_config_factory_keys", ())


def active() -> Factory | None:
    """The factory whose models choose here: in this thread, in this compilation."""
    if turned_off():
        return None
    found = getattr(import_module("torch._inductor.config"), SETTING, None) if has_setting() else _without_setting.get()
    return found if isinstance(found, Factory) else None


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
    handler, why_not = import_module("torch._inductor.choices").InductorChoices, missing()
    selecting.add_preprocessing_fn(keep_picked)
    _before_triton_templates(handler)
    if why_not is None:
        _before_cpp_template(inductor().CppGemmTemplate)
    else:
        say("kernels for CPUs are not chosen", why_not)


# -- C++ templates -------------------------------------------------------------------------------------


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
            picked = _pick_for_cpu(factory.choosers[CPU_FAMILY], layout, input_nodes, options)
            decision = replace(picked.decision, seconds=time.perf_counter() - began)
            if picked.decision.status != ABSTAINED:
                for config in picked.configs:
                    if config["kind"] == "default":
                        own(cls, choices, layout, input_nodes, **options)
                    else:
                        tile = template_class(key_of(config))
                        tile.add_choices(choices, layout, input_nodes, **options)
                if picked.configs and len(choices) == before:
                    raise RuntimeError("the template rendered none of the chosen configs")
                for choice in choices[before:]:
                    setattr(choice, MARK, picked)
            note(decision)
            if decision.status != ABSTAINED:
                return None
        except Exception as error:
            del choices[before:]
            say(LEFT, error)
        return own(cls, choices, layout, input_nodes, **options)

    template.add_choices = classmethod(add_choices)


def _pick_for_cpu(chooser: Chooser, layout: Any, nodes: Any, options: dict[str, Any]) -> Picked:
    """What the model says about a product that the C++ template could compute."""
    # The operator that is being lowered; None where Inductor does not say.
    node = getattr(getattr(import_module("torch._inductor.virtualized").V, "graph", None), "current_node", None)
    name = name_of(node) or "mm"
    why_not = _not_this_cpu(chooser)
    if why_not is not None:
        return Picked(chooser.abstention(name, why_not))
    utilities = import_module("torch._inductor.utils")
    problem = problem_of(layout, nodes, int(utilities.parallel_num_threads()), node, **options)
    if isinstance(problem, str):
        return Picked(chooser.abstention(name, problem))
    return chooser.decide(name, problem, library=bool(utilities.use_aten_gemm_kernels()))


def _not_this_cpu(chooser: Chooser) -> str | None:
    """Asked each time: a program may change the instruction set while it runs."""
    why_not = chooser.mismatch(devices.local().name, cpu_software())
    if why_not is None and len(chooser.model.manifest.devices) > 1:
        return "the model is for several devices: train one for this CPU alone"
    return why_not


# -- Triton templates: the model ranks them before their code is rendered --------------------------------


def _before_triton_templates(handler: Any) -> None:
    """Put the hooks before the methods of Inductor's choices handler, those of its subclasses that call them included."""
    _before(handler, "_finalize_template_configs", GEMM, _kept_products)
    _before(handler, "get_flex_attention_fwd_configs", FLEX, _kept_flex)


def _before(handler: Any, name: str, family: str, keep: Callable[..., tuple[list[Any], Decision]]) -> None:
    """Let `keep` decide what is left of what a method lists; without a model of the family, everything is."""
    if not hasattr(handler, name):
        return
    own = getattr(handler, name)

    @wraps(own)
    def listed(self: Any, *arguments: Any, **named: Any) -> Any:
        stock = own(self, *arguments, **named)
        try:
            chooser = _gpu_chooser(family)
            if chooser is None or not stock:
                return stock

            def again() -> list[Any]:
                return list(own(self, *arguments, **named))

            kept, decision = keep(chooser, self, stock, again, *arguments, **named)
            # With a bias, the library's kernels are listed apart: what is left of both is said when all are rendered.
            later = decision.op in BIASED and decision.status != ABSTAINED
            if not later and decision.reason != NOTHING_OFFERED:
                note(decision)
            return kept
        except Exception as error:
            say(LEFT, error)
            return stock

    setattr(handler, name, listed)


def _kept_products(
    chooser: Chooser, handler: Any, stock: list[Any], again: Callable[[], list[Any]], template_choices: Any,
    kernel_inputs: Any, templates: Any, op_name: str, *rest: Any, **named: Any,
) -> tuple[list[Any], Decision]:  # fmt: skip
    overrides = rest[0] if rest else named.get("kwarg_overrides")
    more = widened(handler, kernel_inputs, templates, op_name, overrides) if chooser.policy.widen else ()
    return prune(chooser, stock, kernel_inputs, op_name, more, _gpu_of(chooser))


def _kept_flex(
    chooser: Chooser, handler: Any, stock: list[Any], again: Callable[[], list[Any]], *_: Any, **__: Any
) -> tuple[list[Any], Decision]:
    problem, blocks = flex_asked()
    more = exhaustively(again) if chooser.policy.widen else ()
    return prune_flex(chooser, stock, problem, blocks, more, _gpu_of(chooser))


def settle_rendered(choices: list[Any]) -> list[Any]:
    """Of rendered choices of a product with a bias, whose ATen kernels Inductor lists apart, what the model leaves of all."""
    chooser = _gpu_chooser(GEMM, said=True)
    if chooser is None or not choices or len(getattr(choices[0], "input_nodes", ())) != WITH_BIAS:
        return choices
    settled = settle(chooser, choices, BIASED[len(choices[0].layout.size) - 2], _gpu_of(chooser))
    if settled is None or not settled[0] or settled[1].status == ABSTAINED:
        return choices
    note(settled[1])
    return settled[0]


def _gpu_chooser(family: str, said: bool = False) -> Chooser | None:
    """The active model of a family, if it is for the GPU of this machine; if not, that is reported unless it was `said`."""
    factory = active()
    chooser = None if factory is None else factory.choosers.get(family)
    if chooser is None:
        return None
    why_not = chooser.mismatch(*local_gpu())
    if why_not is not None and not said:
        note(chooser.abstention(family, why_not))
    return chooser if why_not is None else None


def _gpu_of(chooser: Chooser) -> Device:
    """The GPU of this machine, as the model knows it."""
    name = local_gpu()[0]
    return next(record.device for record in chooser.model.manifest.devices if record.name == name)


@cache
def local_gpu() -> tuple[str, dict[str, str]]:
    """The name of the GPU, as models have it, and the versions that its kernels depend on."""
    torch = import_module("torch")
    title = torch.cuda.get_device_name(0) if torch.cuda.is_available() else "no GPU"
    known = devices.named(title)
    return (title if known is None else known.name), software("cuda")


# -- before choices are timed --------------------------------------------------------------------------


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
