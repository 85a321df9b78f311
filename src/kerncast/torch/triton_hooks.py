"""Where Inductor lists its Triton templates: the model ranks them before their code is rendered."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from functools import cache, wraps
from importlib import import_module
from typing import Any

from kerncast.library import devices
from kerncast.torch import decisions
from kerncast.torch.chooser import Chooser
from kerncast.torch.decisions import Decision
from kerncast.torch.factory import active
from kerncast.torch.flex_asking import flex_asked
from kerncast.torch.observed_software import software
from kerncast.torch.saying import say
from kerncast.torch.triton_choosing import NOTHING_OFFERED, Ask, exhaustively, prune, prune_flex, settle, widened

GEMM, FLEX = "gemm/triton", "flex_attention/triton"
# Products with a bias, of matrices and of batches of them: three operands.
BIASED, WITH_BIAS = ("addmm", "baddbmm"), 3
LEFT = "kerncast left a choice to Inductor"


def before_templates(handler: Any) -> None:
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
            chooser = _chooser(family)
            if chooser is None or not stock:
                return stock

            def again() -> list[Any]:
                return list(own(self, *arguments, **named))

            kept, decision = keep(_Listed(self, stock, again), chooser, *arguments, **named)
            if not _is_said_later(decision):
                decisions.note(decision)
            return kept
        except Exception as error:
            say(LEFT, error)
            return stock

    setattr(handler, name, listed)


@dataclass(frozen=True)
class _Listed:
    """What a method of Inductor's handler has listed, and a way to ask it again."""

    handler: Any
    stock: list[Any]
    again: Callable[[], list[Any]]


def _is_said_later(decision: Decision) -> bool:
    """With a bias, the library's kernels are listed apart: what is left of both is said when all are rendered."""
    if decision.reason == NOTHING_OFFERED:
        return True
    return decision.op in BIASED and decision.status != decisions.ABSTAINED


def _kept_products(
    found: _Listed,
    chooser: Chooser,
    template_choices: Any,
    kernel_inputs: Any,
    templates: Any,
    op_name: str,
    *rest: Any,
    **named: Any,
) -> tuple[list[Any], Decision]:
    overrides = rest[0] if rest else named.get("kwarg_overrides")
    more = widened(found.handler, kernel_inputs, templates, op_name, overrides) if chooser.policy.widen else ()
    return prune(_ask(chooser), found.stock, kernel_inputs, op_name, more)


def _kept_flex(found: _Listed, chooser: Chooser, *_: Any, **__: Any) -> tuple[list[Any], Decision]:
    problem, blocks = flex_asked()
    more = exhaustively(found.again) if chooser.policy.widen else ()
    return prune_flex(_ask(chooser), found.stock, problem, blocks, more)


def settle_rendered(choices: list[Any]) -> list[Any]:
    """Of rendered choices of a product with a bias, whose ATen kernels Inductor lists apart, what the model leaves of all."""
    chooser = _chooser(GEMM, said=True)
    if chooser is None or not choices or len(getattr(choices[0], "input_nodes", ())) != WITH_BIAS:
        return choices
    found = settle(_ask(chooser), choices, BIASED[len(choices[0].layout.size) - 2])
    if found is None or not found[0] or found[1].status == decisions.ABSTAINED:
        return choices
    decisions.note(found[1])
    return found[0]


def _ask(chooser: Chooser) -> Ask:
    return Ask(chooser.model, chooser.policy.top_k, chooser.confidence, chooser.device(local_gpu()[0]))


def _chooser(family: str, said: bool = False) -> Chooser | None:
    """The active model of a family, if it is for the GPU of this machine; if not, that is reported unless it was `said`."""
    factory = active()
    chooser = None if factory is None else factory.choosers.get(family)
    if chooser is None:
        return None
    why_not = chooser.mismatch(*local_gpu())
    if why_not is not None and not said:
        decisions.note(chooser.abstention(family, why_not))
    return chooser if why_not is None else None


@cache
def local_gpu() -> tuple[str, dict[str, str]]:
    """The name of the GPU, as models have it, and the versions that its kernels depend on."""
    torch = import_module("torch")
    title = torch.cuda.get_device_name(0) if torch.cuda.is_available() else "no GPU"
    known = devices.named(title)
    return (title if known is None else known.name), software("cuda")
