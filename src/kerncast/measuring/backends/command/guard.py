"""Ends what a worker started when the worker itself is gone: run as a script with a pipe from the worker on stdin.

A line `+123` says that process group 123 runs, `-123` that it ended. The end of the pipe means that the worker
died: whatever still runs is killed, and the worker's scratch folder is removed. A child may leave its group and session,
but it inherits the environment, in which each program has a mark. Standard library only.
"""

import contextlib
import os
import shutil
import signal
import sys

MARK = "KERNCAST_PROGRAM"
# Between two looks, something may have been forked: a look that finds nothing is the last.
LOOKS = 20


def marked(mark: str) -> list[int]:
    """The processes of this user whose mark begins so; none where there is no /proc."""
    wanted, found = f"{MARK}={mark}".encode(), []
    for name in os.listdir("/proc") if os.path.isdir("/proc") else ():
        if name.isdigit() and int(name) != os.getpid():
            with contextlib.suppress(OSError), open(f"/proc/{name}/environ", "rb") as file:
                if any(entry.startswith(wanted) for entry in file.read().split(b"\0")):
                    found.append(int(name))
    return found


def end_marked(mark: str) -> None:
    """Kill every process whose mark begins so."""
    for _ in range(LOOKS):
        alive = marked(mark)
        for pid in alive:
            with contextlib.suppress(ProcessLookupError, PermissionError):
                os.kill(pid, signal.SIGKILL)
        if not alive:
            return


def main(scratch: str) -> None:
    """Read groups until the worker is gone."""
    groups: set[int] = set()
    for line in sys.stdin:
        (groups.add if line[0] == "+" else groups.discard)(int(line[1:]))
    for group in groups:
        with contextlib.suppress(ProcessLookupError, PermissionError):
            os.killpg(group, signal.SIGKILL)
    end_marked(f"{scratch}#")
    shutil.rmtree(scratch, ignore_errors=True)


if __name__ == "__main__":
    main(sys.argv[1])
