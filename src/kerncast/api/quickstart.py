"""`kerncast.quickstart`: measure kernels on this machine from scratch, and see what choosing is worth."""

from __future__ import annotations

from pathlib import Path
from typing import Annotated

from kerncast.api.showing import Wanted, shown
from kerncast.regenerating.quickstart import Quickstart
from kerncast.regenerating.quickstart import quickstart as run
from kerncast.writing.help import Help


def quickstart(
    *,
    out: Annotated[str | Path, Help("Where to write.", metavar="DIR")] = "quickstart",
    full: Annotated[bool, Help("300 shapes in fp32 and bf16, all twice, instead of 44 in fp32: about an hour.")] = False,
    progress: Wanted = "auto",
) -> Quickstart:
    """Measure GEMM kernels here, train and evaluate a model, write a report and export it to C, in about five minutes.

    `full` measures 300 shapes in fp32 and bf16, twice, in about an hour.
    """
    with shown(progress) as show:
        return run(Path(out), full=full, progress=show)
