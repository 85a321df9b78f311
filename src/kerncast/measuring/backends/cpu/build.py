"""Compiling kernels into a few shared objects, cached by source, compiler, flags and instruction set.

    <cache>/cpu/<key>/<digest>.so      kernels of one compilation
    <cache>/cpu/<key>/<digest>.json    their names, and the checksum of the object

Every file is written next to its place and renamed, so workers that build at the same time do no harm: at
worst a kernel is compiled twice. An object that differs from its checksum is removed and built again. The folder must be
this user's alone, because what is in it is run.
"""

from __future__ import annotations

import contextlib
import ctypes
import hashlib
import os
import shutil
import subprocess
from collections.abc import Callable, Iterable, Sequence
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass
from functools import cache, cached_property
from pathlib import Path
from typing import Protocol

import msgspec

from kerncast.core.io.arguments import private_cache
from kerncast.core.io.artefact import file_checksum
from kerncast.core.io.atomic import replace_file
from kerncast.core.io.foreign import decode_json
from kerncast.errors import CannotWrite, NotFound
from kerncast.measuring.backends.contract import CannotCompile
from kerncast.measuring.backends.environment import PLAIN_WORDS, fault_in

SOURCES = Path(__file__).parent
# Enough kernels to spread the compiler's start-up, few enough to keep every core busy.
KERNELS_PER_OBJECT = 32
COMPILE_SECONDS = 300
TOO_SLOW = "the compiler took more than {} s"
NO_COMPILER = (
    "the cpu backend compiles its kernels and needs gcc or clang, but found neither: install one "
    "(Debian and Ubuntu: apt install gcc; Fedora: dnf install gcc; macOS: xcode-select --install) or name it in CC"
)


class KernelSource(Protocol):
    """What a library is built from: C text that may use kernels.h, and a unique name."""

    @property
    def name(self) -> str:
        """What the build cache knows it by."""

    def source(self) -> str:
        """Its C text."""


@dataclass(frozen=True)
class Compiler:
    """A C compiler, and how it is called."""

    path: str
    version: str
    flags: tuple[str, ...]


@cache
def find_compiler() -> Compiler | None:
    """The compiler that CC names, which must exist, else gcc, clang or cc; None when there is none that runs."""
    named = os.environ.get("CC")
    for name in (named,) if named else ("gcc", "clang", "cc"):
        path = shutil.which(name)
        if path is None:
            continue
        try:
            shown = subprocess.run([path, "--version"], capture_output=True, text=True, timeout=30, check=True).stdout
        except (OSError, subprocess.SubprocessError):
            continue
        flags = ["-O2", "-march=native", "-ffp-contract=fast", "-fPIC", "-shared", "-pthread", "-w"]
        if "clang" in shown:
            # Without it clang cuts 64-byte vectors in two and loses a third of the speed.
            flags.append("-mprefer-vector-width=512")
        return Compiler(path, shown.splitlines()[0].strip(), tuple(flags))
    if named:
        raise NotFound(
            f"CC names a compiler that does not exist or does not run, '{named}': name gcc or clang by its path, or unset CC"
        )
    return None


def instruction_set() -> str:
    """What `-march=native` stands for on this machine."""
    try:
        text = Path("/proc/cpuinfo").read_text()
    except OSError:
        return os.uname().machine
    lines = [line for line in text.split("\n\n", 1)[0].splitlines() if line.startswith(("flags", "Features", "model name"))]
    return "\n".join(lines)


@cache
def source_digest() -> str:
    """A hash of everything that the kernels are generated from."""
    hasher = hashlib.blake2b(digest_size=8)
    headers = ("kernels.h", "products.h", "packing.h", "packing_cells.h", "results.h", "epilogue.h", "tiles.h", "pool.h")
    for name in ("gemm/codegen.py", *headers, "driver.c", "probe.c"):
        hasher.update((SOURCES / name).read_bytes())
    return hasher.hexdigest()


def translation_unit(kernels: Iterable[KernelSource]) -> str:
    """One C file with all of them; it includes `kernels.h`."""
    text = "\n".join(kernel.source() for kernel in kernels)
    # The compiler reads the header of intrinsics for longer than it compiles a kernel that has no use for them.
    needed = any(word in text for word in ("pairs_", "quads_", "KC_TILE_"))
    return ("" if needed else "#define KC_NO_PRODUCTS\n") + f'#include "kernels.h"\n\n{text}'


class _Index(msgspec.Struct, frozen=True):
    """The contents of the file next to an object."""

    names: list[str]
    checksum: str


class Library:
    """The kernels that are built for one compiler on one machine."""

    def __init__(self, compiler: Compiler, root: Path | None = None, sources: str | None = None) -> None:
        """`sources` is a hash of what its kernels are generated from; None: those of the product of matrices."""
        self.compiler = compiler
        identity = "\n".join([sources or source_digest(), compiler.path, compiler.version, *compiler.flags, instruction_set()])
        self.folder = (root or private_cache("cpu")) / hashlib.blake2b(identity.encode(), digest_size=8).hexdigest()
        self.homes: dict[str, Path] = {}
        self.broken: dict[str, str] = {}
        self._loaded: dict[Path, ctypes.CDLL] = {}
        self._checked: set[Path] = set()
        """Objects whose bytes were compared with their checksum."""

    def missing(self, items: Iterable[KernelSource]) -> list[KernelSource]:
        """Those of the items that no object holds yet, each once, in a fixed order."""
        wanted = {item.name: item for item in items}
        if any(name not in self.homes for name in wanted):
            self._scan()
        return [wanted[name] for name in sorted(wanted) if name not in self.homes]

    def build(self, items: Iterable[KernelSource], jobs: int = 1) -> None:
        """Compile what is missing. A kernel that does not compile is remembered, the others are kept."""
        todo = [item for item in self.missing(items) if item.name not in self.broken]
        if not todo:
            return
        parts = max(-(-len(todo) // KERNELS_PER_OBJECT), min(jobs, len(todo)))
        with ThreadPoolExecutor(max(jobs, 1)) as executor:
            list(executor.map(self._build_part, [todo[part::parts] for part in range(parts)]))
        self._scan()

    def function(self, item: KernelSource, symbol: str) -> int:
        """The address of a kernel; it is compiled alone when no object holds it."""
        if item.name not in self.homes:
            self.build([item])
        if item.name in self.broken:
            raise CannotCompile(f"{item.name} does not compile with {self.compiler.version}: {self.broken[item.name]}")
        address = ctypes.cast(getattr(self._open(self.homes[item.name]), symbol), ctypes.c_void_p).value
        assert address is not None
        return address

    @cached_property
    def probe(self) -> ctypes.CDLL:
        """The kernels that measure how fast the machine is and what it can do."""
        probe = self.fixed("probe")
        for name in ("kc_bf16_group", "kc_int8_group", "kc_tile_rows", "kc_products_bf16", "kc_products_int8"):
            getattr(probe, name).restype = ctypes.c_int64
        for name in ("kc_clock", "kc_fma_fp32", "kc_fma_fp64", "kc_multiply_bf16", "kc_multiply_int8"):
            function = getattr(probe, name)
            function.argtypes, function.restype = [ctypes.c_int64, ctypes.c_int64], ctypes.c_int64
        probe.kc_stream.argtypes = [ctypes.c_int64, ctypes.c_void_p, ctypes.c_int64]
        probe.kc_stream.restype = probe.kc_vector_bytes.restype = ctypes.c_int64
        return probe

    def fixed(self, name: str) -> ctypes.CDLL:
        """A C file from this folder, compiled as it is."""
        path = self.folder / f"{name}.so"
        if self._names_in(path) is None:
            self._compile((SOURCES / f"{name}.c").read_text(), path, [])
        return self._open(path)

    def _open(self, path: Path) -> ctypes.CDLL:
        if path not in self._loaded:
            self._loaded[path] = ctypes.CDLL(str(path))
        return self._loaded[path]

    def _scan(self) -> None:
        for index in sorted(self.folder.glob("*.json")) if self.folder.is_dir() else ():
            path = index.with_suffix(".so")
            if path not in self._checked:
                for name in self._names_in(path) or ():
                    self.homes.setdefault(name, path)

    def _names_in(self, path: Path) -> list[str] | None:
        """The kernels of an object; None, and it is removed, if it is not what was built."""
        index = path.with_suffix(".json")
        try:
            found = decode_json(index.read_bytes(), _Index)
            sound = path in self._checked or file_checksum(path) == found.checksum
        except FileNotFoundError:
            return None
        except (OSError, msgspec.MsgspecError):
            sound = False
        if not sound:
            # The index first: an object without one is built again.
            with contextlib.suppress(OSError):
                index.unlink(missing_ok=True)
                path.unlink(missing_ok=True)
            return None
        self._checked.add(path)
        return found.names

    def _build_part(self, items: Sequence[KernelSource]) -> None:
        source = translation_unit(items)
        digest = hashlib.blake2b(source.encode(), digest_size=10).hexdigest()
        try:
            self._compile(source, self.folder / f"{digest}.so", [item.name for item in items])
        except CannotCompile as error:
            if len(items) == 1:
                self.broken[items[0].name] = str(error)
                return
            middle = len(items) // 2
            self._build_part(items[:middle])
            self._build_part(items[middle:])

    def _write(self, path: Path, write: Callable[[Path], object]) -> None:
        try:
            path.parent.mkdir(parents=True, exist_ok=True)
            replace_file(path, write)
        except OSError as error:
            raise CannotWrite(
                f"compiled kernels cannot be kept in {self.folder} ({error}): free space, or set KERNCAST_CACHE"
            ) from error

    def _compile(self, source: str, path: Path, names: list[str]) -> None:
        def made(draft: Path) -> None:
            command = [self.compiler.path, *self.compiler.flags, f"-I{SOURCES}", "-x", "c", "-", "-lm", "-o", str(draft)]
            done = subprocess.run(
                command,
                input=source,
                capture_output=True,
                text=True,
                timeout=COMPILE_SECONDS,
                env={**os.environ, **PLAIN_WORDS},
            )
            if done.returncode:
                if fault := fault_in(done.stderr):
                    raise CannotWrite(
                        f"the compiler could not work ({fault}): free space or memory, check TMPDIR and KERNCAST_CACHE, or "
                        "lower `build_jobs`"
                    )
                reasons = [line for line in done.stderr.splitlines() if "error" in line] or done.stderr.splitlines()
                raise CannotCompile((reasons or [f"the compiler ended with {done.returncode}"])[0].strip())

        try:
            self._write(path, made)
        except subprocess.TimeoutExpired as error:
            raise CannotCompile(TOO_SLOW.format(COMPILE_SECONDS)) from error
        # The index comes last: if it exists, the object is complete.
        index = msgspec.json.encode(_Index(names, file_checksum(path)))
        self._write(path.with_suffix(".json"), lambda draft: draft.write_bytes(index))
