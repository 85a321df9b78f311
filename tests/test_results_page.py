"""docs/results.md is what the kept results render to, and leaves no benchmark out."""

from __future__ import annotations

import importlib
import re
from pathlib import Path
from types import ModuleType

import pytest

ROOT = Path(__file__).resolve().parent.parent
BENCHMARKS = ROOT / "benchmarks"

pytestmark = pytest.mark.skipif(not BENCHMARKS.is_dir(), reason="benchmarks are not part of a source distribution")


@pytest.fixture
def render(monkeypatch: pytest.MonkeyPatch) -> ModuleType:
    monkeypatch.syspath_prepend(BENCHMARKS)
    return importlib.import_module("render_results")


@pytest.fixture
def reporting(render: ModuleType) -> ModuleType:
    return importlib.import_module("reporting")


def test_the_pages_are_what_the_kept_results_render_to(render: ModuleType) -> None:
    assert (ROOT / "docs" / "results.md").read_bytes() == render.rendered().encode(), "run `make results`"
    assert (ROOT / "docs" / "reliability.md").read_bytes() == render.rendered_reliability().encode(), "run `make results`"
    assert (ROOT / "docs" / "coverage.md").read_bytes() == render.rendered_coverage().encode(), "run `make results`"


def test_every_benchmark_has_a_result_or_is_named_as_never_run(render: ModuleType, reporting: ModuleType) -> None:
    known = {reporting.read(file).benchmark.script for file in reporting.RESULTS.glob("*.json")}
    never = (ROOT / "docs" / "results.md").read_text(encoding="utf-8").partition("## Never run")[2]
    for name in render.listed(ROOT / "Makefile"):
        assert f"{name}.py" in known or f"benchmarks/{name}.py" in never, name


def test_the_makefile_lists_every_script_that_states_rows(render: ModuleType) -> None:
    scripts = {path.stem for path in BENCHMARKS.glob("*.py") if "BENCHMARK = Benchmark(" in path.read_text(encoding="utf-8")}
    assert sorted(render.listed(ROOT / "Makefile")) == sorted(scripts)


def test_each_command_names_its_script(reporting: ModuleType) -> None:
    for file in reporting.RESULTS.glob("*.json"):
        result = reporting.read(file)
        found = re.search(r"\bpython (benchmarks/\w+\.py)", result.command)
        assert found is not None, f"{file.name}: {result.command}"
        assert (ROOT / found.group(1)).is_file(), found.group(1)
        assert found.group(1) == f"benchmarks/{result.benchmark.script}"


def test_numbers_that_no_run_wrote_say_where_they_were_printed(reporting: ModuleType) -> None:
    for file in reporting.RESULTS.glob("*.json"):
        result = reporting.read(file)
        assert bool(result.printed) != bool(result.date and result.commit), file.name


def test_a_row_below_its_target_stands_on_the_page_plainly(render: ModuleType, reporting: ModuleType) -> None:
    row = reporting.Row("speed", 95.0, "%", reporting.Target(96), interval=reporting.Interval(94.0, 95.9))
    made = reporting.Benchmark("made_up.py", reporting.TOPICS[0], "Made up")
    result = reporting.Result(made, "python benchmarks/made_up.py", (row,), printed="0123abc")
    shown = render.page([result], ["made_up", "other"])
    assert "1 numbers have a target: 0 reach it, 1 are short of it." in shown
    assert "| speed | 95 % (94 to 95.9, 95 %) | ≥ 96 % | **short of target** |  |" in shown
    assert "**Not rerun since**" in shown
    assert "## Never run" in shown
    assert "`python benchmarks/other.py`" in shown


def test_a_figure_just_below_its_target_does_not_look_like_it(reporting: ModuleType) -> None:
    assert reporting.measured(reporting.Row("speed", 99.8467, "%", reporting.Target(99.85))) == "99.847 %"
    assert reporting.measured(reporting.Row("speed", 1.1993, "×", reporting.Target(1.2))) == "1.199 ×"
    assert reporting.measured(reporting.Row("speed", 1.2004, "×", reporting.Target(1.2))) == "1.20 ×"
    assert reporting.measured(reporting.Row("time", 100.08, "ms")) == "100 ms"
    assert reporting.measured(reporting.Row("time", 2.0, "s", reporting.Target(high=2.0))) == "2 s"


def test_words_of_a_result_cannot_break_its_table(render: ModuleType) -> None:
    assert render.text("a | b\n<i>*x*</i> [y](z) `q` mixed_mm") == (r"a \| b \<i\>\*x\*\</i\> \[y\](z) \`q\` mixed\_mm")
    assert render.text("see https://a.b/c_d, e") == "see <https://a.b/c_d>, e"
    assert render.code("a ` b") == "`` a ` b ``"


def test_a_result_reads_back_as_it_was_written(reporting: ModuleType, tmp_path: Path) -> None:
    rows = (
        reporting.Row("one", 1.5, "s", reporting.Target(high=2.0), "them", "3 runs", "", reporting.Interval(1.0, 2.0, "range")),
        reporting.Row("two", 7, "", reporting.Target(7, 7)),
    )
    made = reporting.Benchmark("made_up.py", reporting.TOPICS[0], "Made up", "somewhere", "MIT")
    result = reporting.Result(made, "python benchmarks/made_up.py", rows, "2026-01-01", "a machine", "0.1", "abc", 0.5, 3.0)
    reporting.write(result, tmp_path / "made_up.json")
    assert reporting.read(tmp_path / "made_up.json") == result


def test_a_benchmark_ends_with_1_when_a_row_is_short(reporting: ModuleType, capsys: pytest.CaptureFixture[str]) -> None:
    made = reporting.Benchmark("made_up.py", reporting.TOPICS[0], "Made up")
    good, bad = (reporting.Row("time", value, "s", reporting.Target(high=2.0)) for value in (1.0, 3.0))
    assert reporting.finish(made, [good], None) == 0
    assert reporting.finish(made, [good, bad], None) == 1
    assert "short of target time: 3 s, target ≤ 2 s" in capsys.readouterr().out


def test_a_partial_run_replaces_its_own_rows_and_says_of_which_run_the_others_are(reporting: ModuleType) -> None:
    benchmark = reporting.Benchmark("llm_ops.py", reporting.TOPICS[0], "title")
    older = reporting.Result(benchmark, "", (reporting.Row("a", 1.0), reporting.Row("b", 2.0)), date="2026-01-01", commit="abc")
    newer = reporting.Result(benchmark, "", (reporting.Row("b", 3.0), reporting.Row("c", 4.0)), date="2026-01-02", commit="def")
    rows = reporting.merged(older, newer).rows
    assert [(row.what, row.measured) for row in rows] == [("a", 1.0), ("b", 3.0), ("c", 4.0)]
    assert [row.note for row in rows] == ["run of 2026-01-01, commit abc", "", ""]
    assert reporting.merged(reporting.merged(older, newer), newer).rows == rows


def test_the_first_screen_has_the_figure_of_each_system_that_it_names(render: ModuleType, reporting: ModuleType) -> None:
    against = "others 3,898 of 4 (2.0; twice) 98.65 %; the best, picked with hindsight, 84.8 %; slow, 2 of them: 252,391 µs"
    assert [render.beside(against, name) for name in ("others", "the best", "slow")] == ["98.65 %", "84.8 %", "252,391 µs"]
    with pytest.raises(ValueError, match="no figure of 'them'"):
        render.beside(against, "them")
    shown = render.first_screen(render.kept())
    assert len(shown) == len(render.FIRST.splitlines()) + 4 + len(render.HEADLINES)


def test_what_all_rows_of_a_table_say_stands_once_above_it(render: ModuleType, reporting: ModuleType) -> None:
    rows = [reporting.Row(what, 1.0, "s", n="3 runs", split=split) for what, split in (("one", "problems"), ("two", "sizes"))]
    assert render.table(rows) == [
        "*n* in all rows: 3 runs.",
        "",
        "| what | measured | split |",
        "| --- | --- | --- |",
        "| one | 1 s | problems |",
        "| two | 1 s | sizes |",
    ]
    assert render.table(rows[:1])[0] == "| what | measured | n | split |"


def test_a_system_that_most_rows_are_compared_with_is_a_column(render: ModuleType, reporting: ModuleType) -> None:
    against = ("them 2 s; one (a; b) 3 s", "them 4 s", "them 5.5 s; roofline 46.16 % on 85% of rows", "")
    rows = [reporting.Row(f"row {place}", 1.0, "s", against=beside) for place, beside in enumerate(against)]
    assert render.table(rows) == [
        "| what | measured | them | against | n |",
        "| --- | --- | --- | --- | --- |",
        "| row 0 | 1 s | 2 s | one (a; b) 3 s |  |",
        "| row 1 | 1 s | 4 s |  |  |",
        "| row 2 | 1 s | 5.5 s | roofline 46.16 % on 85% of rows |  |",
        "| row 3 | 1 s |  |  |  |",
    ]
