"""`kerncast select` and `export`."""

from __future__ import annotations

import time
from dataclasses import fields
from math import log10
from pathlib import Path
from typing import Annotated, Any

import numpy as np

from kerncast.answering import search as searching
from kerncast.answering.explain import Explanation
from kerncast.answering.search import Search
from kerncast.answering.selector import Selector
from kerncast.app.api.export import PORTFOLIO, PortfolioOptions, export
from kerncast.app.api.showing import echo, shown
from kerncast.app.cli.signals import polite_signals
from kerncast.app.cli.verb import VerbCall, target_options, verb
from kerncast.app.cli.views import (
    ConfigsOf,
    Json,
    ProblemText,
    answer_table,
    assignments,
    checked_problems,
    device_of,
    draw,
    duration,
    parse_assignments,
    print_json,
    read_problems,
    steps,
    table,
    working,
)
from kerncast.core.io.arguments import Help
from kerncast.core.io.quoting import word
from kerncast.core.io.terminal import known
from kerncast.core.op import Problem
from kerncast.data.dataset import MANIFEST, Dataset
from kerncast.errors import InvalidValue
from kerncast.learning.learners.linear import Linear
from kerncast.measuring.backends import backend_that_runs
from kerncast.models.answer import CHOOSING, Answer, Pin, Tier
from kerncast.models.model import Model
from kerncast.native.tiers.smallest_set import Portfolio, PortfolioChoice

# Of a list of answers, the table shows at most this many.
MOST_SHOWN = 40
# With fewer problems than this, compiling the model takes longer than asking it in Python: about 5 s against 0.1 s each.
WORTH_COMPILING = 40
REFUSED = 1
# Configs that a search shows.
FINALISTS = 10
STRATEGIES = ("exhaustive", "random", "de", "local", "optuna")


@verb("select")
def select_verb(
    model: Annotated[Path, Help(metavar="MODEL", names="models")],
    problem: ProblemText = (),
    *,
    top: Annotated[
        int | None,
        "Show the K best configs by the model's score: those of the tier, then all others. [default with `search`: 10]",
        Help(metavar="K", least=1),
    ] = None,
    tier: Annotated[
        str,
        "Where to look: every measured config, or the portfolio or the tree, which are built first.",
        Help(choices=tuple(tier.value for tier in CHOOSING)),
    ] = "full",
    explain: Annotated[bool, Help("Also say why: features, nearest measured problems, runners-up.")] = False,
    measure: Annotated[
        bool, Help("Time the configs that the model cannot tell apart, or those of `search`, on this machine.")
    ] = False,
    backend: Annotated[
        str | None, Help("With `measure`: what runs them. [default: the first that can]", metavar="NAME")
    ] = None,
    configs: ConfigsOf = None,
    device: Annotated[
        str | None, Help("Which device, of a model that was trained on several together.", metavar="NAME", names="devices")
    ] = None,
    overrides: Annotated[
        Path | None, Help("Which kernels exist and which choices are fixed: `available`, `deny`, [[pin]].", metavar="FILE.toml")
    ] = None,
    compiled: Annotated[bool, Help("Answer in Python even where there is a C compiler.", option="--no-compile")] = True,
    search: Annotated[
        bool, Help("Search all configs that the family declares for the model's device, not only measured ones.")
    ] = False,
    strategy: Annotated[
        str | None,
        "With `search`: every config, random ones, differential evolution, local steps from the model's best, or optuna. "
        "[default: all of up to 100,000 configs, else local]",
        Help(choices=STRATEGIES),
    ] = None,
    budget: Annotated[
        int | None, Help("With `search`: configs to score. [default: 500; exhaustive: all]", metavar="N", least=1)
    ] = None,
    seed: Annotated[
        int | None, Help("With `search`: the same seed gives the same answer. [default: 0]", metavar="N", least=0)
    ] = None,
    as_json: Json = False,
) -> None:
    """Choose the config to run for a problem, or for a file of problems.

    The answer has a status: ok; out_of_range (outside what the model was trained on, with a fallback); unsupported;
    no_valid_config. Python scores every config that was measured; a file of many problems compiles the model first. With
    --tier portfolio or tree, the first call for a model builds and compiles the quick tiers, which takes up to a minute; later
    ones find them in the cache. Exit code 1 when any problem got no config.

    With --search, the model scores all configs that the family declares, each once, in batches. Constraints are applied first,
    so every config that it names can be built; it may never have been measured.

    \b
    kerncast select model M=128 N=1536 K=7168 dtype=fp8 layout=rcr
    kerncast select model M=128 N=1536 K=7168 dtype=fp8 layout=rcr --top 10 --explain
    kerncast select model M=128 N=1536 K=7168 dtype=fp8 layout=rcr --overrides overrides.toml
    kerncast select model problems.json --json
    kerncast select shipped/gemm-vllm M=128 N=1536 K=7168 dtype=fp8 --device h100
    kerncast select ck_model M=128 N=1536 K=7168 dtype=fp8 layout=rcr --configs kernels:mine.txt --top 5
    kerncast select model M=512 N=512 K=512 dtype=fp32 layout=rrr --search --strategy local --budget 2000 --measure
    """
    if backend is not None and not measure:
        raise InvalidValue("--backend needs --measure: without it nothing is run")
    whole = Model.load(model)
    if search:
        others = {"tier": tier != "full", "explain": explain, "overrides": overrides, "no-compile": not compiled}
        for option in (name for name, given in others.items() if given):
            raise InvalidValue(f"--{option} chooses among measured configs, and --search among all: leave one of them out")
        loaded = _on(whole, device)
        asked = Problem(loaded.family, parse_assignments(problem, dict(loaded.family.problem.parameters)))
        if measure:
            backend_that_runs(loaded.family.id, backend)  # refused before anything is searched
        with shown() as progress:
            result = searching.search(
                loaded, asked, strategy, budget=budget, top_k=top or FINALISTS, seed=seed or 0, configs=configs,
                progress=progress,
            )  # fmt: skip
        _show_search(model, loaded.device.name, result, measure, backend, as_json)
        return
    for option, value in (("strategy", strategy), ("budget", budget), ("seed", seed)):
        if value is not None:
            raise InvalidValue(f"--{option} is for --search: add it, or leave --{option} out")
    if measure and top:
        raise InvalidValue("--measure times the configs that the model cannot tell apart and returns one: leave out --top")
    given, listed = read_problems(problem, whole.family)
    loaded = _on(whole, device_of(given, device, whole.family))
    problems = checked_problems(given, loaded)
    if listed and (explain or measure):
        raise InvalidValue("--explain and --measure are for one problem: name it by its parameters")
    quick = tier != Tier.FULL
    worth = quick or len(problems) >= WORTH_COMPILING
    with steps() as progress:
        selector = Selector(loaded, tiers=None if quick else tier, tier=tier, compile=worth and compiled, configs=configs,
                            overrides=overrides, progress=progress)  # fmt: skip
    if top:
        rankings = selector.rank_many(problems, top, tier)
    elif measure:
        rankings = [[selector.measure(problems[0], backend_that_runs(loaded.family.id, backend)())]]
    else:
        rankings = [[answer] for answer in selector.select_many(problems)]
    first = rankings[0][0]
    explanation = selector.explain(first, tier) if explain and first.config is not None else None
    if as_json:
        values: list[Any] = [[item.as_json() for item in ranking] if top else ranking[0].as_json() for ranking in rankings]
        if explanation is not None:
            (values[0][0] if top else values[0])["explanation"] = explanation.as_json()
        print_json(values if listed else values[0])
    else:
        _show(rankings, explanation)
    if not all(ranking[0].ok for ranking in rankings):
        raise SystemExit(REFUSED)


def _on(model: Model, device: str | None) -> Model:
    """The model for the device that is named; the only one of a model of one device."""
    known = [record.name for record in model.manifest.devices]
    if device is None and len(known) > 1:
        raise InvalidValue(f"the model is of {', '.join(known)}: name the one to choose for with --device")
    return model if device is None else model.on(device)


def _show(rankings: list[list[Answer]], explanation: Explanation | None) -> None:
    if len(rankings) == 1:
        answers = rankings[0]
        title = assignments({name: value for name, value in answers[0].problem.items() if value is not None})
        named = any(item.label is not None for item in answers)
        marked = any(item.known is not None for item in answers)
        columns, rows, numbers = answer_table(answers)
        if marked:
            columns = [*columns, "worked in training"]
            rows = [[*row, item.worked_in_training] for row, item in zip(rows, answers, strict=True)]
        if named:
            columns, rows = [*columns, "label"], [[*row, item.label or "-"] for row, item in zip(rows, answers, strict=True)]
        table(columns, rows, title, right=numbers)
        if answers[0].reason:
            echo(answers[0].reason)
        if len(answers) > 1:
            echo(_order(answers))
    else:
        first = [ranking[0] for ranking in rankings[:MOST_SHOWN]]
        columns, rows, numbers = answer_table(first)
        rows = [[assignments(known(item.problem)), *row] for row, item in zip(rows, first, strict=True)]
        table(("problem", *columns), rows, f"{len(rankings):,} problems", right=numbers)
        if len(rankings) > MOST_SHOWN:
            echo(f"… and {len(rankings) - MOST_SHOWN:,} more: all with --json")
    for note in dict.fromkeys(item.note for ranking in rankings for item in ranking if item.note):
        echo(note)
    for place, block in enumerate([] if explanation is None else explanation.blocks):
        if isinstance(block, str):
            echo(*([""] if place == 0 else []), block)
        else:
            echo()
            draw(block)


def _order(ranked: list[Answer]) -> str:
    """What a ranking is sorted by."""
    said = ["sorted by the model's score, best first"]
    if ranked[0].pin is Pin.DECIDED:
        said.append("the pinned config comes before all others")
    free = [item for item in ranked if item.pin is not Pin.DECIDED]
    if len({item.tier for item in free}) > 1:
        said.append(f"configs of the {free[0].tier} come before all others")
    times = [item.time_ns or 0.0 for item in free if item.tier is free[0].tier]
    if times != sorted(times):
        said.append("beside the time, the score has what was learned from comparing configs on the same problem")
    return "; ".join(said)


def _show_search(model: Path, device: str, result: Search, measure: bool, backend: str | None, as_json: bool) -> None:
    facts: dict[str, str] = {}
    if measure:
        with shown(plain=True) as progress, polite_signals() as stop:
            done = searching.measure(result, backend, progress=progress, stop=stop)
        result, facts = done.search, {"measured_by": done.backend, "measured_on": done.device}
    if as_json:
        print_json({"model": str(model), "device": device, **result.as_json(), **facts})
        return
    for warning in result.warnings:
        echo(f"! {warning}")
    if facts and facts["measured_on"] != device:
        echo(f"! measured on {facts['measured_on']}; the model predicts for {device}")
    problem = {name: value for name, value in result.problem.items() if value is not None}
    columns = ["config", "predicted", "90 % interval", "worked in training"]
    if facts:
        columns[1:1] = ["measured"]
    rows = []
    for item in result.finalists:
        between = "-" if item.lower_ns is None else f"{duration(item.lower_ns)} to {duration(item.upper_ns)}"
        cells = [
            assignments({name: value for name, value in item.config.items() if value is not None}),
            duration(item.time_ns),
            between,
        ]
        if facts:
            cells[1:1] = [duration(item.measured_ns) if item.status == "ok" else str(item.status)]
        rows.append([*cells, "not recorded" if item.known is None else "yes" if item.known else "no"])
    table(columns, rows, f"{result.strategy} search for {assignments(problem)}", right=columns[1:-1])
    echo(result.seen)


# Files that are listed; a folder may have thousands.
FILES_SHOWN = 10
# Characters of the longest bar. Bars are logarithmic, because losses span four powers of ten.
WIDEST = 24
LEAST_SHOWN = 1e-4
EIGHTHS = " ▏▎▍▌▋▊▉█"
# Every size up to this one has a line, then every fourth.
EVERY_SIZE = 12


@verb("export", export, knobs=target_options)
def export_verb(call: VerbCall, *, as_json: Json = False) -> None:
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


def _model(call: VerbCall, source: Path, to: str, out: Path, as_json: bool) -> None:
    began, loaded = time.monotonic(), Model.load(source)
    with steps() as progress:
        written = call(source=loaded, progress=progress, **call.knobs)
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
    project = out if to == "c" else None if call.knobs["runtime"] is None else Path(call.knobs["runtime"])
    if project is not None and to in ("c", "blob"):
        build = word(project / "build")
        echo(f"Next: cmake -S {word(project)} -B {build} && cmake --build {build} && ctest --test-dir {build}")


def _dataset(call: VerbCall, path: Path, to: str, out: Path, as_json: bool) -> None:
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


def _portfolio(call: VerbCall, source: Path, as_json: bool) -> None:
    names, own = ("family", "where", "out"), [field.name for field in fields(PortfolioOptions)]
    call.refuse_given("does not go with `--to portfolio`", "source", "to", *names, *own)
    options = {name: call.knobs[name] for name in own if call.knobs[name] is not None}
    with working("choosing"):
        portfolio = Selector.portfolio(source, **{name: call[name] for name in names}, **options)
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
        for point in found.curve
        if point.size <= EVERY_SIZE or point.size % 4 == 0 or point is found.curve[-1]
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

    def first_of(labels: list[str]) -> str:
        return "-" if not labels else labels[0] + (f" (+{len(labels) - 1})" if len(labels) > 1 else "")

    lines = [
        (place + 1, assignments(portfolio.config(number)), f"{1 - covered[place]:.3%}", f"{best[place]:,}",
         *([first_of(portfolio.labels[place])] if named else []))
        for place, number in enumerate(found.configs)
    ]  # fmt: skip
    echo()
    columns = ("place", "config", "loss with those above", "best on", *(["label"] if named else []))
    table(columns, lines, "the portfolio, the config that adds most first", right=("place", columns[2], columns[3]))


def bar(loss: float) -> str:
    """A loss as a bar in eighths of a character: empty at 0.01 %, full at 100 %."""
    length = 0.0 if loss <= LEAST_SHOWN else 1.0 - log10(loss) / log10(LEAST_SHOWN)
    eighths = round(length * WIDEST * 8)
    return ("█" * (eighths // 8) + EIGHTHS[eighths % 8]).strip()
