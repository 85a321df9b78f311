"""The data-budget curves as tables."""

from __future__ import annotations

from typing import Any

import click

from kerncast.cli.views.output import table


def show_budget(budget: dict[str, Any]) -> None:
    """How much must be measured, three ways."""
    click.echo()
    columns = ("problems", "vectors", "efficiency", "95 % interval", "P10")
    lines = [
        (f"{p['problems']:,}", f"{p['vectors']:,}", f"{p['efficiency_mean']:.2%}", f"{p['lower']:.2%} to {p['upper']:.2%}",
         f"{p['efficiency_p10']:.2%}")
        for p in budget["problems"]
    ]  # fmt: skip
    table(columns, lines, "efficiency on other problems, by number of problems measured", right=columns)
    columns = ("configs per problem", "vectors", "efficiency", "95 % interval", "P10")
    lines = [
        (f"{p['share']:.0%}", f"{p['vectors']:,}", f"{p['efficiency_mean']:.2%}", f"{p['lower']:.2%} to {p['upper']:.2%}",
         f"{p['efficiency_p10']:.2%}")
        for p in budget["configs"]
    ]  # fmt: skip
    click.echo()
    table(columns, lines, "by share of each problem's configs measured", right=columns)
    how = ("vectors", "chosen at random", "chosen actively")
    grown = [(f"{p['vectors']:,}", f"{p['random']:.2%}", f"{p['active']:.2%}") for p in budget["active"]]
    click.echo()
    table(how, grown, "by how the vectors are chosen", right=how)
