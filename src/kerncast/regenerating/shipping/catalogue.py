"""Which models are shipped."""

from __future__ import annotations

from collections.abc import Sequence

from kerncast.errors import NotFound
from kerncast.regenerating.shipping.plans import AICONFIGURATOR, Plan
from kerncast.regenerating.shipping.wormhole import WORMHOLE

PLANS: tuple[Plan, ...] = (*AICONFIGURATOR, *WORMHOLE)


def plans_named(names: Sequence[str] = ()) -> list[Plan]:
    """The plans of some models or ops, in their own order; all, if none is named."""
    known = [plan.name for plan in PLANS]
    for name in names:
        if not any(name in (plan.name, plan.op) for plan in PLANS):
            raise NotFound.named("shipped model", name, [*known, *dict.fromkeys(plan.op for plan in PLANS)])
    return [plan for plan in PLANS if not names or plan.name in names or plan.op in names]
