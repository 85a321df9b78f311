"""`kerncast.quickstart`: measure kernels on this machine from scratch, and see what choosing is worth."""

from __future__ import annotations

from pathlib import Path

from kerncast.api.showing import Wanted, shown
from kerncast.regenerating.quickstart import Quickstart
from kerncast.regenerating.quickstart import quickstart as run


def quickstart(*, out: str | Path = "quickstart", full: bool = False, progress: Wanted = "auto") -> Quickstart:
    """Measure GEMM kernels here, train and evaluate a model, write a report and export it to C, in about five minutes.

    `full` measures 300 shapes in fp32 and bf16, twice, in about an hour.
    """
    with shown(progress) as show:
        return run(Path(out), full=full, progress=show)
