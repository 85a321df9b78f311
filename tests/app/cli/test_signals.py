"""Ctrl-C and SIGTERM: prompt, clean, and nothing measured is lost."""

import os
import signal
import subprocess
import sys
import time

import pytest

from kerncast.data import Dataset
from kerncast.data.journal import NAME, records_of

# Longer than any of these may take on a busy machine, much shorter than the work that is interrupted.
SOON = 60.0


def until(condition):
    deadline = time.monotonic() + SOON
    while not condition():
        assert time.monotonic() < deadline
        time.sleep(0.02)


@pytest.mark.parametrize(("number", "code"), [(signal.SIGINT, 130), (signal.SIGTERM, 143)])
def test_a_long_call_in_c_does_not_delay_the_end(number, code, tmp_path):
    """Python cannot run its handler then: another thread removes the draft, ends child processes and leaves."""
    work = (
        "import hashlib, subprocess, sys; from pathlib import Path\n"
        "from kerncast.app.cli.signals import leave, prompt_signals\n"
        "from kerncast.core.io.atomic import drafted, scratch_folder\n"
        "with prompt_signals():\n"
        "  try:\n"
        "    with scratch_folder(Path(sys.argv[1])), drafted(Path(sys.argv[1], 'out')) as draft:\n"
        "      (draft / 'half').write_text('x'); child = subprocess.Popen(['sleep', '600']); print(child.pid, flush=True)\n"
        "      hashlib.pbkdf2_hmac('sha256', b'', b'', 10**9)\n"  # minutes, without the interpreter
        "  except KeyboardInterrupt: leave()\n"
    )
    process = subprocess.Popen(
        [sys.executable, "-c", work, str(tmp_path)], stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True
    )
    child = int(process.stdout.readline())
    time.sleep(1.0)  # it is in the long call by now; if not, it ends the usual way
    process.send_signal(number)
    _, said = process.communicate(timeout=SOON)
    assert process.returncode == code, said
    assert list(tmp_path.iterdir()) == []
    until(lambda: not os.path.exists(f"/proc/{child}"))


def test_the_command_line_handles_signals():
    """Every verb runs with them: without the handler, SIGTERM would leave drafts behind."""
    work = (
        "import signal; from kerncast.app import cli; from kerncast.app.cli.verbs import list_\n"
        "cli.program.main = lambda **options: print(signal.getsignal(signal.SIGTERM).__qualname__)\n"
        "cli.main(['doctor'])"
    )
    done = subprocess.run([sys.executable, "-c", work], capture_output=True, text=True, check=True)
    assert done.stdout.startswith("prompt_signals.")


def test_a_stopped_collection_drops_what_is_being_measured_and_keeps_the_rest(tmp_path):
    """It ends in the middle of a chunk that would take hours, and what it leaves is a dataset."""
    out = tmp_path / "d"
    command = [
        sys.executable,
        "-m",
        "kerncast.app.cli",
        "collect",
        "gemm/triton",
        "--backend",
        "kerncast.testing.backends:Instant",
    ]
    command += ["--problems", "grid:M=64:4096:64;N=64;K=64", "--vary", "dtype=fp16", "--vary", "layout=rcr"]
    command += ["--configs", "sample:20", "--out", str(out)]
    process = subprocess.Popen(
        [*command, "--samples", "200", "--chunk-size", "1"], stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True
    )
    until(lambda: (out / NAME).exists() and (out / NAME).stat().st_size > 2000)
    process.send_signal(signal.SIGTERM)
    said, errors = process.communicate(timeout=SOON)
    assert process.returncode == 3, errors
    assert "stopping: what is being measured now is dropped, everything else is kept" in errors
    assert "kerncast inspect" in said
    dataset = Dataset.open(out)
    assert dataset.rows == len({record["key"] for record in records_of(out / NAME)}) > 0
    assert dataset.completeness.ended == "stopped"
