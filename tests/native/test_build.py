"""Compiling an artefact: whoever waits for it is told, and can end it."""

import time
from pathlib import Path

import pytest

from kerncast.core.progress import Progress
from kerncast.measuring.backends.cpu.build import Compiler
from kerncast.native.build import build


class Enough(BaseException):
    """Nobody needs it any more."""


class Impatient(Progress):
    """Waits until there is a file."""

    def __init__(self, file):
        self.file = file

    def tick(self):
        if self.file.exists() and self.file.read_text().endswith("\n"):
            raise Enough


def test_a_compiler_is_ended_by_whoever_waits_for_it(tmp_path):
    """With the processes that it started, and nothing remains of what it was to make."""
    slow, child = tmp_path / "slow", tmp_path / "child"
    slow.write_text(f"#!/bin/sh\nsleep 600 &\necho $! > {tmp_path}/child\nwait\n")
    slow.chmod(0o755)
    with pytest.raises(Enough):
        build(Compiler(str(slow), "slow", ()), (), "", "", tmp_path / "made" / "artefact.so", progress=Impatient(child))
    assert list((tmp_path / "made").iterdir()) == []
    status = Path("/proc", child.read_text().strip(), "stat")
    while status.exists() and status.read_text().rpartition(")")[2].split()[0] != "Z":
        time.sleep(0.01)
