"""Whether what is chosen can run, and how much the tree answers itself: `python benchmarks/trust_runs.py`.

1. Every family with something to choose, on made-up measurements: aligned and unaligned problems; configs that break a rule
   fail, and some fail although they obey every rule. Each tier is asked about random problems, from C. A choice cannot run
   if it breaks a constraint of the family or if the model itself expects it to fail.
2. CK Tile GEMM kernels on gfx950, times from the formula of select_latency.py. A model learns from successes alone, once from
   aligned shapes and once from mixed ones, and is asked about mixed shapes in its range. The loss of the tree is that of its
   own answers against the full tier's, by the formula.

No data of others are used.
"""

from __future__ import annotations

import os

os.environ.setdefault("OMP_NUM_THREADS", "1")

import sys
import tempfile
from pathlib import Path

import numpy as np
import polars as pl
from reporting import Benchmark, Row, Target, finish, script_parser
from select_latency import formula_ns, timed
from tests.support.runnable import made_up_dataset, made_up_rows, obeys, random_problems, unrunnable

import kerncast
from kerncast.answering.selector import Selector
from kerncast.core.op import Family, Problem
from kerncast.data import Dataset, schema
from kerncast.library import devices
from kerncast.library.registry import FAMILIES
from kerncast.models.answer import CHOOSING as TIERS
from kerncast.models.answer import Answer, Tier
from kerncast.native.tiers.build import TierOptions
from kerncast.training.procedure import Recipe
from kerncast.training.train import train

BENCHMARK = Benchmark(
    __file__,
    "Choosing kernels, on made-up measurements",
    "Choices that can run",
    note="Made-up measurements: this measures whether choices obey the rules, not how fast the kernels are.",
)
ANSWERS, PROBLEMS, CONFIGS = 100_000, 60, 60
CK_PROBLEMS, CK_CONFIGS, CK_ASKED, SMALLEST = 200, 300, 2_000, 64
MIXED, ALIGNED = (1, 2, 8, 16, 64, 128, 256), (64, 128, 256)


def asked(family: Family, count: int, smallest: int = 1) -> list[Problem]:
    names, drawn = list(family.problem.parameters), random_problems(family, count, 1, smallest=smallest)
    return [Problem.trusted(family, dict(zip(names, row, strict=True))) for row in drawn.rows()]


def every_family(folder: Path) -> list[Row]:
    families = [family for family in FAMILIES if family.config.parameters]
    each, total, wrong, refused = -(-ANSWERS // (len(families) * len(TIERS))), 0, 0, 0
    for family in families:
        rows = made_up_rows(family, random_problems(family, PROBLEMS), CONFIGS)
        place = folder / family.id.replace("/", "_")
        recipe = Recipe("gbdt", {"trees": 20, "leaves": 15}, folds=2, threads=1)
        model = train(made_up_dataset(place / "data", family, rows), place / "model", recipe)
        selector, problems, line = Selector(model, options=TierOptions(samples=300)), asked(family, each), []
        for tier in TIERS:
            # Fewer problems than wanted are asked again: a memo must not answer otherwise either.
            answers = [answer for start in range(0, each, len(problems))
                       for answer in selector.select_many(problems[: each - start], tier)]  # fmt: skip
            bad = int(unrunnable(model, answers).sum())
            total, wrong, refused = total + len(answers), wrong + bad, refused + sum(a.config is None for a in answers)
            line.append(f"{tier} {bad} of {len(answers):,}")
        print(f"  {family.id}: {', '.join(line)} cannot run", flush=True)
    note = f"{total - refused:,} answers had a config; the others were out of range or had no config that can run"
    what = f"choices that cannot run, all tiers of {len(families)} families"
    return [Row(what, wrong, "", Target(high=0), n=f"{total:,} answers", note=note)]


def ck_model(folder: Path, name: str, multiples: tuple[int, ...]) -> kerncast.Model:
    family, device = FAMILIES.get("gemm/ck_tile"), devices.get("gfx950")
    problems = random_problems(family, CK_PROBLEMS, multiples=multiples, smallest=SMALLEST)
    pool = family.config.sample(CK_CONFIGS, 0, family.bindings({"dtype": "fp32"}, device))
    vectors = problems.join(pool.rename(lambda item: f"config.{item}"), how="cross", maintain_order="left_right")
    vectors = vectors.filter(pl.Series(obeys(family, vectors, device)))
    place = folder / name
    Dataset.create(place / "data").append(family, timed(vectors, family, device, np.random.default_rng(0)))
    return train(place / "data", place / "model", Recipe("gbdt", threads=1, folds=2))


def chosen_ns(model: kerncast.Model, answers: list[Answer]) -> np.ndarray:
    """The time of each answer's config by the formula; NaN without a config."""
    found = np.full(len(answers), np.nan)
    found[[answer.config is not None for answer in answers]] = formula_ns(chosen(model, answers), model.family, model.device)
    return found


def chosen(model: kerncast.Model, answers: list[Answer]) -> pl.DataFrame:
    """The problem and config of each answer that has one."""
    kinds, columns = schema.schema_of(model.family), schema.parameter_columns(model.family)
    rows = [(*answer.problem.values(), *answer.config.values()) for answer in answers if answer.config is not None]
    return pl.DataFrame(rows, schema={name: kinds[name] for name in columns}, orient="row")


def ck_like(folder: Path) -> list[Row]:
    rows = []
    for name, multiples in (("aligned", ALIGNED), ("mixed", MIXED)):
        model = ck_model(folder, name, multiples)
        selector, problems = Selector(model), asked(model.family, CK_ASKED, SMALLEST)
        inside = [problem for problem in problems if selector.select(problem).tier is not None]
        answers = {tier: selector.select_many(inside, tier) for tier in TIERS}
        wrong = sum(int((~runs(model, given)).sum()) for given in answers.values())
        # In range by each size, and like the measured shapes in what those have in common.
        like = np.array([answer.ok for answer in answers[Tier.FULL]])
        tree = np.array([answer.tier is Tier.TREE for answer in answers[Tier.TREE]])
        times = {tier: chosen_ns(model, given) for tier, given in answers.items()}
        kept = {tier: times[Tier.FULL] / took for tier, took in times.items()}
        loss = {tier: 100 * float(1.0 - share[tree & like].mean()) for tier, share in kept.items()}
        share, note = 100 * float((tree & like).sum() / like.sum()), ""
        if not like.all():
            others = tree & ~like
            note = f"{1 - like.mean():.0%} of the shapes are out_of_range, unlike those: the tree answers "
            note += f"{others.sum() / (~like).sum():.0%} of them itself and loses {1 - kept[Tier.TREE][others].mean():.2%}"
        latency, other = (float(np.median(selector.latencies_us(inside[:300], tier))) for tier in (Tier.TREE, Tier.PORTFOLIO))
        print(
            f"  {name}: the tree answers {share:.1f} %, loses {loss[Tier.TREE]:.2f} %, p50 {latency:.2f} µs; {note}", flush=True
        )
        n = f"{len(inside):,} mixed shapes in range, {like.sum():,} of them like the trained ones"
        split = f"trained on {CK_PROBLEMS} {name} shapes, successes only"
        title, beside = f"CK-like, {name}:", f"the portfolio on the same problems {loss[Tier.PORTFOLIO]:.2f} %"
        rows += [
            Row(f"{title} choices of all tiers that break a constraint", wrong, "", Target(high=0), "", n, split, note=note),
            Row(f"{title} problems that the tree answers itself", share, "%", Target(low=90), "", n, split),
            Row(f"{title} the portfolio's p50 ÷ the tree's", other / latency, "×", None, f"tree {latency:.2f} µs", n, split),
            Row(f"{title} speed lost by the tree's answers", loss[Tier.TREE], "%", Target(high=0.3), beside, n, split),
        ]  # fmt: skip
    return rows


def runs(model: kerncast.Model, answers: list[Answer]) -> np.ndarray:
    """Which answers obey every constraint on the model's device."""
    return obeys(model.family, chosen(model, answers), model.device)


if __name__ == "__main__":
    given = script_parser(__doc__).parse_args()
    with tempfile.TemporaryDirectory() as scratch:
        stated = [*ck_like(Path(scratch)), *every_family(Path(scratch))]
    sys.exit(finish(BENCHMARK, stated, given.json))
