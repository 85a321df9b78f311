"""Trees of their own for each of several devices: twins are told apart, and unseen devices are answered as without them."""

import numpy as np
import polars as pl
import pytest

import kerncast
from kerncast.core.device import Device
from kerncast.data.dataset import Dataset, record_of
from kerncast.learning.learners.own_trees import branches, identifying
from kerncast.learning.learners.trees import sum_of
from kerncast.library.families.gemm_triton import gemm_library

NUMBERS = {"num_cus": 148.0, "memory_bandwidth_gb_s": 7700.0, "l2_cache_kb": 129_024.0}
PEAKS = {"bf16": 2250.0, "fp8": 4500.0}
# The first two differ in their memory alone, and the second takes 1.4 times as long.
SEEN = {
    "one": (Device("one", "one", "gpu", {**NUMBERS, "memory_capacity_gb": 180.0}, PEAKS), 1.0),
    "two": (Device("two", "two", "gpu", {**NUMBERS, "memory_capacity_gb": 270.0}, PEAKS), 1.4),
    "old": (Device("old", "old", "gpu", {**NUMBERS, "num_cus": 108.0, "memory_capacity_gb": 80.0}, PEAKS), 2.0),
}
UNSEEN = Device("new", "new", "gpu", {**NUMBERS, "num_cus": 132.0}, PEAKS)
PROBLEMS = [{"M": m, "N": n, "K": 1024, "dtype": "bf16", "layout": "rcr"} for m in (64, 96, 512) for n in (128, 2048)]
SMALL = {"times_only": True, "early_stopping": False, "library_trees": 0, "trees": 30, "leaves": 15, "lr": 0.2, "folds": 2,
         "threads": 1, "pool": True, "progress": None}  # fmt: skip


def rows(device: Device, slower: float) -> pl.DataFrame:
    rng = np.random.default_rng(0)
    sizes = pl.DataFrame({f"problem.{name}": 2 ** rng.integers(5, 13, 500) * rng.choice([1, 3], 500) for name in "MNK"}).unique(
        maintain_order=True
    )
    work = sizes.select(pl.col("problem.M").cast(float) * pl.col("problem.N") * pl.col("problem.K")).to_series().to_numpy()
    told = {"problem.layout": "rcr", "problem.dtype": "bf16", "problem.split_k": 1, "problem.batch": 1,
            "config.kernel_source": "torch_flow", "device": device.name, "status": "ok"}  # fmt: skip
    return sizes.with_columns(**{k: pl.lit(v) for k, v in told.items()}, time_ns=pl.Series(slower * (5000 + work / 1e6)))


@pytest.fixture(scope="module")
def trained(tmp_path_factory):
    """The same rows learned with and without trees of their own."""
    folder = tmp_path_factory.mktemp("own")
    data = Dataset.create(folder / "data")
    for device, slower in SEEN.values():
        data.append(gemm_library, rows(device, slower), machines=[record_of(device)])
    return {own: kerncast.train(folder / "data", out=folder / f"m{own}", own_trees=own, **SMALL) for own in (0, 30)}


def test_twins_are_told_apart_and_every_device_is_nearer(trained):
    """Out of fold, the errors with trees of their own are smaller; the twins' times differ as they were measured."""
    with_own, without = trained[30], trained[0]
    assert with_own.figures.runtime.mape.value < without.figures.runtime.mape.value
    times = {name: np.array([a.time_ns for a in with_own.predict(PROBLEMS, device=name)]) for name in SEEN}
    assert np.allclose(times["two"] / times["one"], 1.4, rtol=0.1)


def test_the_trees_of_each_device_are_found_again(trained):
    """Taken out of the joined trees, those of a device say of its rows what the joined ones say: `adapt` weighs them."""
    model = trained[30]
    routed = model.learner.trees["time"][0][30:]
    described = [model.describe(frame_of(model, name), device) for name, (device, _) in SEEN.items()]
    found = branches(routed, identifying(described[0]))
    assert len(found) == len(SEEN)
    for rows_of in described:
        wanted = sum_of(routed, rows_of.features)
        assert wanted.any()
        assert any(np.allclose(sum_of(trees, rows_of.features), wanted) for trees in found)


def test_an_unseen_device_is_answered_by_the_forest_of_all(trained):
    """Its profile may lack the memory; no tree of a device reaches it, so one unlike the others gets the shared trees' sum."""
    model = trained[30]
    shared = model.learner.trees["time"][0][:30]
    described = model.describe(frame_of(model, "one"), UNSEEN)
    total = sum(tree.leaf_values(described.features) for tree in shared)
    assert np.array_equal(model.learner.predict(described).target, total)
    assert len(model.learner.trees["time"][0]) == 60


def test_answers_do_not_depend_on_the_rows_beside_them_and_survive_saving(trained, tmp_path):
    """A batch of one device, mixed batches and single rows agree to the last bit, in the slim model too, which is smaller."""
    model = trained[30]
    model.slimmed(tmp_path / "slim")
    slim = kerncast.Model.load(tmp_path / "slim")
    columns = [slim.learner.predict(model.describe(frame_of(model, name), SEEN[name][0])).target for name in SEEN]
    parts = [model.describe(frame_of(model, name), SEEN[name][0]).features for name in SEEN]
    forest = slim.learner.forests_["time"][0]
    assert np.array_equal(forest.predict(np.concatenate(parts)), np.concatenate(columns))
    one_by_one = np.concatenate([forest.predict(row[None]) for part in parts for row in part[:20]])
    assert np.array_equal(one_by_one, np.concatenate([column[:20] for column in columns]))


def test_a_model_that_is_moved_to_another_device_weighs_the_others_trees(trained, tmp_path):
    """A few rows of an unseen device correct the trees of all, with a share of each one's own, and its times become nearer."""
    data = Dataset.create(tmp_path / "few")
    measured = rows(UNSEEN, 3.0)
    data.append(gemm_library, measured[:100], machines=[record_of(UNSEEN)])
    moved = kerncast.train(tmp_path / "few", base=trained[30], device=UNSEEN, out=tmp_path / "moved", progress=None)
    # Those of all devices, those of each of the three, one for the labels, and two small forests of 100.
    assert 30 + 3 * 20 < len(moved.learner.trees["time"][0]) <= 30 + 3 * 30 + 1 + 200
    asked = measured[100:200].drop("time_ns", "device", "status")
    times = moved.predict(asked, device=UNSEEN)["time_ns"].to_numpy()
    before = trained[30].predict(asked, device=UNSEEN)["time_ns"].to_numpy()
    truth = measured[100:200]["time_ns"].to_numpy()
    assert np.abs(times / truth - 1).mean() < 0.8 * np.abs(before / truth - 1).mean()


def frame_of(model: kerncast.Model, name: str) -> pl.DataFrame:
    return model.out_of_fold.filter(pl.col("device") == name).select(pl.col("^problem\\..*$"), pl.col("^config\\..*$"))[:300]


def test_medians_are_not_pulled_along_by_rows_that_went_wrong(tmp_path):
    """A fifth of the rows took eight times as long: with `medians` the times of the others come out, else times above them."""
    device = SEEN["one"][0]
    good = rows(device, 1.0)
    wrong = pl.Series(np.random.default_rng(1).random(good.height) < 0.2)
    bad = good.with_columns(time_ns=pl.col("time_ns") * pl.when(wrong).then(8.0).otherwise(1.0))
    Dataset.create(tmp_path / "data").append(gemm_library, bad, machines=[record_of(device)])
    found = {}
    for medians in (True, False):
        model = kerncast.train(tmp_path / "data", out=tmp_path / str(medians), medians=medians, **{**SMALL, "leaves": 4})
        times = np.array([answer.time_ns for answer in model.predict(PROBLEMS, device="one")])
        meant = np.array([5000 + p["M"] * p["N"] * p["K"] / 1e6 for p in PROBLEMS])
        found[medians] = float(np.median(times / meant))
    assert found[True] < 1.1
    assert found[False] > 1.15


def test_absolute_errors_are_not_moved_by_rare_slow_rows(tmp_path):
    """A twentieth of the rows took five times as long: trees of absolute errors are nearer to the others' times."""
    data, slow = Dataset.create(tmp_path / "data"), np.random.default_rng(1).random(500) < 0.05
    for device, slower in SEEN.values():
        frame = rows(device, slower)
        late = pl.Series(np.where(slow[: len(frame)], 5.0, 1.0))
        data.append(gemm_library, frame.with_columns(time_ns=pl.col("time_ns") * late), machines=[record_of(device)])
    asked, truth = rows(*SEEN["one"]).drop("time_ns", "device", "status"), rows(*SEEN["one"])["time_ns"].to_numpy()
    errors = {}
    for loss in ("squares", "absolute"):
        model = kerncast.train(tmp_path / "data", out=tmp_path / loss, own_trees=30, own_loss=loss, **SMALL)
        errors[loss] = np.abs(model.predict(asked, device="one")["time_ns"].to_numpy() / truth - 1).mean()
    assert errors["absolute"] < errors["squares"]
