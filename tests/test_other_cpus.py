"""Compiled parts on CPUs that are older than this one: a plain AVX2 machine, and one with SSE4.2."""

import os
import subprocess
from pathlib import Path

import pytest
from tests.support.emulated import NEHALEM, avx2_machine

from kerncast.answering.exporters.project import write_project
from kerncast.native.build import FLAGS
from kerncast.native.lower import lower
from kerncast.native.tiers.build import TierOptions, tiers_named
from kerncast.testing import SOAK
from kerncast.testing.models import synthetic_dataset, synthetic_rows
from kerncast.training.procedure import Recipe
from kerncast.training.train import train

ROOT = Path(__file__).parents[1]
# What loads code that was compiled for the CPU it runs on, the quickstart with it.
PARTS = (
    "measuring/backends/test_cpu.py",
    "measuring/backends/test_cpu_conv.py",
    "measuring/backends/test_cpu_reshard.py",
    "app/cli/test_quickstart.py",
    "native/test_blob.py",
    "answering/exporters/test_tree_alone.py",
    "answering/test_dispatch.py",
)
pytestmark = pytest.mark.needs("make soak", "an x86-64 CPU", "gcc", "qemu-user")


@pytest.fixture(scope="module")
def machine(tmp_path_factory):
    """In their short form: emulated, they take ten times as long."""
    environment = avx2_machine(tmp_path_factory.mktemp("machine"))
    return {name: value for name, value in environment.items() if name != SOAK and not name.startswith("PYTEST_")}


def test_it_is_the_machine_that_is_meant(machine):
    """Python, the processes that it starts, gcc and kerncast see AVX2 and nothing later."""
    code = (
        "import subprocess, sys; from kerncast import devices;"
        "print(devices.local().numbers['vector_bytes']);"
        "print(subprocess.check_output([sys.executable, '-c', 'import sys; print(sys.executable)'], text=True));"
        "print(subprocess.check_output(['gcc', '-march=native', '-Q', '--help=target'], text=True))"
    )
    done = subprocess.run(["python", "-c", code], env=machine, cwd=ROOT, capture_output=True, text=True, check=True)
    vector, started, *target = done.stdout.split()
    assert (vector, started) == ("32.0", str(Path(machine["PATH"].split(os.pathsep)[0]) / "python"))
    assert target[target.index("-march=") + 1] == "haswell"


@pytest.mark.parametrize("part", PARTS)
def test_compiled_parts_run_on_a_machine_with_avx2(machine, part):
    """Every test of a file passes there, and none is left out for want of the compiler."""
    command = ["python", "-m", "pytest", "-p", "no:cacheprovider", "-x", f"tests/{part}"]
    done = subprocess.run(command, env=machine, cwd=ROOT, capture_output=True, text=True)
    assert done.returncode == 0, done.stdout[-4000:] + done.stderr[-2000:]
    assert "needs a C compiler" not in done.stdout


def test_an_export_answers_on_a_cpu_with_sse42(tmp_path):
    """Compiled for it, every tier passes its self-test; compiled for AVX2 it is stopped, so that CPU it is."""
    data = synthetic_dataset(tmp_path / "data", synthetic_rows(problems=30))
    model = train(data, tmp_path / "model", Recipe("gbdt", {"trees": 30}, folds=2, threads=1))
    write_project(lower(model, *tiers_named(model, "tree,portfolio,full", TierOptions())), tmp_path / "c", "picker")
    flags = [flag for flag in FLAGS if not flag.startswith("-march") and flag != "-shared"]
    ended = {}
    for cpu in ("nehalem", "haswell"):
        program = tmp_path / cpu
        sources = [tmp_path / "c" / name for name in ("picker.c", "selftest.c")]
        subprocess.run(["gcc", *flags, f"-march={cpu}", *sources, "-o", program, "-lm"], check=True)
        ended[cpu] = subprocess.run(["qemu-x86_64", "-cpu", NEHALEM, program], capture_output=True, text=True)
    assert " 0 differences" in ended["nehalem"].stdout
    assert ended["haswell"].returncode != 0
