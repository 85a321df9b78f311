"""A tree without another tier: small, the same answers in Python and C, and nothing in its leaves that fails."""

import subprocess
from dataclasses import replace

import numpy as np
import pytest
from tests.support.runnable import made_up_dataset, made_up_rows, random_problems, unrunnable

from kerncast.answering.exporters.project import write_project
from kerncast.answering.selector import Selector
from kerncast.core.op import Problem
from kerncast.errors import InvalidValue
from kerncast.library.registry import FAMILIES
from kerncast.models.answer import Answered
from kerncast.native.lower import lower
from kerncast.native.tiers.build import TierOptions, build_tiers, tiers_named, tiers_of
from kerncast.native.tiers.distill import Evidence, examples_of
from kerncast.testing.exported import COMPILERS, STRICT
from kerncast.testing.models import synthetic_dataset, synthetic_rows
from kerncast.training.procedure import Recipe
from kerncast.training.train import train

OPTIONS = TierOptions(samples=400)


@pytest.fixture(scope="module")
def model(tmp_path_factory):
    """Some configs fail although they obey every constraint."""
    folder, family = tmp_path_factory.mktemp("alone"), FAMILIES.get("gemm/ck_tile")
    rows = made_up_rows(family, random_problems(family, 40), 48)
    recipe = Recipe("gbdt", {"trees": 8, "library_trees": 4, "leaves": 7}, folds=2, threads=1)
    return train(made_up_dataset(folder / "data", family, rows), folder / "model", recipe)


def asked(model, count, seed=1):
    names = list(model.family.problem.parameters)
    rows = random_problems(model.family, count, seed).rows()
    return [Problem.trusted(model.family, dict(zip(names, row, strict=True))) for row in rows]


@pytest.mark.needs("a C compiler")
def test_compiled_and_interpreted_answers_are_the_same(model):
    """Status, config, fallback, reason and ranking; also with a mask and a pin; where it is unsure there is a fallback."""
    compiled, slow = (Selector(model, tiers="tree", options=OPTIONS, compile=each) for each in (True, False))
    problems = asked(model, 60)
    number = {config: row for row, config in enumerate(slow.configs)}
    chosen = next(answer for answer in slow.select_many(problems) if answer.ok)
    pin = {"problem": {"M": problems[3]["M"]}, "candidate": int(slow.artefact.stored[0])}
    seen = set()
    for overrides in (None, {"deny": [number[chosen.config]], "pin": [pin]}):
        compiled.override(overrides)
        slow.override(overrides)
        for problem, one in zip(problems, compiled.select_many(problems), strict=True):
            other = slow.select(problem)
            assert one == other
            assert compiled.rank(problem, 3) == slow.rank(problem, 3)
            assert one.time_ns is None
            seen.add((one.status, one.fallback is not None))
    assert {(Answered.OK, False), (Answered.UNSURE, True)} <= seen
    assert compiled.query('{"M": 1}') == slow.query('{"M": 1}')


def test_no_leaf_lists_a_config_that_fails_on_a_problem_of_the_leaf(model):
    """By measurement or by the model; so on other problems hardly a choice is expected to fail, and none breaks a rule."""
    tiers = tiers_of(model, replace(OPTIONS, alone=True))
    selector = Selector(model, tiers="tree", options=OPTIONS, compile=False)
    evidence, tree = Evidence.of(model), tiers.tree
    interpreter, rows = selector._python.candidates, np.array(tiers.portfolio)

    def score(problems):
        return interpreter.scores_of_many(problems, rows)[0]

    def allowed(problems):
        return interpreter.rules_of_many(problems, rows)

    examples = examples_of(evidence, tiers.portfolio, score, 400, np.random.default_rng(0), allowed)
    assert examples.fails.any()
    names = [name.removeprefix("problem.") for name in examples.problems.columns]
    for row, fails in zip(examples.problems.iter_rows(), examples.fails, strict=True):
        places, most = tree.decide(model.family.problem.qualified(dict(zip(names, row, strict=True))))
        assert most == 1
        assert not fails[places].any()
    answers = [answer for answer in selector.select_many(asked(model, 150, seed=9)) if answer.config is not None]
    assert unrunnable(model, answers).mean() <= 0.02


@pytest.mark.needs("a C compiler")
@pytest.mark.parametrize("tiers", ["tree", "tree,portfolio", "full"])
def test_an_export_has_the_code_and_the_tables_of_its_tiers_and_no_others(model, tiers, tmp_path):
    """By the symbols of the object; the self-test passes; a tree alone stays below 100 KB."""
    out = tmp_path / "c"
    artefact = lower(model, *tiers_named(model, tiers, OPTIONS))
    write_project(artefact, out, "picker")
    source, self_test, binary = str(out / "picker.c"), str(out / "selftest.c"), str(out / "picker.o")
    subprocess.run([COMPILERS[0], *STRICT, "-O1", "-c", source, "-o", binary], check=True)
    done = subprocess.run(["nm", "--defined-only", "--format=posix", binary], check=True, capture_output=True, text=True)
    symbols = " ".join(line.split()[0] for line in done.stdout.splitlines())
    parts = {"tree": "kc_tree_", "portfolio": "kc_portfolio_", "full": "kc_full_"}
    for tier, start in parts.items():
        assert (start in symbols) == (tier in tiers.split(",")), (tier, symbols)
    assert ("kc_model_nodes" in symbols) == (tiers != "tree")
    assert (len(artefact.stored) == model.candidates.height) == ("full" in tiers)
    if tiers == "tree":
        sizes = subprocess.run(["size", binary], check=True, capture_output=True, text=True).stdout.splitlines()[1].split()
        assert sum(map(int, sizes[:3])) <= 100_000
    program = str(tmp_path / "selftest")
    subprocess.run([COMPILERS[0], *STRICT, self_test, binary, "-o", program, "-lm"], check=True)
    assert " 0 differences" in subprocess.run([program], capture_output=True, text=True).stdout


def test_what_a_tree_alone_cannot_do_is_refused_by_name(model, tmp_path):
    """Another tier, scores, a pin to a kernel that it does not hold; a tree of nothing, or one that needs the portfolio."""
    selector = Selector(model, tiers=("tree",), options=OPTIONS, compile=False)
    problem = asked(model, 1)[0]
    with pytest.raises(InvalidValue, match="has the tiers tree, and 'full' was asked for"):
        selector.select(problem, "full")
    with pytest.raises(InvalidValue, match="has no scores"):
        selector.scores(problem)
    absent = int(np.setdiff1d(np.arange(model.candidates.height), selector.artefact.stored)[0])
    with pytest.raises(InvalidValue, match=f"the pinned candidate {absent} is in no tier"):
        selector.override({"pin": [{"problem": {}, "candidate": absent}]})
    with pytest.raises(InvalidValue, match=r"alone=True"):
        lower(model, build_tiers(model, TierOptions(samples=50)), ["tree"])
    with pytest.raises(InvalidValue, match="`tiers` are tree, portfolio, full"):
        Selector(model, tiers="tree,bush", compile=False)


def test_a_single_config_is_a_tree_of_one_leaf(tmp_path):
    """It answers where the config may run."""
    rows = synthetic_rows(problems=24, tiles=[(64, 64, 32, 3, 4)])
    rows = rows.filter(rows["config.kind"] == "triton")
    model = train(synthetic_dataset(tmp_path / "d", rows), tmp_path / "m", Recipe("roofline", folds=2))
    selector = Selector(model, tiers="tree", options=OPTIONS, compile=False)
    answer = selector.select({"M": 256, "N": 256, "K": 256, "dtype": "fp16", "layout": "rcr"})
    assert (answer.status, answer.tier) == ("ok", "tree")
