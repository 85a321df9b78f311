"""The three directions of a grouped convolution: derived sizes, work, and the product each of them is."""

import itertools

import pytest

from kerncast.core.expr import Program
from kerncast.core.op import Problem
from kerncast.errors import InvalidValue
from kerncast.library.ops.grouped_conv import grouped_conv_bwd_data, grouped_conv_bwd_weight, grouped_conv_forward

BASE = {"N": 2, "C": 8, "K": 12, "Hi": 9, "Wi": 11, "Y": 3, "X": 3, "dtype": "fp32"}
VARIANTS = [
    {},
    {"stride_h": 2, "stride_w": 3, "pad_h": 1, "pad_w": 2},
    {"dilation_h": 2, "pad_h": 2, "G": 4},
    {"Di": 5, "Z": 2, "stride_d": 2, "pad_d": 1, "stride_h": 2, "dilation_h": 2, "pad_h": 2},
]


def pairs_by_axis(p: Problem, axis: str, size: str, taps: str) -> list[tuple[int, int, int]]:
    """(input, tap, output) positions of one axis that meet, padding left out: by trying all of them."""
    stride, pad, dilation = (getattr(p, f"{name}_{axis}") for name in ("stride", "pad", "dilation"))
    outputs = [o for o in range(1000) if o * stride + (getattr(p, taps) - 1) * dilation < getattr(p, size) + 2 * pad]
    reached = ((o * stride + t * dilation - pad, t, o) for o, t in itertools.product(outputs, range(getattr(p, taps))))
    return [(i, t, o) for i, t, o in reached if 0 <= i < getattr(p, size)]


@pytest.mark.parametrize("variant", VARIANTS)
def test_output_sizes_are_those_of_the_filter_moved_step_by_step(variant):
    """Do, Ho and Wo count the positions at which the dilated filter lies inside the padded input."""
    p = Problem(grouped_conv_forward, {**BASE, **variant})
    for axis, size, taps, made in (("d", "Di", "Z", "Do"), ("h", "Hi", "Y", "Ho"), ("w", "Wi", "X", "Wo")):
        assert getattr(p, made) == 1 + max(o for _, _, o in pairs_by_axis(p, axis, size, taps))


@pytest.mark.parametrize("variant", VARIANTS)
def test_each_direction_is_a_product_that_holds_all_its_multiplications(variant):
    """Rows × columns × depth × count is the arithmetic; for the gradient of the input, where phases round up, no less."""
    values = {**BASE, **variant}
    for op in (grouped_conv_forward, grouped_conv_bwd_data, grouped_conv_bwd_weight):
        p = Problem(op, values)
        flops = Program({"flops": op.work(op.namespace()).flops}).scalar(op.problem.qualified(p.as_dict()))["flops"]
        product = 2 * p.gemm_m * p.gemm_n * p.gemm_k * p.gemm_count
        if op is not grouped_conv_bwd_data:
            assert product == flops
            continue
        met = 1
        for axis, size, taps in (("d", "Di", "Z"), ("h", "Hi", "Y"), ("w", "Wi", "X")):
            met *= len(pairs_by_axis(p, axis, size, taps))
        assert product >= 2 * p.N * p.K * p.C_per_group * met


def test_the_products_of_the_directions_differ():
    """A row is an output pixel forward, an input pixel for the gradient of the input, a filter for that of the weights."""
    values = {**BASE, "stride_h": 2, "stride_w": 2, "pad_h": 1, "pad_w": 1}
    forward, data, weight = (
        Problem(op, values) for op in (grouped_conv_forward, grouped_conv_bwd_data, grouped_conv_bwd_weight)
    )
    assert (forward.gemm_m, forward.gemm_n, forward.gemm_k, forward.gemm_count) == (2 * 5 * 6, 12, 8 * 9, 1)
    assert (weight.gemm_m, weight.gemm_n, weight.gemm_k, weight.gemm_count) == (12, 8 * 9, 2 * 5 * 6, 1)
    # A stride of 2 both ways makes four phases, each with a quarter of the pixels and of the taps, rounded up.
    assert (data.gemm_m, data.gemm_n, data.gemm_k, data.gemm_count) == (2 * 5 * 6, 8, 12 * 4, 4)


@pytest.mark.parametrize(
    ("change", "rule"), [({"G": 3}, "multiples of G"), ({"Y": 12}, "must fit"), ({"dilation_w": 6}, "must fit")]
)
def test_impossible_convolutions_are_refused_by_rule(change, rule):
    """Groups must divide the channels, and the filter must fit."""
    with pytest.raises(InvalidValue, match=rule):
        Problem(grouped_conv_forward, {**BASE, **change})


def test_stride_padding_and_dilation_are_part_of_the_problem():
    """Two convolutions that differ in one of them are two problems, and never share a fold by accident."""
    for name, value in (("stride_h", 2), ("pad_w", 1), ("dilation_h", 2)):
        assert Problem(grouped_conv_forward, BASE) != Problem(grouped_conv_forward, {**BASE, name: value})
        assert name in grouped_conv_forward.split_group
