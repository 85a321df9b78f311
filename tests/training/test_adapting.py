"""Models on devices that they have not seen: intervals by distance, and models that a few rows move there."""

import math

import numpy as np
import polars as pl
import pytest

import kerncast
from kerncast.core.device import Device
from kerncast.data.dataset import Dataset, record_of
from kerncast.errors import InvalidValue
from kerncast.library.families.gemm_triton import gemm_library
from kerncast.models.answer import Answered
from kerncast.models.limits.devices import DeviceErrors, Elsewhere, calibrate_elsewhere
from kerncast.models.store.store import Store
from kerncast.training import adapting

SMALL = {"trees": 25, "leaves": 15, "lr": 0.15, "folds": 3, "threads": 1, "progress": None}
PROBLEM = {"M": 512, "N": 2048, "K": 1024, "dtype": "bf16", "layout": "rcr"}


def device(name: str, cus: float, bandwidth: float, tflops: float) -> Device:
    numbers = {"num_cus": cus, "memory_bandwidth_gb_s": bandwidth, "l2_cache_kb": 40_000}
    return Device(name, name, "gpu", numbers, {"bf16": tflops, "fp8": 2 * tflops})


SEEN = [device("one", 80, 900, 120), device("two", 108, 1500, 300), device("three", 132, 3300, 900),
        device("four", 142, 800, 350), device("five", 148, 7500, 2200)]  # fmt: skip
NEW = device("fresh", 120, 2400, 500)
FAR = device("far", 4000, 900_000, 900_000)


def times(rows: pl.DataFrame, on: Device, slower: float) -> np.ndarray:
    """A made-up GPU: the roofline, a launch, a library that is `slower` here, and some noise."""
    m, n, k = (rows[f"problem.{name}"].to_numpy().astype(float) for name in "MNK")
    narrow = (rows["problem.dtype"] == "fp8").to_numpy()
    compute = 2 * m * n * k / (on.peak_tflops["bf16"] * np.where(narrow, 2, 1) * 1e12) * 1e9
    memory = (m * k + k * n + m * n) * np.where(narrow, 1, 2) / on.numbers["memory_bandwidth_gb_s"]
    waves = np.ceil(m / 128) * np.ceil(n / 128) / on.numbers["num_cus"]
    noise = np.random.default_rng(len(on.name)).normal(0, 0.02, rows.height)
    return (4000 + np.hypot(compute, memory) * slower * np.ceil(waves) / waves**0.9) * np.exp(noise)


def rows(on: Device, count: int, slower: float, seed: int, dtypes: tuple[str, ...] = ("bf16", "fp8")) -> pl.DataFrame:
    rng = np.random.default_rng(seed)
    sizes = {f"problem.{name}": 2 ** rng.integers(5, 13, count) * rng.choice([1, 3], count) for name in "MNK"}
    frame = pl.DataFrame(sizes).unique(maintain_order=True)
    dtype = rng.choice(dtypes, frame.height)
    frame = frame.with_columns(pl.Series("problem.dtype", dtype), pl.lit("rcr").alias("problem.layout"),
                               pl.lit("torch_flow").alias("config.kernel_source"))  # fmt: skip
    frame = frame.with_columns(pl.lit(1).alias("problem.split_k"), pl.lit(1).alias("problem.batch"))
    return frame.with_columns(time_ns=times(frame, on, slower), device=pl.lit(on.name), status=pl.lit("ok"))


def dataset(path, *parts: tuple[Device, pl.DataFrame]) -> Dataset:
    made = Dataset.create(path)
    for on, frame in parts:
        made.append(gemm_library, frame, machines=[record_of(on)])
    return made


@pytest.fixture(scope="module")
def home(tmp_path_factory):
    """`pooled`, a model of five made-up devices, and `few`: 60 rows of a sixth, whose library is slower than all of theirs."""
    folder = tmp_path_factory.mktemp("home")
    slower = [1.2, 1.3, 1.25, 1.5, 1.35]
    dataset(folder / "d", *((on, rows(on, 250, factor, 1)) for on, factor in zip(SEEN, slower, strict=True)))
    kerncast.train(folder / "d", out=folder / "pooled", pool=True, **SMALL)
    dataset(folder / "few", (NEW, rows(NEW, 60, 1.9, 7)))
    return folder


@pytest.fixture(scope="module")
def held():
    """Rows of the new device that nobody learned from."""
    return rows(NEW, 400, 1.9, 99)


def errors(model, frame, **on) -> np.ndarray:
    said = model.predict(frame.drop("time_ns", "device", "status"), **on)
    return (said["time_ns"] / frame["time_ns"]).log().to_numpy()


def inside(model, frame, **on) -> float:
    said = model.predict(frame.drop("time_ns", "device", "status"), **on)
    return float(((said["lower_ns"] <= frame["time_ns"]) & (frame["time_ns"] <= said["upper_ns"])).mean())


def test_an_unseen_device_has_an_interval_wider_than_that_of_a_measured_one(home, held):
    """A profile is enough for a time and an interval; far from all measured devices the answer says so."""
    model = kerncast.open(home / "pooled")
    known, near, far = (model.predict(PROBLEM, device=on) for on in ("three", NEW, FAR))
    assert known.ok
    assert near.ok
    assert "fresh was not measured; the nearest device that was is three" in near.note
    assert far.status is Answered.OUT_OF_RANGE
    assert "further than any device" in far.reason

    def width(answer):
        return math.log(answer.upper_ns / answer.lower_ns)

    assert width(known) < width(near) <= width(far) + 1e-9  # how it widens: the test of `calibrate_elsewhere` below
    assert [line.device for line in model.manifest.elsewhere.devices] == sorted(on.name for on in SEEN)
    assert all(line.mape < line.roofline_mape for line in model.manifest.elsewhere.devices)
    copy = Device("three", "a copy with half the units", "gpu", {**SEEN[2].numbers, "num_cus": 66}, SEEN[2].peak_tflops)
    assert "three was not measured" in model.predict(PROBLEM, device=copy).note


def test_an_interval_that_says_nothing_is_left_for_the_roofline(home, tmp_path, monkeypatch):
    """Up to a hundredfold between its ends an interval is told; a wider one gives way to the roofline, and this is said."""
    monkeypatch.setenv("KERNCAST_SHIPPED", "")
    asked = {name: PROBLEM[name] for name in ("M", "N", "K", "dtype")}
    for ends, basis in (((0.1, 9.0), "model"), ((0.1, 11.0), "roofline")):
        monkeypatch.setattr(Elsewhere, "factors", lambda self, distance, ends=ends: ends)
        store = Store.open(tmp_path / basis)
        entry = store.add(home / "pooled")
        found = kerncast.predict("gemm", asked, device=NEW, store=store)
        assert found.basis == basis
        assert found.time_ns >= found.roofline_ns
    assert f"the interval of {entry.id} is too wide to be of use" in found.reason
    assert "fresh was not measured" in found.reason
    monkeypatch.setattr(Elsewhere, "factors", lambda self, distance: (0.001, 1000.0))
    assert kerncast.predict("gemm", asked, device="three", store=store).basis == "model"  # it was measured


def test_the_interval_of_unseen_devices_covers_them():
    """Calibrated on devices whose errors grow with the distance, nine in ten rows of others are inside."""
    rng = np.random.default_rng(0)

    def some(count):
        far = rng.uniform(0.1, 2.0, count)
        return [DeviceErrors(str(place), "x", x, rng.normal(0, 0.05 * (1 + x), 300) + rng.normal(0, 0.05 * (1 + x)))
                for place, x in enumerate(far)]  # fmt: skip

    covered = []
    for _ in range(20):
        found = calibrate_elsewhere(some(8), ("num_cus",))
        for part in some(4):
            low, high = np.log(found.factors(part.distance))
            covered.append(float(((part.logs >= low) & (part.logs <= high)).mean()))
    assert 0.85 < np.mean(covered) < 0.99
    assert calibrate_elsewhere(some(2), ()) is None


def test_the_interval_widens_as_errors_grow_with_the_distance():
    """Where devices a generation away are mistaken by many times more, a near one does not get their interval, nor they its."""
    rng = np.random.default_rng(1)
    far = (0.0, 0.1, 0.1, 0.3, 0.3, 0.6, 1.0, 1.0)

    def errors_at(distance):
        return rng.normal(0, 0.05 + 1.0 * distance, 2_000)

    parts = [DeviceErrors(str(place), "x", distance, errors_at(distance)) for place, distance in enumerate(far)]
    found = calibrate_elsewhere(parts, ("num_cus",))

    def width(distance):
        low, high = np.log(found.factors(distance))
        return high - low

    assert [width(0.0) < width(d) for d in (0.1, 0.3, 1.0)] == [True, True, True]
    assert width(0.1) < width(1.0) / 3
    assert width(5.0) == width(9.0)  # not believed beyond twice the furthest device that was left out
    for distance in (0.0, 0.1, 0.3, 0.6, 1.0):
        low, high = np.log(found.factors(distance))
        logs = errors_at(distance)
        inside = float(((logs >= low) & (logs <= high)).mean())
        assert 0.85 < inside < 0.995, distance
    alike = [DeviceErrors(str(place), "x", distance, rng.normal(0, 0.1, 2_000)) for place, distance in enumerate(far)]
    level = calibrate_elsewhere(alike, ("num_cus",))
    assert level.factors(1.0)[1] < 1.1 * level.factors(0.0)[1]


def test_a_few_rows_move_a_model_to_their_device(home, held, tmp_path):
    """The error falls, the interval covers rows that were not given, and the same rows give the same bytes."""
    pooled = kerncast.open(home / "pooled")
    moved = kerncast.train(home / "few", base=pooled, device=NEW, out=tmp_path / "m", progress=None)
    before, after = np.abs(errors(pooled, held, device=NEW)).mean(), np.abs(errors(moved, held)).mean()
    told = moved.evaluation["adapted"]
    assert after < before / 2
    assert abs(told["after"] - after) < 0.03
    assert told["after"] < told["before"]
    assert told["kept"] == "moved"
    assert told["alone"] > told["after"]
    assert inside(moved, held) > 0.82
    assert [record.name for record in moved.manifest.devices] == ["fresh"]
    assert moved.manifest.hull["M"] == pooled.manifest.hull["M"]
    again = kerncast.train(home / "few", base=home / "pooled", device=NEW, out=tmp_path / "again", progress=None)
    assert again.manifest.checksum == moved.manifest.checksum
    files = {name: (moved.path / name).read_bytes() for name in moved.manifest.files}
    assert files == {name: (again.path / name).read_bytes() for name in again.manifest.files}


def test_rows_that_agree_with_the_model_do_not_hurt_it(home, tmp_path):
    """Rows of a device as the model expects it, with nothing to learn from, leave it as good as it was."""
    pooled = kerncast.open(home / "pooled")
    frame, test = rows(SEEN[1], 40, 1.3, 5), rows(SEEN[1], 500, 1.3, 6)
    dataset(tmp_path / "d", (SEEN[1], frame))
    moved = kerncast.train(tmp_path / "d", base=pooled, device=SEEN[1], out=tmp_path / "m", progress=None)
    before, after = np.abs(errors(pooled, test, device="two")).mean(), np.abs(errors(moved, test)).mean()
    assert after < 1.15 * before


def test_rows_of_an_unknown_layout_are_left_out_and_named(home, tmp_path):
    """They change nothing in the model, which then answers from the store without a layout, for the profile too."""
    few = rows(NEW, 60, 1.9, 7)
    other = rows(NEW, 20, 9.0, 8).with_columns(pl.lit("rrr").alias("problem.layout"))
    dataset(tmp_path / "both", (NEW, pl.concat([few, other])))
    moved = kerncast.train(tmp_path / "both", base=home / "pooled", device=NEW, out=tmp_path / "m", progress=None)
    (said,) = moved.evaluation["adapted"]["not_used"]
    assert "20 of 80 rows have layout rrr" in said
    assert "trained with rcr only" in said
    assert moved.evaluation["adapted"]["rows"] == 60
    assert moved.manifest.hull["layout"].labels == ("rcr",)
    store = Store.open(tmp_path / "store")
    entry = store.add(moved)
    problem = {name: PROBLEM[name] for name in ("M", "N", "K", "dtype")}
    for on in ("fresh", NEW):
        found = kerncast.predict("gemm", problem, device=on, store=store)
        assert (found.basis, found.model, found.filled["layout"]) == ("model", entry.id, "rcr")


def test_a_model_of_the_rows_alone_is_kept_where_it_is_better(home, tmp_path, monkeypatch):
    """Times that follow none of what the base knows are learned better without it, and the model says so."""
    monkeypatch.setattr(adapting, "FOLDS", 2)
    frame = rows(NEW, 400, 1.9, 7)
    slow = pl.when(pl.col("problem.N") % 3 == 0).then(250_000.0).otherwise(50_000.0)
    dataset(tmp_path / "odd", (NEW, frame.with_columns(time_ns=slow)))
    found = kerncast.train(tmp_path / "odd", base=home / "pooled", device=NEW, out=tmp_path / "m", progress=None)
    told = found.evaluation["adapted"]
    assert told["kept"] == "alone"
    assert told["alone"] < 0.95 * told["after"]
    assert found.evaluation["overall"]["mape"]["value"] == pytest.approx(told["alone"], rel=0.01)
    assert found.manifest.hull["M"].low == frame["problem.M"].min()
    assert not found.manifest.warm_start


@pytest.mark.needs("cmake")
def test_a_moved_model_answers_in_c_as_in_python(home, tmp_path):
    """Exported to C it passes its own test of golden answers, which Python made."""
    import subprocess

    moved = kerncast.train(home / "few", base=home / "pooled", device=NEW, out=tmp_path / "m", progress=None)
    files = kerncast.export(moved, out=tmp_path / "c", progress=None)
    assert any(file.name.endswith(".c") for file in files)
    subprocess.run(["cmake", "-S", tmp_path / "c", "-B", tmp_path / "b"], check=True, capture_output=True)
    subprocess.run(["cmake", "--build", tmp_path / "b"], check=True, capture_output=True)
    subprocess.run(["ctest", "--test-dir", tmp_path / "b"], check=True, capture_output=True)


def test_rows_of_another_op_device_or_dtype_are_refused_by_name(home, tmp_path):
    """What the model cannot learn from is refused before anything is written."""
    pooled = kerncast.open(home / "pooled")
    with pytest.raises(InvalidValue, match="measured on fresh, not on five"):
        kerncast.train(home / "few", base=pooled, device=SEEN[4], out=tmp_path / "m", progress=None)
    wide = Device("fresh", "fresh", "gpu", NEW.numbers, {**NEW.peak_tflops, "fp16": 500})
    dataset(tmp_path / "fp16", (wide, rows(wide, 30, 1.9, 3, ("bf16",)).with_columns(pl.lit("fp16").alias("problem.dtype"))))
    with pytest.raises(InvalidValue, match=r"30 of 30 rows have dtype fp16, of which .* knows nothing"):
        kerncast.train(tmp_path / "fp16", base=pooled, out=tmp_path / "m", progress=None)
    with pytest.raises(InvalidValue, match=r"several devices \(five, four, one, three, two\)"):
        kerncast.train(home / "d", base=pooled, device=SEEN[4], out=tmp_path / "m", progress=None)
    bare = Device("fresh", "fresh", "gpu", {"memory_bandwidth_gb_s": 2400}, NEW.peak_tflops)
    with pytest.raises(InvalidValue, match=r"whose profile lacks .*num_cus"):
        kerncast.train(home / "few", base=pooled, device=bare, out=tmp_path / "m", progress=None)
    roofline = kerncast.train(home / "few", out=tmp_path / "r", kind="roofline", folds=2, progress=None)
    with pytest.raises(InvalidValue, match="is a roofline model, and only gbdt models"):
        kerncast.train(home / "few", base=roofline, device=NEW, out=tmp_path / "m", progress=None)
    assert not (tmp_path / "m").exists()


def test_a_moved_model_chooses_kernels_only_where_some_rows_had_them(tmp_path):
    """Rows of bf16 say nothing of the kernel of fp8, which other devices have for fp8 alone."""
    narrow = pl.when(pl.col("problem.dtype") == "fp8").then(pl.lit("deepgemm")).otherwise(pl.lit("torch_flow"))
    parts = [(on, rows(on, 120, 1.2, 1).with_columns(narrow.alias("config.kernel_source"))) for on in SEEN[:3]]
    dataset(tmp_path / "d", *parts)
    pooled = kerncast.train(tmp_path / "d", out=tmp_path / "pooled", pool=True, **SMALL)
    dataset(tmp_path / "few", (NEW, rows(NEW, 60, 1.9, 7, dtypes=("bf16",))))
    moved = kerncast.train(tmp_path / "few", base=pooled, device=NEW, out=tmp_path / "m", progress=None)
    for model in (moved, moved.slimmed(tmp_path / "slim")):
        for dtype, kernel in (("bf16", "torch_flow"), ("fp8", "deepgemm")):
            answers = [model.predict({**PROBLEM, "M": size, "dtype": dtype}) for size in (64, 512, 4096)]
            assert {answer.config["kernel_source"] for answer in answers} == {kernel}
    with pytest.raises(InvalidValue, match="learned from these rows already"):
        kerncast.train(tmp_path / "few", base=moved, device=NEW, out=tmp_path / "again", progress=None)


def test_a_kernel_that_the_device_never_ran_gives_way_to_one_that_it_did(tmp_path):
    """Other devices' fastest kernel may not exist here; it is chosen only where none of the device's own was ever tried."""
    quick, parts = pl.lit("deepgemm").alias("config.kernel_source"), []
    for on in SEEN[:3]:
        both = rows(on, 120, 1.2, 1)
        parts += [(on, both), (on, both.with_columns(quick, pl.col("time_ns") / 2))]
    dataset(tmp_path / "d", *parts)
    pooled = kerncast.train(tmp_path / "d", out=tmp_path / "pooled", pool=True, **SMALL)
    assert pooled.predict(PROBLEM, device="two").config["kernel_source"] == "deepgemm"
    few = rows(NEW, 200, 1.9, 7, dtypes=("bf16",)).filter(pl.col("problem.M") <= 512)
    dataset(tmp_path / "few", (NEW, few))
    moved = kerncast.train(tmp_path / "few", base=pooled, device=NEW, out=tmp_path / "m", progress=None)
    asked = [{**PROBLEM, "M": size, "dtype": dtype} for size in (64, 512, 8192) for dtype in ("bf16", "fp8")]
    assert {moved.predict(problem).config["kernel_source"] for problem in asked} == {"torch_flow"}
    assert moved.predict(asked[0], {"kernel_source": "deepgemm"}).time_ns < moved.predict(asked[0]).time_ns
