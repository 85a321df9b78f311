"""Questions in JSON: the same answers from C and from Python, one by one and in lists, from the right model or from none."""

import io
import json
import random
import re
import shutil

import numpy as np
import polars as pl
import pytest

from kerncast import devices
from kerncast.compiling import build
from kerncast.data import schema
from kerncast.querying.query import Query, among, in_store
from kerncast.registry import FAMILIES
from kerncast.selecting.selector import Selector
from kerncast.selecting.tiers.build import plain_tiers
from kerncast.store.store import Store
from kerncast.testing.models import synthetic_dataset
from kerncast.training.procedure import Recipe
from kerncast.training.train import train

COMMIT = "87144607f757092c2c0cc817d12a8942d30fbfc9"
needs_compiler = pytest.mark.skipif(build.find_compiler() is None, reason="there is no C compiler")
EXP = {"op": "exp", "tensor": {"shape": [1, 1, 320, 640], "dtype": "bfloat16", "memory": {"buffer": "L1"}}}


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
    return train(data, folder / "model", Recipe("gbdt", {"trees": 20, "leaves": 15}, folds=2))


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
    return train(data, folder / "model", Recipe("gbdt", {"trees": 10, "leaves": 7}, folds=2))


@pytest.fixture(params=[pytest.param(True, marks=needs_compiler, id="c"), pytest.param(False, id="python")])
def query(request, exp, sharded, tmp_path_factory, monkeypatch):
    monkeypatch.setenv("KERNCAST_CACHE", str(tmp_path_factory.getbasetemp() / "cache"))
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
    expected = Selector(exp, plain_tiers(exp), tier="full", compile=False).predict(values)
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


REFUSED = {
    "dtype": (with_tensor(dtype="complex64"), "unsupported", 'dtype must be one of bf16, fp32, .*, got "complex64"'),
    "dtype number": (with_tensor(dtype=99), "unsupported", "dtype must be one of bf16"),
    "dtype not trained": (with_tensor(dtype="float32"), "unsupported", "dtype was trained with bf16, bfp8 only, got fp32"),
    "rank 5": (with_tensor(shape=[1, 1, 1, 32, 32]), "unsupported", "tensor.shape must have at most 4 dimensions, got"),
    "layout": (with_tensor(layout="row_major"), "unsupported", "layout was trained with tile only, got row_major"),
    "sharding": (
        with_tensor(memory={"buffer": "L1", "sharding": "BLOCK_SHARDED"}),
        "unsupported",
        "sharding was trained with interleaved only, got block",
    ),
    "output": ({**EXP, "output": {"memory": {"buffer": "DRAM"}}}, "unsupported", "out_buffer was trained with input only"),
    "function": ({**EXP, "op": "relu"}, "unsupported", "func was trained with exp only, got relu"),
    "too large": (with_tensor(shape=[320, 10**6]), "out_of_range", "dim3 was trained with .* only, got 1000000"),
    "zero": (with_tensor(shape=[320, 0]), "bad_input", "dim3 must be a whole number from 1"),
    "fraction": (with_tensor(shape=[320, 1.5]), "bad_input", r"dim3 must be a whole number .*, got 1\.5"),
    "no list": (with_tensor(shape=320), "bad_input", "tensor.shape must be a list of whole numbers, got 320"),
    "no object": ({**EXP, "tensor": 5}, "bad_input", "tensor must be an object, got 5"),
    "missing": ({"op": "exp", "tensor": {"shape": [32, 32], "memory": {"buffer": "L1"}}}, "bad_input", "dtype"),
    "unknown key": (with_tensor(colour="red"), "bad_input", 'unknown key "colour": known are func, .*, op, family, device'),
    "contradiction": ({**EXP, "func": "relu"}, "bad_input", '"exp" contradicts what is given elsewhere'),
    "twice": ({**EXP, "problem": {"dim3": 32}}, "bad_input", "must not stand beside an object problem"),
    "unknown op": ({**EXP, "op": "exq"}, "unsupported", "unknown op 'exq': did you mean 'exp'"),
    "no model": ({"op": "gemm", "M": 5}, "no_model", "no model at hand is of gemm, only of eltwise_unary/single on"),
    "other device": ({**EXP, "device": "a100"}, "no_model", "of exp on a100"),
    "several": (with_tensor() | {"op": None}, "no_model", "several models fit"),
    "op no string": ({**EXP, "op": 5}, "bad_input", "are strings"),
    "no request": (5, "bad_input", "must be an object"),
}  # fmt: skip


@pytest.mark.parametrize("name", REFUSED)
def test_what_the_model_does_not_know_gets_a_reason_and_no_number(query, name):
    """Unknown and untrained labels and ranks are unsupported; sizes outside training are out of range."""
    request, status, message = REFUSED[name]
    reply = ask(query, request)
    assert reply["status"] == status
    assert re.search(message, reply["message"])
    assert "time_ns" not in reply


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


FLAT = '{"op": "exp", "dim2": 320, "dtype": "bf16", "buffer": "l1"'
ODD = [
    *(f'{FLAT}, "dim3": {number}}}' for number in ("1e400", "32.00000000000000000001", "3.2e1", "320e-1", "-0.0", "1" * 5000)),
    *(f'{FLAT}, "dim3": {value}}}' for value in ("[1,  1]", '"\\u0031"', "null", "true", "9007199254740993.0", "{}")),
    *(f'{FLAT}, "dim3": 640, "{name}": "{value}"}}' for name, value in
      (("tier", "tree"), ("tier", "full"), ("software", COMMIT), ("software", "0123456"), ("software", "commit=8714460"),
       ("device", "a"), ("layout", "row_major"), ("out_buffer", "l1"), ("op", "exp"), ("buffer", "l1"))),
    f"{FLAT}}}", '{"op": "exp"}', '{"op": "exp", "problem": {"dim3": 0}}', '{"op": "exp", "tensor": {}, "tensor": {}}',
    f'{FLAT}, "dim3": {"[" * 16}{"]" * 16}}}', f'{FLAT}, "tensor": {{"storage": {"[" * 13}{"]" * 13}, "shape": [320, 640]}}}}',
    f'{FLAT}, "ärger {"ä" * 40}": 1}}', json.dumps({**EXP, "output_memory_config": None, "output": {"memory": None}}),
]  # fmt: skip


@needs_compiler
def test_c_and_python_answer_alike(exp, sharded, tmp_path_factory, monkeypatch):
    """Numbers to the last digits but one, all else word by word and at the same byte: alone, in lists, of several models."""
    monkeypatch.setenv("KERNCAST_CACHE", str(tmp_path_factory.getbasetemp() / "cache"))
    usual = [json.dumps(request) for request in (*many(100), *(request for request, _, _ in REFUSED.values()))]
    product = '{"op": "matmul_sharded", "num_cores": 8, "a": {"shape": [640, 64]}, "b": {"shape": [64, 2e1]}}'
    texts = [*usual, *ODD, product, f"[{','.join(usual)}]", f"[{', '.join(ODD[:20])}]", f"[{product}, {' ,'.join(ODD[6:-3])}]"]
    c, python = (Query(among([exp, sharded]), compile=compiled) for compiled in (True, False))
    statuses = set()
    for text in texts:
        ours, theirs = (json.loads(query.answer(text)) for query in (c, python))
        for one, other in zip(*(item if isinstance(item, list) else [item] for item in (ours, theirs)), strict=True):
            statuses.add(one["status"])
            for name in ("time_ns", "lower_ns", "upper_ns"):
                assert one.pop(name, 0.0) == pytest.approx(other.pop(name, 0.0), rel=1e-12)
            assert one == other, text
    assert statuses == {"ok", "out_of_range", "unsupported", "bad_input", "no_model"}


@needs_compiler
def test_c_and_python_choose_and_refuse_alike(tmp_path, monkeypatch):
    """Of a family with configs: tiers that are there or not, fallbacks, what is missing, wrong, or does not apply."""
    monkeypatch.setenv("KERNCAST_CACHE", str(tmp_path / "cache"))
    model = train(synthetic_dataset(tmp_path / "data"), tmp_path / "model", Recipe("gbdt", {"trees": 10}, folds=2))
    shape = {"M": 1000, "N": 512, "K": 768, "dtype": "fp16", "layout": "rcr"}
    changes = [{}, {}, {"tier": "full"}, {"tier": "tree"}, {"M": 10**7}, {"M": 0}, {"dtype": "fp64"}, {"dtype": "bf16"},
               {"layout": "ccc"}, {"tf32": True}, {"tf32": 1}, {"N": None}, {"software": "1.0"}, {"device": "x"}]  # fmt: skip
    asked = [*({**shape, **change} for change in changes), {"problem": {}}, {"K": 5, "layout": "rcr"}]
    replies = []
    for compiled in (True, False):
        selector = Selector(model, plain_tiers(model), compile=compiled)
        query = Query(among([model]), compile=compiled)
        monkeypatch.setattr(query, "selector", lambda path, found=selector: found)
        replies.append(ask(query, asked))
    for one, other in zip(*replies, strict=True):
        for name in ("time_ns", "lower_ns", "upper_ns", "efficiency"):
            assert one.pop(name, 0.0) == pytest.approx(other.pop(name, 0.0), rel=1e-9)
        assert one == other
    assert {"ok", "out_of_range", "bad_input"} <= {reply["status"] for reply in replies[0]}
    assert "the tier 'tree' is not in this artefact" in replies[1][3]["message"]


@needs_compiler
def test_a_list_is_answered_as_its_members_are(exp, tmp_path_factory, monkeypatch):
    """Sixty-four at a time or one by one: the same bytes, in order, refusals in their places."""
    monkeypatch.setenv("KERNCAST_CACHE", str(tmp_path_factory.getbasetemp() / "cache"))
    query = Query(among([exp]))
    for count in (0, 1, 63, 64, 65, 200):
        requests = many(count, seed=count)
        alone = [ask(query, request) for request in requests]
        together = ask(query, requests)
        for reply in (*alone, *together):
            reply.pop("position", None)
        assert together == alone


@needs_compiler
def test_a_list_about_several_models_keeps_its_order_and_places(exp, sharded, tmp_path_factory, monkeypatch):
    """Each request goes to its own model; the byte of a refusal is that of the text that was asked."""
    monkeypatch.setenv("KERNCAST_CACHE", str(tmp_path_factory.getbasetemp() / "cache"))
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
    """Nobody knows where the next request begins; the byte is that of the text, whoever met it."""
    deep, product = "[" * 3000 + "]" * 3000, '{"op": "matmul_sharded"}'
    half = f'[{product}, {json.dumps(EXP)[:-1]}, "software": "\\ud800"}}]'
    nested = f'[{product}, {json.dumps(EXP)[:-1]}, "storage": {"[" * 15}{"]" * 15}}}]'
    texts = {
        "": 0,
        "[{]": 2,
        '{"op": "exp"': 12,
        "[1, 2": 5,
        b"\xff{}": 0,
        b'{"op":"\xff"}': 7,
        '{"op":"\udcff"}': 7,
        deep: 16,
        f'{{"op": "exp", "storage": {deep}}}': 40,
        half: half.index("\\ud"),
        nested: nested.index("[" * 15) + 14,
    }
    for text, position in texts.items():
        reply = json.loads(query.answer(text))
        assert (reply["status"], reply["position"]) == ("bad_input", position), text


def test_a_damaged_model_refuses_its_own_requests_and_no_others(exp, sharded, tmp_path, monkeypatch):
    """Damaged, gone, or of a damaged entry: `corrupt` in its place, alone and in a list."""
    monkeypatch.setenv("KERNCAST_CACHE", str(tmp_path / "cache"))
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


def test_another_software_is_a_warning_or_with_strict_a_refusal(exp, tmp_path, monkeypatch):
    """The model answers and says what it was trained on; the beginning of its commit is the same software."""
    monkeypatch.setenv("KERNCAST_CACHE", str(tmp_path / "cache"))
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


def test_software_that_only_the_store_knows_is_the_models_all_the_same(sharded, tmp_path, monkeypatch):
    """Said when the model was added: it is in the reply, and what is asked is compared with it."""
    monkeypatch.setenv("KERNCAST_CACHE", str(tmp_path / "cache"))
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
    text = json.dumps(EXP)
    code, out, _ = run("query", text, "--no-compile")
    assert (code, json.loads(out)["status"]) == (1, "no_model")
    Store.open().add(exp.path)
    code, out, _ = run("query", text, "--no-compile")
    assert (code, json.loads(out)["status"]) == (0, "ok")
    assert len(out.splitlines()) == 1
    (tmp_path / "requests.json").write_text(json.dumps([EXP, {**EXP, "op": "relu"}]))
    code, out, _ = run("query", tmp_path / "requests.json", "--model", exp.path, "--no-compile", "--json")
    assert (code, [reply["status"] for reply in json.loads(out)]) == (1, ["ok", "unsupported"])
    monkeypatch.setattr("sys.stdin", io.TextIOWrapper(io.BytesIO(text.encode())))
    assert run("query", "-", "--no-compile")[0] == 0
    assert run("query", '{"op":"\udcff"}', "--no-compile")[0] == 1  # as a shell hands over a byte that is not UTF-8
    code, _, err = run("query", "nowhere.json")
    assert (code, "neither JSON nor a file" in err) == (2, True)
    assert run("query", text, "--model", exp.path, "--store", tmp_path)[0] == 2


def test_predict_of_an_op_asks_the_store(exp, tmp_path, run, monkeypatch):
    """By the op's name or an alias, which says some parameters, and a device; a model needs neither."""
    monkeypatch.setenv("KERNCAST_STORE", str(tmp_path / "store"))
    Store.open().add(exp.path)
    rest = ["dim2=320", "dim3=640", "dtype=bf16", "buffer=l1", "--json"]
    answers = [
        json.loads(run("predict", *asked, *rest)[1])["time_ns"]
        for asked in (["exp", "--device", "n150"], ["eltwise_unary", "func=exp"], [exp.path, "func=exp"])
    ]
    assert len(set(answers)) == 1
    assert run("predict", exp.path, "--device", "n150", "func=exp", *rest)[0] == 2
    assert run("predict", "exp", "--device", "a100", *rest)[0] == 2
    code, out, _ = run("predict", "exp", "dim2=320", "dim3=640", "dtype=fp32", "buffer=l1", "--json")
    answer = json.loads(out)
    assert (code, answer["status"], answer["reason"]) == (1, "unsupported", "dtype was trained with bf16, bfp8 only, got fp32")
    assert "fallback" not in answer
    code, _, err = run("predict", "exp", "func=relu", *rest)
    assert (code, "exp means func=exp, which contradicts func=relu" in err) == (2, True)
    assert run("predict", "exp", "--family", "single", *rest)[0] == 0
    assert run("predict", "exp", "--family", "double", *rest)[0] == 2
