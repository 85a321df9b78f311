"""The battery: a backend full of faults, and everything that can happen to a process and a machine, in one collection."""

import subprocess
import sys
import time

from tests.support import chaos
from tests.support.machine import Machine

from kerncast.testing import repeats

# Gives 200 vectors every fault at least once.
SEED = 18402


def test_every_vector_ends_as_injected_whatever_happens_meanwhile(tmp_path):
    """One row per vector, its own status and time; no process, shared memory or file is left."""
    vectors, kills, others = repeats(200, 20_000), repeats(2, 20), repeats(1, 10)
    report = chaos.run(tmp_path / "battery", vectors=vectors, kills=kills, others=others, seed=SEED)
    assert not any(report.wrong.values()), str(report)
    assert report.vectors == vectors
    assert set(report.injected) == set(chaos.SHARES)
    assert report.episodes["kill"] == kills


def test_a_machine_has_the_clock_and_the_disk_that_it_was_given(tmp_path):
    """Its processes see both, others do not; what is left of it is found."""
    machine = Machine(tmp_path / "machine")
    machine.set_clock(-86400)
    machine.set_disk(5)
    code = (
        "import os, sys, tempfile, time\n"
        "open(sys.argv[1] + '/elsewhere', 'w').write('0123456789')\n"
        "tempfile.mkstemp()\n"
        "print(time.time(), flush=True)\n"
        "try:\n"
        "    with open(sys.argv[1] + '/disk', 'wb', buffering=0) as file: file.write(b'0123456789'), file.write(b'01234')\n"
        "except OSError as error: print(error.strerror, flush=True)\n"
        "sys.stdin.read()"
    )
    process = subprocess.Popen(
        [sys.executable, "-c", code, str(tmp_path)],
        env=machine.environment(str(tmp_path / "disk")), stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True,
    )  # fmt: skip
    now = float(process.stdout.readline())
    assert -90_000 < now - time.time() < -80_000
    assert process.stdout.readline().strip() == chaos.NO_SPACE
    assert (tmp_path / "disk").read_bytes() == b"01234"
    assert machine.processes(b"elsewhere") == [process.pid]
    process.communicate("")
    assert (machine.processes(), machine.shared_memory(), len(machine.files())) == ([], [], 1)
