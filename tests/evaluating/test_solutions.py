"""`evaluate --against`: someone else's choices on the same measurements."""

import json
import re
from pathlib import Path
from types import SimpleNamespace

import msgspec
import numpy as np
import polars as pl
import pytest

from kerncast.core.io.terminal import known
from kerncast.data.formats.solutions import read_solutions
from kerncast.errors import BadFile, InvalidValue
from kerncast.evaluating import evaluate
from kerncast.evaluating.solutions import said, score_solutions
from kerncast.library.registry import FAMILIES
from kerncast.testing.models import DEVICE, FAMILY, synthetic_dataset, synthetic_rows
from kerncast.training.train import Recipe, train

TRITON = FAMILIES.get(FAMILY)
NEW = synthetic_rows(problems=8, seed=7)
SHAPE = ["problem.M", "problem.N", "problem.K"]
SHAPES = NEW.select(SHAPE).unique(maintain_order=True).rows()
NAMES = ("BLOCK_M", "BLOCK_N", "BLOCK_K", "num_stages", "num_warps")
LIBRARY = {"kind": "library"}


def triton(*numbers):
    return {"kind": "triton", **dict(zip(NAMES, numbers, strict=True))}


def problem(place):
    return {**dict(zip("MNK", SHAPES[place], strict=True)), "dtype": "fp16", "layout": "rcr"}


GOOD, LARGE = triton(64, 64, 32, 3, 4), triton(128, 128, 32, 3, 8)
# Never measured, and one of those that need too much shared memory.
UNMEASURED, FAILED = triton(16, 16, 16, 2, 1), triton(256, 128, 64, 4, 8)


def share(place, config):
    """The efficiency of a config on a problem of `NEW`, from the rows themselves."""
    rows = NEW.filter(*(pl.col(name) == size for name, size in zip(SHAPE, SHAPES[place], strict=True)))
    this = rows.filter(*(pl.col(f"config.{name}") == value for name, value in config.items()))
    return rows["time_ns"].min() / this["time_ns"].min()


@pytest.fixture(scope="module")
def found(tmp_path_factory):
    """A model judged on 8 problems."""
    folder = tmp_path_factory.mktemp("home")
    synthetic_dataset(folder / "d", synthetic_rows(problems=20).join(NEW, on=SHAPE, how="anti"))
    synthetic_dataset(folder / "new", NEW)
    train(folder / "d", folder / "m", Recipe("gbdt", {"trees": 5, "library_trees": 4, "leaves": 7}, folds=2, threads=1))
    return evaluate(folder / "m", [folder / "new"])


def solutions(configs):
    """One choice for each of the first problems of `NEW`."""
    return [{"problem": problem(place), "config": config} for place, config in enumerate(configs)]


def read(tmp_path, content, name="theirs.json", family=TRITON, devices=(DEVICE,)):
    path = tmp_path / name
    if not isinstance(content, bytes):
        content = (content if isinstance(content, str) else json.dumps(content)).encode()
    path.write_bytes(content)
    return read_solutions(path, family, devices)


def scored(tmp_path, found, content):
    return score_solutions(read(tmp_path, content), found, TRITON)


def test_choices_are_scored_where_they_were_measured_and_counted_where_not(tmp_path, found):
    """Two by the library, one that failed (it gets 0), one never measured, four problems without an answer."""
    listed = solutions([LIBRARY, LIBRARY, FAILED, UNMEASURED])
    got = scored(tmp_path, found, {"solutions": listed, "made_by": "someone"})
    assert (got["n_problems"], got["solutions_not_measured"], got["problems_without_solution"]) == (3, 1, 4)
    shares = [share(0, LIBRARY), share(1, LIBRARY), 0.0]
    np.testing.assert_allclose(got["solutions_efficiency_mean"], np.mean(shares))
    shapes = pl.DataFrame(SHAPES[:3], schema=SHAPE, orient="row")
    ours = shapes.join(found.problems, on=SHAPE, how="left", maintain_order="left")["efficiency"]
    np.testing.assert_allclose(got["model_efficiency_mean"], ours.mean())
    assert got["model_better"] == int(sum(o > t for o, t in zip(ours, shares, strict=True)))
    assert (got["format"], got["choices"], got["choices_left_out"]) == ("list of problems and configs", 4, {})


def test_of_several_configs_the_first_measured_counts_and_the_best_is_told_beside_it(tmp_path, found):
    """What was not measured is passed over; a failure is measured, and gets 0."""
    listed = [
        {"problem": problem(0), "configs": [UNMEASURED, GOOD, LARGE]},
        {"problem": problem(1), "configs": [FAILED, LIBRARY]},
        {"problem": problem(2), "config": LIBRARY},
    ]
    got = scored(tmp_path, found, listed)
    np.testing.assert_allclose(got["solutions_efficiency_mean"], np.mean([share(0, GOOD), 0.0, share(2, LIBRARY)]))
    best = [max(share(0, GOOD), share(0, LARGE)), share(1, LIBRARY), share(2, LIBRARY)]
    np.testing.assert_allclose(got["solutions_best_efficiency_mean"], np.mean(best))
    assert (got["n_problems"], got["choices"], got["most_configs_measured"]) == (3, 6, 2)
    assert "the best of those listed for a problem, up to 2 measured: " in said(got)
    assert "look at this figure" not in said(got)


def test_a_bare_list_and_equal_choices_twice_are_fine_and_none_that_was_measured_is_refused(tmp_path, found):
    """Nothing to compare is said, not divided by."""
    one = solutions([LIBRARY])
    assert scored(tmp_path, found, one + one)["n_problems"] == 1
    with pytest.raises(InvalidValue, match=r"theirs\.json answers 2 of these problems, and none of its choices was measured"):
        scored(tmp_path, found, solutions([UNMEASURED, UNMEASURED]))


# -- torch-diode ---------------------------------------------------------------------------------------------------------


def tile(config, **more):
    """As torch-diode writes a config."""
    written = {name.lower(): value for name, value in config.items() if name != "kind"}
    return {"name": "triton_mm", "grid": 1, "group_m": 8, "ALLOW_TF32": False, "ACC_TYPE": "tl.float32", **written, **more}


def shape(place, **more):
    """As torch-diode writes a problem: the text of an object, as a key."""
    m, n, k = SHAPES[place]
    sizes = {"version": 1, "B": 1, "M": m, "N": n, "K": k, "out_size": [1, m, n], "out_stride": [m * n, n, 1]}
    return json.dumps({**sizes, **dict.fromkeys(("M_dtype", "K_dtype", "out_dtype"), "float16"), **more})


def table(hardware, op, entries):
    operation = {op: {"solution": entries, "version": 1}}
    return {"hardware": {hardware: {"operation": operation, "version": 1}}, "version": 1}


def test_a_diode_table_answers_the_problems_of_its_device_and_op(tmp_path, found):
    """Other devices, ops, dtypes, symbolic sizes and tiles that the family cannot have are left out and counted."""
    data = table("NVIDIA A100-SXM4-80GB", "mm", {
        shape(0): {"config": [tile(UNMEASURED), tile(GOOD)]},
        shape(1): {"config": [json.dumps(tile(LARGE))]},
        shape(2, M="s77"): {"config": [tile(GOOD), tile(LARGE)]},
        shape(3, M_dtype="complex64"): {"config": [tile(GOOD)]},
        shape(4): {"config": [tile(GOOD, block_m=8)]},
    })  # fmt: skip
    data["hardware"]["NVIDIA A100-SXM4-80GB"]["operation"]["addmm"] = {"solution": {shape(5): {"config": [tile(GOOD)]}}}
    data["hardware"]["NVIDIA H100"] = {"operation": {"mm": {"solution": {shape(5): {"config": [tile(GOOD)] * 3}}}}}
    got = scored(tmp_path, found, data)
    assert (got["format"], got["choices"], got["n_problems"], got["choices_left_open"]) == ("torch-diode file", 3, 2, 0)
    assert got["choices_left_out"] == {"shape": 2, "dtype": 1, "config": 1, "op": 1, "device": 3}
    np.testing.assert_allclose(got["solutions_efficiency_mean"], np.mean([share(0, GOOD), share(1, LARGE)]))
    assert "read as a torch-diode file: 3 choices; left out: 2 with symbolic sizes" in said(got)
    assert "3 for another device" in said(got)
    packed = read(tmp_path, msgspec.msgpack.encode(data))
    assert packed.choices == read(tmp_path, data).choices


def test_timed_configs_are_preferred_by_their_time(tmp_path, found):
    """A diode dataset lists all that was timed, in the order of timing."""
    timed = [{"config": tile(LARGE), "time": 0.3}, {"config": json.dumps(tile(GOOD)), "time": 0.02}]
    got = scored(tmp_path, found, table("a100", "mm", {shape(0): {"timed_configs": timed}}))
    np.testing.assert_allclose(got["solutions_efficiency_mean"], share(0, GOOD))


def test_a_max_autotune_solution_is_for_every_problem(tmp_path, found):
    """Alone, or by operation; the best of its configs on each problem is what max-autotune would find."""
    alone = {"config": [tile(GOOD), tile(LARGE)], "version": 1}
    by_operation = {"mm": alone, "addmm": {"config": [tile(FAILED)]}}
    for data, left in ((alone, {}), (by_operation, {"op": 1})):
        got = scored(tmp_path, found, data)
        assert (got["n_problems"], got["choices"], got["choices_left_out"]) == (8, 2, left)
        assert "(look at this figure: " in said(got)
        np.testing.assert_allclose(got["solutions_efficiency_mean"], np.mean([share(place, GOOD) for place in range(8)]))
        best = [max(share(place, GOOD), share(place, LARGE)) for place in range(8)]
        np.testing.assert_allclose(got["solutions_best_efficiency_mean"], np.mean(best))


def test_records_that_say_part_of_a_config_count_as_the_fastest_that_agrees(tmp_path, found):
    """As in torch-diode's tutorial: sizes and tile, no dtype, layout, stages or warps."""
    m, n, k = SHAPES[0]
    data = {"name": "mine", "configs": [{"M": m, "N": n, "K": k, "block_m": 64, "block_n": 128, "block_k": 32}]}
    got = scored(tmp_path, found, data)
    assert (got["format"], got["n_problems"], got["choices_left_open"]) == ("list of records", 1, 1)
    np.testing.assert_allclose(got["solutions_efficiency_mean"], share(0, triton(64, 128, 32, 4, 4)))
    assert "1 name part of a config and count as the fastest that agrees" in said(got)


# -- PyTorch Inductor ----------------------------------------------------------------------------------------------------


def key(place, op="mm", device="", dtype="float16", a_stride=None):
    m, n, k = SHAPES[place]
    operands = f"((torch.{dtype}, [{m}, {k}], {a_stride or [k, 1]}), (torch.{dtype}, [{k}, {n}], [1, {k}]))"
    return "+".join(part for part in (device, operands, op) if part)


def template(config, name="triton::mm"):
    return {"template_id": name, "GROUP_M": 8, "EVEN_K": True, "ALLOW_TF32": False,
            **{name: value for name, value in config.items() if name != "kind"}}  # fmt: skip


def test_a_lookup_table_of_inductor_is_read_by_its_keys(tmp_path, found):
    """The device's own key goes before one for any; aten is the library; other templates and ops are left out."""
    data = {
        key(0): [template(LARGE)],
        key(0, device="NVIDIA A100-SXM4-80GB"): [template(GOOD, "triton::mm_persistent_tma"), template(GOOD)],
        key(1): [{"template_id": "aten::mm"}, template(GOOD, "mm")],
        key(2, device="gfx942:sramecc+:xnack-"): [template(GOOD)],
        key(3, op="alpha=2&beta=1+addmm"): [template(GOOD)],
        key(4, a_stride=[99999, 1]): [template(GOOD)],
    }
    got = scored(tmp_path, found, data)
    assert (got["format"], got["choices"], got["n_problems"]) == ("PyTorch Inductor lookup table", 3, 2)
    assert got["choices_left_out"] == {"template": 1, "device": 1, "superseded": 1, "op": 1, "layout": 1}
    np.testing.assert_allclose(got["solutions_efficiency_mean"], np.mean([share(0, GOOD), share(1, LIBRARY)]))


@pytest.mark.needs("torch")
def test_keys_are_those_that_torch_makes(tmp_path):
    """Batched, fp32 and column-major A, by the function of torch itself."""
    from torch._inductor.lookup_table import choices

    import torch

    inputs = SimpleNamespace(
        dtypes=lambda: (torch.float32, torch.float32),
        shapes_hinted=lambda: ((4, 128, 64), (4, 64, 256)),
        strides_hinted=lambda: ((8192, 1, 128), (16384, 256, 1)),
        _scalars={},
    )
    made = choices.LookupTableChoices._generate_kernel_inputs_key(inputs)
    entry = template(GOOD, "triton::bmm") | {"ALLOW_TF32": True}
    (got,) = read(tmp_path, {f"NVIDIA A100-SXM4-80GB+{made}+bmm": [entry]}).choices
    assert {name: value for name, value in got.problem.items() if value is not None} == {
        "M": 128, "N": 256, "K": 64, "split_k": 1, "batch": 4, "dtype": "fp32", "layout": "crr", "tf32": True,
    }  # fmt: skip
    assert known(got.config) == GOOD


def test_a_log_of_max_autotune_is_read_the_fastest_first(tmp_path, found):
    """Sizes alone name the problem; cublas is the library; what did not run has an infinite time."""
    m, n, k = SHAPES[0]
    timed = [
        {"type": "triton", "time": float("inf"), **{name: FAILED[name] for name in NAMES}},
        {"type": "triton", "time": 0.2, **{name: GOOD[name] for name in NAMES}, "kpack": 2}, None,
        {"type": "cublas", "time": 0.1},
    ]  # fmt: skip
    data = [{"invoke": "x"}, {f"({m}, {k}, {n})": timed, "kernel_type": "mm"}, {"(1, 2, 3)": timed, "kernel_type": "addmm"}]
    got = scored(tmp_path, found, data)
    assert (got["format"], got["choices"], got["choices_left_out"]) == ("PyTorch Inductor max-autotune log", 3, {"op": 3})
    np.testing.assert_allclose(got["solutions_efficiency_mean"], share(0, LIBRARY))


# -- tables --------------------------------------------------------------------------------------------------------------


def test_a_table_is_read_as_csv_and_parquet_whatever_its_name_ends_in(tmp_path, found):
    """A row for each choice, in order of preference; prefixes and case are free, foreign rows and columns left out."""
    rows = [
        (*SHAPES[0], "fp16", "rcr", "a100", "library", *[None] * 5, 7.5),
        (*SHAPES[0], "fp16", "rcr", "a100", *GOOD.values(), 1.0),
        (*SHAPES[1], "float16", "rcr", None, *LARGE.values(), 2.0),
        (*SHAPES[2], "fp16", "rcr", "h100", *LARGE.values(), 2.0),
    ]
    names = ["m", "problem.N", "K", "dtype", "layout", "device", "config.kind", *NAMES, "tflops"]
    frame = pl.DataFrame(rows, schema=names, orient="row")
    frame = frame.with_columns(pl.col("num_warps").cast(pl.Float64))
    frame.write_parquet(tmp_path / "theirs.csv")
    parquet = read_solutions(tmp_path / "theirs.csv", TRITON, [DEVICE])
    text = frame.with_columns(pl.col("num_warps").cast(pl.Int64)).write_csv()
    csv = read(tmp_path, text, "theirs.json")
    assert (parquet.format, csv.format) == ("parquet table", "CSV table")
    assert parquet.choices == csv.choices
    got = score_solutions(csv, found, TRITON)
    assert (got["choices"], got["choices_left_out"], got["columns_not_read"]) == (3, {"device": 1}, ["tflops"])
    np.testing.assert_allclose(got["solutions_efficiency_mean"], np.mean([share(0, LIBRARY), share(1, LARGE)]))
    best = [max(share(0, LIBRARY), share(0, GOOD)), share(1, LARGE)]
    np.testing.assert_allclose(got["solutions_best_efficiency_mean"], np.mean(best))


def test_the_examples_of_the_docs_are_read_as_what_they_show(tmp_path):
    """Every block of the section, in its order, as it stands there."""
    page = (Path(__file__).parents[2] / "docs" / "evaluating.md").read_text()
    section = page.split("## Choices of another system")[1].split("\n## ")[0]
    got = [read(tmp_path, block) for block in re.findall(r"```(?:json|text)\n(.*?)```", section, re.DOTALL)]
    assert [item.format for item in got] == [
        "list of problems and configs", "CSV table", "torch-diode file", "torch-diode file", "PyTorch Inductor lookup table",
        "PyTorch Inductor max-autotune log", "list of records",
    ]  # fmt: skip
    # The same choice in every file.
    tile = triton(128, 128, 64, 3, 4)
    assert all(any(known(choice.config).items() <= tile.items() for choice in item.choices) for item in got)
    assert {choice.problem.get("M", 1920) for item in got for choice in item.choices} == {1920}


# -- bad input -----------------------------------------------------------------------------------------------------------

SOME = "M,N,K,dtype,layout,kind"
BAD = {
    "not JSON": ("[{", "neither a list of solutions nor"),
    "another object": ('{"M": 1}', r"neither a list of solutions nor another known format \(M\): give a list of problems"),
    "no objects": ("[3]", r"not a list of solutions .*must be a table of keys"),
    "no choices": ("[]", "holds no choices: give at least one"),
    "a part is missing": ('[{"problem": {}}]', r"solution 1: .*"),
    "neither": ([{"problem": problem(0)}], "solution 1: a solution has either `config` or `configs`"),
    "both": ([{"problem": problem(0), "config": LIBRARY, "configs": [LIBRARY]}], "solution 1: a solution has either"),
    "none listed": ([{"problem": problem(0), "configs": []}], "solution 1: `configs` is empty"),
    "a key too many": ('[{"problem": {}, "config": {}, "time": 1}]', r"no key '\[0\].time'"),
    "a value out of range": (solutions([LIBRARY, {"kind": "cuda"}]), r"solution 2: .*kind must be .*'cuda'"),
    "a parameter that is not known": (solutions([{"kind": "library", "tile": 3}]), "solution 1: .*tile"),
    "a label that is a list": (solutions([{"kind": []}]), "solution 1: .*kind must be"),
    "half a pair of surrogates": ('[{"problem": {}, "config": {"kind": "\\ud800"}}]', "nor other JSON .*surrogates not"),
    "a key without an end": ({"+((torch.a))+x=" * 9_000 + "!": []}, "nor another known format"),
    "a number that is a list": (solutions([UNMEASURED | {"BLOCK_M": [16]}]), "solution 1: .*BLOCK_M"),
    "two choices for one problem": (
        solutions([LIBRARY]) + solutions([FAILED]), "solution 2: solution 1 has another choice for this problem",
    ),
    "diode: no tile": ({"config": [{"block_m": 64}]}, r"key 'block_n' is missing.*'block_m': 64"),
    "diode: a shape that is none": (table("a100", "mm", {"x\ny": {"config": [tile(GOOD)]}}), "a shape is text that is not"),
    "diode: no configs": (table("a100", "mm", {shape(0): {"best": 1}}), "a list of configs under `config`"),
    "inductor: one key is none": ({key(0): [], "mm": []}, r"a key of a lookup table is \[device\+\].*got 'mm'"),
    "inductor: sizes that do not fit": (
        {"((torch.float16, [8, 4], [4, 1]), (torch.float16, [5, 8], [8, 1]))+mm": [template(GOOD)]}, "do not match in",
    ),
    "inductor: three dimensions": (
        {"((torch.float16, [1, 8, 4], [32, 4, 1]), (torch.float16, [1, 4, 8], [32, 8, 1]))+mm": []}, "two operands of 2 dim",
    ),
    "inductor: no template": ({key(0): [GOOD]}, "names its template_id"),
    "log: another type": ([{"(1, 2, 3)": [{"type": "ck", "time": 1}]}], "triton or cublas, got 'ck'"),
    "csv: no config": ("M,N,K\n1,2,3\n", r"none of its columns \(M, N, K\) is a config parameter of gemm/triton \(kind, "),
    "csv: no rows": (SOME + "\n", "the CSV table has no rows"),
    "csv: a word for a number": (SOME + "\nx,2,3,fp16,rcr,library\n", "line 2: M must be .*'x'"),
    "csv: an empty config": (SOME + "\n1,2,3,fp16,rcr,\n", "line 2: no config parameter has a value"),
    "csv: inactive given": (SOME + ",BLOCK_M\n1,2,3,fp16,rcr,library,64\n", "line 2: BLOCK_M does not apply"),
    "csv: one parameter twice": ("M,problem.M,kind\n1,1,library\n", "columns 'M' and 'problem.M' both mean problem.M"),
    "csv: cut": (SOME + "\n1,2\n", "line 2 has 2 cells"),
    "parquet: damaged": (b"PAR1 and no more", "not a parquet file"),
    "msgpack: cut": (b"\x82\xa1", "msgpack file cannot be read"),
    "not text": (b"\xff\xfe\x00", "is not text in UTF-8"),
}  # fmt: skip


@pytest.mark.parametrize("case", BAD)
def test_a_malformed_file_is_refused_with_the_place(tmp_path, case):
    """The file, which solution, and the rule; one sentence on one line."""
    content, why = BAD[case]
    with pytest.raises((BadFile, InvalidValue), match=why) as caught:
        read(tmp_path, content)
    assert str(caught.value).startswith(f"{tmp_path / 'theirs.json'}, ")
    assert "\n" not in str(caught.value)


def test_a_file_that_is_not_there_is_refused(tmp_path):
    """As is a directory."""
    for path in (tmp_path / "none.json", tmp_path):
        with pytest.raises(BadFile, match="cannot read"):
            read_solutions(path, TRITON, [DEVICE])


def test_a_file_for_something_else_is_refused_with_what_it_is_for(tmp_path):
    """All on another device or board, a model of two devices, a family that has no such tiles."""
    for name in ("NVIDIA H100", "NVIDIA A100-PCIE-40GB"):
        with pytest.raises(InvalidValue, match=rf"no choice for gemm/triton on a100: 1 for another device \('{name}'\); give"):
            read(tmp_path, table(name, "mm", {shape(0): {"config": [tile(GOOD)]}}))
    with pytest.raises(InvalidValue, match=r"one device \('a100'\), and the model is for 2 \(a100, h100\)"):
        read(tmp_path, table("a100", "mm", {shape(0): {"config": [tile(GOOD)]}}), devices=("a100", "h100"))
    with pytest.raises(InvalidValue, match="chooses configs of gemm/triton, but the model is for gemm/cpu"):
        read(tmp_path, {"config": [tile(GOOD)]}, family=FAMILIES.get("gemm/cpu"))
