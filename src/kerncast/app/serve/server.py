"""`kerncast.app.serve.serve`, `explore` and `watched`: run a server until it is told to stop."""

from __future__ import annotations

import contextlib
import logging
import os
import sys
import threading
import webbrowser
from collections.abc import Callable, Iterator, Sequence
from importlib.util import find_spec
from pathlib import Path
from typing import Annotated

from kerncast.app.api.showing import Wanted, shown
from kerncast.app.serve.settings import HOST, MAX_BATCH, MAX_BODY, PORT, TOKEN, Settings, read_token
from kerncast.app.serve.sources import Sources
from kerncast.core.io.arguments import Help
from kerncast.core.progress import QUIET, Progress
from kerncast.data.dataset import MANIFEST as DATASET
from kerncast.errors import InvalidValue, NotFound
from kerncast.measuring.backends.cpu.build import find_compiler
from kerncast.models.model import is_model
from kerncast.models.store.store import Store

NEEDED = ("starlette", "uvicorn")
NO_COMPILER = (
    "there is no C compiler here (gcc, clang, or what CC names), so Python answers, which takes tens of milliseconds for one "
    "question: install one and start again"
)
# How often to look whether a sweep has begun its dataset, and how long its page may take to end with it.
LOOK_SECONDS, END_SECONDS = 0.1, 10.0


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
    from kerncast.app.serve.app import create_app
    from kerncast.app.serve.running import run

    settings = Settings(host, port, read_token(token_file), tuple(allow_host), max_body, max_batch, rate,
                        software=software, strict=strict)  # fmt: skip
    with shown(progress) as show:
        sources = opened(store, compile=compiled)
        for sentence in sources.problems:
            show.say(sentence)
        if compiled and find_compiler() is None:
            show.say(NO_COMPILER)
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


def explore(
    paths: str | Path | Sequence[str | Path],
    *,
    port: int = 0,
    browser: bool = True,
    progress: Wanted = "auto",
    stop: Callable[[], bool] | None = None,
    ready: Callable[[str], None] = lambda url: None,
) -> None:
    """Show models and datasets on a page of this machine, until Ctrl-C: several paths for a dataset with its models.

    Only this machine can reach the page. It is opened in a browser if there is one. `ready` is told its address; `stop` is
    asked several times a second whether to end, in place of signals.
    """
    refuse_if_missing()
    given = [paths] if isinstance(paths, str | Path) else list(paths)
    if not given:
        raise InvalidValue("`paths` is empty: name a model or a dataset to look at")
    from kerncast.app.serve.app import create_app
    from kerncast.app.serve.running import run

    settings = Settings(HOST, port)
    with shown(progress) as show:
        show.stage("opening " + ", ".join(map(str, given)))
        sources = Sources.open(paths=given, compile=False, progress=show)
    for name in sources.datasets():
        sources.dataset(name).refuse_if_empty()

    def begun(url: str) -> None:
        ready(url)
        if browser:
            open_browser(url)

    run(create_app(sources, settings), settings, stop=stop, ready=begun, log_level=logging.WARNING)


def has_display() -> bool:
    """Whether a browser would have a window. One in the terminal would take the place of what is printed there."""
    return sys.platform in ("darwin", "win32") or bool(os.environ.get("DISPLAY") or os.environ.get("WAYLAND_DISPLAY"))


def open_browser(url: str) -> bool:
    """Open the page in a browser, if there is one."""
    if not has_display():
        return False
    with contextlib.suppress(webbrowser.Error):
        return webbrowser.open(url)
    return False


@contextlib.contextmanager
def watched(
    path: str | Path, *, port: int = 0, ready: Callable[[str], None] = lambda url: None, progress: Progress = QUIET
) -> Iterator[None]:
    """Show a sweep on a page while it is measured: `with watched("mine", ready=print): kerncast.collect(…, out="mine")`.

    The page begins with the dataset, which `collect` makes. `ready` is told its address.
    """
    refuse_if_missing()
    settings, ended = Settings(HOST, port), threading.Event()

    def serve() -> None:
        from kerncast.app.serve.app import create_app
        from kerncast.app.serve.running import run

        while not (Path(path) / DATASET).is_file():
            if ended.wait(LOOK_SECONDS):
                return
        try:
            app = create_app(Sources.open(paths=[path], compile=False), settings)
            run(app, settings, stop=ended.is_set, ready=ready, log_level=logging.WARNING)
        except Exception as error:  # a page that cannot be shown is no reason to stop measuring
            progress.say(f"the sweep is measured, but cannot be watched: {error}")

    thread = threading.Thread(target=serve, name="watched", daemon=True)
    thread.start()
    try:
        yield
    finally:
        ended.set()
        thread.join(END_SECONDS)


def refuse_if_missing() -> None:
    """Refuse to serve without the packages of the extra `serve`."""
    missing = [name for name in NEEDED if find_spec(name) is None]
    if missing:
        raise NotFound.package("serving", " and ".join(missing), "serve")
