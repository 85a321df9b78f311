"""What is chosen can run: constraints and failures in every tier, in Python and in C; facts about the measured problems."""

import json

import numpy as np
import polars as pl
import pytest
from tests.support.runnable import made_up_dataset, made_up_rows, random_problems, unrunnable

from kerncast.answering.selector import Selector
from kerncast.core.op import Problem
from kerncast.errors import InvalidValue
from kerncast.library.registry import FAMILIES
from kerncast.models.answer import CHOOSING as TIERS
from kerncast.models.answer import Answered
from kerncast.models.model import Model
from kerncast.native.overrides import decide
from kerncast.native.tiers.build import TierOptions
from kerncast.training.procedure import Recipe
from kerncast.training.train import train

SMALL = Recipe("gbdt", {"trees": 8, "library_trees": 4, "leaves": 7}, folds=2, threads=1)


def trained(folder, family, problems=24, configs=32, **more):
    chosen = {name: more.pop(name) for name in ("multiples", "seed") if name in more}
    rows = made_up_rows(family, random_problems(family, problems, **chosen), configs, **more)
    return train(made_up_dataset(folder / "data", family, rows), folder / "model", SMALL)


def asked(family, count, seed=1):
    names = list(family.problem.parameters)
    return [Problem.trusted(family, dict(zip(names, row, strict=True))) for row in random_problems(family, count, seed).rows()]


@pytest.mark.parametrize("name", ["gemm/cutlass", "gemm/cpu", "mixed_mm/triton", "grouped_conv_bwd_weight/ck_tile"])
def test_no_tier_chooses_what_breaks_a_constraint_or_is_expected_to_fail(name, tmp_path):
    """Random problems, aligned and not; some configs fail although they obey every constraint. All families: trust_runs.py."""
    family = FAMILIES.get(name)
    model = trained(tmp_path, family)
    selector = Selector(model, compile=False, options=TierOptions(samples=60))
    for tier in TIERS:
        answers = [selector.select(problem, tier) for problem in asked(family, 5)]
        assert not unrunnable(model, answers).any()


@pytest.mark.needs("a C compiler")
@pytest.mark.parametrize("name", ["gemm/ck_tile", "gemm/opencl"])
def test_c_and_python_agree_on_what_cannot_run(name, tmp_path):
    """Every tier: the same status, tier and config; none of a thousand choices breaks a rule; the tree answers most itself."""
    model = trained(tmp_path, FAMILIES.get(name), problems=40)
    assert model.manifest.size["valid_trees"] > 0
    options = TierOptions(samples=200)
    compiled, interpreted = Selector(model, options=options), Selector(model, options=options, compile=False)
    problems = asked(model.family, 1000)
    for tier in TIERS:
        answers = compiled.select_many(problems, tier)
        assert not unrunnable(model, answers).any()
        for one, other in zip(answers[:12], (interpreted.select(problem, tier) for problem in problems), strict=False):
            assert (one.status, one.tier, one.config, one.fallback) == (other.status, other.tier, other.config, other.fallback)


def test_rows_that_worked_against_a_constraint_abolish_it_only_if_they_are_many(tmp_path):
    """Half of the attempts and at least twenty: then the model chooses such configs; three wrong rows change nothing."""
    family = FAMILIES.get("gemm/ck_tile")
    rows = made_up_rows(family, random_problems(family, 30), 40, fails=0.0)
    breaks = (pl.col("problem.N") % pl.col("config.tile_n") != 0) & ~pl.col("config.pad_n")
    worked = rows.with_columns(status=pl.lit("ok"), time_ns=pl.col("time_ns").fill_null(1e5))
    few = rows.filter(breaks).height // 200 + 3
    for name, count in (("few", few), ("many", rows.height)):
        wrong = pl.int_range(pl.len()).over(breaks) < count
        mixed = pl.concat([worked.filter(breaks & wrong), rows.filter(~(breaks & wrong))])
        model = train(made_up_dataset(tmp_path / f"{name}_data", family, mixed), tmp_path / name, SMALL)
        assert ("padding_n" in model.manifest.contradicted) == (name == "many")
        said = [note for note in model.notes if "without pad_n" in note]
        assert len(said) == 1
        assert ("does not apply" in said[0]) == (name == "many")
        # A pin obeys the rules that the model obeys: one that was abolished refuses none.
        tight = next(row for row in model.candidates.iter_rows(named=True) if not row["config.pad_n"] and row["config.pad_k"])
        whole = next(
            row for row in mixed.filter(breaks).iter_rows(named=True)
            if all(row[column] == value for column, value in tight.items() if column.startswith("config."))
        )  # fmt: skip
        pin = {
            "problem": {"N": whole["problem.N"]},
            "config": {key[7:]: value for key, value in tight.items() if key.startswith("config.") and value is not None},
        }
        if name == "many":
            assert len(decide(model, {"pin": [pin]}).pinned) == 1
        else:
            with pytest.raises(InvalidValue, match="its kernel cannot run them"):
                decide(model, {"pin": [pin]})


@pytest.fixture(scope="module")
def aligned(tmp_path_factory):
    """A model of shapes whose M, N and K are multiples of 16, from successes only."""
    folder, family = tmp_path_factory.mktemp("aligned"), FAMILIES.get("gemm/ck_tile")
    return trained(folder, family, problems=80, configs=12, multiples=(16, 48), fails=0.0, successes_only=True)


def test_training_says_what_was_never_measured(aligned):
    """No failure, aligned sizes only: a warning each, which names the parameter and how to measure the rest."""
    assert any(note.startswith("! no row failed") for note in aligned.notes)
    for name in ("N", "K"):
        assert any(f"{name} was always a multiple of 16" in note and "--problems edge" in note for note in aligned.notes)
    assert "multiples of 16 only" in (aligned.path / "MODEL_CARD.md").read_text()


@pytest.mark.needs("a C compiler")
def test_a_problem_unlike_all_measured_ones_has_a_choice_and_says_so(aligned):
    """`out_of_range` with config, time and tier from select, rank, predict and JSON, by C and by Python alike."""
    size = {name: aligned.manifest.hull[name].high // 32 * 16 for name in "MNK"}
    problem = {**size, "N": size["N"] + 8, "dtype": "fp16", "layout": aligned.manifest.hull["layout"].labels[0]}
    problem["dtype"] = aligned.manifest.hull["dtype"].labels[0]
    options = TierOptions(samples=60)
    compiled, interpreted = Selector(aligned, options=options), Selector(aligned, options=options, compile=False)
    for tier in TIERS:
        answer = compiled.select(problem, tier)
        other = interpreted.select(problem, tier)
        assert (answer.tier, answer.config, answer.reason) == (other.tier, other.config, other.reason)
        assert answer.status is Answered.OUT_OF_RANGE
        assert answer.outside.parameter == "N"
        assert answer.reason.startswith("N was trained with multiples of 16 only")
        assert answer.config.pad_n
        assert not unrunnable(aligned, [answer]).any()
    assert [item.status for item in compiled.rank(problem, 2)] == [Answered.OUT_OF_RANGE] * 2
    ours, theirs = (json.loads(each.query(json.dumps(problem))) for each in (compiled, interpreted))
    assert (list(ours), ours["config"], ours["message"]) == (list(theirs), theirs["config"], theirs["message"])
    assert ours["time_ns"] == pytest.approx(theirs["time_ns"], rel=1e-12)
    predicted = aligned.predict(problem)
    assert (predicted.status, predicted.config) == (Answered.OUT_OF_RANGE, compiled.select(problem, "full").config)
    frame = aligned.predict(pl.DataFrame([problem, {**problem, "N": size["N"]}]))
    assert frame["status"].to_list() == ["out_of_range", "ok"]
    assert frame["time_ns"].null_count() == 0


def test_a_few_aligned_problems_are_no_fact_and_a_warm_start_forgets_what_is_no_longer_true(aligned, tmp_path):
    """Fewer than twenty values say nothing; unaligned new problems take the fact away, and aligned ones keep it."""
    family = aligned.family
    few = trained(tmp_path / "few", family, problems=12, configs=12, multiples=(64,))
    assert few.manifest.facts == {}
    for multiples, kept in (((16,), True), ((1,), False)):
        rows = made_up_rows(family, random_problems(family, 12, seed=5, multiples=multiples), 12, seed=0)
        folder = tmp_path / str(kept)
        model = train(made_up_dataset(folder / "data", family, rows), folder / "model", warm_start=aligned)
        assert ("N" in Model.load(model.path).manifest.facts) == kept
        assert np.isin(list(model.manifest.facts), list(aligned.manifest.facts)).all()
