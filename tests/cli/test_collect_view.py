"""The live view of `kerncast collect`."""

import io

from rich.console import Console

from kerncast.cli.views.collect import CollectView
from kerncast.collecting.messages import Item, Result


def test_the_panel_shows_how_many_vectors_ended_how():
    """Below the bar, each on a line that is not cropped."""
    view = CollectView(40)
    for number in range(15):
        status = "ok" if number < 12 else "crash"
        view.result(Item(str(number), {"M": 8}, {}), Result(str(number), status, time_ns=1e3 if status == "ok" else None), "0")
    console = Console(record=True, width=100, file=io.StringIO())
    console.print(view._panel())
    lines = console.export_text().splitlines()
    assert lines[0].startswith("15 of 40 vectors")
    assert [line.strip() for line in lines[2:4]] == ["ok 12  crash 3", "device 0: 15"]
