"""`kerncast models`: the store."""

from __future__ import annotations

import sys
from pathlib import Path
from typing import TYPE_CHECKING, Any

import click

from kerncast.api.printing import echo, echo_exactly
from kerncast.cli import completing
from kerncast.cli.options import in_options
from kerncast.cli.stored import model_argument, store_of_model
from kerncast.cli.views.output import draw, json_option, print_json, table
from kerncast.errors import BadFile, InvalidValue
from kerncast.writing.terminal import TextTable

if TYPE_CHECKING:
    from collections.abc import Mapping

    from kerncast.models.manifest import Range
    from kerncast.store.drift import Finding
    from kerncast.store.recheck import ModelCheck
    from kerncast.store.store import Entry

store_option = click.option(
    "--store",
    type=click.Path(path_type=Path),
    metavar="DIR",
    help="The store. [default: KERNCAST_STORE, else the one in the user's data directory]",
)
COLUMNS = ("model", "op", "family", "device", "software", "added", "rows", "problems", "R²", "MAPE", "efficiency", "size")
MINOR = ("op", "problems", "R²", "rows", "added")
EXIT = {"fresh": 0, "drifted": 1, "cannot tell": 3}


@click.group("models", invoke_without_command=True)
@store_option
@json_option
@click.pass_context
def command(context: click.Context, store: Path | None, as_json: bool) -> None:
    """List the models in the store, or manage them: add, slim, trust, remove, show, find, check.

    A model is found by op, family, device, coverage and software. First come models that cover the problem: what
    they were trained with includes it. Of these, one that was trained on exactly the software asked for comes
    first. Else one of other software is used, with a warning that names it (an error with --strict). If several
    remain, one that you did not name comes before named ones, then the newest. A model of another device or family
    is never used; a profile's aliases are the same device. Models that come with kerncast (`shipped/…`) are asked after
    those of the store.

    \b
    kerncast models
    kerncast models add quickstart/model
    kerncast models find gemm --device local --software 3f2a91c
    kerncast models check gemm/cpu --sample 200
    """
    if context.invoked_subcommand is not None:
        if store is not None or as_json:
            raise InvalidValue(
                f"options of `kerncast models {context.invoked_subcommand}` come after its name: move them there"
            )
        return
    from kerncast.store.shipped import shipped_entries
    from kerncast.store.store import Store

    opened = Store.open(store)
    entries, damaged = opened.survey()
    shipped = shipped_entries() if store is None else []
    if as_json:
        print_json([entry.as_json() for entry in (*entries, *shipped)])
    else:
        if not entries and not damaged:
            echo(f"the store {opened.path} is empty: add a model with `kerncast models add MODEL`")
        if entries or shipped:
            lines = [_line(entry) for entry in (*entries, *shipped)]
            draw(TextTable(COLUMNS, lines, right=COLUMNS[6:], minor=MINOR))
    if damaged:  # reported after the others are listed
        raise BadFile("; ".join(map(str, damaged)))


def _line(entry: Entry) -> tuple[str | tuple[str, ...], ...]:
    from kerncast.models import software

    record = entry.record
    called = entry.id if entry.shipped else "/".join(entry.id.rsplit("/", 2)[1:])
    return (
        called, record.op, record.family, record.devices,
        software.short(record.software), record.added[:10] or "with kerncast", f"{record.rows:,}", f"{record.problems:,}",
        _number(record.r2, "{:.4f}"), _number(record.mape, "{:.1%}"), _number(record.efficiency, "{:.1%}"), _size(record.bytes),
    )  # fmt: skip


def _number(value: float | None, form: str) -> str:
    return "-" if value is None else form.format(value)


def _size(count: int) -> str:
    return f"{count / 1e6:.1f} MB" if count >= 1e6 else f"{count / 1e3:.0f} kB"


@command.command("add")
@click.argument("model", metavar="MODEL", type=click.Path(path_type=Path), shell_complete=completing.model_folders)
@click.option("--name", metavar="NAME", help="Keep it under this name, next to others for the same device and software.")
@click.option("--replace", "replace", is_flag=True, help="Replace the model that is there.")
@click.option(
    "--software",
    multiple=True,
    metavar="NAME=VALUE",
    help="Software it was trained on, if its data do not say: commit=3f2a91c.",
)
@click.option("--trust", is_flag=True, help="Also trust it, as `kerncast models trust` does: a model from another machine.")
@store_option
@json_option
def add(
    model: Path, name: str | None, replace: bool, software: tuple[str, ...], trust: bool, store: Path | None, as_json: bool
) -> None:
    """Copy a model directory into the store, whole or not at all.

    \b
    kerncast models add model
    kerncast models add --trust model        # trained on another machine, by you or by someone you trust
    """
    from kerncast.api.results import named_values
    from kerncast.store.store import Store

    entry = Store.open(store).add(model, name=name, replace=replace, software=named_values(software, "software"), trust=trust)
    _tell(entry, "added and trusted" if trust else "added", as_json)


@command.command("trust")
@click.argument("model", metavar="MODEL", shell_complete=completing.stored_models)
@click.option("--revoke", is_flag=True, help="Take it off the list again.")
@store_option
@json_option
def trust(model: str, revoke: bool, store: Path | None, as_json: bool) -> None:
    """Allow a model that you did not train to run as compiled code.

    MODEL is a directory, or the id of a model in the store. Models that you train, and those that ship with kerncast, are
    trusted. Any other model runs in Python, with the same numbers but much slower. You trust the present contents of the
    files: if one of them changes, trust the model again. The list is `kerncast/trusted` in your data directory, or
    KERNCAST_TRUSTED.

    \b
    kerncast models trust model
    kerncast models trust gemm/cpu --revoke
    """
    from kerncast.models.trust import list_path
    from kerncast.store.store import Store

    loaded = Store.open(store).trust(model, revoke=revoke)
    digest, done = loaded.manifest.checksum, "no longer trusted" if revoke else "trusted"
    if as_json:
        print_json({"path": str(loaded.path), "digest": digest, "trusted": not revoke, "list": str(list_path())})
    else:
        echo(f"{done}: {loaded.path} ({digest})")


@command.command("slim")
@model_argument()
@store_of_model
@click.option(
    "--out", required=True, type=click.Path(path_type=Path), metavar="DIR", help="The folder to write; it must not exist."
)
@json_option
def slim(model: Path, out: Path, as_json: bool) -> None:
    """Write a model with only what answers need: the same answers from a small part of the bytes.

    The forests are packed, so that numpy alone reads them: no LightGBM, no compiler. Left out are the out-of-fold predictions
    and the list of training problems, so a slim model cannot be continued or evaluated on unseen problems; keep the whole one
    for that.

    \b
    kerncast models slim model --out slim
    kerncast predict slim M=128 N=1536 K=7168 dtype=fp8
    """
    from kerncast.models.model import Model

    whole = Model.load(model)
    made = whole.slimmed(out)
    before, after = (sum(file.stat().st_size for file in item.path.iterdir()) for item in (whole, made))
    if as_json:
        print_json({"path": str(made.path), "bytes": after, "bytes_before": before, "checksum": made.manifest.checksum})
    else:
        echo(f"written {made.path}: {_size(after)}, from {_size(before)}")


@command.command("remove")
@click.argument("model", metavar="ID", shell_complete=completing.stored_models)
@store_option
@json_option
def remove(model: str, store: Path | None, as_json: bool) -> None:
    """Remove a model from the store. ID is what `kerncast models` shows, or any unique part of it."""
    from kerncast.store.store import Store

    _tell(Store.open(store).remove(model), "removed", as_json)


@command.command("show")
@click.argument("model", metavar="ID", shell_complete=completing.stored_models)
@store_option
@json_option
def show(model: str, store: Path | None, as_json: bool) -> None:
    """Show everything about one model in the store, and verify its checksums."""
    from kerncast.store.store import Store

    entry = Store.open(store).get(model)
    _show(entry, entry.load().manifest.hull, as_json)


@command.command("find")
@click.argument("op", metavar="OP", shell_complete=completing.ops)
@click.argument("problem", metavar="[NAME=VALUE]...", nargs=-1)
@click.option(
    "--family", metavar="FAMILY", shell_complete=completing.families, help="Which family, when the store has several of the op."
)
@click.option(
    "--device",
    metavar="NAME",
    shell_complete=completing.devices,
    help="Which device (`local`: this machine), when the store has several.",
)
@click.option("--software", metavar="TEXT", help="A commit (or its first 7 digits), NAME=VALUE, or the full text.")
@click.option("--name", metavar="NAME", help="Only the model with this name.")
@click.option("--strict", is_flag=True, help="Refuse a model that was trained on other software.")
@store_option
@json_option
def find(op: str, problem: tuple[str, ...], store: Path | None, as_json: bool, **wanted: Any) -> None:
    """Print the path of the model to use for an op, found as `kerncast models --help` states.

    Parameters of the problem, some or all, choose among models of parts of the op. If several models remain that you
    named, or that are of different parts, they are listed, and none is chosen (exit code 2).

    \b
    kerncast select "$(kerncast models find gemm --device local)" M=300 N=500 K=700 dtype=fp32 layout=rrr
    kerncast models find reshard in_strategy=width out_strategy=height
    """
    from kerncast.cli.asking import problem_parameters
    from kerncast.cli.verbs.families import parse_assignments
    from kerncast.store.find import only_group
    from kerncast.store.store import Store

    found = only_group(op, **wanted, store=Store.open(store))
    parameters = {} if found.family is None else problem_parameters(found.family)
    entry = found.only(parse_assignments(problem, parameters))
    if as_json:
        print_json(entry.as_json())
        return
    if entry.warning:
        echo(f"! {entry.warning}", err=True)
    echo(entry.path) if sys.stdout.isatty() else echo_exactly(str(entry.path))


def _tell(entry: Entry, what: str, as_json: bool) -> None:
    if as_json:
        print_json(entry.as_json())
    else:
        echo(f"{what} {entry.id}")


def _show(entry: Entry, hull: Mapping[str, Range], as_json: bool) -> None:
    from kerncast.models.limits.trained import range_words

    covers = {name: range_words(seen) for name, seen in hull.items()}
    if as_json:
        print_json({**entry.as_json(), "covers": covers})
        return

    record = entry.record
    said = [_said(text) for text in record.software]
    lines: list[tuple[str, str]] = [
        ("model", entry.id), ("kind", record.kind), ("devices", ", ".join(record.devices)),
        ("software", "; ".join(said) or "not recorded"), ("dtypes", ", ".join(record.dtypes)),
        ("trained on", f"{record.rows:,} vectors of {record.problems:,} problems"), ("added", record.added or "with kerncast"),
        ("covers", "; ".join(f"{name}: {words}" for name, words in covers.items()) or "not recorded"),
        ("R²", _number(record.r2, "{:.4f}")), ("MAPE", _number(record.mape, "{:.2%}")),
        ("efficiency", _number(record.efficiency, "{:.2%}")), ("size", _size(record.bytes)), ("path", str(entry.path)),
        *record.origin.items(),
    ]  # fmt: skip
    table(("what", "value"), lines)


def _said(text: str) -> str:
    """The software of rows: a framework by its short name, anything else part by part."""
    from kerncast.software import FRAMEWORK, parts, short_name

    known = parts(text)
    return short_name(text) if FRAMEWORK in known or not known else "; ".join(f"{name}: {known[name]}" for name in known)


@command.command("check")
@click.argument("model", metavar="MODEL", shell_complete=completing.stored_models)
@click.option("--backend", metavar="NAME", help="What runs the kernels. [default: the first that knows the family]")
@click.option("--benchmark", metavar="NAME|FILE", help="An external benchmark, as for `kerncast collect`.")
@click.option("--set", multiple=True, metavar="NAME=VALUE", help="A setting of that benchmark. May be repeated.")
@click.option("--devices", default="0", show_default=True, metavar="LIST", help="Device indices: 0,1.")
@click.option("--sample", default=96, show_default=True, type=click.IntRange(min=1), help="Vectors to measure again.")
@click.option("--seconds", metavar="TIME", help="Stop measuring after this long (90s, 10m), and decide by what was measured.")
@click.option(
    "--cache", type=click.Choice(["warm", "cold"]), help="State of the caches; use that of the training data. [default: warm]"
)
@click.option(
    "--max-shift", default=10.0, show_default=True, metavar="%", help="Allowed change of all times, and of a typical vector."
)
@click.option("--max-choice", default=2.0, show_default=True, metavar="%", help="Allowed loss of mean efficiency.")
@click.option("--seed", default=0, show_default=True, type=click.IntRange(min=0), help="Seed of the sample.")
@store_option
@json_option
def check(model: str, store: Path | None, as_json: bool, **options: Any) -> None:
    """Measure a sample of the training data again, and say whether the model is still fresh or has drifted.

    MODEL is a directory, or the id of a model in the store. Exit code 0 when it is fresh, 1 when it has drifted, 3
    when the measurements cannot tell. A shift of all times is reported separately from choices that became worse.

    \b
    kerncast models check gemm/cpu
    kerncast models check quickstart/model --sample 400 --seconds 5m
    """
    from kerncast.api.showing import shown
    from kerncast.cli.signals import polite_signals
    from kerncast.store.store import Store

    with shown(plain=True) as progress, polite_signals() as stop:
        found = Store.open(store).check(model, progress=progress, stop=stop, **options)
    if as_json:
        print_json(found.as_json())
    else:
        _show_finding(found)
    if EXIT[found.finding.verdict]:
        raise SystemExit(EXIT[found.finding.verdict])


def _show_finding(checked: ModelCheck) -> None:
    found: Finding = checked.finding
    lines = [("vectors measured again", f"{found.vectors:,} of {found.problems:,} problems, {found.failures:,} fail now")]
    if found.shift is not None and found.movement is not None:
        lines += [
            ("all times", f"{found.shift.value:.3f} x ({found.shift.lower:.3f} to {found.shift.upper:.3f})"),
            (
                "a typical vector, relative to that",
                f"{found.movement.value:.1%} ({found.movement.lower:.1%} to {found.movement.upper:.1%})",
            ),
        ]
    if found.efficiency_change is not None:
        change = found.efficiency_change
        lines += [
            ("efficiency of the choices", f"then {found.efficiency_then:.1%}, now {found.efficiency_now:.1%}"),
            ("change", f"{change.value:+.1%} ({change.lower:+.1%} to {change.upper:+.1%})"),
        ]
    if found.rank_correlation is not None:
        lines.append(("order of configs, then and now", f"rank correlation {found.rank_correlation:.3f}"))
    lines.append(("disturbed samples", f"{found.disturbed:.1%}"))
    table(("what", "value"), lines)
    if checked.software_then and not set(checked.software_now) <= set(checked.software_then):
        echo(f"! trained on {'; '.join(checked.software_then)}; this is {'; '.join(checked.software_now)}")
    said = in_options("; ".join(found.reasons), click.get_current_context().command)
    echo("", f"{found.verdict}: {said}")
