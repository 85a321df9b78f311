"""The only way from a model to code that runs in this process: trusted, written, compiled, loaded."""

from __future__ import annotations

import time

from kerncast.core.progress import QUIET, Progress
from kerncast.errors import KerncastError
from kerncast.models import trust
from kerncast.native.binding import Binding
from kerncast.native.build import FLAGS, compiled, kept
from kerncast.native.c99 import c_source
from kerncast.native.header import c_header, schema_number
from kerncast.native.lower import Artefact

# gcc 12 at -O3 on a Xeon at 2.8 GHz took 2.75 s for 2.2 MB and 2.98 s for 2.7 MB.
SECONDS_PER_BYTE = 1.2e-6


class NotTrusted(KerncastError):
    """The user has not said that the code of this model may run."""


def load(artefact: Artefact, identity: str, *, flags: tuple[str, ...] = FLAGS, progress: Progress = QUIET) -> Binding | None:
    """The artefact, compiled and loaded; None if there is no compiler.

    `NotTrusted`, `CannotCompile`, `CannotWrite` and `NotInC` say why Python has to answer instead.
    """
    model = artefact.model
    refused = trust.refusal(model)
    if refused is not None:
        raise NotTrusted(refused)
    made = kept(identity, flags)
    if made is None:
        if flags == FLAGS:  # else it is a part of another stage
            progress.stage("compiling")
        began, worked = time.monotonic(), time.thread_time()
        source = c_source(artefact, "kerncast")
        if flags == FLAGS:  # on a busy machine the compiler waits as this thread did
            busy = (time.monotonic() - began) / max(1e-3, time.thread_time() - worked)
            progress.guess(len(source) * SECONDS_PER_BYTE * max(1.0, busy))
        made = compiled(identity, source, c_header(artefact, "kerncast"), flags=flags, progress=progress)
    return None if made is None else Binding(made, model.family, schema_number(artefact))
