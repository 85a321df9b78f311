"""What an answer is worth: by its problem, its config and its device, one by one and in frames."""

import numpy as np
import polars as pl
import pytest

import kerncast
from kerncast.library import devices
from kerncast.models.answer import Answer, Answered, as_judged
from kerncast.models.candidates import with_configs
from kerncast.models.limits.envelope import AnswerWorth, Envelope, Worth
from kerncast.models.problem_frames import problem_frame

SHAPE = {"M": 128, "N": 128, "K": 4096, "dtype": "bf16", "layout": "rcr"}


@pytest.fixture(scope="module")
def model():
    return kerncast.open("shipped/gemm-vllm")


@pytest.mark.parametrize(
    ("change", "device", "worth", "words"),
    [
        ({}, "h100", Worth.IN, ""),
        ({"N": 129}, "h100", Worth.UNLIKE, "N was trained with multiples of 16 only, got 129: nothing like it was measured"),
        ({"M": 10**6}, "h100", Worth.OUTSIDE, "M was trained with 1 to 32768 only, got 1000000"),
        ({"bias": True}, "h100", Worth.OUTSIDE, "bias was trained with false only, got true"),
        (
            {"dtype": "fp32", "N": 129},
            "h100",
            Worth.OUTSIDE,
            "dtype was trained with bf16, fp8, fp8_block",
        ),
        ({}, "gfx942", Worth.ELSEWHERE, "gfx942 was not measured; the nearest device that was is h100"),
        ({"N": 129}, "gfx942", Worth.UNLIKE, "N was trained with multiples of 16 only"),
        (
            {"dtype": "nvfp4"},
            "gfx942",
            Worth.OUTSIDE,
            "the model reads the peak rate of nvfp4, which the profile",
        ),
    ],
)
def test_the_worst_reason_is_said(model, change, device, worth, words):
    """A range comes before what its values have in common, and that before the device."""
    verdict = Envelope(model, devices.get(device)).judge(model.problem({**SHAPE, **change}))
    assert (verdict.worth, verdict.stands) == (worth, worth in (Worth.IN, Worth.ELSEWHERE))
    assert verdict.words.startswith(words)
    assert bool(verdict.words) == bool(words)


def test_a_frame_is_judged_as_its_rows_are(model):
    """Random problems within and beyond the trained range, on a device that was measured and on another one."""
    rng = np.random.default_rng(0)
    dtypes, layouts = ["bf16", "fp8", "nvfp4", "fp32"], ["rcr", "rcr", "rcr", "rrr"]
    problems = []
    for _ in range(300):
        sizes = {name: int(2 ** rng.uniform(0, 17)) // step * step + step for name, step in zip("MNK", (1, 16, 8), strict=True)}
        labels = {"dtype": dtypes[rng.integers(4)], "layout": layouts[rng.integers(4)], "bias": rng.random() < 0.1}
        problems.append(model.problem(sizes | labels))
    frame = problem_frame(model.family, [problem.as_dict() for problem in problems])
    for device in ("h100", "gfx942"):
        envelope = Envelope(model, devices.get(device))
        worths = [envelope.judge(problem).worth for problem in problems]
        verdicts = envelope.judge_frame(frame)
        assert verdicts.outside.tolist() == [worth is Worth.OUTSIDE for worth in worths]
        inside = ~verdicts.outside
        assert verdicts.unlike[inside].tolist() == [worth is Worth.UNLIKE for worth in worths if worth is not Worth.OUTSIDE]
        assert 20 < inside.sum() < 280
        assert verdicts.unlike[inside].any()


def test_an_untried_config_has_no_interval(model):
    """Of the configs that are given, the one that worked in training keeps its own."""
    bound = model.on("h100")
    labels = [bound.candidates["config.kernel_source"][0], "trtllm"]
    assert labels[1] not in bound.candidates["config.kernel_source"].to_list()
    envelope = Envelope(with_configs(bound, pl.DataFrame({"config.kernel_source": labels})))
    verdicts = [envelope.judge_config(row) for row in range(2)]
    assert [(verdict.worth, verdict.known) for verdict in verdicts] == [(Worth.IN, True), (Worth.UNTRIED, False)]
    answer = Answer(Answered.OK, bound.problem(SHAPE), time_ns=10.0, lower_ns=9.0, upper_ns=12.0, efficiency=0.9)
    tried, untried = (as_judged(answer, verdict) for verdict in verdicts)
    assert (tried.known, tried.lower_ns, tried.upper_ns, tried.efficiency, tried.note) == (True, 9.0, 12.0, 0.9, "")
    assert (untried.known, untried.lower_ns, untried.upper_ns, untried.efficiency) == (False, None, None, None)
    assert untried.ok
    assert untried.note == "the model was not trained on this config, so its time has no interval"


def test_bounds_on_another_device_are_never_narrower(model):
    """By the distance of the device, in one answer and in columns alike; without a calibration there are none."""
    away = Envelope(model, devices.get("gfx942")).judge(model.problem(SHAPE))
    lower, upper = away.away.factors
    assert away.widened(10.0, 9.0, 11.0) == pytest.approx((10 * lower, 10 * upper))
    assert away.widened(10.0, 0.1, 900.0) == (0.1, 900.0)
    found = away.widened(np.array([10.0, np.nan]), np.array([9.0, np.nan]), np.array([900.0, np.nan]))
    assert np.array(found).T[0] == pytest.approx((10 * lower, 900.0))
    assert AnswerWorth().widened(10.0, 9.0, 11.0) == (9.0, 11.0)
