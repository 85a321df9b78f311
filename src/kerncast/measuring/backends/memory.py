"""How much memory a worker may take, and how much it has."""

from __future__ import annotations

import contextlib
from collections.abc import Iterator
from pathlib import Path

# The share of free memory for all workers together. The rest is for other processes, and for leaks between two checks.
SHARE = 0.8


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
