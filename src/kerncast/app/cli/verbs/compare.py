"""`kerncast compare`."""

from __future__ import annotations

from pathlib import Path
from typing import Annotated

from kerncast.app.api.compare import compare
from kerncast.app.cli.verb import Call, verb
from kerncast.app.cli.views.evaluation import show
from kerncast.app.cli.views.output import Json, print_json, working
from kerncast.core.io.arguments import Help, check_place
from kerncast.evaluating.results import write_predictions
from kerncast.evaluating.text import verdict_blocks


@verb("compare", compare)
def command(call: Call, *, strict: Annotated[bool, Help("Exit 1 on AMBIGUOUS too.")] = False, as_json: Json = False) -> None:
    """Is the new model safe to ship? BETTER, SAME, WORSE (exit 1) or AMBIGUOUS, with reasons.

    The models are compared problem by problem, on problems that neither was trained on.

    \b
    kerncast compare model model2 held_out
    kerncast compare model model2 held_out --tier tree
    kerncast compare model model2 held_out --strict --max-p10 1 --json
    """
    place = call["save_predictions"] and Path(call["save_predictions"])
    check_place("save_predictions", place)
    with working("comparing"):
        found = call(save_predictions=None)
    # Print the verdict first, so that a full disk cannot lose it.
    if as_json:
        print_json(found.as_json())
    else:
        show(verdict_blocks(found.verdict, found.reasons, found.as_json()))
    if place is not None:
        write_predictions(place, found.problems)
    if found.verdict == "WORSE" or (strict and found.verdict == "AMBIGUOUS"):
        raise SystemExit(1)
