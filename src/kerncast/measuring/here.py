"""The crew of this machine: a supervisor of its devices."""

from __future__ import annotations

import subprocess
from collections.abc import Callable, Sequence

from kerncast.errors import KerncastError
from kerncast.library.declared.declaration import declaration_of
from kerncast.measuring.backends.memory import worker_share
from kerncast.measuring.collection import Collection, Request
from kerncast.measuring.messages import Start
from kerncast.measuring.scheduling import AlikeFailures
from kerncast.measuring.supervisor import Supervisor


def supervisor_of(request: Request, collection: Collection) -> Supervisor:
    """The supervisor that measures a collection."""
    return Supervisor(
        start=lambda device: start_of(request, device),
        devices=list(request.devices),
        record=collection.record,
        flush=collection.flush,
        admit=collection.admit,
        reset=reset_by(request.reset_command),
        memory_bytes=worker_share(len(request.devices)) if request.memory_bytes is None else request.memory_bytes,
        alike=AlikeFailures(request.alike_failures),
        abandoned=collection.abandoned,
        progress=collection.progress,
    )


def start_of(request: Request, device: str) -> Start:
    """The first message to a worker of a device."""
    return Start(
        request.backend,
        request.family.id,
        device,
        request.policy,
        request.options,
        request.build_jobs,
        declaration_of(request.family),
    )


def reset_by(command: Sequence[str]) -> Callable[[str], None] | None:
    """What brings a device back, if there is a command for it."""
    if not command:
        return None

    def reset(device: str) -> None:
        argv = [part.replace("{device}", device) for part in command]
        try:
            subprocess.run(argv, check=True, capture_output=True, timeout=300)
        except (OSError, subprocess.SubprocessError) as error:
            raise KerncastError(f"the reset command {argv} failed ({error})") from error

    return reset
