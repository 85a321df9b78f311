"""A model as one binary file, and the sources of the runtime that loads it."""

from __future__ import annotations

from dataclasses import dataclass
from pathlib import Path
from typing import Annotated

from kerncast.answering.exporters import Exporter
from kerncast.answering.exporters.golden import golden_vectors
from kerncast.answering.exporters.project import CompiledOptions, numeric_version, refuse_prefix, write_sources
from kerncast.core.io.arguments import Help
from kerncast.core.io.artefact import ArtefactKind, Findings
from kerncast.core.io.atomic import refuse_existing, write_bytes
from kerncast.core.io.quoting import filled, packaged_c
from kerncast.core.progress import QUIET, Progress
from kerncast.models.model import Model
from kerncast.native.blob.container import MAGIC, unpacked
from kerncast.native.blob.runtime import BlobBinding, compiled_runtime, runtime_header, runtime_source
from kerncast.native.blob.sections import blob
from kerncast.native.lower import Artefact

SUFFIX = ".kcb"
# The model that the runtime's project tests itself with.
TESTED = f"selftest{SUFFIX}"
PACKAGE = "kerncast.native.blob"


@dataclass(frozen=True)
class BlobOptions(CompiledOptions):
    """A blob, and where its runtime goes."""

    runtime: Annotated[
        str | Path | None,
        Help("also write the C runtime to this new folder, with CMakeLists.txt and a self-test.", metavar="DIR"),
    ] = None


class BlobExporter(Exporter):
    """A file that a C runtime loads."""

    name = "blob"
    doc = "a file that a C runtime loads"
    options_type = BlobOptions

    def write(self, model: Model, out: Path, options: BlobOptions, progress: Progress) -> list[Path]:
        runtime = None if options.runtime is None else Path(options.runtime)
        return write_blob(options.lowered(model, progress), out, runtime, options.prefix, progress=progress)


def write_blob(
    artefact: Artefact, out: Path, runtime: Path | None = None, prefix: str = "kerncast", *, progress: Progress = QUIET
) -> list[Path]:
    """Write the file; `runtime`: also a new directory with the runtime, which a build can use as it is."""
    refuse_prefix(prefix)
    for path in (out, *([] if runtime is None else [runtime])):
        refuse_existing(path)
    progress.stage("computing golden vectors")
    data = blob(artefact, golden_vectors(artefact))
    write_bytes(out, data)
    if runtime is None:
        return [out]
    files = {
        f"{prefix}_runtime.c": runtime_source(prefix),
        f"{prefix}_runtime.h": runtime_header(prefix),
        "selftest.c": filled(packaged_c(PACKAGE, "selftest.c"), prefix),
        "CMakeLists.txt": filled(packaged_c(PACKAGE, "CMakeLists.txt"), prefix, version=numeric_version()),
    }
    return [out, *write_sources(artefact, runtime, {**{name: text.encode() for name, text in files.items()}, TESTED: data})]


def check_blob(findings: Findings) -> None:
    """A model in one file: its checksum and tables; if there is a compiler, also that the runtime takes it and its answers."""
    with findings.looking(findings.path):
        data = findings.path.read_bytes()
        findings.checks += ["checksum", f"{len(unpacked(data, str(findings.path))):,} tables"]
        findings.progress.stage("compiling the runtime")
        library = compiled_runtime()
        if library is None:
            findings.notes.append("there is no C compiler, so its answers were not compared with those stored in it")
            return
        loaded = BlobBinding(library, data, str(findings.path))
        findings.checks.append(f"{loaded.self_test():,} golden vectors")
        loaded.close()


BLOB = ArtefactKind("blob", lambda contents: contents.head.startswith(MAGIC), check_blob)
