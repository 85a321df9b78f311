"""Which shipped profile a GPU is, by the name that its driver gives it."""

from __future__ import annotations

import re

from kerncast import devices
from kerncast.device import Device


def slug(name: str) -> str:
    """A driver's device name as part of an identity: `NVIDIA L40S` is `nvidia_l40s`."""
    return re.sub(r"[^a-z0-9]+", "_", name.lower()).strip("_") or "unknown"


def shipped(*names: str, num_cus: int | None = None) -> Device | None:
    """The profile that one of the names means, or None.

    A name or alias of the profile must occur in it as a word (`h100` in "NVIDIA H100 80GB HBM3", `gfx942` in
    "gfx942:sramecc+:xnack-"). Boards of one chip differ in compute units (H100 SXM and PCIe, MI300X and MI300A):
    if the driver reports their number, it must match the profile.
    """
    words = {word for name in names for word in re.split(r"[^a-z0-9]+", name.lower())}
    for device in devices.profiles().values():
        known = {device.name, *device.aliases}
        if device.kind == "gpu" and words & known and num_cus in (None, device.numbers.get("num_cus")):
            return device
    return None
