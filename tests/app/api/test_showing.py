"""What shows progress: chosen by where it runs, honest about what is left."""

import io
import sys
import types
from queue import SimpleQueue

import pytest
from rich.console import Console

from kerncast.app.api import showing
from kerncast.app.api.showing import Account, LineShow, NotebookShow, Pace, SparseShow, TerminalShow, left_in_words, shown
from kerncast.core.progress import QUIET, Progress


@pytest.fixture
def clock(monkeypatch):
    """Time that passes when it is told to."""
    moment = types.SimpleNamespace(now=1000.0)
    monkeypatch.setattr(showing.time, "monotonic", lambda: moment.now)
    return moment


@pytest.fixture
def notebook(monkeypatch):
    """A kernel whose outputs are remembered: each a list of what its line said."""
    outputs = []

    class Handle:
        def __init__(self, first):
            self.texts = [repr(first)]

        def update(self, value):
            self.texts.append(repr(value))

    def display(value, display_id):
        outputs.append(Handle(value))
        return outputs[-1]

    package = types.ModuleType("IPython")
    package.get_ipython = lambda: types.SimpleNamespace(kernel=object())
    package.display = types.ModuleType("IPython.display")
    package.display.display = display
    monkeypatch.setitem(sys.modules, "IPython", package)
    monkeypatch.setitem(sys.modules, "IPython.display", package.display)
    return outputs


def terminal(monkeypatch, is_one):
    monkeypatch.setattr(sys.stderr, "isatty", lambda: is_one, raising=False)


def text_of(renderable):
    console = Console(record=True, width=140, file=io.StringIO())
    console.print(renderable)
    return console.export_text()


def kind(progress, **options):
    with shown(progress, **options) as found:
        return type(found)


def test_who_shows_depends_on_where_it_runs(monkeypatch):
    """Rich on a terminal; elsewhere a line now and then, or all lines for those who asked for them."""
    mine = Progress()
    with shown(mine) as found:
        assert found is mine
    terminal(monkeypatch, True)
    assert kind("auto") is kind(True) is TerminalShow
    for silent in (False, None):
        with shown(silent, plain=True) as found:
            assert found is QUIET
    terminal(monkeypatch, False)
    assert kind("auto") is SparseShow
    assert kind("auto", plain=True) is kind(True) is LineShow


def test_a_script_hears_nothing_of_short_work_and_a_line_every_ten_seconds_of_long(capsys, clock):
    """Whatever stages it has, and also where a stage reports nothing."""
    show = SparseShow()
    show.stage("compiling")
    show.step("trees", 1, 10)
    clock.now += 9
    show._print(10.0)
    assert capsys.readouterr().err == ""
    clock.now += 1
    show._print(10.0)
    assert capsys.readouterr().err.startswith("compiling: trees 1/10")


def test_short_calls_that_follow_each_other_are_not_silent(clock):
    """Silence counts from the last line, over calls without a pause; after a pause it counts from the next call."""
    clock.now += 1000
    began = clock.now
    for _ in range(3):
        with SparseShow() as show:
            clock.now += 6
        assert show.printed == began
    clock.now += 60
    assert SparseShow().printed == clock.now


def test_a_notebook_has_one_line_that_is_written_again(notebook, monkeypatch, clock):
    """One output for all stages; in the end it says how long it took."""
    terminal(monkeypatch, False)
    with shown("auto", what="reading the measurements") as progress:
        assert isinstance(progress, NotebookShow)
        progress.stage("fold 1 of 2", 1, 3)
        clock.now += 10
        progress.stage("fold 2 of 2", 2, 3)
        clock.now += 1
        progress.step("trees", 50, 100)
    (output,) = notebook
    assert output.texts[0] == "reading the measurements"
    assert "fold 2 of 2, left 0:00:20" in output.texts
    assert output.texts[-2].startswith("fold 2 of 2: trees 50/100, left 0:00:")
    assert output.texts[-1] == "done in 0:00:11"


def test_ipython_on_a_terminal_is_no_notebook(notebook, monkeypatch):
    """It has no kernel: a terminal is drawn on as any other."""
    monkeypatch.setattr(sys.modules["IPython"], "get_ipython", lambda: object())
    terminal(monkeypatch, True)
    assert kind("auto") is TerminalShow


def test_the_time_left_is_known_from_two_points_on_and_a_guess_says_so(clock):
    """About, until something is measured; about again when nothing moves; unknown when the guess was too short."""
    pace = Pace()
    assert left_in_words(*pace.left(100)) == "unknown"
    pace.guessed = 60.0
    clock.now += 20
    assert left_in_words(*pace.left(100)) == "about 0:00:40"
    pace.add(10)
    assert left_in_words(*pace.left(100)) == "0:03:00"
    for _ in range(3):
        clock.now += 40
        pace.add(10)
    assert left_in_words(*pace.left(100)) == "about 0:21:00"
    late = Pace()
    late.guessed = 5.0
    clock.now += 6
    assert left_in_words(*late.left(None)) == "unknown"


def test_a_guess_holds_until_what_it_is_of_is_measured(clock):
    """Given before the work begins, it is not forgotten when the first part does."""
    account = Account()
    account.guess(100.0)
    clock.now += 10
    account.expect("vectors", 1000)
    assert account.line() == "0 of 1,000 vectors, 0/s, left about 0:01:30, disturbed 0.0%"
    for _ in range(100):
        account.result("ok", device="0", samples=4, disturbed=1)
    clock.now += 5
    account.tick()
    assert account.line() == "100 of 1,000 vectors, 20/s, left 0:00:45, disturbed 25.0%, ok 100"
    account.expect("near-ties raced again", 40)
    assert "left unknown" in account.line()


def test_parts_that_begin_again_have_a_pace_of_their_own(clock):
    """Stages of one work go on; the folds of the next training, or another count, start at zero."""
    account = Account()
    account.stage("gemm/cpu: train", 3, 5)
    clock.now += 60
    account.stage("fold 1 of 2", 1, 3)
    assert (account.share, account.remaining()) == (0.0, "unknown")
    clock.now += 10
    account.stage("fold 2 of 2", 2, 3)
    assert account.remaining() == "0:00:20"
    account.step("trees", 500, 500)
    account.step("trees", 10, 500)
    assert account.share == pytest.approx(2 / 3)


def test_lines_come_once_a_stage_and_now_and_then(clock, capsys):
    """As the command line prints them where stderr is no terminal."""
    show = LineShow("sweeping")
    show.step("vectors", 1000)
    clock.now += 6
    show.step("vectors", 12_000)
    show.stage("fold 1 of 5", 1, 6)
    show.step("trees", 5, 10)
    show.stage("gemm/cpu: sweep (done before)", 1, 5)
    show.expect("vectors", None)
    show.tick()
    clock.now += 11
    show.result("ok")
    show.tick()
    show.say("stopping")
    assert capsys.readouterr().err.splitlines() == [
        "sweeping: 12,000 vectors, 2,000/s",
        "fold 1 of 5 ...",
        "gemm/cpu: sweep (done before)",
        "1 vectors, 0/s, left unknown, disturbed 0.0%, ok 1",
        "kerncast: stopping",
    ]


def test_a_log_hears_of_a_stage_that_says_nothing(monkeypatch):
    """A compiler is silent: a line now and then says what is being done, for how long, and what a guess leaves."""
    lines = SimpleQueue()
    monkeypatch.setattr(showing, "BEAT_SECONDS", 0.001)
    monkeypatch.setattr(showing, "PLAIN_SECONDS", 0.01)
    monkeypatch.setattr(showing, "echo", lambda text, err: lines.put(text))
    with LineShow() as show:
        show.stage("compiling")
        assert lines.get(timeout=60) == "compiling ..."
        assert lines.get(timeout=60) == "compiling (0:00:00 so far)"
        show.guess(3600.0)
        while "left" not in (said := lines.get(timeout=60)):
            pass
        assert said == "compiling, left about 1:00:00 (0:00:00 so far)"
    while not lines.empty():
        lines.get()
    assert not show._beating.is_alive()


def test_plain_lines_say_how_far_a_known_total_is_and_what_is_left(clock, capsys):
    """As in a log of `train`: a line every ten seconds, with the time left."""
    show = LineShow()
    show.stage("folds", 1, 1)
    for done in range(0, 50, 5):
        clock.now += 3
        show.step("trees", done, 100)
    lines = capsys.readouterr().err.splitlines()
    assert lines[0] == "folds ..."
    assert len(lines) == 3
    assert lines[-1].startswith("folds: trees 35/100, left 0:00:")


def test_a_terminal_has_a_bar_for_stages_and_a_panel_for_results(monkeypatch, clock):
    """One display for both, and a moving line where nothing can be counted."""
    show = TerminalShow("loading")
    monkeypatch.setattr(show, "_start", lambda: None)
    show.spinner = types.SimpleNamespace(update=lambda text: setattr(show, "moving", text.plain))
    assert show.drawn() is show.spinner
    assert show.moving == "loading"
    show.stage("fold 1 of 5", 1, 6)
    clock.now += 30
    show.step("trees for time", 250, 500)
    bar = text_of(show.drawn())
    assert bar.startswith("fold 1 of 5: trees for time 250/500 ")
    assert bar.rstrip().endswith("8% 0:00:30 left 0:05:30")
    show.expect("vectors", 40)
    show.result("ok", device="0", problem={"M": 8}, time_ns=1e3)
    assert text_of(show.drawn()).startswith("1 of 40 vectors")
    show.stage("compiling")
    assert show.drawn() is show.spinner
    assert show.moving == "compiling"


def test_a_real_live_display_starts_speaks_and_ends(monkeypatch):
    """On a terminal that is a text buffer: what was said stays, nothing fails in the thread that draws."""
    buffer = io.StringIO()
    monkeypatch.setattr("rich.console.Console", lambda **_: Console(file=buffer, force_terminal=True, width=100))
    with TerminalShow("reading") as show:
        show.stage("fold 1 of 2", 1, 2)
        show.step("trees", 3, 10)
        show.say("[a] sentence")
        show.expect("vectors", 4)
        show.result("ok", device="0", problem={"M": 8}, time_ns=1e3)
        show.tick()
    assert "kerncast: [a] sentence" in buffer.getvalue()
