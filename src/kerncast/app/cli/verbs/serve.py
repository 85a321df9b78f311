"""`kerncast serve`."""

from __future__ import annotations

import json
from collections.abc import Sequence
from pathlib import Path
from typing import Annotated

from kerncast.app.api.showing import echo, echo_exactly
from kerncast.app.cli import json_printed
from kerncast.app.cli.signals import polite_signals
from kerncast.app.cli.verb import VerbCall, verb
from kerncast.app.cli.views import Json
from kerncast.app.serve.server import PORT, explore, serve
from kerncast.core.io.arguments import Help
from kerncast.errors import InvalidValue


@verb("serve", serve)
def serve_verb(
    call: VerbCall,
    paths: Annotated[Sequence[Path], Help(metavar="[PATH|ID...]", names="models_and_data")] = (),
    *,
    open_page: Annotated[
        bool, Help("Show models, datasets and running sweeps on a page in the browser instead.", option="--open")
    ] = False,
    browser: Annotated[bool, Help("With `open_page`: print the address, and do not open a browser.")] = True,
    port: Annotated[
        int | None,
        Help(f"The port; 0: any free one. [default: {PORT:,}; with `open_page` any free one]".replace(",", ""), least=0),
    ] = None,
    as_json: Json = False,
) -> None:
    """Answer questions over HTTP, with the models of a store and those that ship with kerncast.

    PATH is a store, or the folder of one model. [default: KERNCAST_STORE, else your own]
    The API: POST /v1/query (a JSON request as `kerncast predict` takes it, one object or a list), /v1/select, /v1/estimate,
    GET /v1/models, /healthz, /metrics (Prometheus) and /openapi.json. The server notices within seconds when you add,
    replace, remove or trust a model, without a restart. It compiles shipped models in the background, for the devices that
    clients ask about; until then Python answers. Models that you have neither trained nor trusted run in Python and are
    never compiled. After Ctrl-C or SIGTERM the server finishes its requests and ends.

    With --open, PATH is a model, a dataset or a store, and ID a model of your store, or one that ships with kerncast. Give a
    dataset together with its models to judge them on it. For a model the page shows the ranked configs of a problem, times with
    their intervals, the roofline, how the choice changes with one size or two, the reasons, similar measured problems, and
    other devices. For a dataset it shows problems, statuses, noise, and where a model does worst. For a running sweep it shows
    the progress. Only this machine can reach the page, and the page loads nothing from other servers.

    \b
    kerncast serve
    curl http://127.0.0.1:8321/v1/query --json '{"op": "gemm", "device": "b200", "M": 128, "N": 1536, "K": 7168,
                                                 "dtype": "fp8"}'
    kerncast serve /srv/models --host 0.0.0.0 --token-file /run/secrets/token
    kerncast serve shipped/gemm-vllm --open
    kerncast serve mine model --open --no-browser --port 8400
    """

    def ready(url: str, models: int = 0) -> None:
        if as_json:
            # In one line, for a program that goes on reading.
            echo_exactly(json.dumps({"url": url} if open_page else {"url": url, "models": models}))
            json_printed.set(True)
        else:
            echo(f"look at {url} (Ctrl-C ends it)" if open_page else f"serving {models:,} models at {url} (Ctrl-C ends it)")

    if open_page:
        call.refuse_given("is about the API, and --open shows a page")
        if not paths:
            raise InvalidValue("--open needs the PATH of a model, a dataset or a store to look at")
        with polite_signals() as stop:
            explore(paths, port=port or 0, browser=browser, progress=True, stop=stop, ready=ready)
        return
    if len(paths) > 1 or not browser:
        raise InvalidValue("several paths and --no-browser are for the page: add --open, or serve one store")
    with polite_signals() as stop:
        call(store=paths[0] if paths else None, port=PORT if port is None else port, progress=True, stop=stop, ready=ready)
