"""Small programs that answer as the real ones do, and a command line that runs in this process."""

import os
import sys
import time
from pathlib import Path

import pytest

from kerncast.app import cli
from kerncast.data import Dataset


@pytest.fixture
def program(tmp_path, monkeypatch):
    """Write a Python program into a folder on PATH; returns its path."""
    folder = tmp_path / "bin"
    folder.mkdir()
    monkeypatch.setenv("PATH", f"{folder}{os.pathsep}{os.environ['PATH']}")
    monkeypatch.setenv("KERNCAST_CACHE", str(tmp_path / "cache"))
    monkeypatch.setenv("NOTES", str(tmp_path / "notes"))

    def write(name, body, where=None):
        path = Path(where or folder) / name
        path.parent.mkdir(parents=True, exist_ok=True)
        path.write_text(f"#!{sys.executable} -IS\nimport json, os, signal, sys, time\n{body}")
        path.chmod(0o755)
        return path

    return write


@pytest.fixture
def notes(tmp_path):
    """The lines that programs left in the file that NOTES names."""
    path = tmp_path / "notes"
    return lambda: path.read_text().splitlines() if path.exists() else []


@pytest.fixture
def collect(tmp_path, capsys, monkeypatch):
    """`kerncast collect … --out d`: exit code, rows (None when there is no dataset) and standard error."""
    monkeypatch.chdir(tmp_path)

    def call(*arguments, out="d"):
        with pytest.raises(SystemExit) as stopped:
            cli.main(["collect", *map(str, arguments), "--out", out])
        shown = capsys.readouterr()
        found = tmp_path / out
        rows = Dataset.open(found).read() if found.exists() and "--dry-run" not in arguments else None
        return stopped.value.code or 0, rows, shown

    return call


def alive(pid):
    """Whether a process runs; one that ended and waits to be reaped does not."""
    try:
        return Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split()[0] not in "ZX"
    except OSError:
        return False


@pytest.fixture
def gone():
    """Wait until processes are gone."""

    def wait(pids, seconds=20.0):
        deadline = time.monotonic() + seconds
        while time.monotonic() < deadline and any(map(alive, pids)):
            time.sleep(0.05)
        return not any(map(alive, pids))

    return wait
