"""Model directories as CK Tile's own tools write them."""

import gzip
import json
from types import SimpleNamespace

import lightgbm
import numpy as np
import polars as pl
import pytest

from kerncast.data import Dataset, schema
from kerncast.learning.feature_rows import Featurizer
from kerncast.library import devices
from kerncast.library.registry import FAMILIES
from kerncast.models.ck import LAYOUTS
from kerncast.testing.models import synthetic_dataset

CONV = FAMILIES.get("grouped_conv_bwd_data/ck_tile")
GEMM = FAMILIES.get("gemm/ck_tile")
# As in CK's files: their train.py's defaults, smaller; some of its numbers are floats after a tuning.
PARAMS = {"objective": "regression", "metric": ["rmse", "mae"], "num_leaves": 15.0, "max_depth": 15, "n_estimators": 60,
          "learning_rate": 0.1, "min_child_samples": 5, "subsample": 0.85, "verbose": -1, "n_jobs": 1, "seed": 42}  # fmt: skip


def gemm_rows(problems, seed, device="gfx942", small=False):
    """A dozen kernels on random shapes; times are padded arithmetic in whole waves, and depend on the pipeline."""
    rng = np.random.default_rng(seed)
    most = 8 if small else 64
    shapes = pl.DataFrame({f"problem.{name}": 64 * rng.integers(1, most, problems) for name in "MNK"}).unique(
        maintain_order=True
    )
    kernels = GEMM.config.sample(12, 0, GEMM.bindings({"dtype": "fp16"}, devices.get("gfx942")))
    rows = shapes.join(kernels.rename(lambda name: f"config.{name}"), how="cross")
    m, n, k = (pl.col(f"problem.{name}") for name in "MNK")
    area = pl.col("config.tile_m") * pl.col("config.tile_n")
    waves = ((m / pl.col("config.tile_m")).ceil() * (n / pl.col("config.tile_n")).ceil() / 228).ceil()
    slow = pl.col("config.pipeline").replace_strict({"compv3": 1.0, "compv4": 0.8, "mem": 2.0}, default=1.5)
    time = 2000 + slow * waves * 228 * area * k * 2 / 1.3e6 * (1 + 4000 / area)
    return rows.with_columns(time_ns=time * pl.Series(np.exp(0.01 * rng.standard_normal(rows.height)))).with_columns(
        device=pl.lit(device), status=pl.lit("ok"), **{"problem.dtype": pl.lit("fp16"), "problem.layout": pl.lit("rcr")}
    )


def conv_rows(problems, seed):
    """Some kernels on random layers, one of them a volume."""
    rng = np.random.default_rng(seed)
    draw = {"N": (1, 8, 32), "C": (64, 128), "K": (64, 256), "Hi": (7, 14, 28), "G": (1, 2), "Y": (1, 3), "stride_h": (1, 2)}
    layers = pl.DataFrame({f"problem.{name}": rng.choice(values, problems) for name, values in draw.items()}).with_columns(
        **{"problem.Wi": pl.col("problem.Hi"), "problem.X": pl.col("problem.Y"), "problem.stride_w": pl.col("problem.stride_h"),
           "problem.pad_h": pl.col("problem.Y") // 2, "problem.pad_w": pl.col("problem.Y") // 2}
    )  # fmt: skip
    layers = layers.with_columns(**{"problem.Di": pl.when(pl.int_range(pl.len()) == 0).then(4).otherwise(1)}).unique()
    kernels = CONV.config.sample(12, 0, CONV.bindings({"dtype": "bf16"}, devices.get("gfx950")))
    rows = layers.sort(layers.columns).join(kernels.rename(lambda name: f"config.{name}"), how="cross")
    size = (
        pl.col("problem.N") * pl.col("problem.Hi") ** 2 * pl.col("problem.C") * pl.col("problem.K") * pl.col("problem.Y") ** 2
    )
    time = 3000 + size / pl.col("problem.G") / 1e4 * (1 + 64 / pl.col("config.gemm_m_per_block"))
    return rows.with_columns(
        time_ns=time.cast(pl.Float64), device=pl.lit("gfx950"), status=pl.lit("ok"), **{"problem.dtype": pl.lit("bf16")}
    )


def ck_directory(folder, dataset, family, targets=("tflops",), hardware=None, packed=False, categorical=True):
    """What CK's train.py writes for a dataset, by the arithmetic of its engine: LGBMRegressor, columns without names."""
    layout, rows = LAYOUTS[family.id], Dataset.open(dataset).read()
    frame, device = rows.select(pl.col("^(problem|config)\\..*$")), Dataset.open(dataset).device(rows["device"][0])
    numbers = {**device.numbers, **(hardware or {})}
    inputs = Featurizer.reading(family, device.__class__(**{**vars(device), "numbers": numbers}), None, layout.columns.values())
    described = inputs.describe(frame)
    features = described.only(list(layout.columns.values())).features
    time_ns = rows["time_ns"].to_numpy()
    labels = {"tflops": np.log1p(described.flops / time_ns / 1e3), "latency": time_ns / 1e6,
              "bandwidth": np.log1p(described.bytes / time_ns)}  # fmt: skip
    names = list(layout.columns)
    split = [names.index(name) for name in layout.categorical] if categorical else "auto"
    folder.mkdir()
    for target in targets:
        own = {**PARAMS, "num_leaves": 15, "min_data_per_group": 5, "cat_smooth": 1.0, "deterministic": True}
        fitted = lightgbm.LGBMRegressor(**own).fit(features, labels[target], categorical_feature=split)
        text = fitted.booster_.model_to_string().encode()
        if packed:
            (folder / f"model_{target}.lgbm.gz").write_bytes(gzip.compress(text))
        else:
            (folder / f"model_{target}.lgbm").write_bytes(text)
    spec = {"op_type": layout.op_type, "dtype": frame["problem.dtype"][0], "arch": device.name, "feature_names": names,
            "categorical_features": list(layout.categorical), "targets": list(targets),
            "log_targets": sorted({"tflops", "bandwidth"} & set(targets)), "params": PARAMS}  # fmt: skip
    known = {"num_cus": 228, "max_clock_mhz": 2100, "shader_engines": 28} if device.name == "gfx942" else {}
    (folder / "feature_spec.json").write_text(json.dumps(spec | ({"hardware": known} if known else {})))
    trained = {"warm_start_from": None, "prev_n_estimators": 0, "new_n_estimators": 60, "total_n_estimators": 60,
               "data_rows": rows.height, "valid_rows": rows.height, "unique_shapes": 30,
               "timestamp": "2026-04-13T02:26:14"}  # fmt: skip
    (folder / "train_manifest.json").write_text(json.dumps(trained))
    return folder


def kernel_name(config, dtype="fp16", layout="rcr"):
    """A GEMM kernel's name as CK writes it."""
    flags = "_".join(str(config[flag]) for flag in ("pad_m", "pad_n", "pad_k", "persistent"))
    sizes = "_".join("x".join(str(config[f"{kind}_{side}"]) for side in "mnk") for kind in ("tile", "warp", "warp_tile"))
    return f"gemm_universal_{dtype}_{layout}_{config['pipeline']}_{config['epilogue']}_{config['scheduler']}_{flags}_{sizes}"


@pytest.fixture(scope="session")
def made_by_ck(tmp_path_factory):
    """`home` has the datasets d, new (GEMM) and conv; CK's directories gemm and conv; `names` of the GEMM kernels."""
    home = tmp_path_factory.mktemp("made_by_ck")
    synthetic_dataset(home / "d", gemm_rows(30, 0), GEMM)
    synthetic_dataset(home / "new", gemm_rows(25, 1), GEMM)
    synthetic_dataset(home / "conv_data", conv_rows(30, 0), CONV)
    gfx942 = {"num_cus": 228.0, "max_clock_mhz": 2100.0, "shader_engines": 28.0, "lds_capacity_bytes": 65536.0,
              "l1_cache_kb": 32.0, "l2_cache_kb": 4096.0, "l3_cache_kb": 262144.0, "num_xcd": 8.0}  # fmt: skip
    gemm = ck_directory(home / "gemm_universal_fp16_gfx942", home / "d", GEMM, ("tflops", "latency"), gfx942)
    conv = ck_directory(home / "grouped_conv_bwd_data_bf16_gfx950", home / "conv_data", CONV, ("tflops",),
                        {"lds_capacity_bytes": 65536.0}, packed=True)  # fmt: skip
    configs = Dataset.open(home / "d").read().select(pl.col("^config\\..*$")).unique(maintain_order=True)
    names = [kernel_name(row) for row in configs.rename(lambda name: name.removeprefix("config.")).to_dicts()]
    return SimpleNamespace(
        home=home, gemm=gemm, conv=conv, names=names, directory=ck_directory, gemm_rows=gemm_rows, conv_rows=conv_rows,
        kernel_name=kernel_name, schema=schema,
    )  # fmt: skip
