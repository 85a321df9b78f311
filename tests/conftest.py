"""Shared by all tests: the command line in this process, and the closing line that counts what had to be left out."""

import os
import tempfile
from pathlib import Path

import pytest
from hypothesis import HealthCheck, settings

from kerncast import cli
from kerncast.testing.repeats import soaking

# The same examples in every run, however slow the machine is. `make soak` draws new ones.
settings.register_profile(
    "kerncast",
    derandomize=not soaking(),
    database=None,
    deadline=None,
    print_blob=True,
    suppress_health_check=[HealthCheck.too_slow, HealthCheck.function_scoped_fixture],
)
settings.load_profile("kerncast")

_left_out: list[str] = []
# Tests train models and trust them: on a list of their own, which is gone at the end.
_trusted = tempfile.TemporaryDirectory(prefix="kerncast-tests-")
os.environ["KERNCAST_TRUSTED"] = str(Path(_trusted.name) / "trusted")


@pytest.fixture
def run(capsys):
    """Run a command line in this process: exit code, stdout, stderr."""

    def call(*args):
        with pytest.raises(SystemExit) as stopped:
            cli.main([str(arg) for arg in args])
        captured = capsys.readouterr()
        return stopped.value.code or 0, captured.out, captured.err

    return call


def pytest_runtest_logreport(report: pytest.TestReport) -> None:
    if report.skipped:
        _left_out.append(report.nodeid)


@pytest.hookimpl(trylast=True)
def pytest_unconfigure(config: pytest.Config) -> None:
    if hasattr(config, "workerinput"):
        return
    print(f"left out: {len(_left_out)}" + "".join(f"\n  {name}" for name in _left_out))
