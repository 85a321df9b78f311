"""Datasets that are too large to load: what is read of them, and that it gives the same answers as loading them."""

import numpy as np
import polars as pl
import pytest

import kerncast
from kerncast.data import Dataset, condensed, quality, schema, stored_rows
from kerncast.data.filters import SHARES, columns_of, draw_problems, problem_share
from kerncast.learning import measurements
from kerncast.library import devices
from kerncast.library.declared.family_file import family_named

TRITON = family_named("gemm/triton")
COUNT = 6000
# Shares of the problems M = 0, 1, 2 by the seed 0.
FIRST_SHARES = [6077, 59177, 5552]


@pytest.fixture(scope="module")
def dataset(tmp_path_factory):
    """Random rows in several parts: repeats, failures, three devices (one of them unknown), two sources out of order."""
    rng = np.random.default_rng(5)
    configs = TRITON.config.sample(40, 0, TRITON.bindings({"dtype": "fp16"}, devices.get("a100")))
    sizes = rng.integers(1, 5, (COUNT, 3)) * 128
    rows = configs.rename(lambda name: f"config.{name}")[rng.integers(0, configs.height, COUNT)].with_columns(
        *(pl.Series(f"problem.{name}", sizes[:, place]) for place, name in enumerate("MNK")),
        pl.lit("fp16").alias("problem.dtype"), pl.Series("problem.layout", rng.choice(["rcr", "rrr"], COUNT)),
        device=pl.Series(rng.choice(["a100", "h100", "mystery"], COUNT, p=[0.6, 0.3, 0.1])),
        status=pl.Series(rng.choice(["ok", "timeout"], COUNT, p=[0.95, 0.05])),
        time_ns=pl.Series(np.exp(rng.normal(9, 0.5, COUNT))),
        software=pl.Series(rng.choice(["w", "x"], COUNT)), source=pl.Series(rng.choice(["b", "a"], COUNT)),
        source_line=pl.Series(rng.permutation(COUNT)),
    )  # fmt: skip
    rows = rows.with_columns(time_ns=pl.when(pl.col("status") == "ok").then("time_ns"))
    made = Dataset.create(tmp_path_factory.mktemp("large") / "d")
    for start in range(0, COUNT, 2500):
        made.append(TRITON, rows[start : start + 2500])
    return Dataset.open(made.path)


def _of_the_table(report):
    """The figures of the only family, without those that are read of the stored rows."""
    (section,) = report["families"]
    assert (section.pop("noise_of_samples"), section.pop("isolated_times")["rows"]) == (None, 0)
    return section


def test_inspecting_in_pieces_says_the_same_as_inspecting_the_whole_table(dataset, monkeypatch):
    """Every figure, example and finding, whatever the size of the pieces; of rows in memory and on disk."""
    monkeypatch.setattr(quality, "SHIFT_ROWS", 0)  # fitting the models for it takes longer than everything else
    whole = quality.inspect_family(TRITON, dataset.read(), dataset.device)
    assert whole["disagreements"]["mixed_statuses"] > 0
    assert whole["fastest_of"] == len(whole["fastest"]) > 100
    for rows in (500, COUNT):
        monkeypatch.setattr(stored_rows, "PIECE_ROWS", rows)
        assert _of_the_table(dataset.inspect()) == whole
    some = _of_the_table(dataset.inspect("problem.M<400"))
    own = quality.inspect_family(TRITON, dataset.read(where=["problem.M<400"]), dataset.device)
    assert {**some, "label_shift": None} == {**own, "label_shift": None}
    assert "`where`" in some["label_shift"]["note"]


def test_figures_of_an_inspection_are_those_of_plain_python(dataset, monkeypatch):
    """Against dictionaries: problems, repeats that disagree, the fastest of each problem by the median of its repeats."""
    monkeypatch.setattr(quality, "SHIFT_ROWS", 0)
    (found,) = dataset.inspect()["families"]
    problems, repeats, times = set(), {}, {}
    for row in dataset.read().to_dicts():
        problem = tuple(value for name, value in row.items() if name.startswith("problem."))
        problems.add((row["device"], problem))
        if row["status"] == "ok":
            repeats.setdefault((row["key"], row["software"]), []).append(row["time_ns"])
            times.setdefault((row["device"], problem), {}).setdefault(row["key"], []).append(row["time_ns"])
    assert (found["rows"], found["problems"]) == (COUNT, len(problems))
    far = [values for values in repeats.values() if max(values) > 1.5 * min(values)]
    assert found["disagreements"]["measurements"] == len(far)
    assert found["disagreements"]["worst"][0]["ratio"] == max(max(values) / min(values) for values in far)
    best = {place: min(float(np.median(values)) for values in own.values()) for place, own in times.items()}
    listed = {(item["device"], tuple(item["problem"].values())): item["time_ns"] for item in found["fastest"]}
    assert listed == pytest.approx(best)


def test_too_many_rows_are_inspected_by_whole_problems(dataset, monkeypatch):
    """Counts are of all rows, the rest is of drawn problems; not more rows than allowed are held, and it is said."""
    monkeypatch.setattr(quality, "MOST_ROWS", 2000)
    held = []
    monkeypatch.setattr(quality, "condense", lambda pieces: held.append(condensed.condense(pieces)) or held[-1])
    (found,) = dataset.inspect()["families"]
    assert found["rows"] == COUNT
    assert found["statuses"] == dict(dataset.read()["status"].value_counts().iter_rows())
    assert 1000 < found["looked_at_rows"] == held[0].frame.height <= 2000
    assert "drawn problems" in found["label_shift"]["note"]


def test_a_draw_takes_whole_problems_of_each_device_the_same_ones_every_time(dataset):
    """Smaller draws are parts of larger ones; another seed draws others; how the rows are divided does not matter."""
    rows = dataset.read()
    columns = ["device", *(name for name in rows.columns if name.startswith("problem."))]
    sizes = rows.group_by(columns).len()
    taken = {}
    for wanted, seed in ((600, 0), (1500, 0), (600, 1)):
        draw, count = draw_problems(TRITON, dataset.pieces(TRITON, columns=columns_of(TRITON)), wanted, seed)
        kept = pl.concat(dataset.pieces(TRITON, [draw]))
        assert wanted / 2 < kept.height == count <= wanted
        again = kept.group_by(columns).len().join(sizes, on=columns, nulls_equal=True)
        assert again.height == kept.select(columns).unique().height
        assert (again["len"] == again["len_right"]).all()
        taken[wanted, seed] = set(kept["key"])
    assert taken[600, 0] < taken[1500, 0]
    assert len(taken[600, 0] & taken[600, 1]) < 0.6 * len(taken[600, 0])
    halves = [rows.filter(pl.col("source") == name) for name in "ab"]
    assert draw_problems(TRITON, halves, 600, 0)[0] == draw_problems(TRITON, [rows], 600, 0)[0]


def test_the_hash_of_a_problem_stays_what_it_is():
    """It decides what a model is trained on, so it must not change with a version; equal shares have equally many problems."""
    problems = pl.DataFrame({"problem.M": np.arange(40_000), "problem.dtype": ["fp16"] * 40_000}).with_columns(
        pl.lit(None, schema.column_type(parameter)).alias(f"problem.{name}")
        for name, parameter in TRITON.problem.parameters.items()
        if name not in ("M", "dtype")
    )
    shares = problems.select(problem_share(TRITON, 0)).to_series()
    assert shares[:3].to_list() == FIRST_SHARES
    counts = np.histogram(shares.to_numpy(), 16, (0, SHARES))[0]
    assert abs(counts / 2500 - 1).max() < 0.1


def test_training_on_some_rows_of_very_many_reads_no_more_than_a_part(dataset, tmp_path, monkeypatch):
    """The number of rows that reach the table is bounded, and the model is the same every time."""
    monkeypatch.setattr(measurements, "READ_WHOLE", 1000)
    monkeypatch.setattr(measurements, "MARGIN", 4)
    read = []
    pieces = Dataset.pieces

    def counted(self, family=None, where=(), columns=None):
        for piece in pieces(self, family, where, columns):
            if columns is None:  # a draw reads few columns of all rows, a piece at a time
                read.append(piece.height)
            yield piece

    monkeypatch.setattr(Dataset, "pieces", counted)
    models = set()
    for number in range(2):
        read.clear()
        out = tmp_path / str(number)
        where = ["device=a100,h100", "software=x"]
        model = kerncast.train(dataset.path, out=out, where=where, rows=300, folds=0, trees=5, pool=True, progress=False)
        assert 200 <= model.manifest.data.rows <= 300
        assert 600 < sum(read) <= 1200
        models.add((out / "model.json").read_bytes())
    assert len(models) == 1


def test_rows_are_read_by_their_places(dataset, monkeypatch):
    """In the order that is asked for, with and without conditions; pieces without a wanted row are not read."""
    rows, places = dataset.read(), np.array([5999, 3, 2600, 3, 0])
    monkeypatch.setattr(stored_rows, "PIECE_ROWS", 100)
    assert dataset.rows_at(TRITON, places).equals(rows[places])
    kept = rows.filter(pl.col("device") == "h100")
    some = dataset.rows_at(TRITON, places[1:2], ["device=h100"], ["key", "time_ns"])
    assert some.equals(kept[places[1:2]].select("key", "time_ns"))
    read = []
    stored = Dataset.stored
    monkeypatch.setattr(Dataset, "stored", lambda self, family, part: read.append(part.file) or stored(self, family, part))
    dataset.rows_at(TRITON, np.array([10, 20]))
    assert len(read) == 1
