"""torch-diode's datasets as training data."""

import json
import math

import msgspec
import pytest

import kerncast
from kerncast.data.formats import ImportOptions
from kerncast.errors import BadFile, InvalidValue, KerncastError
from kerncast.testing.importers import ImporterContract

TILE = {"name": "mm_config", "grid": 1, "block_m": 64, "block_n": 128, "block_k": 32, "group_m": 8, "num_stages": 3,
        "num_warps": 4, "EVEN_K": False, "ALLOW_TF32": False, "USE_FAST_ACCUM": False, "ACC_TYPE": "tl.float32",
        "version": 1}  # fmt: skip


def shape(m=64, n=256, k=512, b=1, dtype="float16", **more):
    """A problem as torch-diode writes it: the text of an object."""
    return json.dumps(
        {"version": 1, "B": b, "M": m, "M_dtype": dtype, "N": n, "K": k, "K_dtype": dtype, "out_dtype": dtype,
         "out_size": [b, m, n], "out_stride": [m * n, n, 1], **more}
    )  # fmt: skip


def timed(time, **tile):
    return {"config": {**TILE, **tile}, "time": time, "version": 1}


def dataset(hardware="NVIDIA H100 80GB HBM3", **operations):
    """A file: {operation: {shape: [timed configs]}}."""
    parts = {
        op: {"solution": {text: {"timed_configs": listed, "version": 1} for text, listed in problems.items()}}
        for op, problems in operations.items()
    }
    return {"hardware": {hardware: {"operation": parts, "version": 1}}, "version": 1}


SAMPLE = dataset(mm={shape(): [timed(0.0123), timed(0.0145, block_m=32, group_m=4), timed(0.02, num_warps=8)]})


class TestDiode(ImporterContract):
    format_name = "diode"
    sample = json.dumps(SAMPLE, indent=2).encode()
    options = ImportOptions(device="h100")


def read(tmp_path, data, encode=lambda data: json.dumps(data).encode(), name="out", **options):
    path = tmp_path / f"{name}.file"
    path.write_bytes(encode(data))
    return kerncast.read(path, out=tmp_path / name, progress=False, **options)


def test_json_and_msgpack_give_the_same_rows_and_times_are_milliseconds(tmp_path):
    """The format is recognised; a bias for addmm, B for bmm; inf is a failure; other operations are left out by name."""
    data = dataset(
        mm={shape(): [timed(0.0123), timed(math.inf, block_m=256)]},
        addmm={shape(dtype="bfloat16"): [timed(0.5)]},
        bmm={shape(b=12): [timed(1.5, group_m=4)]},
        scaled_mm={shape(): [timed(1.0), timed(2.0)]},
    )
    first = read(tmp_path, data, name="json")
    second = read(tmp_path, data, msgspec.msgpack.encode, name="msgpack")
    assert first.digest != second.digest  # every row names its file
    rows = first.frame()
    assert rows.drop("source").equals(second.frame().drop("source"))
    assert rows["device"].unique().to_list() == ["h100"]
    seen = rows.select(
        *(f"problem.{name}" for name in ("batch", "dtype", "layout", "bias")), "config.GROUP_M", "status", "time_ns"
    )
    assert seen.rows() == [
        (1, "fp16", "rrr", None, None, "ok", pytest.approx(12_300)),
        (1, "fp16", "rrr", None, None, "launch_error", None),
        (1, "bf16", "rrr", True, None, "ok", pytest.approx(500_000)),
        (12, "fp16", "rrr", None, 4, "ok", pytest.approx(1_500_000)),
    ]
    told = " ".join(first.notes)
    assert "left out 2 timings of scaled_mm" in told
    assert "read as rrr" in told
    assert "1 rows of addmm" in told


def test_what_a_shape_does_not_say_can_be_said(tmp_path):
    """`constants` gives the layout and TF32; TF32 is for fp32 alone; what the file says itself is used."""
    data = dataset(mm={shape(dtype="float32"): [timed(1.0)], shape(): [timed(1.0)]})
    plain = read(tmp_path, data, name="plain")
    assert plain.frame()["problem.tf32"].to_list() == [False, False]
    assert any("1 fp32 rows" in note for note in plain.notes)
    told = read(tmp_path, data, name="told", constants={"layout": "rcr", "tf32": "true"}).frame()
    assert told.select("problem.layout", "problem.tf32").rows() == [("rcr", True), ("rcr", False)]
    own = dataset(mm={shape(dtype="float32"): [timed(1.0, ALLOW_TF32=True)]})
    assert read(tmp_path, own, name="own").frame()["problem.tf32"].to_list() == [True]
    with pytest.raises(InvalidValue, match="`constants` layout must be"):
        read(tmp_path, data, name="bad", constants={"layout": "nt"})
    with pytest.raises(KerncastError, match="'dtype'"):
        read(tmp_path, data, name="bad", constants={"dtype": "fp16"})


def test_the_device_is_named_or_asked_for_and_never_contradicted(tmp_path):
    """A name that is not known needs `device`; a known one must agree with it; two devices become rows of both."""
    unknown = dataset("NVIDIA H100", mm={shape(): [timed(1.0)]})
    with pytest.raises(InvalidValue, match="`device=h100`"):
        read(tmp_path, unknown, name="a")
    assert read(tmp_path, unknown, name="b", device="h100").frame()["device"].to_list() == ["h100"]
    with pytest.raises(InvalidValue, match="measured on h100, not a100"):
        read(tmp_path, SAMPLE, name="c", device="a100")
    two = {"hardware": {**SAMPLE["hardware"], **dataset("a100", mm={shape(): [timed(1.0)]})["hardware"]}}
    assert set(read(tmp_path, two, name="d").frame()["device"]) == {"h100", "a100"}
    both = {"hardware": {**unknown["hardware"], **dataset("my GPU", mm={shape(): [timed(1.0)]})["hardware"]}}
    with pytest.raises(InvalidValue, match="several devices"):
        read(tmp_path, both, name="e", device="h100")


def test_rows_that_gemm_triton_lacks_are_skipped_by_reason(tmp_path):
    """Symbols, two dtypes, tiles that are none, times that are none: each costs its row; texts of objects are read."""
    good = [timed(1.0, block_m=size) for size in (16, 32, 64, 128, 256)]
    data = dataset(mm={
        shape(): [*good, timed(-1.0), timed(math.nan), timed(1.0, block_m=48), {"time": 1.0},
                  {"config": json.dumps(TILE), "time": 2.0}],
        shape("s77"): [timed(1.0)],
        shape(K_dtype="int8"): [timed(1.0)],
    })  # fmt: skip
    found = read(tmp_path, data, device="h100")
    assert found.rows == 6
    assert {kind.kind: kind.rows for kind in found.skipped.kinds} == {
        "a time must be a positive number of milliseconds": 2,
        "a config must be one of gemm/triton's (`kerncast list family gemm/triton`)": 1,
        "`config` must be an object": 1,
        "a size must be a number, not a symbol": 1,
        "A and B must have one dtype, and gemm must have it": 1,
    }
    assert found.frame()["source_line"].is_unique().all()


def test_a_config_that_occurs_twice_is_a_repeat_and_said(tmp_path):
    """torch-diode does not name the template, so two templates with one tile look alike."""
    found = read(tmp_path, dataset(mm={shape(): [timed(1.0), timed(1.2), timed(1.4, num_warps=8)]}))
    assert found.frame()["key"].n_unique() == 2
    assert any("1 rows have a config that their problem has already" in note for note in found.notes)


@pytest.mark.parametrize(
    ("data", "why"),
    [
        ({"config": [TILE]}, "without times"),
        ({"hardware": {"h100": {"operation": {"mm": {"solution": {shape(): {"config": [TILE]}}}}}}}, "without times"),
        ([1, 2], "not a torch-diode dataset"),
        ({"hardware": {"h100": {"operation": {"mm": {"solution": {shape(): {"timed_configs": 3}}}}}}}, "list of configs"),
        ({"hardware": {"h100": {"operation": [1]}}}, "must be an object"),
        (dataset("h100", scaled_mm={shape(): [timed(1.0)]}), "holds no rows"),
    ],
)
def test_what_holds_no_times_is_refused_with_the_next_step(tmp_path, data, why):
    """A table of choices, another file, nothing that gemm has."""
    with pytest.raises(BadFile, match=why):
        read(tmp_path, data, file_format="diode")


def test_values_that_only_their_writer_can_read_are_refused_by_their_type(tmp_path):
    """An extension of msgpack is no object of Python in a message."""
    data = {"hardware": {"h100": {"operation": msgspec.msgpack.Ext(5, b"abc")}}}
    with pytest.raises(BadFile, match=r"it has a value of msgpack's extension type 5 \(3 bytes\)"):
        read(tmp_path, data, msgspec.msgpack.encode, file_format="diode")


def test_a_model_trains_on_it_and_answers(tmp_path):
    """From their file to a choice for a shape that it does not have."""
    problems = {shape(m, n, k): [timed(m * n * k / 1e9 * (1 + abs(bm - 64) / 64) + warps / 1e3, block_m=bm, num_warps=warps)
                                 for bm in (32, 64, 128) for warps in (4, 8)]
                for m in (64, 128, 256) for n in (64, 256) for k in (128, 512)}  # fmt: skip
    data = read(tmp_path, dataset(mm=problems), msgspec.msgpack.encode)
    model = kerncast.train(data, out=tmp_path / "m", folds=2, trees=20, progress=False)
    answer = kerncast.Selector(model).select({"M": 96, "N": 256, "K": 512, "dtype": "fp16", "layout": "rrr"})
    assert answer.config["BLOCK_M"] == 64
