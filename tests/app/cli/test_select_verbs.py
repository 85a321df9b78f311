"""`kerncast select`, `predict` and `export`, as a user calls them."""

import json
import subprocess

import polars as pl
import pytest

from kerncast.models.model import Model
from kerncast.testing.models import synthetic_dataset
from kerncast.training.train import Recipe, train

PROBLEM = ["M=512", "N=512", "K=512", "dtype=fp16", "layout=rcr"]
VALUES = {"M": 512, "N": 512, "K": 512, "dtype": "fp16", "layout": "rcr"}


@pytest.fixture(scope="module")
def model(tmp_path_factory):
    """A small model of gemm/triton."""
    folder = tmp_path_factory.mktemp("select-verbs")
    recipe = Recipe(folds=2, knobs={"trees": 20, "library_trees": 4, "leaves": 15}, threads=1)
    return str(train(synthetic_dataset(folder / "rows"), folder / "model", recipe).path)


def test_select_shows_a_config_and_json_has_the_same(model, run):
    """A table for people, the answer as values for programs."""
    code, out, _ = run("select", model, *PROBLEM, "--tier", "full")
    assert code == 0
    assert "ok" in out
    _, text, _ = run("select", model, *PROBLEM, "--tier", "full", "--json")
    answer = json.loads(text)
    assert (answer["status"], answer["tier"]) == ("ok", "full")
    assert f"kind={answer['config']['kind']}" in out


def test_select_lists_the_best_and_explains(model, run):
    """`--top` gives a ranking by the model, `--explain` says why."""
    _, text, _ = run("select", model, *PROBLEM, "--tier", "full", "--top", "3", "--explain", "--json")
    ranking = json.loads(text)
    assert len(ranking) == 3
    assert {"contributions", "nearest_measured", "runners_up", "ranked_by", "faster_runners_up"} == set(
        ranking[0]["explanation"]
    )
    _, out, _ = run("select", model, *PROBLEM, "--explain")
    assert "the nearest measured problems" in out
    assert "runners-up" in out


def test_a_ranking_says_what_it_is_sorted_by(model, run, tmp_path):
    """The score, and what it is beside the time; which configs come first whatever it says; nothing of a single answer."""
    told = []
    for m in (128, 300, 512, 700, 1000):
        asked = [f"M={m}", *PROBLEM[1:], "--top", "9"]
        last = run("select", model, *asked)[1].splitlines()[-1]
        times = [item["time_ns"] for item in json.loads(run("select", model, *asked, "--json")[1])]
        assert last.startswith("sorted by the model's score, best first")
        assert ("; beside the time, the score has what was learned from" in last) == (times != sorted(times))
        told.append(times == sorted(times))
    assert set(told) == {True, False}
    assert "sorted by" not in run("select", model, *PROBLEM, "--top", "1")[1]
    assert "sorted by" not in run("select", model, *PROBLEM[1:], "M=900000", "--top", "9")[1]
    kind = Model.load(model).candidates.filter(pl.col("config.kind") == "library")
    assert kind.height == 1
    pin = {"problem": VALUES, "config": {"kind": "library"}}
    (tmp_path / "o.toml").write_text(
        f"[[pin]]\nproblem = {{M = 512}}\nconfig = {{kind = {json.dumps(pin['config']['kind'])}}}\n"
    )
    _, out, _ = run("select", model, *PROBLEM, "--top", "3", "--overrides", tmp_path / "o.toml")
    assert "the pinned config comes before all others" in out


def test_a_file_of_problems_gives_a_list_with_refusals_in_their_places(model, tmp_path, run):
    """JSON or parquet; exit code 1 when a problem got no config."""
    shapes = [VALUES, {**VALUES, "M": 10**6}]
    (tmp_path / "problems.json").write_text(json.dumps(shapes))
    code, text, _ = run("select", model, tmp_path / "problems.json", "--json")
    assert code == 1
    assert [item["status"] for item in json.loads(text)] == ["ok", "out_of_range"]
    assert json.loads(text)[1]["fallback"]["name"] == "library"
    pl.DataFrame(shapes[:1]).write_parquet(tmp_path / "problems.parquet")
    code, text, _ = run("select", model, tmp_path / "problems.parquet", "--json")
    assert (code, len(json.loads(text))) == (0, 1)


def test_predict_takes_a_config_or_says_what_the_best_one_takes(model, run):
    """Without tiers and without a compiler."""
    _, text, err = run("predict", model, *PROBLEM, "--json")
    best = json.loads(text)
    assert "compiling" not in err
    given = [part for name, value in best["config"].items() for part in ("--config", f"{name}={value}")]
    _, text, _ = run("predict", model, *PROBLEM, *given, "--json")
    assert json.loads(text)["time_ns"] == pytest.approx(best["time_ns"])


def test_a_parameter_of_which_the_model_saw_one_value_may_be_left_out(model, run):
    """As where an op is asked: the answer has the whole problem."""
    seen = {name: item.labels for name, item in Model.load(model).manifest.hull.items() if len(item.labels) == 1}
    left_out = [part for part in PROBLEM if part.partition("=")[0] not in seen]
    assert len(left_out) < len(PROBLEM)
    for verb in (["predict"], ["select", "--no-compile"]):
        whole, part = (json.loads(run(verb[0], model, *given, *verb[1:], "--json")[1]) for given in (PROBLEM, left_out))
        assert part == whole


@pytest.mark.needs("cmake")
def test_an_export_builds_tests_itself_and_installs_with_cmake(model, tmp_path, run):
    """Configure, build, ctest, install; pkg-config knows where."""
    code, out, _ = run("export", model, "--to", "c", "--out", tmp_path / "picker", "--prefix", "gemm")
    assert code == 0
    assert "gemm.hpp" in out
    build = tmp_path / "build"
    for command in (
        ["cmake", "-S", tmp_path / "picker", "-B", build, f"-DCMAKE_INSTALL_PREFIX={tmp_path / 'installed'}"],
        ["cmake", "--build", build],
        ["ctest", "--test-dir", build, "--output-on-failure"],
        ["cmake", "--install", build],
    ):
        subprocess.run(command, check=True, capture_output=True)
    (described,) = (tmp_path / "installed").rglob("gemm.pc")
    assert "prefix=${pcfiledir}/" in described.read_text()  # an installed tree may be moved
    assert (tmp_path / "installed" / "include" / "gemm.h").exists()


@pytest.mark.needs("cmake")
def test_a_blob_is_loaded_by_its_runtime_and_verified_and_a_damaged_one_is_not(model, tmp_path, run):
    """Export with the runtime; configure, build, ctest; `verify` compares the stored answers, and names the damage."""
    file, folder = tmp_path / "model.kcb", tmp_path / "runtime"
    code, out, _ = run("export", model, "--to", "blob", "--out", file, "--runtime", folder, "--prefix", "gemm")
    assert code == 0
    assert "gemm_runtime.c" in out
    assert f"Next: cmake -S {folder}" in out
    for command in (
        ["cmake", "-S", folder, "-B", folder / "build", "-DCMAKE_BUILD_TYPE=Debug"],
        ["cmake", "--build", folder / "build"],
        ["ctest", "--test-dir", folder / "build", "--output-on-failure"],
    ):
        subprocess.run(command, check=True, capture_output=True)
    code, out, _ = run("inspect", "--verify", file)
    assert (code, out.count("golden vectors")) == (0, 1)
    data = bytearray(file.read_bytes())
    data[len(data) // 2] ^= 4
    file.write_bytes(data)
    code, out, _ = run("inspect", "--verify", file)
    assert code == 1
    assert "does not have its checksum" in out
    code, out, _ = run("export", model, "--to", "blob", "--out", tmp_path / "again.kcb", "--json")
    assert json.loads(out)["files"] == {"again.kcb": len(data)}
    data[len(data) // 2] ^= 4
    assert (tmp_path / "again.kcb").read_bytes() == data


def test_an_export_to_json_is_a_table_of_choices(model, tmp_path, run):
    """One entry per trained problem, with what it was made from."""
    code, out, _ = run("export", model, "--to", "json", "--out", tmp_path / "choices.json", "--json")
    assert json.loads(out)["path"] == str(tmp_path / "choices.json")
    data = json.loads((tmp_path / "choices.json").read_text())
    assert code == 0
    assert (data["format"], data["family"], len(data["choices"])) == ("kerncast-choices", "gemm/triton", 40)
    assert all(item["status"] == "ok" for item in data["choices"])


@pytest.mark.parametrize(("args", "words"), [
    (["select", "MODEL"], "name the problem by its parameters"),
    (["select", "MODEL", "nowhere.json"], "neither NAME=VALUE nor a file"),
    (["predict", "MODEL", "p.csv"], "problems are NAME=VALUE or a file (.json or .parquet), and 'p.csv' is a csv table"),
    (["select", "MODEL", *PROBLEM, "Q=1"], "unknown parameter of gemm 'Q'"),
    (["select", "MODEL", *PROBLEM, "--backend", "cpu"], "--backend needs --measure"),
    (["select", "MODEL", *PROBLEM, "--device", "h100"], "h100"),
    (["select", "shipped/gemm-vllm", *PROBLEM], "name the one to choose for with --device"),
    (["select", "MODEL", *PROBLEM, "--measure", "--top", "3"], "leave out --top"),
    (["predict", "MODEL", *PROBLEM, "--config", "tile=3"], "unknown config parameter of gemm/triton 'tile'"),
    (["predict", "MODEL", *PROBLEM, "--config", "BLOCK_M=64,BLOCK_N=64"], "repeat it, --config BLOCK_M=64 --config BLOCK_N=64"),
    (["export", "MODEL", "--to", "blob", "--out", "x", "--tiers", "tree"], "a tree alone is small enough as C"),
    (["export", "MODEL", "--to", "c", "--out", "x", "--prefix", "A-B"], "a prefix has lowercase letters"),
    (["export", "MODEL", "--to", "json", "--out", "x", "--prefix", "a"], "--prefix is only for --to blob and --to c"),
    (["export", "MODEL", "--to", "c", "--out", "x", "--runtime", "r"], "--runtime is only for --to blob"),
])  # fmt: skip
def test_wrong_use_is_refused_by_the_rule(model, args, words, run, tmp_path, monkeypatch):
    """One sentence, exit code 2."""
    monkeypatch.chdir(tmp_path)
    (tmp_path / "p.csv").write_text("M,N,K\n1,2,3\n")
    code, _, err = run(*[model if arg == "MODEL" else arg for arg in args])
    assert code == 2
    assert words in err
