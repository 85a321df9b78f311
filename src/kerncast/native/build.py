"""The only way from a model to code that runs in this process: trusted, written, compiled, loaded.

An artefact is built once and cached by hash, complete or not at all:

    <cache>/select/<digest>/artefact.so      the compiled text
    <cache>/select/<digest>/artefact.sum     its checksum: a damaged file is built again, never loaded

The folder is 0700 and belongs to the user: nobody else can have put code there.
"""

from __future__ import annotations

import contextlib
import hashlib
import os
import signal
import subprocess
import time
from functools import cache
from pathlib import Path

from kerncast.core.io.arguments import private_cache
from kerncast.core.io.artefact import is_intact, keep_sum
from kerncast.core.io.atomic import replace_file, scratch_folder
from kerncast.core.progress import QUIET, Progress
from kerncast.errors import CannotWrite, KerncastError
from kerncast.measuring.backends.contract import CannotCompile
from kerncast.measuring.backends.cpu.build import TOO_SLOW, Compiler, find_compiler, instruction_set
from kerncast.models import trust
from kerncast.native.binding import Binding
from kerncast.native.c99 import c_source
from kerncast.native.header import c_header, schema_number
from kerncast.native.lower import Artefact

# No contraction: a fused multiply-add rounds once where Python rounds twice.
FLAGS = ("-std=c99", "-O3", "-march=native", "-ffp-contract=off", "-fPIC", "-shared")
# For artefacts that are used for a few seconds only: compiling takes half as long.
BRIEF = ("-O1", *(flag for flag in FLAGS if flag != "-O3"))
COMPILE_SECONDS = 600
# How often who waits for the compiler is told that it still works.
TICK_SECONDS = 0.25


@cache
def source_digest() -> str:
    """A hash of all code that generates an artefact."""
    hasher = hashlib.blake2b(digest_size=8)
    folder = Path(__file__).parent
    files = [*folder.rglob("*.py"), *folder.rglob("*.[ch]")]
    for name in ("core", "learning", "models"):
        files += [*(folder.parent / name).rglob("*.py"), *(folder.parent / name).rglob("*.[ch]")]
    for file in sorted(files):
        hasher.update(file.read_bytes())
    return hasher.hexdigest()


def folder_for(*identity: str) -> Path:
    """The cache folder of the artefact that `identity` determines; a `CannotWrite` says why there is none."""
    digest = hashlib.blake2b("\n".join([source_digest(), *identity]).encode(), digest_size=10).hexdigest()
    return private_cache("select") / digest


def compiled(
    identity: str, source: str, header: str, *, flags: tuple[str, ...] = FLAGS, progress: Progress = QUIET
) -> Path | None:
    """The shared object of an artefact; None if there is no compiler. At worst two processes both build it."""
    compiler = find_compiler()
    if compiler is None:
        return None
    folder = folder_for("artefact", identity, compiler.path, compiler.version, *flags, instruction_set())
    made = folder / "artefact.so"
    if not is_intact(made):
        build(compiler, flags, source, header, made, progress=progress)
    return made


def kept(identity: str, flags: tuple[str, ...] = FLAGS) -> Path | None:
    """The shared object if it is cached, so that its source need not be written again."""
    compiler = find_compiler()
    if compiler is None:
        return None
    folder = folder_for("artefact", identity, compiler.path, compiler.version, *flags, instruction_set())
    return folder / "artefact.so" if is_intact(folder / "artefact.so") else None


def build(
    compiler: Compiler,
    flags: tuple[str, ...],
    source: str,
    header: str,
    made: Path,
    name: str = "kerncast",
    progress: Progress = QUIET,
) -> None:
    """Compile to a temporary folder and rename; the checksum is written last, so if it exists the object is complete."""
    try:
        made.parent.mkdir(parents=True, exist_ok=True)
        with scratch_folder(made.parent) as draft:
            (draft / f"{name}.c").write_text(source, encoding="utf-8")
            (draft / f"{name}.h").write_text(header, encoding="utf-8")
            command = [compiler.path, *flags, f"-I{draft}", str(draft / f"{name}.c"), "-o", str(draft / "artefact.so"), "-lm"]
            failed = _run(command, progress)
            if failed is not None:
                reasons = [line for line in failed.splitlines() if "error" in line] or failed.splitlines()
                raise CannotCompile(f"the exported C does not compile with {compiler.version}: {(reasons or ['no reason'])[0]}")
            replace_file(made, (draft / "artefact.so").rename)
            keep_sum(made)
    except subprocess.TimeoutExpired as error:
        raise CannotCompile(TOO_SLOW.format(COMPILE_SECONDS)) from error
    except OSError as error:
        raise CannotWrite(
            f"compiled artefacts cannot be kept in {made.parent} ({error}): free space, or set KERNCAST_CACHE"
        ) from error


def _run(command: list[str], progress: Progress) -> str | None:
    """Run the compiler; what it says if it fails. An error of `progress` ends it: whoever waited has no use for it."""
    deadline = time.monotonic() + COMPILE_SECONDS
    # In a group of its own, for a compiler is several processes.
    with subprocess.Popen(command, stdout=subprocess.DEVNULL, stderr=subprocess.PIPE, text=True, process_group=0) as running:
        try:
            while True:
                with contextlib.suppress(subprocess.TimeoutExpired):
                    said = running.communicate(timeout=TICK_SECONDS)[1]
                    return said if running.returncode else None
                progress.tick()
                if time.monotonic() > deadline:
                    raise subprocess.TimeoutExpired(command, COMPILE_SECONDS)
        except BaseException:
            with contextlib.suppress(ProcessLookupError):
                os.killpg(running.pid, signal.SIGKILL)
            raise


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
