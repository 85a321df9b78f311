"""Features for a library's own product: the ones that compare tiles and say what the cache does not hold."""

from __future__ import annotations

import pytest

from kerncast.core.op import Problem
from kerncast.library import devices
from kerncast.library.declared.family_file import family_named
from kerncast.library.families.product_tiles import L2_OVER_MEMORY, LAUNCH_NS, REACHED, RIVALS, WAVE_NS
from kerncast.library.registry import OPS

MEMORY_GB_S, PEAK_FLOPS, UNITS = 3350.0, 989.4e12, 132


def features(m: int, n: int, k: int) -> dict[str, float]:
    """All features of one bf16 product on an H100."""
    family, device = family_named("gemm/library"), devices.get("h100")
    problem = Problem(OPS.get("gemm"), M=m, N=n, K=k, dtype="bf16", layout="rcr")
    values = {**family.problem.qualified(problem.as_dict()), "c.kernel_source": 0}
    return dict(family.features_on(device, ["bf16"]).program.scalar(values))


def test_the_time_for_what_the_cache_lacks_grows_with_the_copies_that_share_it():
    """4096 × 1024 weights (8 MB) fit the 50 MB cache once, not eight times."""
    got = features(1, 4096, 1024)
    held = 2**10 * 51200
    size = 2 * (1024 + 4096 * 1024 + 4096)
    assert 2 ** got["log2_missing_ns_1"] == pytest.approx(1000)
    assert 2 ** got["log2_missing_ns_8"] == pytest.approx(1000 + (size - held / 8) / MEMORY_GB_S)


def test_k_is_cut_into_as_many_parts_as_units_are_idle_but_none_shorter_than_the_least():
    """64 × 512 in tiles of 64 × 64: 8 tiles, 16 parts of 8192; of K = 1024 only two; of 300 tiles none is cut."""
    assert 2 ** features(64, 512, 8192)["log2_part_64x64"] == pytest.approx(8192 / 16 + 100)
    assert features(64, 512, 8192)["split_fill_64x64"] == pytest.approx(128 / 132)
    assert 2 ** features(64, 512, 1024)["log2_part_64x64"] == pytest.approx(1024 / 2 + 100)
    assert 2 ** features(640, 1920, 8192)["log2_part_64x64"] == pytest.approx(8192 + 100)


@pytest.mark.parametrize("shape", [(1, 4096, 1024), (300, 1000, 64), (4353, 7168, 2560)])
def test_rivals_are_compared_with_the_fastest_and_the_second(shape):
    """The same formula in plain Python, sorted instead of taken pair by pair."""
    m, n, k = shape
    got = features(m, n, k)
    took = {}
    for rows, columns in RIVALS:
        waves = -(-(-(-m // rows) * -(-n // columns)) // UNITS)
        maths = 2 * rows * columns * k * UNITS / (PEAK_FLOPS * REACHED) * 1e9
        loads = 2 * (rows + columns) * k * UNITS / (MEMORY_GB_S * L2_OVER_MEMORY)
        took[f"{rows}x{columns}"] = waves * (max(maths, loads) + WAVE_NS) + LAUNCH_NS
    best, second = sorted(took.values())[:2]
    assert 2 ** got["log2_best_ns"] == pytest.approx(best)
    assert 2 ** got["log2_second_over_best"] == pytest.approx(second / best)
    assert {at: 2 ** got[f"log2_over_best_{at}"] for at in took} == pytest.approx({at: ns / best for at, ns in took.items()})
