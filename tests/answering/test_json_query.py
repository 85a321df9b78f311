"""Questions in JSON: the same answers from C and from Python, one by one and in lists, from the right model or from none."""

import io
import json
import random
import re
import shutil
from pathlib import Path

import numpy as np
import polars as pl
import pytest

from kerncast.answering.query import Query, among, in_store
from kerncast.answering.selector import Selector
from kerncast.data import schema
from kerncast.library import devices
from kerncast.library.registry import FAMILIES
from kerncast.models.store.store import Store
from kerncast.native import build
from kerncast.native.tiers.build import plain_tiers
from kerncast.testing.models import synthetic_dataset
from kerncast.training.procedure import Recipe
from kerncast.training.train import train

CORPUS = json.loads(Path(__file__).with_name("corpus.json").read_text(encoding="utf-8"))
COMMIT = "87144607f757092c2c0cc817d12a8942d30fbfc9"
EXP = {"op": "exp", "tensor": {"shape": [1, 1, 320, 640], "dtype": "bfloat16", "memory": {"buffer": "L1"}}}


def recipe(knobs):
    """Times as they are, not their logarithms: sums of leaves, the same in C and in Python to the last bit."""
    return Recipe("gbdt", {"lr": 0.3, **knobs}, target="latency", target_log=False, folds=2, threads=1)


def exp_model(folder, software):
    """A small model of exp on bf16 and bfp8 tensors in DRAM and L1."""
    chance = np.random.default_rng(0)
    sides = 32 * chance.integers(1, 64, (240, 2))
    rows = pl.DataFrame(
        {"problem.func": "exp", "problem.dim2": sides[:, 0], "problem.dim3": sides[:, 1], "device": "wormhole_b0",
         "problem.dtype": ["bf16", "bfp8"] * 120, "problem.buffer": ["dram", "dram", "l1", "l1"] * 60, "status": "ok",
         "software": json.dumps({"commit": software}, separators=(",", ":")),
         "time_ns": 900.0 + 0.01 * sides[:, 0] * sides[:, 1]}
    )  # fmt: skip
    family = FAMILIES.get("eltwise_unary/single")
    data = synthetic_dataset(folder / "data", schema.conform(family, rows), family)
    return train(data, folder / "model", recipe({"trees": 60, "library_trees": 4, "leaves": 15}))


@pytest.fixture(scope="module")
def exp(tmp_path_factory):
    return exp_model(tmp_path_factory.mktemp("exp"), COMMIT)


@pytest.fixture(scope="module")
def sharded(tmp_path_factory):
    folder = tmp_path_factory.mktemp("sharded")
    sizes = np.random.default_rng(1).integers(1, 40, (80, 3)) * 32
    rows = pl.DataFrame(
        {"device": "wormhole_b0", **{f"problem.{name}": sizes[:, i] for i, name in enumerate("MKN")}, "problem.num_cores": 8,
         "status": "ok", "time_ns": 500.0 + 1e-4 * sizes.prod(axis=1)}
    )  # fmt: skip
    family = FAMILIES.get("matmul_sharded/single")
    data = synthetic_dataset(folder / "data", schema.conform(family, rows), family)
    return train(data, folder / "model", recipe({"trees": 30, "library_trees": 4, "leaves": 7}))


@pytest.fixture(params=[pytest.param(True, marks=pytest.mark.needs("a C compiler"), id="c"), pytest.param(False, id="python")])
def query(request, exp, sharded):
    return Query(among([exp, sharded]), compile=request.param)


def ask(query, request):
    return json.loads(query.answer(json.dumps(request)))


def with_tensor(**changes):
    return {**EXP, "tensor": {**EXP["tensor"], **changes}}


def test_an_answer_is_a_time_an_interval_and_whose_answer_it_is(query, exp):
    """What the model itself predicts, and nothing that there is no choice of."""
    reply = ask(query, {**EXP, "device": "n150", "family": "single", "software": COMMIT[:8]})
    assert list(reply) == ["status", "time_ns", "lower_ns", "upper_ns", "model", "software"]
    assert reply["status"] == "ok"
    assert 0 < reply["lower_ns"] < reply["time_ns"] < reply["upper_ns"]
    assert reply["model"] == f"eltwise_unary/single@wormhole_b0#{exp.manifest.checksum[:8]}"
    assert reply["software"] == COMMIT
    values = {"func": "exp", "dim2": 320, "dim3": 640, "dtype": "bf16", "buffer": "l1"}
    expected = Selector(exp, tiers=plain_tiers(exp), tier="full", compile=False).predict(values)
    assert reply["time_ns"] == pytest.approx(expected.time_ns, rel=1e-12)


def test_rank_and_form_of_a_tensor_change_nothing(query):
    """Rank 2, 3 and 4, TTNN's own spec, and flat parameters: one answer, byte for byte."""
    layout = {"dtype": 0, "memory_config": {"buffer_type": 1, "memory_layout": 0, "created_with_nd_shard_spec": False}}
    spec = {"tensor_spec": {"logical_shape": [320, 640], "tensor_layout": layout}, "storage": {"index": 1, "value": {}}}
    same = [
        with_tensor(shape=[320, 640]), with_tensor(shape=[1, 320, 640]), with_tensor(dtype="DataType.BFLOAT16"),
        {"op": "exp", "tensor": spec}, {"op": "exp", **spec}, {**EXP, "output_memory_config": {"buffer_type": "L1"}},
        {"op": "eltwise_unary", "func": "exp", "dim2": 320, "dim3": 640, "dtype": "bf16", "buffer": "l1"},
    ]  # fmt: skip
    wanted = query.answer(json.dumps(EXP))
    assert json.loads(wanted)["status"] == "ok"
    assert {query.answer(json.dumps(request)) for request in same} == {wanted}


# -- the corpus: texts that both readers must answer alike -----------------------------------------------------------------


def text_of(entry):
    """A text of the corpus: as it stands, as bytes that are not UTF-8, or as parts that are repeated."""
    if "hex" in entry:
        return bytes.fromhex(entry["hex"])
    return entry["text"] if "text" in entry else "".join(part * times for part, times in entry["parts"])


@pytest.fixture(scope="module")
def readers(exp, sharded, tmp_path_factory):
    """By model: who reads requests in C (where there is a compiler) and in Python; by `query`: both as a whole."""
    folder = tmp_path_factory.mktemp("gemm")
    gemm = train(synthetic_dataset(folder / "data"), folder / "model", recipe({"trees": 10, "library_trees": 4}))
    models = {"exp": exp, "sharded": sharded, "gemm": gemm}
    found = {name: [] for name in (*models, "query")}
    for compiled in (True, False) if build.find_compiler() is not None else (False,):
        for name, model in models.items():
            tier = "portfolio" if name == "gemm" else "full"
            found[name].append(Selector(model, tiers=plain_tiers(model), tier=tier, compile=compiled).query)
        found["query"].append(Query(among([exp, sharded]), compile=compiled).answer)
    return found


def alike(texts):
    """The first of some replies to one text, if all say the same; long messages of C are cut."""
    first, *others = map(json.loads, texts)
    for other in others:
        for one, two in zip(*(reply if isinstance(reply, list) else [reply] for reply in (first, other)), strict=True):
            assert one | {"message": ""} == two | {"message": ""}
            assert one.get("message", "")[:200] == two.get("message", "")[:200]
    return first


@pytest.mark.parametrize("entry", CORPUS["requests"], ids=lambda entry: entry["name"])
def test_both_readers_answer_a_request_alike(readers, entry):
    """What a model does not know gets a reason and no number."""
    reply = alike([read(text_of(entry)) for read in readers[entry["of"]]])
    assert reply["status"] == entry["status"]
    assert re.search(entry.get("pattern", ""), reply.get("message", ""))
    assert ("time_ns" in reply) == (reply["status"] == "ok")


@pytest.mark.parametrize("entry", CORPUS["not_json"], ids=lambda entry: entry["name"])
def test_both_readers_refuse_what_is_not_json_alike(readers, entry):
    """With the rule that was broken, and at which byte; any model says the same."""
    reply = alike([read(text_of(entry)) for name in ("exp", "gemm") for read in readers[name]])
    assert (reply["status"], reply["position"]) == ("bad_input", entry["position"])
    assert entry["message"] in reply["message"]


def test_both_readers_answer_lists_alike(readers):
    """All requests of a model at once, those that are refused among them, and many that differ in size and form."""
    for name in ("exp", "gemm"):
        texts = [text_of(entry) for entry in CORPUS["requests"] if entry["of"] == name and "too deep" not in entry["name"]]
        texts += [json.dumps(request) for request in many(100)] if name == "exp" else []
        assert len(alike([read(f"[{' , '.join(texts)}]") for read in readers[name]])) == len(texts)


def many(count, seed=0):
    """Requests in all forms, most of them good ones."""
    chance = random.Random(seed)
    found = []
    for _ in range(count):
        side = [32 * chance.randint(1, 70) for _ in range(2)]
        shape = [1] * chance.randint(0, 2) + side
        dtype, buffer = chance.choice(["bfloat16", "BFLOAT8_B", 0, 3, "float32"]), chance.choice(["DRAM", "l1", 0, 1])
        short = {"shape": shape, "dtype": dtype, "memory": {"buffer": buffer}}
        spec = {"logical_shape": shape, "tensor_layout": {"dtype": dtype, "memory_config": {"buffer_type": buffer}}}
        found.append({"op": "exp", **chance.choice([{"tensor": short}, {"tensor_spec": spec}])})
    return found


@pytest.mark.needs("a C compiler")
def test_a_list_is_answered_as_its_members_are(exp):
    """Sixty-four at a time or one by one: the same bytes, in order, refusals in their places."""
    query = Query(among([exp]))
    for count in (0, 1, 63, 64, 65, 200):
        requests = many(count, seed=count)
        alone = [ask(query, request) for request in requests]
        together = ask(query, requests)
        for reply in (*alone, *together):
            reply.pop("position", None)
        assert together == alone


@pytest.mark.needs("a C compiler")
def test_a_list_about_several_models_keeps_its_order_and_places(exp, sharded):
    """Each request goes to its own model; the byte of a refusal is that of the text that was asked."""
    product = {"op": "matmul_sharded", "M": 640, "K": 640, "N": 640, "num_cores": 8}
    wrong = {**product, "K": "many"}
    requests = [EXP, wrong, {"op": "gemm"}, product, with_tensor(dtype="??"), EXP]
    text = json.dumps(requests, indent=1)
    replies = json.loads(Query(among([exp, sharded])).answer(text))
    assert [reply["status"] for reply in replies] == ["ok", "bad_input", "no_model", "ok", "unsupported", "ok"]
    assert replies[0] == replies[5]
    assert replies[1]["position"] == text.index('"many"')
    assert replies[4]["position"] == text.index('"??"')


def test_text_that_is_not_json_is_refused_as_a_whole(query):
    """Nobody knows where the next request begins; the byte is that of the text, whichever model met it."""
    product = '{"op": "matmul_sharded"}'
    half = f'[{product}, {json.dumps(EXP)[:-1]}, "software": "\\ud800"}}]'
    nested = f'[{product}, {json.dumps(EXP)[:-1]}, "storage": {"[" * 15}{"]" * 15}}}]'
    texts = {'{"op":"\udcff"}': 7, half: half.index("\\ud"), nested: nested.index("[" * 15) + 14}
    texts |= {"": 0, "[{]": 2, '{"op": "exp"': 12, "[1, 2": 5, b"\xff{}": 0, b'{"op":"\xff"}': 7}
    texts |= {"[" * 3000 + "]" * 3000: 16, f'{{"op": "exp", "storage": {"[" * 3000}{"]" * 3000}}}': 40}
    for text, position in texts.items():
        reply = json.loads(query.answer(text))
        assert (reply["status"], reply["position"]) == ("bad_input", position), text


def test_a_damaged_model_refuses_its_own_requests_and_no_others(exp, sharded, tmp_path):
    """Damaged, gone, or of a damaged entry: `corrupt` in its place, alone and in a list."""
    store = Store.open(tmp_path / "store")
    store.add(exp.path)
    entry = store.add(sharded.path)
    product = {"op": "matmul_sharded", "M": 640, "K": 640, "N": 640, "num_cores": 8}
    for damage in (
        lambda: (entry.path / "model.json").write_text("{"),
        lambda: shutil.rmtree(entry.path),
        lambda: (entry.path.parent / "entry.json").write_text("{"),
    ):
        damage()
        query = Query(in_store(store), compile=False)
        assert [reply["status"] for reply in ask(query, [product, EXP, product])] == ["corrupt", "ok", "corrupt"]
        assert ask(query, product)["status"] == "corrupt"
        assert [reply["status"] for reply in ask(query, [product])] == ["corrupt"]


@pytest.mark.parametrize("place", [0, 1, 2])
def test_this_machine_is_found_by_local_and_answers(query, exp, sharded, tmp_path, monkeypatch, place):
    """A model has the device's own name, and must not be asked about `local`; all else stays in its place."""
    monkeypatch.setattr(devices, "local", lambda: devices.profiles()["wormhole_b0"])
    store = Store.open(tmp_path / "store")
    store.add(exp.path)
    items = list(EXP.items())
    request = dict([*items[:place], ("device", "local"), *items[place:]])
    wrong = {**request, "layout": "x"}
    for find in (query.find, in_store(store)):
        asked = Query(find, compile=query.compile)
        assert ask(asked, request)["status"] == "ok"
        text = json.dumps([request, wrong, {"op": "gemm"}])
        replies = json.loads(asked.answer(text))
        assert [reply["status"] for reply in replies] == ["ok", "bad_input", "no_model"]
        assert replies[1]["position"] == text.index('"x"')
        for alone in (json.dumps(wrong), json.dumps(wrong).replace("device", "d\\u0065vice")):
            assert json.loads(asked.answer(alone))["position"] == alone.index('"x"')


def test_another_software_is_a_warning_or_with_strict_a_refusal(exp, tmp_path):
    """The model answers and says what it was trained on; the beginning of its commit is the same software."""
    store = Store.open(tmp_path / "store")
    store.add(exp.path)
    for lenient, strict in ((among([exp]), among([exp], True)), (in_store(store), in_store(store, True))):
        for compiled in (True, False):
            reply = ask(Query(lenient, compile=compiled), {**EXP, "software": "0123456789ab"})
            assert reply["status"] == "ok"
            assert "0123456789ab" in reply["warning"]
            assert "warning" not in ask(Query(lenient, compile=compiled), {**EXP, "software": COMMIT[:10]})
        refused = ask(Query(strict, compile=False), [{**EXP, "software": "0123456789ab"}])
        assert refused[0]["status"] == "no_model"
        assert "0123456789ab" in refused[0]["message"]


def test_a_model_whose_data_are_silent_does_not_claim_another_software(query, sharded, tmp_path):
    """It says that it does not know, in lists about several models too."""
    store = Store.open(tmp_path / "store")
    store.add(sharded.path)
    product = {"op": "matmul_sharded", "M": 640, "K": 640, "N": 640, "num_cores": 8, "software": "0123456"}
    for find in (query.find, in_store(store)):
        for reply in ask(Query(find, compile=query.compile), [product, {"op": "gemm"}, product])[::2]:
            assert re.search("asked for .*0123456.*, the model does not say what it was trained on", reply["warning"])


def test_software_that_only_the_store_knows_is_the_models_all_the_same(sharded, tmp_path):
    """Said when the model was added: it is in the reply, and what is asked is compared with it."""
    store = Store.open(tmp_path / "store")
    store.add(sharded.path, software={"commit": COMMIT})
    product = {"op": "matmul_sharded", "M": 640, "K": 640, "N": 640, "num_cores": 8}
    query = Query(in_store(store), compile=False)
    same, other = ask(query, [{**product, "software": COMMIT[:9]}, {**product, "software": "0123456789ab"}])
    assert (same["software"], "warning" in same) == (COMMIT, False)
    assert "0123456789ab" in other["warning"]


def test_the_verb_reads_text_files_and_stdin_and_says_by_its_exit_code_whether_all_is_well(exp, tmp_path, run, monkeypatch):
    """One object in, one out; a list in, a list out; the store by default."""
    monkeypatch.setenv("KERNCAST_STORE", str(tmp_path / "store"))
    monkeypatch.setenv("KERNCAST_SHIPPED", "")
    text = json.dumps(EXP)
    code, out, _ = run("predict", text, "--no-compile")
    assert (code, json.loads(out)["status"]) == (1, "no_model")
    Store.open().add(exp.path)
    code, out, _ = run("predict", text, "--no-compile")
    assert (code, json.loads(out)["status"]) == (0, "ok")
    assert len(out.splitlines()) == 1
    (tmp_path / "requests.json").write_text(json.dumps([EXP, {**EXP, "op": "relu"}]))
    code, out, _ = run("predict", tmp_path / "requests.json", "--model", exp.path, "--no-compile", "--json")
    assert (code, [reply["status"] for reply in json.loads(out)]) == (1, ["ok", "unsupported"])
    monkeypatch.setattr("sys.stdin", io.TextIOWrapper(io.BytesIO(text.encode())))
    assert run("predict", "-", "--no-compile")[0] == 0
    assert run("predict", '{"op":"\udcff"}', "--no-compile")[0] == 1  # as a shell hands over a byte that is not UTF-8
    code, _, err = run("predict", "nowhere.json")
    assert (code, "neither JSON nor a readable file" in err) == (2, True)
    assert run("predict", text, "--model", exp.path, "--store", tmp_path)[0] == 2


def test_predict_of_an_op_asks_the_store(exp, tmp_path, run, monkeypatch):
    """By the op's name or an alias, which says some parameters, and a device; a model needs neither."""
    monkeypatch.setenv("KERNCAST_STORE", str(tmp_path / "store"))
    monkeypatch.setenv("KERNCAST_SHIPPED", "")
    Store.open().add(exp.path)
    rest = ["dim2=320", "dim3=640", "dtype=bf16", "buffer=l1", "--json"]
    answers = [
        json.loads(run("predict", *asked, *rest)[1])["time_ns"]
        for asked in (["exp", "--device", "n150"], ["eltwise_unary", "func=exp"], [exp.path, "func=exp"])
    ]
    assert len(set(answers)) == 1
    assert json.loads(run("predict", exp.path, "--device", "n150", "func=exp", *rest)[1])["time_ns"] == answers[0]
    code, out, _ = run("predict", "exp", "--device", "a100", *rest)
    assert (code, json.loads(out)["basis"]) == (0, "roofline")
    code, out, _ = run("predict", "exp", "dim2=320", "dim3=640", "dtype=fp32", "buffer=l1", "--json")
    answer = json.loads(out)
    assert (code, answer["status"], answer["basis"]) == (1, "unsupported", "none")
    assert "does not answer: dtype was trained with bf16, bfp8 only, got fp32" in answer["reason"]
    code, _, err = run("predict", "exp", "func=relu", *rest)
    assert (code, "exp means func=exp, which contradicts func=relu" in err) == (2, True)
    assert run("predict", "exp", "--family", "single", *rest)[0] == 0
    assert run("predict", "exp", "--family", "double", *rest)[0] == 2
