"""`kerncast.predict`: how long an op takes on a device, without a model at hand; and the answers to JSON requests."""

from __future__ import annotations

import json
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Annotated, Any, overload

import kerncast.answering  # noqa: F401 (Model.predict is compiled by it)
from kerncast.answering.prediction import OpAnswerer, Prediction, devices_of
from kerncast.app.api.arguments import model_of, store_of
from kerncast.app.api.showing import Wanted, shown
from kerncast.core.device import Device
from kerncast.core.io.arguments import Help, listed
from kerncast.data.tables import is_frame
from kerncast.errors import InvalidValue, NotFound, quoted
from kerncast.models.model import Model, is_model
from kerncast.models.problem_frames import bare
from kerncast.models.store.store import Store

# Problems from which on an answer may take longer than a second.
WORTH_SHOWING = 5_000


@overload
def predict(op: str, problems: Mapping[str, Any], *, device: Device | str | Path, **options: Any) -> Prediction: ...
@overload
def predict(
    op: str, problems: Sequence[Mapping[str, Any]], *, device: Device | str | Path, **options: Any
) -> list[Prediction]: ...
@overload
def predict(op: str | bytes | dict[str, Any] | list[Any], problems: None = None, **options: Any) -> Any: ...
def predict(  # type: ignore[misc]  # the overloads name what decides the result, not all options
    op: str | bytes | dict[str, Any] | list[Any],
    problems: Mapping[str, Any] | Sequence[Mapping[str, Any]] | None = None,
    *,
    device: Annotated[
        Device | str | Path | None,
        "The device: a profile (`kerncast list device`), a TOML file with your own profile, or all devices that have models.",
        Help(metavar="NAME|FILE.toml|all", names="devices"),
    ] = None,
    software: Annotated[
        str | None,
        "With OP, and for requests that name none: vllm (the newest version there is), vllm==0.24.0, a commit.",
        Help(metavar="NAME"),
    ] = None,
    family: Annotated[str | None, Help("With OP: the family of the model.", metavar="NAME", names="families")] = None,
    store: Annotated[
        Store | str | Path | None,
        Help("The store to look in for OP, ID, or models that cover a request. [default: your own]", metavar="DIR"),
    ] = None,
    config: Annotated[
        Mapping[str, Any] | None,
        "The config to predict; repeat for each parameter. For CK Tile: the name of the kernel.",
        Help(metavar="NAME=VALUE|KERNEL", several=True),
    ] = None,
    model: Annotated[
        Model | str | Path | Sequence[Model | str | Path],
        "With REQUEST: a model to ask, or its id in the store; may be repeated. [default: all of the store]",
        Help(metavar="DIR|ID"),
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
        if isinstance(op, str) and op.lstrip()[:1] not in ("{", "["):
            raise InvalidValue(f"'{quoted(op)}' is no JSON request: if it is an op, name its `problems`, {{'M': 512, …}}, too")
        for name, value in {"device": device, "family": family, "config": config}.items():
            if value:
                where = "asks for the best config" if name == "config" else f"has a key '{name}' of its own"
                raise InvalidValue(f"a JSON request {where}: leave `{name}` out")
        return _reply(op, model, store, software, strict, compiled, progress)
    refuse_without_request(model=bool(model), strict=strict, compiled=not compiled)
    if not isinstance(op, str):
        raise InvalidValue(f"`op` is the name of an op, got {type(op).__name__}: a model answers by `model.predict(problems)`")
    if not isinstance(problems, Mapping) and is_frame(problems):
        raise InvalidValue(
            "one problem is a mapping and several are a list of mappings, got a frame: give `frame.to_dicts()`, or ask one "
            "model, which takes frames: `kerncast.open(MODEL).predict(frame)`"
        )
    given = str(device) if isinstance(device, Path) else device
    if not isinstance(given, str | Device):
        raise InvalidValue(f"`device` is a name, the path of a profile or a Device, got {type(device).__name__}")
    answerer = OpAnswerer(op, given, software, family, config, store=store_of(store))
    if isinstance(problems, Mapping):
        return answerer.ask([bare(problems)])[0]
    asked = [bare(problem) for problem in problems]
    with shown(progress if len(asked) >= WORTH_SHOWING else False) as show:
        show.stage(f"predicting {len(asked):,} problems")
        return answerer.ask(asked)


def refuse_without_request(**given: bool) -> None:
    """Refuse an argument that is about a JSON request where there is none."""
    for name in (name for name, is_given in given.items() if is_given):
        raise InvalidValue(f"`{name}` is for a JSON request: leave it out")


def predict_everywhere(
    op: str, problem: Mapping[str, Any], *, software: str | None, family: str | None, store: Store, **options: Any
) -> list[Prediction]:
    """One problem on every device that models of the op were trained on, the fastest first."""
    names = devices_of(op, family, software, store)
    if not names:
        what = op if family is None else f"{op} in the family {family}"
        raise NotFound(f"there is no model of {what}: name a device, and its roofline answers")
    options |= {"software": software, "family": family, "store": store}
    found = [predict(op, problem, device=name, **options) for name in names]
    return sorted(found, key=lambda item: (item.time_ns is None, item.time_ns or 0.0, item.device))


def _reply(
    request: str | bytes | dict[str, Any] | list[Any],
    model: Model | str | Path | Sequence[Model | str | Path],
    store: Store | str | Path | None,
    software: str | None,
    strict: bool,
    compiled: bool,
    progress: Wanted,
) -> Any:
    """The reply to JSON requests."""
    # They load what chooses, which a single prediction does not need.
    from kerncast.answering.query import Query, among, in_store
    from kerncast.answering.routes import asking_for

    models = listed(model)
    if models and store is not None and all(isinstance(item, Model) or is_model(Path(item)) for item in models):
        raise InvalidValue("`model` and `store` both say where to look for models: leave one out")
    find = among([model_of(item, store) for item in models], strict) if models else in_store(store_of(store), strict)
    if software is not None:
        find = asking_for(software, find)
    text = request if isinstance(request, str | bytes) else json.dumps(request)
    with shown(progress) as show:
        reply = Query(find, compile=compiled, progress=show).answer(text)
    if isinstance(request, bytes):
        return reply
    return reply.decode() if isinstance(request, str) else json.loads(reply)
