"""How the models of AIConfigurator's tables are made: one for each op and framework, all devices together."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, field, replace
from typing import TYPE_CHECKING, Any

from kerncast.core.io.quoting import markdown_code, markdown_text
from kerncast.regenerating.shipping.attribution import Origin
from kerncast.training.recipe import Recipe

if TYPE_CHECKING:
    from kerncast.core.progress import Progress
    from kerncast.learning.tables.table import Table
    from kerncast.models.model import Model

SERVERS = ("trtllm", "vllm", "sglang")
SMALL = "small"
"""The sample that CI rebuilds: few rows and few trees, otherwise the same recipe."""
# Times alone are learned, so no forest is grown for the order: most problems of these tables have one code path. The number of
# trees is fixed, for a search would take a second fit, and at this rate it never stops early.
TIMES = {"times_only": True, "early_stopping": False, "library_trees": 0}
SMALL_ROWS, SMALL_TREES = 4000, 40
# A version of a framework is passed over if it has a smaller share of the rows of its fullest version on a device: TensorRT-LLM
# 1.3.0rc23 has experts of three models, 1.3.0rc20 of twenty.
LEAST_SHARE = 0.5
# Whose experts are learned as medians: a part of TensorRT-LLM's ran untuned, up to nine times slower than their neighbours. On
# the H200, one fold, (shape, tp, ep) unseen, 100 trees: TensorRT-LLM's err by 12.9 % (as means 16.3), vLLM's by 7.5 % (8.2),
# SGLang's by 6.9 % (6.2).
MEDIANS = ("trtllm", "vllm")


RECURRENT = ("causal_conv", "linear_attention")


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
    where: tuple[str, ...] = ()
    """The rows to learn from; empty: all."""

    @property
    def name(self) -> str:
        """The name of its folder."""
        return f"{self.op}-{self.framework}"

    @property
    def family(self) -> str:
        return f"{self.op}/library"

    @property
    def says_misses(self) -> bool:
        """Whether its rows say how kernels miss their rooflines."""
        return True

    def recipe(self, seed: int = 0, threads: int = 0) -> Recipe:
        """The recipe that it is trained with."""
        return Recipe(knobs={**TIMES, **self.knobs}, folds=self.folds, seed=seed, threads=threads, rows=self.rows)

    def came_from(self, source: Origin, versions: str) -> str:
        """The tables that the rows are of, in Markdown."""
        only = f" Only rows with {' and '.join(map(markdown_code, self.where))}." if self.where else ""
        return (
            f"Tables: {markdown_text(source.words)}; op {markdown_code(self.op)}, framework {markdown_code(self.framework)}, "
            "of each device the newest version, passing over those with less than half the rows of its fullest one: "
            f"{markdown_text(versions)}.{only}"
        )

    def more_errors(self, model: Model, table: Table, threads: int, progress: Progress) -> Sequence[str]:
        """Lines for the card about errors on problems that are held out in other ways."""
        return ()

    def limited(self, rows: int) -> Plan:
        """The same plan with at most so many rows; 0: as it is."""
        return replace(self, rows=rows, command=f"{self.command} --rows {rows}") if 0 < rows < self.rows else self

    def smaller(self) -> Plan:
        """The same plan with a small sample of the rows and few trees."""
        few: dict[str, Any] = {
            name: min(SMALL_TREES, self.knobs[name]) for name in ("trees", "own_trees") if name in self.knobs
        }
        knobs = {**self.knobs, **few, "leaves": 31, "lr": 0.2}
        return replace(self, rows=min(SMALL_ROWS, self.rows), knobs=knobs, command=f"{self.command} --sample {SMALL}")


def medians_of(op: str, framework: str) -> dict[str, Any]:
    """The knob with which the rows of an op and a framework are learned as medians, where they are."""
    return {"medians": True} if op == "moe" and framework in MEDIANS else {}


def left_out_of(op: str, framework: str) -> tuple[str, ...]:
    """Conditions on the rows that an op and a framework are learned from, where some tables are no good."""
    if (op, framework) == ("causal_conv", "vllm"):
        # Before 0.27.0, KDA's convolution of a prompt was timed with 0.4 ms or more of work on the host, whatever its size.
        return ("kernel_source!=causal_conv1d_fn_qkv3",)
    # SGLang's one table of the A100 is of an older version and has no linear attention of prompts: its rows err by 10 and 30 %.
    return ("device!=a100",) if op in RECURRENT and framework == "sglang" else ()


def _plans() -> tuple[Plan, ...]:
    # Few enough that all models are built in an hour of one core. More trees, leaves and rows err less: on vLLM's GEMMs of the
    # H200 alone, pairs (N, K) unseen, 100 and 200 trees of 127 leaves err by 3.5 and 3.4 %, 200 of 255 leaves by 3.2 %.
    large = {"trees": 60, "own_trees": 100, "leaves": 127, "lr": 0.12}
    small = {"trees": 60, "own_trees": 80, "leaves": 63, "lr": 0.12}
    few = {"trees": 40, "own_trees": 50, "leaves": 63, "lr": 0.15}
    sizes: dict[str, tuple[Sequence[str], int, dict[str, Any]]] = {
        "gemm": (SERVERS, 300_000, large | {"own_loss": "absolute"}),
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
        **dict.fromkeys(RECURRENT, (SERVERS, 40_000, few)),
    }
    command = "kerncast regenerate shipped --only"
    return tuple(
        Plan(op, name, rows, knobs | medians_of(op, name), command=f"{command} {op}-{name}", where=left_out_of(op, name))
        for op, (names, rows, knobs) in sizes.items()
        for name in names
    )


AICONFIGURATOR = _plans()
