"""What a page needs to know about a model before it can ask it: parameters, ranges, devices, a problem to begin with."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

import msgspec
import numpy as np
import polars as pl

from kerncast.answering.explain import drawn_problems
from kerncast.app.serve.sources import check_device
from kerncast.core.device import Device
from kerncast.core.io.foreign import decode_json
from kerncast.core.parameters import Bool, Categorical, Parameter
from kerncast.core.software import FRAMEWORK, VERSION, short_name
from kerncast.errors import InvalidValue
from kerncast.models.card import card_line
from kerncast.models.limits.trained import Limit
from kerncast.models.manifest import Fact, Range
from kerncast.models.model import Model

Json = dict[str, Any]
# Problems among which a first one is looked for, if the middle of all ranges is none.
TRIED = 64


def model_facts(model: Model) -> Json:
    """Everything about a model that does not depend on a problem."""
    manifest = model.manifest
    return {
        "op": manifest.op,
        "family": model.family.id,
        "kind": manifest.kind,
        "target": manifest.target,
        "card": card_line(model),
        "software": [software_words(text) for text in manifest.software],
        "rows": manifest.data.rows,
        "problems": manifest.data.problems,
        "candidates": model.candidates.height,
        "chooses": bool(model.family.config.parameters),
        "config": list(model.family.config.parameters),
        "devices": [{"name": record.name, "title": record.title} for record in manifest.devices],
        "parameters": [
            parameter_facts(name, parameter, manifest.hull.get(name), manifest.facts.get(name))
            for name, parameter in model.family.problem.parameters.items()
        ],
        "problem": first_problem(model),
        "keeps_measurements": model.out_of_fold is not None,
        "notes": model.notes if model.recorded and not model.slim else [],
    }


def parameter_facts(name: str, parameter: Parameter, seen: Range | None, fact: Fact | None) -> Json:
    """One parameter of a problem: what it may be, and what the model was trained with."""
    found: Json = {
        "name": name, "doc": parameter.doc, "default": parameter.default, "optional": parameter.nullable,
        "absent": parameter.usual_word, "trained": Limit(parameter, seen).words if seen is not None else "",
        "fixed": not is_axis(parameter, seen),
        "kind": "flag" if isinstance(parameter, Bool) else "label" if isinstance(parameter, Categorical) else "size",
    }  # fmt: skip
    if found["kind"] == "size":
        low, high = parameter.number(0), parameter.number(parameter.size - 1)
        found |= {"low": low, "high": high, "step": fact.step if fact is not None and fact.rest == 0 else 1}
        if seen is not None and seen.low is not None and seen.high is not None:
            found |= {"trained_low": seen.low, "trained_high": seen.high}
        return found
    labels = list(seen.labels) if seen is not None and seen.labels else [parameter.value(i) for i in range(parameter.size)]
    return found | {"labels": labels}


def software_words(text: str) -> str:
    """What rows were measured with, for people: a list of names and versions is stored as JSON."""
    try:
        found = decode_json(text.encode(), dict[str, str])
    except msgspec.DecodeError:
        return short_name(text)
    if set(found) == {FRAMEWORK, VERSION}:
        return short_name(text)
    return ", ".join(f"{name} {value}" for name, value in found.items())


def is_axis(parameter: Parameter, seen: Range | None) -> bool:
    """Whether there is more than one trained value to go along."""
    if seen is None or Limit(parameter, seen).only_usual:
        return False
    return len(seen.labels) > 1 or (seen.low is not None and seen.high is not None and seen.low < seen.high)


def first_problem(model: Model) -> Json:
    """A problem from the middle of what the model was trained with: a measured one if it keeps them."""
    columns = [f"problem.{name}" for name in model.family.problem.parameters]
    if model.out_of_fold is not None:
        measured = model.out_of_fold.select(columns).unique(maintain_order=True)
        return _plain(measured.row(_middle(measured), named=True))
    middle = {
        name: _middle_value(parameter, model.manifest.hull.get(name), model.manifest.facts.get(name))
        for name, parameter in model.family.problem.parameters.items()
    }
    drawn = drawn_problems(model, TRIED, np.random.default_rng(0)).iter_rows(named=True)
    for values in ({name: value for name, value in middle.items() if value is not None}, *map(_plain, drawn)):
        try:
            return {name: value for name, value in model.problem(values).items() if value is not None}
        except InvalidValue:
            continue
    return {name: value for name, value in middle.items() if value is not None}


def _plain(row: Mapping[str, Any]) -> Json:
    return {name.removeprefix("problem."): value for name, value in row.items() if value is not None}


def _middle(problems: pl.DataFrame) -> int:
    """The place of the problem whose sizes, multiplied, are the median."""
    sizes = [name for name, kind in problems.schema.items() if kind.is_integer()]
    if not sizes:
        return 0
    product = problems.select(pl.sum_horizontal(pl.col(name).clip(1).log().fill_null(0.0) for name in sizes)).to_series()
    return int(product.arg_sort()[problems.height // 2])


def _middle_value(parameter: Parameter, seen: Range | None, fact: Fact | None) -> Any:
    if seen is not None and seen.labels:
        return parameter.default if parameter.default in seen.labels else seen.labels[0]
    if seen is None or seen.low is None or seen.high is None:
        return parameter.default
    # A power of two near the geometric mean: the commonest kind of size.
    middle = 2 ** round(float(np.log2(max(seen.low, 1)) + np.log2(max(seen.high, 1))) / 2)
    if fact is not None:
        middle = max(fact.step, middle // fact.step * fact.step) + fact.rest
    return parameter.value(parameter.nearest(min(max(middle, seen.low), seen.high)))


def device_of(model: Model, name: str | None) -> Device | str | None:
    """The device that is meant: by name, never by a file; a model of several is asked about its first unless one is named."""
    if name is None:
        return model.device.name if len(model.manifest.devices) > 1 else None
    check_device(name)
    return name
