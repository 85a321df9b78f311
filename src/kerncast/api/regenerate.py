"""`kerncast.regenerate`: sweep, collect, train, compare, and replace the model in the store if it is not worse."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from contextlib import nullcontext
from pathlib import Path
from typing import Any, Literal, overload

from kerncast.api.results import assignments
from kerncast.api.showing import Wanted, shown
from kerncast.collecting.request import never
from kerncast.regenerating.loop import FamilyOutcome
from kerncast.regenerating.loop import regenerate as run
from kerncast.regenerating.planning import FamilyPlan, plan
from kerncast.regenerating.routine import Routine, load
from kerncast.store.store import Store


@overload
def regenerate(routine: Routine | str | Path, *, dry_run: Literal[True], **options: Any) -> list[FamilyPlan]: ...
@overload
def regenerate(routine: Routine | str | Path, *, dry_run: Literal[False] = False, **options: Any) -> list[FamilyOutcome]: ...
def regenerate(  # type: ignore[misc]  # the overloads name what decides the result, not all options
    routine: Routine | str | Path,
    *,
    out: str | Path | None = None,
    set: Mapping[str, Any] | Sequence[str] | None = None,
    again: bool = False,
    dry_run: bool = False,
    store: Store | str | Path | None = None,
    stop: Callable[[], bool] = never,
    progress: Wanted = "auto",
) -> list[FamilyOutcome] | list[FamilyPlan]:
    """Measure, train and compare again; a new model goes into the store if it is not worse than the one there.

    `routine` is one that ships (`kerncast regenerate --help` lists them) or a TOML file; `set` changes it:
    `{"sweep.max_problems": 20}`. If it is killed, the same call continues with the current step. With `dry_run` nothing is
    written, and the result says what would be measured and compared.
    """
    wanted = routine if isinstance(routine, Routine) else load(str(routine), assignments(set))
    opened = store if isinstance(store, Store) else Store.open(store)
    if dry_run:
        return plan(wanted, opened)
    folder = Path("regenerate") / wanted.name if out is None else Path(out)
    with shown(progress) as show:
        return run(wanted, opened, folder, again=again, progress=show, listening=lambda: nullcontext(stop))
