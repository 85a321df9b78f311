"""`kerncast predict`."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import click

from kerncast.cli.output import assignments, json_option, print_json, table
from kerncast.cli.selecting import answer_cells, checked_problems, problems_argument, read_problems
from kerncast.errors import NotFound

COLUMNS = ("status", "config", "time", "90 % interval")


@click.command("predict")
@click.argument("model", metavar="MODEL", type=click.Path(path_type=Path))
@problems_argument
@click.option("--config", "config", metavar="NAME=VALUE", multiple=True, help="The config to predict; one option a parameter.")
@json_option
def command(model: Path, problem: tuple[str, ...], config: tuple[str, ...], as_json: bool) -> None:
    """Say how long a problem takes, with a 90 % interval, without a device.

    Of a family with configs, name one with --config, or leave it out to hear of the best one (`kerncast select`). A
    file of problems (.json or .parquet) gives a list; parquet rows may carry `config.*` columns of their own.

    \b
    kerncast predict model M=128 N=1536 K=7168 dtype=fp8 layout=rcr
    kerncast predict model M=128 N=512 K=512 dtype=fp32 layout=rrr --config tile_m=64 --config tile_n=64 …
    kerncast predict exp_model func=exp dim2=1024 dim3=1024 dtype=bf16 buffer=l1 --json
    """
    from kerncast.cli.families import parse_assignments
    from kerncast.models import Model
    from kerncast.select.selector import Selector
    from kerncast.select.tiers import plain_tiers

    loaded = Model.load(model)
    given, listed = read_problems(problem, loaded.family)
    asked = checked_problems(given, loaded.family)
    chosen = parse_assignments(config, dict(loaded.family.config.parameters))
    unknown = sorted(set(chosen) - set(loaded.family.config.parameters))
    if unknown:
        raise NotFound.named(f"config parameter of {loaded.family.id}", unknown[0], loaded.family.config.parameters)
    # Nothing is chosen by tiers here, so none are built: an answer comes at once.
    selector = Selector(loaded, plain_tiers(loaded), tier="full", compile=False)
    if chosen or not loaded.family.config.parameters:
        answers = [selector.predict(values, chosen or None) for values in asked]
    else:
        answers = selector.select_many(asked, "full")
    if as_json:
        found: list[Any] = [answer.as_json() for answer in answers]
        print_json(found if listed else found[0])
    else:
        rows = [[assignments({name: value for name, value in answer.problem if value is not None}), *answer_cells(answer)[:4]]
                for answer in answers]  # fmt: skip
        table(("problem", *COLUMNS), rows, right=COLUMNS[2:])
        for answer in answers:
            if answer.reason:
                click.echo(answer.reason)
    if not all(answer.ok for answer in answers):
        raise SystemExit(1)
