"""`kerncast export`."""

from __future__ import annotations

import time
from collections.abc import Sequence
from math import log10
from pathlib import Path

import numpy as np

from kerncast.answering.selector import Selector
from kerncast.app.api.export import PORTFOLIO, export
from kerncast.app.api.printing import echo
from kerncast.app.cli.asking import steps
from kerncast.app.cli.verb import Call, verb
from kerncast.app.cli.views.output import Json, assignments, print_json, table, working
from kerncast.core.io.quoting import word
from kerncast.data.dataset import MANIFEST, Dataset
from kerncast.errors import InvalidValue
from kerncast.learning.learners.linear import Linear
from kerncast.models.model import Model
from kerncast.native.tiers.portfolio import CurvePoint, Portfolio, PortfolioChoice

# Files that are listed; a folder may have thousands.
FILES_SHOWN = 10
# Characters of the longest bar. Bars are logarithmic, because losses span four powers of ten.
WIDEST = 24
LEAST_SHOWN = 1e-4
EIGHTHS = " ▏▎▍▌▋▊▉█"
# Every size up to this one has a line, then every fourth.
EVERY_SIZE = 12


@verb("export", export)
def command(call: Call, *, as_json: Json = False) -> None:
    """Write a model for programs that do not have Python, or a dataset for other tools.

    `--to c` writes one .c and one .h without any dependency beyond libm, a C++17 header, a self-test with golden
    vectors, CMakeLists.txt and a pkg-config file. It chooses exactly what Python chooses. `--to blob` writes one file that a
    small C runtime loads when a program runs, with the same answers.

    A dataset is written as csv or parquet, a table with all columns and times in nanoseconds, and next to it a mapping file
    with which `kerncast import` reads the same rows again. t4 is the results format of the auto-tuning community.
    kernel-tuner is a cache that Kernel Tuner and its simulation mode read. These two have one file per problem and device; if
    there are several, --out is a folder. tt-sweep writes measured reshards as the vectors and results of tt-metal's sweep
    framework.

    `--to portfolio` shows how few configs of a model or a dataset are enough: which kernels need not be built or shipped. Sets
    of one, two, three … configs are chosen on some folds of problems and scored on the others. The loss says how much slower
    the best config of the set is than the best of all; a problem on which no config of the set works counts as a loss of
    100 %. --out writes the configs as a JSON list, for `--configs portfolio:FILE` of sweep and collect.

    \b
    kerncast export model --to c --out picker
    kerncast export shipped/gemm-vllm --to c --device h100 --out h100_gemm
    cmake -S picker -B build && cmake --build build && ctest --test-dir build
    kerncast export model --to c --out small --prefix small --tiers tree
    kerncast export model --to c --out picker --overrides overrides.toml
    kerncast export ck_model --to c --out picker --configs kernels:mine.txt
    kerncast export model --to blob --out model.kcb --runtime runtime
    kerncast export model --to json --out choices.json
    kerncast export lines --to csv --out lines.csv
    kerncast export mlp --to csv --out weights
    kerncast export a100 --to lookup-table --out table.json --device-name 'NVIDIA A100-SXM4-80GB'
    kerncast export a100 --to autoheuristic --out _KerncastMM.py
    kerncast export times --to csv --out times.csv
    kerncast export times --to t4 --where dtype=fp16 --out results.json
    kerncast export times --to kernel-tuner --out cache.json
    kerncast export quickstart/gemm_cpu --to portfolio --loss 0.01 --max-configs 16
    kerncast export model --to portfolio --build-list kernels.txt --out keep.json
    """
    source, to = Path(call["source"]), call["to"]
    is_data = (source / MANIFEST).is_file()
    if to == PORTFOLIO:
        _portfolio(call, source, as_json)
        return
    if call["out"] is None:
        raise InvalidValue("an export needs --out, the path to write")
    if is_data:
        _dataset(call, source, to or "csv", Path(call["out"]), as_json)
    else:
        _model(call, source, to or "c", Path(call["out"]), as_json)


def _model(call: Call, source: Path, to: str, out: Path, as_json: bool) -> None:
    began, loaded = time.monotonic(), Model.load(source)
    with steps() as progress:
        written = call(source=loaded, progress=progress)
    if to == "csv" and isinstance(loaded.learner, Linear):
        size = loaded.learner.size()
        echo(
            f"{size['lines']:,} lines, {size['negative_intercepts']:,} with a negative intercept; "
            f"{size['absurd_readings']:,} absurd readings (ten times off a robust line)",
            err=True,
        )
    seconds = time.monotonic() - began
    if as_json:
        print_json({"path": str(out), "files": {path.name: path.stat().st_size for path in written}, "seconds": seconds})
        return
    table(("file", "bytes"), [(path.name, f"{path.stat().st_size:,}") for path in written], right=("bytes",))
    echo(f"written in {seconds:.1f} s")
    project = out if to == "c" else None if call["runtime"] is None else Path(call["runtime"])
    if project is not None and to in ("c", "blob"):
        build = word(project / "build")
        echo(f"Next: cmake -S {word(project)} -B {build} && cmake --build {build} && ctest --test-dir {build}")


def _dataset(call: Call, path: Path, to: str, out: Path, as_json: bool) -> None:
    call.refuse_given("is about models, and this is a dataset", "source", "to", "out", "family", "where")
    with working(f"writing {path} as {to}"):
        opened = Dataset.open(path)
        before = len(opened.notes)
        written = call(source=opened)
    if as_json:
        print_json({"path": str(out), "format": to, "files": {str(path): path.stat().st_size for path in written}})
        return
    for note in opened.notes[before:]:
        echo(note)
    for path in written[:FILES_SHOWN]:
        echo(f"{path}: {path.stat().st_size:,} bytes")
    if len(written) > FILES_SHOWN:
        echo(f"and {len(written) - FILES_SHOWN:,} more files in {out}")
    if len(written) > 1 and to in ("csv", "parquet"):
        echo(f"to read it again: kerncast import {word(to)} {word(written[0])} --mapping {word(written[1])} --out DATASET")


def _portfolio(call: Call, source: Path, as_json: bool) -> None:
    names = ("loss", "max_configs", "family", "where", "out", "build_list")
    call.refuse_given("does not go with `--to portfolio`", "source", "to", *names)
    with working("choosing"):
        portfolio = Selector.portfolio(source, **{name: call[name] for name in names})
    if as_json:
        print_json(portfolio.as_json())
        return
    _show_portfolio(portfolio)
    if call["out"] is not None:
        family, configs = word(portfolio.measured.family.id), word(f"portfolio:{call['out']}")
        echo("", f"written to {call['out']}. Next: kerncast sweep {family} --configs {configs} …")


def _show_portfolio(portfolio: Portfolio) -> None:
    measured, found, loss = portfolio.measured, portfolio.found, portfolio.loss
    echo(f"{measured.family.id}: {found.problems:,} problems, {measured.configs.height:,} configs")
    held = f"held out, {found.folds} folds" if found.folds else "one group of problems: nothing could be held out"
    columns = ("configs", "loss", "", "in training", "P10", "worst")
    lines = [
        (point.size, f"{point.loss:.3%}", bar(point.loss), f"{point.training_loss:.3%}", f"{point.efficiency_p10:.2%}",
         f"{point.efficiency_min:.2%}")
        for point in _thinned(found.curve)
    ]  # fmt: skip
    echo()
    table(columns, lines, f"loss of the best of N configs ({held}; bars are logarithmic)",
          right=("configs", "loss", "in training", "P10", "worst"))  # fmt: skip
    echo()
    echo(_verdict(found, measured.configs.height, loss))
    if portfolio.caution:
        echo(f"! {portfolio.caution}")
    _show_configs(portfolio)


def _verdict(found: PortfolioChoice, configs: int, loss: float) -> str:
    count, last = len(found.configs), found.curve[-1]
    extra = count - last.size
    more = f" ({extra} of them for problems on which none of the others works)" if extra else ""
    bare = f"; on {found.uncovered:,} problems none of them works: allow more with --max-configs" if found.uncovered else ""
    if found.reached:
        rest = f"{loss:.2%} is allowed: the others need not be built"
        return f"{count} of {configs:,} configs{more} lose {last.loss:.2%}, {rest}{bare}"
    return (
        f"{count} configs{more} lose {last.loss:.2%} on held-out problems, more than {loss:.2%}: allow more "
        f"with --max-configs, or measure more problems ({found.problems:,} so far){bare}"
    )


def _show_configs(portfolio: Portfolio) -> None:
    measured, found = portfolio.measured, portfolio.found

    shares = np.nan_to_num(measured.shares[measured.solvable][:, list(found.configs)])
    best = np.bincount(shares.argmax(axis=1), minlength=len(found.configs))
    covered = np.maximum.accumulate(shares, axis=1).mean(axis=0)
    named = measured.labels is not None
    lines = [
        (place + 1, assignments(portfolio.config(number)), f"{1 - covered[place]:.3%}", f"{best[place]:,}",
         *([_names(portfolio.labels[place])] if named else []))
        for place, number in enumerate(found.configs)
    ]  # fmt: skip
    echo()
    columns = ("place", "config", "loss with those above", "best on", *(["label"] if named else []))
    table(columns, lines, "the portfolio, the config that adds most first", right=("place", columns[2], columns[3]))


def _names(labels: list[str]) -> str:
    """The first name, and how many more there are."""
    return "-" if not labels else labels[0] + (f" (+{len(labels) - 1})" if len(labels) > 1 else "")


def bar(loss: float) -> str:
    """A loss as a bar in eighths of a character: empty at 0.01 %, full at 100 %."""
    length = 0.0 if loss <= LEAST_SHOWN else 1.0 - log10(loss) / log10(LEAST_SHOWN)
    eighths = round(length * WIDEST * 8)
    return ("█" * (eighths // 8) + EIGHTHS[eighths % 8]).strip()


def _thinned(curve: Sequence[CurvePoint]) -> list[CurvePoint]:
    last = curve[-1].size
    return [point for point in curve if point.size <= EVERY_SIZE or point.size % 4 == 0 or point.size == last]
