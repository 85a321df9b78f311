"""`kerncast models`: the store."""

from __future__ import annotations

import sys
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Annotated, TypeAlias

from kerncast.app.api.showing import echo, echo_exactly, shown
from kerncast.app.cli.signals import polite_signals
from kerncast.app.cli.verb import group
from kerncast.app.cli.views import Json, draw, parse_assignments, print_json, problem_parameters, say, table
from kerncast.core import software as softwares
from kerncast.core.io.arguments import Help, named_values
from kerncast.core.io.terminal import TextTable
from kerncast.core.software import FRAMEWORK, parts, short_name
from kerncast.errors import BadFile
from kerncast.measuring.plan import Measuring
from kerncast.models.manifest import Range
from kerncast.models.model import Model
from kerncast.models.store.entry import Entry, shipped_entries
from kerncast.models.store.find import only_group
from kerncast.models.store.recheck import Finding, ModelCheck
from kerncast.models.store.store import Store
from kerncast.models.trust import list_path

StorePath: TypeAlias = Annotated[
    Path | None, Help("The store. [default: KERNCAST_STORE, else the one in the user's data directory]", metavar="DIR")
]
StoredModel: TypeAlias = Annotated[str, Help(metavar="MODEL", names="stored_models")]
COLUMNS = ("model", "op", "family", "device", "software", "added", "rows", "problems", "R²", "MAPE", "efficiency", "size")
MINOR = ("op", "problems", "R²", "rows", "added")
EXIT = {"fresh": 0, "drifted": 1, "cannot tell": 3}


@group("models")
def models_verb(*, store: StorePath = None, as_json: Json = False) -> None:
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
    record = entry.record
    called = entry.id if entry.shipped else "/".join(entry.id.rsplit("/", 2)[1:])
    return (
        called, record.op, record.family, record.devices,
        softwares.short(record.software), record.added[:10] or "with kerncast", f"{record.rows:,}", f"{record.problems:,}",
        _number(record.r2, "{:.4f}"), _number(record.mape, "{:.1%}"), _number(record.efficiency, "{:.1%}"), _size(record.bytes),
    )  # fmt: skip


def _number(value: float | None, form: str) -> str:
    return "-" if value is None else form.format(value)


def _size(count: int) -> str:
    return f"{count / 1e6:.1f} MB" if count >= 1e6 else f"{count / 1e3:.0f} kB"


@models_verb.verb("add")
def add(
    model: Annotated[Path, Help(metavar="MODEL", names="model_folders")],
    *,
    name: Annotated[
        str | None, Help("Keep it under this name, next to others for the same device and software.", metavar="NAME")
    ] = None,
    replace: Annotated[bool, Help("Replace the model that is there.")] = False,
    software: Annotated[
        Sequence[str], Help("Software it was trained on, if its data do not say: commit=3f2a91c.", metavar="NAME=VALUE")
    ] = (),
    trust: Annotated[bool, Help("Also trust it, as `kerncast models trust` does: a model from another machine.")] = False,
    store: StorePath = None,
    as_json: Json = False,
) -> None:
    """Copy a model directory into the store, whole or not at all.

    \b
    kerncast models add model
    kerncast models add --trust model        # trained on another machine, by you or by someone you trust
    """
    entry = Store.open(store).add(model, name=name, replace=replace, software=named_values(software, "software"), trust=trust)
    _tell(entry, "added and trusted" if trust else "added", as_json)


@models_verb.verb("trust")
def trust(
    model: StoredModel,
    *,
    revoke: Annotated[bool, Help("Take it off the list again.")] = False,
    store: StorePath = None,
    as_json: Json = False,
) -> None:
    """Allow a model that you did not train to run as compiled code.

    MODEL is a directory, or the id of a model in the store. Models that you train, and those that ship with kerncast, are
    trusted. Any other model runs in Python, with the same numbers but much slower. You trust the present contents of the
    files: if one of them changes, trust the model again. The list is `kerncast/trusted` in your data directory, or
    KERNCAST_TRUSTED.

    \b
    kerncast models trust model
    kerncast models trust gemm/cpu --revoke
    """
    loaded = Store.open(store).trust(model, revoke=revoke)
    digest, done = loaded.manifest.checksum, "no longer trusted" if revoke else "trusted"
    if as_json:
        print_json({"path": str(loaded.path), "digest": digest, "trusted": not revoke, "list": str(list_path())})
    else:
        echo(f"{done}: {loaded.path} ({digest})")


@models_verb.verb("slim")
def slim(
    model: Annotated[Path, Help(metavar="MODEL", names="models")],
    *,
    out: Annotated[Path, Help("The folder to write; it must not exist.", metavar="DIR", required=True)],
    as_json: Json = False,
) -> None:
    """Write a model with only what answers need: the same answers from a small part of the bytes.

    The forests are packed, so that numpy alone reads them: no LightGBM, no compiler. Left out are the out-of-fold predictions
    and the list of training problems, so a slim model cannot be continued or evaluated on unseen problems; keep the whole one
    for that.

    \b
    kerncast models slim model --out slim
    kerncast predict slim M=128 N=1536 K=7168 dtype=fp8
    """
    whole = Model.load(model)
    made = whole.slimmed(out)
    before, after = (sum(file.stat().st_size for file in item.path.iterdir()) for item in (whole, made))
    if as_json:
        print_json({"path": str(made.path), "bytes": after, "bytes_before": before, "checksum": made.manifest.checksum})
    else:
        echo(f"written {made.path}: {_size(after)}, from {_size(before)}")


@models_verb.verb("remove")
def remove(
    model: Annotated[str, Help(metavar="ID", names="stored_models")],
    *,
    store: StorePath = None,
    as_json: Json = False,
) -> None:
    """Remove a model from the store. ID is what `kerncast models` shows, or any unique part of it."""
    _tell(Store.open(store).remove(model), "removed", as_json)


@models_verb.verb("show")
def show(
    model: Annotated[str, Help(metavar="ID", names="stored_models")],
    *,
    store: StorePath = None,
    as_json: Json = False,
) -> None:
    """Show everything about one model in the store, and verify its checksums."""
    entry = Store.open(store).get(model)
    _show(entry, entry.load().manifest.hull, as_json)


@models_verb.verb("find")
def find(
    op: Annotated[str, Help(metavar="OP", names="ops")],
    problem: Annotated[Sequence[str], Help(metavar="[NAME=VALUE]...")] = (),
    *,
    family: Annotated[
        str | None, Help("Which family, when the store has several of the op.", metavar="FAMILY", names="families")
    ] = None,
    device: Annotated[
        str | None, Help("Which device (`local`: this machine), when the store has several.", metavar="NAME", names="devices")
    ] = None,
    software: Annotated[
        str | None, Help("A commit (or its first 7 digits), NAME=VALUE, or the full text.", metavar="TEXT")
    ] = None,
    name: Annotated[str | None, Help("Only the model with this name.", metavar="NAME")] = None,
    strict: Annotated[bool, Help("Refuse a model that was trained on other software.")] = False,
    store: StorePath = None,
    as_json: Json = False,
) -> None:
    """Print the path of the model to use for an op, found as `kerncast models --help` states.

    Parameters of the problem, some or all, choose among models of parts of the op. If several models remain that you
    named, or that are of different parts, they are listed, and none is chosen (exit code 2).

    \b
    kerncast select "$(kerncast models find gemm --device local)" M=300 N=500 K=700 dtype=fp32 layout=rrr
    kerncast models find reshard in_strategy=width out_strategy=height
    """
    found = only_group(op, family, device, software, name, strict, store=Store.open(store))
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
    from kerncast.models.limits.envelope import range_words

    covers = {name: range_words(seen) for name, seen in hull.items()}
    if as_json:
        print_json({**entry.as_json(), "covers": covers})
        return

    record = entry.record
    # A framework by its short name, anything else part by part.
    said = [
        short_name(text) if FRAMEWORK in (known := parts(text)) or not known
        else "; ".join(f"{name}: {known[name]}" for name in known)
        for text in record.software
    ]  # fmt: skip
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


@models_verb.verb("check")
def check(
    model: StoredModel,
    *,
    backend: Annotated[
        str | None, Help("What runs the kernels. [default: the first that knows the family]", metavar="NAME")
    ] = None,
    benchmark: Annotated[str | None, Help("An external benchmark, as for `kerncast collect`.", metavar="NAME|FILE")] = None,
    settings: Annotated[
        Sequence[str], Help("A setting of that benchmark. May be repeated.", metavar="NAME=VALUE", option="--set")
    ] = (),
    devices: Annotated[str, Help("Device indices: 0,1.", metavar="LIST")] = "0",
    sample: Annotated[int, Help("Vectors to measure again.", least=1)] = 96,
    seconds: Annotated[
        str | None, Help("Stop measuring after this long (90s, 10m), and decide by what was measured.", metavar="TIME")
    ] = None,
    cache: Annotated[
        str | None, Help("State of the caches; use that of the training data. [default: warm]", choices=("warm", "cold"))
    ] = None,
    max_shift: Annotated[float, Help("Allowed change of all times, and of a typical vector.", metavar="%")] = 10.0,
    max_choice: Annotated[float, Help("Allowed loss of mean efficiency.", metavar="%")] = 2.0,
    seed: Annotated[int, Help("Seed of the sample.", least=0)] = 0,
    store: StorePath = None,
    as_json: Json = False,
) -> None:
    """Measure a sample of the training data again, and say whether the model is still fresh or has drifted.

    MODEL is a directory, or the id of a model in the store. Exit code 0 when it is fresh, 1 when it has drifted, 3
    when the measurements cannot tell. A shift of all times is reported separately from choices that became worse.

    \b
    kerncast models check gemm/cpu
    kerncast models check quickstart/model --sample 400 --seconds 5m
    """
    with shown(plain=True) as progress, polite_signals() as stop:
        found = Store.open(store).check(
            model, measuring=Measuring(backend, benchmark, settings, devices, cache=cache), sample=sample, seconds=seconds,
            max_shift=max_shift, max_choice=max_choice, seed=seed, progress=progress, stop=stop,
        )  # fmt: skip
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
    say("", f"{found.verdict}: {'; '.join(found.reasons)}")
