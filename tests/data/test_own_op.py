"""A table of one's own kernel: its draft, answered, is all that a choice needs."""

import itertools
import random
import tomllib

import polars as pl
import pytest
from click.testing import CliRunner

import kerncast
from kerncast.app.cli import program
from kerncast.data.formats import ImportOptions
from kerncast.data.importing import import_files
from kerncast.errors import BadFile, InvalidValue, NotFound

EVIL = '\x1b[31m"]\t[x] # \u202e'


def drafted(source, family=None):
    """The draft of a table beside it, and what it says."""
    path = source.with_suffix(".toml")
    path.write_text(kerncast.Dataset.guess_mapping(source, family=family), encoding="utf-8")
    return path, tomllib.loads(path.read_text(encoding="utf-8"))


def written(path, header, rows, separator=","):
    """A CSV file."""
    quoted = (
        (f'"{cell.replace(chr(34), 2 * chr(34))}"' if isinstance(cell, str) else str(cell) for cell in row) for row in rows
    )
    path.write_text("\n".join([separator.join(header), *map(separator.join, quoted)]) + "\n", encoding="utf-8")
    return path


def test_from_a_table_to_a_choice_with_one_answer(tmp_path):
    """Sizes are the problem, blocks and warps the kernel, the unit is in the name; only the device must be said."""
    rows = [
        (height, width, block, warps, height * width * (1 + (block != 64) + abs(warps - 4) / 4) / 1e6)
        for height, width, block, warps in itertools.product((64, 128, 512, 1024), (32, 64, 256), (32, 64, 128), (2, 4, 8))
    ]
    source = written(tmp_path / "my blur.csv", ["height", "width", "BLOCK", "num_warps", "ms"], rows)
    path, found = drafted(source)
    assert path.read_text().count('"?"') == 1
    assert list(found["op"]["problem"]) == ["height", "width"]
    assert found["family"] == {"name": "own", "config": {"BLOCK": [32, 64, 128], "num_warps": [2, 4, 8]}}
    path.write_text(path.read_text().replace('device = "?"', 'device = "h100"'))
    data = kerncast.read(source, mapping=path, out=tmp_path / "data", progress=False)
    assert [family.id for family in data.families] == ["my_blur/own"]
    model = kerncast.train(data, out=tmp_path / "model", folds=2, trees=20, progress=False)
    answer = kerncast.Selector(model, compile=False)(height=256, width=64)
    assert answer.config.as_dict() == {"BLOCK": 64, "num_warps": 4}


def test_frames_of_an_own_op_are_taken_wherever_frames_are(tmp_path, run):
    """By the name that they carry once this process has read the op, and by the file that declares it; their lines are left."""
    rows = [
        (h, w, b, h * w * (1 + (b != 64)) / 1e6) for h in (64, 128, 512, 1024) for w in (32, 64, 256) for b in (32, 64, 128)
    ]
    source = written(tmp_path / "haze.csv", ["height", "width", "BLOCK", "ms"], rows)
    mapping, _ = drafted(source)
    mapping.write_text(mapping.read_text().replace('device = "?"', 'device = "h100"'))
    data = kerncast.read(source, mapping=mapping, out=tmp_path / "data", progress=False)
    frame, small = data.frame(), {"folds": 0, "trees": 5, "progress": False}
    wanted = str(kerncast.train(data, **small).evaluation["problems_trained_on"])
    bare = frame.select("device", "time_ns", "status", *(name for name in frame.columns if "." in name))
    for given, family in ((frame, None), (frame, str(mapping)), (bare, str(mapping)), (bare, "haze/own"), (data, str(mapping))):
        assert str(kerncast.train(given, family=family, **small).evaluation["problems_trained_on"]) == wanted
    assert kerncast.read(frame).frame().drop("source", "source_line").equals(frame.drop("source", "source_line"))
    raw = pl.read_csv(source).with_columns(source_line=pl.lit(7), source=pl.lit("elsewhere"))
    assert kerncast.read(raw, mapping=mapping).rows == frame.height
    code, _, err = run("train", tmp_path / "data", "--family", mapping, "--out", tmp_path / "m", "--no-folds", "--trees", 3)
    assert (code, err.count("holds no rows")) == (0, 0), err
    mapping.write_text(mapping.read_text().replace("128]", "128, 256]"))
    other = kerncast.Dataset.guess_mapping(source).replace('device = "?"', 'device = "h100"').replace("128]", "128, 512]")
    (tmp_path / "other.toml").write_text(other)
    kerncast.read(source, mapping=tmp_path / "other.toml")
    with pytest.raises(NotFound, match=r"unknown family 'haze/own'.*`kerncast.train\(frame, family=…\)`"):
        kerncast.train(frame, **small)
    with pytest.raises(InvalidValue, match="holds another draft of haze/own"):
        kerncast.train(kerncast.read(source, mapping=tmp_path / "other.toml"), family=str(mapping), **small)


def test_words_are_the_kernels_and_outcomes_are_statuses(tmp_path):
    """But dtypes are the problem's; cells without a word have one of their own, and a failed row keeps its status."""
    rows = [
        (
            height,
            width,
            dtype,
            order,
            staging,
            "" if order == 'z, "order"' else 1.5 * height,
            "not supported" if order[0] == "z" else "ok",
        )
        for height, width, dtype, order, staging in itertools.product(
            (64, 512), (64, 300), ("torch.float16", "float"), ("rows", 'z, "order"'), ("", "smem")
        )
    ]
    source = written(tmp_path / "gemm.csv", ["height", "width", "type", "order", "staging", "time_us", "outcome"], rows)
    path, found = drafted(source)
    assert found["op"]["name"] == "gemm_own"  # `gemm` is installed
    assert found["op"]["problem"]["dtype"] == ["fp32", "fp16"]
    assert found["family"]["config"] == {"order": ["rows", 'z, "order"'], "staging": ["smem", "none"]}
    data = import_files("csv", [source], tmp_path / "data", ImportOptions(mapping=path, device="h100"))
    assert data.rows == len(rows)
    assert data.read().group_by("status").len().sort("status").rows() == [("ok", 16), ("unsupported", 16)]
    assert set(data.read()["config.staging"]) == {"none", "smem"}


@pytest.mark.parametrize("order", range(3))
def test_a_hostile_table_in_any_order_of_its_columns(tmp_path, order):
    """Semicolons, decimal commas, a header in no ASCII, control characters, a constant, hashes, NaN and one damaged row."""
    rng = random.Random(order)
    points = itertools.product(
        ("A100-SXM4-80GB", "NVIDIA H100 80GB HBM3"), range(64, 1024, 64), (1, 4, 16), (8, 16), ("naive", "tiled; v2")
    )
    rows = [
        {"µs": str(round(size * steps / block + 1, 3)).replace(".", ","), "größe": size, "time_steps": steps, "Block X": block,
         "サイズ": kind, "gpu": gpu, "const": 7, "commit": f"{rng.getrandbits(160):040x}", "speed": str(rng.random()),
         EVIL: f"\x07<b>{size % 128}</b>", "note": f"a;b, {rng.random()}"}
        for gpu, size, steps, block, kind in points
    ]  # fmt: skip
    rows[5]["µs"], rows[9]["größe"] = "NaN", "\x1b]0;oops\x07"
    names = list(rows[0])
    rng.shuffle(names)
    table = [[str(row[name]) for name in names] for row in rows]
    path, found = drafted(
        written(tmp_path / "stencil.csv", [f'"{name.replace(chr(34), 2 * chr(34))}"' for name in names], table, ";")
    )
    text = path.read_text(encoding="utf-8")
    assert text.replace("\n", "").isprintable()
    assert '"?"' not in text
    assert {name: found["problem"][name] for name in ("groe", "time_steps")} == {"groe": "größe", "time_steps": "time_steps"}
    assert found["op"]["problem"]["const"] == [7]
    assert set(found["ignore"]) == {"commit", "speed", "note"}
    assert {str(column) for column in found["config"].values()} == {"Block X", "サイズ", EVIL}
    assert (found["time"]["column"], found["time"]["unit"]) == ("µs", "us")
    data = import_files("csv", [tmp_path / "stencil.csv"], tmp_path / "data", ImportOptions(mapping=path))
    assert (data.rows, data.skipped.rows) == (len(rows) - 1, 1)
    assert set(data.read()["device"]) == {"a100", "h100"}
    assert data.read()["time_ns"].min() == pytest.approx(1000 * (64 / 16 + 1))


def test_a_draft_goes_on_with_a_family_of_a_file(tmp_path):
    """`--family FILE.toml` looks for its parameters in another table; what comes next is said beside the draft."""
    source = written(tmp_path / "one.csv", ["height", "BLOCK", "ms"], [(64, 8, 1.5), (128, 16, 2.5)])
    own, _ = drafted(source)
    other = written(tmp_path / "two.csv", ["gpu", "block", "Height", "seconds"], [("h100", 8, 128, 0.25)])
    done = CliRunner().invoke(program, ["import", "csv", str(other), "--guess", "--family", str(own)])
    assert done.exit_code == 0, done.output
    (tmp_path / "two.toml").write_text(done.stdout)
    assert tomllib.loads(done.stdout)["family"] == str(own)
    assert "next: save the draft, read it, then kerncast import csv" in done.stderr
    rows = import_files("csv", [other], tmp_path / "data", ImportOptions(mapping=tmp_path / "two.toml")).read()
    assert rows.select("family", "problem.height", "config.BLOCK", "time_ns").rows() == [("one/own", 128, 8, 0.25e9)]


@pytest.mark.parametrize(
    ("text", "times"),
    [
        (",n,us\n0,1,1.5\n1,2,2.5\n", [1500.0, 2500.0]),  # pandas writes row numbers under no name
        ("n\tus\n1\t1,5\n2\t22,125\n", [1500.0, 22125.0]),
        ("n;us\n1;0,125\n2;1,250\n", [125.0, 1250.0]),
        ("n;us\n1;1,125\n2;1,250\n", None),  # thousands, perhaps
        ('n,us\n1,"1,5"\n2,"2,5"\n', None),
    ],
)
def test_a_comma_in_a_number_is_a_decimal_comma_only_if_it_can_be_nothing_else(tmp_path, text, times):
    """A wrong guess would be a wrong time, so such cells are no times then."""
    source, path = tmp_path / "t.csv", tmp_path / "t.toml"
    source.write_text(text)
    columns = 'device = "h100"\n[op]\nname = "t"\nproblem = { n = { from = 1, to = 9 } }\n[family]\nname = "own"\nconfig = {}\n'
    path.write_text(columns + '[problem]\nn = "n"\n[time]\ncolumn = "us"\nunit = "us"\n')
    if times is None:
        with pytest.raises(BadFile, match="us must be a positive time"):
            import_files("csv", [source], tmp_path / "data", ImportOptions(mapping=path))
    else:
        data = import_files("csv", [source], tmp_path / "data", ImportOptions(mapping=path))
        assert data.read().sort("source_line")["time_ns"].to_list() == times


def test_cells_with_a_unit_are_times(tmp_path, run):
    """The draft names the unit of most, a cell that says another one means it, and no cell with a unit is a failure."""
    rows = [
        (h, w, b, f"{h * w / 1000} us" if b != 64 else f"{h * w / 1000000}ms")
        for h in (64, 128)
        for w in (32, 64)
        for b in (32, 64, 128)
    ]
    source = written(tmp_path / "mist.csv", ["height", "width", "BLOCK", "time"], [*rows, (64, 64, 16, "out of memory")])
    path, found = drafted(source)
    assert found["time"] == {"column": "time", "unit": "us", "failed": {"out of memory": "launch_error"}}
    data = kerncast.read(source, mapping=path, device="h100").frame()
    assert data.filter(status="ok").filter(pl.col("time_ns") == pl.col("problem.height") * pl.col("problem.width")).height == 12
    for name, unit in {"t_us": "us", "avg µs": "us", "Laufzeit (µs)": "us", "t_s": "s"}.items():
        other = written(
            tmp_path / "other.csv", ["height", "width", "BLOCK", name, "GB/s"], [(*row[:3], 1.5, 2.5) for row in rows]
        )
        assert drafted(other)[1]["time"] == {"column": name, "unit": unit}


def test_wrong_statuses_empty_mappings_and_imports_where_nothing_worked_are_named(tmp_path, run):
    """A word that is no status is refused before anything is written; the draft lists the words; nothing ok ends with 3."""
    rows = [(h, w, b, 1.5, "FAILED: odd" if b == 64 else "OK") for h in (64, 128) for w in (32, 64) for b in (32, 64)]
    source = written(tmp_path / "fog.csv", ["height", "width", "BLOCK", "us", "status"], rows)
    path, _ = drafted(source)
    assert "# '?' is one of ok, invalid, compile_error" in path.read_text()
    text = path.read_text().replace('device = "?"', 'device = "h100"')
    path.write_text(text.replace('= "?"', '= "broken"'))
    code, _, err = run("import", "csv", source, "--mapping", path, "--out", tmp_path / "d")
    assert (code, (tmp_path / "d").exists()) == (2, False)
    assert "'broken' is not a status (known: ok, invalid" in err
    path.write_text(text.replace('= "?"', '= "crash"').replace('"OK" = "ok"', '"OK" = "timeout"'))
    code, _, err = run("import", "csv", source, "--mapping", path, "--out", tmp_path / "d")
    assert (code, err.count("no row worked")) == (3, 1)
    path.write_text("")
    assert "is empty: draft it again" in run("import", "csv", source, "--mapping", path, "--out", tmp_path / "e")[2]
