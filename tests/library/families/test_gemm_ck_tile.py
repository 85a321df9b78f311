"""Which CK Tile GEMM kernels run a problem: CK's own tests, by layout."""

import pytest

from kerncast.core.op import Config, Problem
from kerncast.errors import InvalidValue
from kerncast.library import devices
from kerncast.library.families.gemm_ck_tile import ck_tile

MI300X = devices.get("mi300x")
KERNEL = {
    "tile_m": 128, "tile_n": 128, "tile_k": 64, "warp_m": 2, "warp_n": 2, "warp_k": 1,
    "warp_tile_m": 32, "warp_tile_n": 32, "warp_tile_k": 16, "pipeline": "compv3", "scheduler": "intrawave",
    "epilogue": "cshuffle", "pad_m": False, "pad_n": False, "pad_k": False, "persistent": False,
}  # fmt: skip


def refusal(layout="rcr", split_k=1, dtype="fp16", kernel=None, **sizes):
    """The rule that refuses the kernel for a problem of 1024 × 1024 × 1024, but for the sizes given; None: it runs."""
    problem = Problem(ck_tile, {"M": 1024, "N": 1024, "K": 1024, **sizes, "dtype": dtype, "layout": layout, "split_k": split_k})
    try:
        Config(ck_tile, {**KERNEL, **(kernel or {})}, problem=problem, device=MI300X)
    except InvalidValue as error:
        return str(error)
    return None


@pytest.mark.parametrize(
    ("size", "refusing"),
    [
        ({"M": 1000}, {"crr", "ccr"}),  # contiguous in A by columns alone
        ({"N": 1000}, {"rcr", "rrr", "crr", "ccr"}),  # C is by rows
        ({"K": 1000}, {"rcr", "rrr", "ccr"}),  # contiguous in A by rows, and in B by columns
    ],
)
def test_a_size_needs_padding_only_where_a_matrix_is_contiguous_along_it(size, refusing):
    """A kernel without padding runs where CK launches it; with padding it always does."""
    (name,) = size
    assert {layout for layout in ("rcr", "rrr", "crr", "ccr") if refusal(layout, **size)} == refusing
    for layout in refusing:
        assert f"without pad_{name.lower()}" in refusal(layout, **size)
        assert refusal(layout, kernel={f"pad_{name.lower()}": True}, **size) is None


def test_one_row_needs_no_padding():
    """A matrix times a vector: most of what a server generates, and all of AMD's kernels are built without padding."""
    assert refusal("rcr", M=1) is None
    assert refusal("rrr", M=7) is None


def test_parts_of_k_are_whole_tiles():
    """Split K counts."""
    assert refusal(K=1024, split_k=8) is None
    assert "tile_k × split_k" in refusal(K=1024 + 64, split_k=8)
