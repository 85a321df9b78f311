import json
from pathlib import Path

import numpy as np
import polars as pl
import pytest
from tests.support.needs import require

from kerncast.answering.search import STRATEGIES, Search, measure, search
from kerncast.answering.search.space import SearchSpace
from kerncast.core.op import Config, Problem
from kerncast.data import Dataset
from kerncast.data.formats import ImportOptions
from kerncast.data.importing import import_files
from kerncast.errors import InvalidValue, NotFound
from kerncast.library.declared.declaration import DeclaredFamily
from kerncast.library.registry import FAMILIES
from kerncast.measuring.messages import Policy
from kerncast.models.model import Model
from kerncast.testing.models import synthetic_dataset
from kerncast.training.train import Recipe, train

NAMES = ("block_size_x", "block_size_y", "tile_size_x", "unroll")
BEST = (64, 4, 4, 1)
SEEDED = [name for name in STRATEGIES if name != "exhaustive"]


def time_ms(config: tuple[int, ...]) -> float:
    """A valley around BEST, one step of anything worth some ten percent."""
    steps = [abs(np.log2(value) - np.log2(best)) for value, best in zip(config[:3], BEST[:3], strict=True)]
    return float(1.0 + 0.1 * sum(step**1.5 for step in steps) + 0.05 * (config[3] != BEST[3]))


def tuned(path: Path) -> Path:
    """A cache of every config of at most 512 threads, as Kernel Tuner would leave it."""
    space = [(x, y, t, u) for x in (8, 16, 32, 64, 128, 256) for y in (1, 2, 4, 8, 16) for t in (1, 2, 4, 8) for u in (0, 1)]
    entries = {
        ",".join(map(str, config)): {**dict(zip(NAMES, config, strict=True)), "time": time_ms(config)}
        for config in space
        if config[0] * config[1] <= 512
    }
    header = {"device_name": "GPU", "kernel_name": "valley", "problem_size": [4096], "tune_params_keys": list(NAMES)}
    path.write_text(json.dumps({**header, "cache": entries}, indent=0))
    return path


@pytest.fixture(scope="module")
def model(tmp_path_factory: pytest.TempPathFactory) -> Model:
    """Trained on half of the configs of a drafted op, whose space is all of them."""
    folder = tmp_path_factory.mktemp("search")
    whole = import_files("kernel-tuner", [tuned(folder / "cache.json")], folder / "whole", ImportOptions())
    (family,) = whole.families
    half = whole.read().drop("key", "op", "family").sample(fraction=0.5, seed=0, shuffle=False)
    part = Dataset.create(folder / "half")
    part.append(family, half, machines=whole.contents.devices)
    return train(part.path, folder / "model", Recipe(folds=3, threads=1))


@pytest.fixture(scope="module")
def problem(model: Model) -> Problem:
    return Problem(model.family, size_x=4096)


def points(found: Search) -> list[tuple[object, ...]]:
    return [tuple(item.config.as_dict().values()) for item in found.finalists]


def test_an_exhaustive_search_scores_every_valid_config_once_and_orders_them(model, problem):
    """The whole declared space, half of it never measured; the model finds the valley."""
    found = search(model, problem, top_k=10_000)
    valid = set(pl.concat(model.family.config.frames()).rows())
    assert (found.strategy, found.exact, found.scored, found.space) == ("exhaustive", True, len(valid), len(valid))
    assert set(points(found)) == valid
    assert len(points(found)) == len(valid)
    scores = [item.score for item in found.finalists]
    assert scores == sorted(scores)
    assert 0 < sum(item.known for item in found.finalists) < len(valid)
    assert min(time_ms(point) for point in points(found)[:10]) <= 1.05 * time_ms(BEST)
    assert found.seen == f"{len(valid)} of {len(valid)} valid configs scored (100.0%)"


@pytest.mark.parametrize("strategy", SEEDED)
def test_every_strategy_keeps_its_budget_the_rules_and_its_seed(strategy, model, problem):
    """Different valid configs, as many as allowed; the same ones for the same seed."""
    if strategy == "optuna":
        require("optuna")
    found = search(model, problem, strategy, budget=40, top_k=100, seed=3)
    assert found.scored == len(points(found)) == len(set(points(found))) == 40
    for item in found.finalists:
        Config(model.family, item.config.as_dict(), problem=problem, device=model.device)
    again = search(Model.load(model.path), problem, strategy, budget=40, top_k=100, seed=3)
    assert points(again) == points(found)
    if strategy != "local":  # which draws only after it has climbed from everything it knows
        assert points(search(model, problem, strategy, budget=40, top_k=100, seed=4)) != points(found)
    everything = search(model, problem, top_k=10_000)
    scores = {point: item.score for point, item in zip(points(everything), everything.finalists, strict=True)}
    assert [item.score for item in found.finalists] == [scores[point] for point in points(found)]


@pytest.mark.parametrize("strategy", [name for name in SEEDED if name != "optuna"])
def test_a_budget_beyond_the_space_ends_when_nothing_new_turns_up(strategy, model, problem):
    """No endless loop, no config twice."""
    found = search(model, problem, strategy, budget=5_000, top_k=5_000)
    assert found.scored == len(set(points(found))) <= found.space
    if strategy == "random":
        assert found.scored == found.space


def test_climbing_finds_what_an_exhaustive_search_finds(model, problem):
    """From the best candidate, with a third of the scores."""
    best = search(model, problem).finalists[0]
    assert search(model, problem, "local", budget=70).finalists[0].score == pytest.approx(best.score)


@pytest.mark.parametrize(("family", "values"), [
    ("gemm/triton", {"M": 512, "N": 512, "K": 512, "dtype": "fp16", "layout": "rcr"}),
    ("gemm/cutlass", {"M": 512, "N": 512, "K": 512, "dtype": "fp16", "layout": "rcr"}),
])  # fmt: skip
def test_many_places_are_moved_to_the_configs_that_project_finds(family, values):
    """Together as one by one, with parameters that apply only sometimes, and rules between several."""
    from kerncast.library import devices

    found = FAMILIES.get(family)
    space = SearchSpace(found, Problem(found, values), devices.get("a100"))
    rng = np.random.default_rng(0)
    places = np.column_stack([rng.integers(0, item.size, 12) for item in space.parameters.values()])
    expected = [found.config.project(space.point(row), space.bindings) for row in places]
    assert space.nearest(places) == expected


def test_neighbours_are_valid_and_one_step_away(model, problem):
    """Each differs in one parameter, by one place."""
    space = SearchSpace(model.family, problem, model.device)
    point = dict(zip(NAMES, (256, 2, 8, 0), strict=True))
    around = {tuple(row) for row in space.neighbours(point).rows()}
    assert around == {(128, 2, 8, 0), (256, 1, 8, 0), (256, 2, 4, 0), (256, 2, 8, 1)}


def test_a_problem_outside_the_trained_range_is_said_in_words(model):
    """The parameter, its value and the range."""
    found = search(model, Problem(model.family, size_x=99), budget=10)
    assert found.warnings == ("size_x=99 is outside the trained range (4096): predictions there are guesses",)


def test_a_count_that_was_cut_short_is_a_lower_bound(model, problem, monkeypatch):
    """`of at least`, and no share of it."""
    monkeypatch.setattr("kerncast.answering.search.space.COUNTED", 10)
    found = search(model, problem, "random", budget=5)
    assert not found.exact
    assert found.seen.startswith("5 of at least ")
    assert "%" not in found.seen


REFUSED = {
    "an unknown strategy": ({"strategy": "wishing"}, NotFound, "unknown strategy 'wishing'"),
    "no budget": ({"budget": 0}, InvalidValue, "a budget must be at least 1, got 0"),
    "no finalists": ({"top_k": 0}, InvalidValue, "top_k must be at least 1, got 0"),
}


@pytest.mark.parametrize("case", REFUSED)
def test_what_cannot_be_searched_is_refused(case, model, problem):
    """By the rule and the value."""
    options, kind, words = REFUSED[case]
    with pytest.raises(kind, match=words):
        search(model, problem, **options)
    with pytest.raises(InvalidValue, match="the problem of gemm"):
        search(model, Problem(FAMILIES.get("gemm/triton"), M=8, N=8, K=8, dtype="fp16", layout="rcr"))


@pytest.mark.needs("a C compiler")
def test_finalists_are_timed_on_the_backend_and_come_back_fastest_first(tmp_path):
    """Real kernels of gemm/cpu, collected like any others; predicted stands beside measured."""
    from kerncast.measuring.backends import get_backend

    kind = get_backend("cpu")
    model = cpu_model(tmp_path)
    problem = Problem(model.family, M=64, N=64, K=64, dtype="fp32", layout="rrr", threads=1)
    found = search(model, problem, "random", budget=12, top_k=3)
    done = measure(found, policy=Policy(samples=3, fewest_samples=1, sample_ns=10_000, warmup_ns=10_000))
    assert (done.backend, done.device) == ("cpu", kind("0").device().name)
    assert {item.config for item in done.search.finalists} == {item.config for item in found.finalists}
    times = [item.measured_ns for item in done.search.finalists]
    assert all(item.status == "ok" for item in done.search.finalists)
    assert times == sorted(times)
    with pytest.raises(InvalidValue, match="backend opencl does not run gemm/cpu"):
        measure(found, "opencl")


def cpu_model(folder: Path) -> Model:
    """A small model of gemm/cpu on made-up times of this machine's configs."""
    from kerncast.library import devices

    family, device = FAMILIES.get("gemm/cpu"), devices.local()
    parts = []
    for size in (32, 64, 96, 128):
        values = {"M": size, "N": size, "K": size, "dtype": "fp32", "layout": "rrr", "threads": 1}
        configs = family.config.sample(12, size, family.bindings(Problem(family, values), device))
        rows = configs.select(pl.all().name.prefix("config.")).with_columns(
            pl.lit(value).alias(f"problem.{name}") for name, value in Problem(family, values).items()
        )
        parts.append(rows.with_columns(device=pl.lit(device.name), status=pl.lit("ok"), time_ns=pl.lit(float(size**3))))
    rows = pl.concat(parts, how="vertical_relaxed")
    return train(synthetic_dataset(folder / "rows", rows, family), folder / "model", Recipe(folds=2, threads=1))


def test_a_model_of_one_problem_is_judged_on_configs_and_says_so(model):
    """Manifest, figures and card; the op that it is of is in it, and its bytes are the same each time."""
    assert model.manifest.recipe["hold_out"] == "config"
    assert model.evaluation["split"] == "config"
    assert set(model.evaluation["baselines"]) == {"random"}
    assert model.manifest.interval is not None
    assert "configs were held out instead of problems" in (model.path / "MODEL_CARD.md").read_text()
    assert isinstance(model.family, DeclaredFamily)
    assert model.out_of_fold is not None
    assert model.out_of_fold["fold"].n_unique() == 3
    again = train(model.path.parent / "half", model.path.parent / "again", Recipe(folds=3, threads=1))
    assert {f.name: f.read_bytes() for f in again.path.iterdir()} == {f.name: f.read_bytes() for f in model.path.iterdir()}


def test_too_few_configs_of_one_problem_are_refused(model, tmp_path):
    """They can be looked up; nothing could be held out."""
    half = Dataset.open(model.path.parent / "half")
    few = half.read().drop("key", "op", "family").head(19)
    Dataset.create(tmp_path / "few").append(model.family, few, machines=half.contents.devices)
    with pytest.raises(InvalidValue, match=r"only one problem .* 19 configs worked on it.*at least 20 configs"):
        train(tmp_path / "few", tmp_path / "model", Recipe(folds=3))


def test_a_model_of_one_problem_goes_on_from_itself(model, tmp_path):
    """A warm start holds out configs too."""
    more = train(
        model.path.parent / "half",
        tmp_path / "more",
        Recipe(folds=3, threads=1, knobs={"trees": 20, "library_trees": 4}),
        warm_start=model.path,
    )
    assert more.evaluation["split"] == "config"
    assert more.evaluation["warm_start"]["hold_out_seen_by_base"]
