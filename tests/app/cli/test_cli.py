"""The command line: results, JSON, exit codes, one-sentence refusals."""

import contextlib
import json
import os
import subprocess
import sys
from pathlib import Path

import pytest

from kerncast.app import cli
from kerncast.data import Dataset
from kerncast.errors import InvalidValue
from kerncast.measuring.backends.command import CommandBackend
from kerncast.measuring.backends.command.benchmark import shipped
from kerncast.measuring.backends.cpu import CpuBackend
from kerncast.measuring.backends.cpu.build import find_compiler
from kerncast.measuring.backends.opencl import OpenClBackend
from kerncast.measuring.plan import device_indices

EXP = b"""input_shape_1,input_shape_2,input_shape_3,input_shape_4,bfloat16,input_DRAM,input_L1,kernel_duration
64,32,0,0,1,1,0,1000
64,32,0,0,1,1,0,1010
64,64,0,0,1,0,1,1800
"""
GEMM_CSV = (
    b"M,N,K,dtype,layout,kind,BLOCK_M,BLOCK_N,BLOCK_K,num_stages,num_warps,time_us\n1,2,3,fp16,rcr,triton,16,16,16,2,4,7.5\n"
)


@pytest.fixture
def exp(tmp_path, run):
    """A small dataset of eltwise_unary."""
    (tmp_path / "exp.csv").write_bytes(EXP)
    code, _, err = run(
        "import", "ttnn-csv", tmp_path / "exp.csv", "--set", "func=exp", "--device", "wormhole_b0", "--out", tmp_path / "exp"
    )
    assert (code, err) == (0, "")
    return tmp_path / "exp"


def test_help_teaches_every_verb_without_loading_anything_heavy():
    """`kerncast --help` lists the verbs and imports neither polars nor numpy."""
    probe = "import sys; from kerncast.app.cli import program; program.main(['--help'], standalone_mode=False); " \
            "print(sorted({'polars', 'numpy', 'lightgbm', 'rich', 'torch'} & set(sys.modules)))"  # fmt: skip
    answer = subprocess.run([sys.executable, "-c", probe], capture_output=True, text=True, check=True)
    assert answer.stdout.strip().endswith("[]")
    for verb in cli.VERBS:
        assert f"  {verb} " in answer.stdout


@pytest.mark.parametrize("verb", sorted(cli.VERBS))
def test_every_verb_has_help_and_json(verb, run):
    """A verb explains itself, with examples where it takes arguments."""
    code, out, _ = run(verb, "--help")
    assert code == 0
    assert "--json" in out
    assert verb == "doctor" or "kerncast " + verb in out


LISTINGS = [
    ["list", "op"],
    ["list", "op", "gemm"],
    ["list", "family"],
    ["list", "family", "gemm/triton", "dtype=fp16", "--device", "a100"],
    ["list", "device"],
    ["list", "device", "h100"],
    ["list", "device", "local"],
    ["doctor"],
]


@pytest.mark.parametrize("args", LISTINGS)
def test_listings_print_for_people_and_parse_for_programs(args, run):
    """The same facts twice; nothing on stderr."""
    code, out, err = run(*args)
    assert code == 0
    assert err == ""
    assert len(out.splitlines()) > 3
    code, out, _ = run(*args, "--json")
    assert code == 0
    assert json.loads(out)


def test_families_counts_valid_configs_and_names_missing_features(run):
    """What a device narrows, and what its profile cannot supply."""
    _, out, _ = run("list", "family", "gemm/triton", "dtype=fp16", "--device", "a100", "--json")
    found = json.loads(out)
    assert 0 < found["valid_configs"] < found["raw_configs"]
    assert found["features_left_out"] == {}
    _, out, _ = run("list", "family", "gemm/triton", "--device", "cpu_generic")
    assert "left out on cpu_generic: wave_quantization needs hw.num_cus" in out


def test_import_inspect_merge_from_end_to_end(exp, tmp_path, run):
    """What a user does with a table: rows in, facts out, twice the same when merged with itself."""
    code, out, err = run("inspect", exp)
    assert (code, err) == (0, "")
    for text in ("eltwise_unary/single", "wormhole_b0 (3)", "exp.csv", "noise of repeats", "constant: "):
        assert text in out
    _, out, _ = run("inspect", exp, "--json", "--where", "problem.buffer=dram")
    report = json.loads(out)
    assert report["rows"] == 2
    section = report["families"][0]
    assert section["statuses"] == {"ok": 2}
    assert section["fastest"][0]["time_ns"] == 1005
    code, out, _ = run("merge", exp, exp, "--out", tmp_path / "both", "--json")
    assert code == 0
    merged = json.loads(out)
    assert (merged["path"], merged["notes"]) == (str(tmp_path / "both"), ["3 exact duplicates dropped"])
    assert (merged["rows"], merged["duplicates_dropped"]) == (3, 3)


def test_guess_prints_a_mapping_and_writes_nothing(tmp_path, run):
    """A draft on stdout, to be read before it is used."""
    (tmp_path / "t.csv").write_bytes(GEMM_CSV)
    code, out, _ = run("import", "csv", tmp_path / "t.csv", "--guess")
    assert code == 0
    assert 'family = "gemm/triton"' in out
    assert sorted(item.name for item in tmp_path.iterdir()) == ["t.csv"]


@pytest.mark.parametrize(
    ("args", "why"),
    [
        (["gem"], "unknown verb 'gem'"),
        (["query", "{}"], "'query' is no verb of its own: run `kerncast predict REQUEST`"),
        (["list", "op", "gem"], "unknown op 'gem': did you mean 'gemm'?"),
        (["list", "family", "gemm/tritn"], "unknown family 'gemm/tritn': did you mean 'gemm/triton'?"),
        (["list", "family", "gemm/triton", "--device", "b2000"], "unknown device 'b2000'"),
        (["list", "family", "gemm/triton", "colour=red"], "unknown parameter of gemm 'colour'"),
        (["list", "family", "gemm/triton", "dtype=fp9"], "dtype must be one of"),
        (["list", "family", "gemm/triton", "M=0"], "M must be a whole number from 1"),
        (["list", "family", "gemm/triton", "M"], "expected NAME=VALUE, got 'M'"),
        (["list", "device", "h1000"], "did you mean 'h100'?"),
        (["import", "xlsx", "t.csv", "--out", "out"], "unknown format 'xlsx'"),
        (["import", "csv", "absent.csv", "--mapping", "t.toml", "--out", "out"], "cannot read absent.csv"),
        (["import", "csv", "t.csv", "--out", "out"], "needs --mapping FILE.toml"),
        (["import", "csv", "t.csv", "--mapping", "absent.toml", "--out", "out"], "absent.toml is not a mapping file"),
        (
            ["import", "csv", "t.csv", "--mapping", "empty.toml", "--out", "out"],
            "is empty: draft it again with --guess",
        ),
        (["import", "csv", "t.csv"], "needs --out DATASET"),
        (["import", "ttnn-csv", "exp.csv", "--set", "func=exp", "--out", "out"], "add --device NAME"),
        (["import", "ttnn-csv", "exp.csv", "--set", "func", "--device", "n150", "--out", "out"], "--set takes NAME=VALUE"),
        (["import", "ttnn-csv", "t.csv", "--device", "n150", "--out", "out"], "not the columns of a known TTNN table"),
        (
            ["import", "ttnn-csv", "cut.csv", "--device", "n150", "--set", "func=exp", "--out", "out", "--strict"],
            "line 4 has 3 cells",
        ),
        (["import", "ttnn-csv", "exp.csv", "--guess"], "a mapping is drafted for csv and parquet"),
        (
            ["import", "ttnn-csv", "exp.csv", "--set", "func=exp", "--device", "n150", "--out", "/proc/nowhere/x"],
            "choose another place",
        ),
        (
            ["import", "ttnn-csv", "exp.csv", "--set", "func=exp", "--set", "func=exp", "--device", "n150", "--out", "out"],
            "func is given twice",
        ),
        (["import", "csv", "t.csv", "--guess", "--out", "out"], "--out does not go with --guess"),
        (["list", "family", "--device", "a100"], "--device needs the name of a family"),
        (["inspect", "exp", "--top", "-1"], "--top"),
        (["inspect", "absent"], "there is no dataset at absent"),
        (["inspect", "foreign"], "it has no dataset.json"),
        (["inspect", "newer"], "is version 9, this kerncast reads up to version 1: upgrade kerncast"),
        (["inspect", "empty"], "the dataset empty is empty: import or collect rows first"),
        (["inspect", "exp", "--where", "problem.colour=red"], "unknown column 'problem.colour'"),
        (["inspect", "exp", "--where", "nonsense"], "--where takes column=value"),
        (["inspect", "exp", "--top", "many"], "is not a valid integer"),
        (["merge", "exp", "absent", "--out", "out"], "there is no dataset at absent"),
        (["merge", "exp", "--out", "exp"], "exp exists already"),
        (["merge", "empty", "--out", "out"], "there is nothing to merge"),
        (["sweep", "gemm/cpu", "--problems", "llm", "--max-bytes", "0", "--out", "v"], "--max-bytes must be a number above 0"),
        (["collect", "gemm/cpu", "--problems", "llm", "--max-flops", "nan", "--out", "d"], "must be a number above 0, got nan"),
    ],
)
def test_bad_input_is_one_sentence_and_exit_code_2(args, why, exp, tmp_path, run, monkeypatch):
    """The rule, the value, the next step; no traceback; nothing written; with `--json` also as JSON on stdout."""
    monkeypatch.chdir(tmp_path)
    Path("t.csv").write_bytes(GEMM_CSV)
    Path("cut.csv").write_bytes(EXP[:-14])
    Path("t.toml").write_text('family = "gemm/triton"\n[time]\ncolumn = "time_us"\nunit = "us"\n')
    Path("empty.toml").touch()
    Path("foreign").mkdir()
    Path("newer").mkdir()
    Path("newer", "dataset.json").write_text(json.dumps({"format": "kerncast-dataset", "version": 9}))
    Dataset.create("empty")
    before = sorted(str(path) for path in tmp_path.rglob("*"))
    code, out, err = run(*args)
    assert code == 2
    assert out == ""
    assert why in err
    assert "Traceback" not in err
    assert len(err.strip().splitlines()) <= (1 if err.startswith("kerncast: ") else 4)
    code, out, again = run(*args, "--json")
    told = json.loads(out)
    assert (code, again, set(told)) == (2, err, {"error", "kind"})
    assert why in told["error"]
    assert told["kind"] in ("usage", "invalid_value", "not_found", "bad_file", "cannot_use", "cannot_write")
    assert sorted(str(path) for path in tmp_path.rglob("*")) == before


def test_devices_are_those_that_the_backend_has_each_once():
    """`--devices`: what a backend lists; the program of a recipe may have others, but none twice either."""
    assert device_indices(CpuBackend, "0") == ("0",)
    assert device_indices(CommandBackend, "3,a") == ("3", "a")
    for kind, text in (
        (CpuBackend, "5"),
        (CpuBackend, "0,abc"),
        (CpuBackend, ""),
        (OpenClBackend, "999"),
        (CommandBackend, "1,"),
    ):
        with pytest.raises(InvalidValue, match=rf"`devices` takes .* for backend {kind.name}, got '{text}'"):
            device_indices(kind, text)
    for kind in (CpuBackend, CommandBackend):
        with pytest.raises(InvalidValue, match="`devices` names a device twice"):
            device_indices(kind, "0,0")


def test_a_compiler_that_cc_names_and_is_not_there_is_said(run, monkeypatch):
    """Nothing falls back on another one: the doctor says so, and collecting refuses."""
    monkeypatch.setenv("CC", "/nowhere/gcc")
    find_compiler.cache_clear()
    why = "CC names a compiler that does not exist or does not run, '/nowhere/gcc'"
    _, out, _ = run("doctor", "--json")
    works = [item["works"] for item in json.loads(out)["checks"] if why in item["detail"]]
    assert works  # one without torch, two with it
    assert not any(works)
    code, _, err = run("collect", "gemm/cpu", "--problems", "llm", "--out", "never")
    assert code == 2
    assert why in err


@pytest.mark.needs("a C compiler")
def test_a_dry_run_counts_what_is_left_and_vectors_are_taken_as_they_are(run, tmp_path, monkeypatch):
    """Rows that are there are not measured again; compiling takes time, too; --configs has no say in a finished sweep."""
    monkeypatch.setenv("KERNCAST_CACHE", str(tmp_path / "cache"))
    axes = ["--vary", "dtype=fp32", "--vary", "layout=rrr", "--problems"]
    assert run("sweep", "gemm/cpu", *axes, "grid:M=8;N=8;K=8", "--configs", "sample:2", "--out", tmp_path / "v")[0] == 0
    measured = ["collect", tmp_path / "v", "--out", tmp_path / "d"]
    code, _, err = run(*measured, "--configs", "sample:1")
    assert code == 2
    assert "--problems, --vary, --configs and --max-flops cannot be combined with it" in err
    plan = json.loads(run(*measured, "--dry-run", "--json")[1])
    assert (plan["vectors"], plan["already_there"]) == (2, 0)
    assert plan["compilations"] > 0
    assert plan["seconds"] > 0
    assert run(*measured, "--no-verify")[0] == 0
    plan = json.loads(run(*measured, "--dry-run", "--json")[1])
    assert (plan["vectors"], plan["already_there"], plan["compilations"]) == (0, 2, 0)


def test_the_help_names_every_shipped_recipe(run):
    """`--benchmark` takes eight names, or a file."""
    _, out, _ = run("collect", "--help")
    assert all(f"{name}," in "".join(out.split()) for name in shipped())


def test_a_reader_that_goes_away_is_not_an_error(exp):
    """`kerncast … | head -1`."""
    command = f"{sys.executable} -m kerncast.app.cli list device --json | head -1"
    answer = subprocess.run(["bash", "-o", "pipefail", "-c", command], capture_output=True, text=True, check=False)
    assert "Traceback" not in answer.stderr
    assert answer.stdout == "[\n"


def test_tables_are_as_wide_as_a_terminal_and_whole_in_a_pipe():
    """COLUMNS is for terminals: what a program reads has a line for each row, whatever the width."""
    command, narrow = [sys.executable, "-m", "kerncast.app.cli", "list", "op"], {**os.environ, "COLUMNS": "72", "TERM": "xterm"}
    plain = subprocess.run(command, capture_output=True, text=True, check=True, env=narrow).stdout
    assert plain.splitlines()[0].split() == ["op", "parameters", "families", "what"]
    leader, follower = os.openpty()
    process = subprocess.Popen(command, stdout=follower, env=narrow)
    os.close(follower)
    shown = b""
    with contextlib.suppress(OSError):  # EIO: the other end is closed, and everything was read
        while piece := os.read(leader, 65536):
            shown += piece
    os.close(leader)
    process.wait(60)
    head, *rows = shown.decode().splitlines()
    assert head.startswith("\x1b[1mop ")  # bold
    assert max(map(len, rows)) <= 72 < max(map(len, plain.splitlines()))


def test_no_text_from_data_drives_the_terminal(tmp_path, run, monkeypatch):
    """Names of files and columns with escapes, 8-bit controls and reversed text: each verb that quotes them escapes them."""
    monkeypatch.setattr("click.utils.should_strip_ansi", lambda *given: False)  # as on a terminal
    evil = "x\x1b[31m\u009b2J\u202ey"
    table = tmp_path / f"{evil}.csv"
    row = "1,2,3,fp16,rrr,5,h100,1\n"
    table.write_text(f"M,N,K,dtype,layout,time_us,gpu,{evil}\n{row * 3}{row.replace('h100', evil)}")
    (tmp_path / "m.toml").write_text(
        'family = "gemm/single"\ndevice = { column = "gpu" }\ntime = { column = "time_us", unit = "us" }\n'
        'problem = { M = "M", N = "N", K = "K", dtype = "dtype", layout = "layout" }\n'
    )
    seen: list[object] = []
    out = tmp_path / f"data{evil}"
    for args in (
        ("import", "csv", table, "--guess"),
        ("import", "csv", table, "--mapping", tmp_path / "m.toml", "--out", out),
        ("inspect", out),
        ("merge", out, "--out", tmp_path / f"merged{evil}"),
        ("inspect", tmp_path / evil),
        ("train", out, "--out", tmp_path / "model", "--where", f"dtype={evil}"),
    ):
        code, *said = run(*args)
        assert code in (0, 2, 3)
        seen += [args[0], *said]
    text = "".join(map(str, seen)).replace("\n", "")
    assert text.isprintable()
    assert "beside the rows: x\\x1b[31m\\x9b2J\\u202ey" in text


@pytest.mark.parametrize(
    "args",
    [("inspect", "{}"), ("list", "op", "{}"), ("train", "d", "--{}"), ("regenerate", "shipped", "--sample", "{}"), ("{}",)],
)
def test_a_name_with_a_line_end_does_not_begin_a_line(args, run):
    """What looks like a message of the program is one only if the program wrote it."""
    code, out, error = run(*(word.format("x\nkerncast: all is well") for word in args))
    assert code == 2
    assert not any(line.startswith("kerncast: all") for line in (out + error).split("\n"))
    assert r"x\nkerncast: all is well" in error
