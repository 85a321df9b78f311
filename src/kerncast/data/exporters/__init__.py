"""Writers: the rows of a dataset in another tool's format, one file per format.

A writer is a function `write(dataset, out, family, where)` that returns the files that it wrote; `out` does not exist yet. What
users should know is added to the dataset's `notes`.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from importlib import import_module
from pathlib import Path
from typing import TYPE_CHECKING

from kerncast.core.io.atomic import refuse_existing
from kerncast.errors import NotFound

if TYPE_CHECKING:
    from kerncast.data.dataset import Dataset

Writer = Callable[["Dataset", Path, str | None, Sequence[str]], list[Path]]

# Format → module and function, loaded when used. Vectors are written by `exporting`, which knows sweeps.
WRITERS = {
    "csv": ("kerncast.data.exporters.tables", "write_csv"),
    "kernel-tuner": ("kerncast.data.exporters.kernel_tuner", "write_kernel_tuner"),
    "parquet": ("kerncast.data.exporters.tables", "write_parquet"),
    "t4": ("kerncast.data.exporters.t4", "write_t4"),
    "tt-sweep": ("kerncast.data.exporters.tt_sweep", "write_rows"),
}


def writer(name: str) -> Writer:
    """The writer of one format."""
    if name not in WRITERS:
        raise NotFound.named("format to write", name, WRITERS)
    module, function = WRITERS[name]
    found: Writer = getattr(import_module(module), function)
    return found


def export_rows(dataset: Dataset, out: Path, to: str, family: str | None = None, where: Sequence[str] = ()) -> list[Path]:
    """Write rows of a dataset; `out` appears whole or not at all."""
    write = writer(to)
    refuse_existing(out)
    return write(dataset, out, family, where)
