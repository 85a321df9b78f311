"""`kerncast.doctor`: what works on this machine, and what to install for the rest."""

from __future__ import annotations

import platform
import shutil
import subprocess
from dataclasses import asdict, dataclass
from importlib import metadata
from importlib.util import find_spec
from typing import Any

from kerncast.errors import KerncastError
from kerncast.library import devices
from kerncast.library.registry import FAMILIES, OPS
from kerncast.measuring.backends import backends
from kerncast.measuring.backends.contract import Backend
from kerncast.measuring.backends.inductor.illegal import bf16_products
from kerncast.version import __version__

CORE = ("click", "lightgbm", "msgspec", "numpy", "polars", "rich", "scipy")
# Package → the extra that brings it, and what for.
EXTRAS = {
    "jinja2": ("train", "reports"),
    "optuna": ("tune", "kerncast train --tune"),
    "plotly": ("train", "reports and plot()"),
    "pyopencl": ("opencl", "the backend opencl"),
    "ray": ("ray", "work on a cluster: --on ray"),
    "scikit-learn": ("train", "training mlp models, and models of families with a library's kernel"),
    "torch": ("torch", "training deep models, the backend inductor, kerncast torch"),
    "triton": ("triton", "the backend triton"),
    "uvicorn": ("serve", "kerncast serve"),
}
# Command → the package that brings it.
COMPILERS = {"gcc": "gcc", "clang": "clang", "cc": "gcc"}
DEVICE_NUMBERS = ("num_cus", "l1_cache_kb", "l2_cache_kb", "vector_bytes")


@dataclass(frozen=True)
class Check:
    """One check and its result."""

    what: str
    kind: str
    works: bool
    detail: str


@dataclass(frozen=True)
class Diagnosis:
    """All checks, and whether kerncast has everything that it requires."""

    checks: tuple[Check, ...]

    @property
    def healthy(self) -> bool:
        """Whether every package that kerncast needs is there."""
        return all(item.works for item in self.checks if item.kind == "package")

    @property
    def compiles(self) -> bool:
        """Whether some C compiler works."""
        return any(item.works for item in self.checks if item.kind == "compiler")

    def as_json(self) -> dict[str, Any]:
        """For `--json`."""
        python, checks = platform.python_version(), [asdict(item) for item in self.checks]
        return {"kerncast": __version__, "python": python, "healthy": self.healthy, "checks": checks}

    def __repr__(self) -> str:
        lines = [f"kerncast {__version__}, Python {platform.python_version()} on {platform.platform()}"]
        lines += [f"{'yes' if c.works else 'no ':3} {c.kind:<9} {c.what}: {c.detail}" for c in self.checks]
        return "\n".join(lines)


def doctor() -> Diagnosis:
    """Check packages, extras, compilers, this machine's numbers and backends."""
    device = devices.local()
    unknown = [name for name in DEVICE_NUMBERS if name not in device.numbers]
    title = device.title + (f"; unknown: {', '.join(unknown)}" if unknown else "")
    plugins = f"{len(list(OPS))} ops, {len(list(FAMILIES))} families"
    return Diagnosis(
        (
            *(_package(name) for name in CORE),
            *(_extra(name) for name in EXTRAS),
            *(_compiler(name) for name in COMPILERS),
            Check(device.name, "device", not unknown, title),
            *(_backend(kind) for kind in backends().values()),
            *_bf16_products(),
            Check("plug-ins", "registry", True, plugins),
        )
    )


def _package(name: str) -> Check:
    try:
        return Check(name, "package", True, metadata.version(name))
    except metadata.PackageNotFoundError:
        return Check(name, "package", False, f"not installed: pip install {name}")


def _extra(name: str) -> Check:
    extra, purpose = EXTRAS[name]
    found = _package(name)
    detail = found.detail if found.works else f"not installed: pip install 'kerncast[{extra}]' for {purpose}"
    return Check(name, "extra", found.works, detail)


def _compiler(name: str) -> Check:
    path = shutil.which(name)
    if path is None:
        return Check(name, "compiler", False, f"not found: apt install {COMPILERS[name]}")
    try:
        answer = subprocess.run([path, "--version"], capture_output=True, text=True, timeout=10, check=False)
        first = (answer.stdout or answer.stderr).splitlines()[:1] or ["no version"]
        return Check(name, "compiler", answer.returncode == 0, first[0])
    except (OSError, subprocess.TimeoutExpired) as error:
        return Check(name, "compiler", False, f"{path} does not run: {error}")


def _bf16_products() -> tuple[Check, ...]:
    """Only where torch is installed: a second or two."""
    return () if find_spec("torch") is None else (Check("bf16", "torch", *bf16_products()),)


def _backend(kind: type[Backend]) -> Check:
    try:
        why_not = kind.unavailable()
    except KerncastError as error:  # a setting that names something that does not exist
        why_not = str(error)
    detail = why_not or f"runs {', '.join(kind.families)} on device {', '.join(kind.devices())}"
    return Check(kind.name, "backend", why_not is None, detail)
