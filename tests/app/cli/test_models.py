"""`kerncast models`: the table, the verbs, and checks for drift on measurements that are really taken again."""

import json
import shutil

import msgspec
import polars as pl
import pytest

from kerncast.app import cli
from kerncast.core.io.artefact import file_checksum
from kerncast.models.manifest import PREDICTIONS, read_manifest, write_manifest

ANALYTIC = "kerncast.testing.backends:Analytic"
GEMM = ["--vary", "dtype=fp32", "--vary", "layout=rrr"]
COLUMNS = "model op family device software added rows problems R² MAPE efficiency size".split()


@pytest.fixture(scope="module")
def home(tmp_path_factory):
    """A model `m` of times that follow a formula, measured here by a backend whose clock never errs."""
    folder = tmp_path_factory.mktemp("home")
    _do("collect", "gemm/triton", "--problems", "lognormal:20;M=16:512;N=16:512;K=16:512", "--vary", "dtype=fp16", "--vary",
        "layout=rcr", "--configs", "sample:20", "--samples", 2, "--backend", ANALYTIC, "--out", folder / "d")  # fmt: skip
    _do("train", folder / "d", "--out", folder / "m", "--trees", 20, "--folds", 2, "--threads", 1)
    return folder


@pytest.fixture(autouse=True)
def own_store(tmp_path, monkeypatch):
    """Never the user's own, and without the models that ship."""
    monkeypatch.setenv("KERNCAST_STORE", str(tmp_path / "store"))
    monkeypatch.setenv("KERNCAST_SHIPPED", "")


def _do(*args):
    with pytest.raises(SystemExit) as stopped:
        cli.main([str(arg) for arg in args])
    assert stopped.value.code == 0


def doctored(model, out, change):
    """A copy of a model that remembers other times than it learned from."""
    shutil.copytree(model, out)
    rows = pl.read_parquet(out / PREDICTIONS)
    rows.with_columns(measured_ns=change).write_parquet(out / PREDICTIONS)
    manifest = read_manifest(model)
    files = {**manifest.files, PREDICTIONS: file_checksum(out / PREDICTIONS)}
    write_manifest(out, msgspec.structs.replace(manifest, files=files))
    return out


def test_the_store_from_the_command_line(home, run):
    """Empty, added, listed, found, shown, removed; refusals are one sentence."""
    code, out, _ = run("models")
    assert code == 0
    assert "is empty: add a model with `kerncast models add MODEL`" in out
    code, out, _ = run("models", "add", home / "m")
    assert (code, out.split()[0]) == (0, "added")
    identity = out.split()[1]
    code, out, _ = run("models")
    assert out.split("\n")[0].split() == COLUMNS
    assert "gemm/triton" in out
    code, out, _ = run("models", "--json")
    (entry,) = json.loads(out)
    assert entry["id"] == identity
    code, out, err = run("models", "find", "gemm", "--device", "local", "--software", "other")
    assert (code, out.strip()) == (0, entry["path"])
    assert err.startswith("! trained on ")
    code, _, err = run("models", "find", "gemm", "--software", "other", "--strict")
    assert code == 2
    assert "leave out --strict" in err
    code, _, err = run("models", "find", "exp")
    assert (code, "no model of eltwise_unary (it has gemm)" in err) == (2, True)
    code, out, _ = run("models", "show", "gemm/triton")
    assert "instant: 1" in out
    assert run("models", "add", home / "m")[0] == 2
    assert run("models", "add", home / "m", "--replace")[0] == 0
    assert run("models", "remove", identity)[0] == 0
    assert json.loads(run("models", "--json")[1]) == []


def test_a_damaged_entry_does_not_hide_the_others(home, run, tmp_path):
    """The list shows what can be read, says what cannot and where, and the rest can still be removed."""
    for name in ("good", "bad"):
        run("models", "add", home / "m", "--name", name)
    (broken,) = (tmp_path / "store").glob("gemm/triton/*/*/bad/entry.json")
    broken.write_text("{")
    code, out, err = run("models")
    assert (code, "/good" in out, f"{broken} is damaged" in err) == (2, True, True)
    assert run("models", "remove", "bad")[0] == 2
    assert run("models", "remove", "good")[0] == 0


def test_help_states_the_order_in_which_a_model_is_found(run):
    """In the words that the code follows."""
    _, out, _ = run("models", "--help")
    assert "A model of another device or family is never used" in " ".join(out.split())


def test_a_model_whose_times_still_hold_is_fresh(home, run):
    """Measured again, every time is the same; from the store or from a directory."""
    run("models", "add", home / "m")
    code, out, _ = run("models", "check", "gemm/triton", "--backend", ANALYTIC, "--json")
    found = json.loads(out)
    assert (code, found["verdict"], found["shift"]["value"], found["movement"]["value"]) == (0, "fresh", 1.0, 0.0)
    assert (found["problems"], found["same_software"], found["efficiency_change"]["value"]) == (12, True, 0.0)
    code, out, _ = run("models", "check", home / "m", "--backend", ANALYTIC, "--sample", 40)
    assert code == 0
    assert out.splitlines()[-1].startswith("fresh: times are 1.000 x what they were")


def test_times_that_were_half_as_long_again_are_a_shift(home, run, tmp_path):
    """All times by one factor: drifted, and the choices are still sound."""
    model = doctored(home / "m", tmp_path / "m", pl.col("measured_ns") * 1.5)
    code, out, _ = run("models", "check", model, "--backend", ANALYTIC)
    assert code == 1
    assert "drifted: times are 0.667 x what they were" in out
    assert "its choices are still good" in out


def test_a_changed_order_is_told_from_a_shift(home, run, tmp_path):
    """What was slow is fast now and the other way round: the choices are worth less."""
    problem = [f"problem.{name}" for name in ("M", "N", "K")]
    turned = pl.col("measured_ns").min().over(problem) * pl.col("measured_ns").max().over(problem) / pl.col("measured_ns")
    model = doctored(home / "m", tmp_path / "m", turned)
    rows = pl.read_parquet(model / PREDICTIONS)
    # The model believed the world that it remembers.
    rows.with_columns(score=pl.col("measured_ns")).write_parquet(model / PREDICTIONS)
    files = {**read_manifest(home / "m").files, PREDICTIONS: file_checksum(model / PREDICTIONS)}
    write_manifest(model, msgspec.structs.replace(read_manifest(home / "m"), files=files))
    code, out, _ = run("models", "check", model, "--backend", ANALYTIC, "--json")
    found = json.loads(out)
    assert (code, found["verdict"]) == (1, "drifted")
    assert found["rank_correlation"] < -0.9
    assert found["efficiency_now"] < 0.7 < found["efficiency_then"]


def test_too_little_time_cannot_tell(home, run):
    """What was measured within the budget decides, and here that is nothing much: exit code 3."""
    code, out, _ = run("models", "check", home / "m", "--backend", ANALYTIC, "--seconds", "0s", "--json")
    assert (code, json.loads(out)["verdict"]) == (3, "cannot tell")


def test_another_device_is_not_drift(home, run, tmp_path):
    """A model is checked where it was trained."""
    shutil.copytree(home / "m", tmp_path / "m")
    manifest = read_manifest(home / "m")
    elsewhere = msgspec.structs.replace(manifest.devices[0], name="elsewhere")
    write_manifest(tmp_path / "m", msgspec.structs.replace(manifest, devices=(elsewhere,)))
    code, _, err = run("models", "check", tmp_path / "m", "--backend", ANALYTIC)
    assert code == 2
    assert "was trained on elsewhere, but this is" in err


@pytest.mark.needs("a C compiler")
def test_real_kernels_are_measured_again(run, tmp_path):
    """Kernels of this machine, against times four times theirs: noise cannot make anything faster, so that is drift."""
    assert run("collect", "gemm/cpu", "--problems", "grid:M=8,24,40;N=32,48;K=64", *GEMM, "--configs", "sample:4",
               "--samples", 4, "--out", tmp_path / "d")[0] == 0  # fmt: skip
    assert run("train", tmp_path / "d", "--out", tmp_path / "m", "--kind", "roofline", "--folds", 2)[0] == 0
    model = doctored(tmp_path / "m", tmp_path / "slow", pl.col("measured_ns") * 4)
    code, out, _ = run("models", "check", model, "--sample", 24, "--json")
    found = json.loads(out)
    assert (code, found["verdict"], found["vectors"], found["failures"]) == (1, "drifted", 24, 0)
    assert found["same_software"]
