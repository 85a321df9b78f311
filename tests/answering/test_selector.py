"""The selector: tiers, memo, refusals, fallbacks, files kept, with a compiler and without one."""

import json
import os
from concurrent.futures import ThreadPoolExecutor
from dataclasses import replace

import numpy as np
import polars as pl
import pytest
from polars.testing import assert_frame_equal

from kerncast.answering.explain import explain
from kerncast.answering.exporters.golden import tier_bytes
from kerncast.answering.selector import Selector
from kerncast.core.op import Problem
from kerncast.core.progress import Progress
from kerncast.data.dataset import Dataset
from kerncast.errors import InvalidValue, KerncastError
from kerncast.learning.learners.lightgbm_text import read_trees
from kerncast.library.families.gemm_triton import gemm_library
from kerncast.measuring.backends.contract import CannotCompile
from kerncast.models import answerer
from kerncast.models.answer import Answered, Tier
from kerncast.models.candidates import Candidates
from kerncast.models.model import Model
from kerncast.native.lower import lower
from kerncast.native.tiers import build as tier_building
from kerncast.native.tiers.build import TierOptions, plain_tiers, read_tiers, tiers_of, write_tiers
from kerncast.testing.models import synthetic_dataset, synthetic_rows
from kerncast.training.procedure import Recipe
from kerncast.training.train import train

SHAPE = {"M": 1000, "N": 512, "K": 768, "dtype": "fp16", "layout": "rcr"}


@pytest.fixture
def selector(model, tiers):
    return Selector(model, tiers=tiers)


def test_an_answer_has_a_config_a_time_an_interval_an_efficiency_and_the_tier(selector):
    """Everything that a kernel library wants to know, and nothing made up."""
    answer = selector.select(SHAPE)
    assert answer.ok
    assert answer.tier is Tier.PORTFOLIO
    assert answer.config.kind in ("triton", "library")
    assert answer.lower_ns < answer.time_ns < answer.upper_ns
    assert 0.5 < answer.efficiency <= 1.0
    assert selector.select(SHAPE, "tree").tier in (Tier.TREE, Tier.PORTFOLIO)


def test_the_full_tier_is_the_first_of_the_ranking_and_the_ranking_is_the_models(selector, model):
    """Scores of all candidates, lowest first, as `Model.predict` has them."""
    problem = selector.problem(SHAPE)
    ranked = selector.rank(problem, 100)
    assert ranked[0].config == selector.select(problem, "full").config
    columns = [name for name in model.candidates.columns if name.startswith("config.")]
    values = {f"problem.{name}": value for name, value in problem.items()}
    vectors = model.candidates.select(columns).with_columns(pl.lit(value).alias(name) for name, value in values.items())
    scores = model.predict_vectors(vectors)["score"].to_numpy()
    expected = [selector.configs[i] for i in np.argsort(scores, kind="stable")]
    assert [answer.config for answer in ranked] == expected


@pytest.mark.parametrize("compile", [True, False])
@pytest.mark.parametrize("form", [lambda pick, problem: pick(**problem), lambda pick, problem: pick(problem), None])
def test_the_second_time_is_the_memo(model, tiers, compile, form, monkeypatch):
    """The same answer from a dict, however the problem is given, without a word to C or to the model."""
    pick = Selector(model, tiers=tiers, compile=compile)
    ask = form or (lambda pick, problem: pick(Problem(model.family, problem)))
    first = ask(pick, SHAPE)
    monkeypatch.setattr(Selector, "_ask", None)
    again = ask(pick, dict(SHAPE))
    assert (again.tier, again.config, again.time_ns) == (Tier.MEMO, first.config, first.time_ns)
    assert ask(pick, dict(reversed(SHAPE.items()))).config == first.config


def test_the_memo_tells_a_flag_from_a_size(selector):
    """True equals 1 and 1.0 as a key, and neither is a size: they are refused after the size was answered, too."""
    selector.select({**SHAPE, "M": 1})
    for wrong in (True, 1.0, [1]):
        with pytest.raises(InvalidValue, match="M must be a whole number"):
            selector.select({**SHAPE, "M": wrong})


def test_outside_the_hull_there_is_a_reason_and_a_fallback_but_no_number(selector):
    """Which parameter, what it may be, and the library's own choice, which the family declares."""
    answer = selector.select({**SHAPE, "M": 1_000_000})
    assert answer.status is Answered.OUT_OF_RANGE
    assert answer.time_ns is None
    assert answer.config is None
    assert (answer.outside.parameter, answer.outside.value) == ("M", 1_000_000)
    assert (answer.fallback_name, answer.fallback.kind) == ("library", "library")
    assert selector.select({**SHAPE, "dtype": "bf16"}).outside.rule == "fp16"


@pytest.mark.parametrize(
    ("change", "rule"),
    [
        ({"M": 0}, "M must be a whole number"),
        ({"M": 2**63}, "M must be a whole number"),
        ({"M": "many"}, "M must be a whole number"),
        ({"dtype": "fp17"}, "dtype must be"),
        ({"Q": 1}, "unknown parameter of gemm 'Q'"),
    ],
)
def test_what_is_no_problem_is_refused_by_the_rule(selector, change, rule):
    """An exception that names parameter, rule and value."""
    with pytest.raises(InvalidValue, match=rule):
        selector.select({**SHAPE, **change})


def test_without_a_compiler_the_answers_are_the_same(selector, model, tiers):
    """LightGBM and numpy say what the compiled artefact says, in every tier and for every refusal."""
    slow = Selector(model, tiers=tiers, compile=False)
    assert not slow.is_compiled
    for shape in (SHAPE, {**SHAPE, "M": 128, "K": 8000}, {**SHAPE, "M": 10**6}, {**SHAPE, "dtype": "bf16"}):
        for tier in ("tree", "portfolio", "full"):
            one, other = selector.select(shape, tier), slow.select(shape, tier)
            assert (one.status, one.config, one.tier, one.outside, one.fallback, one.reason) == (
                other.status, other.config, other.tier, other.outside, other.fallback, other.reason,
            )  # fmt: skip
            assert (one.time_ns is None, one.efficiency) == (other.time_ns is None, other.efficiency)
            if one.time_ns is not None:
                assert one.time_ns == pytest.approx(other.time_ns, rel=1e-12)
                assert one.upper_ns == pytest.approx(other.upper_ns, rel=1e-12)


def test_threads_may_share_a_selector(selector):
    """They take turns: nobody hears the answer to another's question."""
    shapes = [selector.problem({**SHAPE, "M": 130 + 7 * i, "K": 256 + 3 * i}) for i in range(150)]
    alone = [selector._ask(shape, Tier.FULL) for shape in shapes]
    with ThreadPoolExecutor(4) as executor:
        for found in executor.map(lambda _: [selector._ask(shape, Tier.FULL) for shape in shapes], range(4)):
            assert [(item.config, item.time_ns) for item in found] == [(item.config, item.time_ns) for item in alone]


def test_where_nothing_can_be_compiled_or_kept_lightgbm_answers(model, tiers, monkeypatch):
    """A compiler that fails and a cache that cannot be written cost time, not the answer."""

    def refuse(*args, **more):
        raise CannotCompile("no")

    monkeypatch.setattr("kerncast.native.build.compiled", refuse)
    monkeypatch.setattr("kerncast.native.build.kept", lambda identity, flags: None)
    said = []

    class Heard(Progress):
        def say(self, text):
            said.append(text)

    slow = Selector(model, tiers=tiers, progress=Heard())
    assert not slow.is_compiled
    assert "Python answers instead" in said[-1]
    assert slow.select(SHAPE).ok
    monkeypatch.setenv("KERNCAST_CACHE", "/proc/nope")
    assert tiers_of(model, TierOptions(samples=50)).portfolio


@pytest.mark.parametrize("compile", [True, False])
@pytest.mark.parametrize("tier", ["tree", "portfolio", "full"])
def test_a_frame_of_problems_comes_back_with_the_answers_of_single_problems(model, tiers, compile, tier):
    """Config, numbers, tier, status and reason, refusals in their places; other columns stay; a list gives a list."""
    selector = Selector(model, tiers=tiers, compile=compile)
    shapes = [SHAPE, {**SHAPE, "M": 10**6}, {**SHAPE, "N": 384}, {**SHAPE, "dtype": "bf16"}]
    listed = selector.select_many(shapes, tier)
    assert [answer.status for answer in listed] == ["ok", "out_of_range", "ok", "out_of_range"]
    asked = pl.DataFrame(shapes).rename({name: f"problem.{name}" for name in SHAPE}).with_columns(mine=pl.lit("kept"))
    found = selector.select_many(asked, tier)
    for row, answer in zip(found.iter_rows(named=True), listed, strict=True):
        assert row["mine"] == "kept"
        assert all(row[f"config.{name}"] == (answer.config or {}).get(name) for name in model.family.config.parameters)
        assert [row[name] for name in ("time_ns", "lower_ns", "upper_ns", "efficiency", "status", "reason")] == [
            answer.time_ns, answer.lower_ns, answer.upper_ns, answer.efficiency, answer.status, answer.reason or None,
        ]  # fmt: skip
        assert row["tier"] in (answer.tier, "memo")
    assert selector.select_many(asked.head(0), tier).columns == found.columns
    assert [len(ranking) for ranking in selector.rank_many(shapes[:3], 2, "portfolio")] == [2, 1, 2]


def test_pins_and_denials_hold_in_a_frame_as_in_a_list(model, tiers):
    """A pinned problem has its config and the reason of one that is not applied."""
    selector = Selector(model, tiers=tiers, overrides={"pin": [{"problem": SHAPE, "candidate": 1}], "deny": [0]})
    shapes = [SHAPE, {**SHAPE, "N": 384}]
    found = selector.select_many(pl.DataFrame(shapes), "full")
    for row, answer in zip(found.iter_rows(named=True), selector.select_many(shapes, "full"), strict=True):
        assert (row["config.kind"], row["time_ns"], row["reason"] or "") == (
            answer.config["kind"],
            answer.time_ns,
            answer.reason,
        )


@pytest.mark.needs("a C compiler")
def test_many_problems_are_predicted_in_compiled_code_with_the_same_answers(model, monkeypatch):
    """To the last bit, in a list and in a frame, refusals included."""
    shapes = [{**SHAPE, "M": size} for size in (16, 1000, 10**6, 4000)] + [{**SHAPE, "dtype": "bf16"}]
    interpreted, listed = Model.load(model.path).predict(pl.DataFrame(shapes)), Model.load(model.path).predict(shapes)
    monkeypatch.setattr(answerer, "WORTH_COMPILING", 1)
    monkeypatch.setattr(Candidates, "scores_of_many", None)
    again = Model.load(model.path)
    assert_frame_equal(again.predict(pl.DataFrame(shapes)), interpreted, check_exact=True)
    assert again.predict(shapes) == listed


@pytest.mark.parametrize(
    ("column", "rule"),
    [
        (pl.Series("M", [8, 0, 16]), "row 2: problem.M must be a whole number from 1 to .*, got 0 \\(1 such rows\\)"),
        (pl.Series("M", [8.0, 16.0, 2.5]), "row 3: problem.M must be a whole number, got 2.5"),
        (pl.Series("M", ["8", "2.5", "16"]).cast(pl.Decimal(9, 1)), "row 2: problem.M must be a whole number, got .*2.5"),
        (pl.Series("M", [8, None, 16]), "row 2: problem.M must be a whole number from 1 to .*, got None"),
        (pl.Series("M", [8.0, float("nan"), 16.0]), "row 2: problem.M must be a whole number from 1 to .*, got None"),
        (pl.Series("M", ["8", "many", "16"]), "row 2: problem.M must be a whole number, got 'many'"),
        (pl.Series("dtype", ["fp16", "fp16", "fp17"]), "row 3: problem.dtype must be .*got 'fp17'"),
        (pl.Series("problem.Q", [1, 2, 3]), "unknown problem parameter of gemm/triton 'Q'"),
        (pl.Series("m", [1, 2, 3]), "the column 'm' is not a parameter of gemm/triton: did you mean 'M'"),
    ],
)
def test_a_bad_row_of_a_frame_is_named(selector, column, rule):
    """The first one, by its place, the rule and the value; a column in another case is refused as in `Model.predict`."""
    frame = pl.DataFrame([SHAPE] * 3)
    frame = (frame.drop("M") if column.name == "m" else frame).with_columns(column)
    for ask in (selector.select_many, selector.model.predict):
        with pytest.raises(KerncastError, match=rule):
            ask(frame)


def test_whole_floats_and_categories_of_a_frame_are_problems(selector):
    """8.0 is 8, any kind of text is a label, an empty cell is a default; the order of columns does not matter."""
    plain = pl.DataFrame([SHAPE, {**SHAPE, "N": 384}])
    other = plain.with_columns(pl.col("M").cast(pl.Float64), pl.col("N").cast(pl.UInt16), pl.col("dtype").cast(pl.Categorical))
    other = other.with_columns(batch=pl.lit(None)).select(reversed([*SHAPE, "batch"]))
    assert_frame_equal(
        selector.select_many(other, "full").drop([*SHAPE, "batch", "tier"]),
        selector.select_many(plain, "full").drop([*SHAPE, "tier"]),
    )


@pytest.mark.needs("pandas")
def test_a_frame_of_pandas_gives_a_frame_of_pandas(selector):
    """With its own index and its own columns; NA and NaN are empty cells; answers are those of polars' frame."""
    import pandas

    shapes = [SHAPE, {**SHAPE, "M": 10**6}, {**SHAPE, "N": 384}]
    given = pandas.DataFrame(shapes, index=[7, 5, 7]).astype({"M": "float64", "dtype": "category", "N": "Int64"})
    given["batch"], given["mine"] = pandas.array([1, None, 1], dtype="Int64"), [1, "two", None]
    for ask in (selector.select_many, selector.model.predict):
        found, wanted = ask(given), ask(pl.DataFrame(shapes))
        assert found.index.tolist() == [7, 5, 7]
        assert found["mine"].tolist()[:2] == [1, "two"]
        assert found["status"].tolist() == wanted["status"].to_list() == ["ok", "out_of_range", "ok"]
        assert found["time_ns"].isna().tolist() == [False, True, False]
        assert found["time_ns"].tolist()[0] == wanted["time_ns"][0]
        assert found["config.BLOCK_M"].dropna().tolist() == wanted["config.BLOCK_M"].drop_nulls().to_list()
    twice = pandas.concat([given, given[["M"]]], axis=1)
    with pytest.raises(InvalidValue, match="two columns 'M'"):
        selector.select_many(twice)


def test_a_config_of_ones_own_is_predicted(selector, model):
    """`predict` takes any config of the family, and says so when it cannot run."""
    config = selector.select(SHAPE).config
    predicted = selector.predict(SHAPE, config)
    assert predicted.time_ns == pytest.approx(selector.select(SHAPE).time_ns, rel=1e-12)
    with pytest.raises(InvalidValue, match="name one"):
        selector.predict(SHAPE)


def test_tiers_survive_the_way_to_disk(model, tiers, tmp_path):
    """Portfolio, small forest and tree are the same after reading; a damaged file counts as none, and so does one whose tree
    compares more configs than C has room for.
    """
    write_tiers(tmp_path / "tiers.npz", tiers)
    back = read_tiers(tmp_path / "tiers.npz", model)
    assert back.portfolio == tiers.portfolio
    assert (back.forest is None) == (tiers.forest is None)
    assert back.tree.program.digest == tiers.tree.program.digest
    assert (back.tree.tree.threshold == tiers.tree.tree.threshold).all()
    assert back.digest == tiers.digest
    for wrong in (0 * tiers.tree.compares, tiers.tree.compares + 1_000, tiers.tree.compares[:-1]):
        write_tiers(tmp_path / "tiers.npz", replace(tiers, tree=replace(tiers.tree, compares=wrong)))
        assert read_tiers(tmp_path / "tiers.npz", model) is None
    (tmp_path / "tiers.npz").write_bytes(b"no longer")
    assert read_tiers(tmp_path / "tiers.npz", model) is None


@pytest.mark.needs("a C compiler")
def test_what_was_built_once_is_found_and_what_was_damaged_is_built_again(model, tmp_path, monkeypatch):
    """The second load compiles nothing; a shared object that lost its tail is replaced, never loaded."""
    monkeypatch.setenv("KERNCAST_CACHE", str(tmp_path))
    options = TierOptions(samples=100)
    Selector(model, options=options)
    before = {path: path.stat().st_mtime_ns for path in tmp_path.rglob("artefact.so")}
    stages = []

    class Heard(Progress):
        def stage(self, name, number=1, of=1):
            stages.append(name)

    Selector(model, options=options, progress=Heard())
    assert "choosing the portfolio" not in stages
    assert {path: path.stat().st_mtime_ns for path in tmp_path.rglob("artefact.so")} == before
    for path in before:
        # Beside it and renamed: the file itself is mapped into this process.
        path.with_suffix(".cut").write_bytes(path.read_bytes()[:-100])
        os.replace(path.with_suffix(".cut"), path)
    assert Selector(model, options=options).select(SHAPE).ok
    assert tiers_of(model, options).portfolio


def test_no_config_is_answered_with_where_it_was_never_tried(tmp_path):
    """A tile that the data hold for small products only is not chosen for large ones, however fast the model thinks it."""
    rows = synthetic_rows(problems=60)
    large, fast = pl.col("problem.M") >= 1024, pl.col("config.BLOCK_N") == 256
    train(
        synthetic_dataset(tmp_path / "all", rows), tmp_path / "free", Recipe("gbdt", {"trees": 20, "library_trees": 4}, folds=2)
    )
    kept = rows.filter(~(large & fast.fill_null(False)))
    train(
        synthetic_dataset(tmp_path / "some", kept),
        tmp_path / "bound",
        Recipe("gbdt", {"trees": 20, "library_trees": 4}, folds=2),
    )
    shapes = [{**SHAPE, "M": m, "N": n, "K": 4096} for m in (2048, 4096, 8192) for n in (2048, 4096, 8192)]
    chosen = {}
    for name in ("free", "bound"):
        selector = Selector(tmp_path / name, options=TierOptions(samples=100), compile=False)
        chosen[name] = [answer.config.BLOCK_N for tier in ("tree", "portfolio", "full") for answer in
                        selector.select_many(shapes, tier)]  # fmt: skip
    assert 256 in chosen["free"]
    assert 256 not in chosen["bound"]


@pytest.mark.needs("a C compiler")
@pytest.mark.parametrize("kind", ["gbdt", "mlp"])
def test_beyond_the_sizes_of_every_kernel_of_a_dtype_one_of_that_dtype_is_chosen(kind, tmp_path):
    """Not that of another dtype, however fast: in C as in Python, where nothing of the dtype was tried on such sizes."""
    rng, data = np.random.default_rng(0), Dataset.create(tmp_path / "data")
    for dtype, kernel, most, time_ns in (("bf16", "torch_flow", 512, 90.0), ("fp8", "deepgemm", 4096, 10.0)):
        sizes = {f"problem.{name}": 2 ** rng.integers(5, 13, 200) for name in "MNK"}
        told = {
            "problem.dtype": dtype,
            "problem.layout": "rcr",
            "config.kernel_source": kernel,
            "device": "h100",
            "status": "ok",
        }
        rows = pl.DataFrame(sizes).unique(maintain_order=True).filter(pl.col("problem.M") <= most)
        times = (rows["problem.M"] * time_ns).alias("time_ns")
        data.append(gemm_library, rows.with_columns(times, **{name: pl.lit(value) for name, value in told.items()}))
    model = train(data.path, tmp_path / "model", Recipe(kind, {"trees": 20} if kind == "gbdt" else {}, folds=2))
    asked = [{"M": m, "N": 256, "K": 256, "dtype": "bf16", "layout": "rcr"} for m in (64, 4096)]
    for compile in (True, False):
        selector = Selector(model, tiers=plain_tiers(model), tier="full", compile=compile)
        assert [answer.config.kernel_source for answer in selector.select_many(asked)] == ["torch_flow", "torch_flow"]
    assert [model.predict(problem).config.kernel_source for problem in asked] == ["torch_flow", "torch_flow"]


def test_an_explanation_names_features_neighbours_and_runners_up(selector):
    """Factors that multiply, measured problems nearby with what the choice took there, and what others would cost."""
    found = explain(selector, selector.select({**SHAPE, "M": 1024}, "full"))
    assert found.contributions
    assert all(item.factor > 0 for item in found.contributions)
    assert len(found.neighbours) == 3
    assert found.neighbours[0].best_ns > 0
    assert found.answer.config not in [item.config for item in found.runners_up]
    json.dumps(found.as_json())


@pytest.mark.needs("a C compiler")
def test_json_in_json_out(selector):
    """The C entry point answers what Python answers, and refuses text that is no request."""
    config = selector.select(SHAPE, "full").config
    reply = json.loads(selector.query(json.dumps({**SHAPE, "tier": "full"})))
    assert reply["config"] == {name: value for name, value in config.items() if value is not None}
    assert json.loads(selector.query("[{}]"))[0]["status"] == "bad_input"


def test_a_model_that_does_not_say_what_works_cannot_choose(model, tmp_path):
    """A foreign model has no candidates."""
    bare = Model(model.path, model.manifest, model.family, model.learner)
    bare.__dict__["candidates"] = model.candidates.head(0)
    with pytest.raises(InvalidValue, match="which configs work"):
        Selector(bare)


def test_forests_are_read_from_lightgbms_text_once(model, tiers, monkeypatch):
    """Tiers, selector, export and their sizes share what the learner has read."""
    fresh, read = Model.load(model.path), []

    def counted(text):
        read.append(text)
        return read_trees(text)

    monkeypatch.setattr("kerncast.learning.learners.gbdt.read_trees", counted)
    for include in (["portfolio"], ["tree", "portfolio", "full"]):
        assert tier_bytes(lower(fresh, tiers, include))["full"] > 0
    assert len(read) == sum(len(bag) for bag in fresh.learner.forests_.values())


def test_short_tiers_choose_nearly_as_well_as_all_candidates(model, monkeypatch):
    """The model's own favourites, a third of the candidates: their best is predicted within 2 % of the best of all."""
    monkeypatch.setattr(tier_building, "MOST", model.candidates.height // 3)
    monkeypatch.setattr(tier_building, "LIKE_MEASURED", 20)
    short = tier_building.short_tiers(model)
    assert 1 < len(short.portfolio) <= model.candidates.height // 3
    selector = Selector(model, tiers=short, tier="full", compile=False)
    problems = tier_building._measured_and_drawn(model, 10, seed=1)[1]
    shares = []
    for values in problems.rename(lambda name: name.removeprefix("problem.")).iter_rows(named=True):
        (_, some), (_, every) = (selector.scores(values, tier) for tier in ("portfolio", "full"))
        shares.append(every[np.isfinite(every)].min() / some[np.isfinite(some)].min())
    assert np.mean(shares) > 0.98
