"""`kerncast doctor`."""

from __future__ import annotations

import platform
import shutil
import subprocess
from importlib import metadata
from typing import Any

import click

import kerncast
from kerncast import devices
from kerncast.backends import backends
from kerncast.backends.contract import Backend
from kerncast.cli.views.output import json_option, print_json, table
from kerncast.errors import KerncastError
from kerncast.registry import FAMILIES, OPS

CORE = ("click", "jinja2", "lightgbm", "msgspec", "numpy", "plotly", "polars", "rich", "scikit-learn")
# Package → the extra that brings it, and what for.
EXTRAS = {
    "optuna": "tune: kerncast train --tune",
    "pyopencl": "opencl: the backend opencl",
    "torch": "torch: training deep models",
    "triton": "triton: the backend triton",
}
# Command → the package that brings it.
COMPILERS = {"gcc": "gcc", "clang": "clang", "cc": "gcc"}


def _package(name: str) -> dict[str, Any]:
    try:
        return {"what": name, "kind": "package", "works": True, "detail": metadata.version(name)}
    except metadata.PackageNotFoundError:
        return {"what": name, "kind": "package", "works": False, "detail": f"not installed: pip install {name}"}


def _extra(name: str) -> dict[str, Any]:
    extra, purpose = EXTRAS[name].split(": ")
    found = {**_package(name), "kind": "extra"}
    if not found["works"]:
        found["detail"] = f"not installed: pip install 'kerncast[{extra}]' for {purpose}"
    return found


def _compiler(name: str) -> dict[str, Any]:
    path = shutil.which(name)
    if path is None:
        return {"what": name, "kind": "compiler", "works": False, "detail": f"not found: apt install {COMPILERS[name]}"}
    try:
        answer = subprocess.run([path, "--version"], capture_output=True, text=True, timeout=10, check=False)
        first = (answer.stdout or answer.stderr).splitlines()[:1] or ["no version"]
        return {"what": name, "kind": "compiler", "works": answer.returncode == 0, "detail": first[0]}
    except (OSError, subprocess.TimeoutExpired) as error:
        return {"what": name, "kind": "compiler", "works": False, "detail": f"{path} does not run: {error}"}


def _backend(kind: type[Backend]) -> dict[str, Any]:
    try:
        why_not = kind.unavailable()
    except KerncastError as error:  # a setting that names what is not there
        why_not = str(error)
    detail = why_not or f"runs {', '.join(kind.families)} on device {', '.join(kind.devices())}"
    return {"what": kind.name, "kind": "backend", "works": why_not is None, "detail": detail}


@click.command("doctor")
@json_option
def command(as_json: bool) -> None:
    """Say what works on this machine, what does not and what to install for it.

    Exit code 1 when something that kerncast cannot do without is missing.
    """
    checks = [_package(name) for name in CORE] + [_extra(name) for name in EXTRAS]
    compilers = [_compiler(name) for name in COMPILERS]
    device = devices.local()
    unknown = [name for name in ("num_cus", "l1_cache_kb", "l2_cache_kb", "vector_bytes") if name not in device.numbers]
    checks += compilers
    checks.append(
        {
            "what": device.name,
            "kind": "device",
            "works": not unknown,
            "detail": f"{device.title}" + (f"; unknown: {', '.join(unknown)}" if unknown else ""),
        }
    )
    checks += [_backend(kind) for kind in backends().values()]
    checks.append(
        {
            "what": "plug-ins",
            "kind": "registry",
            "works": True,
            "detail": f"{len(list(OPS))} ops, {len(list(FAMILIES))} families",
        }
    )
    healthy = all(item["works"] for item in checks if item["kind"] == "package")
    if as_json:
        print_json(
            {"kerncast": kerncast.__version__, "python": platform.python_version(), "healthy": healthy, "checks": checks}
        )
    else:
        click.echo(f"kerncast {kerncast.__version__}, Python {platform.python_version()} on {platform.platform()}")
        table(
            ("kind", "what", "works", "detail"),
            [(c["kind"], c["what"], "yes" if c["works"] else "no", c["detail"]) for c in checks],
        )
        if not any(item["works"] for item in compilers):
            click.echo("no C compiler: exporting and measuring on the CPU need one; apt install gcc, or xcode-select --install")
    if not healthy:
        raise SystemExit(1)
