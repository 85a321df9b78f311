"""Shared by all tests: the closing line that counts what had to be left out."""

import pytest

_left_out: list[str] = []


def pytest_runtest_logreport(report: pytest.TestReport) -> None:
    if report.skipped:
        _left_out.append(report.nodeid)


@pytest.hookimpl(trylast=True)
def pytest_unconfigure(config: pytest.Config) -> None:
    if hasattr(config, "workerinput"):
        return
    print(f"left out: {len(_left_out)}" + "".join(f"\n  {name}" for name in _left_out))
