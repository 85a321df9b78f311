"""Problem sets of grouped convolution: each keeps its promise, and `wide` can be measured on a CPU."""

import polars as pl
import pytest

from kerncast.core.op import Problem
from kerncast.errors import BadFile
from kerncast.library.ops.grouped_conv import grouped_conv_bwd_data, grouped_conv_bwd_weight, grouped_conv_forward
from kerncast.library.problems import named_sets, problem_set
from kerncast.library.problems.conv import AXES, SETS

PLAIN = {"dtype": ["fp32"]}
C, K, G = (pl.col(name) for name in "CKG")
STRIDE, TAPS, SIZES = pl.max_horizontal("stride_h", "stride_w"), pl.col("Y") * pl.col("X"), ("Hi", "Wi")


@pytest.mark.parametrize("name", SETS)
def test_every_set_holds_different_valid_problems_that_keep_its_promise(name):
    """No problem is dropped by a rule of the op, none comes twice, and all have the property that the set is named for."""
    frame = problem_set(grouped_conv_forward, [name], PLAIN)
    assert frame.height == len(list(SETS[name]())) == frame.n_unique() > 60
    for row in frame.iter_rows(named=True):
        Problem(grouped_conv_forward, row)
    promise = {
        "resnet": (G == 1) & pl.col("N").is_between(1, 64) & TAPS.is_in([1, 9, 49]),
        "depthwise": (G == C) & (K % C == 0) & (C >= 32),
        "grouped": G.is_in([2, 4, 8, 32]) & (C > G),
        "dilated": pl.max_horizontal("dilation_h", "dilation_w") > 1,
        "strided": STRIDE > 1,
        "powers": pl.all_horizontal((pl.col(side) & (pl.col(side) - 1)) == 0 for side in ("N", "C", "K", *SIZES)),
        "volumes": (pl.col("Di") > 1) & (pl.col("pad_d") == (pl.col("Z") - 1) // 2),
        "asymmetric": pl.max_horizontal("C", "K") >= 4 * pl.min_horizontal("C", "K"),
        "edge": pl.col("N").is_between(1, 32),
        "wide": pl.col("N").is_between(1, 32),
        "validation": pl.col("N").is_between(1, 128) & pl.col("Hi").is_between(7, 112),
    }[name]
    assert frame.select(promise.all()).item()


@pytest.mark.parametrize("op", [grouped_conv_forward, grouped_conv_bwd_data, grouped_conv_bwd_weight], ids=lambda op: op.name)
def test_wide_reaches_every_corner_within_a_gflop(op):
    """At least 260 problems are left below a GFLOP, and every kind of layer, size of image and batch is among them."""
    assert list(named_sets(op)) == list(SETS)
    frame = problem_set(op, ["wide"], PLAIN, max_flops=1e9)
    assert 260 <= frame.height <= 400
    corners = {
        "depthwise": (G > 1) & (G == C), "grouped": G.is_in([2, 4, 8]), "strided": STRIDE > 1,
        "dilated": pl.col("dilation_h") > 1, "1x1": TAPS == 1, "large filter": TAPS > 9, "volume": pl.col("Di") > 1,
        "wider out": K >= 2 * C, "narrower out": C >= 2 * K, "odd": C % 2 == 1,
        **{f"image of {size}": pl.col("Hi") == size for size in (7, 14, 28, 56, 112)},
        **{f"batch of {count}": pl.col("N") == count for count in (1, 2, 4, 8, 16, 32)},
    }  # fmt: skip
    counts = frame.select(test.sum().alias(name) for name, test in corners.items()).row(0, named=True)
    assert min(counts.values()) >= 7, counts


def test_validation_is_300_problems_of_every_kind_that_training_has_not_seen():
    """None is in another set; groups, depthwise, strides, volumes, every size and batch are there, in all directions."""
    held = {tuple(shape) for shape in SETS["validation"]()}
    assert len(held) == 300
    assert not held & {tuple(shape) for name, rule in SETS.items() if name != "validation" for shape in rule()}
    for op in (grouped_conv_forward, grouped_conv_bwd_data, grouped_conv_bwd_weight):
        frame = problem_set(op, ["validation"], PLAIN)
        corners = {
            "grouped": G.is_in([2, 4, 8]), "depthwise": (G == C) & (G > 1), "strided": STRIDE > 1, "1x1": TAPS == 1,
            "volume": pl.col("Di") > 1, "wider out": K >= 2 * C, "narrower out": C >= 2 * K,
            **{f"image of {size}": pl.col("Hi") == size for size in (7, 14, 28, 32, 56, 112)},
            **{f"batch of {count}": pl.col("N") == count for count in (1, 2, 4, 8, 16, 32, 64, 128)},
        }  # fmt: skip
        counts = frame.select(test.sum().alias(name) for name, test in corners.items()).row(0, named=True)
        assert min(counts.values()) >= 10, counts


def test_edge_holds_what_breaks_kernels():
    """One pixel, one channel, a filter larger than the image, images that are no squares, batches that are no powers."""
    frame = problem_set(grouped_conv_forward, ["edge"], PLAIN)
    for test in (
        (pl.col("Hi") == 1) & (pl.col("Wi") == 1),
        (C == 1) & (K == 1),
        pl.col("Y") > pl.col("Hi"),
        pl.col("Hi") != pl.col("Wi"),
        pl.col("Y") != pl.col("X"),
        pl.col("N") == 5,
        (TAPS > 1) & (pl.col("pad_h") + pl.col("pad_w") == 0),
        G == 3,
    ):
        assert frame.filter(test).height > 0
    assert set(AXES) <= set(frame.columns)


def test_a_bare_list_may_give_every_whole_number_of_a_convolution(tmp_path):
    """Nineteen numbers are the sizes in declared order, seven are those without a default; anything else is refused."""
    shape = [2, 8, 16, 2, 1, 9, 9, 1, 3, 3, 1, 2, 2, 0, 1, 1, 1, 1, 1]
    for name, entry in (("all", shape), ("few", [2, 8, 16, 9, 9, 3, 3]), ("wrong", shape[:-1])):
        (tmp_path / f"{name}.json").write_text(str([entry]))
    found = problem_set(grouped_conv_forward, [str(tmp_path / "all.json")], PLAIN).row(0, named=True)
    assert [found[name] for name in AXES] == shape
    assert problem_set(grouped_conv_forward, [str(tmp_path / "few.json")], PLAIN)["stride_h"].to_list() == [1]
    with pytest.raises(BadFile, match="each entry must be"):
        problem_set(grouped_conv_forward, [str(tmp_path / "wrong.json")], PLAIN)
