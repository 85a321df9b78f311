"""The only way from a model to code that runs in this process: trusted, written, compiled, loaded."""

from __future__ import annotations

from kerncast.compiling.binding import Binding
from kerncast.compiling.build import FLAGS, compiled, kept
from kerncast.compiling.c99 import c_source
from kerncast.compiling.header import c_header, schema_number
from kerncast.compiling.lower import Artefact
from kerncast.errors import KerncastError
from kerncast.models import trust
from kerncast.progress import QUIET, Progress


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
        progress.stage("compiling")
        made = compiled(identity, c_source(artefact, "kerncast"), c_header(artefact, "kerncast"), flags=flags)
    return None if made is None else Binding(made, model.family, schema_number(artefact))
