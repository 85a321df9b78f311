"""`kerncast.export`: write a model for programs that do not have Python."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

from kerncast.api.results import model_of
from kerncast.api.showing import Wanted, shown
from kerncast.compiling.lower import lower
from kerncast.compiling.overrides import Overrides, decide
from kerncast.errors import InvalidValue
from kerncast.exporting.json_table import trained_problems, write_table
from kerncast.exporting.project import write_project
from kerncast.files.atomic import refuse_existing, write_atomically
from kerncast.learners.linear import Linear
from kerncast.models.model import Model
from kerncast.models.tier import CHOOSING
from kerncast.op import Problem
from kerncast.progress import Progress
from kerncast.selecting.problem_files import read_problem_file
from kerncast.selecting.selector import Selector
from kerncast.selecting.tiers.build import TierOptions, tiers_of

TIERS = ",".join(CHOOSING)
FORMS = ("c", "json", "csv")


def export(
    model: Model | str | Path,
    out: str | Path,
    *,
    to: str = "c",
    tiers: str | Sequence[str] = TIERS,
    prefix: str = "kerncast",
    problems: str | Path | Sequence[Problem | Mapping[str, Any]] | None = None,
    loss: float = 0.002,
    max: int = 64,
    overrides: Overrides | Mapping[str, Any] | str | Path | None = None,
    progress: Wanted = "auto",
) -> list[Path]:
    """Write a model out, and return the files.

    `c`: one .c and one .h without any dependency beyond libm, a C++17 header, a self-test with golden vectors,
    CMakeLists.txt and a pkg-config file; it chooses exactly what Python chooses. `json`: a table of choices. `csv`: the lines
    of a linear model.

    `overrides` is an `overrides.toml` (or a mapping of the same form) that says which kernels exist and which choices are
    fixed: the model need not be trained again for it.
    """
    place, wanted = (
        Path(out),
        [item.strip() for item in (tiers.split(",") if isinstance(tiers, str) else tiers) if item.strip()],
    )
    if to not in FORMS:
        raise InvalidValue(f"`to` is one of {', '.join(FORMS)}, got '{to}'")
    if to != "c" and (prefix != "kerncast" or wanted != TIERS.split(",")):
        raise InvalidValue("`prefix` and `tiers` are only for `to=c`: leave them out")
    if to != "json" and problems is not None:
        raise InvalidValue("`problems` is only for `to=json`: leave it out")
    if to == "csv" and overrides is not None:
        raise InvalidValue("`overrides` are for `to=c` and `to=json`: leave them out")
    refuse_existing(place)
    loaded, options = model_of(model), TierOptions(loss, max)
    with shown(progress) as show:
        if to == "json":
            return _json(loaded, place, problems, options, overrides, show)
        if to == "csv":
            return _csv(loaded, place)
        decided = None if overrides is None else decide(loaded, overrides)
        for note in decided.notes if decided is not None else ():
            show.say(note)
        built = tiers_of(loaded, options, progress=show)
        # A family with nothing to choose has no tree.
        include = [item for item in wanted if item != "tree" or built.tree is not None]
        return write_project(lower(loaded, built, include, decided), place, prefix, progress=show)


def _json(loaded: Model, out: Path, problems: Any, options: TierOptions, overrides: Any, show: Progress) -> list[Path]:
    selector = Selector(loaded, tier="full", options=options, overrides=overrides, progress=show)
    if problems is None:
        asked: Sequence[Any] = trained_problems(loaded)
    else:
        asked = read_problem_file(Path(problems), loaded.family) if isinstance(problems, str | Path) else problems
    show.stage(f"deciding {len(asked):,} problems")
    write_table(out, loaded, [answer.as_json() for answer in selector.select_many(asked)])
    return [out]


def _csv(loaded: Model, out: Path) -> list[Path]:
    if not isinstance(loaded.learner, Linear):
        raise InvalidValue(
            f"`to=csv` writes the lines of a linear model; {loaded.path} is {loaded.manifest.kind}: use c or json"
        )
    write_atomically(out, loaded.learner.table().write_csv)
    return [out]
