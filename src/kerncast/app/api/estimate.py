"""`kerncast.estimate`: how long one step of a whole model takes on a device, op by op."""

from __future__ import annotations

import os
from collections.abc import Mapping, Sequence
from dataclasses import replace
from pathlib import Path
from typing import Annotated, Any

from kerncast.answering.prediction import Prediction
from kerncast.app.api.arguments import StoreOf, store_of
from kerncast.app.api.predict import predict
from kerncast.app.api.showing import Wanted, shown
from kerncast.core.device import Device
from kerncast.core.io.arguments import Help
from kerncast.core.progress import Progress
from kerncast.errors import InvalidValue, KerncastError, quoted
from kerncast.estimating.calls import COLLECTIVES
from kerncast.estimating.decoder import checked_deployment, checked_workload
from kerncast.estimating.fields import asked
from kerncast.estimating.reading import read_decoder
from kerncast.estimating.result import Comparison, Estimate
from kerncast.estimating.totals import estimated
from kerncast.library import devices
from kerncast.models.store.store import Store

ALL = "all"
LAUNCH_US = 5.0
LARGEST_IMBALANCE = 10.0


def estimate(
    config: Annotated[str | os.PathLike[str] | Mapping[str, Any], Help(metavar="CONFIG", several=False)],
    *,
    device: Annotated[
        str | Path | Device,
        "The device of which there are `tp` (or `ep`): a profile, your own profile, or all to compare every GPU.",
        Help(metavar="NAME|FILE.toml|all", names="devices", required=True),
    ],
    tp: Annotated[int, Help("GPUs that share each layer (tensor parallelism).", metavar="N")] = 1,
    ep: Annotated[
        int | None, Help("GPUs that share the experts; above `tp`, all but the experts is copied. [default: 1]", metavar="N")
    ] = None,
    batch: Annotated[int, Help("Sequences, on all GPUs together.", metavar="N")] = 1,
    context: Annotated[int, Help("Tokens of each sequence.", metavar="N", required=True)],
    new_tokens: Annotated[
        int | None,
        "decode: tokens to generate [default: 1]; prefill: the last ones of the prompt, the rest is cached [default: all].",
        Help(metavar="N"),
    ] = None,
    phase: Annotated[str, Help("What the step does.", metavar="prefill|decode")] = "decode",
    dtype: Annotated[
        str | None, Help("Format of weights: bf16, fp8, fp8_block, nvfp4, int4_wo … [default: the config's]", metavar="NAME")
    ] = None,
    kv_dtype: Annotated[
        str | None, Help("Element type of the cache: bf16, fp8 … [default: the config's]", metavar="NAME")
    ] = None,
    imbalance: Annotated[
        float, Help("Exponent of the power law of the experts' loads: 1.2 is usual; 0: all have the same load.", metavar="X")
    ] = 0.0,
    software: Annotated[
        str | None, Help("The server whose kernels are meant: vllm, vllm==0.24.0, trtllm, sglang.", metavar="NAME")
    ] = None,
    graphs: Annotated[bool, Help("The kernels of a step are launched one by one, not at once.")] = True,
    launch_us: Annotated[
        float | None, Help("With `graphs=False`: microseconds between two launches. [default: 5.0]", metavar="US")
    ] = None,
    store: StoreOf = None,
    progress: Wanted = "auto",
) -> Estimate | Comparison:
    """Estimate one step of a model: the kernels that it runs on each GPU, and what they add up to.

    `config` is the config.json of a Hugging Face model, the folder that holds it, or what it holds. `device` is the name of a
    profile, the path of a TOML profile, a `Device`, or `all` for a comparison of all GPUs that have a profile. `batch` counts
    sequences, `context` the tokens of each: in decode with the new one, in prefill those of the prompt, the last `new_tokens`
    of which are computed (all, unless it says otherwise). In decode, `new_tokens` is how many are generated; the step is the
    middle one. `tp` GPUs share every layer, `ep` the experts; with `ep` above `tp` there are several copies of everything else.
    `imbalance` is the exponent of a power law of the loads of the experts; 0: all have the same. Without `graphs`, kernels are
    launched one by one, `launch_us` (5) apart at least.
    """
    work = checked_workload(phase, batch, context, new_tokens)
    decoder, unknown_format = read_decoder(config)
    if unknown_format is not None and dtype is None:
        raise InvalidValue(f"{decoder.name}: {unknown_format}")
    decoder = replace(decoder, formats=asked(decoder.formats, dtype, kv_dtype, decoder.has_experts))
    spread = checked_deployment(decoder, tp, ep)
    if not _is_number(imbalance) or not 0 <= imbalance <= LARGEST_IMBALANCE:
        raise InvalidValue(f"`imbalance` must be from 0 to {LARGEST_IMBALANCE:g}, got {quoted(imbalance)}")
    if imbalance and not decoder.has_experts:
        raise InvalidValue(f"`imbalance={imbalance:g}` is about experts, and {decoder.name} has none: leave it out")
    if graphs and launch_us is not None:
        raise InvalidValue("`launch_us` counts only with `graphs=False`: add that, or leave `launch_us` out")
    between = LAUNCH_US if launch_us is None else launch_us
    if not _is_number(between) or not 0 < between < 1e6:
        raise InvalidValue(f"`launch_us` must be above 0 and below a second, got {quoted(between)}")
    if not isinstance(device, str | Path | Device):
        raise InvalidValue(f"`device` is a name, the path of a profile, all or a Device, got {type(device).__name__}")
    opened = None if store is None else store_of(store)

    def on(one: Device) -> Estimate:
        return estimated(
            decoder, spread, work, one, _StepQuestions(one, software, opened, show), progress=show,
            imbalance=round(imbalance * 100),  # as the op `moe` has it: a whole number of hundredths
            launch_ns=None if graphs else between * 1e3,
        )  # fmt: skip

    with shown(progress) as show:
        if device != ALL:
            return on(device if isinstance(device, Device) else devices.get(str(device)))
        found, refused = [], {}
        gpus = [one for one in devices.profiles().values() if one.kind == "gpu" and not devices.names_an_architecture(one)]
        for number, one in enumerate(gpus):
            show.stage(one.name, number + 1, len(gpus))
            try:
                found.append(on(one))
            except KerncastError as error:
                refused[one.name] = str(error)
    if not found:
        raise InvalidValue(f"no device could be estimated: {next(iter(refused.values()), 'there is no profile of a GPU')}")
    return Comparison(tuple(sorted(found, key=lambda item: (item.step_ns, item.device))), refused)


def _is_number(value: object) -> bool:
    return isinstance(value, int | float) and not isinstance(value, bool)


class _StepQuestions:
    """Asks about the ops of one step on one device: models of one server, where it has them."""

    def __init__(self, device: Device, software: str | None, store: Store | None, show: Progress) -> None:
        self.device, self.software, self.store, self.show = device, software, store, show
        self.server: str | None = None
        """Without `software`: that of the model that answered first."""

    def __call__(self, op: str, problems: list[Mapping[str, Any]]) -> Sequence[Prediction]:
        if op in COLLECTIVES:
            return self._shared(op, problems)
        if self.software is not None:
            return self._predict(op, problems, self.software)
        if self.server is not None:
            found = self._predict(op, problems, self.server)
            if all((item.software or "").startswith(self.server) for item in found):
                return found
        found = self._predict(op, problems, None)
        first = next((item.software for item in found if item.software), "")
        self.server = self.server or first.partition("==")[0] or None
        return found

    def _shared(self, op: str, problems: list[Mapping[str, Any]]) -> Sequence[Prediction]:
        """Communication: of a server that has a kernel of its own for it, else of the library that servers share."""
        found = self._predict(op, problems, self.software or self.server)
        if all(item.basis == "model" for item in found):
            return found
        shared = self._predict(op, problems, None)
        return [own if own.basis == "model" else replace(other, note="") for own, other in zip(found, shared, strict=True)]

    def _predict(self, op: str, problems: list[Mapping[str, Any]], software: str | None) -> Sequence[Prediction]:
        return predict(op, problems, device=self.device, software=software, store=self.store, progress=self.show)
