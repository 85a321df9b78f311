"""A family written as TOML is enough for the whole chain, without a Python package."""

import json
import shutil
import subprocess
import sys

import msgspec
import pytest
from tests.support.needs import require

import kerncast
from kerncast.data import Dataset
from kerncast.data.dataset import merge
from kerncast.errors import BadFile, InvalidValue, KerncastError, NotFound
from kerncast.library.declared.declaration import Declaration, declaration_of, declared_family
from kerncast.library.declared.family_file import family_named
from kerncast.library.registry import OPS
from kerncast.measuring.backends.command.benchmark import load

FAMILY = """
[op]
name = "transpose"
doc = "the transpose of a matrix of fp32"
work = { bytes = "8 * elements" }
derived = { elements = "rows * columns", twice = "2 * elements" }
constraints = { small = "elements <= 2 ** 16" }
features = { log2_bytes = "log2(8 * elements)" }
split_group = ["rows", "columns"]

[op.problem]
rows = { from = 1, to = 65536, doc = "rows of the input" }
columns = { from = 1, to = 65536 }
padded = { flag = true, default = false }
dtype = ["fp32"]

[family]
name = "blocked"
doc = "a transpose block by block"
library = { order = "naive" }

[family.config]
order = ["rows", "columns", "naive"]
block_rows = { powers_of_two = [4, 64], when = "order != 'naive'" }
block_columns = { values = [4, 16, 64], when = "order != 'naive'" }
unroll = [4]

[family.constraints]
fits = { rule = "order == 'naive' or block_rows * block_columns <= 1024", says = "a block must fit" }

[family.features]
blocks = "where(order == 'naive', 0, ceil_div(rows, max(block_rows, 1)) * ceil_div(columns, max(block_columns, 1)))"
"""
BENCHMARK = """
name = "transpose"
device = "local"
argv = ["{setting.python}", "{setting.program}"]
samples = 1
input = { to = "stdin" }
result = { format = "json", time = { at = ["ns"], unit = "ns" } }

[settings]
python = { doc = "an interpreter" }
program = { doc = "the program" }
"""
# Times by a formula, so that the best config is known: blocks of 16 x 16, by rows.
PROGRAM = """
import json, sys
vector = json.load(sys.stdin)
problem, config = vector["problem"], vector["config"]
work = problem["rows"] * problem["columns"]
if config["order"] == "naive":
    slower = 3.0
else:
    slower = 1.0 + abs(config["block_rows"] - 16) / 16 + abs(config["block_columns"] - 16) / 16 + (config["order"] == "columns")
print(json.dumps({"ns": 1000 + work * slower}))
"""


@pytest.fixture
def file(tmp_path):
    """The family and its benchmark in one file."""
    path = tmp_path / "transpose.toml"
    path.write_text(BENCHMARK + FAMILY)
    (tmp_path / "program.py").write_text(PROGRAM)
    return path


def settings(file):
    return {"python": sys.executable, "program": str(file.with_name("program.py"))}


def test_the_tables_become_an_op_and_a_family(file):
    """Parameters of every kind, derived values, work, rules with and without a sentence, features, the library's config."""
    family = family_named(str(file))
    assert family is family_named(str(file))
    assert (family.id, family.op.name, family.doc) == ("transpose/blocked", "transpose", "a transpose block by block")
    problem = kerncast_problem(family, rows=100, columns=50)
    assert problem.as_dict() == {"rows": 100, "columns": 50, "padded": False, "dtype": "fp32"}
    assert problem.twice == 10_000
    with pytest.raises(InvalidValue, match="elements <= 2"):
        kerncast_problem(family, rows=60_000, columns=50)
    bindings = family.bindings(problem)
    assert family.config.count(bindings) == 1 + 2 * (5 * 3 - 2)  # the naive one, and all blocks but 32 x 64 and 64 x 64
    assert family.config.validate({"order": "rows", "block_rows": 64, "block_columns": 64}, bindings)[0].name == "fits"
    assert not family.config.validate({"order": "naive"}, bindings)
    assert set(family.feature_program.outputs) >= {"log2_rows", "padded", "log2_bytes", "order", "block_rows", "blocks"}
    assert family.library == {"order": "naive"}
    again = declared_family(msgspec.json.decode(msgspec.json.encode(declaration_of(family)), type=Declaration))
    assert again is family


def kerncast_problem(family, **values):
    from kerncast.core.op import Problem

    return Problem(family, values)


def test_from_one_file_to_a_choice_and_to_c(file, tmp_path):
    """collect → train → select → export; the C that was written agrees with Python, on a machine without the file."""
    data = kerncast.collect(
        str(file),
        measuring=kerncast.Measuring(settings=settings(file)),
        problems="grid:rows=16,64,100,256;columns=16,64,128",
        configs="sample:14",
        out=tmp_path / "d",
        progress=False,
    )
    assert data.collected.summary.statuses == {"ok": 12 * 14}
    file.unlink()
    opened = Dataset.open(tmp_path / "d")
    assert opened.families[0].id == "transpose/blocked"
    model = kerncast.train(opened, out=tmp_path / "m", folds=2, trees=30, progress=False)
    # Nobody measured the bandwidth of this machine: it is that of the fastest rows, in Python as in C.
    assert model.manifest.target == "relative"
    assert set(model.estimated[model.device.name]) == {"memory_bandwidth_gb_s"}
    assert any("has no memory_bandwidth_gb_s" in note for note in model.notes)
    assert model.predict({"rows": 128, "columns": 64}, device=opened.device(model.device.name)).time_ns == (
        model.predict({"rows": 128, "columns": 64}).time_ns
    )
    continued = kerncast.train(opened, out=tmp_path / "m2", base=model, trees=2, progress=False)
    assert continued.estimated == model.estimated
    answer = kerncast.Selector(model).select({"rows": 128, "columns": 64})
    assert answer.ok
    assert answer.config.as_dict() == {"order": "rows", "block_rows": 16, "block_columns": 16, "unroll": 4}
    kerncast.export(model, out=tmp_path / "picker", progress=False)
    compiler = shutil.which("gcc") or shutil.which("cc")
    if compiler is None:
        require("a C compiler")
    built = tmp_path / "selftest"
    sources = [str(tmp_path / "picker" / name) for name in ("selftest.c", "kerncast.c")]
    subprocess.run([compiler, "-O0", "-ffp-contract=off", "-o", str(built), *sources, "-lm"], check=True)
    said = subprocess.run([str(built)], check=True, capture_output=True, text=True).stdout
    assert "0 differences" in said


def test_the_only_value_of_a_parameter_is_given_nowhere(file, tmp_path):
    """To the program, in a table, a choice, a time, JSON to a model or a store, or with a config; another value is refused."""
    told = " ".join(f'"{{{name}}}"' for name in ("problem.rows", "problem.columns", "problem.padded", "config.order"))
    told += ' "{config.block_rows}" "{config.block_columns}"'
    argv = BENCHMARK.replace('input = { to = "stdin" }\n', "").replace('"{setting.program}"]', f"{told}]".replace(" ", ", "))
    file.write_text(argv.replace('argv = ["{setting.python}", ', 'argv = ["{setting.python}", "{setting.program}", ') + FAMILY)
    load(str(file), settings(file))  # refuses a benchmark that does not tell its program what to measure
    rows = [f"{rows},64,{block},{rows * (1 + abs(block - 16))}" for rows in (16, 64, 100, 256, 300) for block in (4, 16, 64)]
    (tmp_path / "t.csv").write_text("\n".join(["rows,columns,block,ns", *rows]))
    (tmp_path / "mapping.toml").write_text(
        f"""
family = "{file}"
device = "a100"
problem = {{ rows = "rows", columns = "columns" }}
config = {{ order = {{ value = "rows" }}, block_rows = "block", block_columns = {{ value = "16" }} }}
time = {{ column = "ns", unit = "ns" }}
"""
    )
    data = kerncast.read(tmp_path / "t.csv", mapping=tmp_path / "mapping.toml", out=tmp_path / "d", progress=False)
    assert data.read().select("problem.dtype", "config.unroll").unique().rows() == [("fp32", 4)]
    model = kerncast.train(data, out=tmp_path / "m", folds=2, trees=10, progress=False)
    asked, config = {"rows": 128, "columns": 64}, {"order": "rows", "block_rows": 16, "block_columns": 16}
    pick = kerncast.Selector(model, compile=False)
    assert pick(**asked).config.as_dict() == {**config, "unroll": 4}
    assert pick.predict(asked, config).time_ns == model.predict(asked, config).time_ns == model.predict(asked).time_ns
    store = kerncast.Store.open(tmp_path / "store")
    store.add(model)
    for where in ({"model": model}, {"store": store}):
        reply = kerncast.predict({"op": "transpose", "device": "a100", **asked}, compiled=False, **where)
        assert (reply["status"], reply["config"]) == ("ok", {**config, "unroll": 4})
        reply = kerncast.predict({"op": "transpose", "device": "a100", **asked, "dtype": "fp16"}, compiled=False, **where)
        assert reply["status"] in ("unsupported", "bad_input")


def test_a_resume_takes_the_same_family_only(file, tmp_path):
    """The same file continues; another version is refused; both can be joined if only values differ."""
    asked = {"problems": "grid:rows=16;columns=16", "configs": "sample:3", "progress": False}
    asked["measuring"] = kerncast.Measuring(settings=settings(file))
    kerncast.collect(str(file), out=tmp_path / "d", **asked)
    more = kerncast.collect(
        str(file),
        out=tmp_path / "d",
        extent=kerncast.Extent(resume=True),
        **{**asked, "problems": "grid:rows=16,32;columns=16"},
    )
    assert more.rows == 6
    file.write_text(file.read_text().replace("values = [4, 16, 64]", "values = [4, 8, 16, 64]"))
    with pytest.raises(InvalidValue, match="another version of transpose/blocked"):
        kerncast.collect(str(file), out=tmp_path / "d", extent=kerncast.Extent(resume=True), **asked)
    kerncast.collect(str(file), out=tmp_path / "e", **asked)
    both, _ = merge([tmp_path / "d", tmp_path / "e"], tmp_path / "both")
    assert 8 in both.families[0].config.parameters["block_columns"].values
    file.write_text(file.read_text().replace("log2(8 * elements)", "log2(9 * elements)"))
    kerncast.collect(str(file), out=tmp_path / "f", **asked)
    with pytest.raises(InvalidValue, match="different formulas"):
        merge([tmp_path / "both", tmp_path / "f"], tmp_path / "none")


def test_a_family_and_its_benchmark_may_be_two_files(file, tmp_path):
    """A benchmark names the family that another file declares; sweeps and tables take the file as well."""
    family, benchmark = tmp_path / "family.toml", tmp_path / "bench.toml"
    family.write_text(FAMILY)
    benchmark.write_text('family = "transpose/blocked"\n' + BENCHMARK)
    data = kerncast.collect(
        str(family),
        measuring=kerncast.Measuring(benchmark=str(benchmark), settings=settings(file)),
        problems="grid:rows=16;columns=16",
        configs="sample:3",
        out=tmp_path / "d",
        progress=False,
    )
    assert data.rows == 3
    with pytest.raises(BadFile, match=r"family\.toml"):
        kerncast.collect(str(family), problems="grid:rows=16;columns=16", out=tmp_path / "x", progress=False)
    vectors = kerncast.sweep(str(family), problems="grid:rows=16,32;columns=16", out=tmp_path / "v", progress=False)
    family.unlink()
    assert vectors.family.id == "transpose/blocked"
    table, mapping = tmp_path / "t.csv", tmp_path / "t.toml"
    table.write_text("r,c,o,br,bc,ns\n16,32,rows,16,16,100\n16,32,naive,,,300\n")
    family.write_text(FAMILY)
    mapping.write_text(
        f'family = {json.dumps(str(family))}\ndevice = "a100"\n[problem]\nrows = "r"\ncolumns = "c"\n[config]\norder = "o"\n'
        'block_rows = "br"\nblock_columns = "bc"\n[time]\ncolumn = "ns"\nunit = "ns"\n'
    )
    assert kerncast.read(table, file_format="csv", mapping=mapping, out=tmp_path / "read", progress=False).rows == 2


def test_own_kernels_of_an_installed_op(tmp_path):
    """`op = "gemm"`: its problems, work and features, with a config of one's own."""
    path = tmp_path / "mine.toml"
    path.write_text(
        '[family]\nname = "mine"\nop = "gemm"\n[family.config]\ntile = [16, 32]\n'
        '[family.constraints]\ndivides = "M % tile == 0"\n[family.features]\ntiles = "ceil_div(M, tile) * ceil_div(N, tile)"\n'
    )
    family = family_named(str(path))
    assert family.op is OPS.get("gemm")
    assert {"tiles", "log2_MNK", "tile"} <= set(family.feature_program.outputs)
    assert family.config.count(family.bindings({"M": 48, "N": 8, "K": 8, "dtype": "fp16", "layout": "rcr"})) == 1
    path.write_text(path.read_text().replace('"mine"', '"cpu"'))
    with pytest.raises(InvalidValue, match="has a family gemm/cpu already"):
        family_named(str(path))


@pytest.mark.parametrize(
    ("old", "new", "why"),
    [
        ('name = "transpose"\ndoc', 'name = "gemm"\ndoc', "the op 'gemm' is installed here"),
        ('name = "transpose"\ndoc', 'name = "tr anspose"\ndoc', "letters, digits"),
        ("from = 1, to = 65536, doc", "from = 1, doc", r"op\.problem\.rows must have one of"),
        ("{ powers_of_two = [4, 64],", "{ powers_of_two = [4, 63],", "power-of-two range"),
        ("{ powers_of_two = [4, 64],", "{ powers_of_two = [4, 64], flag = true,", "must have one of"),
        ('order = ["rows", "columns", "naive"]', "order = []", "must have one of"),
        ('order = ["rows", "columns", "naive"]', 'order = ["rows", 3]', "is not understood"),
        ("{ flag = true, default = false }", "{ flag = true, default = 3 }", "default must be true or false"),
        ('small = "elements <= 2 ** 16"', 'small = "elements"', "must be a comparison"),
        ("says = ", "said = ", "is not understood"),
        ("ceil_div(rows, max(block_rows, 1))", "ceil_div(row, max(block_rows, 1))", "unknown name 'row'"),
        ("log2(8 * elements)", "log2(8 * block_rows)", "unknown name 'block_rows'"),
        ('"rows * columns"', '"rows * twice"', "unknown name 'twice'"),
        ("blocks = ", "log2_bytes = ", "already one of op transpose"),
        ('split_group = ["rows", "columns"]', 'split_group = ["row"]', "split_group must name parameters"),
        ('library = { order = "naive" }', 'library = { order = "none" }', "library"),
        ("[op.problem]", "[op.problems]", "is not understood"),
    ],
)
def test_a_mistake_is_refused_before_anything_is_measured(tmp_path, old, new, why):
    """The file, the table and the rule, in one sentence."""
    assert old in FAMILY
    path = tmp_path / "family.toml"
    path.write_text(FAMILY.replace(old, new))
    with pytest.raises(KerncastError, match=why) as caught:
        family_named(str(path))
    assert "family.toml" in str(caught.value)
    assert "\n" not in str(caught.value)


def test_missing_and_hostile_files_are_refused(tmp_path):
    """No file, no TOML, no family, a thousand formulas."""
    with pytest.raises(BadFile, match="No such file"):
        family_named(str(tmp_path / "absent.toml"))
    bad = tmp_path / "bad.toml"
    for text in ("[[[", "x = 1", "\x00", "[family]\nname = 3"):
        bad.write_text(text)
        with pytest.raises(BadFile, match=r"bad\.toml"):
            family_named(str(bad))
    bad.write_text(FAMILY.partition("[family]")[0])
    with pytest.raises(BadFile, match=r"\[op\] declares an op, and its kernels are missing"):
        family_named(str(bad))
    bad.write_text(FAMILY + "\n".join(f'f{number} = "rows"' for number in range(600)))
    with pytest.raises(BadFile, match="at most 500 formulas"):
        family_named(str(bad))
    with pytest.raises(NotFound, match="family"):
        family_named("transpose/blocked")
