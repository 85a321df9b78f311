"""Which models are shipped: one for each op and framework, pooled over devices, each with its newest version."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, field, replace
from typing import Any

from kerncast.errors import NotFound
from kerncast.training.recipe import Recipe

SERVERS = ("trtllm", "vllm", "sglang")
SMALL = "small"
"""The sample that CI rebuilds: few rows and few trees, otherwise the same recipe."""
# Times alone are learned, so no forest is grown for the order: most problems of these tables have one code path. The number of
# trees is fixed, for a search would take a second fit, and at this rate it never stops early.
TIMES = {"times_only": True, "early_stopping": False, "library_trees": 0}
SMALL_ROWS, SMALL_TREES = 4000, 60


@dataclass(frozen=True)
class Plan:
    """How one shipped model is made."""

    op: str
    framework: str
    rows: int
    """At most this many are learned from, as evenly over devices as they go."""
    knobs: dict[str, Any] = field(default_factory=dict)
    folds: int = 2
    command: str = ""
    """What builds it again."""

    @property
    def name(self) -> str:
        """The name of its folder."""
        return f"{self.op}-{self.framework}"

    @property
    def family(self) -> str:
        return f"{self.op}/library"

    def recipe(self, seed: int = 0, threads: int = 0) -> Recipe:
        """The recipe that it is trained with."""
        return Recipe(knobs={**TIMES, **self.knobs}, folds=self.folds, seed=seed, threads=threads, rows=self.rows)

    def limited(self, rows: int) -> Plan:
        """The same plan with at most so many rows; 0: as it is."""
        return replace(self, rows=rows, command=f"{self.command} --rows {rows}") if 0 < rows < self.rows else self

    def smaller(self) -> Plan:
        """The same plan with a small sample of the rows and few trees."""
        knobs = {**self.knobs, "trees": min(SMALL_TREES, self.knobs["trees"]), "leaves": 31, "lr": 0.2}
        return replace(self, rows=min(SMALL_ROWS, self.rows), knobs=knobs, command=f"{self.command} --sample {SMALL}")


def _plans() -> tuple[Plan, ...]:
    large = {"trees": 300, "leaves": 127, "lr": 0.1}
    small = {"trees": 250, "leaves": 63, "lr": 0.1}
    sizes: dict[str, tuple[Sequence[str], int, dict[str, Any]]] = {
        "gemm": (SERVERS, 150_000, large),
        "mixed_mm": (("trtllm",), 60_000, small),
        "attention_context": (SERVERS, 120_000, large),
        "attention_generation": (SERVERS, 120_000, large),
        "moe": (SERVERS, 120_000, large),
        "attention_encoder": (SERVERS, 60_000, small),
        "mla_context": (("trtllm", "sglang"), 40_000, small),
        "mla_generation": (("trtllm", "sglang"), 40_000, small),
        "mla_bmm": (SERVERS, 40_000, small),
        "collective": (("nccl", *SERVERS), 40_000, small),
        "quantize": (SERVERS, 40_000, small),
    }
    command = "kerncast regenerate shipped --only"
    return tuple(
        Plan(op, name, rows, knobs, command=f"{command} {op}-{name}")
        for op, (names, rows, knobs) in sizes.items()
        for name in names
    )


PLANS = _plans()


def plans_named(names: Sequence[str] = ()) -> list[Plan]:
    """The plans of some models or ops, in their own order; all, if none is named."""
    known = [plan.name for plan in PLANS]
    for name in names:
        if not any(name in (plan.name, plan.op) for plan in PLANS):
            raise NotFound.named("shipped model", name, [*known, *dict.fromkeys(plan.op for plan in PLANS)])
    return [plan for plan in PLANS if not names or plan.name in names or plan.op in names]
