"""`kerncast.export`: write a model for programs that do not have Python."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Annotated, Any

from kerncast.api.results import model_of
from kerncast.api.showing import Wanted, shown
from kerncast.compiling.lower import Artefact, lower, refuse_several_devices
from kerncast.compiling.overrides import Overrides, decide
from kerncast.data.dataset import MANIFEST, Dataset
from kerncast.data.exporters import WRITERS
from kerncast.device import Device
from kerncast.errors import InvalidValue
from kerncast.exporting.autoheuristic import LISTED, distill_heuristic, refuse_name, write_heuristic
from kerncast.exporting.blob import write_blob
from kerncast.exporting.json_table import trained_problems, write_table
from kerncast.exporting.lookup_table import lookup_table, write_lookup_table
from kerncast.exporting.project import write_project
from kerncast.files.atomic import build_directory, refuse_existing, write_atomically
from kerncast.files.places import texts
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
from kerncast.writing.help import Help

TIERS = ",".join(CHOOSING)
FORMS = ("c", "blob", "json", "csv", "lookup-table", "autoheuristic")
# Compiling a model takes as long as ranking about this many problems in Python.
WORTH_COMPILING = 500
TABLES, PORTFOLIO = tuple(WRITERS), "portfolio"
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
    "build_list": (PORTFOLIO,),
}


def export(
    source: Annotated[Model | Dataset | str | Path, Help(metavar="MODEL|DATASET", names="models_and_data")],
    *,
    to: Annotated[
        str | None,
        Help(
            "Of a model: C99 with a C++17 header, a file that a C runtime loads, a JSON table of choices, CSV (the lines of a "
            "linear model; a folder with the weights of an mlp), or files for PyTorch's Inductor. Of a dataset: a table, or a "
            "file for another tool. Of either: the portfolio, the few configs that are enough. [default: c, csv]",
            choices=(*FORMS, *TABLES, PORTFOLIO),
        ),
    ] = None,
    out: Annotated[str | Path | None, Help("The path to write; it must not exist.", metavar="DIR|FILE")] = None,
    tiers: Annotated[
        str | Sequence[str],
        Help(
            "With c, blob: the tiers to include; others are left out. `tree` alone is the smallest.",
            metavar="TIERS",
            several=False,
        ),
    ] = TIERS,
    prefix: Annotated[
        str,
        Help(
            "With c, blob: prefix of functions, types and files; each artefact in a program needs its own. CMake: "
            "kerncast::NAME, find_package(kerncast_NAME).",
            metavar="NAME",
        ),
    ] = "kerncast",
    form: Annotated[
        str,
        Help(
            "With c: generated code, or packed tables with an interpreter: a quarter of the source.", choices=("code", "tables")
        ),
    ] = "code",
    runtime: Annotated[
        str | Path | None,
        Help("With blob: also write the C runtime to this new folder, with CMakeLists.txt and a self-test.", metavar="DIR"),
    ] = None,
    problems: Annotated[
        str | Path | Sequence[Problem | Mapping[str, Any]] | None,
        Help(
            "With json, lookup-table: the problems (.json or .parquet). [default: the training problems]",
            metavar="FILE",
            several=False,
        ),
    ] = None,
    loss: Annotated[
        float, Help("Allowed loss of the portfolio's best config, on average over held-out problems, as a share.", above=0)
    ] = 0.002,
    max_configs: Annotated[int, Help("Maximum configs in the portfolio.", metavar="N", least=1)] = 64,
    configs: Annotated[
        Configs | None,
        Help(
            "With c, json: choose from these instead of the configs that worked in training: kernels:FILE (names of kernels), "
            "build:DIR (a build folder of CK Tile), portfolio:FILE, a dataset, a benchmark file.",
            metavar="SPEC",
            several=False,
        ),
    ] = None,
    overrides: Annotated[
        Overrides | Mapping[str, Any] | str | Path | None,
        Help(
            "Which kernels exist and which choices are fixed: `available`, `deny`, [[pin]].", metavar="FILE.toml", several=False
        ),
    ] = None,
    top_k: Annotated[
        int | None,
        Help("With lookup-table, autoheuristic: configs for each problem or leaf. [default: 1, 20]", metavar="K", least=1),
    ] = None,
    device: Annotated[
        Device | str | None,
        Help("Which device, of a model that was trained on several together.", metavar="NAME", names="devices"),
    ] = None,
    device_name: Annotated[
        str | None,
        Help("With lookup-table: torch's name of the GPU, for every key. [default: keys for any device]", metavar="NAME"),
    ] = None,
    build_list: Annotated[
        str | Path | None,
        Help(
            "With portfolio: the kernels' names as the data have them, one per line: what a build has to contain.",
            metavar="FILE",
        ),
    ] = None,
    family: Annotated[
        str | None, Help("With DATASET: which family, if it holds several.", metavar="NAME", names="families")
    ] = None,
    where: Annotated[
        str | Sequence[str],
        Help("With DATASET: only some rows, such as dtype=fp16. May be repeated.", metavar="CONDITION", names="conditions"),
    ] = (),
    progress: Wanted = "auto",
) -> list[Path]:
    """Write a model or a dataset out for other programs, and return the files.

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

    A dataset is written as `csv` or `parquet`, a table with a mapping file that `read` takes; as `t4`, `kernel-tuner` or
    `tt-sweep` (see `Dataset.export`). Of a model or a dataset, `portfolio` is the smallest set of configs that is enough, as
    JSON for sweeps, with the kernels' names in `build_list` (see `Selector.portfolio`); the other kernels need not be built.

    `overrides` is an `overrides.toml` (or a mapping of the same form) that says which kernels exist and which choices are
    fixed: the model need not be trained again for it. `configs` are the configs to choose from, instead of those that worked in
    training (see `Selector`); there is only the full tier of them.
    """
    of_data = {"family": family is not None, "where": bool(texts(where))}
    if to == PORTFOLIO:
        portfolio = Selector.portfolio(
            source, loss=loss, max_configs=max_configs, family=family, where=texts(where), out=out, build_list=build_list
        )
        return [Path(place) for place in (out, build_list) if place is not None] if portfolio else []
    if out is None:
        raise InvalidValue("an export needs `out`, the path to write")
    if to in TABLES or (to is None and _is_dataset(source)):
        dataset = source if isinstance(source, Dataset) else Dataset.open(str(source))
        return dataset.export(out, to=to or TABLES[0], family=family, where=texts(where))
    if isinstance(source, Dataset) or _is_dataset(source):
        held, forms = getattr(source, "path", source), ", ".join((*TABLES, PORTFOLIO))
        raise InvalidValue(f"`to={to}` writes a model, and {held} is a dataset: use one of {forms}")
    for name in (name for name, is_given in of_data.items() if is_given):
        raise InvalidValue(f"`{name}` is for a dataset; a model has one family and its own rows: leave it out")
    to = to or FORMS[0]
    place, wanted = Path(out), named_tiers(tiers)
    if to not in FORMS:
        raise InvalidValue(f"`to` is one of {', '.join(FORMS)}, got '{to}'")
    _refuse_others(to, {
        "build_list": build_list is not None,
        "prefix": prefix != "kerncast", "tiers": wanted != CHOOSING, "problems": problems is not None,
        "runtime": runtime is not None, "form": form != "code", "configs": configs is not None,
        "overrides": overrides is not None, "top_k": top_k is not None, "device_name": device_name is not None,
    })  # fmt: skip
    if top_k is not None and top_k < 1:
        raise InvalidValue(f"`top_k` must be at least 1, got {top_k}")
    if to == "autoheuristic":
        refuse_name(place)
    refuse_existing(place)
    loaded, options = model_of(source), TierOptions(loss, max_configs)
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


def _is_dataset(source: Model | Dataset | str | Path) -> bool:
    return isinstance(source, Dataset) or (not isinstance(source, Model) and (Path(source) / MANIFEST).is_file())


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
