"""`kerncast select`."""

from __future__ import annotations

from pathlib import Path
from typing import TYPE_CHECKING, Any

import click

from kerncast.api.printing import echo
from kerncast.cli import completing
from kerncast.cli.asking import (
    answer_table,
    checked_problems,
    configs_option,
    device_of,
    problems_argument,
    read_problems,
    steps,
)
from kerncast.cli.stored import model_argument, store_of_model
from kerncast.cli.views.output import assignments, draw, json_option, print_json, table
from kerncast.errors import InvalidValue
from kerncast.models.answer import Pin
from kerncast.models.tier import CHOOSING, Tier
from kerncast.writing.terminal import known

if TYPE_CHECKING:
    from kerncast.models.answer import Answer
    from kerncast.models.model import Model
    from kerncast.op import Problem
    from kerncast.selecting.explain import Explanation
    from kerncast.selecting.selector import Selector

# Of a list of answers, the table shows at most this many.
MOST_SHOWN = 40
# With fewer problems than this, compiling the model takes longer than asking it in Python: about 5 s against 0.1 s each.
WORTH_COMPILING = 40
REFUSED = 1


@click.command("select")
@model_argument()
@store_of_model
@problems_argument
@click.option(
    "--top",
    type=click.IntRange(min=1),
    metavar="K",
    help="Show the K best configs by the model's score: those of the tier, then all others.",
)
@click.option("--tier", type=click.Choice([tier.value for tier in CHOOSING]), default="full", show_default=True,
              help="Where to look: every measured config, or the portfolio or the tree, which are built first.")  # fmt: skip
@click.option("--explain", "explained", is_flag=True, help="Also say why: features, nearest measured problems, runners-up.")
@click.option("--measure", "measured", is_flag=True, help="Time the configs that the model cannot tell apart, on this machine.")
@click.option("--backend", metavar="NAME", help="With --measure: what runs them. [default: the first that can]")
@configs_option
@click.option("--device", metavar="NAME", shell_complete=completing.devices,
              help="Which device, of a model that was trained on several together.")  # fmt: skip
@click.option("--overrides", type=click.Path(path_type=Path), metavar="FILE.toml",
              help="Which kernels exist and which choices are fixed: `available`, `deny`, [[pin]].")  # fmt: skip
@click.option("--no-compile", is_flag=True, help="Answer in Python even where there is a C compiler.")
@json_option
def command(
    model: Path,
    problem: tuple[str, ...],
    top: int | None,
    tier: str,
    explained: bool,
    measured: bool,
    backend: str | None,
    configs: str | None,
    device: str | None,
    overrides: Path | None,
    no_compile: bool,
    as_json: bool,
) -> None:
    """Choose the config to run for a problem, or for a file of problems.

    The answer has a status: ok; out_of_range (outside what the model was trained on, with a fallback); unsupported;
    no_valid_config. Python scores every config that was measured; a file of many problems compiles the model first. With
    --tier portfolio or tree, the first call for a model builds and compiles the quick tiers, which takes up to a minute; later
    ones find them in the cache. Exit code 1 when any problem got no config.

    \b
    kerncast select model M=128 N=1536 K=7168 dtype=fp8 layout=rcr
    kerncast select model M=128 N=1536 K=7168 dtype=fp8 layout=rcr --top 10 --explain
    kerncast select model M=128 N=1536 K=7168 dtype=fp8 layout=rcr --overrides overrides.toml
    kerncast select model problems.json --json
    kerncast select shipped/gemm-vllm M=128 N=1536 K=7168 dtype=fp8 --device h100
    kerncast select ck_model M=128 N=1536 K=7168 dtype=fp8 layout=rcr --configs kernels:mine.txt --top 5
    """
    from kerncast.models.model import Model
    from kerncast.selecting.selector import Selector

    if backend is not None and not measured:
        raise InvalidValue("--backend needs --measure: without it nothing is run")
    if measured and top:
        raise InvalidValue("--measure times the configs that the model cannot tell apart and returns one: leave out --top")
    whole = Model.load(model)
    given, listed = read_problems(problem, whole.family)
    loaded = _on(whole, device_of(given, device, whole.family))
    asked = checked_problems(given, loaded)
    if listed and (explained or measured):
        raise InvalidValue("--explain and --measure are for one problem: name it by its parameters")
    quick = tier != Tier.FULL
    worth = quick or len(asked) >= WORTH_COMPILING
    with steps() as progress:
        selector = Selector(loaded, tiers=None if quick else tier, tier=tier, compile=worth and not no_compile, configs=configs,
                            overrides=overrides, progress=progress)  # fmt: skip
    if top:
        rankings = selector.rank_many(asked, top, tier if tier != "tree" else "portfolio")
    elif measured:
        rankings = [[_measured(selector, asked[0], backend)]]
    else:
        rankings = [[answer] for answer in selector.select_many(asked)]
    explanation = _explained(selector, rankings[0][0], tier) if explained else None
    if as_json:
        _print(rankings, listed, top, explanation)
    else:
        _show(rankings, explanation)
    if not all(ranking[0].ok for ranking in rankings):
        raise SystemExit(REFUSED)


def _on(model: Model, device: str | None) -> Model:
    """The model for the device that is named; the only one of a model of one device."""
    known = [record.name for record in model.manifest.devices]
    if device is None:
        if len(known) > 1:
            raise InvalidValue(f"the model is of {', '.join(known)}: name the one to choose for with --device")
        return model
    return model.on(device)


def _measured(selector: Selector, problem: Problem, backend: str | None) -> Answer:
    from kerncast.backends import backend_that_runs

    return selector.measure(problem, backend_that_runs(selector.model.family.id, backend)())


def _explained(selector: Selector, answer: Answer, tier: str) -> Explanation | None:
    return selector.explain(answer, tier) if answer.config is not None else None


def _print(rankings: list[list[Answer]], listed: bool, top: int | None, explanation: Explanation | None) -> None:
    found: list[Any] = [[item.as_json() for item in ranking] if top else ranking[0].as_json() for ranking in rankings]
    if explanation is not None:
        first = found[0][0] if top else found[0]
        first["explanation"] = explanation.as_json()
    print_json(found if listed else found[0])


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
    if explanation is not None:
        _show_explanation(explanation)


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


def _show_explanation(found: Explanation) -> None:
    for place, block in enumerate(found.blocks):
        if isinstance(block, str):
            echo(*([""] if place == 0 else []), block)
        else:
            echo()
            draw(block)
