"""`kerncast explore`."""

from __future__ import annotations

import json
from pathlib import Path

import click

from kerncast.api.printing import echo, echo_exactly
from kerncast.cli import completing
from kerncast.cli.stored import MODEL_OR_DATA
from kerncast.cli.views.output import json_option


@click.command("explore")
@click.argument("paths", metavar="PATH|ID...", nargs=-1, required=True, type=MODEL_OR_DATA, shell_complete=completing.models)
@click.option("--port", default=0, show_default=True, type=click.IntRange(0, 65535), help="The port; 0: any free one.")
@click.option("--no-browser", is_flag=True, help="Print the address, and do not open a browser.")
@json_option
def command(paths: tuple[Path, ...], port: int, no_browser: bool, as_json: bool) -> None:
    """Look at models and datasets on a page in the browser.

    PATH is a model, a dataset or a store. ID is a model of your store, or one that ships with kerncast. Give a dataset
    together with its models to judge them on it. For a model the page shows the ranked configs of a problem, times with
    their intervals, the roofline, how the choice changes with one size or two, the reasons, similar measured problems, and
    other devices. For a dataset it shows problems, statuses, noise, and where a model does worst. For a running sweep it
    shows the progress.

    Only this machine can reach the page, and the page loads nothing from other servers. Ctrl-C ends it.

    \b
    kerncast explore shipped/gemm-vllm
    kerncast explore model
    kerncast explore mine model --no-browser --port 8400
    """
    from kerncast.cli.signals import polite_signals
    from kerncast.serving.server import explore

    def ready(url: str) -> None:
        if as_json:
            echo_exactly(json.dumps({"url": url}))
        else:
            echo(f"look at {url} (Ctrl-C ends it)")

    with polite_signals() as stop:
        explore(paths, port=port, browser=not no_browser, progress=True, stop=stop, ready=ready)
