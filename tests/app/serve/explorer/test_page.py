"""The explorer's page in a real browser: it shows what Python says, and works with keyboard, small screens and hostile text."""

import contextlib
import json
import threading

import polars as pl
import pytest
from tests.support.browser import Browser
from tests.support.needs import require

from kerncast.app.serve.app import create_app
from kerncast.app.serve.background import run
from kerncast.app.serve.explorer.models import ranked
from kerncast.app.serve.server import Settings
from kerncast.app.serve.sources import Sources
from kerncast.models.model import Model
from kerncast.testing.models import synthetic_dataset, synthetic_rows
from kerncast.training.procedure import Recipe
from kerncast.training.train import train

HOSTILE = "</script><img src=x onerror='window.owned=1'>\u202e"
# A view of the page in words, as a reader gets it.
TIME = "document.querySelector('#time')?.textContent"
ANSWERED = "document.querySelector('#time') && !document.querySelector('.place.busy')"


@contextlib.contextmanager
def served(sources):
    """The address of a server of these sources."""
    stop, ready, address = threading.Event(), threading.Event(), []

    def begun(url):
        address.append(url)
        ready.set()

    settings = Settings(port=0)
    thread = threading.Thread(
        target=run, args=(create_app(sources, settings), settings), kwargs={"stop": stop.is_set, "ready": begun}, daemon=True
    )
    thread.start()
    try:
        assert ready.wait(60)
        yield address[0]
    finally:
        stop.set()
        thread.join(60)


@pytest.fixture(scope="module")
def site(explored, tmp_path_factory):
    """A server of a model, of a simple one for another device, and of datasets, one with hostile words in failed rows."""
    said = pl.when(pl.col("status") != "ok").then(pl.lit(HOSTILE))
    data = tmp_path_factory.mktemp("hostile") / "measured"
    synthetic_dataset(data, synthetic_rows(problems=12).with_columns(error=said))
    other = synthetic_dataset(data.parent / "other", synthetic_rows(problems=12).with_columns(device=pl.lit("h100")))
    train(other, data.parent / "faster", Recipe("roofline", {}, folds=2, threads=1))
    paths = [explored / "model", data.parent / "faster", data, explored / "data"]
    with served(Sources.open(paths=paths, compile=False)) as url:
        yield url


@pytest.fixture(scope="module")
def page(site, tmp_path_factory):
    require("chromium")
    with Browser(tmp_path_factory.mktemp("browser")) as browser:
        yield browser


@pytest.fixture(autouse=True)
def _no_noise(request, site):
    """Whatever a test does, the page logs no error and asks nobody but its own server."""
    yield
    if "page" in request.fixturenames:
        browser = request.getfixturevalue("page")
        assert browser.errors == []
        assert [url for url in browser.requests if not url.startswith(site)] == []


def address(site, **state):
    from urllib.parse import quote

    return f"{site}#{quote(json.dumps(state))}"


def visit(page, url):
    """Load the page again: a change of its state alone does not reload it."""
    page.open("about:blank")
    page.open(url)


def shown(page):
    """The ranked configs, as the page lists them."""
    cells = "[...document.querySelectorAll('.ranked tbody tr')].map(row => [...row.children].map(cell => cell.innerText))"
    return page.evaluate(cells)


def test_typing_a_size_ranks_the_configs_as_python_does(page, site, explored):
    """Every config and time of the page is that of the same question in Python, before and after typing."""
    visit(page, address(site, view="model", model="model"))
    page.until(ANSWERED)
    model = Model.load(explored / "model")
    for size in ("512", "4096"):
        before = page.evaluate("document.querySelector('#said').textContent")
        page.type("#p-M", size)
        page.until(f"document.querySelector('#said').textContent !== {json.dumps(before)} && {ANSWERED}")
        problem = page.evaluate("JSON.parse(decodeURIComponent(location.hash.slice(1))).problem")
        assert problem["M"] == int(size)
        answers = ranked(model, problem, k=12)["answers"]
        rows = shown(page)
        assert len(rows) == len(answers)
        for row, answer in zip(rows, answers, strict=True):
            words = " ".join(f"{name}={value}" for name, value in answer["config"].items())
            assert row[0].split(maxsplit=1)[1] == words
            assert duration_words(answer["time_ns"]) == row[1].split("\n")[0]
        assert page.evaluate(TIME) == duration_words(answers[0]["time_ns"])


def duration_words(nanoseconds):
    """As the page writes a time."""
    units = ((1e9, "s"), (1e6, "ms"), (1e3, "µs"), (1.0, "ns"))
    value, unit = next((nanoseconds / factor, unit) for factor, unit in units if nanoseconds >= factor * 0.9995)
    digits = 0 if value >= 99.95 else 1 if value >= 9.995 else 2
    text = f"{value:,.{digits}f}"
    return f"{text.rstrip('0').rstrip('.') if '.' in text else text} {unit}"


def test_every_chart_is_drawn_and_has_its_data(page, site):
    """Roofline, axis, map, reasons and devices: a picture with a label, and a table with the numbers behind it."""
    visit(page, address(site, view="model", model="model"))
    page.until(ANSWERED)
    page.until("document.querySelectorAll('figure svg').length >= 5")
    for name in ("limits", "along", "map", "why", "devices"):
        assert page.evaluate(f"document.querySelector('#{name} svg').getAttribute('aria-label').length") > 10
        assert page.evaluate(f"document.querySelectorAll('#{name} details table tbody tr').length") > 0
    unlabelled = "[...document.querySelectorAll('input, select')].filter(item => !item.labels.length && !item.ariaLabel).length"
    assert page.evaluate(unlabelled) == 0


def test_the_map_is_walked_by_keyboard(page, site):
    """Arrow keys say the cell, Enter goes there, and the problem follows."""
    visit(page, address(site, view="model", model="model"))
    page.until(f"{ANSWERED} && document.querySelector('#map svg')")
    page.evaluate("document.querySelector('#map svg').focus()")
    for _ in range(20):
        page.press("ArrowLeft", 37)
    page.press("ArrowUp", 38)
    page.until("document.querySelector('.readout').textContent.startsWith('M=128,')")
    page.press("Enter", 13, "\r")
    page.until(f"document.querySelector('#p-M').value === '128' && {ANSWERED}")


def test_who_walks_by_keyboard_stays_where_they_are(page, site):
    """A tab keeps the focus when it is pressed; the link past the head leads to the answers, and changes nothing else."""
    visit(page, address(site, view="model", model="model"))
    page.until(ANSWERED)
    page.evaluate("document.querySelector('#tab-data').focus()")
    page.press("Enter", 13, "\r")
    page.until("document.querySelector('#problems-title') && !document.querySelector('.place.busy')")
    assert page.evaluate("document.activeElement.id") == "tab-data"
    before = page.evaluate("location.hash")
    page.evaluate("document.querySelector('.skip').click()")
    assert page.evaluate("[document.activeElement.id, location.hash]") == ["view", before]
    assert "problems, page 1" in page.evaluate("document.querySelector('#said').textContent")


def test_another_config_is_explained_when_it_is_chosen(page, site):
    """A click on the third config changes the reasons."""
    visit(page, address(site, view="model", model="model"))
    page.until(f"{ANSWERED} && document.querySelector('#why svg')")
    before = page.evaluate("document.querySelector('#why svg').getAttribute('aria-label')")
    page.click("#config-2")
    page.until(f"document.querySelector('#why svg').getAttribute('aria-label') !== {json.dumps(before)}")
    assert page.evaluate("document.activeElement.id") == "config-2"


def test_a_dataset_and_its_hostile_messages(page, site):
    """Statuses, problems and the rows of one; messages of failed rows are text."""
    visit(page, address(site, view="data", dataset="measured"))
    page.until("document.querySelector('#problems-title') && document.querySelector('.pages')")
    assert HOSTILE in page.evaluate("document.body.textContent")
    assert page.evaluate("[window.owned ?? null, document.querySelectorAll('img[src=x]').length]") == [None, 0]
    page.click("td .link, th .link")
    page.until("document.querySelector('.detail svg')")
    page.click("#judge")
    page.until("document.querySelector('#worst .figures tbody tr') || document.querySelector('#worst .warning')")
    assert "efficiency" in page.evaluate("document.querySelector('#worst').innerText")


@pytest.mark.parametrize("state", [{"view": "model", "model": "model"}, {"view": "data", "dataset": "measured"}])
def test_a_phone_does_not_scroll_sideways(page, site, state):
    """At 390 pixels nothing is wider than the screen, in the dark."""
    page.resize(390, 844, scheme="dark")
    visit(page, address(site, **state))
    page.until("document.querySelector('figure svg, .pages') && !document.querySelector('.place.busy')")
    assert page.evaluate("document.documentElement.scrollWidth") <= 390
    page.resize(1280, 900)


def test_the_policy_lets_nothing_else_in(site):
    """The page and its files say what may run; other files are not served, and questions are checked."""
    from urllib.error import HTTPError
    from urllib.request import Request, urlopen

    with urlopen(site) as reply:
        policy = reply.headers["content-security-policy"]
        assert "default-src 'none'" in policy
        assert "unsafe" not in policy
    for path, body, code in (
        ("explore/static/..%2froutes.py", None, 404), ("explore/static/routes.py", None, 404),
        ("explore/rank", b"[", 400), ("explore/rank", b'{"model": "model", "problem": {}, "extra": 1}', 400),
        ("explore/rank", b'{"model": "nobody", "problem": {}}', 404),
        ("explore/rank", b'{"model": "model", "problem": {"M": 1}}', 422),
        ("explore/rank", b'{"model": "' + b"x" * 70_000 + b'"}', 413),
    ):  # fmt: skip
        with pytest.raises(HTTPError) as refused:
            urlopen(Request(site + path, data=body, headers={"content-type": "application/json"}))
        assert refused.value.code == code, (path, body)
        assert "/tmp" not in refused.value.read().decode()
    with pytest.raises(HTTPError) as refused:  # a form of another site
        urlopen(Request(site + "explore/rank", data=b"{}"))
    refused.value.close()
    assert refused.value.code == 415
