"""Models that CK Tile's tools made choose: from kernels by name, of a build, of a benchmark file; and as C."""

import json
import shutil
import subprocess

import lightgbm
import numpy as np
import polars as pl
import pytest

import kerncast
from kerncast.data import Dataset
from kerncast.errors import BadFile, InvalidValue, NotFound
from kerncast.library.registry import FAMILIES
from kerncast.models.limits.envelope import NO_ERRORS
from kerncast.models.model import Model
from kerncast.models.store.store import Store
from kerncast.testing.models import synthetic_dataset

PROBLEM = {"M": 1024, "N": 2048, "K": 3584, "dtype": "fp16", "layout": "rcr"}
CONV = FAMILIES.get("grouped_conv_bwd_data/ck_tile")


@pytest.fixture(scope="module")
def listed(made_by_ck, tmp_path_factory):
    """The kernels of the data, one name on each line."""
    file = tmp_path_factory.mktemp("listed") / "kernels.txt"
    file.write_text("# built on Monday\n" + "\n".join(made_by_ck.names) + "\n")
    return file


def test_a_model_of_ck_ranks_what_it_is_given_as_their_predictor_would(made_by_ck, listed):
    """Every kernel that can run the problem, by the TFLOPS that the booster says; no interval, and a note why."""
    selector = kerncast.Selector(made_by_ck.gemm, configs=f"kernels:{listed}")
    ranked = selector.rank(PROBLEM, 100)
    assert {answer.label for answer in ranked} <= set(made_by_ck.names)
    assert len(ranked) > 5
    booster = lightgbm.Booster(model_file=str(made_by_ck.gemm / "model_tflops.lgbm"))
    vectors = selector.vectors(selector.problem(PROBLEM), [selector.configs.index(answer.config) for answer in ranked])
    said = np.expm1(booster.predict(selector.model.describe(vectors).features))
    work = 2.0 * PROBLEM["M"] * PROBLEM["N"] * PROBLEM["K"]
    np.testing.assert_allclose([work / answer.time_ns / 1e3 for answer in ranked], said, rtol=1e-9)
    assert list(said) == sorted(said, reverse=True)
    for answer in ranked:
        assert (answer.lower_ns, answer.efficiency, answer.known, answer.note) == (None, None, None, NO_ERRORS)
    assert selector.select(PROBLEM).config == ranked[0].config
    assert selector.select_many([PROBLEM])[0].config == ranked[0].config


def test_every_source_of_the_same_kernels_gives_the_same_choice(made_by_ck, listed, tmp_path):
    """A list in text or JSON, a build, a dataset, a benchmark file, a table, names and configs in Python."""
    (tmp_path / "names.json").write_text(json.dumps(made_by_ck.names))
    (tmp_path / "build" / "bin").mkdir(parents=True)
    for name in made_by_ck.names:
        (tmp_path / "build" / "bin" / f"benchmark_{name}").touch()
    ninja = "".join(f"build bin/benchmark_{name}: CXX_EXECUTABLE_LINKER a.o\n" for name in made_by_ck.names)
    (tmp_path / "not_built").mkdir()
    (tmp_path / "not_built" / "build.ninja").write_text(f"rule CXX\n{ninja}build benchmark_gemm_universal_fp16_rcr: phony x\n")
    blocks = [
        json.dumps({"name": name, "problem": {"split_k": 1, "m": 64, "n": 64, "k": 64, "dtype_a": "fp16",
                    "layout_a": "RowMajor", "layout_b": "ColumnMajor", "layout_c": "RowMajor"},
                    "perf_result": {"latency(ms)": 0.01, "tflops(TFlops)": 0.05, "bandwidth(GB/s)": 1.0}})
        for name in made_by_ck.names
    ]  # fmt: skip
    (tmp_path / "run.log").write_text("\n".join(blocks))
    selector = kerncast.Selector(made_by_ck.gemm, configs=made_by_ck.names)
    (tmp_path / "table.json").write_text(json.dumps([dict(config) for config in selector.configs]))
    expected = selector.select(PROBLEM)
    sources = [
        f"kernels:{listed}", f"kernels:{tmp_path / 'names.json'}", f"build:{tmp_path / 'build'}",
        f"build:{tmp_path / 'not_built'}", tmp_path / "run.log", f"portfolio:{tmp_path / 'table.json'}",
        tmp_path / "table.json", [dict(config) for config in selector.configs],
    ]  # fmt: skip
    for source in sources:
        found = kerncast.Selector(made_by_ck.gemm, configs=source).select(PROBLEM)
        assert (found.config, found.time_ns) == (expected.config, expected.time_ns), source
    for source in sources[:5]:  # what has names says that nothing is built for this layout
        selector = kerncast.Selector(made_by_ck.gemm, configs=source)
        assert selector.select({**PROBLEM, "layout": "rrr"}).status == "no_valid_config", source


def test_a_kernel_runs_only_what_it_is_built_for(made_by_ck):
    """The name says dtype and layout; a config that is there for another layout is not chosen for this one."""
    first, *others = made_by_ck.names
    selector = kerncast.Selector(made_by_ck.gemm, configs=[first.replace("_rcr_", "_rrr_"), *others])
    rrr = selector.rank({**PROBLEM, "layout": "rrr"}, 100)
    assert [answer.label for answer in rrr] == [first.replace("_rcr_", "_rrr_")]
    assert first not in {answer.label for answer in selector.rank(PROBLEM, 100)}
    for problem, status in (({**PROBLEM, "layout": "crr"}, "no_valid_config"), ({**PROBLEM, "dtype": "bf16"}, "out_of_range")):
        assert selector.select(problem).status == status
    with pytest.raises(InvalidValue, match="not every kernel is there for each of fp16 rcr; fp16 rrr"):
        kerncast.export(made_by_ck.gemm, out="nowhere", configs=[first.replace("_rcr_", "_rrr_"), *others], progress=None)


@pytest.mark.parametrize("ran", [40, 6])
def test_kernels_that_ran_against_a_rule_are_chosen_if_they_are_many_and_named_otherwise(made_by_ck, tmp_path, run, ran):
    """A benchmark file says more of this build than the rule that CK's source has."""
    kernel = next(name for name in made_by_ck.names if "_compv" in name)
    fields = kernel.split("_")
    flags = next(place for place, field in enumerate(fields) if field in ("True", "False"))
    bare = "_".join([*fields[:flags], "False", "False", "False", *fields[flags + 3 :]])
    blocks = [
        json.dumps({"name": bare, "problem": {"split_k": 1, "m": 64 * number, "n": 1001, "k": 1024, "dtype_a": "fp16",
                    "layout_a": "RowMajor", "layout_b": "ColumnMajor", "layout_c": "RowMajor"},
                    "perf_result": {"latency(ms)": 0.1, "tflops(TFlops)": round(2 * 64 * number * 1001 * 1024 / 1e8, 4),
                                    "bandwidth(GB/s)": 1.0}})
        for number in range(1, ran + 1)
    ]  # fmt: skip
    (tmp_path / "run.log").write_text("\n".join(blocks))
    odd = [f"{name}={value}" for name, value in {**PROBLEM, "N": 1001}.items()]
    _, out, err = run("select", made_by_ck.gemm, *odd, "--configs", tmp_path / "run.log", "--json")
    assert f"{ran} of {ran} attempts worked against the rule 'without pad_n, N must be a multiple of tile_n'" in err
    assert json.loads(out)["status"] == ("ok" if ran == 40 else "no_valid_config")


def test_own_models_rank_a_pool_and_mark_what_they_were_not_trained_on(made_by_ck, tmp_path, run):
    """A config of training keeps its interval; another one is scored, marked, and has none."""
    model = kerncast.train(made_by_ck.home / "d", out=tmp_path / "m", folds=2, trees=12, leaves=7, threads=1, progress=None)
    best = kerncast.Selector(model, compile=False).select(PROBLEM, "full")
    stranger = {**best.config, "epilogue": {"default": "cshuffle", "cshuffle": "default"}[best.config.epilogue]}
    ranked = kerncast.Selector(model, configs=[dict(best.config), stranger]).rank(PROBLEM)
    marks = {answer.config.epilogue: answer for answer in ranked}
    known, unknown = marks[best.config.epilogue], marks[stranger["epilogue"]]
    assert (known.known, known.time_ns, known.lower_ns) == (True, best.time_ns, best.lower_ns)
    assert (unknown.known, unknown.lower_ns, unknown.efficiency) == (False, None, None)
    assert "not trained on this config" in unknown.note
    (tmp_path / "pool.json").write_text(json.dumps([dict(best.config), stranger]))
    asked = [f"{name}={value}" for name, value in PROBLEM.items()]
    code, out, _ = run(
        "select", tmp_path / "m", *asked, "--configs", f"portfolio:{tmp_path / 'pool.json'}", "--top", 2, "--json"
    )
    assert code == 0
    assert [item["known"] for item in json.loads(out)] == [answer.known for answer in ranked]


def test_the_verbs_take_a_model_of_ck(made_by_ck, listed, run):
    """Without kernels the error says what to give; with them select, predict, search and evaluate answer."""
    asked = [f"{name}={value}" for name, value in PROBLEM.items()]
    pool = ["--configs", f"kernels:{listed}"]
    for verb in ("select", "predict"):
        code, _, err = run(verb, made_by_ck.gemm, *asked)
        assert code == 2
        assert "give the configs with --configs (kernels:FILE, build:DIR, a dataset or benchmark file, all)" in err
    chosen = json.loads(run("select", made_by_ck.gemm, *asked, *pool, "--json")[1])
    told = json.loads(run("predict", made_by_ck.gemm, *asked, *pool, "--json")[1])
    one = json.loads(run("predict", made_by_ck.gemm, *asked, "--config", chosen["label"], "--json")[1])
    found = json.loads(run("select", "--search", made_by_ck.gemm, *asked, *pool, "--top", 1, "--json")[1])["found"][0]
    assert chosen["time_ns"] == told["time_ns"] == one["time_ns"] == found["time_ns"]
    assert "known" not in found
    other = [text.replace("layout=rcr", "layout=rrr") for text in asked]
    code, out, _ = run("predict", made_by_ck.gemm, *other, "--config", chosen["label"], "--json")
    refused = json.loads(out)
    assert (code, refused["status"], "time_ns" in refused) == (1, "unsupported", False)
    assert refused["reason"] == "the kernel is built for layout=rcr, and the problem has layout=rrr"
    code, out, _ = run("select", made_by_ck.gemm, *asked, *pool, "--top", 3)
    assert code == 0
    assert NO_ERRORS in out
    code, out, _ = run("compare", made_by_ck.gemm, made_by_ck.gemm, made_by_ck.home / "new", "--json")
    assert json.loads(out)["verdict"] == "SAME"
    code, out, _ = run("evaluate", made_by_ck.gemm, made_by_ck.home / "new")
    assert "does not record its training problems, so some of these may be among them" in out
    assert "not seen in training" not in out
    code, _, err = run("select", "--search", made_by_ck.gemm, *asked, *pool, "--strategy", "de")
    assert code == 2
    assert "leave out --strategy de" in err


def test_a_store_finds_models_of_ck_by_their_dtype(made_by_ck, tmp_path):
    """CK's files say the family and the dtypes: a model of another dtype is never found."""
    store = Store.open(tmp_path / "store")
    other = tmp_path / "bf16"
    shutil.copytree(made_by_ck.gemm, other)
    spec = json.loads((other / "feature_spec.json").read_text())
    (other / "feature_spec.json").write_text(json.dumps({**spec, "dtype": "bf16"}))
    first, second = store.add(made_by_ck.gemm), store.add(other)
    assert store.find("gemm", problem={"dtype": "fp16"}).id == first.id
    assert store.find("gemm", problem={"dtype": "bf16"}).id == second.id
    with pytest.raises(NotFound, match=r"dtype was trained with .* only, got fp8"):
        store.find("gemm", problem={"dtype": "fp8"})


@pytest.mark.needs("a C compiler")
def test_a_model_of_ck_in_c_chooses_what_python_does(made_by_ck, listed, tmp_path, run):
    """Splits by category included: the self-test of the export agrees with Python on every golden vector."""
    assert any(line.startswith("num_cat=") and line != "num_cat=0"
               for line in (made_by_ck.gemm / "model_tflops.lgbm").read_text().splitlines())  # fmt: skip
    kerncast.export(made_by_ck.gemm, out=tmp_path / "c", configs=f"kernels:{listed}", progress=None)
    built = ["cc", "-O0", "-o", tmp_path / "test", tmp_path / "c" / "selftest.c", tmp_path / "c" / "kerncast.c", "-lm"]
    subprocess.run(built, check=True)
    done = subprocess.run([tmp_path / "test"], capture_output=True, text=True, check=True)
    assert " 0 differences" in done.stdout
    kerncast.export(made_by_ck.gemm, to="blob", out=tmp_path / "m.kcb", configs=f"kernels:{listed}", progress=None)
    assert run("inspect", "--verify", tmp_path / "m.kcb")[0] == 0
    with pytest.raises(InvalidValue, match="give the configs with `configs`"):
        kerncast.export(made_by_ck.gemm, out=tmp_path / "d", progress=None)
    shutil.copytree(made_by_ck.gemm, tmp_path / "latency")
    (tmp_path / "latency" / "model_tflops.lgbm").unlink()
    with pytest.raises(InvalidValue, match="predicts milliseconds, which exported C does not compute"):
        kerncast.export(tmp_path / "latency", out=tmp_path / "d", configs=f"kernels:{listed}", progress=None)


@pytest.mark.parametrize(
    ("text", "why"),
    [
        ("gemm_universal_fp16_rcr", "line 1: a kernel's name must be gemm"),
        ("grouped_conv_forward_bf16_2d_64x64x64_compv3_intrawave", "line 1: a kernel's name must be gemm"),
        ("# nothing\n\n", "lists no kernel"),
        ("x" * 1_000_000, "line 1: a kernel's name has at most 400 characters, got 1,000,000"),
        ('["gemm", 7]', "must be a JSON list of kernel names"),
        ('["gemm', "is not JSON"),
    ],
)
def test_a_bad_list_is_refused_by_its_line(made_by_ck, tmp_path, text, why):
    """One bad name in a list is a mistake of the list: it is not left out in silence."""
    (tmp_path / "k.txt").write_text(text)
    with pytest.raises(BadFile, match=why):
        kerncast.Selector(made_by_ck.gemm, configs=f"kernels:{tmp_path / 'k.txt'}")


def test_other_sources_are_refused_with_what_to_do(made_by_ck, tmp_path):
    """A missing path, a folder that is no dataset, a build without benchmarks, a space that is too large to rank."""
    (tmp_path / "empty").mkdir()
    for source, why in [
        ("llm", "`configs` is kernels:FILE .*, got 'llm', which is none of these"),
        (tmp_path / "empty", "is not a dataset: for the kernels of a build folder, use build:"),
        (f"build:{tmp_path / 'empty'}", "has no benchmark of gemm/ck_tile: no benchmark_gemm_\\* program"),
        (f"build:{tmp_path / 'none'}", "is not a folder"),
        (f"kernels:{tmp_path}", "as a list of kernels \\(Is a directory\\)"),
        ("all", "more than 200,000 configs, too many to rank for each problem: search them"),
        (made_by_ck.home / "conv_data", "has kernels of grouped_conv_bwd_data/ck_tile, and the model is of gemm/ck_tile"),
        ([3], "`configs` is a text, a list of kernel names"),
        ([], "there is no config|lists no kernel"),
    ]:
        with pytest.raises((InvalidValue, BadFile), match=why):
            kerncast.Selector(made_by_ck.gemm, configs=source)
    assert len(kerncast.Selector(made_by_ck.gemm, configs="sample:40").configs) == 40


# -- convolutions ------------------------------------------------------------------------------------------


def by_hand(problem, config):
    """The columns of CK's engine for one vector, computed as its documentation has it."""
    p = {"Di": 1, "Z": 1, "stride_d": 1, "pad_d": 0, **problem}
    block, m, n = config["gemm_m_per_block"], config["gemm_n_per_block"], config["gemm_k_per_block"]
    out = [(p[f"{axis}i"] + 2 * p[f"pad_{small}"] - p[taps]) // p[f"stride_{small}"] + 1
           for axis, small, taps in (("D", "d", "Z"), ("H", "h", "Y"), ("W", "w", "X"))]  # fmt: skip
    sizes = {"m": p["N"] * out[0] * out[1] * out[2], "n": p["K"], "k": p["C"] // p["G"] * p["Z"] * p["Y"] * p["X"]}
    tiles = {"m": m, "n": n, "k": block}
    counts = {x: -(-sizes[x] // tiles[x]) for x in "mnk"}
    return {
        "block_size": block, "gemm_m_per_block": m, "gemm_n_per_block": n, "num_warps": block / 4, "tile_mn": m * n,
        "tile_volume": m * n * block, "lds_usage_estimate": (m + n) * block * 2, "block_tile_ratio_n": n / block,
        "lds_usage_ratio": (m + n) * block * 2 / (32768 if config["pipeline"] == "compv4" else 65536),
        "gemm_m_output": sizes["m"], "gemm_n_output": sizes["n"], "gemm_k_output": sizes["k"],
        "num_tiles_k": counts["k"], "total_output_tiles": counts["m"] * counts["n"],
        "cu_utilization": counts["m"] * counts["n"] / 256, "ratio_gemm_k_to_tile_k": sizes["k"] / block,
        "tile_eff_n": (sizes["n"] % n) / n or 1.0, "problem_smaller_than_tile_m": float(sizes["m"] < m),
        "is_small_group": float(min(p["C"], p["K"]) / p["G"] < 16), "hw_lds_capacity": 65536, "hw_num_cus": 256,
        "is_3d": float(p["Di"] > 1 or p["Z"] > 1 or p["pad_d"] > 0), "Ho": out[1],
    }  # fmt: skip


def test_columns_of_convolutions_are_those_of_cks_engine(made_by_ck):
    """Its reading of tile sizes, its product of the forward direction for every direction, its hardware numbers."""
    model, frame = Model.load(made_by_ck.conv), Dataset.open(made_by_ck.home / "conv_data").read()
    frame = frame.select(pl.col("^(problem|config)\\..*$"))
    spec = json.loads((made_by_ck.conv / "feature_spec.json").read_text())
    assert len(spec["feature_names"]) == 97
    computed = dict(zip(spec["feature_names"], model.describe(frame).features.T, strict=True))
    for row in (0, 40, frame.height - 1):
        values = frame.row(row, named=True)
        problem, config = ({name.removeprefix(f"{side}."): value for name, value in values.items() if name.startswith(side)}
                           for side in ("problem", "config"))  # fmt: skip
        wanted = by_hand(problem, config)
        assert {name: computed[name][row] for name in wanted} == pytest.approx(wanted)


def test_a_convolution_model_of_ck_chooses_for_its_direction(made_by_ck, tmp_path):
    """Its directory's name says the direction, or a key of the spec; kernels of volumes do not run images."""
    name = "grouped_conv_bwd_data_bf16_2d_64x64x64_compv3_intrawave"
    layer = {"N": 8, "C": 64, "K": 64, "Hi": 14, "Wi": 14, "Y": 3, "X": 3, "pad_h": 1, "pad_w": 1, "dtype": "bf16"}
    answer = kerncast.Selector(made_by_ck.conv, configs=[name, name.replace("compv3", "mem")]).select(layer)
    assert answer.ok
    assert answer.label.startswith("grouped_conv_bwd_data_bf16_2d_64x64x64_")
    assert kerncast.Selector(made_by_ck.conv, configs=[name.replace("2d", "3d")]).select(layer).status == "no_valid_config"
    with pytest.raises(InvalidValue, match="kernels of two and of three dimensions are mixed"):
        kerncast.Selector(made_by_ck.conv, configs=[name, name.replace("2d", "3d")])
    with pytest.raises(BadFile, match="is a kernel of grouped_conv_forward/ck_tile, not of grouped_conv_bwd_data/ck_tile"):
        kerncast.Selector(made_by_ck.conv, configs=[name.replace("bwd_data", "forward")])
    shutil.copytree(made_by_ck.conv, tmp_path / "mine")
    with pytest.raises(BadFile, match=r'does not say the direction: name the directory as CK does .*, or add "variant"'):
        Model.load(tmp_path / "mine")
    spec = json.loads((tmp_path / "mine" / "feature_spec.json").read_text())
    (tmp_path / "mine" / "feature_spec.json").write_text(json.dumps(spec | {"variant": "bwd_data"}))
    assert Model.load(tmp_path / "mine").family is CONV


@pytest.mark.parametrize("direction", ["forward", "bwd_data", "bwd_weight"])
def test_train_writes_the_layout_of_every_direction(made_by_ck, tmp_path, direction):
    """97 columns in CK's order, figures and importances under CK's names; the files alone predict what they were trained on."""
    family = FAMILIES.get(f"grouped_conv_{direction}/ck_tile")
    synthetic_dataset(tmp_path / "d", made_by_ck.conv_rows(24, 0), family)
    kerncast.train(tmp_path / "d", out=tmp_path / "m", file_format="ck", folds=2, trees=30, leaves=7, threads=1, progress=None)
    read = ("feature_spec", "cv_metrics_tflops", "feature_importances_tflops")
    spec, metrics, importances = (json.loads((tmp_path / "m" / f"{name}.json").read_text()) for name in read)
    theirs = json.loads((made_by_ck.conv / "feature_spec.json").read_text())
    assert (spec["op_type"], spec["variant"], spec["feature_names"]) == ("grouped_conv", direction, theirs["feature_names"])
    assert list(importances) == theirs["feature_names"]
    assert sum(importances.values()) > 0
    assert [item["fold"] for item in metrics] == [0, 1]
    assert (
        sum(item["val_groups"] for item in metrics)
        == json.loads((tmp_path / "m" / "train_manifest.json").read_text())["unique_shapes"]
    )
    assert all(
        item["rmse"] > 0 and item["r2"] < 1 and 0 < item["p10_efficiency"] <= item["mean_efficiency"] <= 1 for item in metrics
    )
    (tmp_path / "alone").mkdir()
    for name in ("feature_spec.json", "train_manifest.json", "model_tflops.lgbm.gz"):
        shutil.copy(tmp_path / "m" / name, tmp_path / "alone")
    rows = Dataset.open(tmp_path / "d").read()
    said = Model.load(tmp_path / "alone").predict_vectors(rows.select(pl.col("^(problem|config)\\..*$")))["time_ns"]
    assert (said / rows["time_ns"] - 1).abs().median() < 0.2
