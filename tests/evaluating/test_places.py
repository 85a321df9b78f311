"""Where `evaluate` and `compare` write: a wrong place costs no work, and a disk that fails later costs no figures."""

import json
import re
import resource
from pathlib import Path

import pytest

from kerncast.testing.models import synthetic_dataset, synthetic_rows
from kerncast.training.train import Recipe, train


@pytest.fixture(scope="module")
def home(tmp_path_factory):
    """A model `m`, and `new`, which it has not seen."""
    folder = tmp_path_factory.mktemp("home")
    synthetic_dataset(folder / "d", synthetic_rows(problems=10))
    synthetic_dataset(folder / "new", synthetic_rows(problems=10, seed=5))
    train(folder / "d", folder / "m", Recipe("roofline", folds=2))
    return folder


WRONG = {
    "no directory": ("nowhere/r", "there is no directory .*nowhere; create it first"),
    "a file as directory": ("file/r", ".*file is not a directory; choose another place"),
    "a directory": ("folder", "it is a directory; name a file in it"),
    "a long name": ("x" * 300, "the name is too long; choose a shorter one"),
    "no place for files": ("/proc/r", "no file can be created there; choose another place"),
}


@pytest.mark.parametrize("case", WRONG)
@pytest.mark.parametrize(
    ("call", "option"),
    [("evaluate m d", "--report"), ("evaluate m d", "--save-predictions"), ("compare m m d", "--save-predictions")],
)
def test_a_place_that_cannot_be_written_is_refused_before_anything_is_read(run, tmp_path, case, call, option):
    """The option, the path and a next step in one sentence, although there is no model either."""
    name, why = WRONG[case]
    if name.startswith("/proc") and not Path("/proc/self").exists():
        pytest.skip("there is no /proc here")
    (tmp_path / "file").touch()
    (tmp_path / "folder").mkdir()
    code, out, err = run(*call.split(), option, tmp_path / name)
    assert (code, out) == (2, "")
    assert re.fullmatch(f"kerncast: {option}: could not write {re.escape(str(tmp_path / name))}: {why}.*\n", err)
    assert sorted(item.name for item in tmp_path.iterdir()) == ["file", "folder"]


@pytest.mark.parametrize("extra", [[], ["--json"]])
def test_the_figures_are_printed_though_the_report_cannot_be_written(home, run, tmp_path, extra):
    """A disk that takes no more than a kilobyte: exit 2 with the reason, and the figures on stdout."""
    soft, hard = resource.getrlimit(resource.RLIMIT_FSIZE)
    resource.setrlimit(resource.RLIMIT_FSIZE, (1000, hard))
    try:
        code, out, err = run("evaluate", home / "m", home / "new", "--no-tiers", "--report", tmp_path / "r.html", *extra)
    finally:
        resource.setrlimit(resource.RLIMIT_FSIZE, (soft, hard))
    assert code == 2
    assert f"could not write {tmp_path / 'r.html'}: File too large" in err
    assert list(tmp_path.iterdir()) == []
    assert json.loads(out)["overall"]["efficiency_mean"] if extra else "efficiency of the choice" in out
