"""Inspection: noise, disagreements, aliases, shifted labels."""

import numpy as np
import polars as pl
import pytest

from kerncast.app.cli.views import disagreement_lines
from kerncast.data import Dataset, quality, schema
from kerncast.data.label_shift import find_label_shift
from kerncast.errors import InvalidValue
from kerncast.library.declared.family_file import family_named
from kerncast.testing.models import synthetic_rows

UNARY = family_named("eltwise_unary/single")
TRITON = family_named("gemm/triton")


def unary_table(shapes=400, repeats=(2, 3, 4), seed=0, noise=0.02):
    """A table as a sweep leaves it: runs of repeats, a time that follows the tile count, with noise."""
    rng = np.random.default_rng(seed)
    rows = []
    for _ in range(shapes):
        dims = [int(rng.integers(1, 8)), int(rng.integers(1, 40)), 32 * int(rng.integers(1, 16)), 32 * int(rng.integers(1, 16))]
        for dtype, slow in (("bf16", 1.0), ("fp32", 1.7), ("bfp8", 0.8)):
            tiles = dims[0] * dims[1] * dims[2] * dims[3] / 1024
            time = (900 + 110 * np.ceil(tiles / 64)) * slow
            for _ in range(rng.choice(repeats)):
                rows.append((*dims, dtype, time * float(np.exp(rng.normal(0, noise)))))
    names = [f"problem.dim{i}" for i in range(4)]
    frame = pl.DataFrame(rows, schema=[*names, "problem.dtype", "time_ns"], orient="row").with_columns(
        pl.lit("exp").alias("problem.func"), pl.lit("dram").alias("problem.buffer"), device=pl.lit("wormhole_b0"),
        status=pl.lit("ok"), source=pl.lit("s"),
    )  # fmt: skip
    return schema.conform(UNARY, frame.with_columns(source_line=pl.int_range(2, frame.height + 2)))


def shifted(frame, first, last, by):
    """The same table after a join by position that slipped by `by` rows between two places."""
    times = frame["time_ns"].to_numpy().copy()
    times[first:last] = frame["time_ns"].to_numpy()[first - by : last - by]
    return frame.with_columns(time_ns=pl.Series(times))


@pytest.mark.parametrize("by", [1, 5, 20])
def test_shifted_labels_are_found_where_they_are(by):
    """A slip of one row, of a few or of many: the stretch is found to within the size of the slip."""
    frame = unary_table()
    result = find_label_shift(UNARY, shifted(frame, 1000, 2000, by))
    (stretch,) = result.stretches
    assert stretch.shift == -by
    assert abs(stretch.first - 1000) <= by + 8
    assert abs(stretch.last - 1999) <= by + 8
    assert result.suspect.sum() == stretch.last - stretch.first + 1


def test_clean_tables_raise_no_suspicion():
    """Silent on noise, on slow outliers and on tables without repeats."""
    for frame in (unary_table(), unary_table(noise=0.15, seed=1), unary_table(shapes=900, repeats=(1,), seed=2)):
        assert find_label_shift(UNARY, frame).stretches == ()
    spikes = unary_table(seed=3)
    slow = np.where(np.random.default_rng(0).random(spikes.height) < 0.1, 8.0, 1.0)
    assert find_label_shift(UNARY, spikes.with_columns(time_ns=pl.col("time_ns") * pl.Series(slow))).stretches == ()


def test_a_sorted_sweep_raises_no_suspicion():
    """Neighbours are alike there, and a model that knew them would copy their noise."""
    matmul = family_named("matmul_sharded/single")
    for noise in (0.0, 0.02, 0.3):
        rng = np.random.default_rng(1)
        sizes = np.arange(1, 1001)
        times = (1e4 + np.ceil(sizes / 8) * 25600) * np.exp(rng.normal(0, noise, 1000))
        frame = pl.DataFrame(
            {"problem.M": sizes * 32, "problem.K": 512, "problem.N": 512, "problem.num_cores": 8, "time_ns": times}
        )
        frame = frame.with_columns(
            device=pl.lit("wormhole_b0"), status=pl.lit("ok"), source=pl.lit("s"), source_line=pl.int_range(2, 1002)
        )
        assert find_label_shift(matmul, schema.conform(matmul, frame)).stretches == ()


def test_a_shift_is_found_among_shapes_that_no_model_predicts_and_these_raise_no_suspicion():
    """A log of many configs per shape, some shapes at half or twice the speed that their sizes suggest."""
    rng = np.random.default_rng(3)
    rows = synthetic_rows(problems=100, noise=0.02).filter(pl.col("status") == "ok")
    rows = rows.sort("problem.M", "problem.N", "problem.K", maintain_order=True)
    shape = rows.select(pl.struct("problem.M", "problem.N", "problem.K").rle_id()).to_series().to_numpy()
    odd = rng.choice([0.0, 0.0, 0.7, -0.7], shape.max() + 1)[shape]
    rows = rows.with_columns(
        time_ns=pl.col("time_ns") * pl.Series(np.exp(odd)), source=pl.lit("log"), source_line=pl.int_range(rows.height)
    )
    found = find_label_shift(TRITON, shifted(rows, 300, 600, 4)).suspect
    assert found[300:600].mean() > 0.9
    assert found.sum() < 330


def test_shifts_are_reported_by_the_row_of_their_own_source():
    """Failed rows count, other files and other devices do not."""
    good, bad = unary_table(seed=4), shifted(unary_table(seed=5), 1000, 2000, 5)
    failed = bad.head(300).with_columns(status=pl.lit("timeout"), time_ns=pl.lit(None, dtype=pl.Float64))
    bad = pl.concat([failed, bad[300:]]).with_columns(source=pl.lit("a-bad-file"))
    (stretch,) = find_label_shift(UNARY, pl.concat([good, bad])).stretches
    assert stretch.source == "a-bad-file"
    assert abs(stretch.first - 1000) <= 20


def test_a_table_that_cannot_be_checked_says_why():
    """Too small, without an order, or measured here, so that nothing was joined: a reason, not a verdict."""
    assert find_label_shift(UNARY, unary_table(shapes=5)).reason.startswith("a source has fewer than 100 ok rows")
    no_order = unary_table().with_columns(source_line=pl.lit(None, dtype=pl.Int64))
    assert "carry no source line" in find_label_shift(UNARY, no_order).reason
    collected = no_order.with_columns(run_id=pl.lit("r"), order=pl.int_range(no_order.height))
    assert find_label_shift(UNARY, shifted(collected, 300, 500, 4)).reason.startswith("each time was measured and recorded")


def triton_rows(configs, times, **more):
    frame = pl.DataFrame(configs, schema=["config.BLOCK_M", "config.BLOCK_N", "config.num_warps"], orient="row").with_columns(
        pl.lit("triton").alias("config.kind"), pl.lit(32).alias("config.BLOCK_K"), pl.lit(2).alias("config.num_stages"),
        *(pl.lit(v).alias(f"problem.{n}") for n, v in {"M": 512, "N": 512, "K": 64, "dtype": "fp16", "layout": "rcr"}.items()),
        device=pl.lit("a100"), time_ns=pl.Series(times, dtype=pl.Float64), **{"status": pl.lit("ok"), **more},
    )  # fmt: skip
    return schema.conform(TRITON, frame)


def test_noise_and_disagreements_come_from_repeats_only():
    """Two runs of one thing are noise; two configs are not."""
    frame = triton_rows(
        [(16, 16, 4), (16, 16, 4), (16, 16, 4), (32, 16, 4), (32, 16, 4)], [1000.0, 1010.0, 990.0, 5000.0, 9000.0]
    )
    (band,) = quality.inspect_family(TRITON, frame)["noise"]
    assert (band["band"], band["measurements"]) == ("under 10 us", 2)
    found = quality.inspect_family(TRITON, frame)["disagreements"]
    assert (found["measurements"], found["worst"][0]["ratio"]) == (1, pytest.approx(1.8))


def test_measurements_whose_repeats_ended_differently_are_named_with_their_statuses():
    """A few examples by problem and config, each with the rows of every status; what failed every time is not one."""
    statuses, seven = (
        ["timeout", "ok", "timeout", "crash", "crash"],
        [(16 << size % 6, 16 << size // 6, 4) for size in range(7)],
    )
    configs = [seven[0]] * 3 + [(32, 32, 8)] * 2 + [config for config in seven[1:] for _ in range(2)]
    statuses += ["ok", "timeout"] * 6
    times = [1000.0 if status == "ok" else None for status in statuses]
    found = quality.inspect_family(TRITON, triton_rows(configs, times, status=pl.Series(statuses)))["disagreements"]
    assert (found["mixed_statuses"], len(found["mixed_examples"])) == (7, 5)
    first = found["mixed_examples"][0]
    assert first["statuses"] == {"ok": 1, "timeout": 2}
    assert (first["config"]["BLOCK_M"], first["problem"]["K"], first["device"]) == (16, 64, "a100")
    (said,) = disagreement_lines(found)
    assert said.startswith("7 measurements have different statuses in different rows: M=512 N=512 K=64 ")
    assert " on a100: 1 ok, 2 timeout (key " in said
    assert said.endswith("; and 4 more")


def test_the_fastest_config_is_by_the_median_of_its_repeats():
    """One lucky run does not win."""
    frame = triton_rows([(16, 16, 4)] * 3 + [(32, 32, 4)], [10.0, 1000.0, 1100.0, 900.0])
    (best,) = quality.inspect_family(TRITON, frame)["fastest"]
    assert (best["config"]["BLOCK_M"], best["time_ns"], best["measured_configs"]) == (32, 900.0, 2)


def test_configs_that_no_feature_tells_apart_are_named(monkeypatch):
    """Aliasing: the check looks at features, not at parameters."""
    frame = triton_rows([(16, 16, 4), (16, 32, 4), (32, 16, 4)], [1.0, 2.0, 3.0])
    assert quality.inspect_family(TRITON, frame)["aliased_configs"]["groups"] == 0
    blind = type(TRITON)()
    blind.features = lambda p, c, hw: {"block_mn": c.BLOCK_M * c.BLOCK_N}
    found = quality.inspect_family(blind, frame)["aliased_configs"]
    assert (found["groups"], found["configs"]) == (1, 2)
    assert {(c["BLOCK_M"], c["BLOCK_N"]) for c in found["examples"][0]} == {(16, 32), (32, 16)}


def test_rows_that_ran_though_declared_impossible_are_counted():
    """Either the constraint or the table is wrong; both are worth knowing."""
    frame = triton_rows([(512, 512, 4), (16, 16, 4)], [1.0, 2.0])
    deep = frame.with_columns(pl.lit(8).alias("config.num_stages"))
    (found,) = quality.inspect_family(TRITON, deep)["measured_though_impossible"]
    assert (found["constraint"], found["rows"]) == ("shared_memory_fits", 1)


def test_inspecting_nothing_says_so(tmp_path):
    """An empty dataset, and a filter that leaves nothing."""
    empty = Dataset.create(tmp_path / "e")
    with pytest.raises(InvalidValue, match="is empty"):
        quality.inspect_dataset(empty)
    full = Dataset.create(tmp_path / "f")
    full.append(TRITON, triton_rows([(16, 16, 4)], [1.0]))
    with pytest.raises(InvalidValue, match=r"no row of .* satisfies problem\.M=7"):
        quality.inspect_dataset(full, ["problem.M=7"])
    report = quality.inspect_dataset(full)
    assert report["families"][0]["constant_columns"]["problem.M"] == 512


def test_inspect_says_what_the_samples_of_rows_that_were_measured_once_say(tmp_path, run):
    """The spread within a row is known without repeats; between runs it is not."""
    rows = synthetic_rows(problems=4)
    data = Dataset.create(tmp_path / "d")
    data.append(TRITON, rows.drop("key", "op", "family").with_columns(time_ns_mad=pl.col("time_ns") * 0.02, samples=2))
    once = data.inspect()["families"][0]
    assert (once["noise"], once["noise_of_samples"]) == ([], pytest.approx(0.02))
    assert (
        "noise: the samples of a row spread by 2.00% (median MAD); between runs it is unknown" in run("inspect", data.path)[1]
    )
