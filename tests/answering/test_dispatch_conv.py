"""Convolutions of a caller's own arrays, in all three directions, by measuring and by a model's choice."""

import itertools

import numpy as np
import pytest

from kerncast.answering.dispatch import Dispatcher
from kerncast.errors import InvalidValue
from kerncast.measuring.backends.cpu import CpuBackend

pytestmark = pytest.mark.needs("a C compiler")


class FewTrials(CpuBackend):
    """Tries three configs, not hundreds."""

    def first_configs(self, problem):
        return itertools.islice(super().first_configs(problem), 3)

    def smaller(self, problem):
        return problem


@pytest.fixture(scope="module")
def backend():
    return FewTrials()


def plain(x, w, steps, groups):
    """A convolution by definition, channels last, in whole numbers; steps are (stride, padding, dilation) by axis."""
    pads = [(0, 0), *((pad, pad) for _, pad, _ in steps), (0, 0)]
    padded = np.pad(x, pads)
    made = [
        (size - (taps - 1) * dilation - 1) // stride + 1
        for size, taps, (stride, _, dilation) in zip(padded.shape[1:-1], w.shape[1:-1], steps, strict=True)
    ]
    out = np.zeros((x.shape[0], *made, w.shape[0]))
    share, filters = w.shape[-1], w.shape[0] // groups
    for at in itertools.product(*map(range, made)):
        for tap in itertools.product(*map(range, w.shape[1:-1])):
            place = tuple(a * stride + t * dilation for a, t, (stride, _, dilation) in zip(at, tap, steps, strict=True))
            for k in range(w.shape[0]):
                g = k // filters
                out[(slice(None), *at, k)] += padded[(slice(None), *place)][:, g * share : (g + 1) * share] @ w[(k, *tap)]
    return out


def integers(rng, *shape):
    return rng.integers(-3, 4, shape).astype(np.float32)


CASES = [
    ((2, 9, 8, 6), (4, 3, 2, 3), ((2, 1, 1), (1, 0, 2)), 2),
    ((1, 4, 5, 6, 3), (2, 2, 3, 3, 3), ((1, 0, 1), (1, 1, 1), (2, 1, 1)), 1),
    ((3, 7, 7, 16), (16, 3, 3, 1), ((1, 1, 1), (1, 1, 1)), 16),
]


@pytest.mark.parametrize("layout", ["nhwc", "nchw"])
@pytest.mark.parametrize("case", CASES)
def test_all_three_directions_are_those_of_the_definition(backend, case, layout):
    """Forward equals the sums over taps; each gradient is the transpose of the convolution in one operand."""
    shape, filter_shape, steps, groups = case
    rng = np.random.default_rng(0)
    x, w = integers(rng, *shape), integers(rng, *filter_shape)
    y = plain(x, w, steps, groups)
    dy = integers(rng, *y.shape)
    stride, padding, dilation = (tuple(step[i] for step in steps) for i in range(3))
    given = {"stride": stride, "padding": padding, "dilation": dilation, "groups": groups, "layout": layout}

    def stored(array):
        return np.ascontiguousarray(array if layout == "nhwc" else np.moveaxis(array, -1, 1))

    def run(direction, *arrays, **more):
        made = Dispatcher(f"grouped_conv_{direction}/cpu", backend=backend, budget=0.2).run(
            *map(stored, arrays), **given, **more
        )
        return made if layout == "nhwc" else np.moveaxis(made, 1, -1)

    assert np.array_equal(run("forward", x, w), y)
    dx = run("bwd_data", dy, w, input_size=shape[1:-1])
    dw = run("bwd_weight", x, dy, filter_size=filter_shape[1:-1])
    # <dy, conv(a, b)> is linear in a and in b: a gradient is right if it gives that number for every direction tried.
    for _ in range(4):
        a, b = integers(rng, *x.shape), integers(rng, *w.shape)
        assert np.sum(dx * a, dtype=float) == np.sum(plain(a, w, steps, groups) * dy, dtype=float)
        assert np.sum(dw * b, dtype=float) == np.sum(plain(x, b, steps, groups) * dy, dtype=float)


def test_slices_and_given_results_are_used_as_numpy_would(backend):
    """An operand with gaps is copied, `out` is filled and returned even where it overlaps an operand."""
    rng = np.random.default_rng(1)
    wide, w = integers(rng, 2, 8, 16, 8), integers(rng, 8, 3, 3, 8)
    x = wide[:, :, ::2]
    convolve = Dispatcher("grouped_conv_forward/cpu", backend=backend, budget=0.2)
    wanted = plain(x, w, ((1, 1, 1), (1, 1, 1)), 1)
    out = np.empty(wanted.shape, np.float32)
    assert convolve.run(x, w, padding=1, out=out) is out
    assert np.array_equal(out, wanted)
    assert np.array_equal(convolve.run(x, w, padding=1, out=x), wanted)
    assert convolve.run(np.empty((0, 8, 8, 8), np.float32), w, padding=1).shape == (0, 8, 8, 8)
    no_channels = np.empty((2, 8, 8, 0), np.float32), np.empty((4, 3, 3, 0), np.float32)
    assert np.array_equal(convolve.run(*no_channels, padding=1), np.zeros((2, 8, 8, 4)))
    with pytest.raises(InvalidValue, match="out must be float32 of shape"):
        convolve.run(x.copy(), w, padding=1, out=np.empty(3, np.float32))


X, W, DY = np.zeros((2, 9, 9, 8), np.float32), np.zeros((16, 3, 3, 4), np.float32), np.zeros((2, 5, 5, 16), np.float32)


@pytest.mark.parametrize(
    ("direction", "arrays", "given", "rule"),
    [
        ("forward", (X, W), {}, "the channels of x must be 4 for these arrays, got 8"),
        ("forward", (X, W), {"groups": 2, "stride": [1, 2]}, "stride must be a whole number ≥ 1, or a tuple of 2"),
        ("forward", (X, W), {"groups": 2, "pads": 1}, "got pads"),
        ("forward", (X, W.astype(int)), {"groups": 2}, "w must be float32 or float64"),
        ("forward", (X, W), {"groups": 2, "layout": "hwc"}, "layout must be nhwc"),
        ("forward", (X, W), {"groups": 2, "dilation": 5}, "must fit into the padded input"),
        ("bwd_data", (DY, W), {"groups": 2, "stride": 2, "padding": 1}, "give one with input_size"),
        ("bwd_data", (DY, W), {"groups": 2, "stride": 2, "padding": 1, "input_size": 30}, "the pixels of dy must be"),
        ("bwd_weight", (X, DY), {"groups": 2, "stride": 2, "padding": 1}, "give one with filter_size"),
    ],
)
def test_arrays_that_make_no_convolution_are_refused_by_rule(backend, direction, arrays, given, rule):
    """The sentence names the rule and the value."""
    with pytest.raises(InvalidValue, match=rule):
        Dispatcher(f"grouped_conv_{direction}/cpu", backend=backend).run(*arrays, **given)
