"""Convolutions on this CPU: every kernel in every direction against an exact result, and what the families say of them."""

import ctypes
import itertools

import numpy as np
import polars as pl
import pytest

from kerncast.core.op import Config, Problem
from kerncast.library import devices
from kerncast.library.families.grouped_conv_cpu import FAMILIES
from kerncast.measuring.backends.contract import Unsupported
from kerncast.measuring.backends.cpu.conv import TENSORS, ConvPart, make_tensors, reference, shapes
from kerncast.measuring.backends.cpu.conv.plan import ConvGeometry, ConvLayout
from kerncast.measuring.backends.cpu.inputs import InputCache
from kerncast.measuring.backends.cpu.machine import Machine

DIRECTIONS = dict(zip(TENSORS, FAMILIES, strict=True))
# Tiles that are cut in both directions by the sizes below; narrow vectors wherever they are valid.
TILES = ((6, 2), (3, 4), (14, 1))
# Channels and groups, image, filter, stride, pad, dilation: odd sizes, a rim wider than the filter needs, taps that no
# pixel of a phase meets, rows shorter than a vector, one tap (a plain product, and one
# that a pad shifts), three dimensions.
AWKWARD = [
    ((2, 5, 9, 1), (1, 7, 11), (1, 3, 3), (1, 1, 1), (0, 1, 1), (1, 1, 1)),
    ((1, 20, 34, 2), (1, 9, 30), (1, 3, 5), (1, 2, 2), (0, 2, 1), (1, 1, 1)),
    ((3, 8, 8, 8), (1, 6, 13), (1, 3, 3), (1, 1, 1), (0, 1, 1), (1, 1, 1)),
    ((2, 16, 16, 16), (1, 8, 9), (1, 3, 3), (1, 2, 2), (0, 1, 1), (1, 1, 1)),
    ((1, 12, 20, 4), (1, 10, 12), (1, 3, 2), (1, 1, 2), (0, 2, 2), (1, 2, 3)),
    ((2, 17, 19, 1), (1, 5, 7), (1, 1, 1), (1, 1, 1), (0, 0, 0), (1, 1, 1)),
    ((2, 9, 10, 1), (1, 7, 6), (1, 1, 1), (1, 3, 2), (0, 0, 0), (1, 1, 1)),
    ((1, 3, 20, 1), (1, 7, 8), (1, 1, 1), (1, 1, 1), (0, 2, 0), (1, 1, 1)),
    ((1, 6, 4, 2), (5, 6, 9), (3, 2, 3), (2, 1, 1), (1, 0, 1), (1, 2, 1)),
]


def values(case, dtype="fp32", layout="nhwc"):
    """A problem's values from one of the lists above."""
    (n, c, k, g), size, taps, stride, pad, dilation = case
    steps = {f"{name}_{axis}": x for name, list_ in (("stride", stride), ("pad", pad), ("dilation", dilation))
             for axis, x in zip("dhw", list_, strict=True)}  # fmt: skip
    sizes = dict(zip(("Di", "Hi", "Wi", "Z", "Y", "X"), (*size, *taps), strict=True))
    return {"N": n, "C": c, "K": k, "G": g, **sizes, **steps, "dtype": dtype, "layout": layout, "threads": 1}


def naive(direction, p, first, second):
    """Seven loops, straight from the definition."""
    found = np.zeros(shapes(p)[TENSORS[direction][2]])
    tensors = dict(zip(TENSORS[direction], (first, second, found), strict=True))
    last = p["layout"] == "nhwc"
    x, w, y = (tensors[name] if last else np.moveaxis(tensors[name], 1, -1) for name in ("input", "weights", "output"))
    inner, outer = p["C"] // p["G"], p["K"] // p["G"]
    for n, d, h, v, k in itertools.product(*map(range, y.shape)):
        for z, i, j in itertools.product(*(range(p[name]) for name in "ZYX")):
            at = [
                o * p[f"stride_{a}"] + t * p[f"dilation_{a}"] - p[f"pad_{a}"]
                for o, t, a in zip((d, h, v), (z, i, j), "dhw", strict=True)
            ]
            if any(not 0 <= position < size for position, size in zip(at, x.shape[1:4], strict=True)):
                continue
            for c in range(inner):
                source, weight, target = (n, *at, k // outer * inner + c), (k, z, i, j, c), (n, d, h, v, k)
                if direction == "forward":
                    y[target] += x[source] * w[weight]
                elif direction == "bwd_data":
                    x[source] += y[target] * w[weight]
                else:
                    w[weight] += y[target] * x[source]
    return found


@pytest.fixture(scope="module")
def part():
    """One for all tests, which know each other's kernels."""
    return ConvPart(Machine())


def some_configs(family, problem, count):
    """Valid configs with the tiles of TILES: each kernel and each width of vectors that there is, then others."""
    drawn = family.config.sample(10_000, 1, family.bindings(problem, devices.local()))
    drawn = drawn.filter(pl.any_horizontal((pl.col("mr") == mr) & (pl.col("nv") == nv) for mr, nv in TILES))
    first = drawn.unique(
        ["kernel", "vector_bytes", "mr"] + (["border"] if "border" in drawn.columns else []), maintain_order=True
    )
    rows = pl.concat([first, drawn]).unique(maintain_order=True).head(count)
    return [Config.trusted(family, row) for row in rows.iter_rows(named=True)]


@pytest.mark.parametrize("direction", DIRECTIONS)
@pytest.mark.parametrize("layout", ["nhwc", "nchw"])
def test_the_reference_is_the_definition(direction, layout):
    """Tap by tap as seven loops do it, with groups, strides, pads, dilations and in three dimensions."""
    for case in (AWKWARD[4], AWKWARD[8], ((2, 4, 6, 2), (1, 5, 4), (1, 3, 2), (1, 2, 1), (0, 1, 1), (1, 1, 2))):
        p = values(case, "fp64", layout)
        inputs = make_tensors(p, direction)
        assert np.array_equal(inputs.reference, naive(direction, p, inputs.a, inputs.b))
        assert np.array_equal(reference(direction, p, inputs.a, inputs.b), inputs.reference)


@pytest.mark.needs("a C compiler")
@pytest.mark.parametrize("direction", DIRECTIONS)
def test_every_kernel_is_exact(part, direction):
    """Bit for bit, both layouts and dtypes, sizes that no tile divides."""
    family, vectors = DIRECTIONS[direction], []
    for case, layout in itertools.product(AWKWARD, ("nhwc", "nchw")):
        for dtype, count in (("fp32", 14), ("fp64", 4)):
            problem = Problem(family, values(case, dtype, layout))
            vectors += [(problem, config) for config in some_configs(family, problem, count)]
    part.compile(vectors)
    assert part.compilations(vectors) == 0
    assert {config.kernel for _, config in vectors} == {"direct", "im2col", "depthwise"}
    wrong = [(problem, config) for problem, config in vectors if part.prepare(problem, config).check() != 0]
    assert not wrong


@pytest.mark.needs("a C compiler")
@pytest.mark.parametrize("direction", DIRECTIONS)
def test_nothing_is_written_beside_the_result(part, direction):
    """Operands that begin anywhere, a result with something before and behind it: it is made, and they stay."""
    family = DIRECTIONS[direction]
    for case, layout in itertools.product((AWKWARD[0], AWKWARD[3]), ("nhwc", "nchw")):
        problem = Problem(family, values(case, "fp32", layout))
        inputs = part.inputs.get(problem.as_dict(), direction)
        for config in some_configs(family, problem, 6):
            plan = part.plan(ConvLayout(ConvGeometry.of(direction, problem.as_dict()), "fp32", config.as_dict()))
            copies = [np.concatenate([[0], array.ravel()]).astype(np.float32)[1:] for array in (inputs.a, inputs.b)]
            room = np.full(inputs.c.size + 130, 7.0, np.float32)
            plan.source, plan.other = (array.ctypes.data for array in copies)
            plan.result = room[65:].ctypes.data
            part.functions[1](ctypes.byref(plan), 1)
            assert np.array_equal(room[65:-65], inputs.reference.ravel()), config
            assert (room[:65] == 7).all(), config
            assert (room[-65:] == 7).all(), config


@pytest.mark.needs("a C compiler")
def test_what_the_kernels_cannot_run_is_refused_by_its_rule(part):
    """A depthwise kernel for large groups, two threads, half precision: each with the sentence of its constraint."""
    family = DIRECTIONS["forward"]
    problem = Problem(family, values(AWKWARD[1]))
    config = some_configs(family, problem, 1)[0]
    depthwise = Config.trusted(family, {**config.as_dict(), "kernel": "depthwise", "kc": None, "nc": None, "border": "copy"})
    cases = [(problem, depthwise, "at most 8 source channels")]
    for change, rule in (({"threads": 2}, "one thread"), ({"dtype": "bf16"}, "fp32 and fp64")):
        cases.append((Problem(family, {**problem.as_dict(), **change}), config, rule))
    for refused, chosen, rule in cases:
        with pytest.raises(Unsupported, match=rule):
            part.prepare(refused, chosen)
        assert part.compilations([(refused, chosen)]) == 0


@pytest.mark.parametrize("direction", DIRECTIONS)
def test_features_tell_the_tiles_that_are_computed(direction):
    """Rows and vectors of a tile, counted from the features and from the plan, on every kernel and layout."""
    family, device = DIRECTIONS[direction], devices.local()
    for case, layout in itertools.product((AWKWARD[0], AWKWARD[2], AWKWARD[5], AWKWARD[8]), ("nhwc", "nchw")):
        p = values((*case[:3], (1, 1, 1), *case[4:]), "fp32", layout)
        problem = Problem(family, p)
        drawn = family.config.sample(200, 0, family.bindings(problem, device))
        program = family.features_on(device, ["fp32"]).program
        frame = drawn.rename({name: f"c.{name}" for name in drawn.columns})
        frame = frame.with_columns(pl.lit(value).alias(f"p.{name}") for name, value in problem.as_dict().items())
        told = program.frame(frame)
        assert told.select(f"c_{name}" for name in drawn.columns).is_unique().all(), "no two configs look alike"
        for row, config in zip(told.iter_rows(named=True), drawn.iter_rows(named=True), strict=True):
            tiles = ConvLayout(ConvGeometry.of(direction, p), "fp32", config).tiles
            if config.get("border") != "clip":
                assert row["rows_used"] in {rows for rows, _ in tiles}, config
            assert row["vectors_used"] in {vectors for _, vectors in tiles}, config


def test_every_problem_has_a_kernel():
    """Whatever the groups: constraints on small ones leave at least one kernel, and the usual problem 200 configs."""
    device = devices.local()
    for family, layout in itertools.product(FAMILIES, ("nhwc", "nchw")):
        usual = values(((1, 64, 64, 1), (1, 28, 28), (1, 3, 3), (1, 1, 1), (0, 1, 1), (1, 1, 1)), "fp32", layout)
        drawn = family.config.sample(200, 0, family.bindings(usual, device))
        assert drawn.height == 200
        # One config of each kernel that such a problem has, and its depthwise sibling.
        first = [drawn.filter(pl.col("kernel") == kernel).row(0, named=True) for kernel in ("direct", "im2col")]
        inactive = {"kc": None, "nc": None, "border": "copy"} if "border" in drawn.columns else {"nc": None}
        kernels = [*first, {**first[0], "kernel": "depthwise", **inactive}]
        for groups, inner, outer in itertools.product((1, 2, 3), (1, 2, 3, 4, 7, 8, 9, 40), (1, 2, 3, 4, 7, 8, 9, 40)):
            case = ((1, inner * groups, outer * groups, groups), (1, 9, 9), (1, 3, 3), (1, 2, 2), (0, 1, 1), (1, 1, 1))
            known = family.bindings(values(case, "fp32", layout), device)
            assert any(not family.config.validate(config, known) for config in kernels), (family, layout, groups, inner, outer)


@pytest.mark.needs("a C compiler")
def test_promising_configs_are_tried_first(part):
    """All valid, each once; for groups of one channel depthwise, for a large 3 × 3 a tile that uses most registers."""
    for family in FAMILIES:
        for case in (AWKWARD[3], ((1, 64, 64, 1), (1, 28, 28), (1, 3, 3), (1, 1, 1), (0, 1, 1), (1, 1, 1))):
            problem = Problem(family, values(case))
            found = list(part.first_configs(problem))
            assert len(found) == len(set(found)) > 50
            known = family.bindings(problem, part.machine.profile)
            assert not any(family.config.validate(config.as_dict(), known) for config in found)
            assert case is not AWKWARD[3] or found[0].kernel == "depthwise"
            assert case is AWKWARD[3] or found[0].mr * found[0].nv >= 8


@pytest.mark.needs("a C compiler")
def test_a_small_problem_stands_for_a_large_one(part):
    """Channels and rows' width stay, images and rows become few; what is short stays what it is."""
    large = Problem(FAMILIES[0], values(((32, 64, 64, 1), (1, 112, 112), (1, 3, 3), (1, 2, 2), (0, 1, 1), (1, 1, 1))))
    small = part.smaller(large)
    assert (small.N, small.C, small.Wi) == (1, 64, 112)
    assert 7 <= small.Hi < 112
    assert part.smaller(small) == small
    short = Problem(FAMILIES[0], values(AWKWARD[0]))
    assert part.smaller(short) is short


def test_inputs_are_shared_and_repeatable():
    """The same problem has the same operands, made once; threads make no difference, the direction does."""
    kept = InputCache(make_tensors)
    p = values(AWKWARD[0])
    assert kept.get(p, "forward") is kept.get({**p, "threads": 4}, "forward")
    assert kept.get(p, "forward") is not kept.get(p, "bwd_data")
    assert np.array_equal(make_tensors(p, "forward").a, kept.get(p, "forward").a)
