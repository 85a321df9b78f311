"""What a new user meets: the blocks of README in an empty folder, `make quickstart`, sizes, times to the first answers.

A fresh environment gets the package from this checkout by README's own line, and another one without extras, for the size.
Blocks run in the order of the page, with their output in a pipe. Then the model of README answers: the first question on a new
machine, the second one of a process, a frame of 100,000.

    python benchmarks/first_hour.py [--without-quickstart] [--keep DIR]
"""

from __future__ import annotations

import json
import os
import queue
import re
import shutil
import statistics
import subprocess
import sys
import tempfile
import threading
import time
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import IO

from reporting import ROOT, Benchmark, Interval, Row, Target, finish, script_parser

sys.path.insert(0, str(ROOT / "tests" / "docs"))
from page_blocks import Block, blocks_of

BENCHMARK = Benchmark(
    __file__,
    "How long choosing and predicting take",
    "The first hour",
    note="A fresh environment and an empty folder; wall clock, on a machine that should be quiet.",
)
INSTALL = re.compile(r"^\$ pip install (.+)$", re.MULTILINE)
MOST_BLOCK_SECONDS, MOST_SILENT_SECONDS = 120.0, 10.0
RUNS = 5
# The model that the README trains, from the datasets that it leaves; and questions to it. A script of the fresh environment.
TRAIN = "import kerncast as kc; kc.train(['one_row', 'more_rows'], out='model', progress=False)"
ASK = """
import itertools, json, statistics, sys, time
import numpy as np, polars as pl
import kerncast as kc

WARM, REPEATS = 2000, 3
found, asked = {}, {"M": 100, "N": 200, "K": 300, "dtype": "fp32", "layout": "rrr"}

def seconds(act, clock=time.perf_counter):
    began = clock()
    act()
    return clock() - began

def best(act):
    return min(seconds(act) for _ in range(REPEATS))

found["selector"] = seconds(lambda: kc.Selector("model", progress=False))
for name, compiled in (("with C", True), ("without C", False)):
    pick = kc.Selector("model", compile=compiled, progress=False)
    pick(**asked)
    found[f"second {name}"] = statistics.median(seconds(lambda: pick(**asked)) for _ in range(WARM))
h100 = {"M": 4096, "N": 4096, "K": 4096, "dtype": "bf16"}
kc.predict("gemm", h100, device="h100")
found["warm predict"] = statistics.median(
    seconds(lambda: kc.predict("gemm", h100, device="h100"), time.process_time) for _ in range(50)
)
sizes = np.random.default_rng(0).integers((1, 64, 64), (257, 257, 1025), size=(100_000, 3))
many = pl.DataFrame(sizes, schema=["M", "N", "K"], orient="row").with_columns(dtype=pl.lit("fp32"), layout=pl.lit("rrr"))
for tier in ("tree", "portfolio"):
    # Another selector each time: what one has answered before is in its memo.
    pickers = [kc.Selector("model", progress=False) for _ in range(REPEATS)]
    found[f"many {tier}"] = min(seconds(lambda: pick.select_many(many, tier=tier)) for pick in pickers)
few = many[:20_000]
model = kc.Model.load("model")
model.predict(few[:10])
found["predict few"] = best(lambda: model.predict(few))
pickers = [kc.Selector("model", progress=False) for _ in range(REPEATS)]
found["full few"] = min(seconds(lambda: pick.select_many(few, tier="full")) for pick in pickers)
print(json.dumps(found))
"""


@dataclass(frozen=True)
class Run:
    """How long a program ran, and the longest time in which it printed nothing."""

    seconds: float
    silent: float


def watched(command: Sequence[str], folder: Path, environment: Mapping[str, str]) -> Run:
    """Run a program with its output in a pipe. What it prints is shown; a failure ends the benchmark."""
    print("$", " ".join(command)[:100], flush=True)
    lines: queue.Queue[str | None] = queue.Queue()
    began = last = time.perf_counter()
    silent = 0.0
    pipes = {"stdout": subprocess.PIPE, "stderr": subprocess.STDOUT, "text": True, "errors": "replace"}
    with subprocess.Popen(command, cwd=folder, env=dict(environment), **pipes) as running:
        threading.Thread(target=_read, args=(running.stdout, lines), daemon=True).start()
        while True:
            line = lines.get()
            now = time.perf_counter()
            silent, last = max(silent, now - last), now
            if line is None:
                break
            print(f"  {now - began:6.1f} {line.rstrip()[:150]}", flush=True)
    if running.returncode:
        raise SystemExit(f"{' '.join(command)[:200]} ended with {running.returncode}")
    return Run(last - began, silent)


def _read(stream: IO[str], lines: queue.Queue[str | None]) -> None:
    for line in stream:
        lines.put(line)
    lines.put(None)


@dataclass(frozen=True)
class Place:
    """A fresh environment with the package, an empty folder, and a user who has never used it."""

    folder: Path

    @property
    def work(self) -> Path:
        return self.folder / "work"

    def programs(self, name: str) -> Path:
        return self.folder / name / "bin"

    def environment(self, cache: str = "cache") -> dict[str, str]:
        """Nothing of this user's own is found: settings, caches, models."""
        kept = {
            name: value for name, value in os.environ.items() if not name.startswith(("KERNCAST_", "PYTHON", "VIRTUAL_ENV"))
        }
        path = f"{self.programs('whole')}{os.pathsep}{kept['PATH']}"
        return {**kept, "HOME": str(self.folder / "home"), "KERNCAST_CACHE": str(self.folder / cache), "PATH": path}

    def install(self, name: str, wanted: str) -> tuple[float, float]:
        """Make an environment and install the checkout in it: seconds, and how many megabytes that adds."""
        began = time.perf_counter()
        subprocess.run([sys.executable, "-m", "venv", str(self.folder / name)], check=True)
        before = self._megabytes(name)
        python = self.programs(name) / "python"
        subprocess.run([python, "-m", "pip", "install", "--quiet", wanted], cwd=ROOT, check=True)
        return time.perf_counter() - began, self._megabytes(name) - before

    def _megabytes(self, name: str) -> float:
        (packages,) = (self.folder / name).glob("lib/python*/site-packages")
        return sum(file.stat().st_size for file in packages.rglob("*") if file.is_file() and not file.is_symlink()) / 1e6


def readme() -> tuple[str, list[Block]]:
    """What the README installs, and its blocks below that line."""
    blocks = blocks_of((ROOT / "README.md").read_text(encoding="utf-8"))
    place, line = next((place, found[1]) for place, block in enumerate(blocks, 1) if (found := INSTALL.search(block.text)))
    return line.split("#")[0].strip().strip("'"), blocks[place:]


def readme_rows(place: Place, blocks: Sequence[Block]) -> list[Row]:
    runs = []
    for block in blocks:
        commands = [["bash", "-euo", "pipefail", "-c", item.text] for item in block.commands()]
        if block.language == "python":
            commands = [[str(place.programs("whole") / "python"), "-u", "-c", block.text]]
        parts = [watched(command, place.work, place.environment()) for command in commands]
        if parts:
            runs.append(Run(sum(part.seconds for part in parts), max(part.silent for part in parts)))
    return [
        Row("README: the longest of its blocks", max(run.seconds for run in runs), "s", Target(high=MOST_BLOCK_SECONDS),
            n=f"{len(runs)} blocks", note="all of them: " + ", ".join(f"{run.seconds:.1f} s" for run in runs)),
        Row("README: the longest time without a line", max(run.silent for run in runs), "s", Target(high=MOST_SILENT_SECONDS)),
    ]  # fmt: skip


def quickstart_rows(place: Place) -> list[Row]:
    """`make quickstart` in a checkout of its own, which it installs first."""
    checkout = place.folder / "checkout"
    subprocess.run(["git", "clone", "--quiet", str(ROOT), str(checkout)], check=True)
    environment = {**place.environment("quickstart-cache"), "PATH": os.environ["PATH"]}
    run = watched(["make", "quickstart", f"PYTHON={sys.executable}"], checkout, environment)
    return [
        Row("make quickstart, with its installation", run.seconds, "s", note=f"longest time without a line {run.silent:.1f} s")
    ]


def cold(place: Place, words: str, cache: str | None = None) -> list[float]:
    """A command in new processes; with `cache`, on a machine that has compiled nothing."""
    found = []
    for number in range(RUNS):
        environment = place.environment("cache" if cache is None else f"{cache}-{number}")
        began = time.perf_counter()
        subprocess.run(["kerncast", *words.split()], cwd=place.work, env=environment, check=True, stdout=subprocess.DEVNULL,
                       executable=place.programs("whole") / "kerncast", stderr=subprocess.DEVNULL)  # fmt: skip
        found.append(time.perf_counter() - began)
    return found


def answer_rows(place: Place) -> list[Row]:
    python, environment = str(place.programs("whole") / "python"), place.environment()
    watched([python, "-c", TRAIN], place.work, environment)
    predict = cold(place, "predict gemm M=4096 N=4096 K=4096 dtype=bf16 --device h100")
    select = cold(place, "select model M=100 N=200 K=300 dtype=fp32 layout=rrr", "first-select")
    done = subprocess.run(
        [python, "-c", ASK], cwd=place.work, env=place.environment("first-asked"), check=True, stdout=subprocess.PIPE
    )
    found = json.loads(done.stdout)
    runs = f"{RUNS} runs"
    return [
        Row("kerncast predict gemm … --device h100 in a new process", statistics.median(predict), "s", n=runs,
            interval=Interval(min(predict), max(predict), "range")),
        Row("the first kerncast select of the README's model, nothing compiled before", statistics.median(select), "s", n=runs,
            interval=Interval(min(select), max(select), "range")),
        Row("the first Selector of that model: tiers built and compiled", found["selector"], "s"),
        *(Row(f"pick(M=…), second call, {name}", 1e6 * found[f"second {name}"], "µs", Target(high=15.0), n="median of 2,000")
          for name in ("with C", "without C")),
        Row("kc.predict, warm, CPU time", 1e3 * found["warm predict"], "ms", Target(high=5.0), n="median of 50"),
        *(Row(f"select_many of a frame of 100,000, {tier}", found[f"many {tier}"], "s", Target(high=most), n="best of 3")
          for tier, most in (("tree", 1.5), ("portfolio", 5.0))),
        Row("Model.predict ÷ select_many(tier='full'), 20,000 problems", found["predict few"] / found["full few"], "×",
            Target(high=1.0), n="best of 3", note=f"{found['predict few']:.2f} s and {found['full few']:.2f} s"),
    ]  # fmt: skip


def measure(folder: Path, *, quickstart: bool) -> list[Row]:
    place, (wanted, blocks) = Place(folder), readme()
    place.work.mkdir(parents=True)
    (folder / "home").mkdir()
    _, core = place.install("core", ".")
    seconds, whole = place.install("whole", wanted)
    shutil.rmtree(folder / "core")
    return [
        Row("pip install .", core, "MB", note="what it adds to an empty environment"),
        Row(f"pip install '{wanted}', the README's line", whole, "MB", note=f"{seconds:.0f} s with its downloads"),
        *readme_rows(place, blocks),
        *(quickstart_rows(place) if quickstart else []),
        *answer_rows(place),
    ]


def main() -> int:
    parser = script_parser(__doc__)
    parser.add_argument("--without-quickstart", action="store_true", help="leave out `make quickstart` and its five minutes")
    parser.add_argument("--keep", type=Path, metavar="DIR", help="keep all files in this folder, which must not exist")
    given = parser.parse_args()
    options = {"quickstart": not given.without_quickstart}
    if given.keep is not None:
        rows = measure(given.keep.resolve(), **options)
    else:
        with tempfile.TemporaryDirectory() as folder:
            rows = measure(Path(folder), **options)
    return finish(BENCHMARK, rows, given.json, partial=given.without_quickstart)


if __name__ == "__main__":
    sys.exit(main())
