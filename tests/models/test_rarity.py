"""How unlike the measured problems a problem is, and the intervals that follow from it, the same in Python and in C."""

import numpy as np
import polars as pl
import pytest

from kerncast.answering.selector import Selector
from kerncast.library.registry import FAMILIES
from kerncast.models.limits.widening import ProblemTraits
from kerncast.models.model import Model
from kerncast.native.tiers.build import TierOptions
from kerncast.testing.models import SIZES, synthetic_dataset, synthetic_rows
from kerncast.training.train import Recipe, train

FAMILY = FAMILIES.get("gemm/triton")


def problems(**columns):
    """Problems of `gemm/triton` as stored; what is not given is usual."""
    count = len(next(iter(columns.values())))
    usual = {name: parameter.default for name, parameter in FAMILY.problem.parameters.items()}
    usual |= {"M": 1024, "N": 1024, "K": 1024, "dtype": "fp16", "layout": "rcr"}
    return pl.DataFrame({f"problem.{name}": columns.get(name, [value] * count) for name, value in usual.items()})


def test_a_problem_is_rare_by_its_alignment_sizes_ratios_and_labels():
    """Each trait that few measured problems have adds bits; one that none has adds the most."""
    sizes = [128 * (1 + n % 13) for n in range(200)]
    measured = problems(M=sizes, N=sizes[::-1], K=[64, *sizes[1:]], layout=["rrr", *["rcr"] * 199])
    traits = ProblemTraits.of(FAMILY, measured)
    asked = problems(
        M=[1024, 1024, 1024, 1000, 8192], K=[1024, 1024, 64, 1023, 1024], layout=["rcr", "rrr", "rcr", "rcr", "rcr"]
    )
    usual, label, seldom, unaligned, large = traits.rarity(FAMILY, asked)
    assert usual < min(label, seldom, unaligned, large)
    assert label == usual + np.log2(200 / 2)
    by_name = {(trait.what, *trait.of): trait for trait in traits.traits}
    assert by_name["alignment", "K"].values == (6, 7)
    assert by_name["alignment", "K"].unseen == np.log2(200)
    assert ("octave", "batch") not in by_name


@pytest.fixture(scope="module")
def model(tmp_path_factory):
    """Trained on enough problems to hold out whole kinds of them."""
    folder = tmp_path_factory.mktemp("rarity")
    recipe = Recipe("gbdt", {"trees": 15, "library_trees": 4, "leaves": 15, "lr": 0.3}, folds=2, threads=1)
    return train(synthetic_dataset(folder / "d", synthetic_rows(problems=120)), folder / "m", recipe)


def test_training_holds_out_kinds_of_problems_and_says_how_it_did(model):
    """A line per kind, and an interval that widens."""
    lines = {line["kind"]: line for line in model.evaluation["off_grid"]}
    assert set(lines) == {"alignment", "size", "aspect"}
    assert lines["alignment"]["held_out"] == "M, N or K not a multiple of 128"
    odd = [size for size in SIZES if size % 128]
    stored = model.out_of_fold.select("problem.M", "problem.N", "problem.K").unique()
    assert lines["alignment"]["n_problems"] == stored.filter(pl.any_horizontal(pl.all().is_in(odd))).height
    for line in lines.values():
        assert 0.5 < line["efficiency_mean"]["value"] <= 1.0
    widening = model.manifest.interval.widening
    assert len(widening.lower) == len(widening.edges_bits) + 1 > 1
    assert all(np.diff(np.array(widening.upper), axis=0).ravel() >= 0)
    assert Model.load(model.path).manifest == model.manifest


def test_intervals_are_the_same_in_c_python_and_frames(model):
    """To the last bit, on problems of all alignments; the rarest has another interval than the most usual."""
    rng = np.random.default_rng(1)
    sizes = {name: np.where(rng.random(60) < 0.5, rng.choice(SIZES, 60), rng.integers(128, 8192, 60)) for name in "MNK"}
    # None of its sizes is unusual, but all of them together are: smaller and larger than all measured problems.
    sizes = {name: np.r_[values, min(SIZES), max(SIZES)] for name, values in sizes.items()}
    asked = [{**{name: int(values[n]) for name, values in sizes.items()}, "dtype": "fp16", "layout": "rcr"} for n in range(62)]
    beyond = model.manifest.interval.beyond
    bands = beyond.bands(model.envelope.sizes_of(problems(**{name: values.tolist() for name, values in sizes.items()})))
    assert bands.min() < beyond.smaller < bands.max()
    assert beyond.smaller in bands
    fast = Selector(model, options=TierOptions(samples=100))
    slow = Selector(model, compile=False, tiers=fast.tiers)
    assert fast.is_compiled
    ratios = set()
    for problem in asked:
        for tier in ("portfolio", "full"):
            ours, theirs = fast.select(problem, tier), slow.select(problem, tier)
            assert (ours.config, ours.time_ns, ours.lower_ns, ours.upper_ns) == (
                theirs.config, theirs.time_ns, theirs.lower_ns, theirs.upper_ns,
            )  # fmt: skip
        again = fast.select_many([problem], "full")[0]
        assert (again.lower_ns, again.upper_ns) == (ours.lower_ns, ours.upper_ns)
        one = model.predict(problem, ours.config)
        assert (one.lower_ns, one.upper_ns) == (ours.lower_ns, ours.upper_ns)
        ratios.add(round(ours.upper_ns / ours.time_ns, 9))
    framed = model.predict(pl.DataFrame(asked), ours.config)
    assert framed["upper_ns"][-1] == one.upper_ns
    assert len(ratios) > len(model.manifest.interval.upper)
