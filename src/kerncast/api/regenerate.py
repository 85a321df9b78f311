"""`kerncast.regenerate`: sweep, collect, train, compare, and replace the model in the store if it is not worse."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from contextlib import nullcontext
from pathlib import Path
from typing import Annotated, Any, Literal, overload

from kerncast.api.parameters import StoreOf
from kerncast.api.results import assignments
from kerncast.api.showing import Wanted, shown
from kerncast.collecting.request import never
from kerncast.regenerating.planning import Planned, plan
from kerncast.regenerating.routine import Routine, load
from kerncast.regenerating.run import Outcome
from kerncast.regenerating.run import regenerate as run
from kerncast.store.store import Store
from kerncast.writing.help import Help


@overload
def regenerate(routine: Routine | str | Path, *, dry_run: Literal[True], **options: Any) -> list[Planned]: ...
@overload
def regenerate(routine: Routine | str | Path, *, dry_run: Literal[False] = False, **options: Any) -> list[Outcome]: ...
def regenerate(  # type: ignore[misc]  # the overloads name what decides the result, not all options
    routine: Routine | str | Path,
    *,
    out: Annotated[
        str | Path | None,
        Help(
            "Where measurements and models are kept until they are in the store. [default: regenerate/ROUTINE]",
            metavar="WORKDIR",
        ),
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
) -> list[Outcome] | list[Planned]:
    """Measure, train and compare again; a new model goes into the store if there is none, or takes its place if not worse.

    `routine` is one that ships (`kerncast regenerate --help` lists them) or a TOML file; `changes` are those of its keys:
    `{"sweep.max_problems": 20}`. Only with `replace` does the new model take the place of one in the store; else it stays in
    `out`. If it is killed, the same call continues with the current stage. With `dry_run` nothing is written, and the result
    says what would be measured and compared.
    """
    wanted = routine if isinstance(routine, Routine) else load(str(routine), assignments(changes))
    opened = store if isinstance(store, Store) else Store.open(store)
    if dry_run:
        return plan(wanted, opened)
    folder = Path("regenerate") / wanted.name if out is None else Path(out)
    with shown(progress) as show:
        return run(wanted, opened, folder, again=again, replace=replace, progress=show, listening=lambda: nullcontext(stop))
