"""The quickstart, with fewer shapes."""

import json

import pytest

from kerncast.app import cli
from kerncast.data import Dataset
from kerncast.regenerating import quickstart

pytestmark = pytest.mark.needs("a C compiler")


def run(capsys, *args):
    with pytest.raises(SystemExit) as stopped:
        cli.main([str(arg) for arg in args])
    return stopped.value.code or 0, capsys.readouterr()


def test_the_quickstart_measures_compares_and_goes_on_from_what_is_there(tmp_path, capsys, monkeypatch, planted):
    """Build, collect in two rounds, train on both, report, race, table; a second call does not measure or train again.

    None of its processes runs a module of the current folder.
    """
    # A forest as small as the data: a large one takes a compiler most of a minute.
    small = ("sweep.max_problems=8", "sweep.max_bytes=2e5", "sweep.configs=promising:6", "collect.repeat=5",
             "train.knobs={trees = 10}", "train.folds=2")  # fmt: skip
    monkeypatch.setattr(quickstart, "QUICK", small)
    code, shown = run(capsys, "regenerate", "quickstart", "--out", tmp_path / "q")
    assert code == 0
    for step in ("collect", "repeat", "train", "report", "export", "race"):
        assert f"gemm/cpu: {step}" in shown.err
    assert "the model's choice runs at" in shown.out
    assert "Noise: 5 shapes were measured twice" in shown.out
    assert shown.out.count("rrr") + shown.out.count("rcr") >= 8
    assert (tmp_path / "q" / "report.html").stat().st_size > 1e6
    code, shown = run(capsys, "regenerate", "quickstart", "--out", tmp_path / "q", "--json")
    found = json.loads(shown.out)
    assert "gemm/cpu: train (done before)" in shown.err
    assert (found["problems"], found["problems_measured_twice"]) == (8, 5)
    assert found["rows"] == sum(Dataset.open(tmp_path / "q" / name).read().height for name in ("gemm_cpu", "gemm_cpu-2"))
    assert 0 < found["noise_ceiling"] <= 1
    assert 0 < found["fixed_share_mean"] <= 1
    assert 0 < found["model_share_min"] <= found["model_share_mean"] <= 1
    assert all(item["best_against_blas"] > 0 for item in found["shapes"])
    assert {item["problem"][-3:] for item in found["shapes"]} == {"rrr", "rcr"}
    assert not (tmp_path / "q" / "store").exists()
    # Other measurements need another folder: those of this one are neither mixed with them nor removed.
    monkeypatch.setattr(quickstart, "QUICK", (*small, "sweep.max_problems=12"))
    code, shown = run(capsys, "regenerate", "quickstart", "--out", tmp_path / "q")
    assert code == 2
    assert "was begun with another routine (quickstart, " in shown.err
    assert "choose another --out" in shown.err


def test_a_budget_leaves_exit_code_3_and_the_same_command_goes_on(tmp_path, capsys):
    """What has no row yet is said, and then measured."""
    command = ["collect", "gemm/cpu", "--problems", "grid:M=32;N=32;K=32", "--vary", "dtype=fp32", "--vary", "layout=rrr",
               "--configs", "sample:8", "--out", tmp_path / "d"]  # fmt: skip
    code, shown = run(capsys, *command, "--budget", "0s")
    assert code == 3
    assert "8 vectors have no row yet" in shown.out
    code, shown = run(capsys, *command)
    assert code == 0
    assert "ok 8" in shown.out
    code, shown = run(capsys, *command)
    assert code == 2
    assert "is a finished dataset: add --resume" in shown.err
    code, shown = run(capsys, *command[:-2], "--dry-run", "--out", tmp_path / "e", "--json")
    assert json.loads(shown.out)["vectors"] == 8
    assert not (tmp_path / "e").exists()


@pytest.mark.parametrize(
    ("args", "why"),
    [
        (["gemm/ck_tile", "--problems", "cubes"], "no backend here runs gemm/ck_tile"),
        (["gemm/cpu"], "say what to measure: --problems (small, cubes, grid:M=…;N=…;K=…, a table in FILE.csv)"),
        (["gemm/cpu", "--problems", "cubes", "--backend", "tpu"], "unknown backend 'tpu'"),
        (["gemm/triton", "--problems", "cubes", "--backend", "cpu"], "backend cpu does not run gemm/triton"),
        (["absent"], "unknown family 'absent'"),
        (["gemm/cpu", "--problems", "grid:M=8;N=8;K=8;split_k=2"], "no config of gemm/cpu can run any of the 1 problems"),
        (["gemm/cpu", "--problems", "cubes", "--budget", "soon"], "a duration is a number with s, m or h"),
    ],
)
def test_collect_refuses_in_one_sentence(args, why, tmp_path, capsys, monkeypatch):
    """Nothing is written."""
    monkeypatch.chdir(tmp_path)
    arguments = ["--vary", "dtype=fp32", "--vary", "layout=rrr"] if "--problems" in args else []
    code, shown = run(capsys, "collect", *args, *arguments, "--out", "d")
    assert code == 2
    assert why in shown.err
    assert list(tmp_path.iterdir()) == []
