"""What the files of CK's layout hold: the columns of each op, the hardware numbers, the units of the targets."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import msgspec
import numpy as np

from kerncast.core.arrays import Floats
from kerncast.learning.learners.contract import Target
from kerncast.learning.tables.feature_rows import Rows
from kerncast.library.families.grouped_conv_ck_tile import COLUMNS as CONV_COLUMNS

SPEC, TRAINING = "feature_spec.json", "train_manifest.json"
TARGETS = ("tflops", "latency", "bandwidth")
NS_PER_MS = 1e6
# The columns of a GEMM, in the order of CK's engine; they are features here under the same names.
GEMM_COLUMNS = (
    *("M", "N", "K", "split_k", "log2_M", "log2_N", "log2_K", "log2_MNK", "arithmetic_intensity"),
    *("aspect_ratio_mn", "aspect_ratio_mk", "aspect_ratio_nk", "layout"),
    *("tile_m", "tile_n", "tile_k", "warp_m", "warp_n", "warp_k", "warp_tile_m", "warp_tile_n", "warp_tile_k"),
    *("pipeline", "scheduler", "epilogue", "pad_m", "pad_n", "pad_k", "persistent"),
    *("num_warps", "tile_volume", "tile_mn", "lds_usage_estimate", "lds_usage_ratio"),
    *("num_tiles_m", "num_tiles_n", "num_tiles_k", "total_output_tiles"),
    *("tile_eff_m", "tile_eff_n", "tile_eff_k", "overall_tile_efficiency", "cu_utilization"),
    *("ratio_M_to_tile_m", "ratio_N_to_tile_n", "ratio_K_to_tile_k"),
    *("problem_smaller_than_tile_m", "problem_smaller_than_tile_n", "problem_smaller_than_tile_k", "any_dim_too_small"),
    *("needs_padding_m", "needs_padding_n", "needs_padding_k"),
    *("has_padding_when_needed_m", "has_padding_when_needed_n", "has_padding_when_needed_k"),
    *("missing_required_padding_m", "missing_required_padding_n", "missing_required_padding_k"),
    *("missing_any_required_padding", "hw_num_cus", "hw_simds_per_cu", "hw_total_simds", "hw_shader_engines"),
    *("hw_max_clock_mhz", "hw_max_waves_per_cu", "hw_wavefront_size", "hw_lds_capacity"),
    *("hw_l1_cache_kb", "hw_l2_cache_kb", "hw_l3_cache_kb", "hw_num_xcd"),
)
# CK's name of a hardware number → kerncast's, and what CK's engine assumes if the spec does not say: files from before
# `hardware` existed were made with these numbers, whatever their architecture.
HARDWARE = {
    "num_cus": ("num_cus", 256), "lds_capacity": ("lds_capacity_bytes", 65536), "max_clock_mhz": ("max_clock_mhz", 2400),
    "simds_per_cu": ("simds_per_cu", 4), "shader_engines": ("shader_engines", 32), "max_waves_per_cu": ("max_waves_per_cu", 32),
    "wavefront_size": ("wavefront_size", 64), "l1_cache_kb": ("l1_cache_kb", 32), "l2_cache_kb": ("l2_cache_kb", 4096),
    "l3_cache_kb": ("l3_cache_kb", 262144), "num_xcd": ("num_xcd", 8),
}  # fmt: skip


@dataclass(frozen=True)
class Layout:
    """How models of one family look in CK's layout."""

    family: str
    op_type: str
    columns: Mapping[str, str]
    """CK's name of a column → the feature here, in the order of CK's engine."""
    categorical: tuple[str, ...]
    """The columns that CK's tools split by category."""
    variant: str | None = None
    """The direction of a convolution; CK's spec does not have it, its directories are named by it."""

    @property
    def title(self) -> str:
        """As CK names a directory of such models."""
        return self.op_type if self.variant is None else f"{self.op_type}_{self.variant}"


LAYOUTS: dict[str, Layout] = {
    "gemm/ck_tile": Layout(
        "gemm/ck_tile", "gemm_universal", dict(zip(GEMM_COLUMNS, GEMM_COLUMNS, strict=True)),
        ("layout", "pipeline", "scheduler", "epilogue"),
    ),
    **{
        f"grouped_conv_{variant}/ck_tile": Layout(
            f"grouped_conv_{variant}/ck_tile", "grouped_conv", CONV_COLUMNS, ("pipeline",), variant
        )
        for variant in ("forward", "bwd_data", "bwd_weight")
    },
}  # fmt: skip


class FeatureSpec(msgspec.Struct, frozen=True):
    """`feature_spec.json`; other keys are ignored."""

    op_type: str
    dtype: str
    arch: str
    feature_names: tuple[str, ...]
    targets: tuple[str, ...] = ("tflops",)
    log_targets: tuple[str, ...] = ()
    categorical_features: tuple[str, ...] = ()
    hardware: dict[str, float] = {}
    """The numbers that columns were computed from; older files do not have them."""
    feature_encoding_version: int = 0
    variant: str | None = None
    params: dict[str, Any] = {}

    @property
    def dtypes(self) -> tuple[str, ...]:
        """One dtype in CK's files; a model trained here on several lists all of them."""
        return tuple(self.dtype.split(","))


@dataclass(frozen=True)
class Milliseconds(Target):
    """Latency in that layout: milliseconds, or log1p of them if the spec says so."""

    name: str = "latency"
    log: bool = False

    def encode(self, time_ns: Floats, rows: Rows) -> Floats:
        time_ms = time_ns / NS_PER_MS
        return np.log1p(time_ms) if self.log else time_ms

    def decode(self, predicted: Floats, rows: Rows) -> Floats:
        time_ms = np.expm1(predicted) if self.log else predicted
        return np.maximum(time_ms * NS_PER_MS, 1e-3)  # no time is shorter than a picosecond, as elsewhere


def target_of(name: str, log: bool) -> Target:
    """A target in the units of this layout."""
    return Milliseconds(log=log) if name == "latency" else Target(name, log)


def weights_file(path: Path, target: str) -> Path | None:
    """The forest of a target, plain or compressed; None if there is none."""
    return next((file for name in (f"model_{target}.lgbm", f"model_{target}.lgbm.gz") if (file := path / name).is_file()), None)
