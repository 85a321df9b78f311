"""How predictions are shown: facts for one, a table for several, bars for several devices."""

from __future__ import annotations

from collections.abc import Sequence
from typing import TYPE_CHECKING

import click

from kerncast.app.api.printing import echo
from kerncast.app.cli.options import in_options
from kerncast.app.cli.views.output import assignments, duration, table
from kerncast.core.io.terminal import known

if TYPE_CHECKING:
    from kerncast.answering.prediction import Prediction


def show(found: Sequence[Prediction], listed: bool) -> None:
    """Print predictions: one as lines of names and texts, several as a table with what is to be said below it."""
    if not listed and len(found) == 1:
        width = max(len(name) for name, _ in found[0].lines())
        for name, text in found[0].lines():
            echo(f"{name:<{width}}  {in_options(text, click.get_current_context().command)}")
        return
    _table([(assignments(known(item.problem)), item) for item in found], "problem")
    _say(found)


def show_devices(found: Sequence[Prediction]) -> None:
    """Print one problem on several devices, the fastest first."""
    first = found[0]
    echo(f"{first.op} {assignments(known(first.problem))}")
    _table([(item.device, item) for item in found], "device")
    _say(found)


def _table(rows: Sequence[tuple[str, Prediction]], what: str) -> None:
    columns = (what, "status", "time", "90 % interval", "roofline", "basis", "config")
    cells = [
        (label, item.status, duration(item.time_ns), _between(item), duration(item.roofline_ns), item.model or item.basis,
         assignments(known(item.config)) if item.config else "-")
        for label, item in rows
    ]  # fmt: skip
    table(columns, cells, right=("time", "90 % interval", "roofline"))


def _between(item: Prediction) -> str:
    return "-" if item.lower_ns is None or item.upper_ns is None else f"{duration(item.lower_ns)} to {duration(item.upper_ns)}"


def _say(found: Sequence[Prediction]) -> None:
    said = []
    for item in found:
        if item.filled:
            said.append(f"filled in, for the model saw no other value: {assignments(known(item.filled))}")
        if item.card and item.basis == "roofline":
            said.append(item.card)
        said += [text for text in (item.reason, item.note) if text]
    for text in dict.fromkeys([*said, *_cards(found)]):
        echo(in_options(text, click.get_current_context().command))


def _cards(found: Sequence[Prediction]) -> list[str]:
    """A line for each model, with its error on each of the devices that it was asked about."""
    own: dict[str, dict[str, None]] = {}
    for item in found:
        if item.card and item.basis == "model":
            card, on, error = item.card.rpartition(" (") if item.card.endswith(f" on {item.device})") else (item.card, "", "")
            errors = own.setdefault(f"{item.model}: {card}", {})
            if on:
                errors[error.removesuffix(")")] = None
    return [f"{card} ({', '.join(errors)})" if errors else card for card, errors in own.items()]
