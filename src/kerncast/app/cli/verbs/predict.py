"""`kerncast predict`."""

from __future__ import annotations

import difflib
import json
import os
import re
import sys
from collections.abc import Sequence
from dataclasses import replace
from pathlib import Path
from typing import Annotated, Any, TypeVar

from kerncast.answering.prediction import Prediction
from kerncast.app.api.arguments import model_of
from kerncast.app.api.predict import predict, predict_everywhere, refuse_without_request
from kerncast.app.api.showing import echo, echo_exactly
from kerncast.app.cli.verb import VerbCall, verb
from kerncast.app.cli.views import (
    ConfigsOf,
    Json,
    ProblemText,
    answer_table,
    assignments,
    checked_problems,
    device_of,
    parse_assignments,
    print_json,
    read_problems,
    steps,
    table,
)
from kerncast.core.io.arguments import Help
from kerncast.core.io.foreign import JSON
from kerncast.core.io.terminal import json_printable, known
from kerncast.core.op import Family
from kerncast.core.space import Value
from kerncast.errors import BadFile, InvalidValue, NotFound
from kerncast.library.registry import OPS
from kerncast.measuring.sweeping.selection import Named, reader
from kerncast.models.answer import Answer, Answered, without_choice
from kerncast.models.model import Model, is_model
from kerncast.models.store.find import only_group
from kerncast.models.store.store import Store

Told = TypeVar("Told", "Answer", "Prediction")
ALL = "all"


@verb("predict", predict)
def predict_verb(
    call: VerbCall,
    name: Annotated[str, Help(metavar="OP|MODEL|ID|REQUEST", names="models_and_ops")],
    problem: ProblemText = (),
    *,
    configs: ConfigsOf = None,
    as_json: Json = False,
) -> None:
    """Predict how long a problem takes on a device, with a 90 % interval; you need neither the device nor data.

    With OP, a model of your store that covers the problem answers, else one that ships with kerncast, else the roofline
    of the device. The answer says which. You may leave out parameters of which the model saw one value only. If there are
    configs to choose from, the best one is predicted, unless --config names one.
    A file of problems (.json or .parquet) gives a list; `config.*` columns of a parquet file are ignored.
    A model of at least three devices (`train --pool`) also answers for a device without measurements, from the numbers of
    its profile. The interval is wider for devices that are less like the measured ones.

    REQUEST is JSON, a file FILE.json that holds it, or - for standard input: an object gets one answer, a list gets a list.
    The status of an answer is ok, out_of_range, unsupported, bad_input, no_model or corrupt; all but ok give a reason, and
    the exit code is 1. `basis` and `entry` in the reply say what answered. The first request to a model of your store
    compiles it, which takes a few seconds. After that, a list of 10,000 takes a few hundredths of a second, or a few tenths
    if several models of parts of an op answer it.

    \b
    kerncast predict gemm M=4096 N=4096 K=4096 dtype=bf16 --device h100
    kerncast predict gemm M=4096 N=4096 K=4096 dtype=bf16 --device all
    kerncast predict gemm M=4096 N=4096 K=4096 dtype=bf16 --device mygpu.toml --software vllm --json
    kerncast predict exp --device wormhole_b0 dim2=1024 dim3=1024 dtype=bf16 buffer=l1
    kerncast predict pooled M=128 N=1536 K=7168 dtype=fp8 layout=rcr --device mygpu.toml
    kerncast predict model M=128 N=512 K=512 dtype=fp32 layout=rrr --config tile_m=64 --config tile_n=64 …
    kerncast predict '{"op": "exp", "tensor": {"shape": [1, 1, 1024, 1024], "dtype": "bfloat16",
                       "memory": {"buffer": "L1"}}, "device": "wormhole_b0"}'
    kerncast predict requests.json --model exp_model > replies.json
    """
    device, config = call["device"], call["config"]
    if config and configs is not None:
        raise InvalidValue("--config names one config and --configs several to choose from: leave one of them out")
    if not problem and is_request(name):
        if configs is not None:
            raise InvalidValue("--configs does not go with a JSON request: leave it out")
        _by_request(call, name, as_json)
        return
    refuse_without_request(model=bool(call["model"]), strict=call["strict"], compiled=not call["compiled"])
    if _is_op(name) and configs is None:
        _by_op(call, name, problem, as_json)
        return
    if device == ALL:
        raise InvalidValue("--device all asks all models of an op: name the op, or one device")
    _by_model(_model(name, call), problem, device, config, configs, as_json)


def is_request(text: str) -> bool:
    """Whether it is JSON, a file of JSON, or standard input."""
    return text == "-" or text.lstrip()[:1] in ("{", "[") or (text.endswith(".json") and not Path(text).is_dir())


def _by_request(call: VerbCall, text: str, as_json: bool) -> None:
    """Answer JSON requests, which is printed as it came unless `--json` asks for lines."""
    if text == "-":
        data = JSON.taken(sys.stdin.buffer, "what was given on stdin")
    elif text.lstrip()[:1] in ("{", "["):
        data = os.fsencode(text)  # bytes that are not UTF-8 are refused by the parser
    else:
        try:
            data = JSON.read(Path(text))
        except OSError as error:
            why = f"'{text}' is neither JSON nor a readable file ({error.strerror}): JSON begins with {{ or ["
            raise BadFile(why) from error
    with steps() as progress:
        reply = call(op=data, progress=progress)
    answers = json.loads(reply)
    if as_json:
        print_json(answers)
    else:
        echo_exactly(json_printable(reply.decode()))
    if any(answer["status"] != "ok" for answer in (answers if isinstance(answers, list) else [answers])):
        raise SystemExit(1)


def _is_op(name: str) -> bool:
    if is_model(Path(name)):
        return False
    try:
        OPS.alone(name)
    except NotFound:
        return False
    return True


def _by_op(call: VerbCall, name: str, problem: Sequence[str], as_json: bool) -> None:
    """Ask the models of an op."""
    from kerncast.answering.prediction import OpAnswerer, devices_of
    from kerncast.app.cli.views import show_devices, show_predictions

    device, software, family = call["device"], call["software"], call["family"]
    opened = Store.open(call["store"])
    known_devices = devices_of(name, family, software, opened) if device == ALL else []
    where = next(iter(known_devices), "") if device == ALL else device or _only_device(name, opened)
    own = OpAnswerer(name, where, software, family, store=opened).family
    given, listed = read_problems(problem, own)
    device_of(given, where or None, own)
    chosen, kernel = _chosen(call["config"], own)
    options: dict[str, Any] = {"software": software, "family": family, "store": opened, "config": chosen or None}
    if device == ALL:
        if len(given) != 1:
            raise InvalidValue(f"--device all compares devices on one problem, got {len(given):,}: name a device, or a problem")
        found = predict_everywhere(name, given[0], **options)
    else:
        found = predict(name, given, device=where, **options)
    found = [_unless_unbuilt(item, kernel) for item in found]
    if as_json:
        print_json([item.as_json() for item in found] if listed or device == ALL else found[0].as_json())
    elif device == ALL:
        show_devices(found)
    else:
        show_predictions(found, listed)
    if not all(item.ok for item in found) and device != ALL:
        raise SystemExit(1)


def _only_device(op: str, store: Store) -> str:
    """The device of the user's models, if it is one."""
    known = sorted({name for entry in store.entries(OPS.alone(op).name) for name in entry.record.devices})
    if len(known) != 1:
        there = f"your store has models of {op} for {', '.join(known)}" if known else f"your store has no model of {op}"
        raise InvalidValue(f"{there}: name the device with --device (`kerncast list device` lists profiles), or --device all")
    return known[0]


def _model(name: str, call: VerbCall) -> Model:
    """The model of a folder or an id; of an op, the one that is found for it."""
    family, device, software, store = (call[option] for option in ("family", "device", "software", "store"))
    if _is_op(name):
        return only_group(name, family, device, software, store=Store.open(store)).only({}).load()
    if family is not None or software is not None:
        raise InvalidValue(f"--family and --software choose among the models of an op, and '{name}' is no op: leave them out")
    if store is not None and is_model(Path(name)):
        raise InvalidValue(f"--store is where an op or an id is looked up, but '{name}' is a folder: leave it out")
    try:
        return model_of(name, store)
    except NotFound as error:
        raise NotFound(f"{error}{_like(name)}") from error


def _like(name: str) -> str:
    """The ops that a name may have meant, for the end of an error."""
    ops = sorted({text for op in OPS for text in (op.name, *op.aliases)})
    near = [text for text in ops if name.lower() in text] if len(name) > 2 else []
    near = near or difflib.get_close_matches(name.lower()[:100], ops)
    return f"; or did you mean the op {', '.join(near[:5])}?" if near else "; `kerncast list op` lists the ops"


def _by_model(
    model: Model, problem: Sequence[str], device: str | None, config: Sequence[str] | None, configs: str | None, as_json: bool
) -> None:
    """Ask one model."""
    given, listed = read_problems(problem, model.family)
    device = device_of(given, device, model.family)
    chosen, kernel = _chosen(config, model.family)
    asked = checked_problems(given, model)
    if configs is None and (device is not None or len(model.manifest.devices) > 1 or not model.family.config.parameters):
        found = model.predict(asked, chosen or None, device=device)
    elif chosen:
        found = model.predict(asked, chosen)
    else:
        own = model if device is None else model.on(device)
        # No tier is needed here, so none is built, and the answer comes at once.
        from kerncast.answering.selector import Selector
        from kerncast.native.tiers.build import plain_tiers

        tiers = plain_tiers(own) if own.candidates.height else None
        found = Selector(own, tiers=tiers, tier="full", compile=False, configs=configs).select_many(asked, "full")
    answers = [_unless_unbuilt(without_choice(model.family, answer), kernel) for answer in found]
    if as_json:
        rows: list[Any] = [answer.as_json() for answer in answers]
        print_json(rows if listed else rows[0])
    else:
        columns, cells, numbers = answer_table(answers, choice=False)
        cells = [[assignments(known(item.problem)), *row] for row, item in zip(cells, answers, strict=True)]
        table(("problem", *columns), cells, right=numbers)
        for said in dict.fromkeys(text for answer in answers for text in (answer.reason, answer.note) if text):
            echo(said)
    if not all(answer.ok for answer in answers):
        raise SystemExit(1)


def _unless_unbuilt(answer: Told, kernel: Named | None) -> Told:
    """The answer, unless the kernel that was named is built for other problems."""
    why = None if kernel is None else kernel.refusal(answer.problem)
    if why is None:
        return answer
    told: dict[str, Any] = {"status": Answered.UNSUPPORTED, "reason": why, "note": "", "config": None}
    told |= dict.fromkeys(("time_ns", "lower_ns", "upper_ns"))
    if isinstance(answer, Prediction):
        told |= {"status": str(Answered.UNSUPPORTED), "basis": "none", "model": None, "card": ""}
        told |= dict.fromkeys(("tflops", "bandwidth_gb_s"))
    return replace(answer, **told)


def _chosen(given: Sequence[str] | None, family: Family) -> tuple[dict[str, Value], Named | None]:
    """The config by its parameters, or by the name of its kernel, and that kernel."""
    if not given:
        return {}, None
    if len(given) == 1 and "=" not in given[0]:
        kernel = reader(family)(given[0])
        return dict(kernel.config), kernel
    if joined := next((text for text in given if re.search(r",\s*\w+=", text)), None):
        raise InvalidValue(
            f"--config takes one parameter, got '{joined}': repeat it, --config {joined.replace(',', ' --config ')}"
        )
    chosen = parse_assignments(given, dict(family.config.parameters))
    unknown = sorted(set(chosen) - set(family.config.parameters))
    if unknown:
        raise NotFound.named(f"config parameter of {family.id}", unknown[0], family.config.parameters)
    return chosen, None
