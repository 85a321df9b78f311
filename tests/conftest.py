"""Shared by all tests: the command line in this process, and the closing lines that count what had to be left out."""

import os
import tempfile
from collections import Counter
from pathlib import Path

import pytest
from hypothesis import HealthCheck, settings
from tests.support.needs import NEVER_IN_CI, SECOND_STAGE, require

from kerncast.app import cli
from kerncast.core.progress import Progress
from kerncast.native import build
from kerncast.testing import soaking

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

HERE = Path(__file__).parent
LONGEST = (
    "docs/test_pages.py",
    "answering/exporters/test_exporters.py",
    "measuring/backends/test_cpu.py",
    "app/cli/test_quickstart.py",
    "measuring/backends/test_opencl_contract.py",
    "measuring/test_chaos.py",
    "evaluating/test_compare.py",
    "learning/learners/test_third_party.py",
    "measuring/backends/test_cpu_narrow.py",
    "measuring/test_blame.py",
    "measuring/test_collect.py",
    "measuring/backends/command/test_programs.py",
    "measuring/backends/test_cpu_contract.py",
    "measuring/backends/test_inductor.py",
    "torch/test_observing.py",
    "app/cli/test_model_verbs.py",
    "regenerating/test_regenerate.py",
    "verifying/test_damage.py",
    "verifying/test_verify.py",
    "ttnn/test_whole_way.py",
    "core/io/test_crash_points.py",
    "answering/exporters/test_serving_ops.py",
    "training/test_adapting.py",
)
# The reason for which each test, or file, was left out; and where the list of these is kept for `--left-out`.
_left_out: dict[str, str] = {}
KEPT = "kerncast/left-out"
# Tests train models and trust them: on a list of their own, which is gone at the end.
_trusted = tempfile.TemporaryDirectory(prefix="kerncast-tests-")
os.environ["KERNCAST_TRUSTED"] = str(Path(_trusted.name) / "trusted")
# What is compiled is shared by all tests and by the processes that run them, and is not found from an earlier run.
if "PYTEST_XDIST_WORKER" not in os.environ:
    _cache = tempfile.TemporaryDirectory(prefix="kerncast-tests-")
    os.environ["KERNCAST_CACHE"] = str(Path(_cache.name) / "cache")
if not soaking():
    # Most artefacts of tests answer for less than a second, and -O3 takes a compiler five times as long. What it makes of
    # them is compared with Python by kerncast/testing/exporters.py.
    _build = build.build

    def _quickly(compiler: build.Compiler, flags: tuple[str, ...], *rest: str, **options: Progress) -> None:
        _build(compiler, tuple(flag for flag in flags if flag not in ("-O1", "-O3")), *rest, **options)

    build.build = _quickly


@pytest.fixture
def run(capsys):
    """Run a command line in this process: exit code, stdout, stderr."""

    def call(*args):
        with pytest.raises(SystemExit) as stopped:
            cli.main([str(arg) for arg in args])
        captured = capsys.readouterr()
        return stopped.value.code or 0, captured.out, captured.err

    return call


# What kerncast imports, from Python's own library, from its dependencies and from itself.
PLANTED = (
    "kerncast", "json", "random", "selectors", "statistics", "tempfile",
    "click", "lightgbm", "msgspec", "numpy", "polars", "rich",
)  # fmt: skip


@pytest.fixture
def planted(tmp_path, monkeypatch):
    """The current folder holds modules that take the names of those that kerncast imports; at the end none of them was run."""
    folder, ran = tmp_path / "planted", tmp_path / "ran"
    folder.mkdir()
    trap = f"open({str(ran)!r}, 'a').write(__name__ + ' '); raise ImportError('this file lies in the current folder')\n"
    (folder / "kerncast").mkdir()
    for name in PLANTED:
        (folder / ("kerncast/__init__.py" if name == "kerncast" else f"{name}.py")).write_text(trap)
    monkeypatch.chdir(folder)
    yield folder
    assert not ran.exists(), ran.read_text()


@pytest.fixture(scope="module")
def few_samples():
    """The model teaches its quick tiers with fewer problems, for files that are not about how well these choose."""
    from kerncast.native.tiers import build as tiers

    with pytest.MonkeyPatch.context() as patch:
        if not soaking():
            patch.setattr(tiers, "FEWEST_SAMPLES", 300)
            patch.setattr(tiers, "MOST_SAMPLES", 300)
        yield


def pytest_addoption(parser: pytest.Parser) -> None:
    parser.addoption(
        "--left-out", action="store_true", help="run what the last run left out; only GPUs and soak may be missing"
    )


def pytest_configure(config: pytest.Config) -> None:
    config.addinivalue_line("markers", "needs(*names): left out where one of them is not there (tests/support/needs.py)")
    if config.option.left_out:
        os.environ[SECOND_STAGE] = "1"


def pytest_ignore_collect(collection_path: Path, config: pytest.Config) -> bool | None:
    """With `--left-out`, files that left nothing out are not even imported."""
    if not config.option.left_out or collection_path.suffix != ".py":
        return None
    names = {name.split("::")[0] for name in config.cache.get(KEPT, [])}
    return collection_path.relative_to(HERE.parent).as_posix() not in names or None


def pytest_collection_modifyitems(config: pytest.Config, items: list[pytest.Item]) -> None:
    """The files that take longest come first: at the end no process waits for another one's minute."""
    if config.option.left_out:
        names = set(config.cache.get(KEPT, []))
        items[:] = [item for item in items if not names.isdisjoint((item.nodeid, item.nodeid.split("::")[0]))]
    rank = {name: place for place, name in enumerate(LONGEST)}
    items.sort(key=lambda item: rank.get(item.path.relative_to(HERE).as_posix(), len(rank)))


@pytest.hookimpl(tryfirst=True)
def pytest_runtest_setup(item: pytest.Item) -> None:
    """Before any fixture is made for a test that is left out."""
    for mark in item.iter_markers("needs"):
        require(*mark.args)


def _note(report: pytest.TestReport | pytest.CollectReport) -> None:
    if report.skipped:
        reason = report.longrepr[2] if isinstance(report.longrepr, tuple) else str(report.longrepr)
        _left_out[report.nodeid] = reason.removeprefix("Skipped: ")


def pytest_runtest_logreport(report: pytest.TestReport) -> None:
    _note(report)


def pytest_collectreport(report: pytest.CollectReport) -> None:
    _note(report)


def pytest_sessionfinish(session: pytest.Session) -> None:
    """The second stage of CI fails where it leaves out more than it may."""
    if hasattr(session.config, "workerinput"):
        return
    if not session.config.option.left_out:
        if session.config.pluginmanager.has_plugin("cacheprovider"):
            session.config.cache.set(KEPT, sorted(_left_out))
    elif set(_left_out.values()) - {f"needs {name}" for name in NEVER_IN_CI}:
        session.exitstatus = pytest.ExitCode.TESTS_FAILED


@pytest.hookimpl(trylast=True)
def pytest_unconfigure(config: pytest.Config) -> None:
    if hasattr(config, "workerinput"):
        return
    reasons = Counter(_left_out.values()).most_common()
    print(f"left out: {len(_left_out)}" + "".join(f"\n  {count} {reason}" for reason, count in reasons))
