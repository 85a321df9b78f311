"""CK Tile's convolution kernels: the 300 of them, their names, their features."""

import polars as pl
import pytest

from kerncast.core.op import Config, Problem
from kerncast.errors import InvalidValue
from kerncast.library import devices
from kerncast.library.families.grouped_conv_ck_tile import FAMILY_OF, ConvKernel, parse_conv_kernel

LAYER = {"N": 8, "C": 64, "K": 128, "Hi": 56, "Wi": 56, "Y": 3, "X": 3, "pad_h": 1, "pad_w": 1, "dtype": "bf16"}
# A layer, a strided depthwise one, a dilated volume and a single pixel: what kernels look alike on differs.
PROBLEMS = (
    LAYER,
    {**LAYER, "C": 96, "K": 96, "G": 96, "stride_h": 2, "stride_w": 2, "N": 1},
    {**LAYER, "Di": 8, "Z": 3, "pad_d": 2, "dilation_d": 2, "C": 6, "K": 4, "G": 2},
    {**LAYER, "Hi": 1, "Wi": 1, "Y": 1, "X": 1, "pad_h": 0, "pad_w": 0, "C": 1, "K": 1, "N": 1},
)


@pytest.fixture(params=FAMILY_OF)
def family(request):
    return FAMILY_OF[request.param]


def test_there_are_300_kernels_and_each_is_written_and_read_by_its_name(family):
    """Every config of the space has a name of its own, which gives the config back."""
    names = set()
    for point in family.config.enumerate(family.bindings(LAYER, devices.get("gfx950"))):
        for dimensions in (2, 3):
            kernel = ConvKernel(family, "bf16", dimensions, point)
            assert parse_conv_kernel(kernel.name) == kernel
            names.add(kernel.name)
    assert len(names) == 2 * 300
    assert family.config.count() == 300


@pytest.mark.parametrize("problem", PROBLEMS)
def test_no_two_kernels_share_a_feature_vector(family, problem):
    """Sixteen kernels with one vector cost the reference system 4.5 points of efficiency."""
    device = devices.get("gfx950")
    features = family.features_on(device, ["bf16"])
    assert not features.left_out
    values = Problem(family, problem).as_dict()
    configs = pl.DataFrame(list(family.config.enumerate()))
    rows = configs.rename(lambda name: f"c.{name}").with_columns(pl.lit(value).alias(f"p.{k}") for k, value in values.items())
    vectors = features.program.frame(rows)
    assert vectors.n_unique() == 300
    assert vectors.select(pl.all().is_finite().all()).row(0) == (True,) * vectors.width


def test_tiles_are_counted_on_the_product_of_the_direction():
    """The same layer is another product in every direction, and the tiles follow it."""
    config = parse_conv_kernel("grouped_conv_forward_bf16_2d_32x64x64_compv3").config
    grouped = {**LAYER, "G": 2, "stride_h": 2, "stride_w": 2}
    truth = {  # rows, columns and depth of a group's product; products
        "forward": (8 * 28 * 28, 64, 32 * 9, 2),
        "bwd_data": (8 * 28 * 28, 32, 64 * 4, 2 * 4),
        "bwd_weight": (64, 32 * 9, 8 * 28 * 28, 2),
    }
    for variant, (m, n, k, products) in truth.items():
        family = FAMILY_OF[variant]
        problem = Problem(family, grouped)
        symbols = family.problem.qualified(problem.as_dict()) | family.config.qualified(config)
        found = family.features_on(devices.get("gfx950"), ["bf16"]).program.scalar(symbols)
        tiles = (-(-m // 32), -(-n // 64), -(-k // 64))
        assert (found["num_tiles_m"], found["num_tiles_n"], found["num_tiles_k"]) == tiles
        assert found["total_output_tiles"] == tiles[0] * tiles[1] * products
        assert found["true_utilization"] == pytest.approx(m * n * k / (tiles[0] * 32 * tiles[1] * 64 * tiles[2] * 64))
        assert found["num_warps"] == 4


def test_what_cannot_be_built_or_run_is_refused(family):
    """The rule, by constraint: tiles, wave modes, buffers, LDS, layouts, dtypes."""
    good = parse_conv_kernel("grouped_conv_forward_bf16_2d_128x64x128_compv3_intrawave_dsb").config
    Config(family, good, problem=Problem(family, LAYER), device=devices.get("gfx950"))
    for change, problem, device, words in (
        ({"warp_m": 4}, {}, "gfx950", "the block tile must be one of"),
        ({"wave_mode": "interwave"}, {}, "gfx950", "only basic_v1 and mem have an interwave mode"),
        ({"pipeline": "compv4", "double_smem_buffer": False}, {}, "gfx950", "compv4 always has two LDS buffers"),
        ({}, {}, "gfx942", "must fit in LDS"),
        ({}, {"layout": "nchw"}, "gfx950", "channels-last"),
        ({}, {"dtype": "fp64"}, "gfx950", "matrix instruction of the dtype"),
    ):
        with pytest.raises(InvalidValue, match=words):
            Config(family, {**good, **change}, problem=Problem(family, {**LAYER, **problem}), device=devices.get(device))


@pytest.mark.parametrize(
    ("name", "words"),
    [
        ("grouped_conv_forward_bf16_2d_128x64x64_compv3_intrawave", "there is no tile 128x64x64"),
        ("grouped_conv_forward_bf16_2d_64x64x64_compv3_interwave", "there is no variant compv3_interwave"),
        ("grouped_conv_forward_bf16_2d_64x64x64_compv4_intrawave", "there is no variant compv4_intrawave"),
        ("grouped_conv_forward_bf16_2d_64x64x64_mem_intrawave_si_dsb", "a kernel name must be"),
        ("grouped_conv_forward_bf16_2d_64x64x64_mem_intrawave_gm2", "a kernel name must be"),
        ("grouped_conv_forward_fp64_2d_64x64x64_mem_intrawave", "a kernel name must be"),
        ("grouped_conv_forward_bf16_1d_64x64x64_mem_intrawave", "a kernel name must be"),
        ("grouped_conv_fwd_bf16_2d_64x64x64_mem_intrawave", "a kernel name must be"),
        (" grouped_conv_forward_bf16_2d_64x64x64_mem_intrawave", "a kernel name must be"),
    ],
)
def test_other_names_are_refused_with_the_rule(name, words):
    """Nothing is guessed from a name that is not one of them."""
    with pytest.raises(InvalidValue, match=words):
        parse_conv_kernel(name)


def test_a_name_without_wave_mode_is_of_the_time_before_there_was_one():
    """Intrawave, and compv4 with the two buffers that it needs."""
    old = parse_conv_kernel("grouped_conv_bwd_data_bf16_3d_64x64x64_compv4")
    assert old.name == "grouped_conv_bwd_data_bf16_3d_64x64x64_compv4_intrawave_dsb"
    assert parse_conv_kernel("grouped_conv_bwd_data_bf16_3d_64x64x64_mem").config["double_smem_buffer"] is False
