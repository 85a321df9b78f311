"""Validating: figures, exit codes and the picture; nothing is really compiled or timed here."""

import json
import os
import subprocess
import sys
from types import SimpleNamespace
from xml.etree import ElementTree

import pytest

from kerncast.answering.measure import TimedConfig
from kerncast.errors import InvalidValue
from kerncast.torch import validating
from kerncast.torch.validation import Mode, ValidatedProduct, Validation

pytestmark = [
    pytest.mark.needs("torch"),
    *(pytest.mark.filterwarnings(f"ignore::{kind}:torch") for kind in ("DeprecationWarning", "UserWarning", "FutureWarning")),
]
PROBLEM = {"M": 16, "N": 48, "K": 32, "dtype": "fp32", "layout": "rcr", "threads": 1}
# Run in a program that knows nothing of kerncast, in a thread of its own.
PROGRAM = """
import threading, torch
from torch._inductor import async_compile
import torch._inductor.config as config
async_compile.AsyncCompile.cpp_pybinding = lambda self, kinds, code: lambda *arguments: None
torch.set_num_threads(1)
layer = torch.nn.Linear(32, 48).eval()
def run():
    config.max_autotune_gemm_backends = "CPP,ATEN"
    with torch.no_grad():
        torch.compile(layer)(torch.ones(16, 32))
thread = threading.Thread(target=run)
thread.start()
thread.join()
"""


@pytest.fixture
def measured(made_up, monkeypatch):
    """`measured(times)` validates a model whose kernels take these times: the chosen tile's, the default's and ATen's."""
    from kerncast.library import devices
    from kerncast.measuring.backends.inductor.build import cpu_software

    backend = SimpleNamespace(device=devices.local, software=lambda family: cpu_software(), compile=lambda vectors: None)
    monkeypatch.setattr(validating, "backend_that_runs", lambda family: lambda index: backend)

    def run(tile, default, aten, model=None):
        times = {"tile": tile, "default": default, "aten": aten}

        def timed(backend, problem, configs, seconds):
            return sorted((TimedConfig(config, times[config["kind"]], 9) for config in configs), key=lambda item: item.time_ns)

        monkeypatch.setattr(validating, "measure_top", timed)
        return validating.validate(model or made_up((4, 16)), shapes=[PROBLEM])

    return run


def test_chosen_kernels_are_judged_by_what_autotuning_would_take(measured):
    """Speed is that of the better stock kernel over the chosen one; below 97 % it is not as good."""
    found = measured(tile=100.0, default=150.0, aten=120.0)
    (product,) = found.products
    assert (product.speed, product.efficiency, product.autotuned_ns, product.status) == (1.2, 1.0, 120.0, "chosen")
    assert product.skipped == 7
    assert found.as_good
    assert "1.20 x" in repr(found)
    assert json.loads(json.dumps(found.as_json()))["products"][0]["best_ns"] == 100.0
    slow = measured(tile=125.0, default=150.0, aten=120.0)
    assert not slow.as_good
    assert slow.worst(1)[0].efficiency == pytest.approx(0.96)


def test_a_model_of_another_machine_is_not_validated(measured, made_up):
    """Its products abstain, as in a compilation, and nothing is as good as max-autotune."""
    stranger = made_up((4, 16), software=tuple({"torch": "1.0"}.items()))
    found = measured(100.0, 150.0, 120.0, stranger)
    assert (found.products[0].status, found.as_good) == ("abstained", False)
    assert "trained with torch 1.0" in found.products[0].reason


def test_modes_are_compiled_apart_and_drawn(made_up, compiling):
    """Stock, max-autotune and choosing: three compilations of one module in one process, each with its own kernels."""
    import torch
    from kerncast.torch.chooser import ChoicePolicy
    from kerncast.torch.validating import compare_modes

    layer, x = torch.nn.Linear(32, 48).eval(), torch.ones(16, 32)
    modes = compare_modes(made_up((4, 16)), layer, {"input": x}, ChoicePolicy(), rounds=1)
    assert [mode.name for mode in modes] == ["stock", "max-autotune", "kerncast"]
    assert all(mode.run_ns > 0 and mode.compile_cpu_seconds > 0 for mode in modes)
    drawn = Validation("m", "d", "x", (), (*modes, Mode("<b>&", 1.0, 1.0, 1.0, 0, 0.0))).picture()
    assert ElementTree.fromstring(drawn).tag.endswith("svg")
    assert "<b>" not in drawn


def test_arguments_that_do_not_fit_are_refused(made_up):
    """With the one that they are for."""
    import kerncast.torch as ki

    for options, rule in (
        ({}, "either `model_file` or `shapes`"),
        ({"shapes": [PROBLEM], "exhaustive": 3}, "are for `model_file`"),
        ({"model_file": "net.py", "vary": ["threads=1"]}, "`vary` is for `shapes`"),
    ):
        with pytest.raises(InvalidValue, match=rule):
            ki.validate(made_up((4, 16)), **options)
    assert Validation("m", "d", "x", (ValidatedProduct(PROBLEM, "failed", "why"),)).as_good is False


def test_a_variable_makes_a_model_choose_in_every_thread(made_up, inductor_cache, run, tmp_path):
    """KERNCAST_INDUCTOR in a program that knows nothing of it; KERNCAST_REPORT says what was decided."""
    file = tmp_path / "decided-{pid}.json"
    variables = {"KERNCAST_INDUCTOR": str(made_up((4, 16)).path), "KERNCAST_REPORT": str(file), "TORCHINDUCTOR_FREEZING": "1",
                 "TORCHINDUCTOR_MAX_AUTOTUNE": "1", "TORCHINDUCTOR_CACHE_DIR": str(inductor_cache)}  # fmt: skip
    done = subprocess.run([sys.executable, "-c", PROGRAM], env={**os.environ, **variables}, capture_output=True, text=True,
                          check=False, timeout=300)  # fmt: skip
    assert done.returncode == 0, done.stderr[-2000:]
    (written,) = tmp_path.glob("decided-*.json")
    code, out, _ = run("torch", "report", written)
    assert code == 0
    assert "1 chosen" in out
    assert "mr=4 nr=16" in out
