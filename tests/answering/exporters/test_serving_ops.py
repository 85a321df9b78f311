"""Ops of language models through the exporter's battery: loads that follow a power law, windows, several code paths."""

from __future__ import annotations

import numpy as np
import polars as pl

from kerncast.data import schema
from kerncast.library.registry import FAMILIES
from kerncast.testing import repeats
from kerncast.testing.exporters import ExporterContract
from kerncast.testing.models import synthetic_dataset

SHAPES = {
    "moe": {
        "hidden": (1024, 7168), "inter": (768, 2048), "experts": (64,), "ep": (1, 8), "imbalance": (0, 101, 120),
        "tokens": (1, 5, 64, 8192), "top_k": (8,), "tp": (1,), "dtype": ("w4a16_mxfp4",),
    },
    "attention_context": {
        "batch": (1, 3, 32), "seq_len": (1, 100, 5000), "past_len": (0, 77), "heads": (8, 32), "kv_heads": (8,),
        "head_dim": (128,), "window": (0, 128), "dtype": ("bf16",), "kv_dtype": ("fp8",),
    },
}  # fmt: skip
SOURCES = {"moe": ("deepgemm", "vllm_fused_moe"), "attention_context": ("fa3", "triton")}


def rows_of(op: str) -> pl.DataFrame:
    """Every combination of sizes by both code paths, in about the time of a roofline; the second one starts faster."""
    family = FAMILIES.get(f"{op}/library")
    rows = pl.DataFrame({"config.kernel_source": SOURCES[op]}).with_columns(
        device=pl.lit("h100"), status=pl.lit("ok"), time_ns=pl.lit(1.0)
    )
    for name, values in SHAPES[op].items():
        rows = rows.join(pl.DataFrame({f"problem.{name}": values}), how="cross")
    work = family.work_program.frame(schema.symbol_columns(family, schema.conform(family, rows)), trusted=True)
    first = (rows["config.kernel_source"] == SOURCES[op][0]).to_numpy()
    ideal = np.maximum(work["flops"].to_numpy() / 9e5, work["bytes"].to_numpy() / 3000)
    noise = np.random.default_rng(0).normal(0, 0.02, rows.height)
    time_ns = np.where(first, 9000 + 1.2 * ideal, 4000 + 1.7 * ideal) * np.exp(noise)
    return rows.with_columns(time_ns=time_ns)


class ServingOp(ExporterContract):
    """What does not depend on the names of a product's sizes."""

    kind = "gbdt"
    knobs = {"trees": 15, "leaves": 15, "lr": 0.2}
    random_problems = repeats(500, 20_000)
    op = ""
    test_masks_and_pins_are_honoured_in_every_tier_as_in_python = None
    test_the_cpp_header_answers_with_typed_problems_and_configs = None
    test_threads_with_a_context_each_do_not_disturb_each_other = None
    test_a_header_of_another_export_and_damaged_tables_are_refused = None
    test_a_tree_alone_answers_as_in_python = None
    test_the_quick_tiers_are_those_of_python = None

    @classmethod
    def dataset(cls, path):
        return synthetic_dataset(path, rows_of(cls.op), FAMILIES.get(f"{cls.op}/library"))


class TestMoe(ServingOp):
    op = "moe"
    test_a_blob_gives_the_same_answers_bit_for_bit = None


class TestAttentionContext(ServingOp):
    op = "attention_context"
    test_the_self_test_passes_without_warnings_and_under_sanitizers = None
