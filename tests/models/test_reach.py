"""Where a config may be chosen: the sizes that it was tried at, and those between it and its neighbour."""

from __future__ import annotations

import numpy as np
import pytest

import kerncast
from kerncast.models.limits.configs import Reach

ALL = ~np.uint64(0)


def reach(*bands: tuple[tuple[float, float], ...], labels: tuple[int, ...] | None = None) -> Reach:
    """One candidate for each tuple of bands, one band for each parameter."""
    low, high = (np.array([[band[end] for band in bands_of] for bands_of in bands], np.float64) for end in (0, 1))
    bits = np.full(low.shape, ALL, np.uint64)
    if labels is not None:
        bits[:, -1] = labels
    return Reach(low, high, bits)


def test_bands_of_two_code_paths_meet_between_two_measured_sizes() -> None:
    """A size between the last of one code path and the first of the next belongs to both, and other bounds stay."""
    found = reach(((1, 17), (64, 4096)), ((32, 8192), (64, 4096)), ((1, 8192), (32, 64))).met()
    assert found.high[:, 0].tolist() == [31, 8192, 8192]
    assert found.low[:, 0].tolist() == [1, 18, 1]
    assert found.low[:, 1].tolist() == [64, 64, 32]
    assert found.high[:, 1].tolist() == [4096, 4096, 64]
    assert found.holds(np.array([24.0, 512.0])).tolist() == [True, True, False]


@pytest.mark.parametrize(
    ("other", "labels"),
    [
        pytest.param(((128, 8192), (64, 4096)), None, id="far away: sizes between them may have been measured"),
        pytest.param(((32, 8192), (5000, 8192)), None, id="of other sizes otherwise"),
        pytest.param(((32, 8192), (64, 4096)), (1, 2), id="of another dtype"),
        pytest.param(((17, 8192), (64, 4096)), None, id="they meet already"),
    ],
)
def test_bands_that_are_no_neighbours_stay_apart(
    other: tuple[tuple[float, float], ...], labels: tuple[int, ...] | None
) -> None:
    """Only neighbouring bands of the same labels and the same other sizes are taken to meet."""
    before = reach(((1, 17), (64, 4096)), other, labels=labels)
    after = before.met()
    assert np.array_equal(after.low, before.low)
    assert np.array_equal(after.high, before.high)


def test_meeting_twice_changes_nothing() -> None:
    """What a slim model keeps may have met already."""
    once = reach(((1, 17), (64, 4096)), ((32, 8192), (64, 4096))).met()
    again = once.met()
    assert np.array_equal(once.low, again.low)
    assert np.array_equal(once.high, again.high)


@pytest.mark.parametrize("device", ["h100", "h200"])
def test_batches_between_two_measured_ones_run_the_kernel_of_their_neighbours(device: str) -> None:
    """fp8 blocks of vLLM with 18 to 31 rows take as long as with 17 and 32, not as long as the kernel of tiny N and K."""
    shape = {"N": 4096, "K": 4096, "dtype": "fp8_block"}
    found = kerncast.predict("gemm", [{"M": m, **shape} for m in (17, 18, 24, 31, 32)], device=device, software="vllm")
    assert isinstance(found, list)
    assert {item.status for item in found} == {"ok"}
    assert all(item.config is not None and "Cutlass" not in str(item.config) for item in found)
    times = [item.time_ns or 0.0 for item in found]
    assert max(times) < 1.7 * min(times)
