"""`configs=inductor`: what torch's own heuristics offer for each problem of gemm/triton."""

import polars as pl
import pytest

from kerncast.errors import InvalidValue, KerncastError
from kerncast.library import devices
from kerncast.library.families.gemm_triton import triton
from kerncast.library.registry import FAMILIES
from kerncast.measuring.sweeping import Sweep, parse_selection
from kerncast.measuring.sweeping.files import header_of

PROBLEMS = pl.DataFrame(
    {"M": [512, 100, 16], "N": [256, 333, 4096], "K": [1024, 77, 4096], "dtype": ["fp16", "fp16", "fp32"], "layout": "rcr"}
)


@pytest.mark.needs("triton")
def test_inductor_offers_other_configs_for_each_problem():
    """Tiles are no larger than the problem, obey the family's rules, and the library's kernel is always there."""
    sweep = Sweep(triton, devices.get("h100"), PROBLEMS, parse_selection(triton, "inductor"))
    found = pl.concat(sweep.iter_blocks())
    assert sweep.count() == found.height
    small = found.filter(pl.col("problem.M") == 16)
    assert (small["config.BLOCK_M"].drop_nulls() == 16).all()
    assert found.filter(pl.col("config.kind") == "library").height == 3
    assert found["config.GROUP_M"].null_count() == found.height
    assert found.unique().height == found.height
    many = Sweep(triton, devices.get("h100"), PROBLEMS, parse_selection(triton, "inductor:exhaustive"), max_vectors=90)
    assert (many.count(), sum(block.height for block in many.iter_blocks())) == (90, 90)
    assert header_of(sweep, "parquet").portfolio != header_of(many, "parquet").portfolio
    assert "Inductor's default configs" in repr(sweep)


@pytest.mark.needs("triton")
@pytest.mark.filterwarnings("ignore:TRITON_DEFAULT_FP_FUSION:UserWarning")
def test_amd_has_its_own_list(monkeypatch):
    """AMD's lists vary GROUP_M; each config is listed once."""
    from triton.backends.compiler import GPUTarget
    from triton.runtime import driver

    problem = {"M": 512, "N": 256, "K": 1024, "batch": 1, "dtype": "fp16"}
    offer = parse_selection(triton, "inductor").offered

    class Fake:
        def get_current_target(self):
            return GPUTarget("hip", "gfx942", 64)

    monkeypatch.setattr(driver, "_active", Fake())
    found = offer.configs(problem, devices.get("gfx942"))
    assert {item.get("GROUP_M") for item in found} > {None, 4}
    assert len(found) == len({tuple(sorted(item.items())) for item in found})


@pytest.mark.parametrize(
    ("family", "text", "why"),
    [
        ("gemm/triton", "inductor:big", "search space is default or exhaustive, got 'big'"),
        ("gemm/cpu", "inductor", "offers for gemm/triton, not for gemm/cpu"),
        ("gemm/triton", "inducter", "inductor or inductor:exhaustive, got 'inducter'"),
    ],
)
def test_other_words_are_refused(family, text, why):
    """The rule, the value and what else there is."""
    with pytest.raises(InvalidValue, match=why):
        parse_selection(FAMILIES.get(family), text)


def test_without_torch_the_extra_is_named(monkeypatch):
    """Nothing is imported before a problem is asked about."""
    import sys

    monkeypatch.setitem(sys.modules, "torch._inductor.config", None)
    offer = parse_selection(triton, "inductor").offered
    with pytest.raises(KerncastError, match=r"pip install 'kerncast\[triton\]'"):
        offer.configs({"M": 1, "N": 1, "K": 1, "batch": 1, "dtype": "fp16"}, devices.get("h100"))
