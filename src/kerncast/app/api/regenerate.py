"""`kerncast.regenerate`: sweep, collect, train, compare and replace; or continue a model; or a first look at this machine."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from contextlib import nullcontext
from pathlib import Path
from typing import Annotated, Any, Literal, overload

from kerncast.app.api.arguments import Data, Datasets, StoreOf, store_of
from kerncast.app.api.read import paths_of
from kerncast.app.api.showing import Wanted, shown
from kerncast.core.io.arguments import Help, assignment_texts
from kerncast.core.progress import never
from kerncast.errors import InvalidValue
from kerncast.evaluating.compare import LIMITS, Limits
from kerncast.evaluating.evaluation import open_all
from kerncast.models.model import Model
from kerncast.regenerating.loop import FamilyOutcome
from kerncast.regenerating.loop import regenerate as run
from kerncast.regenerating.planning import FamilyPlan, plan
from kerncast.regenerating.quickstart import Quickstart
from kerncast.regenerating.quickstart import quickstart as begin
from kerncast.regenerating.routine import Routine, load
from kerncast.regenerating.updating import Updated
from kerncast.regenerating.updating import update as continued
from kerncast.torch.observed_log import FOLDER
from kerncast.torch.observed_rows import gather


@overload
def regenerate(routine: Literal["quickstart"], **options: Any) -> Quickstart: ...
@overload
def regenerate(routine: Literal["update"], model: Model | str | Path, data: Data, **options: Any) -> Updated: ...
@overload
def regenerate(routine: Routine | str | Path, *, dry_run: Literal[True], **options: Any) -> list[FamilyPlan]: ...
@overload
def regenerate(routine: Routine | str | Path, *, dry_run: Literal[False] = False, **options: Any) -> list[FamilyOutcome]: ...
def regenerate(routine: Routine | str | Path, *given: Any, **options: Any) -> Any:
    """Run a routine: measure, train, compare and, with `replace`, put the new model in the place of the old one.

    `quickstart` measures GEMM kernels here and shows what choosing is worth (`first_look` has its options); `update` continues
    a model with new data (`update`); any other name, or a TOML file, is a routine of sweep, collect, train, compare and
    replace (`rerun`).
    """
    functions: dict[str, Callable[..., Any]] = {"quickstart": first_look, "update": update}
    if isinstance(routine, str) and routine in functions:
        return functions[routine](*given, **options)
    return rerun(routine, *given, **options)


def rerun(
    routine: Routine | str | Path,
    *,
    out: Annotated[
        str | Path | None,
        "Where measurements and models are kept until they are in the store. [default: regenerate/ROUTINE]",
        Help(metavar="WORKDIR"),
    ] = None,
    replace: Annotated[bool, Help("Replace the model in the store if the new one is not worse.")] = False,
    changes: Annotated[
        Mapping[str, Any] | Sequence[str] | None,
        Help("Change the routine: sweep.max_problems=20. May be repeated.", metavar="KEY=VALUE", option="--set"),
    ] = None,
    again: Annotated[bool, Help("Start a new run if WORKDIR is finished; the finished run is renamed, not removed.")] = False,
    dry_run: Annotated[bool, Help("Say what would be measured and compared; write nothing.")] = False,
    store: StoreOf = None,
    stop: Callable[[], bool] = never,
    progress: Wanted = "auto",
) -> list[FamilyOutcome] | list[FamilyPlan]:
    """Measure, train and compare again; a new model goes into the store if there is none, or takes its place if not worse.

    `routine` is one that ships (`kerncast regenerate --help` lists them) or a TOML file; `changes` are those of its keys:
    `{"sweep.max_problems": 20}`. Only with `replace` does the new model take the place of one in the store; else it stays in
    `out`. If it is killed, the same call continues with the current step. With `dry_run` nothing is written, and the result
    says what would be measured and compared.
    """
    wanted = routine if isinstance(routine, Routine) else load(str(routine), assignment_texts(changes))
    opened = store_of(store)
    if dry_run:
        return plan(wanted, opened)
    folder = Path("regenerate") / wanted.name if out is None else Path(out)
    with shown(progress) as show:
        return run(wanted, opened, folder, again=again, replace=replace, progress=show, listening=lambda: nullcontext(stop))


def update(
    model: Annotated[Model | str | Path, Help(metavar="MODEL", names="stored_models")],
    data: Datasets,
    *,
    out: Annotated[str | Path | None, Help("Write the new model there, and leave MODEL as it is.", metavar="DIR")] = None,
    replace: Annotated[bool, Help("Replace MODEL if the new one is not worse; it is kept as MODEL.previous.")] = False,
    pool: Annotated[
        bool,
        Help(
            "Also use rows of another backend, software or cache state, scaled to the model's. What torch.compile timed with "
            "the model's software is used without it."
        ),
    ] = False,
    limits: Limits = LIMITS,
    seed: Annotated[int, Help("Seed of the hold-out and the training.", least=0)] = 0,
    threads: Annotated[int, Help("Cores to train with. [default: all]", least=0)] = 0,
    dry_run: Annotated[bool, Help("Say what would be learned; train and write nothing.")] = False,
    store: StoreOf = None,
    progress: Wanted = "auto",
) -> Updated:
    """Continue a model with the rows of `data` that it has not learned from, and keep the result if it is BETTER or SAME.

    `model` is a model, its directory, or an id in the store. It is judged on held-out problems of the new data and on the old
    data, by the limits of `compare`. The new model is written to `out`, or takes the place of the old one with `replace`; then
    the old one is kept as `MODEL.previous` (in the store: under that name). `pool` also learns from rows of another backend,
    software or cache state, whose times are scaled to the model's; what torch.compile timed with the model's software is
    learned from without it. With `dry_run` nothing is trained or written, and the result says what would be learned.
    """
    if not dry_run and replace is (out is not None):
        raise InvalidValue("say where the new model goes: a folder as `out`, or the place of the old one with `replace`")
    opened = store_of(store)
    place = None if out is None else Path(out)
    paths = paths_of(data)
    for path in paths:
        if not dry_run and (path / FOLDER).is_dir():
            gather(path)  # what processes recorded that were killed
    with shown(progress) as show:
        return continued(
            model, open_all(paths), opened, out=place, pool=pool, limits=limits, seed=seed, threads=threads,
            dry_run=dry_run, progress=show,
        )  # fmt: skip


def first_look(
    *,
    out: Annotated[str | Path, Help("Where to write.", metavar="DIR")] = "quickstart",
    full: Annotated[bool, Help("300 shapes in fp32 and bf16, all twice, instead of 44 in fp32: about an hour.")] = False,
    progress: Wanted = "auto",
) -> Quickstart:
    """Measure GEMM kernels here, train and evaluate a model, write a report and export it to C, in about five minutes.

    `full` measures 300 shapes in fp32 and bf16, twice, in about an hour.
    """
    with shown(progress) as show:
        return begin(Path(out), full=full, progress=show)
