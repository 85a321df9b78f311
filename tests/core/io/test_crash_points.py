"""Commands that die at a file call: readers see the old or the new artefact, the next run ends well, nothing is left."""

import os
import shutil
import subprocess
import sys

import pytest
from tests.support.crash_cases import CASES, faults_at, prepare, undisturbed

from kerncast.core.io import atomic
from kerncast.testing import repeats, soaking


@pytest.fixture(scope="module")
def home(tmp_path_factory):
    folder = tmp_path_factory.mktemp("crash") / "home"
    folder.mkdir()
    prepare(folder)
    return folder


SLOW = ("collect --resume", "models add --replace", "export")


# Regenerating takes seconds; what it consists of dies here, too.
@pytest.mark.parametrize("name", [name for name in CASES if name != "regenerate" or soaking()])
def test_a_command_that_dies_at_any_file_call_is_repeated_without_a_trace(name, home):
    """At some points in `make test`, at all of them in `make soak`; and success is said only after everything is on disk."""
    case, folder = CASES[name], home.parent / "run"
    whole = undisturbed(case, home, folder)
    assert whole.result not in (None, whole.before)
    calls = list(whole.calls)
    if name != "regenerate":  # says how each stage ended
        said = next(place for place, call in enumerate(calls) if call.startswith("say "))
        renamed = max(place for place, call in enumerate(calls) if call.startswith("os.rename"))
        assert renamed < said
        assert any(call.startswith("fsync") for call in calls[:renamed])
        assert any(call.startswith("fsync") for call in calls[renamed:said])
        assert not [call for call in calls[said:] if call.startswith(("open", "os.rename", "write"))]
    step = max(1, whole.points // repeats(1 if name in SLOW else 2, whole.points))
    faults = {at: faults_at(case, home, folder, at, whole) for at in range(max(1, step // 2), whole.points + 1, step)}
    assert faults
    assert not {at: found for at, found in faults.items() if found}


def test_only_dead_drafts_are_swept(tmp_path):
    """Not those of running processes, of processes elsewhere that hold them, and not files that merely look like drafts."""
    dead = subprocess.Popen([sys.executable, "-c", ""])
    dead.wait()
    gone = [f".f.{dead.pid}.0.kerncast", f".kerncast-scratch-{dead.pid}-abcdefgh"]
    kept = [
        f".f.{os.getpid()}.7.kerncast", f".kerncast-scratch-{os.getpid()}-abcdefgh", f".g.{dead.pid}.1.kerncast",
        f".python-3.{dead.pid}.2", f"kerncast-{dead.pid}-datasets", f".kerncast-{dead.pid}", "f",
    ]  # fmt: skip
    for name in (*gone, *kept):
        (tmp_path / name).mkdir() if "scratch" in name or "datasets" in name else (tmp_path / name).touch()
    # A process of a container or another machine: its number means nothing here, but it holds its draft.
    held = atomic._held(tmp_path / kept[2], os.O_RDONLY)
    atomic.write_text(tmp_path / "new", "x")
    os.close(held)
    assert sorted(item.name for item in tmp_path.iterdir()) == sorted([*kept, "new"])
    shutil.rmtree(tmp_path)
