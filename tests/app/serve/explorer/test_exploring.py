"""`kerncast serve --open`: the page on models and datasets, until it is told to stop."""

import json
import threading
from urllib.request import urlopen

import pytest

from kerncast.app.serve import server
from kerncast.data.dataset import Dataset
from kerncast.errors import InvalidValue, NotFound


def test_it_shows_what_was_given_and_ends_when_told(explored, monkeypatch):
    """The address is told once connections are accepted; a browser is opened where there is a display, unless refused."""
    opened, seen = [], []
    monkeypatch.setattr(server.webbrowser, "open", lambda url: opened.append(url) is None)
    monkeypatch.setenv("KERNCAST_SHIPPED", "")
    monkeypatch.delenv("WAYLAND_DISPLAY", raising=False)

    def shown(browser):
        found, asked = [], []

        def ready(url):
            found.append(url)
            threading.Thread(target=lambda: asked.append(json.load(urlopen(f"{url}explore/sources")))).start()

        server.explore([explored / "model", explored / "data"], browser=browser, stop=lambda: bool(asked), ready=ready)
        seen.extend(asked)
        return found

    monkeypatch.setattr(server.sys, "platform", "linux")
    monkeypatch.setenv("DISPLAY", "")
    shown(browser=True)
    assert opened == []
    monkeypatch.setenv("DISPLAY", ":7")
    shown(browser=False)
    assert opened == []
    address = shown(browser=True)
    assert opened == address
    assert [item["id"] for item in seen[0]["models"]] == ["model"]
    assert (seen[0]["datasets"], seen[0]["running"]) == (["data"], [])


def test_what_cannot_be_looked_at_is_refused_by_name(explored, tmp_path, run):
    """Nothing, a path that is not there, a folder of something else, an empty dataset: before any server starts."""
    Dataset.create(tmp_path / "empty")
    (tmp_path / "folder").mkdir()
    for given, words in (([], "is empty"), ([tmp_path / "none"], "nothing at"), ([tmp_path / "folder"], "is not a kerncast"),
                         ([tmp_path / "empty"], "is empty")):  # fmt: skip
        with pytest.raises((InvalidValue, NotFound), match=words):
            server.explore(given, browser=False, stop=lambda: True)
    code, _, said = run("serve", "--open", tmp_path / "none", "--no-browser")
    assert (code, "Traceback" in said) == (2, False)
