"""Where Inductor lists its Triton templates: the model ranks them before their code is rendered."""

from __future__ import annotations

from functools import cache, wraps
from importlib import import_module
from typing import Any

from kerncast import devices
from kerncast.inductor import decisions
from kerncast.inductor.chooser import Chooser
from kerncast.inductor.factory import active
from kerncast.inductor.flex_asking import flex_asked
from kerncast.inductor.observed_software import software
from kerncast.inductor.saying import say
from kerncast.inductor.triton_choosing import NOTHING_OFFERED, Ask, exhaustively, prune, prune_flex, settle, widened

GEMM, FLEX = "gemm/triton", "flex_attention/triton"
# Products with a bias, of matrices and of batches of them: three operands.
BIASED, WITH_BIAS = ("addmm", "baddbmm"), 3
LEFT = "kerncast left a choice to Inductor"


def before_templates(handler: Any) -> None:
    """Put the hooks before the methods of Inductor's choices handler, those of its subclasses that call them included."""
    if hasattr(handler, "_finalize_template_configs"):
        _before_products(handler)
    if hasattr(handler, "get_flex_attention_fwd_configs"):
        _before_flex(handler)


def _before_products(handler: Any) -> None:
    own = handler._finalize_template_configs

    @wraps(own)
    def finalize(
        self: Any, template_choices: Any, kernel_inputs: Any, templates: Any, op_name: str, *rest: Any, **named: Any
    ) -> Any:
        stock = own(self, template_choices, kernel_inputs, templates, op_name, *rest, **named)
        try:
            chooser = _chooser(GEMM)
            if chooser is None or not stock:
                return stock
            overrides = rest[0] if rest else named.get("kwarg_overrides")
            more = widened(self, kernel_inputs, templates, op_name, overrides) if chooser.policy.widen else ()
            kept, decision = prune(_ask(chooser), stock, kernel_inputs, op_name, more)
            # With a bias, the library's kernels are listed apart: what is left of both is said when all are rendered.
            if decision.reason != NOTHING_OFFERED and (op_name not in BIASED or decision.status == decisions.ABSTAINED):
                decisions.note(decision)
            return kept
        except Exception as error:
            say(LEFT, error)
            return stock

    handler._finalize_template_configs = finalize


def _before_flex(handler: Any) -> None:
    own = handler.get_flex_attention_fwd_configs

    @wraps(own)
    def configs(self: Any, *arguments: Any, **named: Any) -> Any:
        stock = own(self, *arguments, **named)
        try:
            chooser = _chooser(FLEX)
            if chooser is None or not stock:
                return stock
            problem, blocks = flex_asked()
            more = exhaustively(lambda: list(own(self, *arguments, **named))) if chooser.policy.widen else ()
            kept, decision = prune_flex(_ask(chooser), stock, problem, blocks, more)
            decisions.note(decision)
            return kept
        except Exception as error:
            say(LEFT, error)
            return stock

    handler.get_flex_attention_fwd_configs = configs


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
    return Ask(chooser.model, chooser.policy.top_k, chooser.confidence.sure, chooser.device(local_gpu()[0]))


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
