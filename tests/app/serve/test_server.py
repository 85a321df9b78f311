"""A whole server: started by the command line, asked over a socket, changed and stopped while it runs."""

import contextlib
import json
import shutil
import socket
import subprocess
import sys
import threading
import time
from pathlib import Path
from urllib.parse import urlsplit

import httpx

from kerncast.app.serve import background as running
from kerncast.app.serve.app import QueryAnswers, create_app
from kerncast.app.serve.server import Settings
from kerncast.app.serve.sources import Sources
from kerncast.testing import repeats, soaking

EXP = {"op": "exp", "device": "wormhole_b0", "dim2": 320, "dim3": 640, "dtype": "bf16", "buffer": "dram"}
DEADLINE = 60
TOKEN = "a-token-of-some-length"
# 404 and 422: the request is as declared, and still names something that does not exist or does not fit.
RULES = """
[checks]
positive_data_acceptance.expected-statuses = ["2xx", "404", "422"]
negative_data_rejection.expected-statuses = ["400", "404", "413", "415", "422"]
"""


def until(holds):
    """Wait for something that another process does."""
    end = time.monotonic() + DEADLINE
    while not holds():
        assert time.monotonic() < end, "nothing happened for a minute"
        time.sleep(0.05)


def test_changes_of_the_store_are_taken_over_while_it_answers(store, serving):
    """A model that is removed and added again: no request fails, no restart, and SIGTERM ends it with 0."""
    entry = store.entries()[0]
    with serving(store.path, "--no-compile") as server, httpx.Client(base_url=server.url, timeout=DEADLINE) as client:
        assert client.post("/v1/query", json=EXP).json()["status"] == "ok"
        kept = shutil.copytree(entry.path, store.path.parent / "kept")
        store.remove(entry.id)
        until(lambda: client.get("/v1/models").json() == [])
        until(lambda: client.post("/v1/query", json=EXP).json().get("basis") != "model")
        store.add(kept)
        until(lambda: len(client.get("/v1/models").json()) == 1)
        until(lambda: "kerncast_reloads_total 2" in client.get("/metrics").text)
        assert client.post("/v1/query", json=EXP).json()["basis"] == "model"
        text = client.get("/metrics").text
        assert "kerncast_reload_failures_total 0" in text
        assert 'status="500"' not in text
        assert server.stop() == 0
        assert b"Traceback" not in server.process.stderr.read()


def test_a_request_that_is_under_way_is_answered_before_the_server_ends(store, monkeypatch):
    """Told to stop in the middle of a list: the list is answered whole, and only then the server ends."""
    monkeypatch.setattr(running, "GRACE_SECONDS", DEADLINE)  # a busy machine
    listed = [{**EXP, "dim2": 32 * (1 + number)} for number in range(40)]
    stop, begun, go_on, ready = (threading.Event() for _ in range(4))
    urls, found = [], []

    def held_up(self, *of, own=QueryAnswers._reply):
        begun.set()
        assert go_on.wait(DEADLINE)
        return own(self, *of)

    monkeypatch.setattr(QueryAnswers, "_reply", held_up)
    settings = Settings(port=0)
    app = create_app(Sources.open(store, compile=False), settings)
    options = {"stop": stop.is_set, "ready": lambda url: (urls.append(url), ready.set())}
    serving = threading.Thread(target=running.run, args=(app, settings), kwargs=options, daemon=True)
    asking = threading.Thread(
        target=lambda: found.append(httpx.post(f"{urls[0]}v1/query", json=listed, timeout=DEADLINE)), daemon=True
    )
    serving.start()
    assert ready.wait(DEADLINE)
    asking.start()
    assert begun.wait(DEADLINE)
    stop.set()
    go_on.set()
    asking.join(DEADLINE)
    serving.join(DEADLINE)
    assert not serving.is_alive()
    assert len(found[0].json()) == 40


def test_only_those_who_know_the_token_are_answered_on_other_addresses(store, serving, run, monkeypatch):
    """From the environment; without one, the command says what to do and does not start."""
    monkeypatch.delenv("KERNCAST_TOKEN", raising=False)
    code, _, said = run("serve", store.path, "--host", "0.0.0.0", "--port", "0")
    assert code == 2
    assert "--token-file" in said
    with serving(store.path, "--host", "0.0.0.0", KERNCAST_TOKEN=TOKEN) as server:
        url = server.url.replace("0.0.0.0", "127.0.0.1")
        assert httpx.get(f"{url}/v1/models").status_code == 401
        assert httpx.get(f"{url}/v1/models", headers={"authorization": f"Bearer {TOKEN}"}).status_code == 200


def test_what_cannot_be_served_is_refused_by_name(run, tmp_path):
    """A missing store, a file, a port that is taken."""
    code, _, said = run("serve", tmp_path / "none")
    assert code == 2
    assert "does not exist" in said
    (tmp_path / "file").write_text("", encoding="utf-8")
    code, out, said = run("serve", tmp_path / "file", "--json")
    assert code == 2
    assert "is a file" in json.loads(out)["error"]


def test_schemathesis_finds_nothing(store, serving, tmp_path):
    """Requests made from /openapi.json, right and wrong ones, get what it declares."""
    tool = Path(sys.executable).with_name("st")
    (tmp_path / "rules.toml").write_text(RULES, encoding="utf-8")
    with serving(store.path, "--no-compile", "--max-batch", 20) as server:
        phases = "examples,coverage,fuzzing" if soaking() else "examples,fuzzing"
        command = [tool, "--config-file", tmp_path / "rules.toml", "run", f"{server.url}/openapi.json", "--no-color",
                   "--seed", 1, "--phases", phases, "--max-examples", repeats(4, 400), "--request-timeout", DEADLINE,
                   "--suppress-health-check", "all"]  # fmt: skip
        done = subprocess.run(list(map(str, command)), cwd=tmp_path, capture_output=True, text=True, timeout=repeats(300, 3600))
    assert done.returncode == 0, done.stdout[-6000:]


def test_a_head_without_an_end_does_not_keep_a_connection_that_comes_from_elsewhere(store, serving):
    """Where other machines can reach the server, a head that is too long is refused and closed; others are answered."""
    with serving(store.path, "--no-compile", "--host", "0.0.0.0", KERNCAST_TOKEN=TOKEN) as server:
        port = urlsplit(server.url).port
        with socket.create_connection(("127.0.0.1", port), DEADLINE) as endless:
            with contextlib.suppress(ConnectionError):  # it may be closed while this is sent
                endless.sendall(b"GET / HTTP/1.1\r\nHost: localhost\r\n" + b"X: " + b"a" * 8 * running.LONGEST_HEAD)
            with contextlib.suppress(ConnectionResetError):
                assert endless.recv(100).startswith((b"HTTP/1.1 400", b""))
                while endless.recv(4096):
                    pass
        assert httpx.get(f"http://127.0.0.1:{port}/healthz").status_code == 200


def test_sigterm_ends_a_server_whatever_it_is_answering(store, serving):
    """A list that Python answers for minutes: after some seconds its client is told so and the server ends, without a fault."""
    listed = json.dumps([{**EXP, "dim2": 32 * (1 + number % 63), "dim3": number} for number in range(20_000)]).encode()
    with serving(store.path, "--no-compile") as server:
        head = f"POST /v1/query HTTP/1.1\r\nHost: localhost\r\nContent-Type: application/json\r\nContent-Length: {len(listed)}"
        place = urlsplit(server.url)
        with socket.create_connection((place.hostname, place.port), DEADLINE) as client:
            client.sendall(head.encode() + b"\r\n\r\n" + listed)
            until(lambda: "kerncast_jobs_waiting 1" in httpx.get(f"{server.url}/metrics").text)
            assert server.stop() == 0
            assert client.recv(4096).startswith(b"HTTP/1.1 503 ")
        assert b"Traceback" not in server.process.stderr.read()


def test_measuring_does_not_need_what_serving_needs():
    """The verbs load without starlette and uvicorn, and serving says what to install."""
    work = (
        "import sys; sys.modules.update(dict.fromkeys(('starlette', 'uvicorn')))\n"
        "from kerncast.app.cli.verbs import collect, serve\n"
        "print(collect.collect_verb.name, serve.serve_verb.name)"
    )
    done = subprocess.run([sys.executable, "-c", work], capture_output=True, text=True, check=False)
    assert done.stdout == "collect serve\n", done.stderr
