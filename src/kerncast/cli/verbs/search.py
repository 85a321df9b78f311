"""`kerncast search`."""

from __future__ import annotations

from pathlib import Path
from typing import TYPE_CHECKING

import click

from kerncast.api.printing import echo
from kerncast.api.showing import shown
from kerncast.cli.stored import model_argument, store_of_model
from kerncast.cli.views.output import assignments, duration, json_option, print_json, table
from kerncast.errors import InvalidValue

if TYPE_CHECKING:
    from kerncast.selecting.search import Search

STRATEGIES = ("exhaustive", "random", "de", "local", "optuna")


@click.command("search")
@model_argument()
@store_of_model
@click.argument("problem", metavar="NAME=VALUE...", nargs=-1)
@click.option(
    "--strategy",
    type=click.Choice(STRATEGIES),
    help="How to search: every config, random ones, differential evolution, local steps from the model's best, or optuna. "
    "[default: all of up to 100,000 configs, else local]",
)
@click.option("--budget", type=click.IntRange(min=1), metavar="N", help="Configs to score. [default: 500; exhaustive: all]")
@click.option("--top-k", default=10, show_default=True, type=click.IntRange(min=1), metavar="K", help="Configs to return.")
@click.option("--seed", default=0, show_default=True, type=click.IntRange(min=0), help="The same seed gives the same answer.")
@click.option(
    "--configs",
    metavar="SPEC",
    help="Score only these: kernels:FILE (names of kernels), build:DIR (a build folder of CK Tile), portfolio:FILE, a dataset, "
    "a benchmark file. [default: every config that the family declares]",
)
@click.option("--measure", "measured", is_flag=True, help="Time the returned configs on this machine.")
@click.option("--backend", metavar="NAME", help="With --measure: what runs them. [default: the first that can]")
@json_option
def command(
    model: Path,
    problem: tuple[str, ...],
    strategy: str | None,
    budget: int | None,
    top_k: int,
    seed: int,
    configs: str | None,
    measured: bool,
    backend: str | None,
    as_json: bool,
) -> None:
    """Search all configs that the family declares for this problem and the model's device, not only measured ones.

    Constraints are applied first, so every config found can be built. The model scores each config once, in batches.

    \b
    kerncast search model M=512 N=512 K=512 dtype=fp32 layout=rrr
    kerncast search model M=512 N=512 K=512 dtype=fp32 layout=rrr --strategy local --budget 2000 --measure
    """
    from kerncast.cli.verbs.families import parse_assignments
    from kerncast.models.model import Model
    from kerncast.op import Problem
    from kerncast.selecting.search import search

    if backend is not None and not measured:
        raise InvalidValue("--backend needs --measure: without it nothing is run")
    loaded = Model.load(model)
    asked = Problem(loaded.family, parse_assignments(problem, dict(loaded.family.problem.parameters)))
    if measured:
        from kerncast.backends import backend_that_runs

        backend_that_runs(loaded.family.id, backend)  # refused before anything is searched
    with shown() as progress:
        found = search(loaded, asked, strategy, budget=budget, top_k=top_k, seed=seed, configs=configs, progress=progress)
    facts: dict[str, str] = {}
    if measured:
        found, facts = _measured(found, backend)
    if as_json:
        print_json({"model": str(model), "device": loaded.device.name, **found.as_json(), **facts})
        return
    _show(found, loaded.device.name, facts)


def _measured(found: Search, backend: str | None) -> tuple[Search, dict[str, str]]:
    from kerncast.cli.signals import polite_signals
    from kerncast.selecting.search import measure

    with shown(plain=True) as progress, polite_signals() as stop:
        done = measure(found, backend, progress=progress, stop=stop)
    return done.search, {"measured_by": done.backend, "measured_on": done.device}


def _show(found: Search, device: str, facts: dict[str, str]) -> None:
    for warning in found.warnings:
        echo(f"! {warning}")
    if facts and facts["measured_on"] != device:
        echo(f"! measured on {facts['measured_on']}; the model predicts for {device}")
    problem = {name: value for name, value in found.problem.items() if value is not None}
    columns = ["config", "predicted", "90 % interval", "worked in training"]
    if facts:
        columns[1:1] = ["measured"]
    rows = []
    for item in found.finalists:
        between = "-" if item.lower_ns is None else f"{duration(item.lower_ns)} to {duration(item.upper_ns)}"
        cells = [
            assignments({name: value for name, value in item.config.items() if value is not None}),
            duration(item.time_ns),
            between,
        ]
        if facts:
            cells[1:1] = [duration(item.measured_ns) if item.status == "ok" else str(item.status)]
        rows.append([*cells, "not recorded" if item.known is None else "yes" if item.known else "no"])
    table(columns, rows, f"{found.strategy} search for {assignments(problem)}", right=columns[1:-1])
    echo(found.seen)
