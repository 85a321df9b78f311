"""Matrices on a device, shared by every kernel prepared for a problem, and the exact result they must give."""

from __future__ import annotations

import math
from collections.abc import Mapping
from typing import Any

import numpy as np

from kerncast.measuring.backends.contract import OutOfMemory
from kerncast.measuring.backends.cpu.gemm import make_matrices
from kerncast.measuring.backends.opencl.profile import is_cpu


class DeviceOperands:
    """A, B and C of one problem on one device."""

    def __init__(self, cl: Any, queue: Any, problem: Mapping[str, Any]) -> None:
        self.queue = queue
        half = problem["dtype"] == "fp16"
        host = make_matrices({**problem, "dtype": "fp32" if half else problem["dtype"]})
        # Halves hold the inputs exactly; the exact sums are rounded once, as the kernels do.
        a, b, reference = (x.astype(np.float16) if half else x for x in (host.a, host.b, host.reference))
        largest = max(a.nbytes, b.nbytes, reference.nbytes)
        if largest > queue.device.max_mem_alloc_size:
            raise OutOfMemory(
                f"a matrix of {largest / 1e9:.1f} GB is larger than the {queue.device.max_mem_alloc_size / 1e9:.1f} GB "
                "that the device allocates in one piece"
            )
        self.reference = reference
        flags, read = cl.mem_flags, cl.mem_flags.READ_ONLY
        if is_cpu(queue.device) and not half:
            # The kernels read the host's huge pages in place: with small ones cache conflicts differ from run to run.
            self._kept = host
            self.a, self.b = (cl.Buffer(queue.context, read | flags.USE_HOST_PTR, hostbuf=x) for x in (a, b))
            self.c = cl.Buffer(queue.context, flags.READ_WRITE | flags.USE_HOST_PTR, hostbuf=host.c)
        else:
            self.a, self.b = (cl.Buffer(queue.context, read | flags.COPY_HOST_PTR, hostbuf=x) for x in (a, b))
            self.c = cl.Buffer(queue.context, flags.READ_WRITE, size=reference.nbytes)
        self.nbytes = a.nbytes + b.nbytes + 2 * reference.nbytes
        self._cl = cl

    def forget(self) -> None:
        """Fill C with NaN, so that elements that are not written show."""
        self._cl.enqueue_fill_buffer(self.queue, self.c, self.reference.dtype.type(math.nan), 0, self.reference.nbytes).wait()

    def error(self) -> float:
        """The largest absolute difference of C from what it must be; infinite where nothing was written."""
        found = np.empty_like(self.reference)
        self._cl.enqueue_copy(self.queue, found, self.c, is_blocking=True)
        if np.array_equal(found, self.reference):
            return 0.0
        difference = float(np.max(np.abs(found.astype(np.float64) - self.reference)))
        return difference if math.isfinite(difference) else math.inf
