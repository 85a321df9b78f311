"""`kerncast evaluate`."""

from __future__ import annotations

from pathlib import Path

from kerncast.app.api.evaluate import evaluate, write_files
from kerncast.app.api.printing import echo
from kerncast.app.api.showing import shown
from kerncast.app.cli.verb import Call, verb
from kerncast.app.cli.views.evaluation import show
from kerncast.app.cli.views.output import Json, print_json
from kerncast.core.io.arguments import check_place
from kerncast.evaluating.text import evaluation_blocks
from kerncast.models.model import Model


@verb("evaluate", evaluate)
def command(call: Call, *, as_json: Json = False) -> None:
    """Score a model against the best measured config of every problem that it has not seen.

    Problems that the model was trained on are left out and counted. To judge on the training data itself, refit
    the recipe fold by fold with --split. With --on ray, every fold of --split, of all --seeds, is a task of a cluster; the
    figures are the same.

    \b
    kerncast evaluate model new_measurements
    kerncast evaluate model quickstart/gemm_cpu --split problem --report report.html
    kerncast evaluate model quickstart/gemm_cpu --split problem --off-grid
    kerncast evaluate model h100 --split nk --json
    """
    report, rows = (None if call[name] is None else Path(call[name]) for name in ("report", "save_predictions"))
    check_place("report", report)
    check_place("save_predictions", rows)
    loaded = Model.load(call["model"])
    with shown(plain=True) as progress:
        found = call(model=loaded, report=None, save_predictions=None, progress=progress)
    # Print the figures first, so that a full disk cannot lose them.
    if as_json:
        print_json(found.as_json(call["worst"]))
    else:
        show(evaluation_blocks(found.as_json(), call["worst"]))
    with shown(plain=True) as progress:
        write_files(found, loaded, report, rows, progress)
    if report is not None and not as_json:
        echo("", f"report: {report}")
