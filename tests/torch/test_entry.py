"""The entry point that `import torch` calls: nothing without a variable, and never an error."""

import importlib
import os
import subprocess
import sys
from importlib.util import find_spec
from pathlib import Path

import pytest

import kerncast
from kerncast import torch_entry as entry

SOURCE = "import sys\nstate = 'executed'\ndef loader():\n    return __spec__.loader\n"


@pytest.fixture
def module(tmp_path, monkeypatch):
    """A module that is not imported yet."""
    name = "kerncast_late_module"
    (tmp_path / f"{name}.py").write_text(SOURCE)
    monkeypatch.syspath_prepend(tmp_path)
    before = list(sys.meta_path)
    yield name
    sys.modules.pop(name, None)
    sys.meta_path[:] = before


def test_a_function_runs_right_after_an_import_and_once(module):
    """The module is whole by then, has its own loader, and nothing of the hook is left."""
    seen = []
    before = list(sys.meta_path)
    entry.after_import(module, lambda: seen.append(sys.modules[module].state))
    entry.after_import(module, lambda: seen.append("a second hook"))
    importlib.import_module("json.tool")
    assert seen == []
    found = importlib.import_module(module)
    assert seen == ["executed"]
    assert found.loader().__class__.__name__ == "SourceFileLoader"
    assert found.__loader__ is found.loader()
    assert sys.meta_path == before
    importlib.reload(found)
    assert seen == ["executed"]
    entry.after_import(module, lambda: seen.append("at once"))
    assert seen == ["executed", "at once"]


def test_a_module_that_fails_fails_as_ever(module, tmp_path):
    """The error is the module's, our function is not called, and the finder is gone."""
    (tmp_path / f"{module}.py").write_text("raise ZeroDivisionError")
    importlib.invalidate_caches()
    before, seen = list(sys.meta_path), []
    entry.after_import(module, lambda: seen.append(1))
    with pytest.raises(ZeroDivisionError):
        importlib.import_module(module)
    assert (seen, sys.meta_path) == ([], before)


def test_variables_decide(monkeypatch, caplog, module):
    """Without them, or disabled, nothing waits; what fails later is one line of the log."""
    second = f"{module}_too"
    Path(find_spec(module).origin).with_name(f"{second}.py").write_text(SOURCE)
    monkeypatch.setattr(entry, "SELECTING", module)
    monkeypatch.setattr(entry, "COMPILING", second)
    before = list(sys.meta_path)
    for variables in ({}, {entry.OBSERVE: "data", entry.DISABLE: "1"}, {entry.OBSERVE: ""}):
        for name in (entry.OBSERVE, entry.MODEL, entry.DISABLE):
            monkeypatch.delenv(name, raising=False)
        for name, value in variables.items():
            monkeypatch.setenv(name, value)
        entry.autoload()
        assert sys.meta_path == before
    monkeypatch.delenv(entry.DISABLE, raising=False)
    asked = []

    def call(name):
        asked.append(name)
        raise RuntimeError("no such model")

    monkeypatch.setenv(entry.OBSERVE, "data")
    monkeypatch.setenv(entry.MODEL, "model")
    entry.autoload()
    monkeypatch.setattr(entry.importlib, "import_module", call)
    __import__(module)
    __import__(second)
    del sys.modules[second]
    assert asked == ["kerncast.torch.observing", "kerncast.torch.enabling"]
    assert len([record for record in caplog.records if "no such model" in record.message]) == 2


@pytest.mark.needs("torch")
def test_importing_torch_loads_nothing_of_kerncast_but_the_entry():
    """With kerncast installed and no variable set, `import torch` neither listens nor waits."""
    code = (
        "import sys, torch; assert 'kerncast.torch_entry' in sys.modules; "
        "late = ('kerncast.torch.obs', 'polars', 'torch._inductor.select'); "
        "assert not [name for name in sys.modules if name.startswith(late)]; "
        "assert not [item for item in sys.meta_path if type(item).__module__.startswith('kerncast')]"
    )
    variables = {name: value for name, value in os.environ.items() if not name.startswith("KERNCAST_")}
    path = {"PYTHONPATH": str(Path(kerncast.__file__).parents[1])}
    done = subprocess.run([sys.executable, "-c", code], env={**variables, **path}, capture_output=True, text=True, check=False)
    assert done.returncode == 0, done.stderr
