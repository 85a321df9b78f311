"""How a server listens and whom it answers; `serve`, `explore` and `watched` run one until it is told to stop.

Nothing here needs the extra `serve` before `refuse_if_missing` has looked for it.
"""

from __future__ import annotations

import contextlib
import ipaddress
import logging
import os
import stat
import sys
import threading
import webbrowser
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass
from importlib.util import find_spec
from pathlib import Path
from typing import TYPE_CHECKING, Annotated

from kerncast.app.api.showing import Wanted, shown
from kerncast.core.io.arguments import Help
from kerncast.core.progress import QUIET, Progress
from kerncast.data.dataset import MANIFEST as DATASET
from kerncast.errors import BadFile, InvalidValue, NotFound, quoted
from kerncast.measuring.backends.cpu.build import find_compiler
from kerncast.models.model import is_model
from kerncast.models.store.store import Store

if TYPE_CHECKING:
    from kerncast.app.serve.sources import Sources

TOKEN = "KERNCAST_TOKEN"
"""The environment variable with the token."""
HOST, PORT = "127.0.0.1", 8321
MAX_BODY, MAX_BATCH = 16 * 2**20, 20_000
# Requests a second of one client of a server that others can reach.
REMOTE_RATE = 1_000.0
SHORTEST_TOKEN, LONGEST_TOKEN = 16, 4096
NAMES_OF_LOOPBACK = ("localhost", "127.0.0.1", "::1")


@dataclass(frozen=True)
class Settings:
    """Everything about a server but what it serves."""

    host: str = HOST
    port: int = PORT
    token: str | None = None
    """What a client has to know; None: only for a server that nobody else can reach."""
    allow_hosts: tuple[str, ...] = ()
    """Names of this server besides its own, which a proxy in front of it may forward."""
    max_body: int = MAX_BODY
    """Bytes of one request."""
    max_batch: int = MAX_BATCH
    """Questions in one request."""
    rate: float | None = None
    """Requests a second of one client; 0: any number. None: any number here, 1,000 for a server that others can reach."""
    refresh_seconds: float = 1.0
    """How often to look whether the files have changed."""
    software: str | None = None
    """For requests that name no software."""
    strict: bool = False
    """Refuse to answer from a model of other software than is asked for."""

    def __post_init__(self) -> None:
        if isinstance(self.port, bool) or not isinstance(self.port, int) or not 0 <= self.port <= 65535:
            raise InvalidValue(f"`port` must be from 0 (any free one) to 65535, got {quoted(self.port)}")
        for name in ("max_body", "max_batch"):
            value = getattr(self, name)
            if isinstance(value, bool) or not isinstance(value, int) or value < 1:
                raise InvalidValue(f"`{name}` must be a whole number of at least 1, got {quoted(value)}")
        if self.rate is not None and not 0 <= self.rate < 1e9:
            raise InvalidValue(f"`rate` must be 0 (any) or a number of requests a second, got {quoted(self.rate)}")
        if not 0.05 <= self.refresh_seconds <= 3600:
            raise InvalidValue(f"`refresh_seconds` must be from 0.05 to 3600, got {quoted(self.refresh_seconds)}")
        if self.token is None and not self.is_loopback:
            raise InvalidValue(
                f"`host={quoted(self.host)}` can be reached from other machines, and then a token is required: put one in a "
                f"file and name it with `token_file`, or in the environment variable {TOKEN}"
            )
        if self.token is not None:
            _check_token(self.token)

    @property
    def is_loopback(self) -> bool:
        """Whether only this machine can reach it."""
        if self.host == "localhost":
            return True
        try:
            return ipaddress.ip_address(self.host).is_loopback
        except ValueError:
            return False

    @property
    def requests_per_second(self) -> float:
        """Of one client; 0: any number."""
        if self.rate is None:
            return 0.0 if self.is_loopback else REMOTE_RATE
        return self.rate

    @property
    def host_names(self) -> frozenset[str] | None:
        """What a request may call this server; None: anything, because its clients have to know the token."""
        if not self.is_loopback and not self.allow_hosts:
            return None
        return frozenset(name.lower() for name in (*NAMES_OF_LOOPBACK, self.host, *self.allow_hosts))


def read_token(file: str | Path | None) -> str | None:
    """The token in a file, else the one in the environment, else None."""
    if file is None:
        return os.environ.get(TOKEN) or None
    path = Path(file)
    try:
        with path.open("rb") as stream:
            mode = os.fstat(stream.fileno()).st_mode
            if stat.S_ISREG(mode) and mode & stat.S_IROTH:
                raise BadFile(f"the file of the token {path} can be read by everyone on this machine: `chmod 600` it")
            data = stream.read(LONGEST_TOKEN + 3)
    except OSError as error:
        raise BadFile(f"the token cannot be read from {path} ({error.strerror}): name another file") from error
    return data.decode("utf-8", "replace").strip()


def _check_token(token: str) -> None:
    if not SHORTEST_TOKEN <= len(token) <= LONGEST_TOKEN:
        raise InvalidValue(
            f"a token has {SHORTEST_TOKEN} to {LONGEST_TOKEN:,} characters, got {len(token):,}: make one with "
            "`openssl rand -hex 32`"
        )
    if not all("!" <= letter <= "~" for letter in token):
        raise InvalidValue("a token has letters, digits and signs of ASCII, without spaces: make another one")


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
    from kerncast.app.serve.background import run

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
    from kerncast.app.serve.sources import Sources

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
    from kerncast.app.serve.background import run
    from kerncast.app.serve.sources import Sources

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
        from kerncast.app.serve.background import run
        from kerncast.app.serve.sources import Sources

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
