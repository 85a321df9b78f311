"""The model layout of CK Tile's heuristics: `model_<target>.lgbm(.gz)`, `feature_spec.json`, `train_manifest.json`.

A directory that CK's tools made is a model here, and forests that are written here read only columns that CK computes, so
they can be used there. An unknown column is refused: feeding a forest the wrong column is the most frequent mistake with this
layout. Rates are TFLOPS and GB/s, log1p of them where `log_targets` says so; latency is milliseconds.
"""

from __future__ import annotations

import hashlib
import re
from collections.abc import Mapping
from dataclasses import dataclass, replace
from pathlib import Path
from typing import TYPE_CHECKING, Any

import msgspec
import numpy as np

from kerncast.core.arrays import Floats
from kerncast.core.device import Device
from kerncast.core.expr import Program
from kerncast.core.io.artefact import file_checksum
from kerncast.core.io.foreign import guarded, read_json
from kerncast.core.op import Family
from kerncast.data.dataset import record_of
from kerncast.errors import BadFile, InvalidValue, NotFound
from kerncast.learning.feature_rows import Rows
from kerncast.learning.learners.contract import Output, Target
from kerncast.learning.learners.gbdt import Gbdt, GbdtOptions
from kerncast.learning.learners.lightgbm_text import load_forest
from kerncast.learning.learners.trees import Tree
from kerncast.library import devices
from kerncast.library.families.grouped_conv_ck_tile import COLUMNS as CONV_COLUMNS
from kerncast.library.registry import FAMILIES
from kerncast.models.manifest import Data, Features, Manifest, Range

if TYPE_CHECKING:
    from lightgbm import Booster


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
class CkLayout:
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


LAYOUTS: dict[str, CkLayout] = {
    "gemm/ck_tile": CkLayout(
        "gemm/ck_tile", "gemm_universal", dict(zip(GEMM_COLUMNS, GEMM_COLUMNS, strict=True)),
        ("layout", "pipeline", "scheduler", "epilogue"),
    ),
    **{
        f"grouped_conv_{variant}/ck_tile": CkLayout(
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


# Objectives whose forests predict the target itself; the others predict a logarithm, or log odds, of it.
PLAIN_OBJECTIVES = ("regression", "regression_l1", "huber", "fair", "quantile", "mape", "custom", "none")


class LatencyForest(Gbdt):
    """A forest of milliseconds that predicts what kerncast's models do: the logarithm of nanoseconds."""

    continues = False

    @property
    def trees(self) -> dict[str, list[tuple[Tree, ...]]]:
        """Refused: C computes forests of kerncast's own targets."""
        raise InvalidValue(
            "the only forest of this model predicts milliseconds, which exported C does not compute: use a directory that has "
            "model_tflops.lgbm or model_bandwidth.lgbm"
        )

    def predict(self, rows: Rows) -> Output:
        return Output(np.log(self.target_.decode(super().predict(rows).target, rows)))


@dataclass(frozen=True)
class CkForests:
    """The forests of a directory, by target, and what its files say of them."""

    path: Path
    spec: FeatureSpec
    layout: CkLayout
    device: Device
    """The profile of its architecture, with the numbers that its columns were computed from."""
    by_target: Mapping[str, Gbdt]

    @property
    def family(self) -> Family:
        return FAMILIES.get(self.layout.family)

    @property
    def features(self) -> tuple[str, ...]:
        """The features that the forests read, in their order, under their names here."""
        return tuple(self.layout.columns[name] for name in self.spec.feature_names)


def read_ck(path: Path) -> tuple[Manifest, Family, Gbdt, Device]:
    """A CK Tile model as a kerncast model that chooses by predicted TFLOPS (or by its other target).

    The last value is the device as its profile has it: rules about what can run hold for that, whatever the model was fed.
    """
    found = read_forests(path)
    target = next(iter(found.by_target))
    learner = found.by_target[target]
    return _manifest(found, learner), found.family, learner, devices.get(found.spec.arch)


def read_forests(path: Path) -> CkForests:
    """All forests of a directory, the one to choose by first; what does not belong together is refused by name."""
    spec = _read_spec(path / SPEC)
    layout = _layout(path, spec)
    if spec.feature_encoding_version:
        raise BadFile(
            f"{path}: feature_encoding_version {spec.feature_encoding_version} gives the names of features another meaning; "
            "version 0 is known here"
        )
    family, device = FAMILIES.get(layout.family), _device(path, spec)
    rule = family.problem.parameters["dtype"]
    for dtype in spec.dtypes:
        if rule.index(dtype) is None:
            raise BadFile(f"{path}: dtype must be {rule.describe()}, got '{dtype}'")
    strange = [name for name in spec.feature_names if name not in layout.columns]
    if strange:
        raise BadFile(
            f"{path}: feature '{strange[0]}' ({len(strange)} such) is not one of {family.id}, and no other can replace it"
        )
    if len(set(spec.feature_names)) < len(spec.feature_names):
        twice = next(name for place, name in enumerate(spec.feature_names) if name in spec.feature_names[:place])
        raise BadFile(f"{path}: {SPEC} names the feature '{twice}' twice")
    for name in spec.categorical_features:
        if name not in spec.feature_names:
            raise BadFile(f"{path}: {SPEC} lists '{name}' in categorical_features, and not in feature_names")
    forests = {name: _forest(path, spec, name, file) for name in TARGETS if (file := weights_file(path, name)) is not None}
    if not forests:
        raise BadFile(f"{path} has no model_tflops.lgbm, model_latency.lgbm or model_bandwidth.lgbm (plain or .gz)")
    return CkForests(path, spec, layout, device, forests)


def read_coverage(path: Path) -> tuple[Family, dict[str, Range]]:
    """The family of a directory and what it says that it was trained with; its forests are not read."""
    spec = _read_spec(path / SPEC)
    return FAMILIES.get(_layout(path, spec).family), _hull(spec)


def _hull(spec: FeatureSpec) -> dict[str, Range]:
    return {"dtype": Range(labels=tuple(sorted(spec.dtypes)))}


def _layout(path: Path, spec: FeatureSpec) -> CkLayout:
    """The layout of the op; CK's spec does not say which direction a convolution has, its directory's name does."""
    known = [item for item in LAYOUTS.values() if item.op_type == spec.op_type or (item.title == spec.op_type)]
    known = known or [item for item in LAYOUTS.values() if spec.op_type == "gemm" and item.op_type == "gemm_universal"]
    if not known:
        names = dict.fromkeys(item.op_type for item in LAYOUTS.values())
        raise BadFile(f"{path}: op_type '{spec.op_type}' is not known here (known: gemm, {', '.join(names)})")
    if len(known) == 1:
        return known[0]
    variants = {item.variant: item for item in known}
    if spec.variant is not None:
        if spec.variant not in variants:
            raise BadFile(f"{path}: variant must be one of {', '.join(map(str, variants))}, got '{spec.variant}'")
        return variants[spec.variant]
    named = [item for item in known if item.title in path.resolve().name]
    if len(named) != 1:
        raise BadFile(
            f"{path}: op_type {spec.op_type} does not say the direction: name the directory as CK does "
            f'({known[0].title}_bf16_gfx950), or add "variant" to {SPEC} ({", ".join(map(str, variants))})'
        )
    return named[0]


def _device(path: Path, spec: FeatureSpec) -> Device:
    """The profile of its architecture, with the numbers that its columns were computed from."""
    try:
        device = devices.get(spec.arch)
        told = {ours: float(spec.hardware.get(name, assumed)) for name, (ours, assumed) in HARDWARE.items()}
        return replace(device, numbers={**device.numbers, **told})
    except (NotFound, InvalidValue) as error:
        raise BadFile(f"{path}: arch {spec.arch}: {error}") from error


def _forest(path: Path, spec: FeatureSpec, target: str, file: Path) -> Gbdt:
    booster = load_forest(file, remedy="take another model")
    _refuse_other_names(path, spec, booster)
    objective, *details = str(booster.dump_model(num_iteration=1).get("objective", "none")).split(" ")
    if objective not in PLAIN_OBJECTIVES or "sqrt" in details:
        raise BadFile(f"{file}: its objective is {' '.join([objective, *details])}, so it does not predict {target} itself")
    options = msgspec.convert({"blend": 0.0, **_knobs(spec)}, GbdtOptions)
    learner = (LatencyForest if target == "latency" else Gbdt)(options)
    learner.forests_, learner.names_ = {"time": [booster]}, spec.feature_names
    learner.categorical_ = spec.categorical_features
    learner.target_ = target_of(target, target in spec.log_targets)
    return learner


def _knobs(spec: FeatureSpec) -> dict[str, int | float]:
    """The knobs of its `params` that have the same meaning here, for a warm start: a continued forest keeps its shape."""
    found: dict[str, int | float] = {}
    leaves, rate = spec.params.get("num_leaves"), spec.params.get("learning_rate")
    if isinstance(leaves, int | float) and leaves >= 2 and leaves == int(leaves):
        found["leaves"] = int(leaves)
    if isinstance(rate, int | float) and 0 < rate <= 1:
        found["lr"] = float(rate)
    return found


def _refuse_other_names(path: Path, spec: FeatureSpec, booster: Booster) -> None:
    """Check that the forest and the spec mean the same columns; a forest may have no feature names."""
    if booster.num_feature() != len(spec.feature_names):
        raise BadFile(
            f"{path}: the forest reads {booster.num_feature()} features, {SPEC} names {len(spec.feature_names)}: they do not "
            "belong together"
        )
    own = booster.feature_name()
    if own != list(spec.feature_names) and not all(re.fullmatch(r"Column_\d+", name) for name in own):
        place = next(number for number, pair in enumerate(zip(own, spec.feature_names, strict=True)) if pair[0] != pair[1])
        raise BadFile(
            f"{path}: feature {place} is '{own[place]}' in the forest and '{spec.feature_names[place]}' in {SPEC}: they do not "
            "belong together"
        )


def _read_spec(file: Path) -> FeatureSpec:
    with guarded(file, "take another model", "is not a feature spec of CK Tile's heuristics"):
        return read_json(file, type=FeatureSpec)


def _manifest(found: CkForests, learner: Gbdt) -> Manifest:
    family, spec = found.family, found.spec
    digest = Program(family.outputs_of(found.features)).digest
    manifest = Manifest(
        kind="gbdt", op=family.op.name, family=family.id, devices=(record_of(found.device),), dtypes=spec.dtypes,
        software=(), features=Features(found.features, digest), target=learner.target_.name,
        target_log=learner.target_.log or learner.target_.name == "latency",
        options=msgspec.to_builtins(learner.options), size=learner.size(), folds=0, seed=0, split_group=family.op.split_group,
        data=Data(_files_digest(found.path), 0, 0, 0, 0, 0, None), hull=_hull(spec),
        interval=None, versions={}, files={}, recipe={}, warm_start=(), declaration=None, facts={}, conditions={},
        contradicted=(), device_dtypes={}, device_software={}, slim="", elsewhere=None,
    )  # fmt: skip
    return manifest.sealed()


def _files_digest(path: Path) -> str:
    """A hash of the files that a model of this layout consists of: it stands for data that are not known."""
    hasher = hashlib.blake2b(digest_size=16)
    weights = [file.name for name in TARGETS if (file := weights_file(path, name)) is not None]
    for name in (SPEC, TRAINING, *weights):
        if (path / name).is_file():
            hasher.update(f"{name} {file_checksum(path / name)}\n".encode())
    return hasher.hexdigest()
