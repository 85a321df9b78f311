"""A machine with an older CPU, emulated by qemu-user: a folder with a Python and a gcc that see that CPU, and nothing newer.

`/proc/cpuinfo` is that of the CPU, too. What gcc makes runs on the real CPU where it is started as a program, and on the
emulated one where Python loads it.
"""

from __future__ import annotations

import os
import shlex
import shutil
import sys
from pathlib import Path

# Without what qemu does not emulate and warns of at every start.
HASWELL = "Haswell,-pcid,-x2apic,-tsc-deadline,-hle,-invpcid,-rtm"
NEHALEM = "Nehalem"
# Flags of /proc/cpuinfo from these on belong to later CPUs than Haswell.
LATER = ("avx512", "avx_vnni", "amx", "gfni", "vaes", "vpclmul", "sha_ni", "avx_ne", "avx_ifma")


def avx2_machine(folder: Path) -> dict[str, str]:
    """The environment of a machine with AVX2 and nothing later: its `python` has the packages of this one."""
    root, programs = folder / "root", folder / "bin"
    (root / "proc").mkdir(parents=True)
    programs.mkdir()
    kept = []
    for line in Path("/proc/cpuinfo").read_text().split("\n\n")[0].splitlines():
        name, _, value = line.partition(":")
        if name.strip() in ("flags", "vmx flags"):
            value = " " + " ".join(flag for flag in value.split() if not flag.startswith(LATER))
        known = {"vendor_id": " GenuineIntel", "model name": " Haswell, emulated"}
        kept.append(f"{name}:{known.get(name.strip(), value)}")
    (root / "proc/cpuinfo").write_text("\n".join(kept) + "\n\n")
    # A virtual environment is found beside the name under which Python was started.
    shutil.copy(Path(sys.prefix) / "pyvenv.cfg", folder)
    (folder / "lib").symlink_to(Path(sys.prefix) / "lib")
    emulate = f"exec qemu-x86_64 -cpu {HASWELL} -L {shlex.quote(str(root))}"
    _script(programs / "python", f'{emulate} -0 "$0" {shlex.quote(os.path.realpath(sys.executable))} "$@"')
    for name in ("gcc", "cc"):
        _script(programs / name, f'{emulate} {shlex.quote(str(shutil.which("gcc")))} "$@"')
    return {**os.environ, "PATH": f"{programs}{os.pathsep}{os.environ['PATH']}", "KERNCAST_CACHE": str(folder / "cache")}


def _script(path: Path, line: str) -> None:
    path.write_text(f"#!/bin/sh\n{line}\n")
    path.chmod(0o755)
