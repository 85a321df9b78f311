"""The environment of a kernel: faults of the machine, the memory that is left, which shipped profile a GPU has.

No kernel is to blame for a full or read-only disk, a missing compiler or a lack of file descriptors, so no vector may get a row
because of one.
"""

from __future__ import annotations

import contextlib
import errno
import os
from collections.abc import Iterator
from pathlib import Path

from kerncast.core.device import Device
from kerncast.errors import BadFile, CannotWrite, NotFound
from kerncast.library import devices

# What a kernel cannot cause: space, quota, permissions, descriptors, a broken disk.
CODES = (
    errno.ENOSPC, errno.EDQUOT, errno.EROFS, errno.EACCES, errno.EPERM, errno.EMFILE, errno.ENFILE, errno.EIO, errno.ESTALE,
)  # fmt: skip
# "Operation not permitted" is left out: assemblers say similar things of instructions.
_WORDS = tuple(os.strerror(code) for code in CODES if code != errno.EPERM)
# How gcc and clang say that the operating system ended one of their processes.
_KILLED = ("Killed signal terminated program", "unable to execute command: Killed", "ld terminated with signal 9")
# Makes a program say such things in the words above.
PLAIN_WORDS = {"LC_ALL": "C"}
# The share of free memory for all workers together. The rest is for other processes, and for leaks between two checks.
SHARE = 0.8


def fault_of(error: BaseException) -> str | None:
    """What is wrong with the environment, if that is why an exception was raised; else None."""
    for each in _chain(error):
        if isinstance(each, CannotWrite | NotFound | BadFile):
            return str(each)
        if isinstance(each, OSError) and each.errno in CODES:
            place = f" ({each.filename})" if each.filename else ""
            return f"{os.strerror(each.errno)}{place}"
    return None


def fault_in(output: str) -> str | None:
    """The line of a compiler's output that blames the environment, or None. It must have run with `PLAIN_WORDS`."""
    for line in output.splitlines():
        if any(words in line for words in (*_WORDS, *_KILLED)):
            return " ".join(line.split())[:300]
    return None


def _chain(error: BaseException | None) -> Iterator[BaseException]:
    while error is not None:
        yield error
        error = error.__cause__ or (None if error.__suppress_context__ else error.__context__)


# -- memory ----------------------------------------------------------------------------------------------


def worker_share(workers: int) -> int:
    """What each worker may take; 0 (no limit) if the free memory is unknown."""
    free = available_bytes()
    return 0 if free is None else int(SHARE * free / workers)


def available_bytes(proc: Path = Path("/proc"), cgroups: Path = Path("/sys/fs/cgroup")) -> int | None:
    """The memory that can still be used: the machine's, or what the control groups around this process leave of it."""
    found = [*_of_machine(proc / "meminfo"), *_of_groups(proc, cgroups)]
    return max(0, min(found)) if found else None


def _of_machine(path: Path) -> Iterator[int]:
    numbers = _numbers(path)
    if "MemAvailable:" in numbers:
        yield numbers["MemAvailable:"] * 1024


def _groups(proc: Path, cgroups: Path) -> Iterator[tuple[Path, bool]]:
    """The folders of the groups that count this process's memory, from its own up to the root; True for version 2."""
    with contextlib.suppress(OSError):
        for line in (proc / "self" / "cgroup").read_text().splitlines():
            _, controllers, place = line.split(":", 2)
            if controllers and "memory" not in controllers.split(","):
                continue
            root = cgroups / "memory" if controllers else cgroups
            # In a container the path may be the host's: its parents end at the root, which is then the group itself.
            inside = Path(place.lstrip("/"))
            for folder in (inside, *inside.parents):
                yield root / folder, not controllers


def _of_groups(proc: Path, cgroups: Path) -> Iterator[int]:
    """What each group that limits memory leaves (both versions of cgroups)."""
    for folder, second in _groups(proc, cgroups):
        limit, used, cache = (
            ("memory.max", "memory.current", "inactive_file")
            if second
            else ("memory.limit_in_bytes", "memory.usage_in_bytes", "total_inactive_file")
        )
        with contextlib.suppress(OSError, ValueError):  # "max": not limited here
            most = int((folder / limit).read_text())
            # Pages of files can be dropped at any time, so they are as good as free.
            yield most - int((folder / used).read_text()) + _numbers(folder / "memory.stat").get(cache, 0)


def oom_kills(proc: Path = Path("/proc"), cgroups: Path = Path("/sys/fs/cgroup")) -> int:
    """A count that rises when the operating system kills a process of this machine or group because memory ran out."""
    groups = (folder / ("memory.events" if second else "memory.oom_control") for folder, second in _groups(proc, cgroups))
    return sum(_numbers(file).get("oom_kill", 0) for file in (proc / "vmstat", *groups))


def resident_bytes(pid: int) -> int:
    """Memory that only ending the process (or swap) gives back: anonymous and shared pages, not those of files.

    Address space means nothing here: GPU and OpenCL drivers reserve many times the memory of the machine.
    """
    numbers = _numbers(Path(f"/proc/{pid}/status"))
    return 1024 * (numbers.get("RssAnon:", 0) + numbers.get("RssShmem:", 0))


def _numbers(path: Path) -> dict[str, int]:
    """The lines of a file that are a name and a whole number; nothing when it cannot be read."""
    try:
        rows = [line.split() for line in path.read_text().splitlines()]
    except OSError:
        return {}
    return {row[0]: int(row[1]) for row in rows if len(row) > 1 and row[1].isdigit()}


# -- GPUs ------------------------------------------------------------------------------------------------


def slug(name: str) -> str:
    """A driver's device name as part of an identity: `NVIDIA L40S` is `nvidia_l40s`."""
    return devices.plain(name) or "unknown"


def shipped(*names: str, num_cus: int | None = None) -> Device | None:
    """The profile that one of the names means, or None.

    A name or alias of the profile must occur in it as whole words (`h100` in "NVIDIA H100 80GB HBM3", `gfx942` in
    "gfx942:sramecc+:xnack-"); the longest one decides. Boards of one chip differ in compute units (H100 SXM and PCIe,
    MI300X and MI300A): if the driver reports their number, it must match the profile, or the name must be the whole name.
    """
    spelled = [f"_{devices.plain(name)}_" for name in names]
    found: list[tuple[int, Device]] = []
    for device in devices.profiles().values():
        known = [f"_{devices.plain(name)}_" for name in (device.name, *device.aliases)]
        here = [text for text in known if any(text in name for name in spelled)]
        counted = device.numbers.get("num_cus")
        same = num_cus in (None, counted) or (counted is None and bool(set(here) & set(spelled)))
        if device.kind == "gpu" and here and same:
            found.append((max(map(len, here)), device))
    return max(found, key=lambda item: item[0])[1] if found else None
