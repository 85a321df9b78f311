"""Ends what a worker started when the worker itself is gone: run as a script with a pipe from the worker on stdin.

A line `+123` says that process group 123 runs, `-123` that it ended. The end of the pipe means that the worker
died: whatever still runs is killed, and the worker's scratch folder is removed. Standard library only.
"""

import contextlib
import os
import shutil
import signal
import sys


def main(scratch: str) -> None:
    """Read groups until the worker is gone."""
    groups: set[int] = set()
    for line in sys.stdin:
        (groups.add if line[0] == "+" else groups.discard)(int(line[1:]))
    for group in groups:
        with contextlib.suppress(ProcessLookupError, PermissionError):
            os.killpg(group, signal.SIGKILL)
    shutil.rmtree(scratch, ignore_errors=True)


if __name__ == "__main__":
    main(sys.argv[1])
