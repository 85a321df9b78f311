"""`kerncast.serving.explore` and `watched`: the explorer's page on models and datasets, without a store."""

from __future__ import annotations

import contextlib
import logging
import os
import sys
import threading
import webbrowser
from collections.abc import Callable, Iterator, Sequence
from pathlib import Path

from kerncast.api.showing import Wanted, shown
from kerncast.data.dataset import MANIFEST
from kerncast.errors import InvalidValue
from kerncast.progress import QUIET, Progress
from kerncast.serving.server import refuse_if_missing
from kerncast.serving.settings import HOST, Settings
from kerncast.serving.sources import Sources

# How often to look whether a sweep has begun its dataset.
LOOK_SECONDS = 0.1
# How long the server of a sweep that has ended may take to end, too.
END_SECONDS = 10.0


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
    from kerncast.serving.app import create_app
    from kerncast.serving.running import run

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
        from kerncast.serving.app import create_app
        from kerncast.serving.running import run

        while not (Path(path) / MANIFEST).is_file():
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
