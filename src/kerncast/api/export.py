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
from kerncast.exporting.autoheuristic import LISTED, distill_heuristic, refuse_name, write_heuristic
from kerncast.exporting.blob import write_blob
from kerncast.exporting.json_table import trained_problems, write_table
from kerncast.exporting.lookup_table import lookup_table, write_lookup_table
from kerncast.exporting.project import write_project
from kerncast.files.atomic import refuse_existing, write_atomically
from kerncast.learners.linear import Linear
from kerncast.models.model import Model
from kerncast.models.tier import CHOOSING
from kerncast.op import Config, Problem
from kerncast.progress import Progress
from kerncast.selecting.problem_files import read_problem_file
from kerncast.selecting.selector import Selector
from kerncast.selecting.tiers.build import TierOptions, plain_tiers, tiers_of

TIERS = ",".join(CHOOSING)
FORMS = ("c", "blob", "json", "csv", "lookup-table", "autoheuristic")
# Compiling a model takes as long as ranking about this many problems in Python.
WORTH_COMPILING = 500
# The forms that each of these options is for.
ONLY = {
    "prefix": ("c", "blob"),
    "tiers": ("c", "blob"),
    "runtime": ("blob",),
    "form": ("c",),
    "problems": ("json", "lookup-table"),
    "overrides": ("c", "blob", "json", "lookup-table"),
    "top_k": ("lookup-table", "autoheuristic"),
    "device_name": ("lookup-table",),
}


def export(
    model: Model | str | Path,
    out: str | Path,
    *,
    to: str = "c",
    tiers: str | Sequence[str] = TIERS,
    prefix: str = "kerncast",
    form: str = "code",
    runtime: str | Path | None = None,
    problems: str | Path | Sequence[Problem | Mapping[str, Any]] | None = None,
    loss: float = 0.002,
    max: int = 64,
    overrides: Overrides | Mapping[str, Any] | str | Path | None = None,
    top_k: int | None = None,
    device_name: str | None = None,
    progress: Wanted = "auto",
) -> list[Path]:
    """Write a model out, and return the files.

    `c`: one .c and one .h without any dependency beyond libm, a C++17 header, a self-test with golden vectors, CMakeLists.txt
    and a pkg-config file; it chooses exactly what Python chooses. Its `form` is `code`, the fastest, or `tables`, a quarter of
    the source. `blob`: one file that a fixed C runtime loads when a program runs, with the same answers; the runtime's sources
    go to the directory `runtime`, if it is given. `json`: a table of choices. `csv`: the lines of a linear model.
    `lookup-table`: a table for `torch._inductor.lookup_table`, with the `top_k` best configs of each problem (1); keys begin
    with `device_name` if it is given. `autoheuristic`: a module for `torch._inductor.autoheuristic`, with `top_k` kernels in
    each leaf (20).

    `overrides` is an `overrides.toml` (or a mapping of the same form) that says which kernels exist and which choices are
    fixed: the model need not be trained again for it.
    """
    place, wanted = (
        Path(out),
        [item.strip() for item in (tiers.split(",") if isinstance(tiers, str) else tiers) if item.strip()],
    )
    if to not in FORMS:
        raise InvalidValue(f"`to` is one of {', '.join(FORMS)}, got '{to}'")
    _refuse_others(to, {
        "prefix": prefix != "kerncast", "tiers": wanted != TIERS.split(","), "problems": problems is not None,
        "runtime": runtime is not None, "form": form != "code",
        "overrides": overrides is not None, "top_k": top_k is not None, "device_name": device_name is not None,
    })  # fmt: skip
    if top_k is not None and top_k < 1:
        raise InvalidValue(f"`top_k` must be at least 1, got {top_k}")
    if to == "autoheuristic":
        refuse_name(place)
    refuse_existing(place)
    loaded, options = model_of(model), TierOptions(loss, max)
    with shown(progress) as show:
        if to == "json":
            return _json(loaded, place, problems, options, overrides, show)
        if to == "csv":
            return _csv(loaded, place)
        if to == "lookup-table":
            return _lookup_table(loaded, place, problems, overrides, top_k or 1, device_name, show)
        if to == "autoheuristic":
            heuristic = distill_heuristic(loaded, options, top_k or LISTED, progress=show)
            write_heuristic(place, loaded, heuristic)
            show.say(str(heuristic))
            return [place]
        decided = None if overrides is None else decide(loaded, overrides)
        for note in decided.notes if decided is not None else ():
            show.say(note)
        built = tiers_of(loaded, options, progress=show)
        # A family with nothing to choose has no tree.
        include = [item for item in wanted if item != "tree" or built.tree is not None]
        artefact = lower(loaded, built, include, decided)
        if to == "blob":
            return write_blob(artefact, place, None if runtime is None else Path(runtime), prefix, progress=show)
        return write_project(artefact, place, prefix, form=form, progress=show)


def _json(loaded: Model, out: Path, problems: Any, options: TierOptions, overrides: Any, show: Progress) -> list[Path]:
    selector = Selector(loaded, tier="full", options=options, overrides=overrides, progress=show)
    asked = _asked(loaded, problems)
    show.stage(f"deciding {len(asked):,} problems")
    write_table(out, loaded, [answer.as_json() for answer in selector.select_many(asked)])
    return [out]


def _asked(loaded: Model, problems: Any) -> Sequence[Any]:
    """The problems to choose for: those given, else the training problems."""
    if problems is None:
        return trained_problems(loaded)
    return read_problem_file(Path(problems), loaded.family) if isinstance(problems, str | Path) else list(problems)


def _lookup_table(
    loaded: Model, out: Path, problems: Any, overrides: Any, top_k: int, device_name: str | None, show: Progress
) -> list[Path]:
    wanted = _asked(loaded, problems)
    selector = Selector(
        loaded,
        tiers=plain_tiers(loaded),
        tier="full",
        overrides=overrides,
        compile=len(wanted) > WORTH_COMPILING,
        progress=show,
    )
    asked = [selector.problem(item) for item in wanted]
    show.stage(f"deciding {len(asked):,} problems")

    def best(problem: Problem, count: int) -> list[Config]:
        return [answer.config for answer in selector.rank(problem, count) if answer.ok and answer.config is not None]

    table = lookup_table(
        loaded.family, ((problem, best(problem, top_k)) for problem in asked),
        lambda problem: best(problem, len(selector.configs)), device_name,
    )  # fmt: skip
    write_lookup_table(out, table)
    for note in table.notes():
        show.say(note)
    return [out]


def _csv(loaded: Model, out: Path) -> list[Path]:
    if not isinstance(loaded.learner, Linear):
        raise InvalidValue(
            f"`to=csv` writes the lines of a linear model; {loaded.path} is {loaded.manifest.kind}: use c or json"
        )
    write_atomically(out, loaded.learner.table().write_csv)
    return [out]


def _refuse_others(to: str, given: Mapping[str, bool]) -> None:
    """Refuse an option that is for another form."""
    for name in (name for name, is_given in given.items() if is_given):
        if to not in ONLY[name]:
            raise InvalidValue(f"`{name}` is only for {' and '.join(f'`to={form}`' for form in ONLY[name])}: leave it out")
