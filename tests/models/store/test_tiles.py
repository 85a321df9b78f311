"""A reshard asked by its tiles: the same shape from both readers, refused by models that need more than tiles."""

import json
import random

import polars as pl
import pytest
from resharding import WIDE, ask

from kerncast.answering.query import Query, among, in_store
from kerncast.errors import InvalidValue, NotFound
from kerncast.models.model import Model
from kerncast.models.products import _divisors
from kerncast.models.store.store import Store
from kerncast.testing import repeats

BY_TILES = {name: value for name, value in WIDE.items() if name not in ("height_tiles", "width_tiles")}


def test_divisors_are_all_and_in_order():
    """Of ones, primes, squares and highly composite numbers."""
    for total in (1, 2, 7, 16, 97, 720, 65535, 65536):
        assert _divisors(total).tolist() == [number for number in range(1, total + 1) if total % number == 0]


@pytest.mark.parametrize("name", ["width-height", "mlp"])
def test_tiles_are_enough_for_a_model_that_reads_only_tiles(reshards, compiled, name):
    """Its time is that of any shape with as many tiles; from a mapping, a frame, JSON and C."""
    model = Model.load(reshards / name)
    query = Query(among([model]), compile=compiled)
    replies = ask(query, [{**BY_TILES, "tiles": 256}, WIDE, {**WIDE, "height_tiles": 32, "width_tiles": 8}])
    assert [reply["status"] for reply in replies] == ["ok"] * 3
    assert len({reply["time_ns"] for reply in replies}) == 1
    values = {key: value for key, value in BY_TILES.items() if key != "op"} | {"tiles": 256}
    assert model.predict(values).time_ns == pytest.approx(replies[0]["time_ns"], rel=1e-12)
    frame = model.predict(pl.DataFrame([values, values, {**values, "tiles": 512}]))
    assert frame["time_ns"][:2].to_list() == [model.predict(values).time_ns] * 2
    assert frame["time_ns"][2] > frame["time_ns"][0]


def test_a_model_that_reads_the_shape_says_so(reshards, compiled):
    """By the names of what it reads; with one of the two sizes, the other follows."""
    model = Model.load(reshards / "forest")
    query = Query(among([model]), compile=compiled)
    reply = ask(query, {**BY_TILES, "tiles": 256})
    assert (reply["status"], reply["parameter"]) == ("unsupported", "tiles")
    needs = "needs height_tiles and width_tiles themselves, not only tiles (its height_tiles, width_tiles, in_shard_"
    assert needs in reply["message"]
    assert ask(query, {**BY_TILES, "tiles": 256, "width_tiles": 16}) == ask(query, WIDE)
    with pytest.raises(InvalidValue, match="needs height_tiles and width_tiles themselves"):
        model.predict({**{key: value for key, value in BY_TILES.items() if key != "op"}, "tiles": 256})


def test_the_store_asks_the_model_that_tiles_are_enough_for(reshards, tmp_path, compiled):
    """Though the newer one covers the problem too."""
    store = Store.open(tmp_path / "store")
    lines = store.add(reshards / "width-height")
    forest = store.add(reshards / "forest", replace=False, name="forest")
    store.remove(lines.id)
    store.add(reshards / "width-height", name="lines")
    newest = store.add(reshards / "forest", name="forest", replace=True)
    query = Query(in_store(store), compile=compiled)
    assert ask(query, WIDE)["entry"] == newest.id == forest.id
    assert ask(query, {**BY_TILES, "tiles": 256})["entry"].endswith("/lines")
    asked = {name: value for name, value in BY_TILES.items() if name != "op"}
    assert store.find("reshard", problem={**asked, "tiles": 256}).record.name == "lines"
    with pytest.raises(InvalidValue, match="tiles must be a whole number from 1, got 0"):
        store.find("reshard", problem={**asked, "tiles": 0})
    with pytest.raises(NotFound, match="no height_tiles and width_tiles that it was trained with make tiles=7"):
        store.find("reshard", problem={**asked, "tiles": 7})


def strange(chance):
    """A request by tiles, often with something wrong or unusual about it."""
    grid = {name: chance.choice([BY_TILES[name], BY_TILES[name], chance.randint(1, 8)]) for name in ("in_x", "in_y", "out_x")}
    asked = {**BY_TILES, **grid}
    asked["tiles"] = chance.choice([
        chance.randint(1, 70_000), 64 * chance.randint(1, 900), 2 ** chance.randint(0, 33), 65_537, 65_521 * 65_519, 0, -4, 1.5,
        256.0, 1e3, "256", None, True, [256], 10**30, 65_535**2,
    ])  # fmt: skip
    if chance.random() < 0.2:
        asked[chance.choice(["height_tiles", "width_tiles"])] = chance.choice([1, 8, 16, 0, -1, 10**9, "x"])
    if chance.random() < 0.1:
        asked["height_tiles"], asked["width_tiles"] = 16, chance.choice([16, 3])
    if chance.random() < 0.1:
        del asked[chance.choice(["in_x", "dtype", "in_strategy"])]
    if chance.random() < 0.1:
        asked["in_strategy"] = chance.choice(["block", "height", "diagonal"])
    return asked if chance.random() < 0.8 else {"op": "reshard", "problem": {k: v for k, v in asked.items() if k != "op"}}


@pytest.mark.needs("a C compiler")
@pytest.mark.parametrize("name", ["width-height", "forest"])
def test_c_and_python_choose_the_same_shape_or_refuse_in_the_same_words(reshards, name):
    """Primes, products out of range, numbers that are none, contradictions, missing parameters; C cuts long messages."""
    model, chance = Model.load(reshards / name), random.Random(0)
    fast, slow = (Query(among([model]), compile=compile) for compile in (True, False))
    requests = [strange(chance) for _ in range(repeats(200, 20_000))]
    text = json.dumps(requests)
    ours, theirs = (json.loads(query.answer(text)) for query in (fast, slow))
    for request, one, other in zip(requests, ours, theirs, strict=True):
        assert one | {"message": ""} == other | {"message": ""}, request
        assert one.get("message", "")[:200] == other.get("message", "")[:200], request
    expected = {"width-height": {"ok", "out_of_range", "bad_input"}, "forest": {"unsupported", "bad_input"}}
    assert {reply["status"] for reply in ours} >= expected[name]
