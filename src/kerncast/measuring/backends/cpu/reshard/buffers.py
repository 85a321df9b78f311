"""The memory of the cores: a buffer for the input and one for the output of each, apart from all the others.

All problems use the same buffers, each grown to the largest shard so far: problems that are measured side by side take no
more memory than the largest of them.
"""

from __future__ import annotations

import ctypes
from typing import Any

import numpy as np
import numpy.typing as npt

from kerncast.measuring.backends.contract import OutOfMemory

Bytes = npt.NDArray[np.uint8]
MOST_CORES = 64
# Each buffer has its own pages, as the memory of another core would have.
ALIGNMENT = 4096


class Side:
    """The buffers of one side, and the table of their addresses that C reads at every launch."""

    def __init__(self) -> None:
        self.buffers: list[Bytes] = [np.zeros(0, np.uint8)] * MOST_CORES
        self.table = (ctypes.c_void_p * MOST_CORES)()

    def grow(self, cores: int, size: int) -> None:
        """Room for `size` bytes on each of the first cores."""
        for core in range(cores):
            if len(self.buffers[core]) < size:
                # Free the old one first: both at once would take more memory than the largest.
                self.buffers[core] = np.zeros(0, np.uint8)
                self.buffers[core] = _aligned(size)
                self.table[core] = self.buffers[core].ctypes.data

    @property
    def pointer(self) -> Any:
        """The table as an argument."""
        return ctypes.cast(self.table, ctypes.c_void_p)


def _aligned(size: int) -> Bytes:
    try:
        memory = np.empty(size + ALIGNMENT, np.uint8)
    except MemoryError as error:
        raise OutOfMemory(f"no memory for a shard of {size:,} bytes") from error
    start = -memory.ctypes.data % ALIGNMENT
    buffer = memory[start : start + size]
    # Touched here, so that no launch has to wait for a new page.
    buffer.fill(0)
    return buffer
