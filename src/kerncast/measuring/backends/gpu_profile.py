"""Which shipped profile a GPU is, by the name that its driver gives it."""

from __future__ import annotations

from kerncast.core.device import Device
from kerncast.library import devices


def slug(name: str) -> str:
    """A driver's device name as part of an identity: `NVIDIA L40S` is `nvidia_l40s`."""
    return devices.plain(name) or "unknown"


def shipped(*names: str, num_cus: int | None = None) -> Device | None:
    """The profile that one of the names means, or None.

    A name or alias of the profile must occur in it as whole words (`h100` in "NVIDIA H100 80GB HBM3", `gfx942` in
    "gfx942:sramecc+:xnack-"); the longest one decides. Boards of one chip differ in compute units (H100 SXM and PCIe,
    MI300X and MI300A): if the driver reports their number, it must match the profile, or the name must be the whole name.
    """
    spelled = [f"_{devices.plain(name)}_" for name in names]
    found: list[tuple[int, Device]] = []
    for device in devices.profiles().values():
        known = [f"_{devices.plain(name)}_" for name in (device.name, *device.aliases)]
        here = [text for text in known if any(text in name for name in spelled)]
        counted = device.numbers.get("num_cus")
        same = num_cus in (None, counted) or (counted is None and bool(set(here) & set(spelled)))
        if device.kind == "gpu" and here and same:
            found.append((max(map(len, here)), device))
    return max(found, key=lambda item: item[0])[1] if found else None
