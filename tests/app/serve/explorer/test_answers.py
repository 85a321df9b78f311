"""What the explorer's page is told: the same as Python says, and why."""

import json
import math

import numpy as np
import polars as pl
import pytest

from kerncast.answering.selector import Selector
from kerncast.app.serve.explorer import datasets, models
from kerncast.app.serve.explorer.models import model_facts, software_words
from kerncast.data.dataset import Dataset
from kerncast.errors import InvalidValue, NotFound
from kerncast.library import devices
from kerncast.models.model import Model
from kerncast.native.tiers.build import plain_tiers

SHAPE = {"M": 1024, "N": 768, "K": 2048, "dtype": "fp16", "layout": "rcr"}


@pytest.fixture(params=["model", "slim"])
def model(request, explored):
    return Model.load(explored / request.param)


@pytest.fixture
def dataset(explored):
    return Dataset.open(explored / "data")


def test_software_is_called_as_everywhere_else():
    """A framework has the name by which one asks for it; other parts are listed."""
    assert software_words('{"framework": "TRTLLM", "version": "1.3.0rc20"}') == "trtllm==1.3.0rc20"
    assert software_words('{"commit": "3f2a91c", "compiler": "gcc 12"}') == "commit 3f2a91c, compiler gcc 12"
    assert software_words("plain words") == "plain words"


def test_the_ranking_is_the_selectors(model):
    """The same configs, times and intervals as `Selector.rank` in the full tier; the first is the answer of `predict`."""
    found = models.ranked(model, SHAPE, k=6)
    json.dumps(found, allow_nan=False)
    ranks = Selector(model, tiers=plain_tiers(model), compile=False).rank(SHAPE, 6, "full")
    assert [item["config"] for item in found["answers"]] == [item.as_json()["config"] for item in ranks]
    assert [item["time_ns"] for item in found["answers"]] == pytest.approx([item.time_ns for item in ranks], rel=1e-12)
    best = model.predict(SHAPE)
    assert (found["answers"][0]["time_ns"], found["answers"][0]["upper_ns"]) == (best.time_ns, best.upper_ns)


def test_the_roofline_is_that_of_work_and_device(model):
    """A GEMM's arithmetic over the peak rate, or its bytes over the bandwidth."""
    found, device = models.ranked(model, SHAPE)["roofline"], devices.get("a100")
    flops = 2 * 1024 * 768 * 2048
    moved = 2 * (1024 * 2048 + 2048 * 768 + 1024 * 768)
    assert (found["flops"], found["bytes"]) == (flops, moved)
    bandwidth = device.numbers["memory_bandwidth_gb_s"]
    assert found["floor_ns"] == pytest.approx(max(flops / device.peak_of("fp16") / 1e3, moved / bandwidth))
    assert found["peak_gflops"] == pytest.approx(1e3 * device.peak_of("fp16"))


def test_the_factors_multiply_to_the_predicted_time(model):
    """Work, mean miss and features, listed or not: their logs add up to the log of the time, for any config."""
    for answer in models.ranked(model, SHAPE, k=4)["answers"]:
        found = models.why(model, SHAPE, answer["config"])
        logs = [math.log(item["factor"]) for item in found["contributions"]]
        total = math.log(found["expected_ns"]) + math.log(found["mean"]) + sum(logs) + math.log(found["others"]["factor"])
        assert total == pytest.approx(math.log(answer["time_ns"]), abs=1e-9)
        assert [abs(log) for log in logs] == sorted((abs(log) for log in logs), reverse=True)


def test_a_model_without_factors_says_why(explored, tmp_path):
    """A model of another kind has none, and a slim one has no measurements: one sentence each."""
    from kerncast.training.procedure import Recipe
    from kerncast.training.train import train

    linear = train(explored / "data", tmp_path / "roofline", Recipe("roofline", {}, folds=2, threads=1))
    found = models.why(linear, SHAPE, models.ranked(linear, SHAPE)["answers"][0]["config"])
    assert not found["available"]
    assert "train a gbdt model" in found["reason"]
    config = models.ranked(Model.load(explored / "slim"), SHAPE)["answers"][0]["config"]
    assert "slim" in models.near(Model.load(explored / "slim"), SHAPE, config)["reason"]


def test_near_here_are_the_nearest_measured_problems(explored):
    """A measured problem is nearest to itself, with the fastest of its rows."""
    model = Model.load(explored / "model")
    rows = Dataset.open(explored / "data").read(where=["status=ok"])
    asked = {name: rows[f"problem.{name}"][0] for name in SHAPE}
    config = models.ranked(model, asked)["answers"][0]["config"]
    found = models.near(model, asked, config)
    assert found["measured_here"]
    assert asked.items() <= found["problems"][0]["problem"].items()
    own = rows.filter(*(rows[f"problem.{name}"] == value for name, value in asked.items()))
    medians = own.group_by("key").agg(pl.col("time_ns").median())
    assert found["problems"][0]["best_ns"] == pytest.approx(medians["time_ns"].min(), rel=0.02)


def test_along_an_axis_every_best_is_the_models_answer(model):
    """Values in the trained range; times, winners and the lines of winners are those of `predict`."""
    found = models.along(model, SHAPE, "M", count=7)
    json.dumps(found, allow_nan=False)
    assert (found["values"][0], found["values"][-1]) == (model.manifest.hull["M"].low, model.manifest.hull["M"].high)
    for number, value in enumerate(found["values"]):
        best = model.predict({**SHAPE, "M": value})
        assert found["best"][number]["time_ns"] == pytest.approx(best.time_ns)
        assert found["configs"][found["best"][number]["winner"]] == best.as_json()["config"]
    for line, config in zip(found["times"], found["configs"], strict=False):
        assert line[2] == pytest.approx(model.predict({**SHAPE, "M": found["values"][2]}, config).time_ns)
    assert all(floor > 0 for floor in found["floor_ns"])


def test_the_map_has_a_winner_in_every_cell(model, monkeypatch):
    """Row by row, the same as `predict`; a model of too many configs is asked about its best ones, and the map says so."""
    found = models.winners_map(model, SHAPE, "M", "N", count=4)
    assert len(found["cells"]) == len(found["x"]["values"]) * len(found["y"]["values"])
    for place in (0, 5, len(found["cells"]) - 1):
        row, column = divmod(place, len(found["x"]["values"]))
        best = model.predict({**SHAPE, "M": found["x"]["values"][column], "N": found["y"]["values"][row]})
        assert found["configs"][found["cells"][place]["winner"]] == best.as_json()["config"]
    assert found["asked"] == found["candidates"]
    monkeypatch.setattr(models, "MOST_VECTORS", 3 * len(found["cells"]))
    fewer = models.winners_map(model, SHAPE, "M", "N", count=4)
    assert fewer["asked"] == 3
    assert len(fewer["configs"]) <= 3
    for name, wrong in (("x", "N"), ("x", "dtype"), ("y", "nothing")):
        with pytest.raises((InvalidValue, NotFound)):
            models.winners_map(model, SHAPE, **{"x": "M", "y": "N", name: wrong})


def test_the_form_begins_with_a_problem_that_the_model_answers(model):
    """Parameters with their trained ranges, and a first problem inside of them."""
    facts = model_facts(model)
    json.dumps(facts, allow_nan=False)
    sizes = {item["name"]: item for item in facts["parameters"]}
    assert (sizes["M"]["kind"], sizes["dtype"]["kind"], sizes["dtype"]["labels"]) == ("size", "label", ["fp16"])
    assert sizes["M"]["trained_low"] <= facts["problem"]["M"] <= sizes["M"]["trained_high"]
    assert model.predict(facts["problem"]).ok


def test_devices_are_compared_and_a_model_that_cannot_answer_says_so(model):
    """The best time on the model's own device; what is wrong with the problem; a device is never read from a file."""
    (found,) = models.compared_devices([("mine", model)], SHAPE)["devices"]
    assert (found["device"], found["time_ns"]) == ("a100", model.predict(SHAPE).time_ns)
    (refused,) = models.compared_devices([("mine", model)], {**SHAPE, "M": 0})["devices"]
    assert refused["status"] == "bad_input"
    with pytest.raises(InvalidValue, match="a request names its device"):
        models.ranked(model, SHAPE, "/etc/passwd")


def test_a_dataset_in_numbers(dataset):
    """Rows, statuses, noise and problems are those that polars counts."""
    rows, found = dataset.read(), datasets.overview(dataset)
    json.dumps(found, allow_nan=False)
    assert (found["rows"], found["problems"], found["configs"]) == (rows.height, 40, 10)
    assert {item["value"]: item["rows"] for item in found["statuses"]} == dict(rows["status"].value_counts().iter_rows())
    assert sum(found["noise"]["rows"]) == rows["time_ns_mad"].count()
    page = datasets.problems(dataset, sort="best_ns")
    assert page["total"] == 40
    assert [item["best_ns"] for item in page["problems"]] == sorted(item["best_ns"] for item in page["problems"])
    assert page["problems"][0]["best_ns"] == rows["time_ns"].min()
    one = page["problems"][0]
    detail = datasets.measured_rows(dataset, one["problem"], one["device"])
    assert detail["total"] == one["rows"] == len(detail["rows"])
    assert detail["rows"][0]["time_ns"] == one["best_ns"]
    assert detail["rows"][0]["config"] == one["best"]
    assert datasets.problems(dataset, text=f"M={one['problem']['M']}")["total"] < 40
    assert (datasets.problems(dataset, page=2**62)["page"], datasets.problems(dataset, page=-1)["page"]) == (0, 0)
    with pytest.raises(InvalidValue, match="filter by parameters"):
        datasets.problems(dataset, text="'; drop")


def test_the_worst_problems_are_those_out_of_fold(explored, dataset):
    """On the training data the predictions of the folds count, worst first."""
    found = datasets.worst_of(Model.load(explored / "model"), dataset)
    assert found["how"] == "out_of_fold"
    efficiency = [item["efficiency"] for item in found["worst"]]
    assert efficiency == sorted(efficiency)
    assert np.isfinite(efficiency).all()
