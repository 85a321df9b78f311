"""`kerncast.serving.serve`: run the server until it is told to stop."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from importlib.util import find_spec
from pathlib import Path
from typing import Annotated

from kerncast.api.showing import Wanted, shown
from kerncast.backends.cpu.build import find_compiler
from kerncast.data.dataset import MANIFEST as DATASET
from kerncast.errors import InvalidValue, NotFound
from kerncast.models.model import is_model
from kerncast.serving.settings import HOST, MAX_BATCH, MAX_BODY, PORT, TOKEN, Settings, read_token
from kerncast.serving.sources import Sources
from kerncast.serving.steady import steady
from kerncast.store.store import Store
from kerncast.writing.help import Help

NEEDED = ("starlette", "uvicorn")
NO_COMPILER = (
    "there is no C compiler here (gcc, clang, or what CC names), so Python answers, which takes tens of milliseconds for one "
    "question: install one and start again"
)


def serve(
    store: Store | str | Path | None = None,
    *,
    host: Annotated[
        str, Help("Where to listen. An address that other machines can reach needs a token.", metavar="ADDRESS")
    ] = HOST,
    port: int = PORT,
    token_file: Annotated[
        str | Path | None,
        Help(f"A file with the token that clients must send (Authorization: Bearer …). [default: {TOKEN}]", metavar="FILE"),
    ] = None,
    allow_host: Annotated[
        Sequence[str], Help("A name that a proxy in front of this server may forward as Host. May be repeated.", metavar="NAME")
    ] = (),
    max_body: Annotated[int, Help("The longest request.", metavar="BYTES", least=1)] = MAX_BODY,
    max_batch: Annotated[int, Help("The most questions in one request.", metavar="N", least=1)] = MAX_BATCH,
    rate: Annotated[
        float | None,
        Help(
            "Requests per second of one client; 0: no limit. [default: no limit on loopback, else 1,000]", metavar="N", least=0
        ),
    ] = None,
    software: Annotated[str | None, Help("For requests that name none: vllm, vllm==0.24.0, a commit.", metavar="NAME")] = None,
    strict: Annotated[bool, Help("Refuse a request if no model was trained on the software that it names.")] = False,
    compiled: Annotated[bool, Help("Answer in Python even where there is a C compiler.", option="--no-compile")] = True,
    progress: Wanted = "auto",
    stop: Callable[[], bool] | None = None,
    ready: Callable[[str, int], None] = lambda url, models: None,
) -> None:
    """Answer queries over HTTP from a store (yours, unless one is named) or a model, until Ctrl-C or SIGTERM.

    On an address that other machines can reach, a token is required, from `token_file` or the environment variable
    KERNCAST_TOKEN. `allow_host` are names that a proxy may forward. `rate` counts requests a second of one client, 0 means
    any number. `stop` is asked several times a second whether to end, in place of signals; `ready` is told the address and
    the number of models once connections are accepted.
    """
    refuse_if_missing()
    from kerncast.serving.app import create_app
    from kerncast.serving.running import run

    settings = Settings(host, port, read_token(token_file), tuple(allow_host), max_body, max_batch, rate,
                        software=software, strict=strict)  # fmt: skip
    with shown(progress) as show:
        sources = opened(store, compile=compiled)
        for sentence in sources.problems:
            show.say(sentence)
        if compiled and find_compiler() is None:
            show.say(NO_COMPILER)
    with steady():
        run(create_app(sources, settings), settings, stop=stop, ready=lambda url: ready(url, len(sources.models())))


def opened(given: Store | str | Path | None, *, compile: bool = True) -> Sources:
    """What to serve: a store, or the model or dataset at a path."""
    if given is None or isinstance(given, Store):
        return Sources.open(given, compile=compile)
    path = Path(given)
    if not path.is_dir():
        what = "is a file, not a directory" if path.exists() else "does not exist"
        raise InvalidValue(
            f"the store {path} {what}: name a store (`kerncast models add MODEL --store DIR` makes one) or a model"
        )
    if is_model(path) or (path / DATASET).is_file():
        return Sources.open(paths=[path], compile=compile)
    return Sources.open(path, compile=compile)


def refuse_if_missing() -> None:
    """Refuse to serve without the packages of the extra `serve`."""
    missing = [name for name in NEEDED if find_spec(name) is None]
    if missing:
        raise NotFound.package("serving", " and ".join(missing), "serve")
