"""What `kerncast serve` does a second: single questions, lists, both over HTTP/1.1 on loopback, and its memory.

    KERNCAST_DATA=/path/to/data python benchmarks/serve.py
    KERNCAST_DATA=/path/to/data python benchmarks/serve.py --minutes 10      # memory over ten minutes, too
    KERNCAST_DATA=/path/to/data python benchmarks/serve.py --first           # on a busy machine, as root

The server runs as a process of its own, from a store with one model, which is trained on `ttnn/big_exp_dataset.csv`
(github.com/tenstorrent/ttnn-op-runtime-predictor) with the default recipe. Shapes are drawn at random, so the memo does not
help. Seconds of CPU are those of the server's process, as the system counts them. Rounds of single questions, of half load and
of lists take turns; the best round counts, because other processes may slow the machine down, and all rounds are printed. At
half load, questions are sent on a schedule at half of the rate that was just measured, and a latency begins when the question
was due. At last single questions are asked beside two lists that are answered one question at a time, because each names other
software. With `--first`, the server and those who ask it run before all other processes of the machine (niceness -20), as if it
were idle; memory is watched without that.
"""

from __future__ import annotations

import asyncio
import gc
import json
import os
import random
import statistics
import subprocess
import sys
import tempfile
import time
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from itertools import cycle
from pathlib import Path
from urllib.parse import urlsplit

import numpy as np
from query import drawn, flat, trained
from reporting import Benchmark, Row, Target, finish, script_parser

from kerncast.models.store.store import Store

BENCHMARK = Benchmark(
    __file__,
    "How long choosing and predicting take",
    "HTTP server",
    "training tables of https://github.com/tenstorrent/ttnn-op-runtime-predictor",
    "Apache-2.0",
)
QUESTIONS, LIST = 4096, 10_000
CONNECTIONS, LIST_CONNECTIONS = 8, 2
ROUNDS, SECONDS, LISTS = 5, 3.0, 20
# Linux stops processes that run before all others for a twentieth of each second if they leave nothing to others.
REST_SECONDS = 2.0
HEALTH, BUILT_SECONDS = b"GET /healthz HTTP/1.1\r\nHost: localhost\r\n\r\n", 0.1
# Lists of questions each of which names other software, and single questions beside them.
SPELLINGS, BESIDE, BESIDE_SECONDS = 20_000, 200, 3.0
# Memory once the server has been used for a while, and how far it may move from there.
SETTLED_SECONDS, TOLERANCE = 60.0, 0.05


@dataclass(frozen=True)
class Server:
    """A running server."""

    host: str
    port: int
    pid: int

    def cpu_seconds(self) -> float:
        fields = Path(f"/proc/{self.pid}/stat").read_text(encoding="ascii").rpartition(")")[2].split()
        return (int(fields[11]) + int(fields[12])) / os.sysconf("SC_CLK_TCK")

    def memory_bytes(self) -> int:
        return int(Path(f"/proc/{self.pid}/statm").read_text(encoding="ascii").split()[1]) * os.sysconf("SC_PAGE_SIZE")


@contextmanager
def serving(store: Path) -> Iterator[Server]:
    command = [sys.executable, "-m", "kerncast.app.cli", "serve", str(store), "--port", "0", "--json"]
    with subprocess.Popen(command, stdout=subprocess.PIPE, env={**os.environ, "KERNCAST_SHIPPED": ""}) as process:
        try:
            assert process.stdout is not None
            place = urlsplit(json.loads(process.stdout.readline())["url"])
            yield Server(str(place.hostname), int(place.port or 0), process.pid)
        finally:
            process.terminate()


def take_turns(pid: int, first: bool) -> None:
    """Run all threads of a process before those of other processes, or like them.

    By niceness: under a real-time policy server and client would wait for each other for whole time slices of 100 ms.
    """
    for task in Path(f"/proc/{pid}/task").iterdir():
        os.setpriority(os.PRIO_PROCESS, int(task.name), -20 if first else 0)


def request(body: bytes) -> bytes:
    fields = ("POST /v1/query HTTP/1.1", "Host: localhost", "Content-Type: application/json", f"Content-Length: {len(body)}")
    return "\r\n".join((*fields, "", "")).encode() + body


class Client(asyncio.Protocol):
    """One connection: a request at a time."""

    def __init__(self) -> None:
        self.buffer = bytearray()
        self.waiting: asyncio.Future[bytes] | None = None
        self.needed = 0

    def connection_made(self, transport: asyncio.BaseTransport) -> None:
        assert isinstance(transport, asyncio.Transport)
        self.transport = transport

    def data_received(self, data: bytes) -> None:
        self.buffer += data
        if not self.needed:
            end = self.buffer.find(b"\r\n\r\n")
            if end < 0:
                return
            at = self.buffer.find(b"content-length: ") + 16
            self.needed = end + 4 + int(self.buffer[at : self.buffer.find(b"\r", at)])
        if len(self.buffer) >= self.needed and self.waiting is not None:
            whole, self.needed, waiting, self.waiting = bytes(self.buffer), 0, self.waiting, None
            self.buffer.clear()
            waiting.set_result(whole)

    async def ask(self, sent: bytes) -> bytes:
        self.waiting = asyncio.get_running_loop().create_future()
        self.transport.write(sent)
        reply = await self.waiting
        assert reply.startswith(b"HTTP/1.1 200 "), reply[:500]
        return reply


async def connected(server: Server, count: int) -> list[Client]:
    loop = asyncio.get_running_loop()
    return [(await loop.create_connection(Client, server.host, server.port))[1] for _ in range(count)]


async def flood(server: Server, sent: list[bytes], seconds: float) -> tuple[float, float]:
    """Questions per second, and per second of the server's CPU, as fast as the connections go."""
    clients, questions = await connected(server, CONNECTIONS), cycle(sent)
    done, before, began = 0, server.cpu_seconds(), time.perf_counter()
    end = began + seconds

    async def keep_asking(client: Client) -> None:
        nonlocal done
        while time.perf_counter() < end:
            await client.ask(next(questions))
            done += 1

    await asyncio.gather(*map(keep_asking, clients))
    spent, used = time.perf_counter() - began, server.cpu_seconds() - before
    for client in clients:
        client.transport.close()
    return done / spent, done / used


async def scheduled(server: Server, sent: list[bytes], rate: float, seconds: float) -> list[float]:
    """Milliseconds from the moment at which each question was due to its answer."""
    clients, loop = await connected(server, CONNECTIONS), asyncio.get_running_loop()
    free: asyncio.Queue[Client] = asyncio.Queue()
    for client in clients:
        free.put_nowait(client)
    found: list[float] = []

    async def one(due: float, text: bytes) -> None:
        client = await free.get()
        await client.ask(text)
        found.append(1e3 * (loop.time() - due))
        free.put_nowait(client)

    tasks, began, questions = set(), loop.time(), cycle(sent)
    for number in range(int(rate * seconds)):
        due = began + number / rate
        if (early := due - loop.time()) > 0:
            await asyncio.sleep(early)
        task = asyncio.create_task(one(due, next(questions)))
        tasks.add(task)
        task.add_done_callback(tasks.discard)
    await asyncio.gather(*tasks)
    for client in clients:
        client.transport.close()
    return found


async def lists(server: Server, sent: bytes, count: int) -> float:
    """Rows a second of lists, on a few connections at a time."""
    clients, began = await connected(server, LIST_CONNECTIONS), time.perf_counter()

    async def keep_asking(client: Client) -> None:
        for _ in range(count // LIST_CONNECTIONS):
            await client.ask(sent)

    await asyncio.gather(*map(keep_asking, clients))
    spent = time.perf_counter() - began
    for client in clients:
        client.transport.close()
    return LIST_CONNECTIONS * (count // LIST_CONNECTIONS) * LIST / spent


async def beside(server: Server, sent: list[bytes]) -> list[float]:
    """Milliseconds of single questions while two lists of 2 MB are answered, whose questions have nothing in common."""
    question = flat(*drawn(random.Random(1)))
    spelled = [json.dumps([{**question, "software": f"vllm {word} {i}"} for i in range(SPELLINGS)]).encode() for word in "ab"]
    busy = await connected(server, len(spelled))
    for client, body in zip(busy, spelled, strict=True):
        client.transport.write(request(body))
    await asyncio.sleep(BESIDE_SECONDS)
    (client,), loop, found = await connected(server, 1), asyncio.get_running_loop(), []
    for text in sent[:BESIDE]:
        began = loop.time()
        await client.ask(text)
        found.append(1e3 * (loop.time() - began))
    for each in (client, *busy):
        each.transport.close()
    return found


async def memory(server: Server, sent: list[bytes], listed: bytes, minutes: float) -> Row:
    """The largest change of memory after the first minute, under single questions, lists and refusals."""
    end, found = time.monotonic() + 60 * minutes, []
    began = time.monotonic()
    while time.monotonic() < end:
        await flood(server, sent, 2.0)
        await lists(server, listed, 3)
        found.append((time.monotonic() - began, server.memory_bytes()))
    settled = [size for at, size in found if at >= min(SETTLED_SECONDS, 60 * minutes / 2)]
    change = max(abs(size / settled[0] - 1) for size in settled)
    print(f"memory: {settled[0] / 1e6:.1f} MB after a minute, then {min(settled) / 1e6:.1f} to {max(settled) / 1e6:.1f} MB")
    return Row(
        f"largest change of memory in {minutes:g} minutes, after the first", 100 * change, "%", Target(high=100 * TOLERANCE),
        n=f"{len(found)} samples", note=f"{settled[0] / 1e6:.0f} MB then",
    )  # fmt: skip


async def measured(server: Server, minutes: float, first: bool) -> list[Row]:
    chance = random.Random(0)
    sent = [request(json.dumps(flat(*drawn(chance))).encode()) for _ in range(QUESTIONS)]
    listed = request(json.dumps([flat(*drawn(chance)) for _ in range(LIST)]).encode())
    (client,) = await connected(server, 1)
    assert b'"status":"ok"' in await client.ask(sent[0])  # the model is loaded, and compiled in the background
    while b'"building":0' not in await client.ask(HEALTH):
        await asyncio.sleep(BUILT_SECONDS)
    assert (await client.ask(listed)).count(b'"status":"ok"') == LIST
    client.transport.close()
    gc.collect()
    gc.freeze()  # pauses of those who ask are none of the server's
    for pid in (server.pid, os.getpid()) if first else ():
        take_turns(pid, first=True)
    rates, per_cpu, p50, p99, rows = [], [], [], [], []
    for _ in range(ROUNDS):
        rate, cpu = await flood(server, sent, SECONDS)
        await asyncio.sleep(REST_SECONDS)
        late = await scheduled(server, sent, rate / 2, SECONDS)
        rates.append(rate)
        per_cpu.append(cpu)
        p50.append(float(np.percentile(late, 50)))
        p99.append(float(np.percentile(late, 99)))
        rows.append(await lists(server, listed, LISTS))
        print(
            f"{rate:8,.0f} questions/s {cpu:8,.0f} per CPU second   half load: p50 {p50[-1]:.2f} ms, p99 {p99[-1]:.2f} ms   "
            f"lists: {rows[-1]:10,.0f} rows/s"
        )
    late = await beside(server, sent)
    for pid in (server.pid, os.getpid()) if first else ():
        take_turns(pid, first=False)
    n = f"{ROUNDS} rounds of {SECONDS:g} s, {CONNECTIONS} connections{', before all other processes' if first else ''}"
    found = [
        Row("single questions per second of the server's CPU, best round", max(per_cpu), "", Target(low=5_000), n=n,
            note=f"median {statistics.median(per_cpu):,.0f}; {max(rates):,.0f} a second of wall time"),
        Row("p99 latency of single questions at half load, best round", min(p99), "ms", Target(high=5.0), n=n,
            note=f"median round {statistics.median(p99):.2f} ms; p50 {min(p50):.2f} ms"),
        Row(f"rows a second in lists of {LIST:,}, best round", max(rows), "", Target(low=200_000),
            n=f"{ROUNDS} rounds of {LISTS} lists, {LIST_CONNECTIONS} connections",
            note=f"median {statistics.median(rows):,.0f}"),
        Row("p95 latency of single questions beside two lists of 2 MB", float(np.percentile(late, 95)), "ms",
            Target(high=250.0), n=f"{BESIDE} questions", note=f"p50 {np.percentile(late, 50):.2f} ms"),
    ]  # fmt: skip
    return [*found, *([await memory(server, sent, listed, minutes)] if minutes else [])]


def main() -> int:
    parser = script_parser(__doc__)
    parser.add_argument("--minutes", type=float, default=0.0, help="also watch the memory for this long")
    parser.add_argument("--first", action="store_true", help="run before all other processes; needs root")
    given = parser.parse_args()
    with tempfile.TemporaryDirectory() as folder:
        store = Store.open(Path(folder) / "store")
        store.add(trained(Path(folder)), trust=True)
        with serving(store.path) as server:
            rows = asyncio.run(measured(server, given.minutes, given.first))
    return finish(BENCHMARK, rows, given.json)


if __name__ == "__main__":
    sys.exit(main())
