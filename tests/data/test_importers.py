"""Importers: the contract, and what each format promises beyond it."""

import re
import textwrap
import tomllib

import polars as pl
import pytest

import kerncast
from kerncast.data.formats import ImportOptions, get_importer
from kerncast.data.formats.table import read_table
from kerncast.data.formats.table.guess import draft_mapping
from kerncast.data.importing import import_files
from kerncast.errors import BadFile, InvalidValue, KerncastError, NotFound
from kerncast.testing.importers import ImporterContract

EXP = textwrap.dedent("""\
    input_shape_1,input_shape_2,input_shape_3,input_shape_4,bfloat8,bfloat16,float32, uint32,input_DRAM,input_L1,kernel_duration
    1760,800,0,0,0,1,0,0,1,0,43150
    1760,800,0,0,0,1,0,0,1,0,43037
    1,1,1760,800,0,1,0, 0,1,0,42480
    64,32,32,0,1,0,0, 0,0,1,9001
    7,0,0,0,0,0,0, 1,1,0,1200.5
    """).encode()
MATMUL = b"m_size,k_size,n_size,num_cores,duration\n640,32,32,10,1849.0\n640,32,96,10,2448.0\n"
GEMM = textwrap.dedent("""\
    m,n,k,type,impl,bm,bn,bk,stages,warps,latency_ms,n_runs,notes
    128,256,512,torch.float16,triton,64,32,32,3,4,0.0123,50,warm
    128,256,512,torch.float16,triton,64,32,32,3,4,0.0125,50,warm
    128,256,512,torch.float16,cublas,,,,,,0.0101,50,
    128,256,512,torch.bfloat16,triton,128,32,64,8,4,inf,0,out of shared memory
    """).encode()
GEMM_MAPPING = textwrap.dedent("""\
    family = "gemm/triton"
    ignore = ["notes"]
    [problem]
    M = "m"
    N = "n"
    K = "k"
    dtype = { column = "type", values = { "torch.float16" = "fp16", "torch.bfloat16" = "bf16" } }
    layout = { value = "rrr" }
    [config]
    kind = { column = "impl", values = { "triton" = "triton", "cublas" = "library" } }
    BLOCK_M = "bm"
    BLOCK_N = "bn"
    BLOCK_K = "bk"
    num_stages = "stages"
    num_warps = "warps"
    [time]
    column = "latency_ms"
    unit = "ms"
    failed = { "inf" = "launch_error" }
    [measured]
    samples = "n_runs"
    """)


@pytest.fixture(scope="module")
def mapping(tmp_path_factory):
    path = tmp_path_factory.mktemp("mapping") / "gemm.toml"
    path.write_text(GEMM_MAPPING)
    return path


class TestTtnnUnary(ImporterContract):
    format_name, sample = "ttnn-csv", EXP
    options = ImportOptions(device="wormhole_b0", values={"func": "exp"})


class TestTtnnMatmul(ImporterContract):
    format_name, sample, options = "ttnn-csv", MATMUL, ImportOptions(device="wormhole_b0")


class TestCsv(ImporterContract):
    format_name, sample = "csv", GEMM

    @pytest.fixture(autouse=True)
    def _options(self, mapping):
        self.options = ImportOptions(device="a100", mapping=mapping)


class TestParquet(ImporterContract):
    format_name = "parquet"

    @pytest.fixture(autouse=True)
    def _options(self, mapping, tmp_path_factory):
        path = tmp_path_factory.mktemp("table") / "t.parquet"
        pl.read_csv(GEMM).write_parquet(path)
        self.sample = path.read_bytes()
        self.options = ImportOptions(device="a100", mapping=mapping)

    # A parquet file has no header line to cut to; the other refusals hold.


def imported(folder, format_name, content, options, strict=False):
    source = folder / "table"
    source.write_bytes(content)
    return import_files(format_name, [source], folder / "out", options, strict=strict)


def test_ttnn_flags_are_folded_and_shapes_right_aligned(tmp_path):
    """One tensor is one problem, whatever the rank it was written with; repeats stay repeats."""
    rows = imported(tmp_path, "ttnn-csv", EXP, ImportOptions(device="n150", values={"func": "exp"})).read()
    assert rows.select("problem.dim0", "problem.dim1", "problem.dim2", "problem.dim3").rows() == [
        (1, 1, 1760, 800), (1, 1, 1760, 800), (1, 1, 1760, 800), (1, 64, 32, 32), (1, 1, 1, 7),
    ]  # fmt: skip
    assert rows["problem.dtype"].to_list() == ["bf16", "bf16", "bf16", "bfp8", "uint32"]
    assert rows["problem.buffer"].to_list() == ["dram", "dram", "dram", "l1", "dram"]
    assert rows["time_ns"].to_list() == [43150, 43037, 42480, 9001, 1200.5]
    assert rows["source_line"].to_list() == [2, 3, 4, 5, 6]
    assert rows["device"].unique().to_list() == ["wormhole_b0"]
    assert rows["key"].n_unique() == 3


@pytest.mark.parametrize(
    ("old", "new", "why"),
    [
        (
            b"64,32,32,0,1,0,0",
            b"64,32,32,0,1,1,0",
            "line 5: exactly one of bfloat16, bfloat8, float32, uint32 must be 1, 2 are",
        ),
        (
            b"64,32,32,0,1,0,0",
            b"64,32,32,0,0,0,0",
            "line 5: exactly one of bfloat16, bfloat8, float32, uint32 must be 1, 0 are",
        ),
        (b"64,32,32,0,1,0,0", b"64,0,32,0,1,0,0", "line 5: input_shape_3 comes after a 0 in input_shape_2"),
        (b",9001", b",kernel_duration", "line 5: kernel_duration must be a finite number, got 'kernel_duration'"),
        (b",9001", b",-1", "line 5: kernel_duration must be a positive number of nanoseconds, got '-1'"),
        (b",9001", b"", "line 5 has 10 cells, the header has 11: the file is cut or damaged"),
        (b"float32", b"float64", "line 1: unknown column 'float64'"),
        (b"bfloat8,", b"bfloat16,", "line 1 names the column 'bfloat16' twice"),
    ],
)
def test_ttnn_refuses_what_it_does_not_know_with_the_line(tmp_path, old, new, why):
    """A header trained as a row, a missing flag, a cut line: four shipped models learned from such rows."""
    with pytest.raises(KerncastError) as caught:
        imported(
            tmp_path,
            "ttnn-csv",
            EXP.replace(old, new, 1),
            ImportOptions(device="wormhole_b0", values={"func": "exp"}),
            strict=True,
        )
    assert why in str(caught.value)


def test_ttnn_asks_for_the_function_that_the_file_does_not_name(tmp_path):
    """`--set func=exp`, and nothing else."""
    with pytest.raises(InvalidValue, match="add `constants` func=exp"):
        imported(tmp_path, "ttnn-csv", EXP, ImportOptions(device="wormhole_b0"))
    with pytest.raises(InvalidValue, match="`constants` colour does not apply"):
        imported(tmp_path, "ttnn-csv", EXP, ImportOptions(device="wormhole_b0", values={"func": "exp", "colour": "red"}))
    with pytest.raises(BadFile, match=r"problem\.func must be one of exp, .*, got 'no_such_function'"):
        imported(tmp_path, "ttnn-csv", EXP, ImportOptions(device="wormhole_b0", values={"func": "no_such_function"}))


@pytest.mark.parametrize("format_name", ["csv", "parquet"])
def test_a_mapping_converts_units_labels_and_failures(tmp_path, mapping, format_name):
    """Milliseconds become nanoseconds, `inf` a status, an empty cell an inactive parameter."""
    content = GEMM
    if format_name == "parquet":
        pl.read_csv(GEMM).write_parquet(tmp_path / "t.parquet")
        content = (tmp_path / "t.parquet").read_bytes()
    rows = imported(
        tmp_path, format_name, content, ImportOptions(device="a100", mapping=mapping, software={"torch": "2.4"})
    ).read()
    assert rows["time_ns"].to_list() == [pytest.approx(12300), pytest.approx(12500), pytest.approx(10100), None]
    assert rows["status"].to_list() == ["ok", "ok", "ok", "launch_error"]
    assert rows["config.kind"].to_list() == ["triton", "triton", "library", "triton"]
    assert rows["config.BLOCK_M"].to_list() == [64, 64, None, 128]
    assert rows["problem.dtype"].to_list() == ["fp16", "fp16", "fp16", "bf16"]
    assert rows["samples"].to_list() == [50, 50, 50, 0]
    assert rows["software"].unique().to_list() == ['{"torch":"2.4"}']


@pytest.mark.parametrize(
    ("old", "new", "why"),
    [
        ('ignore = ["notes"]', "", "line 1: unknown column 'notes'"),
        ('M = "m"', 'M = "mm"', "there is no column 'mm' for problem.M"),
        ('"torch.bfloat16" = "bf16"', '"x" = "bf16"', "line 5: type must be one of torch.float16, x, got 'torch.bfloat16'"),
        ('samples = "n_runs"', 'status = "valid"', "there is no column 'valid' for status"),
        ('failed = { "inf" = "launch_error" }', "", "line 5: latency_ms must be a positive time"),
        ('unit = "ms"', 'unit = "minutes"', "the unit of time must be one of ns, us, ms, s, got 'minutes'"),
        ('BLOCK_M = "bm"', 'BLOCK_Q = "bm"', "[config] of gemm/triton has no 'BLOCK_Q'"),
        ('BLOCK_M = "bm"', 'BLOCK_Q = "bm"', "; a family of your own declares a kernel's parameters, see docs/"),
        ('"launch_error"', '"exploded"', "'exploded' is not a status"),
        ('N = "n"', 'N = "type"', "line 2: type must be a whole number, got 'torch.float16'"),
        ("[time]", "[tempo]", "is not a mapping file"),
        ('"gemm/triton"', '"gemm/tritium"', "unknown family 'gemm/tritium'"),
        (
            'layout = { value = "rrr" }',
            'layout = { value = "xyz" }',
            "problem.layout must be one of rcr, rrr, crr, ccr, got 'xyz'",
        ),
    ],
)
def test_a_mapping_that_does_not_fit_is_refused_in_words(tmp_path, old, new, why):
    """The file, the rule and the value."""
    path = tmp_path / "gemm.toml"
    path.write_text(GEMM_MAPPING.replace(old, new, 1))
    with pytest.raises(KerncastError) as caught:
        imported(tmp_path, "csv", GEMM, ImportOptions(device="a100", mapping=path), strict=True)
    assert why in str(caught.value)


def test_guess_drafts_a_mapping_that_only_needs_its_question_marks_answered(tmp_path):
    """Columns are recognised by name, labels are listed for translation, the unit is read off the name."""
    source = tmp_path / "t.csv"
    source.write_bytes(b"m_size,N,K,dtype,layout,kind,BLOCK_M,block_n,BLOCK_K,num_stages,num_warps,time_us,x\n"
                       b"1,2,3,half,rcr,triton,16,16,16,2,4,7.5,q\n")  # fmt: skip
    draft = draft_mapping(read_table("csv", source))
    assert draft.startswith('family = "gemm/triton"')
    for line in ('M = "m_size"', 'BLOCK_N = "block_n"', 'unit = "us"', 'ignore = ["x"]', 'dtype = "dtype"'):
        assert line in draft
    path = tmp_path / "t.toml"
    path.write_text(draft)
    with pytest.raises(InvalidValue, match="the mapping has '\\?' for the device"):
        import_files("csv", [source], tmp_path / "out", ImportOptions(mapping=path))
    path.write_text(draft.replace('device = "?"', 'device = "a100"'))
    dataset = import_files("csv", [source], tmp_path / "out", ImportOptions(mapping=path))
    assert dataset.read().select("problem.M", "time_ns", "device").rows() == [(1, 7500.0, "a100")]
    source.write_bytes(b"alpha,beta\nx,y\n")
    with pytest.raises(InvalidValue, match="or name a family with `family`"):
        draft_mapping(read_table("csv", source))


# A table, the family that is guessed, and what its draft imports: device, dtype, status and time of every row.
PLAIN_TABLES = {
    "the columns that everybody has": (
        "m,n,k,dtype,latency_ms,gpu\n1,2,3,torch.bfloat16,0.02,A100-SXM4-80GB\n4,5,6,half,0.01,H100\n7,8,9,BF16,1,h100\n",
        "gemm/single", [("a100", "bf16", "ok", 2e4), ("h100", "fp16", "ok", 1e4), ("h100", "bf16", "ok", 1e6)],
    ),
    "a column of outcomes, other names": (
        "M,N,K,precision,avgTimeUs,avg_time_us_std,device_name,is_valid\n1,2,3,float32,21,1,MI300X,True\n1,2,4,float32,,,MI300X,False\n",
        "gemm/single", [("mi300x", "fp32", "ok", 2.1e4), ("mi300x", "fp32", "invalid", None)],
    ),
    "failures in the cells of the time": (
        "rows,M,N,K,dtype,layout,seconds,arch,failed\n9,1,2,3,fp16,rcr,1e-3,Tesla T4,0\n9,1,2,4,fp16,rcr,-1,Tesla T4,1\n",
        "gemm/single", [("t4", "fp16", "ok", 1e6), ("t4", "fp16", "launch_error", None)],
    ),
    "a convolution": (
        "N,C,K,H,W,Y,X,dtype,ms,card\n1,2,3,4,5,1,1,f16,1.5,l4\n1,2,3,4,5,1,1,f16,inf,l4\n",
        "grouped_conv_forward/single", [("l4", "fp16", "ok", 1.5e6), ("l4", "fp16", "launch_error", None)],
    ),
}  # fmt: skip


@pytest.mark.parametrize("name", PLAIN_TABLES)
def test_a_draft_without_a_question_mark_imports_as_it_stands(tmp_path, name):
    """Op, unit, spellings of dtypes, devices by row, outcomes; without a kernel to choose the family is `single`."""
    text, family, rows = PLAIN_TABLES[name]
    source, path = tmp_path / "t.csv", tmp_path / "t.toml"
    source.write_text(text)
    path.write_text(kerncast.Dataset.guess_mapping(source))
    assert '"?"' not in path.read_text()
    dataset = import_files("csv", [source], tmp_path / "out", ImportOptions(mapping=path))
    assert [item.id for item in dataset.families] == [family]
    assert dataset.read().sort("source_line").select("device", "problem.dtype", "status", "time_ns").rows() == rows


def test_guess_marks_what_it_cannot_know_and_invents_no_size(tmp_path):
    """An op whose sizes are not columns is named, not proposed; a label or device that nobody knows is marked, and refused."""

    def draft(text):
        (tmp_path / "t.csv").write_text(text)
        (tmp_path / "t.toml").write_text(kerncast.Dataset.guess_mapping(tmp_path / "t.csv"))
        return (tmp_path / "t.toml").read_text()

    for text, lacks in (
        ("tokens,hidden,dtype,ms\n1,2,fp16,1\n", "moe, .* inter, top_k"),
        ("m,n,dtype,ms\n1,2,fp16,1\n", "gemm.* K"),
    ):
        assert re.search(f"the nearest is {lacks}.*: this is one of your own", found := draft(text))
        assert tomllib.loads(found)["op"]["name"] == "t"
    found = draft('M,N,K,dtype,cuda_device,speed,gpu\n1,2,3,posit8,0,7,"Voodoo ""2"" \\"\n4,5,6,fp16,0,7,h100\n')
    assert 'dtype = { column = "dtype", values = { "fp16" = "fp16", "posit8" = "?" } }' in found
    assert 'ignore = ["cuda_device", "speed"]' in found
    assert tomllib.loads(found)["device"] == {"column": "gpu", "values": {'Voodoo "2" \\': "?", "h100": "h100"}}
    with pytest.raises(BadFile, match=r"'\?' stands for \[problem\] dtype, device, \[time\]: write what is meant"):
        import_files("csv", [tmp_path / "t.csv"], tmp_path / "out", ImportOptions(mapping=tmp_path / "t.toml"))
    answered = found.replace('"posit8" = "?"', '"posit8" = "fp8"').replace('= "?",', '= "Voodoo",')
    (tmp_path / "t.toml").write_text(
        answered.replace('column = "?"\nunit = "?"', 'column = "speed"\nunit = "s"').replace(', "speed"]', "]")
    )
    dataset = import_files("csv", [tmp_path / "t.csv"], tmp_path / "out", ImportOptions(mapping=tmp_path / "t.toml"))
    assert dataset.read().select("device", "problem.M").rows() == [("h100", 4)]
    assert "line 2: gpu must be a device (unknown device 'Voodoo'" in dataset.skipped.kinds[0].example


def test_of_two_columns_with_one_name_the_exact_one_is_used_and_the_other_is_named():
    """`m` beside `M`: which of them is the parameter is a question for the user, so the draft asks it."""
    table = pl.DataFrame({"m": [1], "M": [2], "n": [3], "k": [4], "dtype": ["fp16"], "latency_ms": [0.1], "gpu": ["a100"]})
    draft = draft_mapping(table)
    assert 'M = "M"' in draft
    assert '# "m" may mean the same as "M"' in draft


def test_an_odd_row_does_not_cost_the_guess(tmp_path):
    """A column is judged by most of its cells; the draft imports as it stands, and the odd rows are skipped."""
    source, path = tmp_path / "t.csv", tmp_path / "t.toml"
    rows = [f"{size},64,32,half,{size}.5,h100" for size in range(1, 300)]
    source.write_text("\n".join(["m,n,k,precision,time_us,gpu", *rows, "4096,oops,##,#,0.1,#", "1,2"]))
    for family in (None, "gemm/single"):
        path.write_text(kerncast.Dataset.guess_mapping(source, family=family))
        assert tomllib.loads(path.read_text())["ignore"] == []
        assert '"?"' not in path.read_text()
    dataset = import_files("csv", [source], tmp_path / "out", ImportOptions(mapping=path))
    assert (dataset.rows, dataset.skipped.rows) == (299, 2)


def test_columns_that_tell_kernels_of_one_problem_apart_become_a_family_of_the_op(tmp_path):
    """Those that differ between rows of one problem, but not numbers that were measured; where the op alone is clear."""
    source, path = tmp_path / "t.csv", tmp_path / "t.toml"
    source.write_text(
        "m,n,k,dtype,tile_x,pipeline,layer,tflops,time_us,gpu\n"
        "1,2,3,fp16,64,mem,7,1.25,5,a100\n1,2,3,fp16,128,compv3,7,1.5,4,a100\n4,2,3,fp16,64,mem,8,2.5,6,a100\n"
    )
    path.write_text(kerncast.Dataset.guess_mapping(source))
    found = tomllib.loads(path.read_text())
    assert found["ignore"] == ["layer", "tflops"]
    assert found["family"] == {"op": "gemm", "name": "own", "config": {"tile_x": [64, 128], "pipeline": ["compv3", "mem"]}}
    rows = import_files("csv", [source], tmp_path / "out", ImportOptions(mapping=path)).read().sort("source_line")
    assert rows.select("problem.M", "config.tile_x", "config.pipeline").rows() == [
        (1, 64, "mem"),
        (1, 128, "compv3"),
        (4, 64, "mem"),
    ]


def test_a_parameter_that_may_be_left_out_is_not_taken_from_a_column_that_would_lose_rows(tmp_path):
    """AITER's `splitK` is 0 where a product is not split, which is no `split_k`; the draft says so and keeps every row."""
    source, path = tmp_path / "t.csv", tmp_path / "t.toml"
    source.write_text("gfx,M,N,K,dtype,splitK,us\n" + "".join(f"gfx942,{m},64,32,fp8,{m % 2},{m}.5\n" for m in range(1, 9)))
    path.write_text(kerncast.Dataset.guess_mapping(source))
    assert '"?"' not in path.read_text()
    assert '# "splitK" is left out: too many of its cells are not split_k (a whole number from 1' in path.read_text()
    assert import_files("csv", [source], tmp_path / "out", ImportOptions(mapping=path)).rows == 8


def test_several_files_become_one_dataset_with_several_sources(tmp_path):
    """Rows keep apart where they came from."""
    (tmp_path / "a").write_bytes(MATMUL)
    (tmp_path / "b").write_bytes(MATMUL.replace(b"1849", b"1850"))
    dataset = import_files("ttnn-csv", [tmp_path / "a", tmp_path / "b"], tmp_path / "out", ImportOptions(device="wormhole_b0"))
    assert dataset.rows == 4
    assert {source.name for source in dataset.contents.sources} == {"a", "b"}
    assert dataset.read()["source"].n_unique() == 2


def test_an_unknown_format_is_refused_with_the_known_ones():
    """Formats are found in the package and by entry point."""
    with pytest.raises(
        NotFound, match=r"unknown format 'xlsx': known: .*ck-tile, csv, diode, inductor, kernel-tuner, parquet.*t4.*ttnn-csv"
    ):
        get_importer("xlsx")


def test_the_same_file_twice_is_refused(tmp_path):
    """Its rows would look like repeats without noise."""
    (tmp_path / "a").write_bytes(MATMUL)
    (tmp_path / "b").write_bytes(MATMUL)
    with pytest.raises(InvalidValue, match="is the same file as"):
        import_files("ttnn-csv", [tmp_path / "a", tmp_path / "b"], tmp_path / "out", ImportOptions(device="wormhole_b0"))


def test_a_refusal_leaves_no_folder_behind(tmp_path):
    """Not even the parents of the dataset that did not come to be."""
    (tmp_path / "a").write_bytes(b"nonsense\n1\n")
    with pytest.raises(BadFile, match="not the columns"):
        import_files("ttnn-csv", [tmp_path / "a"], tmp_path / "new1/new2/out", ImportOptions(device="wormhole_b0"))
    assert [item.name for item in tmp_path.iterdir()] == ["a"]


def test_a_profile_of_ones_own_travels_with_the_dataset(tmp_path):
    """The TOML file may be gone when the rows are inspected."""
    profile = tmp_path / "mine.toml"
    profile.write_text(
        'name = "my_npu"\ntitle = "x"\nkind = "npu"\n[numbers]\ngrid_x = { value = 8, source = "a data sheet" }\n'
    )
    (tmp_path / "a").write_bytes(MATMUL)
    dataset = import_files("ttnn-csv", [tmp_path / "a"], tmp_path / "out", ImportOptions(device=str(profile)))
    profile.unlink()
    assert dataset.read()["device"].unique().to_list() == ["my_npu"]
    assert dataset.device("my_npu").numbers == {"grid_x": 8.0}


def test_a_status_column_decides_which_times_count(tmp_path, mapping):
    """A failed row keeps the status that it names itself, whatever its time says; a time that means a failure beats an ok."""
    path = tmp_path / "m.toml"
    path.write_text(mapping.read_text() + 'status = { column = "valid", values = { "1" = "ok", "0" = "invalid" } }\n')
    lines = GEMM.decode().splitlines()
    content = "\n".join(
        [lines[0] + ",valid", lines[1] + ",1", lines[2].replace("0.0125", "0") + ",0", lines[3] + ",1", lines[4] + ",0"]
    )
    rows = imported(tmp_path, "csv", content.encode(), ImportOptions(device="a100", mapping=path)).read()
    assert rows["status"].to_list() == ["ok", "invalid", "ok", "invalid"]
    assert rows["time_ns"].is_null().to_list() == [False, True, False, True]
    (tmp_path / "t.csv").write_text(content[:-1] + "1")
    dataset = kerncast.read(tmp_path / "t.csv", mapping=path, device="a100", out=tmp_path / "again", progress=False)
    assert dataset.read()["status"].to_list() == ["ok", "invalid", "ok", "launch_error"]
    assert (
        "1 rows have the status ok and a time that means a failure (`failed`): they count as failed; the first is line 5, "
        "latency_ms 'inf'" in dataset.notes[0]
    )


def test_a_draft_of_a_hostile_table_is_the_mapping_of_its_columns(tmp_path):
    """Names and labels cannot leave their strings, in TOML or in a terminal; contradictory units are asked about."""
    evil = ['x" ]\n[evil]\nx = 1 #', "a\u009b31m", "b\u202ec\u2028d", "e\x7f\x1b[2Jf", "g\0h", "'''", "\\", "#"]
    table = pl.DataFrame({"m": [1], "n": [2], "k": [3], "dtype": ["half"], "ms_time_us": ["\u009bx"], "gpu": ["a100"]})
    draft = draft_mapping(table.with_columns(pl.lit(1).alias(name) for name in evil))
    assert draft.replace("\n", "").isprintable()
    found = tomllib.loads(draft)
    assert found["ignore"] == evil
    assert found["time"] == {"column": "ms_time_us", "unit": "?", "failed": {"\u009bx": "launch_error"}}
    assert sorted(found) == ["device", "family", "ignore", "problem", "time"]


def test_thousands_of_columns_are_guessed_and_listed_in_part(tmp_path):
    """Each column's name and cells are looked at once, not once for each family; a message lists some."""
    wide = pl.DataFrame({f"c{number}": ["x"] for number in range(2000)})
    with pytest.raises(InvalidValue, match=r"among the columns \(c0, c1, .*c39, …\)"):
        draft_mapping(wide)
    wide.with_columns(m=pl.lit(1), n=pl.lit(2), k=pl.lit(3), dtype=pl.lit("half"), ms=pl.lit(1.5)).write_csv(tmp_path / "t.csv")
    mapping = (
        'family = "gemm/single"\ntime = { column = "ms", unit = "ms" }\n[problem]\nM = "m"\nN = "n"\nK = "k"\ndtype = "dtype"\n'
    )
    (tmp_path / "t.toml").write_text(mapping + 'layout = { value = "rrr" }\n')
    said = []
    options = ImportOptions(mapping=tmp_path / "t.toml", device="a100")
    import_files("csv", [tmp_path / "t.csv"], tmp_path / "out", options, report=said.append)
    assert said[0].endswith(
        "kept 2,000 columns that are not known here beside the rows: " + ", ".join(wide.columns[:40]) + ", …"
    )
