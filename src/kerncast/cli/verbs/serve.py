"""`kerncast serve`."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import click

from kerncast.api.printing import echo, echo_exactly
from kerncast.cli import json_printed
from kerncast.cli.views.output import json_option
from kerncast.serving.settings import HOST, MAX_BATCH, MAX_BODY, PORT, TOKEN


@click.command("serve")
@click.argument("store", metavar="[STORE]", required=False, type=click.Path(path_type=Path))
@click.option("--host", metavar="ADDRESS", default=HOST, show_default=True,
              help="Where to listen. An address that other machines can reach needs a token.")  # fmt: skip
@click.option("--port", default=PORT, show_default=True, type=click.IntRange(0, 65535), help="The port; 0: any free one.")
@click.option("--token-file", type=click.Path(path_type=Path), metavar="FILE",
              help=f"A file with the token that clients must send (Authorization: Bearer …). [default: {TOKEN}]")  # fmt: skip
@click.option("--allow-host", multiple=True, metavar="NAME",
              help="A name that a proxy in front of this server may forward as Host. May be repeated.")  # fmt: skip
@click.option("--max-body", default=MAX_BODY, show_default=True, type=click.IntRange(min=1), metavar="BYTES",
              help="The longest request.")  # fmt: skip
@click.option("--max-batch", default=MAX_BATCH, show_default=True, type=click.IntRange(min=1), metavar="N",
              help="The most questions in one request.")  # fmt: skip
@click.option("--rate", type=click.FloatRange(min=0), metavar="N",
              help="Requests per second of one client; 0: no limit. [default: no limit on loopback, else 1,000]")  # fmt: skip
@click.option("--software", metavar="NAME", help="For requests that name none: vllm, vllm==0.24.0, a commit.")
@click.option("--strict", is_flag=True, help="Refuse a request if no model was trained on the software that it names.")
@click.option("--no-compile", is_flag=True, help="Answer in Python even where there is a C compiler.")
@json_option
def command(store: Path | None, as_json: bool, no_compile: bool, **options: Any) -> None:
    """Answer questions over HTTP, with the models of a store and those that ship with kerncast.

    STORE is a store, or the folder of one model. [default: KERNCAST_STORE, else your own]
    The API: POST /v1/query (what `kerncast query` takes, one object or a list), /v1/select, /v1/estimate,
    GET /v1/models, /healthz, /metrics (Prometheus) and /openapi.json. The server notices within seconds when you add,
    replace, remove or trust a model, without a restart. It compiles shipped models in the background, for the devices that
    clients ask about; until then Python answers. Models that you have neither trained nor trusted run in Python and are
    never compiled. After Ctrl-C or SIGTERM the server finishes its requests and ends.

    \b
    kerncast serve
    curl http://127.0.0.1:8321/v1/query --json '{"op": "gemm", "device": "b200", "M": 128, "N": 1536, "K": 7168,
                                                 "dtype": "fp8"}'
    kerncast serve /srv/models --host 0.0.0.0 --token-file /run/secrets/token
    """
    import json

    from kerncast.cli.signals import polite_signals
    from kerncast.serving.server import serve

    def ready(url: str, models: int) -> None:
        if as_json:
            echo_exactly(json.dumps({"url": url, "models": models}))  # in one line, for a program that goes on reading
            json_printed.set(True)
        else:
            echo(f"serving {models:,} models at {url} (Ctrl-C ends it)")

    with polite_signals() as stop:
        serve(store, compile=not no_compile, progress=True, stop=stop, ready=ready, **options)
