"""The model layout of CK Tile's heuristics: `model_<target>.lgbm(.gz)`, `feature_spec.json`, `train_manifest.json`.

Their feature names are ours (`gemm/ck_tile` declares them under the same names), so a directory trained there
can be evaluated here, and one trained here can be read there. A name that is not known is refused: feeding a
forest the wrong column is the mistake that this layout has suffered from most.
"""

from __future__ import annotations

import gzip
from pathlib import Path
from typing import TYPE_CHECKING, Any

import msgspec
import numpy as np

from kerncast import devices
from kerncast.data.dataset import record_of
from kerncast.errors import BadFile, InvalidValue, NotFound
from kerncast.models.contract import Fitting
from kerncast.models.gbdt import Gbdt, GbdtOptions
from kerncast.models.manifest import Data, Features, Manifest
from kerncast.models.table import Table
from kerncast.models.target import Target
from kerncast.op import Family
from kerncast.registry import FAMILIES

if TYPE_CHECKING:
    from lightgbm import Booster

SPEC, TRAINING = "feature_spec.json", "train_manifest.json"
# op_type there → family here.
FAMILY_OF = {"gemm_universal": "gemm/ck_tile", "gemm": "gemm/ck_tile"}
OP_TYPE = {"gemm/ck_tile": "gemm_universal"}
TARGETS = ("tflops", "latency", "bandwidth")


class FeatureSpec(msgspec.Struct, frozen=True):
    """`feature_spec.json`; keys that it does not need may be there too."""

    op_type: str
    dtype: str
    arch: str
    feature_names: tuple[str, ...]
    targets: tuple[str, ...] = ("tflops",)
    log_targets: tuple[str, ...] = ()
    categorical_features: tuple[str, ...] = ()


def read_ck(path: Path) -> tuple[Manifest, Family, Gbdt]:
    """A CK Tile model as one of ours that chooses by predicted TFLOPS (or by what else it was trained for)."""
    spec = _read_spec(path / SPEC)
    if spec.op_type not in FAMILY_OF:
        raise BadFile(f"{path}: op_type '{spec.op_type}' is not known here (known: {', '.join(FAMILY_OF)})")
    family = FAMILIES.get(FAMILY_OF[spec.op_type])
    try:
        device = devices.get(spec.arch)
    except NotFound as error:
        raise BadFile(f"{path}: arch {spec.arch}: {error}") from error
    known = family.features_on(device, [spec.dtype]).program.outputs
    strange = [name for name in spec.feature_names if name not in known]
    if strange:
        raise BadFile(
            f"{path}: feature '{strange[0]}' ({len(strange)} such) is none of {family.id}'s: nothing else can stand in for it"
        )
    target = next((name for name in TARGETS if _weights(path, name) is not None), None)
    if target is None:
        raise BadFile(f"{path} has no model_tflops.lgbm, model_latency.lgbm or model_bandwidth.lgbm (plain or .gz)")
    booster = _booster(path, target)
    if booster.num_feature() != len(spec.feature_names):
        raise BadFile(
            f"{path}: the forest reads {booster.num_feature()} features, {SPEC} names {len(spec.feature_names)}: they do not "
            "belong together"
        )
    learner = Gbdt(GbdtOptions(blend=0.0))
    learner.forests_, learner.names_ = {"time": [booster]}, spec.feature_names
    learner.target_ = Target(target, target in spec.log_targets)
    return _manifest(path, spec, family, target, learner), family, learner


def _read_spec(file: Path) -> FeatureSpec:
    try:
        return msgspec.json.decode(file.read_bytes(), type=FeatureSpec)
    except (OSError, msgspec.DecodeError, RecursionError) as error:
        raise BadFile(f"{file} is not a feature spec of CK Tile's heuristics ({error})") from error


def _weights(path: Path, target: str) -> Path | None:
    return next((file for name in (f"model_{target}.lgbm", f"model_{target}.lgbm.gz") if (file := path / name).is_file()), None)


def _booster(path: Path, target: str) -> Booster:
    from lightgbm import Booster
    from lightgbm.basic import LightGBMError

    file = _weights(path, target)
    assert file is not None
    try:
        data = file.read_bytes()
        return Booster(model_str=(gzip.decompress(data) if file.suffix == ".gz" else data).decode())
    except (OSError, EOFError, UnicodeDecodeError, LightGBMError) as error:
        raise BadFile(f"{file} is damaged ({error}): restore it") from error


def _manifest(path: Path, spec: FeatureSpec, family: Family, target: str, learner: Gbdt) -> Manifest:
    from kerncast.expr import Program

    outputs = family.feature_program.outputs
    digest = Program({name: outputs[name] for name in spec.feature_names}).digest
    return Manifest(
        kind="gbdt", op=family.op.name, family=family.id, devices=(record_of(devices.get(spec.arch)),), dtypes=(spec.dtype,),
        software=(), features=Features(spec.feature_names, digest), target=target, target_log=target in spec.log_targets,
        options=msgspec.to_builtins(learner.options), size=learner.size(), folds=0, seed=0, split_group=family.op.split_group,
        data=Data(_training_digest(path), 0, 0, 0, 0, 0, None), hull={}, interval=None, versions={}, files={},
    )  # fmt: skip


def _training_digest(path: Path) -> str:
    from kerncast.data.dataset import file_checksum

    return file_checksum(path / TRAINING) if (path / TRAINING).is_file() else "unknown"


def write_ck(folder: Path, table: Table, learner: Any, fitting: Fitting, others: tuple[str, ...]) -> None:
    """The three files beside ours: the primary forest, one more per other target, the spec and what was trained on."""
    family = table.family
    if family.id not in OP_TYPE or not isinstance(learner, Gbdt):
        raise InvalidValue(f"--format ck is for gbdt models of {', '.join(OP_TYPE)}, not for {family.id}")
    target = fitting.target
    if target.name not in TARGETS:
        raise InvalidValue(f"--format ck needs a target that its readers know ({', '.join(TARGETS)}), not {target.name}")
    # Their layout holds one forest: one of a single bag, grown on the same rows.
    forests = {}
    for name in (target.name, *others):
        extra = Fitting(Target(name, target.log), fitting.seed, fitting.threads, fitting.step)
        options = msgspec.structs.replace(learner.options, blend=0.0, bags=1)
        forests[name] = Gbdt(options).fit(table, extra).forests_["time"][0]
    for name, forest in forests.items():
        text = forest.model_to_string(num_iteration=-1)
        (folder / f"model_{name}.lgbm.gz").write_bytes(gzip.compress(text.encode(), compresslevel=6, mtime=0))
    trees = forests[target.name].num_trees()
    dtypes = table.rows.frame["problem.dtype"].unique().sort().to_list()
    spec = {
        "op_type": OP_TYPE[family.id], "dtype": ",".join(dtypes), "arch": table.devices[0].name,
        "feature_names": list(table.rows.names), "categorical_features": [], "targets": list(forests),
        "log_targets": list(forests) if target.log else [], "params": msgspec.to_builtins(learner.options),
    }  # fmt: skip
    training = {
        "warm_start_from": None, "prev_n_estimators": 0, "new_n_estimators": trees, "total_n_estimators": trees,
        "data_rows": len(table.time_ns), "valid_rows": int(table.ok.sum()), "unique_shapes": len(np.unique(table.group)),
    }  # fmt: skip
    for name, value in ((SPEC, spec), (TRAINING, training)):
        (folder / name).write_bytes(msgspec.json.format(msgspec.json.encode(value), indent=2) + b"\n")
