"""What measures the chunks of a collection: the supervisor of this machine's devices, or a fleet of other machines'."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from typing import Protocol

from kerncast.core.progress import Progress
from kerncast.data.hardware import Hardware
from kerncast.measuring.messages import Chunk, Item, Ready, Result


class Crew(Protocol):
    """Measures chunks on one or more devices, all of one kind."""

    lost: dict[str, str]
    """Devices that were given up, and why."""
    unblamed: int
    """Vectors without a row because their device was lost while they ran."""

    def connect(self) -> Ready:
        """Start the devices; what the first of them reports identifies the collection."""

    def run(self, chunks: Iterator[Chunk], stop: Callable[[], bool]) -> bool:
        """Measure all chunks; False when `stop` ended it before they were all handed out."""

    def hardware(self, device: str) -> Hardware:
        """What the tools of a device's machine say about it."""

    def close(self) -> None:
        """End every worker, and record what was held back."""


class Record(Protocol):
    """Takes a vector's final status. `overrules`: it replaces an earlier one, even a time."""

    def __call__(self, item: Item, result: Result, block: int, device_index: str, overrules: bool = False) -> None: ...


def show_result(progress: Progress, item: Item, result: Result, device: str) -> None:
    """Show how one vector ended."""
    progress.result(
        result.status,
        device=device,
        problem=item.problem,
        time_ns=result.time_ns,
        samples=result.samples or 0,
        disturbed=result.disturbed_samples,
    )
