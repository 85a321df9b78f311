"""`kerncast.predict`: how long an op takes on a device, without a model at hand."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any, overload

from kerncast.api.showing import Wanted, shown
from kerncast.device import Device
from kerncast.errors import InvalidValue, NotFound
from kerncast.models.problem_frames import bare
from kerncast.querying.predicting import OpAnswerer, devices_of
from kerncast.querying.prediction import Prediction
from kerncast.selecting import compiled as compiled
from kerncast.store.store import Store
from kerncast.writing.bars import Bar, bars_page, bars_svg
from kerncast.writing.terminal import assignments, duration, known

PICTURES = {"svg": bars_svg, "html": bars_page}

# Problems from which on an answer may take longer than a second.
WORTH_SHOWING = 5_000


@overload
def predict(
    op: str,
    problems: Mapping[str, Any],
    *,
    device: Device | str | Path,
    software: str | None = None,
    family: str | None = None,
    store: Store | str | Path | None = None,
    config: Mapping[str, Any] | None = None,
    progress: Wanted = "auto",
) -> Prediction: ...
@overload
def predict(
    op: str,
    problems: Sequence[Mapping[str, Any]],
    *,
    device: Device | str | Path,
    software: str | None = None,
    family: str | None = None,
    store: Store | str | Path | None = None,
    config: Mapping[str, Any] | None = None,
    progress: Wanted = "auto",
) -> list[Prediction]: ...
def predict(
    op: str,
    problems: Mapping[str, Any] | Sequence[Mapping[str, Any]],
    *,
    device: Device | str | Path,
    software: str | None = None,
    family: str | None = None,
    store: Store | str | Path | None = None,
    config: Mapping[str, Any] | None = None,
    progress: Wanted = "auto",
) -> Prediction | list[Prediction]:
    """Predict how long problems of an op take on a device: one problem gives one answer, a list a list.

    A model of your store that covers the problem answers, else one that comes with the package, else the roofline;
    `basis` and `card` say which it was. `device` is the name of a profile, the path of a TOML profile, or a `Device`.
    `software` is a short name (`vllm`, `vllm==0.24.0`). Parameters of which the model saw one value only are filled in
    (`filled`). Without a `config`, the best one that the model knows is predicted.
    """
    given = str(device) if isinstance(device, Path) else device
    if not isinstance(given, str | Device):
        raise InvalidValue(f"`device` is a name, the path of a profile or a Device, got {type(device).__name__}")
    alone = isinstance(problems, Mapping)
    listed = [bare(problem) for problem in ([problems] if isinstance(problems, Mapping) else problems)]
    opened = store if isinstance(store, Store) or store is None else Store.open(store)
    answerer = OpAnswerer(op, given, software, family, config, store=opened)
    if len(listed) < WORTH_SHOWING:
        found = answerer.ask(listed)
    else:
        with shown(progress) as show:
            show.stage(f"predicting {len(listed):,} problems")
            found = answerer.ask(listed)
    return found[0] if alone else found


def predict_everywhere(
    op: str,
    problem: Mapping[str, Any],
    *,
    software: str | None = None,
    family: str | None = None,
    store: Store | str | Path | None = None,
    config: Mapping[str, Any] | None = None,
) -> list[Prediction]:
    """One problem on every device that models of the op were trained on, the fastest first; `picture` draws them."""
    opened = store if isinstance(store, Store) else Store.open(store)
    names = devices_of(op, family, software, opened)
    if not names:
        what = op if family is None else f"{op} in the family {family}"
        raise NotFound(f"there is no model of {what}: name a device, and its roofline answers")
    found = [predict(op, problem, device=name, software=software, family=family, store=opened, config=config) for name in names]
    return sorted(found, key=lambda item: (item.time_ns is None, item.time_ns or 0.0, item.device))


def picture(found: Sequence[Prediction], form: str = "svg") -> str:
    """Bars of one problem on several devices, with intervals and rooflines, as SVG or as a page (`html`)."""
    if form not in PICTURES:
        raise InvalidValue(f"a picture is {' or '.join(PICTURES)}, got '{form}': name one of these")
    if not found:
        raise InvalidValue("there is nothing to draw: give at least one prediction")
    bars = [
        Bar(item.device, item.time_ns, duration(item.time_ns), item.lower_ns, item.upper_ns, item.roofline_ns, item.basis)
        for item in found
        if item.time_ns is not None
    ]
    title = f"{found[0].op} {assignments(known(found[0].problem))}"
    return PICTURES[form](title, "expected time by device", bars, "roofline")
