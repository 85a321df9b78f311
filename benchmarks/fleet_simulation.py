"""From one card to 512: how long a sweep takes, and where one driver with one journal stops scaling.

    python benchmarks/fleet_simulation.py [--devices 512] [--vectors 100000000]

What a vector costs the driver is measured with the code that collects: making chunks, reading news, writing the journal. What
a call of Ray costs is measured on a small cluster of this machine. With these, the schedule of a fleet is simulated chunk by
chunk: every device has two chunks, the driver answers one call after another, and a device that has nothing to do waits.
"""

from __future__ import annotations

import heapq
import resource
import sys
import tempfile
import time
import tracemalloc
from dataclasses import dataclass
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import numpy as np
import polars as pl
from reporting import Benchmark, Row, Target, finish, script_parser
from tests.support.clusters import small_cluster

from kerncast.data import journal as journals
from kerncast.data.dataset import Dataset
from kerncast.data.schema import with_optional
from kerncast.library import devices
from kerncast.library.declared.family_file import family_named
from kerncast.measuring.collection import Collection, Request
from kerncast.measuring.fleet.node import FinalStatus, news_of, packed
from kerncast.measuring.fleet.scheduling import DEPTH, LINGER_SECONDS, MOST_LINGER_SECONDS, Fleet, RemoteDevice, Slot
from kerncast.measuring.known import KnownVectors
from kerncast.measuring.messages import Ready, Result
from kerncast.testing.faults import Sleeping

BENCHMARK = Benchmark(__file__, "Measuring", "From one card to 512: a simulated fleet with the costs of the real driver")
FAMILY = family_named("gemm/triton")
CHUNK = 64
SAMPLE = 20_000
CALLS = 3_000
# The times of vectors differ: their standard deviation over their mean.
SPREAD = 1.0
SECONDS = (0.02, 0.1, 1.0, 10.0)
CARDS = (1, 8, 64, 512)


@dataclass(frozen=True)
class Costs:
    """What the driver spends, in seconds, and what it keeps, in bytes."""

    vector: float
    call: float
    memory: float
    journal: float
    lines: float
    """Lines that the journal alone takes in a second."""


@dataclass(frozen=True)
class Simulated:
    """How a simulated sweep went."""

    seconds: float
    ideal: float
    driver: float
    """The share of the time in which the driver was busy."""

    @property
    def efficiency(self) -> float:
        return self.ideal / self.seconds


def cpu() -> float:
    used = resource.getrusage(resource.RUSAGE_SELF)
    return used.ru_utime + used.ru_stime


def vectors(count: int) -> pl.DataFrame:
    device = devices.get("a100")
    configs = FAMILY.config.sample(500, 0, FAMILY.bindings({"dtype": "fp16"}, device))
    configs = configs.rename({name: f"config.{name}" for name in configs.columns})
    values = {"N": 64, "K": 64, "split_k": 1, "batch": 1, "dtype": "fp16", "layout": "rcr", "tf32": False}
    problems = pl.DataFrame({"problem.M": range(1, count // 500 + 1)})
    return problems.join(configs, how="cross").with_columns(*(pl.lit(v).alias(f"problem.{n}") for n, v in values.items()))


def result_of(key: str, number: int) -> Result:
    return Result(
        key, "ok", 1e6 + number, 1e6, 1.1e6, 1e4, 2e3, samples=6, inner_loops=4, warmup_ns=1e6, compile_ns=2e5,
        max_abs_err=0.0, sentinel_ns=5e3, started_at="2026-01-01T00:00:00.000+00:00",
    )  # fmt: skip


def driver_seconds() -> tuple[float, float]:
    """CPU time for each vector, from the sweep to the journal, and the bytes of its line."""
    nowhere = SimpleNamespace(remote=lambda *given: None)
    actor: Any = SimpleNamespace(give=nowhere, fetch=nowhere, give_back=nowhere)
    device = Sleeping("0").device()
    profile = {"name": device.name, "title": device.title, "kind": device.kind, "numbers": {}, "peak_tflops": {}, "sources": {}}
    ready = Ready(profile, {"driver": "1"})
    with tempfile.TemporaryDirectory() as folder:
        out = Path(folder, "d")
        request = Request(FAMILY, "kerncast.testing.faults:Sleeping", ("0",), out, chunk_size=CHUNK)
        collection = Collection(request, Dataset.create(out, journal=False))
        remote = RemoteDevice(Slot("node", "host", "0"), actor, ready)
        group: Any = SimpleNamespace(arrived=lambda: [remote], left=lambda *given, **named: None, hopeful=lambda: True)
        fleet = Fleet(group, collection)
        fleet.connect()
        frame, number = vectors(SAMPLE), 0
        began = cpu()
        for chunk in collection.chunks([with_optional(FAMILY, frame)]):
            remote.give(chunk)
            news = [FinalStatus(result_of(item.key, number + place), chunk.number) for place, item in enumerate(chunk.items)]
            number += len(news)
            for each in news_of(packed(news)):
                fleet._hear(remote, each)
            collection.flush()
        spent = cpu() - began
        assert collection.journal is not None
        collection.journal.close()
        return spent / number, (out / journals.NAME).stat().st_size / number


def journal_lines() -> float:
    """Lines that are written in a second by the journal alone."""
    from kerncast.measuring.journal import Journal

    header = journals.Header("gemm/triton", "sleeping", "a100", {"driver": "1"}, "run")
    problem = dict.fromkeys(FAMILY.problem.parameters, 64)
    config = dict.fromkeys(FAMILY.config.parameters, 4)
    with tempfile.TemporaryDirectory() as folder:
        journal = Journal.begin(Path(folder, journals.NAME), header)
        began = time.perf_counter()
        for number in range(SAMPLE):
            journal.add({"key": f"{number:024x}", "status": "ok", "time_ns": 1e6, "problem": problem, "config": config})
            if number % CHUNK == 0:
                journal.flush()
        journal.close()
        return SAMPLE / (time.perf_counter() - began)


def label_bytes(count: int = 200_000) -> float:
    """Memory for each vector that has a row, at most: a merge of new keys copies the old ones."""
    tracemalloc.start()
    labels, problem = KnownVectors(), {"M": 1, "N": 2}
    for number in range(count):
        labels.add(f"{number * 7919:024x}", problem, 1e6, 1e3, number, False)
    _, most = tracemalloc.get_traced_memory()
    tracemalloc.stop()
    return most / count


def call_seconds() -> float:
    """CPU time of the driver for one call of an actor and its answer."""
    from kerncast.app.api.arguments import connected

    with small_cluster(1) as cluster, connected(cluster.address) as ray:

        class Answering:
            def answer(self, text: bytes) -> bytes:
                return text

        actor = ray.remote(Answering).options(resources={"card": 1}, num_cpus=0, max_concurrency=4).remote()
        ray.get(actor.answer.remote(b"x"))
        began, waiting = cpu(), [actor.answer.remote(b"x" * 4000) for _ in range(4)]
        for _ in range(CALLS):
            (first, *_), waiting = ray.wait(waiting, num_returns=1)
            ray.get(first)
            waiting.append(actor.answer.remote(b"x" * 4000))
        return (cpu() - began) / CALLS


def simulate(count: int, devices: int, each: float, costs: Costs, seed: int = 0) -> Simulated:
    """The schedule of a sweep. Durations of chunks are drawn at once; the driver serves one chunk after the other."""
    chunks = -(-count // CHUNK)
    shape = CHUNK / SPREAD**2
    durations = np.random.default_rng(seed).gamma(shape, each * CHUNK / shape, chunks)
    linger = min(LINGER_SECONDS * devices, MOST_LINGER_SECONDS)
    # News come once in `linger`, or with every vector if those take longer; a chunk is handed over with one more call.
    calls = np.clip(durations / max(linger, each), 1.0, CHUNK) + 1.0
    service = CHUNK * costs.vector + calls * costs.call
    times, served, free, last = durations.tolist(), service.tolist(), 0.0, 0.0
    # By device: when it ends the chunk that it measures. Behind it waits one that was handed over in time, or is not yet.
    running: list[tuple[float, int]] = []
    handed = [[0.0] * (DEPTH - 1) for _ in range(devices)]
    place = 0
    for device in range(min(devices, chunks)):
        heapq.heappush(running, (times[place], device))
        place += 1
    given = place
    busy = 0.0
    while running:
        end, device = heapq.heappop(running)
        cost = served[min(given, chunks - 1)]
        free = max(free, end + linger / 2) + cost
        busy += cost
        last = max(last, free)
        queue = handed[device]
        queue.append(free)
        if place < chunks:
            heapq.heappush(running, (max(end, queue.pop(0)) + times[place], device))
            place += 1
        given += 1
    return Simulated(last, float(durations.sum()) / devices, busy / last)


def sizing(costs: Costs) -> None:
    """The table of docs/fleet.md."""
    print(f"{'vectors':>12} {'s/vector':>9} " + " ".join(f"{cards:>5} cards" for cards in CARDS))
    for count in (100_000, 1_000_000, 10_000_000):
        for each in SECONDS:
            hours = [simulate(count, cards, each, costs).seconds / 3600 for cards in CARDS]
            print(f"{count:>12,} {each:>9} " + " ".join(f"{value:>9.2f} h" for value in hours))


def main() -> int:
    parser = script_parser(__doc__)
    parser.add_argument("--devices", type=int, default=512)
    parser.add_argument("--vectors", type=int, default=100_000_000)
    given = parser.parse_args()
    vector, line = driver_seconds()
    costs = Costs(vector, call_seconds(), label_bytes(), line, journal_lines())
    sizing(costs)
    n = f"{given.devices} devices, {given.vectors:,} vectors"
    whole = {each: simulate(given.vectors, given.devices, each, costs) for each in (0.02, 0.1)}
    most = 1 / (costs.vector + costs.call / CHUNK * 2)
    rows = [
        Row("CPU time of the driver for each vector: chunks, news, journal", 1e6 * costs.vector, "µs", n=f"{SAMPLE:,} vectors"),
        Row("CPU time of the driver for each call of Ray", 1e6 * costs.call, "µs", n=f"{CALLS:,} calls"),
        Row("lines that the journal alone takes", costs.lines, "per s", Target(5_000), n=f"{SAMPLE:,} lines"),
        Row("journal for each vector", costs.journal, "bytes", n=f"{SAMPLE:,} vectors"),
        Row("memory of the driver for each vector", costs.memory, "bytes", n="200,000 vectors"),
        Row("vectors that one driver can take, by its costs", most, "per s", note="more devices than that need do not help"),
    ]
    for each, found in whole.items():
        words = f"{1000 * each:g} ms a vector"
        rows += [
            Row(f"{words}: hours", found.seconds / 3600, "h", n=n, note=f"{found.ideal / 3600:.2f} h without a driver"),
            Row(f"{words}: share of the devices' time that measures", 100 * found.efficiency, "%", n=n),
            Row(f"{words}: share of the time in which the driver is busy", 100 * found.driver, "%", n=n),
            Row(f"{words}: rows written", given.vectors / found.seconds, "per s", n=n),
        ]
    rows += [
        Row("memory of the driver at the end", given.vectors * costs.memory / 1e9, "GB", n=n),
        Row("journal at the end", given.vectors * costs.journal / 1e9, "GB", n=n),
    ]
    return finish(BENCHMARK, rows, given.json)


if __name__ == "__main__":
    sys.exit(main())
