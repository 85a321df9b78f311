"""Eager bf16 products that end with SIGILL: found in another process, with the variable that helps."""

import os
import sys

import pytest

from kerncast.app.api import inspect as doctor_module
from kerncast.measuring.backends.inductor import VALUE, VARIABLE, bf16_products

DIES = "import os, signal; os.kill(os.getpid(), signal.SIGILL)"
HELPED = f"import os, signal; os.environ.get('{VARIABLE}') == '{VALUE}' or os.kill(os.getpid(), signal.SIGILL)"


@pytest.mark.parametrize(
    ("program", "works", "said"),
    [
        ("pass", True, "eager bf16 products run"),
        (HELPED, False, f"ends with SIGILL: set {VARIABLE}={VALUE} before torch is imported, then it runs"),
        (DIES, False, f"ends with SIGILL, with {VARIABLE}={VALUE}, too: use other dtypes"),
        ("raise SystemExit('libmkl is gone\\x1b[31m')", False, "fails (libmkl is gone"),
        ("import time; time.sleep(60)", False, "has no result after 0.5 s"),
        (None, False, "cannot be tried (No such file or directory)"),
    ],
)
def test_each_end_of_the_trial_has_its_sentence(program, works, said, monkeypatch):
    """The variable is named only where setting it was seen to help."""
    monkeypatch.delenv(VARIABLE, raising=False)
    probe = ["/nowhere/python"] if program is None else [sys.executable, "-c", program]
    found, detail = bf16_products(probe, 0.5 if program and "sleep" in program else 60)
    assert (found, said in detail) == (works, True), detail
    assert VARIABLE not in os.environ


def test_doctor_says_so_and_stays_healthy(monkeypatch, run):
    """`works` is no, with the sentence; without torch nothing is tried."""
    monkeypatch.setattr(doctor_module, "bf16_products", lambda: bf16_products([sys.executable, "-c", HELPED]))
    monkeypatch.delenv(VARIABLE, raising=False)
    monkeypatch.setattr(doctor_module, "find_spec", lambda name: object())
    code, out, _ = run("doctor")
    (line,) = [line for line in out.splitlines() if line.startswith("torch ")]
    assert code == 0
    assert line.split()[:3] == ["torch", "bf16", "no"]
    assert f"{VARIABLE}={VALUE}" in line
    monkeypatch.setattr(doctor_module, "find_spec", lambda name: None)
    assert not [item for item in doctor_module.doctor().checks if item.kind == "torch"]
