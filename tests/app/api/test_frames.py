"""Frames of measurements in the place of datasets."""

import polars as pl
import pytest

import kerncast as kc
from kerncast.testing.models import synthetic_dataset, synthetic_rows

SMALL = {"trees": 6, "library_trees": 4, "leaves": 7, "lr": 0.3, "bags": 1, "folds": 0, "threads": 1}


@pytest.fixture(scope="module")
def data(tmp_path_factory):
    return kc.open(synthetic_dataset(tmp_path_factory.mktemp("frames") / "data", synthetic_rows(problems=16)))


@pytest.fixture(scope="module")
def model(data):
    return kc.train(data, **SMALL)


def weights(model):
    return {file.name: file.read_bytes() for file in model.path.iterdir() if file.suffix in (".gz", ".npz")}


def plain(frame):
    """The same rows as a user may have them: bare names, whole floats, categories, a column of their own, no status."""
    bare = {name: name.partition(".")[2] for name in frame.columns if name.startswith(("problem.", "config."))}
    rows = frame.filter(status="ok").drop("key", "op", "family", "status").rename(bare)
    return rows.with_columns(pl.col("M").cast(pl.Float64), pl.col("dtype").cast(pl.Categorical), mine=pl.lit("\x1b[31m"))


def test_a_frame_of_a_dataset_is_read_trained_on_and_judged_like_the_dataset(data, model):
    """The same rows, the same weights to the last bit, the same figures."""
    frame = data.frame()
    own = [name for name in frame.columns if name not in ("source", "source_line")]
    assert kc.read(frame).frame()[own].equals(frame[own])
    trained = kc.train(frame, **SMALL)
    assert weights(trained) == weights(model)
    assert weights(model)
    judged = [kc.evaluate(model, given, include_seen=True, tiers=False) for given in (frame, data)]
    assert str(judged[0]) == str(judged[1])


def test_a_frame_may_have_bare_names_whole_floats_and_columns_of_its_own(data):
    """With `family` where the frame does not name one; `evaluate` asks for that of the model."""
    frame = plain(data.frame())
    trained, wanted = kc.train(frame, family="gemm/triton", **SMALL), kc.train(data, where="status=ok", **SMALL)
    assert weights(trained) == weights(wanted)
    assert "(16 problems" in str(kc.evaluate(trained, frame, include_seen=True, tiers=False))
    assert kc.read(frame.drop("device").with_columns(family=pl.lit("gemm/triton")), device="a100").rows == frame.height


@pytest.mark.needs("pandas")
def test_a_frame_of_pandas_is_read_like_one_of_polars(data, model):
    """Also with its nullable types; NaN and NA are empty cells."""
    import pandas

    frame = pandas.DataFrame(data.frame().to_dict(as_series=False))
    assert frame["time_ns"].isna().any()
    for given in (frame, frame.convert_dtypes(), frame.astype({"problem.dtype": "category", "problem.M": "float64"})):
        assert weights(kc.train(given, **SMALL)) == weights(model)


def test_a_frame_with_a_mapping_is_read_as_a_file_with_these_columns(tmp_path):
    """Names, units and outcomes are translated."""
    (tmp_path / "times.toml").write_text(
        'family = "gemm/single"\ndevice = { column = "gpu" }\n[problem]\nM = "m"\nN = "n"\nK = "k"\ndtype = "type"\n'
        'layout = { value = "rrr" }\n[time]\ncolumn = "ms"\nunit = "ms"\nfailed = { "" = "crash" }\n'
    )
    table = {"m": [8, 16], "n": [8, 8], "k": [8, 8], "type": ["half", "BF16"], "ms": [0.5, None], "gpu": ["h100", "a100"]}
    found = kc.read(pl.DataFrame(table), mapping=tmp_path / "times.toml").frame().sort("problem.M")
    assert found["time_ns"].to_list() == [5e5, None]
    assert found["problem.dtype"].to_list() == ["fp16", "bf16"]
    assert found["status"].to_list() == ["ok", "crash"]


@pytest.mark.parametrize(
    ("change", "said"),
    [
        (
            lambda rows: rows.with_columns(pl.col("problem.M") + 0.5),
            r"^row 1 of the frame: problem.M must be a whole number, got '\d+.5'",
        ),
        (
            lambda rows: rows.with_columns(time_ns=pl.lit("fast")),
            "^row 1 of the frame: time_ns must be a positive time, got 'fast'$",
        ),
        (
            lambda rows: rows.with_columns(device=pl.lit("nonesuch")),
            "unknown device 'nonesuch'[^`]*see `kerncast list device`\\)",
        ),
        (lambda rows: rows.with_columns(pl.lit(1).alias("problem.Q")), "unknown problem parameter of gemm/triton 'Q'"),
        (lambda rows: rows.rename({"problem.M": "m"}), "the column 'm' is not a parameter of gemm/triton: did you mean 'M'"),
        (lambda rows: rows.drop("device"), "add a column 'device'"),
        (lambda rows: rows.drop("time_ns"), "no column 'time_ns'"),
        (lambda rows: rows.clear(), "the frame has no rows"),
        (lambda rows: pl.concat([rows, rows.with_columns(family=pl.lit("gemm/cpu"))]), "got gemm/triton, gemm/cpu: take one"),
    ],
)
def test_a_frame_that_is_no_measurements_is_refused(data, change, said):
    """No row is skipped without a word; the error says the rule and the value."""
    with pytest.raises(kc.KerncastError, match=said):
        kc.train(change(data.frame()), **SMALL)


def test_what_takes_no_frame_says_what_does(data, tmp_path):
    """A draft is made of a frame as of its file; others refuse it with the way that works."""
    raw = pl.DataFrame({"height": [8, 16, 8, 16], "width": [8, 8, 8, 8], "BLOCK": [1, 1, 2, 2], "us": [1.0, None, 2.0, 3.0]})
    raw.write_parquet(tmp_path / "frame.parquet")
    draft = kc.Dataset.guess_mapping(raw)
    assert draft == kc.Dataset.guess_mapping(tmp_path / "frame.parquet")
    (tmp_path / "frame.toml").write_text(draft)
    for column, said in {
        "height": "height must be a whole number, got '8.5'",
        "us": "us must be a positive time .or be listed under",
    }.items():
        odd = raw.with_columns(
            pl.Series(column, [8, 8.5, 8, 16] if column == "height" else [1.0, -1.0, 2.0, 3.0], strict=False)
        )
        with pytest.raises(kc.KerncastError, match=rf"^row 2 of the frame: {said}"):
            kc.read(odd, mapping=tmp_path / "frame.toml", device="h100", strict=True)
    with pytest.raises(kc.KerncastError, match=r"the frame has columns that no known format has"):
        kc.read(raw)
    with pytest.raises(kc.KerncastError, match=r"got a frame: give `frame.to_dicts\(\)`, or ask one model"):
        kc.predict("gemm", raw, device="h100")
    with pytest.raises(kc.KerncastError, match=r"`op` is the name of an op, got PosixPath: a model answers by"):
        kc.predict(tmp_path, {"M": 1}, device="h100")
    with pytest.raises(kc.KerncastError, match="the rows say which device they were measured on"):
        kc.train(data.frame(), device="h100")
