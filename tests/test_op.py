"""Ops, families, problems, configs and keys."""

import math
from collections.abc import Mapping
from typing import ClassVar

import pytest

from kerncast.core.device import Device
from kerncast.core.op import Config, Family, Op, Problem, key
from kerncast.core.space import Constraint, Int
from kerncast.errors import BadFile, InvalidValue, NotFound
from kerncast.library import devices
from kerncast.library.declared.family_file import family_named
from kerncast.library.registry import FAMILIES, OPS, Registry

# The 55 features of CK Tile's GEMM heuristics, by the names they have there.
REFERENCE_FEATURES = """
M N K split_k log2_M log2_N log2_K log2_MNK arithmetic_intensity aspect_ratio_mn aspect_ratio_mk aspect_ratio_nk
layout tile_m tile_n tile_k warp_m warp_n warp_k warp_tile_m warp_tile_n warp_tile_k pipeline scheduler epilogue
pad_m pad_n pad_k persistent num_warps tile_volume tile_mn lds_usage_estimate lds_usage_ratio num_tiles_m
num_tiles_n num_tiles_k total_output_tiles tile_eff_m tile_eff_n tile_eff_k overall_tile_efficiency cu_utilization
hw_num_cus hw_simds_per_cu hw_total_simds hw_shader_engines hw_max_clock_mhz hw_max_waves_per_cu hw_wavefront_size
hw_lds_capacity hw_l1_cache_kb hw_l2_cache_kb hw_l3_cache_kb hw_num_xcd
""".split()

CK_CONFIG = {
    "tile_m": 128, "tile_n": 64, "tile_k": 64, "warp_m": 2, "warp_n": 2, "warp_k": 1, "warp_tile_m": 32, "warp_tile_n": 32,
    "warp_tile_k": 16, "pipeline": "compv4", "scheduler": "intrawave", "epilogue": "cshuffle", "pad_m": True, "pad_n": False,
    "pad_k": True, "persistent": False,
}  # fmt: skip


def gemm_problem(**changes):
    values = {"M": 1000, "N": 130, "K": 200, "dtype": "fp8", "layout": "rcr", **changes}
    return Problem(OPS.get("gemm"), values)


def test_the_reference_systems_55_features_are_there_under_their_own_names():
    """A CK Tile model's feature list can be mapped name by name."""
    assert len(REFERENCE_FEATURES) == 55
    family = family_named("gemm/ck_tile")
    features = family.features_on(devices.get("gfx950"), ["fp8"])
    assert not features.left_out
    assert set(REFERENCE_FEATURES) <= set(features.program.outputs)


def test_ck_tile_features_have_the_values_that_pencil_and_paper_give():
    """M=1000 N=130 K=200 in tiles of 128 × 64 × 64 on 256 compute units."""
    family, device = family_named("gemm/ck_tile"), devices.get("gfx950")
    problem = gemm_problem()
    config = Config(family, CK_CONFIG, device=device)
    values = {**family.problem.qualified(problem.as_dict()), **family.config.qualified(config.as_dict())}
    got = family.features_on(device, ["fp8"]).program.scalar(values)
    tiles = 8 * 3 * 4
    expected = {
        "layout": 0, "pipeline": 1, "scheduler": 0, "epilogue": 1, "pad_m": 1, "pad_n": 0, "num_warps": 4,
        "arithmetic_intensity": 2 * 1000 * 130 * 200 / (1000 * 200 + 200 * 130 + 1000 * 130),
        "log2_MNK": math.log2(1000 * 130 * 200), "aspect_ratio_mk": 5.0, "tile_volume": 128 * 64 * 64,
        "lds_usage_estimate": (128 + 64) * 64, "lds_usage_ratio": (128 + 64) * 64 / 32768,
        "num_tiles_m": 8, "num_tiles_n": 3, "num_tiles_k": 4, "total_output_tiles": 24,
        "tile_eff_m": (1000 % 128) / 128, "tile_eff_n": 2 / 64, "tile_eff_k": 8 / 64,
        "overall_tile_efficiency": (104 / 128) * (2 / 64) * (8 / 64), "cu_utilization": 24 / 256,
        "hw_total_simds": 1024, "hw_lds_capacity": 160 * 1024,
        "wave_quantization": 24 / 256, "waves": 24 / 256,
        "true_utilization": 1000 * 130 * 200 / (tiles * 128 * 64 * 64),
        "operand_traffic_bytes": 3 * 1000 * 200 + 8 * 200 * 130 + 1000 * 130,
        "needs_padding_m": 1, "missing_required_padding_n": 1, "missing_required_padding_m": 0, "any_dim_too_small": 0,
    }  # fmt: skip
    for name, value in expected.items():
        assert got[name] == pytest.approx(value, rel=1e-12), name
    bandwidth = device.numbers["memory_bandwidth_gb_s"] * 1e9
    traffic = (1000 * 200 + 200 * 130 + 1000 * 130) / bandwidth
    arithmetic = 2 * 1000 * 130 * 200 / (device.peak_tflops["fp8"] * 1e12)
    assert got["roofline_ns"] == pytest.approx(max(traffic, arithmetic) * 1e9, rel=1e-12)


def test_the_library_kernel_of_gemm_triton_has_no_tiles():
    """A conditional parameter is None in the config, its declared number in the features."""
    family, device = family_named("gemm/triton"), devices.get("a100")
    library = Config(family, {"kind": "library"})
    assert library.as_dict()["BLOCK_M"] is None
    problem = Problem(family, {"M": 1000, "N": 130, "K": 200, "dtype": "fp16", "layout": "rcr"})
    values = {**family.problem.qualified(problem.as_dict()), **family.config.qualified(library.as_dict())}
    got = family.features_on(device, ["fp16"]).program.scalar(values)
    assert got["kind"] == 1
    assert got["BLOCK_M"] == got["blocks"] == got["wave_quantization"] == 0
    config = {"kind": "triton", "BLOCK_M": 256, "BLOCK_N": 256, "BLOCK_K": 128, "num_stages": 4, "num_warps": 8}
    with pytest.raises(InvalidValue, match="must fit in the shared memory of one block"):
        Config(family, config, problem=problem, device=device)


def test_a_config_that_breaks_several_rules_hears_of_all_of_them():
    """Each constraint speaks its own sentence."""
    family = family_named("gemm/ck_tile")
    bad = {**CK_CONFIG, "tile_m": 96, "warp_n": 16, "tile_n": 512, "tile_k": 512, "scheduler": "interwave"}
    with pytest.raises(InvalidValue) as caught:
        Config(family, bad, problem=gemm_problem(), device=devices.get("gfx950"))
    for sentence in ("tile_m must be warp_m", "2 to 16 warps", "must fit in LDS", "no interwave scheduler"):
        assert sentence in str(caught.value)


def test_every_ck_tile_config_of_a_device_can_be_told_apart():
    """No two configs share a feature row: sixteen kernels did in the reference system."""
    family, device = family_named("gemm/ck_tile"), devices.get("gfx942")
    import polars as pl

    configs = family.config.sample(3000, 0, family.bindings({"dtype": "fp8"}, device))
    frame = configs.rename({name: f"c.{name}" for name in configs.columns}).with_columns(
        *(pl.lit(value).alias(f"p.{name}") for name, value in gemm_problem().items())
    )
    features = family.features_on(device, ["fp8"]).program.frame(frame)
    assert features.n_unique() == configs.n_unique() == 3000


def test_features_that_need_an_unknown_hardware_number_are_left_out_and_named():
    """Never NaN, never a guess."""
    family = family_named("gemm/ck_tile")
    bare = Device("bare", "a device nobody described", "gpu", numbers={"num_cus": 10.0})
    features = family.features_on(bare)
    assert features.left_out["roofline_ns"] == ("hw.memory_bandwidth_gb_s", "hw.peak_flops")
    assert features.left_out["lds_usage_ratio"] == ("hw.lds_capacity_bytes",)
    assert "cu_utilization" in features.program.outputs
    assert not {item.name for item in features.program.symbols if item.name.startswith("hw.")}
    known = Device("known", "x", "gpu", numbers={"memory_bandwidth_gb_s": 1000.0}, peak_tflops={"fp16": 100.0})
    assert "roofline_ns" in family.features_on(known, ["fp16"]).program.outputs
    assert "roofline_ns" in family.features_on(known, ["fp16", "fp8"]).left_out
    assert "roofline_ns" in family.features_on(known).left_out  # the op declares dtypes whose rate is not known


def test_problems_are_frozen_validated_and_readable():
    """Defaults are filled once, at the edge; derived values read like parameters."""
    problem = gemm_problem()
    assert (problem.M, problem.split_k, problem.batch, problem.element_bytes) == (1000, 1, 1, 1.0)
    assert problem == gemm_problem()
    assert len({problem, gemm_problem(), gemm_problem(M=2)}) == 2
    with pytest.raises(AttributeError, match="frozen"):
        problem.M = 3
    with pytest.raises(InvalidValue, match="M must be a whole number from 1 to 2147483647, got 0"):
        gemm_problem(M=0)
    with pytest.raises(InvalidValue, match=r"unknown parameter of gemm 'm': did you mean 'M'\? known: K, M, N"):
        gemm_problem(m=3)
    with pytest.raises(InvalidValue, match="dtype must be one of"):
        gemm_problem(dtype="fp7")
    with pytest.raises(InvalidValue, match="gemm needs K: a whole number"):
        Problem(OPS.get("gemm"), M=1, N=1, dtype="fp8", layout="rcr")
    with pytest.raises(InvalidValue, match="got True"):
        gemm_problem(M=True)
    with pytest.raises(InvalidValue, match=r"got 2\.5"):
        gemm_problem(M=2.5)


def test_keys_depend_on_every_parameter_and_ignore_inactive_ones():
    """A key is pinned: datasets and journals outlive a version."""
    family = family_named("gemm/triton")
    problem, library = gemm_problem(dtype="fp16"), Config(family, {"kind": "library"})
    assert key(problem, library, "a100") == "cad9acfadc5de81336dc1893"
    assert key(problem, library, "h100") != key(problem, library, "a100")
    assert key(gemm_problem(dtype="fp16", split_k=2), library, "a100") != key(problem, library, "a100")


def test_unknown_names_are_refused_with_the_nearest_known_one():
    """One sentence, and where to look."""
    with pytest.raises(NotFound, match="unknown op 'gem': did you mean 'gemm'\\? see `kerncast list op`"):
        OPS.get("gem")
    with pytest.raises(NotFound, match="unknown family 'gemm/ck'"):
        family_named("gemm/ck")
    with pytest.raises(NotFound, match="unknown device 'h1000': did you mean 'h100'"):
        devices.get("h1000")


def test_bad_op_and_family_declarations_are_refused_when_made():
    """A typo in a feature, a clash of names or a wrong id does not wait for the first row."""

    class Broken(Op):
        name = "broken"
        parameters = {"M": Int(1, 8)}
        split_group = ("M",)

    op = Broken()

    class Typo(Family):
        id = "broken/typo"

        def features(self, p, c, hw):
            return {"x": p.MM}

    class WrongId(Family):
        id = "other/name"

    class Unbuildable(Family):
        id = "broken/unbuildable"

        def constraints(self, p, c, hw):
            return [Constraint("fits", "must fit", hw.lds <= p.M)]

    Typo.op = WrongId.op = Unbuildable.op = op
    with pytest.raises(NotFound, match="unknown symbol of broken 'MM'"):
        _ = Typo().feature_program
    with pytest.raises(InvalidValue, match="family id must be 'broken/<name>', got 'other/name'"):
        WrongId()
    with pytest.raises(NotFound, match="unknown symbol of hw 'lds'"):
        Unbuildable()
    Broken.split_group = ("N",)
    with pytest.raises(InvalidValue, match="split_group must name parameters"):
        Broken()


def test_two_packages_cannot_claim_one_name(monkeypatch):
    """A clash names both sides."""

    class Entry:
        name, value = "gemm", "elsewhere:gemm"

        @staticmethod
        def load():
            return type(OPS.get("gemm"))()

    monkeypatch.setattr("kerncast.library.registry.metadata.entry_points", lambda group: [Entry])
    with pytest.raises(
        BadFile, match=r"op 'gemm' is declared by both kerncast\.library\.ops\.gemm and entry point gemm \(elsewhere:gemm\)"
    ):
        _ = Registry(Op, "kerncast.library.ops", "name", "kerncast list op").found


def test_a_family_is_found_alone_as_it_is_among_all():
    """Whether or not a module is named after it; an unknown name is refused with the nearest."""
    for family in FAMILIES:
        assert Registry(Family, "kerncast.library.families", "id", "kerncast list family").alone(family.id) is family
    with pytest.raises(NotFound, match="did you mean 'gemm/triton'"):
        Registry(Family, "kerncast.library.families", "id", "kerncast list family").alone("gemm/triten")


def test_every_shipped_family_traces_and_names_its_split_group():
    """Each family's features compile, and its op's folds group by real parameters."""
    for family in FAMILIES:
        assert family.feature_program.outputs, family.id
        assert set(family.op.split_group) <= set(family.problem.parameters)


def test_problems_and_configs_are_read_only_mappings():
    problem = gemm_problem()
    assert isinstance(problem, Mapping)
    assert (problem["M"], problem["M"] == problem.M, "M" in problem, "Q" in problem) == (problem.M, True, True, False)
    assert dict(problem) == {**problem} == problem.as_dict() == dict(problem.items())
    assert list(problem) == list(problem.keys()) == list(problem.op.parameters)
    assert len(problem) == len(list(problem.values()))
    assert problem.get("Q") is None
    with pytest.raises(KeyError, match="Q"):
        problem["Q"]
    with pytest.raises(TypeError):
        problem["M"] = 1


def test_a_derived_value_that_a_method_would_hide_is_refused():
    class Hidden(Op):
        name = "hidden"
        parameters: ClassVar = {"M": Int(1, 8)}
        split_group = ("M",)

        def derive(self, p):
            return {"keys": 2 * p.M}

    with pytest.raises(InvalidValue, match="'keys' is reserved; rename it"):
        Hidden()
