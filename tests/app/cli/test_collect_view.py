"""The live panel of `kerncast collect`."""

import io

from rich.console import Console

from kerncast.app.api.showing import TerminalShow


def test_the_panel_shows_how_many_vectors_ended_how():
    """Below the bar, each on a line that is not cropped."""
    show = TerminalShow()
    with show.lock:  # counting alone: nothing is drawn on a terminal here
        show.counting, show.total = True, 40
    for number in range(15):
        status = "ok" if number < 12 else "crash"
        show.result(status, device="0", problem={"M": 8}, time_ns=1e3 if status == "ok" else None)
    console = Console(record=True, width=100, file=io.StringIO())
    console.print(show.panel())
    lines = console.export_text().splitlines()
    assert lines[0].startswith("15 of 40 vectors")
    assert [line.strip() for line in lines[2:4]] == ["ok 12  crash 3", "device 0: 15"]
