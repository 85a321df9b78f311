"""The API without a network: the answers of the command line, and refusals by name."""

import asyncio
import base64
import json
import threading
import time

import httpx
import pytest

import kerncast
from kerncast.app.serve import background
from kerncast.app.serve.app import QueryAnswers, create_app
from kerncast.app.serve.middleware import Access, ClientRates
from kerncast.app.serve.schema import RequestRefused, SelectRequest
from kerncast.app.serve.server import Settings, read_token
from kerncast.app.serve.sources import Sources, choose
from kerncast.errors import BadFile, InvalidValue
from kerncast.models import trust
from kerncast.models.answer import CHOOSING
from kerncast.models.model import Model
from kerncast.native.tiers.build import plain_tiers

TOKEN = "a-token-of-some-length"
EXP = {"op": "exp", "device": "wormhole_b0", "dim2": 320, "dim3": 640, "dtype": "bf16", "buffer": "dram"}
HOSTILE = [
    "'; DROP TABLE--",
    "\x1b[31mred\n",
    "<script>alert(1)</script>",
    "\u202e\ud83d\ude00",
    "x" * 100_000,
    "../../etc/passwd",
]


def asked(app, *calls, base="http://localhost"):
    """Send requests one after the other; the responses."""

    async def send():
        transport = httpx.ASGITransport(app=app, raise_app_exceptions=False)
        async with httpx.AsyncClient(transport=transport, base_url=base) as client:
            return [await client.request(method, path, **options) for method, path, options in calls]

    return asyncio.run(send())


def query(body, **options):
    content = body if isinstance(body, bytes) else json.dumps(body).encode()
    headers = {"content-type": "application/json", **options.pop("headers", {})}
    return "POST", "/v1/query", {"content": content, "headers": headers, **options}


def post(path, body):
    return "POST", path, {"json": body}


@pytest.fixture
def app(store):
    return create_app(Sources.open(store), Settings(max_body=200_000, max_batch=50))


def service_of(app):
    return app.state.service


def until_built(app):
    """Wait for what is being built."""
    deadline = time.monotonic() + 60
    while len(service_of(app).sources.builder):
        assert time.monotonic() < deadline
        time.sleep(0.01)


def test_a_question_gets_the_answer_of_the_command_line_before_and_after_its_model_is_compiled(app, store, monkeypatch):
    """From a thread first, from the event loop once compiled code answers, in a list: all say the same."""
    wanted, threads = kerncast.predict(EXP, store=store), []
    assert wanted["status"] == "ok"
    monkeypatch.setattr(
        QueryAnswers, "_reply", lambda *of, own=QueryAnswers._reply: threads.append(threading.current_thread()) or own(*of)
    )
    other = {**EXP, "dim2": 640}
    (first,) = asked(app, query(EXP))
    until_built(app)
    assert len(threads) == 1
    again, second, few = asked(app, query(EXP), query(other), query([EXP, other]))
    assert len(threads) == 2  # the list
    (many,) = asked(app, query([EXP, other] * 25))
    assert threading.main_thread() not in threads
    assert first.json() == again.json() == wanted
    assert few.json() == [wanted, second.json()]
    assert many.json() == [wanted, second.json()] * 25
    assert second.json()["time_ns"] != wanted["time_ns"]


def test_a_list_is_answered_in_pieces_and_says_where_in_the_whole_text_something_is_wrong(store, monkeypatch):
    """Whatever the pieces are: positions are those of the command line, and a text that is not JSON is refused as a whole."""
    monkeypatch.setattr("kerncast.app.serve.app.piece_after", lambda size, seconds: 3)
    monkeypatch.setattr("kerncast.app.serve.app.FIRST_PIECE", 2)
    app = create_app(Sources.open(store, compile=False))
    good, bad = json.dumps(EXP), json.dumps({**EXP, "dim2": -1})
    for separator in (",", " ,\n  "):
        text = f" [ {separator.join([good, bad, good, bad, bad, good, '5', bad])}]".encode()
        (reply,) = asked(app, query(text))
        assert reply.json() == answered(text, store)
    for text in (b"[]", f'[{good},{good},{good},{good[:-1]},"dim2": 64}}]'.encode()):
        (reply,) = asked(app, query(text))
        assert reply.json() == answered(text, store)


def answered(text, store):
    """The reply of the command line to a text."""
    from kerncast.answering.query import Query, in_store

    return json.loads(Query(in_store(store), compile=False).answer(text))


def test_long_lists_take_turns_with_other_questions_and_end_when_their_client_has_left(store, monkeypatch):
    """While lists keep all threads busy, a question is answered between two pieces; nothing more is done for who left."""
    service, pieces, gone = service_of(create_app(Sources.open(store, compile=False))), [], set()
    monkeypatch.setattr("kerncast.app.serve.app.piece_after", lambda size, seconds: 1)
    monkeypatch.setattr("kerncast.app.serve.app.FIRST_PIECE", 1)

    def reply(self, data, *of, own=QueryAnswers._reply):
        pieces.append(data)
        time.sleep(0.01)  # as long as others are busy with, too
        return own(self, data, *of)

    monkeypatch.setattr(QueryAnswers, "_reply", reply)
    listed = [[{**EXP, "dim2": 32 * (1 + number % 60), "dim3": 32 * (1 + which)} for number in range(50)] for which in range(2)]

    def has_left(client):
        async def left():
            return client in gone

        return left

    async def run():
        texts = [json.dumps(item).encode() for item in listed]
        lists = [asyncio.create_task(service.answers.answer(text, has_left(number))) for number, text in enumerate(texts)]
        while len(pieces) < 6:
            assert not any(task.done() for task in lists)
            await asyncio.sleep(0.001)
        alone = json.dumps({**EXP, "dim3": 1024}).encode()
        await service.answers.answer(alone, has_left(2))
        place = pieces.index(alone)
        gone.add(0)
        with pytest.raises(RequestRefused, match="went away"):
            await lists[0]
        whole = json.loads(await lists[1])
        return place, whole

    place, whole = asyncio.run(run())
    assert place < 20  # in its turn, long before the hundred pieces of both lists
    assert len(whole) == 50
    assert len(pieces) < 101
    assert service.metrics.waiting == 0


def test_more_long_requests_than_there_is_room_for_are_refused_for_now(app, monkeypatch):
    """503, and when to try again."""
    monkeypatch.setattr(background, "MOST_WAITING", 0)
    (reply,) = asked(app, query([EXP]))
    assert (reply.status_code, reply.json()["kind"], reply.headers["retry-after"]) == (503, "busy", "1")


def test_what_is_wrong_with_one_question_of_a_list_is_answered_in_its_place(app, store):
    """With the words of the command line, and the others are answered."""
    listed = [EXP, 5, {"op": "nothing"}, {**EXP, "dim2": -1}, {**EXP, "dtype": "fp64"}, EXP]
    (reply,) = asked(app, query(listed))
    assert reply.json() == kerncast.predict(listed, store=store)
    assert [item["status"] for item in reply.json()] == ["ok", "bad_input", "unsupported", "bad_input", "bad_input", "ok"]


def test_a_device_that_nobody_knows_does_not_disturb_the_others(store, monkeypatch):
    """Models that ship extrapolate to devices with a profile; one without is answered in its place."""
    monkeypatch.delenv("KERNCAST_SHIPPED")
    unknown = {"op": "gemm", "device": "nobody", "M": 64, "N": 64, "K": 64, "dtype": "fp16"}
    app = create_app(Sources.open(store, compile=False))
    alone, listed = asked(app, query(unknown), query([EXP, unknown]))
    assert (alone.status_code, listed.status_code) == (200, 200)
    assert [item["status"] for item in listed.json()] == ["ok", "no_model"]
    assert listed.json()[1] == alone.json()


def test_what_a_client_calls_things_is_not_kept_without_bound(app):
    """Names of a megabyte are refused and forgotten, as are values of the header Host."""
    for key in ("op", "family", "device", "software"):
        (reply,) = asked(app, query({**EXP, key: "x" * 100_000}))
        assert "at most 2,000 characters, got 100,000" in reply.json()["message"]
    assert not service_of(app).answers._models
    access = Access(None, Settings())
    access.check({"path": "/", "headers": [(b"host", b"localhost:8321")]})
    for headers in ([(b"host", b"localhost:" + b"1" * 60_000)], [(b"host", b"localhost"), (b"host", b"localhost")], []):
        with pytest.raises(RequestRefused, match="ask it by one of its names"):
            access.check({"path": "/", "headers": headers})


def test_what_python_or_a_large_model_answers_never_runs_in_the_event_loop(store, monkeypatch):
    """A model that is not compiled, one with many configs, a tier that may ask about all of them."""
    app = create_app(Sources.open(store))
    asked(app, query(EXP))
    until_built(app)
    answers, data = service_of(app).answers, json.dumps(EXP).encode()
    (address,) = answers._models
    assert answers._is_quick(address, data)
    assert not answers._is_quick(address, json.dumps({**EXP, "tier": "full"}).encode())
    monkeypatch.setattr(answers._at_once, "answer", lambda data: pytest.fail("in the event loop"))
    (long,) = asked(app, query(data + b" " * 5000))
    assert long.json()["status"] == "ok"
    monkeypatch.setattr("kerncast.app.serve.sources.MOST_QUICK", 0)
    assert not answers._is_quick(address, data)
    monkeypatch.undo()
    plain = create_app(Sources.open(store, compile=False))
    asked(plain, query(EXP))
    (address,) = service_of(plain).answers._models
    assert not service_of(plain).answers._is_quick(address, data)


@pytest.mark.parametrize("text", HOSTILE)
@pytest.mark.parametrize("key", ["op", "device", "family", "software", "dtype"])
def test_hostile_text_gets_an_answer_in_json(app, key, text):
    """Whatever a question holds, the reply is one JSON object with a status, and no file is read."""
    (reply,) = asked(app, query({**EXP, key: text}))
    assert reply.status_code == 200
    assert reply.json()["status"] in ("ok", "bad_input", "no_model", "unsupported")


@pytest.mark.parametrize(
    ("body", "status", "said"),
    [
        (b"", 400, "must be a JSON object"),
        (b"nonsense", 400, "must be a JSON object"),
        (b'{"op": "exp"', 400, "must be a JSON object"),
        (b'{"op": 5}', 400, r"got `int` - at `$.op`"),
        (b"\xff\xfe{}", 400, "must be a JSON object"),
        (b"[" * 100_000, 400, "must be a JSON object"),
        (b'{"op": "' + b"x" * 200_000 + b'"}', 413, "may have 200,000 bytes"),
        (b"[" + b",".join([b"{}"] * 51) + b"]", 413, "may have 50 questions, and this one has 51"),
    ],
)
def test_a_body_that_is_no_question_is_refused_with_rule_and_value(app, body, status, said):
    """Broken JSON, wrong types, too long, too many: one sentence, and one word for programs."""
    (reply,) = asked(app, query(body))
    assert reply.status_code == status
    assert said in reply.json()["error"]
    assert reply.json()["kind"] in ("bad_request", "too_long", "too_many_questions")


def test_a_body_is_refused_while_it_arrives_if_nobody_said_how_long_it_is(app):
    """In pieces, without a length: reading ends at the limit."""
    taken = 0

    async def pieces():
        nonlocal taken
        for _ in range(1000):
            taken += 1
            yield b" " * 1000

    (reply,) = asked(app, ("POST", "/v1/query", {"content": pieces(), "headers": {"content-type": "application/json"}}))
    assert reply.status_code == 413
    assert taken < 300


def test_a_device_is_a_name_and_never_a_file(app, tmp_path):
    """A path in a request is refused before anything is read, in every route that takes a device."""
    place = tmp_path / "mine.toml"
    place.write_text("secret", encoding="utf-8")
    listed, chosen, step = asked(
        app,
        query({**EXP, "device": str(place)}),
        post("/v1/select", {"op": "exp", "device": str(place), "problem": {}}),
        post("/v1/estimate", {"config": {}, "device": str(place), "context": 10}),
    )
    assert listed.json()["status"] == "no_model"
    assert chosen.status_code == step.status_code == 422
    assert all("names its device" in reply.text and "secret" not in reply.text for reply in (listed, chosen, step))


def test_a_store_without_the_op_is_named_once(app, store):
    """Where the store is stays unsaid, and the sentence still reads as one."""
    (reply,) = asked(app, query({"op": "gemm", "M": 1, "N": 1, "K": 1, "dtype": "bf16"}))
    assert reply.json()["message"].startswith("the store has no model of gemm (it has eltwise_unary)")
    assert str(store) not in reply.text


def test_a_page_of_another_site_and_another_name_of_the_server_are_refused(app):
    """DNS rebinding comes with the other site's Host; a form of another site with its Origin or another content type."""
    others = ("evil.example", "localhost@evil", "localhost,evil", "localhost/evil", "localhost:evil", "localhost.evil", "")
    assert {reply.status_code for reply in asked(app, *(query(EXP, headers={"host": name}) for name in others))} == {421}
    other, own, form = asked(
        app,
        query(EXP, headers={"origin": "http://evil.example"}),
        query(EXP, headers={"origin": "http://localhost"}),
        ("POST", "/v1/query", {"content": json.dumps(EXP), "headers": {"content-type": "text/plain"}}),
    )
    assert [reply.status_code for reply in (other, own, form)] == [403, 200, 415]
    named = asked(app, ("GET", "/healthz", {}), base="http://[::1]:8321")
    assert named[0].status_code == 200


def test_without_the_token_nothing_but_health_is_answered(store):
    """Bearer for programs, Basic for browsers, which are asked for it; a part of the token is no token."""
    app = create_app(Sources.open(store), Settings(host="0.0.0.0", token=TOKEN, rate=0))
    basic = base64.b64encode(f"anyone:{TOKEN}".encode()).decode()
    given = [None, "Bearer", "Bearer ", f"Bearer {TOKEN[:-1]}", f"Bearer {TOKEN}x", f"Basic {TOKEN}", f"bearer {TOKEN}",
             f"Bearer {TOKEN}", f"Basic {basic}"]  # fmt: skip
    replies = asked(app, *(query(EXP, headers={"authorization": value} if value else {}) for value in given))
    assert [reply.status_code for reply in replies] == [401] * 6 + [200] * 3
    assert replies[0].headers["www-authenticate"] == "Bearer"
    health, page = asked(app, ("GET", "/healthz", {}), ("GET", "/", {"headers": {"accept": "text/html"}}))
    assert health.status_code == 200
    assert page.headers["www-authenticate"].startswith("Basic")


def test_a_server_that_others_can_reach_needs_a_token_that_is_kept_secret(tmp_path, monkeypatch):
    """From a file that not everyone may read, or from the environment; long enough, and of plain signs."""
    monkeypatch.delenv("KERNCAST_TOKEN", raising=False)
    for host in ("0.0.0.0", "::", "10.0.0.1", "models.example"):
        with pytest.raises(InvalidValue, match="a token is required"):
            Settings(host=host, token=read_token(None))
    for token, rule in (("short", "16 to 4,096 characters"), ("with a space in it, as we see", "without spaces")):
        with pytest.raises(InvalidValue, match=rule):
            Settings(token=token)
    file = tmp_path / "token"
    file.write_text(f"{TOKEN}\n", encoding="utf-8")
    file.chmod(0o644)
    with pytest.raises(BadFile, match="can be read by everyone"):
        read_token(file)
    file.chmod(0o600)
    assert read_token(file) == TOKEN
    with pytest.raises(BadFile, match="name another file"):
        read_token(tmp_path / "none")
    monkeypatch.setenv("KERNCAST_TOKEN", TOKEN)
    assert Settings(host="0.0.0.0", token=read_token(None)).requests_per_second == 1000


def test_a_client_that_asks_too_often_is_told_when_to_come_back(store, monkeypatch):
    """By address; a second later it is answered again."""
    now = [0.0]
    monkeypatch.setattr("kerncast.app.serve.middleware.ClientRates", lambda per_second: ClientRates(per_second, lambda: now[0]))
    app = create_app(Sources.open(store), Settings(rate=2))
    replies = asked(app, *[("GET", "/v1/models", {})] * 3)
    assert [reply.status_code for reply in replies] == [200, 200, 429]
    assert replies[-1].headers["retry-after"] == "1"
    assert "2 requests a second" in replies[-1].json()["error"]
    now[0] = 1.0
    (later,) = asked(app, ("GET", "/v1/models", {}))
    assert later.status_code == 200


def test_the_rate_of_each_client_is_its_own_and_memory_is_bounded():
    """A bucket fills again with time; ten thousand clients do not make it grow."""
    now = [0.0]
    rate = ClientRates(10, lambda: now[0])
    assert [rate.wait("a") for _ in range(10)] == [0.0] * 10
    assert rate.wait("a") == pytest.approx(0.1)
    assert rate.wait("b") == 0.0
    now[0] = 0.1
    assert rate.wait("a") == 0.0
    for client in range(10_000):
        rate.wait(str(client))
    assert len(rate._buckets) <= 4096


def test_select_says_what_the_selector_says(store, exp_model):
    """By id or by op, for one problem and for several, ranked or not; a wrong one is named by its place."""
    app = create_app(Sources.open(store), Settings(max_batch=3))
    problem = {"func": "exp", "dim2": 320, "dim3": 640, "dtype": "bf16", "buffer": "dram"}
    name = asked(app, ("GET", "/v1/models", {}))[0].json()[0]["id"]
    by_id, by_op, several, ranked, wrong, unknown, many, tops, neither = asked(
        app,
        post("/v1/select", {"model": name, "problem": problem}),
        post("/v1/select", {"op": "exp", "problem": {**problem, "dim2": 320.0}}),
        post("/v1/select", {"model": name, "problem": [problem, {**problem, "dim2": 640}]}),
        post("/v1/select", {"model": name, "problem": problem, "top": 3.0}),
        post("/v1/select", {"model": name, "problem": [problem, {**problem, "dim2": 0}]}),
        post("/v1/select", {"model": "nothing", "problem": problem}),
        post("/v1/select", {"model": name, "problem": [problem] * 4}),
        post("/v1/select", {"model": name, "problem": [problem] * 2, "top": 2}),
        post("/v1/select", {"problem": problem}),
    )
    wanted = Sources.open(store).selector(name).select(problem).as_json()
    assert by_id.json() == wanted
    # The same question again may be answered from the memo.
    assert by_op.json() | {"tier": "full"} == several.json()[0] | {"tier": "full"} == wanted
    assert wanted["time_ns"] > 0
    assert [item["time_ns"] for item in ranked.json()] == [wanted["time_ns"]]
    assert [reply.status_code for reply in (wrong, unknown, many, tops, neither)] == [422, 404, 413, 413, 422]
    assert "problem 2 of 2" in wrong.json()["error"]


def test_select_builds_no_tiers_unless_they_are_asked_for(explored, monkeypatch):
    """Building them takes minutes: without a tier, the model scores every config, and says so."""
    monkeypatch.setenv("KERNCAST_SHIPPED", "")
    monkeypatch.setattr("kerncast.answering.inputs.tiers_named", lambda *_, **__: pytest.fail("built"))
    app = create_app(Sources.open(paths=[explored / "model"], compile=False))
    problem = {"M": 1024, "N": 768, "K": 2048, "dtype": "fp16", "layout": "rcr"}
    chosen, ranked = asked(
        app,
        post("/v1/select", {"model": "model", "problem": problem}),
        post("/v1/select", {"model": "model", "problem": problem, "top": 2}),
    )
    best = Model.load(explored / "model").predict(problem)
    assert (chosen.json()["tier"], chosen.json()["time_ns"]) == ("full", pytest.approx(best.time_ns))
    assert chosen.json()["config"] == ranked.json()[0]["config"] == best.as_json()["config"]


@pytest.mark.parametrize("ends", ["built", "failed", "closed"])
def test_python_answers_while_tiers_are_built_and_the_server_says_how_long(explored, monkeypatch, caplog, ends):
    """Two clients have it built once. If it fails, that is logged once and Python goes on; the end of the server ends it."""
    caplog.set_level("INFO", "kerncast.serving")
    monkeypatch.setenv("KERNCAST_SHIPPED", "")
    go_on, begun = threading.Event(), []

    def build(model, names, options, progress):
        begun.append(model)
        progress.stage("growing the tree")
        progress.guess(3600.0)
        while not go_on.wait(0.01):
            progress.tick()
        if ends == "failed":
            raise BadFile("the disk is full")
        return plain_tiers(model), CHOOSING

    monkeypatch.setattr("kerncast.answering.inputs.tiers_named", build)
    sources = Sources.open(paths=[explored / "model"], compile=False)
    app = create_app(sources, Settings())
    problem = {"M": 1024, "N": 768, "K": 2048, "dtype": "fp16", "layout": "rcr"}
    wanted = Model.load(explored / "model").predict(problem).as_json()["config"]
    body, question = {"model": "model", "tier": "portfolio", "problem": problem}, {"op": "gemm", "tier": "tree", **problem}

    def replies():
        calls = post("/v1/select", body), post("/v1/select", body), query(question)
        return [reply.json() for reply in asked(app, *calls, ("GET", "/v1/models", {}), ("GET", "/healthz", {}))]

    *first, _, health = replies()
    assert {item["tier"] for item in first} <= {"full", "memo"}
    assert all(item["config"] == wanted for item in first)
    assert all("being built" in item["note"] for item in first)
    deadline = time.monotonic() + 60
    while not (building := replies()[3][0]["building"])["seconds_left"]:
        assert time.monotonic() < deadline
        time.sleep(0.01)
    assert (building["what"], health["building"]) == ("growing the tree", 1)
    assert 3500 < building["seconds_left"] <= 3600
    assert "building model: growing the tree, left about 1:00:00" in caplog.text
    if ends == "closed":
        service_of(app).sources.builder.close()
        sources.builder._thread.join(60)
        assert not sources.builder._thread.is_alive()
        return
    go_on.set()
    sources.builder.wait(explored / "model")
    after, _, asked_again, (listed,), health = replies()
    assert (listed["building"], health["building"], len(begun)) == (None, 0, 1)
    if ends == "built":
        assert after["tier"] == "portfolio"
        assert "note" not in after
        assert "note" not in asked_again
    else:
        assert "could not be built" in after["note"]
        assert after["config"] == wanted
        assert caplog.text.count("the disk is full") == 1
    service_of(app).sources.builder.close()


def test_select_by_op_asks_the_models_that_ship_as_query_does_and_checks_before_it_compiles(store, monkeypatch):
    """What the model saw one value of may be left out; a wrong problem does not wait for a compiler."""
    monkeypatch.delenv("KERNCAST_SHIPPED")
    sources = Sources.open(store, compile=False)
    app = create_app(sources, Settings())
    problem = {"M": 512, "N": 4096, "K": 4096, "dtype": "bf16"}
    chosen, told = asked(
        app,
        post("/v1/select", {"op": "gemm", "device": "h100", "problem": problem}),
        query({"op": "gemm", "device": "h100", **problem}),
    )
    assert chosen.json()["config"] == told.json()["config"]
    assert chosen.json()["time_ns"] == pytest.approx(told.json()["time_ns"])
    monkeypatch.setattr(sources, "selector_at", lambda *_: pytest.fail("compiled"))
    (wrong,) = asked(app, post("/v1/select", {"op": "gemm", "device": "b200", "problem": {**problem, "M": 0}}))
    assert (wrong.status_code, wrong.json()["error"][:6]) == (422, "M must")


def test_estimate_says_what_the_function_says(store):
    """For the same config; what is wrong is said with the rule and the value."""
    app = create_app(Sources.open(store))
    config = {
        "model_type": "llama", "hidden_size": 1024, "intermediate_size": 4096, "num_hidden_layers": 2, "num_attention_heads": 8,
        "num_key_value_heads": 8, "vocab_size": 1000, "torch_dtype": "bfloat16",
    }  # fmt: skip
    good, zero, empty, unknown = asked(
        app,
        post("/v1/estimate", {"config": config, "device": "h100", "context": 128, "batch": 2}),
        post("/v1/estimate", {"config": config, "device": "h100", "context": 0}),
        post("/v1/estimate", {"config": {}, "device": "h100", "context": 1}),
        post("/v1/estimate", {"config": config, "device": "h1000", "context": 1}),
    )
    wanted = kerncast.estimate(config, device="h100", context=128, batch=2, store=store).as_json()
    assert good.json() == json.loads(json.dumps(wanted))
    assert zero.status_code == 400
    assert "context: expected `int` >= 1, and it is 0" in zero.json()["error"]
    assert (empty.status_code, unknown.status_code) == (422, 404)


def test_a_model_that_is_not_trusted_is_never_compiled(store, exp_model, tmp_path, monkeypatch):
    """Another user's model is answered in Python, with the same numbers; when it is trusted, the server notices."""
    from kerncast.models import trust

    monkeypatch.setenv("KERNCAST_TRUSTED", str(tmp_path / "trusted"))
    trust.reread()
    monkeypatch.setattr(trust, "_HELD", set())
    sources = Sources.open(store)
    app = create_app(sources)
    (before,) = asked(app, query(EXP))
    name = sources.models()[0].id
    assert not sources.selector(name).is_compiled
    trust.trust(Model.load(sources.listed(name).entry.path))
    assert sources.refresh()
    sources.selector(name)
    sources.builder.wait(sources.listed(name).entry.path)
    assert sources.selector(name).is_compiled
    (after,) = asked(create_app(sources), query(EXP))
    told = before.json()
    assert "not trained or trusted" in told.pop("note")
    assert after.json() == told


def test_metrics_count_what_was_answered_and_hold_no_text_of_a_client(app):
    """Routes and statuses; a path of a client is `other`."""
    *_, found = asked(app, query(EXP), query([EXP, 5]), query(b"x"), ("GET", '/"}evil', {}), ("GET", "/metrics", {}))
    lines = found.text.splitlines()
    assert 'kerncast_requests_total{route="/v1/query",status="200"} 2' in lines
    assert 'kerncast_requests_total{route="/v1/query",status="400"} 1' in lines
    assert 'kerncast_requests_total{route="other",status="404"} 1' in lines
    assert 'kerncast_answers_total{status="ok"} 2' in lines
    assert 'kerncast_answers_total{status="refused"} 1' in lines
    assert "evil" not in found.text
    assert all(line.startswith("#") or len(line.rsplit(" ", 1)) == 2 for line in lines)


def test_other_paths_and_methods_are_refused_in_json(app):
    """404 says where the list is, 405 which method there is."""
    missing, wrong = asked(app, ("GET", "/v1/nothing", {}), ("DELETE", "/v1/query", {}))
    assert (missing.status_code, missing.json()["kind"]) == (404, "not_found")
    assert (wrong.status_code, wrong.headers["allow"]) == (405, "POST")


def test_the_description_has_the_limits_and_the_routes_that_there_are(app):
    """What /openapi.json says of the body is what the decoder checks."""
    (found,) = asked(app, ("GET", "/openapi.json", {}))
    document = found.json()
    routes = {route.path for route in app.routes if route.path.startswith(("/v1", "/healthz", "/metrics", "/openapi"))}
    assert set(document["paths"]) == routes
    parts = document["components"]["schemas"]
    assert parts["EstimateRequest"]["properties"]["context"]["minimum"] == 1
    assert parts["SelectRequest"]["additionalProperties"] is False
    body = document["paths"]["/v1/query"]["post"]["requestBody"]["content"]["application/json"]["schema"]
    assert body["anyOf"][1]["maxItems"] == 50


def test_no_reply_names_a_folder_of_this_machine(store, tmp_path, monkeypatch):
    """A model that is not trusted, and one that is damaged, are named by their ids."""
    monkeypatch.setenv("KERNCAST_TRUSTED", str(tmp_path / "trusted"))
    monkeypatch.setattr(trust, "_HELD", set())
    app = create_app(Sources.open(store), Settings())
    entry = store.entries()[0]
    select = {
        "model": entry.id,
        "problem": {"func": "exp", **{name: EXP[name] for name in ("dim2", "dim3", "dtype", "buffer")}},
    }
    replies = asked(
        app, query(EXP), query([EXP, {"op": "exp"}]), post("/v1/select", select), post("/v1/select", {**select, "tier": "tree"})
    )
    assert "has not trained or trusted" in replies[2].text
    assert f"models trust {entry.id}" in replies[2].text
    for file in entry.path.iterdir():
        if file.name != "model.json":
            file.write_bytes(b"damaged")
    damaged = create_app(Sources.open(store), Settings())
    found = asked(
        damaged,
        query(EXP),
        post("/v1/select", select),
        ("GET", "/v1/models", {}),
        ("GET", "/explore/model", {"params": {"id": entry.id}}),
    )
    assert found[0].json()["status"] == "corrupt"
    problem = {"model": entry.id, "problem": {**select["problem"], "func": "nothing"}}
    explored = asked(
        app, post("/explore/devices", select), post("/explore/why", {**select, "config": {}}), post("/explore/near", problem)
    )
    assert [reply.status_code for reply in explored] == [200, 200, 422]
    for reply in (*replies, *found, *explored):
        assert str(tmp_path) not in reply.text


def test_a_client_that_goes_away_is_no_fault_of_the_server(app, caplog):
    """In the middle of a body, on every route that takes one: nothing is logged."""

    async def send(path):
        sent = []
        told = iter([{"type": "http.request", "body": b"{", "more_body": True}, {"type": "http.disconnect"}])

        async def receive():
            return next(told)

        async def keep(message):
            sent.append(message)

        headers = [(b"host", b"localhost"), (b"content-type", b"application/json")]
        scope = {"type": "http", "method": "POST", "path": path, "raw_path": path.encode(), "query_string": b"",
                 "root_path": "", "scheme": "http", "http_version": "1.1", "headers": headers, "client": ("127.0.0.1", 1),
                 "server": ("127.0.0.1", 2)}  # fmt: skip
        await app(scope, receive, keep)
        return sent[0]["status"]

    paths = ("/v1/query", "/v1/select", "/v1/estimate", "/explore/rank")
    assert [asyncio.run(send(path)) for path in paths] == [400] * 4
    assert caplog.records == []


def test_what_goes_wrong_with_a_change_is_said_once_and_tried_again(store, monkeypatch, caplog):
    """Whatever it is: the old models stay, and the next look may succeed."""
    sources = Sources.open(store)
    service = service_of(create_app(sources))
    own, errors = sources.refresh, [ValueError("half a file"), ValueError("half a file"), BadFile("damaged")]
    monkeypatch.setattr(sources, "refresh", lambda: own() if not errors else (_ for _ in ()).throw(errors.pop(0)))
    assert [asyncio.run(service.reload()) for _ in range(3)] == [False] * 3
    assert [record.getMessage().partition(": ")[2] for record in caplog.records] == ["half a file", "damaged"]
    assert service.metrics.failed_reloads == 3
    store.remove(store.entries()[0].id)
    assert asyncio.run(service.reload())
    service.sources.builder.close()


def test_a_number_that_no_float_can_hold_is_refused(app):
    """JSON allows it, and the sentence about it must not fail, too."""
    headers = {"content-type": "application/json"}
    bodies = {"/v1/select": b'{"model": "x", "problem": {"M": 1e400}}', "/v1/estimate": b'{"config": {"a": 1e400}}'}
    replies = asked(app, *(("POST", path, {"content": body, "headers": headers}) for path, body in bodies.items()))
    assert [reply.status_code for reply in replies] == [400, 400]


@pytest.mark.parametrize("body", [b'{"problem":' + b"[" * 100_000, b'{"op": 5, "problem": {"a": ' + b"[" * 100_000])
def test_a_body_that_is_nested_too_deeply_is_no_fault_of_the_server(app, body):
    """Wherever the nesting begins, behind a wrong type too."""
    headers = {"content-type": "application/json"}
    replies = asked(app, *(("POST", path, {"content": body, "headers": headers}) for path in ("/v1/select", "/v1/estimate")))
    assert [reply.status_code for reply in replies] == [400, 400]


def test_a_list_of_choices_goes_on_with_what_was_built_meanwhile_and_does_not_mind_a_model_that_is_removed(store, monkeypatch):
    """Between two pieces the selector is built and the model goes away: the rest is answered by what was built."""
    monkeypatch.setattr("kerncast.app.serve.sources.piece_after", lambda size, seconds: 1)
    monkeypatch.setattr("kerncast.app.serve.sources.FIRST_PIECE", 1)
    monkeypatch.setattr("kerncast.app.serve.sources.PIECE_SECONDS", float("inf"))  # all problems are checked in one step
    sources = Sources.open(store)
    (served,) = sources.models()
    problem = {"func": "exp", "dim2": 320, "dim3": 640, "dtype": "bf16", "buffer": "dram"}
    steps = choose(sources, SelectRequest([problem] * 3, model=served.id), Settings())
    assert next(steps) is None
    sources.builder.wait(served.entry.path)
    store.remove(served.id)
    assert sources.refresh()
    (answers,) = (step for step in steps if step is not None)
    assert [answer["time_ns"] for answer in answers] == [answers[0]["time_ns"]] * 3
