"""Data of several devices: a problem counts once for each device, everywhere, and what is said of it names the device."""

import json
import re

import polars as pl
import pytest
from click.testing import CliRunner

from kerncast.app.cli import program
from kerncast.app.serve.explorer import datasets
from kerncast.data import Dataset
from kerncast.data.quality import inspect_dataset, summaries
from kerncast.evaluating import evaluate
from kerncast.evaluating.compare import compare
from kerncast.evaluating.report.page import write_report
from kerncast.models.model import Model
from kerncast.testing.models import synthetic_dataset, synthetic_rows
from kerncast.training.train import Recipe, train

SHAPE = ["problem.M", "problem.N", "problem.K"]
RECIPE = Recipe("gbdt", {"trees": 8, "library_trees": 4, "leaves": 7, "lr": 0.3}, folds=2, threads=1)
# 14 problems on one device, 9 of them on the other, where nothing worked on one.
DISTINCT, TRIED, WORKED = 14, 23, 22
POOLED = {"problems": DISTINCT, "devices": 2}
SAID = f"{WORKED} problems, {DISTINCT} distinct on 2 devices"


@pytest.fixture(scope="module")
def home(tmp_path_factory):
    """The dataset `d`; the model `m` of all of it, and `poor`, which cannot tell kernels apart."""
    folder = tmp_path_factory.mktemp("pooled")
    rows = synthetic_rows(problems=DISTINCT)
    shapes = rows.select(SHAPE).unique(maintain_order=True)
    slow_when_large = pl.col("time_ns") * pl.col("config.BLOCK_M").fill_null(64) ** 2 / 2000
    other = rows.join(shapes.head(TRIED - DISTINCT), on=SHAPE, how="semi").with_columns(
        device=pl.lit("h100"), time_ns=slow_when_large
    )
    bad = pl.all_horizontal(pl.col(name) == value for name, value in zip(SHAPE, shapes.row(0), strict=True))
    status = pl.when(bad).then(pl.lit("launch_error")).otherwise(pl.col("status").cast(pl.String))
    other = other.with_columns(status=status, time_ns=pl.when(~bad).then("time_ns"))
    synthetic_dataset(folder / "d", pl.concat([rows, other.select(rows.columns)]))
    train(folder / "d", folder / "m", RECIPE, pool=True)
    train(folder / "d", folder / "poor", Recipe("roofline", {}, folds=2, threads=1), pool=True)
    return folder


@pytest.fixture(scope="module")
def found(home):
    return evaluate(home / "m", home / "d", split="problem", threads=1)


def test_problems_are_counted_alike_everywhere(home, found):
    """Those that were tried and those that worked, and how many there are without their devices."""
    dataset, model = Dataset.open(home / "d"), Model.load(home / "m")
    section, shown = inspect_dataset(dataset)["families"][0], datasets.overview(dataset)
    (summary,) = summaries(dataset)
    assert section["problems"] == summary.problems == shown["problems"] == datasets.problems(dataset)["total"] == TRIED
    assert section["pooled"] == summary.pooled == shown["pooled"] == POOLED
    assert section["coverage"]["share_of_grid"] == 1.0
    verdict, worst = compare(home / "poor", model, home / "d", include_seen=True), datasets.worst_of(model, dataset)
    counts = (section["fastest_of"], model.manifest.data.problems, found.n, found.problems.height, verdict.n, worst["problems"])
    assert set(counts) == {WORKED}
    parts = (model.evaluation["pooled"], found.as_json()["pooled"], verdict.as_json()["pooled"], worst["pooled"])
    assert all(part == POOLED for part in parts)


def test_both_counts_are_said(home, found, tmp_path):
    """In what `inspect`, `train`, `evaluate` and `compare` print, and at the top of the report."""
    inspected = CliRunner().invoke(program, ["inspect", str(home / "d")]).output
    assert re.search(rf"problems +{TRIED}, {DISTINCT} distinct on 2 devices\n", inspected)
    assert f"10 of {WORKED} problems that worked" in inspected
    trained = CliRunner().invoke(
        program, ["train", str(home / "d"), "--kind", "roofline", "--pool", "--out", str(tmp_path / "m")]
    )
    assert trained.output.count(SAID) == 3
    assert str(found).count(SAID) == 2
    assert SAID in str(compare(home / "poor", home / "m", home / "d", include_seen=True))
    write_report(found, None, tmp_path / "report.html")
    assert f"On {WORKED} problems ({DISTINCT} distinct on 2 devices)" in (tmp_path / "report.html").read_text()


def test_what_is_worst_names_its_device(home, found, tmp_path):
    """In a list, a table, the report, the explorer and a verdict."""
    efficiency = {(*row[:3], row[3]): row[4] for row in found.problems.select(*SHAPE, "device", "efficiency").iter_rows()}
    assert {item.device for item in found.worst} == {"a100", "h100"}
    for item in found.worst:
        assert item.efficiency == efficiency[*(item.problem[name.removeprefix("problem.")] for name in SHAPE), item.device]
    heads = [line for line in str(found).splitlines() if re.match(r"(efficiency|predicted/measured) +problem ", line)]
    assert len(heads) == 2
    assert all(re.search(r" device ", line) for line in heads)
    write_report(found, None, tmp_path / "report.html")
    text = (tmp_path / "report.html").read_text()
    labels = re.findall(r'<span class="problem">(.*?)</span>', text)
    assert len(labels) == 20
    assert all(re.search(r" on (a100|h100)$", label) for label in labels)
    assert '<th scope="col">device</th>' in text
    curve = json.loads(re.search(r'id="chart-data">(.*?)</script>', text)[1])["efficiency-curve"]["data"][0]["text"]
    assert {re.search(r" on (\w+)<br>", label)[1] for label in curve} == {"a100", "h100"}
    listed = datasets.worst_of(Model.load(home / "m"), Dataset.open(home / "d"))
    assert all(item["device"] in ("a100", "h100") for item in listed["worst"] + listed["worst_predictions"])
    assert datasets.problems(Dataset.open(home / "d"), text="device=h100")["total"] == TRIED - DISTINCT


def test_a_verdict_names_the_device_of_the_largest_loss(home):
    """Problems are paired on each device."""
    verdict = compare(home / "m", home / "poor", home / "d", include_seen=True)
    lost = verdict.problems.sort(pl.col("new_efficiency") - pl.col("old_efficiency")).row(0, named=True)
    assert f"M={lost['problem.M']} N={lost['problem.N']} K={lost['problem.K']}" in verdict.reasons[0]
    assert f" on {lost['device']}, " in verdict.reasons[0]
    assert set(verdict.problems["device"]) == {"a100", "h100"}


def test_data_of_one_device_name_none(home, tmp_path):
    """The device is a fact of the whole then: no second count, no column, no label has it."""
    rows = Dataset.open(home / "d").read().filter(pl.col("device") == "a100").select(synthetic_rows(problems=1).columns)
    synthetic_dataset(tmp_path / "d", rows)
    found = evaluate(train(tmp_path / "d", tmp_path / "m", RECIPE), tmp_path / "d", split="problem", threads=1)
    write_report(found, None, tmp_path / "report.html")
    assert "distinct on" not in f"{found}{(tmp_path / 'report.html').read_text()}{Dataset.open(tmp_path / 'd')}"
    assert found.worst[0].device is None
    assert found.as_json()["pooled"] is None
    assert " on a100" not in "".join(re.findall(r'<span class="problem">(.*?)</span>', (tmp_path / "report.html").read_text()))
