"""Golden predictions of the shipped models: what each said on the machine that built it, for problems made by a rule.

    kerncast regenerate shipped --tables … --out src/kerncast/library/shipped
    python releasing/golden.py src/kerncast/library/shipped      # writes them beside each model

The problems are not rows of the tables. Sizes lie between the smallest and the largest that the model has seen, evenly in their
logarithms; a test asks the model again, so that no change of features, trees or arithmetic passes unseen.
"""

from __future__ import annotations

import sys
from pathlib import Path
from typing import Any

import msgspec
import numpy as np

from kerncast.core.io.artefact import json_text
from kerncast.core.io.foreign import read_json
from kerncast.errors import BadFile, InvalidValue, KerncastError
from kerncast.models.manifest import MANIFEST, Range
from kerncast.models.model import Model

GOLDEN = "golden.json"
PER_DEVICE = 6
DRAWS = 4000
# Sums of the same trees: only the last bits of `exp` may differ between machines.
TOLERANCE = 1e-9


class Golden(msgspec.Struct, frozen=True, forbid_unknown_fields=True):
    """One prediction."""

    device: str
    problem: dict[str, Any]
    time_ns: float


def golden_predictions(model: Model, seed: int = 0) -> list[Golden]:
    """Some predictions on every device of a model, for problems inside what it has seen there."""
    rng = np.random.default_rng(seed)
    found: list[Golden] = []
    for record in model.manifest.devices:
        own = model.on(record.name) if len(model.manifest.devices) > 1 else model
        kept = 0
        for _ in range(DRAWS):
            problem = {name: _drawn(seen, rng) for name, seen in own.manifest.hull.items()}
            try:
                answer = own.predict(problem)
            except KerncastError:  # it breaks a rule of the op: heads that are no multiple of the key heads
                continue
            if answer.status == "ok" and answer.time_ns is not None:
                found.append(Golden(record.name, problem, float(answer.time_ns)))
                kept += 1
                if kept == PER_DEVICE:
                    break
        if not kept:
            raise InvalidValue(f"no drawn problem is inside what {model.path} has seen on {record.name}: it cannot be checked")
    return found


def _drawn(seen: Range, rng: np.random.Generator) -> Any:
    if seen.labels:
        return seen.labels[int(rng.integers(len(seen.labels)))]
    assert seen.low is not None
    assert seen.high is not None
    share = float(rng.integers(9)) / 8.0
    between = (seen.low + 1.0) ** (1.0 - share) * (seen.high + 1.0) ** share - 1.0
    # Powers of two between the ends satisfy the rules of most ops: head counts, alignments, shares of experts.
    power = 0 if between < 1.0 else 2 ** round(float(np.log2(between)))
    return int(min(max(power, seen.low), seen.high))


def write_golden(model: Model, folder: Path) -> int:
    """Write the golden predictions of a model beside it; returns how many there are."""
    found = golden_predictions(model)
    (folder / GOLDEN).write_bytes(json_text(found))
    return len(found)


def check_golden(folder: Path) -> list[str]:
    """What a model in a folder now says differently from its golden predictions; empty if nothing."""
    file = folder / GOLDEN
    try:
        stored = msgspec.convert(read_json(file), list[Golden])
    except (OSError, msgspec.DecodeError) as error:
        raise BadFile(f"{file} is damaged ({error}): build the model again") from error
    model, wrong = Model.load(folder), []
    for device in dict.fromkeys(golden.device for golden in stored):
        asked = [golden for golden in stored if golden.device == device]
        for golden, answer in zip(asked, model.predict([item.problem for item in asked], device=device), strict=True):
            if answer.time_ns is None or abs(answer.time_ns - golden.time_ns) > TOLERANCE * golden.time_ns:
                told = f"{answer.time_ns} ns instead of {golden.time_ns} ns"
                wrong.append(f"{folder.name} on {device}, {golden.problem}: {told}")
    return wrong


if __name__ == "__main__":
    for manifest in sorted(Path(sys.argv[1]).glob(f"*/{MANIFEST}")):
        print(manifest.parent.name, write_golden(Model.load(manifest.parent), manifest.parent))
