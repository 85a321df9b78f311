"""`kerncast.export`: write a model for programs that do not have Python."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

from kerncast.api.results import model_of
from kerncast.api.showing import Wanted, shown
from kerncast.compiling.lower import Artefact, lower, refuse_several_devices
from kerncast.compiling.overrides import Overrides, decide
from kerncast.device import Device
from kerncast.errors import InvalidValue
from kerncast.exporting.autoheuristic import LISTED, distill_heuristic, refuse_name, write_heuristic
from kerncast.exporting.blob import write_blob
from kerncast.exporting.json_table import trained_problems, write_table
from kerncast.exporting.lookup_table import lookup_table, write_lookup_table
from kerncast.exporting.project import write_project
from kerncast.files.atomic import build_directory, refuse_existing, write_atomically
from kerncast.learners.linear import Linear
from kerncast.learners.mlp import Mlp
from kerncast.learners.mlp_csv import write_network
from kerncast.models.candidates import refuse_no_candidates
from kerncast.models.given import for_export
from kerncast.models.model import Model
from kerncast.models.tier import CHOOSING, Tier, named_tiers
from kerncast.op import Config, Problem
from kerncast.progress import Progress
from kerncast.selecting.offering import Configs, offering
from kerncast.selecting.problem_files import read_problem_file
from kerncast.selecting.selector import Selector
from kerncast.selecting.tiers.build import TierOptions, plain_tiers, tiers_named

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
    "configs": ("c", "blob", "json"),
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
    configs: Configs | None = None,
    overrides: Overrides | Mapping[str, Any] | str | Path | None = None,
    top_k: int | None = None,
    device: Device | str | None = None,
    device_name: str | None = None,
    progress: Wanted = "auto",
) -> list[Path]:
    """Write a model out, and return the files.

    `c`: one .c and one .h without any dependency beyond libm, a C++17 header, a self-test with golden vectors, CMakeLists.txt
    and a pkg-config file; it chooses exactly what Python chooses. Its `form` is `code`, the fastest, or `tables`, a quarter of
    the source. `blob`: one file that a fixed C runtime loads when a program runs, with the same answers; the runtime's sources
    go to the directory `runtime`, if it is given. `json`: a table of choices. `csv`: the lines of a linear model, or a folder
    with the weights of an mlp (`train` reads it back).
    `lookup-table`: a table for `torch._inductor.lookup_table`, with the `top_k` best configs of each problem (1); keys begin
    with `device_name` if it is given. `autoheuristic`: a module for `torch._inductor.autoheuristic`, with `top_k` kernels in
    each leaf (20).

    A model of several devices is bound to one of them, `device`: to its numbers, its dtypes and the configs that worked there.
    A slim model has the full tier alone, for the others are built from measurements.

    `overrides` is an `overrides.toml` (or a mapping of the same form) that says which kernels exist and which choices are
    fixed: the model need not be trained again for it. `configs` are the configs to choose from, instead of those that worked in
    training (see `Selector`); there is only the full tier of them.
    """
    place, wanted = Path(out), named_tiers(tiers)
    if to not in FORMS:
        raise InvalidValue(f"`to` is one of {', '.join(FORMS)}, got '{to}'")
    _refuse_others(to, {
        "prefix": prefix != "kerncast", "tiers": wanted != CHOOSING, "problems": problems is not None,
        "runtime": runtime is not None, "form": form != "code", "configs": configs is not None,
        "overrides": overrides is not None, "top_k": top_k is not None, "device_name": device_name is not None,
    })  # fmt: skip
    if top_k is not None and top_k < 1:
        raise InvalidValue(f"`top_k` must be at least 1, got {top_k}")
    if to == "autoheuristic":
        refuse_name(place)
    refuse_existing(place)
    loaded, options = model_of(model), TierOptions(loss, max)
    if device is not None:
        loaded = loaded.on(device)
    if to != "csv":
        refuse_several_devices(loaded)  # before the tiers are built
    with shown(progress) as show:
        if configs is not None:
            loaded = offering(loaded, configs, progress=show)
        refuse_no_candidates(loaded)
        if to == "json":
            return _json(loaded, place, problems, overrides, show)
        if to == "csv":
            return _csv(loaded, place)
        if to == "lookup-table":
            return _lookup_table(loaded, place, problems, overrides, top_k or 1, device_name, show)
        if to == "autoheuristic":
            heuristic = distill_heuristic(loaded, options, top_k or LISTED, progress=show)
            write_heuristic(place, loaded, heuristic)
            show.say(str(heuristic))
            return [place]
        artefact = _lowered(loaded, wanted, options, overrides, show)
        if to == "blob":
            return write_blob(artefact, place, None if runtime is None else Path(runtime), prefix, progress=show)
        return write_project(artefact, place, prefix, form=form, progress=show)


def _lowered(loaded: Model, wanted: tuple[Tier, ...], options: TierOptions, overrides: Any, show: Progress) -> Artefact:
    """The model with the wanted tiers, ready to be written. Of configs that were given, the model scores each."""
    offered = loaded.given is not None
    slim = loaded.slim and bool(loaded.family.config.parameters)
    if (offered or slim) and wanted not in (CHOOSING, (Tier.FULL,)):
        which = "of configs that are given" if offered else "of a slim model"
        raise InvalidValue(
            f"`tiers` {which} are full alone, got '{','.join(wanted)}': portfolio and tree are built from measurements"
        )
    loaded = for_export(loaded)
    decided = None if overrides is None else decide(loaded, overrides)
    for note in decided.notes if decided is not None else ():
        show.say(note)
    if offered or slim:
        return lower(loaded, plain_tiers(loaded), [Tier.FULL], decided)
    built, include = tiers_named(loaded, wanted, options, progress=show)
    if built.tree is None and len(include) > 1:  # a family with nothing to choose has no tree
        include = tuple(tier for tier in include if tier is not Tier.TREE)
    if built.judged is not None:
        answered, loss = built.judged
        show.say(
            f"of held-out problems the tree answers {answered:.0%}, and loses {loss:.1%} to the model's own choice; where it "
            "is unsure, it gives a status and a fallback"
        )
    return lower(loaded, built, include, decided)


def _json(loaded: Model, out: Path, problems: Any, overrides: Any, show: Progress) -> list[Path]:
    # Of configs that were given, Python answers.
    offered = loaded.given is not None
    selector = Selector(loaded, tiers="full", compile=not offered, overrides=overrides, progress=show)
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
    learner, names = loaded.learner, loaded.manifest.features.names
    if isinstance(learner, Linear):
        write_atomically(out, learner.table().write_csv)
        return [out]
    if isinstance(learner, Mlp):
        build_directory(out, lambda folder: write_network(folder, learner, names, loaded.target))
        return sorted(out.iterdir())
    raise InvalidValue(
        f"`to=csv` writes the lines of a linear model or the weights of an mlp; {loaded.path} is {loaded.manifest.kind}: use c "
        "or json"
    )


def _refuse_others(to: str, given: Mapping[str, bool]) -> None:
    """Refuse an option that is for another form."""
    for name in (name for name, is_given in given.items() if is_given):
        if to not in ONLY[name]:
            raise InvalidValue(f"`{name}` is only for {' and '.join(f'`to={form}`' for form in ONLY[name])}: leave it out")
