"""Regeneration: every stage once, from wherever it stopped; nothing worse gets into the store."""

import dataclasses
import json
import shutil
from functools import partial
from pathlib import Path

import polars as pl
import pytest
from tests.support.routines import tiny_routine

from kerncast.core.progress import Progress
from kerncast.data import Dataset
from kerncast.errors import BadFile, InvalidValue, NotFound
from kerncast.library.registry import FAMILIES
from kerncast.measuring.plan import Runner
from kerncast.models.model import Model
from kerncast.models.store.entry import ENTRY
from kerncast.models.store.store import Store
from kerncast.regenerating import load, plan, shipped
from kerncast.regenerating import loop as states
from kerncast.regenerating import regenerate as run_once
from kerncast.regenerating.routine import USUAL_STEPS as STEPS
from kerncast.regenerating.updating import OutOfFold
from kerncast.testing.backends import Analytic
from kerncast.testing.models import synthetic_dataset, synthetic_rows
from kerncast.training.train import Recipe as Recipe
from kerncast.training.train import train

# A new model takes the place of the old one.
regenerate = partial(run_once, replace=True)

TINY = tiny_routine(problems=24, configs=16, trees=12, leaves=7)

POOR = ["train.knobs={trees = 1, leaves = 2}"]


class Watched(Progress):
    """Shows nothing; remembers the stages, and may stop at one as a killed process does."""

    def __init__(self, stop_at=None):
        self.stop_at, self.stages = stop_at, []

    def stage(self, name, number=1, of=1):
        family, _, rest = name.partition(": ")
        if family != "gemm/triton":  # a fold of the training
            return
        stage, _, already = rest.partition(" ")
        assert (number, of) == (STEPS.index(stage) + 1, len(STEPS))
        self.stages.append((stage, already == "(done before)"))
        if stage == self.stop_at and not already:
            raise KeyboardInterrupt


@pytest.fixture
def routine(tmp_path):
    (tmp_path / "tiny.toml").write_text(TINY)
    return str(tmp_path / "tiny.toml")


@pytest.fixture(scope="module")
def reference(tmp_path_factory):
    """One uninterrupted run: its work directory and its store."""
    folder = tmp_path_factory.mktemp("reference")
    (folder / "tiny.toml").write_text(TINY)
    (outcome,) = regenerate(load(str(folder / "tiny.toml")), Store.open(folder / "store"), folder / "work", progress=Watched())
    return folder, outcome


@pytest.fixture
def rewound(reference, tmp_path):
    """That run's work directory as it was before a stage, which nothing but the state remembers."""

    def back(stage):
        shutil.copytree(reference[0] / "work", tmp_path / "work")
        states.write(tmp_path / "work", states.read(tmp_path / "work").without("gemm/triton", stage))
        return tmp_path / "work"

    return back


def test_a_new_model_gets_into_the_store_with_its_origin(reference):
    """Host, version, date and routine are recorded, in the work directory and in the store."""
    folder, outcome = reference
    assert (outcome.verdict, outcome.replaced) == ("NEW", True)
    (entry,) = Store.open(folder / "store").entries()
    assert entry.id == outcome.model
    state = json.loads((folder / "work" / "state.json").read_text())
    assert set(entry.record.origin) == {"routine", "host", "regenerated", "kerncast", "verdict"}
    assert entry.record.origin["host"] == state["host"]
    assert list(state["done"]["gemm/triton"]) == list(STEPS)
    assert state["done"]["gemm/triton"]["collect"]["facts"]["device"] == entry.device
    assert state["done"]["gemm/triton"]["train"]["facts"]["software"] == list(entry.software)


@pytest.mark.parametrize("stage", STEPS[1:])
def test_a_run_that_was_stopped_goes_on_and_ends_the_same(routine, reference, tmp_path, stage):
    """Whatever is done is not done again, and the model is the same. Models are compared again: the store may have changed."""
    store = Store.open(tmp_path / "store")
    with pytest.raises(KeyboardInterrupt):
        regenerate(load(routine), store, tmp_path / "work", progress=Watched(stage))
    assert store.entries() == []
    shown = Watched()
    (outcome,) = regenerate(load(routine), store, tmp_path / "work", progress=shown)
    assert [name for name, already in shown.stages if already] == list(STEPS[: min(3, STEPS.index(stage))])
    assert outcome.replaced
    before, after = (
        Model.load(folder / "work" / "gemm-triton" / "model").manifest.files for folder in (reference[0], tmp_path)
    )
    assert before["predictions.parquet"] == after["predictions.parquet"]
    assert before["time.0.lgbm.gz"] == after["time.0.lgbm.gz"]


def test_a_half_measured_collection_goes_on(routine, reference, tmp_path, monkeypatch):
    """A stop in the middle of measuring is an unfinished outcome; every row is measured once."""
    real = Runner.request
    monkeypatch.setattr(Runner, "request", lambda *args: dataclasses.replace(real(*args), budget_seconds=0.0, chunk_size=8))
    (outcome,) = regenerate(load(routine), Store.open(tmp_path / "store"), tmp_path / "work", progress=Watched())
    assert not outcome.finished
    assert outcome.reasons == ["stopped during collect"]
    monkeypatch.undo()
    (outcome,) = regenerate(load(routine), Store.open(tmp_path / "store"), tmp_path / "work", progress=Watched())
    assert outcome.finished
    rows, before = (Dataset.open(folder / "work" / "gemm-triton" / "dataset").read() for folder in (tmp_path, reference[0]))
    assert rows.height == before.height == rows["key"].n_unique()


def test_the_same_again_is_the_same_and_a_finished_run_is_kept(routine, tmp_path):
    """Without --again nothing is done twice; with it the old work directory is renamed."""
    store = Store.open(tmp_path / "store")
    regenerate(load(routine), store, tmp_path / "work", progress=Watched())
    (first,) = store.entries()
    shown = Watched()
    regenerate(load(routine), store, tmp_path / "work", progress=shown)
    assert all(already for _, already in shown.stages)
    assert store.entries() == [first]
    (outcome,) = regenerate(load(routine), store, tmp_path / "work", progress=Watched(), again=True)
    assert (outcome.verdict, outcome.replaced) == ("SAME", True)
    (second,) = store.entries()
    assert (second.id, second.path == first.path) == (first.id, False)
    assert len(list(tmp_path.glob("work.*"))) == 1
    comparison = json.loads((tmp_path / "work" / "gemm-triton" / "comparison.json").read_text())
    assert (comparison["n_problems"], comparison["problems_seen_in_training"]) == (24, 0)


def test_a_routine_without_replace_leaves_the_store_alone(routine, tmp_path, run):
    """It measures, some problems twice, trains on both and reports; the exit code is 0."""
    steps = 'steps=["collect", "repeat", "train", "report"]'
    words = (
        "regenerate",
        routine,
        "--store",
        tmp_path / "store",
        "--out",
        tmp_path / "work",
        "--set",
        steps,
        "--set",
        "flat=true",
    )
    code, out, _ = run(*words, "--set", "collect.repeat=6", "--set", "sweep.draw=even", "--json")
    (family,) = json.loads(out)["families"]
    assert (code, family["verdict"], family["replaced"]) == (0, "TRAINED", False)
    assert not (tmp_path / "store").exists()
    twice = Dataset.open(tmp_path / "work" / "gemm_triton-2").read()
    assert (twice.height, twice.select("problem.M", "problem.N", "problem.K").n_unique()) == (6 * 16, 6)
    state = states.read(tmp_path / "work")
    assert (state.finished, list(state.of("gemm/triton"))) == (True, ["collect", "repeat", "train", "report"])
    assert state.of("gemm/triton")["report"].facts["totals"]["problems_measured_twice"] == 6
    assert (tmp_path / "work" / "report.html").is_file()


def test_a_worse_model_stays_out_of_the_store(routine, tmp_path, run):
    """Exit code 1, the store as it was, and the way to overrule it."""
    store = tmp_path / "store"
    assert run("regenerate", routine, "--store", store, "--out", tmp_path / "good", "--replace")[0] == 0
    (before,) = Store.open(store).entries()
    poor = ["--set", *POOR]
    code, out, _ = run("regenerate", routine, "--store", store, "--out", tmp_path / "poor", "--replace", *poor)
    assert code == 1
    assert "WORSE" in out
    assert f"kerncast models add {tmp_path / 'poor' / 'gemm-triton' / 'model'} --replace" in out
    assert Store.open(store).entries() == [before]
    # The old one cannot be read any more: anything that can is better.
    (before.path / "candidates.parquet").unlink()
    code, out, _ = run("regenerate", routine, "--store", store, "--out", tmp_path / "again", "--replace", *poor, "--json")
    (family,) = json.loads(out)["families"]
    assert json.loads(out)["path"] == str(tmp_path / "again")
    assert (code, family["verdict"], family["replaced"]) == (0, "OLD UNREADABLE", True)


@pytest.mark.parametrize("how", ["between two runs", "in another store", "while they were compared"])
def test_what_it_was_not_compared_with_is_never_replaced(routine, reference, rewound, tmp_path, how):
    """A good model that appears after a poor one was found to be NEW is compared with it, and stays."""
    good = reference[0] / "work" / "gemm-triton" / "model"
    poor, work, store = load(routine, POOR), rewound("train"), Store.open(tmp_path / "store")
    shown = Watched("replace")
    if how == "while they were compared":
        shown.stage = lambda name, *place: store.add(good) if name.endswith(": replace") else None
        (outcome,) = regenerate(poor, store, work, progress=shown)
    else:
        with pytest.raises(KeyboardInterrupt):
            regenerate(poor, store, work, progress=shown)
        store = Store.open(tmp_path / "other") if how == "in another store" else store
        store.add(good)
        (outcome,) = regenerate(poor, store, work, progress=Watched())
    assert (outcome.verdict, outcome.replaced) == ("WORSE", False)
    (entry,) = store.entries()
    assert entry.load().manifest == Model.load(good).manifest
    # Other limits are another question, which the same measurements answer.
    loose = load(routine, [*POOR, *(f"compare.max_{name}=100" for name in ("mean", "median", "p10", "problem"))])
    shown = Watched()
    (outcome,) = regenerate(loose, store, work, progress=shown)
    assert [stage for stage, already in shown.stages if not already] == ["compare", "replace"]
    assert (outcome.verdict, outcome.replaced) == ("AMBIGUOUS", True)


def test_a_model_that_got_into_the_store_right_before_a_crash_stays_there(routine, rewound, tmp_path, monkeypatch):
    """The next run finds that the store has this very model."""
    work, store = rewound("compare"), Store.open(tmp_path / "store")
    real = states.write

    def killed(folder, state):
        if "replace" in state.of("gemm/triton"):
            raise KeyboardInterrupt
        real(folder, state)

    monkeypatch.setattr(states, "write", killed)
    with pytest.raises(KeyboardInterrupt):
        regenerate(load(routine), store, work, progress=Watched())
    monkeypatch.undo()
    (before,) = store.entries()
    (outcome,) = regenerate(load(routine), store, work, progress=Watched())
    (after,) = store.entries()
    assert (outcome.verdict, outcome.replaced) == ("SAME", True)
    assert (after.id, after.record.checksum) == (before.id, before.record.checksum)


@pytest.mark.parametrize("stage", ["train", "compare"])
def test_other_training_keeps_the_measurements(routine, rewound, tmp_path, stage):
    """And never takes a model that was trained in another way for its own, finished or just there."""
    work, shown = rewound(stage), Watched()
    (outcome,) = regenerate(load(routine, POOR), Store.open(tmp_path / "store"), work, progress=shown)
    assert [stage for stage, already in shown.stages if already] == ["sweep", "collect"]
    assert outcome.replaced
    assert Model.load(work / "gemm-triton" / "model").manifest.recipe["knobs"]["trees"] == 1
    shown = Watched()
    regenerate(load(routine, [*POOR, "train.threads=2"]), Store.open(tmp_path / "store"), work, progress=shown)
    assert all(already for _, already in shown.stages)


@pytest.mark.parametrize("damage", ["the model is gone", "the entry is broken", "another entry is broken"])
def test_an_old_model_that_cannot_be_read_is_replaced(routine, reference, rewound, tmp_path, damage):
    """Whatever is wrong with it, hours of measuring are not lost to it."""
    work, store = rewound("compare"), Store.open(tmp_path / "store")
    entry = store.add(reference[0] / "work" / "gemm-triton" / "model")
    if damage == "the model is gone":
        shutil.rmtree(entry.path)
    elif damage == "the entry is broken":
        (entry.path.parent / ENTRY).write_text("{")
    else:
        shutil.copytree(entry.path.parent, entry.path.parents[1] / "copied")
        shutil.rmtree(entry.path.parent)
    (outcome,) = regenerate(load(routine), store, work, progress=Watched())
    assert (outcome.verdict, outcome.replaced) == ("OLD UNREADABLE", True)
    assert store.at(Model.load(work / "gemm-triton" / "model")).load().path.is_dir()


def test_a_run_that_was_killed_before_its_first_state_can_begin(routine, tmp_path):
    """A lock and a draft of the state are all that it leaves."""
    (tmp_path / "work").mkdir()
    for name in ("regenerate.lock", ".state.json.4711.0.kerncast"):
        (tmp_path / "work" / name).touch()
    with pytest.raises(KeyboardInterrupt):
        regenerate(load(routine), Store.open(tmp_path / "store"), tmp_path / "work", progress=Watched("sweep"))
    assert states.read(tmp_path / "work") is not None


def test_a_dry_run_writes_nothing(routine, tmp_path, run):
    """What would be measured, and what it would be compared with."""
    code, out, _ = run("regenerate", routine, "--store", tmp_path / "store", "--out", tmp_path / "work", "--dry-run", "--json")
    assert code == 0
    (planned,) = json.loads(out)
    assert (planned["problems"], planned["vectors"], planned["old"]) == (24, 24 * 16, None)
    assert {item.name for item in tmp_path.iterdir()} == {"tiny.toml"}
    code, out, _ = run("regenerate", routine, "--set", "sweep.max_problems=5", "--dry-run", "--json")
    assert json.loads(out)[0]["vectors"] == 5 * 16


def test_predictions_are_out_of_fold_where_the_problem_was_seen(tmp_path):
    """Known vectors get what was said of them without having seen them, new problems the model's own word, the rest nothing."""
    rows = synthetic_rows(problems=12)
    shapes = rows.select("problem.M", "problem.N", "problem.K").unique(maintain_order=True)
    seen = rows.join(shapes[:8], on=shapes.columns, how="semi")
    # Of seen problems, one config was never tried.
    tried = seen.filter(pl.col("config.BLOCK_M").fill_null(0) != seen["config.BLOCK_M"].drop_nulls()[0])
    synthetic_dataset(tmp_path / "d", tried)
    model = train(
        tmp_path / "d", tmp_path / "m", Recipe("gbdt", {"trees": 8, "library_trees": 4, "leaves": 7}, folds=2, threads=1)
    )
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
        (("folds = 2", "folds = 1"), BadFile, "'train.folds' must be a whole number >= 2"),
        (('configs = "sample:16"', "speed = 3"), BadFile, "there is no key 'sweep.speed'"),
        (("samples = 2", 'benchmark = "ck-tile"'), BadFile, "collect.benchmark is for the backend command"),
        (('families = ["gemm/triton"]', 'families = ["gemm/trito"]'), NotFound, "did you mean 'gemm/triton'"),
        (("trees = 12", "tree = 12"), InvalidValue, "tree"),
        (('name = "tiny"', 'name = "../x"'), BadFile, "name is letters"),
        (("[sweep]", "[sweep"), BadFile, "is not a routine for regenerating"),
        (("folds = 2", 'target = "zz"'), BadFile, "train.target is one of relative, latency, tflops, bandwidth, got 'zz'"),
        (("folds = 2", "seed = 9_999_999_999"), BadFile, "'train.seed' must be"),
        (("threads = 1", "threads = 1_000_000"), BadFile, "'train.threads' must be"),
        (("folds = 2", "folds = 25"), InvalidValue, r"make 24 groups \(M, N, K, batch\).*`changes` train.folds=24"),
        (
            ("[sweep]", 'steps = ["train", "collect"]\n[sweep]'),
            BadFile,
            "steps are some of .* in this order",
        ),
        (("[sweep]", 'steps = ["collect", "replace"]\n[sweep]'), BadFile, "the step replace needs the step compare"),
        (("[sweep]", 'steps = ["collect", "race"]\n[sweep]'), BadFile, "the step race is for gemm/cpu alone"),
        (
            ('configs = "sample:16"', 'configs = "promising:4"'),
            InvalidValue,
            "got 'promising:4' for gemm/triton",
        ),
        (("[train]", '[store]\nname = "a/b"\n[train]'), BadFile, "store.name: a model's name is letters"),
        (("[train]", f'[store]\nname = "{"a" * 300}"\n[train]'), BadFile, "store.name: a model's name has at most 100"),
    ],
)
def test_a_bad_recipe_is_refused_before_anything_is_measured(tmp_path, change, error, message):
    """By the key, the rule and the value; by a dry run too."""
    assert change[0] in TINY
    (tmp_path / "bad.toml").write_text(TINY.replace(*change))
    with pytest.raises(error, match=message):
        regenerate(load(str(tmp_path / "bad.toml")), Store.open(tmp_path / "store"), tmp_path / "work", progress=Watched())
    assert not (tmp_path / "work").exists()
    with pytest.raises(error, match=message):
        plan(load(str(tmp_path / "bad.toml")), Store.open(tmp_path / "store"))


@pytest.mark.parametrize(
    ("family", "dtype", "message"),
    [("reshard/cpu", "fp16", "dtype must be one of .* got 'fp16'"), ("gemm/cpu", "bf8", "no config of gemm/cpu can run any")],
)
def test_the_last_family_is_refused_before_the_first_is_measured(routine, tmp_path, monkeypatch, family, dtype, message):
    """What one family can do with a sweep another may not."""
    monkeypatch.setattr(Analytic, "families", ("gemm/triton", family))
    found = load(routine, [f'families=["gemm/triton", "{family}"]', f'sweep.vary=["dtype={dtype}", "layout=rcr"]'])
    with pytest.raises(InvalidValue, match=message):
        regenerate(found, Store.open(tmp_path / "store"), tmp_path / "work", progress=Watched())
    assert not (tmp_path / "work").exists()


def test_a_work_directory_belongs_to_one_recipe(routine, tmp_path):
    """Measurements of another routine, or of nobody, are not gone on with."""
    with pytest.raises(KeyboardInterrupt):
        regenerate(load(routine), Store.open(tmp_path / "store"), tmp_path / "work", progress=Watched("collect"))
    changed = load(routine, ["sweep.seed=1"])
    with pytest.raises(InvalidValue, match="was begun with another routine"):
        regenerate(changed, Store.open(tmp_path / "store"), tmp_path / "work", progress=Watched())
    # Limits of the comparison decide nothing that is measured.
    stricter = load(routine, ["compare.max_mean=0"])
    with pytest.raises(KeyboardInterrupt):
        regenerate(stricter, Store.open(tmp_path / "store"), tmp_path / "work", progress=Watched("train"))
    (tmp_path / "full").mkdir()
    (tmp_path / "full" / "thesis.tex").touch()
    with pytest.raises(InvalidValue, match="is not a work directory"):
        regenerate(load(routine), Store.open(tmp_path / "store"), tmp_path / "full", progress=Watched())


@pytest.mark.parametrize("name", sorted(shipped()))
def test_every_shipped_recipe_is_of_families_that_there_are(name):
    """And is called what its file is called."""
    found = load(name)
    assert found.name == name
    for family in found.families:
        FAMILIES.get(family)


def test_changes_are_written_as_in_the_file(routine):
    """Numbers are numbers, bare words are texts, sections are made where there are none."""
    found = load(routine, ["sweep.max_problems=5", "compare.strict=true", "train.model=linear", 'sweep.problems=["llm"]'])
    assert (found.sweep.max_problems, found.compare.strict, found.train.model) == (5, True, "linear")
    assert found.sweep.problems == ["llm"]
    for bad in ("sweep", "=3"):
        with pytest.raises(InvalidValue, match="`changes` takes KEY=VALUE"):
            load(routine, [bad])
    with pytest.raises(NotFound, match=r"unknown routine 'gemm-cp': did you mean 'gemm-cpu'\?"):
        load("gemm-cp")
    with pytest.raises(BadFile, match="cannot be read"):
        load(str(Path(routine).with_name("nothing.toml")))


def test_a_model_in_the_store_stays_unless_it_may_be_replaced(routine, tmp_path, run):
    """Without `--replace` the new model waits in the work directory; the same command with it puts it there."""
    store, work = Store.open(tmp_path / "store"), tmp_path / "work"
    regenerate(load(routine), store, tmp_path / "first", progress=Watched())
    (before,) = store.entries()
    code, out, _ = run("regenerate", routine, "--store", store.path, "--out", work, "--set", "train.seed=1", "--json")
    (outcome,) = json.loads(out)["families"]
    assert (code, outcome["replaced"]) == (0 if outcome["waits"] else 1, False)
    assert store.entries()[0].record.checksum == before.record.checksum
    if outcome["waits"]:
        assert run("regenerate", routine, "--store", store.path, "--out", work, "--set", "train.seed=1", "--replace")[0] == 0
        assert store.entries()[0].record.checksum != before.record.checksum
