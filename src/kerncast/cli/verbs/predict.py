"""`kerncast predict`."""

from __future__ import annotations

from pathlib import Path
from typing import TYPE_CHECKING, Any

import click

from kerncast.api.printing import echo
from kerncast.cli import completing
from kerncast.cli.asking import answer_table, checked_problems, problems_argument, read_problems
from kerncast.cli.views.output import assignments, json_option, print_json, table
from kerncast.errors import InvalidValue, NotFound
from kerncast.writing.terminal import known

if TYPE_CHECKING:
    from kerncast.models.model import Model
    from kerncast.space import Value


@click.command("predict")
@click.argument("model", metavar="MODEL|OP", type=click.Path(path_type=Path), shell_complete=completing.models_and_ops)
@problems_argument
@click.option(
    "--family", metavar="NAME", shell_complete=completing.families, help="With OP: the family of the model in the store."
)
@click.option(
    "--device", metavar="NAME", shell_complete=completing.devices, help="With OP: the device of the model in the store."
)
@click.option(
    "--store", metavar="DIR", type=click.Path(path_type=Path), help="With OP: the store to look in. [default: your own]"
)
@click.option(
    "--config", "config", metavar="NAME=VALUE", multiple=True, help="The config to predict; repeat for each parameter."
)
@json_option
def command(
    model: Path,
    problem: tuple[str, ...],
    family: str | None,
    device: str | None,
    store: Path | None,
    config: tuple[str, ...],
    as_json: bool,
) -> None:
    """Predict how long a problem takes, with a 90 % interval; no device is needed.

    If the family has configs, name one with --config, or leave it out to predict the best one (`kerncast select`).
    A file of problems (.json or .parquet) gives a list; `config.*` columns of a parquet file are ignored.

    \b
    kerncast predict model M=128 N=1536 K=7168 dtype=fp8 layout=rcr
    kerncast predict model M=128 N=512 K=512 dtype=fp32 layout=rrr --config tile_m=64 --config tile_n=64 …
    kerncast predict exp_model func=exp dim2=1024 dim3=1024 dtype=bf16 buffer=l1 --json
    kerncast predict exp --device wormhole_b0 dim2=1024 dim3=1024 dtype=bf16 buffer=l1
    """
    from kerncast.cli.verbs.families import parse_assignments
    from kerncast.models.answer import without_choice
    from kerncast.selecting.selector import Selector
    from kerncast.selecting.tiers.build import plain_tiers

    loaded, preset = _loaded(model, family, device, store)
    given, listed = read_problems(problem, loaded.family)
    given = [_with(preset, values, str(model)) for values in given]
    asked = checked_problems(given, loaded.family)
    chosen = parse_assignments(config, dict(loaded.family.config.parameters))
    unknown = sorted(set(chosen) - set(loaded.family.config.parameters))
    if unknown:
        raise NotFound.named(f"config parameter of {loaded.family.id}", unknown[0], loaded.family.config.parameters)
    # No tier is needed here, so none is built, and the answer comes at once.
    selector = Selector(loaded, tiers=plain_tiers(loaded), tier="full", compile=False)
    if chosen or not loaded.family.config.parameters:
        answers = [selector.predict(values, chosen or None) for values in asked]
    else:
        answers = selector.select_many(asked, "full")
    answers = [without_choice(loaded.family, answer) for answer in answers]
    if as_json:
        found: list[Any] = [answer.as_json() for answer in answers]
        print_json(found if listed else found[0])
    else:
        columns, rows, numbers = answer_table(answers, choice=False)
        rows = [[assignments(known(item.problem)), *row] for row, item in zip(rows, answers, strict=True)]
        table(("problem", *columns), rows, right=numbers)
        for answer in answers:
            if answer.reason:
                echo(answer.reason)
    if not all(answer.ok for answer in answers):
        raise SystemExit(1)


def _with(preset: dict[str, Value], values: dict[str, Any], alias: str) -> dict[str, Any]:
    """Add the parameters that an alias of the op sets."""
    for name, value in preset.items():
        if values.get(name, value) != value:
            raise InvalidValue(f"{alias} means {name}={value}, which contradicts {name}={values[name]}: leave one of them out")
    return {**preset, **values}


def _loaded(model: Path, family: str | None, device: str | None, store: Path | None) -> tuple[Model, dict[str, Value]]:
    """The named model, or the store's model of the named op, with the parameters that an alias sets."""
    from kerncast.models.model import Model
    from kerncast.registry import OPS
    from kerncast.store.store import Store

    name = str(model)
    if model.exists() or not any(name in (op.name, *op.aliases) for op in OPS):
        if family is not None or device is not None or store is not None:
            raise InvalidValue(
                f"--family, --device and --store choose a model of an op, but '{model}' is a model: leave them out"
            )
        return Model.load(model), {}
    op = OPS.get(name)
    entry = Store.open(store).find(op.name, family, device)
    return entry.load(), dict(op.aliases.get(name, {}))
