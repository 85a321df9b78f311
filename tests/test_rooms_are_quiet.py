"""Below the public functions and the command line nothing prints and nothing catches signals: stages tell a `Progress`."""

import ast
from pathlib import Path

import pytest

import kerncast

HOME = Path(kerncast.__file__).parent
# Those may print; and these run as processes of their own, whose output is what they are for.
LOUD = ("app", "testing")
PROGRAMS = {"measuring/backends/command/guard.py", "measuring/worker.py", "regenerating/figures.py"}
NEVER = {
    "print",
    "input",
    "click.echo",
    "click.secho",
    "signal.signal",
    "sys.stdout.write",
    "sys.stderr.write",
    "warnings.warn",
}


def quiet_files():
    names = (path.relative_to(HOME).as_posix() for path in sorted(HOME.rglob("*.py")))
    return [name for name in names if name.split("/")[0] not in LOUD and name not in PROGRAMS]


def loud_calls(source):
    """Every call that prints or catches signals, by whatever name the module was imported, with its line."""
    tree = ast.parse(source)
    names = {}
    for node in ast.walk(tree):
        if isinstance(node, ast.Import):
            names |= {item.asname or item.name: item.name for item in node.names}
        elif isinstance(node, ast.ImportFrom):
            names |= {item.asname or item.name: f"{node.module}.{item.name}" for item in node.names}
    found = []
    for node in ast.walk(tree):
        if isinstance(node, ast.Call):
            first, *rest = ast.unparse(node.func).split(".")
            called = ".".join([names.get(first, first), *rest])
            if called in NEVER:
                found.append((node.lineno, called))
    return found


@pytest.mark.parametrize(
    "source",
    [
        "print(1)",
        "import click as c\nc.echo()",
        "from signal import signal\nsignal(2, f)",
        "import sys\nsys.stderr.write('')",
    ],
)
def test_the_walk_finds_what_it_looks_for(source):
    """Renamed imports too."""
    assert len(loud_calls(source)) == 1


def test_no_room_prints_or_catches_signals():
    """A stage that has something to say calls its progress."""
    files = quiet_files()
    assert len(files) > 100
    found = {name: calls for name in files if (calls := loud_calls((HOME / name).read_text(encoding="utf-8")))}
    assert found == {}
