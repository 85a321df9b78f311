"""Asks for the time of each call and adds the times up, with an interval.

Errors of one op go in the same direction more often than not, for one model predicts all its shapes: their intervals are added.
Errors of different ops are taken to be independent: their intervals are added as squares.
"""

from __future__ import annotations

import math
from collections import defaultdict
from collections.abc import Callable, Mapping, Sequence
from dataclasses import replace
from typing import TYPE_CHECKING, Any, TypeAlias

from kerncast.core.device import Device
from kerncast.core.progress import QUIET, Progress
from kerncast.core.software import also_of, told_also
from kerncast.errors import KerncastError
from kerncast.estimating.calls import (
    BETWEEN,
    COLLECTIVES,
    MEMORY_SHARE,
    WORKING,
    KernelCall,
    between_nodes,
    reading_ns,
    roofline_of,
    spans_nodes,
)
from kerncast.estimating.decoder import Decoder, Deployment, Workload
from kerncast.estimating.listing import calls_of
from kerncast.estimating.result import Estimate, Row, memory_of

if TYPE_CHECKING:
    from kerncast.answering.prediction import Prediction

Ask: TypeAlias = "Callable[[str, list[Mapping[str, Any]]], Sequence[Prediction]]"
"""Answers for the problems of an op, in their order."""
LEFT_OUT = ("scheduling", "sampling", "tokenising", "the server's own time on the CPU")
GAPS = "launch gaps"
FROM_MEMORY = "where a table had weights or keys in the device's cache, the time is that of reading them from memory"
PREPARING = "gaps between kernels (they are taken to run as one graph)"


def estimated(
    decoder: Decoder, spread: Deployment, work: Workload, device: Device, ask: Ask, *, imbalance: int = 0,
    launch_ns: float | None = None, progress: Progress = QUIET,
) -> Estimate:  # fmt: skip
    """The estimate of a step on a device; `launch_ns` is the time between launches, or None if the step is one graph."""
    calls = calls_of(decoder, spread, work, imbalance)
    # Models know the links within a node.
    between = [call for call in calls if spans_nodes(call, device)]
    within = [call for call in calls if call not in between]
    answers = _answers(within, ask, progress)
    rows = [_row(call, answers.get(place), device) for place, call in enumerate(within)]
    for call in between:
        # What it takes among the GPUs of one node alone, if a model knows it.
        answer = _alone(ask, call.op or "", {**call.problem, "gpus": device.node_devices})
        alone = None if isinstance(answer, str) or answer.basis != "model" else answer.time_ns
        time = between_nodes(call, device, alone)
        if time is not None:
            why = f"{call.gpus} GPUs are more than a node has, and models know the links of one node only"
            rows.append(_of_call(call, time.time_ns, time.lower_ns, time.upper_ns, "roofline", reason=why))
    if launch_ns is not None:
        rows.append(_gaps(rows, launch_ns))
    step = math.fsum(row.time_ns for row in rows)
    lower, upper = _interval(rows)
    left_out = [*LEFT_OUT, *([] if launch_ns is not None else [PREPARING])]
    if between and BETWEEN not in device.numbers:
        names = ", ".join(dict.fromkeys(call.name for call in between))
        left_out.insert(len(LEFT_OUT), f"communication between nodes ({names}: the profile of {device.name} has no {BETWEEN})")
    return Estimate(
        decoder=decoder,
        device=device.name,
        spread=spread,
        work=work,
        rows=tuple(replace(row, share=row.time_ns / step) for row in rows),
        step_ns=step,
        lower_ns=lower,
        upper_ns=upper,
        memory=memory_of(decoder, calls, spread, work, device),
        left_out=tuple(left_out),
        notes=_notes(decoder, spread, work, rows),
    )


def _answers(calls: Sequence[KernelCall], ask: Ask, progress: Progress) -> dict[int, Prediction | str]:
    """By the place of a call: its answer, or why there is none."""
    places: dict[str, list[int]] = defaultdict(list)
    for place, call in enumerate(calls):
        if call.op is not None:
            places[call.op].append(place)
    found: dict[int, Prediction | str] = {}
    # Communication comes last: it is the server's, which the other ops tell.
    for done, (op, wanted) in enumerate(sorted(places.items(), key=lambda item: item[0] in COLLECTIVES)):
        progress.step("ops", done, len(places))
        try:
            found |= zip(wanted, ask(op, [calls[place].problem for place in wanted]), strict=True)
        except KerncastError:
            # One problem that the op does not take (a format, a size) must not cost the others their model.
            found |= {place: _alone(ask, op, calls[place].problem) for place in wanted}
    return found


def _alone(ask: Ask, op: str, problem: Mapping[str, Any]) -> Prediction | str:
    try:
        (answer,) = ask(op, [problem])
    except KerncastError as error:
        return str(error)
    return answer


def _row(call: KernelCall, answer: Prediction | str | None, device: Device) -> Row:
    reason = "no op describes it" if answer is None else answer if isinstance(answer, str) else answer.reason or None
    basis, model, software, note = "roofline", None, None, None
    if answer is not None and not isinstance(answer, str) and answer.time_ns is not None and _says_more(answer, call):
        time = answer.time_ns
        # A model that extrapolates gives no interval: it is then no surer than a roofline.
        lower = time * WORKING[0] if answer.lower_ns is None else answer.lower_ns
        upper = time * WORKING[1] if answer.upper_ns is None else answer.upper_ns
        least = reading_ns(call, device)
        if time < least:
            time, lower, upper = least, least, max(upper, least / MEMORY_SHARE)
            reason = "; ".join(filter(None, [reason, FROM_MEMORY]))
        basis, model, software, note = answer.basis, answer.model, answer.software, answer.note or None
    else:
        found = roofline_of(call, device)
        # What the answer says besides is about the time that it would have given.
        reason = None if reason is None else reason.partition("; ")[0]
        time, lower, upper = found.time_ns, found.lower_ns, found.upper_ns
        if found.unknown is not None:
            reason = f"{reason}; the profile has no {found.unknown}, which is left out"
    return _of_call(call, time, lower, upper, basis, model=model, software=software, reason=reason, note=note)


def _of_call(
    call: KernelCall, time: float, lower: float, upper: float, basis: str, *, reason: str | None, model: str | None = None,
    software: str | None = None, note: str | None = None,
) -> Row:  # fmt: skip
    """The row of all runs of a call, each of which takes `time`."""
    many = call.count
    return Row(
        name=call.name, op=call.op, problem=call.problem, calls=many, call_ns=time, time_ns=time * many, lower_ns=lower * many,
        upper_ns=upper * many, share=0.0, basis=basis, model=model, software=software, reason=reason, note=note,
    )  # fmt: skip


def _says_more(answer: Prediction, call: KernelCall) -> bool:
    """Whether an answer is better than the roofline here: a model's, or one that knows how kernels miss their rooflines.

    Of kernels that only move data the rule here knows more (benchmarks/passing_kernels.py) than what kernels of any kind do.
    """
    return answer.basis == "model" or (answer.lower_ns is not None and bool(call.flops or call.link_bytes))


def _gaps(rows: Sequence[Row], launch_ns: float) -> Row:
    """What the GPU waits where a kernel is over before the next one is launched."""
    calls = sum(row.calls for row in rows)
    waits = math.fsum(row.calls * max(0.0, launch_ns - row.call_ns) for row in rows)
    shape = {"launch_us": launch_ns / 1e3}
    return Row(GAPS, None, shape, calls, waits / calls, waits, 0.0, launch_ns * calls, 0.0, "launches", None, None, None, None)


def _interval(rows: Sequence[Row]) -> tuple[float, float]:
    below: dict[str, float] = defaultdict(float)
    above: dict[str, float] = defaultdict(float)
    for row in rows:
        kind = row.op or row.basis
        below[kind] += row.time_ns - row.lower_ns
        above[kind] += row.upper_ns - row.time_ns
    step = math.fsum(row.time_ns for row in rows)
    return step - math.hypot(*below.values()), step + math.hypot(*above.values())


def _apart(rows: Sequence[Row]) -> list[str]:
    """What models say besides their answers, each with the ops that it is of if others were answered without it."""
    ops: dict[str, list[str]] = defaultdict(list)
    answered = list(dict.fromkeys(row.op for row in rows if row.op and row.basis == "model"))
    for row in rows:
        for text in told_also([row.note or ""])[0]:
            ops[text] += [row.op] if row.op and row.op not in ops[text] else []
    return [text if names == answered else f"{', '.join(names)}: {text}" for text, names in ops.items()]


def _notes(decoder: Decoder, spread: Deployment, work: Workload, rows: Sequence[Row]) -> tuple[str, ...]:
    notes = list(decoder.assumed)
    if decoder.longest is not None and work.longest > decoder.longest:
        notes.append(
            f"the context of {work.longest:,} tokens is longer than the {decoder.longest:,} that the model was made for"
        )
    notes += _apart(rows)
    _, others = told_also(row.note for row in rows if row.note and row.op not in COLLECTIVES)
    servers = sorted({row.software for row in rows if row.software and row.op not in COLLECTIVES})
    used = {name for row in rows for name in (row.software or "").split(", ")}
    others = [name for name in others if name not in used]
    if len(servers) > 1:
        more = f"; there are also {', '.join(others)}" if others else ""
        notes.append(f"the models are of different software ({', '.join(servers)}{more}): name one with `software`")
    elif others:
        notes.append(also_of(others))
    notes += dict.fromkeys(f"{row.op}: {row.reason}" for row in rows if row.basis == "model" and row.reason)
    for op in dict.fromkeys(row.op for row in rows if row.op and row.basis == "roofline"):
        why = next(row.reason for row in rows if row.op == op and row.basis == "roofline")
        notes.append(f"{op}: by roofline" + (f" ({why})" if why else ""))
    plain = dict.fromkeys(row.name for row in rows if row.op is None and row.basis == "roofline")
    if plain:
        notes.append(f"by roofline, for no model covers them: {'; '.join(plain)}")
    return tuple(notes)
