"""Machines on which eager PyTorch dies at a bf16 product: they announce instructions that they do not execute.

oneDNN, PyTorch's library for such products, picks its kernels by what the processor announces. Some virtual machines announce
more than they allow, and the process ends with SIGILL. A variable, read when torch is imported, makes oneDNN ask for less.
"""

from __future__ import annotations

import os
import signal
import subprocess
import sys
from collections.abc import Sequence

VARIABLE, VALUE = "ONEDNN_MAX_CPU_ISA", "AVX10_1_512"
PROBE = (sys.executable, "-P", "-c", "import torch; x = torch.ones(64, 64, dtype=torch.bfloat16); assert (x @ x)[0, 0] == 64")
# Importing torch takes two seconds, from a cold disk a minute.
SECONDS = 120.0


def advice(how: str) -> str:
    """What to do about a process that ended in this way; nothing where the variable would not help."""
    if how != signal.SIGILL.name or os.environ.get(VARIABLE) == VALUE:
        return ""
    return f"on some virtual machines PyTorch's bf16 products end so: set {VARIABLE}={VALUE} before torch is imported"


def bf16_products(probe: Sequence[str] = PROBE, seconds: float = SECONDS) -> tuple[bool, str]:
    """Whether eager bf16 products work on this machine, tried in another process, and a sentence about it."""
    how = _ended(probe, seconds, {})
    if how is None:
        given = os.environ.get(VARIABLE)
        return True, f"eager bf16 products run{f' with {VARIABLE}={given}' if given else ''}"
    if how != signal.SIGILL.name:
        return False, f"an eager bf16 product {how}: try it with python -c 'import torch; …', and install torch again"
    if _ended(probe, seconds, {VARIABLE: VALUE}) is None:
        return False, f"an eager bf16 product ends with {how}: set {VARIABLE}={VALUE} before torch is imported, then it runs"
    return False, f"an eager bf16 product ends with {how}, with {VARIABLE}={VALUE}, too: use other dtypes on this machine"


def _ended(probe: Sequence[str], seconds: float, variables: dict[str, str]) -> str | None:
    """None: the program ended well; else the signal, or what happened in a few words."""
    try:
        done = subprocess.run(
            list(probe), capture_output=True, text=True, errors="replace", timeout=seconds, check=False,
            stdin=subprocess.DEVNULL, env={**os.environ, **variables},
        )  # fmt: skip
    except subprocess.TimeoutExpired:
        return f"has no result after {seconds:g} s"
    except OSError as error:
        return f"cannot be tried ({error.strerror or error})"
    if done.returncode == 0:
        return None
    if done.returncode == -signal.SIGILL:
        return signal.SIGILL.name
    last = next(iter(done.stderr.strip().splitlines()[-1:]), f"exit code {done.returncode}")
    return f"fails ({last[:200]})"
