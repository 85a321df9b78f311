"""What every kind of model must do. Subclass it in a test module, name the kind, let pytest collect it.

    class TestMine(ModelContract):
        kind = "mine"
        knobs = {"epochs": 5}

The kind is found as `kerncast train` finds it: by its entry point in the group `kerncast.models`. The data are
made up (`synthetic_rows`): GEMM configs on an A100 whose times follow from a formula, noise and failures included.
"""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path
from typing import Any, ClassVar

import numpy as np
import polars as pl

from kerncast.core.arrays import Floats
from kerncast.core.op import Family
from kerncast.data import Dataset, schema
from kerncast.errors import KerncastError
from kerncast.learning.feature_rows import Rows
from kerncast.learning.learners.contract import Fitting, Learner, default_target
from kerncast.learning.learners.kinds import learner_class, options_of
from kerncast.learning.measurements import MAD_TO_SIGMA
from kerncast.learning.table import Table, build_table
from kerncast.learning.trials import held_out
from kerncast.library import devices
from kerncast.library.registry import FAMILIES
from kerncast.models.manifest import MANIFEST
from kerncast.models.model import Model
from kerncast.training.procedure import Procedure, Recipe
from kerncast.training.train import train

FAMILY = "gemm/triton"
DEVICE = "a100"
SIZES = (128, 192, 256, 384, 512, 768, 1024, 1536, 2048, 3072, 4096, 6144, 8192)
# BLOCK_M, BLOCK_N, BLOCK_K, num_stages, num_warps.
TILES = (
    (16, 64, 64, 3, 4), (32, 32, 64, 2, 2), (32, 128, 32, 3, 4), (64, 64, 32, 3, 4), (64, 128, 32, 4, 4),
    (128, 64, 64, 3, 8), (128, 128, 32, 3, 8), (128, 256, 32, 3, 8), (256, 128, 64, 4, 8),
)  # fmt: skip
# Shared memory of the made-up device for the tiles of one block: the largest of TILES do not fit, and fail.
SHARED_BYTES = 100_000
LAUNCH_NS = 1_500.0
FLOPS_PER_NS = 312_000.0
BYTES_PER_NS = 2_039.0


def synthetic_rows(
    problems: int = 40,
    seed: int = 0,
    repeats: int = 1,
    noise: float = 0.01,
    slower: float = 1.0,
    tiles: Sequence[tuple[int, ...]] = TILES,
) -> pl.DataFrame:
    """Stored rows of `gemm/triton`: every config of `tiles` and the library's kernel on random problems.

    A config that needs too much shared memory fails. `slower` scales the times, for warm starts.
    """
    rng = np.random.default_rng(seed)
    family = FAMILIES.get(FAMILY)
    drawn = rng.permutation(len(SIZES) ** 3)[:problems]
    shapes = pl.DataFrame(
        {f"problem.{name}": np.array(SIZES)[drawn // len(SIZES) ** place % len(SIZES)] for place, name in enumerate("MNK")}
    )
    configs = pl.DataFrame(
        [("triton", *tile) for tile in tiles] + [("library", None, None, None, None, None)],
        schema=[f"config.{name}" for name in ("kind", "BLOCK_M", "BLOCK_N", "BLOCK_K", "num_stages", "num_warps")],
        orient="row",
    )
    rows = shapes.join(configs, how="cross")
    rows = pl.concat([rows.with_columns(run_id=pl.lit(f"r{number}"), order=pl.lit(number)) for number in range(repeats)])
    exact = slower * synthetic_time_ns(rows)
    measured = exact * np.exp(noise * rng.standard_normal(rows.height))
    worked = pl.col("time_ns").is_finite()
    rows = rows.with_columns(
        device=pl.lit(DEVICE),
        time_ns=pl.Series(measured),
        samples=pl.lit(9),
        **{"problem.dtype": pl.lit("fp16"), "problem.layout": pl.lit("rcr")},
    ).with_columns(
        status=pl.when(worked).then(pl.lit("ok")).otherwise(pl.lit("out_of_memory")),
        time_ns=pl.when(worked).then("time_ns"),
        time_ns_mad=pl.when(worked).then(pl.col("time_ns") * noise / MAD_TO_SIGMA),
    )
    return schema.conform(family, rows)


def synthetic_time_ns(rows: pl.DataFrame) -> Floats:
    """The time without noise: launch, then the slower of padded arithmetic and traffic, in whole waves; infinite: fails."""
    m, n, k = (rows[f"problem.{name}"].to_numpy().astype(np.float64) for name in "MNK")
    block_m, block_n, block_k, stages, warps = (
        # The library is as good as a middling tile, whatever the problem.
        rows[f"config.{name}"].fill_null(stand_in).to_numpy().astype(np.float64)
        for name, stand_in in (("BLOCK_M", 64), ("BLOCK_N", 64), ("BLOCK_K", 32), ("num_stages", 3), ("num_warps", 4))
    )
    tiles_m, tiles_n, steps = np.ceil(m / block_m), np.ceil(n / block_n), np.ceil(k / block_k)
    waves = np.ceil(tiles_m * tiles_n / 108)
    efficiency = block_m * block_n / (block_m * block_n + 4_000) * np.where(warps == 8, 1.0, 0.85) * (1 - 0.3 / stages)
    arithmetic = waves * 108 * block_m * block_n * steps * block_k * 2 / (FLOPS_PER_NS * efficiency)
    traffic = 2 * (tiles_n * m * k + tiles_m * k * n + m * n) / (4 * BYTES_PER_NS)
    shared = 2 * (block_m + block_n) * block_k * (stages - 1)
    return np.where(shared > SHARED_BYTES, np.inf, LAUNCH_NS + np.maximum(arithmetic, traffic))


def synthetic_table(**changes: Any) -> Table:
    """`synthetic_rows` as a training table, in memory."""
    return build_table(FAMILIES.get(FAMILY), synthetic_rows(**changes), {DEVICE: devices.get(DEVICE)}, "synthetic")


def synthetic_dataset(path: Path, rows: pl.DataFrame | None = None, family: Family | None = None) -> Path:
    """A dataset on disk, of `synthetic_rows` unless others are given."""
    frame = synthetic_rows() if rows is None else rows
    Dataset.create(path).append(family or FAMILIES.get(FAMILY), frame.drop("key", "op", "family", strict=False))
    return path


class ModelContract:
    """Learns more than a constant, writes what it learned, and does the same thing twice."""

    kind: ClassVar[str]
    knobs: ClassVar[dict[str, Any]] = {}
    """Fewer epochs or trees than the default, to be done in a second."""

    def _learner(self) -> Learner:
        kind = learner_class(self.kind)
        return kind(options_of(kind, self.knobs))

    def _fit(self, table: Table, base: Learner | None = None, seed: int = 0) -> Learner:
        return self._learner().fit(table, Fitting(default_target(table.rows), seed, threads=1), base)

    def _procedure(self, table: Table) -> Procedure:
        return Procedure(Recipe(self.kind, self.knobs, folds=2, threads=1).resolved(table, None))

    def _times(self, learner: Learner, rows: Rows) -> Floats:
        return default_target(rows).decode(learner.predict(rows).target, rows)

    def test_beats_a_constant_on_problems_it_has_not_seen(self) -> None:
        """Times are finite and positive, and nearer to the measured ones than their geometric mean is."""
        table = synthetic_table()
        aside = held_out(table.group, 0.25, 0)
        seen, unseen = table.take(~aside), table.take(aside)
        procedure = self._procedure(table)
        learner = procedure.fit(seen)
        time_ns, score = procedure.scores(learner, unseen)
        assert np.isfinite(time_ns).all()
        assert (time_ns > 0).all()
        assert np.isfinite(score).all()
        measured = np.log(unseen.time_ns[unseen.ok])
        constant = np.abs(measured - np.log(seen.time_ns[seen.ok]).mean()).mean()
        assert np.abs(measured - np.log(time_ns[unseen.ok])).mean() < 0.7 * constant

    def test_saved_and_loaded_it_predicts_the_same(self, tmp_path: Path) -> None:
        """Bit for bit, scores too, from the files alone."""
        table = synthetic_table()
        learner = self._fit(table)
        learner.save(tmp_path)
        assert any(tmp_path.iterdir())
        loaded = type(learner).load(tmp_path, learner.options)
        before, after = learner.predict(table.rows), loaded.predict(table.rows)
        assert np.array_equal(before.target, after.target)
        assert (before.score is None) == (after.score is None)
        assert before.score is None or np.array_equal(before.score, np.asarray(after.score))
        assert loaded.size() == learner.size()

    def test_the_same_seed_gives_the_same_bytes(self, tmp_path: Path) -> None:
        """Two fits, file by file; randomness that is not the learner's own is neither used nor disturbed."""
        table = synthetic_table()
        for name in ("first", "second"):
            (tmp_path / name).mkdir()
            np.random.seed(len(name))
            drawn = np.random.random()
            np.random.seed(len(name))
            self._fit(table, seed=3).save(tmp_path / name)
            assert np.random.random() == drawn
        files = [{file.name: file.read_bytes() for file in (tmp_path / name).iterdir()} for name in ("first", "second")]
        assert files[0] == files[1]

    def test_rows_are_predicted_one_by_one_and_in_any_order(self) -> None:
        """The prediction for a row depends on that row alone."""
        table = synthetic_table()
        learner = self._fit(table)
        whole = learner.predict(table.rows)
        mixed = np.random.default_rng(1).permutation(len(table.rows))
        again = learner.predict(table.rows.take(mixed))
        np.testing.assert_allclose(again.target, whole.target[mixed], rtol=1e-9, atol=1e-12)
        for place in (0, len(table.rows) - 1):
            alone = learner.predict(table.rows.take(np.array([place])))
            np.testing.assert_allclose(alone.target, whole.target[[place]], rtol=1e-9, atol=1e-12)
            if whole.score is not None and alone.score is not None:
                np.testing.assert_allclose(alone.score, whole.score[[place]], rtol=1e-9, atol=1e-12)

    def test_the_order_of_features_is_the_tables(self) -> None:
        """Features are known by name, not by position: reversed columns train as well, and importances have names."""
        table = synthetic_table()
        turned = Table(**{**vars_of(table), "rows": table.rows.only(tuple(reversed(table.rows.names)))})
        learner = self._fit(turned)
        errors = np.abs(np.log(self._times(learner, turned.rows)[turned.ok] / turned.time_ns[turned.ok]))
        straight = np.abs(np.log(self._times(self._fit(table), table.rows)[table.ok] / table.time_ns[table.ok]))
        assert errors.mean() < 2.0 * straight.mean() + 0.05
        told = learner.importances()
        assert not told or list(told) == list(turned.rows.names)
        assert not told or abs(sum(told.values()) - 1.0) < 1e-9

    def test_a_knob_that_it_does_not_have_is_refused(self) -> None:
        """The error names it and lists those that the model has."""
        for knobs in ({"colour": 3}, {**self.knobs, "colour": 3}):
            message = _refusal(lambda knobs=knobs: options_of(learner_class(self.kind), knobs))
            assert "`colour`" in message
            assert self.kind in message

    def test_a_model_directory_is_whole_and_goes_on_or_refuses_to(self, tmp_path: Path) -> None:
        """Trained, loaded, warm-started on times twice as long: nearer to them than before, or one sentence why not."""
        old = synthetic_dataset(tmp_path / "old", synthetic_rows(problems=30))
        new = synthetic_dataset(tmp_path / "new", synthetic_rows(problems=30, seed=1, slower=2.0))
        recipe = Recipe(self.kind, self.knobs, folds=2, threads=1)
        base = train(old, tmp_path / "base", recipe)
        assert (tmp_path / "base" / MANIFEST).is_file()
        frame = Dataset.open(new).read(where=["status=ok"])
        before = self._off(base, frame)
        if not learner_class(self.kind).continues:
            message = _refusal(lambda: train(new, tmp_path / "more", recipe, warm_start=tmp_path / "base"))
            assert self.kind in message
            assert not (tmp_path / "more").exists()
            return
        more = train(new, tmp_path / "more", recipe, warm_start=tmp_path / "base")
        assert self._off(more, frame) < before
        assert more.manifest.warm_start == (base.manifest.data.digest,)
        assert self._off(Model.load(tmp_path / "base"), frame) == before

    @staticmethod
    def _off(model: Model, frame: pl.DataFrame) -> float:
        return float(np.abs(np.log(model.predict_vectors(frame)["time_ns"].to_numpy() / frame["time_ns"].to_numpy())).mean())


def vars_of(table: Table) -> dict[str, Any]:
    """The fields of a table, to make another with some of them changed."""
    return {name: getattr(table, name) for name in Table.__dataclass_fields__}


def _refusal(act: Any) -> str:
    """The message, one sentence, of the KerncastError that `act` must raise."""
    try:
        act()
    except KerncastError as error:
        assert "\n" not in str(error)  # noqa: PT017 - this module does not depend on pytest
        return str(error)
    raise AssertionError("nothing was refused")
