"""The rates of a device that the times of an op are learned relative to: which are known, and what it costs if one is not.

A rate that a profile lacks is estimated from the fastest rows of the data (`learning.feature_rows`).
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence

from kerncast.core import dtypes
from kerncast.core.device import PEAK, Device, hardware_namespace
from kerncast.core.expr import Program, Symbol
from kerncast.core.op import Family

BANDWIDTH = "memory_bandwidth_gb_s"
# What the rows of one device can say. The rate of its links is another matter: other devices take part.
ESTIMATED = (PEAK, BANDWIDTH)


def read(family: Family) -> tuple[str, ...]:
    """The hardware numbers that the roofline of a family is computed from; none if its work is not known."""
    work = family.work(family.op.namespace())
    if work is None:
        return ()
    symbols = Program({"it": work.roofline_ns(hardware_namespace())}).symbols
    return tuple(sorted(item.name.removeprefix("hw.") for item in symbols if item.name.startswith("hw.")))


def unknown(family: Family, device: Device, used: Iterable[str] | None = None) -> tuple[str, ...]:
    """The rates that a roofline needs and a profile lacks: numbers by their name, peak rates by their dtype.

    `used` are the dtypes that occur, all that the op takes if left out.
    """
    found = []
    for name in read(family):
        if name != PEAK:
            found += [] if name in device.numbers else [name]
        elif family.op.dtype is None:
            found += [] if dtypes.IMPLIED in device.peak_tflops else [dtypes.IMPLIED]
        else:
            assert isinstance(family.op.dtype.payload, Symbol)
            labels = [label for label, _ in family.op.dtype.payload.codes] if used is None else sorted(used)
            found += [label for label in labels if device.peak_of(label) is None]
    return tuple(found)


def notes(family: Family, machines: Mapping[Device, Iterable[str] | None], *, own: bool) -> list[str]:
    """What the roofline of a family lacks, and what that costs, a sentence each; `machines` are with the dtypes that occur.

    Of an op that is not the user's `own`, only what the devices lack is said.
    """
    op, lines = family.op.name, []
    if own and not read(family):
        lines.append(
            f"{op} declares no work: times are learned as they are, not relative to a roofline, and err more the further sizes "
            "lie apart; declare its flops and bytes (`work` under [op], docs/command.md)"
        )
    if own and family.op.dtype is None and PEAK in read(family):
        lines.append(
            f"{op} has no dtype, so its arithmetic counts as {dtypes.IMPLIED}: if it is another, declare it "
            '(`dtype = ["fp16"]` under [op.problem])'
        )
    alike: dict[tuple[str, ...], list[Device]] = {}
    for device, used in machines.items():
        alike.setdefault(unknown(family, device, used), []).append(device)
    return lines + [_lacking(op, names, found) for names, found in alike.items() if names]


def _lacking(op: str, names: tuple[str, ...], machines: Sequence[Device]) -> str:
    """What the profiles of some devices lack, with what was estimated."""
    device, *others = machines
    of = f"the profile of {device.name} has no {words(names)}"
    if others:
        of = f"the profiles of {', '.join(item.name for item in machines)} have no {words(names)}"
    if any(name not in (BANDWIDTH, *dtypes.CODES) for name in names):
        return f"{of}: times of {op} are learned as they are, not relative to a roofline; add it to a profile of your own"
    told = [] if others else [amount(name, device.estimated[name]) for name in names if name in device.estimated]
    how = f"{' and '.join(told)}, which the fastest rows reached" if told else "what the fastest rows reach"
    return (
        f"{of}: times of {op} are learned relative to {how}; answers have no roofline beside them, rows that are too fast are "
        "not found, and no other device can be asked about, until a profile of your own has it (docs/devices.md)"
    )


def words(names: Sequence[str]) -> str:
    """Rates in words: `memory_bandwidth_gb_s and peak rate of fp32`."""
    peaks = [name for name in names if name in dtypes.CODES]
    others = [name for name in names if name not in dtypes.CODES]
    return " and ".join([*others, *([f"peak rate of {', '.join(peaks)}"] if peaks else [])])


def amount(name: str, value: float) -> str:
    """One rate with its unit."""
    return f"{value:.3g} TFLOPS of {name}" if name in dtypes.CODES else f"{value:.3g} GB/s"
