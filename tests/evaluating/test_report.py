"""The report: one file that needs nothing, says what there is to say, and works in a real browser."""

import json
import re
from dataclasses import replace
from pathlib import Path

import polars as pl
import pytest
from tests.support.browser import Browser
from tests.support.needs import require

from kerncast.errors import CannotWrite
from kerncast.evaluating import Evaluation, evaluate
from kerncast.evaluating.report.figures import duration, percent
from kerncast.evaluating.report.page import write_report
from kerncast.testing.models import synthetic_dataset, synthetic_rows
from kerncast.training.train import Recipe, train

RECIPE = Recipe("gbdt", {"trees": 20, "library_trees": 4}, folds=3, threads=1)
BUDGET = {
    "problems": [{"problems": n, "efficiency_mean": 0.8 + n / 1000, "lower": 0.7, "upper": 0.95} for n in (10, 50, 100)],
    "configs": [{"share": s, "efficiency_mean": 0.7 + s / 5, "lower": None, "upper": None} for s in (0.1, 0.5, 1.0)],
    "active": [{"vectors": n, "random": 0.8, "active": 0.85} for n in (50, 100)],
}
SECTIONS = {"summary", "choice", "baselines", "worst", "predictions", "slices", "times", "limits", "importances", "budget"}
CHARTS = {
    "efficiency-curve", "top-k", "predicted-measured", "coverage", "ratio", "roofline",
    "budget-problems", "budget-configs", "budget-active",
}  # fmt: skip
HOSTILE = "</script><script>window.owned = 1</script><img src=x onerror='window.owned = 2'>"


@pytest.fixture(scope="module")
def judged(tmp_path_factory):
    """A model of a few trees, and what its recipe is worth out of fold."""
    folder = tmp_path_factory.mktemp("report")
    data = synthetic_dataset(folder / "data", synthetic_rows(problems=30, repeats=2, noise=0.03))
    model = train(data, folder / "model", RECIPE)
    return evaluate(model, [data], split="problem", threads=1), model


@pytest.fixture(scope="module")
def browser(tmp_path_factory):
    """One browser for all tests of this module."""
    require("chromium")
    with Browser(tmp_path_factory.mktemp("browser")) as page:
        yield page


@pytest.fixture
def page(browser):
    """The browser, with what it saw before forgotten."""
    browser.errors.clear()
    browser.requests.clear()
    browser.resize(1280, 900)
    return browser


def written(tmp_path: Path, evaluation: Evaluation, model=None, budget=None) -> tuple[Path, str]:
    """The file, and its text without the library of charts."""
    file = tmp_path / "report.html"
    write_report(evaluation, model, file, budget)
    text = file.read_text(encoding="utf-8")
    return file, re.sub(r"<script>/\*\*?[\s\S]*?plotly\.js[\s\S]*?</script>", "", text, count=1)


def embedded(text: str, name: str):
    """A block of JSON in the page."""
    return json.loads(re.search(rf'<script type="application/json" id="{name}">(.*?)</script>', text, re.S)[1])


def sections(text: str) -> set[str]:
    return set(re.findall(r'<section id="([\w-]+)"', text))


def test_it_has_every_part_and_asks_nobody_for_anything(judged, tmp_path):
    """All sections, all charts, each chart with a title, a sentence and a label; no address outside the file."""
    evaluation, model = judged
    file, text = written(tmp_path, evaluation, model, BUDGET)
    assert len(text) < 1_500_000 < file.stat().st_size
    assert sections(text) == SECTIONS
    assert set(embedded(text, "chart-data")) == CHARTS
    for name in CHARTS:
        assert re.search(rf'<h3>[^<]+</h3>\s*<div class="chart" id="{name}" role="img" aria-label="[^"]{{40,}}"></div>', text)
    assert "http://" not in text
    assert "https://" not in text
    assert re.findall(r"""(?:src|href)=["']?([^"'\s>]+)""", text.split('id="chart-data"')[0])[0] == "data:,"
    mean = evaluation.as_json()["overall"]["efficiency_mean"]
    assert percent(mean["value"]) in text
    assert f"{percent(mean['lower']).removesuffix(' %')} to {percent(mean['upper'])}" in text


def test_the_numbers_on_the_page_are_the_evaluations(judged, tmp_path):
    """Curve, roofline and drill-down hold each problem once, with its own times; the worst come in the summary's order."""
    evaluation, model = judged
    _, text = written(tmp_path, evaluation, model)
    charts, worst = embedded(text, "chart-data"), embedded(text, "worst-data")
    efficiency = evaluation.problems["efficiency"].sort().to_list()
    assert charts["efficiency-curve"]["data"][0]["y"] == pytest.approx(efficiency, rel=1e-5)
    roofline = {trace["name"]: trace for trace in charts["roofline"]["data"]}
    assert set(roofline) == {"roof, fp16", "fastest measured", "chosen by the model"}
    assert len(roofline["chosen by the model"]["x"]) == evaluation.problems.height
    # The A100's roof: 312 TFLOP/s, and 2.039 TB/s times the intensity left of the ridge.
    assert max(roofline["roof, fp16"]["y"]) == pytest.approx(312, rel=0.01)
    assert len(worst) == len(evaluation.as_json()["worst"])
    for shown, listed in zip(worst, evaluation.as_json()["worst"], strict=True):
        assert shown["measured"] == sorted(shown["measured"])
        assert shown["measured"][shown["best"]] == pytest.approx(listed["best_ns"], rel=1e-5)
        assert shown["measured"][shown["chosen"]] == pytest.approx(listed["chosen_ns"], rel=1e-5)
        assert shown["predicted"][shown["chosen"]] == pytest.approx(listed["predicted_ns"], rel=1e-5)


def test_plotly_knows_every_option_of_every_chart(judged, tmp_path):
    """The figures pass plotly's own validation: it ignores in silence what it does not know when it draws."""
    from plotly.graph_objects import Figure

    text = json.dumps(embedded(written(tmp_path, *judged, BUDGET)[1], "chart-data"))
    for figure in json.loads(re.sub(r'"@[\w-]+"', '"#345678"', text)).values():
        assert len(Figure(figure).data) == len(figure["data"])


def test_the_same_evaluation_gives_the_same_bytes(judged, tmp_path):
    """No dates, no random ids."""
    evaluation, model = judged
    first = written(tmp_path, evaluation, model, BUDGET)[0].read_bytes()
    assert written(tmp_path, evaluation, model, BUDGET)[0].read_bytes() == first


def test_what_does_not_apply_is_left_out(judged, tmp_path):
    """Without a model no roofs and no importances, without bounds no coverage, without times no section on them."""
    evaluation, model = judged
    _, text = written(tmp_path, evaluation)
    assert sections(text) == SECTIONS - {"importances", "budget"}
    assert {trace["name"] for trace in embedded(text, "chart-data")["roofline"]["data"]} == {
        "fastest measured",
        "chosen by the model",
    }
    bare = replace(evaluation, rows=evaluation.rows.drop("lower_ns", "upper_ns"))
    charts = embedded(written(tmp_path, bare, model)[1], "chart-data")
    assert "coverage" not in charts
    assert "90 %" not in json.dumps(charts["predicted-measured"])
    unknown = pl.lit(None, pl.Float64)
    problems = evaluation.problems.with_columns(predicted_ns=unknown, flops=unknown, bytes=unknown, roofline_ns=unknown)
    blind = Evaluation(evaluation.as_json(), problems, evaluation.rows.drop("predicted_ns", "lower_ns", "upper_ns"))
    _, text = written(tmp_path, blind, model)
    assert sections(text) == SECTIONS - {"predictions", "times", "limits", "budget"}


def test_a_choice_that_failed_says_so(judged, tmp_path):
    """It has no time, no mark among the configs that worked, and efficiency 0."""
    evaluation, model = judged
    first = pl.int_range(pl.len()) == 0
    fails = evaluation.problems.with_columns(
        chosen_ns=pl.when(first).then(None).otherwise("chosen_ns"),
        efficiency=pl.when(first).then(0.0).otherwise("efficiency"),
        **{"chosen.BLOCK_M": pl.when(first).then(pl.lit(7)).otherwise("chosen.BLOCK_M")},
    )
    _, text = written(tmp_path, replace(evaluation, problems=fails), model)
    assert "chosen: failed" in text
    assert embedded(text, "worst-data")[0]["chosen"] is None


def test_many_points_are_sampled_and_it_says_so(judged, tmp_path):
    """4,000 dots are drawn of however many rows there are, and 2,000 points of the curve: all of the worst among them."""
    evaluation, model = judged
    copies = 5_000 // evaluation.rows.height + 1
    problems = pl.concat([evaluation.problems] * 80)
    many = replace(evaluation, rows=pl.concat([evaluation.rows] * copies), problems=problems)
    _, text = written(tmp_path, many, model)
    charts = embedded(text, "chart-data")
    assert {trace["name"]: len(trace["x"]) for trace in charts["predicted-measured"]["data"]}["measured vectors"] == 4_000
    curve = charts["efficiency-curve"]["data"][0]["y"]
    assert len(curve) <= 2_000
    assert curve[:1_000] == pytest.approx(problems["efficiency"].sort()[:1_000].to_list(), rel=1e-5)
    assert f"of {problems.height:,} problems, the worst 1,000 among them" in text
    assert f"4,000 of {many.rows.height:,} vectors are drawn" in text


def test_training_data_is_labelled(judged, tmp_path):
    """In red, before any figure."""
    evaluation, model = judged
    told = {**evaluation.as_json(), "includes_training_data": True, "problems_seen_in_training": 17}
    _, text = written(tmp_path, evaluation.extended(**told), model)
    assert re.search(r'<p class="warning">17 of these problems were trained on', text)
    assert "it had not seen" not in text


def test_a_place_that_cannot_be_written_is_refused(judged, tmp_path):
    """By name, and nothing is left behind."""
    with pytest.raises(CannotWrite, match=r"nowhere/report\.html"):
        write_report(judged[0], judged[1], tmp_path / "nowhere" / "report.html")
    assert not list(tmp_path.iterdir())


def test_numbers_are_written_as_a_person_reads_them():
    """A figure below 100 % never reads 100 %; times have a unit that fits."""
    assert [percent(v) for v in (1.0, 0.99996, 0.973, 0.00001, 0.0, None)] == [
        "100.0 %",
        "99.9 %",
        "97.3 %",
        "0.1 %",
        "0.0 %",
        "–",
    ]
    assert [duration(t) for t in (12.0, 999.9, 1234.0, 5.5e6, 2.5e11, None)] == [
        "12 ns",
        "1 µs",
        "1.23 µs",
        "5.5 ms",
        "250 s",
        "–",
    ]


def test_with_nothing_to_choose_the_report_is_about_times(tmp_path, page):
    """One config per problem: no efficiency anywhere, the worst are those whose time is furthest off, and it still draws."""
    rows = synthetic_rows(problems=150).filter((pl.col("config.BLOCK_M") == 64) & (pl.col("config.BLOCK_N") == 64))
    data = synthetic_dataset(tmp_path / "data", rows)
    model = train(data, tmp_path / "model", RECIPE)
    evaluation = evaluate(model, [data], split="problem", threads=1)
    assert evaluation.as_json()["overall"]["efficiency_mean"] is None
    file, text = written(tmp_path, evaluation, model)
    assert sections(text) == SECTIONS - {"choice", "budget", "predictions"}
    assert "mean error of the predicted time" in text
    page.open(file)
    page.click("#worst summary")
    assert page.evaluate("document.querySelectorAll('#worst details[open] tbody tr').length") == 1
    assert page.errors == []


def drawn(page) -> dict[str, int]:
    """Charts, and how many traces each has drawn."""
    count = "[...document.querySelectorAll('.chart')].map(c => [c.id, c.querySelectorAll('svg .trace').length])"
    return page.evaluate(f"Object.fromEntries({count})")


def test_it_renders_in_a_browser_and_the_drill_down_opens(judged, tmp_path, page):
    """Every chart is drawn, a click on the worst problem shows its configs; no error, no request."""
    evaluation, model = judged
    file, text = written(tmp_path, evaluation, model, BUDGET)
    page.open(file)
    found = drawn(page)
    assert set(found) == CHARTS
    assert all(found.values()), found
    assert page.evaluate("document.querySelectorAll('#worst details[open]').length") == 0
    page.click("#worst summary")
    assert page.evaluate("document.querySelectorAll('#worst details[open]').length") == 1
    assert page.evaluate("document.querySelectorAll('#worst details[open] .chart svg .points path').length") > 10
    configs = embedded(text, "worst-data")[0]["measured"]
    assert page.evaluate("document.querySelectorAll('#worst details[open] tbody tr').length") == len(configs)
    assert page.evaluate("document.querySelectorAll('#worst details[open] tr.chosen').length") == 1
    assert page.errors == []
    assert page.requests == []


def test_it_fits_a_phone_and_likes_the_dark(judged, tmp_path, page):
    """No sideways scrolling of the page at 390 px; text and charts change with the reader's scheme, back and forth."""
    evaluation, model = judged
    page.open(written(tmp_path, evaluation, model, BUDGET)[0])
    ink = "[getComputedStyle(document.body).color, document.querySelector('#efficiency-curve .xtick text').style.fill]"
    for width in (1280, 390):
        colours = []
        for scheme in ("light", "dark", "light"):
            page.resize(width, 844, scheme)
            assert page.evaluate("document.documentElement.scrollWidth") == width
            assert (
                page.evaluate(
                    "Math.max(...[...document.querySelectorAll('.main-svg')].map(s => s.getBoundingClientRect().right))"
                )
                <= width
            )
            text, chart = page.evaluate(ink)
            assert text == chart
            colours.append(text)
        assert colours[0] == colours[2] != colours[1]
    assert page.errors == []


def test_it_prints_whole_and_light(judged, tmp_path, page):
    """On paper the drill-downs are open, the charts fit A4 and dark readers get black on white; afterwards all is as before."""
    evaluation, model = judged
    page.resize(1280, 900, "dark")
    page.open(written(tmp_path, evaluation, model)[0])
    look = """[document.querySelectorAll('#worst details:not([open])').length, getComputedStyle(document.body).color,
               Math.max(...[...document.querySelectorAll('.main-svg')].map(s => s.getBoundingClientRect().width))]"""
    page.evaluate(f"void window.addEventListener('beforeprint', () => {{ window.seen = {look}; }})")
    before = page.evaluate(look)
    page.print(tmp_path / "report.pdf")
    assert (tmp_path / "report.pdf").read_bytes().startswith(b"%PDF")
    closed, colour, width = page.evaluate("window.seen")
    assert (closed, width) == (0, 680)
    assert colour != before[1]
    page.resize(1280, 900, "dark")
    assert page.evaluate(look) == before
    assert page.errors == []


def test_labels_from_the_data_never_run(judged, tmp_path, page):
    """A parameter, a model and a file named like a script are shown as text, in tables, charts and the drill-down."""
    evaluation, model = judged
    values = [HOSTILE, "plain"]
    label = pl.Series("problem.dtype", [values[n % 2] for n in range(evaluation.problems.height)])
    by_number = dict(zip(evaluation.problems["number"], label, strict=True))
    rows = evaluation.rows.with_columns(
        pl.col("number").replace_strict(by_number, return_dtype=pl.String).alias("problem.dtype"),
        pl.col("config.kind").cast(pl.String) + HOSTILE,
    )
    problems = evaluation.problems.with_columns(
        label, *(pl.col(f"{part}.kind").cast(pl.String) + HOSTILE for part in ("chosen", "best"))
    )
    slices = [{**item, "by": HOSTILE, "value": HOSTILE} for item in evaluation.as_json()["slices"]]
    summary = {
        **evaluation.as_json(),
        "slices": slices,
        "family": HOSTILE,
        "model": "/tmp/" + HOSTILE.replace("/", ""),
        "datasets": [HOSTILE],
    }
    file, text = written(tmp_path, Evaluation(summary, problems, rows), model)
    assert "<script>window.owned" not in text
    assert "<img" not in text
    page.open(file)
    page.click("#worst summary")
    page.evaluate("Plotly.Fx.hover('efficiency-curve', [{curveNumber: 0, pointNumber: 0}])")
    assert page.evaluate("typeof window.owned") == "undefined"
    assert page.evaluate("document.querySelectorAll('img').length") == 0
    shown = page.evaluate("[...document.querySelectorAll('#worst .problem')].map(e => e.textContent)")
    assert any(HOSTILE in label for label in shown)
    assert page.errors == []
    assert page.requests == []
