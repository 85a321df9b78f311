"""The model layout of CK Tile's heuristics: `model_<target>.lgbm(.gz)`, `feature_spec.json`, `train_manifest.json`.

Their feature names are ours (`gemm/ck_tile` declares them under the same names), so a directory trained there
can be evaluated here; forests written here read only those features, so they can be used there. An unknown name is
refused: feeding a forest the wrong column is the most frequent mistake with this layout. Rates
are TFLOPS and GB/s, log1p of them where `log_targets` says so; latency is milliseconds.
"""

from __future__ import annotations

import gzip
import re
from dataclasses import dataclass, replace
from pathlib import Path
from typing import TYPE_CHECKING, Any

import msgspec
import numpy as np

from kerncast import devices
from kerncast.arrays import Floats
from kerncast.budgets import JSON_BYTES
from kerncast.data.dataset import record_of
from kerncast.device import Device
from kerncast.errors import BadFile, InvalidValue, NotFound
from kerncast.files.atomic import file_checksum
from kerncast.files.versioned import json_text
from kerncast.learners.contract import Fitting, Output
from kerncast.learners.gbdt import Gbdt, GbdtOptions
from kerncast.learners.lightgbm_text import load_forest
from kerncast.learners.target import Target
from kerncast.models.manifest import Data, Features, Manifest
from kerncast.op import Family
from kerncast.parsing import decode_json
from kerncast.registry import FAMILIES
from kerncast.tables.feature_rows import Rows
from kerncast.tables.table import Table

if TYPE_CHECKING:
    from lightgbm import Booster

SPEC, TRAINING = "feature_spec.json", "train_manifest.json"
# op_type there → family here.
FAMILY_OF = {"gemm_universal": "gemm/ck_tile", "gemm": "gemm/ck_tile"}
OP_TYPE = {"gemm/ck_tile": "gemm_universal"}
TARGETS = ("tflops", "latency", "bandwidth")
NS_PER_MS = 1e6
# The names of features there, in the order of CK's engine, which cannot use a forest that reads others.
NAMES = (
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
# CK's name of a hardware number → kerncast's.
HARDWARE = {
    "num_cus": "num_cus", "lds_capacity": "lds_capacity_bytes", "max_clock_mhz": "max_clock_mhz",
    "simds_per_cu": "simds_per_cu", "shader_engines": "shader_engines", "max_waves_per_cu": "max_waves_per_cu",
    "wavefront_size": "wavefront_size", "l1_cache_kb": "l1_cache_kb", "l2_cache_kb": "l2_cache_kb",
    "l3_cache_kb": "l3_cache_kb", "num_xcd": "num_xcd",
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
    """The numbers that features were computed from; older files do not have them."""
    feature_encoding_version: int = 0

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


class LatencyForest(Gbdt):
    """A forest of milliseconds that predicts what kerncast's models do: the logarithm of nanoseconds."""

    def predict(self, rows: Rows) -> Output:
        return Output(np.log(self.target_.decode(super().predict(rows).target, rows)))


def read_ck(path: Path) -> tuple[Manifest, Family, Gbdt]:
    """A CK Tile model as a kerncast model that chooses by predicted TFLOPS (or by its other target)."""
    spec = _read_spec(path / SPEC)
    if spec.op_type not in FAMILY_OF:
        raise BadFile(f"{path}: op_type '{spec.op_type}' is not known here (known: {', '.join(FAMILY_OF)})")
    if spec.feature_encoding_version:
        raise BadFile(
            f"{path}: feature_encoding_version {spec.feature_encoding_version} gives the names of features another meaning; "
            "version 0 is known here"
        )
    family, device = FAMILIES.get(FAMILY_OF[spec.op_type]), _device(path, spec)
    rule = family.problem.parameters["dtype"]
    for dtype in spec.dtypes:
        if rule.index(dtype) is None:
            raise BadFile(f"{path}: dtype must be {rule.describe()}, got '{dtype}'")
    known = family.features_on(device, spec.dtypes).program.outputs
    strange = [name for name in spec.feature_names if name not in known]
    if strange:
        raise BadFile(
            f"{path}: feature '{strange[0]}' ({len(strange)} such) is not one of {family.id}, and no other can replace it"
        )
    target = next((name for name in TARGETS if _weights(path, name) is not None), None)
    if target is None:
        raise BadFile(f"{path} has no model_tflops.lgbm, model_latency.lgbm or model_bandwidth.lgbm (plain or .gz)")
    weights = _weights(path, target)
    assert weights is not None
    booster = load_forest(weights, remedy="take another model")
    _refuse_other_names(path, spec, booster)
    log = target in spec.log_targets
    learner = (LatencyForest if target == "latency" else Gbdt)(GbdtOptions(blend=0.0))
    learner.forests_, learner.names_ = {"time": [booster]}, spec.feature_names
    learner.target_ = Milliseconds(log=log) if target == "latency" else Target(target, log)
    return _manifest(path, spec, family, device, learner), family, learner


def _device(path: Path, spec: FeatureSpec) -> Device:
    """The profile of its architecture, with the numbers that its features were computed from, if the spec has them."""
    try:
        device = devices.get(spec.arch)
        told = {HARDWARE[name]: value for name, value in spec.hardware.items() if name in HARDWARE}
        return replace(device, numbers={**device.numbers, **told})
    except (NotFound, InvalidValue) as error:
        raise BadFile(f"{path}: arch {spec.arch}: {error}") from error


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
    try:
        return decode_json(JSON_BYTES.read(file), type=FeatureSpec)
    except (OSError, msgspec.DecodeError) as error:
        raise BadFile(f"{file} is not a feature spec of CK Tile's heuristics ({error})") from error


def _weights(path: Path, target: str) -> Path | None:
    return next((file for name in (f"model_{target}.lgbm", f"model_{target}.lgbm.gz") if (file := path / name).is_file()), None)


def _manifest(path: Path, spec: FeatureSpec, family: Family, device: Device, learner: Gbdt) -> Manifest:
    from kerncast.expr import Program

    outputs = family.feature_program.outputs
    digest = Program({name: outputs[name] for name in spec.feature_names}).digest
    return Manifest(
        kind="gbdt", op=family.op.name, family=family.id, devices=(record_of(device),), dtypes=spec.dtypes,
        software=(), features=Features(spec.feature_names, digest), target=learner.target_.name,
        target_log=learner.target_.log or learner.target_.name == "latency",
        options=msgspec.to_builtins(learner.options), size=learner.size(), folds=0, seed=0, split_group=family.op.split_group,
        data=Data(_training_digest(path), 0, 0, 0, 0, 0, None), hull={}, interval=None, versions={}, files={},
    )  # fmt: skip


def _training_digest(path: Path) -> str:
    return file_checksum(path / TRAINING) if (path / TRAINING).is_file() else "unknown"


def refuse_unfit(family: Family, kind: str, machines: int, targets: tuple[str, ...]) -> None:
    """Refuse what the layout cannot hold, before anything is trained."""
    if family.id not in OP_TYPE or kind != Gbdt.kind:
        raise InvalidValue(f"`format=ck` is for gbdt models of {', '.join(OP_TYPE)}, not for {kind} models of {family.id}")
    if machines > 1:
        raise InvalidValue(f"`format=ck` holds one device, the rows are of {machines}: keep one with `where` 'device=…'")
    strange = [name for name in targets if name not in TARGETS]
    if strange:
        raise InvalidValue(f"`format=ck` needs targets that its readers know ({', '.join(TARGETS)}), not {strange[0]}")


def write_ck(folder: Path, table: Table, learner: Any, fitting: Fitting, others: tuple[str, ...]) -> None:
    """Write CK's files next to kerncast's: a forest per target, the spec and the training manifest.

    The forests are grown for this layout: they read only features that CK can compute.
    """
    family, target = table.family, fitting.target
    refuse_unfit(family, learner.kind, len(table.devices), (target.name, *others))
    names = [name for name in NAMES if name in table.rows.names]
    worked = table.take(table.ok)  # failures have no time, and the layout has no forest for them
    worked = replace(worked, rows=worked.rows.only(names))
    options = msgspec.structs.replace(learner.options, blend=0.0, bags=1)
    forests, logs = {}, []
    for name in dict.fromkeys((target.name, *others)):
        wanted = Milliseconds() if name == "latency" else Target(name, target.log)
        logs += [name] if wanted.log else []
        grown = Gbdt(options).fit(worked, replace(fitting, target=wanted)).forests_["time"][0]
        # The number of threads is written into the text; it changes nothing else.
        text = re.sub(r"\[num_threads: \d+\]", "[num_threads: 0]", grown.model_to_string(num_iteration=-1))
        (folder / f"model_{name}.lgbm.gz").write_bytes(gzip.compress(text.encode(), compresslevel=6, mtime=0))
        forests[name] = grown.num_trees()
    trees, numbers = forests[target.name], table.devices[0].numbers
    spec = {
        "op_type": OP_TYPE[family.id], "dtype": ",".join(table.rows.frame["problem.dtype"].unique().sort()),
        "arch": table.devices[0].name, "feature_names": names, "categorical_features": [], "targets": list(forests),
        "log_targets": logs, "params": msgspec.to_builtins(learner.options), "feature_encoding_version": 0,
        # CK's engine reads whole numbers.
        "hardware": {name: round(numbers[ours]) for name, ours in HARDWARE.items() if ours in numbers},
    }  # fmt: skip
    training = {
        "warm_start_from": None, "prev_n_estimators": 0, "new_n_estimators": trees, "total_n_estimators": trees,
        "data_rows": len(table.time_ns), "valid_rows": int(table.ok.sum()), "unique_shapes": len(np.unique(table.group)),
    }  # fmt: skip
    for name, value in ((SPEC, spec), (TRAINING, training)):
        (folder / name).write_bytes(json_text(value))
