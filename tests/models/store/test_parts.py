"""Models of parts of an op: they live side by side, and each answers what it covers."""

import json
import shutil

import pytest
from resharding import BLOCK, WIDE, ask

from kerncast.answering.query import Query, among, in_store
from kerncast.app import cli
from kerncast.errors import InvalidValue, NotFound
from kerncast.models.model import Model
from kerncast.models.store.store import Store

WIDTH_HEIGHT = "in_strategy=width,out_strategy=height,dtype=bf16"
BLOCK_WIDTH = "in_strategy=block,out_strategy=width,dtype=bf16"


@pytest.fixture
def store(reshards, tmp_path):
    """Two parts, each of its own pair of shardings."""
    opened = Store.open(tmp_path / "store")
    for name in ("width-height", "block-width"):
        opened.add(reshards / name)
    return opened


def test_a_model_of_another_part_is_added_beside_the_first(reshards, store):
    """It is called by the part that it is of; the same part again is refused, or replaced on request."""
    assert sorted(entry.record.name for entry in store.entries()) == [BLOCK_WIDTH, WIDTH_HEIGHT]
    with pytest.raises(InvalidValue, match=f"called '{WIDTH_HEIGHT}': add `replace`"):
        store.add(reshards / "width-height")
    store.add(reshards / "width-height", replace=True)
    assert len(store.entries()) == 2


def test_each_request_is_answered_by_the_model_that_covers_it(reshards, store, compiled):
    """One by one and in a list, whose order and positions stay; a model asked alone says the same."""
    models = [Model.load(reshards / name) for name in ("width-height", "block-width")]
    both = Query(in_store(store), compile=compiled)
    wrong = {**BLOCK, "in_x": "many"}
    requests = [WIDE, BLOCK, wrong, {"op": "reshard", "problem": {k: v for k, v in WIDE.items() if k != "op"}}, WIDE]
    text = json.dumps(requests)
    replies = json.loads(both.answer(text))
    assert [reply["status"] for reply in replies] == ["ok", "ok", "bad_input", "ok", "ok"]
    assert replies[2]["position"] == text.index('"many"')
    assert [reply["entry"].rsplit("/", 1)[1] for reply in replies if "entry" in reply] == [
        WIDTH_HEIGHT, BLOCK_WIDTH, WIDTH_HEIGHT, WIDTH_HEIGHT,
    ]  # fmt: skip
    for request, model in ((WIDE, models[0]), (BLOCK, models[1])):
        alone = ask(Query(among([model]), compile=compiled), request)
        assert {**alone, "entry": ask(both, request)["entry"], "basis": "model"} == ask(both, request)
        assert ask(Query(among(models), compile=compiled), request) == alone
        assert store.get(alone["model"]).record.checksum == model.manifest.checksum


def test_what_no_model_covers_is_refused_by_the_nearest(store, compiled):
    """By its rule; one label off is nearer than two."""
    query = Query(in_store(store), compile=compiled)
    reply = ask(query, {**BLOCK, "in_strategy": "height"})
    assert (reply["status"], reply["entry"].rsplit("/", 1)[1]) == ("unsupported", BLOCK_WIDTH)
    assert reply["message"] == "in_strategy was trained with block only, got height"
    reply = ask(query, {**WIDE, "height_tiles": 4096})
    assert (reply["status"], reply["parameter"]) == ("out_of_range", "height_tiles")
    assert reply["entry"].endswith(WIDTH_HEIGHT)


def test_coverage_comes_before_software_and_software_before_date(reshards, store, compiled):
    """A newer model that does not cover the problem is not asked, whatever its software."""
    newer = store.add(reshards / "block-width-2")
    query = Query(in_store(store), compile=compiled)
    large = {**BLOCK, "height_tiles": 160}
    assert ask(query, BLOCK)["entry"] == newer.id
    assert ask(query, {**BLOCK, "software": "a" * 8})["software"] == "a" * 40
    for software in ({}, {"software": "b" * 8}):
        reply = ask(query, {**large, **software})
        assert (reply["status"], reply["software"]) == ("ok", "a" * 40)
        assert ("warning" in reply) == bool(software)
    strict = Query(in_store(store, strict=True), compile=compiled)
    assert ask(strict, {**large, "software": "b" * 8})["status"] == "out_of_range"
    assert ask(strict, {**large, "software": "c" * 8})["status"] == "no_model"


def test_find_takes_parameters_and_never_chooses_in_silence(reshards, store):
    """Parts are told apart by what they cover; named models by their names; a model that covers no less is no rival."""
    assert store.find("reshard", problem={"in_strategy": "width"}).record.name == WIDTH_HEIGHT
    with pytest.raises(InvalidValue, match=r"2 models of reshard/single may answer: .*tell them apart \(in_strategy, out_str"):
        store.find("reshard")
    with pytest.raises(NotFound, match=f"nearest is .*{BLOCK_WIDTH}: in_strategy was trained with block only, got height"):
        store.find("reshard", problem={"in_strategy": "height"})
    with pytest.raises(NotFound, match="did you mean 'in_strategy'"):
        store.find("reshard", problem={"in_strateg": "width"})
    store.remove(BLOCK_WIDTH)
    store.add(reshards / "width-height", name="first")
    assert store.find("reshard").record.name == WIDTH_HEIGHT
    store.remove(WIDTH_HEIGHT)
    store.add(reshards / "width-height", name="second")
    with pytest.raises(InvalidValue, match=r"2 models .*/second, .*/first; choose one with `name`"):
        store.find("reshard", problem={"in_strategy": "width"})
    assert store.find("reshard", name="first").record.name == "first"
    assert ask(Query(in_store(store), compile=False), WIDE)["entry"].endswith("/second")


def test_any_unique_piece_of_an_id_names_a_model(store):
    """Whole parts come first; what several ids have names none."""
    assert store.get("width,out").record.name == WIDTH_HEIGHT
    assert store.get("strategy=block").record.name == BLOCK_WIDTH
    with pytest.raises(InvalidValue, match="names 2 models"):
        store.get("eshard/sing")
    with pytest.raises(NotFound):
        store.get("")


def test_one_damaged_model_does_not_keep_the_others_from_answering(reshards, store):
    """Nobody knows what it covers; its own requests get the nearest refusal."""
    query = Query(in_store(store), compile=False)
    damaged = store.get(BLOCK_WIDTH)
    (damaged.path / "model.json").write_text("{")
    assert ask(query, WIDE)["status"] == "ok"
    assert ask(query, BLOCK)["status"] == "unsupported"
    shutil.rmtree(store.get(WIDTH_HEIGHT).path)
    assert ask(Query(in_store(store), compile=False), WIDE)["status"] == "corrupt"


def test_verbs_take_a_model_of_the_store_by_its_id(reshards, store, capsys, monkeypatch):
    """Where a folder is expected, a piece of an id will do; --store says where to look; a folder comes first."""
    monkeypatch.setenv("KERNCAST_STORE", str(store.path.parent / "none"))
    problem = [f"{name}={value}" for name, value in WIDE.items() if name != "op"]

    def run(*args):
        with pytest.raises(SystemExit) as stopped:
            cli.main([str(arg) for arg in args])
        return stopped.value.code, *capsys.readouterr()

    for verb in (["predict"], ["predict", "reshard"], ["select"]):
        named = [*verb, "width,out"] if len(verb) == 1 else verb
        code, out, err = run(*named, *problem, "--store", store.path)
        assert (code, "16" in out) == (0, True), err
    code, _, err = run("select", "width,out", *problem)
    assert (code, "there is no model at width,out" in err) == (2, True)
    code, _, err = run("export", "strategy=", "--to", "csv", "--out", store.path.parent / "x.csv", "--store", store.path)
    assert (code, "names 2 models" in err) == (2, True)
    code, out, _ = run("models", "find", "reshard", "in_strategy=block", "--store", store.path)
    assert (code, BLOCK_WIDTH in out) == (0, True)
    code, _, err = run("models", "find", "reshard", "--store", store.path)
    assert (code, "choose one with --name" in err) == (2, True)
    code, out, _ = run("predict", json.dumps(BLOCK), "--no-compile", "--model", "strategy=block", "--store", store.path)
    assert (code, json.loads(out)["status"]) == (0, "ok")
