"""`Model.predict`: one problem, lists, frames; with a config and without; what is refused."""

from dataclasses import replace

import polars as pl
import pytest

import kerncast
from kerncast.answering.selector import Selector
from kerncast.core.device import Device
from kerncast.core.op import Config, Problem
from kerncast.data import schema
from kerncast.errors import InvalidValue, NotFound
from kerncast.library import devices
from kerncast.models.answer import Answered
from kerncast.native.tiers.build import plain_tiers
from kerncast.testing.models import synthetic_dataset
from kerncast.training.procedure import Recipe
from kerncast.training.train import train

SHAPE = {"M": 1000, "N": 512, "K": 768, "dtype": "fp16", "layout": "rcr"}
OTHER = {**SHAPE, "M": 300}
FAR = {**SHAPE, "M": 10_000_000}


@pytest.fixture(scope="module")
def model(tmp_path_factory):
    folder = tmp_path_factory.mktemp("predict")
    return train(
        synthetic_dataset(folder / "data"),
        folder / "model",
        Recipe("gbdt", {"trees": 20, "library_trees": 4, "leaves": 15}, folds=2),
    )


@pytest.fixture(scope="module")
def config(model):
    row = model.candidates.filter(pl.col("config.kind") == "triton").row(0, named=True)
    return {name.removeprefix("config."): value for name, value in row.items() if name.startswith("config.")}


@pytest.fixture(scope="module")
def selector(model):
    return Selector(model, tiers=plain_tiers(model), tier="full", compile=False)


def test_one_problem_gives_one_answer_as_a_selector_gives_it(model, config, selector):
    found = model.predict(SHAPE, config=config)
    assert (found, found.ok) == (selector.predict(SHAPE, config), True)
    assert found.lower_ns < found.time_ns < found.upper_ns
    assert (found.config["kind"], found.problem["M"]) == ("triton", 1000)
    assert model.predict(Problem(model.family, SHAPE), Config(model.family, config)) == found
    assert model.predict({f"problem.{name}": value for name, value in SHAPE.items()}, config) == found


def test_without_a_config_the_best_that_the_model_knows_answers(model, selector):
    for problem in (SHAPE, OTHER):
        assert model.predict(problem) == selector.select(problem, "full")


def test_what_lies_outside_the_training_is_refused_with_a_fallback(model, config, selector):
    found = model.predict(FAR, config)
    assert (found.status, found.outside.parameter, found.time_ns) == (Answered.OUT_OF_RANGE, "M", None)
    assert found.fallback is not None
    assert found == selector.predict(FAR, config)
    assert model.predict(FAR) == selector.select(FAR, "full")


def test_lists_give_lists(model, config):
    one = [model.predict(SHAPE, config), model.predict(FAR, config), model.predict(OTHER, config)]
    assert model.predict([SHAPE, FAR, OTHER], config) == one
    assert model.predict([SHAPE, FAR, OTHER], [config] * 3) == one
    assert model.predict([SHAPE, OTHER]) == [model.predict(SHAPE), model.predict(OTHER)]
    assert model.predict([]) == []
    with pytest.raises(InvalidValue, match="3 problems need as many configs, or one for all; got 1"):
        model.predict([SHAPE, FAR, OTHER], [config])
    with pytest.raises(InvalidValue, match=r"problem 2 of 2: .*M"):
        model.predict([SHAPE, {**SHAPE, "M": -1}], config)
    with pytest.raises(InvalidValue, match="give a list of problems too"):
        model.predict(SHAPE, [config])


def test_frames_give_frames(model, config):
    """Plain names or `problem.*`; the answers are those of single problems."""
    asked = [SHAPE, FAR, OTHER]
    answers = model.predict(asked, config)
    plain = pl.DataFrame(asked)
    own = plain.rename(lambda name: f"problem.{name}").with_columns(
        pl.lit(value, schema.schema_of(model.family)[f"config.{name}"]).alias(f"config.{name}")
        for name, value in config.items()
    )
    for found in (model.predict(plain, config), model.predict(own)):
        assert found["status"].to_list() == [str(answer.status) for answer in answers]
        for name in ("time_ns", "lower_ns", "upper_ns"):
            assert found[name].to_list() == [getattr(answer, name) for answer in answers]
    best = model.predict(plain.with_columns(note=pl.lit("kept")))
    assert best["time_ns"].to_list() == [answer.time_ns for answer in model.predict(asked)]
    assert {"config.kind", "note", "status"} <= set(best.columns)
    assert best["config.kind"].null_count() == 1  # outside there is no config
    assert model.predict(own.head(0)).height == 0


def test_a_problem_is_answered_alone_as_among_many(model):
    """To the last bit: few rows are computed in another way than many."""
    asked = [{**SHAPE, "M": size, "N": 64 * (1 + size % 7)} for size in range(8, 1000, 9)]
    alone = [model.predict(problem) for problem in asked]
    assert alone == model.predict(asked)
    assert [answer.time_ns for answer in alone] == model.predict(pl.DataFrame(asked))["time_ns"].to_list()
    assert {answer.status for answer in alone} >= {Answered.OK}


def test_frames_that_do_not_fit_are_refused(model, config):
    plain = pl.DataFrame([SHAPE])
    with pytest.raises(InvalidValue, match=r"no column 'problem\.M'"):
        model.predict(plain.drop("M"), config)
    with pytest.raises(InvalidValue, match=r"problem\.M must be"):
        model.predict(plain.with_columns(M=pl.lit(0)), config)
    with pytest.raises(NotFound, match="unknown config parameter of gemm/triton 'kynd'"):
        model.predict(plain.with_columns(pl.lit("triton").alias("config.kynd")))
    with pytest.raises(InvalidValue, match="already has configs"):
        model.predict(plain.with_columns(pl.lit("triton").alias("config.kind")), config)
    with pytest.raises(InvalidValue, match=r"row 1: problem\.M must be a whole number, got .many."):
        model.predict(plain.with_columns(M=pl.lit("many")), config)


def test_a_config_that_cannot_run_the_problem_is_unsupported(model, config):
    """A rule of the config refuses, in a list, a frame and alone."""
    broken = {**config, "BLOCK_M": 512, "BLOCK_N": 512, "BLOCK_K": 512, "num_stages": 8}
    answer = model.predict(SHAPE, broken)
    assert (answer.status, answer.time_ns) == (Answered.UNSUPPORTED, None)
    assert "must fit in the shared memory" in answer.reason
    assert model.predict(pl.DataFrame([SHAPE]), broken)["status"].to_list() == ["unsupported"]


def test_a_device_that_was_not_measured_gets_a_time_without_an_interval(model, config):
    """With a config, for the best one, in a list and in a frame: never the interval of the device that was measured."""
    own, other = model.predict(SHAPE, config), model.predict(SHAPE, config, device="h100")
    assert own.ok
    assert (other.status, other.outside.parameter, other.outside.value) == (Answered.OUT_OF_RANGE, "device", "h100")
    assert other.time_ns not in (None, own.time_ns)
    assert "h100 was not measured; the nearest device that was is a100" in other.reason
    assert "without an interval" in other.reason
    for answer in (other, model.predict(SHAPE, device="h100")):
        assert (answer.lower_ns, answer.upper_ns, answer.efficiency) == (None, None, None)
        assert answer.config is not None
    assert other == model.predict(SHAPE, config, device=devices.get("h100"))
    frame = model.predict(pl.DataFrame([SHAPE, FAR]), config, device="h100")
    assert frame["time_ns"].to_list() == [other.time_ns, None]
    assert frame["status"].to_list() == ["out_of_range"] * 2
    assert frame["lower_ns"].null_count() == 2


def test_a_device_without_the_numbers_that_the_model_reads_is_refused_by_name(model, config):
    a100 = devices.get("a100")
    numbers = {name: value for name, value in a100.numbers.items() if name != "num_cus"}
    bare = Device("mystery", "A device", "gpu", numbers, a100.peak_tflops)
    with pytest.raises(InvalidValue, match="trained on a100 and cannot predict for mystery, whose profile lacks num_cus"):
        model.predict(SHAPE, config, device=bare)
    with pytest.raises(InvalidValue, match="whose profile lacks the peak rates of fp16"):
        model.predict(SHAPE, device=Device("mystery", "A device", "gpu", a100.numbers))


def test_defaults_are_filled_in_wherever_a_value_is_missing(model, config):
    """A column that is not there, a null in it, a None in a mapping."""
    whole = {**SHAPE, "batch": 1, "tf32": False}
    wanted = model.predict(whole, config)
    assert model.predict(SHAPE, config) == model.predict({**SHAPE, "batch": None}, config) == wanted
    for frame in (pl.DataFrame([SHAPE]), pl.DataFrame([whole]), pl.DataFrame([{**SHAPE, "batch": None, "tf32": None}])):
        assert model.predict(frame, config)["time_ns"].to_list() == [wanted.time_ns]
        assert model.predict(frame)["time_ns"].to_list() == [model.predict(SHAPE).time_ns]


def test_a_config_that_always_failed_gets_no_interval_and_is_told_from_one_that_was_never_tried(tmp_path):
    """Alone, in a frame, and in a list of configs to choose from; a config that worked once is answered as before."""
    kind = {"kind": "triton", "BLOCK_K": 32, "num_stages": 3, "num_warps": 4}
    rows = [
        {**SHAPE, "M": 128 * m, "N": 256 * n, **kind, "BLOCK_M": block, "BLOCK_N": 64, "device": "h100",
         "time_ns": None if block == 256 or (block == 128 and m == 1) else 1e3 * m * n * (1 + block / 64),
         "status": "launch_error" if block == 256 or (block == 128 and m == 1) else "ok"}
        for m in range(1, 7) for n in range(1, 5) for block in (32, 64, 128, 256)
    ]  # fmt: skip
    model = kerncast.train(pl.DataFrame(rows), family="gemm/triton", folds=2, trees=10, progress=False)
    asked = {**SHAPE, "M": 512, "N": 512}
    always, once, never = ({**kind, "BLOCK_N": 64, "BLOCK_M": block} for block in (256, 128, 16))
    failed, worked = model.predict([asked, asked], [always, once])
    assert (failed.known, failed.failed, failed.lower_ns) == (False, 24, None)
    assert "never worked in training (24 of 24 rows failed)" in failed.note
    assert (worked.known, worked.failed, worked.note) == (None, 0, "")
    assert worked.lower_ns < worked.time_ns < worked.upper_ns
    frame = model.predict(pl.DataFrame([{**asked, **{f"config.{k}": v for k, v in item.items()}} for item in (always, once)]))
    assert frame["lower_ns"].is_null().to_list() == [True, False]
    picks = {item.config["BLOCK_M"]: item for item in Selector(model, configs=[always, once, never]).rank(asked, 3)}
    words = {block: item.worked_in_training for block, item in picks.items()}
    assert words.items() <= {128: "yes", 256: "no, 24 of 24 failed", 16: "never tried"}.items()
    assert words[128] == "yes"


def test_frames_are_read_as_training_reads_them(model, config, selector):
    """Configs in bare columns, dtypes in any usual spelling; a column that says otherwise than its twin is refused."""
    wanted = model.predict(pl.DataFrame([{**SHAPE, **{f"config.{name}": value for name, value in config.items()}}]))
    given = {name: value for name, value in config.items() if value is not None}
    bare = model.predict(pl.DataFrame([{**SHAPE, **given, "time_ns": 5.0, "mine": 1}]))
    assert bare["time_ns"].to_list() == wanted["time_ns"].to_list() != [5.0]
    assert (bare["BLOCK_M"].to_list(), "config.BLOCK_M" in bare.columns) == ([given["BLOCK_M"]], False)
    spelled = {**SHAPE, "dtype": "torch.float16"}
    for ask in (model.predict, selector.select, lambda problem: selector.select_many([problem])[0]):
        assert replace(ask(spelled), tier=None) == replace(ask(SHAPE), tier=None)
    for ask in (model.predict, selector.select_many):
        assert ask(pl.DataFrame([spelled])).drop("dtype").equals(ask(pl.DataFrame([SHAPE])).drop("dtype"))
        assert ask(pl.DataFrame([{**SHAPE, "problem.M": 1000.0}])).height == 1
        with pytest.raises(InvalidValue, match=r"row 1 of the frame has 1000 in the column 'M' and 7 in 'problem\.M'"):
            ask(pl.DataFrame([{**SHAPE, "problem.M": 7}]))
    with pytest.raises(InvalidValue, match=r"row 1 of the frame has 1000 in the column 'M' and 7 in 'problem\.M'"):
        kerncast.train(
            pl.DataFrame([{**SHAPE, **given, "problem.M": 7, "device": "a100", "time_ns": 5.0}]), family="gemm/triton"
        )
    with pytest.raises(InvalidValue, match=r"dtype must be one of .* got 'flot16'"):
        model.predict({**SHAPE, "dtype": "flot16"})
