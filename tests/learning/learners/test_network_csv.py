"""A network as CSV and back: the same predictions to the last bit, and damage refused by the name of its file."""

import shutil

import polars as pl
import pytest

import kerncast
from kerncast.data import Dataset
from kerncast.errors import BadFile, InvalidValue
from kerncast.library.families.single import reshard_single


@pytest.fixture(scope="module")
def home(tmp_path_factory):
    """A dataset `d`, the model `mlp` of it (numbers and a category), and `weights`."""
    folder = tmp_path_factory.mktemp("mlp")
    rows = [
        {"problem.height_tiles": 4 * height, "problem.width_tiles": 4 * width, "problem.in_y": y, "problem.in_strategy": cut,
         "time_ns": 500.0 + height * width * y * (1.0 + 0.1 * (cut == "block"))}
        for height in range(1, 14) for width in range(1, 14, 3) for y in (1, 2, 4) for cut in ("block", "height")
    ]  # fmt: skip
    fixed = {"problem.in_x": 1, "problem.out_x": 1, "problem.out_y": 1, "problem.out_strategy": "width"}
    fixed |= {"problem.dtype": "bf16", "device": "wormhole_b0", "status": "ok"}
    frame = pl.DataFrame(rows).with_columns(pl.lit(value).alias(name) for name, value in fixed.items())
    Dataset.create(folder / "d").append(reshard_single, frame)
    kerncast.train(
        folder / "d",
        out=folder / "mlp",
        kind="mlp",
        epochs=3,
        hidden=(6, 5),
        folds=0,
        progress=None,
        features="in_y,in_strategy,tiles,height_tiles",
    )
    kerncast.export(folder / "mlp", to="csv", out=folder / "weights", progress=None)
    return folder


def test_a_network_reads_back_to_the_same_predictions(home, tmp_path):
    """Bit for bit, with the same features and target, though only the CSV files say so; and it exports to the same bytes."""
    again = kerncast.train(home / "d", out=tmp_path / "again", weights=home / "weights", progress=None)
    first = kerncast.open(home / "mlp")
    assert again.manifest.features == first.manifest.features
    assert (again.target, tuple(again.manifest.options["hidden"])) == (first.target, (6, 5))
    rows = first.out_of_fold
    assert again.predict_vectors(rows)["time_ns"].to_list() == first.predict_vectors(rows)["time_ns"].to_list()
    assert not again.evaluated
    kerncast.export(again, to="csv", out=tmp_path / "weights", progress=None)
    for file in (home / "weights").iterdir():
        assert (tmp_path / "weights" / file.name).read_bytes() == file.read_bytes()
    with pytest.raises(InvalidValue, match="does not say how it was trained"):
        kerncast.evaluate(again, home / "d", split="problem", progress=None)


def changed(file, old, new):
    text = file.read_text()
    assert old in text
    file.write_text(text.replace(old, new, 1))


DAMAGE = {
    "missing": (lambda d: (d / "output.csv").unlink(), "output.csv is missing"),
    "a layer without biases": (lambda d: (d / "layer_2_biases.csv").unlink(), "layer_2_biases.csv is missing"),
    "a gap": (lambda d: (d / "layer_2_weights.csv").rename(d / "layer_9_weights.csv"), "layer_2_weights.csv is missing"),
    "cut": (lambda d: changed(d / "layer_2_weights.csv", "\n", ",\n"), r"layer_2_weights.csv: line \d+"),
    "a row less": (
        lambda d: (d / "layer_1_weights.csv").write_text("".join((d / "layer_1_weights.csv").read_text().splitlines(True)[1:])),
        "layer_1_weights.csv has .* rows of 6 numbers, but it reads",
    ),
    "not a number": (lambda d: (d / "layer_3_biases.csv").write_text("nan\n"), "biases.csv: line 1: every cell must be"),
    "infinite": (lambda d: (d / "layer_3_biases.csv").write_text("1e999\n"), "must be a finite number, got '1e999'"),
    "empty": (lambda d: (d / "layer_3_weights.csv").write_text(""), "layer_3_weights.csv is empty"),
    "bytes": (lambda d: (d / "inputs.csv").write_bytes(b"\xff\xfe\x00"), "inputs.csv cannot be read as CSV"),
    "quotes": (lambda d: (d / "inputs.csv").write_text('feature,"code'), "inputs.csv cannot be read as CSV"),
    "header": (lambda d: changed(d / "inputs.csv", "deviation", "sigma"), "line 1: the columns must be feature,code"),
    "unknown feature": (lambda d: changed(d / "inputs.csv", "tiles,,", "tils,,"), "line 2: unknown feature .*did you mean"),
    "twice": (lambda d: changed(d / "inputs.csv", "in_y,,", "tiles,,"), "layer|'tiles' is a number"),
    "order": (
        lambda d: (d / "inputs.csv").write_text("\n".join((t := (d / "inputs.csv").read_text().splitlines())[:1] + t[:0:-1])),
        "stands where",
    ),
    "unknown code": (lambda d: changed(d / "inputs.csv", "in_strategy,0", "in_strategy,7"), "one of the codes 0, 1, 2"),
    "no deviation": (lambda d: changed(d / "output.csv", "relative", "speed"), "a target is one of"),
    "flag": (lambda d: changed(d / "inputs.csv", ",true,", ",yes,"), "log must be true or false, got 'yes'"),
    "wide": (lambda d: (d / "layer_3_biases.csv").write_text("1,2\n"), "layer_3_weights.csv has"),
    "no time at all": (
        lambda d: (d / "output.csv").write_text("target,log,mean,deviation\nlatency,false,-1e9,1\n"),
        "predicts a latency of zero or less on 390 of 390 rows: check mean, deviation and log in output.csv",
    ),
    "other target": (lambda d: None, "leave out `targets`"),
}


@pytest.mark.parametrize("damage", DAMAGE)
def test_damage_is_refused_by_name(home, tmp_path, damage):
    """The file, the line and the rule; nothing is written."""
    change, said = DAMAGE[damage]
    shutil.copytree(home / "weights", tmp_path / "weights")
    change(tmp_path / "weights")
    more = {"targets": "latency"} if damage == "other target" else {}
    with pytest.raises((BadFile, InvalidValue), match=said):
        kerncast.train(home / "d", out=tmp_path / "again", weights=tmp_path / "weights", progress=None, **more)
    assert not (tmp_path / "again").exists()


def test_weights_go_with_nothing_that_is_about_fitting(home, tmp_path):
    """Nor with another kind; other kinds have no weights to write."""
    for more in ({"folds": 3}, {"tune": 2}, {"kind": "gbdt"}, {"hidden": (3,)}, {"features": "tiles"}):
        with pytest.raises(InvalidValue, match=r"leave (it|one|out)"):
            kerncast.train(home / "d", out=tmp_path / "x", weights=home / "weights", progress=None, **more)
    kerncast.train(home / "d", out=tmp_path / "roof", kind="roofline", folds=0, progress=None)
    with pytest.raises(InvalidValue, match="the lines of a linear model or the weights of an mlp"):
        kerncast.export(tmp_path / "roof", to="csv", out=tmp_path / "w", progress=None)
