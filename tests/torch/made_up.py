"""Models of gemm/inductor_cpp whose favourite is given: times are made up, so no kernel is compiled to train them."""

from itertools import product

import msgspec
import polars as pl

from kerncast.data import schema
from kerncast.library import devices
from kerncast.library.families.gemm_inductor_cpp import gemm_inductor_cpp
from kerncast.measuring.backends.inductor.build import cpu_software
from kerncast.testing.models import synthetic_dataset
from kerncast.training.procedure import Recipe
from kerncast.training.train import train

TILES = [(mr, nr) for mr in (2, 4, 6) for nr in (8, 16)]
SIZES = (8, 16, 24, 32, 48, 64)


def made_up_model(path, favourite, *, slower=1.0, software=None, dtypes=("fp32", "bf16")):
    """A model to which `favourite` (`aten`, `default` or a tile such as (4, 16)) is fastest everywhere, by half.

    `slower` is how much longer than the favourite ATen's kernel takes, if that is not the favourite.
    """
    shapes = product(SIZES[::2], SIZES[::2], SIZES[:4], dtypes, ("rcr",), (1, 2))
    problems = pl.DataFrame(
        list(shapes),
        schema=[f"problem.{name}" for name in ("M", "N", "K", "dtype", "layout", "threads")],
        orient="row",
    )  # fmt: skip
    rows = [("tile", mr, nr, 0, 0, "default") for mr, nr in TILES] + [(kind, *[None] * 5) for kind in ("default", "aten")]
    configs = pl.DataFrame(rows, schema=[f"config.{name}" for name in gemm_inductor_cpp.parameters], orient="row")
    chosen = (
        pl.col("config.kind") == favourite
        if isinstance(favourite, str)
        else (pl.col("config.mr") == favourite[0]) & (pl.col("config.nr") == favourite[1])
    ).fill_null(False)
    work = pl.col("problem.M") * pl.col("problem.N") * pl.col("problem.K") / 8.0 + 500.0
    others = pl.when(pl.col("config.kind") == "aten").then(slower * 2.0 if slower != 1.0 else 2.0).otherwise(2.0)
    frame = problems.join(configs, how="cross").with_columns(
        device=pl.lit(devices.local().name),
        status=pl.lit("ok"),
        time_ns=work * pl.when(chosen).then(1.0).otherwise(others),
        software=pl.lit(msgspec.json.encode(dict(software or cpu_software()), order="sorted").decode()),
    )
    data = synthetic_dataset(path.with_name(path.name + ".data"), schema.conform(gemm_inductor_cpp, frame), gemm_inductor_cpp)
    recipe = Recipe("gbdt", {"trees": 20, "leaves": 8, "lr": 0.3}, folds=2, threads=1)
    return train([data], path, recipe)
