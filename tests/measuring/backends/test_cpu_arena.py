"""Memory of operands: a kernel that writes where it must not ends, and no other kernel sees what it wrote."""

import signal
import subprocess
import sys

import numpy as np
import pytest

from kerncast.measuring.backends.cpu.inputs import HUGE_PAGE, Arena

WRITE = """
import ctypes, sys
from kerncast.measuring.backends.cpu.gemm import make_matrices
inputs = make_matrices({"M": 64, "N": 48, "K": 32, "batch": 1, "layout": "rrr", "dtype": "fp32", "bias": True})
places = {
    "A": inputs.a.ctypes.data, "B": inputs.b.ctypes.data, "reference": inputs.reference.ctypes.data,
    "bias": inputs.bias_pointer, "before": inputs.a.ctypes.data - 1, "behind": inputs.c.ctypes.data + (2 << 20),
    "between": inputs.c.ctypes.data - inputs.c.ctypes.data % (2 << 20) - 1, "C": inputs.c.ctypes.data,
}
print(inputs.error(), flush=True)
ctypes.memset(places[sys.argv[1]], 1, 1)
"""


@pytest.mark.skipif(sys.platform == "win32", reason="memory is guarded on POSIX systems only")
@pytest.mark.parametrize("place", ["A", "B", "reference", "bias", "before", "behind", "between", "C"])
def test_only_the_result_can_be_written_to(place):
    """Writing anywhere else ends the process at once."""
    done = subprocess.run([sys.executable, "-c", WRITE, place], capture_output=True, check=False)
    assert done.stdout
    assert done.returncode == (0 if place == "C" else -signal.SIGSEGV)


def test_operands_and_result_begin_in_different_cache_sets():
    """The result begins where it would if it followed the operands, whatever lies between."""
    arena = Arena([HUGE_PAGE, 8192], 4096, [4096])
    first, second, result = (
        arena.operand((HUGE_PAGE,), np.uint8), arena.operand((2048,), np.float32), arena.result((1024,), np.float32),
    )  # fmt: skip
    places = [array.ctypes.data % HUGE_PAGE for array in (first, second, result)]
    assert places == [0, 64, 64 + 8192 + 64]
    assert not np.shares_memory(second, arena.keep(second))


def test_operands_are_refilled_only_on_purpose():
    """Python gets an error instead of a crash."""
    arena = Arena([64], 64)
    operand = arena.operand((16,), np.float32)
    operand[0] = 1.0
    arena.seal()
    with pytest.raises(ValueError, match="read-only"):
        operand[0] = 2.0
    with arena.filling():
        operand[0] = 3.0
    assert not operand.flags.writeable
    assert operand[0] == 3.0
