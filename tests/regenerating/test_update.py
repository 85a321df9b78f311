"""`kerncast regenerate update`: what is learned, what is left out, and which model is there afterwards."""

import dataclasses
import json
import shutil

import numpy as np
import polars as pl
import pytest

import kerncast as kc
from kerncast.answering.selector import Selector
from kerncast.core.io import atomic
from kerncast.data import Dataset
from kerncast.errors import InvalidValue
from kerncast.models.measured import CARRIED
from kerncast.models.model import Model
from kerncast.models.store.store import Changed, Store
from kerncast.native.tiers.build import plain_tiers
from kerncast.regenerating.updating import OTHER_CONDITIONS, OTHER_DEVICE, OTHER_DTYPE, SEEN, Update, fresh_rows
from kerncast.testing.models import TILES, synthetic_dataset, synthetic_rows
from kerncast.training.train import Recipe, train

KNOBS = {"trees": 12, "library_trees": 2, "leaves": 15, "lr": 0.3}
SOFTWARE = '{"compiler":"gcc 12"}'
QUICK = {"progress": False, "threads": 1}


def measured(problems, seed, **changes):
    """Made-up rows of a known backend and software."""
    said = {"backend": "triton", "software": SOFTWARE, "cache": "cold"}
    rows = synthetic_rows(problems, seed, **{name: changes.pop(name) for name in ("slower", "tiles") if name in changes})
    return rows.with_columns(pl.lit(value).alias(name) for name, value in {**said, **changes}.items())


@pytest.fixture(scope="module")
def home(tmp_path_factory):
    """`m`, which was trained on small problems; `new`, large ones; `wrong`, the same with the times of other configs."""
    folder = tmp_path_factory.mktemp("update")
    small = pl.col("problem.M") * pl.col("problem.N") <= 512 * 1024
    synthetic_dataset(folder / "d", measured(60, 0).filter(small))
    train(folder / "d", folder / "m", Recipe("gbdt", KNOBS, folds=2, threads=1))
    new = measured(150, 3).filter(~small)
    synthetic_dataset(folder / "new", new)
    worked = pl.col("status") == "ok"
    turned = (1e10 / pl.col("time_ns")).alias("time_ns")
    synthetic_dataset(folder / "wrong", measured(150, 3).filter(small & worked).with_columns(turned))
    return folder


@pytest.fixture
def place(home, tmp_path):
    """A copy of the model, to be replaced."""
    shutil.copytree(home / "m", tmp_path / "m")
    return tmp_path / "m"


def bytes_of(folder):
    return {path.name: path.read_bytes() for path in sorted(folder.iterdir())}


def test_a_better_model_takes_the_place_of_the_old_one_and_knows_what_it_has_learned(home, place, run):
    """The old one is kept beside it; the same command again does nothing, and both say so."""
    before = bytes_of(place)
    code, said, _ = run("regenerate", "update", place, home / "new", "--threads", 1, "--replace")
    assert code == 0, said
    assert said.startswith("BETTER: on ")
    assert "problems of the old data SAME" in said or "problems of the old data BETTER" in said
    assert bytes_of(place.with_name("m.previous")) == before
    assert not [item for item in place.parent.iterdir() if item.name.startswith(".")]
    base, new = Model.load(home / "m"), Model.load(place)
    assert new.manifest.warm_start == (base.manifest.data.digest,)
    assert (new.manifest.software, new.manifest.conditions) == ((SOFTWARE,), {"backend": ("triton",), "cache": ("cold",)})
    assert new.manifest.hull["M"].high > base.manifest.hull["M"].high
    # Tiers and the next update see everything that was measured.
    rows = Dataset.open(home / "new").read()
    assert new.out_of_fold.height == base.out_of_fold.height + rows["key"].n_unique()
    assert set(new.out_of_fold["fold"]) == {0, CARRIED}
    assert new.out_of_fold["score"].null_count() == 0
    code, said, _ = run("regenerate", "update", place, home / "new", "--replace", "--json")
    again = json.loads(said)
    assert (code, again["verdict"], again["rows"], again["left_out"]) == (0, "NOTHING NEW", 0, {SEEN: rows.height})


def test_a_model_that_gets_worse_stays(home, place, run):
    """Times that contradict its own data: exit code 1, the reason, and not a byte changed."""
    before = bytes_of(place)
    code, said, _ = run("regenerate", "update", place, home / "wrong", "--threads", 1, "--replace")
    assert code == 1
    assert said.split(":")[0] in ("WORSE", "AMBIGUOUS")
    assert "problems of the old data" in said
    assert f"{place} stays as it is" in said
    assert bytes_of(place) == before
    assert [item.name for item in place.parent.iterdir()] == ["m"]


@pytest.fixture(scope="module")
def updated(home):
    """An update with the new model in another place."""
    before = bytes_of(home / "m")
    found = kc.regenerate("update", Model.load(home / "m"), Dataset.open(home / "new"), out=home / "next", **QUICK)
    assert bytes_of(home / "m") == before
    return found


@pytest.fixture
def canned(home, updated, monkeypatch):
    """Updates that end with that model at once; what is given runs before they end."""

    def set_up(meanwhile=lambda: None):
        def train(update):
            meanwhile()
            update.new = Model.load(updated.model).save(update.folder / "model")
            return {}

        def compare(update):
            facts = {name: getattr(updated, name) for name in ("verdict", "reasons", "new_data", "old_data")}
            update.updated = dataclasses.replace(update.updated, **facts)
            return {}

        monkeypatch.setattr(Update, "train", train)
        monkeypatch.setattr(Update, "compare", compare)

    return set_up


def test_a_dry_run_and_another_place_leave_the_model_alone(home, updated):
    """`dry_run` says what would be learned; `out` gets the new model, and is refused if it exists."""
    planned = kc.regenerate("update", home / "m", home / "new", dry_run=True, **QUICK)
    assert (planned.verdict, planned.replaced, bool(planned)) == ("PLANNED", False, True)
    assert planned.rows == Dataset.open(home / "new").read().height == updated.rows
    assert (updated.verdict, updated.model, updated.previous) == ("BETTER", str(home / "next"), str(home / "m"))
    assert Model.load(home / "next").seen.height > Model.load(home / "m").seen.height
    with pytest.raises(InvalidValue, match="exists"):
        kc.regenerate("update", home / "m", home / "new", out=home / "next", **QUICK)


def test_a_model_of_the_store_is_replaced_there(home, canned, tmp_path):
    """By its id; the old one stays under its own name, and the default is found as before."""
    canned()
    store = Store.open(tmp_path / "store")
    entry = store.add(home / "m")
    found = kc.regenerate("update", entry.id, home / "new", store=store, **QUICK, replace=True)
    assert (found.replaced, found.model, found.previous) == (True, entry.id, f"{entry.id}.previous")
    assert store.find("gemm").record.rows > entry.record.rows
    assert store.find("gemm").record.origin == {"updated": "BETTER"}
    assert store.get(found.previous).record.checksum == entry.record.checksum
    with pytest.raises(InvalidValue, match="is a model of a store: update it by its id"):
        kc.regenerate("update", store.find("gemm").path, home / "new", store=store, **QUICK, replace=True)


def test_what_torch_compile_timed_is_scaled_without_asking(home, tmp_path):
    """Recordings of the model's own software are learned from; those of another torch are left out as all others are."""
    model, rows = Model.load(home / "m"), measured(150, 3, slower=4.0, backend="torch.compile", cache=None)
    found = fresh_rows(model, [Dataset.open(synthetic_dataset(tmp_path / "same", rows))])
    assert found.left_out.get(OTHER_CONDITIONS) is None
    assert found.rows.height > 100
    assert list(found.factors) == ["torch.compile"]
    other = rows.with_columns(software=pl.lit('{"compiler":"gcc 13"}'))
    found = fresh_rows(model, [Dataset.open(synthetic_dataset(tmp_path / "other", other))])
    assert (found.rows.height, found.factors) == (0, {})
    assert found.left_out[OTHER_CONDITIONS] > 100


def test_rows_of_another_timer_are_left_out_unless_pooled_and_then_scaled(home, tmp_path):
    """What another timer says is 1.5 times slower for a reason of its own: the factor is taken out, the ratios stay."""
    rows = measured(40, 8, slower=1.5, tiles=TILES[:3], backend="stopwatch")
    observed = Dataset.open(synthetic_dataset(tmp_path / "observed", rows))
    model = Model.load(home / "m")
    alone = fresh_rows(model, [observed])
    assert alone.rows.is_empty()
    assert alone.left_out[OTHER_CONDITIONS] + alone.left_out.get(SEEN, 0) == rows.height
    pooled = fresh_rows(model, [observed], pool=True)
    ((condition, factor),) = pooled.factors.items()
    assert condition == "stopwatch cold"
    assert 1.1 < factor < 2.2  # the model knows these times to some tens of per cent
    joined = pooled.rows.join(rows, on="key", suffix="_then").filter(pl.col("status") == "ok")
    np.testing.assert_allclose(joined["time_ns_then"] / joined["time_ns"], factor)
    few = Dataset.open(synthetic_dataset(tmp_path / "few", rows.filter(pl.col("status") == "ok").head(9)))
    assert fresh_rows(model, [few], pool=True).rows.is_empty()


def test_rows_that_the_model_is_not_for_are_counted(home, tmp_path):
    """Another device, an unknown dtype and what was learned already; two problems are the least to learn from."""
    own = measured(2, 9)
    parts = [own.head(10), own.with_columns(device=pl.lit("h100")), own.with_columns(pl.lit("bf16").alias("problem.dtype"))]
    synthetic_dataset(tmp_path / "mixed", pl.concat(parts))
    found = kc.regenerate("update", home / "m", tmp_path / "mixed", out=tmp_path / "next", **QUICK)
    assert found.left_out == {OTHER_DEVICE: 20, OTHER_DTYPE: 20}
    assert (found.verdict, found.rows, bool(found)) == ("TOO FEW", 10, False)
    assert "1 new problems have rows that worked, and at least 2 are needed" in str(found)
    assert kc.regenerate("update", home / "m", home / "d", **QUICK, replace=True).verdict == "NOTHING NEW"


def test_what_cannot_be_updated_is_refused_before_any_work(home, place, tmp_path):
    """A kind that cannot be continued, data of another family, something else where the old model would be kept."""
    flat = train(home / "d", tmp_path / "roofline", Recipe("roofline", folds=2))
    with pytest.raises(InvalidValue, match="a roofline model cannot be continued"):
        kc.regenerate("update", flat, home / "new", **QUICK, replace=True)
    place.with_name("m.previous").mkdir()
    (place.with_name("m.previous") / "thesis.txt").write_text("mine")
    with pytest.raises(InvalidValue, match="something else is there"):
        kc.regenerate("update", place, home / "new", **QUICK, replace=True)


def test_a_link_to_a_model_stays_a_link(home, place, canned, tmp_path):
    """The directory behind it is replaced, twice."""
    canned()
    link = tmp_path / "current"
    link.symlink_to(place)
    first = kc.regenerate("update", link, home / "new", **QUICK, replace=True)
    assert (link.is_symlink(), place.is_symlink(), first.previous) == (True, False, str(place.with_name("m.previous")))
    shutil.rmtree(place)
    shutil.copytree(home / "m", place)
    assert kc.regenerate("update", link, home / "new", **QUICK, replace=True).replaced
    assert bytes_of(place) == bytes_of(home / "next")


def test_data_of_some_dtypes_continue_a_model_of_more(tmp_path):
    """The model still answers for those that the new data lack."""
    rows = synthetic_rows(12)
    both = [rows, rows.with_columns(pl.lit("bf16").alias("problem.dtype"))]
    synthetic_dataset(tmp_path / "d", pl.concat(both))
    base = train(tmp_path / "d", tmp_path / "m", Recipe("gbdt", KNOBS, folds=2, threads=1), no_folds=True)
    synthetic_dataset(tmp_path / "new", synthetic_rows(12, seed=6))
    new = train(tmp_path / "new", tmp_path / "next", Recipe("gbdt", KNOBS, threads=1), warm_start=base, no_folds=True)
    assert new.manifest.dtypes == base.manifest.dtypes == ("bf16", "fp16")
    selector = Selector(new, tiers=plain_tiers(new), compile=False)
    assert selector.select({"M": 512, "N": 512, "K": 512, "dtype": "bf16", "layout": "rcr"}).ok


def test_a_model_that_changes_meanwhile_is_not_overwritten(home, place, canned, tmp_path):
    """In its directory or in the store: the old model is looked at once more before the new one takes its place."""
    other = Model.load(home / "next")

    def directory_changes():
        shutil.rmtree(place)
        other.save(place)

    canned(directory_changes)
    with pytest.raises(Changed, match="was replaced while it was being updated: run the same command again"):
        kc.regenerate("update", place, home / "new", **QUICK, replace=True)
    assert bytes_of(place) == bytes_of(home / "next")
    store = Store.open(tmp_path / "store")
    entry = store.add(home / "m")
    canned(lambda: store.add(other, replace=True))
    with pytest.raises(Changed, match="was replaced while it was being updated"):
        kc.regenerate("update", entry.id, home / "new", store=store, **QUICK, replace=True)
    assert [item.record.checksum for item in store.entries()] == [other.manifest.checksum]


@pytest.mark.parametrize("swaps", [True, False])
def test_a_directory_is_replaced_and_kept(tmp_path, monkeypatch, swaps):
    """With and without a system that swaps names; an older backup goes."""
    if not swaps:
        monkeypatch.setattr(atomic, "_swap", lambda one, other: False)
    for name in ("new", "place", "aside"):
        (tmp_path / name).mkdir()
        (tmp_path / name / "file").write_text(name)
    atomic.replace_directory(tmp_path / "new", tmp_path / "place", tmp_path / "aside")
    assert {path.parent.name: path.read_text() for path in tmp_path.glob("*/file")} == {"place": "new", "aside": "place"}
