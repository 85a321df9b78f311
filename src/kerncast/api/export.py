"""`kerncast.export`: write a model for programs that do not have Python."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

from kerncast.api.results import model_of
from kerncast.api.showing import Wanted, shown
from kerncast.compiling.lower import refuse_several_devices
from kerncast.compiling.overrides import Overrides
from kerncast.device import Device
from kerncast.errors import InvalidValue
from kerncast.exporting import exporter_of, options_of
from kerncast.files.atomic import refuse_existing
from kerncast.models.candidates import refuse_no_candidates
from kerncast.models.model import Model
from kerncast.models.tier import CHOOSING, named_tiers
from kerncast.op import Problem
from kerncast.selecting.offering import Configs, offering
from kerncast.selecting.tiers.build import TierOptions

TIERS = ",".join(CHOOSING)


def export(
    model: Model | str | Path,
    out: str | Path,
    *,
    to: str = "c",
    tiers: str | Sequence[str] = TIERS,
    prefix: str = "kerncast",
    runtime: str | Path | None = None,
    problems: str | Path | Sequence[Problem | Mapping[str, Any]] | None = None,
    loss: float = 0.002,
    max: int = 64,
    configs: Configs | None = None,
    overrides: Overrides | Mapping[str, Any] | str | Path | None = None,
    top_k: int | None = None,
    device: Device | str | None = None,
    device_name: str | None = None,
    progress: Wanted = "auto",
) -> list[Path]:
    """Write a model out, and return the files.

    `c`: one .c and one .h without any dependency beyond libm, a C++17 header, a self-test with golden vectors, CMakeLists.txt
    and a pkg-config file; it chooses exactly what Python chooses. `blob`: one file that a fixed C runtime loads when a program
    runs, with the same answers; the runtime's sources go to the directory `runtime`, if it is given. `json`: a table of
    choices. `csv`: the lines of a linear model, or a folder with the weights of an mlp (`train` reads it back).
    `lookup-table`: a table for `torch._inductor.lookup_table`, with the `top_k` best configs of each problem (1); keys begin
    with `device_name` if it is given. `autoheuristic`: a module for `torch._inductor.autoheuristic`, with `top_k` kernels in
    each leaf (20).

    A model of several devices is bound to one of them, `device`: to its numbers, its dtypes and the configs that worked there.
    A slim model has the full tier alone, for the others are built from measurements.

    `overrides` is an `overrides.toml` (or a mapping of the same form) that says which kernels exist and which choices are
    fixed: the model need not be trained again for it. `configs` are the configs to choose from, instead of those that worked in
    training (see `Selector`); there is only the full tier of them.
    """
    place, exporter = Path(out), exporter_of(to)
    given = {
        "prefix": (prefix, "kerncast"), "tiers": (named_tiers(tiers), CHOOSING), "problems": (problems, None),
        "runtime": (runtime, None), "configs": (configs, None), "overrides": (overrides, None), "top_k": (top_k, None),
        "device_name": (device_name, None), "loss": (loss, TierOptions.loss), "max": (max, TierOptions.most),
    }  # fmt: skip
    options = options_of(exporter, {name: value for name, (value, usual) in given.items() if not _same(value, usual)})
    if top_k is not None and top_k < 1:
        raise InvalidValue(f"`top_k` must be at least 1, got {top_k}")
    exporter.check(place)
    refuse_existing(place)
    loaded = model_of(model)
    if device is not None:
        loaded = loaded.on(device)
    if exporter.one_device:
        refuse_several_devices(loaded)  # before the tiers are built
    with shown(progress) as show:
        if configs is not None:
            loaded = offering(loaded, configs, progress=show)
        refuse_no_candidates(loaded)
        return exporter.write(loaded, place, options, show)


def _same(value: Any, usual: Any) -> bool:
    """Whether an argument is its default; frames cannot be compared with it."""
    return value is usual or (type(value) is type(usual) and bool(value == usual))
