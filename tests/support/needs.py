"""What a test may need beyond Python, gcc and make. A machine without it leaves the test out, always for the same reason.

`@pytest.mark.needs("clang")` on a test or `pytestmark = pytest.mark.needs("torch")` in a file; `require("ray")` in the middle
of a test, or at the top of a file that cannot be imported without it.
"""

from __future__ import annotations

import os
import platform
import shutil
from collections.abc import Callable
from functools import cache
from importlib.util import find_spec
from pathlib import Path

import pytest
from tests.support.browser import chromium

from kerncast.measuring.backends.cpu.build import find_compiler
from kerncast.measuring.backends.opencl import OpenClBackend
from kerncast.measuring.backends.triton import TritonBackend
from kerncast.testing import soaking

SECOND_STAGE = "KERNCAST_SECOND_STAGE"
# What CI's second stage may leave out as well.
NEVER_IN_CI = ("a GPU", "make soak")


def _programs(*names: str) -> Callable[[], bool]:
    return lambda: all(shutil.which(name) for name in names)


def _packages(*names: str) -> Callable[[], bool]:
    return lambda: all(find_spec(name) for name in names)


NEEDS: dict[str, Callable[[], bool]] = {
    "a C compiler": lambda: find_compiler() is not None,
    "gcc": _programs("gcc"),
    "g++": _programs("g++"),
    "clang": _programs("clang"),
    "clang++": _programs("clang++"),
    "cmake": _programs("cmake"),
    "qemu-user": _programs("qemu-x86_64"),
    "pkg-config": _programs("pkg-config"),
    "sources of locales": lambda: bool(shutil.which("localedef")) and Path("/usr/share/i18n/charmaps").exists(),
    "chromium": lambda: chromium() is not None,
    "torch": _packages("torch"),
    "triton": _packages("torch", "triton"),
    "ray": _packages("ray"),
    "optuna": _packages("optuna"),
    "pandas": _packages("pandas"),
    "Kernel Tuner": _packages("kernel_tuner", "jsonschema"),
    "a working OpenCL": lambda: OpenClBackend.unavailable() is None,
    "a GPU": lambda: TritonBackend.unavailable() is None,
    "an x86-64 CPU": lambda: platform.machine() == "x86_64",
    "root": lambda: os.name == "posix" and os.geteuid() == 0,
    # Minutes or hours long.
    "make soak": soaking,
    # Minutes long, and no change breaks it often: in CI's second stage and in `make soak`.
    "a second stage": lambda: soaking() or bool(os.environ.get(SECOND_STAGE)),
}


@cache
def _there(name: str) -> bool:
    return NEEDS[name]()


def lacking(*names: str) -> str | None:
    """The first of these that the machine does not have."""
    return next((name for name in names if not _there(name)), None)


def require(*names: str) -> None:
    """Leave out the test, or the file, that is being run where one of these is not there."""
    __tracebackhide__ = True  # pytest names the line that asks
    if (name := lacking(*names)) is not None:
        pytest.skip(f"needs {name}", allow_module_level=True)
