"""`linear`, a line per group: coefficients, quality and absurd readings on lines that are known, and the CSV of them."""

import numpy as np
import polars as pl
import pytest

from kerncast.data import Dataset
from kerncast.library.families.single import reshard_single
from kerncast.models.model import Model
from kerncast.training.train import Recipe, train

# Grid of the input (1 × y) → slope, intercept; the output is 1 × 1 always.
LINES = {2: (10.0, 500.0), 3: (25.0, -300.0), 4: (10.0, 500.0), 5: (10.0, 500.0)}
HEIGHTS = np.arange(60, 60 * 25, 60)
ABSURD, NOISY = 4, 5


def rows():
    """Lines at 24 sizes: two exact, one with a reading 100 times too long, one that wobbles by ±5 %."""
    found = []
    for y, (slope, intercept) in LINES.items():
        for place, height in enumerate(HEIGHTS):
            time = slope * height + intercept
            time *= 100.0 if (y, place) == (ABSURD, 7) else 1.0
            time *= 1.0 + 0.05 * (-1) ** place if y == NOISY else 1.0
            found.append({"problem.height_tiles": int(height), "problem.in_y": y, "time_ns": time})
    fixed = {"problem.width_tiles": 1, "problem.in_x": 1, "problem.out_x": 1, "problem.out_y": 1, "problem.dtype": "bf16"}
    fixed |= {"problem.in_strategy": "height", "problem.out_strategy": "block", "device": "wormhole_b0", "status": "ok"}
    return pl.DataFrame(found).with_columns(pl.lit(value).alias(name) for name, value in fixed.items())


@pytest.fixture(scope="module")
def home(tmp_path_factory):
    """A dataset `d` of known lines and the model `lines` of it."""
    folder = tmp_path_factory.mktemp("lines")
    Dataset.create(folder / "d").append(reshard_single, rows())
    train(folder / "d", folder / "lines", Recipe("linear", folds=3))
    return folder


def test_known_lines_come_back_with_their_quality(home):
    """Slope, intercept, R² 1 and errors 0 where the line is exact; by the formulas where it is not."""
    lines = {row["in_y"]: row for row in Model.load(home / "lines").learner.table().to_dicts()}
    for y in (2, 3):
        assert (lines[y]["slope_ns"], lines[y]["intercept_ns"]) == pytest.approx(LINES[y])
        assert (lines[y]["r2"], lines[y]["rrmse"], lines[y]["rmsre"]) == pytest.approx((1.0, 0.0, 0.0), abs=1e-9)
        assert (lines[y]["sizes"], lines[y]["points"], lines[y]["absurd"]) == (24, 24, 0)
    time = rows().filter(pl.col("problem.in_y") == NOISY)["time_ns"].to_numpy()
    error = time - np.polyval(np.polyfit(HEIGHTS, time, 1), HEIGHTS)
    wanted = (1 - np.sum(error**2) / np.sum((time - time.mean()) ** 2), np.sqrt(np.mean(error**2)) / time.mean(),
              np.sqrt(np.mean((error / time) ** 2)))  # fmt: skip
    assert tuple(lines[NOISY][name] for name in ("r2", "rrmse", "rmsre")) == pytest.approx(wanted)
    assert lines[NOISY]["absurd"] == 0


def test_negative_intercepts_and_absurd_readings_are_reported(home):
    """One line crosses zero; one reading is a hundred times its line: both counted in the manifest, neither hidden."""
    model = Model.load(home / "lines")
    assert model.manifest.size["lines"] == len(LINES)
    assert model.manifest.size["absurd_readings"] == 1
    # The line dragged up by the absurd reading still has a positive intercept; only the one made so is negative.
    negative = model.learner.table().filter(pl.col("intercept_ns") < 0)["in_y"].to_list()
    assert 3 in negative
    assert model.manifest.size["negative_intercepts"] == len(negative)
    absurd = model.learner.table().filter(pl.col("absurd") > 0)["in_y"].to_list()
    assert absurd == [ABSURD]


def test_lines_go_to_csv_and_other_models_have_none(run, home, tmp_path):
    """`export --to csv` writes a row a line and says what to look at twice; a forest is refused."""
    code, _, said = run("export", home / "lines", "--to", "csv", "--out", tmp_path / "lines.csv")
    assert code == 0
    assert "4 lines" in said
    assert "1 absurd readings" in said
    written = pl.read_csv(tmp_path / "lines.csv")
    assert written.columns[-9:] == [
        "slope_ns", "intercept_ns", "r2", "rrmse", "rmsre", "sizes", "points", "shortest_ns", "absurd"
    ]  # fmt: skip
    assert written.filter(pl.col("in_y") == 2).select("in_strategy", "out_strategy", "slope_ns").row(0) == pytest.approx(
        ("height", "block", 10.0)
    )
    train(home / "d", tmp_path / "floor", Recipe("roofline", folds=3))
    code, _, said = run("export", tmp_path / "floor", "--to", "csv", "--out", tmp_path / "none.csv")
    assert code == 2
    assert "roofline" in said
    assert not (tmp_path / "none.csv").exists()
