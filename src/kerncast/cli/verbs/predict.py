"""`kerncast predict`."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Any

import click

from kerncast.api.printing import echo
from kerncast.cli import completing
from kerncast.cli.asking import answer_table, checked_problems, configs_option, problems_argument, read_problems
from kerncast.cli.views.output import assignments, json_option, print_json, table
from kerncast.errors import InvalidValue, NotFound
from kerncast.writing.terminal import known

if TYPE_CHECKING:
    from kerncast.device import Device
    from kerncast.models.answer import Answer
    from kerncast.models.model import Model
    from kerncast.op import Family
    from kerncast.space import Value
    from kerncast.store.store import Entry, Lookup


@click.command("predict")
@click.argument("model", metavar="MODEL|ID|OP", type=click.Path(path_type=Path), shell_complete=completing.models_and_ops)
@problems_argument
@click.option(
    "--family", metavar="NAME", shell_complete=completing.families, help="With OP: the family of the model in the store."
)
@click.option(
    "--device", metavar="NAME|TOML", shell_complete=completing.devices,
    help="With OP: the device of the model in the store. With MODEL: one of its devices, or another one, by name or as a "
    "TOML profile (`kerncast devices`).",
)  # fmt: skip
@click.option(
    "--store", metavar="DIR", type=click.Path(path_type=Path), help="The store to look in for OP or ID. [default: your own]"
)
@click.option(
    "--config",
    "config",
    metavar="NAME=VALUE|KERNEL",
    multiple=True,
    help="The config to predict; repeat for each parameter. For CK Tile: the name of the kernel.",
)
@configs_option
@json_option
def command(
    model: Path,
    problem: tuple[str, ...],
    family: str | None,
    device: str | None,
    store: Path | None,
    config: tuple[str, ...],
    configs: str | None,
    as_json: bool,
) -> None:
    """Predict how long a problem takes, with a 90 % interval; no device is needed.

    If the family has configs, name one with --config, or leave it out to predict the best one (`kerncast select`).
    A file of problems (.json or .parquet) gives a list; `config.*` columns of a parquet file are ignored. With OP, each
    problem is answered by the model of the store that covers it (`kerncast models --help`).

    A model of several devices (`train --pool`) also answers for a device that nobody measured: its numbers are enough. The
    interval is then wider, by how far these are from those of the measured devices.

    \b
    kerncast predict model M=128 N=1536 K=7168 dtype=fp8 layout=rcr
    kerncast predict model M=128 N=512 K=512 dtype=fp32 layout=rrr --config tile_m=64 --config tile_n=64 …
    kerncast predict exp_model func=exp dim2=1024 dim3=1024 dtype=bf16 buffer=l1 --json
    kerncast predict exp --device wormhole_b0 dim2=1024 dim3=1024 dtype=bf16 buffer=l1
    kerncast predict pooled --device mygpu.toml M=128 N=1536 K=7168 dtype=fp8 layout=rcr
    """
    from kerncast.models.answer import without_choice
    from kerncast.selecting.selector import Selector
    from kerncast.selecting.tiers.build import plain_tiers

    source = _Source.of(str(model), family, device, store)
    given, listed = read_problems(problem, source.family)
    chosen = _chosen(config, source.family)
    if chosen and configs is not None:
        raise InvalidValue("--config names one config and --configs several to choose from: leave one of them out")
    by_place: dict[int, Answer] = {}
    entries: dict[int, str] = {}
    for loaded, entry, places in source.parts(given):
        asked = checked_problems([source.whole(given[place]) for place in places], loaded, places, len(given))
        if source.on is not None and configs is not None:
            raise InvalidValue("--configs are chosen from on the model's own device: leave --device out")
        if chosen or not loaded.family.config.parameters or source.on is not None:
            found = [loaded.predict(values, chosen or None, device=source.on) for values in asked]
        else:
            # No tier is needed here, so none is built, and the answer comes at once.
            tiers = plain_tiers(loaded) if loaded.candidates.height else None
            found = Selector(loaded, tiers=tiers, tier="full", compile=False, configs=configs).select_many(asked, "full")
        by_place |= {place: without_choice(loaded.family, answer) for place, answer in zip(places, found, strict=True)}
        if entry is not None:
            entries |= dict.fromkeys(places, entry)
    answers = [by_place[place] for place in range(len(given))]
    if as_json:
        rows: list[Any] = [
            answer.as_json() | ({"entry": entries[place]} if place in entries else {}) for place, answer in enumerate(answers)
        ]
        print_json(rows if listed else rows[0])
    else:
        columns, cells, numbers = answer_table(answers, choice=False)
        cells = [[assignments(known(item.problem)), *row] for row, item in zip(cells, answers, strict=True)]
        table(("problem", *columns), cells, right=numbers)
        for said in dict.fromkeys(text for answer in answers for text in (answer.reason, answer.note) if text):
            echo(said)
        for entry in dict.fromkeys(entries.values()):
            echo(f"model: {entry}", err=True)
    if not all(answer.ok for answer in answers):
        raise SystemExit(1)


def _chosen(given: tuple[str, ...], family: Family) -> dict[str, Value]:
    """The config by its parameters, or by the name of its kernel."""
    from kerncast.cli.verbs.families import parse_assignments
    from kerncast.sweeping.kernels import reader

    if len(given) == 1 and "=" not in given[0]:
        return dict(reader(family)(given[0]).config)
    chosen = parse_assignments(given, dict(family.config.parameters))
    unknown = sorted(set(chosen) - set(family.config.parameters))
    if unknown:
        raise NotFound.named(f"config parameter of {family.id}", unknown[0], family.config.parameters)
    return chosen


@dataclass(frozen=True)
class _Source:
    """Where predictions come from: one model, or the store's models of an op."""

    family: Family
    model: Model | None
    lookup: Lookup | None
    on: Device | None = None
    """The device to predict for, if it is not the only one of the model."""

    @classmethod
    def of(cls, name: str, family: str | None, device: str | None, store: Path | None) -> _Source:
        from kerncast.models.model import Model
        from kerncast.registry import OPS
        from kerncast.store.store import Store

        if Path(name).exists() or not any(name in (op.name, *op.aliases) for op in OPS):
            if family is not None:
                raise InvalidValue(f"--family chooses a model of an op, but '{name}' is a model: leave it out")
            if store is not None and Path(name).exists():
                raise InvalidValue(f"--store is where an op or an id is looked up, but '{name}' is a folder: leave it out")
            from kerncast.api.results import model_of

            loaded = Model.load(name) if Path(name).exists() else model_of(name, store)
            return cls(loaded.family, loaded, None, loaded.asked_device(device))
        lookup = Store.open(store).lookup(name, family, device)
        if lookup.family is None:
            loaded = lookup.entries[0].load()  # says what is wrong with it
            return cls(loaded.family, loaded, None)
        return cls(lookup.family, None, lookup)

    def whole(self, values: dict[str, Any]) -> dict[str, Any]:
        """A problem with the parameters that the name of the op sets."""
        return values if self.lookup is None else self.lookup.whole(values)

    def parts(self, given: list[dict[str, Any]]) -> Iterator[tuple[Model, str | None, list[int]]]:
        """The models that answer, with the places of their problems."""
        if self.lookup is None:
            assert self.model is not None
            yield self.model, None, list(range(len(given)))
            return
        found: dict[str, tuple[Entry, list[int]]] = {}
        for place, values in enumerate(given):
            entry = self.lookup.nearest(values)
            found.setdefault(entry.id, (entry, []))[1].append(place)
        for name, (entry, places) in found.items():
            yield entry.load(), name, places
