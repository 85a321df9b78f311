"""The options of verbs that may work on a Ray cluster."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any, TypeVar

import click

_Command = TypeVar("_Command", bound=Callable[..., Any])


def on_ray_options(what: str) -> Callable[[_Command], _Command]:
    """`--on` and `--address`; `what` says what a cluster does for this verb."""

    def add(command: _Command) -> _Command:
        address = click.option(
            "--address",
            metavar="HOST:PORT",
            help="With --on ray: the head of the cluster. [default: RAY_ADDRESS, or the cluster that runs on this machine, or "
            "a new one of this machine alone]",
        )
        on = click.option(
            "--on", type=click.Choice(["local", "ray"]), default="local", show_default=True, help=f"Where to work. ray: {what}."
        )
        return on(address(command))

    return add
