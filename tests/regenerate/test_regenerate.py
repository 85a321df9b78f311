"""Regeneration: every stage once, from wherever it stopped; nothing worse gets into the store."""

import json
from contextlib import nullcontext
from pathlib import Path

import polars as pl
import pytest

from kerncast.data import Dataset
from kerncast.errors import BadFile, InvalidValue, NotFound
from kerncast.models import Model, train
from kerncast.models import Recipe as Training
from kerncast.models.store import Store
from kerncast.regenerate import load, regenerate, shipped
from kerncast.regenerate.comparing import OutOfFold
from kerncast.regenerate.state import STAGES
from kerncast.registry import FAMILIES
from kerncast.testing.backends import Quiet
from kerncast.testing.models import synthetic_dataset, synthetic_rows

TINY = """
name = "tiny"
families = ["gemm/triton"]
[sweep]
problems = ["lognormal:24;M=16:512;N=16:512;K=16:512"]
vary = ["dtype=fp16", "layout=rcr"]
configs = "sample:16"
[collect]
backend = "kerncast.testing.backends:Analytic"
samples = 2
[train]
folds = 2
threads = 1
knobs = { trees = 12, leaves = 7, lr = 0.3 }
"""


class Watched:
    """Shows nothing; remembers the stages, and may stop at one as a killed process does."""

    def __init__(self, stop_at=None):
        self.stop_at, self.stages = stop_at, []

    def stage(self, family, stage, already):
        self.stages.append((stage, already))
        if stage == self.stop_at and not already:
            raise KeyboardInterrupt

    def sweeping(self):
        return nullcontext(lambda vectors: None)

    def collecting(self, total):
        return nullcontext(Quiet())

    def training(self):
        return nullcontext()


@pytest.fixture
def recipe(tmp_path):
    (tmp_path / "tiny.toml").write_text(TINY)
    return str(tmp_path / "tiny.toml")


@pytest.fixture(scope="module")
def reference(tmp_path_factory):
    """One uninterrupted run: its work directory and its store."""
    folder = tmp_path_factory.mktemp("reference")
    (folder / "tiny.toml").write_text(TINY)
    (outcome,) = regenerate(load(str(folder / "tiny.toml")), Store.open(folder / "store"), folder / "work", Watched())
    return folder, outcome


def test_a_new_model_gets_into_the_store_with_its_origin(reference):
    """Host, version, date and recipe are recorded, in the work directory and in the store."""
    folder, outcome = reference
    assert (outcome.verdict, outcome.replaced) == ("NEW", True)
    (entry,) = Store.open(folder / "store").entries()
    assert entry.id == outcome.model
    state = json.loads((folder / "work" / "state.json").read_text())
    assert set(entry.record.origin) == {"recipe", "host", "regenerated", "kerncast", "verdict"}
    assert entry.record.origin["host"] == state["host"]
    assert list(state["done"]["gemm/triton"]) == list(STAGES)
    assert state["done"]["gemm/triton"]["collect"]["facts"]["device"] == entry.device
    assert state["done"]["gemm/triton"]["train"]["facts"]["software"] == list(entry.software)


@pytest.mark.parametrize("stage", STAGES[1:])
def test_a_run_that_was_stopped_goes_on_and_ends_the_same(recipe, reference, tmp_path, stage):
    """Whatever is done is not done again, and the model is the same."""
    store = Store.open(tmp_path / "store")
    with pytest.raises(KeyboardInterrupt):
        regenerate(load(recipe), store, tmp_path / "work", Watched(stage))
    assert store.entries() == []
    shown = Watched()
    (outcome,) = regenerate(load(recipe), store, tmp_path / "work", shown)
    assert [name for name, already in shown.stages if already] == list(STAGES[: STAGES.index(stage)])
    assert outcome.replaced
    before, after = (
        Model.load(folder / "work" / "gemm-triton" / "model").manifest.files for folder in (reference[0], tmp_path)
    )
    assert before["predictions.parquet"] == after["predictions.parquet"]
    assert before["time.0.lgbm.gz"] == after["time.0.lgbm.gz"]


def test_a_half_measured_collection_goes_on(recipe, reference, tmp_path, monkeypatch):
    """A stop in the middle of measuring is an unfinished outcome; every row is measured once."""
    from kerncast.regenerate import run as stages

    real = stages.Request
    monkeypatch.setattr(stages, "Request", lambda *args, **options: real(*args, **options, budget_seconds=0.0, chunk_size=8))
    (outcome,) = regenerate(load(recipe), Store.open(tmp_path / "store"), tmp_path / "work", Watched())
    assert not outcome.finished
    assert outcome.reasons == ["stopped while it was busy with collect"]
    monkeypatch.undo()
    (outcome,) = regenerate(load(recipe), Store.open(tmp_path / "store"), tmp_path / "work", Watched())
    assert outcome.finished
    rows, before = (Dataset.open(folder / "work" / "gemm-triton" / "dataset").read() for folder in (tmp_path, reference[0]))
    assert rows.height == before.height == rows["key"].n_unique()


def test_the_same_again_is_the_same_and_a_finished_run_is_kept(recipe, tmp_path):
    """Without --again nothing is done twice; with it the old work directory is renamed."""
    store = Store.open(tmp_path / "store")
    regenerate(load(recipe), store, tmp_path / "work", Watched())
    (first,) = store.entries()
    shown = Watched()
    regenerate(load(recipe), store, tmp_path / "work", shown)
    assert all(already for _, already in shown.stages)
    assert store.entries() == [first]
    (outcome,) = regenerate(load(recipe), store, tmp_path / "work", Watched(), again=True)
    assert (outcome.verdict, outcome.replaced) == ("SAME", True)
    (second,) = store.entries()
    assert (second.id, second.path == first.path) == (first.id, False)
    assert len(list(tmp_path.glob("work.*"))) == 1
    comparison = json.loads((tmp_path / "work" / "gemm-triton" / "comparison.json").read_text())
    assert (comparison["n_problems"], comparison["problems_seen_in_training"]) == (24, 0)


def test_a_worse_model_stays_out_of_the_store(recipe, tmp_path, run):
    """Exit code 1, the store as it was, and the way to overrule it."""
    store = tmp_path / "store"
    assert run("regenerate", recipe, "--store", store, "--out", tmp_path / "good")[0] == 0
    (before,) = Store.open(store).entries()
    poor = ["--set", "train.knobs={trees = 1, leaves = 2}"]
    code, out, _ = run("regenerate", recipe, "--store", store, "--out", tmp_path / "poor", *poor)
    assert code == 1
    assert "WORSE" in out
    assert f"kerncast models add {tmp_path / 'poor' / 'gemm-triton' / 'model'} --replace" in out
    assert Store.open(store).entries() == [before]
    # The old one cannot be read any more: anything that can is better.
    (before.path / "candidates.parquet").unlink()
    code, out, _ = run("regenerate", recipe, "--store", store, "--out", tmp_path / "again", *poor, "--json")
    (family,) = json.loads(out)["families"]
    assert (code, family["verdict"], family["replaced"]) == (0, "OLD UNREADABLE", True)


def test_a_dry_run_writes_nothing(recipe, tmp_path, run):
    """What would be measured, and what it would be compared with."""
    code, out, _ = run("regenerate", recipe, "--store", tmp_path / "store", "--out", tmp_path / "work", "--dry-run", "--json")
    assert code == 0
    (planned,) = json.loads(out)
    assert (planned["problems"], planned["vectors"], planned["old"]) == (24, 24 * 16, None)
    assert {item.name for item in tmp_path.iterdir()} == {"tiny.toml"}
    code, out, _ = run("regenerate", recipe, "--set", "sweep.max_problems=5", "--dry-run", "--json")
    assert json.loads(out)[0]["vectors"] == 5 * 16


def test_predictions_are_out_of_fold_where_the_problem_was_seen(tmp_path):
    """Known vectors get what was said of them without having seen them, new problems the model's own word, the rest nothing."""
    rows = synthetic_rows(problems=12)
    shapes = rows.select("problem.M", "problem.N", "problem.K").unique(maintain_order=True)
    seen = rows.join(shapes[:8], on=shapes.columns, how="semi")
    # Of seen problems, one config was never tried.
    tried = seen.filter(pl.col("config.BLOCK_M").fill_null(0) != seen["config.BLOCK_M"].drop_nulls()[0])
    synthetic_dataset(tmp_path / "d", tried)
    model = train(tmp_path / "d", tmp_path / "m", Training("gbdt", {"trees": 8, "leaves": 7}, folds=2, threads=1))
    view = OutOfFold(model)
    fair = view.fair(rows)
    new = rows.join(shapes[8:], on=shapes.columns, how="semi")
    assert set(fair["key"]) == set(tried["key"]) | set(new["key"])
    assert view.seen.is_empty()
    expected = model.out_of_fold
    assert expected is not None
    said = view.predict_rows(model.describe(expected.select(pl.col("^(problem|config)\\..*$"))))
    assert said.time_ns.tolist() == expected["time_ns"].to_list()
    assert said.score.tolist() == expected["score"].to_list()
    own = model.describe(new)
    assert view.predict_rows(own).score.tolist() == model.predict_rows(own).score.tolist()


@pytest.mark.parametrize(
    ("change", "error", "message"),
    [
        (("folds = 2", "folds = 1"), BadFile, r"Expected `int` >= 2 - at `\$.train.folds`"),
        (('configs = "sample:16"', "speed = 3"), BadFile, "unknown field `speed`"),
        (("samples = 2", 'recipe = "ck-tile"'), BadFile, "collect.recipe is for the backend command"),
        (('families = ["gemm/triton"]', 'families = ["gemm/trito"]'), NotFound, "did you mean 'gemm/triton'"),
        (("trees = 12", "tree = 12"), InvalidValue, "tree"),
        (('name = "tiny"', 'name = "../x"'), BadFile, "name is letters"),
        (("[sweep]", "[sweep"), BadFile, "is not a recipe for regenerating"),
    ],
)
def test_a_bad_recipe_is_refused_before_anything_is_measured(tmp_path, change, error, message):
    """By the key, the rule and the value."""
    assert change[0] in TINY
    (tmp_path / "bad.toml").write_text(TINY.replace(*change))
    with pytest.raises(error, match=message):
        regenerate(load(str(tmp_path / "bad.toml")), Store.open(tmp_path / "store"), tmp_path / "work", Watched())
    assert not (tmp_path / "work").exists()


def test_a_work_directory_belongs_to_one_recipe(recipe, tmp_path):
    """Measurements of another recipe, or of nobody, are not gone on with."""
    with pytest.raises(KeyboardInterrupt):
        regenerate(load(recipe), Store.open(tmp_path / "store"), tmp_path / "work", Watched("collect"))
    changed = load(recipe, ["sweep.seed=1"])
    with pytest.raises(InvalidValue, match="was begun with another recipe"):
        regenerate(changed, Store.open(tmp_path / "store"), tmp_path / "work", Watched())
    # Limits of the comparison decide nothing that is measured.
    stricter = load(recipe, ["compare.max_mean=0"])
    with pytest.raises(KeyboardInterrupt):
        regenerate(stricter, Store.open(tmp_path / "store"), tmp_path / "work", Watched("train"))
    (tmp_path / "full").mkdir()
    (tmp_path / "full" / "thesis.tex").touch()
    with pytest.raises(InvalidValue, match="is not a work directory"):
        regenerate(load(recipe), Store.open(tmp_path / "store"), tmp_path / "full", Watched())


@pytest.mark.parametrize("name", sorted(shipped()))
def test_every_shipped_recipe_is_of_families_that_there_are(name):
    """And is called what its file is called."""
    found = load(name)
    assert found.name == name
    for family in found.families:
        FAMILIES.get(family)


def test_changes_are_written_as_in_the_file(recipe):
    """Numbers are numbers, bare words are texts, sections are made where there are none."""
    found = load(recipe, ["sweep.max_problems=5", "compare.strict=true", "train.model=linear", 'sweep.problems=["llm"]'])
    assert (found.sweep.max_problems, found.compare.strict, found.train.model) == (5, True, "linear")
    assert found.sweep.problems == ["llm"]
    for bad in ("sweep", "=3"):
        with pytest.raises(InvalidValue, match="--set takes KEY=VALUE"):
            load(recipe, [bad])
    with pytest.raises(NotFound, match=r"unknown recipe 'gemm-cp': did you mean 'gemm-cpu'\?"):
        load("gemm-cp")
    with pytest.raises(BadFile, match="cannot be read"):
        load(str(Path(recipe).with_name("nothing.toml")))
