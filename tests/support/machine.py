"""A machine whose disk fills up and whose clock jumps, as seen by the processes that are started on it; what they leave behind.

No rights are needed: a small library (machine.c, built with the C compiler) stands between the processes and libc.
"""

from __future__ import annotations

import contextlib
import mmap
import os
import struct
import subprocess
import uuid
from collections.abc import Iterator
from pathlib import Path

from kerncast.errors import NotFound
from kerncast.measuring.backends.cpu.build import find_compiler

_SOURCE = Path(__file__).with_name("machine.c")
_SHARED_MEMORY = Path("/dev/shm")


class Machine:
    """Where processes of a test run. Their temporary files and caches are in `folder`."""

    def __init__(self, folder: Path) -> None:
        self.folder, self.name = folder, f"KERNCAST_MACHINE_NAME={uuid.uuid4().hex}"
        self.temporary = folder / "temporary"
        self.temporary.mkdir(parents=True)
        self.library = folder / "machine.so"
        compiler = find_compiler()
        if compiler is None:
            raise NotFound("there is no C compiler to build the library of a test machine: install gcc")
        subprocess.run([compiler.path, "-O1", "-shared", "-fPIC", "-o", self.library, _SOURCE, "-ldl"], check=True)
        self.state = folder / "machine.bin"
        self.state.write_bytes(struct.pack("<qq", 0, -1))
        with self.state.open("r+b") as file:
            self._numbers = mmap.mmap(file.fileno(), 16)
        self._before = set(os.listdir(_SHARED_MEMORY)) if _SHARED_MEMORY.exists() else set()

    def environment(self, disk: str) -> dict[str, str]:
        """For a process on this machine; files with `disk` in their path are on its disk."""
        name, _, value = self.name.partition("=")
        return {
            **os.environ,
            "LD_PRELOAD": str(self.library),
            "KERNCAST_MACHINE": str(self.state),
            "KERNCAST_MACHINE_DISK": disk,
            "TMPDIR": str(self.temporary),
            name: value,
        }

    def set_clock(self, off_seconds: float) -> None:
        """Make the wall clock of all processes wrong from now on."""
        struct.pack_into("<q", self._numbers, 0, int(off_seconds * 1e9))

    def set_disk(self, free_bytes: int | None) -> None:
        """Leave so much room on the disk; None: as much as there is."""
        struct.pack_into("<q", self._numbers, 8, -1 if free_bytes is None else free_bytes)

    def processes(self, containing: bytes = b"") -> list[int]:
        """The processes on this machine that have this in their command line. Those that wait to be reaped do not count."""
        return [pid for pid in _pids() if self.name.encode() in _read(pid, "environ") and containing in _read(pid, "cmdline")]

    def shared_memory(self) -> list[str]:
        """Segments in /dev/shm that are new and that no process uses."""
        new = set(os.listdir(_SHARED_MEMORY)) - self._before if _SHARED_MEMORY.exists() else set()
        maps = b"".join(_read(pid, "maps") for pid in _pids()) if new else b""
        return [name for name in sorted(new) if f"{_SHARED_MEMORY / name}".encode() not in maps]

    def files(self) -> list[Path]:
        """Temporary files."""
        return sorted(self.temporary.rglob("*"))


def _pids() -> Iterator[int]:
    return (int(name) for name in os.listdir("/proc") if name.isdigit())


def _read(pid: int, name: str) -> bytes:
    """A file of a process; empty if it has ended or belongs to somebody else."""
    with contextlib.suppress(OSError):
        return Path(f"/proc/{pid}/{name}").read_bytes()
    return b""
