"""A headless Chromium to look at pages that kerncast writes: DevTools protocol over a pipe, nothing but Python.

with Browser(tmp_path) as page:
    page.open(tmp_path / "report.html")
    assert page.evaluate("document.title")
    assert not page.errors and not page.requests
"""

from __future__ import annotations

import base64
import contextlib
import fcntl
import json
import os
import select
import shutil
import signal
import time
from collections.abc import Callable
from pathlib import Path
from types import TracebackType
from typing import Any

NAMES = ("chromium", "chromium-browser", "google-chrome")
FLAGS = (
    "--headless", "--no-sandbox", "--disable-gpu", "--no-first-run", "--disable-dev-shm-usage",
    "--disable-background-networking", "--disable-component-update", "--disable-sync", "--hide-scrollbars",
    "--remote-debugging-pipe",
)  # fmt: skip
# Long enough for a busy machine to start a browser, short enough to notice a hang.
PATIENCE_SECONDS = 120.0


def chromium() -> str | None:
    """Where Chromium is, if it is installed."""
    return next((path for name in NAMES if (path := shutil.which(name))), None)


class Browser:
    """One page of a browser with its own profile. `errors` and `requests` are what the page did so far."""

    def __init__(self, scratch: Path) -> None:
        self.errors: list[str] = []
        """Errors and warnings on the console, and exceptions that nothing caught."""
        self.requests: list[str] = []
        """Requested addresses, except those of the page itself and of data in it."""
        self._scratch = scratch
        self._number, self._answers, self._events = 0, dict[int, dict[str, Any]](), list[str]()
        self._received = b""
        self._page = ""

    def __enter__(self) -> Browser:
        program = chromium()
        assert program is not None, "Chromium is not installed"
        # The protocol wants descriptors 3 and 4; moved out of their way first, so that neither is closed by the other.
        theirs_in, ours_out = os.pipe()
        ours_in, theirs_out = os.pipe()
        theirs_in, theirs_out = (_moved(end) for end in (theirs_in, theirs_out))
        self._in, self._out = _moved(ours_in), _moved(ours_out)
        arguments = [program, *FLAGS, f"--user-data-dir={self._scratch / 'profile'}", "about:blank"]
        log = _moved(os.open(self._scratch / "chromium.log", os.O_WRONLY | os.O_CREAT | os.O_TRUNC, 0o644))
        actions = [
            (os.POSIX_SPAWN_DUP2, theirs_in, 3), (os.POSIX_SPAWN_DUP2, theirs_out, 4),
            (os.POSIX_SPAWN_DUP2, log, 1), (os.POSIX_SPAWN_DUP2, log, 2),
        ]  # fmt: skip
        self._pid = os.posix_spawn(program, arguments, dict(os.environ), file_actions=actions, setpgroup=0)
        for end in (theirs_in, theirs_out, log):
            os.close(end)
        try:
            target = self._call("Target.createTarget", {"url": "about:blank"})["targetId"]
            self._page = self._call("Target.attachToTarget", {"targetId": target, "flatten": True})["sessionId"]
            for domain in ("Page", "Runtime", "Log", "Network"):
                self._call(f"{domain}.enable")
            self.resize(1280, 900)
        except BaseException:
            self._stop()
            raise
        return self

    def __exit__(self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None) -> None:
        self._stop()

    def _stop(self) -> None:
        # It leads its own process group, so this ends its children and no other process.
        with contextlib.suppress(ProcessLookupError):
            os.killpg(self._pid, signal.SIGKILL)
        os.waitpid(self._pid, 0)
        os.close(self._in)
        os.close(self._out)

    def open(self, page: Path | str) -> None:
        """Load a file or an address and wait until its scripts have run."""
        address = page if isinstance(page, str) else page.resolve().as_uri()
        self._events.clear()
        self._call("Page.navigate", {"url": address})
        self._wait(lambda: "Page.loadEventFired" in self._events, f"{address} did not load")
        self.evaluate("new Promise(done => requestAnimationFrame(() => requestAnimationFrame(() => done(true))))")
        self.requests = [url for url in self.requests if url != address]

    def evaluate(self, script: str) -> Any:
        """The value of a JavaScript expression, awaited."""
        options = {"expression": script, "returnByValue": True, "awaitPromise": True, "userGesture": True}
        answer = self._call("Runtime.evaluate", options)
        if "exceptionDetails" in answer:
            raise AssertionError(answer["exceptionDetails"].get("exception", {}).get("description", "the script failed"))
        return answer["result"].get("value")

    def click(self, selector: str) -> None:
        """Press the mouse in the middle of an element."""
        where = f"document.querySelector({json.dumps(selector)})"
        self.evaluate(f"{where}.scrollIntoView({{block: 'center', behavior: 'instant'}})")
        x, y = self.evaluate(
            f"(() => {{ const b = {where}.getBoundingClientRect(); return [b.x + b.width / 2, b.y + b.height / 2]; }})()"
        )
        for kind in ("mousePressed", "mouseReleased"):
            self._call("Input.dispatchMouseEvent", {"type": kind, "x": x, "y": y, "button": "left", "clickCount": 1})
        self.evaluate("new Promise(done => setTimeout(() => requestAnimationFrame(() => done(true)), 100))")

    def type(self, selector: str, text: str) -> None:
        """Replace what is in a field by a text, as if it were typed."""
        where = f"document.querySelector({json.dumps(selector)})"
        self.evaluate(f"{where}.focus(), {where}.select()")
        self._call("Input.insertText", {"text": text})

    def press(self, key: str, code: int, text: str = "") -> None:
        """Press a key: its name (`ArrowRight`) and its Windows code, with the text that it types, if it types one."""
        for kind in ("keyDown", "keyUp"):
            options = {"type": kind, "key": key, "code": key, "windowsVirtualKeyCode": code}
            self._call("Input.dispatchKeyEvent", options | ({"text": text} if text and kind == "keyDown" else {}))

    def until(self, script: str) -> None:
        """Wait until a JavaScript expression is true."""
        deadline = time.monotonic() + PATIENCE_SECONDS
        while not self.evaluate(f"Boolean({script})"):
            assert time.monotonic() < deadline, f"never became true: {script}"
            time.sleep(0.05)

    def resize(self, width: int, height: int, scheme: str = "light", scale: float = 1.0) -> None:
        """Set the window's size and a light or dark colour scheme."""
        metrics = {"width": width, "height": height, "deviceScaleFactor": scale, "mobile": width < 600}
        self._call("Emulation.setDeviceMetricsOverride", metrics)
        self._call("Emulation.setEmulatedMedia", {"features": [{"name": "prefers-color-scheme", "value": scheme}]})
        self.evaluate("new Promise(done => setTimeout(() => requestAnimationFrame(() => done(true)), 300))")

    def picture(self, file: Path, clip: tuple[float, float, float, float] | None = None) -> None:
        """A PNG of the whole page, or of a part (x, y, width, height)."""
        if clip is None:
            size = self._call("Page.getLayoutMetrics")["cssContentSize"]
            clip = (0, 0, size["width"], size["height"])
        part = dict(zip(("x", "y", "width", "height"), clip, strict=True)) | {"scale": 1}
        answer = self._call("Page.captureScreenshot", {"format": "png", "captureBeyondViewport": True, "clip": part})
        file.write_bytes(base64.b64decode(answer["data"]))

    def print(self, file: Path) -> None:
        """The page on A4, as PDF."""
        answer = self._call("Page.printToPDF", {"preferCSSPageSize": True, "printBackground": True})
        file.write_bytes(base64.b64decode(answer["data"]))

    def _call(self, method: str, options: dict[str, Any] | None = None) -> dict[str, Any]:
        self._number += 1
        number = self._number
        message: dict[str, Any] = {"id": number, "method": method, "params": options or {}}
        if self._page:
            message["sessionId"] = self._page
        os.write(self._out, json.dumps(message).encode() + b"\0")
        self._wait(lambda: number in self._answers, f"{method} was not answered")
        answer = self._answers.pop(number)
        assert "error" not in answer, f"{method}: {answer.get('error')}"
        result: dict[str, Any] = answer["result"]
        return result

    def _wait(self, done: Callable[[], bool], failure: str) -> None:
        deadline = time.monotonic() + PATIENCE_SECONDS
        while not done():
            ready, _, _ = select.select([self._in], [], [], max(0.0, deadline - time.monotonic()))
            data = os.read(self._in, 1 << 16) if ready else b""
            assert data, f"{failure}; Chromium said: {(self._scratch / 'chromium.log').read_text(errors='replace')[-2000:]}"
            *messages, self._received = (self._received + data).split(b"\0")
            for text in messages:
                self._take(json.loads(text))

    def _take(self, message: dict[str, Any]) -> None:
        if "id" in message:
            self._answers[message["id"]] = message
            return
        method, said = message["method"], message.get("params", {})
        self._events.append(method)
        if method == "Network.requestWillBeSent" and not said["request"]["url"].startswith(("data:", "blob:")):
            self.requests.append(said["request"]["url"])
        elif method == "Runtime.exceptionThrown":
            self.errors.append(json.dumps(said["exceptionDetails"]))
        elif method == "Runtime.consoleAPICalled" and said["type"] in ("error", "warning", "assert"):
            self.errors.append(json.dumps(said["args"]))
        elif method == "Log.entryAdded" and said["entry"]["level"] in ("error", "warning"):
            self.errors.append(json.dumps(said["entry"]))


def _moved(descriptor: int) -> int:
    """The same end of a pipe under a higher number, closed in programs that are started."""
    higher = fcntl.fcntl(descriptor, fcntl.F_DUPFD_CLOEXEC, 10)
    os.close(descriptor)
    return higher
