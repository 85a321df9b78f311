"""Rows whose times cannot be right: `import`, `inspect` and `train` name them alike."""

import numpy as np
import pytest

import kerncast
from kerncast.data.row_checks import isolated_times

HEAD = "M,N,K,dtype,layout,kind,BLOCK_M,BLOCK_N,BLOCK_K,num_stages,num_warps,us"
MAPPING = """family = "gemm/triton"
device = "h100"

[problem]
M = "M"
N = "N"
K = "K"
dtype = "dtype"
layout = "layout"

[config]
kind = "kind"
BLOCK_M = "BLOCK_M"
BLOCK_N = "BLOCK_N"
BLOCK_K = "BLOCK_K"
num_stages = "num_stages"
num_warps = "num_warps"

[time]
column = "us"
unit = "us"
"""


@pytest.fixture
def table(tmp_path):
    """64 rows of 8 problems; the times of lines 7 and 22 are absurd."""
    times = [(8 + 2 * place) * (1 + problem) for problem in range(8) for place in range(8)]
    times[5], times[20] = 4e-6, 9.9e8
    cells = [
        f"{64 * (1 + place // 8)},128,256,fp16,rcr,triton,{16 << place % 4},{32 << place // 4 % 2},32,3,4,{time}"
        for place, time in enumerate(times)
    ]
    (tmp_path / "t.csv").write_text("\n".join([HEAD, *cells]) + "\n")
    (tmp_path / "t.toml").write_text(MAPPING)
    return tmp_path


def test_import_inspect_and_train_name_absurd_rows_and_the_condition_leaves_them_out(table, run):
    """With file and line; the rest of the rows, and a training by the condition, raise no suspicion."""
    made = run("import", "csv", table / "t.csv", "--mapping", table / "t.toml", "--out", table / "d")
    looked = run("inspect", table / "d")
    fitted = run("train", table / "d", "--out", table / "m", "--trees", 3, "--folds", 2)
    for code, out, err in (made, looked, fitted):
        assert code == 0, err
        said = next(line for line in (out + err).splitlines() if line.startswith("! 2 rows have times"))
        assert "t.csv, line 7: 0.004 ns against" in said
        assert "t.csv, line 22: 990 s against" in said
        condition = said.split("--where '")[1].removesuffix("'")
    assert "nothing suspicious" not in looked[1]
    data = kerncast.Dataset.open(table / "d")
    assert data.read(where=[condition]).height == 62
    clean = kerncast.train(data, where=condition, folds=0, trees=3, progress=False)
    assert not any("off the median" in note for note in clean.notes)
    assert data.inspect(condition)["families"][0]["isolated_times"]["rows"] == 0


def test_configs_that_are_really_slow_are_not_absurd():
    """A config that is as slow on another problem, several such configs, and problems with few others are left in peace."""
    problem, config = np.repeat(np.arange(6), 6), np.tile(np.arange(6), 6)
    times = 1e3 * (1 + config) * (1.0 + problem)
    found, medians = isolated_times(problem, config, np.where((problem == 2) & (config == 4), times * 1e4, times))
    assert (found.tolist(), medians.tolist()) == ([16], [pytest.approx(9e3)])
    slow = np.where((config == 4) & np.isin(problem, [2, 5]), times * 1e4, times)
    assert not len(isolated_times(problem, config, slow)[0])
    together = np.where((problem == 2) & np.isin(config, [1, 2]), times * 1e4, times)
    assert not len(isolated_times(problem, config, together)[0])
    few = np.isin(config, [0, 4, 5])
    alone = np.where((problem == 2) & (config == 4), times * 1e4, times)
    assert not len(isolated_times(problem[few], config[few], alone[few])[0])
