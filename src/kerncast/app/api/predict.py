"""`kerncast.predict`: how long an op takes on a device, without a model at hand."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Annotated, Any, overload

from kerncast.answering import compiled as compiled
from kerncast.answering.prediction import OpAnswerer, Prediction, devices_of
from kerncast.app.api.showing import Wanted, shown
from kerncast.core.device import Device
from kerncast.core.io.arguments import Help
from kerncast.core.io.bars import Bar, bars_page, bars_svg
from kerncast.core.io.terminal import assignments, duration, known
from kerncast.data.frames import is_frame
from kerncast.errors import InvalidValue, NotFound, quoted
from kerncast.models.model import Model
from kerncast.models.problem_frames import bare
from kerncast.models.store.store import Store

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
@overload
def predict(
    op: str | bytes | dict[str, Any] | list[Any],
    problems: None = None,
    *,
    software: str | None = None,
    store: Store | str | Path | None = None,
    model: Model | str | Path | Sequence[Model | str | Path] = (),
    strict: bool = False,
    compiled: bool = True,
    progress: Wanted = "auto",
) -> Any: ...
def predict(
    op: str | bytes | dict[str, Any] | list[Any],
    problems: Mapping[str, Any] | Sequence[Mapping[str, Any]] | None = None,
    *,
    device: Annotated[
        Device | str | Path | None,
        Help(
            "The device: a profile (`kerncast list device`), a TOML file with your own profile, or all devices that have "
            "models.",
            metavar="NAME|FILE.toml|all",
            names="devices",
        ),
    ] = None,
    software: Annotated[
        str | None,
        Help(
            "With OP, and for requests that name none: vllm (the newest version there is), vllm==0.24.0, a commit.",
            metavar="NAME",
        ),
    ] = None,
    family: Annotated[str | None, Help("With OP: the family of the model.", metavar="NAME", names="families")] = None,
    store: Annotated[
        Store | str | Path | None,
        Help("The store to look in for OP, ID, or models that cover a request. [default: your own]", metavar="DIR"),
    ] = None,
    config: Annotated[
        Mapping[str, Any] | None,
        Help(
            "The config to predict; repeat for each parameter. For CK Tile: the name of the kernel.",
            metavar="NAME=VALUE|KERNEL",
            several=True,
        ),
    ] = None,
    model: Annotated[
        Model | str | Path | Sequence[Model | str | Path],
        Help(
            "With REQUEST: a model to ask, or its id in the store; may be repeated. [default: all of the store]",
            metavar="DIR|ID",
        ),
    ] = (),
    strict: Annotated[bool, Help("Refuse a REQUEST if no model was trained on the software that it names.")] = False,
    compiled: Annotated[
        bool, Help("Answer a REQUEST in Python even where there is a C compiler.", option="--no-compile")
    ] = True,
    progress: Wanted = "auto",
) -> Any:
    """Predict how long problems of an op take on a device: one problem gives one answer, a list a list.

    A model of your store that covers the problem answers, else one that comes with the package, else the roofline;
    `basis` and `card` say which it was. `device` is the name of a profile, the path of a TOML profile, or a `Device`.
    `software` is a short name (`vllm`, `vllm==0.24.0`). Parameters of which the model saw one value only are filled in
    (`filled`). Without a `config`, the best one that the model knows is predicted.

    Without `problems`, `op` is a JSON request or a list of them, as text, bytes, an object or a list, and the reply has its
    type. Models of the store answer, each the requests that it covers, or the `model` that is given: a model, its folder, or
    its id in the store. Every answer has a status; all but `ok` give a reason and no number.
    """
    if problems is None:
        _refuse_with_request(op, device=device, family=family, config=config)
        from kerncast.app.api.query import query  # it loads what chooses, which a single prediction does not need

        return query(op, model=model, store=store, software=software, strict=strict, compiled=compiled, progress=progress)
    refuse_without_request(model=bool(model), strict=strict, compiled=not compiled)
    if not isinstance(op, str):
        raise InvalidValue(f"`op` is the name of an op, got {type(op).__name__}: a model answers by `model.predict(problems)`")
    if is_frame(problems):
        raise InvalidValue(
            "one problem is a mapping and several are a list of mappings, got a frame: give `frame.to_dicts()`, or ask one "
            "model, which takes frames: `kerncast.open(MODEL).predict(frame)`"
        )
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


def _refuse_with_request(op: object, **others: Any) -> None:
    if isinstance(op, str) and op.lstrip()[:1] not in ("{", "["):
        raise InvalidValue(f"'{quoted(op)}' is no JSON request: if it is an op, name its `problems`, {{'M': 512, …}}, too")
    for name in (name for name, value in others.items() if value):
        where = "asks for the best config" if name == "config" else f"has a key '{name}' of its own"
        raise InvalidValue(f"a JSON request {where}: leave `{name}` out")


def refuse_without_request(**given: bool) -> None:
    """Refuse an argument that is about a JSON request where there is none."""
    for name in (name for name, is_given in given.items() if is_given):
        raise InvalidValue(f"`{name}` is for a JSON request: leave it out")


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
