"""`kerncast.predict`: the user's models, then those that ship, then the roofline; and every answer says which it was."""

import json
import os
import shutil
import subprocess
import sys
from dataclasses import replace
from pathlib import Path

import numpy as np
import polars as pl
import pytest

import kerncast
from kerncast.errors import BadFile, InvalidValue, NotFound
from kerncast.library import devices
from kerncast.measuring.backends.cpu.build import find_compiler
from kerncast.models.model import Model
from kerncast.models.physics import FILE, learn_misses, read_misses

SIZES = (16, 64, 256, 1024, 2048, 4096, 8192)
PROBLEM = {"M": 2048, "N": 1024, "K": 4096, "dtype": "bf16"}
# By device: its dtypes with the code path that runs them, as in the public tables: fp8 is not on every GPU.
PATHS = {
    "h100": {"bfloat16": "torch.nn.functional.linear", "fp8": "CutlassFP8ScaledMMLinearKernel"},
    "a100": {"bfloat16": "vllm_default"},
}
VERSIONS = {"h100": "0.24.0", "a100": "0.14.0"}


def tables(folder: Path, slower: float = 1.0) -> Path:
    """GEMM tables of two GPUs in AIConfigurator's layout; times follow from the rooflines."""
    rng = np.random.default_rng(0)
    for name, paths in PATHS.items():
        device = devices.get(name)
        rows = []
        for dtype, path in paths.items():
            own = {"bfloat16": "bf16"}.get(dtype, dtype)
            size = 2 if own == "bf16" else 1
            for m in SIZES:
                for n in SIZES[2:]:
                    for k in SIZES[2:]:
                        compute = 2 * m * n * k / (device.peak_tflops[own] * 1e3)
                        memory = size * (m * k + k * n + m * n) / device.numbers["memory_bandwidth_gb_s"]
                        ns = slower * (4000 + 1.4 * max(compute, memory)) * np.exp(0.01 * rng.standard_normal())
                        rows.append(("VLLM", VERSIONS[name], name, "gemm", path, dtype, m, n, k, ns / 1e6))
        columns = ["framework", "version", "device", "op_name", "kernel_source", "gemm_dtype", "m", "n", "k", "latency"]
        (folder / name).mkdir(parents=True)
        pl.DataFrame(rows, schema=columns, orient="row").write_parquet(folder / name / "gemm_perf.parquet")
    return folder


@pytest.fixture(scope="module")
def pooled(tmp_path_factory):
    """One model of both GPUs."""
    folder = tmp_path_factory.mktemp("pooled")
    data = kerncast.read(tables(folder / "tables"), file_format="aiconfigurator", out=folder / "data", progress=False)
    return kerncast.train(
        data, out=folder / "model", pool=True, trees=40, leaves=15, folds=2, threads=1, blend=0, progress=False
    )  # fmt: skip


@pytest.fixture
def shipped(pooled, tmp_path, monkeypatch):
    """An empty store, and the slim model shipped with what is known of rooflines."""
    folder = tmp_path / "shipped"
    pooled.slimmed(folder / "gemm_vllm")
    rows = pooled.out_of_fold.select(
        pl.lit("gemm").alias("op"), "device", time_ns="measured_ns", roofline_ns=pl.col("measured_ns") / 2.0
    )
    learn_misses(rows).write(folder / FILE)
    monkeypatch.setenv("KERNCAST_SHIPPED", str(folder))
    monkeypatch.setenv("KERNCAST_STORE", str(tmp_path / "store"))
    return folder


def test_a_slim_model_answers_as_the_whole_one_from_a_fraction_of_the_bytes(pooled, shipped):
    """Times, intervals and chosen kernels are equal on every device; predictions and problems are gone; `verify` accepts it."""
    slim = Model.load(shipped / "gemm_vllm")
    problems = [{**PROBLEM, "layout": "rcr", "M": m, "dtype": dtype} for m in (16, 100, 4096) for dtype in ("bf16", "fp8")]
    for device in PATHS:
        mine, theirs = slim.predict(problems, device=device), pooled.predict(problems, device=device)
        assert [answer.as_json() for answer in mine] == [answer.as_json() for answer in theirs]
    assert slim.slim
    assert slim.out_of_fold is None
    assert (slim.path / "forests.npz").stat().st_size < (pooled.path / "time.0.lgbm.gz").stat().st_size / 2
    assert kerncast.inspect(slim.path, verify=True, progress=False).whole
    with pytest.raises(InvalidValue, match="slim model"):
        _ = slim.seen


def test_a_frame_names_the_device_of_each_row(pooled):
    """In any order and under any of its names; a row without a device is refused."""
    frame = pl.DataFrame(
        [
            {**PROBLEM, "layout": "rcr", "M": size, "device": name}
            for size in (64, 256)
            for name in ("h100", "a100", "NVIDIA H100 80GB HBM3")
        ]
    )
    found = pooled.predict(frame)
    assert found["device"].to_list() == frame["device"].to_list()
    for name in ("h100", "a100"):
        alone = pooled.predict(frame.filter(device=name).drop("device"), device=name)
        assert found.filter(device=name)["time_ns"].to_list() == alone["time_ns"].to_list()
    assert found["time_ns"][0] == found["time_ns"][2] != found["time_ns"][1]
    assert pooled.predict(frame.clear()).height == 0
    with pytest.raises(InvalidValue, match="row 1 of the frame names no device: name one of a100, h100"):
        pooled.predict(frame.with_columns(device=pl.lit(None, pl.String)))


def test_a_model_without_folds_answers_without_an_interval(pooled, shipped, tmp_path):
    """It has no figures to show and none are made up; one row too many or a wrong type in what serves it is refused."""
    plain = kerncast.train(
        pooled.path.parent / "data", out=tmp_path / "plain", pool=True, trees=3, folds=0, blend=0, progress=False
    )  # fmt: skip
    shutil.rmtree(shipped / "gemm_vllm")
    plain.slimmed(shipped / "gemm_vllm")
    found = kerncast.predict("gemm", PROBLEM, device="h100")
    assert (found.status, found.basis, found.lower_ns) == ("ok", "model", None)
    assert "held out" not in found.card
    assert repr(plain).startswith("Model(gemm/library")


def test_a_profile_without_the_peak_rate_of_a_dtype_gets_no_time_for_it(pooled, shipped, tmp_path):
    """Of a device that nobody measured only bf16 is known: bf16 has a time, fp8 none, alone, in a frame and by op."""
    profile = tmp_path / "mine.toml"
    numbers = {"num_cus": 120, "memory_bandwidth_gb_s": 2400, "l2_cache_kb": 49152}
    lines = [f'{name} = {{ value = {value}, source = "sheet" }}' for name, value in numbers.items()]
    text = ['name = "mine"', 'title = "Mine"', 'kind = "gpu"', "[numbers]", *lines]
    profile.write_text("\n".join([*text, "[peak_tflops]", 'bf16 = { value = 500, source = "sheet" }']))
    problems = [{**PROBLEM, "layout": "rcr", "dtype": dtype} for dtype in ("bf16", "fp8")]
    known, unknown = pooled.predict(problems, device=str(profile))
    assert known.time_ns is not None
    assert (unknown.time_ns, str(unknown.status)) == (None, "out_of_range")
    assert "peak rate of fp8, which the profile of mine lacks" in unknown.reason
    frame = pl.DataFrame(problems).with_columns(pl.lit("torch.nn.functional.linear").alias("config.kernel_source"))
    assert pooled.predict(frame, device=str(profile))["time_ns"].is_null().to_list() == [False, True]
    found = kerncast.predict("gemm", problems, device=str(profile))
    assert [item.basis for item in found] == ["model", "none"]
    assert str(shipped) not in found[1].reason


def test_a_dtype_that_a_device_was_not_measured_with_is_not_guessed(pooled):
    """fp8 was measured on the H100 alone: the same model answers there, and refuses on the A100."""
    problem = {**PROBLEM, "layout": "rcr", "dtype": "fp8"}
    assert pooled.predict(problem, device="h100").ok
    refused = pooled.predict(problem, device="a100")
    assert (refused.status, "dtype was trained with bf16 only, got fp8" in refused.reason) == ("out_of_range", True)


def test_what_is_not_given_is_filled_in_and_said(shipped):
    """The layout, of which the model saw one value, may be left out; the answer names it, its kernel, basis and card."""
    found = kerncast.predict("gemm", PROBLEM, device="h100")
    assert (found.status, found.basis, found.model, found.software) == ("ok", "model", "shipped/gemm_vllm", "vllm==0.24.0")
    assert found.filled["layout"] == "rcr"
    assert found.problem["layout"] == "rcr"
    assert found.config == {"kernel_source": PATHS["h100"]["bfloat16"]}
    assert found.lower_ns < found.time_ns < found.upper_ns
    assert found.roofline_ns < found.time_ns
    assert "held out" in found.card
    assert "on h100" in found.card
    both = kerncast.predict("gemm", [PROBLEM, {**PROBLEM, "layout": "rcr"}], device="h100")
    assert [item.time_ns for item in both] == [found.time_ns] * 2
    assert "layout" not in both[1].filled


def test_the_software_is_that_of_the_device(shipped):
    """A model of several devices has the newest version of each: the answer names that of its device, and what differs."""
    for name, version in VERSIONS.items():
        found = kerncast.predict("gemm", PROBLEM, device=name, software="vllm")
        assert (found.software, found.note) == (f"vllm=={version}", "")
    other = kerncast.predict("gemm", PROBLEM, device="a100", software="vllm==0.24.0")
    assert other.basis == "model"
    assert "a100 was measured with vllm==0.14.0, not with vllm==0.24.0" in other.note


def test_the_users_own_model_comes_before_a_shipped_one(shipped, tmp_path):
    """Where both cover a problem the store's model answers; what only the shipped one covers is still answered by it."""
    data = kerncast.read(tables(tmp_path / "t", slower=3.0), file_format="aiconfigurator", out=tmp_path / "d", progress=False)
    own = kerncast.train(
        data, out=tmp_path / "own", where=["device=h100", "dtype=bf16"], trees=10, folds=2, threads=1, progress=False
    )  # fmt: skip
    before = kerncast.predict("gemm", PROBLEM, device="h100")
    entry = kerncast.Store.open().add(own)
    after = kerncast.predict("gemm", PROBLEM, device="h100")
    assert (after.model, after.basis) == (entry.id, "model")
    assert after.time_ns > 2 * before.time_ns
    others = kerncast.predict("gemm", [{**PROBLEM, "dtype": "fp8"}, PROBLEM], device="h100")
    assert [item.model for item in others] == ["shipped/gemm_vllm", entry.id]
    assert kerncast.predict("gemm", PROBLEM, device="a100").model == "shipped/gemm_vllm"


def test_without_a_model_the_roofline_answers_and_says_so(shipped, tmp_path, monkeypatch):
    """A device or a problem that no model covers has the time of its roofline, with an interval; never in silence."""
    outside = kerncast.predict("gemm", {**PROBLEM, "M": 100_000}, device="h100")
    assert (outside.status, outside.basis, outside.model) == ("out_of_range", "roofline", None)
    assert "shipped/gemm_vllm does not answer: M was trained with 16 to 8192 only" in outside.reason
    monkeypatch.setenv("KERNCAST_SHIPPED", str(tmp_path / "none"))
    (tmp_path / "none").mkdir()
    shutil.copy(shipped / FILE, tmp_path / "none" / FILE)
    found = kerncast.predict("gemm", PROBLEM, device="mi300x")
    assert (found.status, found.basis) == ("ok", "roofline")
    assert "there is no model of gemm" in found.reason
    assert found.lower_ns <= found.time_ns <= found.upper_ns
    assert found.time_ns == pytest.approx(2 * found.roofline_ns, rel=1e-9)
    profile = devices.get("mi300x")
    assert found.roofline_ns == pytest.approx(2 * 2048 * 1024 * 4096 / (profile.peak_tflops["bf16"] * 1e3), rel=1e-9)
    none = kerncast.predict("gemm", {**PROBLEM, "dtype": "int4"}, device="mi300x")
    assert (none.status, none.basis, none.time_ns) == ("no_model", "none", None)
    assert "no peak rate of int4" in none.reason
    for wrong, words in (({"M": 1}, "depends on N, K, dtype"), ({**PROBLEM, "N": -1}, "N must be a whole number")):
        with pytest.raises(InvalidValue, match=words):
            kerncast.predict("gemm", wrong, device="mi300x")
    with pytest.raises(NotFound, match="unknown device 'mi3000x'"):
        kerncast.predict("gemm", PROBLEM, device="mi3000x")
    with pytest.raises(NotFound, match="unknown parameter of gemm 'm'"):
        kerncast.predict("gemm", {"m": 1}, device="mi300x")


def test_a_profile_alone_is_asked_of_a_model_of_several_devices(shipped, tmp_path):
    """A TOML profile works as a device: the pooled model extrapolates to it, and says that it never saw it."""
    text = (Path(devices.__file__).parent / "h200.toml").read_text()
    mine = tmp_path / "mine.toml"
    mine.write_text(text.replace('name = "h200"', 'name = "mygpu"').replace("aliases = [", "aliases = [] #"))
    found = kerncast.predict("gemm", PROBLEM, device=str(mine))
    assert (found.basis, found.device, found.model) == ("model", "mygpu", "shipped/gemm_vllm")
    assert found.time_ns > 0
    assert "mygpu was not measured; the nearest device that was is h100" in found.reason
    assert found.config == {"kernel_source": PATHS["h100"]["bfloat16"]}
    assert kerncast.predict("gemm", PROBLEM, device=devices.get(str(mine))) == found


def test_a_cold_answer_needs_neither_lightgbm_nor_a_compiler(shipped):
    """The command imports none of the heavy packages, and prints the time, the roofline and the basis."""
    code = (
        "import sys; from kerncast.app import cli\n"
        "try: cli.main(sys.argv[1:])\n"
        "except SystemExit as stopped: assert not stopped.code, stopped.code\n"
        "heavy = {'lightgbm', 'scipy', 'sklearn', 'torch', 'plotly', 'pandas'} & set(sys.modules)\n"
        "print('heavy', sorted(heavy))"
    )
    words = [f"{name}={value}" for name, value in PROBLEM.items()]
    done = subprocess.run(
        [sys.executable, "-c", code, "predict", "gemm", *words, "--device", "h100"],
        capture_output=True, text=True, env={**os.environ, "PATH": "/nowhere"}, check=False,
    )  # fmt: skip
    assert done.returncode == 0, done.stderr
    assert "heavy []" in done.stdout, done.stdout
    assert {"time", "roofline", "basis", "card"} <= {line.split()[0] for line in done.stdout.splitlines()}


def test_the_command_compares_devices(shipped, run):
    """`--device all` prints every device of the models, the fastest first, as a table or JSON."""
    words = [f"{name}={value}" for name, value in PROBLEM.items()]
    code, out, _ = run("predict", "gemm", *words, "--device", "all")
    assert code == 0
    assert out.index("h100") < out.index("a100")
    assert "layout=rcr" in out
    code, out, _ = run("predict", "gemm", *words, "--device", "all", "--json")
    rows = json.loads(out)
    assert [row["device"] for row in rows] == ["h100", "a100"]
    assert rows[0]["time_ns"] < rows[1]["time_ns"]
    code, out, _ = run("models", "--json")
    assert [(entry["id"], entry["shipped"]) for entry in json.loads(out)] == [("shipped/gemm_vllm", True)]
    code, out, _ = run("models", "find", "gemm", "--device", "h100")
    assert (code, out.strip()) == (0, str(shipped / "gemm_vllm"))


def test_a_damaged_shipped_model_is_refused_by_name(shipped):
    """A changed byte in the packed forests, or in what is known of rooflines, is never answered from."""
    file = shipped / "gemm_vllm" / "forests.npz"
    data = bytearray(file.read_bytes())
    data[len(data) // 2] ^= 1
    file.write_bytes(bytes(data))
    with pytest.raises(BadFile, match=r"forests\.npz differs from its checksum"):
        kerncast.predict("gemm", PROBLEM, device="h100")
    text = (shipped / FILE).read_text()
    (shipped / FILE).write_text(text.replace('"level":', '"leve1":'))
    with pytest.raises(BadFile, match=r"roofline\.json"):
        read_misses(shipped / FILE)


def test_json_requests_are_answered_by_what_ships(shipped):
    """One list: a shipped model with a filled parameter, a roofline, a wrong request with its place, and no device."""
    base = {"op": "gemm", **PROBLEM}
    requests = [
        {**base, "device": "h100"},
        {**base, "device": "mi300x", "M": 10**6},
        {**base, "device": "h100", "M": "x"},
        base,
    ]
    text = json.dumps(requests)
    replies = json.loads(kerncast.predict(text, progress=False))
    assert [(item["status"], item.get("basis")) for item in replies] == [
        ("ok", "model"), ("out_of_range", "roofline"), ("bad_input", None), ("no_model", None),
    ]  # fmt: skip
    alone = kerncast.predict("gemm", PROBLEM, device="h100")
    assert (replies[0]["time_ns"], replies[0]["filled"], replies[0]["card"]) == (alone.time_ns, alone.filled, alone.card)
    assert replies[2]["position"] == text.index('"x"')
    missing = kerncast.predict({"op": "gemm", "M": 5, "device": "h100"}, progress=False)
    assert (missing["status"], "N" in missing["message"]) == ("bad_input", True)


def test_an_op_and_a_stored_model_are_found_beside_folders_of_their_names(shipped, pooled, tmp_path, run, monkeypatch):
    """`gemm/`, empty or a dataset, hides neither the op nor the model of a store; a model in a folder is meant by its name."""
    monkeypatch.chdir(tmp_path)
    question = ["gemm", *(f"{name}={value}" for name, value in PROBLEM.items()), "--device", "h100"]
    expected = run("predict", *question)
    Path("gemm").mkdir()
    assert run("predict", *question) == expected
    (Path("gemm") / "dataset.json").write_text("{}")
    assert run("predict", *question) == expected
    assert run("predict", "./gemm")[2].startswith("kerncast: gemm is a dataset, not a model: train one on it with")
    for verb in (["select"], ["select", "--search"], ["evaluate"], ["compare"]):
        code, _, err = run(*verb, "gemm", "other")
        assert (code, "'gemm' is an op, not a model" in err) == (2, True), err
    store = kerncast.Store.open()
    entry = store.add(pooled)
    assert run("select", *question)[2] == f"model: {entry.id}\n"
    assert store.meant("gemm/library").id == entry.id
    Path("g").mkdir()
    assert store.meant("g") is None, "a letter of an id is no name beside a folder, which may have lost its model"
    whole = {**PROBLEM, "split_k": 1, "batch": 1, "layout": "rcr"}
    answered = kerncast.predict({"op": "gemm", "device": "a100", **whole}, model="gemm", compiled=False)
    assert answered["time_ns"] == pooled.predict(whole, device="a100").time_ns, "the stored one was asked"
    Path(entry.id).mkdir(parents=True)
    assert kerncast.open(entry.id).manifest.checksum == pooled.manifest.checksum
    Path("moe").mkdir()
    pooled.save("moe/m")
    assert run("predict", "moe/m", "--family", "x")[2].startswith("kerncast: --family and --software choose among the models")
    pooled.save("mla_bmm")
    assert run("predict", "mla_bmm", *question[1:])[0] == 0, "a model in a folder that has the name of an op"


@pytest.mark.parametrize("compile", [False, pytest.param(True, marks=pytest.mark.needs("a C compiler"))])
def test_one_selector_answers_for_several_devices(pooled, compile, monkeypatch):
    """The device is said at construction or in the question; each has its memo, and without a device the error names them."""
    pick = kerncast.Selector(pooled, tiers="full", compile=compile, progress=False)
    problem = {**PROBLEM, "split_k": 1, "batch": 1, "layout": "rcr"}
    alone = {name: kerncast.Selector(pooled, device=name, tiers="full", compile=compile, progress=False) for name in PATHS}
    first = {name: pick(**problem, device=name) for name in PATHS}
    assert first == {name: alone[name](**problem) for name in PATHS}
    assert first["a100"].time_ns != first["h100"].time_ns
    monkeypatch.setattr(kerncast.answering.selector.Selector, "_ask", None)
    for name, answer in first.items():
        again = [
            pick(**problem, device=name),
            pick({**problem, "device": name}),
            pick.select(problem, device=devices.get(name)),
        ]
        assert {(item.tier, item.time_ns) for item in again} == {("memo", answer.time_ns)}
    monkeypatch.undo()
    assert pick.select_many([problem] * 2, device="h100")[1].time_ns == first["h100"].time_ns
    assert pick.on("h100") is pick.on("H100")
    assert pick.on("h100").rank(problem, 1)[0].config == first["h100"].config
    assert repr(pick) == "Selector(gemm/library on one of a100, h100, as each question says)"
    searched = {name: pick.search({**problem, "device": name}, top_k=1).finalists for name in PATHS}
    assert searched == {name: pick.on(name).search(problem, top_k=1).finalists for name in PATHS}
    for ask in (
        pick,
        pick.search,
        lambda one: pick.select_many([one]),
        pick.rank,
        lambda _: pick.tiers,
        lambda _: pick.query("{}"),
    ):
        with pytest.raises(InvalidValue, match=r"several devices \(a100, h100\): name one with `device`"):
            ask(problem)
    assert not hasattr(pick, "artefact")
    for device, words in (("b200", "trained on a100, h100, not on b200"), (3, "`device` is the name of a device")):
        for ask in (pick, lambda problem, device: kerncast.Selector(pooled, device=device)):
            with pytest.raises(InvalidValue, match=words):
                ask(problem, device=device)
    with pytest.raises(InvalidValue, match="trained on h100, not on a100"):
        alone["h100"](**problem, device="a100")


def test_the_devices_of_a_model_are_named_where_one_must_be_chosen(shipped, tmp_path, run):
    """`select` takes the device as an option or in the question, and `export` in every form says which there are."""
    question = ["shipped/gemm-vllm", *(f"{name}={value}" for name, value in PROBLEM.items())]
    pooled = shipped / "gemm_vllm"
    by_option = run("select", pooled, *question[1:], "--device", "h100")
    assert by_option[0] == 0
    assert run("select", pooled, *question[1:], "device=h100") == by_option
    code, _, err = run("select", pooled, *question[1:], "device=h100", "--device", "a100")
    assert (code, "names the device h100, not a100" in err) == (2, True)
    for form in ("c", "blob", "json", "lookup-table"):
        code, _, err = run("export", pooled, "--to", form, "--out", tmp_path / "x")
        assert (code, "name one of a100, h100 with --device" in err) == (2, True)


@pytest.mark.needs("a C compiler")
def test_a_pooled_model_is_exported_for_one_of_its_devices(shipped, tmp_path, pooled):
    """The C of a slim model answers what Python answers on that device, and passes its self-test; it needs a device."""
    with pytest.raises(InvalidValue, match="name one of a100, h100 with `device`"):
        kerncast.export(pooled, out=tmp_path / "none", progress=False)
    files = kerncast.export(shipped / "gemm_vllm", out=tmp_path / "c", device="h100", progress=False)
    assert {"kerncast.c", "kerncast.h"} <= {file.name for file in files}
    selector = kerncast.Selector(Model.load(shipped / "gemm_vllm").on("h100"), compile=True)
    assert selector.is_compiled
    problem = {**PROBLEM, "layout": "rcr"}
    said = selector.select(problem)
    alone = kerncast.predict("gemm", PROBLEM, device="h100")
    assert (said.time_ns, dict(said.config.items())) == (alone.time_ns, alone.config)
    build = [find_compiler().path, "-O1", "-o", str(tmp_path / "test"), *map(str, (tmp_path / "c").glob("*.c")), "-lm"]
    subprocess.run(build, check=True)
    assert subprocess.run([str(tmp_path / "test")], check=False, capture_output=True).returncode == 0


def test_problems_that_name_devices_are_answered_for_these_and_for_no_other(pooled, tmp_path, run):
    """In frames, lists and files: a selector of several answers each for its own; where one is asked, another is refused."""
    whole = {**PROBLEM, "split_k": 1, "batch": 1, "layout": "rcr"}
    named = [{**whole, "device": name} for name in (*PATHS, next(iter(PATHS)))]
    expected = [pooled.predict(whole, device=item["device"]).time_ns for item in named]
    assert len(set(expected)) == len(PATHS)
    pick, frame = kerncast.Selector(pooled, tiers="full", compile=False, progress=False), pl.DataFrame(named)
    assert [answer.time_ns for answer in pick.select_many(named)] == expected
    answered = pick.select_many(frame.with_columns(time_ns=0.0, mine=pl.int_range(len(named))))
    assert (answered["time_ns"].to_list(), answered["mine"].to_list()) == (expected, list(range(len(named))))
    one, *_, other = PATHS
    assert pick.on(one)({**whole, "device": one.upper()}).time_ns == expected[0]
    frame.write_parquet(tmp_path / "named.parquet")
    for ask in (
        lambda: pick.select_many(frame, device=one),
        lambda: pick.on(one).select_many(named),
        lambda: pooled.predict(frame, device=one),
        lambda: pick({**whole, "device": other}, device=one),
    ):
        with pytest.raises(kerncast.InvalidValue, match=f"names the device '{other}', and this answers for {one}"):
            ask()
    with pytest.raises(kerncast.KerncastError, match=r"problem 2 of 2 names no device: .* name one with `device`"):
        pick.select_many([named[0], whole])
    pooled.save(tmp_path / "m")
    for verb in ("select", "predict"):
        code, _, err = run(verb, tmp_path / "m", tmp_path / "named.parquet", "--device", one)
        assert (code, f"names the device {other}, not {one}" in err) == (2, True), err
    changed = replace(devices.get(one), numbers={"num_cus": 1.0})
    with pytest.raises(kerncast.InvalidValue, match="has other numbers than the one that the model saw"):
        pick(whole, device=changed)
