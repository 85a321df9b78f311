"""Measurements as a training table: repeats, noise, failures, numbers."""

import numpy as np
import polars as pl
import pytest
from polars.testing import assert_frame_equal

from kerncast.data import schema
from kerncast.errors import InvalidValue
from kerncast.learning.assess import attempts
from kerncast.learning.measurements import rows_where, stacked
from kerncast.learning.table import build_table
from kerncast.library import devices
from kerncast.library.registry import FAMILIES
from kerncast.testing.models import FAMILY, synthetic_rows

TRITON = FAMILIES.get(FAMILY)
A100 = {"a100": devices.get("a100")}
# One problem, one tile, measured as often as there are times.
ONE = {
    "device": "a100", "problem.M": 128, "problem.N": 256, "problem.K": 512, "problem.dtype": "fp16", "problem.layout": "rcr",
    "config.kind": "triton", "config.BLOCK_M": 64, "config.BLOCK_N": 32, "config.BLOCK_K": 32, "config.num_stages": 3,
    "config.num_warps": 4,
}  # fmt: skip


def stored(times, **columns):
    """Rows that differ in their times, and in columns given as lists; a time of None failed."""
    count = len(times)
    status = ["ok" if time is not None else "timeout" for time in times]
    cells = {**ONE, "time_ns": list(times), "status": status, **columns}
    spread = {name: value if isinstance(value, list) else [value] * count for name, value in cells.items()}
    return schema.conform(TRITON, pl.DataFrame(spread, schema_overrides={"time_ns": pl.Float64}))


def table_of(rows, machines=A100):
    return build_table(TRITON, rows, machines, "x")


def test_repeats_become_one_row_with_their_median_noise_and_halves():
    """Halves alternate from run to run; the noise is the standard error of the log times."""
    times = [100.0, 110.0, 104.0, 108.0, 102.0]
    table = table_of(stored(times, run_id=list("abcde")))
    assert table.time_ns.tolist() == [104.0]
    np.testing.assert_allclose(table.noise, np.log(times).std(ddof=1) / np.sqrt(5))
    assert (table.half_a.tolist(), table.half_b.tolist()) == ([102.0], [109.0])


def test_repeats_are_of_different_times_if_another_problem_was_measured_between_them():
    """Back to back, or with other configs of the problem between them, they are one visit; in an unknown order too."""
    lines = [3, 4, 9, 10]
    cells = {"problem.M": [128, 128, 128, 64], "source": "table.csv"}
    together = stored([100.0, 110.0, 104.0, 50.0], **cells, source_line=lines)
    assert np.isnan(table_of(together).half_a).all()
    apart = table_of(together.with_columns(source_line=pl.Series([3, 4, 11, 10])))
    assert np.nan_to_num(apart.half_a).tolist() == [0.0, 105.0]
    assert np.nan_to_num(apart.half_b).tolist() == [0.0, 104.0]
    assert np.isnan(table_of(stored([100.0, 110.0])).half_a).all()
    two = stored([100.0, 50.0, 110.0], **{"config.num_warps": [4, 8, 4]}, source="t", source_line=[1, 2, 3])
    assert np.isnan(table_of(two).half_a).all()


def test_of_two_repeats_the_faster_counts_where_configs_are_compared_and_their_mean_where_only_times_are_asked():
    """What disturbs slows down, which must not look like a choice; a time alone is told as it is met."""
    assert table_of(stored([100.0, 110.0])).time_ns.tolist() == [105.0]
    two = stored([100.0, 110.0, 120.0, 130.0], **{"config.num_warps": [4, 4, 8, 8]})
    assert table_of(two).time_ns.tolist() == [100.0, 120.0]


def test_measured_once_the_noise_is_what_the_run_says_of_itself_or_unknown():
    """Deviation of its samples over the root of their number; without it NaN, and no halves."""
    table = table_of(stored([200.0], time_ns_mad=[2.0], samples=[16]))
    np.testing.assert_allclose(table.noise, 1.4826 * 2.0 / 200.0 / 4.0)
    assert np.isnan(table.half_a).all()
    assert np.isnan(table_of(stored([200.0])).noise).all()
    assert table_of(stored([200.0])).noise_floor is None


def test_failures_are_rows_without_a_time_and_a_repeat_that_worked_counts():
    """An attempt that failed once and worked once has the time of the one that worked."""
    rows = stored([None, 50.0, None], **{"config.num_warps": [4, 4, 8]})
    table = table_of(rows)
    assert table.time_ns[table.ok].tolist() == [50.0]
    assert table.ok.tolist() == [True, False]
    assert np.isinf(table.trials.time_ns[~table.ok]).all()


def test_repeats_far_apart_contradict_each_other():
    """Nobody can say which is right: one sentence with both the problem and the ratio."""
    with pytest.raises(InvalidValue, match=r"contradictory repeats: .* M=128 N=256 .* takes 150 times the fastest"):
        table_of(stored([10.0, 1500.0]))


def test_the_same_row_given_twice_counts_once():
    """Rows equal in every cell are no repeats: the noise stays what it was, and so do the halves."""
    rows = stored([100.0, 110.0], run_id=["a", "b"])
    once, twice = table_of(rows), table_of(pl.concat([rows, rows]))
    assert (twice.time_ns.tolist(), twice.noise.tolist()) == (once.time_ns.tolist(), once.noise.tolist())
    assert np.isnan(table_of(pl.concat([rows[:1], rows[:1]])).half_a).all()


def test_numbers_and_labels_do_not_depend_on_the_order_of_rows():
    """Shuffled rows are the same table: same problems, groups, configs, features and times."""
    rows = synthetic_rows(problems=8, repeats=3)
    one, other = table_of(rows), table_of(rows.sample(fraction=1.0, shuffle=True, seed=5))
    for name in ("problem", "group", "config", "device", "time_ns"):
        np.testing.assert_array_equal(getattr(one, name), getattr(other, name))
    np.testing.assert_array_equal(one.rows.features, other.rows.features)
    np.testing.assert_allclose(one.noise, other.noise)
    assert one.rows.frame.equals(other.rows.frame)


def test_repeats_folded_in_parts_are_those_folded_at_once(monkeypatch):
    """Memory is bounded by folding some keys at a time, which changes nothing."""
    rows = synthetic_rows(problems=8, repeats=3).with_columns(run_id=pl.lit("a"), order=pl.int_range(pl.len()))
    rows = pl.concat([rows, rows.with_columns(pl.col("time_ns") * 1.01, run_id=pl.lit("b")), rows[:50]])
    one = table_of(rows)
    monkeypatch.setattr("kerncast.learning.measurements.FOLDED_ROWS", 100)
    other = table_of(rows)
    for name in ("problem", "config", "time_ns", "noise", "half_a", "half_b"):
        np.testing.assert_array_equal(getattr(one, name), getattr(other, name))
    assert one.rows.frame.equals(other.rows.frame)
    assert np.isfinite(one.half_a).any()


def test_a_group_is_coarser_than_a_problem():
    """Another dtype is another problem of the same group; both are numbered from 0."""
    table = table_of(stored([1.0, 2.0, 3.0], **{"problem.dtype": ["fp16", "bf16", "fp16"], "problem.M": [128, 128, 256]}))
    assert sorted(table.problem.tolist()) == [0, 1, 2]
    groups = dict(zip(table.rows.frame["problem.M"], table.group.tolist(), strict=True))
    assert groups == {128: 0, 256: 1}
    assert len(table.problems) == 3
    assert len(table.configs) == 1


def test_rows_of_two_devices_keep_their_own_features():
    """Each row is described with the numbers of its device, whichever way round the devices are given."""
    rows = stored([10.0, 20.0, 30.0], device=["h100", "a100", "a100"], **{"problem.M": [64, 64, 512]})
    machines = {name: devices.get(name) for name in ("h100", "a100")}
    table = table_of(rows, machines)
    assert [device.name for device in table.devices] == ["a100", "h100"]
    assert table.time_ns.tolist() == [20.0, 30.0, 10.0]
    column = table.rows.names.index("M")
    assert table.rows.features[:, column].tolist() == [64.0, 512.0, 64.0]
    assert table.rows.roofline_ns[0] > table.rows.roofline_ns[2]
    assert table.problem.tolist() == [0, 1, 2]
    assert table.group.tolist() == [0, 1, 0]


def test_some_rows_of_a_table_are_a_table():
    """By mask or by place; numbers stay what they were."""
    table = table_of(synthetic_rows(problems=6))
    mask = table.problem >= 4
    part, same = table.take(mask), table.take(np.flatnonzero(mask))
    assert np.unique(part.problem).tolist() == [4, 5]
    np.testing.assert_array_equal(part.rows.features, same.rows.features)
    np.testing.assert_array_equal(part.rows.roofline_ns, table.rows.roofline_ns[mask])
    assert part.trials.problems.tolist() == [4, 5]


def test_the_figures_of_configs_are_those_of_the_rows_at_hand_though_their_numbers_have_gaps():
    """Rows that were taken keep their numbers: attempts lists the configs that are left, each with its own figures."""
    whole = table_of(synthetic_rows(problems=6))
    part = whole.take(whole.config % 3 == 1)
    assert_frame_equal(attempts(part, 4), attempts(part.renumbered(), 4))
    assert attempts(part, 4).height == len(np.unique(part.config)) < attempts(whole, 4).height


def test_the_features_of_several_devices_are_computed_when_needed_each_row_by_its_own_device():
    """In any order and any part: the same as all at once."""
    rows = synthetic_rows(problems=6)
    both = pl.concat([rows, rows.with_columns(device=pl.lit("h100"))]).drop("key", "op", "family")
    pooled = table_of(schema.conform(TRITON, both), {**A100, "h100": devices.get("h100")}).rows
    alone = [
        table_of(schema.conform(TRITON, both.filter(device=name)), {name: devices.get(name)}).rows for name in ("a100", "h100")
    ]
    truth = np.concatenate([part.only(pooled.names).features for part in alone])
    assert (truth[: len(alone[0])] != truth[len(alone[0]) :]).any()
    index = np.random.default_rng(0).permutation(len(pooled))[:200]
    np.testing.assert_array_equal(pooled.take(index).features, truth[index])
    np.testing.assert_array_equal(np.concatenate([block.features for block in pooled.blocks(37)]), truth)


def test_pieces_become_one_frame_of_contiguous_columns_and_are_not_kept():
    """So that a million rows are in memory once."""
    whole = synthetic_rows(problems=6)
    pieces = list(whole.iter_slices(7))
    made = stacked(pieces)
    assert pieces == []
    assert made.n_chunks("all") == [1] * made.width
    columns, kept = made.get_columns(), pl.Series(np.arange(made.height) % 3 == 0)
    assert_frame_equal(made, whole)
    assert_frame_equal(rows_where(columns, kept), whole.filter(kept))
    assert columns == []


@pytest.mark.parametrize("computed", [False, True])
def test_features_are_those_of_their_rows_however_the_rows_were_taken(computed):
    """They are computed when they are needed; parts of parts, some of the names, blocks: each has its own."""
    whole = table_of(synthetic_rows(problems=6)).rows
    truth, names = table_of(synthetic_rows(problems=6)).rows.features, whole.names[::-2]
    if computed:
        assert whole.features.shape == truth.shape
    places = [whole.names.index(name) for name in names]
    index = np.arange(len(whole))[::3]
    np.testing.assert_array_equal(whole.take(index).take(np.array([4, 1])).features, truth[index[[4, 1]]])
    np.testing.assert_array_equal(whole.only(names).take(index).take(np.array([2])).features, truth[index[[2]]][:, places])
    np.testing.assert_array_equal(whole.take(index).only(names).features, truth[index][:, places])
    np.testing.assert_array_equal(np.concatenate([block.features for block in whole.blocks(5)]), truth)
